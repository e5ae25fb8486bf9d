"""Arrays with elements put in or left out: pad, insert, delete.

Always holds: where elements stand is known while building; only their values are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.dtypes import numpy_dtype
from codegen.errors import ShapeError
from codegen.ops import Update
from codegen.symbolic import expr
from codegen.trace import known
from codegen.trace.array import Array, Number, as_array, constant, is_traced, unsupported, wrap
from codegen.trace.expecting import at_least
from codegen.trace.numpy import reducing, statistics
from codegen.trace.numpy.creation import linspace, zeros
from codegen.trace.numpy.elementwise import apply, normal, operand_value, select, shape_text
from codegen.trace.numpy.joining import concatenate, extent
from codegen.trace.numpy.reducing import along, dim_of
from codegen.trace.numpy.shaping import broadcast_to, expand_dims, flip, moveaxis, ravel

# ---- pad -----------------------------------------------------------------------------------------


def pad(x: Any, pad_width: Any, mode: Any = "constant", **options: Any) -> Array:
    """Pad as np.pad, in all its modes but a function that the caller writes."""
    array = as_array(x)
    if isinstance(pad_width, (Number, Array)):
        pad_width = ((pad_width, pad_width),) * array.ndim
    elif isinstance(pad_width, dict):
        pad_width = [pad_width.get(d, pad_width.get(d - array.ndim, 0)) for d in range(array.ndim)]
        pad_width = [(w, w) if not isinstance(w, (tuple, list)) else w for w in pad_width]
    else:
        pad_width = _sides(pad_width, array.ndim)
    if mode == "constant":
        values = options.get("constant_values", 0)
        if isinstance(values, (Array, Number)) or not np.ndim(values):
            return _pad_constant(array, pad_width, values)
        sides: Callable[..., Any] = _constants
    else:
        if not isinstance(mode, str) or mode not in _MODES:
            raise unsupported(f"np.pad with mode={mode!r}", f"constant, {', '.join(_MODES)}")
        sides, option = _MODES[mode]
        values = options.get(option, _DEFAULTS.get(option))
    if sides is _ramps and np.size(values) < 3 and np.shape(values) != (2, 1):
        # so few become numbers of NumPy, whose type counts
        values = np.broadcast_to(np.asarray(values).ravel(), 2)
        values = [tuple(np.asarray(v)[()] for v in values)] * array.ndim
    elif sides is not _repeated:
        values = _sides(values, array.ndim)
    for d, (before, after) in enumerate(pad_width):
        if sides is _repeated:
            array = _pad_from(array, d, before, after, mode, values)
        elif before or after:
            left, right = sides(array, d, (before, after), values[d], mode)
            array = concatenate([as_array(p, array.type.dtype) for p in (left, array, right)], d)
    return array


def _sides(x: Any, ndim: int) -> Any:
    """Return, for each dim, what stands before and behind it, from one pair for all dims or one for
    each."""
    return np.broadcast_to(np.asarray(x, object), (ndim, 2)).tolist()


def _wide(array: Array, d: int, part: Any, count: Any) -> Array:
    """Return one row along a dim, repeated so many times."""
    return broadcast_to(part, (*array.shape[:d], count, *array.shape[d + 1 :]))


def _constants(array: Array, d: int, widths: Any, values: Any, mode: str) -> list[Array]:
    return [_wide(array, d, as_array(v, array.type.dtype), w) for w, v in zip(widths, values)]


def _ramps(array: Array, d: int, widths: Any, ends: Any, mode: str) -> list[Array]:
    edges = along(array, d, 0), along(array, d, -1)
    left, right = (linspace(end, edge, w, endpoint=False, dtype=array.dtype, axis=d)
                   for w, end, edge in zip(widths, ends, edges))
    return [as_array(left), flip(right, d)]


_STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": reducing.max_, "minimum": reducing.min_, "mean": reducing.mean,
    "median": statistics.median,
}


def _statistics(array: Array, d: int, widths: Any, lengths: Any, mode: str) -> list[Array]:
    """Return a statistic of the elements at each end: as many as stat_length= says, all for
    None."""
    n = constant(array.extents[d], f"np.pad with mode={mode!r}", "np.concatenate")
    of = _STATISTICS[mode]
    out = []
    for first, width, length in zip((True, False), widths, lengths):
        k = n if length is None else min(length, n)
        part = along(array, d, slice(0, k) if first else slice(n - k, n))
        value = of(part, axis=d, keepdims=True)
        if array.type.dtype.kind in "iu" and value.type.dtype.kind == "f":
            value = apply(np.rint, value)
        out.append(_wide(array, d, as_array(value, array.type.dtype), width))
    return out


def _nothing(array: Array, d: int, widths: Any, values: Any, mode: str) -> list[Array]:
    return [zeros((*array.shape[:d], w, *array.shape[d + 1 :]), array.dtype) for w in widths]


def _repeated() -> None:
    """Mark a mode that repeats elements of the array itself; _pad_from does it."""


# Per mode what makes both sides of a dim, and the option that it reads.
_MODES: dict[str, tuple[Callable[..., Any], str]] = {
    **dict.fromkeys(("edge", "wrap", "reflect", "symmetric"), (_repeated, "reflect_type")),
    **dict.fromkeys(_STATISTICS, (_statistics, "stat_length")),
    "linear_ramp": (_ramps, "end_values"), "empty": (_nothing, ""),
}
_DEFAULTS = {"end_values": 0}


def _pad_constant(array: Array, widths: Any, values: Any) -> Array:
    context = array.context
    if isinstance(values, (Array, Number)) and values.ndim:
        raise unsupported("np.pad with constant_values of the program", "one value, or "
                          "np.concatenate")
    before = [extent(b) for b, _ in widths]
    after = [extent(a) for _, a in widths]
    shape = tuple(b + e + a for b, e, a in zip(before, array.extents, after))
    base = operand_value(context, normal(values), array.type.dtype, shape)
    step = (1,) * array.ndim
    value = context.emit_one(Update(start=tuple(before), step=step), base, array.read())
    return wrap(context, value, scalar=False)


def _pad_from(array: Array, d: int, before: Any, after: Any, mode: str, reflect_type: Any) -> Array:
    at_least(1, array.extents[d], f"np.pad with mode={mode!r}")
    n = array.shape[d]
    most = array.extents[d] - (1 if mode == "reflect" else 0)
    if mode != "edge" and not all(expr.nonneg(most - extent(w)) for w in (before, after)):
        return _pad_repeatedly(array, d, before, after, mode, reflect_type)

    def part(start: Any, stop: Any) -> Array:
        return along(array, d, slice(start, stop))

    if mode == "edge":
        left, right = (
            _wide(array, d, edge, count)
            for edge, count in ((part(0, 1), before), (part(n - 1, n), after))
        )
    elif mode == "wrap":
        left, right = part(n - before, n), part(0, after)
    else:
        skipped = 1 if mode == "reflect" else 0  # the elements at the ends
        left = flip(part(skipped, before + skipped), d)
        right = flip(part(n - skipped - after, n - skipped), d)
        if reflect_type == "odd":
            odd = part(0, 1) * 2 - left, part(n - 1, n) * 2 - right
            left, right = (as_array(x, array.type.dtype) for x in odd)  # bools stay bools
    return concatenate([left, array, right], d)


def _pad_repeatedly(
    array: Array, d: int, before: Any, after: Any, mode: str, reflect_type: Any
) -> Array:
    """Pad an array by more elements than it has: they are repeated."""
    sizes = (array.extents[d], extent(before), extent(after))
    if not all(e.is_const for e in sizes):
        raise unsupported(
            f"np.pad with mode={mode!r}, which may be wider than the array,",
            f"spmd.require(...) that the widths are at most the extent {shape_text(sizes[:1])}",
        )
    n, left, right = (e.value for e in sizes)
    numpy_pad: Any = np.pad
    repeated = along(array, d, numpy_pad(np.arange(n), (left, right), mode))
    if reflect_type != "odd":
        return repeated
    # Each element is one of the array or its negative, plus multiples of the two at the ends.
    line, shape = np.arange(n), (-1, *[1] * (array.ndim - 1 - d))
    kind = array.type.dtype

    def times(of: Any, x: Array) -> Array:
        factors = numpy_pad(of.astype(np.int64), (left, right), mode, reflect_type="odd")
        factors = factors.reshape(shape)
        return select(factors == 0, zeros((), kind), x * factors.astype(numpy_dtype(kind)))

    padded = times((line > 0) & (line < n - 1), repeated)
    ends = [(line == 0, slice(0, 1)), ((line == n - 1) & (n > 1), slice(n - 1, n))]
    for is_end, part in ends:
        padded = padded + times(is_end, along(array, d, part))
    return padded


# ---- insert, delete ------------------------------------------------------------------------------

_PIECES = 32  # more of them are taken by an index array


def _places(function: str, x: Any, obj: Any, axis: Any, most: int) -> tuple[Array, int, Any]:
    """Return the array, the dim, and places along it as NumPy's integers, which are not negative.
    most: how far one may lie behind the end."""
    array = as_array(x) if axis is not None else ravel(x)
    if is_traced(obj) or isinstance(obj, (list, tuple)) and any(map(is_traced, obj)):
        raise unsupported(f"{function} at places that depend on data", "np.where, or x[at] = v")
    d = dim_of(axis or 0, array.ndim, function)
    if isinstance(obj, (int, np.integer)) and not array.extents[d].is_const:
        return array, d, np.asarray(obj)
    n = constant(array.extents[d], function, "slices and np.concatenate")
    obj = known.plain(obj)
    if isinstance(obj, slice):
        return array, d, np.arange(n)[obj]
    indices = np.asarray(obj)
    if indices.dtype == bool:
        indices = np.flatnonzero(indices)
    elif indices.size == 0:
        indices = indices.astype(int)
    wrong = indices[(indices < -n) | (indices >= n + most)]
    if wrong.size:
        raise ShapeError(f"{function}: {wrong.flat[0]} is out of bounds",
                         expected=f"{-n} to {n + most - 1}", found=str(obj))
    return array, d, np.where(indices < 0, indices + n, indices)


def insert(x: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    array, d, places = _places("np.insert", x, obj, axis, 1)
    part = as_array(values, array.type.dtype)
    missing = array.ndim - part.ndim
    part = expand_dims(part, tuple(range(missing))) if missing > 0 else part
    if places.ndim == 0:
        part = moveaxis(part, 0, d)
    single = places.size == 1
    count = part.shape[d] if single else places.size
    part = broadcast_to(part, (*array.shape[:d], count, *array.shape[d + 1 :]))
    if single:
        k = int(places.flat[0])
        return concatenate([along(array, d, slice(None, k)), part, along(array, d, slice(k, None))],
                           d)
    order = np.argsort(places, kind="stable")
    cuts = [0, *places[order].tolist(), None]
    if len(order) <= _PIECES:
        pieces = [along(array, d, slice(cuts[0], cuts[1]))]
        for k, (start, stop) in enumerate(zip(cuts[1:], cuts[2:])):
            row = int(order[k])
            pieces += [along(part, d, slice(row, row + 1)), along(array, d, slice(start, stop))]
        return concatenate(pieces, d)
    n = constant(array.extents[d], "np.insert", "")
    where = np.insert(np.arange(n), places, n + np.arange(len(places)))
    return along(concatenate([array, part], d), d, where)


def delete(x: Any, obj: Any, axis: Any = None) -> Any:
    array, d, places = _places("np.delete", x, obj, axis, 0)
    if places.ndim == 0:
        k = int(places)
        rest = [] if k == -1 else [along(array, d, slice(k + 1, None))]
        return concatenate([along(array, d, slice(None, k)), *rest], d)
    n = constant(array.extents[d], "np.delete", "")
    kept = np.delete(np.arange(n), places)
    ends = np.flatnonzero(np.diff(kept) != 1) + 1
    if len(ends) >= _PIECES:
        return along(array, d, kept)
    runs = [r for r in np.split(kept, ends) if len(r)]
    pieces = [along(array, d, slice(int(r[0]), int(r[-1]) + 1)) for r in runs]
    return concatenate(pieces or [along(array, d, slice(0, 0))], d)
