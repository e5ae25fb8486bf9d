"""When actions begin and end if each takes its own time: ranks wait only for what they need.

In: a schedule, units of time for each kind of action, a number of ranks. Out: Times. A rank does
the actions of its stages in the order of their ticks, each as soon as what it needs is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spmd.schedules.actions import Action, needs

Order: TypeAlias = Sequence[tuple[str, int, int]]  # (kind, stage, microbatch)


@dataclass(frozen=True)
class Times:
    """When each action of a schedule begins and ends, in units, and how long ranks are idle.

    begins, ends: by action. total: when the last one ends. idle: of each rank, between its first
    action and its last. idle_share: of all ranks' time from 0 to `total`, the part without work.
    """

    begins: Mapping[Action, float]
    ends: Mapping[Action, float]
    total: float
    idle: tuple[float, ...]
    idle_share: float


def soonest(
    orders: Sequence[Order], stages: int, units: Callable[[str], float], around: bool = False,
) -> dict[tuple[str, int, int], float]:
    """Return when each action begins, where each rank follows its order and none waits longer
    than for what the action needs. ValueError where orders wait for each other.

    around: whether the weights of a stage come from the rank of the microbatch before.
    """
    ends: dict[tuple[str, int, int], float] = {}
    begins: dict[tuple[str, int, int], float] = {}
    following, free = [0] * len(orders), [0.0] * len(orders)
    waiting: dict[tuple[str, int, int], list[int]] = {}
    ready = list(range(len(orders)))
    while ready:
        rank = ready.pop()
        order, t = orders[rank], free[rank]
        for position in range(following[rank], len(order)):
            action = order[position]
            kind, stage, k = action
            lacks = None
            needed = [(before, other, k) for before, other in needs(kind, stage, stages)]
            if around and k:
                needed.append((kind, stage, k - 1))
            for before in needed:
                end = ends.get(before)
                if end is None:
                    lacks = before
                    break
                t = max(t, end)
            if lacks is not None:
                following[rank], free[rank] = position, t
                waiting.setdefault(lacks, []).append(rank)
                break
            begins[action] = t
            t += units(kind)
            ends[action] = t
            ready += waiting.pop(action, ())
        else:
            following[rank], free[rank] = len(order), t
    if waiting:
        raise ValueError(f"these wait for each other: {sorted(waiting)}")
    return begins


def times_of(
    actions: Iterable[Action], stages: int, units: Mapping[str, float],
    rank_of: Callable[[Action], int], ranks: int, around: bool = False,
) -> Times:
    """Return the Times of actions that `ranks` ranks do; updates count where they have units.
    around: as of `soonest`."""
    by_rank: list[list[Action]] = [[] for _ in range(ranks)]
    for action in sorted(actions):
        if action.kind != "U" or units.get("U"):
            by_rank[rank_of(action)].append(action)
    orders = [[(a.kind, a.stage, a.microbatch) for a in row] for row in by_rank]
    begins = soonest(orders, stages, units.__getitem__, around)
    began = {a: begins[a.kind, a.stage, a.microbatch] for row in by_rank for a in row}
    ended = {a: t + units[a.kind] for a, t in began.items()}
    total = max(ended.values())
    busy = [sum(units[a.kind] for a in row) for row in by_rank]
    idle = tuple(max(ended[a] for a in row) - min(began[a] for a in row) - b if row else 0
                 for row, b in zip(by_rank, busy))
    return Times(began, ended, total, idle, 1 - sum(busy) / (total * ranks))
