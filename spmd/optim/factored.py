"""Second moments of matrices, kept as those of their rows and columns (Shazeer and Stern, 2018)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spmd.optim.averages import zeros
from spmd.optim.transformation import (
    GradientTransformation,
    counter,
    in_type,
    map_to,
    needs_params,
    safe_increment,
    squared,
    transformation,
    wide_type,
)


class FactoredState(NamedTuple):
    """The number of steps; moments of rows and columns where they are factored, else v."""

    count: Any
    v_row: Any
    v_col: Any
    v: Any


def scale_by_factored_rms(
    factored: bool = True, decay_rate: Any = 0.8, step_offset: Any = 0,
    min_dim_size_to_factor: int = 128, epsilon: Any = 1e-30,
) -> GradientTransformation:
    """Scale updates as Adafactor does: over the root of an average of squares, which of an array
    whose two longest dims have at least so many elements is the product of those along the two."""

    def dims(p: Any) -> tuple[int, int] | None:
        """Return the second longest dim, and the longest one."""
        if not factored or np.ndim(p) < 2:
            return None
        order = [int(k) for k in np.argsort([int(n) for n in np.shape(p)], kind="stable")]
        return None if np.shape(p)[order[-2]] < min_dim_size_to_factor else (order[-2], order[-1])

    def init_leaf(p: Any) -> Any:
        nothing, longest, zero = np.zeros((1,), wide_type(p)), dims(p), zeros(p)
        if longest is None:
            return nothing, nothing, zero
        return *(np.sum(zero, axis=d) for d in reversed(longest)), nothing

    def init(params: Any) -> FactoredState:
        return FactoredState(counter(), *map_to(3, init_leaf, params))

    def update(updates: Any, state: FactoredState, params: Any = None) -> Any:
        needs_params(params, "scale_by_factored_rms")
        rate = 1.0 - in_type(state.count - step_offset + 1, np.float32) ** -decay_rate

        def leaf(u: Any, row: Any, col: Any, v: Any, p: Any) -> Any:
            square, longest, kept = squared(u) + epsilon, dims(p), in_type(rate, p.real.dtype)
            if longest is None:
                v = in_type(kept * v + (1.0 - kept) * square, p.dtype)
                return u * v**-0.5, row, col, v
            d1, d0 = longest
            row = in_type(kept * row + (1.0 - kept) * np.mean(square, axis=d0), p.dtype)
            col = in_type(kept * col + (1.0 - kept) * np.mean(square, axis=d1), p.dtype)
            among = np.mean(row, axis=d1 - 1 if d1 > d0 else d1, keepdims=True)
            factors = np.expand_dims((row / among) ** -0.5, d0), np.expand_dims(col**-0.5, d1)
            return u * factors[0] * factors[1], row, col, v

        scaled, *moments = map_to(4, leaf, updates, state.v_row, state.v_col, state.v, params)
        return scaled, FactoredState(safe_increment(state.count), *moments)

    return transformation(init, update)
