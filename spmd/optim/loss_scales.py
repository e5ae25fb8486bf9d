"""Factors of a loss, so that gradients of float16 neither vanish nor overflow (Micikevicius, 2018).

A loss times a factor has gradients times it; these are divided again in float32.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from spmd.optim.transformation import in_type, leaves_of, map_trees, sums_of_parts


def all_finite(tree: Any) -> Any:
    """Return whether no element of any array in a tree is infinite or NaN."""
    elsewhere = sums_of_parts.get()
    if elsewhere is not None:
        return elsewhere(tree, lambda x: np.sum(~np.isfinite(x)), False) == 0
    return reduce(np.logical_and, [np.all(np.isfinite(x)) for x in leaves_of(tree)], np.True_)


class _Scaling:
    """Both kinds of scales have this: a factor of losses, by which gradients are divided."""

    def scale(self: Any, tree: Any) -> Any:
        """Return a loss, or a tree of arrays, times the factor."""
        return map_trees(lambda x: x * in_type(self.loss_scale, x.dtype), tree)

    def unscale(self: Any, tree: Any) -> Any:
        """Return a tree of gradients over the factor, in float32 or wider."""
        def divided(x: Any) -> Any:
            wide = np.result_type(x.dtype, np.float32)
            return x.astype(wide) / in_type(self.loss_scale, wide)

        return map_trees(divided, tree)


class _Static(NamedTuple):
    loss_scale: Any


class _Dynamic(NamedTuple):
    loss_scale: Any
    counter: Any
    period: Any
    factor: Any
    min_loss_scale: Any


class StaticLossScale(_Scaling, _Static):
    """A factor that stays. Made by `static_loss_scale`."""

    def adjust(self, grads_finite: Any) -> StaticLossScale:
        """Return itself, since the factor stays."""
        return self


class DynamicLossScale(_Scaling, _Dynamic):
    """A factor that grows while gradients are finite. Made by `dynamic_loss_scale`."""

    def adjust(self, grads_finite: Any) -> DynamicLossScale:
        """Return the next scale: greater after `period` steps that were all finite, smaller after
        one that was not."""
        last = self.counter == self.period - 1
        greater = self.loss_scale * self.factor
        up = np.where(np.logical_and(last, np.isfinite(greater)), greater, self.loss_scale)
        down = np.maximum(self.loss_scale / self.factor, self.min_loss_scale)
        count = np.where(np.logical_and(grads_finite, np.logical_not(last)), self.counter + 1, 0)
        return self._replace(loss_scale=in_type(np.where(grads_finite, up, down), np.float32),
                             counter=in_type(count, np.int32))


def static_loss_scale(loss_scale: float) -> StaticLossScale:
    """Return a factor of the loss that stays: see dynamic_loss_scale for its use."""
    return StaticLossScale(np.full((), loss_scale, np.float32))


def dynamic_loss_scale(
    loss_scale: float = 2.0**15, period: int = 2000, factor: float = 2.0,
    min_loss_scale: float = 1.0,
) -> DynamicLossScale:
    """Return a factor of the loss that is multiplied by `factor` after `period` steps with finite
    gradients, and divided by it after a step without, down to min_loss_scale.

    Scale the loss, unscale the gradients, skip what is not finite, adjust:

    Example::

        @spmd.program
        def half():
            w = spmd.asarray(np.float32(100.0))
            tx = spmd.optim.apply_if_finite(spmd.optim.sgd(0.1), 10)
            state, scaling = tx.init(w), spmd.optim.dynamic_loss_scale(2.0**15)
            for _ in spmd.range(100):
                grads = spmd.grad(lambda w: scaling.scale(w.astype(np.float16) ** 2))(w)
                grads = scaling.unscale(grads)
                updates, state = tx.update(grads, state, w)
                w = spmd.optim.apply_updates(w, updates)
                scaling = scaling.adjust(spmd.optim.all_finite(grads))
            return np.stack([w < 1e-3, scaling.loss_scale, state.total_notfinite])

        print(spmd.build(half).run(ranks=2))    # [  1. 256.   7.]
    """
    full, zero = np.full((), loss_scale, np.float32), np.zeros((), np.int32)
    return DynamicLossScale(full, zero, period, factor, min_loss_scale)
