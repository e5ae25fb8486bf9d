"""The helpers themselves: a hang is killed and reported, leftovers are found; who runs alone."""

from __future__ import annotations

import mmap
import os
import sys
import uuid
from itertools import accumulate

import numpy as np
import pytest

from tests import conftest
from tests.conftest import SHARED, _swept, run


def test_result():
    done = run([sys.executable, "-c", "print('hello'); raise SystemExit(3)"])
    assert done.expect(3, "hello").out == "hello\n"


DRAWN = np.random.default_rng(3)


@pytest.mark.parametrize("time", ["first", "second"])
def test_each_test_draws_the_same_numbers(time):
    assert DRAWN.random() == np.random.default_rng(3).random()


def test_hang_is_killed():
    with pytest.raises(pytest.fail.Exception, match="no end after"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5)


def test_leftover_is_found(monkeypatch):
    monkeypatch.setattr(conftest, "LEFT_S", 1.0)
    code = (
        "import subprocess as s, sys; "
        "s.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "start_new_session=True, stdout=s.DEVNULL, stderr=s.DEVNULL)"
    )
    with pytest.raises(pytest.fail.Exception, match="left behind"):
        run([sys.executable, "-c", code])


SIDE_BY_SIDE = """
import os, pathlib, time
import pytest
from tests.conftest import once, session_folder, turn

def step(once, kind=0):
    begin = time.monotonic()
    made = once("made", lambda path: (time.sleep(0.3), path.write_text(str(begin)))).read_text()
    time.sleep(0.1)
    with open({log!r}, "a") as log:
        print(os.environ["PYTEST_XDIST_WORKER"], made, begin, time.monotonic(), kind, file=log)

@pytest.mark.parametrize("k", range(12))
def test_together(k, once):
    step(once)

@pytest.mark.alone
@pytest.mark.parametrize("k", range(4))
def test_alone(k, once):
    step(once)

@pytest.mark.slow
@pytest.mark.parametrize("k", range(2))
def test_long(k, once):
    step(once, 1)
"""


def test_side_by_side_and_alone(tmp_path):
    """What takes long begins first. Fourteen overlap; the last four overlap nothing. What all need
    is made once."""
    pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_collection_modifyitems")
    (tmp_path / "test_both.py").write_text(SIDE_BY_SIDE.format(log=str(tmp_path / "log")))
    options = ["-n", 2, "-c", "/dev/null", "--rootdir", tmp_path, "--basetemp", tmp_path / "base",
               "-p", "no:hypothesispytest"]  # which takes longer to import than all else does
    done = run([sys.executable, "-m", "pytest", *options, tmp_path], cwd=tmp_path)
    done.expect(0, "18 passed")
    rows = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    spans = sorted((float(begin), float(end)) for _, _, begin, end, _ in rows)
    begun = [row[4] for row in sorted(rows, key=lambda row: float(row[2]))]
    assert begun.index("1") < 2 and begun[:8].count("1") == 2
    ends = accumulate((end for _, end in spans), max)
    overlaps = [begin < end for end, (begin, _) in zip(ends, spans[1:])]
    assert {worker for worker, *_ in rows} == {"gw0", "gw1"}
    assert len({made for _, made, *_ in rows}) == 1
    assert any(overlaps[:13]) and not any(overlaps[-4:])


def test_what_mpi_left_is_removed():
    """Only what is new, is nobody's any more and is MPI's."""
    before, mark = set(SHARED.glob("*")), uuid.uuid4().hex
    left, young, mapped, other = (SHARED / f"{name}_{mark}" for name in (
        "mpich_left", "mpich_young", "mpich_mapped", "other"))
    try:
        for path in (left, young, mapped, other):
            path.write_bytes(b"1")
            os.utime(path, (2**32, 2**32) if path == young else (1, 1))
        with mapped.open("rb") as file, mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ):
            _swept(before | (set(SHARED.glob("*")) - {left, young, mapped, other}))
        assert [path.exists() for path in (left, young, mapped, other)] == [False, True, True, True]
    finally:
        for path in (left, young, mapped, other):
            path.unlink(missing_ok=True)


def test_world(mpirun):  # lines of processes may mix
    code = "from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.allreduce(c.rank))"
    assert "".join(mpirun(3, "-c", code).expect(0).out.split()) == "333"
