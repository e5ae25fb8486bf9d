"""What members of an exchange take from each other: boxes of buffers, each in its owner's view.

Goes in: an exchange op, where its values lie, the symbol of a member. Comes out: the fields of a
plan.Exchange that depend on its kind.
Always holds: what I pull from a member is what it says it sends to me, element for element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from codegen import mesh, ops
from codegen.functions import neutral
from codegen.ir import Op, Shape, Value
from codegen.mesh import Mesh
from codegen.plan import indexing
from codegen.plan.access import Resolver
from codegen.plan.grammar import Box, Load
from codegen.plan.indexing import loop_vars, positions
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

Details = dict[str, Any]
There = Mapping[Sym, Expr]
Bounds = Sequence[tuple[Expr, Expr]]


class Exchanges:
    """The rules, one per kind; me and member: positions along the axes of the op."""

    def __init__(self, mesh: Mesh, resolver: Resolver) -> None:
        self.mesh = mesh
        self.resolver = resolver

    def details(self, op: Op, what: ops.Exchange, member: Sym) -> Details:
        """what: the op does, or a barrier where one is asked for around it."""
        at = expr.symbol(member)
        there, names = {}, _wrap_names(what)
        for coord, e in self.mesh.at(what.axes, at).items():
            names[their := Sym(f"their_{coord.name[2:]}", "var", coord.lo, coord.hi)] = e
            there[coord] = expr.symbol(their)
        me = self.mesh.position(what.axes)
        details = _RULES[type(what)](self, what, op, me, at, there)
        return {k: _with(v, names) if isinstance(v, Box) else v for k, v in details.items()}

    def box(self, value: Value) -> Box:
        """Where a value lies: a strided region of a buffer."""
        loops = loop_vars(value.type.shape)
        node = self.resolver.node(value, positions(loops))
        assert isinstance(node, Load), "what is sent lies in memory"
        found = indexing.affine(node.offset, loops)
        assert found is not None, "what is sent is strided"
        formulas = {s: e for e, s in self.resolver.named.items()}
        return Box(node.buffer, found[0].subst(formulas), value.type.shape, found[1])

    def permute(
        self, what: ops.Permute, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        mine, into = self.box(op.operands[0]), self.box(op.result)
        at_me = {what.var: me}
        return {
            "pull_from": _with_extent(_seen_from(mine, there), into.extent),
            "pull_into": into,
            "send": mine,
            "source": what.source and what.source.subst(at_me),
            "receives": what.receives and what.receives.subst(at_me),
            "dest": what.to.subst(at_me),
            "sends": what.sends.subst(at_me),
        }

    def all_reduce(
        self, what: ops.Exchange, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        return {"pull_from": _flat(_seen_from(self.box(op.operands[0]), there)),
                "pull_into": _flat(self.box(op.result)),
                "send": _flat(self.box(op.operands[0]))}  # fmt: skip

    def all_gather(
        self, what: ops.AllGather | ops.GatherTo, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        mine, whole = self.box(op.operands[0]), self.box(op.result)
        from_ = _seen_from(mine, there)
        offset = what.offset.subst({what.var: member})
        into = _part(whole, what.dim, offset, from_.extent)
        return {"pull_from": from_, "pull_into": into, "send": mine,
                "give_into": _at(into, me, member, there)}  # fmt: skip

    def all_to_all(
        self, what: ops.AllToAll, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        mine, whole = self.box(op.operands[0]), self.box(op.result)
        size = self.mesh.size(what.axes)
        theirs = _block(_seen_from(mine, there), what.split, size, me)
        offset = what.offset.subst({what.var: member})
        into = _part(whole, what.concat, offset, theirs.extent)
        return {"pull_from": theirs, "pull_into": into,
                "send": _block(mine, what.split, size, member), "pieces": True}  # fmt: skip

    def redistribute(
        self, what: ops.Redistribute | ops.Halo, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        """A halo too: there, an array that has room for what is wanted is read and written."""
        have, want, moved = what.have, what.want, _wrap(what)
        halo, into = isinstance(what, ops.Halo), self.box(op.result)
        room = what.room if isinstance(what, ops.Halo) else want
        mine, held = (into, room) if halo else (self.box(op.operands[0]), have)
        get = _common(_moved(_bounds_at(have, there), moved), want)
        give = _common(_moved(have, moved), _bounds_at(want, there))
        theirs = _moved(_bounds_at(held, there), moved)
        boxes = [
            _between(_seen_from(mine, there), theirs, get, "get", "from"),
            _between(into, room, get, "get", "into"),
            _between(mine, _moved(held, moved), give, "give", "send"),
        ]
        if halo:
            itself = expr.eq(member, me) * expr.product(expr.eq(by, 0) for by in moved)
            boxes = [_unless(box, itself) for box in boxes]
        from_, to, send = boxes
        near = what.near
        return {"pull_from": from_, "pull_into": to, "send": send, "pieces": True,
                "give_into": _at(to, me, member, there), "wraps": expr.product(_counts(what)),
                **({"flow": "near", "near": near} if near else {})}  # fmt: skip

    def reduce_scatter(
        self, what: ops.ReduceScatter, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        mine = self.box(op.operands[0])
        dim, size = what.dim, self.mesh.size(what.axes)
        return {
            "pull_from": _block(_seen_from(mine, there), dim, size, me),
            "pull_into": self.box(op.result),
            "send": _block(mine, dim, size, member),
            "pieces": True,
        }

    def broadcast_from(
        self, what: ops.BroadcastFrom, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        mine, into = self.box(op.operands[0]), self.box(op.result)
        only = expr.eq(member, what.root)
        is_root = expr.eq(me, what.root)
        return {"pull_from": _times(_seen_from(mine, there), only), "pull_into": _times(into, only),
                "send": _times(mine, is_root), **_rooted(what, "from_root")}  # fmt: skip

    def gather_to(
        self, what: ops.GatherTo, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        whole = self.all_gather(what, op, me, member, there)
        is_root, for_root = expr.eq(me, what.root), expr.eq(member, what.root)
        return {"pull_from": _times(whole["pull_from"], is_root),
                "pull_into": _times(whole["pull_into"], is_root),
                "send": _times(whole["send"], for_root),
                "give_into": _times(whole["give_into"], for_root),
                **_rooted(what, "to_root")}  # fmt: skip

    def reduce_to(
        self, what: ops.ReduceTo, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        return {**self.all_reduce(what, op, me, member, there), **_rooted(what, "to_root")}

    def scatter_from(
        self, what: ops.ScatterFrom, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        mine, dim, size = self.box(op.operands[0]), what.dim, self.mesh.size(what.axes)
        only, is_root = expr.eq(member, what.root), expr.eq(me, what.root)
        return {
            "pull_from": _times(_block(_seen_from(mine, there), dim, size, me), only),
            "pull_into": _times(self.box(op.result), only),
            "send": _times(_block(mine, dim, size, member), is_root),
            "pieces": True,
            **_rooted(what, "from_root"),
        }

    def scan(
        self, what: ops.Scan, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        flow = "before" if what.exclusive else "up_to"
        return {**self.all_reduce(what, op, me, member, there), "flow": flow}

    def barrier(
        self, what: ops.Barrier, op: Op, me: Expr, member: Expr, there: There
    ) -> Details:
        return {}

    # ---- what nobody sends -----------------------------------------------------------------------

    def unsent(self, op: Op) -> tuple[Expr, Any]:
        """Where (1) a member gets nothing although its result has elements, and what they are."""
        what = op.what
        if isinstance(what, ops.ReduceTo):
            return expr.ne(self.mesh.position(what.axes), what.root), 0
        if isinstance(what, ops.Scan) and what.exclusive:
            first = expr.eq(self.mesh.position(what.axes), 0)
            return first, neutral(what.fn, op.result.type.dtype)
        return expr.const(0), 0


# A dim that goes around goes on beyond its ends; a wrap is it or one of its repetitions there.
WRAP = Sym("wrap", "var", expr.const(0))


def _counts(what: ops.Exchange) -> list[Expr]:
    """How many wraps a part touches along every dim."""
    wraps = what.wraps if isinstance(what, (ops.Redistribute, ops.Halo)) else ()
    return [i[0] + 1 + i[1] if i else expr.const(1) for i in wraps]


def _number(dim: int) -> Sym:
    """Of the wrap along a dim."""
    return Sym(f"wrap_{dim}", "var", expr.const(0))


def _wrap_names(what: ops.Exchange) -> dict[Sym, Expr]:
    """The number of the wrap along every dim that goes on."""
    names, left = {}, expr.symbol(WRAP)
    for d, count in reversed(list(enumerate(_counts(what)))):
        if count != 1:
            names[_number(d)] = left % count
            left = left // count
    return names


def _wrap(what: ops.Redistribute | ops.Halo) -> list[Expr]:
    """How far each dim of the wrap lies from the dim itself."""
    moved = [expr.const(0)] * len(what.have)
    for d, (wrap, count) in enumerate(zip(what.wraps, _counts(what))):
        if wrap:
            before, _, period = wrap
            number = expr.const(0) if count == 1 else expr.symbol(_number(d))
            moved[d] = (number - before) * period
    return moved


def _moved(bounds: Bounds, by: Sequence[Expr]) -> Bounds:
    return [(low + e, high + e) for (low, high), e in zip(bounds, by, strict=True)]


def _rooted(what: ops.BroadcastFrom | ops.GatherTo | ops.ScatterFrom | ops.ReduceTo,
            flow: str) -> Details:  # fmt: skip
    return {"flow": flow, "root": what.root}


# ---- boxes ---------------------------------------------------------------------------------------


def _seen_from(box: Box, there: Mapping[Sym, Expr]) -> Box:
    """The same region in another member's view."""
    return Box(
        box.buffer, box.offset.subst(there), tuple(e.subst(there) for e in box.extent),
        tuple(s.subst(there) for s in box.stride),
        tuple((name, e.subst(there)) for name, e in box.names),
    )  # fmt: skip


def _at(into: Box, me: Expr, member: Expr, there: There) -> Box:
    """Where a member pulls into, what it pulls from me."""
    (symbol,) = member.symbols()
    back = {s: expr.symbol(coord) for coord, e in there.items() for s in e.symbols()}
    return _seen_from(into, {**there, **back, symbol: me})


def _with(box: Box, names: Mapping[Sym, Expr]) -> Box:
    """Named before its own names; without those that do not stand in it."""
    kept: list[tuple[Sym, Expr]] = []
    used = replace(box, names=()).symbols()
    for name, e in reversed((*names.items(), *box.names)):
        if name in used:
            kept.insert(0, (name, e))
            used |= e.symbols()
    return replace(box, names=tuple(kept))


def _with_extent(box: Box, extent: Shape) -> Box:
    return Box(box.buffer, box.offset, extent, box.stride)


def _part(box: Box, dim: int, offset: Expr, extent: Shape) -> Box:
    return Box(box.buffer, box.offset + box.stride[dim] * offset, extent, box.stride)


def _block(box: Box, dim: int, blocks: Expr, k: Expr) -> Box:
    """Balanced block k of a dim."""
    e = box.extent[dim]
    extent = (*box.extent[:dim], mesh.block_extent(e, blocks, k), *box.extent[dim + 1 :])
    return _part(box, dim, mesh.block_offset(e, blocks, k), extent)


def _bounds_at(bounds: Bounds, there: There) -> Bounds:
    return [(low.subst(there), high.subst(there)) for low, high in bounds]


def _common(a: Bounds, b: Bounds) -> Bounds:
    """The elements in both."""
    out = []
    for (low, high), (first, last) in zip(a, b, strict=True):
        begin = low if low == first else expr.most(low, first)
        end = high if high == last else expr.least(high, last)
        out.append((begin, end))
    return out


def _between(box: Box, held: Bounds, part: Bounds, which: str, whose: str) -> Box:
    """Of a box that holds some elements, these; empty where there are none. Long formulas get
    names: of the part by `which` it is, of what is held by whose box it is."""
    names: dict[Sym, Expr] = {}

    def name(text: str, e: Expr) -> Expr:
        if len(e.terms) < 2 and not any(True for _ in expr.calls(e)):
            return e
        names[sym := Sym(text, "var")] = e
        return expr.symbol(sym)

    offset, extent, strides = box.offset, [], []
    for d, ((low, high), (first, last)) in enumerate(zip(held, part, strict=True)):
        stride = name(f"{whose}_{d}_stride", box.stride[d])
        strides.append(stride)
        if (first, last) == (low, high):
            extent.append(name(f"{which}_{d}_extent", last - first))
            continue
        nonneg = expr.nonneg(last - first)
        begin, end = name(f"{which}_{d}_begin", first), name(f"{which}_{d}_end", last)
        offset = offset + stride * (begin - name(f"{whose}_{d}_begin", low))
        extent.append(end - begin if nonneg else expr.most(end - begin, 0))
    return Box(box.buffer, offset, tuple(extent), tuple(strides), tuple(names.items()))


def _times(box: Box, condition: Expr) -> Box:
    """Empty where the condition is 0."""
    extent = box.extent or (expr.const(1),)
    stride = box.stride or (expr.const(1),)
    return Box(box.buffer, box.offset, (extent[0] * condition, *extent[1:]), stride, box.names)


def _unless(box: Box, condition: Expr) -> Box:
    """Empty where the condition is 1."""
    others = Sym("others", "var", expr.const(0), expr.const(1))
    named = replace(box, names=(*box.names, (others, 1 - condition)))
    return _times(named, expr.symbol(others))


def _flat(box: Box) -> Box:
    return Box(box.buffer, box.offset, (expr.product(box.extent),), (expr.const(1),))


_RULES: dict[type[ops.Exchange], Callable[..., Details]] = {
    ops.Permute: Exchanges.permute,
    ops.AllReduce: Exchanges.all_reduce,
    ops.AllGather: Exchanges.all_gather,
    ops.AllToAll: Exchanges.all_to_all,
    ops.Redistribute: Exchanges.redistribute,
    ops.Halo: Exchanges.redistribute,
    ops.ReduceScatter: Exchanges.reduce_scatter,
    ops.BroadcastFrom: Exchanges.broadcast_from,
    ops.GatherTo: Exchanges.gather_to,
    ops.ScatterFrom: Exchanges.scatter_from,
    ops.ReduceTo: Exchanges.reduce_to,
    ops.Scan: Exchanges.scan,
    ops.Barrier: Exchanges.barrier,
}
