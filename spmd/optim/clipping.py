"""Transformations that limit updates: element by element, array by array, all together."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmd.optim.some_leaves import empty
from spmd.optim.transformation import (
    GradientTransformation,
    global_norm,
    in_type,
    map_trees,
    needs_params,
    squared,
    transformation,
)


def clip(max_delta: Any) -> GradientTransformation:
    """Clip every element to between -max_delta and max_delta."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return map_trees(lambda u: np.clip(u, -max_delta, max_delta), updates), state

    return transformation(empty, update)


def clip_by_global_norm(max_norm: Any) -> GradientTransformation:
    """Multiply all updates by one factor, so that their global norm is at most max_norm (Pascanu et
    al., 2012)."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        norm = global_norm(updates)
        within, divisor = norm < max_norm, np.where(norm == 0, 1, norm)

        def clipped(u: Any) -> Any:
            return np.where(within, u, u / in_type(divisor, u.real.dtype) * max_norm)

        return map_trees(clipped, updates), state

    return transformation(empty, update)


def clip_by_block_rms(threshold: Any) -> GradientTransformation:
    """Multiply each array by a factor, so that the root of its mean square is at most the threshold
    (Shazeer and Stern, 2018)."""

    def clipped(u: Any) -> Any:
        rms = np.sqrt(np.mean(squared(u)))
        return u / np.maximum(1.0, np.where(rms == 0, 0, rms / threshold))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return map_trees(clipped, updates), state

    return transformation(empty, update)


def adaptive_grad_clip(clipping: Any, eps: Any = 1e-3, axis: Any = None) -> GradientTransformation:
    """Multiply each unit's update by a factor, so that its norm is at most `clipping` times that of
    its weights (Brock et al., 2021).

    - eps: the least norm of weights that counts.
    - axis: the dims of a unit; by default all where at most one dim is longer than 1, dim 0 of 2
      or 3 dims (inputs first), and of more dims all but the last.
    """

    def norm(x: Any) -> Any:
        ndim = np.ndim(x)
        vector = sum(n != 1 for n in np.shape(x)) < 2
        usual = tuple(range(ndim)) if vector else (0,) if ndim < 4 else tuple(range(ndim - 1))
        return np.sqrt(np.sum(squared(x), axis=usual if axis is None else axis, keepdims=True))

    def clipped(u: Any, p: Any) -> Any:
        has, most = norm(u), clipping * np.maximum(norm(p), eps)
        return np.where(has < most, u, u * (most / np.maximum(has, 1e-6)))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        needs_params(params, "adaptive_grad_clip")
        return map_trees(clipped, updates, params), state

    return transformation(empty, update)
