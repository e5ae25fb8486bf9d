"""Every transport gives what shared memory gives: random programs, over real MPI."""

from __future__ import annotations

import os

PROGRAMS = int(os.environ.get("SPMD_TRANSPORT_PROGRAMS", "12"))


def test_random_programs_on_every_transport(mpirun) -> None:
    done = mpirun(4, "-m", "tests.programs.transports", PROGRAMS, timeout=60 + 10 * PROGRAMS)
    lines = done.expect(0).out.splitlines()
    assert len(lines) == 1, done.out
    assert int(lines[0].removeprefix("compared ")) > 2 * PROGRAMS
