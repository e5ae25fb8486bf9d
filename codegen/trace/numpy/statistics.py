"""Statistics and differences: quantiles, covariances, gradients, NaN left out.

Composed of the other functions; dtypes and formulas are NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import ShapeError
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, is_traced, unsupported
from codegen.trace.expecting import at_least, expect
from codegen.trace.numpy import creation, joining, ordering, picking, products, reducing, shaping
from codegen.trace.numpy.creation import zeros_like
from codegen.trace.numpy.elementwise import apply, result_type, select, store
from codegen.trace.numpy.operators import operate

# ---- order ---------------------------------------------------------------------------------------


# Of a sample of n, where a quantile stands: n * q + alpha + q * (1 - alpha - beta) - 1 (Hyndman
# and Fan, Sample Quantiles in Statistical Packages).
_PLOTTING_POSITIONS = {
    "interpolated_inverted_cdf": (0, 1), "hazen": (0.5, 0.5), "weibull": (0, 0),
    "median_unbiased": (1 / 3.0, 1 / 3.0), "normal_unbiased": (3 / 8.0, 3 / 8.0),
}


def _rounded(index: Any, stays: Callable[[Any, Any], Any]) -> Any:
    down = np.floor(index)
    return np.maximum(np.where(stays(index - down, down), down, down + 1), 0)


# By method: the place of the one element that is the quantile, where none is interpolated.
_SINGLE_ELEMENT: dict[str, Callable[[Any, float], Any]] = {
    "inverted_cdf": lambda n, q: _rounded(n * q - 1, lambda gap, down: gap == 0),
    "closest_observation": lambda n, q: _rounded(
        n * q - 1 - 0.5, lambda gap, down: (gap == 0) & (down % 2 == 1)),
    "lower": lambda n, q: np.floor((n - 1) * q),
    "higher": lambda n, q: np.ceil((n - 1) * q),
    "nearest": lambda n, q: np.round((n - 1) * q),
}


def _neighbors(n: Any, q: float, method: str) -> tuple[Any, Any, Any]:
    """Return the places of the two elements beside a quantile, and the weight of the second one. n:
    a number, or an array of them."""
    if method in _SINGLE_ELEMENT:
        place = _SINGLE_ELEMENT[method](n, q)
        return place, place, None
    if method == "averaged_inverted_cdf":
        place = n * q - 1
    elif method == "midpoint":
        place = 0.5 * (np.floor((n - 1) * q) + np.ceil((n - 1) * q))
    elif method == "linear":
        place = (n - 1) * q
    else:
        alpha, beta = _PLOTTING_POSITIONS[method]
        place = n * q + (alpha + q * (1 - alpha - beta)) - 1
    down = np.floor(place)
    weight = place - down
    if method == "averaged_inverted_cdf":
        weight = np.where(weight == 0, 0.5, 1.0)
    elif method == "midpoint":
        weight = np.where(place % 1 == 0, 0.0, 0.5)
    return (*(np.minimum(np.maximum(k, 0), n - 1) for k in (down, down + 1)), weight)


def _quantiles(function: str, x: Any, q: Any, axis: Any, out: Any, method: str, keepdims: Any,
               counts: bool, other: Any) -> Any:
    """Return quantiles along an axis. counts: NaN are left out, so only the run knows how many
    numbers there are."""
    _check_quantile(function, q, method, other)
    if other.get("weights") is not None:
        return _weighted(function, x, q, axis, out, keepdims, counts, other["weights"])
    reducing.no_complex(x, function)
    array, d, wide = reducing.lanes(x, axis, function)
    kind = array.type.dtype.kind
    if method not in _SINGLE_ELEMENT and (
            kind == "b" or (kind == "f" and np.ndim(q) and not counts)):
        array = as_array(array, dtypes.FLOAT64)  # an array of q is one of float64
    dtype, extent = array.type.dtype, array.extents[d]
    if dtype.kind in "iu" and (extent == 0 or method not in _SINGLE_ELEMENT):
        dtype = dtypes.FLOAT64
    if extent == 0:
        n: Any = 1.0  # NaN is what there is
        array = creation.full((*array.shape[:d], 1, *array.shape[d + 1 :]), np.nan, dtype)
    elif counts:
        n = as_array(_numbers_along(array, d), np.float64)
    else:
        n = float(extent.value) if extent.is_const else as_array(array.shape[d], np.float64)
    pairs = [_neighbors(n, float(p), method) for p in np.ravel(q)]
    pair_places = [k for first, second, _ in pairs for k in (first, second)]
    known = not isinstance(n, Array)
    places: Any = sorted({int(k) for k in pair_places}) if known else _stacked(pair_places)
    elements = ordering.order_statistics(array, d, places)
    lacks = np.equal(n, 0) if counts else _nan_along(array, d)

    def quantile_at(k: int) -> Array:
        low, high = (elements[..., places.index(int(pair_places[j])) if known else j]
                     for j in (2 * k, 2 * k + 1))
        t = pairs[k][2]
        if t is not None:
            step = high - low
            if known:
                t = float(t)
                low = low + step * t if t < 0.5 else high - step * (1 - t)
            else:
                t = as_array(t, dtype)
                low = select(t < 0.5, low + step * t, high - step * (1 - t))
        value = low if lacks is None else select(lacks, np.nan, low)
        value = as_array(value, dtype)
        return value.reshape(wide) if keepdims else value

    if np.ndim(q) == 0:
        result = quantile_at(0)
    else:
        result = joining.stack([quantile_at(k) for k in range(len(pairs))])
        result = result.reshape((*np.shape(q), *result.shape[1:]))
    return store(result if result.ndim else result[()], out)


def _weighted(function: str, x: Any, q: Any, axis: Any, out: Any, keepdims: Any, counts: bool,
              weights: Any) -> Any:
    """Return the first sorted element up to which there is a share q of all weights."""
    reducing.no_complex(x, function)
    whole, lane_weights = as_array(x), as_array(weights, np.float64)
    if lane_weights.ndim != whole.ndim:
        dims = reducing.dims_of(axis, whole.ndim, function)
        if axis is None or lane_weights.shape != tuple(whole.shape[d] for d in dims):
            raise ShapeError(f"{function}: the weights have another shape than the elements",
                             expected=str(whole.shape), found=str(lane_weights.shape))
        lane_weights = lane_weights.transpose(tuple(np.argsort(dims))).reshape(
            tuple(n if d in dims else 1 for d, n in enumerate(whole.shape)))
    if counts:
        lane_weights = select(apply(np.isnan, whole), 0.0, lane_weights)
    array, d, wide = reducing.lanes(whole, axis, function)
    lane_weights, _, _ = reducing.lanes(reducing.stretched(lane_weights, whole), axis, function)
    share = reducing.cumsum(picking.take_along_axis(lane_weights, ordering.argsort(array, d), d), d)
    total = reducing.along(share, d, slice(-1, None))
    expect(array.context, (apply(np.isfinite, total) & (total != 0)).read(),
           f"{function}: Weights included NaN, inf or were all zero.")
    expect(array.context, (lane_weights >= 0).read(), f"{function}: Weights must be non-negative.")
    dtype = array.type.dtype
    share = as_array(share / total, dtype if dtype.kind == "f" and not np.ndim(q) else np.float64)
    share = select(share == 0, -1, share)
    ordered, most = ordering.sort(array, d), array.shape[d] - 1

    def quantile_at(p: float) -> Array:
        below = as_array(reducing.sum_(share < p, axis=d, keepdims=True))
        place = apply(np.minimum, below, most)
        value = shaping.squeeze(picking.take_along_axis(ordered, place, d), d)
        lacks = None if counts else _nan_along(array, d)
        value = value if lacks is None else select(lacks, np.nan, value)
        return value.reshape(wide) if keepdims else value

    parts = [as_array(quantile_at(float(p)), dtype) for p in np.ravel(q)]
    result = parts[0] if not np.ndim(q) else joining.stack(parts).reshape(
        (*np.shape(q), *parts[0].shape))
    return store(result if result.ndim else result[()], out)


def _stacked(places: list[Any]) -> Array:
    stacked = joining.stack([as_array(k, np.int64) for k in places], -1)
    return as_array(apply(np.maximum, stacked, 0))


def _nan_along(array: Array, d: int) -> Any:
    """Return whether there is a NaN in each lane; None: there can be none."""
    if array.type.dtype.kind not in "fc":
        return None
    return reducing.any_(apply(np.isnan, array), d)


def _numbers_along(array: Array, d: int) -> Any:
    """Return how many elements of each lane are no NaN."""
    return reducing.sum_(apply(np.logical_not, apply(np.isnan, array)), d)


def quantile(x: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
             method: str = "linear", keepdims: Any = False, **other: Any) -> Any:
    """Return what `method` makes of the two sorted elements nearest to q; NaN where a lane has
    one."""
    return _quantiles("np.quantile", x, q, axis, out, method, keepdims, False, other)


def nanquantile(x: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
                method: str = "linear", keepdims: Any = False, **other: Any) -> Any:
    """Return np.quantile of the elements that are not NaN."""
    return _quantiles("np.nanquantile", x, q, axis, out, method, keepdims, True, other)


def _check_quantile(function: str, q: Any, method: str, other: Any) -> None:
    methods = ("linear", "midpoint", "averaged_inverted_cdf", *_PLOTTING_POSITIONS,
               *_SINGLE_ELEMENT)
    if method not in methods:
        raise unsupported(f"{function} with method={method!r}", f"one of {', '.join(methods)}")
    if unknown := sorted(other.keys() - {"weights"}):
        raise unsupported(f"{function} with {unknown[0]}=", "the call without it")
    if is_traced(q):
        raise unsupported(f"{function} with a q that depends on data",
                          "numbers as q; np.sort(x)[k]")
    if other.get("weights") is not None and method != "inverted_cdf":
        raise unsupported(f"{function} with weights and method={method!r}",
                          "method='inverted_cdf', the only one that NumPy has weights for")
    if not np.all((0 <= np.asarray(q)) & (np.asarray(q) <= 1)):
        raise unsupported(f"{function} with q={q!r}", "q from 0 to 1 (percentiles: 0 to 100)")


def median(x: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
           keepdims: Any = False) -> Any:
    """Return the middle of the sorted elements; NaN where there is one."""
    array, d, wide = reducing.lanes(x, axis, "np.median")
    n = array.shape[d]
    places = [(n - 1) // 2, n // 2]
    is_complex = array.type.dtype.kind == "c"  # NaN is the last one, if there is any
    places += [n - 1] * is_complex
    elements = reducing.floats(ordering.order_statistics(array, d, places))
    middle = _middle(elements, operate(np.remainder, n, 2) == 1)
    lacks = apply(np.isnan, elements[..., 2]) if is_complex else _nan_along(array, d)
    if array.extents[d] == 0:
        middle = select(True, np.nan, middle)
    elif lacks is not None:
        middle = select(lacks, elements[..., 2] if is_complex else np.nan, middle)
    return _shaped(middle, elements.type.dtype, wide if keepdims else None, out)


def nanmedian(x: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False,
              keepdims: Any = False) -> Any:
    """Return the median of the elements that are not NaN."""
    array, d, wide = reducing.lanes(x, axis, "np.nanmedian")
    n = as_array(_numbers_along(array, d))
    places = _stacked([(n - 1) // 2, n // 2])
    elements = reducing.floats(ordering.order_statistics(array, d, places))
    middle = select(n == 0, np.nan, _middle(elements, n % 2 == 1))
    return _shaped(middle, elements.type.dtype, wide if keepdims else None, out)


def _middle(pair: Array, single: Any) -> Any:
    """Return the mean of the two middle elements, or the middle one where it is `single`: its
    double may overflow. A mean of -0.0 is 0.0."""
    dtype = pair.type.dtype
    wide = as_array(pair, dtypes.FLOAT32 if dtype.size == 2 else dtype) + 0.0
    return select(single, wide[..., 0], (wide[..., 0] + wide[..., 1]) * 0.5)


def _shaped(values: Any, dtype: DType, wide: tuple[Any, ...] | None, out: Any) -> Any:
    array = as_array(values, dtype)
    if wide is not None:
        array = array.reshape(wide)
    return store(array if array.ndim else array[()], out)


# ---- variances ---------------------------------------------------------------------------------


def cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None,
        fweights: Any = None, aweights: Any = None, *, dtype: Any = None) -> Any:
    """Return covariances of variables in rows, or in columns where rowvar is false."""
    parts = []
    for variables in (m,) if y is None else (m, y):
        rows = shaping.atleast_2d(variables)
        parts.append(rows if rowvar or as_array(variables).ndim == 1 else rows.T)
    x = joining.concatenate(parts, 0) if len(parts) > 1 else parts[0]
    x = as_array(x, result_type(x, np.float64(0)) if dtype is None else dtype)
    less = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        x = x - reducing.mean(x, 1, keepdims=True)
        count = operate(np.maximum, x.shape[1] - less, 0)
        covariances = apply(np.divide, products.matmul(x, products.conjugate(x).T), count)
        return shaping.squeeze(covariances)
    weight_arrays = [as_array(w, np.float64) for w in (fweights, aweights) if w is not None]
    weights = math.prod(weight_arrays[1:], start=weight_arrays[0])
    x = x - reducing.average(x, 1, weights, keepdims=True)
    total = reducing.sum_(weights)
    lost = reducing.sum_(weights * weight_arrays[-1]) / total if aweights is not None else 1.0
    rows = products.conjugate(x * weights)
    return shaping.squeeze(apply(np.divide, products.matmul(x, rows.T), total - less * lost))


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    size = apply(np.sqrt, shaping.diagonal(c).real)
    return picking.clip(c / size[:, None] / size[None, :], -1, 1)


# ---- differences ---------------------------------------------------------------------------------


def gradient(f: Any, *spacing: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return central differences, one-sided ones at the ends; spacing: numbers, or places along a
    dim."""
    array = as_array(f)
    array = reducing.floats(array)
    dims = reducing.dims_of(axis, array.ndim, "np.gradient")
    steps = spacing if len(spacing) > 1 else (spacing or (1.0,)) * len(dims)
    for d in dims:
        at_least(edge_order + 1, array.extents[d], "np.gradient")
    if edge_order not in (1, 2) or any(
        expr.nonneg(edge_order - array.extents[d]) for d in dims
    ):
        raise ShapeError("np.gradient needs more elements along a dim than its edge_order",
                         expected="edge_order 1 or 2, and that many elements and one more",
                         found=f"edge_order={edge_order}, {array.type}")
    out = tuple(_slope(array, step, d, edge_order) for step, d in zip(steps, dims, strict=True))
    return out[0] if len(out) == 1 else out


def _slope(f: Array, step: Any, d: int, order: int) -> Array:
    def part(start: Any, stop: Any) -> tuple[Any, ...]:
        return (*[slice(None)] * d, slice(start, stop))

    slopes = zeros_like(f)
    inner, first, last = part(1, -1), part(0, 1), part(-1, None)
    if not (isinstance(step, Array) and step.ndim) and np.ndim(step) == 0:
        slopes[inner] = (f[part(2, None)] - f[part(None, -2)]) / (operate(np.multiply, step, 2.0))
        begin, end = (step, step), (step, step)
    else:
        gaps = picking.diff(as_array(step, np.float64))
        gaps = gaps.reshape((gaps.shape[0], *[1] * (f.ndim - 1 - d)))
        before, after = gaps[:-1], gaps[1:]
        slopes[inner] = (
            f[part(None, -2)] * (-after / (before * (before + after)))
            + f[inner] * ((after - before) / (before * after))
            + f[part(2, None)] * (before / (after * (before + after)))
        )
        begin, end = (gaps[:1], gaps[1:2]), (gaps[-1:], gaps[-2:-1])
    second, before_last = f[part(1, 2)], f[part(-2, -1)]
    if order == 1:
        left, right = (second - f[first]) / begin[0], (f[last] - before_last) / end[0]
        slopes[first], slopes[last] = left, right
    else:
        slopes[first] = _edge_slope(f[first], second, f[part(2, 3)], *begin)
        slopes[last] = -_edge_slope(f[last], before_last, f[part(-3, -2)], *end)
    return slopes


def _edge_slope(f0: Array, f1: Array, f2: Array, a: Any, b: Any) -> Array:
    """Return the slope at the first of three places, of which the second is a away, and the third b
    from it."""
    return as_array(f0 * (-(2 * a + b) / (a * (a + b))) + f1 * ((a + b) / (a * b))
                    - f2 * (a / (b * (a + b))))


def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * np.pi) -> Any:
    """Replace steps of more than half a period by their complements."""
    array = as_array(p)
    d = reducing.dim_of(axis, array.ndim, "np.unwrap")
    steps = picking.diff(array, axis=d)
    dtype = result_type(steps, period)
    half = period // 2 if dtype.kind in "iu" else period / 2
    wrapped_steps = apply(np.remainder, steps + half, period) - half
    if dtype.kind not in "iu" or period % 2 == 0:
        wrapped_steps = select((wrapped_steps == -half) & (steps > 0), half, wrapped_steps)
    small = apply(np.less, apply(np.absolute, steps), period / 2 if discont is None else discont)
    moved = reducing.cumsum(select(small, 0, wrapped_steps - steps), d)
    unwrapped = as_array(array, dtype).copy()
    rest = (*[slice(None)] * d, slice(1, None))
    unwrapped[rest] = array[rest] + moved
    return unwrapped


def ediff1d(x: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    steps = picking.diff(shaping.ravel(x))
    parts = [to_begin, steps, to_end]
    kept = [shaping.ravel(as_array(p, steps.type.dtype)) for p in parts if p is not None]
    return joining.concatenate(kept)


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1,
          axis: Any = None) -> Any:
    """Return the cross product of vectors with three components; where two are given, the third is
    0."""
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    p, q = shaping.moveaxis(a, axisa, -1), shaping.moveaxis(b, axisb, -1)
    if any(v.extents[-1] not in (2, 3) for v in (p, q)):
        raise ShapeError("np.cross takes vectors of two or three components",
                         expected="2 or 3 elements along the axis",
                         found=f"{p.type} and {q.type}")
    if p.extents[-1] == q.extents[-1] == 2:
        return apply(np.subtract, p[..., 0] * q[..., 1], p[..., 1] * q[..., 0])
    p, q = (v if v.extents[-1] == 3 else joining.concatenate(
        [v, zeros_like(v[..., :1])], -1) for v in (p, q))
    components = [
        p[..., i] * q[..., j] - p[..., j] * q[..., i] for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    return joining.stack([as_array(x) for x in components], axisc)


# ---- NaN left out --------------------------------------------------------------------------------


def _without_nan(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, *args: Any, **options: Any) -> Any:
        array = as_array(x)
        if array.type.dtype.kind not in "fc":
            return reduce(array, axis, *args, **options)
        number = apply(np.logical_not, apply(np.isnan, array))
        if (where := options.pop("where", True)) is not True:
            number = apply(np.logical_and, number, where)
        return reduce(array, axis, *args, **options, where=number)

    return call


def _extreme_number(fn: str) -> Callable[..., Any]:
    """Return np.nanmax or np.nanmin, which gives NaN only where there is nothing else."""

    def call(x: Any, axis: Any = None, out: Any = None, keepdims: Any = False,
             initial: Any = None, where: Any = True) -> Any:
        fits = as_array(x).type.dtype.kind in "fc"
        return reducing.reduce(fn if fits else fn[1:], f"np.nan{fn[1:]}", x, axis, None, out,
                               keepdims, initial, where)

    return call


nansum, nanprod = _without_nan(reducing.sum_), _without_nan(reducing.prod)
_mean, _var = _without_nan(reducing.mean), _without_nan(reducing.var)


def nanmean(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False,
            **options: Any) -> Any:
    array = as_array(x)
    if array.type.dtype.kind in "fc":
        reducing.in_floats("np.nanmean", array, dtype, real=True)
    return _mean(array, axis, dtype, out, keepdims, **options)


def nanvar(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
           keepdims: Any = False, *, correction: Any = None, where: Any = True,
           **options: Any) -> Any:
    """Return np.nanvar, which is NaN where no more than `ddof` numbers are left; np.var gives
    infinity there."""
    array, ddof = as_array(x), ddof if correction is None else correction
    options |= {"ddof": ddof, "keepdims": keepdims, "where": where}
    if array.type.dtype.kind not in "fc":
        return _var(array, axis, dtype, out, **options)
    variance = _var(array, axis, dtype, None, **options)
    number = apply(np.logical_and, apply(np.logical_not, apply(np.isnan, array)), where)
    enough = apply(np.greater, reducing.sum_(number, axis, keepdims=keepdims), ddof)
    return store(as_array(select(enough, variance, np.nan), variance.type.dtype), out)


def nanstd(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
           keepdims: Any = False, **options: Any) -> Any:
    reducing.in_floats("np.nanstd", as_array(x), dtype)
    return store(apply(np.sqrt, nanvar(x, axis, dtype, None, ddof, keepdims, **options)), out)


nanmax, nanmin = _extreme_number("fmax"), _extreme_number("fmin")


def _replacing_nan(function: Callable[..., Any], value: float) -> Callable[..., Any]:
    """Return the function of an array in which a number that changes nothing stands for each
    NaN."""

    def call(x: Any, *args: Any, **options: Any) -> Any:
        array = as_array(x)
        if array.type.dtype.kind in "fc":
            array = as_array(select(apply(np.isnan, array), value, array), array.type.dtype)
        return function(array, *args, **options)

    return call


nancumsum, nancumprod = _replacing_nan(reducing.cumsum, 0), _replacing_nan(reducing.cumprod, 1)


def _arg_number(name: str, value: float) -> Callable[..., Any]:
    """Return np.nanargmax or np.nanargmin, which ends the run where all elements are NaN."""
    place = _replacing_nan(getattr(reducing, name), value)

    def call(x: Any, axis: Any = None, *args: Any, **options: Any) -> Any:
        array = as_array(x)
        if array.type.dtype.kind in "fc":
            number = apply(np.logical_not, apply(np.isnan, array))
            expect(array.context, reducing.any_(number, axis).read(),
                   f"np.nan{name}: All-NaN slice encountered\n"
                   "  expected: a number at least in what the axis goes through\n"
                   "  found:    nothing but NaN")
        return place(array, axis, *args, **options)

    return call


nanargmax, nanargmin = _arg_number("argmax", -np.inf), _arg_number("argmin", np.inf)
