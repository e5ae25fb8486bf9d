"""How much a stage keeps: lifetimes of activations as intervals of ticks, counted while they live.

In: intervals of the microbatches of one step, first and last tick, and the period after which the
next step follows (None: when this one is over). Always holds: counts are those of the steady
state, which is the most that any tick sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from spmd.schedules.actions import Ticks, gradient_kind

Intervals: TypeAlias = Sequence[tuple[int, int]]


def activations(ticks: Ticks, stage: int) -> Intervals:
    """Return the ticks from F to the last action that reads its activations: W, or else B."""
    return list(zip(ticks["F"][stage], ticks[gradient_kind(ticks)][stage]))


def output_gradients(ticks: Ticks, stage: int) -> Intervals:
    """Return the ticks from B to W, for which W needs the gradients of the stage's outputs."""
    return list(zip(ticks["B"][stage], ticks["W"][stage])) if "W" in ticks else []


def in_flight(ticks: Ticks, stage: int) -> Intervals:
    """Return the ticks from F to the gradient, and on to the update where a microbatch has one."""
    ends = ticks[gradient_kind(ticks)][stage]
    updates = ticks["U"][stage] if "U" in ticks else ends
    return [(f, max(e, u)) for f, e, u in zip(ticks["F"][stage], ends, updates)]


def received(ticks: Ticks, stage: int, kind: str) -> Intervals:
    """Return the ticks from the arrival of what F or B takes from a neighbour to that action.

    What arrives is there in the tick after the one that computed it. Empty at the ends.
    """
    other = stage - 1 if kind == "F" else stage + 1
    if not 0 <= other < len(ticks["F"]):
        return []
    return [(sent + 1, used) for sent, used in zip(ticks[kind][other], ticks[kind][stage])]


def most_at_once(intervals: Intervals, period: int | None) -> int:
    """Return how many intervals hold one tick, at most."""
    if not intervals:
        return 0
    if period is None:
        change = [0] * (max(last for _, last in intervals) + 2)
        for first, last in intervals:
            change[first] += 1
            change[last + 1] -= 1
        return max(accumulate(change))
    always, change = 0, [0] * (period + 1)
    for first, last in intervals:
        rounds, rest = divmod(last - first + 1, period)
        always += rounds
        begin = first % period
        end = begin + rest
        change[begin] += 1
        change[min(end, period)] -= 1
        if end > period:
            change[0] += 1
            change[end - period] -= 1
    return always + max(accumulate(change))


def smallest_modulus(intervals: Intervals, period: int | None) -> int:
    """Return the fewest slots such that microbatch k may have slot k % slots, and none clashes."""
    slots = most_at_once(intervals, period)
    while slots and any(_clashes(k, slots, intervals, period) for k in range(len(intervals))):
        slots += 1
    return slots


def _clashes(k: int, slots: int, intervals: Intervals, period: int | None) -> bool:
    """Return whether a later microbatch has the slot of k while k is in it."""
    first, last = intervals[k]
    return any(begin <= last and end >= first
               for begin, end in _later_owners(k, slots, intervals, period))


def _later_owners(
    k: int, slots: int, intervals: Intervals, period: int | None
) -> Iterator[tuple[int, int]]:
    """Yield the intervals of the microbatches behind k that have the slot of k."""
    size, last = len(intervals), intervals[k][1]
    soonest = min(first for first, _ in intervals)
    for later in range(k + slots, size if period is None else k + size * slots + 1, slots):
        shift = later // size * (period or 0)
        if period is not None and soonest + shift > last:
            return
        yield intervals[later % size][0] + shift, intervals[later % size][1] + shift
