"""spmd.numpy's functions whose results are as long as data says: with a length that is given.

size= and fill_value= mean what they mean in JAX: of what there is, the first `size`; behind them
fill_value. Written in NumPy itself, so that eager runs compute the same.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np


def _kept(x: Any, mask: Any, size: int, fill: Any) -> Any:
    """Return the first elements along dim 0 where the mask holds; fill None: the first of them
    again."""
    at = np.where(mask, np.minimum(np.cumsum(mask) - 1, size), size)
    rest = x.shape[1:]
    made = np.full_like(x, _least(x), shape=(size + 1, *rest))  # unlike 0 + -0.0, this keeps signs
    with np.errstate(invalid="ignore"):  # of NaN
        np.maximum.at(made, at, x)
    made = made[:size]  # the last one got all others
    there = (np.arange(size) < np.sum(mask)).reshape((size, *[1] * len(rest)))
    if fill is None:  # 0 where there is nothing
        made = np.where(there, made, np.zeros_like(made))
    return np.where(there, made, made[:1] if fill is None else np.full_like(made, fill))


def _least(x: Any) -> Any:
    """Return the least value of x's dtype: no element is less."""
    kind = x.dtype.kind
    if kind in "biu":
        return False if kind == "b" else np.iinfo(str(x.dtype)).min
    return complex(-np.inf, -np.inf) if kind == "c" else -np.inf


def _empty(x: Any) -> bool:
    return any(isinstance(n, int) and n == 0 for n in x.shape)


def _places(x: Any) -> Any:
    return np.arange(x.shape[0], like=x)


def _nan(x: Any) -> Any:
    """Return a mask of the NaN in a row; integers have none."""
    return x != x


def _firsts(x: Any) -> Any:
    """Return a mask of the first of equal elements in a sorted row; all NaN are equal."""
    made = np.ones_like(x, dtype=bool)
    made[1:] = (x[1:] != x[:-1]) & ~(_nan(x[1:]) & _nan(x[:-1]))
    return made


def _row(x: Any) -> Any:
    return np.ravel(np.asarray(x) if isinstance(x, (list, tuple)) else x)


# ---- places --------------------------------------------------------------------------------------


def flatnonzero(a: Any, *, size: int, fill_value: Any = 0) -> Any:
    mask = _row(a) != 0
    return _kept(_places(mask), mask, size, fill_value)


def nonzero(a: Any, *, size: int, fill_value: Any = 0) -> Any:
    found = flatnonzero(a, size=size)
    there = np.arange(size) < np.count_nonzero(a)
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * np.ndim(a)
    places = (found,) * np.ndim(a) if _empty(a) else np.unravel_index(found, a.shape)
    return tuple(np.where(there, p, f) for p, f in zip(places, fills, strict=True))


def argwhere(a: Any, *, size: int, fill_value: Any = 0) -> Any:
    return np.stack(nonzero(a, size=size, fill_value=fill_value), axis=-1)


def compress(condition: Any, a: Any, axis: Any = None, *, size: int, fill_value: Any = 0) -> Any:
    a, axis = (_row(a), 0) if axis is None else (a, axis)
    if _empty(a):  # has nothing that could be taken
        shape = [size if d == axis % a.ndim else n for d, n in enumerate(a.shape)]
        return np.full_like(a, fill_value, shape=shape)
    found = np.moveaxis(np.take(a, flatnonzero(condition, size=size), axis), axis, -1)
    there = np.arange(size) < np.count_nonzero(condition)
    return np.moveaxis(np.where(there, found, np.full_like(found, fill_value)), -1, axis)


def extract(condition: Any, arr: Any, *, size: int, fill_value: Any = 0) -> Any:
    return _kept(_row(arr), _row(condition) != 0, size, fill_value)


def trim_zeros(filt: Any, trim: str = "fb", *, size: int, fill_value: Any = 0) -> Any:
    if _empty(filt):
        return np.full_like(filt, fill_value, shape=size)
    there, at = filt != 0, _places(filt)
    first = np.argmax(there) if "f" in trim.lower() else 0
    last = filt.shape[0] - np.argmax(there[::-1]) if "b" in trim.lower() else filt.shape[0]
    return _kept(filt, (at >= first) & (at < last) & np.any(there), size, fill_value)


# ---- sets ----------------------------------------------------------------------------------------


def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False,
    return_counts: bool = False, axis: Any = None, *, size: int, fill_value: Any = None,
) -> Any:
    """Return the sorted elements, each once; all NaN are equal. fill_value: the smallest element by
    default. axis: of its parts, whole."""
    if axis is None or np.ndim(ar) == 1:
        x = _row(ar)
        order = np.argsort(x, kind="stable") if return_index else None
        found = np.sort(x)
        mask = _firsts(found)
    else:
        x = np.moveaxis(ar, axis, 0)
        rows = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        order = np.lexsort(rows.T[::-1])
        rows, found, mask = rows[order], x[order], np.ones_like(order, dtype=bool)
        mask[1:] = np.any(rows[1:] != rows[:-1], axis=1)
    made = [_kept(found, mask, size, fill_value)]
    if axis is not None:
        made[0] = np.moveaxis(made[0], 0, axis)
    if return_index:
        made.append(_kept(order, mask, size, None))
    if return_inverse and x.ndim > 1:
        at = np.zeros_like(order)
        at[order] = np.cumsum(mask) - 1
        made.append(at)
    elif return_inverse and _empty(x):
        made.append(np.zeros(np.shape(ar), np.int64))
    elif return_inverse:  # what stands behind is larger than all
        at = np.searchsorted(_kept(found, mask, size, found[-1]), x)
        made.append(at.reshape(np.shape(ar)))
    if return_counts:
        begin = _kept(_places(found), mask, size + 1, found.shape[0])
        made.append(np.diff(begin))
    return made[0] if len(made) == 1 else tuple(made)


def _named(name: str, fields: str, options: dict[str, bool]) -> Callable[..., Any]:
    """Return unique with a named tuple of results."""
    result = namedtuple(name, f"values {fields}")  # type: ignore[misc]

    def call(x: Any, /, *, size: int, fill_value: Any = None) -> Any:
        return result(*unique(x, **options, size=size, fill_value=fill_value))

    return call


def union1d(ar1: Any, ar2: Any, *, size: int, fill_value: Any = None) -> Any:
    return unique(np.concatenate([_row(ar1), _row(ar2)]), size=size, fill_value=fill_value)


def intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False, *,
    size: int, fill_value: Any = None,
) -> Any:
    """Return the elements that are in both arrays. return_indices: also their positions; behind the
    last one, the length of the array."""
    x, y = _row(ar1), _row(ar2)
    dtype = np.result_type(x, y)
    x, y = x.astype(dtype), y.astype(dtype)
    found = np.sort(x)
    mask = _firsts(found) & np.isin(found, y)
    made = _kept(found, mask, size, fill_value)
    if not return_indices:
        return made
    order, there = np.argsort(y, kind="stable"), np.arange(size) < np.sum(mask)
    at = np.minimum(np.searchsorted(np.sort(y), made), y.shape[0] - 1)
    return (made, _kept(np.argsort(x, kind="stable"), mask, size, x.shape[0]),
            np.where(there, 0 if _empty(y) else order[at], y.shape[0]))


def setdiff1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int, fill_value: Any = None
) -> Any:
    """Return the elements of ar1 that are not in ar2. assume_unique: in the order of ar1, as NumPy
    has them then."""
    found = _row(ar1) if assume_unique else np.sort(_row(ar1))
    mask = ~np.isin(found, _row(ar2))
    return _kept(found, mask if assume_unique else mask & _firsts(found), size, fill_value)


def setxor1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int, fill_value: Any = None
) -> Any:
    """Return the elements that are in one of the arrays only; a NaN equals no other array's."""
    x, y = _row(ar1), _row(ar2)
    found = np.sort(np.concatenate([x, y]))
    mask, nan = _firsts(found) & (np.isin(found, x) != np.isin(found, y)), _nan(found)
    many = np.any(_nan(x)).astype(int) + np.any(_nan(y)).astype(int)
    return _kept(found, np.where(nan, np.cumsum(nan) <= many, mask), size, fill_value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (
        argwhere, compress, extract, flatnonzero, intersect1d, nonzero, setdiff1d, setxor1d,
        trim_zeros, union1d, unique)},
    "where": nonzero,
    "unique_values": lambda x, /, *, size, fill_value=None: unique(
        x, size=size, fill_value=fill_value),
    "unique_counts": _named("UniqueCountsResult", "counts", {"return_counts": True}),
    "unique_inverse": _named("UniqueInverseResult", "inverse_indices", {"return_inverse": True}),
    "unique_all": _named("UniqueAllResult", "indices inverse_indices counts", {
        "return_index": True, "return_inverse": True, "return_counts": True}),
}
