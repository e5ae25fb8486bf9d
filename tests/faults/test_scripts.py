"""A user's own mpi4py program (15): exceptions, ranks that leave or never come, threads, forks.

What is wrong is said once, and everybody exits."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import run
from tests.faults.test_launch import TAKES_INPUT

SCRIPT = """
import os, signal, sys, threading, time
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
if case == "never":
    if comm.rank != 1:
        image.run(x=x, **how)
if case == "barrier":
    comm.Barrier() if comm.rank == 1 else image.run(x=x, **how, time_limit=2)
if case == "stopped":
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    image.run(x=x, **how, time_limit=2)
if case == "late":
    comm.Barrier()  # nobody waits for one that Python still starts
    if comm.rank == 1:
        time.sleep(2.5)
    assert float(image.run(x=x, **how, time_limit=1)["total"].local) == 499500
if case == "exit 0":
    with image.open(**how) as job:
        job(x=x)
        if comm.rank == 1:
            sys.exit(0)
        job(x=x)
if case == "all exit 0":
    with image.open(**how) as job:
        job(x=x)
        sys.exit(0)
if case == "leave":
    with image.open(**how) as job:
        job(x=x)
        if comm.rank != 1:
            job(x=x)
if case == "in a thread":
    def turn():
        with image.open(**how) as job:
            job(x=x)
            if comm.rank == 1:
                raise KeyError("in a thread")
            job(x=x)
    thread = threading.Thread(target=turn)
    thread.start()
    thread.join()
if case == "forked":
    with image.open(**how) as job:
        job(x=x)
        refused = 0
        if os.fork() == 0:
            for call in (lambda: job(x=x), lambda: image.run(x=x, **how)):
                try:
                    call()
                except spmd.UsageError as error:
                    refused += "forked" in str(error)
            os._exit(refused + (float(image.run(ranks=2, x=x)["total"]) == 499500))
        assert os.WEXITSTATUS(os.wait()[1]) == 3
        thread = threading.Thread(target=lambda: job(x=x))
        if comm.rank == 1:
            thread.start()  # it waits for the others, who wait for our message
            while not job._turns.thread:
                time.sleep(0.01)
            try:
                job(x=x)
            except spmd.UsageError as error:
                refused = "while another call of it runs" in str(error)
            [comm.send(refused, rank) for rank in (0, 2)]
            thread.join()
        else:
            assert comm.recv(source=1)
            job(x=x)
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


def script(tmp_path, built, case, transport="auto", ranks=3, **options):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    argv = ["mpirun", "-n", ranks, sys.executable, path, built(TAKES_INPUT), case, transport]
    return run(argv, **options)


@pytest.mark.mpi
@pytest.mark.parametrize(("case", "transport", "code", "text"), [
    ("inside", "auto", 1, "KeyError: 'inside'"), ("inside", "mpi", 1, "KeyError: 'inside'"),
    ("exit", "auto", 1, "rank 1 has had enough"), ("outside", "mpi", 1, "KeyError: 'outside'"),
    ("in a thread", "auto", 1, "KeyError: 'in a thread'"),
    ("option", "auto", 2, "there is no transport 'tcp'"), ("limit", "auto", 2, "time_limit inf"),
    ("input", "mpi", 65, "(999,)"), ("caught", "auto", 0, ""), ("halves", "mpi", 0, ""),
    ("all exit 0", "mpi", 0, ""), ("forked", "auto", 0, ""),
])
def test_an_exception_on_one_rank(built, tmp_path, case, code, text, transport):
    done = script(tmp_path, built, case, transport, ranks=4 if case == "halves" else 3)
    assert done.code == code, done.text
    assert done.err.count(text) == 1 or not text, done.err


@pytest.mark.mpi
@pytest.mark.parametrize(("case", "transport", "found"), [
    ("never", "auto", "it has come to the end of its script"),
    ("exit 0", "mpi", "it has come to the end of its script"),
    ("leave", "auto", "it has come to the end of its script"),
    ("barrier", "auto", "it waits inside MPI at script.py:"), ("stopped", "auto", "it is stopped"),
])
def test_a_rank_that_does_not_come(built, tmp_path, case, transport, found):
    """The others cannot go on: one of them says who is missing and what it does, and ends all."""
    done = script(tmp_path, built, case, transport)
    assert done.code == 75, done.text
    assert "rank 1 of 3 (process " in done.err and "script.py:" in done.err
    assert done.err.count("has not come to a call that every rank makes\n") == 1, done.err
    assert done.err.count(f"found:    {found}") == 1, done.err


@pytest.mark.mpi
def test_a_rank_that_comes_late(built, tmp_path):
    """After more than the limit: a warning that says where it is, and the right result."""
    done = script(tmp_path, built, "late")
    assert done.code == 0, done.text
    # one for each ten limits, however long this machine takes
    assert 1 <= done.err.count("warning") <= 1 + done.seconds // 10, done.err
    assert "time.sleep(2.5)" in done.err, done.err
