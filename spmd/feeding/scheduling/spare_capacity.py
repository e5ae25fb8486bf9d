"""Who has what others leave of their workers' time: pipelines that have too few workers.

In: what they need, whose workers are, the dealing before this one. Out: for a consumer the workers
that compute for it whenever those with a share have nothing to ask for (fair_queue.py).
Always holds: nobody has this of a worker all of whose time is its own pipeline's; caps are kept;
few workers load a pipeline at a time, so that nobody else loses many of them for so long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from spmd.feeding.scheduling.free_workers import SLIVER
from spmd.feeding.scheduling.worker_shares import Budget, Need, Pool, near_ones

MOST = 32  # workers of which one consumer has what is left: each is a line
LOADING = 8  # one of so many workers may load the pipeline at a time


class SpareCapacity(NamedTuple):
    """Holds the workers whose spare time a consumer has. behind: its rank in their queues; those
    with a lower one come first."""

    workers: tuple[str, ...]
    behind: int


def spare_time(
    short: Sequence[Need], behind: Mapping[str, int], budgets: Mapping[str, Budget], pool: Pool,
    before: Mapping[str, SpareCapacity], turn: int,
) -> dict[str, SpareCapacity]:
    """Return the spare capacity of consumers that lack workers. short: these consumers, the highest
    priority first. behind: by pipeline. turn: changes now and then, and with it the workers that
    load a pipeline."""
    spare = {}
    for name in dict.fromkeys(d.pipeline for d in short):
        line = _line(name, pool, turn)
        rank, start = {worker: k for k, worker in enumerate(line)}, 0
        for d in [d for d in short if d.pipeline == name] if line else ():
            had = before[d.consumer].workers if d.consumer in before else ()
            order = chain(had, near_ones(d, pool), line[start:], line[:start])
            mine = dict.fromkeys(_allowed(d, order, rank, budgets[name], pool))
            if mine:
                spare[d.consumer] = SpareCapacity(tuple(mine), behind[name])
                start = (rank[next(reversed(mine))] + 1) % len(line)
    return spare


def _line(name: str, pool: Pool, turn: int) -> list[str]:
    """Return workers that others use too, or nobody, and a few that have not loaded the
    pipeline."""
    owners: dict[str, set[str]] = {}
    for worker, pipeline in pool.owners():
        owners.setdefault(worker, set()).add(pipeline)
    there = [w for w in pool.rows if owners.get(w, set()) - {name} or pool.left[w] >= SLIVER]
    known = [w for w in there if pool.rows[w].rates.get(name)]
    new = [w for w in there if not pool.rows[w].rates.get(name)]
    many = -(-len(pool.rows) // LOADING)
    first = turn * many % len(new) if new else 0
    return known + (new[first:] + new[:first])[:many]


def _allowed(
    d: Need, order: Iterator[str], among: Collection[str], budget: Budget, pool: Pool
) -> Iterator[str]:
    """Yield the first workers in this order that a consumer reaches, and may have beside its
    own."""
    own = pool.of(d.consumer)
    chosen: set[str] = set()
    for worker in order:
        if len(chosen) == MOST:
            return
        if worker not in among or worker in own or not d.speed(worker) or worker in chosen or (
                budget.is_full() and worker not in budget.workers):
            continue
        chosen.add(worker)
        budget.workers.add(worker)
        yield worker
