"""Ticks of ranks that follow their microbatches through all stages, while the weights go around.

In: a schedule that fits, as spmd.schedules.weight_ring says. Out: what Ticks give. Always holds:
between steps the weights of stage s, its moments and its gradients are in row s.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import spmd
from codegen.errors import UsageError
from codegen.places import user_place
from codegen.trace.control.functional import changing_loop
from spmd.optim.transformation import map_trees
from spmd.pipelining.tick_tables import BACKWARD, FORWARD, IDLE, NONE, TickTables
from spmd.pipelining.ticks import Ticks, Work
from spmd.schedules import Schedule
from spmd.schedules.weight_ring import NoRingError, WeightRing, ring_of

# What goes around, with the weights that F reads, and with those that B reads.
FORTH, BACK = ("weights", "loss"), ("backward_weights", "gradients")


def checked_ring(schedule: Schedule) -> WeightRing:
    """Return how the weights of a schedule go around; UsageError where they cannot."""
    try:
        return ring_of(schedule)
    except NoRingError as error:
        raise UsageError(
            f'the schedule "{schedule.name}" does not fit place="microbatch": {error}',
            place=user_place(), expected="a schedule that flushes, in which the weights of all "
            "stages move on by as many ranks",
            remedy='schedule="weipipe", or "gpipe"; or place="block"') from None


def tables_of_ring(ring: WeightRing) -> TickTables:
    """Return what each row of ranks does in each tick."""
    kinds = {"F": FORWARD, "B": BACKWARD}
    table = [[(kinds[a.kind], a.microbatch, a.stage, ring.slots[a.stage, a.microbatch])
              if a else (IDLE, NONE, 0, 0) for a in tick] for tick in ring.actions]
    does, microbatches, stages, slots = np.moveaxis(np.array(table, np.int64), 2, 0)
    nothing = np.full_like(does, NONE)
    ones = [1] * does.shape[1]
    return TickTables(
        does, microbatches, nothing, nothing, behind=0, slots=[ring.count] * len(ones),
        crossing=ones, received=ones, returned=ones, waits=(False, False), updates=nothing,
        updates_each=False, stages=stages, slots_at=slots)


class RingTicks(Ticks):
    """Ticks of rows that follow their microbatches."""

    same = ()

    def begin(self, state: Any) -> Work:
        """Return what is in flight before the first tick: weights where they are needed first."""
        ring = self._ring()
        reverse = {name: w[::-1] for name, w in state["weights"].items()}
        work = super().begin(state)
        work["gradients"] = map_trees(  # each row is that of every stage once, so all of it is zero
            lambda g: spmd.zeros(g.shape, g.type.dtype.name, layout=g.layout), work["gradients"])
        return {**work, "weights": _moved(reverse, ring.forward.begin),
                "backward_weights": _moved(state["weights"], ring.backward.begin)}

    def _ring(self) -> WeightRing:
        assert self.pipe.ring is not None, "there is one where ranks follow microbatches"
        return self.pipe.ring

    def _exchanged(self, t: Any, later: Any, work: Work) -> Work:
        """Move the weights on that are needed elsewhere in the next tick."""
        for names, flow in ((FORTH, self._ring().forward), (BACK, self._ring().backward)):
            if not flow.hops:
                continue
            part = {name: work[name] for name in names}
            hops = spmd.asarray(np.array(flow.hops_after, np.int64))[t]
            work |= changing_loop(0, hops, lambda _, part: _moved(part, 1), part, "rebinds")
        return work

    def gradients(self, work: Work) -> Any:
        """Return the gradients of a step, in the rows of their stages."""
        return _moved(super().gradients(work), -self._ring().backward.end)


def _moved(rows: Any, count: int) -> Any:
    """Return arrays whose rows have moved by so many places; the last ones come first."""
    return map_trees(lambda x: np.roll(x, count, axis=0), rows) if count else rows
