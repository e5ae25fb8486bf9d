"""Ops that have regions, or say how what follows is to be read."""

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
    """A kind that has regions, or says how what follows is to be read."""

    fence = True
    has_room = False


@dataclass(frozen=True)
class Loop(Control):
    """Regions (body) or (condition, body) over the carried; stop None: until the condition.
    guarded: a turn that begins where the condition does not hold changes nothing of what the
    user's loop carries. over: in a Graph, the axes over which turns are spread: a rank makes those
    from the counter's lower bound to its upper one, which are its own rows."""

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
        """Carry one value for each member where members differ in some turn. Where members have
        conditions of their own, the loop runs until all are done; a member that is done keeps its
        values."""
        return batch.loop(op, stacked)

    def turns(self) -> Expr | None:
        """Return how many turns a loop has if no condition ends it before; 0 or less for none, and
        None if only the launch or the run knows."""
        if self.stop is None or not self.step.is_const:
            return None
        step = self.step.value
        way = self.stop - self.start if step > 0 else self.start - self.stop
        return expr.floordiv(way + (abs(step) - 1), expr.const(abs(step)))


POSITION = "position"


@dataclass(frozen=True)
class Let(Control):
    """Let the symbol `counter` stand for the operand from here on, a 0-d int64 that ranks agree on;
    key: under which a second trace finds what is known of it, or POSITION: the operand is what the
    program says of where it is, for timelines and messages."""

    name = "let"
    at_home = True
    counter: Sym
    key: str = ""

    def infer(self, types: Types) -> list[ArrayType]:
        return []

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Take the largest number of turns of all members: the loops that count turns are made so
        that further ones change nothing. Raise UnsupportedError for any other integer that members
        have their own of."""
        if not self.key.startswith("turns "):
            raise batch.none(op,
                             "a number that each member has its own of, in a formula of the index",
                             "the same number for all members: in_axes=None for its argument")
        return batch.emit_all(self, batch.most(*batch.every(op, stacked)))

    def counts(self) -> Sym | None:
        return self.counter


@dataclass(frozen=True)
class Branch(Stated, Control):
    """Region number `on` (an Expr, clamped), or the operand if None; if: (else, then)."""

    name = "branch"
    held = True
    reads = "points"
    on: Expr | None
    types: tuple[ArrayType, ...]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Values:
        """Compute all arms where members choose for themselves, and select from their results."""
        return batch.branch(op, stacked)


@dataclass(frozen=True, eq=False)
class Defined(Stated, Control):
    """Compute a region whose derivative somebody has written; it exists while tracing only. back:
    from operands, results and the cotangents of these, as arrays, to those of the operands; None:
    the region is computed again for that. kept: so many last results are for the way back alone: a
    cotangent of one comes from a derivative of `back`, and goes through what the region did."""

    name = "defined"
    back: Callable[..., Any] | None
    types: tuple[ArrayType, ...]
    kept: int = 0

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Values:
        """Map the region over members, and the way back too."""
        return batch.defined(op, stacked)


@dataclass(frozen=True)
class Relayout(Kind):
    """Lay the same elements out otherwise (Graph level). asked: by the user; because: why the
    compiler does it, where that is its own choice; wanted: each rank gets the parts that it uses,
    ghost cells too, at once."""

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
    """Run the region on each rank, on the operands' shards (Graph level). sure: the user says that
    results are equal along the axes that their layouts do not name."""

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
