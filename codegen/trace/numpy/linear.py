"""Linear algebra, as np.linalg has it: by LAPACK where matrices are whole, else block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.errors import ShapeError, UnsupportedError
from codegen.ir import Value
from codegen.ops import Broadcast, Cholesky, Full, Kind, Map
from codegen.ops.lapack import KINDS
from codegen.trace.array import Array, as_array, wrap
from codegen.trace.expecting import AT, expect
from codegen.trace.numpy import shaping
from codegen.trace.numpy.elementwise import apply, same_extent


def _matrix(what: str, x: Any, square: bool = False) -> Array:
    """Of a type that LAPACK computes with; integers become float64, as in NumPy."""
    array = as_array(x)
    if array.ndim < 2:
        raise ShapeError(f"np.linalg.{what} takes matrices", expected="2 dims or more",
                         found=str(array.type))  # fmt: skip
    if square and not same_extent(*array.extents[-2:]):
        raise ShapeError(f"np.linalg.{what} takes square matrices",
                         expected="last 2 dims of one extent", found=str(array.type))  # fmt: skip
    return _numbers(what, array)


def _numbers(what: str, array: Array) -> Array:
    kind = array.type.dtype
    if kind.kind in "iub":
        return as_array(array, np.float64)
    if kind.name not in KINDS:
        raise UnsupportedError(f"np.linalg.{what} of {kind}",
                               expected="float32, float64, complex64 or complex128",
                               found=str(kind), remedy="x.astype(np.float32)")  # fmt: skip
    return array


def _emit(what: Kind, *operands: Array) -> list[Array]:
    """The results of an op."""
    context = operands[0].context
    made = context.emit(what, [x.read() for x in operands])
    return [wrap(context, v, scalar=not v.type.shape) for v in made]


def _hold(info: Array, message: str) -> None:
    """The run ends where a factorisation says that it failed."""
    context, value = info.context, info.read()
    zero: Value = context.emit_one(Full(0, value.type.dtype, ()))
    if value.type.shape:
        zero = context.emit_one(Broadcast((), value.type.shape), zero)
    holds = context.emit_one(Map("eq"), value, zero)
    where = (" (matrix ", AT, " of the batch)") if value.type.shape else ()
    expect(context, holds, message, *where)


def _turned(x: Any) -> Any:
    return shaping.swapaxes(x, -1, -2)


def cholesky(a: Any, /, *, upper: bool = False) -> Array:
    """The factor of a matrix of which one triangle counts."""
    x = _matrix("cholesky", a, square=True)
    if upper:
        return _adjoint(cholesky(_adjoint(x)))
    lower, info = _emit(Cholesky(), x)
    _hold(info, "np.linalg.cholesky: the matrix is not positive definite")
    return lower


def _adjoint(x: Array) -> Array:
    made = _turned(x)
    return as_array(apply(np.conjugate, made)) if made.type.dtype.kind == "c" else made
