"""What moves to other ranks is the result that is shifted, where that is less than its operands."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk
from codegen.ops import Exchange, Map

ROWS, LAYOUT = 8, ("stage", None, None)


def product(h, w, v):
    return np.tanh(h @ w)


def products(h, w, v):
    return np.tanh(np.tanh(h @ w) @ v)


def element_wise(h, w, v):
    return h * w[:, :1] + v[:, :1] * h


def reduced(h, w, v):
    return h - np.sum(h * w[:, :1], axis=2, keepdims=True)


def contracted(h, w, v):
    return np.einsum("sij,sjk->sik", h, w)


def residual(h, w, v):
    return spmd.vmap(lambda h, w, v: np.tanh(h @ w) @ v + h)(h, w, v)


def running(h, w, v):
    return np.cumsum(h, axis=1) * np.sum(w, axis=(1, 2))[:, None, None]


BODIES = (product, products, element_wise, reduced, contracted, residual, running)


def pipeline(stage, kept=False):
    """Return a program in which all stages compute in each tick and then pass their results on;
    with `kept` it also accumulates the last stage's results."""
    @spmd.program(mesh=("stage",))
    def program(p: int = ROWS):
        x = spmd.input("x", (4, 16, 6), np.float64, layout=spmd.replicated)
        w = spmd.input("w", (p, 6, 6), np.float64, layout=LAYOUT)
        v = spmd.input("v", (p, 6, 6), np.float64, layout=LAYOUT)
        h, held = (spmd.zeros((p, 16, 6), layout=LAYOUT) for _ in range(2))
        for t in spmd.range(4):
            out = stage(h, w, v)
            if kept:
                held = held + out * out
            h[1:] = out[:-1]
            h[0] = x[t]
        return h, held

    return program


def given(p):
    rng = np.random.default_rng(p)
    return {"x": rng.normal(size=(4, 16, 6)), "w": rng.normal(size=(p, 6, 6)),
            "v": rng.normal(size=(p, 6, 6))}


def exchanged(program):
    """Return the arrays of which parts go to other ranks."""
    levels = lower(program.graph({}))
    found = [o for o in walk(levels.program.body) if isinstance(o.kind, Exchange)]
    return [levels.program.origins[o.result] for o in found]


@pytest.mark.parametrize(("stage", "kept"), [
    (stage, kept) for stage in BODIES for kept in (False, True)
    if not (kept and stage is element_wise)  # computed where it is read, of its operands' ghosts
])
def test_the_result_is_shifted(stage, kept) -> None:
    """One exchange a tick, of rows as long as those of `out`: no weights, and no operands."""
    found = exchanged(pipeline(stage, kept))
    assert [(v.type.shape[1], v.type.shape[2]) for v in found] == [(16, 6)]


@pytest.mark.parametrize("p", [1, 3, 8])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("stage", BODIES, ids=lambda f: f.__name__)
def test_as_numpy(stage, kept, p) -> None:
    program = pipeline(stage, kept)
    wanted, image = program.eager(p=p, **given(p)), spmd.build(program, p=p)
    for ranks in (1, 2, 3, 5, 8):
        for a, b in zip(image.run(ranks=ranks, **given(p)), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{ranks} ranks")


def test_one_operand_is_shifted_as_before() -> None:
    """With equal bytes nothing changes: a result of one array is computed from its ghost cells."""
    @spmd.program(mesh=("r",))
    def program():
        u = spmd.input("u", (16, 16), np.float64, layout=("r", None))
        for _ in spmd.range(3):
            t = np.sin(u)
            u[1:] = t[:-1]
        return u

    (origin,) = exchanged(program)
    levels = lower(program.graph({}))
    assert all(not isinstance(op.kind, Map) or origin.name not in {v.name for v in op.results}
               for op in walk(levels.graph.body))
