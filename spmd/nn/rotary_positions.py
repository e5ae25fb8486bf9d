"""Rotary positions: features of queries and keys are turned by angles that say where they stand."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmd import ShapeError, UsageError
from spmd.extend import user_place
from spmd.nn.shared import floats


def rotary(
    x: Any, positions: Any = None, base: float = 10000.0, interleaved: bool = False
) -> Any:
    """Return queries or keys, whose features are turned in pairs by angles that grow with the
    position (J. Su et al., 2021): products of both then depend on how far apart they are.

    - x: (…, length, heads, size), with an even size.
    - positions: integers (…, length), the places 0, 1, 2, … unless you say otherwise. In a
      shard_map that splits the length, say it: a rank does not know what its part is of.
    - base: pair k turns by position * base ** (-2 k / size).
    - interleaved: pairs are features 2 k and 2 k + 1, as in the paper and in GPT-J. Otherwise they
      are features k and k + size / 2, as in GPT-NeoX and Llama.

    ShapeError for an odd size.

    >>> x = np.array([1.0, 0.0]) * np.ones((3, 1, 1))
    >>> spmd.nn.rotary(x)[:, 0].round(2)
    array([[ 1.  ,  0.  ],
           [ 0.54,  0.84],
           [-0.42,  0.91]])
    """
    x = floats(x, "rotary")
    size = x.shape[-1]
    if x.ndim < 3 or size % 2:
        raise ShapeError("spmd.nn.rotary turns pairs of features", place=user_place(),
                         expected="(…, length, heads, an even size)", found=str(x.shape))
    if positions is None and not isinstance(x.shape[-3], int):
        raise UsageError("spmd.nn.rotary of a rank's part of a sequence needs its positions",
                         place=user_place(), expected="positions=, where it stands in the whole",
                         found=f"{x.shape[-3]!r} rows",
                         remedy='give the shard_map spmd.arange(length, layout=("axis",)) too')
    wide = np.float64 if x.dtype == np.float64 else np.float32
    positions = np.arange(x.shape[-3]) if positions is None else positions
    speeds = np.float64(base) ** (np.arange(size // 2) * (-2.0 / size))
    angles = (positions[..., None] * speeds)[..., None, :]  # a dim for heads
    cos, sin = np.cos(angles).astype(wide), np.sin(angles).astype(wide)
    if interleaved:
        first, second = x[..., 0::2].astype(wide), x[..., 1::2].astype(wide)
    else:
        first, second = x[..., : size // 2].astype(wide), x[..., size // 2 :].astype(wide)
    turned = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        return np.stack(turned, -1).reshape(x.shape).astype(x.dtype)
    return np.concatenate(turned, -1).astype(x.dtype)
