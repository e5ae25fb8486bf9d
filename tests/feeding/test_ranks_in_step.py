"""What ranks could take, where each waits for the others: a run on a clock of its own, no process.

Ranks of it take batches together, as those that exchange do; workers fill their stores by the
shares that assign() gives.
"""

from __future__ import annotations

import pytest

from spmd.feeding.scheduling.assignment import PipelineRow, WorkerRow, assign
from spmd.feeding.scheduling.registry import KnownConsumer, find_rates

ROWS, STORE, MADE, TICK_S = 16, 54, 95.0, 0.005  # of a rank's batch; batches; examples/s; seconds


def consumer(k: int) -> KnownConsumer:
    said = {"consumer": f"r{k}", "pipeline": "p", "rows": [ROWS * k, ROWS * k + ROWS],
            "host": "h", "stream": "s", "feed": "feed", "ranks": [k]}
    return KnownConsumer(b"", said, 1, 0.0)


class RunOfTwo:
    """Two ranks that compute for step_s in each turn. lost: from when to when no worker is there;
    then others are."""

    def __init__(self, step_s: float, lost: tuple[float, float]) -> None:
        self.step_s, self.lost = step_s, lost
        self.ranks, self.shares, self.parts = [consumer(0), consumer(1)], {}, []
        self.ready, self.waited, self.busy = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        self.took = [None, None]  # when, in this turn
        self.taken, self.began = 0, 0.0

    def workers(self, now: float) -> list[WorkerRow]:
        first = now < self.lost[0]
        measured = first or now > self.lost[1] + 1
        return [] if self.lost[0] <= now < self.lost[1] else [
            WorkerRow(f"{'first' if first else 'later'} {k}", "h",
                      rates={"p": MADE} if measured else {}) for k in range(3)]

    def fill(self, now: float) -> None:
        there = {w.worker for w in self.workers(now)}
        for k, rank in enumerate(self.ranks):
            share = sum(g.get(rank.consumer, 0.0) for w, g in self.shares.items() if w in there)
            self.ready[k] = min(self.ready[k] + share * MADE * TICK_S / ROWS, STORE)

    def take(self, now: float) -> None:
        """Turn after turn, until one waits or computes."""
        while self.began <= now:
            for k in (0, 1):
                if self.took[k] is None and self.ready[k] >= 1:
                    self.ready[k] -= 1
                    self.took[k] = max(now, self.began)
                    self.waited[k] += self.took[k] - self.began
            if None in self.took:
                return
            self.began = max(self.took) + self.step_s  # both have it: the exchange, the next turn
            self.busy = [b + self.began - t for b, t in zip(self.busy, self.took)]
            self.took, self.taken = [None, None], self.taken + 1

    def plan(self, now: float) -> None:
        for k, rank in enumerate(self.ranks):
            more = self.took[k] is not None
            rank.rate(now, {"taken": (self.taken + more) * ROWS, "queued": 0,
                            "busy_s": self.busy[k], "waited_s": self.waited[k]})
        find_rates(self.ranks, now)
        workers = self.workers(now)
        there = {w.worker for w in workers}
        found = assign([PipelineRow("p")], [r.row(now, there, {}) for r in self.ranks], workers,
                       self.shares)
        for rank in self.ranks:
            rank.steady_since = rank.steady_since if found.shares == self.shares else now
            rank.adapt(now, rank.consumer not in found.lacks)
        self.shares = found.shares
        self.parts.append([sum(found.of(r.consumer).values()) for r in self.ranks])


@pytest.mark.parametrize("lost", [(99.0, 99.0), (20.0, 24.0)], ids=["kept", "lost"])
@pytest.mark.parametrize("step_s", [0.0005, 0.001, 0.04])
def test_too_few_workers_are_shared_alike_by_ranks_that_wait_for_each_other(step_s, lost):
    """The one that does not wait had nearly all workers, then the other, in turn."""
    run, before = RunOfTwo(step_s, lost), 0
    for tick in range(1, 12_001):
        run.fill(tick * TICK_S)
        run.take(tick * TICK_S)
        if tick % 100 == 0:
            run.plan(tick * TICK_S)
        before = run.taken if tick == 6000 else before
    assert all(part == pytest.approx(1.5, abs=0.1) for both in run.parts[60:] for part in both)
    assert (run.taken - before) * 2 * ROWS > 0.95 * 3 * MADE * 30  # all that three workers make


def test_ranks_that_do_not_wait_for_each_other_keep_their_own_rates():
    fast, slow = consumer(0), consumer(1)
    for k in range(30):
        now = k / 2
        fast.rate(now, {"taken": 90 * k * ROWS, "queued": 0, "busy_s": now * 0.9,
                        "waited_s": now * 0.1})
        slow.rate(now, {"taken": 30 * k * ROWS, "queued": 0, "busy_s": now, "waited_s": 0.0})
    find_rates([fast, slow], now)
    assert (fast.could, slow.could) == (pytest.approx(200 * ROWS), pytest.approx(60 * ROWS))


def test_ranks_that_wait_nearly_always_count_alike():
    """One had two workers and the other one, and took twice as much: it was given twice as much."""
    ahead, behind = consumer(0), consumer(1)
    for k in range(30):
        for one, taken in ((ahead, 20 * k), (behind, 10 * k)):
            one.rate(k / 2, {"taken": taken * ROWS, "queued": 0, "busy_s": taken * 1e-6,
                             "waited_s": k / 2 - taken * 1e-6})
    find_rates([ahead, behind], 14.5)
    assert ahead.could == behind.could and ahead.could > 100 * 20 * ROWS
