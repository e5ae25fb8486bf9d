"""Ranks that follow their microbatches through all stages, while the weights go around a ring.

In: a schedule. Out: a WeightRing: who does which action in a tick, and when the weights move on to
the next rank. Method: Lin et al., WeiPipe: weight pipeline parallelism for communication-effective
long-context large model training, PPoPP 2025. Always holds: a stage meets its microbatches in the
order of the schedule, so that its gradients are added in that order, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmd.schedules.actions import Action, row_of

if TYPE_CHECKING:
    from spmd.schedules.pipeline_schedule import Schedule


class NoRingError(ValueError):
    """A schedule whose weights cannot go around a ring. The text says why."""


@dataclass(frozen=True)
class Flow:
    """Rows of weights that move on by the same number of rows, one row for each stage.

    begin: by how many rows they are moved before the first tick. hops_after: by how many after each
    tick. end: by how many they have moved in all, modulo stages.
    """

    begin: int
    hops_after: Sequence[int]
    end: int

    @property
    def hops(self) -> int:
        """Return how many times the rows move on by one in a step."""
        return sum(self.hops_after)


@dataclass(frozen=True)
class WeightRing:
    """A schedule as rows of ranks do it while weights go around. There are as many rows as stages,
    and microbatch k is of row (k - 1) % stages.

    actions: of each tick, by row; None where it is idle. slots: where an action finds what F keeps
    for B, by (stage, microbatch); count: how many slots a row has. forward: the weights for F,
    which begin in reverse, with the weights of stage s in row stages - 1 - s. backward: the weights
    for B, and the gradients, which begin with those of stage s in row s.
    """

    actions: Sequence[Sequence[Action | None]]
    slots: dict[tuple[int, int], int]
    count: int
    forward: Flow
    backward: Flow


def ring_of(schedule: Schedule) -> WeightRing:
    """Return how the weights go around. NoRingError where the schedule does not fit."""
    if not schedule.flushes:
        raise NoRingError("it updates each stage by itself, and the weights are on their way")
    if schedule.splits_backward:
        raise NoRingError("it has W, for which gradients would go around once more")
    p = schedule.stages
    ticks: list[list[Action | None]] = [[None] * p for _ in range(schedule.length)]
    for action in schedule.actions():
        row = row_of(action.stage, action.microbatch, p, "microbatch")
        other = ticks[action.tick][row]
        if other is not None:
            raise NoRingError(
                f"tick {action.tick} has {other} and {action}, which one rank would have to do: "
                f"that of every microbatch k with k % {p} == {action.microbatch % p}")
        ticks[action.tick][row] = action
    for row in range(p):
        _check_order([a for tick in ticks if (a := tick[row])], p)
    slots, count = _slots(ticks, p)
    return WeightRing(ticks, slots, count, _flow(ticks, "F", p), _flow(ticks, "B", p))


def _check_order(actions: Sequence[Action], stages: int) -> None:
    """Raise NoRingError where a rank begins a pass before it has ended another one."""
    for kind in "FB":
        own = [a for a in actions if a.kind == kind]
        for before, after in zip(own, own[1:]):
            if before.microbatch != after.microbatch and before.stage != (
                    stages - 1 if kind == "F" else 0):
                raise NoRingError(f"tick {after.tick} has {after} before the pass of microbatch "
                                  f"{before.microbatch}, which is of the same rank, has ended")


def _flow(ticks: Sequence[Sequence[Action | None]], kind: str, stages: int) -> Flow:
    """Return how the weights for F, or for B, move: all of them by as many rows."""
    sign = 1 if kind == "F" else -1
    begin, last, end = 0, -1, stages - 1 if kind == "F" else 0
    hops_after = [0] * len(ticks)
    for t, tick in enumerate(ticks):
        moved: dict[int, Action] = {}
        for row, action in enumerate(tick):
            if action is not None and action.kind == kind:
                moved.setdefault((row + sign * action.stage) % stages, action)
        if len(moved) > 1:
            first, second = list(moved.values())[:2]
            raise NoRingError(f"tick {t} has {first} and {second}: the weights of both stages "
                              "would have to move by different numbers of ranks")
        for now in moved:
            if last < 0:
                begin = (now - end) % stages
            else:
                hops_after[last] = (now - end) % stages
            last, end = t, now
    return Flow(begin, hops_after, end)


def _slots(ticks: Sequence[Sequence[Action | None]], stages: int
           ) -> tuple[dict[tuple[int, int], int], int]:
    """Return the slot of each stage and microbatch, the lowest one that is free; and how many."""
    slots: dict[tuple[int, int], int] = {}
    used: list[set[int]] = [set() for _ in range(stages)]
    for tick in ticks:
        for taken, action in zip(used, tick):
            if action is None:
                continue
            key = action.stage, action.microbatch
            if action.kind == "F":
                slots[key] = next(k for k in range(len(taken) + 1) if k not in taken)
                taken.add(slots[key])
            else:
                taken.remove(slots[key])
    return slots, 1 + max(slots.values())
