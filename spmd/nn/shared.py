"""What functions of networks share: dims that axis= names, gradients that stop, errors.

Always holds: the same source runs on arrays of a program, of one rank in a shard_map, and NumPy's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from codegen.errors import DtypeError, ShapeError
from codegen.ops import Map
from codegen.places import user_place
from codegen.trace.array import Array, wrap
from codegen.trace.derive.marks import stop_gradient

F = TypeVar("F", bound=Callable[..., Any])


def constant(x: Any) -> Any:
    """x, as a constant for derivatives."""
    return stop_gradient(x) if isinstance(x, Array) else x


def floats(x: Any, what: str) -> Any:
    """An array of floats, of numbers. DtypeError for anything else."""
    array = x if isinstance(x, (Array, np.ndarray)) else np.asarray(x)
    if array.dtype.kind in "iub" and not isinstance(x, (Array, np.ndarray)):
        array = array.astype(np.float64)  # Python's own numbers
    if array.dtype.kind in "iubcO":
        raise DtypeError(f"spmd.nn.{what} of {array.dtype}", place=user_place(),
                         expected="floats", found=str(array.dtype), remedy="x.astype(np.float32)")
    return array


def bfloat16_too(function: F) -> F:
    """A function of an array first, which bfloat16 passes through as float32: NumPy does not know
    how it meets Python's numbers."""
    @functools.wraps(function)
    def call(x: Any, *others: Any, **named: Any) -> Any:
        if str(getattr(x, "dtype", "")) != "bfloat16":
            return function(x, *others, **named)
        return function(x.astype(np.float32), *others, **named).astype(x.dtype)

    return call  # type: ignore[return-value]


def check_dim(what: str, name: str, found: Any, expected: Any, of: str) -> None:
    """Raises ShapeError where an extent is not the one that it meets."""
    if isinstance(found, int) and isinstance(expected, int) and found != expected:
        raise ShapeError(f"spmd.nn.{what}: {name} does not fit {of}", place=user_place(),
                         expected=str(expected), found=str(found))


def erf(x: Any) -> Any:
    """The error function, also where SciPy is not there."""
    if isinstance(x, Array):
        return wrap(x.context, x.context.emit_one(Map("erf"), x.read()))
    x = np.asarray(x)
    return np.vectorize(math.erf, otypes=[x.dtype])(x)
