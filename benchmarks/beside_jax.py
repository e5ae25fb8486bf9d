"""The same step in spmd and in JAX, on all cores of this machine; prints one JSON line.

In: how many rounds. Both run in this process, in turn: seconds per turn of a compiled loop,
medians, and of their ratios; what building the image and jax.jit take. Always holds: both give the
same results, which are compared first.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import spmd
from benchmarks.global_arrays import seconds


def five_points(xp: Any, u: Any, _: Any) -> Any:
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return u.at[1:-1, 1:-1].add(0.1 * (around - 4 * u[1:-1, 1:-1]))


def torus(xp: Any, u: Any, _: Any) -> Any:
    around = xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1)
    return u + 0.1 * (around - 4 * u)


def softmax(xp: Any, x: Any, _: Any) -> Any:
    e = xp.exp(3 * x - xp.max(3 * x, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)


def gravity(xp: Any, x: Any, _: Any) -> Any:
    away = x[None, :, :] - x[:, None, :]
    near = (away * away).sum(axis=2) + 0.1
    return x + 1e-6 * (away / (near * xp.sqrt(near))[:, :, None]).sum(axis=1)


def centers(xp: Any, c: Any, x: Any) -> Any:
    """One turn of k-means."""
    near = xp.argmin(((x[:, None, :] - c[None]) ** 2).sum(axis=2), axis=1)
    mine = (near[:, None] == xp.arange(16)[None]) * 1.0
    return (mine.T @ x) / xp.maximum(mine.sum(axis=0), 1.0)[:, None]


def layers(xp: Any, w: Any, x: Any) -> Any:
    """A step of training: a layer, and the gradient of its squares."""
    h = xp.tanh(x @ w)
    return w - 1e-5 * (x.T @ (h * (1 - h * h)))


@dataclass(frozen=True)
class Case:
    name: str
    step: Callable[[Any, Any], Any]
    shape: tuple[int, ...]
    dtype: type
    turns: int
    data: tuple[int, ...] = ()  # the shape of what stays as it is, split over its rows

    def layout(self) -> tuple[str | None, ...]:
        return (None if self.data else "r", *[None] * (len(self.shape) - 1))


CASES = (
    Case("five points, 1024² float32", five_points, (1024, 1024), np.float32, 200),
    Case("the same on a torus, np.roll", torus, (1024, 1024), np.float32, 200),
    Case("softmax of rows, 1024² float32", softmax, (1024, 1024), np.float32, 100),
    Case("gravity between 1000 bodies", gravity, (1000, 3), np.float64, 40),
    Case("k-means, 20000 points, 16 centers", centers, (16, 4), np.float64, 40, (20000, 4)),
    Case("training a layer, 1024 x 512 to 256", layers, (512, 256), np.float32, 40, (1024, 512)),
)


def image_of(case: Case) -> spmd.Image:
    @spmd.program(mesh=("r",))
    def program() -> Any:
        steps = spmd.scalar("steps", 1)
        state = spmd.input("state", case.shape, case.dtype, layout=case.layout())
        data = spmd.input("data", case.data, case.dtype,
                          layout=("r", *[None] * (len(case.data) - 1)) if case.data else None)
        for _ in spmd.range(steps):
            state = case.step(np, state, data)
        return state

    return spmd.build(program, cache=False)


def compiled(case: Case, start: np.ndarray, data: np.ndarray) -> Any:
    import jax

    def program(state: Any, data: Any, steps: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, s: case.step(jax.numpy, s, data), state)

    return jax.jit(program).lower(start, data, 1).compile()


def measured(case: Case, rounds: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    start, data = (
        (rng.random(shape) * 0.1).astype(case.dtype) for shape in (case.shape, case.data)
    )
    times = [time.perf_counter()]
    image = image_of(case)
    times.append(time.perf_counter())
    theirs = compiled(case, start, data)
    times.append(time.perf_counter())
    with image.open(ranks=len(os.sched_getaffinity(0)), keep=True) as job:
        state = np.asarray(job(state=start, data=data, steps=5))
        np.testing.assert_allclose(state, theirs(start, data, 5), rtol=1e-4, atol=1e-6)
        runs: list[Callable[[int], object]] = [
            lambda steps: job(state=start, data=data, steps=steps),
            lambda steps: theirs(start, data, steps).block_until_ready(),
        ]
        rows = [[seconds(run, case.turns) for run in runs] for _ in range(rounds)]
    ours, jax = (statistics.median(column) for column in zip(*rows))
    ratio = statistics.median(theirs / ours for ours, theirs in rows)
    return {"ours": ours, "jax": jax, "ratio": ratio, "build": times[1] - times[0],
            "jit": times[2] - times[1]}


def main(rounds: str) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    print(json.dumps({case.name: measured(case, int(rounds)) for case in CASES}))


if __name__ == "__main__":
    main(*sys.argv[1:])
