"""Integers in the order of the elements of arrays, by which these are sorted and searched.

Floats become the integers with their order (`order_key`), complex numbers a pair of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.ops import ArgSort, Kind, Map
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, number, wrap
from codegen.trace.numpy import creation, picking
from codegen.trace.numpy.elementwise import apply, select


def emit_op(x: Array, kind: Kind, *more: Array) -> Array:
    """Return the result of an op of this kind, of x and more operands."""
    value = x.context.emit_one(kind, x.read(), *(y.read() for y in more))
    return wrap(x.context, value, scalar=False)


def keys_of(array: Array, one_zero: bool = False) -> Array:
    """Return integers in the order of the elements, none of them complex. one_zero: -0.0 is 0.0."""
    if array.type.dtype.kind != "f":
        return array
    wide = as_array(array, np.float64 if array.type.dtype.size == 8 else np.float32)
    return emit_op(as_array(wide + 0.0) if one_zero else wide, Map("order_key"))


def from_keys(keys: Array, dtype: DType) -> Array:
    """Return the elements of which these are the keys."""
    return as_array(emit_op(keys, Map("of_order_key")), dtype) if dtype.kind == "f" else keys


def axes_of_dim(array: Array, d: int) -> tuple[str, ...]:
    """Return the axes that split a dim; () for a local array."""
    layout = array.read().type.layout
    return layout[d] if layout and not array.read().type.free else ()


def order_of(array: Array, d: int) -> Array:
    """Return the positions of the elements of local lanes in sorted order; stable."""
    keys = array if array.type.dtype.kind == "c" else keys_of(array, one_zero=True)
    return emit_op(keys, ArgSort(dim=d))


def order_by(keys: Sequence[Array], d: int) -> Array:
    """Return the positions in sorted order by the last key, of equal ones by the one before, and so
    on."""
    order = order_of(keys[0], d)
    for key in keys[1:]:
        placed = order_of(picking.take_along_axis(key, order, d), d)
        order = picking.take_along_axis(order, placed, d)
    return order


def int64_key(array: Array) -> Array:
    """Return keys as int64; zeros of both signs are equal."""
    keys = keys_of(array, one_zero=True)
    whole = as_array(keys, dtypes.INT64)
    return whole ^ -(2**63) if keys.type.dtype.name == "uint64" else whole


def part_type(dtype: DType) -> DType:
    """Return the type of the real and the imaginary part."""
    return dtypes.BY_NAME[f"float{4 * dtype.size}"]


def complex_keys(array: Array) -> list[Array]:
    """Return complex numbers as two keys: numbers first, then x + nan j, nan + y j, and nan + nan
    j."""
    parts = [part(array) for part in (picking.real, picking.imag)]
    (re, im), (no_re, no_im) = ([f(x) for x in parts] for f in (
        int64_key, lambda x: apply(np.isnan, x)))
    nan = as_array(_NAN[part_type(array.type.dtype).size], dtypes.INT64)
    first = select(no_re | no_im, nan + 2 * no_re + no_im - 1, re)
    return [as_array(first), as_array(select(no_re, select(no_im, 0, im), select(no_im, re, im)))]


_NAN = {4: 0x7FC00000, 8: 0x7FF8000000000000}  # the key of NaN, by the bytes of a part


def padded_rows(rows: Array, n: Expr) -> Array:
    """Return rows padded to length n with the greatest key, which sorts behind all others."""
    dtype = rows.type.dtype
    last = True if dtype.kind == "b" else int(np.iinfo(dtype.name).max)
    block = creation.full((*rows.shape[:-1], number(n)), last, dtypes.numpy_dtype(dtype))
    block[..., : rows.shape[-1]] = rows
    return block
