"""Ops that have regions, or that define how the ops after them are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.ir.cuts import Window
from codegen.ir.graph import ArrayType, Op, Value
from codegen.mesh import Layout
from codegen.ops.kind import Array, Eval, Kind, Stated, Types
from codegen.ops.rules import BatchBuilder, GradientBuilder, GraphBuilder, Shards, Values
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


class Control(Kind):
    """A kind that has regions, or that defines how the ops after it are read."""

    fence = True
    has_room = False


@dataclass(frozen=True)
class Loop(Control):
    """Repeat a region on the carried values. Regions are (body), or (condition, body); with stop
    None, the condition ends the loop. guarded: an iteration that begins where the condition does
    not hold leaves the user's values unchanged. over: in a Graph, the mesh axes over which
    iterations are distributed: a rank executes those from the counter's lower bound to its upper
    bound, which are its own rows."""

    name = "loop"
    held = True
    counter: Sym | None
    start: Expr
    stop: Expr | None
    step: Expr
    guarded: bool = False
    over: tuple[str, ...] = ()

    def infer(self, types: Types) -> list[ArrayType]:
        return list(types)

    def counts(self) -> Sym | None:
        return self.counter

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Values:
        """Carry a stacked value wherever members may differ in some iteration. Where members have
        conditions of their own, the loop runs until all are done; a member that is done keeps its
        values."""
        return batch.loop(op, stacked)

    def turns(self) -> Expr | None:
        """Return the number of iterations of a counted loop as a formula of its bounds (not
        positive if it has none); None if the loop has no counter bound or its step is not a
        constant."""
        if self.stop is None or not self.step.is_const:
            return None
        step = self.step.value
        way = self.stop - self.start if step > 0 else self.start - self.stop
        return expr.floordiv(way + (abs(step) - 1), expr.const(abs(step)))


POSITION = "position"


@dataclass(frozen=True)
class Let(Control):
    """Define the symbol `counter` for the ops after it. Its value is the operand, a 0-d int64 that
    is the same on all ranks. key: identifies the symbol's facts when the program is traced again. A
    key of POSITION marks an operand that is the position in the program, for timelines and
    messages."""

    name = "let"
    at_home = True
    counter: Sym
    key: str = ""

    def infer(self, types: Types) -> list[ArrayType]:
        return []

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Take the largest number of iterations of all members, since further iterations of a
        counted loop change nothing. Raise UnsupportedError where members have different integers of
        any other meaning."""
        if not self.key.startswith("turns "):
            raise batch.none(op,
                             "a number that each member has its own of, in a formula of the index",
                             "the same number for all members: in_axes=None for its argument")
        return batch.emit_all(self, batch.most(*batch.every(op, stacked)))

    def counts(self) -> Sym | None:
        return self.counter


@dataclass(frozen=True)
class Branch(Stated, Control):
    """Execute one of the regions: the one whose number is `on` (an Expr, clamped to the regions),
    or the operand if `on` is None. The branch of an `if` has the regions (else, then)."""

    name = "branch"
    held = True
    reads = "points"
    on: Expr | None
    types: tuple[ArrayType, ...]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Values:
        """Compute all arms where members choose different ones, and select from their results."""
        return batch.branch(op, stacked)


@dataclass(frozen=True, eq=False)
class Defined(Stated, Control):
    """Compute a region that has a user-defined derivative, while a program is traced. back: the
    function that computes the operands' cotangents from operands, results and the results'
    cotangents, all as arrays; None: the reverse pass computes the region again. kept: the number of
    last results that exist for the reverse pass only; a cotangent of such a result, which a
    derivative of `back` may have, is propagated through the ops of the region."""

    name = "defined"
    back: Callable[..., Any] | None
    types: tuple[ArrayType, ...]
    kept: int = 0

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Values:
        """Map both the region and its derivative over the members."""
        return batch.defined(op, stacked)


@dataclass(frozen=True)
class Relayout(Kind):
    """Give an array another layout (Graph level). asked: the user asks for it. because: the
    compiler's reason for it, in words. wanted: one exchange gives each rank all elements that its
    later ops read, ghost cells included."""

    name = "relayout"
    lays_out = True
    to: Layout
    asked: bool = False
    because: str = ""
    wanted: bool = False

    @property
    def held(self) -> bool:  # type: ignore[override]
        return not self.wanted

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return self.to

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [operands[0]]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        return cotangents

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(self.but(to=batch.layout(self.to)), *batch.every(op, stacked))]

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        return [window]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        return operands[0]


@dataclass(frozen=True)
class ShardMap(Stated, Control):
    """Run the region on each rank, on the operands' shards (Graph level). sure: the user asserts
    that results are equal along the axes that their layouts do not name."""

    name = "shard_map"
    held = True
    lays_out = True
    in_layouts: tuple[Layout, ...]
    out_layouts: tuple[Layout, ...]
    types: tuple[ArrayType, ...]
    sure: bool = False

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Values:
        """Map the region over the members too: each rank has all members of its shards."""
        return batch.shard_map(op, stacked)
