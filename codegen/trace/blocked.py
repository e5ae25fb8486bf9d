"""Linear algebra on split matrices, block by block: programs in the language itself.

Blocks of rows lie in turn on the ranks along one axis, as cards are dealt: then all have work to
the end. Always holds: no rank has more than its blocks, one panel of BLOCK rows, and messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.ops import Lu, Relayout, Swapped, Triangular
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, wrap
from codegen.trace.context import Context
from codegen.trace.control.functional import fori_loop
from codegen.trace.number import expr_of
from codegen.trace.numpy import joining, linear, picking, shaping
from codegen.trace.numpy.creation import arange, zeros
from codegen.trace.numpy.elementwise import apply
from codegen.trace.numpy.linear import SINGULAR, adjoint, emitted, hold
from codegen.trace.ranks import mapping
from codegen.trace.ranks.communicate import all_gather, all_to_all, axis_index, axis_size
from codegen.trace.ranks.rooted import pbroadcast

BLOCK = 128  # rows of a block
MANY = 32  # blocks: of more, they are twice as large
LEAST = 8  # blocks: a smaller matrix is gathered
TALL = 8  # rows for each column: of a matrix with fewer, Q and R are computed where it is gathered


def axis_of(x: Array, dims: tuple[int, ...] = (0, 1)) -> str | None:
    """The axis along which a matrix is worked on: the first of these dims that one axis splits."""
    layout = x.read().type.layout if x.ndim == 2 else None
    if layout is None or x.context.rank_view:
        return None
    return next((layout[d][0] for d in dims if len(layout[d]) == 1), None)


def _large(x: Array) -> bool:
    """Whether it is worth the messages; its extents are known while building."""
    return all(e.is_const and e.value >= LEAST * BLOCK for e in x.extents)


def _mapped(context: Context, axis: str, body: Callable[..., Any], *arrays: Any) -> Any:
    """body of each rank's blocks of rows; its result has them too."""
    rows = (axis, None)
    return mapping.call(context, body, arrays, {}, None, (rows,) * len(arrays), rows)


class Dealt:
    """n rows in `count` blocks, dealt to the ranks along an axis, `each` to one. Behind the last
    row stand those of a unit matrix."""

    def __init__(self, n: int, axis: str) -> None:
        self.n, self.axis = n, axis
        self.block = BLOCK * 2 if n >= MANY * BLOCK else BLOCK  # a product wants many columns
        self.count = -(-n // self.block)
        self.width = self.count * self.block
        self.ranks = axis_size(axis)
        self.each = -(-self.count // self.ranks)

    def padded(self, x: Array) -> Array:
        """In balanced parts, of which each is `each` blocks."""
        rows = self.each * self.ranks * self.block
        wide = zeros((rows, self.width), x.dtype, layout=(self.axis, None))
        wide[: self.n, : self.n] = x
        if self.width > self.n:
            i, j = arange(rows)[:, None], arange(self.width)[None, :]
            wide = picking.where((i == j) & (i >= self.n), 1, wide).astype(x.dtype)
        return wide

    def deal(self, own: Array) -> Any:
        """Of a rank's balanced part: its blocks in turn, as the rows of one matrix."""
        index = axis_index(self.axis)
        to, slots = arange(self.ranks)[:, None], arange(self._parts())[None, :]
        got = self._exchanged(own, (to - index * self.each) % self.ranks + slots * self.ranks)
        mine = arange(self.each) * self.ranks + index
        return self._rows(got, mine // self.each, (mine % self.each) // self.ranks)

    def collect(self, low: Array) -> Any:
        """The other way round."""
        index = axis_index(self.axis)
        to, slots = arange(self.ranks)[:, None], arange(self._parts())[None, :]
        first = to * self.each + (index - to * self.each) % self.ranks
        got = self._exchanged(low, first // self.ranks + slots)
        own = arange(self.each)
        return self._rows(got, (index * self.each + own) % self.ranks, own // self.ranks)

    def _exchanged(self, low: Array, blocks: Array) -> Array:
        """Every rank is sent these of my blocks, those that are not there too."""
        first = apply(np.minimum, blocks, self.each - 1) * self.block
        sent = low[first[:, :, None] + arange(self.block)]
        return as_array(all_to_all(sent, self.axis, 0, 0).reshape(-1, self.width))

    def _rows(self, got: Array, member: Array, slot: Array) -> Any:
        """Block after block, which a member sent in a slot."""
        first = (member * self._parts() + slot) * self.block
        return got[(first[:, None] + arange(self.block)).reshape(-1)]

    def _parts(self) -> Any:
        """How many blocks a rank may send to another one."""
        return -(-self.each // self.ranks)

    def panel(self, low: Array, k: Any) -> Any:
        """Block k, where it is mine; another one of mine, elsewhere."""
        return low.reshape(self.each, self.block, self.width)[k // self.ranks]

    def owner(self, k: Any) -> Any:
        return k % self.ranks

    def first(self, k: Any) -> Any:
        """The first of my rows that stand in block k or behind it."""
        return (k - axis_index(self.axis) + self.ranks - 1) // self.ranks * self.block

    def columns(self, k: Any) -> slice:
        return slice(k * self.block, (k + 1) * self.block)


# ---- Cholesky ------------------------------------------------------------------------------------


def cholesky(x: Array) -> Array | None:
    """Block after block: what the blocks before take from it, then its own factor."""
    axis = axis_of(x)
    if axis is None or not _large(x):
        return None
    dealt = Dealt(x.shape[0], axis)

    def factor(own: Array) -> Any:
        return dealt.collect(fori_loop(0, dealt.count, step, dealt.deal(own)))

    def step(k: Any, low: Array) -> Array:
        columns, first = dealt.columns(k), dealt.first(k)
        row = pbroadcast(dealt.panel(low, k)[:, : columns.start], axis, root=dealt.owner(k))
        low[first:, columns] -= low[first:, : columns.start] @ adjoint(row)
        corner = pbroadcast(dealt.panel(low, k)[:, columns], axis, root=dealt.owner(k))
        done = linear.cholesky(corner)
        right = Triangular(lower=True, right=True, adjoint=True)
        low[first:, columns] = emitted(right, done, low[first:, columns])[0]
        return low

    made = _mapped(x.context, axis, factor, dealt.padded(x))
    return as_array(shaping.tril(made[: dealt.n, : dealt.n]))


# ---- LU with partial pivoting --------------------------------------------------------------------


class Elimination:
    """A is dealt by columns, so that a rank has what pivots are chosen from."""

    def __init__(self, x: Array, axis: str) -> None:
        self.dealt, self.axis = Dealt(x.shape[0], axis), axis
        self.given = self.dealt.padded(linear.turned(x))

    def down(self, k: Any, cols: Array, *sides: Array) -> tuple[list[Array], list[Array]]:
        """What Lu makes of a panel; and, after that, the columns of A, and what is done to them is
        done to."""
        dealt, axis, begin = self.dealt, self.axis, k * self.dealt.block
        panel = pbroadcast(dealt.panel(cols, k)[:, begin:], axis, root=dealt.owner(k))
        factors = emitted(Lu(), panel)
        lu, pivots, _ = factors
        parts = [emitted(Swapped(_expr(begin)), part, pivots)[0] for part in (cols, *sides)]
        mine = dealt.panel(parts[0], k)
        mine[:, begin:] = picking.where(axis_index(axis) == dealt.owner(k), lu, mine[:, begin:])
        return factors, [self.less(part, 0 if n else dealt.first(k + 1), dealt.columns(k), lu)
                         for n, part in enumerate(parts)]

    def less(self, part: Array, first: Any, columns: slice, lu: Array) -> Array:
        """U of its rows from the first on, and what that leaves of the columns behind."""
        upper, block = Triangular(lower=False, right=True, unit=True), self.dealt.block
        made = emitted(upper, lu[:, :block], part[first:, columns])[0]
        part[first:, columns] = made
        part[first:, columns.stop :] -= made @ lu[:, block:]
        return part


def solve(x: Array, what: str, b: Array) -> Array | None:
    """b is split by columns. What is done to A is done to b at once; then x follows from the last
    block to the first."""
    axis = axis_of(x)
    if axis is None or not _large(x) or b.ndim != 2:
        return None
    steps = Elimination(x, axis)
    dealt = steps.dealt
    sides = zeros((b.shape[1], dealt.width), x.dtype, layout=(axis, None))
    sides[:, : dealt.n] = linear.turned(b)

    def run(own: Array, side: Array) -> Any:
        cols, side = fori_loop(0, dealt.count, down, (dealt.deal(own), side))
        return fori_loop(0, dealt.count, lambda k, y: up(dealt.count - 1 - k, cols, y), side)

    def down(k: Any, state: Any) -> Any:
        (_, _, info), parts = steps.down(k, *state)
        hold(info, SINGULAR.format(what))
        return tuple(parts)

    def up(k: Any, cols: Array, side: Array) -> Array:
        columns = dealt.columns(k)
        row = pbroadcast(dealt.panel(cols, k)[:, : columns.stop], axis, root=dealt.owner(k))
        made = emitted(Triangular(lower=True, right=True), row[:, columns], side[:, columns])[0]
        side[:, columns] = made
        side[:, : columns.start] -= made @ row[:, : columns.start]
        return side

    made = _mapped(x.context, axis, run, steps.given, sides)
    return as_array(linear.turned(made[:, : dealt.n]))


def slogdet(x: Array) -> tuple[Array, Array] | None:
    """Of the pivots, block after block."""
    axis = axis_of(x)
    if axis is None or not _large(x):
        return None
    steps = Elimination(x, axis)
    dealt = steps.dealt

    def run(own: Array) -> Any:
        start = zeros((), x.dtype) + 1, zeros((), picking.real(x).dtype)
        return fori_loop(0, dealt.count, step, (dealt.deal(own), *start))[1:]

    def step(k: Any, state: Any) -> Any:
        cols, sign, logs = state
        (lu, *more), (cols,) = steps.down(k, cols)
        by, plus = linear.pivots_product(lu[:, : dealt.block], *more)
        return cols, sign * by, logs + plus

    sign, logs = mapping.call(x.context, run, (steps.given,), {}, None, ((axis, None),), ((), ()))
    return sign, logs


# ---- Q and R of tall matrices --------------------------------------------------------------------


def qr(x: Array) -> tuple[Array, Array] | None:
    """Of a matrix with few columns, split by rows: each rank has an R of its own rows, and all have
    one of those. The signs are those that reflections of the whole matrix would give."""
    axis = axis_of(x, (0,))
    n, m = x.extents[1], x.extents[0]
    if axis is None or not n.is_const or n == 0 or not expr.nonneg(m - n * TALL):
        return None
    columns = n.value

    def run(own: Array) -> tuple[Array, Array]:
        wide = joining.concatenate([own, zeros((columns, columns), x.dtype)])
        q, r = linear.qr(wide)
        again, last = linear.qr(all_gather(r, axis, 0, tiled=True))
        index = axis_index(axis) * columns
        return (q @ again[index : index + columns])[: own.shape[0]], last

    q, r = mapping.call(x.context, run, (x,), {}, None, ((axis, None),),
                        ((axis, None), (None, None)))
    positive = _sign(shaping.diagonal(r))
    everywhere = x.context.emit_one(Relayout(to=((), ())), (q[:columns] * positive).read())
    sign = positive * _reflected(wrap(x.context, everywhere))
    return q * sign, r * sign[:, None]


def _expr(x: Any) -> Expr:
    found = expr_of(x)
    assert found is not None
    return found


def _sign(x: Any) -> Array:
    """1 or -1, by the real part."""
    return as_array(picking.where(picking.real(x) >= 0, 1, -1).astype(x.dtype))


def _reflected(top: Array) -> Array:
    """The signs on the diagonal of the R that reflections give of a Q whose upper part this is, as
    in Ballard et al., Reconstructing Householder vectors from TSQR, 2014: by elimination."""

    def step(k: Any, state: Any) -> Any:
        a, signs = state
        signs[k] = -_sign(a[k, k])
        a[k, k] -= signs[k]
        a[k + 1 :, k + 1 :] -= (a[k + 1 :, k] / a[k, k])[:, None] * a[k, k + 1 :]
        return a, signs

    return as_array(fori_loop(0, top.shape[0], step, (top, zeros(top.shape[0], top.dtype)))[1])


linear.BLOCKED.update(cholesky=cholesky, solve=solve, slogdet=slogdet, qr=qr)
