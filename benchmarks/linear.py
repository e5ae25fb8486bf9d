"""Factorisations of split matrices, and sorting, beside LAPACK and NumPy on one core; JSON.

In: "linear" or "sort", how many rounds. All run in this process, in turn: seconds of one call,
medians, and how often ours is faster; and the seconds that dgemm needs for as many operations.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import lapack

import spmd
from benchmarks.numpy_kernels import called, how_often, of_job
from benchmarks.running import json_lines, table

N = 4096


class Case(NamedTuple):
    """theirs gets copies to write over, which lie column by column."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: dict[str, tuple[int, ...]]
    operations: float = 0.0
    asked: float | None = None


def reflected(a: Any) -> None:
    q, tau, *_ = lapack.dgeqrf(a, lwork=64 * N, overwrite_a=1)
    lapack.dorgqr(q, tau, lwork=64 * N, overwrite_a=1)


CASES = {
    "linear": {
        f"cholesky, {N}²": Case(
            np.linalg.cholesky, lambda a: lapack.dpotrf(a, lower=1, overwrite_a=1, clean=0),
            {"a": (N, N)}, N**3 / 3, 1.6),
        f"solve, {N}², {N // 4} right sides": Case(
            np.linalg.solve, lambda a, b: lapack.dgesv(a, b, overwrite_a=1, overwrite_b=1),
            {"a": (N, N), "b": (N, N // 4)}, 2 / 3 * N**3 + 2 * N * N * (N // 4)),
        f"qr, {N // 2}²": Case(
            lambda a: tuple(np.linalg.qr(a)), reflected, {"a": (N // 2, N // 2)},
            8 / 3 * (N // 2) ** 3),
    },
    "sort": {"sort, 10⁷": Case(np.sort, np.sort, {"a": (10**7,)}, asked=1.7)},
}


def program(case: Case) -> Any:
    @spmd.program(mesh=("x",))
    def call() -> Any:
        layouts = {1: ("x",), 2: ("x", None)}
        return case.ours(*(spmd.input(name, shape, np.float64, layouts[len(shape)])
                           for name, shape in case.shapes.items()))

    return call


def arrays(case: Case) -> dict[str, Any]:
    """Random ones; square matrices are symmetric, and positive definite."""
    draw = np.random.default_rng(1)
    matrices = {name: draw.normal(size=shape) for name, shape in case.shapes.items()}
    for x in matrices.values():
        if x.ndim == 2 and x.shape[0] == x.shape[1]:
            x += x.T.copy() + 4 * len(x) * np.eye(len(x))
    return matrices


def main(part: str, rounds: str) -> None:
    out = {}
    a, b = np.ones((N // 2, N // 2)), np.ones((N // 2, N // 2))
    for name, case in CASES[part].items():
        inputs, image = arrays(case), spmd.build(program(case))
        theirs = called(case.theirs, {name: np.asfortranarray(x) for name, x in inputs.items()})
        dgemm = called(lambda a, b: a @ b, {"a": a, "b": b}) if case.operations else None
        times: dict[str, list[float]] = {}
        for _ in range(int(rounds)):
            times.setdefault("theirs", []).append(theirs())
            for ranks in (1, 2):  # one at a time: ranks that wait look for messages
                with image.open(ranks=ranks) as job:
                    times.setdefault(f"{ranks}", []).append(of_job(job, inputs)())
            if dgemm:
                times.setdefault("dgemm", []).append(dgemm() * case.operations / (N**3 / 4))
        out[name] = {k: statistics.median(t) for k, t in times.items()} | {"asked": case.asked}
        for k in ("1", "2"):
            out[name][f"{k}, ratio"] = how_often(times["theirs"], times[k])
    print(json.dumps(out))


def beside_one_core(part: str, rounds: int = 5) -> None:
    """Factorisations of split matrices beside LAPACK, or sorting beside NumPy, with one thread."""
    times = json_lines("linear", part, rounds, timeout=900)[-1]
    rows = [
        (name, *(f"{1e3 * t[k]:.0f}" for k in ("theirs", "1", "2")),
         *(f"{t[f'{k}, ratio']:.2f}" for k in ("1", "2")), t["asked"] or "",
         f"{2 * t['theirs'] / t['dgemm']:.2f}" if "dgemm" in t else "")
        for name, t in times.items()
    ]
    print(f"Beside one core, ms, and how often faster; median of {rounds}:\n")
    table(["float64", "LAPACK" if part == "linear" else "NumPy", "1 rank", "2 ranks", "1 rank",
           "2 ranks", "asked", "with nothing but dgemm"], rows)


def linear(folder: Path) -> None:
    beside_one_core("linear")


def sorting(folder: Path) -> None:
    beside_one_core("sort")


if __name__ == "__main__":
    main(*sys.argv[1:])
