"""Collectives in four processes that share memory, in part or not at all: what `mpirun` starts.

In: images of cases, as files CASE-DTYPE.img. Out: a line for each run that differs from NumPy, then
how many were right, from process 0.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from mpi4py import MPI

import spmd
from spmd.image import Image
from spmd.launch.hosts import PRETENDED
from tests.programs.collectives import ALL, CASES, difference, operand

comm = MPI.COMM_WORLD
WAYS = ("shm", "mpi", "auto a,a,b,b", "auto a,b,a,b")
MESHES = ((2, 2), (1, 4))


def main() -> None:
    right = 0
    for path in sys.argv[1:]:
        image, (name, dtype) = spmd.load(path), Path(path).stem.split("-")
        for way in itertools.product(WAYS, MESHES):
            wrong = compared(image, name, dtype, *way)
            if wrong:
                print(f"{name} {dtype} {way}: {wrong}", flush=True)
            right += not wrong
    if comm.rank == 0:
        print(f"right {right}", flush=True)


def compared(image: Image, name: str, dtype: str, way: str, mesh: tuple[int, int]) -> str:
    """"" or what is wrong, in process 0."""
    transport, _, os.environ[PRETENDED] = way.partition(" ")
    out = image.run(comm=comm, mesh=dict(zip(ALL, mesh)), transport=transport, u=operand(dtype))
    whole = {k: v.gather(root=0) for k, v in out.items()}
    return difference(whole, CASES[name][1](operand(dtype), *mesh)) if comm.rank == 0 else ""


if __name__ == "__main__":
    main()
