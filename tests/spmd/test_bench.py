"""`bench`: what is measured is right, checked, and said as the field says it. No figures here."""

from __future__ import annotations

import json
import sys

import pytest

import spmd
from spmd import bench, bench_programs
from tests.conftest import run


@pytest.mark.mpi
@pytest.mark.parametrize(("names", "options"), [
    ((), ()), (("permute", "scan"), ("--transport", "mpi")),
])  # fmt: skip
def test_every_collective_beside_mpi(mpirun, names, options):
    """Ours and MPI's, both checked in every turn, on a number of ranks that divides nothing."""
    done = mpirun(3, "-m", "spmd", "bench", *names, "--sizes", "3k", "--rounds", 1,
                  "--vs", "mpi", "--json", *options, timeout=120).expect(0)  # fmt: skip
    rows = json.loads(done.out)
    assert [row["collective"] for row in rows] == list(names or bench.COLLECTIVES)
    assert {row["bytes"] for row in rows} == ({3072, 0} if not names else {3072})
    for row in rows:
        assert (row["ranks"], row["wrong"], row["mpi"]["wrong"]) == (3, 0, 0)
        assert row["least"] <= row["average"] <= row["most"]
        assert row["worst"] > 0 and row["ratio"] > 0 and row["turns"] >= bench.LEAST_TURNS
    bandwidths = [row["bus"] for row in rows if row["collective"] != "barrier"]
    assert all(bandwidths)


def test_a_table(spmd_command):
    """Sizes first, then latencies, bandwidth and what was wrong; many ranks in one process."""
    done = spmd_command("bench", "all-gather", "barrier", "--ranks", 5, "--sizes", "1k",
                        "--rounds", 1).expect(0)  # fmt: skip
    lines = done.out.splitlines()
    assert lines[0].startswith("# all-gather, float32, 5 ranks in 1 process")
    assert lines[1].split()[:4] == ["#", "bytes", "avg", "min"]
    row = lines[2].split()
    assert row[0] == "1024" and row[-1] == "0" and len(row) == 7
    assert lines[3].startswith("# barrier")


@pytest.mark.parametrize(("options", "code", "text"), [
    (("all-reduc",), 2, "no collective 'all-reduc'"),
    (("barrier", "--vs", "mpi"), 2, "--vs mpi wants several processes"),
    (("--sizes", "1q"), 2, "no range of sizes"),
])  # fmt: skip
def test_what_is_refused(spmd_command, options, code, text):
    spmd_command("bench", *options).expect(code, text)


@pytest.mark.mpi
def test_one_process_says_what_is_refused(mpirun):
    done = mpirun(3, "-m", "spmd", "bench", "all-reduc").expect(2, "no collective 'all-reduc'")
    assert done.err.count("no collective") == 1, done.err


def test_what_is_wrong_is_counted():
    """A formula that is off by one on one rank of three."""
    program = bench_programs._program(
        lambda one, every, own: one + own,
        lambda x: spmd.psum(x, bench_programs.AXIS),
        lambda one, every, mine, i, n, t: bench_programs._sum(one, n, t) + (i == 1),
    )
    out = spmd.build(program, count=50).run(ranks=3, turns=4)
    assert out["wrong"].tolist() == [0, 200, 0]


PEER = """
import sys
from spmd import bench, launch
from mpi4py import MPI

right, wrong = ("all-reduce", b"MPI_Allreduce"), ("all-reduce", b"MPI_Scan")
for name, symbol in (right, wrong):
    bench.COLLECTIVES[name] = (symbol, *bench.COLLECTIVES[name][1:])
    times, bad = bench.Peer(name, launch.Processes(MPI.COMM_WORLD), 10).turns(7)
    if MPI.COMM_WORLD.rank == 0:
        assert [len(own) for own in times] == [7, 7, 7] and min(map(min, times)) > 0
        print(bad)
"""


@pytest.mark.mpi
def test_what_mpi_gives_is_checked(tmp_path):
    """A scan in the place of an all-reduce: right on the last rank only."""
    (tmp_path / "peer.py").write_text(PEER)
    done = run(["mpirun", "-n", 3, sys.executable, tmp_path / "peer.py"]).expect(0)
    assert done.out.split() == ["0", str(2 * 10 * 7)]
