"""Optimizers by their names: each a chain of transformations, the last one the learning rate's.

learning_rate is a number, a scalar of the program, or a schedule; mu_dtype the element type of
first moments; weight_decay a number or a schedule, and mask the leaves that it is for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmd.optim.averages import ema, trace
from spmd.optim.chaining import add_decayed_weights, chain, identity
from spmd.optim.clipping import clip_by_block_rms
from spmd.optim.factored import scale_by_factored_rms
from spmd.optim.scaling import (
    scale,
    scale_by_adam,
    scale_by_amsgrad,
    scale_by_belief,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_param_block_rms,
    scale_by_rms,
    scale_by_rss,
    scale_by_stddev,
    scale_by_trust_ratio,
)
from spmd.optim.some_leaves import masked
from spmd.optim.transformation import GradientTransformation


def sgd(learning_rate: Any, momentum: Any = None, nesterov: bool = False,
        accumulator_dtype: Any = None) -> GradientTransformation:
    """Make gradient descent, with momentum where one is given, and Nesterov's where asked for."""
    moved = identity() if momentum is None else trace(momentum, nesterov, accumulator_dtype)
    return chain(moved, scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0,
    mu_dtype: Any = None, *, nesterov: bool = False,
) -> GradientTransformation:
    """Make the optimizer Adam (Kingma and Ba, 2014): gradients over the root of the average of
    their squares.

    - b1, b2: how much of the averages of gradients and of their squares stays in a step.
    - eps: added to the root; eps_root: under the root.
    - nesterov: NAdam (Dozat, 2016).

    Example::

        @spmd.program
        def descend():
            w = {"a": spmd.asarray(1.0), "b": spmd.asarray(-2.0)}
            tx = spmd.optim.adam(0.1)
            state = tx.init(w)
            for _ in spmd.range(200):
                grads = spmd.grad(lambda w: (w["a"] - 3) ** 2 + w["b"] ** 2)(w)
                updates, state = tx.update(grads, state, w)
                w = spmd.optim.apply_updates(w, updates)
            return np.round(w["a"], 2), np.abs(w["b"]) < 1e-2

        print(spmd.build(descend).run(ranks=2))    # (array(3.), array(True))
    """
    return chain(scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
                 scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0,
    mu_dtype: Any = None, weight_decay: Any = 1e-4, mask: Any = None, *, nesterov: bool = False,
) -> GradientTransformation:
    """Make Adam, with decay of the weights beside it (Loshchilov and Hutter, 2019)."""
    return chain(scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
                 add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


def nadam(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0,
    mu_dtype: Any = None,
) -> GradientTransformation:
    """Make Adam with Nesterov's momentum (Dozat, 2016)."""
    return adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=True)


def nadamw(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0,
    mu_dtype: Any = None, weight_decay: Any = 1e-4, mask: Any = None,
) -> GradientTransformation:
    """Make NAdam, with decay of the weights beside it."""
    return adamw(learning_rate, b1, b2, eps, eps_root, mu_dtype, weight_decay, mask, nesterov=True)


def amsgrad(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0,
    mu_dtype: Any = None,
) -> GradientTransformation:
    """Make Adam, whose rates never grow again (Reddi et al., 2018)."""
    return chain(scale_by_amsgrad(b1, b2, eps, eps_root, mu_dtype),
                 scale_by_learning_rate(learning_rate))


def adabelief(learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-16,
              eps_root: Any = 1e-16) -> GradientTransformation:
    """Make Adam, with the square of what was not expected in the place of the square (Zhuang et
    al., 2020)."""
    return chain(scale_by_belief(b1, b2, eps, eps_root), scale_by_learning_rate(learning_rate))


def lars(
    learning_rate: Any, weight_decay: Any = 0.0, weight_decay_mask: Any = True,
    trust_coefficient: Any = 0.001, eps: Any = 0.0, trust_ratio_mask: Any = True,
    momentum: Any = 0.9, nesterov: bool = False,
) -> GradientTransformation:
    """Make momentum for large batches: each array's update has a norm like its weights' (You et
    al., 2017)."""
    ratio = scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps)
    return chain(add_decayed_weights(weight_decay, weight_decay_mask),
                 masked(ratio, trust_ratio_mask), scale_by_learning_rate(learning_rate),
                 trace(momentum, nesterov))


def lamb(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-6, eps_root: Any = 0.0,
    weight_decay: Any = 0.0, mask: Any = None,
) -> GradientTransformation:
    """Make Adam for large batches: each array's update has a norm like its weights' (You et al.,
    2019)."""
    return chain(scale_by_adam(b1, b2, eps, eps_root), add_decayed_weights(weight_decay, mask),
                 scale_by_trust_ratio(), scale_by_learning_rate(learning_rate))


def lion(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.99, mu_dtype: Any = None,
    weight_decay: Any = 1e-3, mask: Any = None,
) -> GradientTransformation:
    """Make the optimizer Lion: signs of a momentum, and one state an array (Chen et al., 2023)."""
    return chain(scale_by_lion(b1, b2, mu_dtype), add_decayed_weights(weight_decay, mask),
                 scale_by_learning_rate(learning_rate))


def rmsprop(
    learning_rate: Any, decay: Any = 0.9, eps: Any = 1e-8, initial_scale: Any = 0.0,
    eps_in_sqrt: bool = True, centered: bool = False, momentum: Any = None, nesterov: bool = False,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Divide gradients by the root of the average of their squares (Tieleman and Hinton, 2012);
    centered: by their standard deviation (Graves, 2013)."""
    by = scale_by_stddev if centered else scale_by_rms
    return chain(by(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
                 scale_by_learning_rate(learning_rate),
                 identity() if momentum is None else trace(momentum, nesterov))


def adagrad(learning_rate: Any, initial_accumulator_value: Any = 0.1, eps: Any = 1e-7
            ) -> GradientTransformation:
    """Divide gradients by the root of the sum of their squares so far (Duchi et al., 2011)."""
    return chain(scale_by_rss(initial_accumulator_value, eps),
                 scale_by_learning_rate(learning_rate))


def adafactor(
    learning_rate: Any = None, min_dim_size_to_factor: int = 128, decay_rate: Any = 0.8,
    decay_offset: Any = 0, multiply_by_parameter_scale: bool = True, clipping_threshold: Any = 1.0,
    momentum: Any = None, dtype_momentum: Any = np.float32, weight_decay_rate: Any = None,
    eps: Any = 1e-30, factored: bool = True, weight_decay_mask: Any = None,
) -> GradientTransformation:
    """Make the optimizer Adafactor: second moments of a matrix as those of its rows and columns
    (Shazeer and Stern, 2018)."""
    steps = [scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps)]
    if clipping_threshold is not None:
        steps.append(clip_by_block_rms(clipping_threshold))
    if learning_rate is not None:
        steps.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        steps.append(scale_by_param_block_rms())
    if momentum is not None:
        steps.append(ema(momentum, debias=False, accumulator_dtype=dtype_momentum))
    if weight_decay_rate is not None:
        steps.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*steps, scale(-1))
