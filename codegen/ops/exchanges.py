"""Ops by which ranks exchange: what each gives its members, and what they state of each other.

axes: mesh axes taken as one, row-major: the members. var: the symbol of a member's position along
them. Expressions in `var` hold for every member; all others are in the view of the rank itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.expr import Expr, Sym
from codegen.ir import ArrayType
from codegen.ops.kind import Kind, Stated, Types

Axes = tuple[str, ...]
Bounds = tuple[tuple[Expr, Expr], ...]  # per dim: low, high


class Exchange(Kind):
    """A kind whose operand members give to each other."""

    group = "exchange"
    axes: Axes

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, types[0].shape)]


class StatedExchange(Stated, Exchange):
    """An exchange whose result has other extents than its operand."""


@dataclass(frozen=True)
class Permute(StatedExchange):
    """Member var sends its operand to member `to` where `sends`; as seen by the receiver, it comes
    from member `source` where `receives` (in var; None: not solved); else zeros."""

    name = "permute"
    reads = "boxes"
    axes: Axes
    var: Sym
    to: Expr
    sends: Expr
    source: Expr | None
    receives: Expr | None
    types: tuple[ArrayType, ...]


@dataclass(frozen=True)
class AllReduce(Exchange):
    """COMBINE[fn] over the members."""

    name = "all_reduce"
    axes: Axes
    fn: str


@dataclass(frozen=True)
class AllGather(StatedExchange):
    """Members' operands one after the other along dim; member var's begins at `offset`."""

    name = "all_gather"
    reads = "boxes"
    axes: Axes
    dim: int
    var: Sym
    offset: Expr
    types: tuple[ArrayType, ...]


@dataclass(frozen=True)
class ReduceScatter(StatedExchange):
    """COMBINE[fn] over the members; member k keeps balanced block k of dim."""

    name = "reduce_scatter"
    axes: Axes
    dim: int
    fn: str
    types: tuple[ArrayType, ...]


@dataclass(frozen=True)
class AllToAll(StatedExchange):
    """Balanced block k of dim split goes to member k; pieces are joined along dim concat, member
    var's begins at `offset`."""

    name = "all_to_all"
    reads = "boxes"
    axes: Axes
    split: int
    concat: int
    var: Sym
    offset: Expr
    types: tuple[ArrayType, ...]


# Along each axis: begin and end of the members that I read, and of my readers.
Near = tuple[tuple[Expr, Expr, Expr, Expr], ...]
# Per dim how often it stands before itself and behind, and its period.
Wraps = tuple[tuple[Expr, Expr, Expr] | None, ...]


@dataclass(frozen=True)
class Redistribute(StatedExchange):
    """Members hold the elements low … high - 1 of every dim that `have` says, and get those that
    `want` says: halos, shifts, other layouts; each in the view of who holds or gets; near: along
    each axis begin and end of the members that I read, and of my readers; wraps: per dim how often
    it stands before itself and behind, and its period."""

    name = "redistribute"
    reads = "boxes"
    axes: Axes
    have: Bounds
    want: Bounds
    types: tuple[ArrayType, ...]
    near: Near = ()
    wraps: Wraps = ()


@dataclass(frozen=True)
class Halo(Exchange):
    """A redistribute in place: the operand has the elements of `room`, with `want` among them; a
    member's own are in it already."""

    name = "halo"
    in_place = True
    axes: Axes
    have: Bounds
    want: Bounds
    room: Bounds
    near: Near = ()
    wraps: Wraps = ()


@dataclass(frozen=True)
class BroadcastFrom(StatedExchange):
    """The root member's operand."""

    name = "broadcast_from"
    reads = "boxes"
    axes: Axes
    root: Expr
    types: tuple[ArrayType, ...]


@dataclass(frozen=True)
class GatherTo(StatedExchange):
    """all_gather on the root member; elsewhere dim is empty."""

    name = "gather_to"
    reads = "boxes"
    axes: Axes
    dim: int
    var: Sym
    offset: Expr
    root: Expr
    types: tuple[ArrayType, ...]


@dataclass(frozen=True)
class ScatterFrom(StatedExchange):
    """Of the root member's operand, member k gets balanced block k of dim."""

    name = "scatter_from"
    reads = "boxes"
    axes: Axes
    dim: int
    root: Expr
    types: tuple[ArrayType, ...]


@dataclass(frozen=True)
class ReduceTo(Exchange):
    """COMBINE[fn] over the members, on the root member; zeros elsewhere."""

    name = "reduce_to"
    axes: Axes
    fn: str
    root: Expr


@dataclass(frozen=True)
class Scan(Exchange):
    """COMBINE[fn] over the members up to this one, in their order; exclusive: without it, so that
    the first has what is neutral."""

    name = "scan"
    axes: Axes
    fn: str
    exclusive: bool


@dataclass(frozen=True)
class Barrier(Exchange):
    """All members have arrived."""

    name = "barrier"
    axes: Axes

    def infer(self, types: Types) -> list[ArrayType]:
        return []
