"""A rank has memory for its own stages alone, and for x and y where they are read; what it needs at
different times lies in one memory."""

import json
from pathlib import Path

import numpy as np
import pytest

import spmd
from benchmarks.pipeline_memory import unequal
from codegen.compile import lower
from codegen.ir.overlays import overlays
from spmd import optim

ROOT = Path(__file__).parent.parent.parent


def test_a_rank_takes_memory_for_its_own_stages(mpirun, tmp_path):
    wide, narrow, rows = 1024, 256, 512
    program, own = unequal(wide, narrow, rows, True)
    image = spmd.build(program)
    image.save(tmp_path / "unequal.img")
    argv = ("-m", "benchmarks.pipeline_memory", tmp_path / "unequal.img")
    held = json.loads(mpirun(4, *argv, cwd=ROOT, timeout=120).expect(0).out.splitlines()[-1])
    for stage, (mine, found) in enumerate(zip(own, held, strict=True)):
        n = wide if stage == 0 else narrow
        # gradients, in one memory with the weights as inputs and outputs in the largest stage; what
        # is handed on, and finds a microbatch; x or y as an input, and as microbatches
        beside = (1 + (stage > 0)) * n * n + 12 * rows // 4 * n + 2 * rows * n * (stage in (0, 3))
        assert mine < found < mine + 4 * beside, f"stage {stage}"
    one = image.run(ranks=1)
    for ranks in (2, 3, 5):
        np.testing.assert_equal(image.run(ranks=ranks), one)


def inputs(seed):
    random = np.random.default_rng(seed)
    return {f"w{k}": random.normal(size=(n, n)).astype(np.float32) / 9
            for k, n in enumerate((256, 64, 64, 64))}


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_calls_whose_inputs_and_outputs_lie_in_one_memory(ranks):
    program, _ = unequal(256, 64, 64, True)
    plan = lower(program.graph({})).finished
    over = overlays(plan)
    own = [[over.of[a.buffer.number] for a in arrays if a.name.startswith("w")]
           for arrays in (plan.inputs, plan.outputs)]
    assert all(over.share_memory(a, b) for a in own[0] for b in own[1])
    image = spmd.build(program)
    first, second = image.run(**inputs(1)), image.run(**inputs(2))
    with image.open(ranks=ranks) as job:
        for given, wanted in ((1, first), (2, second), (2, second), (1, first)):
            np.testing.assert_equal(job(**inputs(given)), wanted)
        np.testing.assert_equal(job(), image.run())
    after = image.run(**{f"w{k}": w for k, w in enumerate(first["w"])})
    exchanged = {f"w{k}": first["w"][j] for k, j in enumerate((0, 3, 1, 2))}
    crossed = image.run(**exchanged)
    with image.open(ranks=ranks, keep=True) as job:  # what is kept is overwritten by inputs
        for order, wanted in (((0, 1, 2, 3), after), ((0, 3, 1, 2), crossed)):
            out = job(**inputs(1))
            out = job(**{f"w{k}": out["w"][j] for k, j in enumerate(order)})
            np.testing.assert_equal([np.asarray(w) for w in out["w"]], wanted["w"])


def test_a_checkpoint_of_arrays_in_one_memory(tmp_path):
    image = spmd.build(unequal(256, 64, 64, True)[0], checkpoint=True)
    whole = image.run(ranks=3, checkpoint=str(tmp_path), every=1, **inputs(1))
    for ranks in (1, 4):
        np.testing.assert_equal(
            image.run(ranks=ranks, resume=str(tmp_path), **inputs(1)), whole)


def test_a_step_outside_of_a_loop():
    """Its ticks are a stretch of their own, before which what they keep is made."""
    @spmd.program(mesh=("stage",))
    def once():
        x = spmd.input("x", (16, 8), np.float64, default=lambda i, j: (i + j) % 5 / 5)
        w = [spmd.input(f"w{k}", (8, 8), np.float64, default=lambda i, j: (2 * i + j) % 7 / 9)
             for k in range(3)]
        layers = [*((lambda w, h: np.tanh(h @ w), v) for v in w[:2]),
                  (lambda w, h, y: np.mean((h @ w - y) ** 2), w[2])]
        pipe = spmd.pipeline(layers, stages=3, microbatches=4, optimizer=optim.adamw(1e-2))
        state, loss = pipe.step(pipe.init(), x, x)
        state, again = pipe.step(state, x, x)
        return loss, again, pipe.params(state)

    image = spmd.build(once)
    one = image.run(ranks=1)
    assert one[1] < one[0]
    for ranks in (2, 3, 5):
        np.testing.assert_equal(image.run(ranks=ranks), one)
