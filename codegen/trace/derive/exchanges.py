"""Reverse-mode derivatives of exchanges: the transpose of each is an exchange, or there is none.

In: the cotangent of what ranks receive, perhaps in shares. Out: that of what they send. A planned
sum after a gather or a broadcast is one exchange with its transpose: a reduce-scatter, or a
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
    """The reverse-mode derivative of one exchange. members: its axes of more than one rank; alike:
    those of them along which the operand is the same; inside: those along which the cotangent is
    planned to be summed."""

    def __init__(self, reverse: Reverse, op: Op, cotangents: Sequence[Value | None]) -> None:
        (self.x,), (self.y,), (g,) = op.operands, op.results, cotangents
        assert g is not None and isinstance(op.kind, Exchange)
        self.reverse, self.op, self.axes = reverse, op, op.kind.axes
        self.mesh = reverse.context.mesh
        self.members: Axes = frozenset(self.axes) - reverse.shares.families.alone
        self.alike = self.members - reverse.shares.varies(self.x)
        self.inside = reverse.shares.sums(self.y) & self.members
        self.g = reverse.summed(g, reverse.shares.sums(self.y) - self.members)

    @property
    def beside(self) -> Axes:
        """The axes along which the operand's cotangent is in shares whatever the exchange does."""
        shares = self.reverse.shares
        return shares.after(self.y) | shares.varies(self.y) - shares.varies(self.x) - self.members

    @property
    def me(self) -> Expr:
        return self.mesh.position(self.axes)

    def whole(self) -> Value:
        """Return the result's cotangent, summed among the members where that is planned."""
        return self.reverse.summed(self.g, self.inside)

    def type(self) -> ArrayType:
        """Return the type of the operand's cotangent."""
        return ArrayType(self.g.type.dtype, self.x.type.shape)

    def folded(self, kind: Kind, x: Value) -> Value:
        wide = self.reverse.emit(kind, self.reverse.cast(x, dtypes.folded_in(x.type.dtype)))
        return self.reverse.cast(wide, x.type.dtype)

    def add(self, part: Value) -> None:
        """Add a part to the operand's cotangent, of which each member has its share."""
        self.reverse.add(self.x, part, (self.beside - self.members) | self.alike)

    def add_all(self, part: Value) -> None:
        """Add a part to the operand's cotangent, times the number of members that have the same
        operand: the use of each counts."""
        reverse = self.reverse
        names = tuple(a for a in self.mesh.names if a in self.alike)
        if names:
            size = reverse.cast(reverse.integer(self.mesh.size(names)), part.type.dtype)
            part = reverse.map("mul", part, reverse.spread(size, (), part.type.shape))
        reverse.add(self.x, part, self.beside)

    def none(self, expected: str, remedy: str) -> UnsupportedError:
        return UnsupportedError(f"{self.op.kind.called} has no derivative here",
                                place=self.op.place, expected=expected,
                                found=f"{self.x.type} from {self.y.type}", remedy=remedy)


# ---- what members combine -----------------------------------------------------------------------


def _fold(reverse: Reverse, op: Op, cotangents: Sequence[Value | None]) -> None:
    back, fold = _Back(reverse, op, cotangents), op.kind
    assert isinstance(fold, Fold)
    if fold.fn == "add" and fold.flow == "all":
        if fold.differs():
            gather = Move(fold.axes, fold.want, types=(back.type(),))
            back.add_all(reverse.emit(gather, back.g))
        else:
            back.add_all(back.whole())
    elif fold.fn == "add" and fold.flow == "to_root":
        spread = Move(fold.axes, types=(back.type(),), flow="from_root", root=fold.root)
        back.add_all(reverse.emit(spread, back.g))
    elif fold.fn == "add":
        back.add(_from_last(back, Fold(fold.axes, "add", fold.flow), back.g))
    elif fold.flow in ("up_to", "before"):
        back.add(_in_blocks(back, fold))
    elif fold.differs() or fold.fn not in ("min", "max", "mul"):
        raise reverse.none(op)
    else:
        g, every = back.whole(), fold.but(flow="all", root=None)
        if fold.flow == "to_root":
            spread = Move(fold.axes, types=(back.type(),), flow="from_root", root=fold.root)
            g = reverse.emit(spread, g)
        back.add((_of_product if fold.fn == "mul" else _of_extreme)(back, every, g))


def _of_extreme(back: _Back, fold: Fold, g: Value) -> Value:
    """Return the operand's cotangent of a maximum or minimum; members with equal ones share it."""
    reverse, every = back.reverse, back.y if back.op.kind == fold else back.folded(fold, back.x)
    same = reverse.cast(reverse.map("eq", back.x, every), g.type.dtype)
    count = back.folded(Fold(fold.axes, "add"), same)
    return reverse.map("div", reverse.map("mul", g, same), count)


def _of_product(back: _Back, fold: Fold, g: Value) -> Value:
    reverse, before = back.reverse, Fold(fold.axes, "mul", "before")
    others = reverse.map("mul", back.folded(before, back.x), _from_last(back, before, back.x))
    return reverse.map("mul", g, others)


def _in_blocks(back: _Back, fold: Fold) -> Value:
    """Return the operand's cotangent of a scan: each member gets a block of all members' operands
    and cotangents, and differentiates the scan of its block along a dim."""
    reverse, x = back.reverse, back.x
    rows, g = _columns_of_members(back, x), _columns_of_members(back, back.g)
    if fold.flow == "before":  # exclusive: each result is the inclusive one of the member before
        zero, unit, (n, columns) = expr.const(0), expr.const(1), g.type.shape
        later = reverse.emit(Slice((unit, zero), (1, 1), (n - 1, columns)), g)
        g = reverse.emit(Update((zero, zero), (1, 1)), reverse.zeros(g.type), later)
    run = Cumulative(fold.fn, 0)
    again = Op(run, (rows,), (reverse.emit(run, rows),), (), back.op.place)
    gradient = wrap(reverse.context, running_back.back(again, g, reverse))
    mine = all_to_all(gradient, fold.axes, 0, 1, tiled=True).read()
    return reverse.reshaped(mine, x.type.shape)


def _columns_of_members(back: _Back, x: Value) -> Value:
    """Return a block of columns of the matrix whose rows are the members' x."""
    shape = (expr.const(1), expr.product(x.type.shape))
    row = wrap(back.reverse.context, back.reverse.reshaped(x, shape))
    rows: Value = all_to_all(row, back.axes, 1, 0, tiled=True).read()
    return rows


def _from_last(back: _Back, fold: Fold, x: Value) -> Value:
    """Return a scan from the last member to the first."""
    p = expr.Sym("p", "var", expr.const(0), (n := back.mesh.size(back.axes)) - 1)
    mirrored, unit = n - 1 - expr.symbol(p), expr.const(1)
    flip = Permute(back.axes, p, mirrored, unit, mirrored, unit, (x.type,))
    return back.reverse.emit(flip, back.folded(fold, back.reverse.emit(flip, x)))


# ---- what members move --------------------------------------------------------------------------


def _move(reverse: Reverse, op: Op, cotangents: Sequence[Value | None]) -> None:
    back, move = _Back(reverse, op, cotangents), op.kind
    assert isinstance(move, Move)
    if move.flow == "to_root":
        scatter = Move(move.axes, want=move.have, types=(back.type(),), flow="from_root",
                       root=move.root)
        back.add(reverse.emit(scatter, back.g))
    elif move.flow == "from_root":
        back.add(_to_root(back, move))
    elif move.differs():
        inverse = Move(move.axes, move.want, move.have, (back.type(),))
        back.add(reverse.emit(inverse, back.g))
    elif back.inside and back.inside == back.members:
        back.add(back.folded(Fold(move.axes, "add", want=move.have), back.g))
    else:
        ends = each(move.have, back.x.type.ndim)
        start = tuple(expr.const(0) if part is None else part[0] for part in ends)
        mine = Slice(start, (1,) * len(start), back.x.type.shape)
        back.add(reverse.emit(mine, back.whole()))


def _to_root(back: _Back, move: Move) -> Value:
    """Return, at the root, the cotangent of what the members got from it; zeros at the other
    members."""
    reverse, root, shape = back.reverse, move.root, back.x.type.shape
    assert root is not None
    here = expr.eq(back.me, root)
    if not move.differs():
        if back.y.type.shape != shape:
            raise back.none("one shape on all ranks", "pad to one shape")
        if back.inside and back.inside == back.members:
            return back.folded(Fold(move.axes, "add", "to_root", root), back.g)
        return reverse.where(here, back.whole())
    sent = tuple(e.subst(back.mesh.coordinates(back.axes, root)) for e in shape)
    cut = each(move.want, len(shape))
    gathered_shape = tuple(e * here if part is not None else e for e, part in zip(sent, cut))
    gather = Move(move.axes, move.want, types=(ArrayType(back.g.type.dtype, gathered_shape),),
                  flow="to_root", root=root)
    gathered = reverse.emit(gather, back.g)
    if shape == gathered_shape:
        return gathered
    if shape != sent:
        raise back.none("the root's shape on all ranks, or what pgather gives them",
                        "zeros of that shape where there is nothing")
    zeros = reverse.emit(Full(0, gathered.type.dtype, shape))
    return reverse.emit(Update((expr.const(0),) * len(shape), (1,) * len(shape)), zeros, gathered)


def _permute(reverse: Reverse, op: Op, cotangents: Sequence[Value | None]) -> None:
    back, permute = _Back(reverse, op, cotangents), op.kind
    assert isinstance(permute, Permute)
    if permute.source is None or permute.receives is None:
        raise back.none("a ppermute of which it is known who sends to whom",
                        "shift=k, or to= as a formula of i and n that has an inverse")
    if back.alike == back.members and back.x.type.shape == back.y.type.shape:
        got = permute.receives.subst({permute.var: back.me})
        back.add(reverse.where(got, back.g))
        return
    last = back.mesh.size(back.axes) - 1
    receiver = expr.maximum(0, expr.minimum(permute.to, last))  # a source is some member, always
    transpose = permute.but(to=permute.source, sends=permute.receives, source=receiver,
                            receives=permute.sends, types=(back.type(),))
    back.add(reverse.emit(transpose, back.g))


WAYS_BACK = {Fold: _fold, Move: _move, Permute: _permute}
