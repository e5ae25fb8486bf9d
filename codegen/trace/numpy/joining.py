"""Arrays joined: concatenate, stack, block, windows.

Always holds: arrays are joined by writing each into its place of one new array.
"""

from __future__ import annotations

from typing import Any

from codegen.errors import ShapeError, UsageError
from codegen.ops import Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, constant, holds_traced, unsupported, wrap
from codegen.trace.constants import blank_value
from codegen.trace.context import require_context
from codegen.trace.number import expr_of
from codegen.trace.numpy.creation import arange, linspace
from codegen.trace.numpy.elementwise import (
    joined_type,
    normal,
    operand_value,
    result_type,
    same_extent,
    shape_text,
)
from codegen.trace.numpy.reducing import along, dim_of, dims_of
from codegen.trace.numpy.shaping import (
    atleast_1d,
    check_casting,
    expand_dims,
    ravel,
    reshape,
)
from codegen.user.numbers import element_type

ZERO = expr.const(0)


def concatenate(arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None,
                casting: Any = None) -> Array:
    """Join arrays one after the other along a dim."""
    context = require_context("np.concatenate")
    if isinstance(axis, Array):
        raise UsageError("np.concatenate takes its arrays in one list", found="an array as axis",
                         expected="a list or a tuple of arrays, and an integer axis",
                         remedy="np.concatenate([a, b])")
    parts = [as_array(x) for x in arrays]
    if not parts:
        raise ShapeError("need at least one array to concatenate", expected="one or more arrays",
                         found="none")
    if axis is None:
        parts, axis = [ravel(p) for p in parts], 0
    first = parts[0]
    d = dim_of(axis, first.ndim, "np.concatenate")
    for p in parts[1:]:
        same = p.ndim == first.ndim and all(
            k == d or same_extent(a, b) for k, (a, b) in enumerate(zip(p.extents, first.extents))
        )
        if not same:
            raise ShapeError(
                "all the input array dimensions except for the concatenation axis must match",
                expected=f"the dims of {shape_text(first.extents)}, but for dim {d}",
                found=shape_text(p.extents),
            )
    own = joined_type(parts)
    element = own if dtype is None else element_type(dtype)
    check_casting(own, element, casting)
    total = expr.const(0)
    for p in parts:
        total = total + p.extents[d]
    shape = (*first.extents[:d], total, *first.extents[d + 1 :])
    value = blank_value(context, element, shape)
    offset = ZERO
    for p in parts:
        start = tuple(offset if k == d else ZERO for k in range(len(shape)))
        inner = (*first.extents[:d], p.extents[d], *first.extents[d + 1 :])
        piece = operand_value(context, p, element, inner)
        if p.extents[d] != 0:
            value = context.emit_one(Update(start=start, step=(1,) * len(shape)), value, piece)
        offset = offset + p.extents[d]
    result = wrap(context, value, scalar=False)
    if out is not None:
        out[...] = result
        return as_array(out)
    return result


def stack(arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None,
          casting: Any = None) -> Array:
    parts = [as_array(x) for x in arrays]
    if not parts:
        return concatenate(parts)
    for p in parts[1:]:
        if p.ndim != parts[0].ndim or not all(map(same_extent, p.extents, parts[0].extents)):
            raise ShapeError("all input arrays must have the same shape",
                             expected=shape_text(parts[0].extents),
                             found=shape_text(p.extents))
    d = dim_of(axis, parts[0].ndim + 1, "np.stack")
    wide = [expand_dims(p, d) for p in parts]
    return concatenate(wide, d, out, dtype=dtype, casting=casting)


def hstack(arrays: Any, **more: Any) -> Array:
    parts = [atleast_1d(x) for x in arrays]
    return concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1, **more)


def column_stack(arrays: Any) -> Array:
    parts = [as_array(x) for x in arrays]
    return concatenate([expand_dims(p, 1) if p.ndim == 1 else p for p in parts], 1)


def sliding_window_view(x: Any, window_shape: Any, axis: Any = None, **_: Any) -> Array:
    """Return a copy of all windows, whose extents are known while building: one shifted slice for
    each place in a window, stacked."""
    array = as_array(x)
    function = "np.lib.stride_tricks.sliding_window_view"
    widths = window_shape if isinstance(window_shape, (tuple, list)) else (window_shape,)
    if _.get("writeable"):
        raise unsupported(f"{function} with writeable=True", "x[k : n - w + 1 + k] += v for each k")
    items = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = [d for a in items for d in dims_of(a, array.ndim, function)]  # one may come twice
    if len(axes) != len(widths):
        raise ShapeError(f"{function}: there is not one extent of the window for each dim",
                         expected=f"{len(axes)} of them", found=str(tuple(widths)))
    for d, width in zip(axes, widths):
        wide = constant(extent(width), function, "a window of a known extent")
        count = array.shape[d] - wide + 1
        if expr.nonneg(expr.const(wide - 1) - array.extents[d]):
            raise ShapeError("window shape cannot be larger than input array shape",
                             expected=f"at most {array.shape[d]} in dim {d}",
                             found=str(wide))
        array = stack([along(array, d, slice(k, k + count)) for k in range(wide)], -1)
    return array


def extent(x: Any) -> Expr:
    """Return a pad width or the width of a window as a formula; raise ShapeError if it may be
    negative."""
    e = expr_of(x)
    if e is None or expr.nonneg(-e - 1):
        raise ShapeError("pad widths are non-negative integers",
                         expected="an integer known while building or at launch",
                         found=repr(x))
    return e


class Joiner:
    """This is np.r_ or np.c_: a subscript joins arrays, numbers and slices one after the other."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        slices = [(i.start, i.stop, i.step) for i in items if isinstance(i, slice)]
        if not any(map(holds_traced, (*items, *slices))):
            return self.own[key]
        axis, ndim, first = self.own.axis, self.own.ndmin, self.own.trans1d
        if isinstance(items[0], str):
            axis, ndim, first = self._directive(items[0], axis, ndim, first)
            items = items[1:]
        return concatenate(self._typed([self._part(i, ndim, first) for i in items], items), axis)

    def _directive(self, text: str, *numbers: int) -> list[int]:
        parts = text.split(",")
        if not all(p.strip().lstrip("-").isdigit() for p in parts):
            raise unsupported(f"np.r_[{text!r}, ...], a matrix,", "np.stack, np.concatenate")
        leading = [int(p) for p in parts]
        return [*leading, *numbers[len(leading) :]]

    def _part(self, item: Any, ndim: int, first: int) -> Array:
        """Return an item with `ndim` dims; those that are added stand behind dim `first`."""
        if isinstance(item, slice):
            array = _stretch(item)
        else:
            array = as_array(item)
        added = ndim - array.ndim
        if added <= 0:
            return array
        place = 0 if first == -1 else added + first + 1 if first < 0 else first
        new = [d for d in range(ndim) if d < place or d >= place + array.ndim]
        if first == -1:
            new = list(range(added))
        return expand_dims(array, tuple(new))

    def _typed(self, parts: list[Array], items: Any) -> list[Array]:
        """Return the parts in their common type; numbers among the items promote weakly."""
        dtype = result_type(*(normal(i) if not isinstance(i, slice) else p
                             for i, p in zip(items, parts)))
        return [as_array(p, dtype) for p in parts]


def _stretch(item: slice) -> Array:
    start = 0 if item.start is None else item.start
    step = 1 if item.step is None else item.step
    if isinstance(step, complex):
        return as_array(linspace(start, item.stop, int(abs(step))))
    return arange(start, item.stop, step)


def block(arrays: Any) -> Array:
    """Return np.block of nested lists."""

    def depth(x: Any) -> int:
        return 1 + depth(x[0]) if isinstance(x, list) else 0

    levels = depth(arrays)

    def join(x: Any, level: int) -> Array:
        if not isinstance(x, list):
            a = as_array(x)
            return a if a.ndim >= levels else reshape(a, (*[1] * (levels - a.ndim), *a.shape))
        return concatenate([join(i, level - 1) for i in x], -level)

    return join(arrays, levels)
