"""The Parallel Research Kernels as spmd programs beside C with MPI.

In: an image and steps, on every process that mpirun starts. Out: seconds per step, the worst
process's, one line. Every program makes the check that the C makes, and ends where it fails.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from benchmarks.running import table
from tests.conftest import run

# mypy: ignore-errors


@spmd.program(mesh=("y", "x"))
def stencil(n: int = 2000, r: int = 2):
    """A star of radius r on a grid; what it reads changes in every step."""
    steps = spmd.scalar("steps", 1)
    a = spmd.input("a", (n, n), np.float64, layout=("y", "x"), default=lambda j, i: i + j)
    out = spmd.zeros((n, n), layout=("y", "x"))
    for _ in spmd.range(steps):
        total = out[r:-r, r:-r]
        for k in range(1, r + 1):
            total = total + 1.0 / (2 * k * r) * (
                a[r + k : n - r + k, r:-r] - a[r - k : n - r - k, r:-r]
                + a[r:-r, r + k : n - r + k] - a[r:-r, r - k : n - r - k])
        out[r:-r, r:-r] = total
        a += 1.0
    norm = np.sum(np.abs(out[r:-r, r:-r])) / (n - 2 * r) ** 2
    assert np.abs(norm - 2 * steps) < 1e-8, "the norm is that of a constant divergence"
    return ()


@spmd.program(mesh=("r",))
def transpose(n: int = 2048):
    steps = spmd.scalar("steps", 1)
    a = spmd.input("a", (n, n), np.float64, layout=("r", None), default=lambda j, i: n * j + i)
    b = spmd.zeros((n, n), layout=("r", None))
    for _ in spmd.range(steps):
        b += a.T
        a += 1.0
    wanted = (n * np.arange(n) + np.arange(n)[:, None]) * 1.0 * steps + steps * (steps - 1) / 2.0
    assert np.sum(np.abs(b - wanted)) < 1e-8, "b is the sum of all transposed"
    return ()


@spmd.program(mesh=("r",))
def nstream(n: int = 20_000_000):
    steps = spmd.scalar("steps", 1)
    a = spmd.zeros((n,), layout=("r",))
    b = spmd.input("b", (n,), np.float64, layout=("r",), default=lambda i: 2.0)
    c = spmd.input("c", (n,), np.float64, layout=("r",), default=lambda i: 2.0)
    for _ in spmd.range(steps):
        a += b + 3.0 * c
    assert np.abs(np.sum(a) / (8.0 * n * steps) - 1) < 1e-8, "every element is the same"
    return ()


@spmd.program(mesh=("r",))
def dgemm(n: int = 1024):
    steps = spmd.scalar("steps", 1)
    a = spmd.input("a", (n, n), np.float64, layout=("r", None), default=lambda i, j: j)
    b = spmd.input("b", (n, n), np.float64, layout=("r", None), default=lambda i, j: j)
    c = spmd.zeros((n, n), layout=("r", None))
    for _ in spmd.range(steps):
        c += a @ b
    wanted = 0.25 * n**3 * (n - 1.0) ** 2 * steps
    assert np.abs(np.sum(c) / wanted - 1) < 1e-8, "the sum is that of the product"
    return ()


@spmd.program(mesh=("r",))
def reduce(n: int = 100_000):
    steps, ranks = spmd.scalar("steps", 1), spmd.axis_size("r")
    ones = spmd.input("ones", (ranks, n), np.float64, layout=("r", None), default=lambda i, j: 1.0)

    @spmd.shard_map(mesh="r", out_layouts=("r", None))
    def reduced(ones):
        vector = ones.copy()
        for _ in spmd.range(steps):
            vector = vector + ones
            total = spmd.preduce(vector, "r", "sum", root=0)
            vector = np.where(spmd.axis_index("r") == 0, total, vector)
        return vector

    k = steps - 1
    wanted = k + 2.0 + (k * k + 5.0 * k + 4.0) * (ranks - 1.0) / 2
    assert np.max(np.abs(reduced(ones)[0] - wanted)) < 1e-8, "the root has the sum"
    return ()


@spmd.program(mesh=("r",))
def random(log2: int = 20, ahead: int = 1024):
    """Elements of a table, found by random numbers, change; the second round changes them back."""
    steps, size = spmd.scalar("steps", 1), 1 << log2
    table = spmd.input("table", (size,), np.uint64, layout=("r",), default=lambda i: i)
    seeds = spmd.input("seeds", (spmd.axis_size("r") * ahead,), np.uint64, layout=("r",),
                       default=lambda i: (i + 1) * 6364136223846793005)
    for _ in range(2):
        ran = seeds.copy()
        for _ in spmd.range(steps):
            ran = (ran << np.uint64(1)) ^ (ran >> np.uint64(63)) * np.uint64(7)
            np.bitwise_xor.at(table, (ran & np.uint64(size - 1)).astype(np.int64), ran)
    assert np.all(table == np.arange(size, dtype=np.uint64)), "the table is as it was"
    return ()


@spmd.program(mesh=("r",))
def branch(n: int = 100_000):
    """Branches on what is found at indices (vector_stop), two in a step."""
    steps, ranks = spmd.scalar("steps", 1), spmd.axis_size("r")
    vector = spmd.input("vector", (ranks, n), np.int32, layout=("r", None),
                        default=lambda k, i: 3 - (i & 7))
    index = spmd.input("index", (ranks, n), np.int32, layout=("r", None), default=lambda k, i: i)

    @spmd.shard_map(mesh="r", out_layouts=("r", None))
    def branched(vector, index):
        first = vector.copy()
        for _ in spmd.range(steps):
            for aux in (-first, first):
                taken = np.take_along_axis(vector, index, 1)
                vector = vector - 2 * np.where(taken > 0, vector, aux)
        return vector

    wanted = np.where(vector > 0, -3 * vector, vector)
    assert np.all(branched(vector, index) == wanted), "positive ones are tripled and turned"
    return ()


@spmd.program(mesh=("r",))
def synch_p2p(m: int = 1000, n: int = 1000):
    """Computes a wavefront over columns split by rank: a rank computes a line once the one before
    has."""
    steps = spmd.scalar("steps", 1)
    grid = spmd.input("grid", (n, m), np.float64, layout=(None, "r"),
                      default=lambda j, i: np.where(j == 0, i, np.where(i == 0, j, 0)))

    @spmd.shard_map(mesh="r", out_layouts=(None, "r"))
    def piped(grid):
        def passed_on(x):
            return spmd.ppermute(x, "r", to=lambda i, n: i + 1 if i + 1 < n else None)

        me, ranks = spmd.axis_index("r"), spmd.axis_size("r")
        x = np.concatenate([passed_on(grid[:, -1])[:, None], grid], axis=1)
        for _ in spmd.range(steps):
            for turn in spmd.range(1, n + ranks - 1):
                line = min(max(turn - me, 1), n - 1)
                if line == turn - me:
                    for i in spmd.range(1 + (me == 0), x.shape[1]):
                        x[line, i] = x[line, i - 1] + x[line - 1, i] - x[line - 1, i - 1]
                came = passed_on(x[line, -1])
                following = min(max(turn - me + 1, 1), n - 1)
                if following == turn - me + 1:
                    x[following, 0] = came
            corner = spmd.ppermute(-x[-1, -1], "r", to=lambda i, n: 0 if i == n - 1 else None)
            if me == 0:
                x[0, 1] = corner
        return x[:, 1:]

    corner = piped(grid)[-1, -1]
    assert np.abs(corner / (steps * (m + n - 2.0)) - 1) < 1e-8, "the corner is known"
    return ()


@dataclass(frozen=True)
class Kernel:
    """A kernel of the Parallel Research Kernels in C: its folder, its first argument (`steps`;
    `few` for many ranks) and the others. `work` is what a step computes, or the least that it moves
    if each statement reads and writes its arrays once; `unit` is the unit of that rate. The
    memory's rate, which nstream measures, bounds the others."""

    folder: str
    steps: int
    few: int
    argv: tuple[Any, ...]
    work: float = 0.0
    unit: str = ""
    binary: str = ""  # unless it is called as its folder

    @property
    def program(self) -> str:
        return self.binary or self.folder.lower()

    def rate(self, seconds: float) -> str:
        return f"{self.work / seconds:.1f} {self.unit}" if self.work else ""


KERNELS = {
    "stencil": Kernel("Stencil", 40, 10, (2000,), work=5 * 8 * 2000**2 / 1e9, unit="GB/s"),
    "transpose": Kernel("Transpose", 20, 3, (2048,), work=4 * 8 * 2048**2 / 1e9, unit="GB/s"),
    "nstream": Kernel("Nstream", 20, 5, (20_000_000, 0), work=4 * 8 * 0.02, unit="GB/s"),
    "dgemm": Kernel("DGEMM", 3, 1, (1024, 32, 1), work=2 * 1024**3 / 1e9, unit="Gflop/s"),
    "reduce": Kernel("Reduce", 200, 4, (100_000,)),
    "random": Kernel("Random", 16, 1, (20,)),
    "branch": Kernel("Branch", 400, 100, (100_000, "vector_stop")),
    "synch_p2p": Kernel("Synch_p2p", 20, 2, (1000, 1000), binary="p2p"),
}


def steps_of(name: str, ranks: int) -> int:
    """Return the first argument of the C program, smaller where ranks must share cores."""
    kernel = KERNELS[name]
    return kernel.steps if ranks < 8 else kernel.few


def turns_of(name: str, ranks: int) -> int:
    """Return the turns of our call that do the work of C's argument. `random` counts updates per
    element, in two rounds of groups of 1024; two iterations of `branch` are one step of ours."""
    steps = steps_of(name, ranks)
    if name == "random":
        return max(1, steps * (1 << KERNELS[name].argv[0]) // ranks // 2048)
    return steps // 2 if name == "branch" else steps


LIMIT_S = 60.0  # for one run
ENOUGH_S = 30.0  # of rounds of one kernel on so many ranks

FETCH = """figures prk: PRK is not the folder of the Parallel Research Kernels
  try:      git clone https://github.com/ParRes/Kernels, then
            make figures ARGS=prk PRK=/path/to/Kernels"""


def built_c(source: Path, folder: Path) -> None:
    """A copy of the sources, built with the mpicc of this environment."""
    if not (source / "MPI1" / "Stencil" / "stencil.c").exists():
        sys.exit(FETCH)
    for part in ("MPI1", "common", "include"):
        shutil.copytree(source / part, folder / part)
    flags = "MPICC=mpicc\nDEFAULT_OPT_FLAGS=-O3 -march=native\n"
    (folder / "common" / "make.defs").write_text(flags)
    for kernel in KERNELS.values():
        place = folder / "MPI1" / kernel.folder
        run(["make", "-C", place, kernel.program], timeout=600).expect(0)


def seconds_of_c(name: str, folder: Path, ranks: int) -> float:
    """Return the seconds that the C program takes for a step."""
    kernel, launch = KERNELS[name], ["mpirun", "-n", ranks]
    binary = folder / "MPI1" / kernel.folder / kernel.program
    out = run([*launch, binary, steps_of(name, ranks), *kernel.argv], timeout=LIMIT_S).expect(0).out
    (seconds, *_) = re.findall(r"[tT]ime \(s\): ([0-9.]+)", out)
    rounds = {"random": 2 * turns_of(name, ranks), "branch": turns_of(name, ranks)}
    return float(seconds) / rounds.get(name, 1)


def seconds_of_ours(name: str, folder: Path, ranks: int) -> float:
    argv = ["mpirun", "-n", ranks, sys.executable, "-m", "benchmarks.research_kernels"]
    steps = turns_of(name, ranks)
    done = run([*argv, folder / f"{name}.img", steps], timeout=LIMIT_S).expect(0)
    return float(done.out.split()[-1]) / (2 if name == "random" else 1)


def repeated(measure: Callable[[], Any], rounds: int, enough_s: float, doing: str) -> list[Any]:
    """Return the results of calling `measure` up to `rounds` times; no round begins after
    `enough_s`. Each round is named on standard error as it begins."""
    results, end = [], time.monotonic() + enough_s
    while len(results) < rounds and (not results or time.monotonic() < end):
        print(f"figures: {doing}, {len(results) + 1} of {rounds}", file=sys.stderr, flush=True)
        results.append(measure())
    return results


def compared(
    folder: Path, source: Path, rounds: int, counts: Sequence[int], say: Callable[..., None]
) -> None:
    """Calls say(kernel, ranks, seconds of C, of ours, ratio, rates) for every kernel: medians of
    runs that alternate. NAMES in the environment: of which. Of runs that take longer than LIMIT_S,
    as where ranks of C's MPI spin on few cores, the seconds are None."""
    print("figures: prk, building the C", file=sys.stderr, flush=True)
    built_c(source, folder)
    for name in os.environ.get("NAMES", " ".join(KERNELS)).split():
        kernel = KERNELS[name]
        (folder / f"{name}.img").write_bytes(spmd.build(globals()[name]).data)
        for ranks in counts:
            try:
                pairs = repeated(
                    lambda: [of(name, folder, ranks) for of in (seconds_of_c, seconds_of_ours)],
                    rounds, ENOUGH_S, f"prk {name} on {ranks} ranks, C and ours")
            except pytest.fail.Exception:
                say(name, ranks, None, None, None, [])
                continue
            c, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            say(name, ranks, c, ours, ratio, [kernel.rate(c), kernel.rate(ours)])


def main(path: str, steps: str) -> None:
    from mpi4py import MPI

    comm, turns = MPI.COMM_WORLD, int(steps)
    with spmd.load(path).open(comm=comm) as job:

        def seconds(k: int) -> float:
            comm.Barrier()
            start = time.perf_counter()
            job(steps=k)
            return comm.allreduce(time.perf_counter() - start, MPI.MAX)

        seconds(1)
        pairs = [(seconds(1), seconds(turns + 1)) for _ in range(3)]
    if comm.rank == 0:
        print(statistics.median(long - short for short, long in pairs) / turns)


def report(folder: Path, rounds: int = 5) -> None:
    """The Parallel Research Kernels beside the C with MPI, whose folder PRK names."""
    rows: list[tuple[object, ...]] = []

    def say(name: str, ranks: int, c: float | None, ours: float, ratio: float,
            rates: list[str]) -> None:
        rows.append((name, ranks, f"no end in {LIMIT_S:g} s", "", "", "", "")
                    if c is None else (name, ranks, f"{1e3 * c:.3f}", f"{1e3 * ours:.3f}",
                                       f"{ratio:.2f}", *rates))

    source = Path(os.environ.get("PRK", "PRK"))
    compared(folder, source, rounds, (2, 4, 16), say)
    print(f"Parallel Research Kernels, ms of a step, median of {rounds} (of fewer where one takes "
          "long), real processes:\n")
    table(["kernel", "ranks", "C", "ours", "ours / C", "C's rate", "our rate"], rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
