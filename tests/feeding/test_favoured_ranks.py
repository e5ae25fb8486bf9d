"""Ranks that come first where workers are too few, and workers that are for some ranks."""

from __future__ import annotations

import signal

import pytest

from spmd.feeding.scheduling.assignment import ConsumerRow, PipelineRow, WorkerRow, assign
from tests.conftest import until
from tests.feeding.served_kit import ServedProcess

ROWS = [WorkerRow(f"w{k}", host, rates={"p": 1000.0, "q": 1000.0}, names=frozenset({host}))
        for k, host in enumerate("aabb")]


def supply(found, consumer):
    return sum(found.of(consumer).values())


def test_who_comes_first_has_all_and_the_others_share_the_rest():
    ranks = [ConsumerRow(f"r{k}", "p", 1800.0, first=k == 1) for k in range(3)]
    found = assign([PipelineRow("p")], ranks, ROWS)
    assert [round(supply(found, r.consumer), 1) for r in ranks] == [1.0, 2.0, 1.0]
    assert set(found.lacks) == {"r0", "r2"}
    alike = assign([PipelineRow("p")], [ConsumerRow(r.consumer, "p", 1800.0) for r in ranks], ROWS)
    assert {round(supply(alike, r.consumer), 1) for r in ranks} == {1.3}


def test_another_pipeline_loses_nothing_by_that():
    ranks = [ConsumerRow("r0", "p", 2700.0, first=True), ConsumerRow("r1", "p", 2700.0),
             ConsumerRow("s", "q", 5000.0)]
    found = assign([PipelineRow("p"), PipelineRow("q")], ranks, ROWS)
    assert supply(found, "s") == pytest.approx(2.0, abs=0.05)
    assert supply(found, "r0") == pytest.approx(2.0, abs=0.05)


def test_each_rank_has_the_workers_that_are_for_it():
    ranks = [ConsumerRow("r0", "p", 1500.0, host="b", preferred=frozenset("a")),
             ConsumerRow("r1", "p", 1500.0, host="b", preferred=frozenset("b"))]
    found = assign([PipelineRow("p")], ranks, ROWS)
    assert set(found.of("r0")) == {"w0", "w1"} and set(found.of("r1")) == {"w2", "w3"}
    found = assign([PipelineRow("p")], ranks, ROWS[:2])
    assert all(supply(found, r.consumer) == pytest.approx(1.0, abs=0.05) for r in ranks), (
        "where they are gone, others take their place")


@pytest.fixture
def served(tmp_path):
    one = ServedProcess(tmp_path)
    yield one
    one.close()


@pytest.mark.slow
@pytest.mark.parametrize("first", ["1", ""])
def test_after_a_death_the_favoured_rank_goes_on_as_before(served, first):
    """Two ranks take 500 examples/s each, a worker makes 500: with one of two all of it is for the
    favoured rank, where one is; else both have half."""
    agents = [served.worker(1), served.worker(1)]
    served.submit("numbers", 0.002, first=first, serves={"nowhere": "0"})
    served.workers_come(2)
    for _ in range(2):
        served.rank("numbers", batch=50, seconds=0.1)

    def shares():
        rows = {row["ranks"]: row for row in served.status()["consumers"]}
        return rows and {name: sum(row["workers"].values()) for name, row in rows.items()}

    until(lambda: (found := shares()) and len(found) == 2 and min(found.values()) > 0.7)
    agents[0].send_signal(signal.SIGKILL)
    agents[0].wait()
    if first:
        until(lambda: (found := shares())["rank 1"] > 0.7 and found["rank 0"] < 0.35)
    else:
        until(lambda: all(0.3 < share < 0.7 for share in shares().values()))
    served.client().update("numbers", first="0")
    until(lambda: (found := shares())["rank 0"] > 0.7 and found["rank 1"] < 0.35)
    assert all(rank.error is None for rank in served.ranks)
