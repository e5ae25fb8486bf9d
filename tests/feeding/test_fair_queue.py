"""A worker's time follows the shares of its consumers, whatever their pieces take."""

from __future__ import annotations

import random
from collections import Counter
from math import inf

import pytest

from spmd.feeding.workers.fair_queue import FairQueue, QueuedWork


def give(queue, peer, share, count=4, newest_first=False, behind=0):
    take = {"pipeline": peer, "version": 1, "newest_first": newest_first}
    queue.add(peer, share, [QueuedWork(peer, take, [str(k), k, 1, k, []]) for k in range(count)],
              behind)


def run(queue, costs, seconds, shares, held=(), now=0.0):
    """Everybody always has work waiting. Returns the seconds that each had."""
    had, rng, end = dict.fromkeys(costs, 0.0), random.Random(3), now + seconds
    while now < end:
        for peer in costs:
            if peer not in queue.consumers or len(queue.consumers[peer].waiting) < 2:
                give(queue, peer, shares[peer], 2)
        now += queue.due_in(now)
        peer = queue.next(now).peer
        took = costs[peer] * rng.uniform(0.5, 1.5)
        now += took
        queue.took(peer, took, now, peer in held)
        had[peer] += took
    return had


@pytest.mark.parametrize("shares", [{"a": 0.5, "b": 0.5}, {"a": 0.8, "b": 0.1, "c": 0.1},
                                    {"a": 0.25, "b": 0.05}])
def test_time_follows_shares_though_pieces_are_unequal(shares):
    costs = {peer: 0.01 * (k + 1) ** 2 for k, peer in enumerate(shares)}
    had = run(FairQueue(), costs, 100.0, shares)
    for peer, share in shares.items():
        fair = share / sum(shares.values())
        assert had[peer] / sum(had.values()) == pytest.approx(fair, abs=0.01)


def test_many_with_next_to_nothing_have_next_to_nothing_together():
    """As ranks that ask all workers of their pipeline: each has one piece here, and waits."""
    shares = {"a": 1.0, **{f"r{k}": 0.01 / 100 for k in range(100)}}
    had = run(FairQueue(), dict.fromkeys(shares, 0.01), 60.0, shares)
    assert had["a"] > 58.0


def test_another_share_counts_from_the_next_piece_on():
    queue, costs = FairQueue(), {"a": 0.01, "b": 0.01}
    run(queue, costs, 50.0, {"a": 0.9, "b": 0.1})
    had = run(queue, costs, 10.0, {"a": 0.1, "b": 0.9})
    assert had["b"] == pytest.approx(9.0, abs=0.3), "nobody pays for what it had before"


def test_who_was_idle_has_no_credit_and_takes_nobodys_time():
    queue = FairQueue()
    assert run(queue, {"a": 0.01}, 5.0, {"a": 0.1})["a"] >= 5, "all of it, where nobody else asks"
    had = run(queue, {"a": 0.01, "b": 0.01}, 2.0, {"a": 0.5, "b": 0.5})
    assert had["b"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("others", [{}, {"b": 0.6}])
def test_with_a_limit_nobody_has_more_than_its_share(others):
    """Alone at the worker, or beside one that takes whatever it can."""
    shares = {"a": 0.25, **others}
    had = run(FairQueue(), dict.fromkeys(shares, 0.03), 40.0, shares, held={"a"})
    assert had["a"] == pytest.approx(10.0, rel=0.05)
    assert had.get("b", 30.0) == pytest.approx(30.0, rel=0.05)


def test_who_has_no_share_has_what_all_others_leave():
    """One takes a third of the time; of what is left, whoever is behind fewer is first."""
    queue, now, due, late = FairQueue(), 0.0, 0.0, 0.0
    costs, had = {"a": 0.02, "b": 0.002, "c": 0.002}, dict.fromkeys("abc", 0.0)
    while now < 30.0:
        if now >= due:
            give(queue, "a", 0.01, 1)
            asked, due = due, due + 0.06
        for peer, behind in (("b", 1), ("c", 2)):
            if not queue.lengths()[peer] and (peer != "b" or int(now) % 2):
                give(queue, peer, 0.0, 2, behind=behind)
        if (work := queue.next(now)) is None:
            now = min(due, now + queue.due_in(now))
            continue
        if work.peer == "a":
            late = max(late, now - asked)
        now += costs[work.peer]
        queue.took(work.peer, costs[work.peer], now)
        had[work.peer] += costs[work.peer]
    assert had["a"] == pytest.approx(10.0, rel=0.01) and late <= 0.0021
    assert had["b"] == pytest.approx(9.0, rel=0.1), "while it asks, all that is left"
    assert had["b"] + had["c"] == pytest.approx(19.5, rel=0.05)


def test_a_long_piece_begins_where_the_worker_was_idle_for_as_long():
    """Ranks for whom it works now and then wait for nobody who has no share."""
    queue, now = FairQueue(), 0.0
    give(queue, "low", 0.0, 1, behind=1)
    assert queue.next(0.1).peer == "low"
    queue.took("low", 0.5, 0.5)
    give(queue, "low", 0.0, 9, behind=1)
    for k in range(20):
        now = 1.0 + 0.1 * k
        give(queue, "high", 1.0, 1)
        assert queue.next(now).peer == "high"
        queue.took("high", 0.01, now + 0.01)
        assert queue.next(now + 0.09) is None
    idle = now + 0.01
    assert queue.due_in(idle) == pytest.approx(0.5, rel=0.2)
    assert queue.next(idle + 0.51).peer == "low"
    queue.took("low", 0.5, idle + 1.01)
    assert queue.next(idle + 1.01).peer == "low", "it goes on as long as nobody else asks"
    give(queue, "low", 0.2, 0)
    give(queue, "high", 1.0, 1)
    queue.took("high", 0.01, idle + 2.0)
    assert queue.next(idle + 2.0).peer == "low", "with a share it waits no more"


def test_one_slow_piece_shuts_nobody_out():
    """A first one, say: those behind it find their time between those of others."""
    queue, short = FairQueue(), 0
    give(queue, "low", 0.0, 1, behind=1)
    assert queue.next(0.1).peer == "low"
    queue.took("low", 0.5, 0.5)
    for k in range(400):
        now = 1.0 + 0.1 * k
        give(queue, "high", 1.0, 1)
        give(queue, "low", 0.0, 1, behind=1)
        assert queue.next(now).peer == "high"
        queue.took("high", 0.01, now + 0.01)
        if queue.next(now + 0.09):
            queue.took("low", 0.002, now + 0.092)
            short += 1
    assert 250 < short < 350  # after ten of forty seconds


@pytest.mark.parametrize("peer", ["low", "another run"])
def test_what_a_piece_takes_is_known_of_a_pipeline_that_had_a_share(peer):
    queue = FairQueue()
    give(queue, "low", 1.0, 1)
    queue.next(0.0)
    queue.took("low", 20.0, 20.0)
    take = {"pipeline": "low", "version": 1, "newest_first": False}
    queue.add(peer, 0.0, [QueuedWork(peer, take, ["1", 1, 1, 1, []])], behind=1)
    give(queue, "high", 1.0, 1)
    queue.next(20.0)
    queue.took("high", 0.01, 21.0)
    assert queue.next(40.9) is None and queue.due_in(40.9) == pytest.approx(0.1)


def test_the_newest_first_what_is_forgotten_and_who_leaves():
    queue = FairQueue()
    give(queue, "a", 1.0, 3, newest_first=True)
    assert queue.next(0.0).number == "2" and queue.lengths() == {"a": 2}
    queue.forget("a", ["0"])
    give(queue, "b", 1.0, 1)
    queue.leave("b")
    assert [queue.next(0.0).number, queue.next(0.0), queue.due_in(0.0)] == ["1", None, inf]


def test_who_has_no_share_is_not_shut_out_by_those_who_ask_all_the_time():
    """All that are behind have a twentieth of the time together, in pieces of any length."""
    queue, now, had = FairQueue(), 0.0, Counter()
    costs = {"high": 0.01, "a": 0.02, "b": 0.005, "c": 0.05}
    while now < 60.0:
        for behind, peer in enumerate(costs):
            if queue.lengths()[peer] < 2:
                give(queue, peer, 1.0 if peer == "high" else 0.0, 2, behind=behind)
        work = queue.next(now)
        now += costs[work.peer]
        queue.took(work.peer, costs[work.peer], now)
        had[work.peer] += costs[work.peer]
    assert 0.04 < (had["a"] + had["b"] + had["c"]) / now < 0.05
    assert min(had.values()) > 0.1, "each of them"
