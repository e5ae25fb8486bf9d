"""How the time of workers is divided: what is free of it, and who takes how much of whom.

In: demands in examples per second, and the free time of workers. Out: shares. A consumer keeps what
it has; then it takes of its own host, of whom it prefers, and of all others. Used by assignment.py.
Always holds: no worker gives more than all of its time, no budget is passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NEARLY = 0.97  # of a limit: it is what holds a pipeline back
SLIVER = 0.01  # of a worker: less than this is nothing


@dataclass(frozen=True)
class Need:
    """What a consumer needs and should get, in examples/s. usual: what a worker makes of them.

    known: by measuring. spread: it takes whatever is idle, so that it can be measured.
    """

    consumer: str
    pipeline: str
    host: str
    need: float
    target: float
    usual: float
    speeds: Mapping[str, float]
    preferred: frozenset[str]
    known: bool
    spread: bool


class Budget:
    """How many workers a pipeline may have, and what they may cost together in an hour."""

    def __init__(self, most: int | None, limits: Mapping[str, float]) -> None:
        self.most, self.limits = most, limits
        self.spent = dict.fromkeys(limits, 0.0)
        self.workers: set[str] = set()

    def is_bounded(self) -> bool:
        return self.most is not None or bool(self.limits)

    def used_up(self) -> str:
        """The setting of its pipeline that allows no more, or ""."""
        if self.most is not None and len(self.workers) >= self.most:
            return "max_workers"
        return next((f"{what}_per_hour" for what, limit in self.limits.items()
                     if self.spent[what] >= NEARLY * limit), "")

    def copy(self) -> Budget:
        other = Budget(self.most, self.limits)
        other.become(self)
        return other

    def become(self, other: Budget) -> None:
        self.spent, self.workers = dict(other.spent), set(other.workers)

    def allowed(self, worker: str, prices: Mapping[str, float]) -> float:
        """Which part of a worker's time may be taken yet."""
        if self.most is not None and worker not in self.workers and len(self.workers) >= self.most:
            return 0.0
        parts = [(limit - self.spent[what]) / prices[what]
                 for what, limit in self.limits.items() if prices.get(what, 0) > 0]
        return max(0.0, min([1.0, *parts]))

    def take(self, worker: str, share: float, prices: Mapping[str, float]) -> None:
        self.workers.add(worker)
        for what in self.limits:
            self.spent[what] += share * prices.get(what, 0.0)


class Pool:
    """Workers that may work now (rows of assignment.py), and which part of their time is free."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self.rows = rows
        self.left = dict.fromkeys(rows, 1.0)
        self.taken: dict[str, dict[str, tuple[str, float]]] = {}  # consumer -> worker -> ...
        self.hosts: dict[str, list[str]] = {}
        for worker, row in rows.items():
            self.hosts.setdefault(row.host, []).append(worker)

    def copy(self) -> Pool:
        other = Pool.__new__(Pool)
        other.rows, other.hosts = self.rows, self.hosts
        other.become(self)
        return other

    def become(self, other: Pool) -> None:
        self.left = dict(other.left)
        self.taken = {c: dict(given) for c, given in other.taken.items()}

    def is_empty(self) -> bool:
        return all(left < SLIVER for left in self.left.values())

    def workers_left(self) -> int:
        return sum(left >= SLIVER for left in self.left.values())

    def idle(self) -> list[str]:
        return [worker for worker, left in self.left.items() if left == 1.0]

    def of(self, consumer: str) -> dict[str, tuple[str, float]]:
        return self.taken.get(consumer, {})

    def owners(self) -> Iterator[tuple[str, str]]:
        """Workers and the pipelines that they work for."""
        for given in self.taken.values():
            for worker, (pipeline, _) in given.items():
                yield worker, pipeline

    def take(self, d: Need, worker: str, most: float, budget: Budget) -> float:
        """Gives a consumer so much of a worker at most; returns examples/s that it has thereby."""
        prices = self.rows[worker].prices
        share = min(most, self.left[worker], budget.allowed(worker, prices))
        if share < min(SLIVER, most):
            return 0.0
        budget.take(worker, share, prices)
        self.left[worker] -= share
        if self.left[worker] < 1e-9:
            self.left[worker] = 0.0
        mine = self.taken.setdefault(d.consumer, {})
        mine[worker] = (d.pipeline, mine.get(worker, ("", 0.0))[1] + share)
        return share * d.speeds[worker]

    def shares(self) -> dict[str, dict[str, float]]:
        out: dict[str, dict[str, float]] = {}
        for consumer, given in self.taken.items():
            for worker, (_, share) in given.items():
                out.setdefault(worker, {})[consumer] = min(1.0, round(share, 6))
        return out


def pairs_of(d: Need, shares: Mapping[str, Mapping[str, float]]) -> list[tuple[str, float]]:
    """The workers of a consumer with their shares, the largest first."""
    found = [(w, given[d.consumer]) for w, given in shares.items() if d.consumer in given]
    return sorted(found, key=lambda pair: -pair[1])


def supplied(d: Need, shares: Mapping[str, Mapping[str, float]], pool: Pool) -> float:
    """Examples/s that a consumer has of those who are there yet, and free."""
    return sum(min(share, pool.left[w]) * d.speeds[w] for w, share in pairs_of(d, shares)
               if w in pool.left)


def fit(
    demands: list[Need], part: float, goals: Mapping[str, float],
    budgets: Mapping[str, Budget], pool: Pool, before: Mapping[str, Mapping[str, float]],
    parts: Mapping[str, Mapping[str, float]] | None = None,
) -> bool:
    """Takes of the pool what all want (goals, or such a part of their targets); whether all have.

    parts: by pipeline, which part of a worker is best for it; it takes of these first. What cannot
    be had is left out; the pool and the budgets change.
    """
    wants = {d.consumer: goals.get(d.consumer, d.target * part) for d in demands}
    had = {d.consumer: [(w, s) for w, s in pairs_of(d, before) if w in pool.left] for d in demands}
    owned = {w for pairs in had.values() for w, _ in pairs}

    def take(d: Need, workers: Iterable[tuple[str, float]]) -> None:
        for worker, most in workers:
            if wants[d.consumer] <= SLIVER * min(d.usual, d.target):
                return
            if pool.left[worker] > 0 and (speed := d.speeds[worker]) > 0:
                share = wants[d.consumer] / speed
                share = most if share > most - 1e-6 else share
                wants[d.consumer] -= pool.take(d, worker, share, budgets[d.pipeline])

    def is_near(d: Need, worker: str) -> bool:
        row = pool.rows[worker]
        return bool(d.preferred & (row.names | {worker})) or (
            not d.preferred and row.host == d.host)

    if parts is not None:
        _take_best(demands, parts, pool, had, take)
    for d in demands:
        take(d, [(w, s) for w, s in had[d.consumer] if is_near(d, w)])
    for d in demands:
        near = [w for w in _near(d, pool) if w not in owned]
        take(d, ((w, 1.0) for w in _in_order(d, near, wants[d.consumer], pool)))
    for d in demands:
        take(d, [(w, s) for w, s in had[d.consumer] if not is_near(d, w)])
    for d in demands:
        take(d, ((w, 1.0) for w in list(pool.of(d.consumer)) if pool.left[w] > 0))
        near = list(_near(d, pool))
        take(d, ((w, 1.0) for w in _in_order(d, near, wants[d.consumer], pool)))
    for d in demands:
        if wants[d.consumer] > 0:
            take(d, ((w, 1.0) for w in _in_order(d, pool.left, wants[d.consumer], pool)))
    return all(wants[d.consumer] <= SLIVER * min(d.usual, d.target) for d in demands)


def _take_best(
    demands: list[Need], parts: Mapping[str, Mapping[str, float]], pool: Pool,
    had: Mapping[str, list[tuple[str, float]]],
    take: Callable[[Need, Iterable[tuple[str, float]]], None],
) -> None:
    """Of the workers that are best for their pipelines: first those that they have."""
    best = {name: dict(mine) for name, mine in parts.items()}
    line = {name: _by_host(mine, pool) for name, mine in parts.items()}

    def take_of(d: Need, workers: Iterable[str]) -> None:
        mine = best[d.pipeline]
        for worker in workers:
            if mine[worker] >= SLIVER:
                left = pool.left[worker]
                take(d, [(worker, mine[worker])])
                mine[worker] -= left - pool.left[worker]

    for d in demands:
        take_of(d, [w for w, _ in had[d.consumer] if w in best[d.pipeline]])
    for near in (True, False):
        for d in demands:
            rest = line[d.pipeline].get(d.host if near else "", [])
            take_of(d, list(rest))
            rest[:] = [w for w in rest if best[d.pipeline][w] >= SLIVER]


def _by_host(mine: Mapping[str, float], pool: Pool) -> dict[str, list[str]]:
    """The workers that are best for a pipeline, by host, and all of them as "": the most first."""
    found: dict[str, list[str]] = {"": sorted(mine, key=lambda w: -mine[w])}
    for worker in found[""]:
        found.setdefault(pool.rows[worker].host or "?", []).append(worker)
    return found


def _near(d: Need, pool: Pool) -> Iterable[str]:
    """Workers that a pipeline prefers; where it prefers none, those of the consumer's host."""
    if d.preferred:
        return [w for w, row in pool.rows.items() if d.preferred & (row.names | {w})]
    return pool.hosts.get(d.host, ())


def _in_order(d: Need, workers: Iterable[str], want: float, pool: Pool) -> Iterator[str]:
    """Whole workers while a whole one is needed, the fastest first; then of one that others use
    too the one with the least time left that is enough; else whatever is left."""
    free = [w for w in workers if pool.left[w] >= SLIVER]
    whole = sorted((w for w in free if pool.left[w] == 1.0), key=lambda w: -d.speeds[w])
    for worker in whole:
        if d.speeds[worker] > want:
            break  # one is enough for the rest
        want -= d.speeds[worker]
        yield worker
    rest = [w for w in free if pool.left[w] >= SLIVER]
    enough = [w for w in rest if pool.left[w] * d.speeds[w] >= want]
    yield from sorted(enough, key=lambda w: (pool.left[w], d.speeds[w]))[:1]
    yield from sorted(rest, key=lambda w: -pool.left[w])
