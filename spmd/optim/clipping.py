"""Transformations that limit updates: element by element, array by array, all together."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmd.optim.chaining import empty
from spmd.optim.transformation import (
    GradientTransformation,
    global_norm,
    in_type,
    map_trees,
    squared,
)


def clip(max_delta: Any) -> GradientTransformation:
    """Every element between -max_delta and max_delta."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return map_trees(lambda u: np.clip(u, -max_delta, max_delta), updates), state

    return GradientTransformation(empty, update)


def clip_by_global_norm(max_norm: Any) -> GradientTransformation:
    """All updates times one factor, so that their global norm is at most max_norm (Pascanu et al.,
    2012).
    """

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        norm = global_norm(updates)
        within = norm < max_norm

        def clipped(u: Any) -> Any:
            return np.where(within, u, u / in_type(norm, u.real.dtype) * max_norm)

        return map_trees(clipped, updates), state

    return GradientTransformation(empty, update)


def clip_by_block_rms(threshold: Any) -> GradientTransformation:
    """Each array times a factor, so that the root of its mean square is at most the threshold
    (Shazeer and Stern, 2018).
    """

    def clipped(u: Any) -> Any:
        return u / np.maximum(1.0, np.sqrt(np.mean(squared(u))) / threshold)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return map_trees(clipped, updates), state

    return GradientTransformation(empty, update)
