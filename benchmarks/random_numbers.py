"""Random numbers outside of images beside NumPy's generator: a million of each.

In: how many rounds. Out: a row for each function: medians of both in seconds, of runs in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from benchmarks.running import table

COUNT = 10**6


def draws() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Ours and NumPy's, by name."""
    rng, ours = np.random.default_rng(1), spmd.random
    return {
        "uniform": (lambda: ours.uniform(1, COUNT), lambda: rng.random(COUNT)),
        "normal": (lambda: ours.normal(1, COUNT), lambda: rng.normal(size=COUNT)),
        "randint": (lambda: ours.randint(1, COUNT, 0, 100), lambda: rng.integers(0, 100, COUNT)),
        "bits": (lambda: ours.bits(1, COUNT),
                 lambda: rng.integers(0, 2**64, COUNT, dtype=np.uint64)),
        "permutation": (lambda: ours.permutation(1, COUNT), lambda: rng.permutation(COUNT)),
    }


def measured(rounds: int) -> list[tuple[str, float, float]]:
    rows = []
    for name, both in draws().items():
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for draw, into in zip(both, times, strict=True):
                began = time.perf_counter()
                draw()
                into.append(time.perf_counter() - began)
        rows.append((name, *map(statistics.median, times)))
    return rows


def report(folder: Path, rounds: int = 21) -> None:
    """Random numbers outside of images, beside NumPy's."""
    from benchmarks.random_numbers import measured

    print(f"A million random numbers in plain Python, one core, medians of {rounds}:\n")
    table(["function", "ours, ms", "NumPy, ms", "ours/NumPy"], [
        (name, f"{ours * 1e3:.2f}", f"{numpy * 1e3:.2f}", f"{ours / numpy:.2f}")
        for name, ours, numpy in measured(rounds)
    ])
