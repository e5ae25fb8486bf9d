"""Which values a declared element type takes: of fields of feeds, from workers and from iterables.

In: an array as it was given. Out: whether it may be cast. Always holds: a cast changes no integer,
and a real number only by how exact the float is: one that is too large for it is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("float", "bfloat"))


def _casts(source: np.dtype[Any], to: np.dtype[Any]) -> bool:
    """Return whether a dtype casts to another whatever the values are: to more of the same, and any
    real number to a float of any size."""
    if _is_float(to):
        return source.kind in "biu" or _is_float(source)
    if to.kind == "c":
        return source.kind in "biuc" or _is_float(source)
    return np.can_cast(source, to, "safe")


def _holds(dtype: np.dtype[Any], a: np.ndarray[Any, Any]) -> bool:
    """Return whether an integer dtype has all of these integers."""
    if a.dtype.kind not in "iu" or dtype.kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    return not a.size or (int(a.min()) >= limits.min and int(a.max()) <= limits.max)


def _overflows(a: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """Return whether a finite number would be none in this float or complex dtype."""
    if a.dtype.kind in "bUSVO" and not _is_float(a.dtype) or not a.size or (
            np.can_cast(a.dtype, dtype, "safe")) or dtype.kind not in "fcV" or (
            a.dtype.kind in "iu" and dtype.itemsize > 2):
        return False
    for part in (a.real, a.imag) if a.dtype.kind == "c" else (a,):
        finite = part[np.isfinite(part)]
        if finite.size:
            ends = np.stack([finite.min(), finite.max()])
            with np.errstate(over="ignore"):
                if not np.isfinite(ends.astype(dtype).astype(np.complex128)).all():
                    return True
    return False


def is_masked(value: Any) -> bool:
    """Return whether an array hides some of its elements, as arrays of numpy.ma do."""
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def may_cast(a: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """Return whether these values may be cast.

    ::

        >>> may_cast(np.array([1, 300]), np.dtype(np.int16)), may_cast(np.ones(2), np.dtype(int))
        (True, False)
        >>> may_cast(np.array([1e5, np.inf]), np.dtype(np.float16))
        False
    """
    return a.dtype == dtype or _holds(dtype, a) or (
        _casts(a.dtype, dtype) and not _overflows(a, dtype))


def inexact(a: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Any:
    """Return an integer of an array that a float dtype would round, or None.

    Asked where NumPy calls the cast safe: of integers of 64 bits, which float64 holds up to 2**53.

        >>> int(inexact(np.array([3, 2**53 + 1]), np.dtype(float)))
        9007199254740993
    """
    if a.dtype.kind not in "iu" or a.dtype.itemsize < 8 or dtype.kind not in "fc" or not a.size:
        return None
    if -(2**53) <= int(a.min()) and int(a.max()) <= 2**53:
        return None
    large = a[(a > 2**53) | (a < -(2**53))]
    lowest = large & (~large + large.dtype.type(1))  # the last bit that is set
    digits = large // lowest
    wrong = large[(digits > 2**53) | (digits < -(2**53))]
    return wrong[0] if wrong.size else None


def range_text(a: np.ndarray[Any, Any]) -> str:
    """Return the text of a message for the least and the greatest of some numbers; "" if there are
    none."""
    return f", from {a.min()} to {a.max()}" if a.size and a.dtype.kind in "iuf" else ""
