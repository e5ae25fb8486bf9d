"""How the time of workers is divided: what is free of it, and who takes how much of whom.

In: demands in examples per second, and the free time of workers. Out: shares. A consumer keeps what
it has; then it takes of its own host, of whom it prefers, and of all others. Used by assignment.py.
Always holds: no worker gives more than all of its time, no budget is passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from spmd.feeding.scheduling.free_workers import SLIVER, FreeWorkers

NEARLY = 0.97  # of a limit: it is what holds a pipeline back

Held = Mapping[str, list[tuple[str, float]]]  # consumer -> its workers with their shares


@dataclass(frozen=True)
class Need:
    """Holds the examples/s that a consumer needs, and should get. usual: what a worker makes of
    them.

    speeds: what each makes, one mapping for its pipeline; fastest: the most. avoids: workers that
    it does not reach. known: by measuring. spread: it takes whatever is idle, to be measured.
    first: it comes before others of its pipeline.
    """

    consumer: str
    pipeline: str
    host: str
    need: float
    target: float
    usual: float
    speeds: Mapping[str, float]
    fastest: float
    avoids: frozenset[str]
    preferred: frozenset[str]
    known: bool
    spread: bool
    first: bool = False

    def speed(self, worker: str) -> float:
        """Return how many examples/s a worker computes for the consumer; 0 where it cannot reach
        it."""
        return 0.0 if worker in self.avoids else self.speeds[worker]


class Budget:
    """Limits how many workers a pipeline may have, and what they may cost together in an hour."""

    def __init__(
        self, most: int | None, limits: Mapping[str, float], setting: str = "max_workers"
    ) -> None:
        self.most, self.limits, self.setting = most, limits, setting
        self.spent = dict.fromkeys(limits, 0.0)
        self.workers: set[str] = set()

    def is_bounded(self) -> bool:
        return self.most is not None or bool(self.limits)

    def is_full(self) -> bool:
        """Return whether the pipeline may have no other worker than those that it has."""
        return self.most is not None and len(self.workers) >= self.most

    def used_up(self) -> str:
        """Return the setting of its pipeline that allows no more, or ""."""
        if self.is_full():
            return self.setting
        return next((f"{resource}_per_hour" for resource, limit in self.limits.items()
                     if self.spent[resource] >= NEARLY * limit), "")

    def copy(self) -> Budget:
        other = Budget(self.most, self.limits, self.setting)
        other.become(self)
        return other

    def become(self, other: Budget) -> None:
        self.spent, self.workers = dict(other.spent), set(other.workers)

    def allowed(self, worker: str, prices: Mapping[str, float]) -> float:
        """Return which part of a worker's time may still be taken."""
        if self.is_full() and worker not in self.workers:
            return 0.0
        if not self.limits:
            return 1.0
        parts = [(limit - self.spent[resource]) / prices[resource]
                 for resource, limit in self.limits.items() if prices.get(resource, 0) > 0]
        return max(0.0, min([1.0, *parts]))

    def take(self, worker: str, share: float, prices: Mapping[str, float]) -> None:
        self.workers.add(worker)
        for resource in self.limits:
            self.spent[resource] += share * prices.get(resource, 0.0)


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
        self.taken = {c: dict(by_worker) for c, by_worker in other.taken.items()}

    def is_empty(self) -> bool:
        return all(left < SLIVER for left in self.left.values())

    def workers_left(self) -> int:
        return sum(left >= SLIVER for left in self.left.values())

    def idle(self) -> list[str]:
        return [worker for worker, left in self.left.items() if left == 1.0]

    def of(self, consumer: str) -> dict[str, tuple[str, float]]:
        return self.taken.get(consumer, {})

    def owners(self) -> Iterator[tuple[str, str]]:
        """Yield workers and the pipelines that they work for."""
        for by_worker in self.taken.values():
            for worker, (pipeline, _) in by_worker.items():
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
        return share * d.speed(worker)

    def shares(self) -> dict[str, dict[str, float]]:
        out: dict[str, dict[str, float]] = {}
        for consumer, by_worker in self.taken.items():
            for worker, (_, share) in by_worker.items():
                out.setdefault(worker, {})[consumer] = min(1.0, round(share, 6))
        return out


def held_by(shares: Mapping[str, Mapping[str, float]]) -> Held:
    """Return the workers of each consumer with their shares, the largest first."""
    held: dict[str, list[tuple[str, float]]] = {}
    for worker, by_consumer in shares.items():
        for consumer, share in by_consumer.items():
            held.setdefault(consumer, []).append((worker, share))
    return {c: sorted(pairs, key=lambda pair: -pair[1]) for c, pairs in held.items()}


def supplied(d: Need, before: Held, pool: Pool) -> float:
    """Return the examples/s that a consumer has of workers that are still there, and free."""
    return sum(min(share, pool.left[w]) * d.speed(w) for w, share in before.get(d.consumer, ())
               if w in pool.left)


def fit(
    demands: list[Need], part: float, goals: Mapping[str, float],
    budgets: Mapping[str, Budget], pool: Pool, before: Held,
    parts: Mapping[str, Mapping[str, float]] | None = None, only_all: bool = False,
) -> bool:
    """Takes of the pool what all want (goals, or such a part of their targets); whether all have.

    parts: by pipeline, which part of a worker is best for it; it takes of these first. What cannot
    be had is left out; the pool and the budgets change. only_all: it is over with the first one
    that cannot have all that it wants.
    """
    taking = Taking(demands, part, goals, budgets, pool, before)
    had = taking.had
    owned = {w for pairs in had.values() for w, _ in pairs}
    if parts is not None:
        _take_best(demands, parts, taking)
    for d in demands:
        taking.take(d, [(w, s) for w, s in had[d.consumer] if _is_near(d, w, pool)])
    for d in demands:
        taking.take_near(d, owned)
    for d in demands:
        taking.take(d, [(w, s) for w, s in had[d.consumer] if not _is_near(d, w, pool)])
    for d in demands:
        taking.take(d, [(w, 1.0) for w in pool.of(d.consumer) if pool.left[w] > 0])
        taking.take_near(d, frozenset())
    for d in demands:
        taking.take_of(d, "all", pool.left)
        if only_all and not taking.has_enough(d):
            return False
    return all(map(taking.has_enough, demands))


class Taking:
    """Takes workers from a pool for consumers, one after the other."""

    def __init__(
        self, demands: list[Need], part: float, goals: Mapping[str, float],
        budgets: Mapping[str, Budget], pool: Pool, before: Held,
    ) -> None:
        self.budgets, self.pool = budgets, pool
        self.wants = {d.consumer: goals.get(d.consumer, d.target * part) for d in demands}
        self.had = {d.consumer: [(w, s) for w, s in before.get(d.consumer, ()) if w in pool.left]
                    for d in demands}
        self.groups: dict[Any, FreeWorkers] = {}
        self.of_worker: dict[str, list[FreeWorkers]] = {}

    def has_enough(self, d: Need) -> bool:
        return self.wants[d.consumer] <= SLIVER * min(d.usual, d.target)

    def take(self, d: Need, workers: Iterable[tuple[str, float]]) -> None:
        """Take at most these shares of workers, until the consumer has enough."""
        if self.has_enough(d):
            return
        pool, budget = self.pool, self.budgets[d.pipeline]
        for worker, most in workers:
            left = pool.left[worker]
            if left > 0 and (speed := d.speed(worker)) > 0:
                share = self.wants[d.consumer] / speed
                share = most if share > most - 1e-6 else share
                self.wants[d.consumer] -= pool.take(d, worker, share, budget)
                for group in self.of_worker.get(worker, ()):
                    if pool.left[worker] != left:
                        group.changed(worker, left)
                    elif left >= SLIVER:
                        prices = pool.rows[worker].prices
                        group.refuse(d.pipeline, worker, budget.allowed(worker, prices) * speed)
                if self.has_enough(d):
                    return

    def take_near(self, d: Need, owned: Set[str]) -> None:
        """Take workers that its pipeline prefers, or else those of its host, except the ones
        owned."""
        if not self.has_enough(d):
            near = d.preferred or d.host, bool(owned)
            self.take_of(d, near, () if near in self.groups else (
                w for w in near_ones(d, self.pool) if w not in owned))

    def take_of(self, d: Need, name: Any, members: Iterable[str]) -> None:
        """Take workers of a group, in their order. members: the workers of the group, where it is
        new."""
        if self.has_enough(d):
            return
        if name not in self.groups:
            group = self.groups[name] = FreeWorkers(members, self.pool)
            for worker in group.place:
                self.of_worker.setdefault(worker, []).append(group)
        order = self.groups[name].in_order(d, self.wants[d.consumer], self.budgets[d.pipeline])
        self.take(d, ((w, 1.0) for w in order))


def _is_near(d: Need, worker: str, pool: Pool) -> bool:
    row = pool.rows[worker]
    return bool(d.preferred & (row.names | {worker})) or (
        not d.preferred and row.host == d.host)


def _take_best(demands: list[Need], parts: Mapping[str, Mapping[str, float]],
               taking: Taking) -> None:
    """Take for consumers the workers that are best for their pipelines: first those that they
    have."""
    pool = taking.pool
    best = {name: dict(mine) for name, mine in parts.items()}
    line = {name: _by_host(mine, pool) for name, mine in parts.items()}

    def has_more(d: Need, worker: str) -> bool:
        return best[d.pipeline][worker] >= SLIVER and pool.left[worker] > 0

    def take_of(d: Need, workers: Iterable[str]) -> None:
        for worker in workers:
            if taking.has_enough(d):
                return
            if has_more(d, worker):
                left = pool.left[worker]
                taking.take(d, [(worker, best[d.pipeline][worker])])
                best[d.pipeline][worker] -= left - pool.left[worker]

    for d in demands:
        take_of(d, [w for w, _ in taking.had[d.consumer] if w in best[d.pipeline]])
    for near in (True, False):
        for d in demands:
            rest = line[d.pipeline].get(d.host if near else "", deque())
            while rest and not has_more(d, rest[0]):
                rest.popleft()
            take_of(d, rest)


def _by_host(mine: Mapping[str, float], pool: Pool) -> dict[str, deque[str]]:
    """Return the workers that are best for a pipeline by host, and all of them as "", the best
    first."""
    by_host = {"": deque(sorted(mine, key=lambda w: -mine[w]))}
    for worker in by_host[""]:
        by_host.setdefault(pool.rows[worker].host or "?", deque()).append(worker)
    return by_host


def near_ones(d: Need, pool: Pool) -> Iterable[str]:
    """Return the workers that a pipeline prefers; where it prefers none, those of the consumer's
    host."""
    if d.preferred:
        return [w for w, row in pool.rows.items() if d.preferred & (row.names | {w})]
    return pool.hosts.get(d.host, ())
