"""What functions of networks share: dims that axis= names, gradients that stop, errors.

Always holds: the same source runs on arrays of a program, of one rank in a shard_map, and NumPy's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from spmd import Array, DtypeError, ShapeError, stop_gradient
from spmd.extend import (
    half_type_of,
    is_array,
    is_half,
    leaves,
    narrowed,
    scalar_function,
    user_place,
    widened,
)

F = TypeVar("F", bound=Callable[..., Any])


def constant(x: Any) -> Any:
    """Return x, as a constant for derivatives."""
    return stop_gradient(x) if isinstance(x, Array) else x


def floats(x: Any, function: str) -> Any:
    """Return an array of floats, of numbers. DtypeError for anything else."""
    array = x if is_array(x) else np.asarray(x)
    if array.dtype.kind in "iub" and not is_array(x):
        array = array.astype(np.float64)  # Python's own numbers
    if array.dtype.kind in "iubcO":
        raise DtypeError(f"spmd.nn.{function} of {array.dtype}", place=user_place(),
                         expected="floats", found=str(array.dtype), remedy="x.astype(np.float32)")
    return array


def in_float32(function: F) -> F:
    """Return a function of arrays so that it computes half types in float32, and rounds once.

    The result is of the half type where all of its arrays of floats are of this type.
    """
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not any(is_half(x) for x in leaves((args, named))):
            return function(*args, **named)
        half = half_type_of((args, named), ints=False)
        return narrowed(function(*widened(args), **widened(named)), half)

    return call  # type: ignore[return-value]


def check_dim(function: str, name: str, found: Any, expected: Any, of: str) -> None:
    """Raises ShapeError where an extent is not the one that it meets."""
    if isinstance(found, int) and isinstance(expected, int) and found != expected:
        raise ShapeError(f"spmd.nn.{function}: {name} does not fit {of}", place=user_place(),
                         expected=str(expected), found=str(found))


def erf(x: Any) -> Any:
    """Return the error function of x, also where SciPy is not there."""
    return scalar_function("erf", x, lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x))
