"""Operations on arrays of numbers: scales, thresholds, classes, lengths.

Always holds: what comes in is not written to. Names and meaning are those of NumPy and of
sklearn.preprocessing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from codegen.errors import InputError
from codegen.user.casts import may_cast

NORMS = ("l2", "l1", "max")


def normalise(x: Any, axis: int | None = -1, norm: str = "l2") -> np.ndarray:
    """Divide x by its length along an axis: "l2", "l1" or "max"; axis=None takes the whole array.

    Zeros stay zeros. What others call normalising, (x - mean) / std, is data.standardise.

    ::

        >>> data.normalise([3.0, 4.0]).tolist()
        [0.6, 0.8]
    """
    x = _floats(x)
    if not isinstance(norm, str) or norm not in NORMS or not isinstance(
            axis, int | np.integer | tuple | None):
        raise InputError("data.normalise divides by a length",
                         expected=f"axis: a number; norm: {', '.join(NORMS)}",
                         found=f"axis={axis!r}, norm={norm!r}",
                         remedy="data.standardise(x, mean, std) is (x - mean) / std")
    size = np.abs(x).astype(np.float64)
    high = np.max(size, axis, keepdims=True, initial=0)
    high = np.where((high == 0) | ~np.isfinite(high), 1, high)  # so that no square is too large
    lengths = {"l2": lambda: high * np.sqrt(np.sum((size / high) ** 2, axis, keepdims=True)),
               "l1": lambda: np.sum(size, axis, keepdims=True),
               "max": lambda: np.max(size, axis, keepdims=True)}
    length = lengths[norm]()
    return (x / np.where(length == 0, 1, length)).astype(x.dtype)


def standardise(x: Any, mean: Any = None, std: Any = None, axis: Any = None) -> np.ndarray:
    """Return (x - mean) / std; both default to those of x itself along `axis`.

    A deviation of 0 counts as 1.

    ::

        >>> data.standardise([1.0, 3.0], mean=1.0, std=2.0).tolist()
        [0.0, 1.0]
    """
    x, dtype = _wide(_floats(x))
    sums = np.promote_types(x.dtype, np.float64)
    mean = np.mean(x, axis, sums, keepdims=True) if mean is None else mean
    std = np.std(x, axis, sums, keepdims=True) if std is None else np.asarray(std)
    scaled = (x - np.asarray(mean, x.dtype)) / np.where(std == 0, 1, std).astype(x.dtype)
    return scaled.astype(dtype, copy=False)


def rescale(x: Any, low: Any = None, high: Any = None, to: tuple[float, float] = (0.0, 1.0)) -> Any:
    """Map the range from low to high linearly to the range from to[0] to to[1].

    low and high broadcast; without them they are the smallest and the largest of x.

    ::

        >>> data.rescale([0.0, 5.0, 10.0], to=(-1, 1)).tolist()
        [-1.0, 0.0, 1.0]
    """
    x, dtype = _wide(_floats(x))
    low = x.min() if low is None else np.asarray(low, x.dtype)
    high = x.max() if high is None else np.asarray(high, x.dtype)
    span = np.where(high == low, 1, high - low).astype(x.dtype)
    scaled = (x - low) / span * x.dtype.type(to[1] - to[0]) + x.dtype.type(to[0])
    return scaled.astype(dtype, copy=False)


def binarise(x: Any, threshold: float = 0.0) -> np.ndarray:
    """Return 1 where x is above the threshold, else 0, in the dtype of x.

    ::

        >>> data.binarise([0.2, 0.7], 0.5).tolist()
        [0.0, 1.0]
    """
    x = np.asarray(x)
    return (x > threshold).astype(x.dtype)


def one_hot(labels: Any, classes: int, dtype: Any = np.float32) -> np.ndarray:
    """Return rows of `classes` zeros with a 1 at the label. InputError for a label beyond them.

    ::

        >>> data.one_hot([0, 2], 3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iub" or np.any((labels < 0) | (labels >= classes)):
        description = f"{labels.dtype}" + (
            f", from {labels.min()} to {labels.max()}" if labels.size else "")
        raise InputError("a label is none of the classes", found=description,
                         expected=f"integers from 0 to {classes - 1}")
    return np.eye(classes, dtype=dtype)[labels.astype(np.int64)]


def pad(x: Any, shape: int | Sequence[int], value: Any = 0) -> np.ndarray:
    """Pad x with `value` at the end of each dim, up to `shape`. A number is for the first dim.

    ::

        >>> data.pad([1, 2], 4).tolist()
        [1, 2, 0, 0]
    """
    x = _typed(x, value)
    want = (shape, *x.shape[1:]) if isinstance(shape, int | np.integer) else tuple(shape)
    if len(want) != x.ndim or any(have > most for have, most in zip(x.shape, want)):
        raise InputError("an array is larger than it is padded to", expected=f"at most {want}",
                         found=f"{x.shape}", remedy="data.pad_or_cut cuts what is too long")
    if not _holds(value, x.dtype):
        raise InputError("the array is padded with what its dtype has not",
                         expected=f"a number of {x.dtype}", found=repr(value),
                         remedy="an array of another dtype: x.astype(…)")
    padded = np.full(want, value, x.dtype)
    padded[tuple(slice(n) for n in x.shape)] = x
    return padded


def pad_or_cut(x: Any, length: int, value: Any = 0) -> np.ndarray:
    """Return exactly `length` rows of x: cut off further ones, or append `value`.

    ::

        >>> data.pad_or_cut([1, 2, 3], 2).tolist(), data.pad_or_cut([1], 2).tolist()
        ([1, 2], [1, 0])
    """
    return pad(_typed(x, value)[:length], length, value)


def bucket(length: int, lengths: Sequence[int]) -> int:
    """Return the smallest of `lengths` that is at least `length`.

    ::

        >>> data.bucket(70, (64, 128, 256))
        128
    """
    fitting = [n for n in lengths if n >= length]
    if not fitting:
        raise InputError("nothing is long enough", expected=f"at most {max(lengths, default=0)}",
                         found=str(length), remedy="another length, or data.pad_or_cut")
    return min(fitting)


def stack(arrays: Sequence[Any], length: int | Sequence[int] | None = None, value: Any = 0) -> Any:
    """Stack arrays of unequal length, padded to the longest: (number of arrays, longest, …).

    length: pad to this instead; of several the smallest that holds all is taken.

    ::

        >>> data.stack([[1], [2, 3]], length=(4, 8)).tolist()
        [[1, 0, 0, 0], [2, 3, 0, 0]]
    """
    every = [_typed(a, value) for a in arrays]
    for k, a in enumerate(every):
        if a.ndim < 1 or a.shape[1:] != every[0].shape[1:]:
            raise InputError("arrays differ in more than their length",
                             expected=f"shape (any, {', '.join(map(str, every[0].shape[1:]))})",
                             found=f"{a.shape}, of array {k}", remedy="data.pad each of them")
    longest = max((len(a) for a in every), default=0)
    if length is None:
        length = longest
    elif not isinstance(length, int | np.integer):
        length = bucket(longest, length)
    return np.stack([pad(a, int(length), value) for a in every])


def _wide(x: np.ndarray) -> tuple[np.ndarray, np.dtype]:
    """Return the dtype in which floats are computed, and that of the result: those of 16 bits hold
    few sums and differences."""
    return x.astype(np.float32) if x.dtype.itemsize <= 2 else x, x.dtype


def _holds(value: Any, dtype: np.dtype) -> bool:
    """Return whether an array of this dtype holds this number; an integer or a bool unchanged."""
    number = np.asarray(value)
    if number.dtype.kind not in "biufc" or dtype.kind not in "biufc":
        return True
    if dtype.kind in "fc":
        return may_cast(number, dtype)
    with np.errstate(invalid="ignore", over="ignore"), suppress(OverflowError):
        return bool(np.all(np.full(number.shape, number, dtype) == number))
    return False


def _typed(x: Any, value: Any) -> np.ndarray:
    """Return x as an array; an empty list, whose numbers NumPy takes for floats, has the type of
    `value`."""
    return np.asarray(x, np.asarray(value).dtype if isinstance(x, list) and not x else None)


def _floats(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x if x.dtype.kind in "fc" else x.astype(np.float32 if x.dtype.itemsize < 4 else float)
