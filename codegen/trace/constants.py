"""Constants as SSA values: element types, numbers rounded to them, NumPy arrays, grids of indices.

Always holds: uniform arrays and affine grids are formulas (`full`, `iota`), not data of the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import DtypeError, ShapeError
from codegen.ir.graph import Shape, Value
from codegen.ops import Broadcast, Const, Full, Iota, Map
from codegen.symbolic import expr
from codegen.trace.context import Context
from codegen.user.numbers import element_type, rounded


def full_value(context: Context, value: Any, dtype: DType, shape: Shape = ()) -> Value:
    """Return a Python number everywhere."""
    kept = rounded(value, dtype)
    return context.remember(
        ("full", repr(kept), dtype, shape),
        lambda: context.emit_one(Full(value=kept, dtype=dtype, shape=shape)),
    )


def blank_value(context: Context, dtype: DType, shape: Shape, sparse: bool = False) -> Value:
    """Return an array whose elements are all replaced by updates before anybody reads them.
    sparse: a rank replaces, and reads, a part of them only."""
    return context.emit_one(Full(value=0, dtype=dtype, shape=shape, blank=True, sparse=sparse))


def cast_value(context: Context, value: Value, dtype: DType) -> Value:
    if value.type.dtype == dtype:
        return value
    return context.emit_one(Map("cast", dtype=dtype), value)


def constant_value(context: Context, data: np.ndarray[Any, Any]) -> Value:
    """Return a NumPy array as a constant of the image; uniform ones and grids become formulas."""
    dtype = element_type(data.dtype)
    shape = tuple(expr.const(n) for n in data.shape)
    if data.size and (data == data.flat[0]).all() and not _negative_zero(data):
        return full_value(context, data.flat[0].item(), dtype, shape)
    if not data.size:
        return full_value(context, 0, dtype, shape)
    if data.size > _FORMULA_LEAST and (steps := _affine(data)) is not None:
        return _affine_value(context, data, steps, dtype)
    kept = np.ascontiguousarray(data).reshape(data.shape).astype(dtypes.numpy_dtype(dtype))
    once = _once(kept) if data.size > _REPEATED_LEAST else kept
    if once.shape == data.shape:
        return context.emit_one(Const(data=kept))
    dims = tuple(d for d, n in enumerate(once.shape) if n == data.shape[d])
    value = context.emit_one(Const(data=once.reshape([data.shape[d] for d in dims])))
    return context.emit_one(Broadcast(dims=dims, shape=shape), value)


def _once(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the data with extent 1 along the dims along which they repeat, to the bit."""
    for d in range(data.ndim):
        first = np.ascontiguousarray(data.take([0], d))
        bits = (x.view(np.uint8).reshape((*x.shape, -1)) for x in (data, first))
        if data.shape[d] > 1 and np.equal(*bits).all():
            data = first
    return data


_REPEATED_LEAST = 1 << 10  # elements; of smaller constants all are data, which is read faster
_FORMULA_LEAST = 64  # elements; smaller constants stay data, which is easier to read


def _affine(data: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
    """Return the steps per dim of a grid of integers such as np.arange(n)[:, None]; None for other
    data."""
    if data.dtype.kind not in "iuf" or not np.isfinite(data).all():
        return None
    if float(abs(data).max()) >= 2**52:
        return None
    whole = data.astype(np.int64)
    first = whole[(0,) * data.ndim]
    steps = []
    grid = np.full((1,) * data.ndim, first)
    for d, n in enumerate(data.shape):
        second = tuple(int(k == d) for k in range(data.ndim))
        step = int(whole[second] - first) if n > 1 else 0
        shape = [1] * data.ndim
        shape[d] = n
        grid = grid + (step * np.arange(n)).reshape(shape)
        steps.append(step)
    return tuple(steps) if not _negative_zero(data) and (grid == data).all() else None


def _affine_value(
    context: Context, data: np.ndarray[Any, Any], steps: tuple[int, ...], dtype: DType
) -> Value:
    """Return first + step * position, summed over the dims."""
    emit = context.emit_one
    shape = tuple(expr.const(n) for n in data.shape)
    value = full_value(context, int(data.flat[0]), dtypes.INT64, shape) if data.flat[0] else None
    for d, step in enumerate(steps):
        if not step:
            continue
        part = emit(Iota(dim=0, dtype=dtypes.INT64, shape=(shape[d],)))
        if step != 1:
            by = full_value(context, step, dtypes.INT64, (shape[d],))
            part = emit(Map("mul"), part, by)
        if len(shape) > 1:
            part = emit(Broadcast(dims=(d,), shape=shape), part)
        value = part if value is None else emit(Map("add"), value, part)
    assert value is not None  # a grid of zeros is a `full`
    return cast_value(context, value, dtype)


def _negative_zero(data: np.ndarray[Any, Any]) -> bool:
    """Return whether some zero has a sign, which a number in the source would not keep."""
    parts = (data.real, data.imag) if data.dtype.kind == "c" else (data,)
    return data.dtype.kind in "fc" and any((np.signbit(p) & (p == 0)).any() for p in parts)


def default_dtype(x: object) -> DType:
    """Return the element type that NumPy gives a Python number or list."""
    return element_type(np.asarray(x).dtype)


def array_value(context: Context, x: Any, wanted: DType | None = None) -> Value:
    """Return a list or NumPy array as a constant; of the element type `wanted` if given."""
    return constant_value(context, _numpy_array(x, wanted))


def _numpy_array(x: Any, wanted: DType | None) -> np.ndarray[Any, Any]:
    try:
        data: np.ndarray[Any, Any] = dtypes.as_numpy(x)
    except ValueError:
        raise ShapeError("the rows of this list differ in length",
                         expected="lists of equal lengths",
                         found=repr(x)[:60]) from None
    if wanted is not None and dtypes.from_numpy(data.dtype) != wanted:
        data = data.astype(dtypes.numpy_dtype(wanted))
    if data.dtype == object or dtypes.from_numpy(data.dtype) is None:
        raise DtypeError(f"{type(x).__name__} of {data.dtype} is not an array of numbers",
                         expected=", ".join(dtypes.BY_NAME), found=repr(x)[:60])
    return data


def broadcast_value(context: Context, value: Value, shape: Shape) -> Value:
    """Stretch to a shape that `broadcast_shapes` gave; extents proved equal are taken as equal."""
    if value.type.shape == shape:
        return value
    first = len(shape) - value.type.ndim
    dims = tuple(range(first, len(shape)))
    return context.remember(
        (value, "broadcast", shape),
        lambda: context.emit_one(Broadcast(dims=dims, shape=shape), value),
    )
