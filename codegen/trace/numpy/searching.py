"""Where values lie among sorted ones: searchsorted, digitize, interp, histograms.

Always holds: values are ordered as NumPy sorts them, NaN last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import ShapeError
from codegen.functions import neutral
from codegen.mesh import as_written
from codegen.ops import Fold, SearchSorted
from codegen.ops.kind import layout_of
from codegen.symbolic import expr
from codegen.trace.array import (
    Array,
    Number,
    as_array,
    holds_traced,
    is_traced,
    number,
    unsupported,
)
from codegen.trace.control.functional import fori_loop
from codegen.trace.expecting import AT, expect, may_be_empty
from codegen.trace.numpy import joining, ordering, picking, reducing, shaping
from codegen.trace.numpy.creation import linspace, zeros
from codegen.trace.numpy.elementwise import apply, result_type, same_extent, select
from codegen.trace.numpy.index import combine_at
from codegen.trace.numpy.order_keys import axes_of_dim, emit_op, keys_of, padded_rows
from codegen.trace.ranks import communicate, mapping
from codegen.user.numbers import element_type

# ---- order ---------------------------------------------------------------------------------------


def sorts_before(a: Any, b: Any) -> Any:
    """Return whether a stands before b in a sorted array: NaN stand last."""
    kind = as_array(a).type.dtype.kind
    if kind == "f":
        return apply(np.less, a, b) | (apply(np.isnan, b) & ~apply(np.isnan, a))
    if kind != "c":
        return apply(np.less, a, b)
    (ar, ai), (br, bi) = ((picking.real(z), picking.imag(z)) for z in (a, b))
    a_nan, b_nan = apply(np.isnan, ai), apply(np.isnan, bi)
    same = apply(np.equal, ar, br) | (apply(np.isnan, ar) & apply(np.isnan, br))
    before = apply(np.isnan, br) & ~apply(np.isnan, ar)
    before = select(same, apply(np.less, ai, bi) | (b_nan & ~a_nan), before)
    before = select(apply(np.greater, ar, br), b_nan & ~a_nan, before)
    return select(apply(np.less, ar, br), ~a_nan | b_nan, before)


def _strong(x: Any) -> Any:
    """Return the element type that NumPy finds in what is converted to an array: of a number, its
    own."""
    if isinstance(x, (Array, Number)):
        return as_array(x).dtype
    return as_array(x).dtype if isinstance(x, (list, tuple)) else np.asarray(x).dtype


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Array:
    """Return how many elements of sorted `a` stand before each of v."""
    if side not in ("left", "right"):
        raise unsupported(f"np.searchsorted with side={side!r}", "side='left' or side='right'")
    _line(a, "np.searchsorted: what is searched is")
    dtype = element_type(np.result_type(_strong(a), _strong(v)))
    ordered = as_array(as_array(a) if sorter is None else as_array(a)[sorter], dtype)
    values = as_array(v, dtype)
    n = ordered.extents[0]
    few = n.is_const and n.value <= _COMPARED_WITH_ALL and not axes_of_dim(ordered, 0)
    if few or values.type.dtype.kind == "c":
        wide = shaping.expand_dims(values, values.ndim)
        if side == "left":
            before = sorts_before(ordered, wide)
        else:
            before = apply(np.logical_not, sorts_before(wide, ordered))
        return as_array(reducing.sum_(before, axis=-1))
    row, keys = (keys_of(x, one_zero=True) for x in (ordered, values))
    if not keys.ndim:
        return as_array(_searched(row, keys.reshape(1), side == "right")[0])
    return _searched(row, keys, side == "right")


_COMPARED_WITH_ALL = 16  # with so many, a value is faster compared with all


def _searched(row: Array, values: Array, right: bool) -> Array:
    """Find each value by a binary search. Of a split row each rank searches its block, and the
    ranks add what they find; values that are split alike go from rank to rank."""
    axes = axes_of_dim(row, 0)
    if not axes:
        return emit_op(row, SearchSorted(right), values)
    context = row.context
    n = context.mesh.size(axes)
    kept = [entry if entry == axes or not set(entry) & set(axes) else ()
            for entry in layout_of(values.read().type)]
    d = kept.index(axes) if axes in kept else None
    longest = expr.floordiv((values.extents[d] if d is not None else expr.const(0)) + n - 1, n)

    def counts_of_block(part: Array, mine: Array) -> Array:
        if d is None:
            return emit_op(emit_op(part, SearchSorted(right), mine), Fold(axes, "add"))
        rows = shaping.moveaxis(mine, d, -1)
        block = padded_rows(rows, longest)

        def turn(_: Any, state: Any) -> Any:
            block, total = state
            total = total + emit_op(part, SearchSorted(right), block)
            return communicate.ppermute((block, total), axes, shift=1)

        _, total = fori_loop(0, number(n), turn, (block, zeros(block.shape, np.int64)))
        return shaping.moveaxis(as_array(total)[..., : rows.shape[-1]], -1, d)

    spec = as_written(tuple(kept))
    return as_array(mapping.call(context, counts_of_block, (row, values), {}, None,
                                 (as_written((axes,)), spec), spec))


def isin(element: Any, test_elements: Any, invert: bool = False, **_: Any) -> Array:
    """Return whether each element is among the tests: of the sorted tests, fewer are below it than
    up to it. NaN equals nothing."""
    array, tests = as_array(element), shaping.ravel(test_elements)
    n = tests.extents[0]
    if n.is_const and n.value <= _COMPARED_WITH_ALL and not axes_of_dim(tests, 0):
        same = apply(np.equal, shaping.expand_dims(array, array.ndim), tests)
        present = reducing.any_(same, axis=-1)
    else:
        row = ordering.sort(tests)
        present = apply(np.less, searchsorted(row, array), searchsorted(row, array, "right"))
        present = present & apply(np.equal, array, array)
    return apply(np.logical_not, present) if invert else as_array(present)


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """Return which of the intervals between edges each element lies in; edges increase or
    decrease."""
    side = "left" if right else "right"
    reducing.no_complex(x, "np.digitize")
    _line(bins, "np.digitize: the bins are")
    if not holds_traced(bins):
        known_edges = np.asarray(bins)
        falls = bool(known_edges.size and known_edges[0] > known_edges[-1])
        if np.any(np.diff(known_edges) > 0 if falls else np.diff(known_edges) < 0):
            raise _wrong("bins must be monotonically increasing or decreasing", str(bins))
        if falls:
            return apply(np.subtract, len(known_edges), searchsorted(known_edges[::-1], x, side))
        return searchsorted(known_edges, x, side)
    edges = as_array(bins)
    down = apply(np.greater, edges[0], edges[-1])
    bin_numbers = searchsorted(select(down, edges[::-1], edges), x, side)
    return select(down, as_array(edges.shape[0]) - bin_numbers, bin_numbers)


def _line(x: Any, subject: str) -> None:
    if as_array(x).ndim != 1:
        raise _wrong(f"{subject} not 1-D", f"{as_array(x).ndim} dims", "one dim")


def _wrong(message: str, found: str, expected: str = "") -> ShapeError:
    return ShapeError(message, expected=expected, found=found)


# ---- between places ------------------------------------------------------------------------------


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """Interpolate linearly between the points (xp, fp); complex fp: real and imaginary parts."""
    reducing.no_complex(x, "np.interp")
    reducing.no_complex(xp, "np.interp")
    points, xs = as_array(x, np.float64), as_array(xp, np.float64)
    dtype = dtypes.BY_NAME["complex128"] if as_array(fp).type.dtype.kind == "c" else dtypes.FLOAT64
    ys = as_array(fp, dtype)
    _line(xs, "np.interp: xp is")
    if ys.ndim != 1 or not same_extent(xs.extents[0], ys.extents[0]):
        raise _wrong("np.interp: fp and xp are not of the same length", str(ys.shape),
                     f"as many values as points, {xs.shape}")
    if period is not None:
        left = right = None
        period = apply(np.absolute, as_array(period, np.float64))
        points, xs = apply(np.remainder, points, period), apply(np.remainder, xs, period)
        order = ordering.argsort(xs)
        xs, ys = xs[order], ys[order]
        xs = joining.concatenate([xs[-1:] - period, xs, xs[:1] + period])
        ys = joining.concatenate([ys[-1:], ys, ys[:1]])
    ends = [None if e is None else as_array(e, dtype) for e in (left, right)]
    if dtype.kind != "c":
        return _interpolated(points, xs, ys, *ends)
    result = zeros(points.shape, np.complex128)
    result.real = _interpolated(points, xs, ys.real,
                                *[e if e is None else picking.real(e) for e in ends])
    imaginary = [e if e is None else picking.imag(e) for e in ends]
    imaginary_part = _interpolated(points, xs, ys.imag, *imaginary)
    result.imag = select(apply(np.isnan, points), 0.0, imaginary_part)
    return result[()] if not result.ndim else result


def _interpolated(points: Array, xs: Array, ys: Array, left: Any, right: Any) -> Any:
    """Interpolate as arr_interp of NumPy's C, with its second tries where a formula gives NaN."""
    low, high = ys[0] if left is None else left, ys[-1] if right is None else right
    if xs.extents[0] == 1:
        inside = select(points > xs[0], high, ys[0])
        return select(points < xs[0], low, inside)
    k = picking.clip(searchsorted(xs, points, "right") - 1, 0, xs.shape[0] - 2)
    x0, x1, y0, y1 = xs[k], xs[k + 1], ys[k], ys[k + 1]
    slope = (y1 - y0) / (x1 - x0)
    values = slope * (points - x0) + y0
    again = slope * (points - x1) + y1
    again = select(apply(np.isnan, again) & (y0 == y1), y0, again)
    values = select(apply(np.isnan, values), again, values)
    values = select(points == x0, y0, values)
    values = select(points == xs[-1], ys[-1], values)
    values = select(points < xs[0], low, values)
    values = select(points > xs[-1], high, values)
    return select(apply(np.isnan, points), points, values)


# ---- counting ------------------------------------------------------------------------------------


def bincount(x: Any, /, weights: Any = None, minlength: Any = 0) -> Array:
    """Return how often each integer below minlength stands in x; a run in which another one does
    ends."""
    array = as_array(x)
    if array.type.dtype.kind not in "biu" or array.ndim != 1:
        raise _wrong("np.bincount of what is no row of integers", str(array.type),
                     "integers in one dim")
    if is_traced(minlength) or int(minlength) < 1:
        raise unsupported("np.bincount, whose length depends on data, without minlength",
                          "minlength=k with all elements less than k; or np.add.at(np.zeros(k, "
                          "int), x, 1)")
    elements = as_array(array, np.int64)
    inside = as_array((elements >= 0) & (elements < int(minlength)))
    expect(array.context, inside.read(), "np.bincount with an element out of bounds: ",
           elements.read(), " (element ", AT, f")\n  expected: 0 to {int(minlength) - 1}, since "
           f"minlength is {int(minlength)}\n  try:      a larger minlength")
    each = 1 if weights is None else as_array(_weights(weights, x), np.float64)
    counts = zeros(int(minlength), np.int64 if weights is None else np.float64)
    combine_at(counts, elements, each, "add")
    return counts


def _ends(array: Array, limits: Any) -> tuple[Any, Any]:
    """Return the first and the last edge, apart from each other."""
    if limits is not None:
        low, high = limits
        if not is_traced(low) and not is_traced(high):
            if not (np.isfinite(low) and np.isfinite(high)) or low > high:
                raise _wrong("range of a histogram", f"({low}, {high})",
                             "finite numbers, the smaller one first")
            return (low - 0.5, high + 0.5) if low == high else (low, high)
    elif any(e == 0 for e in array.extents):
        return 0.0, 1.0
    elif may_be_empty(every := expr.product(array.extents)):
        least, most = (neutral(fn, array.type.dtype) for fn in ("min", "max"))
        some = number(expr.ge(every, 1), True)
        low = select(some, reducing.min_(array, initial=least), 0)
        high = select(some, reducing.max_(array, initial=most), 1)
    else:
        low, high = reducing.min_(array), reducing.max_(array)
    flat = apply(np.equal, low, high)
    return select(flat, low - 0.5, low), select(flat, high + 0.5, high)


def _count_of(bins: Any) -> int:
    if isinstance(bins, str):
        raise unsupported(f"np.histogram with bins={bins!r}", "a number of bins, or their edges")
    count = int(bins)
    if count < 1:
        raise _wrong("`bins` must be positive", str(bins), "1 or more")
    return count


def _given_edges(bins: Any) -> Array:
    edges = as_array(bins)
    if edges.ndim != 1:
        raise _wrong("`bins` must be 1d, when an array", f"{edges.ndim} dims", "a number, or edges")
    if not holds_traced(bins) and np.any(np.diff(bins) < 0):
        raise _wrong("`bins` must increase monotonically, when an array", str(bins))
    return edges


def _is_count(bins: Any) -> bool:
    if isinstance(bins, (list, tuple)):
        return False
    return isinstance(bins, str) or (bins.ndim if isinstance(bins, Array) else np.ndim(bins)) == 0


def _counted_type(array: Array, low: Any, high: Any) -> DType:
    dtype = result_type(low, high, array)
    return dtypes.FLOAT64 if dtype.kind in "biu" else dtype


def _numbers(x: Any) -> Array:
    """Return the elements in one row; bools count as 0 and 1."""
    array = shaping.ravel(x)
    reducing.no_complex(array, "np.histogram")
    return as_array(array, np.uint8) if array.type.dtype.kind == "b" else array


def histogram_bin_edges(x: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Array:
    """Return the edges that histogram counts between."""
    if not _is_count(bins):
        return _given_edges(bins)
    array = _numbers(x)
    low, high = _ends(array, range)
    return as_array(linspace(low, high, _count_of(bins) + 1), _counted_type(array, low, high))


def histogram(x: Any, bins: Any = 10, range: Any = None, density: Any = None,
              weights: Any = None) -> tuple[Any, Any]:
    """Return counts between edges, and the edges; the last edge belongs to the last bin."""
    array = _numbers(x)
    if _is_count(bins):
        count = _count_of(bins)
        low, high = _ends(array, range)
        dtype = _counted_type(array, low, high)
        edges = as_array(linspace(low, high, count + 1), dtype)
        inside = apply(np.greater_equal, array, low) & apply(np.less_equal, array, high)
        k = _place(array, inside, as_array(low, dtype), as_array(high, dtype), edges, count)
    else:
        edges = _given_edges(bins)
        count = edges.shape[0] - 1
        inside = apply(np.greater_equal, array, edges[0]) & apply(np.less_equal, array, edges[-1])
        k = searchsorted(edges, array, "right") - 1 - apply(np.equal, array, edges[-1])
        k = picking.clip(k, 0, count - 1)
    each = 1 if weights is None else _weights(weights, x)
    counts = zeros(count, np.int64 if weights is None else as_array(each).dtype)
    combine_at(counts, k, select(inside, each, 0), "add")
    if not density:
        return counts, edges
    return counts / picking.diff(as_array(edges, np.float64)) / reducing.sum_(counts), edges


def _weights(weights: Any, x: Any) -> Array:
    array, shape = as_array(weights), as_array(x).shape
    if array.shape != shape:
        raise _wrong("weights should have the same shape as a", str(array.shape), str(shape))
    return shaping.ravel(array)


def _place(array: Array, inside: Any, low: Array, high: Array, edges: Array, count: int) -> Any:
    """Return the bin of each element: computed, then corrected by the edges, which rounding may
    miss."""
    array = select(inside, as_array(array, low.type.dtype), low)
    place = (array - low) / (high - low) * count
    k = picking.clip(place.astype(np.int64), 0, count - 1)
    k = picking.clip(k - apply(np.less, array, edges[k]), 0, count - 1)
    return k + (apply(np.greater_equal, array, edges[k + 1]) & (k != count - 1))


def histogram2d(x: Any, y: Any, bins: Any = 10, range: Any = None, density: Any = None,
                weights: Any = None) -> tuple[Any, Any, Any]:
    """Return counts between edges along two dims, and the edges."""
    if not _is_count(bins) and (isinstance(bins, Array) or len(bins) not in (1, 2)):
        bins = [bins, bins]
    counts, edges = histogramdd([x, y], bins, range, density, weights)
    return counts, edges[0], edges[1]


def histogramdd(sample: Any, bins: Any = 10, range: Any = None, density: Any = None,
                weights: Any = None) -> tuple[Any, tuple[Any, ...]]:
    """Return counts of points (rows of `sample`, or coordinates in a list) in boxes, and the
    edges."""
    if isinstance(sample, Array) and sample.ndim == 2:
        columns = [sample[:, d] for d in _numbered(sample.shape[1])]
    else:
        rows = shaping.atleast_2d(as_array(sample))
        columns = [rows[d] for d in _numbered(rows.shape[0])]
    each = [bins] * len(columns) if _is_count(bins) else list(bins)
    if len(each) != len(columns):
        raise _wrong("The dimension of bins must be equal to the dimension of the sample x",
                     f"{len(each)} of them", str(len(columns)))
    ranges = [None] * len(columns) if range is None else range
    edges = tuple(_dd_edges(_numbers(c), b, r) for c, b, r in zip(columns, each, ranges))
    inside: Any = True
    bin_numbers = []
    for column, edge in zip(columns, edges):
        k = searchsorted(edge, column, "right") - 1 - apply(np.equal, column, edge[-1])
        count = edge.shape[0] - 1
        inside = apply(np.logical_and, (k >= 0) & (k < count), inside)
        bin_numbers.append(picking.clip(k, 0, count - 1))
    counts = zeros(tuple(e.shape[0] - 1 for e in edges), np.float64)
    weight = 1.0 if weights is None else as_array(shaping.ravel(weights), np.float64)
    counts = counts.at[tuple(bin_numbers)].add(select(inside, weight, 0.0))
    if density:
        total = reducing.sum_(counts)
        for d, edge in enumerate(edges):
            wide = [1] * len(edges)
            wide[d] = edge.shape[0] - 1
            counts = counts / picking.diff(edge).reshape(tuple(wide))
        counts = counts / total
    return counts, edges


def _dd_edges(column: Array, bins: Any, limits: Any) -> Array:
    if not _is_count(bins):
        return _given_edges(bins)
    return as_array(linspace(*_ends(column, limits), _count_of(bins) + 1))


def _numbered(n: Any) -> Sequence[int]:
    if not isinstance(n, int):
        raise unsupported("np.histogramdd of extents that ranks decide", "np.histogram of each")
    return range(n)
