"""break, continue and early return as flags, so that the statements around them may be captured.

`if c: return a` followed by a rest becomes an `if` with the rest in its other arm; where that does
not reach, the rest is guarded by the flags. Every flag is a plain bool on plain Python values.
Always holds: the result runs as the input does; positions are those of the input.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

RETURNED = "__returned__"  # whether the function has returned
RESULT = "__result__"  # what it returned

_Node = TypeVar("_Node", bound=ast.AST)
Stmts = list[ast.stmt]
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS = (ast.For, ast.While, ast.AsyncFor)


def located(place: ast.AST, new: _Node) -> _Node:
    """Give nodes of a new tree that have no position the position of an old node; return the
    tree."""
    for node in ast.walk(new):
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            ast.copy_location(node, place)
    return new


def assign(name: str, value: ast.expr, place: ast.AST) -> ast.stmt:
    return located(place, ast.Assign([ast.Name(name, ast.Store())], value))


def own_nodes(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes and all below them, without the insides of nested functions and classes."""
    for node in nodes:
        yield node
        if not isinstance(node, SCOPES):
            yield from own_nodes(list(ast.iter_child_nodes(node)))


def cannot_lower(body: Stmts) -> str:
    """Return why the control flow of a function cannot be compiled; "" where it can be."""
    for node in own_nodes(body):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return "it is a generator (it has a yield)"
        if isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)):
            return "it is a coroutine (it has an await)"
        if isinstance(node, (ast.Try, ast.TryStar)) and _exits_from(node.finalbody):
            return "it leaves a finally clause by return, break or continue"
        if isinstance(node, ast.TryStar):
            return "it has an except* clause"
        if isinstance(node, ast.While) and node.orelse and _binds_in_test(node):
            return "it has a while with := in its test and an else clause"
    return ""


@dataclass
class _Loop:
    number: int
    breaks: bool = False

    @property
    def broke(self) -> str:
        return f"__broke{self.number}__"

    @property
    def skipped(self) -> str:
        return f"__skipped{self.number}__"


# The kinds of exit from a statement to what is around it.
_Exits = frozenset[str]
_NONE: _Exits = frozenset()


def _exits_of(node: ast.stmt) -> _Exits:
    """Return how control may leave a statement other than at its end or by an exception."""
    if isinstance(node, ast.Return):
        return frozenset({"return"})
    if isinstance(node, ast.Break):
        return frozenset({"break"})
    if isinstance(node, ast.Continue):
        return frozenset({"continue"})
    if isinstance(node, SCOPES):
        return _NONE
    if isinstance(node, LOOPS):
        inner = _exits_from(node.body) & {"return"}
        return inner | _exits_from(node.orelse)
    return frozenset().union(*(_exits_from(block) for block in blocks(node)))


def blocks(node: ast.AST) -> Iterator[Stmts]:
    """Yield the statement lists directly in a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        if isinstance(block := getattr(node, name, None), list):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _exits_from(block: Stmts) -> _Exits:
    return frozenset().union(*(_exits_of(s) for s in block))


def _never_ends(block: Stmts) -> bool:
    """Return whether the end of a block is never reached."""
    return any(
        isinstance(s, (ast.Return, ast.Break, ast.Continue, ast.Raise))
        or (isinstance(s, ast.If) and _never_ends(s.body) and _never_ends(s.orelse))
        or (isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and bool(s.test.value)
            and "break" not in _exits_from(s.body))
        for s in block
    )


class Lowering:
    """Replaces the exits of one function by flags, which are named after numbered loops."""

    def __init__(self) -> None:
        self.loops: list[_Loop] = []
        self.numbered = 0
        self.returns = False

    def function(self, body: Stmts) -> Stmts:
        """Return the body with every exit out of an `if` or a loop lowered; a plain return
        stays."""
        self.returns = any("return" in _exits_of(s) for s in body if not isinstance(s, ast.Return)
                           and not self._straight(s))
        if not self.returns:
            return self.block(body)
        ends = _never_ends(body)
        first, last = body[0], body[-1]
        lowered = self.block(body)
        lowered.insert(0, assign(RETURNED, ast.Constant(False), first))
        if not ends:
            lowered.append(
                self._guard({"return"}, [assign(RESULT, ast.Constant(None), last)], last)
            )
        lowered.append(located(last, ast.Return(ast.Name(RESULT, ast.Load()))))
        return lowered

    def _straight(self, node: ast.stmt) -> bool:
        """Return whether the returns in a statement stand in no `if` and no loop (with, try
        only)."""
        for inner in own_nodes([node]):
            if isinstance(inner, (ast.If, ast.Match, *LOOPS)) and _exits_of(inner) & {"return"}:
                return False
        return True

    # ---- statements -----------------------------------------------------------------------------

    def block(self, stmts: Stmts) -> Stmts:
        out: Stmts = []
        for k, s in enumerate(stmts):
            rest = stmts[k + 1 :]
            exits = _exits_of(s)
            if not self.returns:
                exits -= {"return"}
            if isinstance(s, ast.If) and exits:
                s, rest = self._absorb(s, rest)
            out += self.statement(s)
            if exits and rest:
                rest = self.block(rest)
                if isinstance(s, (ast.Return, ast.Break, ast.Continue)):
                    # never runs, yet its names stay local to the function
                    out.append(located(s, ast.If(ast.Constant(False), rest, [])))
                else:
                    out.append(self._guard(exits, rest, rest[0]))
                return out
            if exits:
                return out
        return out

    def _absorb(self, s: ast.If, rest: Stmts) -> tuple[ast.If, Stmts]:
        """Move what follows `if c: return a` into the other arm of the `if`."""
        then, other = _never_ends(s.body), _never_ends(s.orelse)
        if not rest or then == other:
            return s, rest
        if then:
            return ast.copy_location(ast.If(s.test, s.body, s.orelse + rest), s), []
        return ast.copy_location(ast.If(s.test, s.body + rest, s.orelse), s), []

    def _guard(self, exits: set[str] | _Exits, rest: Stmts, place: ast.AST) -> ast.stmt:
        """Return the rest under an `if` that asks whether none of the flags of these exits is
        true."""
        flags = []
        if "return" in exits:
            flags.append(RETURNED)
        if "break" in exits:
            flags.append(self.loops[-1].broke)
        if "continue" in exits:
            flags.append(self.loops[-1].skipped)
        return located(place, ast.If(none_of(flags), rest, []))

    def statement(self, s: ast.stmt) -> Stmts:
        if isinstance(s, ast.Return) and self.returns:
            value = s.value or ast.Constant(None)
            return [assign(RESULT, value, s), assign(RETURNED, ast.Constant(True), s)]
        if isinstance(s, ast.Break):
            return [assign(self.loops[-1].broke, ast.Constant(True), s)]
        if isinstance(s, ast.Continue):
            return [assign(self.loops[-1].skipped, ast.Constant(True), s)]
        if isinstance(s, ast.While) and _binds_in_test(s):
            s = _test_inside(s)
        if isinstance(s, (ast.For, ast.While)):
            return self._loop(s)
        if isinstance(s, (ast.Try, ast.TryStar)):
            return [self._try(s)]
        for part in (s, *getattr(s, "cases", ())):
            for name in ("body", "orelse"):
                if isinstance(getattr(part, name, None), list) and not isinstance(s, SCOPES):
                    setattr(part, name, self.block(getattr(part, name)))
        return [s]

    def _try(self, s: ast.Try | ast.TryStar) -> ast.stmt:
        exits = _exits_from(s.body)
        if not self.returns:
            exits -= {"return"}
        s.body = self.block(s.body)
        for handler in s.handlers:
            handler.body = self.block(handler.body)
        s.orelse = self.block(s.orelse)
        if s.orelse and exits:
            s.orelse = [self._guard(exits, s.orelse, s.orelse[0])]
        s.finalbody = self.block(s.finalbody)
        return s

    def _loop(self, s: ast.For | ast.While) -> Stmts:
        """Return the loop with its flags: `broke` before it, `skipped` in it; its else clause after
        it."""
        self.numbered += 1
        loop = _Loop(self.numbered)
        exits = _exits_from(s.body)
        flags = [loop.broke] if "break" in exits else []
        if "return" in exits and self.returns:
            flags.append(RETURNED)
        orelse, s.orelse = s.orelse, []
        self.loops.append(loop)
        s.body = self.block(s.body)
        self.loops.pop()
        if "continue" in exits and _loads(s.body, loop.skipped):
            s.body.insert(0, assign(loop.skipped, ast.Constant(False), s.body[0]))
        elif "continue" in exits:
            s.body = _without(s.body, loop.skipped)
        s.flags, s.number = tuple(flags), loop.number  # type: ignore[union-attr]
        out: Stmts = [s]
        if loop.broke in flags:
            out.insert(0, assign(loop.broke, ast.Constant(False), s))
        if orelse:
            after = self.block(orelse)
            out += [located(orelse[0], ast.If(none_of(flags), after, []))] if flags else after
        return out


def _binds_in_test(s: ast.While) -> bool:
    return any(isinstance(n, ast.NamedExpr) for n in own_nodes([s.test]))


def _test_inside(s: ast.While) -> ast.While:
    """Move a test that binds, `while (x := f()): …`, into the loop: it becomes the body's first
    statement."""
    stop: Stmts = [located(s.test, ast.Break())]
    first = located(s.test, ast.If(ast.UnaryOp(ast.Not(), s.test), stop, []))
    always = located(s.test, ast.Constant(True))
    return ast.copy_location(ast.While(always, [first, *s.body], []), s)


def none_of(flags: Sequence[str]) -> ast.expr:
    tests: list[ast.expr] = [ast.UnaryOp(ast.Not(), ast.Name(f, ast.Load())) for f in flags]
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)


def _loads(block: Stmts, name: str) -> bool:
    return any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        for n in own_nodes(block)
    )


def _without(block: Stmts, name: str) -> Stmts:
    """Return the block with `pass` in place of assignments to a flag that nothing reads."""

    class Drop(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.stmt:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                return ast.copy_location(ast.Pass(), node)
            return node

    return [Drop().visit(s) for s in block]
