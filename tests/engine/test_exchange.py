"""Every exchange at many numbers of ranks and threads, in one process; ranks check what arrives."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.engine.harness import ALGORITHMS, Images, Job

PROGRAMS = [
    "ring", "edge", "route", "reduce", "axes", "gather", "swap", "scatter", "scan", "near", "halo",
]
SHAPES = [((1,), 1), ((4,), 1), ((2, 2), 2), ((7,), 3), ((4, 4, 4), 2)]


@pytest.mark.parametrize("size, threads", SHAPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_rank_receives_what_was_sent(images: Images, name, size, threads):
    for elements, seed in [(1, 0), (3, 5), (130, 0)]:
        with Job(images, name, size, threads, elements=elements, seed=seed) as job:
            job.run()
            assert job.wrong() == 0, (elements, seed)
            job.run()
            assert job.wrong() == 0, "in the second run"
            state = job.watch(0)
            assert (state.superstep, state.operation, state.runs, state.done) == (9, 9, 2, 1)


@pytest.mark.parametrize("name", ["ring", "edge", "route", "reduce", "scan", "near", "halo"])
def test_a_thousand_ranks_on_two_threads(images: Images, name):
    with Job(images, name, (20, 50), 2, elements=8, steps=4) as job:
        job.run()
        assert job.wrong() == 0


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16, 33])
@pytest.mark.parametrize("elements", [1, 3, 4, 31, 5000])
def test_all_ranks_end_with_the_same_bits(images: Images, ranks, elements):
    found = {}
    for algorithm in ALGORITHMS:
        settings = {"elements": elements, "steps": 3, "algorithm": algorithm}
        with Job(images, "round", (ranks,), 2, **settings) as job:
            job.run()
            rows = job.rows()
        assert (rows.view(np.int64) == rows[0].view(np.int64)).all(), algorithm
        found[algorithm] = rows[0]
        operands = 1 / (1.0 + 37 * np.arange(ranks)[:, None] + 22 + np.arange(elements) % 101)
        np.testing.assert_allclose(rows[0], operands.sum(axis=0), rtol=1e-14)
    assert (found["flat"] == found["blocks"]).all(), "both combine in the order of the members"
    assert (found["flat"] == found["auto"]).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [(2,), (3,), (2, 3, 2), (5, 4)])
def test_every_algorithm_sums_along_every_axis(images: Images, size, algorithm):
    for elements in (1, 2, 40, 700):
        settings = {"elements": elements, "steps": 12, "algorithm": algorithm}
        with Job(images, "axes", size, 2, seed=3, **settings) as job:
            job.run()
            assert job.wrong() == 0


def test_many_runs_of_one_job(images: Images):
    for name in ("ring", "route", "reduce", "gather"):
        with Job(images, name, (6,), 2, elements=4, steps=5) as job:
            for run in range(100):
                job.run()
                assert job.wrong() == 0, (name, run)


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_delays(images: Images, name):
    for seed in (11, 12):
        with Job(images, name, (3, 4), 3, elements=6, steps=40, seed=seed) as job:
            job.run()
            assert job.wrong() == 0


@pytest.mark.alone
def test_a_rank_costs_little_at_load(images: Images, capsys):
    def seconds(ranks: int) -> float:
        with Job(images, "idle", (ranks,), 1, elements=1) as job:
            return job.load_seconds

    best = min((seconds(1000) - seconds(1)) / 999 for _ in range(5))
    with capsys.disabled():
        print(f"\n    load: {best * 1e6:.2f} us per rank (1000 ranks)", end="")
    assert best < 20e-6


@pytest.mark.alone
def test_an_all_reduce_of_a_thousand_ranks_is_not_quadratic(images: Images, capsys):
    steps = 20
    with Job(images, "round", (1000,), 1, elements=64, steps=steps) as job:
        each = 1.0
        for _ in range(6):  # the first is warm-up
            begin = time.process_time()
            job.run()
            each = min(each, (time.process_time() - begin) / steps)
    with capsys.disabled():
        print(f"\n    all-reduce: {each * 1e3:.2f} ms (1000 ranks, 64 float64)", end="")
    assert each < 10e-3
