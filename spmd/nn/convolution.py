"""Convolutions along one to three dims, and transposed ones: blocks of windows by products of BLAS.

Shapes are JAX's and flax's: x (batch, *spatial, channels), w (*window, in / groups, out).
Always holds: any dim of x and w may be split; ranks send each other the edges that windows reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmd import DtypeError, ShapeError, UsageError
from spmd.extend import convolve

__all__ = ["conv", "conv_transpose"]

Pairs = Sequence[tuple[int, int]]


def conv(x: Any, w: Any, b: Any = None, strides: Any = 1, padding: Any = "SAME", dilation: Any = 1,
         groups: int = 1) -> Any:
    """Return a convolution, as networks have it: w is not turned round.

    - x: `(batch, *spatial, in)` with one, two or three spatial dims.
    - w: `(*window, in / groups, out)`; b: (out,), is added.
    - strides, dilation: a number, or one for each spatial dim.
    - padding: "SAME" (ceil(n / stride) places, zeros around x), "VALID" (no zeros), a number, or
      (before, behind) for each spatial dim.
    - groups: so many groups of channels are convolved apart; with groups=in each channel is.

    Returns `(batch, *places, out)`, as jax.lax.conv_general_dilated with NHWC, HWIO, NHWC. Memory
    beside x and the result does not grow with them. ShapeError where shapes do not fit, DtypeError
    for integers.

    Example::

        @spmd.program(mesh=("rows",))
        def edges(n: int = 6):
            x = spmd.input("x", (1, n, n, 1), np.float32, layout=(None, "rows", None, None),
                           default=lambda b, i, j, c: j > 2)
            w = np.array([[[[-1.0]], [[0.0]], [[1.0]]]], np.float32)    # a window of 1 by 3
            return spmd.nn.conv(x, w, padding="VALID")[0, 0, :, 0]

        print(edges.eager())    # [0. 1. 1. 0.]
    """
    x, w, dtype = _operands("conv", x, w)
    n = x.ndim - 2
    steps, apart = numbers("strides", strides, n), numbers("dilation", dilation, n)
    window = w.shape[:-2]
    pads = pairs(padding, x.shape[1:-1], window, steps, apart)
    places = [places_of(*sizes) for sizes in zip(x.shape[1:-1], window, steps, apart, pads)]
    if x.shape[-1] != w.shape[-2] * groups or w.shape[-1] % groups:
        raise ShapeError(
            f"spmd.nn.conv: {x.shape[-1]} channels in {groups} groups meet a window {w.shape}",
            expected="w: (*window, in / groups, out), with out a multiple of groups",
            found=f"x {x.shape}, w {w.shape}, groups {groups}")
    grouped = _grouped(x, groups)
    start = [-before for before, _ in pads]
    y = convolve("y", grouped, _windows(w, groups), start, steps, apart, places)
    return _biased(y.reshape(*y.shape[:-2], w.shape[-1]), b, dtype)


def conv_transpose(x: Any, w: Any, b: Any = None, strides: Any = 1, padding: Any = "SAME",
                   dilation: Any = 1, groups: int = 1) -> Any:
    """Compute a transposed convolution, whose result is `strides` times as long as x along spatial
    dims.

    The arguments are those of conv. x is spread, with strides - 1 zeros between its elements, and
    then convolved: so jax.lax.conv_transpose has it, and flax. padding: "SAME" (n * stride places),
    "VALID" (all places that a window reaches), or pairs: zeros around what was spread.

    Example::

        @spmd.program(mesh=("r",))
        def wider(n: int = 3):
            x = spmd.input("x", (1, n, 1), np.float32, layout=(None, "r", None),
                           default=lambda b, i, c: i + 1)
            return spmd.nn.conv_transpose(x, np.ones((2, 1, 1), np.float32), strides=2)[0, :, 0]

        print(wider.eager())    # [1. 1. 2. 2. 3. 3.]
    """
    x, w, dtype = _operands("conv_transpose", x, w)
    n = x.ndim - 2
    steps, apart = numbers("strides", strides, n), numbers("dilation", dilation, n)
    window = w.shape[:-2]
    if x.shape[-1] != w.shape[-2] * groups or w.shape[-1] % groups:
        raise ShapeError(
            f"spmd.nn.conv_transpose: {x.shape[-1]} channels in {groups} groups meet a window "
            f"{w.shape}", expected="w: (*window, in / groups, out), with out a multiple of groups",
            found=f"x {x.shape}, w {w.shape}, groups {groups}")
    wide = [(k - 1) * d + 1 for k, d in zip(window, apart)]
    if isinstance(padding, str):
        pads: Pairs = [_transposed_padding(padding, k, s) for k, s in zip(wide, steps)]
    else:
        pads = pairs(padding, x.shape[1:-1], window, steps, apart)
    places = [max((e - 1) * s + 1 + before + behind - k + 1, 0)
              for e, s, k, (before, behind) in zip(x.shape[1:-1], steps, wide, pads)]
    start = [before - (k - 1) for k, (before, _) in zip(wide, pads)]
    turned = np.swapaxes(_windows(np.flip(w, tuple(range(n))), groups), -1, -2)
    y = convolve("x", turned, _grouped(x, groups), start, steps, apart, places)
    return _biased(y.reshape(*y.shape[:-2], w.shape[-1]), b, dtype)


# ---- what pooling has too ------------------------------------------------------------------------


def numbers(name: str, value: Any, n: int) -> tuple[int, ...]:
    """Return one number for each spatial dim."""
    each = tuple(value) if isinstance(value, (tuple, list)) else (value,) * n
    if len(each) != n or any(not isinstance(s, (int, np.integer)) or s < 1 for s in each):
        raise UsageError(f"{name} is {value!r}", expected=f"a number from 1 on, or {n} of them")
    return tuple(map(int, each))


def pairs(padding: Any, extents: Sequence[int], window: Sequence[int], strides: Sequence[int],
          dilation: Sequence[int]) -> Pairs:
    """Return how many zeros stand before and behind along each spatial dim."""
    n = len(extents)
    if isinstance(padding, str):
        if padding.upper() == "VALID":
            return [(0, 0)] * n
        if padding.upper() == "SAME":
            missing = [max((-(-e // s) - 1) * s + (k - 1) * d + 1 - e, 0)
                       for e, k, s, d in zip(extents, window, strides, dilation)]
            return [(m // 2, m - m // 2) for m in missing]
    else:
        each = list(padding) if isinstance(padding, (tuple, list)) else [padding] * n
        both = [p if isinstance(p, (tuple, list)) else (p, p) for p in each]
        if len(both) == n and all(len(p) == 2 for p in both):
            return [(int(before), int(behind)) for before, behind in both]
    raise UsageError(
        f"padding is {padding!r}",
        expected=f'"SAME", "VALID", a number, or (before, behind) for each of {n} spatial dims')


def places_of(extent: int, window: int, stride: int, dilation: int, pad: tuple[int, int]) -> int:
    """Return at how many places along a dim a window fits."""
    return max((extent + sum(pad) - (window - 1) * dilation - 1) // stride + 1, 0)


# ---- their parts ---------------------------------------------------------------------------------

def _operands(function: str, x: Any, w: Any) -> tuple[Any, Any, Any]:
    """Return both operands in the type in which they are multiplied, and the type of the result."""
    n = np.ndim(w) - 2
    if not 1 <= n <= 3 or np.ndim(x) != n + 2:
        raise ShapeError(
            f"spmd.nn.{function}: x {np.shape(x)} and w {np.shape(w)}",
            expected="x (batch, *spatial, channels), w (*window, in, out), 1 to 3 spatial dims")
    dtype = np.result_type(x.dtype, w.dtype)
    if dtype.kind in "biu":
        raise DtypeError(f"spmd.nn.{function} of {x.dtype} and {w.dtype}",
                         expected="floating-point or complex numbers", found=str(dtype),
                         remedy="x.astype(np.float32)")
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    return x.astype(wide), w.astype(wide), dtype


def _grouped(x: Any, groups: int) -> Any:
    return x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)


def _windows(w: Any, groups: int) -> Any:
    """Return (groups, *window, in / groups, out / groups)."""
    apart = w.reshape(*w.shape[:-1], groups, w.shape[-1] // groups)
    return np.moveaxis(apart, -2, 0)


def _biased(y: Any, b: Any, dtype: Any) -> Any:
    y = y if b is None else y + b
    return y if y.dtype == dtype else y.astype(dtype)


def _transposed_padding(padding: str, window: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and behind what was spread; windows count with their gaps, as
    jax.lax.conv_transpose counts them."""
    if padding.upper() == "VALID":
        return window - 1, stride - 1 + max(window - stride, 0)
    if padding.upper() != "SAME":
        raise UsageError(f"padding is {padding!r}", expected='"SAME", "VALID", or pairs of numbers')
    total = window + stride - 2
    before = window - 1 if stride > window - 1 else -(-total // 2)
    return before, total - before
