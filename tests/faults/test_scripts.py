"""Exceptions on one rank of a user's own mpi4py program (15): said once, and everybody exits."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import run
from tests.faults.test_launch import TAKES_INPUT

SCRIPT = """
import sys
import numpy as np
import spmd
from mpi4py import MPI

comm = MPI.COMM_WORLD
image, case, transport = spmd.load(sys.argv[1]), sys.argv[2], sys.argv[3]
how = dict(comm=comm, transport=transport)
x = np.arange(1000.0)
if case == "inside":
    with image.open(**how) as job:
        job(x=x)
        if comm.rank == 1:
            raise KeyError("inside")
        job(x=x)
if case == "exit":
    with image.open(**how) as job:
        job(x=x)
        if comm.rank == 1:
            sys.exit("rank 1 has had enough")
        job(x=x)
if case == "outside":
    image.run(x=x, **how)
    if comm.rank == 1:
        raise KeyError("outside")
    image.run(x=x, **how)
if case == "option":
    image.run(x=x, **{**how, "transport": "tcp" if comm.rank == 1 else transport})
if case == "limit":
    image.run(x=x, **how, time_limit=float("inf"))
if case == "input":
    image.run(x=x if comm.rank != 1 else x[:999], **how)
if case == "caught":
    try:
        image.run(x=x if comm.rank != 1 else x[:999], **how)
    except spmd.SpmdError as error:
        assert error.exit_code == 65 and "wrong shape" in str(error), error
    assert float(image.run(x=x, **how)["total"].local) == 499500
if case == "halves":
    half = comm.Split(comm.rank % 2)
    out = image.run(x=x, comm=half, transport=transport)
    assert float(out["total"].local) == 499500
"""


@pytest.mark.mpi
@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize(("case", "code", "text"), [
    ("inside", 1, "KeyError: 'inside'"), ("exit", 1, "rank 1 has had enough"),
    ("outside", 1, "KeyError: 'outside'"),
    ("option", 2, "there is no transport 'tcp'"), ("limit", 2, "time_limit inf"),
    ("input", 65, "(999,)"), ("caught", 0, ""), ("halves", 0, ""),
])  # fmt: skip
def test_an_exception_on_one_rank(built, tmp_path, case, code, text, transport):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    image = built(TAKES_INPUT)
    done = run(["mpirun", "-n", 4, sys.executable, script, image, case, transport], timeout=40)
    assert done.code == code, done.text
    assert text in done.err
    assert done.err.count("Traceback") == (code != 0 and case != "exit"), done.err
