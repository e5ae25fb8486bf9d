"""A rank has memory for its own stages alone, and for x and y where they are read."""

import json
from pathlib import Path

import numpy as np

import spmd
from tests.figures_pipelines import unequal

ROOT = Path(__file__).parent.parent.parent


def test_a_rank_takes_memory_for_its_own_stages(mpirun, tmp_path):
    program, own = unequal((1024, 1024, 256, 256, 256), 1024, True)
    image = spmd.build(program)
    image.save(tmp_path / "unequal.img")
    argv = ("-m", "tests.figures_pipelines", "held", tmp_path / "unequal.img")
    held = json.loads(mpirun(4, *argv, cwd=ROOT, timeout=120).expect(0).out.splitlines()[-1])
    # beside its own a rank has gradients, what an update finds, its inputs and its outputs: of the
    # small stages, rows as long as the largest one needs, or all of x, would be far beyond that
    assert all(mine < found < 2 * mine for mine, found in zip(own[1:], held[1:], strict=True))
    assert own[0] < held[0] < 2.6 * own[0]
    one = image.run(ranks=1)
    for ranks in (2, 3, 5):
        np.testing.assert_equal(image.run(ranks=ranks), one)
