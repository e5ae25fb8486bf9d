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


def _packed(x: Any, mask: Any, size: int, fill: Any) -> Any:
    """Return the first `size` parts along dim 0 for which the mask holds, then `fill`; for None,
    the first of them again."""
    slots = np.where(mask, np.minimum(np.cumsum(mask) - 1, size), size)
    rest = x.shape[1:]
    # the maximum with the least value keeps the sign of -0.0, which 0 + -0.0 loses
    packed = np.full_like(x, _least(x), shape=(size + 1, *rest))
    with np.errstate(invalid="ignore"):  # of NaN
        np.maximum.at(packed, slots, x)
    packed = packed[:size]  # the last one got all others
    there = (np.arange(size) < np.sum(mask)).reshape((size, *[1] * len(rest)))
    if fill is None:  # 0 where there is nothing
        packed = np.where(there, packed, np.zeros_like(packed))
    return np.where(there, packed, packed[:1] if fill is None else np.full_like(packed, fill))


def _least(x: Any) -> Any:
    """Return the least value of x's dtype: no element is less."""
    kind = x.dtype.kind
    if kind in "biu":
        return False if kind == "b" else np.iinfo(str(x.dtype)).min
    return complex(-np.inf, -np.inf) if kind == "c" else -np.inf


def _empty(x: Any) -> bool:
    return any(isinstance(n, int) and n == 0 for n in x.shape)


def _positions(x: Any) -> Any:
    return np.arange(x.shape[0], like=x)


def _nan(x: Any) -> Any:
    """Return a mask of the NaN in a row; integers have none."""
    return x != x


def _firsts(x: Any) -> Any:
    """Return a mask of the first of equal elements in a sorted row; all NaN are equal."""
    mask = np.ones_like(x, dtype=bool)
    mask[1:] = (x[1:] != x[:-1]) & ~(_nan(x[1:]) & _nan(x[:-1]))
    return mask


def _row(x: Any) -> Any:
    return np.ravel(np.asarray(x) if isinstance(x, (list, tuple)) else x)


# ---- places --------------------------------------------------------------------------------------


def flatnonzero(a: Any, *, size: int, fill_value: Any = 0) -> Any:
    mask = _row(a) != 0
    return _packed(_positions(mask), mask, size, fill_value)


def nonzero(a: Any, *, size: int, fill_value: Any = 0) -> Any:
    flat_indices = flatnonzero(a, size=size)
    there = np.arange(size) < np.count_nonzero(a)
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * np.ndim(a)
    places = (flat_indices,) * np.ndim(a) if _empty(a) else np.unravel_index(flat_indices, a.shape)
    return tuple(np.where(there, p, f) for p, f in zip(places, fills, strict=True))


def argwhere(a: Any, *, size: int, fill_value: Any = 0) -> Any:
    return np.stack(nonzero(a, size=size, fill_value=fill_value), axis=-1)


def compress(condition: Any, a: Any, axis: Any = None, *, size: int, fill_value: Any = 0) -> Any:
    a, axis = (_row(a), 0) if axis is None else (a, axis)
    if _empty(a):  # has nothing that could be taken
        shape = [size if d == axis % a.ndim else n for d, n in enumerate(a.shape)]
        return np.full_like(a, fill_value, shape=shape)
    taken = np.moveaxis(np.take(a, flatnonzero(condition, size=size), axis), axis, -1)
    there = np.arange(size) < np.count_nonzero(condition)
    return np.moveaxis(np.where(there, taken, np.full_like(taken, fill_value)), -1, axis)


def extract(condition: Any, arr: Any, *, size: int, fill_value: Any = 0) -> Any:
    return _packed(_row(arr), _row(condition) != 0, size, fill_value)


def trim_zeros(filt: Any, trim: str = "fb", *, size: int, fill_value: Any = 0) -> Any:
    if _empty(filt):
        return np.full_like(filt, fill_value, shape=size)
    there, indices = filt != 0, _positions(filt)
    first = np.argmax(there) if "f" in trim.lower() else 0
    last = filt.shape[0] - np.argmax(there[::-1]) if "b" in trim.lower() else filt.shape[0]
    return _packed(filt, (indices >= first) & (indices < last) & np.any(there), size, fill_value)


# ---- sets ----------------------------------------------------------------------------------------


def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False,
    return_counts: bool = False, axis: Any = None, *, size: int, fill_value: Any = None,
) -> Any:
    """Return the sorted elements, each once; all NaN are equal. With axis, the sorted slices along
    it. fill_value: the smallest element by default."""
    if axis is None or np.ndim(ar) == 1:
        x = _row(ar)
        order = np.argsort(x, kind="stable") if return_index else None
        ordered = np.sort(x)
        mask = _firsts(ordered)
    else:
        x = np.moveaxis(ar, axis, 0)
        rows = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        order = np.lexsort(rows.T[::-1])
        rows, ordered, mask = rows[order], x[order], np.ones_like(order, dtype=bool)
        mask[1:] = np.any(rows[1:] != rows[:-1], axis=1)
    results = [_packed(ordered, mask, size, fill_value)]
    if axis is not None:
        results[0] = np.moveaxis(results[0], 0, axis)
    if return_index:
        results.append(_packed(order, mask, size, None))
    if return_inverse and x.ndim > 1:
        inverse = np.zeros_like(order)
        inverse[order] = np.cumsum(mask) - 1
        results.append(inverse)
    elif return_inverse and _empty(x):
        results.append(np.zeros(np.shape(ar), np.int64))
    elif return_inverse:  # what stands behind is larger than all
        inverse = np.searchsorted(_packed(ordered, mask, size, ordered[-1]), x)
        results.append(inverse.reshape(np.shape(ar)))
    if return_counts:
        begin = _packed(_positions(ordered), mask, size + 1, ordered.shape[0])
        results.append(np.diff(begin))
    return results[0] if len(results) == 1 else tuple(results)


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
    ordered = np.sort(x)
    mask = _firsts(ordered) & np.isin(ordered, y)
    common = _packed(ordered, mask, size, fill_value)
    if not return_indices:
        return common
    order, there = np.argsort(y, kind="stable"), np.arange(size) < np.sum(mask)
    indices = np.minimum(np.searchsorted(np.sort(y), common), y.shape[0] - 1)
    return (common, _packed(np.argsort(x, kind="stable"), mask, size, x.shape[0]),
            np.where(there, 0 if _empty(y) else order[indices], y.shape[0]))


def setdiff1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int, fill_value: Any = None
) -> Any:
    """Return the elements of ar1 that are not in ar2. assume_unique: in the order of ar1, as NumPy
    has them then."""
    elements = _row(ar1) if assume_unique else np.sort(_row(ar1))
    mask = ~np.isin(elements, _row(ar2))
    return _packed(elements, mask if assume_unique else mask & _firsts(elements), size, fill_value)


def setxor1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int, fill_value: Any = None
) -> Any:
    """Return the elements that are in one of the arrays only; a NaN equals no other array's."""
    x, y = _row(ar1), _row(ar2)
    ordered = np.sort(np.concatenate([x, y]))
    mask, nan = _firsts(ordered) & (np.isin(ordered, x) != np.isin(ordered, y)), _nan(ordered)
    many = np.any(_nan(x)).astype(int) + np.any(_nan(y)).astype(int)
    return _packed(ordered, np.where(nan, np.cumsum(nan) <= many, mask), size, fill_value)


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
