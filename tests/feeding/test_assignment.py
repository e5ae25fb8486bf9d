"""Who works for whom: the rate equation, shares, priorities, time slices, limits, steadiness."""

from __future__ import annotations

import random
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from spmd.feeding.scheduling.assignment import (
    Assignment,
    ConsumerRow,
    PipelineRow,
    WorkerRow,
    assign,
)
from spmd.feeding.scheduling.free_workers import SLIVER, FreeWorkers
from spmd.feeding.scheduling.registry import KnownPipeline
from spmd.feeding.scheduling.scheduler_state import StoredPipeline
from spmd.feeding.scheduling.worker_shares import Budget, Need, Pool, fit

BATCH, STEP_S = 1024, 0.110
RATE = BATCH / STEP_S  # examples/s of a rank that takes 110 ms for a batch of 1,024


def workers(count: int, rate: float | None, host: str = "a", pipeline: str = "p",
            **more: object) -> list[WorkerRow]:
    rates = {} if rate is None else {pipeline: rate}
    return [WorkerRow(f"{host}{k}", host, rates=rates, **more) for k in range(count)]


def supply(found: Assignment, consumer: str, rows: list[WorkerRow], pipeline: str = "p") -> float:
    rates = {w.worker: w.rates[pipeline] for w in rows}
    return sum(share * rates[w] for w, share in found.of(consumer).items())


@pytest.mark.parametrize("made", [1000.0, 2000.0, 3100.0, 900.0, 450.0])
def test_numbers_are_within_one_of_the_equation(made):
    rows = workers(120, made)
    ranks = [ConsumerRow(f"r{k}", "p", RATE * (k + 1) / 2, "a") for k in range(3)]
    found = assign([PipelineRow("p")], ranks, rows)
    for rank in ranks:
        needed = rank.rate / made
        assert abs(len(found.of(rank.consumer)) - ceil(needed)) <= 1
        assert needed <= sum(found.of(rank.consumer).values()) + 0.02 <= needed + 1
        assert found.needs[rank.consumer] == pytest.approx(needed)
    assert not found.lacks and not found.pending


def test_unequal_ranks_get_unequal_numbers():
    rows = workers(20, 1000.0)
    ranks = [ConsumerRow("slow", "p", 2000.0), ConsumerRow("fast", "p", 8000.0)]
    found = assign([PipelineRow("p")], ranks, rows)
    assert (len(found.of("slow")), len(found.of("fast"))) == (3, 9)
    assert len(found.shares) <= 12  # the rest stays free for others


def test_a_fast_worker_serves_several_ranks():
    rows = workers(2, 100_000.0)
    ranks = [ConsumerRow(f"r{k}", "p", RATE) for k in range(4)]
    found = assign([PipelineRow("p")], ranks, rows)
    assert len(found.shares) == 1 and len(found.shares["a0"]) == 4
    assert sum(found.shares["a0"].values()) == pytest.approx(4 * 1.1 * RATE / 100_000, rel=0.01)


def test_too_few_are_shared_alike():
    rows = workers(3, 1000.0)
    ranks = [ConsumerRow(f"r{k}", "p", 2000.0) for k in range(2)]
    found = assign([PipelineRow("p")], ranks, rows)
    for rank in ranks:
        assert supply(found, rank.consumer, rows) == pytest.approx(1500, rel=0.02)
    assert found.lacks == {"r0": 1, "r1": 1}


def two_kinds(rng=None):
    """Of two hosts, b is fast for q, and p has its ranks there: it must leave b to q."""
    def around(rate):
        return rate * (rng.uniform(0.97, 1.03) if rng else 1.0)
    rows = [WorkerRow(f"{h}{k}", h, rates={"p": around(1000.0), "q": around(fast)})
            for h, fast in (("a", 100.0), ("b", 1000.0)) for k in range(2)]
    return rows, [ConsumerRow("rp", "p", around(3000.0), "b"),
                  ConsumerRow("rq", "q", around(3000.0), "b")]


def test_a_worker_goes_to_whom_it_helps_most():
    rows, ranks = two_kinds()
    found = assign([PipelineRow("p"), PipelineRow("q")], ranks, rows)
    had = [supply(found, rank.consumer, rows, rank.pipeline) for rank in ranks]
    assert had == pytest.approx([2580, 1420], rel=0.04), "2.6 workers of their usual speed each"
    rng = random.Random(4)
    for _ in range(30):
        rows, ranks = two_kinds(rng)
        now = assign([PipelineRow("p"), PipelineRow("q")], ranks, rows, found.shares)
        assert now.shares == found.shares, "noise moves nobody"


def test_who_needs_little_has_it_whatever_others_want():
    """One takes as fast as it can; of its own two ranks each has the same part of what it needs."""
    rows = [WorkerRow(f"a{k}", rates=dict.fromkeys("pqr", 1000.0)) for k in range(6)]
    ranks = [ConsumerRow("p", "p", 900.0), ConsumerRow("q", "q", 2500.0),
             ConsumerRow("r0", "r", 90_000.0), ConsumerRow("r1", "r", 30_000.0)]
    found = assign([PipelineRow(n) for n in "pqr"], ranks, rows)
    had = [supply(found, c.consumer, rows, c.pipeline) for c in ranks]
    assert had == pytest.approx([990, 2505, 1879, 626], rel=0.03)


def test_what_one_cannot_have_others_share_alike():
    """r may have one worker only; p and q need twice what is left."""
    rows = [WorkerRow(f"a{k}", rates=dict.fromkeys("pqr", 1000.0)) for k in range(7)]
    ranks = [ConsumerRow(n, n, 6000.0) for n in "pqr"]
    found = assign([PipelineRow("p"), PipelineRow("q"), PipelineRow("r", max_workers=1)], ranks,
                   rows)
    assert [supply(found, n, rows, n) for n in "pqr"] == pytest.approx([3000, 3000, 1000], rel=0.04)


@st.composite
def scarce(draw):
    """Two or three pipelines of one priority, each worker of its own speed for each of them."""
    names = "pqr"[: draw(st.integers(2, 3))]
    rate = st.floats(200.0, 3000.0)
    rows = [WorkerRow(f"w{k}", draw(st.sampled_from("ab")), rates={n: draw(rate) for n in names})
            for k in range(draw(st.integers(3, 7)))]
    ranks = [ConsumerRow(f"r{n}", n, 40_000.0, draw(st.sampled_from("ab"))) for n in names]
    return rows, ranks


@given(scarce())
@settings(max_examples=60, deadline=None)
def test_the_poorest_has_about_as_much_as_it_can(case):
    """Beside the optimum, which linear programming finds."""
    rows, ranks = case
    n, m = len(ranks), len(rows)
    usual = {r.pipeline: sum(w.rates[r.pipeline] for w in rows) / m for r in ranks}
    takes = np.zeros((n, n * m + 1))
    for i, rank in enumerate(ranks):
        takes[i, i * m : (i + 1) * m] = [-w.rates[rank.pipeline] for w in rows]
        takes[i, -1] = usual[rank.pipeline]
    gives = np.zeros((m, n * m + 1))
    for j in range(m):
        gives[j, j:-1:m] = 1.0
    best = linprog([0.0] * (n * m) + [-1.0], np.vstack([takes, gives]), [0.0] * n + [1.0] * m,
                   bounds=[(0, 1)] * (n * m) + [(0, m)])
    found = assign([PipelineRow(r.pipeline) for r in ranks], ranks, rows)
    least = min(supply(found, r.consumer, rows, r.pipeline) / usual[r.pipeline] for r in ranks)
    assert least >= 0.85 * -best.fun


def test_the_same_host_comes_first():
    rows = workers(3, 1000.0, "a") + workers(3, 1000.0, "b")
    ranks = [ConsumerRow("rb", "p", 2500.0, "b"), ConsumerRow("ra", "p", 2500.0, "a")]
    found = assign([PipelineRow("p")], ranks, rows)
    assert {w[0] for w in found.of("ra")} == {"a"} and {w[0] for w in found.of("rb")} == {"b"}
    alone = assign([PipelineRow("p")], ranks[:1], rows[:3])
    moved = assign([PipelineRow("p")], ranks[:1], rows, alone.shares)
    assert {w[0] for w in moved.of("rb")} == {"b"}, "idle workers of its own host are better"


def test_preferred_workers_come_first():
    rows = workers(3, 1000.0, "a") + [
        replace(w, names=frozenset({"tcp://b:1"})) for w in workers(3, 1000.0, "b")]
    found = assign([PipelineRow("p", preferred=frozenset({"tcp://b:1"}))],
                   [ConsumerRow("r", "p", 2000.0, "a")], rows)
    assert {w[0] for w in found.of("r")} == {"b"}


def test_priorities_first_and_the_others_are_told():
    rows = [WorkerRow(f"a{k}", rates={"low": 1000.0, "high": 1000.0}) for k in range(4)]
    pipelines = [PipelineRow("low", 1), PipelineRow("high", 5, estimated_s=90.0)]
    ranks = [ConsumerRow("l", "low", 1500.0), ConsumerRow("h", "high", 5000.0)]
    found = assign(pipelines, ranks, rows)
    assert len(found.of("h")) == 4 and not found.of("l")
    assert found.pending == {"low": "pipelines of higher priority have all workers: high (priority "
                             "5); about 90 s more; try: more workers, or a priority above 1; "
                             "until then it has what others leave of their time"}
    assert found.lacks["h"] == 1
    found = assign(pipelines, [ranks[0], replace(ranks[1], rate=1000.0)], rows)
    assert len(found.of("l")) >= 2 and not found.pending


def spare_of(found):
    return {c: (set(one.workers), one.behind) for c, one in found.spare.items()}


def test_what_others_leave_is_for_those_that_lack_workers():
    """By priority; only what its caps allow; nothing where what may be spent is limited."""
    rows = [WorkerRow(f"a{k}", rates=dict.fromkeys("pqrst", 1000.0)) for k in range(4)]
    pipelines = [PipelineRow("p", 9), PipelineRow("q", 5, max_workers=2), PipelineRow("r", 1),
                 PipelineRow("s", 1, limits={"cost": 5.0}), PipelineRow("t", 1, max_workers=0)]
    ranks = [ConsumerRow(n, n, 3600.0 if n == "p" else 900.0) for n in "pqrst"]
    found = assign(pipelines, ranks, rows)
    assert sum(found.of("p").values()) == pytest.approx(3.96) and found.pending.keys() == set("rst")
    assert not found.of("q") or found.lacks["q"] == 1
    spare = spare_of(found)
    assert spare.keys() == {"q", "r"}, "it has what it needs; it has a limit; it is held at none"
    assert spare["q"][1] == 1 and len(spare["q"][0] | found.of("q").keys()) == 2
    assert spare["r"] == ({w.worker for w in rows}, 2)
    assert "until then it has what others leave" in found.pending["r"]
    assert "it has nothing of what others leave" in found.pending["s"]
    assert "leave" not in found.pending["t"]
    again = assign(pipelines, ranks, rows, found.shares, 1, found.spare)
    assert spare_of(again) == spare
    alone = assign(pipelines[2:3], [replace(ranks[2], rate=90_000.0)], rows)
    assert not alone.spare, "all are its own"


def test_environments_stay_where_they_are():
    """Those of a pipeline that acts are not made at workers whose time is others'."""
    rows = [WorkerRow(f"a{k}", rates={"p": 1000.0, "q": 1000.0}) for k in range(2)]
    facts = {"environments": 4}
    acts = KnownPipeline(StoredPipeline("q", 1, "q.py", "", {}, facts=facts)).row(0.0, {})
    ranks = [ConsumerRow("p", "p", 1900.0), ConsumerRow("q", "q", 100.0)]
    for row, spare in ((acts, set()), (replace(acts, acts=False), {"q"})):
        found = assign([PipelineRow("p", 9), row], ranks, rows)
        assert not found.of("q") and found.spare.keys() == spare
        assert ("its environments stay with workers" in found.pending["q"]) == (not spare)


def test_who_has_nearly_enough_does_not_change_from_second_to_second():
    """Whoever had what others leave keeps it until there is a little more than it needs."""
    rows = [WorkerRow(f"a{k}", rates={"p": 1000.0, "q": 1000.0}) for k in range(4)]
    pipelines = [PipelineRow("p", 2, workers=2), PipelineRow("q", 1)]

    def at(rate, before):
        return assign(pipelines, [ConsumerRow("p", "p", 500.0), ConsumerRow("q", "q", rate)], rows,
                      before.shares, 0, before.spare)

    none = at(1960.0, Assignment())
    assert not none.spare
    some = at(2040.0, none)
    assert some.spare["q"].workers == tuple(some.of("p"))
    assert at(1960.0, some).spare == some.spare
    assert not at(1700.0, some).spare


def test_few_workers_load_a_pipeline_for_spare_time_at_once():
    rows = [WorkerRow(f"a{k}", rates={"p": 1000.0}) for k in range(24)]
    pipelines = [PipelineRow("p", 2, workers=24), PipelineRow("q", 1)]
    ranks = [ConsumerRow("p", "p", 500.0), *(ConsumerRow(f"q{k}", "q") for k in range(3))]
    found, loaded = Assignment(), set()
    for turn in range(3):
        found = assign(pipelines, ranks, rows, found.shares, turn, found.spare)
        new = set().union(*(one.workers for one in found.spare.values())) - loaded
        assert len(new) == 3, "an eighth of all"
        loaded |= new
        rows = [replace(w, rates={"p": 1000.0, "q": 500.0}) if w.worker in loaded else w
                for w in rows]
    assert all(len(one.workers) >= 6 for one in found.spare.values())


def test_time_slices_go_around_the_shortest_first():
    rows = [WorkerRow("a0", rates=dict.fromkeys("xyz", 1000.0))]
    pipelines = [PipelineRow("x"), PipelineRow("y", estimated_s=60), PipelineRow("z",
                                                                              estimated_s=30)]
    ranks = [ConsumerRow(f"r{n}", n, 900.0) for n in "xyz"]
    turns = [assign(pipelines, ranks, rows, turn=k) for k in range(6)]
    assert [next(iter(t.shares["a0"])) for t in turns] == ["rz", "ry", "rx"] * 2
    assert "3 pipelines of priority 0 take turns on 1 worker" in turns[0].pending["x"]
    little = [replace(r, rate=200.0) for r in ranks]
    assert len(assign(pipelines, little, rows).shares["a0"]) == 3, "one is enough for all"


def test_to_look_whether_all_can_be_fed_spends_nothing():
    """All three want both workers; whose turn it is has its limit of cost whole."""
    rows = [WorkerRow(f"w{k}", rates=dict.fromkeys("abc", 100.0), prices={"cost": 1.0})
            for k in range(2)]
    pipelines = [PipelineRow("a", estimated_s=1.0, limits={"cost": 1.0}),
                 PipelineRow("b", estimated_s=2.0), PipelineRow("c", estimated_s=3.0)]
    ranks = [ConsumerRow(f"r{name}", name, 200.0) for name in "abc"]
    found = assign(pipelines, ranks, rows)
    assert set(found.pending) == {"c"} and sum(found.of("ra").values()) == pytest.approx(1)


@given(st.data())
def test_the_order_in_which_workers_are_taken(data):
    """As sorting all of them anew each time would have it."""
    draw = data.draw
    rows = [WorkerRow(f"w{k}") for k in range(draw(st.integers(1, 8)))]
    pool, names = Pool({row.worker: row for row in rows}), [row.worker for row in rows]
    speeds = {name: draw(st.sampled_from([1.0, 2.0, 2.5, 7.0])) for name in names}
    budget, group = Budget(None, {}), FreeWorkers(names, pool)
    for k in range(draw(st.integers(1, 12))):
        avoids = frozenset(draw(st.sets(st.sampled_from(names))))
        need = Need(f"c{k}", "p", "", 1.0, 1.0, 1.0, speeds, 7.0, avoids, frozenset(), True, False)
        want = draw(st.floats(0.1, 12.0))
        expected = list(in_order(need, names, want, pool))
        assert list(dict.fromkeys(w for w in group.in_order(need, want, budget)
                                  if w not in avoids)) == list(dict.fromkeys(expected))
        worker = draw(st.sampled_from(names))
        before = pool.left[worker]
        pool.take(need, worker, draw(st.floats(0.01, 1.0)), budget)
        if pool.left[worker] != before:
            group.changed(worker, before)


def in_order(d, workers, want, pool):
    free = [w for w in workers if pool.left[w] >= SLIVER and w not in d.avoids]
    for worker in sorted((w for w in free if pool.left[w] == 1.0), key=lambda w: -d.speeds[w]):
        if d.speeds[worker] > want:
            break
        want -= d.speeds[worker]
        yield worker
    enough = [w for w in free if pool.left[w] * d.speeds[w] >= want]
    yield from sorted(enough, key=lambda w: (pool.left[w], d.speeds[w]))[:1]
    yield from sorted(free, key=lambda w: -pool.left[w])


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_what_a_budget_has_refused_is_not_looked_at_again(data):
    """And the result is as if it were; to look whether all fits says what it says."""
    draw = data.draw
    price = st.sampled_from([0.0, 0.01, 0.5, 2.0])
    rows = [WorkerRow(f"w{k}", draw(st.sampled_from("hi")), prices={"cost": draw(price)})
            for k in range(draw(st.integers(1, 9)))]
    speeds = {row.worker: draw(st.sampled_from([1.0, 3.0, 40.0])) for row in rows}
    many = draw(st.integers(1, 7))
    wants = [draw(st.floats(0.02, 9.0)) for _ in range(many)]
    limit = draw(st.floats(0.01, 5.0))
    needs = [Need(f"c{k}", "p", draw(st.sampled_from("hi")), want, want, 3.0, speeds, 40.0,
                  frozenset(), frozenset(), True, False) for k, want in enumerate(wants)]

    def taken(only_all=False):
        pool = Pool({row.worker: row for row in rows})
        return fit(needs, 1.0, {}, {"p": Budget(None, {"cost": limit})}, pool, {},
                   only_all=only_all), pool.shares()

    fits, shares = taken()
    assert taken(only_all=True)[0] == fits
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FreeWorkers, "refuse", lambda *_: None)
        assert taken() == (fits, shares)


@pytest.mark.parametrize("hosts", [1, 20])
def test_a_limit_makes_no_look_at_each_worker_for_each_rank(hosts, monkeypatch):
    """Half of the workers are fast and dear. Twice as many of all take about twice as long."""
    looks, allowed = [0], Budget.allowed

    def counted(*about):
        looks[0] += 1
        return allowed(*about)

    monkeypatch.setattr(Budget, "allowed", counted)

    def looked(many: int) -> int:
        rows = [WorkerRow(f"w{k}", f"h{k % hosts}", rates={"p": 3000.0 if k % 2 else 1000.0},
                          prices={"cost": 2.0 if k % 2 else 0.05}) for k in range(many)]
        ranks = [ConsumerRow(f"r{k}", "p", 2500.0, f"h{k % hosts}") for k in range(many)]
        pipelines = [PipelineRow("p", limits={"cost": 0.3 * many})]
        looks[0], found = 0, assign(pipelines, ranks, rows)
        assert found.limited and assign(pipelines, ranks, rows, found.shares).limited
        return looks[0]

    assert looked(200) < 3 * looked(100)


def test_limits_of_number_cost_and_energy():
    rows = workers(10, 1000.0, prices={"cost": 0.5, "energy": 0.1})
    rank = [ConsumerRow("r", "p", 8000.0)]
    assert len(assign([PipelineRow("p", max_workers=3)], rank, rows).of("r")) == 3
    found = assign([PipelineRow("p", limits={"cost": 2.0, "energy": 9.0})], rank, rows)
    assert sum(found.of("r").values()) == pytest.approx(4.0)
    assert found.limited == {"p": "cost_per_hour"}
    found = assign([PipelineRow("p", limits={"energy": 0.25})], rank, rows)
    assert sum(found.of("r").values()) == pytest.approx(2.5)
    found = assign([PipelineRow("p", left={"cost": 0.0})], rank, rows)
    assert not found.shares and "its limit of cost is used up" in found.pending["p"]
    assert len(assign([PipelineRow("p", workers=4)], rank, rows).of("r")) == 4


def test_what_is_not_measured_yet_gets_what_is_idle():
    rows = workers(6, None)
    ranks = [ConsumerRow("r", "p"), ConsumerRow("q", "p")]
    found = assign([PipelineRow("p")], ranks, rows)
    assert len(found.of("r")) == len(found.of("q")) == 3
    assert found.needs == {"r": None, "q": None}
    alone = assign([PipelineRow("p")], ranks[:1], rows)
    assert len(alone.of("r")) == 6
    joined = assign([PipelineRow("p")], ranks, rows, alone.shares)
    assert len(joined.of("r")) == len(joined.of("q")) == 3, "whoever comes later has as much"
    given = PipelineRow("p", rates={"cpu": 500.0})
    found = assign([given], [replace(r, rate=1000.0) for r in ranks], rows)
    assert sum(found.of("r").values()) == pytest.approx(2.2), "rates may be given by kind"
    kinds = [WorkerRow("new", device="gpu", rates={}), WorkerRow("g", device="gpu",
             rates={"p": 4000.0}), WorkerRow("c", rates={"p": 1000.0})]
    found = assign([PipelineRow("p")], [ConsumerRow("r", "p", 6000.0)], kinds)
    assert found.lacks == {} and set(found.of("r")) == {"new", "g"}, "others of its kind make 4000"


def test_nobody_there_is_said():
    rank = [ConsumerRow("r", "p", 100.0)]
    assert "feed worker --connect" in assign([PipelineRow("p")], rank, []).pending["p"]
    apart = replace(rank[0], avoids=frozenset({"a0"}))
    other = replace(rank[0], consumer="other")
    found = assign([PipelineRow("p")], [apart, other], workers(2, 100.0))
    assert found.shares == {"a0": {"other": 1.0}, "a1": {"r": 1.0}}, "each has what it reaches"


def test_noise_moves_nobody():
    rng = random.Random(7)
    ranks = [ConsumerRow(f"r{k}", "p", RATE, "a") for k in range(4)]
    rows = workers(60, 1000.0)
    shares = assign([PipelineRow("p")], ranks, rows).shares
    for _ in range(50):
        def around(rate: float) -> float:
            return rate * rng.uniform(0.98, 1.02)
        now = assign([PipelineRow("p")], [replace(r, rate=around(RATE)) for r in ranks],
                     [replace(w, rates={"p": around(1000.0)}) for w in rows], shares)
        assert now.shares == shares


def test_a_lost_worker_is_replaced_and_no_other_moves():
    ranks = [ConsumerRow(f"r{k}", "p", 4000.0, "a") for k in range(4)]
    rows = workers(24, 1000.0)
    before = assign([PipelineRow("p")], ranks, rows)
    lost = next(iter(before.of("r1")))
    after = assign([PipelineRow("p")], ranks, [w for w in rows if w.worker != lost], before.shares)
    for rank in ranks:
        old, new = before.of(rank.consumer), after.of(rank.consumer)
        assert supply(after, rank.consumer, rows) >= 4000.0
        assert len(set(old) - set(new) - {lost}) == 0


@st.composite
def situations(draw):
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    limit = st.none() | st.integers(0, 6)
    pipelines = [PipelineRow(n, draw(st.integers(0, 2)), max_workers=draw(limit),
                             limits=draw(st.just({}) | st.builds(lambda c: {"cost": c},
                                                                 st.floats(0.1, 5.0))))
                 for n in names]
    rate = st.floats(10.0, 20_000.0)
    consumers = [ConsumerRow(f"r{k}", draw(st.sampled_from(names)), draw(st.none() | rate),
                             draw(st.sampled_from("hij")),
                             draw(st.frozensets(st.sampled_from(["w0", "w1", "w2"]))))
                 for k in range(draw(st.integers(1, 6)))]
    rows = [WorkerRow(f"w{k}", draw(st.sampled_from("hij")),
                      rates={n: draw(rate) for n in names if draw(st.integers(0, 3))},
                      prices={"cost": draw(st.floats(0.0, 2.0))})
            for k in range(draw(st.integers(0, 8)))]
    return pipelines, consumers, rows


@given(situations(), situations(), st.integers(0, 5))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_comes_nothing_is_overdrawn(now, earlier, turn):
    pipelines, consumers, rows = now
    before = assign(*earlier).shares
    found = assign(pipelines, consumers, rows, before, turn)
    by_name, free = {p.name: p for p in pipelines}, {w.worker: w for w in rows}
    of = {c.consumer: c.pipeline for c in consumers}
    for worker, given_to in found.shares.items():
        assert worker in free
        assert not any(c.consumer in given_to for c in consumers if worker in c.avoids)
        assert sum(given_to.values()) <= 1 + 1e-4
        assert all(0 < share <= 1 for share in given_to.values())
    for p in pipelines:
        mine = [(w, share) for w, g in found.shares.items() for c, share in g.items()
                if of[c] == p.name]
        if p.max_workers is not None:
            assert len({w for w, _ in mine}) <= p.max_workers
        for what, limit in p.limits.items():
            assert sum(free[w].prices[what] * share for w, share in mine) <= limit + 1e-3
        left = {w for c, one in found.spare.items() if of[c] == p.name for w in one.workers}
        if p.max_workers is not None:
            assert len({w for w, _ in mine} | left) <= p.max_workers
        assert not (left and p.limits), "what is spent is counted in shares"
        if p.name in of.values() and not mine:
            assert found.pending.get(p.name), "whoever gets nothing is told why"
    for consumer, more in found.lacks.items():
        assert more >= 1 and by_name[of[consumer]]
    assert assign(pipelines, consumers, rows, before, turn) == found


@given(st.lists(st.floats(100.0, 9000.0), min_size=1, max_size=6),
       st.lists(st.floats(200.0, 3000.0), min_size=1, max_size=40))
@settings(max_examples=200, deadline=None)
def test_who_can_be_fed_is_fed_and_little_more(takes, makes):
    rows = [WorkerRow(f"w{k}", rates={"p": rate}) for k, rate in enumerate(makes)]
    ranks = [ConsumerRow(f"r{k}", "p", rate) for k, rate in enumerate(takes)]
    found = assign([PipelineRow("p")], ranks, rows)
    usual, whole = sum(makes) / len(makes), sum(makes)
    had = {r.consumer: supply(found, r.consumer, rows) for r in ranks}
    for r in ranks:
        assert had[r.consumer] <= r.rate + min(0.1 * r.rate, usual) + 1
    if whole >= 1.12 * sum(takes):
        assert all(had[r.consumer] >= r.rate for r in ranks)
    else:
        parts = [had[r.consumer] / r.rate for r in ranks]
        assert max(parts) - min(parts) <= 0.1 + 0.15, "too little is shared alike"
