"""What gradients cost: programs of 100 steps, and the same with their gradients, in turn.

In: how often each is run. Out: a line of JSON per program and number of ranks: its name, the ranks,
the median seconds of it and of its gradient.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from benchmarks.running import json_lines, table

STEPS = 100


def around(u: Any) -> Any:
    """Return the five-point Laplacian of a 2-d array at its inner points."""
    return u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]


def heat(u: Any) -> Any:
    u = u.copy()
    for _ in spmd.range(STEPS):
        u[1:-1, 1:-1] += 0.1 * around(u)
    return np.sum(u * u)


def wave(u: Any, v: Any) -> Any:
    u, v = u.copy(), v.copy()
    for _ in spmd.range(STEPS):
        v[1:-1, 1:-1] += 0.1 * around(u)
        u += 0.5 * v
    return np.sum(u * u)


def bodies(x: Any, v: Any) -> Any:
    def pulls(x: Any) -> Any:
        away = x[None, :, :] - x[:, None, :]
        return np.sum(away * ((np.sum(away * away, axis=2) + 0.01) ** -1.5)[:, :, None], axis=1)

    a = pulls(x)
    for _ in spmd.range(STEPS):
        v = v + 0.0005 * a
        x = x + 0.001 * v
        a = pulls(x)
        v = v + 0.0005 * a
    return np.sum(x * x) + np.sum(v * v)


SHAPES: dict[Callable[..., Any], tuple[int, int]] = {
    heat: (1200, 1200), wave: (1200, 1200), bodies: (400, 3)
}


def programs(loss: Callable[..., Any]) -> tuple[Any, Any]:
    """One that computes a loss, and one that computes its gradient by all that it takes."""
    shape, count = SHAPES[loss], loss.__code__.co_argcount

    def inputs() -> list[Any]:
        return [spmd.input(f"x{k}", shape, np.float64, layout=("r", None)) for k in range(count)]

    @spmd.program(mesh=("r",))
    def value():
        return loss(*inputs())

    @spmd.program(mesh=("r",))
    def gradient():
        return spmd.grad(loss, tuple(range(count)))(*inputs())

    return value, gradient


def compared(rounds: int, ranks: tuple[int, ...] = (1, 2)) -> None:
    for loss in SHAPES:
        images, rng = [spmd.build(p) for p in programs(loss)], np.random.default_rng(0)
        inputs = {f"x{k}": rng.random(SHAPES[loss]) for k in range(loss.__code__.co_argcount)}
        for n in ranks:
            jobs = [image.open(ranks=n) for image in images]
            seconds: list[list[float]] = [[], []]
            for _ in range(rounds + 1):
                for job, spent in zip(jobs, seconds, strict=True):
                    start = time.perf_counter()
                    job(**inputs)
                    spent.append(time.perf_counter() - start)
            medians = [statistics.median(some[1:]) for some in seconds]
            print(json.dumps([loss.__name__, n, *medians]), flush=True)
            for job in jobs:
                job.close()


def report(_: Path, rounds: int = 9) -> None:
    """Gradients beside what they are of."""
    rows = []
    for name, ranks, plain, gradient in json_lines("derivatives", rounds, timeout=600):
        times = (f"{1e3 * plain:.0f}", f"{1e3 * gradient:.0f}")
        rows.append((name, ranks, *times, f"{gradient / plain:.2f}"))
    print("100 steps in float64, and their gradient by all that they begin with, medians:\n")
    table(["program", "ranks", "ms", "gradient, ms", "ratio"], rows)


if __name__ == "__main__":
    compared(int(sys.argv[1]))
