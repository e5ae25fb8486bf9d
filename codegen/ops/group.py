"""The NumPy model of exchanges: their members, boxes of arrays, and what they combine.

Always holds: InternalError where an op states something false of others (offsets, readers).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import InternalError, MatchingError, Place
from codegen.functions import COMBINE, FUNCTIONS
from codegen.ops.kind import Array, Eval
from codegen.symbolic.expr import Expr, Sym, as_expr

Span = tuple[Expr, Expr]  # low, high
Bounds = tuple[Span | None, ...]  # per dim; None: all there is, () too
# Along each axis: begin and end of the members that I read, and of my readers.
Near = tuple[tuple[Expr, Expr, Expr, Expr], ...]
# For each dim that wraps around: how many copies stand before it and behind it, and its period.
Wraps = tuple[tuple[Expr, Expr, Expr] | None, ...]
Box = Sequence[tuple[int, int]]  # Bounds of one member, evaluated


def along(ndim: int, spans: Mapping[int, Span]) -> Bounds:
    """Return bounds for `ndim` dims: the spans of some, and the whole of each other dim."""
    return tuple(spans.get(d) for d in range(ndim))


def each(bounds: Bounds, ndim: int) -> Bounds:
    """Return one span for each dim; empty bounds become None, the whole dim, for each."""
    return bounds or (None,) * ndim


def combine(fn: str) -> np.ufunc:
    """Return the ufunc of a combining function."""
    ufunc = FUNCTIONS[COMBINE[fn]].numpy
    assert isinstance(ufunc, np.ufunc)
    return ufunc


@dataclass
class Member:
    """One member of an exchange. env: the values of symbols on its rank. value: evaluates an Expr
    there."""

    operands: list[Array]
    env: Mapping[str, int]
    value: Eval

    def eval(self, e: Expr, sym: Sym, position: int) -> int:
        """Return the value of an Expr for a member at this position."""
        return as_expr(e).evaluate({**self.env, sym.name: position})

    def box(self, bounds: Bounds, shape: Sequence[int]) -> Box:
        """Return bounds as (begin, end) for each dim; `shape` is that of the whole array."""
        return [(0, extent) if span is None else (self.value(span[0]), self.value(span[1]))
                for span, extent in zip(each(bounds, len(shape)), shape, strict=True)]

    def copies(self, box: Box, wraps: Wraps) -> list[Box]:
        """Return the box and its periodic images: its positions shifted by multiples of the period,
        in dims that wrap around."""
        per_dim = []
        for (low, high), wrap in zip(box, wraps or [None] * len(box), strict=True):
            before, beyond, period = map(self.value, wrap or (0, 0, 0))
            moved = [k * period for k in range(-before, beyond + 1)]
            per_dim.append([(low + by, high + by) for by in moved])
        return [list(copy) for copy in itertools.product(*per_dim)]


@dataclass
class Group:
    """The members of one exchange, in the order of their positions. name: the op's."""

    name: str
    members: Sequence[Member]
    place: Place | None

    @property
    def inputs(self) -> list[Array]:
        """Return the first operand of each member."""
        return [m.operands[0] for m in self.members]

    @property
    def dtype(self) -> DType:
        dtype = dtypes.from_numpy(self.inputs[0].dtype)
        assert dtype is not None
        return dtype

    def broken(self, text: str) -> InternalError:
        return InternalError(text, place=self.place)

    def send(self, k: int, to: int, sender: dict[int, int]) -> None:
        """Note that member k sends to another one; raise MatchingError if that one does not exist,
        or gets two. sender: who sends to each, so far."""
        words = f"with {len(self.members)} ranks, rank"
        if not 0 <= to < len(self.members):
            raise MatchingError(f"{words} {k} sends to {to}, which does not exist",
                                place=self.place)
        if to in sender:
            raise MatchingError(f"{words}s {sender[to]} and {k} both send to {to}",
                                place=self.place)
        sender[to] = k

    def root(self, root: Expr) -> int:
        roots = {m.value(root) for m in self.members}
        if len(roots) > 1 or not 0 <= min(roots) < len(self.members):
            raise MatchingError(
                f"the members name roots {sorted(roots)}", place=self.place,
                expected=f"one root from 0 to {len(self.members) - 1}",
            )
        return roots.pop()

    def total(self, fn: str, read: Sequence[Array]) -> Array:
        """Combine the arrays of some members by fn; raise MatchingError if their shapes differ."""
        total, *rest = read
        if any(a.shape != total.shape for a in rest):
            raise MatchingError(
                f"{self.name}: the members' arrays differ in shape", place=self.place,
                found=", ".join(str(a.shape) for a in self.inputs),
            )
        for a in rest:
            total = combine(fn)(total, a).astype(total.dtype)
        return total

    def near(self, taker: Member, giver: Member, axes: Sequence[str], near: Near) -> bool:
        """Return whether the taker reads from the giver by the ranges of neighbours. Raise
        InternalError where the two members' own ranges disagree about that."""
        reads = told = True
        for axis, (begin, end, first, last) in zip(axes, near):
            coord, size = f"i_{axis}", taker.env.get(f"n_{axis}", 1)
            there, here = giver.env.get(coord, 0), taker.env.get(coord, 0)
            begins, ends = taker.value(begin), giver.value(first)
            reads &= (there - begins) % size < taker.value(end) - begins
            told &= (here - ends) % size < giver.value(last) - ends
        if reads != told:
            raise self.broken("one member reads of another that does not know it")
        return reads


def common(a: Box, b: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    box = [(max(p, q), min(m, n)) for (p, m), (q, n) in zip(a, b, strict=True)]
    return None if any(high <= low for low, high in box) else box


def within(box: Box, held: Box) -> tuple[slice, ...]:
    """Return the slices of a box inside an array that holds the box `held`."""
    return tuple(slice(a - h, b - h) for (a, b), (h, _) in zip(box, held, strict=True))


def poison(shape: Sequence[int], dtype: DType) -> Array:
    """Return an array of a bit pattern that is noticed if it reaches a result."""
    kind = dtypes.numpy_dtype(dtype)
    array = np.empty(shape, kind)
    array.view(np.uint8 if array.ndim else kind).fill(0xB5)
    return array
