"""Which values a declared element type takes: of fields of feeds, from workers and from iterables.

In: an array as it was given. Out: whether it may be cast. Always holds: a cast changes no integer,
and a real number only by how exact the float is.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("float", "bfloat"))


def _casts(given: np.dtype[Any], to: np.dtype[Any]) -> bool:
    """Whatever the values are: to more of the same, and any real number to a float of any size."""
    if _is_float(to):
        return given.kind in "biu" or _is_float(given)
    if to.kind == "c":
        return given.kind in "biuc" or _is_float(given)
    return np.can_cast(given, to, "safe")


def _holds(dtype: np.dtype[Any], a: np.ndarray[Any, Any]) -> bool:
    """Are these integers that an integer dtype has?"""
    if a.dtype.kind not in "iu" or dtype.kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    return not a.size or (int(a.min()) >= limits.min and int(a.max()) <= limits.max)


def may_cast(a: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """Whether these values may be cast.

    ::

        >>> may_cast(np.array([1, 300]), np.dtype(np.int16)), may_cast(np.ones(2), np.dtype(int))
        (True, False)
    """
    return a.dtype == dtype or _casts(a.dtype, dtype) or _holds(dtype, a)


def range_text(a: np.ndarray[Any, Any]) -> str:
    """Of a message: from which number to which they are."""
    return f", from {a.min()} to {a.max()}" if a.size and a.dtype.kind in "iuf" else ""
