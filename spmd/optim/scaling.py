"""Transformations that scale updates: by numbers and schedules, by moments, by norms of weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spmd.extend import converted
from spmd.optim.averages import first_moment, kept, second_moment, unbiased, zeros
from spmd.optim.chaining import identity
from spmd.optim.some_leaves import empty
from spmd.optim.transformation import (
    CountState,
    GradientTransformation,
    counter,
    in_type,
    in_types,
    map_trees,
    needs_params,
    safe_increment,
    squared,
    transformation,
    wide_type,
)


class MomentsState(NamedTuple):
    """The number of steps, and averages of updates (mu) and of their squares (nu)."""

    count: Any
    mu: Any
    nu: Any


class AmsgradState(NamedTuple):
    """A MomentsState with nu_max, the greatest averages of squares so far."""

    count: Any
    mu: Any
    nu: Any
    nu_max: Any


class FirstMomentState(NamedTuple):
    """The number of steps, and the average of updates."""

    count: Any
    mu: Any


class SecondMomentState(NamedTuple):
    """The number of steps, and the average, or the sum, of squares of updates."""

    count: Any
    nu: Any


def scale(step_size: Any) -> GradientTransformation:
    """Multiply updates by a number."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        size = in_types(step_size)
        return map_trees(lambda u: size(u.dtype) * u, updates), state

    return transformation(empty, update)


def scale_by_schedule(step_size_fn: Any) -> GradientTransformation:
    """Multiply updates by what a schedule says, a function of the number of steps so far."""

    def init(params: Any) -> CountState:
        return CountState(counter())

    def update(updates: Any, state: CountState, params: Any = None) -> Any:
        size = in_types(converted(step_size_fn)(state.count))
        new = CountState(safe_increment(state.count))
        return map_trees(lambda u: size(u.dtype) * u, updates), new

    return transformation(init, update)


def scale_by_learning_rate(learning_rate: Any = None, *, flip_sign: bool = True
                           ) -> GradientTransformation:
    """Multiply updates by the learning rate, a number or a schedule; and by -1 unless
    flip_sign=False."""
    sign = -1 if flip_sign else 1
    if learning_rate is None:
        return identity()
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * converted(learning_rate)(count))
    return scale(sign * learning_rate)


def scale_by_sign() -> GradientTransformation:
    """Replace each update by its sign."""
    return GradientTransformation(
        empty, lambda updates, state, params=None: (map_trees(np.sign, updates), state))


def scale_by_adam(
    b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0, mu_dtype: Any = None, *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Scale updates as Adam does (Kingma and Ba, 2014); nesterov: as NAdam does (Dozat, 2016)."""

    def init(params: Any) -> MomentsState:
        return MomentsState(counter(), zeros(params, mu_dtype), zeros(params))

    def update(updates: Any, state: MomentsState, params: Any = None) -> Any:
        mu, nu = first_moment(updates, state.mu, b1), second_moment(updates, state.nu, b2)
        count = safe_increment(state.count)
        if nesterov:
            ahead = unbiased(mu, b1, safe_increment(count))
            now = unbiased(updates, b1, count)
            mean = map_trees(lambda m, g: b1 * m + (1 - b1) * g, ahead, now)
        else:
            mean = unbiased(mu, b1, count)
        square = unbiased(nu, b2, count)
        scaled = map_trees(lambda m, v: m / (np.sqrt(v + eps_root) + eps), mean, square)
        return scaled, MomentsState(count, kept(mu, state.mu), kept(nu, state.nu))

    return transformation(init, update)


def scale_by_amsgrad(
    b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0, mu_dtype: Any = None,
) -> GradientTransformation:
    """Scale as Adam does, over the root of the greatest average of squares so far (Reddi et al.,
    2018)."""

    def init(params: Any) -> AmsgradState:
        return AmsgradState(counter(), zeros(params, mu_dtype), zeros(params), zeros(params))

    def update(updates: Any, state: AmsgradState, params: Any = None) -> Any:
        mu, nu = first_moment(updates, state.mu, b1), second_moment(updates, state.nu, b2)
        count = safe_increment(state.count)
        most = map_trees(np.maximum, state.nu_max, unbiased(nu, b2, count))
        scaled = map_trees(lambda m, v: m / (np.sqrt(v + eps_root) + eps),
                           unbiased(mu, b1, count), most)
        return scaled, AmsgradState(count, kept(mu, state.mu), kept(nu, state.nu),
                                    kept(most, state.nu_max))

    return transformation(init, update)


def scale_by_belief(b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-16, eps_root: Any = 1e-16
                    ) -> GradientTransformation:
    """Scale as Adam does, over the root of the average of squares of what was not expected: updates
    less their average (Zhuang et al., 2020)."""

    def init(params: Any) -> MomentsState:
        return MomentsState(counter(), zeros(params), zeros(params))

    def update(updates: Any, state: MomentsState, params: Any = None) -> Any:
        mu = first_moment(updates, state.mu, b1)
        missed = map_trees(lambda u, m: u - m, updates, mu)
        nu = map_trees(lambda v: v + eps_root, second_moment(missed, state.nu, b2))
        count = safe_increment(state.count)
        scaled = map_trees(lambda m, v: m / (np.sqrt(v) + eps), unbiased(mu, b1, count),
                           unbiased(nu, b2, count))
        return scaled, MomentsState(count, kept(mu, state.mu), kept(nu, state.nu))

    return transformation(init, update)


def scale_by_lion(b1: Any = 0.9, b2: Any = 0.99, mu_dtype: Any = None) -> GradientTransformation:
    """Scale updates as Lion does: take signs (Chen et al., 2023)."""

    def init(params: Any) -> FirstMomentState:
        return FirstMomentState(counter(), zeros(params, mu_dtype))

    def update(updates: Any, state: FirstMomentState, params: Any = None) -> Any:
        scaled = map_trees(np.sign, first_moment(updates, state.mu, b1))
        mu = kept(first_moment(updates, state.mu, b2), state.mu)
        return scaled, FirstMomentState(safe_increment(state.count), mu)

    return transformation(init, update)


def scale_by_rss(initial_accumulator_value: Any = 0.1, eps: Any = 1e-7) -> GradientTransformation:
    """Divide updates by the root of the sum of all their squares so far (Duchi et al., 2011)."""

    def init(params: Any) -> SecondMomentState:
        return SecondMomentState(counter(), filled(params, initial_accumulator_value))

    def update(updates: Any, state: SecondMomentState, params: Any = None) -> Any:
        nu = map_trees(lambda u, t: squared(u) + t, updates, state.nu)
        scaled = map_trees(lambda u, t: np.where(t > 0, 1 / np.sqrt(t + eps), 0.0) * u, updates, nu)
        return scaled, SecondMomentState(safe_increment(state.count), kept(nu, state.nu))

    return transformation(init, update)


def filled(params: Any, value: Any) -> Any:
    return map_trees(lambda p: np.full_like(p, value, dtype=wide_type(p)), params)


def scale_by_rms(
    decay: Any = 0.9, eps: Any = 1e-8, initial_scale: Any = 0.0, eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Divide updates by the root of the average of their squares (Tieleman and Hinton, 2012)."""

    def init(params: Any) -> SecondMomentState:
        return SecondMomentState(counter(), filled(params, initial_scale))

    def update(updates: Any, state: SecondMomentState, params: Any = None) -> Any:
        nu, count = second_moment(updates, state.nu, decay), safe_increment(state.count)
        mean = unbiased(nu, decay, count) if bias_correction else nu
        scaled = map_trees(lambda u, v: u * _over_root(v, eps, eps_in_sqrt), updates, mean)
        return scaled, SecondMomentState(count, kept(nu, state.nu))

    return transformation(init, update)


def _over_root(v: Any, eps: Any, inside: bool) -> Any:
    return 1 / np.sqrt(v + eps) if inside else 1 / (np.sqrt(v) + eps)


def scale_by_stddev(
    decay: Any = 0.9, eps: Any = 1e-8, initial_scale: Any = 0.0, eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> GradientTransformation:
    """Divide updates by their running standard deviation (Graves, 2013)."""

    def init(params: Any) -> MomentsState:
        return MomentsState(counter(), zeros(params), filled(params, initial_scale))

    def update(updates: Any, state: MomentsState, params: Any = None) -> Any:
        mu, nu = first_moment(updates, state.mu, decay), second_moment(updates, state.nu, decay)
        count = safe_increment(state.count)
        means = [unbiased(t, decay, count) if bias_correction else t for t in (mu, nu)]
        # Of gradients that hardly differ, rounding may make the difference negative.
        scaled = map_trees(
            lambda u, m, v: u * _over_root(np.maximum(v - squared(m), 0), eps, eps_in_sqrt),
            updates, *means)
        return scaled, MomentsState(count, kept(mu, state.mu), kept(nu, state.nu))

    return transformation(init, update)


def scale_by_trust_ratio(min_norm: Any = 0.0, trust_coefficient: Any = 1.0, eps: Any = 0.0
                         ) -> GradientTransformation:
    """Multiply each array of updates by the norm of its parameter over its own (You et al., 2019).

    Squares are added in float64: float32 has none of 1e20 and of 1e-25.
    """

    def norm(x: Any) -> Any:
        wide = in_type(x, np.complex128 if x.dtype.kind == "c" else np.float64)
        return np.maximum(np.sqrt(np.sum(squared(wide))), min_norm)

    def scaled(u: Any, p: Any) -> Any:
        mine, theirs = norm(u), norm(p)
        none = np.logical_or(theirs == 0.0, mine == 0.0)
        ratio = np.where(none, 1.0, trust_coefficient * theirs / (mine + eps))
        return in_type(u * ratio, u.dtype)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        needs_params(params, "scale_by_trust_ratio")
        return map_trees(scaled, updates, params), state

    return transformation(empty, update)


def scale_by_param_block_rms(min_scale: Any = 1e-3) -> GradientTransformation:
    """Multiply each array of updates by the root of the mean square of its parameter."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        needs_params(params, "scale_by_param_block_rms")
        scaled = map_trees(
            lambda u, p: u * np.maximum(np.sqrt(np.mean(squared(p))), min_scale), updates, params)
        return scaled, state

    return transformation(empty, update)
