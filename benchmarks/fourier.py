"""Fourier transforms beside NumPy's and SciPy's with one worker.

In: how many rounds. All run in this process, in turn; seconds of one transform, medians, for one
rank and for two; and the medians of their ratios to SciPy's.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft

import spmd
from benchmarks.numpy_kernels import how_often
from benchmarks.running import json_lines, table


def program(transform: Callable[[Any], Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """So many transforms of an array whose first dim is split."""
    layout = ("x", *[None] * (len(shape) - 1))

    @spmd.program(mesh=("x",))
    def transforms() -> Any:
        a = spmd.input("a", shape, dtype, layout, lambda i, *j: (i * 7 + sum(j)) % 11)
        total = np.zeros(())
        for _ in spmd.range(spmd.scalar("steps", 1)):
            transformed = transform(a)
            a[(0,) * len(shape)] += 1.0
            total += transformed[(1,) * len(shape)].real
        return total

    return transforms


CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], Any]] = {
    "fft2, 4096² complex128": (lambda f: f.fft2, (4096, 4096), np.complex128),
    "rfft2, 4096² float64": (lambda f: f.rfft2, (4096, 4096), np.float64),
    "fft of rows, 4096 of 4096": (lambda f: f.fft, (4096, 4096), np.complex128),
    "fft of rows, 1000 of 1009": (lambda f: f.fft, (1000, 1009), np.complex128),
    "fft of 2²² in a line": (lambda f: f.fft, (1 << 22,), np.complex128),
}


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def per_turn(job: Any, turns: int = 4) -> float:
    """Return the seconds of one turn. A run of one turn is subtracted, so that starting does not
    count."""
    return (seconds(partial(job, steps=turns)) - seconds(partial(job, steps=1))) / (turns - 1)


def main(rounds: str) -> None:
    out = {}
    for name, (of, shape, dtype) in CASES.items():
        image = spmd.build(program(of(np.fft), shape, dtype))
        a, theirs, scipys = np.ones(shape, dtype), of(np.fft), of(scipy.fft)
        with image.open(ranks=1) as of_one, image.open(ranks=2) as of_two:
            runs: dict[str, Callable[[], float]] = {
                "numpy": partial(seconds, partial(theirs, a)),
                "scipy": partial(seconds, partial(scipys, a, workers=1)),
                "1 rank": partial(per_turn, of_one), "2 ranks": partial(per_turn, of_two),
            }
            times: dict[str, list[float]] = {k: [] for k in runs}
            for _ in range(int(rounds)):
                for k, r in runs.items():
                    times[k].append(r())
        out[name] = {k: statistics.median(t) for k, t in times.items()}
        for k in ("1 rank", "2 ranks"):
            out[name][f"{k}, ratio"] = how_often(times["scipy"], times[k])
    print(json.dumps(out))


def report(folder: Path, rounds: int = 7) -> None:
    """Transforms beside NumPy's and SciPy's."""
    times = json_lines("fourier", rounds, timeout=900)[-1]
    print(f"Fourier transforms, ms, and how often faster than SciPy's; median of {rounds}:\n")
    rows = [
        (name, *(f"{t[k] * 1e3:.1f}" for k in ("numpy", "scipy")),
         *(f"{t[k] * 1e3:.1f} ({t[f'{k}, ratio']:.2f})" for k in ("1 rank", "2 ranks")))
        for name, t in times.items()
    ]
    table(["transform", "NumPy", "SciPy, one worker", "1 rank", "2 ranks"], rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
