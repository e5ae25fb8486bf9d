"""Every transport gives what shared memory gives: random programs, over real MPI."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import spmd
from tests.programs.generate import Program
from tests.programs.test_random import load
from tests.programs.whole import programs

PROGRAMS = int(os.environ.get("SPMD_TRANSPORT_PROGRAMS", "8"))


def drawn(folder: Path) -> list[tuple[bytes, Program]]:
    """Images of random programs; whether four ranks can run them is seen then."""
    made: list[tuple[bytes, Program]] = []

    @given(programs(22))
    @settings(max_examples=PROGRAMS, derandomize=True, database=None, deadline=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def draw(program: Program) -> None:
        if len(made) < PROGRAMS:
            made.append((spmd.build(load(program, folder)).data, program))

    draw()
    return made


@pytest.mark.slow
@pytest.mark.one_mpi
def test_random_programs_on_every_transport(mpirun, tmp_path) -> None:
    """They are built before there are processes, which would wait for them on all cores."""
    made = tmp_path / "programs"
    made.write_bytes(pickle.dumps(drawn(tmp_path)))
    done = mpirun(4, "-m", "tests.programs.transports", made, timeout=60 + 10 * PROGRAMS)
    lines = done.expect(0).out.splitlines()
    assert len(lines) == 1, done.out
    assert int(lines[0].removeprefix("compared ")) > 2 * PROGRAMS
