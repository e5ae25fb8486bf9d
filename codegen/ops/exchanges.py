"""Ops by which ranks exchange data: Permute, Move, Fold and Barrier.

axes: mesh axes taken as one, row-major; the ranks along them are the members. An Expr is in this
rank's view; another member evaluates it with its own coordinates. `to` and the like are formulas of
`var`, the position of any member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from codegen import dtypes
from codegen.functions import neutral
from codegen.ir.graph import ArrayType, Op, Value
from codegen.ops.group import Bounds, Group, Near, Wraps, common, each, poison, within
from codegen.ops.kind import Array, Kind, Types, extents
from codegen.ops.rules import (
    BatchBuilder,
    CheckBuilder,
    ExchangeSides,
    LoopBuilder,
    Proofs,
    Traffic,
    TrafficMeter,
    Values,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, IntLike, Sym

Axes = tuple[str, ...]


class Exchange(Kind):
    """The base of kinds by which the members of a group send operands to each other. moves: a
    member may receive elements that another one computed, so that both then have the same."""

    from_buffers = True
    moves: ClassVar[bool] = False
    axes: Axes

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        if self.in_place:
            builder.take_over(op)
        builder.exchange(op, self)

    def agreed(self) -> dict[str, Expr]:
        """Return, by name, the formulas that must have the same value on all members."""
        return {}

    def differs(self) -> list[Expr] | None:
        """Return the formulas that decide which part of one array a member receives; members
        receive the same where these are equal. Return None if members receive different elements in
        another way."""
        return None

    def unsent(self, me: Expr, result: ArrayType) -> tuple[Expr, Any]:
        """Return a formula that is 1 where a member receives nothing although its result has
        elements, and the value of these elements."""
        return expr.const(0), 0

    def claims(self, op: Op, proofs: Proofs) -> None:
        raise NotImplementedError(self.name)

    def together(self, group: Group) -> list[list[Array]]:
        """Return each member's result in NumPy, in the members' order; their operands are not
        written to."""
        raise NotImplementedError(self.name)

    def boxes(self, op: Op, sides: ExchangeSides) -> dict[str, Any]:
        """Return the fields of a plan.Exchange that depend on the kind."""
        raise NotImplementedError(self.name)

    def traffic(self, op: Op, meter: TrafficMeter) -> Traffic:
        """Return the traffic of an exchange that has a result."""
        raise NotImplementedError(self.name)


class Flowing(Exchange):
    """An exchange in which `flow` tells from whom a member receives: all (every member), from_root
    (only the one at position `root`), to_root (only the root receives, from everybody), up_to
    (itself and the members before it) or before (the members before it)."""

    flow: str
    root: Expr | None

    def agreed(self) -> dict[str, Expr]:
        return {} if self.root is None else {"root": self.root}

    def takes(self, taker: IntLike, giver: IntLike, root: int | None = None) -> Expr:
        """Return 1 if a member receives from another one, given their positions, else 0."""
        if self.root is not None:
            position = self.root if root is None else root
            return expr.eq(giver if self.flow == "from_root" else taker, position)
        if self.flow in ("up_to", "before"):
            return expr.le(giver, taker) if self.flow == "up_to" else expr.lt(giver, taker)
        return expr.const(1)


@dataclass(frozen=True)
class Permute(Exchange):
    """Send the operand of member var to member `to` where `sends` is 1; a member to which nobody
    sends gets zeros. source, receives: the same map solved for the receiver: it receives from
    `source` where `receives` is 1; None: not solved."""

    name = "permute"
    reads = "boxes"
    moves = True
    axes: Axes
    var: Sym
    to: Expr
    sends: Expr
    source: Expr | None
    receives: Expr | None
    types: tuple[ArrayType, ...]

    def infer(self, types: Types) -> list[ArrayType]:
        return list(self.types)

    def agreed(self) -> dict[str, Expr]:
        solved = {"source": self.source, "receives": self.receives}
        known = {name: e for name, e in solved.items() if e is not None}
        return {"to": self.to, "sends": self.sends, **known}

    def claims(self, op: Op, proofs: Proofs) -> None:
        shape = op.operands[0].type.shape
        proofs.injective(self.to, self.sends, self.var)
        if self.source is None or self.receives is None:
            proofs.independent(shape)
            proofs.shapes(shape)
            return
        proofs.inverse(self.to, self.sends, self.source, self.receives, self.var)
        here = {self.var: proofs.position()}
        source = self.source.subst(here)
        proofs.shapes(tuple(proofs.on_member(e, source) for e in shape), self.receives.subst(here))

    def together(self, group: Group) -> list[list[Array]]:
        """Send each member's operand by `to` and `sends` only, which tests `source` and
        `receives`."""
        (stated,) = self.types
        sender: dict[int, int] = {}
        for k, member in enumerate(group.members):
            if member.eval(self.sends, self.var, k):
                group.send(k, member.eval(self.to, self.var, k), sender)
        out = []
        for k, member in enumerate(group.members):
            shape = extents(stated.shape, member.value)
            nothing = np.zeros(shape, dtypes.numpy_dtype(stated.dtype))
            out.append([group.inputs[sender[k]].copy() if k in sender else nothing])
            if self.source is not None and self.receives is not None:
                here = member.eval(self.receives, self.var, k)
                source = member.eval(self.source, self.var, k) if here else None
                if source != sender.get(k):
                    raise group.broken(f"the solved source of member {k} is {source}, and it "
                                       f"receives from {sender.get(k)}")
        return out

    def boxes(self, op: Op, sides: ExchangeSides) -> dict[str, Any]:
        mine, into = sides.box(op.operands[0]), sides.box(op.result)
        peers = {"source": self.source, "receives": self.receives,
                 "dest": self.to, "sends": self.sends}
        return {"pull_from": sides.seen(mine, into.extent), "pull_into": into, "send": mine,
                **{k: e and e.subst({self.var: sides.me}) for k, e in peers.items()}}

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(self.but(types=tuple(map(batch.stacked, self.types))),
                           *batch.every(op, stacked))]

    def traffic(self, op: Op, meter: TrafficMeter) -> Traffic:
        return meter.whole("permute", op)


@dataclass(frozen=True)
class Move(Flowing):
    """Redistribute an array. Each member holds the elements low … high - 1 of the dims in `have`,
    and receives those of the dims in `want`, each in its own view. None for a dim: the whole of it;
    then members hold, or receive, consecutive parts.

    room: the move is done in place: the operand has these elements, those that are wanted are among
    them, and a member's own elements are there already. near: along each axis the begin and the end
    of the members from which this one reads, and of its readers. wraps: for each dim that wraps
    around, the copies before it and behind it, and its period.
    """

    name = "move"
    reads = "boxes"
    axes: Axes
    have: Bounds = ()
    want: Bounds = ()
    types: tuple[ArrayType, ...] = ()
    room: Bounds = ()
    flow: str = "all"
    root: Expr | None = None
    near: Near = ()
    wraps: Wraps = ()

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        return bool(self.room)

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return self.flow == "all"

    @property
    def parts(self) -> bool:
        """Return whether every dim is whole either in `have` or in `want`; then the members' parts
        together make up the array."""
        return all(have is None or want is None for have, want in zip(self.have, self.want))

    @property
    def called(self) -> str:
        if self.flow != "all":
            to = "scatter_from" if self.differs() else "broadcast_from"
            return "gather_to" if self.flow == "to_root" else to
        if not self.parts:
            return "halo" if self.room else "redistribute"
        return "all_to_all" if self.differs() else "all_gather"

    def differs(self) -> list[Expr] | None:
        return None if self.flow == "to_root" else [e for want in self.want for e in want or ()]

    def infer(self, types: Types) -> list[ArrayType]:
        return list(self.types) or super().infer(types)

    def claims(self, op: Op, proofs: Proofs) -> None:
        """State that parts had and wanted are in bounds. That members hold all that others want
        follows from the cuts."""
        sent, received = op.operands[0].type.shape, op.result.type.shape
        if self.room:
            proofs.spans(self.room, received)
            return
        if self.root is not None:
            root = proofs.root(self.root, "receives" if self.flow == "to_root" else "is sent from")
        if self.flow == "from_root":
            sent = tuple(proofs.on_member(e, root) for e in sent)
        else:
            proofs.independent(sent, [d for d, have in enumerate(self.have) if have is None])
            if not any(self.have):
                proofs.broken("no two members give one element", "all of them give all there is")
        proofs.spans(self.have, sent)
        proofs.spans(self.want, received)
        bounds = (each(self.have, len(sent)), each(self.want, len(received)))
        for have, want, e, r in zip(*bounds, sent, received, strict=True):
            if have is None and want is None:
                proofs.same(r, e, "a dim has the extent of what is received")
            elif have is None and want is not None:
                proofs.tiles(want, e)
            elif have is not None and want is None and self.flow == "to_root":
                proofs.tiles(have, total := proofs.on_member(r, root))
                proofs.same(r, total * expr.eq(proofs.position(), root),
                            "only the root gets something")
            elif have is not None and want is None:
                proofs.tiles(have, r)

    def together(self, group: Group) -> list[list[Array]]:
        """Copy every element from the member that holds it; elements that nobody holds are
        poisoned."""
        root = 0 if self.root is None else group.root(self.root)
        out = []
        for k, (member, mine) in enumerate(zip(group.members, group.inputs, strict=True)):
            if self.room:
                result, base = mine.copy(), member.box(self.room, mine.shape)
            else:
                (stated,) = self.types
                result = poison(extents(stated.shape, member.value), stated.dtype)
                base = member.box(self.want, result.shape)
            want, times = member.box(self.want, result.shape), np.zeros(result.shape, int)
            for j, (source, theirs) in enumerate(zip(group.members, group.inputs, strict=True)):
                if self.takes(k, j, root) == 0 or not group.near(
                    member, source, self.axes, self.near
                ):
                    continue
                have = source.box(self.have, theirs.shape)
                lies = source.box(self.room, theirs.shape) if self.room else have
                if tuple(b - a for a, b in lies) != theirs.shape:
                    raise group.broken(f"{group.name}: member {j} has {theirs.shape}, not {lies}")
                for held, there in zip(member.copies(have, self.wraps),
                                       member.copies(lies, self.wraps), strict=True):
                    box = common(held, want)
                    if box is None or (self.room and source is member and held == have):
                        continue  # what is a member's own stays
                    result[within(box, base)] = theirs[within(box, there)]
                    times[within(box, base)] += 1
            if self.parts and (times != 1).any():
                raise group.broken(f"{group.name}: of what member {k} gets, no member or several "
                                   "hold an element")
            out.append([result])
        return out

    def boxes(self, op: Op, sides: ExchangeSides) -> dict[str, Any]:
        from_, into, send = sides.parts(op, self.have, self.want, self.room, self.wraps)
        taken, gives_to = self.takes(sides.me, sides.member), self.takes(sides.member, sides.me)
        # what a root sends, and blocks that all exchange, is only pulled, not written there
        gives = self.flow != "from_root" and not (self.parts and self.differs())
        return {
            "pull_from": sides.where(taken, from_), "pull_into": sides.where(taken, into),
            "send": sides.where(gives_to, send),
            "give_into": sides.where(gives_to, sides.theirs(into)) if gives else None,
            "differs": bool(self.differs()), "in_place": self.in_place,
            "flow": "near" if self.near else self.flow, "root": self.root,
            "near": self.near, "wraps": sides.copies(self.wraps),
        }

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Move the elements of all members in one exchange."""
        kind = self.but(
            have=_deeper(self.have), want=_deeper(self.want), room=_deeper(self.room),
            wraps=_deeper(self.wraps), types=tuple(map(batch.stacked, self.types)))
        return [batch.emit(kind, *batch.every(op, stacked))]

    def traffic(self, op: Op, meter: TrafficMeter) -> Traffic:
        return meter.moved(op, self.have, self.want, self.flow)


@dataclass(frozen=True)
class Fold(Flowing):
    """Combine the operands of members by COMBINE[fn], in the order of their positions. want: the
    elements of the total that a member receives; () for all. A member that receives from nobody
    gets zeros if there is a root, else the neutral element."""

    name = "fold"
    axes: Axes
    fn: str
    flow: str = "all"
    root: Expr | None = None
    want: Bounds = ()

    @property
    def called(self) -> str:
        every = "reduce_scatter" if self.want else "all_reduce"
        return {"all": every, "to_root": "reduce_to"}.get(self.flow, "scan")

    def title(self) -> str:
        return "what ranks combine"

    def differs(self) -> list[Expr] | None:
        return [e for want in self.want for e in want or ()] if self.flow == "all" else None

    def infer(self, types: Types) -> list[ArrayType]:
        (operand,) = types
        want = each(self.want, operand.ndim)
        shape = (e if w is None else w[1] - w[0] for e, w in zip(operand.shape, want, strict=True))
        return [ArrayType(operand.dtype, tuple(shape))]

    def exact(self, op: Op, builder: CheckBuilder) -> Value | None:
        return builder.emit(self, builder.floats(op)) if self.fn in ("add", "mul") else None

    def claims(self, op: Op, proofs: Proofs) -> None:
        shape = op.operands[0].type.shape
        if self.root is not None:
            proofs.root(self.root, "receives")
        proofs.independent(shape)
        proofs.shapes(self.infer([op.operands[0].type])[0].shape)
        for want, extent in zip(self.want, shape):
            if want is not None:
                proofs.tiles(want, extent)

    def unsent(self, me: Expr, result: ArrayType) -> tuple[Expr, Any]:
        if self.root is not None:
            return expr.ne(me, self.root), 0
        if self.flow == "before":
            return expr.eq(me, 0), neutral(self.fn, result.dtype)
        return super().unsent(me, result)

    def together(self, group: Group) -> list[list[Array]]:
        root = None if self.root is None else group.root(self.root)
        out = []
        for k, member in enumerate(group.members):
            read = [x for j, x in enumerate(group.inputs) if self.takes(k, j, root) == 1]
            mine = member.operands[0]
            nothing = 0 if self.root is not None else neutral(self.fn, group.dtype)
            total = group.total(self.fn, read) if read else np.full_like(mine, nothing)
            part = member.box(self.want, mine.shape)
            out.append([total[tuple(slice(*ends) for ends in part)].copy()])
        return out

    def boxes(self, op: Op, sides: ExchangeSides) -> dict[str, Any]:
        boxes = sides.parts(op, (), self.want)
        from_, into, send = boxes if self.want else map(sides.flat, boxes)
        return {"pull_from": from_, "pull_into": into, "send": send, "differs": bool(self.want),
                "flow": self.flow, "root": self.root, "fn": self.fn}

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(self.but(want=_deeper(self.want)), *batch.every(op, stacked))]

    def traffic(self, op: Op, meter: TrafficMeter) -> Traffic:
        words = {"to_root": "reduce", "up_to": "scan", "before": "exclusive scan"}
        every = "reduce-scatter" if self.want else "all-reduce"
        cut = [d for d, want in enumerate(self.want) if want is not None]
        return meter.folded(op, words.get(self.flow, every), self.fn, cut)


@dataclass(frozen=True)
class Barrier(Exchange):
    """Wait until all members have arrived."""

    name = "barrier"
    fence = True
    at_home = True
    axes: Axes

    def infer(self, types: Types) -> list[ArrayType]:
        return []

    def claims(self, op: Op, proofs: Proofs) -> None:
        pass

    def together(self, group: Group) -> list[list[Array]]:
        return [[] for _ in group.members]

    def boxes(self, op: Op, sides: ExchangeSides) -> dict[str, Any]:
        return {}


def _deeper(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return bounds with a whole first dim put before them, if there are any."""
    return (None, *parts) if parts else ()
