"""Products of matrices beside OpenBLAS alone: Markdown on standard output.

In: how many rounds. Ours is what images call; the peer is the routine of the same OpenBLAS. One
core; in every round they alternate.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from spmd.engine import ffi, lib
from spmd.launch import routines
from tests.conftest import run

WAYS = {"a b": (False, False), "a bᵀ": (False, True), "aᵀ b": (True, False)}
SHAPES = [(64, 32, 64), (64, 128, 128), (64, 128, 512), (128, 784, 256), (12, 768, 768),
          (256, 256, 256), (512, 512, 512), (1000, 1000, 10), (2000, 64, 64), (1024, 1024, 1024)]


def compared(name: str, shape: tuple[int, int, int], ways: tuple[bool, bool],
             rounds: int) -> tuple[float, float]:
    """Microseconds of a product by OpenBLAS, and how many times as long ours takes: medians."""
    routines.openblas()
    real, dtype = ("float", np.float32) if name == "sgemm" else ("double", np.float64)
    kind = (f"void(*)(int,int,int,int,int,int,{real},{real} *,int,{real} *,int,{real},{real} *,"
            "int)")
    blas = lib.spmd_library_symbol(routines._openblas, f"scipy_cblas_{name}".encode())
    calls = [ffi.cast(kind, address) for address in (blas, routines.address("openblas", name))]
    (m, k, n), rng = shape, np.random.default_rng(0)
    a, b = (rng.normal(size=s[::-1] if way else s).astype(dtype)
            for s, way in zip(((m, k), (k, n)), ways))
    c = np.empty((m, n), dtype)
    pointers = [ffi.cast(f"{real} *", x.ctypes.data) for x in (a, b, c)]
    arguments = (101, *(112 if way else 111 for way in ways), m, n, k, 1.0, pointers[0], a.shape[1],
                 pointers[1], b.shape[1], 0.0, pointers[2], n)
    count = max(1, round(2e7 / (m * n * k)))
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for mine, call in zip(times, calls):
            call(*arguments)
            began = time.perf_counter()
            for _ in range(count):
                call(*arguments)
            mine.append((time.perf_counter() - began) / count * 1e6)
    peer, ours = map(statistics.median, times)
    return peer, ours / peer


def main(rounds: int) -> None:
    core = ffi.cast("char *(*)(void)", lib.spmd_library_symbol(
        routines.openblas() and routines._openblas, b"scipy_openblas_get_corename"))
    print(f"Products of matrices, one core, times OpenBLAS's own ({ffi.string(core()).decode()} "
          f"kernels; its microseconds in brackets), medians of {rounds}:\n")
    print("| m, k, n | " + " | ".join(f"{t} {way}" for t in ("float32", "float64") for way in WAYS))
    print("|" + " --- |" * 7)
    for shape in SHAPES:
        cells = [compared(name, shape, ways, rounds)
                 for name in ("sgemm", "dgemm") for ways in WAYS.values()]
        print(f"| {', '.join(map(str, shape))} | "
              + " | ".join(f"{ratio:.2f} ({us:.0f})" for us, ratio in cells) + " |", flush=True)


def report(_: Path, rounds: int = 11) -> None:
    """Products of matrices beside OpenBLAS."""
    print(run([sys.executable, "-m", "benchmarks.products", rounds], timeout=600).expect(0).out)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 11)
