"""Sinking of all-reduces: sums over ranks that a loop only accumulates are made once, behind it.

Goes in: a Program. Comes out: the same in which a carried value that each turn adds sums over ranks
to, and that nothing else in the loop reads, holds only this rank's partial sums, starting at 0.
Behind the loop they are summed over the ranks and added to the initial value.
Always holds: the partitioner made these sums; all turns sum as many elements as are carried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from codegen import dtypes
from codegen.graph.rewriter import Rewriter
from codegen.graph.variance import Variance, analysed
from codegen.ir.graph import DefUse, Module, Op, Region, Value
from codegen.mesh import LayoutEntry
from codegen.ops import (
    Broadcast,
    Fold,
    Full,
    Loop,
    Map,
    Reshape,
    Slice,
    Symbolic,
    Transpose,
    Update,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr

# A share goes through these as the sum does.
_MOVES = (Broadcast, Reshape, Slice, Transpose)


def sink_allreduce(program: Module) -> Module:
    """Return the Program with these sums behind their loops; the same object if there are none."""
    rewriter = _SinkAllReduce(program)
    rewritten = rewriter.run()
    return program if rewritten is program else replace(rewritten, origins=rewriter.origins)


@dataclass(frozen=True)
class _Added:
    """The sums over ranks that turns add to a carried value, and the axes that all of them are
    over."""

    sums: tuple[Op, ...]
    axes: LayoutEntry


class _SinkAllReduce(Rewriter):
    """Moves sums over ranks behind loops, region by region."""

    def __init__(self, program: Module) -> None:
        super().__init__(program)
        self.origins = dict(program.origins)

    @cached_property
    def variance(self) -> Variance:
        return analysed(self.module)

    def op(self, op: Op) -> None:
        if isinstance(op.kind, Loop):
            self.loop(op, op.kind)
        else:
            self.keep(op)

    def is_zero(self, value: Value) -> bool:
        """Return whether a value is an array of zeros."""
        op = self.defs.get(value)
        return (op is not None and isinstance(op.kind, Full) and op.kind.value == 0
                and not op.kind.blank)

    def loop(self, op: Op, kind: Loop) -> None:
        """Emit a loop, and behind it the sums over ranks of what it accumulates."""
        body = op.regions[-1]
        added: dict[int, _Added] = {}
        if any(self.is_sum(o) for o in body.ops):
            count = kind.turns() if len(op.regions) == 1 else None
            turn = _Accumulation(self, body, expr.const(1) if count is None else count)
            asked = {v for test in op.regions[:-1] for v in DefUse.of(test).uses}
            sunk = ((k, turn.added(k)) for k in range(len(body.args))
                     if all(test.args[k] not in asked for test in op.regions[:-1]))
            added = {k: some for k, some in sunk if some is not None}
        if not added:
            self.keep(op)
            return
        operands, results = list(op.operands), list(op.results)
        for k in added:
            results[k] = Value(op.results[k].name, op.results[k].type)
            if not self.is_zero(operands[k]):
                self.name, self.place = operands[k].name, op.place
                operands[k] = self.full(0, results[k].type.dtype, results[k].type.shape)
        gone = {o.result: o.operands[0] for some in added.values() for o in some.sums}
        regions = (*op.regions[:-1], _without(body, gone))
        self.keep(replace(op, operands=tuple(operands), results=tuple(results), regions=regions))
        for k, some in added.items():
            began = None if operands[k] is op.operands[k] else op.operands[k]
            self.sum(some, results[k], began, op.results[k])

    def sum(self, added: _Added, shares: Value, began: Value | None, result: Value) -> None:
        """Emit the sum over ranks of their partial sums, plus the initial value `began` if there is
        one, as `result`."""
        first, dtype = added.sums[0], result.type.dtype
        self.name, self.place = result.name, first.place
        total = self.emit(Fold(added.axes, "add"), (self.cast(shares, dtypes.folded_in(dtype)),))
        self.origins[total] = self.origins[first.result]
        total = self.cast(total, dtype)
        if began is None:
            last = self.ops.pop()
            self.ops.append(replace(last, results=(result,)))
            self.origins[result] = self.origins[first.result]
        else:
            self.add(Map("add"), (began, total), (result,))

    def is_sum(self, op: Op) -> bool:
        """Return whether an op is a sum over ranks that the partitioner made."""
        kind = op.kind
        return (isinstance(kind, Fold) and kind.fn == "add" and kind.flow == "all"
                and not kind.want and op.result in self.origins)


class _Accumulation:
    """Finds the sums over ranks that the body of a loop adds to carried values. `turns` is the
    least number of turns."""

    def __init__(self, rewriter: _SinkAllReduce, body: Region, turns: Expr) -> None:
        self.rewriter, self.body, self.turns = rewriter, body, turns
        known = DefUse.of(body)
        self.defs, self.every = known.defs, known.uses

    def uses(self, value: Value) -> list[Op | None]:
        """Return the ops that read a value, without views that nobody reads. None in the list
        stands for the next turn, or for a read outside of the body."""
        readers = [u.op for u in self.every.get(value, ())]
        return [op for op in readers if op is None or not isinstance(op.kind, (Slice, Reshape))
                or self.uses(op.result)]

    def added(self, k: int) -> _Added | None:
        """Return the sums that a turn adds to carried value `k`, or None if it does anything else
        with it, or if summing behind the loop would be larger."""
        value, sums = self.body.args[k], list[Op]()
        if dtypes.folded_in(value.type.dtype) != value.type.dtype:
            return None  # shares may be far larger than their sum: half types lose it, or overflow
        while value is not self.body.results[k] or not sums:
            step = self.step(value)
            if step is None:
                return None
            value, more = step
            sums += more
        axes = {_axes(op) for op in sums}
        if self.uses(value) != [None] or len(axes) > 1 or not self.is_alike(value, sums):
            return None
        amount = sum((expr.product(op.result.type.shape) for op in sums), expr.const(0))
        size = expr.product(value.type.shape)
        if not expr.nonneg(amount - size) and not expr.nonneg(amount * self.turns - size):
            return None
        return _Added(tuple(sums), axes.pop())

    def step(self, value: Value) -> tuple[Value, list[Op]] | None:
        """Return the value after the next addition to `value`, and the sums over ranks that it
        adds; None if its readers do anything else."""
        users = self.uses(value)
        if len(users) == 1 and users[0] is not None:
            sums = self.plus(users[0], value)
            return None if sums is None else (users[0].result, sums)
        updates = [op for op in users if op is not None and isinstance(op.kind, Update)]
        if len(users) != 2 or len(updates) != 1 or updates[0].operands[0] is not value:
            return None
        (update,), (shown,) = updates, [op for op in users if op not in updates]
        if shown is None or not self.same_box(update, shown):
            return None
        addition = self.through(update.operands[1])
        if addition is None:
            return None
        read = next((v for v in addition.operands if self.through(v) is shown), None)
        sums = self.plus(addition, read) if read else None
        return None if sums is None else (update.result, sums)

    def same_box(self, update: Op, shown: Op) -> bool:
        """Return whether a slice reads exactly the box that an update replaces."""
        part, box = shown.kind, update.kind
        return (isinstance(part, Slice) and isinstance(box, Update)
                and part.start == box.start and part.step == box.step
                and part.shape == update.operands[1].type.shape)

    def through(self, value: Value) -> Op | None:
        """Return the op that computes a value, looking through reshapes, or None if another op
        reads it too."""
        op = self.defs.get(value)
        while op is not None and len(self.uses(op.result)) == 1 and isinstance(op.kind, Reshape):
            op = self.defs.get(op.operands[0])
        return op if op is not None and len(self.uses(op.result)) == 1 else None

    def plus(self, op: Op, value: Value) -> list[Op] | None:
        """Return the sums over ranks that an op adds to a value, or None if it does anything
        else."""
        kind = op.kind
        if not isinstance(kind, Map) or kind.fn not in ("add", "sub"):
            return None
        a, b = op.operands
        if (a is value) == (b is value) or (b is value and kind.fn == "sub"):
            return None
        return self.sums(b if a is value else a)

    def sums(self, value: Value, users: int = 1) -> list[Op] | None:
        """Return the sums over ranks that add up to a value, or None if a rank's part of the value
        does not follow from its parts of these, or another op reads them. `users` ops must read the
        value."""
        op = self.defs.get(value)
        if op is not None and isinstance(op.kind, Full) and (op.kind.value == 0 or op.kind.blank):
            return []
        if op is None or len(self.uses(value)) != users:
            return None
        kind = op.kind
        if self.rewriter.is_sum(op):
            return [op]
        if isinstance(kind, _MOVES):
            return self.sums(op.operands[0])
        if isinstance(kind, Update):
            return self.updated(op)
        if not isinstance(kind, Map):
            return None
        if kind.fn in ("add", "sub"):
            left, right = self.sums(op.operands[0]), self.sums(op.operands[1])
            return None if left is None or right is None else [*left, *right]
        dtype = op.operands[0].type.dtype
        if kind.fn == "neg" or (_is_cast(op) and dtype.kind == op.result.type.dtype.kind == "f"
                                and dtype.size <= op.result.type.dtype.size):
            return self.sums(op.operands[0])
        if kind.fn not in ("mul", "div") or dtype.kind not in "fc":
            return None
        a, b = op.operands
        sums = self.sums(a)
        if sums is None and kind.fn == "mul":
            a, b = b, a
            sums = self.sums(a)
        return sums if sums is not None and self.is_factor(b, sums) else None

    def updated(self, op: Op) -> list[Op] | None:
        """Return the sums over ranks in an updated array: those of the array and those of the box
        that is replaced or added to; None if either has other parts."""
        under, v = op.operands
        step = self.step(under) if len(self.uses(under)) == 2 else None
        below = self.sums(under, 1 if step is None else 2)
        added = self.sums(v) if step is None else step[1]
        return None if below is None or added is None else [*below, *added]

    def is_alike(self, value: Value, sums: list[Op]) -> bool:
        """Return whether a value is equal on all ranks that add these sums up, and not each one's
        shard."""
        axes = self.rewriter.variance.of.get(value)
        return axes is not None and not any(axes & set(_axes(op)) for op in sums)

    def is_factor(self, value: Value, sums: list[Op]) -> bool:
        """Return whether a value is one number, equal on all ranks that add these sums up, finite
        and not 0. With any other factor, partial sums may be NaN where the whole sum is
        infinite."""
        op = self.defs.get(value) if self.is_alike(value, sums) else None
        while op is not None and (isinstance(op.kind, _MOVES) or _is_cast(op)):
            op = self.defs.get(op.operands[0])
        if op is None:
            return False
        if isinstance(op.kind, Full):
            return op.kind.value != 0 and math.isfinite(abs(op.kind.value))
        e = op.kind.value if isinstance(op.kind, Symbolic) else expr.const(0)
        return expr.nonneg(e - 1) or expr.nonneg(-e - 1)


def _axes(op: Op) -> LayoutEntry:
    assert isinstance(op.kind, Fold)
    return op.kind.axes


def _is_cast(op: Op) -> bool:
    return isinstance(op.kind, Map) and op.kind.fn == "cast"


def _without(body: Region, gone: dict[Value, Value]) -> Region:
    """Return a loop's body without the ops that make some values; readers take their operands
    instead."""

    def now(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(gone.get(v, v) for v in values)

    ops = [replace(op, operands=now(op.operands)) for op in body.ops
           if not op.results or op.results[0] not in gone]
    return Region(body.args, tuple(ops), now(body.results))
