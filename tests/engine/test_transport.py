"""Every exchange between processes that share no memory, or share it in part, over real MPI."""

from __future__ import annotations

from tests.engine.harness import Images
from tests.engine.transport import ARENAS, CASES, PROGRAMS


def test_every_exchange_between_arenas(images: Images, mpirun) -> None:
    done = mpirun(4, "-m", "tests.engine.transport", images.path, timeout=240).expect(0)
    lines = done.out.splitlines()
    assert [line for line in lines if not line.endswith(": right")] == []
    assert len(lines) == len(ARENAS) * (len(PROGRAMS) * len(CASES) + 3)
