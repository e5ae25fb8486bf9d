"""Ops by which ranks exchange: what each gives its members, and what they state of each other.

axes: mesh axes taken as one, row-major: the members. var: the symbol of a member's position along
them. Expressions in `var` hold for every member; all others are in the view of the rank itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from codegen import dtypes
from codegen.functions import neutral
from codegen.ir import ArrayType, Op, Value
from codegen.ops.group import Bounds, Group, Near, Wraps, common, poison, within
from codegen.ops.kind import Array, Kind, Stated, Types, dropped, extents
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

if TYPE_CHECKING:
    from codegen.claims import Claims
    from codegen.passes.checks import Checks

Axes = tuple[str, ...]


class Exchange(Kind):
    """A kind whose operand members give to each other. same: all of them get the same."""

    same: ClassVar[bool] = False
    axes: Axes

    def agreed(self) -> dict[str, Expr]:
        """By name: the formulas that must be the same on all members."""
        return {}

    def claims(self, op: Op, at: Claims) -> None:
        raise NotImplementedError(self.name)

    def together(self, group: Group) -> list[list[Array]]:
        """What each member gets, in NumPy, in their order; what they give is not written to."""
        raise NotImplementedError(self.name)


class StatedExchange(Stated, Exchange):
    """An exchange whose result has other extents than its operand."""


class Fold(Exchange):
    """An exchange that combines what members have: COMBINE[fn] of it."""

    fn: str


class Rooted(Exchange):
    """An exchange of which one member, at the position `root`, has the whole."""

    root: Expr

    def agreed(self) -> dict[str, Expr]:
        return {"root": self.root}


class Joined(StatedExchange):
    """An exchange that puts parts one after the other; member var's begins at `offset`."""

    var: Sym
    offset: Expr


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

    def agreed(self) -> dict[str, Expr]:
        solved = {"source": self.source, "receives": self.receives}
        known = {name: e for name, e in solved.items() if e is not None}
        return {"to": self.to, "sends": self.sends, **known}

    def claims(self, op: Op, at: Claims) -> None:
        shape = op.operands[0].type.shape
        at.injective(self.to, self.sends, self.var)
        if self.source is None or self.receives is None:
            at.independent(shape)
            at.shapes(shape)
            return
        at.inverse(self.to, self.sends, self.source, self.receives, self.var)
        here = {self.var: at.position()}
        source = self.source.subst(here)
        at.shapes(tuple(at.at(e, source) for e in shape), self.receives.subst(here))

    def together(self, group: Group) -> list[list[Array]]:
        """By `to` and `sends` alone, which checks `source` and `receives`."""
        (stated,) = self.types
        sender: dict[int, int] = {}
        for k, member in enumerate(group.members):
            if member.eval(self.sends, self.var, k):
                group.send(k, member.eval(self.to, self.var, k), sender)
        out = []
        for k, member in enumerate(group.members):
            shape = extents(stated.shape, member.value)
            nothing = np.zeros(shape, dtypes.numpy_dtype(stated.dtype))
            out.append([group.given[sender[k]].copy() if k in sender else nothing])
            if self.source is not None and self.receives is not None:
                here = member.eval(self.receives, self.var, k)
                source = member.eval(self.source, self.var, k) if here else None
                if source != sender.get(k):
                    raise group.broken(f"the solved source of member {k} is {source}, and it "
                                       f"receives from {sender.get(k)}")  # fmt: skip
        return out


@dataclass(frozen=True)
class AllReduce(Fold):
    """COMBINE[fn] over the members."""

    name = "all_reduce"
    same = True
    axes: Axes
    fn: str

    def title(self) -> str:
        return "what ranks combine"

    def exact(self, op: Op, at: Checks) -> Value | None:
        return at.emit(self, at.floats(op)) if self.fn in ("add", "mul") else None

    def claims(self, op: Op, at: Claims) -> None:
        at.independent(op.operands[0].type.shape)

    def together(self, group: Group) -> list[list[Array]]:
        total = group.total(self.fn)
        return [[total.copy()] for _ in group.members]


@dataclass(frozen=True)
class AllGather(Joined):
    """Members' operands one after the other along dim; member var's begins at `offset`."""

    name = "all_gather"
    reads = "boxes"
    same = True
    axes: Axes
    dim: int
    var: Sym
    offset: Expr
    types: tuple[ArrayType, ...]

    def claims(self, op: Op, at: Claims) -> None:
        d, shape = self.dim, op.operands[0].type.shape
        at.independent(dropped(shape, (d,)))
        whole = at.joined(shape[d], op.result.type.shape[d], self.var, self.offset)
        at.shapes((*shape[:d], whole, *shape[d + 1 :]))

    def together(self, group: Group) -> list[list[Array]]:
        return [[group.joined(group.given, self.dim, self.var, self.offset, m)]
                for m in group.members]  # fmt: skip


@dataclass(frozen=True)
class ReduceScatter(Fold, StatedExchange):
    """COMBINE[fn] over the members; member k keeps balanced block k of dim."""

    name = "reduce_scatter"
    axes: Axes
    dim: int
    fn: str
    types: tuple[ArrayType, ...]

    def claims(self, op: Op, at: Claims) -> None:
        d, shape = self.dim, op.operands[0].type.shape
        at.independent(shape)
        at.shapes((*shape[:d], at.block(shape[d]), *shape[d + 1 :]))

    def together(self, group: Group) -> list[list[Array]]:
        parts = np.array_split(group.total(self.fn), len(group.members), axis=self.dim)
        return [[p.copy()] for p in parts]


@dataclass(frozen=True)
class AllToAll(Joined):
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

    def claims(self, op: Op, at: Claims) -> None:
        s, c, shape = self.split, self.concat, list(op.operands[0].type.shape)
        total = op.result.type.shape[c]
        at.independent(shape if s == c else dropped(shape, (c,)))
        if s == c:
            shape[c] = at.joined(at.block(shape[c]), total, self.var, self.offset, own=True)
        else:
            whole = at.joined(shape[c], total, self.var, self.offset)
            shape[s], shape[c] = at.block(shape[s]), whole
        at.shapes(tuple(shape))

    def together(self, group: Group) -> list[list[Array]]:
        pieces = [np.array_split(x, len(group.members), axis=self.split) for x in group.given]
        return [
            [group.joined([of[k] for of in pieces], self.concat, self.var, self.offset, member)]
            for k, member in enumerate(group.members)
        ]


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

    def claims(self, op: Op, at: Claims) -> None:
        """What is stated; that members hold all that others want follows from the cuts."""
        what = "members hold and get the elements that are stated"
        for stated, value in ((self.have, op.operands[0]), (self.want, op.result)):
            for (low, high), extent in zip(stated, value.type.shape, strict=True):
                at.same(extent, high - low, what)

    def together(self, group: Group) -> list[list[Array]]:
        """Every element from the member that holds it; what nobody holds is nobody's."""
        (stated,) = self.types
        out = []
        for member in group.members:
            want = member.box(self.want)
            made = poison([b - a for a, b in want], stated.dtype)
            for source, given in zip(group.members, group.given, strict=True):
                for held in member.copies(source.box(self.have), self.wraps):
                    box = common(held, want)
                    if box and group.reads(member, source, self.axes, self.near):
                        made[within(box, want)] = given[within(box, held)]
            out.append([made])
        return out


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

    def claims(self, op: Op, at: Claims) -> None:
        for (low, high), extent in zip(self.room, op.result.type.shape, strict=True):
            at.same(extent, high - low, "there is room for what is wanted")

    def together(self, group: Group) -> list[list[Array]]:
        """What is a member's own stays."""
        out = []
        for member, mine in zip(group.members, group.given, strict=True):
            made, want, room = mine.copy(), member.box(self.want), member.box(self.room)
            for source, given in zip(group.members, group.given, strict=True):
                have, around = source.box(self.have), source.box(self.room)
                for held, there in zip(member.copies(have, self.wraps),
                                       member.copies(around, self.wraps), strict=True):  # fmt: skip
                    box = common(held, want)
                    own = source is member and held == have
                    if not own and box and group.reads(member, source, self.axes, self.near):
                        made[within(box, room)] = given[within(box, there)]
            out.append([made])
        return out


@dataclass(frozen=True)
class BroadcastFrom(Rooted, StatedExchange):
    """The root member's operand."""

    name = "broadcast_from"
    reads = "boxes"
    same = True
    axes: Axes
    root: Expr
    types: tuple[ArrayType, ...]

    def claims(self, op: Op, at: Claims) -> None:
        root = at.root(self.root, "is sent from")
        at.shapes(tuple(at.at(e, root) for e in op.operands[0].type.shape))

    def together(self, group: Group) -> list[list[Array]]:
        value = group.given[group.root(self.root)]
        return [[value.copy()] for _ in group.members]


@dataclass(frozen=True)
class GatherTo(Rooted, Joined):
    """all_gather on the root member; elsewhere dim is empty."""

    name = "gather_to"
    reads = "boxes"
    axes: Axes
    dim: int
    var: Sym
    offset: Expr
    root: Expr
    types: tuple[ArrayType, ...]

    def claims(self, op: Op, at: Claims) -> None:
        d, shape = self.dim, op.operands[0].type.shape
        root = at.root(self.root, "receives")
        at.independent(dropped(shape, (d,)))
        total = at.at(op.result.type.shape[d], root)
        whole = at.joined(shape[d], total, self.var, self.offset) * expr.eq(at.position(), root)
        at.shapes((*shape[:d], whole, *shape[d + 1 :]))

    def together(self, group: Group) -> list[list[Array]]:
        root = group.root(self.root)
        whole = group.joined(group.given, self.dim, self.var, self.offset, group.members[root])
        empty = np.take(whole, [], axis=self.dim)
        return [[whole if k == root else empty.copy()] for k in range(len(group.members))]


@dataclass(frozen=True)
class ScatterFrom(Rooted, StatedExchange):
    """Of the root member's operand, member k gets balanced block k of dim."""

    name = "scatter_from"
    reads = "boxes"
    axes: Axes
    dim: int
    root: Expr
    types: tuple[ArrayType, ...]

    def claims(self, op: Op, at: Claims) -> None:
        d, root = self.dim, at.root(self.root, "is sent from")
        shape = tuple(at.at(e, root) for e in op.operands[0].type.shape)
        at.shapes((*shape[:d], at.block(shape[d]), *shape[d + 1 :]))

    def together(self, group: Group) -> list[list[Array]]:
        whole = group.given[group.root(self.root)]
        parts = np.array_split(whole, len(group.members), axis=self.dim)
        return [[p.copy()] for p in parts]


@dataclass(frozen=True)
class ReduceTo(Rooted, Fold):
    """COMBINE[fn] over the members, on the root member; zeros elsewhere."""

    name = "reduce_to"
    axes: Axes
    fn: str
    root: Expr

    def claims(self, op: Op, at: Claims) -> None:
        at.root(self.root, "receives")
        at.independent(op.operands[0].type.shape)

    def together(self, group: Group) -> list[list[Array]]:
        root, total = group.root(self.root), group.total(self.fn)
        nothing = np.zeros_like(total)
        return [[(total if k == root else nothing).copy()] for k in range(len(group.members))]


@dataclass(frozen=True)
class Scan(Fold):
    """COMBINE[fn] over the members up to this one, in their order; exclusive: without it, so that
    the first has what is neutral."""

    name = "scan"
    axes: Axes
    fn: str
    exclusive: bool

    def claims(self, op: Op, at: Claims) -> None:
        at.independent(op.operands[0].type.shape)

    def together(self, group: Group) -> list[list[Array]]:
        sums = [group.total(self.fn, k + 1) for k in range(len(group.members))]
        if self.exclusive:
            dtype = dtypes.from_numpy(sums[0].dtype)
            assert dtype is not None
            sums = [np.full_like(sums[0], neutral(self.fn, dtype)), *sums[:-1]]
        return [[s] for s in sums]


@dataclass(frozen=True)
class Barrier(Exchange):
    """All members have arrived."""

    name = "barrier"
    axes: Axes

    def infer(self, types: Types) -> list[ArrayType]:
        return []

    def claims(self, op: Op, at: Claims) -> None:
        pass

    def together(self, group: Group) -> list[list[Array]]:
        return [[] for _ in group.members]
