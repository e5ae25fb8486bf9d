"""The file of a scheduler: kills, a full disk, damage, and a second scheduler."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codegen.errors import EnvironmentFault, InputError
from spmd.feeding.scheduling.scheduler_state import (
    FullDisk,
    KnownRun,
    StateFile,
    StoredJob,
    StoredPipeline,
)
from tests.conftest import PATIENCE, ROOT

WRITER = """
import sys
from spmd.feeding.scheduling.scheduler_state import KnownRun, StateFile, StoredPipeline
store = StateFile(sys.argv[1])
number = max([p.version for p in store.pipelines()], default=0)
while True:
    number += 1
    new = StoredPipeline("p", number, "p.py", "x" * (number % 7000), {"seed": number})
    store.put_pipeline(new, [StoredPipeline("p", number - 1, "p.py", "", {})])
    store.remember(runs=[KnownRun("s", "run", "feed", "p", 1, number)],
                   rates={("p", "cpu"): 1.0 * number})
    print(number, flush=True)
"""


def test_what_was_kept_is_kept_whenever_it_is_killed(tmp_path: Path) -> None:
    rng, path = random.Random(3), tmp_path / "deep" / "feed.state"
    for _ in range(12):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT,
                                 stdout=subprocess.PIPE, text=True)
        first = child.stdout.readline()
        time.sleep(rng.uniform(0, 0.06))
        child.send_signal(signal.SIGKILL)
        said = [int(line) for line in (first + child.stdout.read()).splitlines()]
        child.wait()
        store = StateFile(str(path))
        one, = store.pipelines()
        assert one.version in (said[-1], said[-1] + 1)
        assert one.settings == {"seed": one.version} and len(one.source) == one.version % 7000
        assert max(o.version for o in store.older()) == one.version - 1
        assert store.runs()[0].taken == store.rates()["p", "cpu"]
        assert store.runs()[0].taken in (one.version, one.version - 1)
        store.close()


def test_everything_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    store = StateFile(path)
    store.put_pipeline(StoredPipeline("p", 1, "p.py", "text", {"priority": 2.0}, {}, 5.0))
    assert store.remember(
        pipelines=[StoredPipeline("p", 1, "", "", {}, {"cost": 1.5})],
        agents=[("a" * 16, "name", "host", "cpu")], keys=["k" * 40],
        shares={"w": {"c": 0.5}})
    store.close()
    store = StateFile(path)
    assert store.pipelines() == [
        StoredPipeline("p", 1, "p.py", "text", {"priority": 2.0}, {"cost": 1.5}, 5.0)]
    assert store.agents() == ["a" * 16] and store.allowed() == {"k" * 40}
    assert store.shares() == {"w": {"c": 0.5}}
    store.forget_agent("a" * 16)
    store.drop_pipeline("p")
    assert (store.agents(), store.pipelines()) == ([], [])


def test_older_versions_stay_as_long_as_a_run_was_seen(tmp_path: Path) -> None:
    store = StateFile(str(tmp_path / "s"))
    one, two, three = (StoredPipeline("p", k, "p.py", f"text {k}", {}) for k in (1, 2, 3))
    store.put_pipeline(one)
    store.remember(runs=[KnownRun("s", "run", "feed", "p", 1, 7, time.time())])
    store.put_pipeline(two, [one])
    store.put_pipeline(three, [two])
    store.forget_runs(time.time() - 60)
    assert store.older() == [one] and store.runs()[0].version == 1
    store.forget_runs(time.time() + 60)
    assert store.older() == store.runs() == [] and store.pipelines()[0].source == "text 3"


def test_a_state_of_the_format_before_is_read(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "s")
    db.executescript(
        "CREATE TABLE pipelines (name TEXT PRIMARY KEY, version INTEGER, file TEXT, source TEXT, "
        "settings TEXT, spent TEXT, submitted REAL); CREATE TABLE runs (run TEXT, feed TEXT, "
        "pipeline TEXT, taken INTEGER, seen REAL, PRIMARY KEY (run, feed));"
        "INSERT INTO pipelines VALUES ('p', 3, 'p.py', 'x', '{}', '{}', 5.0);"
        "INSERT INTO runs VALUES ('r', 'f', 'p', 1, 2.0); PRAGMA user_version=1;")
    db.close()
    store = StateFile(str(tmp_path / "s"))
    assert store.pipelines() == [StoredPipeline("p", 3, "p.py", "x", {}, {}, 5.0)]
    assert store.runs() == []


def test_a_state_without_modules_is_read(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "s")
    db.executescript(
        "CREATE TABLE pipelines (name TEXT PRIMARY KEY, version INTEGER, file TEXT, source TEXT, "
        "settings TEXT, spent TEXT, submitted REAL, facts TEXT DEFAULT '{}');"
        "CREATE TABLE older (name TEXT, version INTEGER, file TEXT, source TEXT, settings TEXT, "
        "facts TEXT, PRIMARY KEY (name, version));"
        "INSERT INTO pipelines VALUES ('p', 3, 'p.py', 'x', '{}', '{}', 5.0, '{\"order\": \"o\"}');"
        "INSERT INTO older VALUES ('p', 2, 'p.py', 'w', '{}', '{}'); PRAGMA user_version=2;")
    db.close()
    store = StateFile(str(tmp_path / "s"))
    three = StoredPipeline("p", 3, "p.py", "x", {}, {}, 5.0, {"order": "o"})
    assert store.pipelines() == [three] and store.older() == [
        StoredPipeline("p", 2, "p.py", "w", {})]
    more = StoredPipeline("p", 4, "p.py", "x", {}, {}, 5.0, {}, "own",
                          [{"name": "m", "file": "m.py", "text": "y"}])
    store.put_pipeline(more, [more, three])
    assert store.pipelines() == [more] and store.older()[-1].code() == more.code()


def test_a_state_without_jobs_is_read_and_no_number_comes_twice(tmp_path: Path) -> None:
    StateFile(path := str(tmp_path / "s")).close()
    db = sqlite3.connect(path)
    db.executescript("DROP TABLE jobs; PRAGMA user_version=3;")
    db.close()
    store = StateFile(path)
    for number in (1, 2):
        store.put_job(one := StoredJob(f"{number}", "p", {"least": 2}))
        assert one.name == f"p/{number}"
    one.state, one.status, one.files = "ended", 0, {"out.0": 8}
    store.put_job(one)
    store.drop_job("1")
    store.close()
    store = StateFile(path)
    one.asked["until"] = ""  # it was submitted before there were conditions
    assert store.jobs() == [one]
    store.drop_job("2")
    store.put_job(three := StoredJob("3", "p", {}))
    assert three.number == 3


def test_a_job_that_was_kept_with_one_agent_is_read(tmp_path: Path) -> None:
    store = StateFile(path := str(tmp_path / "s"))
    store.put_job(one := StoredJob("1", "p", {}, places=[["a", "nodea", 2], ["b", "nodeb", 3]]))
    assert (one.ranks, one.where) == (5, "nodea (ranks 0-1), nodeb (ranks 2-4)")
    assert (one.part_of("b"), one.part_of("c")) == (1, None)
    store.close()
    db = sqlite3.connect(path)
    value = json.loads(db.execute("SELECT value FROM jobs").fetchone()[0])
    del value["places"]
    for number, (agent, host, ranks) in enumerate([("a", "nodea", 2), ("", "", 0)]):
        db.execute("INSERT OR REPLACE INTO jobs VALUES (?,?,?)", (number + 1, f"{number + 1}", (
            json.dumps({**value, "agent": agent, "host": host, "ranks": ranks}))))
    db.execute("PRAGMA user_version=4")
    db.commit()
    db.close()
    jobs = StateFile(path).jobs()
    assert [(job.places, job.where) for job in jobs] == [([["a", "nodea", 2]], "nodea"), ([], "")]


def test_a_second_scheduler_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    first = StateFile(path)
    with pytest.raises(EnvironmentFault, match="another scheduler works with this file"):
        StateFile(path)
    first.close()
    StateFile(path).close()


@pytest.mark.parametrize("damage", ["text", "middle"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s"
    if damage == "text":
        path.write_text("these are my notes\n" * 500)
    else:
        store = StateFile(str(path))
        for k in range(50):
            store.put_pipeline(StoredPipeline(f"p{k}", 1, "p.py", "x" * 4000, {}))
        store.close()
        data = bytearray(path.read_bytes())
        data[4096:40960] = os.urandom(36864)
        path.write_bytes(data)
    with pytest.raises(InputError, match="(?s)is damaged.*mv .*/s .*/s.bad"):
        StateFile(str(path))


FULL = """
import sys
from spmd.feeding.scheduling.scheduler_state import FullDisk, KnownRun, StateFile, StoredPipeline
store = StateFile(sys.argv[1])
try:
    for k in range(1000):
        store.put_pipeline(StoredPipeline(f"p{k}", 1, "p.py", "x" * 9000, {}))
except FullDisk as error:
    soft = store.remember(runs=[KnownRun("s", "r", "f", "p", 1, 1)] * 99)
    print(k, len(store.pipelines()), soft, error)
"""


def test_a_full_disk_refuses_and_goes_on(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))

    done = subprocess.run([sys.executable, "-c", FULL, tmp_path / "s"], cwd=ROOT, text=True,
                          preexec_fn=limit, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    refused, kept, soft = done.stdout.split()[:3]
    assert refused == kept and int(kept) > 10 and soft in ("False", "True")
    assert "cannot keep this" in done.stdout and "make room" in done.stdout
    assert FullDisk.exit_code == 74
    store = StateFile(str(tmp_path / "s"))
    assert len(store.pipelines()) == int(kept), "the file is whole"


AGAIN = """
import resource, sys
from spmd.feeding.scheduling.scheduler_state import StateFile
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
store = StateFile(sys.argv[1])
print([p.name for p in store.pipelines()], store.remember(keys=["k"]), bool(store.trouble))
"""
KILLED = """
import os, sys
from spmd.feeding.scheduling.scheduler_state import StateFile, StoredPipeline
StateFile(sys.argv[1]).put_pipeline(StoredPipeline("p", 1, "p.py", "x", {}))
os.kill(os.getpid(), 9)
"""


def test_a_scheduler_that_dies_starts_again_on_a_full_disk(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "s"], cwd=ROOT, timeout=PATIENCE)
    done = subprocess.run([sys.executable, "-c", AGAIN, tmp_path / "s"], cwd=ROOT, text=True,
                          capture_output=True, timeout=PATIENCE)
    assert done.stdout == "['p'] False True\n", done.stderr
