"""Optimizers that do not step at each call: gradients of several calls, and none that overflow."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spmd.optim.averages import kept, zeros
from spmd.optim.loss_scales import all_finite
from spmd.optim.transformation import (
    GradientTransformation,
    counter,
    either,
    in_type,
    map_trees,
    safe_increment,
    value_at,
    wide_type,
)


class MultiStepsState(NamedTuple):
    """Calls since the last step, steps, the state of the optimizer, and the gradients so far."""

    mini_step: Any
    gradient_step: Any
    inner_opt_state: Any
    acc_grads: Any


class MultiSteps:
    """Accumulate gradients, and step at every k-th call with the mean of k gradients. Updates of
    the other calls are zeros.

    - opt: the optimizer.
    - every_k_schedule: k, or a function of the number of steps so far.
    - use_grad_mean: False adds the gradients instead.
    - accumulator_dtype: the element type in which they are added: by default that of the
      parameters, float32 for half types.

    Example::

        @spmd.program
        def slow():
            w = spmd.input("w", (2,), np.float64, layout=("x",), default=lambda i: i)
            tx = spmd.optim.MultiSteps(spmd.optim.sgd(0.5), every_k_schedule=3)
            state = tx.init(w)
            for k in spmd.range(6):
                updates, state = tx.update(0 * w + k, state, w)
                w = spmd.optim.apply_updates(w, updates)
            return w

        print(spmd.build(slow).run(ranks=2))    # [-2.5 -1.5]
    """

    def __init__(self, opt: GradientTransformation, every_k_schedule: Any,
                 use_grad_mean: bool = True, accumulator_dtype: Any = None) -> None:
        self._opt, self._every = opt, every_k_schedule
        self._mean, self._dtype = use_grad_mean, accumulator_dtype

    def init(self, params: Any) -> MultiStepsState:
        """Return the state before the first call."""
        return MultiStepsState(counter(), counter(), self._opt.init(params),
                               zeros(params, self._dtype))

    def update(self, updates: Any, state: MultiStepsState, params: Any = None) -> Any:
        """Return the updates of this call, and the next state."""
        n = state.mini_step

        def grown(u: Any, a: Any) -> Any:
            u = in_type(u, np.result_type(wide_type(u), a.dtype))
            return a + (u - a) / in_type(n + 1, a.real.dtype) if self._mean else a + u

        total = map_trees(grown, updates, state.acc_grads)
        emit = n == value_at(self._every, state.gradient_step) - 1

        def step() -> Any:
            gradients = map_trees(lambda t, u: in_type(t, wide_type(u)), total, updates)
            result, new = self._opt.update(gradients, state.inner_opt_state, params)
            return (map_trees(lambda f, u: in_type(f, wide_type(u)), result, updates), new,
                    zeros(state.acc_grads))

        def wait() -> Any:
            return zeros(updates), state.inner_opt_state, kept(total, state.acc_grads)

        result, new, grads = either(emit, step, wait)
        gone = np.where(emit, np.int32(0), safe_increment(n))
        steps = np.where(emit, safe_increment(state.gradient_step), state.gradient_step)
        return result, MultiStepsState(gone, steps, new, grads)

    def has_updated(self, state: MultiStepsState) -> Any:
        """Return whether the last call made a step."""
        return np.logical_and(state.mini_step == 0, state.gradient_step > 0)

    def gradient_transformation(self) -> GradientTransformation:
        """Return this optimizer as a pair of functions."""
        return GradientTransformation(self.init, self.update)


class ApplyIfFiniteState(NamedTuple):
    """Steps that were not finite: in a row, and all; whether the last one was; the inner state."""

    notfinite_count: Any
    last_finite: Any
    total_notfinite: Any
    inner_state: Any


def apply_if_finite(inner: GradientTransformation, max_consecutive_errors: int
                    ) -> GradientTransformation:
    """Return an optimizer that makes no step where a gradient is infinite or NaN: updates are
    zeros, and its state stays. More than so many in a row are let through."""

    def init(params: Any) -> ApplyIfFiniteState:
        return ApplyIfFiniteState(counter(), np.ones((), np.bool_), counter(), inner.init(params))

    def update(updates: Any, state: ApplyIfFiniteState, params: Any = None) -> Any:
        finite = all_finite(updates)
        row = np.where(finite, np.int32(0), safe_increment(state.notfinite_count))
        total = np.where(finite, state.total_notfinite, safe_increment(state.total_notfinite))

        def step() -> Any:
            result, new = inner.update(updates, state.inner_state, params)
            return map_trees(lambda f, u: in_type(f, wide_type(u)), result, updates), new

        def skip() -> Any:
            return zeros(updates), state.inner_state

        result, new = either(np.logical_or(finite, row > max_consecutive_errors), step, skip)
        return result, ApplyIfFiniteState(row, finite, total, new)

    return GradientTransformation(init, update)
