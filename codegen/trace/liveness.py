"""Which variables that a loop binds are read after it: what a compiled loop must hand on.

In: the statements of a function, its exits lowered. Out: every loop has `kept`, their names.
Always holds: a name may be listed that nobody reads, never the other way round.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from codegen.trace.exits import Stmts, blocks, own_nodes

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_READ, _BOUND = "read", "bound"

BoundNames = Callable[[Sequence[ast.AST]], Iterator[str]]


def annotate(body: Stmts, bound_names: BoundNames) -> None:
    """Give the loops of a function their `kept`."""
    inner = [n for n in own_nodes(body) if isinstance(n, _SCOPES)]
    always = {n.id for scope in inner for n in ast.walk(scope) if isinstance(n, ast.Name)}

    def visit(block: Stmts, after: list[Sequence[ast.AST]]) -> None:
        for k, s in enumerate(block):
            rest = [block[k + 1 :], *after]
            if isinstance(s, _LOOPS):
                head: list[ast.AST] = [s.test] if isinstance(s, ast.While) else []
                names = dict.fromkeys(bound_names([s]))
                s.kept = tuple(  # type: ignore[union-attr]
                    n for n in names if n in always or _first(n, rest) == _READ
                )
                rest = [[*head, *s.body], *rest]  # the next turn
            if not isinstance(s, _SCOPES):
                for inside in blocks(s):
                    visit(inside, rest)

    visit(body, [])


def _first(name: str, parts: Sequence[Sequence[ast.AST]]) -> str:
    """What happens to a variable first: it is read, or bound; "" where neither is sure."""
    for nodes in parts:
        for node in nodes:
            if found := _event(name, node):
                return found
    return ""


def _event(name: str, node: ast.AST) -> str:
    touched = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name]
    if not touched:
        return ""
    if isinstance(node, ast.Assign):
        target = any(isinstance(t, ast.Name) and t.id == name for t in _targets(node))
        reads = any(isinstance(n.ctx, ast.Load) for n in touched)
        return _READ if reads else _BOUND if target else ""
    if isinstance(node, ast.If):
        if _event(name, node.test):
            return _READ
        arms = [_first(name, [block]) for block in (node.body, node.orelse)]
        return _READ if _READ in arms else _BOUND if arms == [_BOUND, _BOUND] else ""
    if isinstance(node, ast.For) and not _event(name, node.iter):
        bound = any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.target))
        inside = "" if bound else _first(name, [node.body, node.orelse])
        return _READ if inside == _READ else ""
    if isinstance(node, ast.While) and not _event(name, node.test):
        return _READ if _first(name, [node.body, node.orelse]) == _READ else ""
    return _READ if any(not isinstance(n.ctx, ast.Store) for n in touched) else ""


def _targets(node: ast.Assign) -> Iterator[ast.expr]:
    for target in node.targets:
        yield from target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
