"""Liveness of a function's variables: which of them loops and branches bind that are read later.

In: statements, their exits lowered. Out: every loop and `if` has `live_out`, the variables that it
binds and that are read after it; every loop has `private`, those that each iteration binds before
it reads them. Always holds: `live_out` may have names too many, and `private` names too few, never
the other way round.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from codegen.trace.control.exits import LOOPS, SCOPES, Stmts, blocks, own_nodes

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_READ, _BOUND = "read", "bound"

Events = dict[str, str]  # by variable: what happens to it first


def bound_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names that the nodes bind, or rebind, in the function around them."""
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
            continue
        elif isinstance(node, ast.Lambda):
            continue
        elif isinstance(node, _COMPREHENSIONS):
            for inner in ast.walk(node):
                if isinstance(inner, ast.NamedExpr) and isinstance(inner.target, ast.Name):
                    yield inner.target.id
            continue
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        yield from bound_names(list(ast.iter_child_nodes(node)))


def loaded_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names that are read anywhere in the nodes, nested functions included."""
    for top in nodes:
        for node in ast.walk(top):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.id


def nonlocals(nodes: Sequence[ast.AST], deep: bool = True) -> Iterator[str]:
    """Yield the names that the nodes, and where `deep` those below them, declare nonlocal."""
    for top in nodes:
        for node in ast.walk(top) if deep else (top,):
            if isinstance(node, ast.Nonlocal):
                yield from node.names


def chain(node: ast.expr) -> tuple[str, list[Any]]:
    """Return the name and the attributes and constant keys that lead to a thing: `s`, ["a", 0] of
    s.a[0]; no name where anything else does."""
    if isinstance(node, ast.Name):
        return node.id, []
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        name, steps = chain(node.value)
        if isinstance(node, ast.Attribute):
            return name, [*steps, node.attr]
        if isinstance(node.slice, ast.Constant):
            return name, [*steps, node.slice.value]
    return "", []


# ---- what is read after a loop -----------------------------------------------------------------


def annotate(body: Stmts) -> None:
    """Set `live_out`, `private` and `live` of the loops of a function, and `live_out` of its ifs.

    live: variables that an iteration binds and that a later one, or code after the loop, reads."""
    inner = [n for n in own_nodes(body) if isinstance(n, SCOPES)]
    always = {n.id for scope in inner for n in ast.walk(scope) if isinstance(n, ast.Name)}

    def visit(block: Stmts, after: list[Events]) -> None:
        later: Events = {}  # what happens first from here to the end of the block
        for s in reversed(block):
            rest = [later, *after]
            if isinstance(s, (*LOOPS, ast.If)):
                names = dict.fromkeys(bound_names([s]))
                s.live_out = tuple(  # type: ignore[union-attr]
                    n for n in names
                    if n in always or next((e[n] for e in rest if n in e), "") == _READ
                )
            if isinstance(s, LOOPS):
                head: list[ast.AST] = [s.test] if isinstance(s, ast.While) else []
                iteration = _first([*head, *s.body])
                live_out: tuple[str, ...] = s.live_out  # type: ignore[union-attr]
                s.private = tuple(  # type: ignore[union-attr]
                    n for n in names if n not in always and not n.startswith("__")
                    and (iteration.get(n) == _BOUND or (n not in iteration and n not in live_out))
                )
                own = _names(s.target) if isinstance(s, ast.For) else set()
                # each iteration binds the loop variable anew
                again = {n: e for n, e in iteration.items() if n not in own}
                s.live = tuple(  # type: ignore[union-attr]
                    n for n in names if n in always or n.startswith("__")
                    or next((e[n] for e in (again, *rest) if n in e), "") == _READ
                )
                # The next iteration, or none: what it binds may still be read behind the loop.
                rest = [{n: e for n, e in iteration.items() if e == _READ}, *rest]
            if not isinstance(s, SCOPES):
                for inside in blocks(s):
                    visit(inside, rest)
            later.update(_events(s))

    visit(body, [])


def _first(nodes: Sequence[ast.AST]) -> Events:
    """Return, for each variable, what happens to it first: it is read, or bound. It is left out
    where that is not certain."""
    out: Events = {}
    for node in reversed(nodes):
        out.update(_events(node))
    return out


def _events(node: ast.AST) -> Events:
    """Return the first event of each variable in a statement: it is read, or bound."""
    if isinstance(node, ast.If):
        arms = [_first(node.body), _first(node.orelse)]
        bound = arms[0].keys() & arms[1].keys()
        read = {n for arm in arms for n, e in arm.items() if e == _READ} | _names(node.test, _READ)
    elif isinstance(node, (ast.For, ast.While)):
        bound = set()
        inside = _first([*node.body, *node.orelse])
        own = _names(node.target) if isinstance(node, ast.For) else set()
        head = node.iter if isinstance(node, ast.For) else node.test
        read = {n for n, e in inside.items() if e == _READ} - own | _names(head, _READ)
    else:
        targets = _targets(node) if isinstance(node, ast.Assign) else ()
        bound = {t.id for t in targets if isinstance(t, ast.Name)}
        read = _names(node, _READ)
    return dict.fromkeys(bound, _BOUND) | dict.fromkeys(read, _READ)


def _names(node: ast.AST, event: str = "") -> set[str]:
    """Return the variables in a piece of code; with "read", those that it does not only bind."""
    nodes = list(ast.walk(node))
    reads = {id(n.target) for n in nodes if isinstance(n, ast.AugAssign)}
    return {n.id for n in nodes if isinstance(n, ast.Name)
            and not (event == _READ and isinstance(n.ctx, ast.Store) and id(n) not in reads)}


def _targets(node: ast.Assign) -> Iterator[ast.expr]:
    for target in node.targets:
        yield from target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
