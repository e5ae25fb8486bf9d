"""A rank that waits leaves its core to others, and goes on at once."""

from __future__ import annotations

import json
import sys

import pytest

from tests.conftest import run

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
        if comm.bcast(end - begin, root=0) > 1:
            break
        turns *= 3
used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
shares = comm.gather(used / (end - begin), root=0)
if comm.rank == 0:
    print(json.dumps(shares))
"""


@pytest.mark.mpi
@pytest.mark.alone
@pytest.mark.parametrize("ranks", [2, 5])
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_a_rank_that_waits_a_second(built, tmp_path, ranks, transport):
    """Under 5 % of a core, with a core for every rank and without."""
    (tmp_path / "script.py").write_text(SCRIPT)
    argv = ["mpirun", "-n", ranks, sys.executable, tmp_path / "script.py", built(LOPSIDED)]
    shares = json.loads(run([*argv, transport], timeout=120).expect(0).out)
    assert len(shares) == ranks and shares[0] > 0.2
    assert max(shares[1:]) < 0.05, shares
