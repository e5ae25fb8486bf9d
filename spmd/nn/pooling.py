"""Pooling: the largest or the mean element of windows that move along spatial dims.

Always holds: x is (batch, *spatial, channels), any dim of it may be split, and what lies beyond its
ends is never the largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from spmd import DtypeError, ShapeError
from spmd.nn.convolution import conv, numbers, pairs, places_of
from spmd.nn.shared import in_float32

__all__ = ["adaptive_avg_pool", "avg_pool", "max_pool"]


def max_pool(x: Any, window: Any, strides: Any = None, padding: Any = "VALID",
             dilation: Any = 1) -> Any:
    """Return the largest element of each window, in each channel; NaN where one is in it.

    - x: `(batch, *spatial, channels)`.
    - window: a number, or one for each spatial dim; strides: the window's, unless you say them.
    - padding: "VALID", "SAME", a number, or (before, behind) for each spatial dim.

    Returns `(batch, *places, channels)`. A gradient goes to the first of several equal elements.
    ShapeError where x has no spatial dim, DtypeError for complex numbers.

    Example::

        @spmd.program(mesh=("r",))
        def peaks(n: int = 6):
            x = spmd.input("x", (1, n, 1), np.float32, layout=(None, "r", None),
                           default=lambda b, i, c: (i * 5) % n)
            return spmd.nn.max_pool(x, 2)[0, :, 0]

        print(peaks.eager())    # [5. 4. 2.]
    """
    if np.result_type(x.dtype).kind == "c":
        raise DtypeError(f"spmd.nn.max_pool of {x.dtype}", expected="numbers that have an order")
    kind = x.dtype.kind
    lowest = False if kind == "b" else np.iinfo(x.dtype).min if kind in "iu" else -np.inf
    best: Any = None
    for part in _parts("max_pool", x, window, strides, padding, dilation, lowest):
        best = part if best is None else np.where((part > best) | (part != part), part, best)
    return best


@in_float32
def avg_pool(x: Any, window: Any, strides: Any = None, padding: Any = "VALID",
             count_include_pad: bool = True) -> Any:
    """Return the mean of each window, in each channel.

    The arguments are those of max_pool. count_include_pad: whether zeros beyond the ends of x count
    as elements, as in flax; without them a window at the edge has the mean of what lies in x.

    Example::

        @spmd.program(mesh=("r",))
        def means(n: int = 6):
            x = spmd.input("x", (1, n, 1), np.float32, layout=(None, "r", None),
                           default=lambda b, i, c: i)
            return spmd.nn.avg_pool(x, 2)[0, :, 0]

        print(means.eager())    # [0.5 2.5 4.5]
    """
    n = _spatial("avg_pool", x)
    wide, channels = numbers("window", window, n), x.shape[-1]
    steps = wide if strides is None else numbers("strides", strides, n)
    pads = pairs(padding, x.shape[1:-1], wide, steps, (1,) * n)
    dtype = np.result_type(x.dtype, np.float16)
    ones = np.ones((*wide, 1, channels), dtype)
    total = conv(x.astype(dtype), ones, strides=steps, padding=pads, groups=channels)
    if count_include_pad or not any(map(any, pads)):
        return total / dtype.type(np.prod(wide))
    count = [_within(*sizes) for sizes in zip(x.shape[1:-1], wide, steps, pads)]
    return total / np.prod(np.array(np.meshgrid(*count, indexing="ij")), 0)[..., None].astype(dtype)


@in_float32
def adaptive_avg_pool(x: Any, places: Any) -> Any:
    """Return the means of so many windows, as equally long as may be, along each spatial dim.

    Window i of n elements and m places is floor(i n / m) to ceil((i + 1) n / m). places: a number,
    or one for each spatial dim; 1 gives the mean of all, (batch, 1, ..., channels).

    Example::

        @spmd.program(mesh=("r",))
        def halves(n: int = 5):
            x = spmd.input("x", (1, n, 1), np.float32, layout=(None, "r", None),
                           default=lambda b, i, c: i)
            return spmd.nn.adaptive_avg_pool(x, 2)[0, :, 0]

        print(halves.eager())    # [1. 3.]
    """
    n = _spatial("adaptive_avg_pool", x)
    x = x.astype(np.result_type(x.dtype, np.float16))
    for d, m in enumerate(numbers("places", places, n), start=1):
        extent = x.shape[d]
        if extent % m == 0:  # also where m is 1
            x = np.mean(x.reshape(*x.shape[:d], m, extent // m, *x.shape[d + 1:]), d + 1)
            continue
        bounds = [(i * extent // m, -(-(i + 1) * extent // m)) for i in range(m)]
        x = np.stack([np.mean(x[(*[slice(None)] * d, slice(*ends))], d) for ends in bounds], d)
    return x


def _spatial(function: str, x: Any) -> int:
    """Return how many spatial dims there are."""
    if not 1 <= np.ndim(x) - 2 <= 3:
        raise ShapeError(f"spmd.nn.{function} of {np.shape(x)}",
                         expected="(batch, *spatial, channels), 1 to 3 spatial dims")
    return int(np.ndim(x) - 2)


def _within(extent: int, window: int, stride: int, pad: tuple[int, int]) -> Any:
    """Return how many elements of each window lie within a dim."""
    first = np.arange(places_of(extent, window, stride, 1, pad)) * stride - pad[0]
    return np.minimum(first + window, extent) - np.maximum(first, 0)


def _parts(function: str, x: Any, window: Any, strides: Any, padding: Any, dilation: Any,
           beyond: Any) -> Iterator[Any]:
    """Yield, for each place in a window, what stands there of all windows."""
    n = _spatial(function, x)
    wide, apart = numbers("window", window, n), numbers("dilation", dilation, n)
    steps = wide if strides is None else numbers("strides", strides, n)
    pads = pairs(padding, x.shape[1:-1], wide, steps, apart)
    places = [places_of(*sizes) for sizes in zip(x.shape[1:-1], wide, steps, apart, pads)]
    if any(map(any, pads)):
        x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=beyond)
    for k in product(*map(range, wide)):
        first = [j * d for j, d in zip(k, apart)]
        last = [f + s * (m - 1) + 1 if m else f for f, s, m in zip(first, steps, places)]
        yield x[(slice(None), *map(slice, first, last, steps))]
