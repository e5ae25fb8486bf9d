"""How many bytes a step of a pipeline hands from rank to rank: activations, or weights.

In: a schedule, where its stages lie, bytes of rows. Out: the bytes that each rank sends. What all
ranks sum up beside that is not counted: losses, norms, gradients along the data axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from spmd.schedules.actions import rank_of
from spmd.schedules.making_schedules import make_schedule
from spmd.schedules.pipeline_schedule import Schedule
from spmd.schedules.weight_ring import NoRingError, ring_of


@dataclass(frozen=True)
class RowBytes:
    """Bytes of a row of each buffer, which is as long as the largest stage needs: of the weights,
    and so of their gradients; of what a stage hands on of a microbatch, and of the gradients of
    that; of the sum of losses."""

    weights: int
    activations: int
    cotangents: int
    loss: int


def sent(schedule: Schedule, rows: RowBytes) -> list[int]:
    """Return the bytes that each rank sends in a step, or, without flush, in a period."""
    if schedule.place == "microbatch":
        return _sent_around(schedule, rows)
    ranks, both = schedule.ranks, rows.activations + rows.cotangents
    if schedule.place != "block":  # all rows move on in each tick, and for "v" back as well
        ways = 2 if schedule.place == "v" else 1
        cycle = schedule.period or schedule.length
        each = cycle * schedule.stages // ranks * both * ways
        return [each if ranks > 1 and schedule.stages > 1 else 0] * ranks
    last = min(ranks, schedule.stages) - 1
    return [schedule.microbatches * ((r < last) * rows.activations + (0 < r <= last)
                                     * rows.cotangents) for r in range(ranks)]


def _sent_around(schedule: Schedule, rows: RowBytes) -> list[int]:
    """Return the bytes that each rank sends where weights go around."""
    ring, p = ring_of(schedule), schedule.stages
    owners = [rank_of(row, p, schedule.ranks, "block") for row in range(p)]

    def moved(to: Any) -> list[int]:
        """Return how many rows each rank sends where row j goes to row to(j)."""
        counts = [0] * schedule.ranks
        for j, owner in enumerate(owners):
            counts[owner] += owner != owners[to(j) % p]
        return counts

    once = moved(lambda j: j + 1)
    reverse, first, begin, end = (
        moved(to) for to in (lambda j: p - 1 - j, lambda j: j + ring.forward.begin,
                             lambda j: j + ring.backward.begin, lambda j: j - ring.backward.end))
    forth = rows.weights + rows.loss
    return [once[r] * (ring.forward.hops * forth + ring.backward.hops * 2 * rows.weights)
            + (reverse[r] + first[r] + begin[r] + end[r]) * rows.weights
            for r in range(schedule.ranks)]


def other_way(schedule: Schedule) -> Schedule | None:
    """Return the schedule where weights travel in the place of activations, or activations in the
    place of weights; "weipipe" where it does not fit, None where nothing flushes."""
    if schedule.place == "microbatch":
        return replace(schedule, place="block")
    if not schedule.flushes:
        return None
    around = replace(schedule, place="microbatch")
    try:
        ring_of(around)
    except NoRingError:
        around = replace(make_schedule("weipipe", schedule.stages, schedule.microbatches),
                         ranks=schedule.ranks)
    return around


def compared(schedule: Schedule, rows: RowBytes) -> dict[str, Any]:
    """Return what a step sends, a mean over the ranks, in this way and in the other one; and
    the place that sends less, None where both send as much."""
    ways = [way for way in (schedule, other_way(schedule)) if way is not None]
    costs = [{"place": way.place, "schedule": way.name,
              "bytes": sum(sent(way, rows)) // way.ranks} for way in ways]
    least, most = min(costs, key=_bytes), max(costs, key=_bytes)
    return {"ranks": schedule.ranks, "own": costs[0], "other": costs[1] if costs[1:] else None,
            "less": least["place"] if _bytes(least) < _bytes(most) else None}


def _bytes(way: dict[str, Any]) -> int:
    number: int = way["bytes"]
    return number
