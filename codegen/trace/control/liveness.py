"""Which variables that a loop binds are read after it: what a compiled loop must hand on.

In: the statements of a function, its exits lowered. Out: every loop has `kept`, their names.
Always holds: a name may be listed that nobody reads, never the other way round.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from codegen.trace.control.exits import Stmts, blocks, own_nodes

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_READ, _BOUND = "read", "bound"

Events = dict[str, str]  # by variable: what happens to it first
BoundNames = Callable[[Sequence[ast.AST]], Iterator[str]]


def annotate(body: Stmts, bound_names: BoundNames) -> None:
    """Give the loops of a function their `kept`."""
    inner = [n for n in own_nodes(body) if isinstance(n, _SCOPES)]
    always = {n.id for scope in inner for n in ast.walk(scope) if isinstance(n, ast.Name)}

    def visit(block: Stmts, after: list[Events]) -> None:
        later: Events = {}  # what happens first from here to the end of the block
        for s in reversed(block):
            rest = [later, *after]
            if isinstance(s, _LOOPS):
                names = dict.fromkeys(bound_names([s]))
                s.kept = tuple(  # type: ignore[union-attr]
                    n for n in names
                    if n in always or next((e[n] for e in rest if n in e), "") == _READ
                )  # fmt: skip
                head: list[ast.AST] = [s.test] if isinstance(s, ast.While) else []
                rest = [_first([*head, *s.body]), *rest]  # the next turn
            if not isinstance(s, _SCOPES):
                for inside in blocks(s):
                    visit(inside, rest)
            later.update(_events(s))

    visit(body, [])


def _first(nodes: Sequence[ast.AST]) -> Events:
    """What happens to variables first: they are read, or bound; where neither is sure they are
    left out."""
    out: Events = {}
    for node in reversed(nodes):
        out.update(_events(node))
    return out


def _events(node: ast.AST) -> Events:
    """What a statement does to variables first."""
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
    """The variables in a piece of code; with "read", those that it does not only bind."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)
            and not (event == _READ and isinstance(n.ctx, ast.Store))}  # fmt: skip


def _targets(node: ast.Assign) -> Iterator[ast.expr]:
    for target in node.targets:
        yield from target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
