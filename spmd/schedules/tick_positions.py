"""Where a run is in a pipeline, as one integer, and what ranks do there.

In: the number of a tick, counted from the first step. Out: actions at that tick, and microbatches
in flight. A program says the integer while it runs; timelines and messages read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from spmd.schedules.actions import Action, gradient_kind
from spmd.schedules.pipeline_schedule import Schedule

TICKS, DRAINED = 1 << 40, 1 << 16


def packed(pipeline: int, drained: int = 0) -> int:
    """Return what is added to 1 + the number of a tick; drained: the ticks that have begun since
    no more microbatches come, 0 while they come."""
    return (pipeline * DRAINED + drained) * TICKS


class TickPosition(NamedTuple):
    """A tick of the pipeline with this number. drained: as of packed. ended: whether it is over,
    and the next one has not begun: the run is between two steps."""

    pipeline: int
    drained: int
    tick: int
    ended: bool = False

    @classmethod
    def of(cls, position: int) -> TickPosition:
        """Return where a run is that says this integer; a negative one after the tick has ended."""
        which, tick = divmod(abs(position) - 1, TICKS)
        return cls(*divmod(which, DRAINED), tick, position < 0)

    def actions(self, schedule: Schedule, stages: Iterable[int]) -> Iterator[Action]:
        """Yield what these stages do in this tick; microbatches are counted from the first step."""
        if self.ended:
            return
        cycle, row = divmod(self.tick, schedule.period or schedule.length)
        for stage in stages:
            for kind, rows in _rows(schedule).items():
                k = rows[row][stage]
                if k is not None and self._exists(k := k + cycle * schedule.microbatches, schedule):
                    yield Action(self.tick, stage, kind, k)

    def in_flight(self, schedule: Schedule, stages: Iterable[int]) -> list[int]:
        """Return the microbatches that any of these stages has begun, and not gone back through."""
        size, cycle = schedule.microbatches, schedule.period or schedule.length
        newest = (self.tick // cycle + 1) * size
        oldest = max(0, newest - (schedule.length // cycle + 2) * size)
        last = gradient_kind(schedule.ticks)
        return [k for k in range(oldest, newest) if self._exists(k, schedule) and any(
            schedule.tick("F", s, k) <= self.tick <= schedule.tick(last, s, k) - self.ended
            for s in stages)]

    def _exists(self, microbatch: int, schedule: Schedule) -> bool:
        """Return whether there is such a microbatch."""
        if not self.drained:
            return microbatch >= 0
        steps = (self.tick + 1 - self.drained) // (schedule.period or schedule.length)
        return 0 <= microbatch < steps * schedule.microbatches


@lru_cache(maxsize=8)
def _rows(schedule: Schedule) -> dict[str, list[list[int | None]]]:
    return {kind: schedule.microbatches_at(kind) for kind in schedule.ticks if kind != "U"}
