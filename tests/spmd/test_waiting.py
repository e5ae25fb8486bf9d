"""A rank that waits leaves its core to others, and goes on at once."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

import pytest

import spmd
from tests.conftest import at_some_pace, run

LOPSIDED = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def lopsided():
    turns = spmd.scalar("turns", 10)
    n = spmd.axis_size("r")
    x = spmd.input("x", (n, 100), np.float64, layout=("r", None), default=lambda i, j: i + j)

    @spmd.shard_map(mesh="r", out_layouts=())
    def work(x):
        y = x[0]
        if spmd.index() == 0:
            for k in spmd.range(turns):
                y = np.sin(y) + k
        z = spmd.ppermute(y, "r", shift=1)
        return spmd.psum(np.sum(z), "r")

    return {"y": work(x)}
'''

SCRIPT = """
import json, resource, sys, time
import spmd
from mpi4py import MPI

comm = MPI.COMM_WORLD
with spmd.load(sys.argv[1]).open(comm=comm, transport=sys.argv[2]) as job:
    job(turns=10)
    turns = 10_000
    while True:
        before, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        job(turns=turns)
        after, end = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        took = comm.bcast(end - begin, root=0)
        if took > 1:
            break
        turns = int(turns * min(100, 1.3 / took))
used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
shares = comm.gather(used / (end - begin), root=0)
if comm.rank == 0:
    print(json.dumps(shares))
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_a_rank_that_waits_a_second(built, tmp_path, ranks, transport):
    """Under 5 % of a core, with a core for every rank and without."""
    (tmp_path / "script.py").write_text(SCRIPT)
    argv = ["mpirun", "-n", ranks, sys.executable, tmp_path / "script.py", built(LOPSIDED)]

    def check(_: int) -> None:
        shares = json.loads(run([*argv, transport]).expect(0).out)
        assert len(shares) == ranks and shares[0] > 3 * max(shares[1:])
        assert max(shares[1:]) < 0.05, shares

    at_some_pace(check)


HAND_OVERS = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def around():
    turns = spmd.scalar("turns", 10)
    n = spmd.axis_size("r")
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i)

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def work(x):
        y = x
        for k in spmd.range(turns):
            y = spmd.ppermute(y, "r", shift=1) + 1
        return y

    return {"y": work(x)}
'''

ONE_CORE = """
import json, os, resource, sys, threading
import spmd
from mpi4py import MPI

TURNS = 50_000
comm = MPI.COMM_WORLD
core = comm.bcast(min(os.sched_getaffinity(0)), root=0)

def used():
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime

def pin():
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})

how = json.loads(sys.argv[2]) or {"comm": comm}
with spmd.load(sys.argv[1]).open(**how) as job:
    job(turns=10)
    before = used()
    threading.Timer(0.005, pin).start()  # the job has counted its cores by then
    job(turns=TURNS)
    total = comm.reduce(used() - before, root=0)
if comm.rank == 0:
    print(json.dumps(total / TURNS))
"""


@pytest.mark.mpi
@pytest.mark.parametrize("processes, how", [(1, {"ranks": 2, "threads": 2}), (2, {})])
def test_ranks_that_the_scheduler_puts_on_one_core(built, tmp_path, processes, how):
    """They hand it over at once, instead of spinning 200 us each for whom they keep from running;
    counted as time of the processor, which other programs do not add to."""
    (tmp_path / "script.py").write_text(ONE_CORE)
    argv = ["mpirun", "-n", processes, sys.executable, tmp_path / "script.py"]

    def check(_: int) -> None:
        each = json.loads(run([*argv, built(HAND_OVERS), json.dumps(how)]).expect(0).out)
        assert each < 60e-6, each

    at_some_pace(check)


def test_threads_may_go_where_they_might_before(built):
    """A thread is woken on a core of its own, and not held there."""
    allowed = os.sched_getaffinity(0)
    with spmd.load(built(HAND_OVERS)).open(ranks=2, threads=2) as job:
        for turns in (10, 10, 1000, 1000):  # with another scalar there are other threads
            job(turns=turns)
            for name in os.listdir("/proc/self/task"):
                with suppress(ProcessLookupError):  # one of another test has ended just now
                    assert os.sched_getaffinity(int(name)) == allowed
