"""`bench`: what is measured is right, checked, and said as the field says it. No figures here."""

from __future__ import annotations

import json
import sys

import pytest

import spmd
from spmd.bench import collectives as bench
from spmd.bench import floor as bench_floor
from spmd.bench import plot
from spmd.bench import programs as bench_programs
from spmd.engine import ffi, lib
from spmd.launch.processes import Processes
from tests.conftest import PATIENCE, run

SIZED = [name for name in bench.COLLECTIVES if name not in bench.UNSIZED]


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(("n", "names", "options"), [
    (3, SIZED, ()), (3, ["permute"], ("--transport", "mpi")), (2, ["barrier"], ()),
])
def test_every_collective_beside_mpi(mpirun, spmd_here, n, names, options):
    """Ours and MPI's, both checked in every turn, on a number of ranks that divides nothing.

    Of so many bytes there are few turns: MPI's take milliseconds where ranks outnumber cores. So
    what has no bytes has a core for each rank; and images are built before: who waits for that in
    MPI takes the builder's core.
    """
    sizes = ("--sizes", "2400k", "--rounds", 1, "--json")
    if names == SIZED:
        all_ = json.loads(spmd_here("bench", "--ranks", n, *sizes).expect(0).out)
        assert [row["collective"] for row in all_] == list(bench.COLLECTIVES)
        assert {row["bytes"] for row in all_} == {2_457_600, 0}
    done = mpirun(n, "-m", "spmd", "bench", *names, *sizes, "--vs", "mpi", *options,
                  timeout=5 * PATIENCE)
    rows = json.loads(done.expect(0).out)
    assert [row["collective"] for row in rows] == names
    assert {row["bytes"] for row in rows} == ({2_457_600} if n == 3 else {0})
    for row in rows:
        assert (row["ranks"], row["wrong"], row["mpi"]["wrong"]) == (n, 0, 0)
        assert row["least"] <= row["average"] <= row["most"]
        assert row["worst"] > 0 and row["mpi"]["ratio"] > 0 and row["turns"] >= bench.LEAST_TURNS
    bandwidths = [row["bus"] for row in rows if row["collective"] != "barrier"]
    assert all(bandwidths) and len(bandwidths) == len(rows) - (n == 2)


def test_a_table(spmd_command):
    """Sizes first, then latencies, bandwidth and what was wrong; many ranks in one process."""
    done = spmd_command("bench", "all-gather", "barrier", "--ranks", 5, "--sizes", "1k",
                        "--rounds", 1).expect(0)
    lines = done.out.splitlines()
    assert lines[0].startswith("# all-gather, float32, 5 ranks in 1 process")
    assert lines[1].split()[:4] == ["#", "bytes", "avg", "min"]
    row = lines[2].split()
    assert row[0] == "1024" and row[-1] == "0" and len(row) == 7
    assert lines[3].startswith("# barrier")


@pytest.mark.parametrize(("options", "code", "text"), [
    (("all-reduc",), 2, "no collective 'all-reduc'"),
    (("barrier", "--vs", "mpi"), 2, "--vs mpi needs several processes"),
    (("--sizes", "1q"), 2, "not a range of sizes"),
    (("--vs", "mpi,flor"), 2, "'flor' is neither mpi nor floor"),
    (("floor", "all-reduc"), 2, "no floor of 'all-reduc'"),
    (("floor", "--vs", "mpi"), 2, "bench COLLECTIVE --vs floor"),
    (("--algorithm=auto", "floor", "--json", "flag"), 2, "no use for --algorithm"),
    (("flag", "floor"), 2, "bench floor [NAME …]"),
])
def test_what_is_refused(spmd_command, options, code, text):
    spmd_command("bench", *options).expect(code, text)


@pytest.mark.one_mpi
@pytest.mark.mpi
def test_one_process_says_what_is_refused(mpirun):
    done = mpirun(3, "-m", "spmd", "bench", "all-reduc").expect(2, "no collective 'all-reduc'")
    assert done.err.count("no collective") == 1, done.err


def test_what_is_wrong_is_counted():
    """A formula that is off by one on one rank of three."""
    program = bench_programs._program(
        bench_programs._one,
        lambda x: spmd.psum(x, bench_programs.AXIS),
        lambda c, m, i, n, t: bench_programs._sum(bench_programs.pattern(c), n, t) + (i == 1),
    )
    out = spmd.build(program, count=50).run(ranks=3, turns=4)
    assert out["wrong"].tolist() == [0, 200, 0]


PEER = """
import sys
from spmd.bench import collectives as bench; from spmd.launch.processes import Processes
from mpi4py import MPI

right, wrong = ("all-reduce", b"MPI_Allreduce"), ("all-reduce", b"MPI_Scan")
for name, symbol in (right, wrong):
    bench.COLLECTIVES[name] = (symbol, *bench.COLLECTIVES[name][1:])
    times, bad = bench.Peer(name, Processes(MPI.COMM_WORLD), 3, 10).turns(7)
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


# ---- the floor


@pytest.mark.one_mpi
@pytest.mark.mpi
def test_the_floor(mpirun):
    """It measures the machine and every collective written by hand, at sizes of each way to move
    data."""
    n = 2
    done = mpirun(n, "-m", "spmd", "bench", "floor", "--sizes", "12-24k", "--step", 2048,
                  "--rounds", 1, "--json", timeout=5 * PATIENCE).expect(0)
    rows = json.loads(done.out)
    sizes = {}
    for row in rows:
        sizes.setdefault(row["collective"], []).append(row["bytes"])
        assert (row["ranks"], row["processes"], row["wrong"]) == (n, n, 0), row
        assert 0 < row["least"] <= row["average"] <= row["most"] and row["method"], row
    assert list(sizes) == [*bench_floor.MACHINE, *bench.COLLECTIVES]
    assert all(len(found) == (1 if name in bench.UNSIZED else 2) for name, found in sizes.items())


@pytest.mark.slow
@pytest.mark.one_mpi
@pytest.mark.mpi
def test_beside_the_floor_and_mpi(mpirun):
    """Ranks that share processes too; columns in one order, whatever was asked for first."""
    done = mpirun(2, "-m", "spmd", "bench", "scan", "--sizes", "1k", "--rounds", 1,
                  "--vs", "floor", "--vs", "mpi").expect(0)
    head, row = done.out.splitlines()[1:]
    assert head.split()[-6:] == ["MPI", "worst", "MPI/ours", "floor", "worst", "floor/ours"]
    assert len(row.split()) == 11 and row.split()[-1].endswith("x")
    done = mpirun(2, "-m", "spmd", "bench", "gather", "--ranks", 5, "--sizes", "1k", "--rounds", 1,
                  "--vs", "floor", "--json").expect(0)
    (row,) = json.loads(done.out)
    assert row["floor"]["wrong"] == 0 and row["floor"]["ratio"] > 0


@pytest.mark.parametrize(("count", "crowded"), [(1, 1), (32, 0), (1000, 1), (4000, 1)])
@pytest.mark.parametrize("name", bench.COLLECTIVES)
def test_every_way_gives_the_same(name, count, crowded):
    """By more ranks than cores, also as if each of them had its own."""
    ranks = 5
    count = -(-count // ranks) * ranks if name == "reduce-scatter" else count
    floor = bench_floor.Floor(name, Processes(), ranks, count)
    floor.c_floor.crowded = crowded
    ways = [way for way in bench_floor.WAYS if floor._offers(way)]
    assert "pull" in ways
    for way in ways:
        times, wrong = floor._measure(way, 6)
        assert wrong == 0 and [len(row) for row in times] == [6] * ranks, way


def test_what_is_wrong_by_hand_is_counted():
    """Turns of a scan, compared with those of an all-reduce: right on the last rank only."""
    into = ffi.new("float[]", [3 * j + 3 for j in range(7)] * 20)
    turns = ffi.new("spmd_turns *", {"kind": lib.SPMD_MPI_ALLREDUCE, "ranks": 3, "count": 140,
                                     "into": into})
    assert lib.spmd_turn_wrong(turns, 0) == 0
    into[139] += 1
    into[0] += 1
    assert lib.spmd_turn_wrong(turns, 0) == 2
    turns.kind, turns.rank = lib.SPMD_MPI_SCAN, 1
    assert lib.spmd_turn_wrong(turns, 0) == 140


# ---- pictures


def test_a_picture(spmd_command, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "floor.png"
    spmd_command("bench", "floor", "barrier", "--ranks", 2, "--sizes", "8-1k", "--rounds", 1,
                 "--plot", picture, "all-reduce").expect(0)
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR"
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    assert width > 800 and height > 500 and len(data) > 20_000
    assert [path.name for path in tmp_path.iterdir()] == ["floor.png"]


@pytest.mark.parametrize(("file", "code", "text"), [
    ("no/where.png", 74, "a file in a directory that may be written to"),
    ("what.doc", 2, "no format 'doc'"),
])
def test_a_picture_that_cannot_be(spmd_command, tmp_path, file, code, text):
    """Said before anything is measured."""
    pytest.importorskip("matplotlib")
    done = spmd_command("bench", "barrier", "--plot", tmp_path / file).expect(code, text)
    assert done.out == ""


def test_no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(spmd.SpmdError, match="needs matplotlib") as raised:
        plot.check("a.png")
    assert raised.value.exit_code == 69 and "spmd[plot]" in str(raised.value)
