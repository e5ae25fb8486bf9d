"""Methods of ufuncs: reduce, accumulate, reduceat, outer, at.

Ufuncs that combine in any order, with a row of COMBINE, combine on all ranks at once; the others
go along a dim in a loop, for which each rank gets it whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import DtypeError, ShapeError
from codegen.functions import COMBINE, FUNCTIONS, neutral_sign
from codegen.ops import Cumulative
from codegen.ops.kind import layout_of
from codegen.symbolic import expr
from codegen.trace import known
from codegen.trace.array import Array, as_array, constant, is_traced, unsupported, wrap
from codegen.trace.control.functional import fori_loop, while_loop
from codegen.trace.expecting import expect
from codegen.trace.numpy import joining, reducing, shaping
from codegen.trace.numpy.creation import arange, full, zeros
from codegen.trace.numpy.elementwise import apply, loop_dtypes, select, store
from codegen.trace.numpy.index import Gather, combine_at, get, set_
from codegen.trace.numpy.masks import is_mask
from codegen.trace.numpy.reducing import along, dim_of
from codegen.trace.numpy.subscripts import index_error

_ROW = {FUNCTIONS[scalar].ufunc: fn for fn, scalar in COMBINE.items()}
_SUMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (reducing.sum_, reducing.cumsum), "multiply": (reducing.prod, reducing.cumprod),
}


def _combining(ufunc: np.ufunc, x: Any, dtype: Any) -> tuple[str, Array, DType]:
    """Return the row of COMBINE; x, and the type that NumPy's loop combines it in."""
    name = ufunc.__name__
    array = as_array(x)
    element = loop_dtypes(ufunc, [array] * 2, dtype)[-1]
    if name in _SUMS:
        element = reducing.sum_dtype(array, dtype)
    fn = _ROW[name]
    return fn[1:] if fn in ("fmin", "fmax") and element.kind not in "fc" else fn, array, element


def reduce(ufunc: np.ufunc, x: Any, axis: Any = 0, dtype: Any = None, out: Any = None,
           keepdims: Any = False, initial: Any = None, where: Any = True) -> Any:
    name, function = ufunc.__name__, f"np.{ufunc.__name__}.reduce"
    if name in _SUMS:
        return _SUMS[name][0](x, axis, dtype, out, keepdims, initial, where)
    if name == "subtract" and initial is None and where is True and as_array(x).ndim:
        array = as_array(x)
        d = _one_dim(axis, array, function)
        return reduce(np.add, _but_first_negative(array, d), d, array.dtype, out, keepdims)
    if name not in _ROW:
        result, d = _reduced(ufunc, x, axis, dtype, initial, where)
        return store(shaping.expand_dims(result, d) if keepdims else result, out)
    fn, array, kind = _combining(ufunc, x, dtype)
    if fn == "lcm":
        axis = dim_of(axis, array.ndim, function)  # as NumPy: along one dim
        if array.extents[axis] == 1:
            return store(array.copy() if keepdims else shaping.squeeze(array, axis).copy(), out)
    return reducing.reduce(fn, function, array, axis, kind, out, keepdims, initial, where)


def _but_first_negative(array: Array, d: int) -> Array:
    """Return the array with all but the first element of a dim negated: their sum is the first
    minus all others."""
    negated, rest = as_array(array.copy()), (*[slice(None)] * d, slice(1, None))
    negated[rest] = -negated[rest]
    return negated


def accumulate(ufunc: np.ufunc, x: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
    name = ufunc.__name__
    if name in _SUMS:
        return _SUMS[name][1](x, axis, dtype, out)
    array = as_array(x)
    d = dim_of(axis, array.ndim, f"np.{name}.accumulate")
    if name == "subtract":
        return accumulate(np.add, _but_first_negative(array, d), d, array.dtype, out)
    if name not in _ROW:
        return store(_running(ufunc, array, d, dtype), out)
    fn, array, kind = _combining(ufunc, array, dtype)
    array = as_array(array, kind)
    result = wrap(array.context, array.context.emit_one(Cumulative(fn, d), array.read()))
    if fn in ("gcd", "lcm", "hypot"):  # of one element alone they are its size
        first = (*[slice(None)] * d, slice(0, 1))
        result = result.copy()
        result[first] = array[first]
    return store(result, out)


# ---- one after the other -------------------------------------------------------------------------


def _one_dim(axis: Any, array: Array, function: str) -> int:
    if axis is None and array.ndim != 1:
        raise ShapeError(f"{function}: the operation is not reorderable", found="axis=None",
                         expected="one axis", remedy="axis=0, or x.ravel()")
    return dim_of(axis, array.ndim, function)


def _lanes(ufunc: np.ufunc, x: Any, d: int, dtype: Any) -> Array:
    """Return x with the dim first, which each rank has whole, in the type of NumPy's loop."""
    *operand_types, kind = loop_dtypes(ufunc, [as_array(x)] * 2, dtype)
    if set(operand_types) != {kind}:
        raise DtypeError(f"np.{ufunc.__name__} makes {kind} of {operand_types[0]}, which it cannot "
                         "go on with", expected="a result of the type of the operands",
                         found=str(kind))
    lanes = shaping.moveaxis(as_array(x, kind), d, 0)
    layout = lanes.layout
    return lanes.relayout((None, *layout[1:])) if layout and layout[0] is not None else lanes


def _reduced(ufunc: np.ufunc, x: Any, axis: Any, dtype: Any, initial: Any, where: Any) -> Any:
    """Reduce one dim in a loop; return the result and the dim."""
    array, function = as_array(x), f"np.{ufunc.__name__}.reduce"
    d = _one_dim(axis, array, function)
    if where is not True:
        raise unsupported(f"{function} with where=", "for k in spmd.range(n): "
                          "t = np.where(mask[k], f(t, x[k]), t)")
    if array.extents[d] == 0 and initial is None:
        raise ShapeError(f"{function}: zero-size array to a reduction which has no identity",
                         expected="at least one element along the reduced dim", found="none")
    lanes = _lanes(ufunc, array, d, dtype)
    element = lanes.type.dtype
    first = lanes[0] if initial is None else shaping.broadcast_to(
        as_array(initial, element), lanes.shape[1:])

    def turn(k: Any, total: Any) -> Array:
        return as_array(apply(ufunc, total, lanes[k]), element)

    begin = 0 if initial is not None else 1
    return fori_loop(begin, lanes.shape[0], turn, as_array(first.copy())), d


def _running(ufunc: np.ufunc, x: Any, d: int, dtype: Any) -> Any:
    lanes = _lanes(ufunc, x, d, dtype)

    def turn(k: Any, totals: Any) -> Any:
        totals[k] = apply(ufunc, totals[k - 1], lanes[k])
        return totals

    return shaping.moveaxis(fori_loop(1, lanes.shape[0], turn, lanes.copy()), 0, d)


def _of_segments(ufunc: np.ufunc, x: Any, d: int, dtype: Any, begin: Array) -> Any:
    """Reduce all segments in one loop, which takes an element of each in every turn."""
    lanes = _lanes(ufunc, x, d, dtype)
    n, wide = lanes.shape[0], (begin.shape[0], *[1] * (lanes.ndim - 1))
    ends = joining.concatenate([begin[1:], as_array([n], dtypes.INT64)])
    counts = apply(np.maximum, ends - begin, 1)

    def turn(state: Any) -> Any:
        k, totals = state
        more = apply(ufunc, totals, lanes[apply(np.minimum, begin + k, n - 1)])
        return k + 1, as_array(select((k < counts).reshape(wide), more, totals), lanes.type.dtype)

    longest = reducing.max_(counts, initial=0)
    first = as_array(1, dtypes.INT64), lanes[begin]
    return shaping.moveaxis(while_loop(lambda state: state[0] < longest, turn, first)[1], 0, d)


def _one_by_one(ufunc: np.ufunc, array: Array, key: Any, value: Any) -> None:
    """Assign array[key] = ufunc(array[key], value) for one place after the other."""
    items = known.plain(key) if isinstance(key, tuple) else (known.plain(key),)
    if any(i is ... or i is None or isinstance(i, slice) or is_mask(i) for i in items):
        raise unsupported(f"np.{ufunc.__name__}.at of slices, where an index may come twice,",
                          "x[k] = f(x[k]) where each comes once; or a loop over k")
    wide = shaping.broadcast_arrays(*(as_array(i, dtypes.INT64) for i in items))
    places = [p.ravel() for p in wide]
    rest = array.shape[len(items) :]
    more = () if ufunc.nin == 1 else (shaping.broadcast_to(
        value, (*wide[0].shape, *rest)).reshape((places[0].shape[0], *rest)),)

    def turn(k: Any, updated: Any) -> Any:
        index = tuple(p[k] for p in places)
        updated[index] = apply(ufunc, updated[index], *(v[k] for v in more))
        return updated

    array[...] = fori_loop(0, places[0].shape[0], turn, array.copy())


def outer(ufunc: np.ufunc, x: Any, y: Any, **options: Any) -> Any:
    a, b = as_array(x), as_array(y)
    return apply(ufunc, a.reshape((*a.shape, *[1] * b.ndim)), b, **options)


# ---- parts of a dim ------------------------------------------------------------------------------


def reduceat(ufunc: np.ufunc, x: Any, indices: Any, axis: Any = 0, dtype: Any = None,
             out: Any = None) -> Any:
    """Combine the elements from indices[i] up to indices[i + 1]; an empty segment gives the element
    at indices[i]. Indices that only the run knows must not decrease."""
    if ufunc.__name__ not in _ROW:
        array = as_array(x)
        d = dim_of(axis, array.ndim, f"np.{ufunc.__name__}.reduceat")
        starts = indices if is_traced(indices) else _checked(ufunc, indices, array, d)
        result = _of_segments(ufunc, array, d, dtype, as_array(starts, dtypes.INT64))
        return store(result, out)
    fn, array, kind = _combining(ufunc, x, dtype)
    d = dim_of(axis, array.ndim, f"np.{ufunc.__name__}.reduceat")
    array = as_array(array, kind)
    if is_traced(indices):
        starts = as_array(indices, dtypes.INT64)
        result = _combined(fn, array, d, _segments(starts, array, d), starts.shape[0])
        ends = starts[:-1] == starts[1:]
        alone = zeros(starts.shape[0], bool)
        alone[:-1] = ends
        alone = alone.reshape((starts.shape[0], *[1] * (array.ndim - 1 - d)))
        return store(as_array(select(alone, along(array, d, starts), result), kind), out)
    begin, n = _checked(ufunc, indices, array, d), array.extents[d].value
    counts = np.maximum(np.append(begin[1:], n) - begin, 1) if begin.size else begin
    if (result := _of_slices(fn, array, d, begin, counts)) is not None:
        return store(result, out)
    segments = np.repeat(np.arange(len(begin)), counts)
    places = np.repeat(begin, counts) + np.arange(len(segments)) - np.repeat(
        np.cumsum(counts) - counts, counts)
    picked = array if np.array_equal(places, np.arange(n)) else along(array, d, places)
    return store(_combined(fn, picked, d, as_array(segments), len(begin)), out)


def _of_slices(fn: str, array: Array, d: int, begin: Any, counts: Any) -> Any:
    """Reduce segments that are few, or equally long but for the last one, as slices; None for
    others."""
    kind = array.type.dtype.kind
    if not len(begin) or np.any(begin[1:] <= begin[:-1]) or kind == "c":
        return None
    many = 0 if len(begin) <= _FEW or np.any(counts[:-1] != counts[0]) else len(begin) - 1
    if many == 0 and len(begin) > _FEW:
        return None

    def combined(x: Array, axis: int, keepdims: bool) -> Any:
        function = "np.ufunc.reduceat"
        total = reducing.reduce(fn, function, x, axis, x.type.dtype, None, keepdims)
        if fn != "add" or kind != "f":
            return total
        minus = reducing.all_(apply(np.signbit, x), axis, keepdims=keepdims)  # of -0.0 alone: -0.0
        return as_array(select(minus & (total == 0), -0.0, total), x.type.dtype)

    def part(first: int, end: int) -> Array:
        return as_array(array[(*[slice(None)] * d, slice(int(first), int(end)))])

    pieces = []
    if many:
        rows = part(begin[0], begin[many])
        shape = (*array.shape[:d], many, int(counts[0]), *array.shape[d + 1 :])
        pieces.append(combined(rows.reshape(shape), d + 1, False))
    pieces += [combined(part(b, b + c), d, True) for b, c in zip(begin[many:], counts[many:])]
    return joining.concatenate(pieces, d) if pieces[1:] else pieces[0]


_FEW = 16


def _checked(ufunc: np.ufunc, indices: Any, array: Array, d: int) -> Any:
    """Return indices that are known, as an array of NumPy's."""
    n = constant(array.extents[d], f"np.{ufunc.__name__}.reduceat", "a dim of a known extent")
    begin = np.asarray(known.plain(indices), np.int64)
    if begin.ndim != 1 or np.any((begin < 0) | (begin >= n)):
        raise index_error("an index of reduceat is out of bounds", f"0 to {n - 1}", str(begin))
    return begin


_DECREASE = """reduceat: the indices decrease
  expected: indices that stay or increase, where only the run knows them
  try:      np.sort(indices)"""


def _segments(starts: Array, array: Array, d: int) -> Array:
    """Return which segment each place belongs to; -1: before the first."""
    holds = apply(np.less_equal, starts[:-1], starts[1:])
    expect(starts.context, holds.read(), _DECREASE)
    split = None if array.context.rank_view else (layout_of(array.read().type)[d] or None,)
    marks = zeros(array.shape[d], np.int64, split)  # of several that begin at a place, the last one
    gather = Gather(starts.context, (0,), 0, (starts.read(),))
    gather.write(marks, arange(1, starts.shape[0] + 1), "set")
    return as_array(accumulate(np.maximum, marks) - 1)


def _combined(fn: str, array: Array, d: int, segments: Array, count: Any) -> Array:
    """Combine the elements of each segment along a dim; segment -1 stands for none."""
    dtype = array.type.dtype
    shape = (*array.shape[:d], count, *array.shape[d + 1 :])
    result = full(shape, neutral_sign(fn, dtype), dtypes.numpy_dtype(dtype))
    Gather(array.context, (d,), d, (segments.read(),)).write(result, array, fn)
    return as_array(result)


# ---- at ------------------------------------------------------------------------------------------


def at(ufunc: np.ufunc, array: Any, key: Any, value: Any = None) -> None:
    """Assign array[key] = ufunc(array[key], value), once for each time that an element is named."""
    name = ufunc.__name__
    if not isinstance(array, Array):
        raise unsupported(f"np.{name}.at on a NumPy array", "an array of the program")
    operands = [array] if ufunc.nin == 1 else [array, value]
    result = loop_dtypes(ufunc, operands, None)[-1]
    shaping.check_casting(result, array.type.dtype)
    if ufunc is np.subtract:
        combine_at(array, key, -as_array(value), "add")
    elif name in _ROW and (not name.startswith("logical") or array.type.dtype.kind == "b"):
        combine_at(array, key, value, _combining(ufunc, array, None)[0])
    elif _may_repeat(key, array.extents):
        _one_by_one(ufunc, array, key, value)
    else:
        old = get(array, key)
        set_(array, key, apply(ufunc, old, *operands[1:]))


def _may_repeat(key: Any, extents: tuple[expr.Expr, ...]) -> bool:
    """Return whether integer arrays name an element twice, as far as is known."""
    items = known.plain(key) if isinstance(key, tuple) else (known.plain(key),)
    many = [(d, k) for d, k in enumerate(items) if isinstance(k, list) or (
        isinstance(k, (np.ndarray, Array)) and k.ndim and not is_mask(k))]
    if not many or any(is_traced(k) for _, k in many):
        return bool(many)
    if any(k is ... or k is None for k in items) or not all(extents[d].is_const for d, _ in many):
        return True
    wide = np.broadcast_arrays(*(np.asarray(k) % extents[d].value for d, k in many))
    places = np.stack([w.ravel() for w in wide])
    return bool(np.unique(places, axis=1).shape[1] < places.shape[1])
