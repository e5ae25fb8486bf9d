"""Schedules: functions of the number of steps so far, to a number."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spmd import UsageError
from spmd.extend import converted, user_place
from spmd.optim.transformation import Schedule


def constant_schedule(value: Any) -> Schedule:
    """Return a schedule with the same value at every step."""
    return lambda count: value


def polynomial_schedule(
    init_value: Any, end_value: Any, power: Any, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """Return a schedule from init_value to end_value in so many steps, along a polynomial of that
    power; constant before transition_begin and after the last."""
    if transition_steps <= 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: Any) -> Any:
        left = 1 - np.clip(count - begin, 0, transition_steps) / transition_steps
        return (init_value - end_value) * left**power + end_value

    return schedule


def linear_schedule(
    init_value: Any, end_value: Any, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """Return a schedule from init_value to end_value in so many steps, along a line; constant
    before transition_begin and after the last.

    Example::

        @spmd.program
        def rates():
            rate = spmd.optim.linear_schedule(1.0, 0.0, transition_steps=4)
            return rate(spmd.arange(6))

        print(spmd.build(rates).run(ranks=2))    # [1.   0.75 0.5  0.25 0.   0.  ]
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def exponential_decay(
    init_value: Any, transition_steps: int, decay_rate: Any, transition_begin: int = 0,
    staircase: bool = False, end_value: Any = None,
) -> Schedule:
    """Return a schedule of init_value times decay_rate to the power of steps over transition_steps.

    - transition_begin: the steps before the decay begins.
    - staircase: the power is rounded down.
    - end_value: where the decay ends.
    """
    if transition_steps <= 0 or decay_rate == 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: Any) -> Any:
        power = (count - begin) / transition_steps
        power = np.floor(power) if staircase else power
        value = np.where(count <= begin, init_value, init_value * decay_rate**power)
        if end_value is None:
            return value
        return (np.maximum if decay_rate < 1.0 else np.minimum)(value, end_value)

    return schedule


def cosine_decay_schedule(
    init_value: Any, decay_steps: int, alpha: Any = 0.0, exponent: Any = 1.0
) -> Schedule:
    """Return a schedule from init_value to alpha times it in decay_steps, along half a wave of a
    cosine (Loshchilov and Hutter, 2017). UsageError where decay_steps is not positive."""
    _check_positive("cosine_decay_schedule", "decay_steps", decay_steps)

    def schedule(count: Any) -> Any:
        wave = 0.5 * (1 + np.cos(np.pi * np.minimum(count, decay_steps) / decay_steps))
        return init_value * ((1 - alpha) * wave**exponent + alpha)

    return schedule


def _check_positive(schedule: str, name: str, value: int) -> None:
    if value <= 0:
        raise UsageError(f"{schedule}: {name} is not positive", place=user_place(),
                         expected="at least 1", found=str(value))


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Join schedules, one after the other; each counts from the boundary where it begins."""
    ours = [converted(s) for s in schedules]

    def schedule(count: Any) -> Any:
        value = ours[0](count)
        for boundary, later in zip(boundaries, ours[1:], strict=True):
            value = np.where(count < boundary, value, later(count - boundary))
        return value

    return schedule


def warmup_constant_schedule(init_value: Any, peak_value: Any, warmup_steps: int) -> Schedule:
    """Return a schedule along a line to peak_value, where it stays."""
    return linear_schedule(init_value, peak_value, warmup_steps)


def warmup_cosine_decay_schedule(
    init_value: Any, peak_value: Any, warmup_steps: int, decay_steps: int, end_value: Any = 0.0,
    exponent: Any = 1.0,
) -> Schedule:
    """Return a schedule along a line to peak_value in warmup_steps, then along a cosine to
    end_value; decay_steps are those of both."""
    alpha = 0.0 if peak_value == 0.0 else end_value / peak_value
    decay = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    return join_schedules([linear_schedule(init_value, peak_value, warmup_steps), decay],
                          [warmup_steps])


def piecewise_constant_schedule(
    init_value: Any, boundaries_and_scales: Mapping[int, float] | None = None
) -> Schedule:
    """Return a schedule of init_value, times each scale from the step after its boundary on.
    UsageError for a negative scale."""
    scales = sorted((boundaries_and_scales or {}).items())
    _check_scales("piecewise_constant_schedule", [s for _, s in scales])

    def schedule(count: Any) -> Any:
        value = init_value
        for boundary, scale in scales:
            value = value * np.where(count < boundary, 1.0, scale)
        return value

    return schedule


def _check_scales(schedule: str, scales: Sequence[float]) -> None:
    if any(s < 0 for s in scales):
        raise UsageError(f"{schedule}: a scale is negative", place=user_place(),
                         expected="numbers of at least 0", found=str(list(scales)))


def piecewise_interpolate_schedule(
    interpolate_type: str, init_value: Any,
    boundaries_and_scales: Mapping[int, float] | None = None,
) -> Schedule:
    """Return a schedule from init_value to its product with each scale, which is reached at its
    boundary, along lines ("linear") or halves of cosines ("cosine"). UsageError for another type,
    or a negative scale."""
    if interpolate_type not in ("linear", "cosine"):
        raise UsageError("piecewise_interpolate_schedule: interpolate_type is unknown",
                         place=user_place(), expected="'linear' or 'cosine'",
                         found=repr(interpolate_type))
    pairs = sorted((boundaries_and_scales or {}).items())
    _check_scales("piecewise_interpolate_schedule", [s for _, s in pairs])
    bounds = [0, *(b for b, _ in pairs)]
    values = list(itertools.accumulate([s for _, s in pairs], lambda a, b: a * b,
                                       initial=init_value))

    def schedule(count: Any) -> Any:
        value = values[-1]
        for k in reversed(range(len(pairs))):
            part = (count - bounds[k]) / max(bounds[k + 1] - bounds[k], 1)
            begin, end = values[k], values[k + 1]
            way = part if interpolate_type == "linear" else 0.5 * (1 - np.cos(np.pi * part))
            value = np.where(count < bounds[k + 1], begin + (end - begin) * way, value)
        return value

    return schedule


def linear_onecycle_schedule(
    transition_steps: int, peak_value: Any, pct_start: float = 0.3, pct_final: float = 0.85,
    div_factor: float = 25.0, final_div_factor: float = 1e4,
) -> Schedule:
    """Return a schedule up to peak_value along a line in the part pct_start of the steps, down
    again until pct_final, and to almost nothing (Smith and Topin, 2018). UsageError where there are
    no steps."""
    _check_positive("linear_onecycle_schedule", "transition_steps", transition_steps)
    return piecewise_interpolate_schedule("linear", peak_value / div_factor, {
        int(pct_start * transition_steps): div_factor,
        int(pct_final * transition_steps): 1.0 / div_factor,
        transition_steps: 1.0 / final_div_factor})


def cosine_onecycle_schedule(
    transition_steps: int, peak_value: Any, pct_start: float = 0.3, div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Return a schedule up to peak_value along half a cosine in the part pct_start of the steps,
    and down to almost nothing (Smith and Topin, 2018). UsageError where there are no steps."""
    _check_positive("cosine_onecycle_schedule", "transition_steps", transition_steps)
    return piecewise_interpolate_schedule("cosine", peak_value / div_factor, {
        int(pct_start * transition_steps): div_factor,
        int(transition_steps): 1.0 / (div_factor * final_div_factor)})
