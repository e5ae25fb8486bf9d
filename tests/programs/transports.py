"""Random programs in four processes that share memory, in part or not at all: what `mpirun` starts.

In: a file of images and programs. Out: a line for each run that went wrong, and how many were
compared, from process 0. The reference is the same image in one process.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import spmd
import spmd.image
import spmd.launch.loader
from spmd.launch.hosts import PRETENDED
from tests.programs.generate import Program
from tests.programs.test_random import agree

comm = MPI.COMM_WORLD
WAYS = {"mpi": "", "auto": "a,a,b,b", "auto, alternating": "a,b,a,b"}


def run(image: Any, program: Program, **how: Any) -> dict[str, Any]:
    inputs = {i.name: i.data(program.seed + k) for k, i in enumerate(program.inputs)}
    out = image.run(**inputs, **program.scalars, **how)
    if "comm" in how:
        out = {name: value.gather(root=0) for name, value in out.items()}
    return out


def compare(data: bytes, program: Program, way: str, pretended: str) -> str:
    """"" or what is wrong, in process 0."""
    image = spmd.image.Image(spmd.launch.loader.check(data))
    try:
        expected = run(image, program, ranks=comm.size)
    except spmd.MeshError:  # on all of them: a condition of the program
        return "no mesh"
    os.environ[PRETENDED] = pretended
    found = run(image, program, comm=comm, transport=way.split(",")[0])
    if comm.rank == 0:
        for name, exact in program.outputs:
            try:
                agree(name, exact, np.asarray(expected[name]), found[name], way)
            except AssertionError as error:
                return f"{error}\n{program.text}"
    return ""


def main() -> None:
    compared = 0
    for data, program in pickle.loads(Path(sys.argv[1]).read_bytes()):
        for way, pretended in WAYS.items():
            wrong = compare(data, program, way, pretended)
            if wrong not in ("", "no mesh"):
                print(wrong, flush=True)
            compared += wrong == ""
    if comm.rank == 0:
        print(f"compared {compared}", flush=True)


if __name__ == "__main__":
    main()
