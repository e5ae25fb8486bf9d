"""Schedules of pipelines: the named ones at many sizes, beside a simulator; tables and formulas."""

from __future__ import annotations

import doctest
import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from math import ceil
from xml.etree import ElementTree

import numpy as np
import pytest

import spmd
import spmd.schedules.tick_formulas
from tests.spmd import sleeping_stages
from tests.spmd.schedule_simulator import Simulation, idle_units

make = spmd.schedules.make_schedule
FLUSHING = ("gpipe", "1f1b", "weipipe", "interleaved", "zb-h1", "zb-h2", "zb-v")
ENDLESS = ("continuous", "pipedream", "2bw", "pipemare")
# What holds changes where p or 2 p - 1 is m: stages on both sides of that, for each of four m.
STAGES = (*range(1, 18), 31, 32, 33, 63, 64)
SIZES = sorted({(p, m) for p in STAGES for m in (1, 3, 16, 64)}
               | {(p, m) for p in (1, 5, 16) for m in range(1, 65)})
FEWER = {(p, m) for p, m in SIZES if p in (1, 5, 64) and m in (1, 5, 16)}
LINES = lambda s, p, k, m: {"F": 2 * k + s, "B": 2 * (k + p) - 1 - s}
WITH_UPDATES = lambda s, p, k, m: {**LINES(s, p, k, m), "U": 2 * (k + p) - 1 - s}


def simulated(schedule: spmd.schedules.Schedule, steps: int = 1) -> Simulation:
    rows = [tuple(a) for a in schedule.actions(steps)]
    simulation = Simulation(rows, schedule.stages)
    every = steps * schedule.microbatches
    assert simulation.ended == {(s, k) for s in range(schedule.stages) for k in range(every)}
    return simulation


def test_all_names_are_tested():
    assert set(spmd.schedules.BUILT_IN) == {*FLUSHING, *ENDLESS}


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "continuous"])
def test_large_pipelines_are_built_and_verified(name):
    """Tables of ticks stand in formulas, which stay small; results do not depend on ranks."""
    image = spmd.build(sleeping_stages.train, stages=64, microbatches=64, unit=0.0, schedule=name)
    assert "3 match" in str(image.verify(ranks=range(1, 65)))
    one, many = (image.run(ranks=n) for n in (1, 64))
    assert one == many or np.isnan(one) and np.isnan(many)


@pytest.mark.parametrize("name", FLUSHING)
def test_flushing_schedules_at_all_sizes(name):
    for p, m in FEWER if name == "weipipe" else SIZES:  # it is proved
        schedule = replace(make(name, p, m), place="block") if name == "weipipe" else (
            make(name, p, m))  # by rows of microbatches in test_weight_ring.py
        simulation = simulated(schedule)
        assert simulation.kept == [schedule.kept(s) for s in range(p)], (p, m)
        assert simulation.idle(schedule.rank_of) == [
            schedule.idle_ticks(r) for r in range(schedule.ranks)], (p, m)
        kept = {"gpipe": [m] * p, "1f1b": [min(m, p - s) for s in range(p)],
                "weipipe": [min(m, 2 * (p - s) - 1) for s in range(p)],
                "zb-h1": [min(m, p)] * p, "zb-h2": [min(m, 2 * p - 1)] * p}
        assert simulation.kept == kept.get(name, simulation.kept), (p, m)
        assert schedule.flushes and schedule.accumulate == m and simulation.crossed == [0] * p


@pytest.mark.parametrize("name", ENDLESS)
def test_schedules_without_flush_at_all_sizes(name):
    """They keep p - s weights in stage s and never idle; corrections use other times of weights."""
    for p, m in ((p, m) for p, m in SIZES if m == 16 or p == 5) if name == "continuous" else FEWER:
        schedule = make(name, p, m)
        steps = ceil(2 * p / m) + 1
        simulation = simulated(schedule, steps)
        assert simulation.kept == [p - s for s in range(p)] == [
            schedule.kept(s) for s in range(p)], (p, m)
        crossed = [schedule.crossed(s) for s in range(p)]
        assert simulation.crossed == crossed, (p, m)
        assert all(c <= ceil(schedule.in_flight(s) / schedule.accumulate)
                   for s, c in enumerate(crossed)), (p, m)
        for s, busy in enumerate(simulation.busy):  # none idle after filling, until the feed ends
            full = [t for t in busy if 2 * p - 1 - s <= t <= 2 * (steps * m - 1) + s]
            assert not full or full == list(range(full[0], full[-1] + 1)), (p, m, s)
            assert schedule.idle_ticks(s) == 0


@pytest.mark.parametrize("name, units, expected", [
    ("1f1b", {"F": 1, "B": 2}, lambda p, s: 3 * (p - 1 - s)),
    ("gpipe", {"F": 1, "B": 2}, lambda p, s: 3 * (p - 1 - s)),
    ("zb-h1", {"F": 1, "B": 1, "W": 1}, lambda p, s: p - 1 - s),
    ("zb-h2", {"F": 1, "B": 1, "W": 1}, lambda p, s: 0),
])
def test_idle_units_are_those_of_the_papers(name, units, expected):
    for p, m in [*((p, 2 * p - 1) for p in range(1, 16)), (16, 40), (33, 65), (64, 127)]:
        schedule = make(name, p, m)
        idle = [expected(p, s) for s in range(p)]
        assert idle_units([tuple(a) for a in schedule.actions()], p, units) == idle, (p, m)
        assert list(schedule.times().idle) == idle, (p, m)
        if name.startswith("zb"):
            assert [schedule.idle_ticks(s) for s in range(p)] == idle, (p, m)


def test_ranks_with_two_stages_are_never_idle_in_zb_v_and_keep_as_much_as_1f1b():
    for ranks in (*range(1, 9), 16, 32):
        m = 2 * ranks - 1
        schedule = make("zb-v", 2 * ranks, m)
        assert schedule.ranks == ranks and schedule.rank_of(2 * ranks - 1) == 0
        assert simulated(schedule).idle(schedule.rank_of) == [0] * ranks
        for r in range(ranks):
            both = zip(schedule.kept_at(r), schedule.kept_at(2 * ranks - 1 - r))
            assert max(map(sum, both)) <= 2 * ranks


def test_interleaved_halves_the_idle_time_of_1f1b():
    """A rank's F and B of half as many layers take half as long (Narayanan et al., 2021)."""
    for ranks in (*range(1, 9), 16, 32):
        schedule = make("interleaved", 2 * ranks, 2 * ranks)
        halves = schedule.times({"F": 0.5, "B": 1})
        assert halves.idle == tuple(3 * (ranks - 1 - r) / 2 for r in range(ranks))
        assert [schedule.rank_of(s) for s in range(2 * ranks)] == [*range(ranks)] * 2


def test_ranks_do_the_actions_of_their_stages_in_turn():
    schedule = make("zb-v", 8, 8)
    for ranks, place in ((1, "block"), (2, "round"), (3, "block"), (8, "block"), (11, "block")):
        times = schedule.times(ranks=ranks, place=place)
        busy = 8 * 8 * 3
        assert times.idle_share == pytest.approx(1 - busy / (times.total * ranks))
        by_rank = {}
        for action, begin in sorted(times.begins.items(), key=lambda item: item[1]):
            rank = schedule.rank_of(action.stage, ranks, place)
            assert by_rank.get(rank, 0) <= begin
            by_rank[rank] = times.ends[action]
    assert schedule.times(ranks=1).idle == (0,)
    assert [schedule.rank_of(s, 3, "block") for s in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_idle_share_of_few_microbatches():
    assert make("1f1b", 4, 2).times().idle_share == pytest.approx(0.6)


def test_a_cycle_of_ticks_says_all_actions():
    for name, p, m in (("continuous", 5, 2), ("pipedream", 4, 8), ("zb-v", 6, 4), ("gpipe", 3, 2)):
        schedule = make(name, p, m)
        cycle = schedule.period or schedule.length
        found = set()
        for kind in schedule.ticks:
            for t, row in enumerate(schedule.microbatches_at(kind)):
                for s, k in enumerate(row):
                    found |= {(t + n * cycle, s, kind, k + n * m)
                              for n in range(12) if k is not None and 0 <= k + n * m < 5 * m}
        assert found == set(map(tuple, schedule.actions(5)))


# ---- what is kept, and which weights


def test_slots_of_a_microbatch_are_free_when_it_takes_them():
    rows = [("continuous", 5, 3), ("zb-h1", 4, 9), ("zb-v", 7, 9), ("interleaved", 6, 7)]
    for name, p, m in rows:
        schedule = make(name, p, m)
        steps = 1 if schedule.flushes else 6
        last = "W" if schedule.splits_backward else "B"
        for s in range(p):
            taken = {}
            lives = [(schedule.tick("F", s, k), schedule.tick(last, s, k), k)
                     for k in range(steps * m)]
            for first, end, k in sorted(lives):
                slot = k % schedule.slots(s)
                assert taken.get(slot, -1) < first
                taken[slot] = end
            assert schedule.slots(s) >= schedule.kept(s)


def test_what_arrives_waits_only_where_a_stage_is_busy():
    even = make("1f1b", 4, 8)
    assert [even.received(s, "F") for s in range(4)] == [0, 1, 1, 1]
    assert [even.received(s, "B") for s in range(4)] == [1, 1, 1, 0]
    assert make("interleaved", 4, 8).received_slots(1, "F") == 2
    assert make("gpipe", 4, 8).received_slots(3, "F") == 1


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4, 8, "8 ticks", "5 ticks", "1 cycle"])
def test_updates_apply_each_gradient_once(accumulate):
    schedule = make("continuous", 4, 8, accumulate=accumulate)
    simulation = simulated(schedule, 8)
    assert simulation.crossed == [schedule.crossed(s) for s in range(4)]
    number = 8 if accumulate == "1 cycle" else accumulate
    for s in range(4):
        applied = [k for update in simulation.applied[s] for k in update]
        assert applied == list(range(len(applied))) and len(applied) > 56
        sizes = {len(update) for update in simulation.applied[s][1:-1]}
        assert sizes == {number} if isinstance(number, int) else max(sizes) <= 4
        ticks = [tick for tick, _ in schedule.updates(s, 64)]
        assert isinstance(number, int) or all((t + 1) % int(number[0]) == 0 for t in ticks)


def test_versions_of_weights():
    def versions(name: str, **more: int) -> list[int]:
        schedule = make(name, 4, 8, **more)
        return [schedule.versions(s) for s in range(4)]

    assert versions("pipedream") == [4, 3, 2, 1]
    assert versions("pipedream", accumulate=4) == [2, 2, 2, 1]
    assert versions("2bw") == [2, 2, 2, 1]
    assert versions("continuous") == versions("pipemare") == [1, 1, 1, 1]
    assert {n: make(n, 4, 8).correction for n in ENDLESS} == {
        "continuous": "none", "pipedream": "stash", "2bw": "two versions",
        "pipemare": "discrepancy"}
    with pytest.raises(spmd.ScheduleError) as error:
        make("2bw", 4, 8, accumulate=2)
    assert error.value.problems[0] == (
        "2bw: stage 0 needs 3 versions of its weights, and keeps two: accumulate=2 is less than "
        "what is in flight")
    assert str(error.value).endswith("try:      accumulate=4")
    assert make("2bw", 4, 8, accumulate=4).versions(0) == 2


def test_slots_that_are_asked_for():
    assert make("1f1b", 4, 8, keep=4).kept(0) == 4
    with pytest.raises(spmd.ScheduleError) as error:
        make("1f1b", 4, 8, keep=3)
    assert error.value.problems == (
        "1f1b: tick 6, stage 0: 4 activations are kept, and there are slots for 3",)


# ---- formulas


def test_formulas_are_proved_or_checked():
    named = {name: make(name, 4, 8).proof for name in spmd.schedules.BUILT_IN}
    assert {n for n, proof in named.items() if proof.startswith("proved for all")} == {
        "gpipe", "1f1b", "weipipe", *ENDLESS}
    assert named["zb-v"] == "checked for 4 stages and 8 microbatches"
    assert make(LINES, 4, 8).proof == make(WITH_UPDATES, 4, 8).proof == named["1f1b"]
    assert make(LINES, 4, 8).ticks == make("1f1b", 4, 8).ticks
    compares = lambda s, p, k, m: LINES(s, p, k, m) if k < m else {}
    assert make(compares, 4, 8).proof == "checked for 4 stages and 8 microbatches"
    for asks in (lambda x, y: x == y, lambda x, y: x != y and not x, lambda x, y: x in (y,),
                 lambda x, y: {1: 2}.get(x, True)):
        moved = lambda s, p, k, m: {"F": 2 * k + s, "B": 2 * (k + p) - 1 - s + (asks(k, s) and 0)}
        assert make(moved, 4, 8).proof == "checked for 4 stages and 8 microbatches"
    apart = lambda s, p, k, m: {"F": 3 * k + s, "B": 3 * k + 5 * p - s, "W": 3 * k + 9 * p - s}
    split = lambda s, p, k, m: {"F": k + s, "B": m + 2 * p - 2 - s + k, "W": 2 * m + 2 * p + k}
    assert make(split, 4, 8).proof == named["1f1b"]
    with pytest.raises(spmd.ScheduleError, match="F of microbatch . in the tick of B of"):
        make(apart, 4, 8)


def test_one_wrong_formula_is_a_short_message():
    wrong = lambda s, p, k, m: {"F": 2 * k + s, "B": 2 * (k + p) - 2 - s}
    with pytest.raises(spmd.ScheduleError) as error:
        make(wrong, 4, 8)
    lines = str(error.value).splitlines()
    assert len(lines) == 12 and lines[10] == f"and {len(error.value.problems) - 10} more"
    where = [re.search("tick .*, stage .: (F|B) of microbatch .", p)[0]
             for p in error.value.problems]
    assert len(set(where)) == len(where)  # each action that is wrong is said once


@pytest.mark.parametrize("wrong, said", [
    (lambda s, p, k, m: {"F": 2 * k + s, "B": 2 * (k + p) - 3 - s},
     "tick 2, stage 3: B of microbatch 0 before its F (tick 3)"),
    (lambda s, p, k, m: {"F": 2 * k, "B": 2 * (k + p) - 1 - s},
     "tick 0, stage 1: F of microbatch 0 in the same tick as F of stage 0 (tick 0)"),
    (lambda s, p, k, m: {"F": k + s, "B": k + 2 * p - 1 - s},
     "tick 4, stage 3: F of microbatch 1 in the tick of B of microbatch 0 (tick 4)"),
    (lambda s, p, k, m: {**LINES(s, p, k, m), "U": 2 * (k + p) - 2 - s},
     "tick 3, stage 3: U of microbatch 0 before its B (tick 4)"),
])
def test_formulas_that_are_wrong_are_never_proved(wrong, said):
    with pytest.raises(spmd.ScheduleError) as error:
        make(wrong, 4, 8)
    assert error.value.problems[0] == f"{__file__}:{wrong.__code__.co_firstlineno}: {said}"
    assert not spmd.schedules.tick_formulas.proved(wrong)


def test_what_is_proved_is_what_is_legal_at_small_sizes():
    """Random formulas near those of 1F1B and GPipe; the simulator knows no proof."""
    rng, proved = random.Random(7), 0
    for _ in range(300):
        a, b, c, d, e, f = (rng.choice(n) for n in (
            (1, 2, 2), (0, 1, 1, 1), (1, 2, 2, 3), (0, 1), (-3, -2, -1, 0, 1), (0, 0, 0, 1)))
        f += a
        formulas = rng.choice((
            lambda s, p, k, m: {"F": a * k + b * s, "B": f * k + c * p + d * m - b * s + e},
            lambda s, p, k, m: {"F": a * k + b * s, "B": f * k + c * p + d * m - s + e,
                                "W": f * k + (c + 1) * p + 2 * d * m - s + e},
            lambda s, p, k, m: {"F": a * k + b * s, "B": f * k + c * p - s + e,
                                "U": f * k + c * p - s + e + d},
            lambda s, p, k, m: {"F": a * k + s + k // p, "B": a * k + c * p - s + k // p + e},
        ))
        legal = True
        for p, m in product((1, 2, 3, 4, 5, 7), (1, 2, 3, 5, 6, 9)):
            try:
                schedule = make(formulas, p, m)
            except (spmd.ScheduleError, spmd.UsageError):
                legal = False
                break
            simulated(schedule, 2 if "U" in schedule.ticks else 1)
        assert spmd.schedules.tick_formulas.proved(formulas) == legal
        proved += legal
    assert 10 < proved < 280


def test_formulas_that_give_no_ticks():
    for wrong, said in (
        (lambda s, p, k, m: {"F": k / 2, "B": 9 + k}, "no ticks for s=0, p=2, k=0, m=3: TypeError"),
        (lambda s, p, k, m: {"F": 10**9 * k + s, "B": 10**9 * k + 2 * p - s},
         "'B': 1000000004} for s=0, p=2, k=1, m=3\n  expected: ticks from 0 to 99999"),
        (lambda s, p, k, m: {"F": k}, r"ticks \{'F': 0\} for s=0, p=2, k=0, m=3"),
        (lambda s, p, k, m: {"F": k - 1, "B": k + 9}, "ticks .*'F': -1.* for s=0"),
        (lambda s, p, k, m: {"F": k, "B": k + 9, "X": k}, "ticks .*'X'"),
        (lambda s, p, k, m: {"F": k, "B": 99, **({"U": 99} if k else {})}, "lack W or U"),
        (lambda s, p, k, m: {"F": k * k + s, "B": 9 + k * k - s, "U": 9 + k * k - s},
         "the next 3 microbatches follow after 9, 15, 21 ticks"),
    ):
        with pytest.raises(spmd.UsageError, match=f"test_schedules.py:\\d+: .*{said}"):
            make(wrong, 2, 3)


def test_what_is_no_schedule():
    with pytest.raises(spmd.UsageError, match="no schedule is called 'zb-h3'") as error:
        make("zb-h3", 4, 8)
    assert "zb-h" in error.value.remedy and "1f1b" in error.value.expected
    for arguments in ({"stages": 0}, {"stages": 4, "microbatches": 0}, {"stages": 4},
                      {"stages": 4, "microbatches": 8, "accumulate": 12},
                      {"stages": 4, "microbatches": 8, "accumulate": "8 ticks"},
                      {"stages": 4, "microbatches": 8, "correction": "stash"}):
        with pytest.raises(spmd.UsageError):
            make("1f1b", **arguments)
    for accumulate in (0, -1, "4", "some ticks", True):
        with pytest.raises(spmd.UsageError):
            make("continuous", 4, 8, accumulate=accumulate)
    assert make("1f1b", 4, 8, accumulate=16).accumulate == 16
    assert make("1f1b", 4, 8, accumulate="2 cycles").accumulate == 16


# ---- drawings


def test_drawings_show_each_action(tmp_path):
    for name in spmd.schedules.BUILT_IN:
        schedule = make(name, 4, 8)
        rows = schedule.text().splitlines()[2:]
        assert len(rows) == 4
        shown = " ".join(rows).replace("*", "").split()
        for kind in schedule.ticks.keys() - {"U"}:
            for k in range(8):
                assert sum(cell.endswith(f"{kind}{k}") for cell in shown) == 4
        schedule.svg(tmp_path / "schedule.svg")
        tree = ElementTree.parse(tmp_path / "schedule.svg")
        texts = [e.text[-2:] for e in tree.iter("{http://www.w3.org/2000/svg}text")]
        assert texts.count("F7") == texts.count("B7") == 4
    assert "16 KiB" in make("1f1b", 4, 8).text([4096] * 4).splitlines()[2]
    assert "16 KiB" in make("1f1b", 4, 8).svg(kept_bytes=[4096] * 4)


def test_the_example_of_the_docstring():
    (example,) = doctest.DocTestFinder(recurse=False).find(make, globs={})
    result = doctest.DocTestRunner().run(example)
    assert result.attempted == 6 and result.failed == 0


def test_numpy_is_not_imported():
    """Ranks and tools may read schedules where there is no array."""
    code = ("import sys, spmd; spmd.schedules.make_schedule('1f1b', 4, 8).text(); "
            "assert 'numpy' not in sys.modules, 'numpy'")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
