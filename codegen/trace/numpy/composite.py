"""Ufuncs that have no function of their own: written with those that have one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.trace.array import Array, as_array, unsupported
from codegen.trace.numpy import order_keys, products
from codegen.trace.numpy.elementwise import (
    apply,
    loop_dtypes,
    mapped,
    normal,
    result_type,
    select,
)
from codegen.user.half_types import adding


def _float(x: Any) -> Array:
    """Return x in the type in which NumPy's loops for floats take it: integers of 1, 2 and more
    bytes as float16, float32 and float64; floats and complex numbers as they are."""
    array = as_array(x)
    kind, size = array.type.dtype.kind, array.type.dtype.size
    if kind in "fc":
        return array
    return as_array(array, {1: np.float16, 2: np.float32}.get(size, np.float64))


def _positive(x: Any) -> Any:
    if as_array(x).type.dtype.kind == "b":
        raise unsupported("np.positive of bools")
    return as_array(x).copy()


def _scaled(factor: float) -> Callable[[Any], Array]:
    def call(x: Any) -> Array:
        x = _float(x)
        wide = as_array(x, dtypes.FLOAT32) if x.type.dtype.size == 2 else x
        return as_array(apply(np.multiply, wide, factor), x.type.dtype)

    return call


def _modf(x: Any) -> tuple[Array, Array]:
    x = _float(x)
    whole = apply(np.trunc, x)
    rest = select(apply(np.isinf, x), 0.0, apply(np.subtract, x, whole))
    return apply(np.copysign, rest, x), whole


def _frexp(x: Any) -> tuple[Any, ...]:
    x = _float(x)
    return mapped("mantissa", x), mapped("exponent", x)


def _spacing(x: Any) -> Any:
    """Return the distance from each element to the next number away from zero."""
    x = _float(x)
    half = x.type.dtype
    if half.size == 2:  # NumPy's of float16 goes upwards
        start = x if half.name == "float16" else apply(np.absolute, x)
        gap = as_array(_next_half(start, np.inf, half), np.float32) - as_array(start, np.float32)
        if half.name == "bfloat16":
            gap = apply(np.copysign, gap, as_array(x, np.float32))
        return as_array(select(apply(np.isinf, x), np.nan, gap), half)
    size = apply(np.absolute, x)
    gap = apply(np.nextafter, size, np.inf) - size
    return select(x < 0, -gap, gap)


# By half type: a step between the keys of float32; the least number, the largest that has steps of
# it, and the largest of all.
_HALF_STEPS = {
    "float16": (2**13, 2.0**-24, 2.0**-14, 65504.0),
    "bfloat16": (2**16, 2.0**-133, 2.0**-126, 255 * 2.0**120),
}


def _next_half(a: Any, b: Any, half: DType) -> Any:
    """Return the next number of a half type after a, towards b."""
    step, least, small, largest = _HALF_STEPS[half.name]
    a, b = (as_array(as_array(x, half), np.float32) for x in (a, b))
    up = select(b > a, np.float32(1), np.float32(-1))
    keys = order_keys.keys_of(a)
    far = order_keys.from_keys(keys + as_array(up * step, keys.dtype), a.type.dtype)
    near = apply(np.copysign, a + up * least, select(a == 0, up, a))
    next_number = select(apply(np.absolute, a) <= small, near,
                  select(apply(np.isinf, a), apply(np.copysign, np.float32(largest), a), far))
    return as_array(select(a == b, a, select((a != a) | (b != b), np.nan, next_number)), half)


def _heaviside(x: Any, at_zero: Any) -> Any:
    dtype = loop_dtypes(np.heaviside, [normal(x), normal(at_zero)], None)[0]
    x, at_zero = as_array(x, dtype), as_array(at_zero, dtype)
    step = select(apply(np.less, x, 0), 0.0, select(apply(np.equal, x, 0), at_zero, 1.0))
    return select(apply(np.isnan, x), x, step)


def _float_power(a: Any, b: Any) -> Any:
    wide = np.complex128 if result_type(a, b).kind == "c" else np.float64
    return apply(np.power, as_array(a, wide), as_array(b, wide))


def _logaddexp2(a: Any, b: Any) -> Any:
    kind, ln2 = result_type(_float(a) if isinstance(a, Array) else a, b), math.log(2)
    wide = dtypes.folded_in(kind)
    a, b = (apply(np.multiply, as_array(as_array(x, kind), wide), ln2) for x in (a, b))
    return as_array(apply(np.divide, apply(np.logaddexp, a, b), ln2), kind)


def _bitwise_count(x: Any) -> Any:
    """Return the number of 1 bits of |x|, summed in fields of 2, 4 and 8 bits (H. Warren, Hacker's
    Delight, 5-1)."""
    if as_array(x).type.dtype.kind not in "biu":
        raise unsupported(f"np.bitwise_count of {as_array(x).dtype}", "integers")
    size = as_array(x).type.dtype.size
    v = apply(np.absolute, x).astype(np.uint64)
    v = v & np.uint64(2 ** (8 * size) - 1)  # |x| of the least integer is itself
    v = v - ((v >> np.uint64(1)) & np.uint64(0x5555555555555555))
    pairs = np.uint64(0x3333333333333333)
    v = (v & pairs) + ((v >> np.uint64(2)) & pairs)
    v = (v + (v >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((v * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.uint8)


UFUNCS: dict[str, Callable[..., Any]] = {
    "positive": _positive,
    "deg2rad": _scaled(math.pi / 180),
    "radians": _scaled(math.pi / 180),
    "rad2deg": _scaled(180 / math.pi),
    "degrees": _scaled(180 / math.pi),
    "divmod": lambda a, b: (apply(np.floor_divide, a, b), apply(np.remainder, a, b)),
    "modf": _modf,
    "frexp": _frexp,
    "spacing": _spacing,
    "nextafter of half types": _next_half,
    "heaviside": _heaviside,
    "float_power": _float_power,
    "fabs": lambda x: apply(np.absolute, _float(x)),
    "logaddexp2": adding(_logaddexp2),
    "bitwise_count": _bitwise_count,
    "vecdot": adding(products.vecdot),
    "matvec": products.matvec,
    "vecmat": products.vecmat,
    "matmul": products.matmul,
}
