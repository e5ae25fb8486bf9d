"""Optimizers as optax has them, written in the language itself: they lie where parameters lie.

A transformation is a pair of functions, `init(params)` and `update(updates, state, params)`; states
are NamedTuples of arrays, which loops carry. The names, parameters and defaults are optax's.
"""

from __future__ import annotations

from spmd.optim.averages import ema, incremental_update, trace
from spmd.optim.chaining import add_decayed_weights, chain, identity, named_chain
from spmd.optim.clipping import (
    adaptive_grad_clip,
    clip,
    clip_by_block_rms,
    clip_by_global_norm,
)
from spmd.optim.factored import scale_by_factored_rms
from spmd.optim.injected import inject_hyperparams
from spmd.optim.loss_scales import (
    DynamicLossScale,
    StaticLossScale,
    all_finite,
    dynamic_loss_scale,
    static_loss_scale,
)
from spmd.optim.optimizers import (
    adabelief,
    adafactor,
    adagrad,
    adam,
    adamw,
    amsgrad,
    lamb,
    lars,
    lion,
    nadam,
    nadamw,
    rmsprop,
    sgd,
)
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
    scale_by_schedule,
    scale_by_sign,
    scale_by_stddev,
    scale_by_trust_ratio,
)
from spmd.optim.schedules import (
    constant_schedule,
    cosine_decay_schedule,
    cosine_onecycle_schedule,
    exponential_decay,
    join_schedules,
    linear_onecycle_schedule,
    linear_schedule,
    piecewise_constant_schedule,
    piecewise_interpolate_schedule,
    polynomial_schedule,
    warmup_constant_schedule,
    warmup_cosine_decay_schedule,
)
from spmd.optim.some_leaves import (
    freeze,
    masked,
    partition,
    selective_transform,
    set_to_zero,
)
from spmd.optim.some_steps import MultiSteps, apply_if_finite
from spmd.optim.split_states import sharded
from spmd.optim.transformation import GradientTransformation, apply_updates, global_norm

multi_transform = partition  # its older name

__all__ = [
    "DynamicLossScale", "GradientTransformation", "MultiSteps", "StaticLossScale", "adabelief",
    "adafactor", "adagrad", "adam", "adamw", "adaptive_grad_clip", "add_decayed_weights",
    "all_finite", "amsgrad", "apply_if_finite", "apply_updates", "chain", "clip",
    "clip_by_block_rms", "clip_by_global_norm", "constant_schedule", "cosine_decay_schedule",
    "cosine_onecycle_schedule", "dynamic_loss_scale", "ema", "exponential_decay", "freeze",
    "global_norm", "identity", "incremental_update", "inject_hyperparams", "join_schedules", "lamb",
    "lars", "linear_onecycle_schedule", "linear_schedule", "lion", "masked", "multi_transform",
    "nadam", "nadamw", "named_chain", "partition", "piecewise_constant_schedule",
    "piecewise_interpolate_schedule", "polynomial_schedule", "rmsprop", "scale", "scale_by_adam",
    "scale_by_amsgrad", "scale_by_belief", "scale_by_factored_rms", "scale_by_learning_rate",
    "scale_by_lion", "scale_by_param_block_rms", "scale_by_rms", "scale_by_rss",
    "scale_by_schedule", "scale_by_sign", "scale_by_stddev", "scale_by_trust_ratio",
    "selective_transform", "set_to_zero", "sgd", "sharded", "static_loss_scale", "trace",
    "warmup_constant_schedule", "warmup_cosine_decay_schedule",
]
