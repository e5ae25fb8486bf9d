"""New arrays: zeros, arange, asarray …; local inside a shard_map, global (with layout=) outside.

Always holds: a global array is made by a shard_map without arguments, each rank making its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import ShapeError, UsageError
from codegen.ir.graph import Shape
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace import view
from codegen.trace.array import (
    Array,
    Number,
    as_array,
    as_value,
    full_value,
    holds_traced,
    is_traced,
    unsupported,
    wrap,
)
from codegen.trace.constants import blank_value
from codegen.trace.context import require_context
from codegen.trace.declare import global_indices, shape_of
from codegen.trace.expecting import within
from codegen.trace.number import expr_of, number
from codegen.trace.numpy import elementwise
from codegen.trace.ranks import mapping
from codegen.trace.ranks.layout_forms import by_rules, layout_of
from codegen.user.numbers import element_type

__all__ = [  # that users import from spmd
    "arange", "array", "asarray", "dynamic_slice", "dynamic_update_slice", "empty",
    "empty_like", "eye", "full", "full_like", "identity", "like", "linspace", "ones",
    "ones_like", "zeros", "zeros_like",
]

Make = Callable[[Shape, Sequence[Expr]], Array]


def _make(function: str, shape: Shape, layout: Any, make: Make) -> Array:
    """Return make(local shape, offsets) here, or on every rank of a new global array."""
    context = require_context(function)
    result = make(shape, [expr.const(0)] * len(shape))
    if context.rank_view or layout is None:
        return result
    layout_of(context, layout, len(shape), function)
    return mapping.relayout(result, layout)


def full(shape: Any, value: Any, dtype: Any = None, layout: Any = None) -> Array:
    """Return an array of this shape with `value` everywhere.

    shape: an int or a tuple; extents may be formulas in axis sizes. dtype: that of the value unless
    you say otherwise. layout: as of spmd.input; inside a shard_map the array is this rank's own and
    has none. TracedValueError for a shape that depends on data or a scalar.

    >>> full(2, 7.0)
    [7. 7.], [7. 7.], [7. 7.], [7. 7.]
    """
    context = require_context("full")
    element = element_type(dtype) if dtype is not None else _default_type(value)
    extents = shape_of(shape, "the shape of an array")
    layout = by_rules(context, shape, layout)

    def make(local: Shape, _: Sequence[Expr]) -> Array:
        if isinstance(value, (bool, int, float, complex)):
            return wrap(context, full_value(context, value, element, local), scalar=False)
        operand = elementwise.normal(value)
        value_shape = elementwise.extents_of(operand)
        joined = elementwise.broadcast_shapes([value_shape, local], "np.full")
        if len(joined) != len(local) or not all(map(elementwise.same_extent, joined, local)):
            raise ShapeError("np.full: the value does not fit into the shape",
                             expected=elementwise.shape_text(local),
                             found=elementwise.shape_text(value_shape))
        filled = elementwise.operand_value(context, operand, element, local)
        return wrap(context, filled, scalar=False)

    return _make("spmd.full", extents, layout, make)


def _default_type(value: Any) -> DType:
    if isinstance(value, Array):
        return value.type.dtype
    if isinstance(value, Number):
        return dtypes.BOOL if value.truth else dtypes.INT64
    return element_type(np.asarray(value).dtype)


def zeros(shape: Any, dtype: Any = None, layout: Any = None) -> Array:
    """Return an array of zeros of this shape, float64 unless you say otherwise; all else as in
    full.

    >>> zeros(2) + axis_index("r")
    [0. 0.], [1. 1.], [2. 2.], [3. 3.]
    """
    return full(shape, 0, dtype or np.float64, layout)


def ones(shape: Any, dtype: Any = None, layout: Any = None) -> Array:
    """Return an array of ones of this shape, float64 unless you say otherwise; all else as in full.

    >>> ones(2)
    [1. 1.], [1. 1.], [1. 1.], [1. 1.]
    """
    return full(shape, 1, dtype or np.float64, layout)


def empty(shape: Any, dtype: Any = None, layout: Any = None) -> Array:
    """Return an array of this shape without values: write into it, or pass it to a kernel as its
    output.

    It holds zeros until then, on every rank; all else as in full.
    """
    result = zeros(shape, dtype, layout)
    result.made_empty = True
    return result


def unwritten(shape: Any, dtype: Any, layout: Any) -> Array:
    """Return a global array of which a rank has memory only for what it writes, page by page. What
    nobody has written nobody may read."""
    context = require_context("unwritten")
    value = blank_value(context, element_type(dtype), shape_of(shape, "the shape"), sparse=True)
    return mapping.relayout(wrap(context, value, scalar=False), layout)


def full_like(x: Any, value: Any, dtype: Any = None, layout: Any = None, **other: Any) -> Array:
    """Return an array with `value` everywhere, of the shape, dtype and layout of x unless you give
    others."""
    shape = other.get("shape")
    if isinstance(x, Array):
        wide = x.is_global and layout is None and shape is None
        element = x.type.dtype if dtype is None else dtype
        layout = x.layout if wide else layout
        return full(x.shape if shape is None else shape, value, element, layout)
    data = np.asarray(x) if not isinstance(x, Number) else np.zeros((), x.dtype)
    return full(data.shape if shape is None else shape, value, dtype or data.dtype, layout)


def zeros_like(x: Any, dtype: Any = None, layout: Any = None, **other: Any) -> Array:
    """Return zeros of the shape, dtype and layout of x unless you give others."""
    return full_like(x, 0, dtype, layout, **other)


def ones_like(x: Any, dtype: Any = None, layout: Any = None, **other: Any) -> Array:
    """Return ones of the shape, dtype and layout of x unless you give others."""
    return full_like(x, 1, dtype, layout, **other)


def empty_like(x: Any, dtype: Any = None, layout: Any = None, **other: Any) -> Array:
    """Return an array to be written, of the shape, dtype and layout of x: as spmd.like."""
    result = zeros_like(x, dtype, layout, **other)
    result.made_empty = True
    return result


like = empty_like


def arange(
    start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, layout: Any = None
) -> Array:
    """Return numbers from start (0) up to stop, which is left out, in steps of `step`: as
    numpy.arange.

    Bounds are integers or formulas of axis sizes and the index; the step is known while building.
    dtype: int64 for integers, float64 with a float among them. layout: as of spmd.input. It takes
    no memory in the image: it is kept as a formula.

    >>> arange(axis_index("r") + 1)
    [0], [0 1], [0 1 2], [0 1 2 3]
    """
    context = require_context("arange")
    if stop is None:
        start, stop = 0, start
    if any(isinstance(x, (float, np.floating)) for x in (start, stop, step)):
        data = np.arange(start, stop, step, dtype=dtype)
        return asarray(data, layout=layout)
    first, last, by = (expr_of(x) for x in (start, stop, step))
    if first is None or last is None or by is None or not by.is_const or by == 0:
        raise UsageError("arange takes integers and formulas of axis sizes and the index",
                         expected="a step known while building, bounds known at launch",
                         found=f"arange({start!r}, {stop!r}, {step!r})")
    size = abs(by.value)
    span = last - first if by.value > 0 else first - last
    extents = shape_of(Number(expr.maximum((span + (size - 1)) // size, 0)), "the extent of arange")
    element = dtypes.INT64 if dtype is None else element_type(dtype)

    def make(local: Shape, offsets: Sequence[Expr]) -> Array:
        grid = global_indices(context, local[0], offsets[0], 0, 1)
        values = grid * by.value if by != 1 else grid
        values = values + Number(first) if first != 0 else values
        return wrap(context, as_value(context, values, element), scalar=False)

    return _make("spmd.arange", extents, layout, make)


def linspace(
    start: Any, stop: Any, num: Any = 50, endpoint: bool = True, retstep: bool = False,
    dtype: Any = None, axis: int = 0, *, layout: Any = None,
) -> Any:
    """Return `num` numbers from start to stop, at equal distances: as numpy.linspace.

    endpoint: whether stop is the last of them. retstep: return the distance too. num may be a
    formula of axis sizes, not data (UnsupportedError). All else as in full.

    >>> linspace(0, 1, 3)
    [0.  0.5 1. ], [0.  0.5 1. ], [0.  0.5 1. ], [0.  0.5 1. ]
    """
    count = expr_of(num)
    if count is None:
        raise unsupported("linspace with a number of points that depends on data",
                          "start + step * np.arange(n)")
    if count.is_const and not is_traced(start) and not is_traced(stop):
        even: Any = np.linspace
        samples = even(start, stop, count.value, endpoint, True, dtype, axis)
        values, step = asarray(samples[0], layout=layout), samples[1]
    else:
        values, step = _evenly(start, stop, count, endpoint, layout)
        if axis != 0:
            moveaxis: Any = np.moveaxis
            values = moveaxis(values, 0, axis)
        if dtype is not None:
            element = element_type(dtype)
            values = elementwise.apply(np.floor, values) if element.kind in "iu" else values
            values = values.astype(element.name)
    return (values, step) if retstep else values


def _evenly(start: Any, stop: Any, count: Expr, endpoint: bool, layout: Any) -> tuple[Array, Array]:
    """Return the numbers along dim 0, and their distance. The last one is `stop` to the bit."""
    apply = elementwise.apply
    start, stop = (elementwise.normal(x) for x in (start, stop))
    dtype = elementwise.result_type(start, stop, 0.0)
    first, last = as_array(start, dtype), as_array(stop, dtype)
    parts = as_array(number(expr.maximum(count - 1, 1) if endpoint else count), dtype)
    span = apply(np.subtract, last, first)
    step = apply(np.divide, span, parts)
    positions = as_array(arange(number(count), layout=layout), dtype)
    positions = positions.reshape((positions.shape[0], *[1] * step.ndim))
    tiny = apply(np.multiply, apply(np.divide, positions, parts), span)  # where step rounds to 0
    values = elementwise.select(apply(np.equal, step, 0), tiny, apply(np.multiply, positions, step))
    values = as_array(apply(np.add, values, first))
    if endpoint:
        is_last = apply(np.equal, positions, as_array(number(expr.maximum(count - 1, 1)), dtype))
        values = elementwise.select(is_last, last, values)
    return values, step


def logspace(
    start: Any, stop: Any, num: Any = 50, endpoint: bool = True, base: Any = 10.0,
    dtype: Any = None, axis: int = 0,
) -> Any:
    """Return base ** linspace(start, stop, num)."""
    if np.ndim(base) if not isinstance(base, Array) else base.ndim:  # it may say what axis counts
        operands = [as_array(x) for x in (start, stop, base)]
        n = max(x.ndim for x in operands)
        start, stop, base = (x.reshape((*[1] * (n - x.ndim), *x.shape)) for x in operands)
        expand: Any = np.expand_dims
        base = expand(base, axis)
    result = elementwise.apply(np.power, base, linspace(start, stop, num, endpoint, axis=axis))
    return result if dtype is None else result.astype(dtype)


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
    """Return numbers of which each is a fixed multiple of the one before; both ends of one sign."""
    element = elementwise.result_type(as_array(start), as_array(stop), np.float64(num))
    first, last = as_array(start, element), as_array(stop, element)
    sign = elementwise.apply(np.sign, first)
    ends = elementwise.apply(np.divide, first, sign), elementwise.apply(np.divide, last, sign)
    first, last = (elementwise.apply(np.log10, e) for e in ends)
    values = logspace(first, last, num, endpoint)
    values = as_array(values, element)
    if num > 0:
        values[0] = ends[0]
    if num > 1 and endpoint:
        values[-1] = ends[1]
    values = values * sign
    values = values if axis == 0 else np.moveaxis(values, 0, axis)
    return values if dtype is None else values.astype(dtype)


def eye(n: Any, m: Any = None, k: int = 0, dtype: Any = None, layout: Any = None) -> Array:
    """Return a matrix of n rows and m columns (n, if left out): ones on the k-th diagonal, zeros
    elsewhere.

    >>> eye(3)[1]
    [0. 1. 0.], [0. 1. 0.], [0. 1. 0.], [0. 1. 0.]
    """
    context = require_context("eye")
    extents = shape_of((n, n if m is None else m), "the shape of eye")
    element = element_type(dtype or np.float64)

    def make(local: Shape, offsets: Sequence[Expr]) -> Array:
        rows, columns = (global_indices(context, local[d], offsets[d], d, 2) for d in (0, 1))
        ones = elementwise.apply(np.equal, rows + k, columns)
        return wrap(context, as_value(context, ones, element))

    return _make("spmd.eye", extents, layout, make)


def identity(n: Any, dtype: Any = None) -> Array:
    """Return the identity matrix of n rows and columns, float64 unless you say otherwise."""
    return eye(n, dtype=dtype)


def asarray(x: Any, dtype: Any = None, layout: Any = None, **_: Any) -> Array:
    """Return x as an array of the program: NumPy arrays, numbers, nested lists, which may hold
    traced numbers.

    An array of the program stays itself, without a copy, unless dtype or layout say otherwise. A
    NumPy array becomes a constant of the image, of which you get a copy that can be written.

    >>> asarray([axis_index("r"), 10])
    [ 0 10], [ 1 10], [ 2 10], [ 3 10]
    """
    context = require_context("asarray")
    if isinstance(x, Array):
        result = x if dtype is None else as_array(x, dtype)
        if result.weak:  # NumPy's array of a Python number is none
            result = wrap(result.context, result.read(), scalar=False)
        if layout is None or not result.is_global or not result.ndim:
            return result
        same = layout_of(context, layout, result.ndim, "asarray") == result.held.type.layout
        return result if same and not result.seen else mapping.relayout(result, layout)
    if context.rank_view or holds_traced(x):
        return _local_array(x, dtype)
    data = dtypes.as_numpy(x)
    data = data if dtype is None else data.astype(dtypes.numpy_dtype(element_type(dtype)))
    result = wrap(context, as_value(context, data), scalar=False)
    return result if layout is None or not data.ndim else mapping.relayout(result, layout)


def array(
    x: Any, dtype: Any = None, layout: Any = None, copy: Any = True, ndmin: int = 0, **_: Any
) -> Array:
    """Return a new array with the elements of x: as asarray, and always a copy.

    ndmin: dims of extent 1 are put in front until there are as many.
    """
    result = asarray(x, dtype, layout)
    if result.ndim < ndmin:
        result = result.reshape((*[1] * (ndmin - result.ndim), *result.shape))
    return wrap(result.context, result.read(), scalar=False) if copy or result is not x else result


def _local_array(x: Any, dtype: Any) -> Array:
    """Return a local array of a list that may hold arrays and numbers at its leaves."""
    if not (isinstance(x, (list, tuple)) and holds_traced(x)):
        result = as_array(x, dtype)
        return wrap(result.context, result.read(), scalar=False)
    parts = [_local_array(i, None) if isinstance(i, (list, tuple)) else i for i in x]
    element = element_type(dtype) if dtype is not None else elementwise.joined_type(parts)
    stack: Any = np.stack
    return as_array(stack([as_array(p, element) for p in parts]))


# ---- boxes at run-time places ----------------------------------------------------------------


def _starts(x: Array, starts: Any, sizes: Shape) -> tuple[Any, ...]:
    items = tuple(starts) if isinstance(starts, (tuple, list)) else (starts,)
    if len(items) != x.ndim:
        raise ShapeError("there is not one start for each dim", expected=f"{x.ndim} starts",
                         found=f"{len(items)}")
    out: list[Any] = []
    for d, (start, extent, size) in enumerate(zip(items, x.extents, sizes)):
        e = expr_of(start)
        within(x.context, as_array(start).read() if e is None else e, extent, d, size)
        if e is None:
            out.append(as_array(start).read())
        else:
            out.append(e if expr.nonneg(e) else expr.select(expr.ge0(e), e, e + extent))
    return tuple(out)


def dynamic_slice(x: Any, starts: Any, sizes: Any) -> Any:
    """Return the part of x of extents `sizes` that begins at `starts`, which the run may compute.

    starts, sizes: one for each dim; sizes are known while building. Negative starts count from the
    end. As in JAX, a part that would reach beyond an end is moved back into x. ShapeError where
    there is not one for each dim.

    >>> dynamic_slice(np.arange(8), (2 * axis_index("r"),), (3,))
    [0 1 2], [2 3 4], [4 5 6], [5 6 7]
    """
    x = as_array(x)
    extents = shape_of(sizes, "the sizes of dynamic_slice", scalars=True)
    if len(extents) != x.ndim:
        raise ShapeError("there is not one size for each dim", expected=f"{x.ndim} sizes",
                         found=f"{len(extents)}")
    return x.viewed(view.Dynamic(_starts(x, starts, extents), extents)).copy()


def dynamic_update_slice(x: Any, update: Any, starts: Any) -> Array:
    """Return a copy of x in which `update` is written at `starts`.

    starts: as of dynamic_slice. The result has the shape and dtype of x.

    >>> dynamic_update_slice(np.zeros(4), np.ones(2), (axis_index("r"),))
    [1. 1. 0. 0.], [0. 1. 1. 0.], [0. 0. 1. 1.], [0. 0. 1. 1.]
    """
    x, update = as_array(x), as_array(update, as_array(x).type.dtype)
    limits = [a - b for a, b in zip(x.extents, update.extents)]
    clamped = []
    for start, limit, extent in zip(_starts(x, starts, update.extents), limits, x.extents):
        if isinstance(start, Expr):
            clamped.append(expr.maximum(expr.minimum(start, limit), 0))
        else:
            begin = wrap(x.context, start)
            begin = begin + (begin < 0) * as_array(number(extent))
            begin = elementwise.apply(np.minimum, begin, number(limit))
            clamped.append(elementwise.apply(np.maximum, begin, 0).read())
    new: Array = x.copy()
    new.viewed(view.Dynamic(tuple(clamped), update.extents)).write(update.read())
    return new


