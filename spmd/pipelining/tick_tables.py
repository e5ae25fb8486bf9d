"""A schedule as tables of integers: a line for each tick of a cycle, a column for each stage.

In: a Schedule. Out: what each stage does, of which microbatch, and what arrives at it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spmd.schedules.actions import ABSENT
from spmd.schedules.pipeline_schedule import Schedule

IDLE, FORWARD, BACKWARD, WEIGHTS = 0, 1, 2, 3
NONE = -(2**30)  # in the place of a microbatch: below the number of any of them


@dataclass(frozen=True, eq=False)
class TickTables:
    """Tables of what stages do in each tick of a cycle. Microbatches are counted from the first one
    of the step that begins with the cycle; those of earlier steps are below 0.

    kinds: IDLE, FORWARD, BACKWARD or, where W is an action of its own, WEIGHTS. microbatches: of
    which.
    activations, cotangents: those that arrive at a stage at the end of a tick, or NONE. behind: how
    many earlier steps are in flight.
    slots, crossing: of how many microbatches stages keep what F gives to B, and B to W. received,
    returned: in how many slots they hold what has arrived. Each stage has numbers of its own: what
    is apart with k % slots may not be so with more slots.
    waits: whether anything that arrives is used later than in the next tick. updates: the newest
    microbatch of an update that may come; updates_each: whether every microbatch has one.
    stages: whose action it is. slots_at: the slot of each action, where that does not follow from
    the microbatch: columns are then rows of ranks that follow microbatches, not stages.
    """

    kinds: np.ndarray
    microbatches: np.ndarray
    activations: np.ndarray
    cotangents: np.ndarray
    behind: int
    slots: list[int]
    crossing: list[int]
    received: list[int]
    returned: list[int]
    waits: tuple[bool, bool]
    updates: np.ndarray
    updates_each: bool
    stages: np.ndarray
    slots_at: np.ndarray | None = None


def tables_of(schedule: Schedule) -> TickTables:
    """Return the tables of a schedule."""
    rows = {kind: _rows(schedule, kind) for kind in "FBW"}
    f, b, w = rows["F"], rows["B"], rows["W"]
    kinds = np.select([f > NONE, b > NONE, w > NONE], [FORWARD, BACKWARD, WEIGHTS], IDLE)
    arriving = np.full_like(f, NONE)
    arriving[:, 1:] = f[:, :-1]
    returning = np.full_like(b, NONE)
    returning[:, :-1] = b[:, 1:]
    stages = range(schedule.stages)
    earliest = min(int(x[x > NONE].min(initial=0)) for x in rows.values())
    ticks = schedule.ticks
    forth = [np.subtract(ticks["F"][s], ticks["F"][s - 1]).max() for s in stages if s]
    back = [np.subtract(ticks["B"][s - 1], ticks["B"][s]).max() for s in stages if s]
    return TickTables(
        kinds, np.maximum.reduce([f, b, w]), arriving, returning,
        behind=-(earliest // schedule.microbatches),
        slots=[max(1, schedule.slots(s)) for s in stages],
        crossing=[max(1, schedule.gradient_slots(s)) for s in stages],
        received=[max(1, schedule.received_slots(s, "F")) for s in stages],
        returned=[max(1, schedule.received_slots(s, "B")) for s in stages],
        waits=(max(forth, default=1) > 1, max(back, default=1) > 1),
        updates=_rows(schedule, "U"),
        updates_each=not any(ABSENT in row for row in ticks.get("U", ())),
        stages=np.zeros_like(kinds) + np.arange(schedule.stages))


def _rows(schedule: Schedule, kind: str) -> np.ndarray:
    """Return microbatches_at of a schedule as an array, with NONE where there is no action."""
    rows = schedule.microbatches_at(kind)
    return np.array([[NONE if k is None else k for k in row] for row in rows], np.int64)

