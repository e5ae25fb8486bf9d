"""Kernels of tests/programs/numpy_kernels.py beside NumPy and numba.

In: a factor for the sizes, how many rounds. All run in this process, in turn, NumPy with one
thread: seconds of one call, medians, for one rank and for two; and the medians of the ratios.
What we compute is compared with NumPy's results first.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

import spmd
from benchmarks.running import table
from tests.conftest import run
from tests.programs.numpy_kernels import KERNELS, arguments, changed, inputs, plain, program

LONGEST = 20.0  # seconds that the rounds of one kernel may take


def called(function: Any, arguments: dict[str, Any]) -> Callable[[], float]:
    """A call with fresh arguments, without the time to make those."""

    def once() -> float:
        values = copy.deepcopy(arguments)
        with np.errstate(all="ignore"):
            start = time.perf_counter()
            function(**values)
            return time.perf_counter() - start

    return once


def of_job(job: Any, arguments: dict[str, Any]) -> Callable[[], float]:
    """A run of the image alone: what brings arrays in and out is not NumPy's work either."""
    job(**arguments)
    run, took = job._job.run, [0.0]

    def timed(*args: Any) -> None:
        start = time.perf_counter()
        run(*args)
        took[0] = time.perf_counter() - start

    job._job.run = timed

    def once() -> float:
        job(**arguments)
        return took[0]

    return once


def compiled(function: Any, arguments: dict[str, Any]) -> Callable[[], float] | None:
    """numba's version, if it compiles the function."""
    once = called(function, arguments)
    try:
        once()
    except numba.core.errors.NumbaError:
        return None
    return once


def how_often(slow: list[float], fast: list[float]) -> float:
    """How many times as long: the median of the ratios of runs that were made in turn."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def measured(name: str, size: int, rounds: int, plainly: Any, by_numba: Any) -> dict[str, Any]:
    theirs, ours = arguments(name, size), inputs({name: size})
    image = spmd.build(program({name: size}))
    with image.open(ranks=1, threads=1) as of_one, image.open(ranks=2) as of_two:
        asked = copy.deepcopy(theirs)
        wanted = changed(plainly(**asked), asked)
        for job in (of_one, of_two):
            for result, want in zip(job(**ours)[name], wanted, strict=True):
                np.testing.assert_allclose(result, want, 1e-6, err_msg=name)
        runs = {"numpy": called(plainly, theirs), "numba": compiled(by_numba, theirs),
                "1 rank": of_job(of_one, ours), "2 ranks": of_job(of_two, ours)}
        times: dict[str, list[float]] = {k: [] for k, r in runs.items() if r}
        start = time.perf_counter()
        while len(times["numpy"]) < rounds and (
            len(times["numpy"]) < 3 or time.perf_counter() - start < LONGEST
        ):
            for k in times:
                times[k].append(runs[k]())
    row: dict[str, Any] = {k: statistics.median(t) for k, t in times.items()}
    for k, base in (("numpy", "1 rank"), ("numba", "1 rank"), ("1 rank", "2 ranks")):
        if k in times:
            row[f"{k}/{base}"] = how_often(times[k], times[base])
    return row


def main(factor: str, rounds: str, *names: str) -> None:
    theirs, by_numba = plain(), plain(numba.njit)
    for name in names or KERNELS:
        size = max(KERNELS[name].small, int(KERNELS[name].size * float(factor)))
        row = measured(name, size, int(rounds), theirs[name], by_numba[name])
        print(json.dumps({"name": name, "size": size, **row}), flush=True)


def report(folder: Path, rounds: int = 5) -> None:
    """Kernels as people write them in NumPy beside NumPy and numba; SIZE=0.5 halves the extents."""
    argv = [sys.executable, "-W", "ignore", "-m", "benchmarks.numpy_kernels"]
    threads = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = run([*argv, os.environ.get("SIZE", "1"), rounds], timeout=3000, env=threads).expect(0)
    figures = [json.loads(line) for line in done.out.splitlines()]
    whom, ratios = ("numpy", "numba", "1 rank", "2 ranks"), ("numpy", "numba", "1 rank/2 ranks")
    keys = [k if "/" in k else f"{k}/1 rank" for k in ratios]
    rows = [
        (r["name"], r["size"], *(f"{1e3 * r[k]:.2f}" if k in r else "" for k in whom),
         *(f"{r[k]:.2f}" if k in r else "" for k in keys))
        for r in figures
    ]
    means = [
        f"{statistics.geometric_mean(r[k] for r in figures if k in r):.2f}" for k in keys
    ]
    print(f"Kernels of NumPy, ms, median of {rounds}; NumPy with one thread:\n")
    table(["kernel", "size", "NumPy", "numba", "1 rank", "2 ranks", "NumPy / 1 rank",
           "numba / 1 rank", "1 rank / 2 ranks"], [*rows, ("geometric mean", *[""] * 5, *means)])


if __name__ == "__main__":
    main(*sys.argv[1:])
