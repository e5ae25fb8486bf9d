"""Reductions, running sums, positions of extremes; dtypes as NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import DtypeError, ShapeError
from codegen.functions import COMBINE, FUNCTIONS, neutral
from codegen.ops import ArgReduce, Cumulative, Reduce
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, number, unsupported, wrap
from codegen.trace.constants import broadcast_value
from codegen.trace.expecting import at_least
from codegen.trace.number import expr_of
from codegen.trace.numpy.elementwise import (
    apply,
    mapped,
    result_type,
    select,
    shape_text,
    store,
)
from codegen.trace.numpy.operators import operate
from codegen.user.numbers import element_type


def dims_of(axis: Any, ndim: int, function: str) -> tuple[int, ...]:
    """Return NumPy's axis argument as dims."""
    if axis is None:
        return tuple(range(ndim))
    items = axis if isinstance(axis, (tuple, list)) else (axis,)
    out = []
    for item in items:
        e = expr_of(item)
        if e is None or not e.is_const or not -ndim <= e.value < ndim:
            raise ShapeError(f"{function}: axis {item!r} is out of bounds for an array of {ndim} "
                             "dims",
                             expected=f"a dim from {-ndim} to {ndim - 1}" if ndim else "no axis",
                             found=repr(item))
        out.append(e.value % ndim)
    if len(set(out)) != len(out):
        raise ShapeError(f"{function}: duplicate value in axis", expected="each dim once",
                         found=str(axis))
    return tuple(out)


def dim_of(axis: Any, ndim: int, function: str) -> int:
    """Return the dim of NumPy's axis argument where it is one number."""
    if isinstance(axis, (tuple, list)):
        raise ShapeError(f"{function}: one axis is an integer",
                         expected=f"a dim from {-ndim} to {ndim - 1}", found=str(axis))
    return dims_of(axis, ndim, function)[0]


def _finish(array: Array, value: Any, dims: tuple[int, ...], keepdims: bool, out: Any) -> Any:
    result = wrap(array.context, value)
    if keepdims:
        unit = expr.const(1)
        shape = tuple(unit if d in dims else e for d, e in enumerate(array.extents))
        result = result.reshape(tuple(number(e) for e in shape))
    return store(result, out)


def reduce(
    fn: str, function: str, x: Any, axis: Any = None, dtype: DType | None = None, out: Any = None,
    keepdims: Any = False, initial: Any = None, where: Any = True,
) -> Any:
    """Return COMBINE[fn] over dims; with where=, elements outside the mask do not count."""
    array = as_array(x)
    dims = dims_of(axis, array.ndim, function)
    element = dtype or array.type.dtype
    array = as_array(array, element)
    if where is not True:
        # initial counts once; for min and max it may stand for every element left out
        once = initial is None or fn not in ("min", "max")
        start = neutral(fn, element) if once else initial
        array = as_array(select(where, array, as_array(start, element)), element)
    value = array.read()
    empty = any(array.extents[d] == 0 for d in dims)
    identity = initial is not None or fn not in ("min", "max", "fmin", "fmax", "lcm")
    if not identity:
        at_least(1, expr.product(array.extents[d] for d in dims), function)
    if empty and not identity:
        raise ShapeError(f"{function}: zero-size array to a reduction which has no identity",
                         expected="at least one element along the reduced dims",
                         found=shape_text(array.extents))
    if dims:
        value = array.context.emit_one(Reduce(fn=fn, dims=tuple(sorted(dims))), value)
    result = _finish(array, value, dims, keepdims, None)
    if initial is not None:
        combine = FUNCTIONS[COMBINE[fn]].ufunc
        result = apply(getattr(np, combine), result, as_array(initial, element))
    return store(result, out)


def sum_dtype(x: Any, dtype: Any) -> DType:
    """Return the type in which NumPy sums: int64 or uint64 for bools and small integers."""
    if dtype is not None:
        return element_type(dtype)
    element = as_array(x).type.dtype
    if element.kind in "bi":
        return dtypes.INT64
    return dtypes.BY_NAME["uint64"] if element.kind == "u" else element


def _summing(fn: str, function: str) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False,
             initial: Any = None, where: Any = True) -> Any:
        return reduce(fn, function, x, axis, sum_dtype(x, dtype), out, keepdims, initial, where)

    return call


def _extreme(fn: str, function: str) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None,
             where: Any = True) -> Any:
        return reduce(fn, function, x, axis, None, out, keepdims, initial, where)

    return call


def _of_truths(fn: str, function: str) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, out: Any = None, keepdims: Any = False, *,
             where: Any = True, initial: Any = None) -> Any:
        flags = as_array(x, dtypes.BOOL)
        return reduce(fn, function, flags, axis, None, out, keepdims, initial, where)

    return call


sum_, prod = _summing("add", "np.sum"), _summing("mul", "np.prod")
min_, max_ = _extreme("min", "np.min"), _extreme("max", "np.max")
any_, all_ = _of_truths("or", "np.any"), _of_truths("and", "np.all")


def no_complex(x: Any, function: str) -> Array:
    """Return x as an array. Raises UnsupportedError, which names the function, for complex
    numbers."""
    array = as_array(x)
    if array.type.dtype.kind == "c":
        raise unsupported(f"{function} of complex numbers", "np.abs(x) or x.real")
    return array


def count_nonzero(x: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    return sum_(as_array(x, dtypes.BOOL), axis, keepdims=keepdims)


def stretched(x: Array, like: Array) -> Array:
    """Return x broadcast to the shape of another array."""
    return wrap(x.context, broadcast_value(x.context, x.read(), like.extents))


def _count(array: Array, axis: Any, keepdims: Any, where: Any) -> Any:
    """Return how many elements each result is made of."""
    if where is True:
        dims = dims_of(axis, array.ndim, "np.mean")
        return number(expr.product(array.extents[d] for d in dims))
    return sum_(stretched(as_array(where, dtypes.BOOL), array), axis, keepdims=keepdims)


def _summed_in(element: DType, dtype: Any) -> DType:
    """Return the type in which NumPy sums elements for a mean: float64 for integers, float32 for
    half types."""
    if dtype is not None:
        return element_type(dtype)
    if element.kind in "biu":
        return dtypes.FLOAT64
    return dtypes.FLOAT32 if element.size == 2 else element


def mean(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *,
         where: Any = True) -> Any:
    array = as_array(x)
    element = array.type.dtype
    wide = _summed_in(element, dtype)
    total = reduce("add", "np.mean", array, axis, wide, None, keepdims, None, where)
    result = apply(np.divide, total, _count(array, axis, keepdims, where))
    if dtype is not None or element.kind in "fc":
        result = as_array(result, element if dtype is None else wide)
    return store(result, out)


def in_floats(function: str, array: Array, dtype: Any, real: bool = False) -> None:
    """Raise a DtypeError for a dtype= in which no mean, or no distance from it, can be computed.

    real: floats are enough for complex numbers too, of which they are the real parts.
    """
    if dtype is None:
        return
    kinds = "c" if array.type.dtype.kind == "c" and not real else "fc"
    element = element_type(dtype)
    if element.kind not in kinds:
        numbers = "complex numbers" if kinds == "c" else "floats or complex numbers"
        raise DtypeError(f"{function} cannot be computed in {element.name}",
                         expected=f"a dtype of {numbers}", found=element.name,
                         remedy=f"{function}(x).astype({element.name!r})")


def var(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
        keepdims: Any = False, *, correction: Any = None, where: Any = True,
        mean: Any = None) -> Any:
    """Return the mean of squared distances from the mean, with `ddof` fewer in the divisor."""
    array = as_array(x)
    dims_of(axis, array.ndim, "np.var")  # refused under this name, not as a mean
    in_floats("np.var", array, dtype)
    ddof = ddof if correction is None else correction
    element = array.type.dtype
    wide = _summed_in(element, dtype)
    array = as_array(array, wide)
    centre = _mean(array, axis, keepdims=True, where=where) if mean is None else mean
    distance = apply(np.subtract, array, centre)
    if where is not True:
        distance = select(where, distance, 0.0)  # what is left out may be NaN
    squares = reduce("add", "np.var", squares_of(distance), axis, None, None, keepdims, None,
                     where)
    count = _count(array, axis, keepdims, where)
    if ddof:
        count = operate(np.maximum, operate(np.subtract, count, ddof), 0)
    result = apply(np.divide, squares, count)
    if element.kind in "fc" or wide.kind == "c":
        own = squares.type.dtype if element.kind == "c" else element
        result = as_array(result, wide if dtype is not None else own)
    return store(result, out)


def squares_of(x: Array) -> Array:
    """Return the squared size of each element, which has a second derivative at 0 as the size has
    not."""
    if x.type.dtype.kind != "c":
        return as_array(apply(np.multiply, x, x))
    parts = [as_array(mapped(fn, x)) for fn in ("real", "imag")]
    return as_array(apply(np.add, *(apply(np.multiply, p, p) for p in parts)))


_mean = mean  # which var's argument of that name hides


def std(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
        keepdims: Any = False, **more: Any) -> Any:
    in_floats("np.std", as_array(x), dtype)
    return store(apply(np.sqrt, var(x, axis, dtype, None, ddof, keepdims, **more)), out)


def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, *,
            keepdims: Any = False) -> Any:
    if weights is None:
        result = mean(x, axis, keepdims=keepdims)
        return (result, stretched(as_array(_count(as_array(x), axis, keepdims, True), result.dtype),
                                result)) if returned else result
    array, weights = as_array(x), as_array(weights)
    if weights.is_known and not np.all(np.sum(weights.known, None if axis is None else axis
                                              if weights.ndim == array.ndim else None)):
        raise ShapeError("np.average: the weights sum to zero",
                         expected="a sum that is not zero: NumPy raises ZeroDivisionError",
                         found=str(weights.known)[:60])
    if weights.ndim != array.ndim and isinstance(axis, int):
        shape = [1] * array.ndim
        shape[axis] = weights.shape[0]
        weights = weights.reshape(tuple(shape))
    dtype = _average_type(array, weights)
    wide = apply(np.multiply, as_array(array, dtype), as_array(weights, dtype))
    total = sum_(stretched(weights, array), axis, dtype, keepdims=keepdims)
    result = apply(np.divide, sum_(wide, axis, keepdims=keepdims), total)
    return (result, total) if returned else result


def _average_type(array: Array, weights: Array) -> DType:
    """Return the type in which NumPy computes a weighted average: at least float64 where it
    averages integers."""
    least = [np.float64(0)] if array.type.dtype.kind in "biu" else []
    return result_type(array, weights, *least)


# ---- positions, running totals, order --------------------------------------------------------


def flat_or(x: Any, axis: Any, function: str) -> tuple[Array, int]:
    """Return an array and the dim that axis names; for None, the raveled array and 0."""
    array = as_array(x)
    if axis is None:
        return array.ravel(), 0
    return array, dim_of(axis, array.ndim, function)


def lanes(x: Any, axis: Any, function: str) -> tuple[Array, int, tuple[Any, ...]]:
    """Return an array in which the dims of `axis` are joined to one; that dim; the shape of a
    result with keepdims."""
    array = as_array(x)
    dims = dims_of(axis, array.ndim, function)
    wide = tuple(1 if d in dims else n for d, n in enumerate(array.shape))
    if len(dims) == 1:
        return array, dims[0], wide
    if axis is None:
        return array.ravel(), 0, wide
    kept = [d for d in range(array.ndim) if d not in dims]
    joined = number(expr.product(array.extents[d] for d in dims))
    together = array.transpose((*kept, *dims))
    shape = (*[array.shape[d] for d in kept], joined)
    return together.reshape(shape), len(kept), wide


def _arg(fn: str) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        function = f"np.arg{fn}"
        array, d = flat_or(x, axis, function)
        if array.ndim == 0:
            array = array.reshape(1)
        if array.extents[d] == 0 and not any(e == 0 for k, e in enumerate(array.extents) if k != d):
            raise ShapeError(f"{function}: attempt to get arg{fn} of an empty sequence",
                             expected="at least one element along the axis",
                             found=shape_text(array.extents))
        at_least(1, array.extents[d], function)
        value = array.context.emit_one(ArgReduce(fn, d), array.read())
        if axis is None and keepdims:
            position = wrap(array.context, value).reshape((1,) * as_array(x).ndim)
            return store(position, out)
        return _finish(array, value, (d,), keepdims, out)

    return call


argmin, argmax = _arg("min"), _arg("max")


def _cumulative(fn: str, function: str) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        element = sum_dtype(x, dtype)
        array, d = flat_or(as_array(x, element), axis, function)
        if array.ndim == 0:
            array = array.reshape(1)
        wide = as_array(array, dtypes.folded_in(element))
        value = array.context.emit_one(Cumulative(fn=fn, dim=d), wide.read())
        return store(as_array(wrap(array.context, value), element), out)

    return call


cumsum, cumprod = _cumulative("add", "np.cumsum"), _cumulative("mul", "np.cumprod")


def floats(array: Array) -> Array:
    """Return integers as float64; others as they are."""
    return as_array(array, dtypes.FLOAT64) if array.type.dtype.kind in "biu" else array


def along(array: Array, d: int, key: Any) -> Array:
    """Return array[:, …, key], where the key stands in dim d."""
    got: Array = array[(*[slice(None)] * d, key)]
    return got


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    array = as_array(y)
    d = dims_of(axis, array.ndim, "np.trapezoid")[0]
    head, tail = slice(None, -1), slice(1, None)
    if x is not None:
        x = as_array(x)
        dx = x[1:] - x[:-1] if x.ndim == 1 else along(x, d, tail) - along(x, d, head)
        if x.ndim == 1:
            dx = dx.reshape((*dx.shape, *[1] * (array.ndim - 1 - d)))
    return sum_((along(array, d, tail) + along(array, d, head)) * dx * 0.5, axis=d)
