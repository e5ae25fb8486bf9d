"""Random programs in four processes that share memory, in part or not at all: what `mpirun` starts.

In: how many programs. Out: a line for each run that went wrong, and how many were compared, from
process 0. The reference is the same image in one process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from mpi4py import MPI

import spmd
import spmd.image
import spmd.loader
from spmd.launch import PRETENDED
from tests.programs.generate import Program
from tests.programs.test_random import agree, load
from tests.programs.whole import programs

comm = MPI.COMM_WORLD
WAYS = {"mpi": "", "auto": "a,a,b,b", "auto, alternating": "a,b,a,b"}


def drawn(count: int, folder: Path) -> list[tuple[bytes, Program]]:
    """Images of random programs that four ranks can run."""
    made: list[tuple[bytes, Program]] = []

    @given(programs(22))
    @settings(max_examples=count, derandomize=True, database=None, deadline=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    def draw(program: Program) -> None:
        if len(made) < count:
            made.append((spmd.build(load(program, folder)).data, program))

    draw()
    return made


def run(image: Any, program: Program, **how: Any) -> dict[str, Any]:
    inputs = {i.name: i.data(program.seed + k) for k, i in enumerate(program.inputs)}
    out = image.run(**inputs, **program.scalars, **how)
    if "comm" in how:
        out = {name: value.gather(root=0) for name, value in out.items()}
    return out


def compare(data: bytes, program: Program, way: str, pretended: str) -> str:
    """"" or what is wrong, in process 0."""
    image = spmd.image.Image(spmd.loader.check(data))
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
    with tempfile.TemporaryDirectory() as folder:
        made = drawn(int(sys.argv[1]), Path(folder)) if comm.rank == 0 else []
    compared = 0
    for data, program in comm.bcast(made):
        for way, pretended in WAYS.items():
            wrong = compare(data, program, way, pretended)
            if wrong not in ("", "no mesh"):
                print(wrong, flush=True)
            compared += wrong == ""
    if comm.rank == 0:
        print(f"compared {compared}", flush=True)


if __name__ == "__main__":
    main()
