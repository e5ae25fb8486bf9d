"""Functions of NumPy beside NumPy on one core, each many times on arrays in the cache; JSON.

In: how many rounds, names of functions or nothing for all. Both take turns in this process. Out:
for each function and type how often ours is faster, in seconds of the processor, a median.
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

# mypy: ignore-errors

N, TURNS = 50_000, 60
FLOATS, INTEGERS = ("float64", "float32"), ("int64", "int32")
ALL = (*FLOATS, "complex128")


def of_one(name: str) -> Callable[..., Any]:
    return lambda x, y: getattr(np, name)(x)


# What is computed, of which types, of numbers between which.
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...], float, float]] = {
    "x + y": (lambda x, y: x + y, ALL, -5, 5),
    "x * y": (lambda x, y: x * y, ALL, -5, 5),
    "x / y": (lambda x, y: x / y, ALL, 1, 5),
    "x // 7": (lambda x, y: x // 7, INTEGERS, -1e6, 1e6),
    "x % 7": (lambda x, y: x % 7, INTEGERS, -1e6, 1e6),
    "x // y": (lambda x, y: x // y, INTEGERS, 1, 1e6),
    "x[::2]": (lambda x, y: x[::2] + y[1::2], ALL, -5, 5),
    "abs": (lambda x, y: np.abs(x), ALL, -5, 5),
    "sqrt": (lambda x, y: np.sqrt(x), FLOATS, 0, 5),
    **{name: (of_one(name), FLOATS, low, high) for name, low, high in (
        ("exp", -5, 5), ("exp2", -5, 5), ("expm1", -5, 5), ("log", 0.01, 100), ("log2", 0.01, 100),
        ("log10", 0.01, 100), ("log1p", 0.01, 100), ("sin", -5, 5), ("cos", -5, 5), ("tan", -5, 5),
        ("sinh", -5, 5), ("cosh", -5, 5), ("tanh", -5, 5), ("arcsin", -1, 1), ("arccos", -1, 1),
        ("arctan", -5, 5), ("arcsinh", -5, 5), ("arccosh", 1, 5), ("arctanh", -0.9, 0.9),
        ("cbrt", -5, 5))},
    "arctan2": (lambda x, y: np.arctan2(x, y), FLOATS, -5, 5),
    "hypot": (lambda x, y: np.hypot(x, y), FLOATS, -5, 5),
    "power": (lambda x, y: np.power(x, y), FLOATS, 0.1, 5),
    "maximum": (lambda x, y: np.maximum(x, y), FLOATS, -5, 5),
    "where": (lambda x, y: np.where(x > 0, x, y), FLOATS, -5, 5),
    "sum": (lambda x, y: np.sum(x), ALL, -5, 5),
    "mean": (lambda x, y: np.mean(x), ALL, -5, 5),
    "std": (lambda x, y: np.std(x), FLOATS, -5, 5),
    "max": (lambda x, y: np.max(x), FLOATS, -5, 5),
    "argmax": (lambda x, y: np.argmax(x), FLOATS, -5, 5),
    "vdot": (lambda x, y: np.vdot(x, y), ALL, -5, 5),
    "cumsum": (lambda x, y: np.cumsum(x), FLOATS, -5, 5),
    "diff": (lambda x, y: np.diff(x), FLOATS, -5, 5),
    "concatenate": (lambda x, y: np.concatenate([x, y]), FLOATS, -5, 5),
    "sort": (lambda x, y: np.sort(x), FLOATS, -5, 5),
}


def turns(f: Callable[..., Any], over: Any, x: Any, y: Any) -> Any:
    """Many calls, none of which can be left out: an element changes before each."""
    result = f(x, y)
    for k in over(TURNS):
        x[0] = 1 + k % 2
        result = f(x, y)
    return result


def program(f: Callable[..., Any], dtype: str) -> Any:
    @spmd.program(mesh=("r",))
    def calls():
        x, y = (spmd.input(name, (N,), np.dtype(dtype), ("r",)) for name in "xy")
        return {"found": turns(f, spmd.range, x, y)}

    return calls


def ratio(f: Callable[..., Any], dtype: str, low: float, high: float, rounds: int) -> float:
    """NumPy's time over ours."""
    draw = np.random.default_rng(0)
    inputs = {}
    for name in "xy":
        parts = [draw.uniform(low, high, N) for _ in range(2)]
        inputs[name] = (parts[0] + 1j * parts[1] if dtype[0] == "c" else parts[0]).astype(dtype)
    with spmd.build(program(f, dtype)).open(ranks=1, threads=1) as job:
        ours = job(**inputs)["found"]
        theirs = turns(f, range, *(a.copy() for a in inputs.values()))
        np.testing.assert_allclose(ours, theirs, 1e-4 if dtype == "float32" else 1e-9, 1e-5)
        run, took = job._job.run, []

        def timed(*args: Any) -> None:
            start = time.process_time()
            run(*args)
            took.append(time.process_time() - start)

        job._job.run = timed
        ratios = []
        for _ in range(rounds):
            x, y = (a.copy() for a in inputs.values())
            start = time.process_time()
            turns(f, range, x, y)
            theirs = time.process_time() - start
            job(**inputs)
            ratios.append(theirs / took[-1])
    return statistics.median(ratios)


def main(rounds: str, *names: str) -> None:
    for name in names or FUNCTIONS:
        f, types, low, high = FUNCTIONS[name]
        row = {dtype: ratio(f, dtype, low, high, int(rounds)) for dtype in types}
        print(json.dumps({"name": name, **row}), flush=True)


def report(folder: Path, rounds: int = 7) -> None:
    """Functions of NumPy beside NumPy, on one core."""
    rows = json_lines("functions", rounds, timeout=900)
    print(f"NumPy's time over ours, one core, median of {rounds}:\n")
    types = ("float64", "float32", "complex128", "int64", "int32")
    table(["function", *types], [
        (r["name"], *(f"{r[t]:.1f}" if t in r else "" for t in types)) for r in rows])


if __name__ == "__main__":
    main(*sys.argv[1:])
