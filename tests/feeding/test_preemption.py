"""Jobs of a higher priority take the slots of lower ones, where these lose nothing by that."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spmd
from spmd.feeding.messages.job_options import option_value
from spmd.feeding.scheduling.preemption import RunningRow, jobs_that_yield, keeps_checkpoints
from tests.conftest import until
from tests.feeding.test_job_places import agent, job
from tests.feeding.test_jobs import PROGRAM, Submitting
from tests.feeding.test_jobs import room as room
from tests.feeding.test_jobs_on_agents import Spread


def runs(name, ranks, priority=0.0, agent="a", keeps=True, began=0.0):
    return RunningRow(name, ((agent, ranks),), priority, keeps, began)


def test_as_few_ranks_as_possible_end():
    high = job(9, 4, priority=5)
    there = [runs("x", 2), runs("y", 2, 1.0), runs("z", 3, agent="b")]
    full = [agent("a", 4, 0), agent("b", 5, 2)]
    assert jobs_that_yield([high], there, full, ()) == {"z": "p/9"}, "3 ranks end, not 4"
    assert jobs_that_yield([high], there, [agent("a", 4, 2)], ()) == {"x": "p/9"}, "the lowest"
    assert jobs_that_yield([high], there, full, {"x", "y"}) == {"x": "p/9", "y": "p/9"}, (
        "they end already")


def test_nobody_ends_in_vain():
    high = job(9, 4, priority=5)
    for there in ([runs("x", 4, 5.0)], [runs("x", 4, keeps=False)], [runs("x", 2)], []):
        assert jobs_that_yield([high], there, [agent("a", 4, 0)], ()) == {}
    assert jobs_that_yield([job(9, 8, priority=5)], [runs("x", 4)], [agent("a", 4, 0)], ()) == {}
    two = [high, job(8, 4, priority=4)]
    assert jobs_that_yield(two, [runs("x", 4)], [agent("a", 4, 0)], ()) == {"x": "p/9"}


def test_jobs_on_several_agents_give_and_take():
    full = [agent("a", 4, 0), agent("b", 4, 0), agent("c", 1, 1)]
    both = RunningRow("both", (("a", 2), ("b", 2)), 0.0, True)
    rest = [runs("x", 2), runs("y", 2, 1.0, agent="b")]
    assert jobs_that_yield([job(9, 7, priority=5)], [both, *rest], full, ()) == dict.fromkeys(
        ("both", "x", "y"), "p/9"), "c is none of those that it waits for"
    assert jobs_that_yield([job(9, 5, priority=5)], [both, *rest], full, ()) == dict.fromkeys(
        ("both", "x"), "p/9")
    assert jobs_that_yield([job(9, 5, priority=5)], [both], full, ()) == {}
    assert jobs_that_yield([job(9, 5, priority=5, has_frames=True)], [both, *rest], full, ()) == {}
    one = [job(9, 2, priority=5), job(8, 2, priority=4)]
    assert jobs_that_yield(one, [both], full, ()) == {"both": "p/9"}, "b has room for the other"


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=6),
       st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3)), max_size=4), st.integers(0, 4))
def test_who_takes_slots_has_all_of_them(there, wanted, free):
    rows = [runs(f"{k}", ranks, float(p), keeps=keeps) for k, (ranks, p, keeps) in enumerate(there)]
    taken = sum(row.ranks for row in rows)
    waiting = [job(k, least, priority=p) for k, (least, p) in enumerate(wanted)]
    yields = jobs_that_yield(waiting, rows, [agent("a", taken + free, free)], ())
    by_name = {row.name: row for row in waiting}
    for name in set(yields.values()):
        gives = [row for row in rows if yields.get(row.job) == name]
        assert all(row.keeps and row.priority < by_name[name].priority for row in gives)
    assert sum(by_name[name].least for name in set(yields.values())) <= free + sum(
        row.ranks for row in rows if row.job in yields)


def test_what_keeps_checkpoints():
    assert keeps_checkpoints(["--checkpoint", "/kept", "--resume=/kept", "--every", "3"])
    for words in ([], ["--checkpoint", "/kept"], ["--resume", "/kept"], ["--checkpoint"],
                  ["--checkpoint", "/kept", "--resume", "/old"],
                  ["--checkpoint", "goes-with-its-ranks", "--resume", "goes-with-its-ranks"]):
        assert not keeps_checkpoints(words)
    assert option_value(["-x", "--resume"], "--resume") == ""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    folder = tmp_path_factory.mktemp("image")
    (folder / "counts.py").write_text(PROGRAM)
    spmd.build(str(folder / "counts.py"), checkpoint=True).save(folder / "counts.img")
    np.save(folder / "shift.npy", np.int64(0))
    return folder / "counts.img"


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False])
def test_a_higher_job_takes_the_slots_of_a_lower_one(tmp_path, image, keeps):
    """The lower one goes on where it was, and nothing is computed that does not count; one that
    keeps no checkpoints is waited for."""
    served, kept = Submitting(tmp_path, image), tmp_path / "kept"
    try:
        more = ["--options", f"--checkpoint {kept} --resume {kept} --every 2"] if keeps else []
        low = served.started_job("low", *more, ranks=3, seconds=0.02)
        assert served.feed(*served.words("high", "--detach", "--priority", 5, ranks=2)) == 0
        with served.client() as client:
            high = client.status()["jobs"][-1]["name"]
            why = until(lambda: client.job(high)["why"])
            assert why.startswith("it needs 2 ranks, and free are ") and why.endswith(
                f"{low['name']} gives them up at its next checkpoint" if keeps else
                f"{low['name']}, of a lower priority, is waited for: only jobs with --checkpoint "
                "and --resume give up slots"), why
            row = client.job(low["name"])
            if keeps and row["state"] == "running":
                assert row["why"] == f"it ends behind its next checkpoint, for {high}"
            if keeps:
                until(lambda: client.job(low["name"])["state"] == "pending")
                why = until(lambda: (row := client.job(low["name"]))["why"] or (
                    row["state"] == "running" and "it runs again"))
                assert why == "it runs again" or why.endswith(
                    f"; it gave up slots for {high}, and goes on where it was")
            assert client.fetch(high)["status"] == 0
            row = client.fetch(low["name"])
            said = client.ask("get", job=row["job"], attempt=row["attempt"], file="stdout",
                              offset=0).frames[0]
        assert (row["status"], row["attempt"]) == (0, 2 if keeps else 1), row
        assert (b"batch 1\n" in bytes(said)) is not keeps
        assert served.counted_once("low") and served.counted_once("high")
    finally:
        served.close()


@pytest.mark.slow
@pytest.mark.mpi
def test_a_job_on_two_agents_gives_its_slots_to_another_on_both(tmp_path, image):
    served, kept = Spread(tmp_path, image), tmp_path / "kept"
    try:
        low = served.started_job(
            "low", "--options", f"--checkpoint {kept} --resume {kept} --every 2", ranks=4,
            seconds=0.02)
        assert served.feed(*served.words("high", "--detach", "--priority", 5, ranks=4)) == 0
        with served.client() as client:
            high = client.status()["jobs"][-1]["name"]
            until(lambda: client.job(low["name"])["state"] == "pending")
            row = client.fetch(high)
            assert row["status"] == 0 and " (ranks 2-3)" in row["host"], (row["why"], row["said"])
            row = client.fetch(low["name"])
            said = client.ask("get", job=row["job"], attempt=row["attempt"], file="stdout",
                              offset=0).frames[0]
        assert (row["status"], row["attempt"]) == (0, 2) and " (ranks 2-3)" in row["host"], row
        assert b"batch 1\n" not in bytes(said)
        assert served.counted_once("low") and served.counted_once("high")
        until(lambda: os.listdir(served.jobs) == [])
    finally:
        served.close()
