"""The memory of ranks whose stages are unlike: what each should hold, and what it has touched.

In: an image, on every process of MPI. Out: a line of JSON, the bytes that each process has touched.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from spmd import optim
from spmd.schedules import make_schedule
from tests.conftest import run

WIDTHS = 2448, 707  # of layers of 24 and of 2 MB


def distance(w: Any, h: Any, y: Any) -> Any:
    return np.mean((h @ w - y) ** 2)


def unequal(wide: int, narrow: int, rows: int, as_inputs: bool) -> tuple[Any, list[int]]:
    """Return a program that trains four layers, each of them a stage, the first of which is wide;
    and the bytes of the parameters, moments and kept activations of each. as_inputs: parameters are
    inputs, and returned; else they are computed."""
    sides = [wide, narrow, narrow, narrow]
    slots = [make_schedule("1f1b", 4, 4).slots(stage) for stage in range(4)]
    # a layer keeps what it is given of a microbatch, and what it finds
    own = [4 * (3 * n * n + kept * rows // 4 * 2 * n) for n, kept in zip(sides, slots)]

    def tanh(w: Any, h: Any) -> Any:
        return np.tanh(h @ w)[:, :narrow]

    @spmd.program(mesh=("stage",))
    def train() -> Any:
        x = spmd.input("x", (rows, wide), np.float32, default=lambda i, j: (i + j) % 13 / 13)
        y = spmd.input("y", (rows, narrow), np.float32, default=lambda i, j: (i * j) % 11 / 11)
        w = [spmd.full((n, n), 1e-3, np.float32) for n in sides]
        if as_inputs:
            w = [spmd.input(f"w{k}", (n, n), np.float32, default=lambda i, j: (3 * i + j) % 7 / 1e3)
                 for k, n in enumerate(sides)]
        pipe = spmd.pipeline(list(zip([tanh, tanh, tanh, distance], w)), stages=4, microbatches=4,
                             optimizer=optim.adamw(1e-3))
        state, loss = pipe.init(), spmd.zeros((), np.float32)
        for _ in spmd.range(2):
            state, loss = pipe.step(state, x, y)
        return {"loss": loss, **({"w": pipe.params(state)} if as_inputs else {})}

    return train, own


def held(image: str) -> list[int]:
    """Return the bytes of the memory of ranks that each process has touched, in a run with a rank
    in each: a process of MPI, all of which must call this."""
    comm = import_module("mpi4py.MPI").COMM_WORLD
    with spmd.load(image).open(comm=comm, keep=True) as job:
        job()
        comm.Barrier()
        mine, is_rank = 0, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            word, *rest = line.split()
            is_rank = "memfd:spmd" in line if not word.endswith(":") else is_rank
            mine += 1024 * int(rest[0]) if is_rank and word == "Rss:" else 0
        gathered: list[int] = comm.allgather(mine)
    return gathered


def memory(folder: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Print what is measured, and return a table of four ranks: what each of them should hold, and
    what it has touched."""
    print("Memory of four ranks with a layer each, of 24, 2, 2 and 2 MB, under adamw; own: "
          "parameters, moments and kept activations:\n")
    rows: list[tuple[Any, ...]] = []
    for title, as_inputs in (("computed", False), ("inputs and outputs", True)):
        program, own = unequal(*WIDTHS, 64, as_inputs)
        spmd.build(program).save(image := folder / f"{as_inputs}.img")
        argv = ["mpirun", "-n", 4, sys.executable, "-m", "benchmarks.pipeline_memory", image]
        each = json.loads(run(argv, timeout=120).expect(0).out.splitlines()[-1])
        rows += [(title, rank, f"{mine / 2**20:.1f}", f"{touched / 2**20:.1f}",
                  f"{touched / mine:.2f}")
                 for rank, (mine, touched) in enumerate(zip(own, each, strict=True))]
    return ["parameters", "rank", "own, MiB", "touched, MiB", "touched / own"], rows


if __name__ == "__main__":
    if (each := held(sys.argv[1])) and import_module("mpi4py.MPI").COMM_WORLD.rank == 0:
        print(json.dumps(each))
