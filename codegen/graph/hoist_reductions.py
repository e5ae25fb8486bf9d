"""Loop-invariant code motion of reductions: the sums of all turns are computed before the loop.

Goes in: a Graph. Comes out: the same in which a reduction to one number, of what depends on the
counter and on nothing that the loop writes, is one before the loop for all turns, of which each
reads its number: ranks combine theirs once, and what all turns read is read for several at a time.
Always holds: each number is made of the same elements, by the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from codegen import dtypes
from codegen.graph.builder import Builder
from codegen.graph.layout_propagation import laid_out
from codegen.ir.graph import Module, Op, Region, Value
from codegen.ops import (
    Broadcast,
    Full,
    Iota,
    Kind,
    Loop,
    Map,
    Reduce,
    Reshape,
    ShardMap,
    Slice,
    Symbolic,
    Transpose,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET

TURNS = 4  # with fewer there is little to gain
MOST_TURNS = 1 << 16  # whose numbers wait in memory
ELEMENTS = 1 << 10  # of a reduction of fewer there is little to gain

# Ops that follow a counter turn by turn, and those that may stand before the loop as they are.
_FOLLOWS = (Broadcast, Map, Reduce)
_STAYS = (*_FOLLOWS, Full, Iota, Reshape, Slice, Transpose)


def hoist_reductions(graph: Module) -> Module:
    """Return the Graph with these reductions moved before their loops. A Graph with run-time checks
    stays as it is, so that a check fails at the line where the user computes."""
    return graph if graph.checks else graph.mapped(_Rewrite().region)


@dataclass
class _Turns:
    """A counted loop, whose counter is first + step * turn.

    made: the ops of its body, by result.
    inside: the values that its body carries or computes.
    computed: symbols that ops of the body define.
    before: by value, what it is before the loop; the flag says that it has a leading dim of turns.
    moving: the values that depend on the counter.
    """

    counter: Sym
    first: Expr
    step: int
    count: int
    made: dict[Value, Op]
    inside: set[Value]
    computed: frozenset[Sym]
    before: dict[Value, tuple[Value, bool]] = field(default_factory=dict)
    moving: set[Value] = field(default_factory=set)

    @classmethod
    def of(cls, op: Op) -> _Turns | None:
        loop = op.what
        if not isinstance(loop, Loop) or loop.counter is None or len(op.regions) > 1:
            return None
        if loop.stop is None or not loop.step.is_const or not (loop.stop - loop.start).is_const:
            return None
        step, way = loop.step.value, (loop.stop - loop.start).value
        count = len(range(0, way, step))
        if not TURNS <= count <= MOST_TURNS:
            return None
        (body,) = op.regions
        made = {o.result: o for o in body.ops if len(o.results) == 1}
        inside = {*body.args, *(v for o in body.ops for v in o.results)}
        computed = frozenset(s for o in body.ops if (s := o.what.counts()) is not None)
        turns = cls(loop.counter, loop.start, step, count, made, inside, computed)
        for o in body.ops:
            if turns.counts(o) or not turns.moving.isdisjoint(o.operands):
                turns.moving.update(o.results)
        return turns

    def depends(self, value: Value) -> bool:
        """Return whether a value depends on the counter."""
        return value in self.moving

    def counts(self, op: Op) -> bool:
        return any(self.counter in e.symbols() for e in op.what.exprs())

    def size(self, value: Value, left: int = TARGET.deepest_expression) -> int:
        """Return how many ops of the body compute a value, counted once per use; more than `left`
        if the value cannot move before the loop."""
        if value not in self.inside:
            return 0
        op, total = self.made.get(value), 1
        if op is None or not self.may_leave(op):
            return left + 1
        for v in op.operands:
            total += self.size(v, left - total)
            if total > left:
                break
        return total

    def may_leave(self, op: Op) -> bool:
        """Return whether an op can move before the loop without needing more memory than one number
        per turn."""
        if any(not self.computed.isdisjoint(e.symbols()) for e in op.what.exprs()):
            return False
        kept = isinstance(op.what, Reduce) and bool(op.result.type.ndim)
        spread = isinstance(op.what, Broadcast) and any(v.type.ndim for v in op.operands)
        if (kept or spread) and any(map(self.depends, op.operands)):
            return False
        if isinstance(op.what, Symbolic):
            by, rest = expr.linear_in(op.what.value, self.counter)
            return by is not None and by.is_const and self.counter not in rest.symbols()
        if self.counts(op) or not isinstance(op.what, _STAYS):
            return False
        return isinstance(op.what, _FOLLOWS) or not any(map(self.depends, op.operands))


class _Rewrite(Builder):
    """Moves reductions before loops, region by region."""

    def region(self, region: Region) -> Region:
        with self.inside() as ops:
            for op in region.ops:
                if not isinstance(op.what, ShardMap):
                    op = op.mapped(self.region)
                turns = _Turns.of(op)
                ops.append(op if turns is None else self.loop(op, turns))
        return region.with_ops(ops)

    def loop(self, op: Op, turns: _Turns) -> Op:
        """Emit the hoisted reductions before a loop and return the loop that reads them."""
        (body,) = op.regions
        found = {o: self.ahead(o.result, turns)[0] for o in body.ops if _pays(o, turns)}
        if not found:
            return op
        with self.inside() as ops:
            for inner in body.ops:
                if inner not in found:
                    ops.append(inner)
                    continue
                self.name, self.place = inner.result.name, inner.place
                turn = (expr.symbol(turns.counter) - turns.first) // turns.step
                one = self.made(Slice((turn,), (1,), (expr.const(1),)), found[inner])
                self.add(Reshape(()), (one,), inner.results)
        return replace(op, regions=(body.with_ops(ops),))

    def ahead(self, value: Value, turns: _Turns) -> tuple[Value, bool]:
        """Return a value for all turns, and whether it has a leading dim of turns. Arrays are
        computed anew for each use (rematerialised), so that they fuse there and take no memory."""
        if value not in turns.inside:
            return value, False
        if value in turns.before:
            return turns.before[value]
        op = turns.made[value]
        found = self.counted(op, turns) if isinstance(op.what, Symbolic) else self.whole(op, turns)
        if not found[1] or found[0].type.ndim == 1:
            turns.before[value] = found
        return found

    def counted(self, op: Op, turns: _Turns) -> tuple[Value, bool]:
        """Return an integer that grows from turn to turn as an array over turns, and True; a
        constant one as it is, and False."""
        assert isinstance(op.what, Symbolic)
        self.name, self.place = op.result.name, op.place
        if turns.counter not in op.what.value.symbols():
            return self.made(op.what), False
        shape = (expr.const(turns.count),)
        begin = op.what.value.subst({turns.counter: turns.first})
        by = op.what.value.subst({turns.counter: turns.first + turns.step}) - begin
        value = self.made(Iota(0, dtypes.INT64, shape))
        for fn, number in (("mul", by), ("add", begin)):
            if number != (fn == "mul"):
                other = self.made(Broadcast((), shape), self.integer(number))
                value = self.made(Map(fn), value, other)
        return self.cast(value, op.what.dtype), True

    def whole(self, op: Op, turns: _Turns) -> tuple[Value, bool]:
        """Return an op's result for all turns, and whether it has a leading dim of turns."""
        given = [self.ahead(v, turns) for v in op.operands]
        self.name, self.place = op.result.name, op.place
        what, count = op.what, expr.const(turns.count)
        if not any(moves for _, moves in given):
            return self.made(what, *(v for v, _ in given)), False
        if isinstance(what, Broadcast):
            dims = (0, *(d + 1 for d in what.dims))
            what = what.but(dims=dims, shape=(count, *what.shape))
        elif isinstance(what, Reduce):
            what = what.but(dims=tuple(d + 1 for d in what.dims))
        operands = []
        for v, moves in given:
            if not moves:
                dims = tuple(range(1, v.type.ndim + 1))
                v = self.made(Broadcast(dims, (count, *v.type.shape)), v)
            operands.append(v)
        return self.made(what, *operands), True

    def made(self, what: Kind, *operands: Value) -> Value:
        """Emit an op and return its result. Outside of a shard_map its layout follows from the
        operands."""
        t = self.typed(what, operands)
        if not operands or any(v.type.layout is not None or not v.type.ndim for v in operands):
            t = laid_out(what, [v.type for v in operands], t)
        return self.add(what, operands, (Value(self.name, t),)).result


def _pays(op: Op, turns: _Turns) -> bool:
    """Return whether an op reduces many elements to one number that differs from turn to turn."""
    if not isinstance(op.what, Reduce) or op.result.type.ndim:
        return False
    shape = op.operands[0].type.shape
    if not all(e.is_const for e in shape) or prod(e.value for e in shape) < ELEMENTS:
        return False
    return turns.size(op.result) <= TARGET.deepest_expression and turns.depends(op.result)
