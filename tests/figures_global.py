"""Programs on global arrays beside C written by hand, for tests/figures.py; prints one JSON line.

In: a folder to compile in, how many rounds. Both run in this process, in turn; seconds per turn of
the loop, medians, for one rank, and for two ranks beside one.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import spmd

BY_HAND = r"""
#undef __FAST_MATH__ /* no vector exp: its results depend on where an element stands */
#include <math.h>
#include <stdint.h>

/* five points, from one grid to another and back */
void stencil(float *restrict u, float *restrict v, int64_t n, int64_t steps)
{
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t i = 1; i < n - 1; i++)
            for (int64_t j = 1; j < n - 1; j++)
                v[i * n + j] = u[i * n + j] + 0.1f * (u[(i - 1) * n + j] + u[(i + 1) * n + j]
                    + u[i * n + j - 1] + u[i * n + j + 1] - 4.0f * u[i * n + j]);
        float *w = u;
        u = v;
        v = w;
    }
}

/* the same on a torus: grids of (n + 2)^2, whose rims are filled from the other side first */
void torus(float *restrict u, float *restrict v, int64_t n, int64_t steps)
{
    int64_t w = n + 2;
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t j = 1; j <= n; j++) {
            u[j] = u[n * w + j];
            u[(n + 1) * w + j] = u[w + j];
        }
        for (int64_t i = 1; i <= n; i++) {
            u[i * w] = u[i * w + n];
            u[i * w + n + 1] = u[i * w + 1];
        }
        for (int64_t i = 1; i <= n; i++)
            for (int64_t j = 1; j <= n; j++)
                v[i * w + j] = u[i * w + j] + 0.1f * (u[(i - 1) * w + j] + u[(i + 1) * w + j]
                    + u[i * w + j - 1] + u[i * w + j + 1] - 4.0f * u[i * w + j]);
        float *t = u;
        u = v;
        v = t;
    }
}

double distance(const double *restrict a, const double *restrict b, int64_t n, int64_t steps)
{
    double total = 0;
    for (int64_t s = 0; s < steps; s++)
        for (int64_t i = 0; i < n; i++)
            total += (a[i] - b[i]) * (a[i] - b[i]);
    return total;
}

void chain(const double *restrict a, double *restrict b, int64_t n, int64_t steps)
{
    for (int64_t s = 0; s < steps; s++)
        for (int64_t i = 0; i < n; i++)
            b[i] = b[i] * 0.5 + (a[i] * 3.0 - 1.0) * a[i];
}

double moments(const double *restrict a, double *restrict b, int64_t n, int64_t steps)
{
    double sum = 0, squares = 0;
    for (int64_t s = 0; s < steps; s++)
        for (int64_t i = 0; i < n; i++) {
            double d = a[i] - b[i];
            sum += d;
            squares += d * d;
        }
    return sum + squares;
}

void softmax(const double *restrict x, double *restrict y, int64_t n, int64_t steps)
{
    for (int64_t s = 0; s < steps; s++)
        for (int64_t i = 0; i < n; i++) {
            const double *restrict from = x + 1024 * i;
            double *restrict to = y + 1024 * i, largest = from[0], sum = 0;
            for (int64_t j = 1; j < 1024; j++)
                largest = from[j] > largest ? from[j] : largest;
            for (int64_t j = 0; j < 1024; j++) {
                to[j] = exp(from[j] - largest);
                sum += to[j];
            }
            for (int64_t j = 0; j < 1024; j++)
                to[j] /= sum;
        }
}
"""


@spmd.program(mesh=("x",))
def stencil(n: int = 1024):
    steps = spmd.scalar("steps", 100)
    u = spmd.input("u", (n, n), np.float32, layout=("x", None), default=lambda i, j: 1 + i % 7)
    for _ in spmd.range(steps):
        u[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
                                - 4 * u[1:-1, 1:-1])  # fmt: skip
    return u[0]


@spmd.program(mesh=("x", "y"))
def torus(n: int = 1024):
    steps = spmd.scalar("steps", 100)
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"), default=lambda i, j: 1 + i % 7)
    for _ in spmd.range(steps):
        u = u + 0.1 * (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1)
                       - 4 * u)  # fmt: skip
    return u[0]


@spmd.program(mesh=("x",))
def distance(n: int = 1 << 20):
    steps = spmd.scalar("steps", 100)
    a = spmd.input("a", (n,), np.float64, layout=("x",), default=lambda i: i % 7)
    b = spmd.input("b", (n,), np.float64, layout=("x",), default=lambda i: i % 5)
    total = 0.0
    for _ in spmd.range(steps):
        total += np.sum((a - b) ** 2)
    return total


@spmd.program(mesh=("x",))
def chain(n: int = 1 << 20):
    steps = spmd.scalar("steps", 100)
    a = spmd.input("a", (n,), np.float64, layout=("x",), default=lambda i: i % 7)
    b = spmd.input("b", (n,), np.float64, layout=("x",), default=lambda i: i % 5)
    for _ in spmd.range(steps):
        b[...] = b * 0.5 + (a * 3.0 - 1.0) * a
    return b[0]


@spmd.program(mesh=("x",))
def moments(n: int = 1 << 20):
    steps = spmd.scalar("steps", 100)
    a = spmd.input("a", (n,), np.float64, layout=("x",), default=lambda i: i % 7)
    b = spmd.input("b", (n,), np.float64, layout=("x",), default=lambda i: i % 5)
    total = 0.0
    for _ in spmd.range(steps):
        d = a - b
        total += np.sum(d) + np.sum(d * d)
    return total


@spmd.program(mesh=("x",))
def softmax(n: int = 256):
    steps = spmd.scalar("steps", 100)
    x = spmd.input("x", (n, 1024), np.float64, layout=("x", None),
                   default=lambda i, j: i % 3 - j % 7)
    y = spmd.zeros((n, 1024), np.float64, layout=("x", None))
    for _ in spmd.range(steps):
        e = np.exp(x - np.max(x, axis=1, keepdims=True))
        y[...] = e / np.sum(e, axis=1, keepdims=True)
    return y[0]


def by_hand(folder: Path) -> dict[str, object]:
    (folder / "hand.c").write_text(BY_HAND)
    library = folder / "hand.so"
    # as fast as C is where divisions stay divisions
    flags = ["-Ofast", "-fno-reciprocal-math", "-march=native", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, folder / "hand.c", "-o", library, "-lm"], check=True)
    c = ctypes.CDLL(str(library))
    grids = [np.ones((1024, 1024), np.float32) for _ in range(2)]
    rings = [np.ones((1026, 1026), np.float32) for _ in range(2)]
    a, b = np.ones(1 << 20), np.ones(1 << 20)

    def pointers(x: np.ndarray, y: np.ndarray) -> list[object]:
        return [ctypes.c_void_p(v.ctypes.data) for v in (x, y)]

    def call(name: str, x: np.ndarray, y: np.ndarray, n: int, each: int) -> object:
        """each: turns in one call; of loops that compilers would turn inside out, one."""
        def run(steps: int) -> None:
            for _ in range(steps // each):
                getattr(c, name)(*pointers(x, y), ctypes.c_int64(n), ctypes.c_int64(each))

        return run

    return {
        "stencil": call("stencil", *grids, 1024, 2),
        "torus": call("torus", *rings, 1024, 2),
        "distance": call("distance", a, b, 1 << 20, 1),
        "chain": call("chain", a, b, 1 << 20, 1),
        "moments": call("moments", a, b, 1 << 20, 1),
        "softmax": call("softmax", a, b, 256, 1),
    }


def seconds(run: object, steps: int) -> float:
    """Of one turn: many turns less few, so that starting does not count."""
    times = []
    for count in (steps // 10, steps):
        start = time.perf_counter()
        run(count)  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return (times[1] - times[0]) / (steps - steps // 10)


def main(folder: str, rounds: str) -> None:
    hand = by_hand(Path(folder))
    out = {}
    for program in (stencil, torus, distance, chain, moments, softmax):
        name, steps = program.name, 400 if program is not softmax else 100
        image = spmd.build(program)
        with image.open(ranks=1) as one, image.open(ranks=2) as two:
            runs = {"by hand": hand[name], "1 rank": lambda s, j=one: j(steps=s),
                    "2 ranks": lambda s, j=two: j(steps=s)}  # fmt: skip
            times: dict[str, list[float]] = {k: [] for k in runs}
            for _ in range(int(rounds)):
                for k, r in runs.items():
                    times[k].append(seconds(r, steps))
        out[name] = {k: statistics.median(t) for k, t in times.items()}
    print(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
