"""Linear algebra on split matrices, block by block: programs in the language itself.

Each block of rows is split over the ranks along one axis: then all have work to the end.
Always holds: no rank has more than its part, a few blocks of about BLOCK rows, and messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codegen.ir.graph import ArrayType
from codegen.mesh import block_extent, block_offset
from codegen.ops import Full, Lu, Move, Qr, Relayout, Swapped, Triangular, Update
from codegen.ops.group import Bounds
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, as_expr
from codegen.trace.array import Array, as_array, number, wrap
from codegen.trace.constants import blank_value
from codegen.trace.control.functional import fori_loop
from codegen.trace.number import expr_of
from codegen.trace.numpy import joining, linear, picking, products, shaping
from codegen.trace.numpy.creation import arange, zeros
from codegen.trace.numpy.linear import SINGULAR, adjoint, emitted, hold
from codegen.trace.ranks import mapping
from codegen.trace.ranks.communicate import all_gather, axis_index, axis_size

BLOCK = 128  # rows of a block, about
MANY = 32  # blocks: of more, they are twice as large
LEAST = 8  # blocks: a smaller matrix is gathered
TALL = 8  # rows for each column: of a matrix with fewer, Q and R are made block by block


def axis_of(x: Array, dims: tuple[int, ...] = (0, 1)) -> str | None:
    """Return the axis along which a matrix is worked on: the first of these dims that one axis
    splits."""
    layout = x.read().type.layout if x.ndim == 2 else None
    if layout is None or x.context.rank_view:
        return None
    return next((layout[d][0] for d in dims if len(layout[d]) == 1), None)


def _large(x: Array) -> bool:
    """Return whether it is worth the messages; its extents are known while building."""
    return all(e.is_const and e.value >= LEAST * BLOCK for e in x.extents)


def _by_rows(x: Array) -> bool:
    return axis_of(x, (0,)) is not None


class Dealt:
    """The rows of a matrix in `count` blocks. Each block is split over the ranks along an axis: all
    of them have the same work from the first block to the last, and a block is gathered from all.
    The array has the dims (block, row of a block, column)."""

    many = MANY

    def __init__(self, rows: int, columns: int, axis: str) -> None:
        self.rows, self.columns, self.axis = rows, columns, axis
        block = BLOCK * 2 if rows >= self.many * BLOCK else BLOCK  # a product wants many columns
        sizes = range(block - block // 4, block + block // 4 + 1)
        self.block = min(sizes, key=lambda size: (-rows % size, abs(size - block)))
        self.count = -(-rows // self.block)
        self.width = max(columns, -(-min(rows, columns) // self.block) * self.block)
        self.layout, self.turned_layout = (None, axis, None), (None, None, axis)

    def deal_turned(self, x: Array) -> Array:
        """Deal the columns of x to the ranks, block by block; `turned` transposes what a rank has
        got, so that they become rows."""
        wide = self.padded(x)
        blocks = as_array(shaping.reshape(wide, (self.width, self.count, self.block)))
        first = (self.axis, None, None) if _by_rows(x) else (None, self.axis, None)
        return mapping.relayout(mapping.relayout(blocks, first), self.turned_layout)

    def turned(self, own: Array) -> Any:
        rows = linear.transposed(own.reshape(self.width, -1))
        return rows.reshape(self.count, -1, self.width)

    def padded(self, x: Array) -> Array:
        """Return the transpose with zeros behind its last row and column, or with those of a unit
        matrix where the matrix is square."""
        shape, data_shape = (self.width, self.count * self.block), (self.columns, self.rows)
        if shape == data_shape:
            return x
        wide = zeros(shape, x.dtype, layout=(self.axis, None))
        wide[: data_shape[0], : data_shape[1]] = x
        if self.rows != self.columns:
            return as_array(wide)
        i, j = arange(shape[0])[:, None], arange(shape[1])[None, :]
        return as_array(picking.where((i == j) & (i >= self.rows), 1, wide).astype(x.dtype))

    def collect(self, blocks: Array, rows: int | None = None, columns: int | None = None) -> Array:
        """Return the matrix, split by rows; or one of so many rows and columns, dealt alike."""
        whole = as_array(mapping.relayout(blocks, (self.axis, None, None)))
        matrix = shaping.reshape(whole, (-1, self.width))
        return as_array(matrix[: rows or self.rows, : columns or self.columns])

    def own(self) -> tuple[Any, Any]:
        """Return the first row of a block that this rank has, and how many it has."""
        of = self.block, _expr(axis_size(self.axis)), _expr(axis_index(self.axis))
        return number(block_offset(*of)), number(block_extent(*of))

    def flat(self, blocks: Array) -> Any:
        """Return a view of this rank's rows of all blocks, one block after the other, as a
        matrix."""
        return blocks.reshape(-1, self.width)

    def gathered(self, part: Array) -> Any:
        """Gather all rows of blocks, as a matrix, from this rank's rows of them."""
        whole = all_gather(part, self.axis, 1, tiled=True)
        return whole.reshape(-1, part.shape[2])

    def columns_of(self, k: Any) -> slice:
        return slice(k * self.block, (k + 1) * self.block)


# ---- Cholesky ------------------------------------------------------------------------------------


def cholesky(x: Array, upper: bool) -> Array | None:
    """Factor by blocks of rows: subtract from each what the blocks before it contribute, then
    factor it. None where the matrix is not split, or too small for this to pay."""
    axis = axis_of(x)
    if axis is None or not _large(x):
        return None
    if upper:
        return adjoint(cholesky(adjoint(x), False))
    rows, layout = x.shape[0], (axis, None)
    factor = mapping.call(x.context, lambda part: Lower(part, rows, axis).factor(), (x,), {}, None,
                          (layout,), layout)
    return as_array(factor)


class Lower(Dealt):
    """A matrix of which a rank has some rows, x, and its lower triangle, dealt. A row lies as a
    column: products with few rows are faster so, and what solves with a triangle. Behind the last
    row stand those of a unit matrix."""

    many = 2 * MANY

    def __init__(self, x: Array, rows: int, axis: str) -> None:
        super().__init__(rows, rows, axis)
        self.x = x
        n, rank = _expr(axis_size(axis)), _expr(axis_index(axis))
        self.mine = block_offset(rows, n, rank), block_offset(rows, n, rank + 1)

    def factor(self) -> Any:
        return self.result(fori_loop(0, self.count, self.step, self.dealt()))

    def blank(self, *shape: Any) -> Array:
        """Return an array that is written before it is read."""
        x, extents = self.x, tuple(_expr(e) for e in shape)
        return wrap(x.context, blank_value(x.context, x.type.dtype, extents), scalar=False)

    def flat(self, blocks: Array) -> Any:
        """Return a view of this rank's columns of all blocks, one block after the other, as a
        matrix."""
        return blocks.reshape(self.width, -1)

    def gathered(self, part: Array) -> Any:
        """Gather all columns of blocks, as a matrix, from this rank's columns of them."""
        whole = all_gather(part, self.axis, 2, tiled=True)
        return whole.reshape(part.shape[0], -1)

    def fetched(self, x: Array, have: Bounds, want: Bounds) -> Array:
        """Return the elements within the bounds `want`, read from the ranks that hold `have`
        each."""
        shape = tuple(span[1] - span[0] for span in want if span is not None)
        move = Move((self.axis,), have, want, (ArrayType(x.type.dtype, shape),))
        return emitted(move, x)[0]

    def dealt(self) -> Array:
        """Return rows up to the diagonal, and no further."""
        (offset, own), zero, columns = self.own(), expr.const(0), arange(self.width)
        blocks = self.blank(self.width, self.count, own)
        if self.width != self.rows:
            i = arange(self.count)[:, None] * self.block + arange(own) + offset
            blocks = as_array((columns[:, None, None] == i).astype(self.x.dtype))

        def deal(k: Any, blocks: Array) -> Array:
            start = _expr(k * self.block)
            begin, end, behind = (expr.minimum(start + _expr(e), self.rows)
                                  for e in (offset, offset + own, self.block))
            have = self.mine, (zero, self.x.extents[1])
            part = self.fetched(self.x, have, ((begin, end), (zero, behind)))
            return _put(blocks, part.T[:, None, :], zero, _expr(k), zero)

        return as_array(fori_loop(0, self.count, deal, blocks))

    def step(self, k: Any, blocks: Array) -> Array:
        """Subtract what the blocks before block k contribute to it, above its diagonal too; then
        factor it."""
        low, start, (offset, own) = self.flat(blocks), k * self.block, self.own()
        rows = self.columns_of(k)
        before = self.gathered(blocks[:start, k : k + 1])
        low[rows, k * own :] -= adjoint(before) @ low[:start, k * own :]
        done = linear.cholesky(self.gathered(blocks[rows, k : k + 1]), upper=True)
        below = low[:, (k + 1) * own :]
        below[rows] = emitted(Triangular(lower=False, adjoint=True), below[rows], done)[0]
        low[rows, k * own : (k + 1) * own] = done[:, offset : offset + own]
        return blocks

    def result(self, blocks: Array) -> Any:
        """Return the rows that this rank has of the matrix, a part of a block in each turn, so that
        all ranks have the same work; and zeros behind the diagonal."""
        (low, high), (offset, own), zero = self.mine, self.own(), expr.const(0)
        have = ((zero, as_expr(self.width)), (zero, as_expr(self.count)),
                (_expr(offset), _expr(offset + own)))

        def turn(t: Any, out: Array) -> Array:
            k = low // self.block + _expr(t)
            start, columns = k * self.block, expr.minimum((k + 1) * self.block, self.rows)
            first, last = (expr.maximum(expr.minimum(e - start, self.block), 0)
                           for e in (low, high))
            into = expr.minimum(start + first, high) - low
            part = self.fetched(blocks, have, ((zero, columns), (k, k + 1), (first, last)))
            nothing = Full(0, out.type.dtype, (last - first, self.rows - columns))
            behind = wrap(out.context, out.context.emit_one(nothing), scalar=False)
            return _put(_put(out, part[:, 0].T, into, zero), behind, into, columns)

        most = as_expr(self.rows) // _expr(axis_size(self.axis)) // self.block + 2
        return fori_loop(0, number(most), turn, self.blank(*self.x.shape))


def _put(x: Array, part: Array, *start: Expr) -> Array:
    """Return x with a part at these positions, which are in bounds."""
    return emitted(Update(start, (1,) * len(start), cut=True), x, part)[0]


# ---- LU with partial pivoting --------------------------------------------------------------------


class Elimination:
    """A Gaussian elimination, for which A is dealt by columns, so that a rank has the whole column
    in which a pivot is chosen."""

    def __init__(self, x: Array, axis: str) -> None:
        self.dealt = Dealt(x.shape[0], x.shape[1], axis)
        self.dealt_columns = self.dealt.deal_turned(x)

    def down(self, k: Any, cols: Array, *sides: Array) -> tuple[list[Array], list[Array]]:
        """Factor panel k and apply its pivots and its factor to the columns of A and to `sides`.
        Return the factors (Lu's results), then A and the sides."""
        dealt, columns = self.dealt, self.dealt.columns_of(k)
        offset, own = dealt.own()
        factors = emitted(Lu(), dealt.gathered(cols[k : k + 1, :, columns.start :]))
        lu, pivots, _ = factors
        swapped = Swapped(_expr(columns.start))
        first, *others = [emitted(swapped, part, pivots)[0] for part in (dealt.flat(cols), *sides)]
        first[k * own : (k + 1) * own, columns.start :] = lu[offset : offset + own]
        first = self.less(first, (k + 1) * own, columns, lu)
        return factors, [first.reshape(cols.shape), *(self.less(x, 0, columns, lu) for x in others)]

    def less(self, part: Array, first: Any, columns: slice, lu: Array) -> Array:
        """Compute U in its rows from `first` on, and subtract its product from the columns
        behind."""
        upper, block = Triangular(lower=False, right=True, unit=True), self.dealt.block
        part[first:, columns] = emitted(upper, part[first:, columns], lu[:, :block])[0]
        part[first:, columns.stop :] -= part[first:, columns] @ lu[:, block:]
        return part


def solve(x: Array, routine: str, b: Array) -> Array | None:
    """Solve with b split by columns. What is done to A is done to b at once; then x follows from
    the last block to the first."""
    axis = axis_of(x)
    if axis is None or not _large(x) or b.ndim != 2:
        return None
    steps = Elimination(x, axis)
    dealt = steps.dealt
    sides = mapping.relayout(linear.transposed(b), (axis, None))
    if dealt.width > dealt.rows:
        wide = zeros((b.shape[1], dealt.width), x.dtype, layout=(axis, None))
        wide[:, : dealt.rows] = sides
        sides = as_array(wide)

    def run(cols: Array, side: Array) -> Any:
        cols, side = fori_loop(0, dealt.count, down, (dealt.turned(cols), side))
        return fori_loop(0, dealt.count, lambda k, y: up(dealt.count - 1 - k, cols, y), side)

    def down(k: Any, state: Any) -> Any:
        (_, _, info), parts = steps.down(k, *state)
        hold(info, SINGULAR.format(routine))
        return tuple(parts)

    def up(k: Any, cols: Array, side: Array) -> Array:
        columns = dealt.columns_of(k)
        row = dealt.gathered(cols[k : k + 1, :, : columns.stop])
        lower = Triangular(lower=True, right=True)
        side[:, columns] = emitted(lower, side[:, columns], row[:, columns])[0]
        side[:, : columns.start] -= side[:, columns] @ row[:, : columns.start]
        return side

    layouts, rows = (dealt.turned_layout, (axis, None)), (axis, None)
    solution = mapping.call(x.context, run, (steps.dealt_columns, sides), {}, None, layouts, rows)
    return as_array(linear.transposed(solution[:, : dealt.rows]))


def slogdet(x: Array) -> tuple[Array, Array] | None:
    """Return the sign and the logarithm of the determinant, from the pivots of each block in turn;
    None where the matrix is not split, or too small for this to pay."""
    axis = axis_of(x)
    if axis is None or not _large(x):
        return None
    steps = Elimination(x, axis)
    dealt = steps.dealt

    def run(cols: Array) -> Any:
        start = zeros((), x.dtype) + 1, zeros((), picking.real(x).dtype)
        return fori_loop(0, dealt.count, step, (dealt.turned(cols), *start))[1:]

    def step(k: Any, state: Any) -> Any:
        cols, sign, logs = state
        (lu, *more), (cols,) = steps.down(k, cols)
        by, plus = linear.pivots_product(lu[:, : dealt.block], *more)
        return cols, sign * by, logs + plus

    sign, logs = mapping.call(x.context, run, (steps.dealt_columns,), {}, None,
                              (dealt.turned_layout,), ((), ()))
    return sign, logs


# ---- Q and R -------------------------------------------------------------------------------------


class Reflections:
    """Blocks of reflections, as LAPACK's: I - V T V^H is the product of those of one block. The
    matrix is dealt by columns. What makes its columns R, from the first block to the last, makes Q
    of a unit matrix from the last one to the first."""

    def __init__(self, x: Array, axis: str) -> None:
        self.rows, self.columns = x.shape
        self.dealt = Dealt(self.columns, self.rows, axis)
        self.dealt_columns = self.dealt.deal_turned(x)
        self.blocks = -(-min(x.shape) // self.dealt.block)

    def down(self, k: Any, state: Any) -> Any:
        """Factor panel k and apply its reflections to the columns behind it. The state holds the
        columns, and LAPACK's tau for each block."""
        (cols, taus), dealt = state, self.dealt
        columns, (offset, own) = dealt.columns_of(k), dealt.own()
        panel = dealt.gathered(cols[k : k + 1, :, columns.start :])
        factored, tau, info = emitted(Qr("r"), panel)
        hold(info, "", "geqrf")
        taus[k] = tau
        flat = dealt.flat(cols)
        v, t = self.block(factored, tau)
        rest = flat[(k + 1) * own :, columns.start :]
        flat[(k + 1) * own :, columns.start :] -= rest @ adjoint(v) @ products.conjugate(t) @ v
        flat[k * own : (k + 1) * own, columns.start :] = factored[offset : offset + own]
        return cols, taus

    def unit(self, count: int) -> Array:
        """Return this rank's part of so many columns of a unit matrix, dealt as the matrix is."""
        (offset, own), size = self.dealt.own(), self.dealt.block
        columns = arange(-(-count // size))[:, None, None] * size + offset + arange(own)[:, None]
        return as_array((columns == arange(self.dealt.width)).astype(self.dealt_columns.dtype))

    def up(self, k: Any, cols: Array, taus: Array, q: Array) -> Array:
        """Apply the reflections of block k to the columns of Q; the columns before it still begin
        with zeros."""
        dealt, flat, start = self.dealt, self.dealt.flat(q), self.dealt.columns_of(k).start
        v, t = self.block(dealt.gathered(cols[k : k + 1, :, start:]), taus[k])
        rest = flat[k * dealt.own()[1] :, start:]
        flat[k * dealt.own()[1] :, start:] -= rest @ adjoint(v) @ linear.transposed(t) @ v
        return q

    def block(self, factored: Array, tau: Array) -> tuple[Array, Array]:
        """Return V^T and T. T is (D S + I)^-1 D, where D has tau on its diagonal and S is what
        stands above the diagonal of V^H V: Puglisi, Modification of the Householder method,
        1992."""
        rows, columns = factored.shape
        i, j = arange(rows)[:, None], arange(self.dealt.width)[:columns]
        v = as_array(picking.where(i < j, factored, (i == j).astype(factored.dtype)))
        above = shaping.triu(products.conjugate(v) @ linear.transposed(v), 1)
        diagonal = picking.where(arange(tau.shape[0])[:, None] == arange(tau.shape[0]), tau, 0)
        upper = Triangular(lower=False, unit=True)
        return v, emitted(upper, as_array(diagonal), as_array(tau[:, None] * above))[0]


def qr(x: Array, mode: str) -> tuple[Array | None, Array] | None:
    """Return Q and R; None where the matrix is not split, or too small for this to pay. Q has as
    many columns as x has rows if mode is "complete"; for "r" it is None."""
    if mode != "complete" and (factors := tall(x)) is not None:
        return factors
    axis = axis_of(x)
    if axis is None or not _large(x):
        return None
    steps = Reflections(x, axis)
    dealt, rows, last = steps.dealt, x.shape[0], steps.blocks - 1
    count = rows if mode == "complete" else min(x.shape)

    def factor(cols: Array) -> Any:
        taus = zeros((steps.blocks, dealt.block), x.dtype)
        return fori_loop(0, steps.blocks, steps.down, (dealt.turned(cols), taus))

    def both(cols: Array) -> Any:
        cols, taus = factor(cols)
        start = steps.unit(count)
        return cols, fori_loop(0, last + 1, lambda k, q: steps.up(last - k, cols, taus, q), start)

    body = (lambda cols: (factor(cols)[0],)) if mode == "r" else both
    kept = (dealt.layout,) * (1 if mode == "r" else 2)
    cols, *q = mapping.call(x.context, body, (steps.dealt_columns,), {}, None,
                            (dealt.turned_layout,), kept)
    r = shaping.triu(linear.transposed(dealt.collect(cols)[:, :count]))
    return as_array(linear.transposed(dealt.collect(q[0], count, rows))) if q else None, as_array(r)


def tall(x: Array) -> tuple[Array, Array] | None:
    """Return Q and R of a matrix with few columns, split by rows: each rank has an R of its own
    rows, and all have one of those. The signs are those that reflections of the whole matrix would
    give."""
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
    formula = expr_of(x)
    assert formula is not None
    return formula


def _sign(x: Any) -> Array:
    """Return 1 or -1, by the real part."""
    return as_array(picking.where(picking.real(x) >= 0, 1, -1).astype(x.dtype))


def _reflected(top: Array) -> Array:
    """Return the signs on the diagonal of the R that reflections give of a Q whose upper part this
    is, as in Ballard et al., Reconstructing Householder vectors from TSQR, 2014: by elimination."""

    def step(k: Any, state: Any) -> Any:
        a, signs = state
        signs[k] = -_sign(a[k, k])
        a[k, k] -= signs[k]
        a[k + 1 :, k + 1 :] -= (a[k + 1 :, k] / a[k, k])[:, None] * a[k, k + 1 :]
        return a, signs

    return as_array(fori_loop(0, top.shape[0], step, (top, zeros(top.shape[0], top.dtype)))[1])


# By the name under which linear.py asks for them.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cholesky": cholesky, "solve": solve, "slogdet": slogdet, "qr": qr, "tall": tall}
