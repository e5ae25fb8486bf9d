"""`run --timeline` and `--profile`: what every rank did when, by operation and source line."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EXAMPLES, at_some_pace

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
STEPS = 20
SLACK_US = 0.002  # times are written in microseconds, to the nanosecond


def slices(path: Path) -> dict[int, list[dict[str, Any]]]:
    """The slices of every rank, by rank."""
    found = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            found[event["tid"]].append(event)
    return found


def line_of(text: str) -> int:
    """The line of examples/heat.py that this stands in."""
    lines = (EXAMPLES / "heat.py").read_text().split("\n")
    return 1 + next(k for k, line in enumerate(lines) if text in line)


@pytest.mark.one_mpi
@pytest.mark.mpi
@pytest.mark.parametrize(("options", "hosts"), [
    ((), ""), (("--transport", "mpi"), ""), ((), "a,a,b"),
])
def test_a_timeline(built, mpirun, tmp_path, options, hosts):
    """In the Chrome trace format: of every rank, phases and exchanges one after the other, waits
    inside their exchange."""
    path = tmp_path / "t.json"
    mpirun(
        3, "-m", "spmd", "run", built(EXAMPLES / "heat.py"), "--set", f"steps={STEPS}",
        "--ranks", 6, "--mesh", "x=3,y=2", "--timeline", path, env={"SPMD_PRETEND_HOSTS": hosts},
    ).expect(0, f"timeline: {path}")
    found = slices(path)
    assert sorted(found) == list(range(6))
    first = line_of('"x", to=forward')
    for events in found.values():
        work = sorted((e for e in events if e["cat"] != "wait"), key=lambda e: e["ts"])
        for one, other in zip(work, work[1:]):
            assert one["ts"] + one["dur"] <= other["ts"] + SLACK_US
        names = [e["name"] for e in work]
        assert names.count(f"permute heat.py:{first}") == STEPS
        assert sum(e["cat"] == "permute" for e in work) == 4 * STEPS
        assert sum(e["cat"] == "all_reduce" for e in work) == 1
        assert names.count(f"compute heat.py:{first + 3}-{first + 4}") == STEPS
        for wait in (e for e in events if e["cat"] == "wait"):
            assert any(
                e["ts"] - SLACK_US <= wait["ts"]
                and wait["ts"] + wait["dur"] <= e["ts"] + e["dur"] + SLACK_US
                for e in work if e["cat"] != "compute"
            )


def test_a_profile(built, spmd_command):
    """Counts and bytes are exact: 256 rows and columns of float32 on a mesh of 4 x 2."""
    done = spmd_command(
        "run", built(EXAMPLES / "heat.py"), "--set", f"steps={STEPS}", "--mesh", "x=4,y=2",
        "--profile", "--json",
    ).expect(0)
    rows = json.loads(done.out)  # and nothing else; results go to standard error
    assert "peak: float32" in done.err and all(row["place"] for row in rows)
    exchanges = [row for row in rows if row["kind"] == "permute"]
    along_x = [row for row in exchanges if row["axes"] == ["x"]]
    assert len(exchanges) == 4 and len(along_x) == 2
    for row in exchanges:
        assert row["count"] == STEPS
        # 6 of the 8 ranks get a row of 128 along x; 4 of them a column of 64 along y
        bytes_each = 6 * 128 * 4 if row in along_x else 4 * 64 * 4
        assert row["bytes"] == bytes_each * STEPS // 8
        assert 0 <= row["waiting"] <= 1 and row["imbalance"] >= 1
        assert row["longest"] <= row["seconds"] * 8 and row["bandwidth"] > 0
    (peak,) = [row for row in rows if row["kind"] == "all_reduce"]
    assert (peak["count"], peak["bytes"]) == (1, 4)
    assert [row["seconds"] for row in rows] == sorted((r["seconds"] for r in rows), reverse=True)


CARRIES = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def carries():
    u = spmd.input("u", (12,), np.float64, layout=("r",), default=lambda i: i)
    old = u
    for k in spmd.range(4):
        u, old = np.roll(u, 1) + old, u
    return old
"""


def test_copies_that_no_line_asks_for_have_a_place(built):
    """Copies of what a loop carries, before it and after it, have the place of a line."""
    from spmd.launch import loader

    rows = loader.open_file(str(built(CARRIES))).manifest["operations"]
    assert len(rows) > 4 and all(row["text"] and row["place"] for row in rows), rows


def test_a_profile_as_a_table(built, spmd_command):
    spmd_command("run", built(EXAMPLES / "heat.py"), "--json").expect(2, "--profile --json")
    done = spmd_command("run", built(EXAMPLES / "heat.py"), "--ranks", 4, "--profile").expect(
        0, "on each of 4 ranks", "permute over x, heat.py:", "waiting: "
    )
    assert done.out.count("permute over y") == 2


LOPSIDED = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def lopsided():
    n = spmd.axis_size("r")
    x = spmd.input("x", (n, 100), np.float64, layout=("r", None), default=lambda i, j: i + j)

    @spmd.shard_map(mesh="r", out_layouts=())
    def work(x):
        y = x[0]
        if spmd.index() == 1:
            for k in spmd.range(40_000):
                y = np.sin(y) + k
        return spmd.psum(np.sum(y), "r")

    return {"y": work(x)}
'''


@pytest.mark.one_mpi
def test_where_the_time_goes(built, mpirun):
    """One rank computes, the others wait for it: the profile says so."""
    def check(_: int) -> None:
        done = mpirun(3, "-m", "spmd", "run", built(LOPSIDED), "--profile", "--json").expect(0)
        rows = json.loads(done.out)
        (reduce,) = [row for row in rows if row["kind"] == "all_reduce"]
        assert reduce["waiting"] > 0.5
        slow = max((r for r in rows if r["kind"] == "compute"), key=lambda row: row["seconds"])
        assert "np.sin" in slow["text"] and slow["imbalance"] > 2.9  # all of it on one of three

    at_some_pace(check)


def test_events_that_have_no_room_are_counted(built, tmp_path, monkeypatch):
    from spmd import cli

    monkeypatch.setattr("spmd.launch.lifecycle.MOST_EVENTS", 40)
    path = tmp_path / "t.json"
    image = str(built(EXAMPLES / "heat.py"))
    said: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: said.append(str(words)))
    assert cli.main(["run", image, "--ranks", "4", "--timeline", str(path), "--profile"]) == 0
    found = slices(path)
    assert [len(found[rank]) for rank in range(4)] == [10] * 4
    assert any("events had no room" in line for line in said)
    assert any("     100 " in line for line in said)  # the totals are of all turns


def test_a_timeline_that_cannot_be_written_is_refused_before_the_run(built, spmd_command, tmp_path):
    image = built(EXAMPLES / "heat.py")
    done = spmd_command("run", image, "--timeline", tmp_path / "none" / "t.json").expect(
        74, "timeline: cannot write"
    )
    assert "peak" not in done.out


def test_one_process_wants_a_timeline_and_another_does_not(built, tmp_path):
    import sys

    from tests.conftest import run

    start = [sys.executable, "-m", "spmd", "run", built(EXAMPLES / "heat.py")]
    argv = ["mpirun", "-n", 1, *start, "--profile", ":", "-n", 1, *start]
    run(argv).expect(78, "--profile True", "--profile False")


def test_who_sends_waits_for_its_reader_only_where_barriers_are_strict(
    built, spmd_command, tmp_path
):
    """A rank that only sends goes on at once, whatever its reader still computes. Where its thread
    begins so late that the reader has computed by then, another run shows it."""
    path = tmp_path / "t.json"

    def waits(barrier: str, steps: int) -> bool:
        """Whether the send ends after the reader has computed, and begins to take it."""
        image = built(PROGRAMS / "late_root.py", steps=steps)
        spmd_command("run", image, "--ranks", 2, "--threads", 2, "--barrier", barrier,
                     "--timeline", path).expect(0)
        reader, sender = ([e for e in slices(path)[rank] if e["cat"] == "reduce_to"]
                          for rank in range(2))
        (takes,), (sends,) = reader, sender
        return sends["ts"] + sends["dur"] + SLACK_US >= takes["ts"]

    assert waits("strict", 10_000)
    assert not all(waits("auto", steps) for steps in (10_000, 10_000, 100_000, 100_000))
