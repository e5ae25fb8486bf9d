"""The boxes of an exchange: regions of buffers that members read and write, in the owner's view.

Goes in: an exchange op, where its values lie, the symbol of a member. Comes out: the fields of a
plan.Exchange that depend on its kind, put together by the rule of that kind.
Always holds: what I pull from a member is what it says it sends to me, element for element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from codegen import ops
from codegen.ir import indexing
from codegen.ir.graph import Op, Shape, Value
from codegen.ir.indexing import loop_vars, positions
from codegen.ir.plan import Box, Load
from codegen.loops.resolver import Resolver
from codegen.mesh import Mesh
from codegen.ops.group import Bounds, Span, Wraps, each
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

There = Mapping[Sym, Expr]


class Sides:
    """A view of both sides of an exchange, for the rules of its kinds. me, member: positions along
    the axes of the op. exactly: the coordinates of that member by its position; there: by names."""

    def __init__(self, mesh: Mesh, resolver: Resolver) -> None:
        self.mesh = mesh
        self.resolver = resolver
        self.me = self.member = expr.const(0)
        self.exactly: There = {}
        self.there: There = {}
        self.names: dict[Sym, Expr] = {}

    def details(self, op: Op, kind: ops.Exchange, member: Sym) -> dict[str, Any]:
        """Return the fields of a plan.Exchange that depend on its kind: the kind of the op, or
        a barrier that is asked for around it."""
        self.me, self.member = self.mesh.position(kind.axes), expr.symbol(member)
        self.exactly = self.mesh.coordinates(kind.axes, self.member)
        theirs = {c: Sym(f"their_{c.name[2:]}", "var", c.lo, c.hi) for c in self.exactly}
        self.names = {their: self.exactly[coord] for coord, their in theirs.items()}
        self.there = {coord: expr.symbol(their) for coord, their in theirs.items()}
        details = kind.boxes(op, self)
        return {k: _with(v, self.names) if isinstance(v, Box) else v for k, v in details.items()}

    # ---- boxes -----------------------------------------------------------------------------------

    def box(self, value: Value) -> Box[Value]:
        """Return the strided region of a buffer in which a value lies."""
        loops = loop_vars(value.type.shape)
        node = self.resolver.node(value, positions(loops))
        assert isinstance(node, Load), "what is sent lies in memory"
        linear = indexing.affine(node.offset, loops)
        assert linear is not None, "what is sent is strided"
        formulas = {s: e for e, s in self.resolver.named.items()}
        return Box(node.buffer, linear[0].subst(formulas), value.type.shape, linear[1])

    def seen(self, box: Box[Value], extent: Shape | None = None) -> Box[Value]:
        """Return a region as the member has it, with these extents if they are given."""
        region = _seen_from(box, self.there)
        return region if extent is None else replace(region, extent=extent)

    def bounds(self, bounds: Bounds, cut: Sequence[bool]) -> Bounds:
        """Return bounds in the member's view: by its position where this gives simple formulas,
        else by names, in dims that are cut."""

        def formula(e: Expr, named: bool) -> Expr:
            exact, members = e.subst(self.exactly), self.member.symbols()
            apart = any(call.op in ("floordiv", "mod") and call.args[0].symbols() & members
                        for call in expr.calls(exact))
            return e.subst(self.there) if named or apart else exact

        return tuple(span and (formula(span[0], named), formula(span[1], named))
                     for span, named in zip(bounds, cut, strict=True))

    def theirs(self, into: Box[Value]) -> Box[Value]:
        """Return what a member pulls from me, in my view, from where it pulls into."""
        (member,) = self.member.symbols()
        back = {s: expr.symbol(coord) for coord, e in self.there.items() for s in e.symbols()}
        return _seen_from(into, {**self.there, **back, member: self.me})

    def flat(self, box: Box[Value]) -> Box[Value]:
        """Return the elements of a contiguous box as a box of one dim."""
        return Box(box.buffer, box.offset, (expr.product(box.extent),), (expr.const(1),))

    def where(self, condition: Expr, box: Box[Value]) -> Box[Value]:
        """Return the box, which is empty where the condition is 0."""
        return box if condition == 1 else _where(condition, box)

    def copies(self, wraps: Wraps) -> Expr:
        """Return the number of boxes that a pair of members has."""
        return expr.product(_counts(wraps))

    def parts(
        self, op: Op, have: Bounds, want: Bounds, room: Bounds = (), wraps: Wraps = ()
    ) -> tuple[Box[Value], Box[Value], Box[Value]]:
        """Return what I pull from the member, into what, and what it pulls from me, where members
        hold the elements that `have` says, and want others. With room, one array has both."""
        into, ndim = self.box(op.result), op.result.type.ndim
        have, want, moved = each(have, ndim), each(want, ndim), _by(wraps, ndim)
        cut = [a is not None and b is not None for a, b in zip(have, want, strict=True)]
        lies, base = room or have, room or want
        mine = into if room else self.box(op.operands[0])
        get = _common(_moved(self.bounds(have, cut), moved), want)
        give = _common(_moved(have, moved), self.bounds(want, cut))
        theirs = _moved(self.bounds(lies, cut), moved)
        from_ = _between(self.seen(mine), theirs, get, cut, "get", "from")
        to = _between(into, base, get, cut, "get", "into")
        send = _between(mine, _moved(lies, moved), give, cut, "give", "send")
        self.names = _wrap_names(wraps) | self.names
        if room:
            itself = expr.eq(self.member, self.me) * expr.product(expr.eq(by, 0) for by in moved)
            from_, to, send = (_unless(box, itself) for box in (from_, to, send))
        return from_, to, send


# A dim that goes around goes on beyond its ends; a wrap is it or one of its repetitions there.
WRAP = Sym("wrap", "var", expr.const(0))


def _counts(wraps: Wraps) -> list[Expr]:
    """Return how many wraps a part touches along every dim."""
    return [i[0] + 1 + i[1] if i else expr.const(1) for i in wraps]


def _number(dim: int) -> Sym:
    """Return the symbol that counts the wraps around a dim."""
    return Sym(f"wrap_{dim}", "var", expr.const(0))


def _wrap_names(wraps: Wraps) -> dict[Sym, Expr]:
    """Return the number of the wrap along every dim that goes on."""
    names, left = {}, expr.symbol(WRAP)
    for d, count in reversed(list(enumerate(_counts(wraps)))):
        if count != 1:
            names[_number(d)] = left % count
            left = left // count
    return names


def _by(wraps: Wraps, ndim: int) -> list[Expr]:
    """Return how far each dim of the wrap lies from the dim itself."""
    moved = [expr.const(0)] * ndim
    for d, (wrap, count) in enumerate(zip(wraps, _counts(wraps))):
        if wrap:
            before, _, period = wrap
            number = expr.const(0) if count == 1 else expr.symbol(_number(d))
            moved[d] = (number - before) * period
    return moved


# ---- bounds --------------------------------------------------------------------------------------


def _moved(bounds: Bounds, by: Sequence[Expr]) -> Bounds:
    return tuple(span and (span[0] + e, span[1] + e) for span, e in zip(bounds, by, strict=True))


def _common(a: Bounds, b: Bounds) -> Bounds:
    """Return the intersection of two bounds."""
    return tuple(_overlap(p, q) if p and q else p or q for p, q in zip(a, b, strict=True))


def _overlap(a: Span, b: Span) -> Span:
    (low, high), (first, last) = a, b
    return (low if low == first else expr.most(low, first),
            high if high == last else expr.least(high, last))


# ---- boxes ---------------------------------------------------------------------------------------


def _seen_from(box: Box[Value], there: There) -> Box[Value]:
    """Return a box as another member sees it: symbols of this rank are replaced by that one's."""
    return Box(
        box.buffer, box.offset.subst(there), tuple(e.subst(there) for e in box.extent),
        tuple(s.subst(there) for s in box.stride),
        tuple((name, e.subst(there)) for name, e in box.names),
    )


def _with(box: Box[Value], names: Mapping[Sym, Expr]) -> Box[Value]:
    """Return the box with these names before its own, without names that do not stand in it."""
    kept: list[tuple[Sym, Expr]] = []
    used = replace(box, names=()).symbols()
    for name, e in reversed((*names.items(), *box.names)):
        if name in used:
            kept.insert(0, (name, e))
            used |= e.symbols()
    return replace(box, names=tuple(kept))


def _between(
    box: Box[Value], held: Bounds, part: Bounds, cut: Sequence[bool], which: str, whose: str
) -> Box[Value]:
    """Return the part of a box that holds these elements; an empty box if it holds none of
    them. Long formulas get names, in dims that are cut: of the part by `which` it is, of what
    is held by whose box it is."""
    names: dict[Sym, Expr] = {}

    def name(text: str, e: Expr) -> Expr:
        if not cut[d] or (len(e.terms) < 2 and not any(True for _ in expr.calls(e))):
            return e
        names[sym := Sym(text, "var")] = e
        return expr.symbol(sym)

    offset, extents, strides = box.offset, [], []
    for d, (all_there, these) in enumerate(zip(held, part, strict=True)):
        strides.append(stride := name(f"{whose}_{d}_stride", box.stride[d]))
        if these is None:
            extents.append(box.extent[d])
        elif these == all_there:
            extents.append(name(f"{which}_{d}_extent", these[1] - these[0]))
        else:
            nonneg = not cut[d] or expr.nonneg(these[1] - these[0])
            begin, end = (name(f"{which}_{d}_{text}", e)
                          for text, e in zip(("begin", "end"), these, strict=True))
            low = all_there[0] if all_there else expr.const(0)
            offset = offset + stride * (begin - name(f"{whose}_{d}_begin", low))
            extents.append(end - begin if nonneg else expr.most(end - begin, 0))
    return Box(box.buffer, offset, tuple(extents), tuple(strides), tuple(names.items()))


def _where(condition: Expr, box: Box[Value]) -> Box[Value]:
    """Return the box, which is empty where the condition is 0."""
    extent = box.extent or (expr.const(1),)
    stride = box.stride or (expr.const(1),)
    return replace(box, extent=(extent[0] * condition, *extent[1:]), stride=stride)


def _unless(box: Box[Value], condition: Expr) -> Box[Value]:
    """Return the box, which is empty where the condition is 1."""
    others = Sym("others", "var", expr.const(0), expr.const(1))
    named = replace(box, names=(*box.names, (others, 1 - condition)))
    return _where(expr.symbol(others), named)
