"""Collectives as programs use them, timed beside others' own: MPI's, or what is given.

In: a name, sizes. Out: a row for each size.
Always holds: ours is timed inside a real image, by the timeline that `run --profile` keeps; MPI's
in C, in the same processes; they alternate, every turn begins with a barrier and is checked.
"""

from __future__ import annotations

import statistics
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from codegen.errors import EnvironmentFault
from spmd import timeline
from spmd.engine import ffi, lib
from spmd.launch import loader
from spmd.launch.job import Job
from spmd.launch.lifecycle import Launch
from spmd.launch.limits import Limits
from spmd.launch.memory import available_memory
from spmd.launch.options import Options
from spmd.launch.processes import Processes

# Collectives whose arrays have a piece for every rank; sizes are those of a piece.
PIECES = ("all-gather", "all-to-all", "gather", "scatter")
UNSIZED = ("barrier", "flag", "switch-futex", "switch-yield")  # the last three: floor.py
ELEMENT = 4  # bytes: float32
BATCH_BYTES = 16 << 20  # that a batch of turns moves, about
MOST_TURNS, LEAST_TURNS = 400, 6
MEMORY_SHARE = 4  # of what is available, at most, for the arrays of all ranks

# MPI's function, its kind for csrc/mpi.c, and what the field counts as bandwidth on the bus: as
# a multiple of size over time (nccl-tests, doc/PERFORMANCE.md; our sizes are of a rank's own part).
COLLECTIVES: dict[str, tuple[bytes, int, Callable[[int], float]]] = {
    "barrier": (b"MPI_Barrier", lib.SPMD_MPI_BARRIER, lambda n: 0.0),
    "permute": (b"MPI_Sendrecv", lib.SPMD_MPI_SENDRECV, lambda n: 1.0),
    "broadcast": (b"MPI_Bcast", lib.SPMD_MPI_BCAST, lambda n: 1.0),
    "reduce": (b"MPI_Reduce", lib.SPMD_MPI_REDUCE, lambda n: 1.0),
    "all-reduce": (b"MPI_Allreduce", lib.SPMD_MPI_ALLREDUCE, lambda n: 2 * (n - 1) / n),
    "reduce-scatter": (
        b"MPI_Reduce_scatter_block", lib.SPMD_MPI_REDUCE_SCATTER, lambda n: (n - 1) / n),
    "all-gather": (b"MPI_Allgather", lib.SPMD_MPI_ALLGATHER, lambda n: n - 1),
    "gather": (b"MPI_Gather", lib.SPMD_MPI_GATHER, lambda n: n - 1),
    "scatter": (b"MPI_Scatter", lib.SPMD_MPI_SCATTER, lambda n: n - 1),
    "all-to-all": (b"MPI_Alltoall", lib.SPMD_MPI_ALLTOALL, lambda n: n - 1),
    "scan": (b"MPI_Scan", lib.SPMD_MPI_SCAN, lambda n: 1.0),
    "exscan": (b"MPI_Exscan", lib.SPMD_MPI_EXSCAN, lambda n: 1.0),
}


class Bench:
    """A measurement of collectives on some ranks.

    rounds: how often. rivals: what runs in turn with ours, by the name of its columns; see Peer.
    """

    def __init__(
        self, options: Options, processes: Processes, rounds: int,
        rivals: Mapping[str, Callable[[str, Processes, int, int], Any]] | None = None,
    ) -> None:
        self.options, self.processes, self.rounds = options, processes, rounds
        self.rivals = rivals or {}
        self.ranks = options.ranks or processes.count
        self.room: int = processes.run_in_first(available_memory) // MEMORY_SHARE

    def measure(self, name: str, sizes: tuple[int, int], step: int) -> Iterator[dict[str, Any]]:
        """Yield a row for every size, each so many times the last; empty rows but in the first
        process.

        sizes: the least and the most, in bytes of a rank's operand.
        """
        size, most = (0, 0) if name in UNSIZED else sizes
        while size <= most:
            count = max(1, size // ELEMENT)
            if name == "reduce-scatter":  # equal blocks, as MPI wants them
                count = max(1, count // self.ranks) * self.ranks
            if not self.fits(name, count):
                if self.processes.number == 0:
                    print(f"{name}: {size} bytes and more would take over 1/{MEMORY_SHARE} of the "
                          "memory", file=sys.stderr)
                return
            yield self._row(name, count)
            size = size * step if size else 1

    def fits(self, name: str, count: int, jobs: int = 1) -> bool:
        """Return whether there is memory for the arrays of all ranks, in so many jobs at once."""
        pieces = self.ranks if name in PIECES else 1
        need = 6 * count * ELEMENT * pieces * self.ranks * jobs
        return need <= self.room

    def _row(self, name: str, count: int) -> dict[str, Any]:
        turns = turns_of(name, count, self.ranks)
        ours: list[list[list[int]]] = []
        wrong = 0
        data = self.processes.run_in_first(lambda: _built(name, count))
        with self.job(data, turns) as job:
            job.keep_times(16 * turns)
            peers = {label: rival(name, self.processes, self.ranks, count)
                     for label, rival in self.rivals.items()}
            theirs: dict[str, list[list[list[int]]]] = {label: [] for label in peers}
            theirs_wrong = dict.fromkeys(peers, 0)
            for batch in range(self.rounds + 1):  # the first one warms up
                times, bad = self.ours(job)
                wrong += bad
                ours += [times] if batch else []
                for label, peer in peers.items():
                    times, bad = peer.turns(turns)
                    theirs_wrong[label] += bad
                    theirs[label] += [times] if batch else []
        row = self.row_of(name, count, turns * len(ours))
        if self.processes.number:
            return {**row, "wrong": 0}
        row |= {**summary(ours), "wrong": wrong}
        row["bus"] = COLLECTIVES[name][2](self.ranks) * row["bytes"] / (row["worst"] / 1e6)
        for label, peer in peers.items():
            row[label] = {**summary(theirs[label]), "wrong": theirs_wrong[label],
                          "ratio": ratio(theirs[label], ours)}
            if peer.method:
                row[label]["method"] = peer.method
        return row

    def row_of(self, name: str, count: int, turns: int) -> dict[str, Any]:
        """Return what a row says before anything is measured."""
        return {
            "collective": name, "ranks": self.ranks, "processes": self.processes.count,
            "bytes": 0 if name in UNSIZED else count * ELEMENT, "turns": turns,
        }

    def job(self, data: bytes, turns: int, limits: Limits | None = None) -> Job:
        """Return an image of `built`, loaded. limits: instead of those kept for this machine."""
        checked = self.processes.run_in_all(lambda: loader.check(data), shared=False)
        launch = Launch(checked, self.options, self.processes)
        setup, _ = launch.agreed(
            lambda: launch.contribution(launch.bind(launch.face, {"turns": turns}, {}), {}))
        if limits is not None:
            setup.hosts.limits = limits
        return launch.loaded(setup, lambda _: None)

    def ours(self, job: Job) -> tuple[list[list[int]], int]:
        """Return nanoseconds of every turn, by rank, and how much was wrong; in the first
        process."""
        self.processes.run_in_all(job.run)
        _, operation, _ = (row["number"] for row in job.manifest["operations"]
                           if row["kind"] != "compute")  # a barrier on either side
        times = []
        for own in timeline.gather(job):
            times.append([end - begin for begin, end, _, _, row, waits, _ in own.events()
                          if row == operation and not waits])
        wrong = 0
        for rank in range(job.setup.first, job.setup.first + job.setup.count):
            _, _, address = job.shard(len(job.numbers), rank)
            wrong += int(ffi.cast("int64_t *", address)[0])
        return times, sum(self.processes.gather_to_first(wrong))


class Peer:
    """A measurement of MPI's own collective, in the same processes, of which each is one rank."""

    method = ""  # which is MPI's affair

    def __init__(self, name: str, processes: Processes, ranks: int, count: int) -> None:
        MPI = processes.mpi()
        self.processes = processes
        library = lib.spmd_library_open(MPI.__file__.encode())
        symbol, kind, _ = COLLECTIVES[name]
        functions = [lib.spmd_library_symbol(library, s) for s in (b"MPI_Barrier", symbol)]
        if not all(functions):
            raise EnvironmentFault(f"the MPI library has no {symbol.decode()}")
        many = count * (ranks if name in PIECES else 1)
        self.rooms = [ffi.new("float[]", many) for _ in range(2)]
        handle = {
            key: ffi.cast("int64_t", MPI._handleof(value))
            for key, value in (("comm", processes.comm), ("type", MPI.FLOAT), ("op", MPI.SUM))
        }
        self.c_turns = ffi.new("spmd_mpi_turns *", {
            "barrier": functions[0], "collective": functions[1],
            "handle_bytes": MPI._sizeof(MPI.Comm), **handle,
            "turns": {"kind": kind, "count": count, "rank": processes.number,
                      "ranks": ranks, "from": self.rooms[0], "into": self.rooms[1]},
        })

    def turns(self, count: int) -> tuple[list[list[int]], int]:
        """Measure MPI's collective and return what Bench.ours returns."""
        times = array("q", bytes(8 * count))
        wrong = lib.spmd_mpi_measure(self.c_turns, count, ffi.from_buffer("int64_t[]", times))
        met = self.processes.gather_to_first((times.tolist(), wrong))
        if any(bad < 0 for _, bad in met):
            raise EnvironmentFault("MPI's own collective failed")
        return [own for own, _ in met], sum(bad for _, bad in met)


def _built(name: str, count: int) -> bytes:
    from spmd.bench.programs import built  # the compiler, which one process alone needs

    return built(name, count)


def turns_of(name: str, count: int, ranks: int) -> int:
    """Return the number of turns of a batch: many of what is short."""
    moved = count * ELEMENT * (ranks if name in PIECES else 1)
    most = LEAST_TURNS if name.startswith("switch") else MOST_TURNS  # a turn is many switches
    return max(LEAST_TURNS, min(most, BATCH_BYTES // moved))


def ratio(theirs: list[list[list[int]]], ours: list[list[list[int]]]) -> float:
    """Return their time over ours: the worst rank, the median turn, the median batch."""
    return statistics.median(
        statistics.median(map(max, zip(*b))) / statistics.median(map(max, zip(*a)))
        for a, b in zip(ours, theirs)
    )


def summary(batches: list[list[list[int]]]) -> dict[str, float]:
    """Return statistics of the turns, in microseconds. average, least, most: over the ranks, of
    each one's median turn; worst: the median over the turns of the rank that took longest."""
    if not batches:
        return {}
    by_rank = [statistics.median(t for batch in batches for t in batch[rank]) / 1e3
               for rank in range(len(batches[0]))]
    worst = statistics.median(max(turn) for batch in batches for turn in zip(*batch)) / 1e3
    return {"average": statistics.fmean(by_rank), "least": min(by_rank), "most": max(by_rank),
            "worst": worst}
