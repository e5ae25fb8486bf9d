"""The way back over exchanges: each has a transpose that is an exchange too, or none at all.

Goes in: a cotangent of what ranks got, perhaps in shares. Comes out: that of what they gave. A sum
that is planned where a gather or a broadcast ends is one exchange with it: a reduce-scatter, or a
reduction to the root.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen import dtypes
from codegen.errors import UnsupportedError
from codegen.graph.variance import Axes
from codegen.ir.graph import ArrayType, Op, Value
from codegen.ops import (
    Cumulative,
    Exchange,
    Fold,
    Full,
    Kind,
    Move,
    Permute,
    Slice,
    Update,
    running_back,
)
from codegen.ops.group import each
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import wrap
from codegen.trace.derive.reverse import Reverse
from codegen.trace.ranks.communicate import all_to_all


class _Back:
    """The way back through one exchange. members: axes along which there are several; alike: those
    along which what is given is the same; inside: those of the members along which the cotangent is
    to be summed."""

    def __init__(self, at: Reverse, op: Op, given: Sequence[Value | None]) -> None:
        (self.x,), (self.y,), (g,) = op.operands, op.results, given
        assert g is not None and isinstance(op.what, Exchange)
        self.at, self.op, self.axes = at, op, op.what.axes
        self.mesh = at.context.mesh
        self.members: Axes = frozenset(self.axes) - at.shares.families.alone
        self.alike = self.members - at.shares.varies(self.x)
        self.inside = at.shares.sums(self.y) & self.members
        self.g = at.summed(g, at.shares.sums(self.y) - self.members)

    @property
    def beside(self) -> Axes:
        """The axes along which it is in shares whatever the exchange does."""
        shares = self.at.shares
        return shares.after(self.y) | shares.varies(self.y) - shares.varies(self.x) - self.members

    @property
    def me(self) -> Expr:
        return self.mesh.position(self.axes)

    def whole(self) -> Value:
        """Return the cotangent, summed among the members where that is planned."""
        return self.at.summed(self.g, self.inside)

    def type(self) -> ArrayType:
        """Return the type of the operand's cotangent."""
        return ArrayType(self.g.type.dtype, self.x.type.shape)

    def folded(self, what: Kind, x: Value) -> Value:
        wide = self.at.emit(what, self.at.cast(x, dtypes.folded_in(x.type.dtype)))
        return self.at.cast(wide, x.type.dtype)

    def add(self, found: Value) -> None:
        """Add to the operand's cotangent, of which each member has its share."""
        self.at.add(self.x, found, (self.beside - self.members) | self.alike)

    def add_all(self, found: Value) -> None:
        """Add to the operand's cotangent, where all members' uses count: those that have the same
        are as many as they are."""
        at = self.at
        names = tuple(a for a in self.mesh.names if a in self.alike)
        if names:
            size = at.cast(at.integer(self.mesh.size(names)), found.type.dtype)
            found = at.map("mul", found, at.spread(size, (), found.type.shape))
        at.add(self.x, found, self.beside)

    def none(self, expected: str, remedy: str) -> UnsupportedError:
        return UnsupportedError(f"{self.op.what.called} has no derivative here",
                                place=self.op.place, expected=expected,
                                found=f"{self.x.type} from {self.y.type}", remedy=remedy)


# ---- what members combine -----------------------------------------------------------------------


def _fold(at: Reverse, op: Op, given: Sequence[Value | None]) -> None:
    back, what = _Back(at, op, given), op.what
    assert isinstance(what, Fold)
    if what.fn == "add" and what.flow == "all":
        if what.differs():
            gather = Move(what.axes, what.want, types=(back.type(),))
            back.add_all(at.emit(gather, back.g))
        else:
            back.add_all(back.whole())
    elif what.fn == "add" and what.flow == "to_root":
        spread = Move(what.axes, types=(back.type(),), flow="from_root", root=what.root)
        back.add_all(at.emit(spread, back.g))
    elif what.fn == "add":
        back.add(_from_last(back, Fold(what.axes, "add", what.flow), back.g))
    elif what.flow in ("up_to", "before"):
        back.add(_in_blocks(back, what))
    elif what.differs() or what.fn not in ("min", "max", "mul"):
        raise at.none(op)
    else:
        g, every = back.whole(), what.but(flow="all", root=None)
        if what.flow == "to_root":
            g = at.emit(Move(what.axes, types=(back.type(),), flow="from_root", root=what.root), g)
        back.add((_of_product if what.fn == "mul" else _of_extreme)(back, every, g))


def _of_extreme(back: _Back, what: Fold, g: Value) -> Value:
    """Return the cotangent of a maximum or minimum among members; equal ones share it."""
    at, every = back.at, back.y if back.op.what == what else back.folded(what, back.x)
    same = at.cast(at.map("eq", back.x, every), g.type.dtype)
    count = back.folded(Fold(what.axes, "add"), same)
    return at.map("div", at.map("mul", g, same), count)


def _of_product(back: _Back, what: Fold, g: Value) -> Value:
    at, before = back.at, Fold(what.axes, "mul", "before")
    others = at.map("mul", back.folded(before, back.x), _from_last(back, before, back.x))
    return at.map("mul", g, others)


def _in_blocks(back: _Back, what: Fold) -> Value:
    """Go back through a scan: each member gets a block of all members' operands and cotangents, and
    goes back through the scan of its block as along a dim."""
    at, x = back.at, back.x
    rows, g = _turned(back, x), _turned(back, back.g)
    if what.flow == "before":  # as what the one before got
        zero, one, (n, columns) = expr.const(0), expr.const(1), g.type.shape
        later = at.emit(Slice((one, zero), (1, 1), (n - 1, columns)), g)
        g = at.emit(Update((zero, zero), (1, 1)), at.zeros(g.type), later)
    run = Cumulative(what.fn, 0)
    again = Op(run, (rows,), (at.emit(run, rows),), (), back.op.place)
    found = wrap(at.context, running_back.back(again, g, at))
    mine = all_to_all(found, what.axes, 0, 1, tiled=True).read()
    return at.reshaped(mine, x.type.shape)


def _turned(back: _Back, x: Value) -> Value:
    """Return a block of columns of the matrix whose rows are the members' x."""
    row = wrap(back.at.context, back.at.reshaped(x, (expr.const(1), expr.product(x.type.shape))))
    rows: Value = all_to_all(row, back.axes, 1, 0, tiled=True).read()
    return rows


def _from_last(back: _Back, what: Fold, x: Value) -> Value:
    """Return a scan from the last member to the first."""
    p = expr.Sym("p", "var", expr.const(0), (n := back.mesh.size(back.axes)) - 1)
    turned, one = n - 1 - expr.symbol(p), expr.const(1)
    turn = Permute(back.axes, p, turned, one, turned, one, (x.type,))
    return back.at.emit(turn, back.folded(what, back.at.emit(turn, x)))


# ---- what members move --------------------------------------------------------------------------


def _move(at: Reverse, op: Op, given: Sequence[Value | None]) -> None:
    back, what = _Back(at, op, given), op.what
    assert isinstance(what, Move)
    if what.flow == "to_root":
        scatter = Move(what.axes, want=what.have, types=(back.type(),), flow="from_root",
                       root=what.root)
        back.add(at.emit(scatter, back.g))
    elif what.flow == "from_root":
        back.add(_to_root(back, what))
    elif what.differs():
        inverse = Move(what.axes, what.want, what.have, (back.type(),))
        back.add(at.emit(inverse, back.g))
    elif back.inside and back.inside == back.members:
        back.add(back.folded(Fold(what.axes, "add", want=what.have), back.g))
    else:
        ends = each(what.have, back.x.type.ndim)
        start = tuple(expr.const(0) if part is None else part[0] for part in ends)
        mine = Slice(start, (1,) * len(start), back.x.type.shape)
        back.add(at.emit(mine, back.whole()))


def _to_root(back: _Back, what: Move) -> Value:
    """Return, at the root, the cotangent of what the members got from it; zeros at the other
    members."""
    at, root, shape = back.at, what.root, back.x.type.shape
    assert root is not None
    here = expr.eq(back.me, root)
    if not what.differs():
        if back.y.type.shape != shape:
            raise back.none("one shape on all ranks", "pad to one shape")
        if back.inside and back.inside == back.members:
            return back.folded(Fold(what.axes, "add", "to_root", root), back.g)
        return at.where(here, back.whole())
    sent = tuple(e.subst(back.mesh.coordinates(back.axes, root)) for e in shape)
    cut = each(what.want, len(shape))
    made = tuple(e * here if part is not None else e for e, part in zip(sent, cut))
    gather = Move(what.axes, what.want, types=(ArrayType(back.g.type.dtype, made),),
                  flow="to_root", root=root)
    found = at.emit(gather, back.g)
    if shape == made:
        return found
    if shape != sent:
        raise back.none("the root's shape on all ranks, or what pgather gives them",
                        "zeros of that shape where there is nothing")
    zeros = at.emit(Full(0, found.type.dtype, shape))
    return at.emit(Update((expr.const(0),) * len(shape), (1,) * len(shape)), zeros, found)


def _permute(at: Reverse, op: Op, given: Sequence[Value | None]) -> None:
    back, what = _Back(at, op, given), op.what
    assert isinstance(what, Permute)
    if what.source is None or what.receives is None:
        raise back.none("a ppermute of which it is known who sends to whom",
                        "shift=k, or to= as a formula of i and n that has an inverse")
    if back.alike == back.members and back.x.type.shape == back.y.type.shape:
        got = what.receives.subst({what.var: back.me})
        back.add(at.where(got, back.g))
        return
    last = back.mesh.size(back.axes) - 1
    receiver = expr.maximum(0, expr.minimum(what.to, last))  # a source is some member, always
    turned = what.but(to=what.source, sends=what.receives, source=receiver, receives=what.sends,
                      types=(back.type(),))
    back.add(at.emit(turned, back.g))


WAYS_BACK = {Fold: _fold, Move: _move, Permute: _permute}
