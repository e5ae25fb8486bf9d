"""The launch helpers themselves: a hang is killed and reported, leftovers are found."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import run


def test_result():
    done = run([sys.executable, "-c", "print('hello'); raise SystemExit(3)"])
    assert done.expect(3, "hello").out == "hello\n"


def test_hang_is_killed():
    with pytest.raises(pytest.fail.Exception, match="no end after"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5)


def test_leftover_is_found():
    code = (
        "import subprocess as s, sys; "
        "s.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "start_new_session=True, stdout=s.DEVNULL, stderr=s.DEVNULL)"
    )
    with pytest.raises(pytest.fail.Exception, match="left behind"):
        run([sys.executable, "-c", code])


def test_world(mpirun):  # lines of processes may mix
    code = "from mpi4py import MPI; c = MPI.COMM_WORLD; print(c.allreduce(c.rank))"
    assert "".join(mpirun(3, "-c", code).expect(0).out.split()) == "333"
