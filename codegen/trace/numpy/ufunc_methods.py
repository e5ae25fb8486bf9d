"""Methods of ufuncs: reduce, accumulate, reduceat, outer, at.

Ufuncs that combine in any order, with a row of COMBINE, have all of them, on split dims too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.functions import COMBINE, FUNCTIONS, neutral
from codegen.ops import Cumulative
from codegen.ops.kind import layout_of
from codegen.symbolic import expr
from codegen.trace import known
from codegen.trace.array import Array, as_array, constant, is_traced, unsupported, wrap
from codegen.trace.expecting import expect
from codegen.trace.numpy import reducing, shaping
from codegen.trace.numpy.creation import arange, full, zeros
from codegen.trace.numpy.elementwise import apply, loop_dtypes, select, store
from codegen.trace.numpy.index import Gather, combine_at, get, set_
from codegen.trace.numpy.masks import is_mask
from codegen.trace.numpy.reducing import along, dim_of
from codegen.trace.numpy.subscripts import index_error

_LOOP = "a loop: for k in spmd.range(1, n): t = f(t, x[k])"
_ROW = {FUNCTIONS[scalar].ufunc: fn for fn, scalar in COMBINE.items()}
_SUMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (reducing.sum_, reducing.cumsum), "multiply": (reducing.prod, reducing.cumprod),
}


def _combining(ufunc: np.ufunc, method: str, x: Any, dtype: Any) -> tuple[str, Array, DType]:
    """The row of COMBINE; x, and the type that NumPy's loop combines it in."""
    name = ufunc.__name__
    if name not in _ROW:
        raise unsupported(f"np.{name}.{method}", _LOOP)
    array = as_array(x)
    kind = loop_dtypes(ufunc, [array] * 2, dtype)[-1]
    if name in _SUMS:
        kind = reducing.sum_dtype(array, dtype)
    fn = _ROW[name]
    return fn[1:] if fn in ("fmin", "fmax") and kind.kind not in "fc" else fn, array, kind


def reduce(ufunc: np.ufunc, x: Any, axis: Any = 0, dtype: Any = None, out: Any = None,
           keepdims: Any = False, initial: Any = None, where: Any = True) -> Any:
    name, what = ufunc.__name__, f"np.{ufunc.__name__}.reduce"
    if name in _SUMS:
        return _SUMS[name][0](x, axis, dtype, out, keepdims, initial, where)
    if name == "subtract" and initial is None and where is True and as_array(x).ndim:
        array = as_array(x)
        d = dim_of(axis, array.ndim, what)
        return reduce(np.add, _but_first_negative(array, d), d, array.dtype, out, keepdims)
    fn, array, kind = _combining(ufunc, "reduce", x, dtype)
    if fn == "lcm":
        axis = dim_of(axis, array.ndim, what)  # as NumPy: along one dim
        if array.extents[axis] == 1:
            return store(array.copy() if keepdims else shaping.squeeze(array, axis).copy(), out)
    return reducing.reduce(fn, what, array, axis, kind, out, keepdims, initial, where)


def _but_first_negative(array: Array, d: int) -> Array:
    """What is to be added where the first of a dim is what the others are subtracted from."""
    made, rest = as_array(array.copy()), (*[slice(None)] * d, slice(1, None))
    made[rest] = -made[rest]
    return made


def accumulate(ufunc: np.ufunc, x: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
    name = ufunc.__name__
    if name in _SUMS:
        return _SUMS[name][1](x, axis, dtype, out)
    array = as_array(x)
    d = dim_of(axis, array.ndim, f"np.{name}.accumulate")
    if name == "subtract":
        return accumulate(np.add, _but_first_negative(array, d), d, array.dtype, out)
    fn, array, kind = _combining(ufunc, "accumulate", x, dtype)
    array = as_array(array, kind)
    made = wrap(array.context, array.context.emit_one(Cumulative(fn, d), array.read()))
    if fn in ("gcd", "lcm", "hypot"):  # of one element alone they are its size
        first = (*[slice(None)] * d, slice(0, 1))
        made = made.copy()
        made[first] = array[first]
    return store(made, out)


def outer(ufunc: np.ufunc, x: Any, y: Any, **options: Any) -> Any:
    a, b = as_array(x), as_array(y)
    return apply(ufunc, a.reshape((*a.shape, *[1] * b.ndim)), b, **options)


# ---- parts of a dim ------------------------------------------------------------------------------


def reduceat(ufunc: np.ufunc, x: Any, indices: Any, axis: Any = 0, dtype: Any = None,
             out: Any = None) -> Any:
    """What stands from indices[i] up to indices[i + 1] combined; where that is nothing, the element
    at indices[i]. Indices that only the run knows must not decrease."""
    fn, array, kind = _combining(ufunc, "reduceat", x, dtype)
    d = dim_of(axis, array.ndim, f"np.{ufunc.__name__}.reduceat")
    array = as_array(array, kind)
    if is_traced(indices):
        at = as_array(indices, dtypes.INT64)
        made = _combined(fn, array, d, _segments(at, array, d), at.shape[0])
        ends = at[:-1] == at[1:]
        alone = zeros(at.shape[0], bool)
        alone[:-1] = ends
        alone = alone.reshape((at.shape[0], *[1] * (array.ndim - 1 - d)))
        return store(as_array(select(alone, along(array, d, at), made), kind), out)
    n = constant(array.extents[d], f"np.{ufunc.__name__}.reduceat", "a dim of a known extent")
    begin = np.asarray(known.plain(indices), np.int64)
    if begin.ndim != 1 or np.any((begin < 0) | (begin >= n)):
        raise index_error("an index of reduceat is out of bounds", f"0 to {n - 1}", str(begin))
    counts = np.maximum(np.append(begin[1:], n) - begin, 1) if begin.size else begin
    segments = np.repeat(np.arange(len(begin)), counts)
    places = np.repeat(begin, counts) + np.arange(len(segments)) - np.repeat(
        np.cumsum(counts) - counts, counts)
    picked = array if np.array_equal(places, np.arange(n)) else along(array, d, places)
    return store(_combined(fn, picked, d, as_array(segments), len(begin)), out)


_DECREASE = """reduceat: the indices decrease
  expected: indices that stay or increase, where only the run knows them
  try:      np.sort(indices)"""


def _segments(at: Array, array: Array, d: int) -> Array:
    """Which segment each place belongs to; -1: before the first."""
    holds = apply(np.less_equal, at[:-1], at[1:])
    expect(at.context, holds.read(), _DECREASE)
    split = None if array.context.rank_view else (layout_of(array.read().type)[d] or None,)
    marks = zeros(array.shape[d], np.int64, split)  # of several that begin at a place, the last one
    Gather(at.context, (0,), 0, (at.read(),)).write(marks, arange(1, at.shape[0] + 1), "set")
    return as_array(accumulate(np.maximum, marks) - 1)


def _combined(fn: str, array: Array, d: int, segments: Array, count: Any) -> Array:
    """What belongs to each segment of a dim, combined; -1 belongs to none."""
    kind = array.type.dtype
    shape = (*array.shape[:d], count, *array.shape[d + 1 :])
    made = full(shape, neutral(fn, kind), dtypes.numpy_dtype(kind))
    Gather(array.context, (d,), d, (segments.read(),)).write(made, array, fn)
    return as_array(made)


# ---- at ------------------------------------------------------------------------------------------


def at(ufunc: np.ufunc, array: Any, key: Any, value: Any = None) -> None:
    """array[key] = ufunc(array[key], value), once for each time that an element is named."""
    name = ufunc.__name__
    if not isinstance(array, Array):
        raise unsupported(f"np.{name}.at on a NumPy array", "an array of the program")
    given = [array] if ufunc.nin == 1 else [array, value]
    result = loop_dtypes(ufunc, given, None)[-1]
    shaping.check_casting(result, array.type.dtype)
    if ufunc is np.subtract:
        combine_at(array, key, -as_array(value), "add")
    elif name in _ROW and (not name.startswith("logical") or array.type.dtype.kind == "b"):
        combine_at(array, key, value, _combining(ufunc, "at", array, None)[0])
    elif _may_repeat(key, array.extents):
        raise unsupported(f"np.{name}.at, where an index may come twice,",
                          "np.add.at and others that combine in any order; or "
                          "x[k] = f(x[k]) where each comes once")
    else:
        old = get(array, key)
        set_(array, key, apply(ufunc, old, *given[1:]))


def _may_repeat(key: Any, extents: tuple[expr.Expr, ...]) -> bool:
    """Whether integer arrays name an element twice, as far as is known."""
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
