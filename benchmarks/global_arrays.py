"""Programs on global arrays beside C written by hand; prints one JSON line.

In: a folder to compile in, how many rounds. Both run in this process, in turn; seconds per turn of
the loop, medians, for one rank and for two; and the median of the ratios of one rank.
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
from benchmarks.running import json_lines, table

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

/* a wave: two grids that change places */
void leapfrog(float *restrict u, float *restrict p, int64_t n, int64_t steps)
{
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t i = 0; i < n; i++) {
            int64_t rim = i == 0 || i == n - 1, last = i * n + n - 1;
            for (int64_t k = i * n; k <= last; k += rim ? 1 : n - 1)
                p[k] = 2.0f * u[k] - p[k];
            for (int64_t k = i * n + 1; !rim && k < last; k++)
                p[k] = 2.0f * u[k] - p[k]
                    + 0.1f * (u[k - n] + u[k + n] + u[k - 1] + u[k + 1] - 4.0f * u[k]);
        }
        float *t = p;
        p = u;
        u = t;
    }
}

/* Yee's scheme: fields on staggered grids, each updated in place */
void staggered(float *restrict e, float *restrict h, float *restrict w, int64_t n, int64_t steps)
{
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n - 1; j++)
                h[i * n + j] -= 0.5f * (e[i * n + j + 1] - e[i * n + j]);
        for (int64_t i = 0; i < n - 1; i++)
            for (int64_t j = 0; j < n; j++)
                w[i * n + j] += 0.5f * (e[(i + 1) * n + j] - e[i * n + j]);
        for (int64_t i = 1; i < n - 1; i++)
            for (int64_t j = 1; j < n - 1; j++)
                e[i * n + j] += 0.5f * (w[i * n + j] - w[(i - 1) * n + j] - h[i * n + j]
                    + h[i * n + j - 1]);
    }
}

/* lattice-Boltzmann (D2Q9): what streams in from nine directions is mixed; grids with rims */
void streams(float *restrict f, float *restrict g, float *restrict unused, int64_t n, int64_t steps)
{
    static const int dx[9] = {0, 1, 0, -1, 0, 1, -1, -1, 1};
    static const int dy[9] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
    int64_t w = n + 2, size = w * w;
    (void)unused;
    for (int64_t s = 0; s < steps; s++) {
        for (int k = 0; k < 9; k++) {
            float *u = f + k * size;
            for (int64_t j = 1; j <= n; j++) {
                u[j] = u[n * w + j];
                u[(n + 1) * w + j] = u[w + j];
            }
            for (int64_t i = 0; i <= n + 1; i++) {
                u[i * w] = u[i * w + n];
                u[i * w + n + 1] = u[i * w + 1];
            }
        }
        for (int64_t i = 1; i <= n; i++)
#pragma omp simd
            for (int64_t j = 1; j <= n; j++) {
                float in[9], rho = 0, x = 0, y = 0;
#pragma GCC unroll 9
                for (int k = 0; k < 9; k++) {
                    in[k] = f[k * size + (i - dx[k]) * w + j - dy[k]];
                    rho += in[k];
                    x += dx[k] * in[k];
                    y += dy[k] * in[k];
                }
                x /= rho;
                y /= rho;
#pragma GCC unroll 9
                for (int k = 0; k < 9; k++) {
                    float weight = k == 0 ? 4 / 9.f : k < 5 ? 1 / 9.f : 1 / 36.f;
                    float cu = 3 * (dx[k] * x + dy[k] * y);
                    float rest = weight * rho * (1 + cu + 0.5f * cu * cu - 1.5f * (x * x + y * y));
                    g[k * size + i * w + j] = in[k] + 0.6f * (rest - in[k]);
                }
            }
        float *t = f;
        f = g;
        g = t;
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
                                - 4 * u[1:-1, 1:-1])
    return u[0]


@spmd.program(mesh=("x", "y"))
def torus(n: int = 1024):
    steps = spmd.scalar("steps", 100)
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"), default=lambda i, j: 1 + i % 7)
    for _ in spmd.range(steps):
        u = u + 0.1 * (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1)
                       - 4 * u)
    return u[0]


@spmd.program(mesh=("x",))
def leapfrog(n: int = 1024):
    steps = spmd.scalar("steps", 100)
    u = spmd.input("u", (n, n), np.float32, layout=("x", None), default=lambda i, j: 1 + i % 7)
    p = u.copy()
    for _ in spmd.range(steps):
        q = 2 * u - p
        q[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
                                - 4 * u[1:-1, 1:-1])
        u, p = q, u
    return u[0]


@spmd.program(mesh=("x",))
def staggered(n: int = 1024):
    steps = spmd.scalar("steps", 100)
    e = spmd.input("e", (n, n), np.float32, layout=("x", None), default=lambda i, j: 1 + i % 7)
    h, w = np.zeros_like(e), np.zeros_like(e)
    for _ in spmd.range(steps):
        h[:, :-1] -= 0.5 * (e[:, 1:] - e[:, :-1])
        w[:-1] += 0.5 * (e[1:] - e[:-1])
        e[1:-1, 1:-1] += 0.5 * (w[1:-1, 1:-1] - w[:-2, 1:-1] - h[1:-1, 1:-1] + h[1:-1, :-2])
    return e[0]


AWAY = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
WEIGHTS = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4


@spmd.program(mesh=("x",))
def streams(n: int = 512):
    steps = spmd.scalar("steps", 100)
    f = spmd.input("f", (9, n, n), np.float32, layout=(None, "x", None),
                   default=lambda k, i, j: 1 + 0.01 * (i % 7))
    for _ in spmd.range(steps):
        g = [np.roll(f[k], by, (0, 1)) for k, by in enumerate(AWAY)]
        rho = sum(g)
        x = sum(dx * part for (dx, _), part in zip(AWAY, g) if dx) / rho
        y = sum(dy * part for (_, dy), part in zip(AWAY, g) if dy) / rho
        square = 1.5 * (x * x + y * y)
        mixed = []
        for (dx, dy), weight, part in zip(AWAY, WEIGHTS, g):
            cu = 3 * (dx * x + dy * y)
            rest = weight * rho * (1 + cu + 0.5 * cu * cu - square)
            mixed.append(part + 0.6 * (rest - part))
        f = np.stack(mixed)
    return f[0, 0]


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


PROGRAMS = {
    "five points in place, 1024² float32": stencil,
    "the same on a torus, np.roll": torus,
    "a wave: u, p = q, u": leapfrog,
    "staggered grids": staggered,
    "lattice-Boltzmann, D2Q9, 512²": streams,
    "np.sum((a - b)**2)": distance,
    "b[...] = b * 0.5 + (a * 3 - 1) * a": chain,
    "np.sum(d) + np.sum(d * d)": moments,
    "softmax of rows": softmax,
}


def by_hand(folder: Path) -> dict[str, object]:
    (folder / "hand.c").write_text(BY_HAND)
    library = folder / "hand.so"
    # as fast as C is where divisions stay divisions
    flags = ["-Ofast", "-fno-reciprocal-math", "-march=native", "-fopenmp-simd", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, folder / "hand.c", "-o", library, "-lm"], check=True)
    c = ctypes.CDLL(str(library))
    grids = [np.ones((1024, 1024), np.float32) for _ in range(2)]
    rings = [np.ones((1026, 1026), np.float32) for _ in range(2)]
    fields = [np.full((1024, 1024), 0.1, np.float32) for _ in range(3)]
    stacks = [np.ones((9, 514, 514), np.float32) for _ in range(2)]
    a, b = np.ones(1 << 20), np.ones(1 << 20)

    def call(name: str, *arrays_n_each: object) -> object:
        """Return a function that calls C. `each` is how many turns a call makes; one where a C
        compiler would interchange loops."""
        *arrays, n, each = arrays_n_each

        def run(steps: int) -> None:
            pointers = [ctypes.c_void_p(v.ctypes.data) for v in arrays]
            for _ in range(steps // each):
                getattr(c, name)(*pointers, ctypes.c_int64(n), ctypes.c_int64(each))

        return run

    return {
        "stencil": call("stencil", *grids, 1024, 2),
        "torus": call("torus", *rings, 1024, 2),
        "leapfrog": call("leapfrog", *fields[:2], 1024, 4),
        "staggered": call("staggered", *fields, 1024, 4),
        "streams": call("streams", *stacks, stacks[0], 512, 2),
        "distance": call("distance", a, b, 1 << 20, 1),
        "chain": call("chain", a, b, 1 << 20, 1),
        "moments": call("moments", a, b, 1 << 20, 1),
        "softmax": call("softmax", a, b, 256, 1),
    }


def seconds(run: object, steps: int) -> float:
    """Return the seconds of one turn. A shorter run is subtracted, so that starting does not
    count."""
    times = []
    for count in (steps // 10, steps):
        start = time.perf_counter()
        run(count)  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return (times[1] - times[0]) / (steps - steps // 10)


def main(folder: str, rounds: str) -> None:
    hand = by_hand(Path(folder))
    out = {}
    for name, program in PROGRAMS.items():
        steps = 100 if program in (softmax, streams) else 400
        image = spmd.build(program)
        with image.open(ranks=1) as of_one, image.open(ranks=2) as of_two:
            runs = {"by hand": hand[program.name], "1 rank": lambda s, j=of_one: j(steps=s),
                    "2 ranks": lambda s, j=of_two: j(steps=s)}
            times: dict[str, list[float]] = {k: [] for k in runs}
            for _ in range(int(rounds)):
                for k, r in runs.items():
                    times[k].append(seconds(r, steps))
        out[name] = {k: statistics.median(t) for k, t in times.items()}
        pairs = zip(times["1 rank"], times["by hand"])
        out[name]["ratio"] = statistics.median(ours / hand for ours, hand in pairs)
    print(json.dumps(out))


def report(folder: Path, rounds: int = 9) -> None:
    """Programs on global arrays beside C written by hand; seconds per turn of their loop."""
    figures = json_lines("global_arrays", folder, rounds)[-1]
    print(f"Global arrays beside C by hand (-Ofast -fno-reciprocal-math), median of {rounds}:\n")
    rows = []
    for name, times in figures.items():
        hand = times["by hand"]
        ours = [f"{times[k] * 1e6:.0f} ({times[k] / hand:.2f})" for k in ("1 rank", "2 ranks")]
        rows.append((name, f"{hand * 1e6:.0f}", *ours))
    table(["program", "by hand, µs", "1 rank (ratio)", "2 ranks (ratio)"], rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
