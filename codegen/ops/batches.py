"""Batches that come from a feed, one after the other, and what goes back to those who made them.

Always holds: a take, a question for more and a send stay in their order, and in their loop or arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codegen import dtypes
from codegen.ir import plan
from codegen.ir.graph import ArrayType, Op, Shape
from codegen.mesh import Layout
from codegen.ops.kind import Kind, Types
from codegen.ops.rules import LoopBuilder

# Of a rank's part of a field: shape and layout of the whole.
Homes = tuple[tuple[Shape, Layout], ...]


@dataclass(frozen=True)
class Feeding(Kind):
    """A kind that takes from a feed or answers it: ranks come to it together."""

    from_buffers = True
    fence = True
    at_home = True
    held = True
    has_room = False
    feed: str

    def work(self, op: Op) -> Iterable[Shape]:
        return ()


@dataclass(frozen=True)
class Take(Feeding):
    """The fields of the feed's next batch. homes: of each, in one rank's view."""

    name = "take"
    fields: tuple[str, ...]
    types: tuple[ArrayType, ...]
    homes: Homes = ()

    def infer(self, types: Types) -> list[ArrayType]:
        return list(self.types)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        arrays = _arrays(self.fields, [v.type for v in op.results], self.homes)
        builder.add(plan.Take(builder.numbered(), self.feed, op.results, arrays, op.place))


@dataclass(frozen=True)
class More(Feeding):
    """Whether the feed has a next batch: the same on all ranks."""

    name = "more"

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(dtypes.BOOL, ())]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return ()

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        builder.add(plan.More(self.feed, op.result, op.place))


@dataclass(frozen=True)
class Send(Feeding):
    """Send the operands, laid out so, to those who made the batch that was taken last. homes: of
    each, in one rank's view."""

    name = "send"
    fields: tuple[str, ...]
    layouts: tuple[Layout, ...]
    homes: Homes = ()

    def infer(self, types: Types) -> list[ArrayType]:
        return []

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        arrays = _arrays(self.fields, [v.type for v in op.operands], self.homes)
        builder.add(plan.Send(builder.numbered(), self.feed, op.operands, arrays, op.place))


def _arrays(names: Sequence[str], types: Types, homes: Homes) -> tuple[plan.Home, ...]:
    return tuple(plan.Home(name, t.dtype, t.shape, (*home, None))
                 for name, t, home in zip(names, types, homes, strict=True))
