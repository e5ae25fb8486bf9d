"""Ops with effects that a user sees: printed texts, conditions that end the run, saved frames,
checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codegen.ir import plan
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.mesh import Layout
from codegen.ops.kind import Array, Eval, Kind, Types
from codegen.ops.rules import BatchBuilder, LoopBuilder, Values
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr

POSITION = "@"  # a spec of an `expect`: where the element is


class Effect(Kind):
    """A kind whose ops have an effect in program order, and no results."""
    reads = "points"
    fence = True
    at_home = True
    has_room = False

    def infer(self, types: Types) -> list[ArrayType]:
        return []


@dataclass(frozen=True)
class Print(Effect):
    """Print a text with values. parts: texts alternating with format specs, one spec per operand.
    paced: print some steps only; the first operand is the step's number, the second the number of
    steps, and the last step is printed."""

    name = "print"
    parts: tuple[str, ...]
    every_rank: bool
    paced: bool = False

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Print one line for each member."""
        return batch.one_by_one(op, stacked)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        nodes = tuple(builder.node(v, ()) for v in op.operands)
        builder.add(plan.Print(self.parts, nodes, self.every_rank, op.place, self.paced))


@dataclass(frozen=True)
class Expect(Effect):
    """End the run where the first operand, a condition of any shape, does not hold. parts: the
    message, as of Print, with the other operands at the first element that does not hold; the spec
    POSITION has no operand. start: the global index of this rank's part of the array. check: the
    row of CHECKS that asked for it."""

    name = "expect"
    parts: tuple[str, ...]
    start: Shape | None = None
    check: str = ""

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Expect that the condition holds for every member that executes this op."""
        first, *shown = op.operands
        holds = batch.where_active(*batch.every_of([first], stacked[:1]))
        each = []
        for v, g in zip(shown, stacked[1:]):
            (wide,) = [v] if g is None and not v.type.ndim else batch.every_of([v], [g])
            each.append(wide if wide is v else batch.along(wide, holds.type.shape))
        start = None if self.start is None else (expr.const(0), *self.start)
        return batch.emit_all(self.but(start=start), holds, *each)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        holds, *shown = (builder.node(v, ()) for v in op.operands)
        builder.add(plan.Expect(holds, self.parts, tuple(shown), self.check, op.place))


@dataclass(frozen=True)
class Save(Kind):
    """Save the operand as a frame of `series`, in every `every`-th iteration of the loop that
    contains it. home: shape and layout of the whole array, in one rank's view."""

    name = "save"
    from_buffers = True
    fence = True
    held = True
    at_home = True
    has_room = False
    series: str
    every: int
    home: tuple[Shape, Layout] | None = None

    def infer(self, types: Types) -> list[ArrayType]:
        return []

    def work(self, op: Op) -> Iterable[Shape]:
        return ()

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Raise UnsupportedError: members do not execute a save together, so each would write
        frames of its own."""
        raise batch.none(op, f'save "{self.series}", in a function of one member',
                         "save what spmd.vmap returns, in a loop around it")

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        (v,) = op.operands
        home = None if self.home is None else (*self.home, None)
        array = plan.Home(self.series, v.type.dtype, v.type.shape, home)
        builder.add(plan.Save(self.series, self.every, op.operands, (array,), op.place))


@dataclass(frozen=True)
class Point(Kind):
    """Begin an iteration of an outermost loop, at which a checkpoint may be taken. Its results are
    the values that the loop carries, or in a run that resumes from a checkpoint, those of the
    checkpoint, with its counter.

    homes: for each operand of a Program, shape and layout of the array of which it is a part, and
    the offset of the part in its memory if that has room for ghost cells; None: each rank has a
    value of its own.
    """

    name = "point"
    from_buffers = True
    fence = True
    held = True
    at_home = True
    has_room = False
    number: int
    counter: Expr | None = None
    homes: tuple[tuple[Shape, Layout, Shape | None] | None, ...] = ()

    def infer(self, types: Types) -> list[ArrayType]:
        return list(types)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return list(operands)

    def work(self, op: Op) -> Iterable[Shape]:
        return ()

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        homes = []
        for k, v in enumerate(op.operands):
            home = self.homes[k] if self.homes else None
            if home is None and builder.is_everywhere(v):
                home = v.type.shape, ((),) * v.type.ndim, None
            homes.append(plan.Home(v.name, v.type.dtype, v.type.shape, home))
        builder.begins.extend(zip(op.operands, op.results, strict=True))
        builder.add(plan.Point(self.number, self.counter, op.results, tuple(homes), op.place))
