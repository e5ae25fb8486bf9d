"""A rank has memory for its own stages alone, and for x and y where they are read."""

import json
from pathlib import Path

import numpy as np

import spmd
from tests.figures_pipeline_memory import unequal

ROOT = Path(__file__).parent.parent.parent


def test_a_rank_takes_memory_for_its_own_stages(mpirun, tmp_path):
    wide, narrow, rows = 1024, 256, 512
    program, own = unequal(wide, narrow, rows, True)
    image = spmd.build(program)
    image.save(tmp_path / "unequal.img")
    argv = ("-m", "tests.figures_pipeline_memory", tmp_path / "unequal.img")
    held = json.loads(mpirun(4, *argv, cwd=ROOT, timeout=120).expect(0).out.splitlines()[-1])
    for stage, (mine, found) in enumerate(zip(own, held, strict=True)):
        n = wide if stage == 0 else narrow
        # gradients, new moments, the weights as inputs and as outputs; what is handed on, and finds
        # a microbatch; x or y as an input, and as microbatches
        beside = 5 * n * n + 12 * rows // 4 * n + 2 * rows * n * (stage in (0, 3))
        assert mine < found < mine + 4 * beside, f"stage {stage}"
    one = image.run(ranks=1)
    for ranks in (2, 3, 5):
        np.testing.assert_equal(image.run(ranks=ranks), one)
