"""Limits that are kept for a machine: found, refused, used by all, and measured by `doctor`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spmd.bench import calibrate, programs
from spmd.bench import collectives as bench
from spmd.launch import limits
from tests.conftest import Finished, at_some_pace, run

NOTHING = {kind: dict.fromkeys(limits.NAMES, 0) for kind in limits.CLASSES}
RING = {kind: {**row, "fold": 1, "ring": 1} for kind, row in NOTHING.items()}
NOWHERE = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}  # doctor tries none

SUM = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def thirds():
    @spmd.shard_map(mesh="r", out_layouts=())
    def local():
        x = 1 / (3 + spmd.arange(200, dtype=np.float32) + 7 * spmd.axis_index("r"))
        return spmd.psum(x.astype(np.float32), "r")
    return {"total": local()}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(limits.CHOSEN, raising=False)
    return tmp_path / "spmd"


def test_what_is_written_is_found(cache: Path, monkeypatch):
    assert limits.find().limits is None and limits.in_use() is None
    limits.write(limits.place(), RING)
    found = limits.find()
    assert (found.limits, found.fault) == (RING, "")
    limits._known.clear()
    assert limits.in_use() == RING
    assert [path.suffix for path in cache.iterdir()] == [".json"], "and nothing beside it"
    monkeypatch.setenv(limits.CHOSEN, "off")
    assert limits.find().limits is None and limits.in_use() is None
    monkeypatch.setenv(limits.CHOSEN, str(cache / "other.json"))
    assert limits.find().fault == "there is no such file"


def kept(**changes: object) -> str:
    good = {"version": limits.VERSION, "machine": limits.machine(), "limits": RING}
    return json.dumps({**good, **changes})


@pytest.mark.parametrize(("text", "fault"), [
    ("", "not JSON"), ("[" * 100000, ""), ("\xff\0", "not JSON"), ("[1]", "not of version"),
    (kept(version=limits.VERSION + 1), "not of version"),
    (kept(machine={"processor": "another", "cores": 2}), "another machine"),
    (kept(limits=None), "no limits"),
    (kept(limits={"spacious": NOTHING["spacious"]}), "no limits"),
    (kept(limits={**RING, "crowded": {**RING["crowded"], "slot": -1}}), "no limits"),
    (kept(limits={**RING, "crowded": {**RING["crowded"], "slot": 1e300}}), "no limits"),
    (kept(limits={**RING, "crowded": {**RING["crowded"], "slot": True}}), "no limits"),
    (kept(limits={**RING, "crowded": {**RING["crowded"], "slot": 1 << 63}}), "no limits"),
])
def test_what_is_malformed_is_ignored(cache: Path, text: str, fault: str):
    cache.mkdir()
    path = Path(limits.place())
    path.write_text(kept())
    assert limits.find().limits == RING
    path.write_text(text, "latin1")
    found = limits.find()
    assert found.limits is None and found.fault and fault in found.fault


def test_what_cannot_be_read_is_ignored(cache: Path, built, spmd_command):
    """A FIFO, a directory, no home: runs go on, and doctor says what it ignores."""
    cache.mkdir()
    os.mkfifo(cache / "fifo")
    for path, fault in ((cache / "fifo", "not a regular file"), (cache, "not a regular file"),
                        (cache / "none" / "x", "no such file")):
        chosen = {limits.CHOSEN: str(path), **NOWHERE}
        spmd_command("run", built(SUM), "--ranks", 3, env=chosen).expect(0, "total: float32")
        spmd_command("doctor", env=chosen).expect(
            0, f"{path} is ignored", fault, "doctor --calibrate"
        )
    homeless = {"HOME": "/nowhere", "XDG_CACHE_HOME": "", limits.CHOSEN: "", **NOWHERE}
    spmd_command("run", built(SUM), "--ranks", 3, env=homeless).expect(0, "total: float32")
    spmd_command("doctor", env=homeless).expect(0, "no ring", "defaults, not calibrated")
    done = spmd_command("doctor", env={limits.CHOSEN: "off", **NOWHERE})
    done.expect(0, "defaults, calibration is off")


def total(done: Finished, path: Path) -> bytes:
    done.expect(0)
    return np.load(path).tobytes()


@pytest.mark.one_mpi
@pytest.mark.mpi
def test_process_0_decides(built: Callable[..., Path], tmp_path: Path, spmd_command):
    """A ring adds in another order: the last bits say which way the data went."""
    image, out = built(SUM), tmp_path / "total.npy"
    command = ["run", image, "--ranks", "5", "-o", f"total={out}"]
    usual = total(spmd_command(*command, env={limits.CHOSEN: "off"}), out)
    ring = total(spmd_command(*command, "--algorithm", "ring"), out)
    assert usual != ring
    files = {"usual": tmp_path / "usual.json", "ring": tmp_path / "ring.json"}
    limits.write(str(files["usual"]), NOTHING)
    limits.write(str(files["ring"]), RING)
    for first, second, expected in (("usual", "ring", usual), ("ring", "usual", ring)):
        argv: list[object] = ["mpirun"]
        for name in (first, second):
            setting = f"{limits.CHOSEN}={files[name]}"
            python = ["env", setting, sys.executable, "-m", "spmd", *command]
            argv += [*([":"] if len(argv) > 1 else []), "-n", 1, *python]
        assert total(run(argv), out) == expected, (first, second)
    chosen = {limits.CHOSEN: str(files["ring"])}
    by_hand = spmd_command(*command, "--algorithm", "blocks", env=chosen)
    assert total(by_hand, out) == usual


def test_every_collective_is_right_whatever_the_limits():
    """Threads that have a core or share one: both classes, broadcasts that are shared or not."""
    ways: list[dict[str, int]] = [
        {"slot": 1, "share": 1}, {"slot": 700, "fold": 1, "share": limits.MOST},
        {"fold": limits.MOST, "slot": 1}, {"ring": 1, "fold": 1},
    ]
    crews = [calibrate.Hosting(5, threads, 0) for threads in (1, 5)]
    for name in bench.COLLECTIVES:
        data = programs.built(name, 250)  # 1000 bytes
        for crew in crews:
            measured = calibrate.bench_of(crew)
            for way in ways:
                with measured.job(data, 20, dict.fromkeys(limits.CLASSES, way)) as job:
                    job.keep_times(320)
                    assert measured.ours(job)[1] == 0, (name, crew, way)


def test_a_limit_lies_where_the_ways_were_compared():
    slot, fold, share, ring = calibrate.LIMITS
    assert [limit.value(limit.default) for limit in calibrate.LIMITS] == [0, 0, 0, 0]
    assert (slot.value(0), slot.value(2), fold.value(5)) == (256, 1024, 8192)
    assert (share.value(0), share.value(5), share.value(6)) == (8192, 262144, 524288)
    assert (ring.value(3), ring.value(0)) == (1 << 22, 1 << 16)


def test_no_time_no_change(cache: Path):
    work = calibrate.Calibration(limit_s=0)
    lines = list(work.measure())
    assert lines and all("not measured" in line for line in lines)
    assert work.limits == NOTHING and work.missed == len(lines)
    limits.write(limits.place(), RING)
    again = calibrate.Calibration(limit_s=0)
    assert list(again.measure()) == lines and again.limits == RING


@pytest.mark.slow
def test_doctor_calibrates(cache: Path, built, tmp_path: Path, spmd_command):
    """A run reads what lies where doctor has put it."""
    at_some_pace(lambda _: spmd_command("doctor", "--calibrate", env=NOWHERE).expect(
        0, "us, ", "noise", "kept in "))
    (file,) = cache.iterdir()
    assert set(json.loads(file.read_text())["limits"]) == set(limits.CLASSES)
    spmd_command("doctor", env=NOWHERE).expect(0, f"; from {file}")
    out = tmp_path / "total.npy"
    command = ["run", built(SUM), "--ranks", "5", "-o", f"total={out}"]
    ring = total(spmd_command(*command, "--algorithm", "ring"), out)
    limits.write(str(file), NOTHING)
    assert total(spmd_command(*command), out) != ring
    limits.write(str(file), RING)
    assert total(spmd_command(*command), out) == ring
