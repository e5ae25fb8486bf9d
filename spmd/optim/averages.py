"""Running averages: moments of gradients, momentum, and averages of weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spmd import extend
from spmd.extend import half_type_of, narrowed
from spmd.optim.transformation import (
    GradientTransformation,
    counter,
    in_type,
    in_types,
    map_trees,
    safe_increment,
    squared,
    transformation,
    wide_type,
)


class TraceState(NamedTuple):
    """The sum of updates so far, in which older ones count less."""

    trace: Any


class EmaState(NamedTuple):
    """An average, and how many steps it is of."""

    count: Any
    ema: Any


def zeros(params: Any, dtype: Any = None) -> Any:
    """Return zeros in the shape and the layout of each parameter, in its type, or in float32 where
    that is a half type, in which what is added again and again would soon be lost."""
    return map_trees(lambda p: np.zeros_like(p, dtype=dtype or wide_type(p)), params)


def kept(tree: Any, before: Any) -> Any:
    """Return a state in the element types that it had, so that a loop carries it: gradients may be
    wider than parameters, and numbers wider than both."""
    return map_trees(lambda x, old: in_type(x, old.dtype), tree, before)


def first_moment(updates: Any, before: Any, decay: Any) -> Any:
    return map_trees(lambda u, m: (1 - decay) * u + decay * m, updates, before)


def second_moment(updates: Any, before: Any, decay: Any) -> Any:
    return map_trees(lambda u, m: (1 - decay) * squared(u) + decay * m, updates, before)


def unbiased(moment: Any, decay: Any, count: Any) -> Any:
    """Return a moment that began with zeros, over the sum of its weights: Adam, section 3
    (2014)."""
    weight = in_types(1 - decay**count)
    return map_trees(lambda m: m / weight(m.dtype), moment)


def trace(decay: Any, nesterov: bool = False, accumulator_dtype: Any = None
          ) -> GradientTransformation:
    """Add momentum to updates: the result is the updates plus `decay` times the result before.

    - nesterov: looks a step ahead (Sutskever et al., 2013).
    - accumulator_dtype: the element type of the sum; by default that of the parameter, float32 for
      half types.
    """

    def init(params: Any) -> TraceState:
        return TraceState(zeros(params, accumulator_dtype))

    def update(updates: Any, state: TraceState, params: Any = None) -> Any:
        now = map_trees(lambda u, t: u + decay * t, updates, state.trace)
        result = map_trees(lambda u, t: u + decay * t, updates, now) if nesterov else now
        return result, TraceState(kept(now, state.trace))

    return transformation(init, update)


def ema(decay: Any, debias: bool = True, accumulator_dtype: Any = None) -> GradientTransformation:
    """Average updates exponentially; or weights: `average.update(params, state)`.

    - decay: how much of the average stays, 0 to 1.
    - debias: divides by the sum of the weights so far, as the average begins with zeros.
    - accumulator_dtype: the element type of the average; by default that of the parameter, float32
      for half types.

    Example::

        @spmd.program
        def averaged():
            w = spmd.input("w", (3,), np.float64, layout=("x",), default=lambda i: i)
            average = spmd.optim.ema(0.9)
            state = average.init(w)
            for _ in spmd.range(4):
                w = w + 1
                mean, state = average.update(w, state)
            return np.round(mean, 3)

        print(spmd.build(averaged).run(ranks=2))    # [2.631 3.631 4.631]
    """

    def init(params: Any) -> EmaState:
        return EmaState(counter(), zeros(params, accumulator_dtype))

    def update(updates: Any, state: EmaState, params: Any = None) -> Any:
        count, now = safe_increment(state.count), first_moment(updates, state.ema, decay)
        result = unbiased(now, decay, count) if debias else now
        return result, EmaState(count, kept(now, state.ema))

    return transformation(init, update)


def incremental_update(new_tensors: Any, old_tensors: Any, step_size: Any) -> Any:
    """Return a step from the old tree towards the new one: `step_size * new + (1 - step_size) *
    old`."""
    def between(new: Any, old: Any) -> Any:
        half, (new, old) = half_type_of((new, old)), extend.widened((new, old))
        return narrowed(step_size * new + (1.0 - step_size) * old, half)

    return map_trees(between, new_tensors, old_tensors)
