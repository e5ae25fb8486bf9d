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
from codegen.trace import known_arrays
from codegen.trace.array import Array, Number, as_array, constant, is_traced, unsupported, wrap
from codegen.trace.numpy import reducing, statistics
from codegen.trace.numpy.creation import linspace, zeros
from codegen.trace.numpy.elementwise import apply, normal, operand_value, select, shape_text
from codegen.trace.numpy.joining import concatenate, extent
from codegen.trace.numpy.reducing import along, dim_of
from codegen.trace.numpy.shaping import broadcast_to, expand_dims, flip, moveaxis, ravel
from codegen.trace.runtime_checks import at_least

# ---- pad -----------------------------------------------------------------------------------------


def pad(x: Any, pad_width: Any, mode: Any = "constant", **options: Any) -> Array:
    """Pad by all of NumPy's modes but a function of yours."""
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


def _pad_from(array: Array, d: int, before: Any, after: Any, mode: str, turned: Any) -> Array:
    at_least(1, array.extents[d], f"np.pad with mode={mode!r}")
    n = array.shape[d]
    most = array.extents[d] - (1 if mode == "reflect" else 0)
    if mode != "edge" and not all(expr.nonneg(most - extent(w)) for w in (before, after)):
        return _pad_again(array, d, before, after, mode, turned)

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
        if turned == "odd":
            odd = part(0, 1) * 2 - left, part(n - 1, n) * 2 - right
            left, right = (as_array(x, array.type.dtype) for x in odd)  # bools stay bools
    return concatenate([left, array, right], d)


def _pad_again(array: Array, d: int, before: Any, after: Any, mode: str, turned: Any) -> Array:
    """Pad an array by more than it is long: its elements come several times."""
    sizes = (array.extents[d], extent(before), extent(after))
    if not all(e.is_const for e in sizes):
        raise unsupported(
            f"np.pad with mode={mode!r}, which may be wider than the array,",
            f"spmd.require(...) that the widths are at most the extent {shape_text(sizes[:1])}",
        )
    n, left, right = (e.value for e in sizes)
    made: Any = np.pad
    repeated = along(array, d, made(np.arange(n), (left, right), mode))
    if turned != "odd":
        return repeated
    # Each element is one of the array or its negative, plus multiples of the two at the ends.
    line, shape = np.arange(n), (-1, *[1] * (array.ndim - 1 - d))
    kind = array.type.dtype

    def times(of: Any, x: Array) -> Array:
        factors = made(of.astype(np.int64), (left, right), mode, reflect_type="odd").reshape(shape)
        return select(factors == 0, zeros((), kind), x * factors.astype(numpy_dtype(kind)))

    made_of = times((line > 0) & (line < n - 1), repeated)
    ends = [(line == 0, slice(0, 1)), ((line == n - 1) & (n > 1), slice(n - 1, n))]
    for is_end, part in ends:
        made_of = made_of + times(is_end, along(array, d, part))
    return made_of


# ---- insert, delete ------------------------------------------------------------------------------

_PIECES = 32  # more of them are taken by an index array


def _places(what: str, x: Any, at: Any, axis: Any, most: int) -> tuple[Array, int, Any]:
    """Return the array, the dim, and places along it as NumPy's integers, which are not negative.
    most: how far one may lie behind the end."""
    array = as_array(x) if axis is not None else ravel(x)
    if is_traced(at) or isinstance(at, (list, tuple)) and any(map(is_traced, at)):
        raise unsupported(f"{what} at places that depend on data", "np.where, or x[at] = v")
    d = dim_of(axis or 0, array.ndim, what)
    if isinstance(at, (int, np.integer)) and not array.extents[d].is_const:
        return array, d, np.asarray(at)
    n = constant(array.extents[d], what, "slices and np.concatenate")
    at = known_arrays.plain(at)
    if isinstance(at, slice):
        return array, d, np.arange(n)[at]
    found = np.asarray(at)
    if found.dtype == bool:
        found = np.flatnonzero(found)
    elif found.size == 0:
        found = found.astype(int)
    wrong = found[(found < -n) | (found >= n + most)]
    if wrong.size:
        raise ShapeError(f"{what}: {wrong.flat[0]} is out of bounds",
                         expected=f"{-n} to {n + most - 1}", found=str(at))
    return array, d, np.where(found < 0, found + n, found)


def insert(x: Any, at: Any, values: Any, axis: Any = None) -> Any:
    array, d, at = _places("np.insert", x, at, axis, 1)
    part = as_array(values, array.type.dtype)
    missing = array.ndim - part.ndim
    part = expand_dims(part, tuple(range(missing))) if missing > 0 else part
    if at.ndim == 0:
        part = moveaxis(part, 0, d)
    single = at.size == 1
    count = part.shape[d] if single else at.size
    part = broadcast_to(part, (*array.shape[:d], count, *array.shape[d + 1 :]))
    if single:
        k = int(at.flat[0])
        return concatenate([along(array, d, slice(None, k)), part, along(array, d, slice(k, None))],
                           d)
    order = np.argsort(at, kind="stable")
    cuts = [0, *at[order].tolist(), None]
    if len(order) <= _PIECES:
        pieces = [along(array, d, slice(cuts[0], cuts[1]))]
        for k, (start, stop) in enumerate(zip(cuts[1:], cuts[2:])):
            row = int(order[k])
            pieces += [along(part, d, slice(row, row + 1)), along(array, d, slice(start, stop))]
        return concatenate(pieces, d)
    n = constant(array.extents[d], "np.insert", "")
    where = np.insert(np.arange(n), at, n + np.arange(len(at)))
    return along(concatenate([array, part], d), d, where)


def delete(x: Any, at: Any, axis: Any = None) -> Any:
    array, d, at = _places("np.delete", x, at, axis, 0)
    if at.ndim == 0:
        k = int(at)
        rest = [] if k == -1 else [along(array, d, slice(k + 1, None))]
        return concatenate([along(array, d, slice(None, k)), *rest], d)
    n = constant(array.extents[d], "np.delete", "")
    kept = np.delete(np.arange(n), at)
    ends = np.flatnonzero(np.diff(kept) != 1) + 1
    if len(ends) >= _PIECES:
        return along(array, d, kept)
    runs = [r for r in np.split(kept, ends) if len(r)]
    pieces = [along(array, d, slice(int(r[0]), int(r[-1]) + 1)) for r in runs]
    return concatenate(pieces or [along(array, d, slice(0, 0))], d)
