"""Optimizers and clips at their edges: gradients of 0, tiny, huge, alike, and of half types."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.dtypes import BY_NAME, numpy_dtype
from tests.spmd.optimizers import EDGE_START, EDGE_STEPS, EDGES, EDGY, GOLDEN, edge_gradient

# mypy: ignore-errors

pytestmark = pytest.mark.one_mpi

OPTAX = json.loads(GOLDEN.read_text())["edges"]
HALVES = ("float16", "bfloat16")
# The relative error of a step's result; of half types, that of the parameters alone.
CLOSE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2e-5, "float64": 1e-10}
# Differences of almost equal squares have few digits left: finite is what is asked of them.
ONLY_FINITE = {("centered", "alike"), ("stddev", "alike")}


def rounded(tree: Any, dtype: str) -> Any:
    """Numbers as the type holds them, the largest and smallest of it in the place of others."""
    if dtype == "float16":
        tree = {k: np.clip(x, -6e4, 6e4) for k, x in tree.items()}
    return {k: np.asarray(x).astype(numpy_dtype(BY_NAME[dtype])) for k, x in tree.items()}


def trained(name: str, edge: str, dtype: str, start: Any = None) -> Any:
    """Parameters after steps with gradients of this type, as NumPy's arrays."""
    tx = EDGY[name](spmd.optim)
    w = rounded(EDGE_START, dtype) if start is None else start
    state = tx.init(w)
    for t in range(EDGE_STEPS):
        grads = rounded(edge_gradient(edge, t), dtype)
        grads = {k: g.astype(w[k].dtype) for k, g in grads.items()}
        updates, state = tx.update(grads, state, w)
        w = spmd.optim.apply_updates(w, updates)
    return w


@pytest.mark.parametrize("name", EDGY)
def test_steps_at_the_edges_are_finite_and_those_of_optax(name):
    with np.errstate(all="ignore"):
        for edge in EDGES:
            for k, x in trained(name, edge, "float64").items():
                np.testing.assert_allclose(x, OPTAX[name][edge][k], 1e-6, 1e-9, err_msg=edge)
            for dtype in ("float32", *HALVES):
                exact = {k: x.astype(np.float64) for k, x in rounded(EDGE_START, dtype).items()}
                wanted = trained(name, edge, dtype, exact)  # of gradients that are rounded alike
                for k, x in trained(name, edge, dtype).items():
                    assert x.dtype == dtype
                    x = x.astype(np.float64)
                    assert np.isfinite(x).all() or not np.isfinite(
                        rounded(wanted, dtype)[k].astype(np.float64)).all(), (edge, dtype)
                    if (name, edge) not in ONLY_FINITE:
                        most = EDGE_STEPS * CLOSE[dtype] * max(np.abs(wanted[k]).max(), 1)
                        np.testing.assert_allclose(x, wanted[k], EDGE_STEPS * CLOSE[dtype], most,
                                                   err_msg=f"{edge} {dtype} {k}")


@spmd.program(mesh=("d",))
def stepped(dtypes: tuple = (*HALVES, "float32"), split: bool = True):
    """A third of all optimizers in each type, of gradients that the run is given."""
    out = {}
    for i, dtype in enumerate(dtypes):
        kind = numpy_dtype(BY_NAME[dtype])
        grads = {k: spmd.input(f"{dtype}_{k}", (EDGE_STEPS, *w.shape), np.float64)
                 for k, w in EDGE_START.items()}
        for name in list(EDGY)[i :: len(dtypes)]:
            tx = EDGY[name](spmd.optim)
            tx = spmd.optim.sharded(tx, "d") if split else tx
            w = {k: spmd.asarray(x).astype(kind) for k, x in EDGE_START.items()}
            state = tx.init(w)
            for t in spmd.range(EDGE_STEPS):
                updates, state = tx.update({k: g[t].astype(kind) for k, g in grads.items()},
                                           state, w)
                w = spmd.optim.apply_updates(w, updates)
            out[name] = w
    return out


def test_images_step_as_eager_runs_do():
    image, dtypes = spmd.build(stepped), (*HALVES, "float32")
    for edge in EDGES:
        given = {f"{dtype}_{k}": np.stack([
            rounded(edge_gradient(edge, t), dtype)[k].astype(np.float64)
            for t in range(EDGE_STEPS)]) for dtype in dtypes for k in EDGE_START}
        for ranks in (1, 3):
            found = image.run(ranks=ranks, **given)
            for i, dtype in enumerate(dtypes):
                for name in list(EDGY)[i :: len(dtypes)]:
                    with np.errstate(all="ignore"):
                        wanted = trained(name, edge, dtype)
                    for k, x in found[name].items():
                        x, w = x.astype(np.float64), wanted[k].astype(np.float64)
                        assert np.isfinite(x[np.isfinite(w)]).all(), (name, edge, dtype)
                        if (name, edge) not in ONLY_FINITE:
                            np.testing.assert_allclose(
                                x, w, 4 * CLOSE[dtype], 4 * CLOSE[dtype],
                                err_msg=f"{name} {edge} {dtype} {ranks}")


def test_many_gradients_that_hardly_differ():
    for dtype in ("float32", *HALVES):
        w = {"a": np.zeros(3, numpy_dtype(BY_NAME[dtype]))}
        for tx in (spmd.optim.rmsprop(0.01, centered=True), spmd.optim.adabelief(0.01)):
            state = tx.init(w)
            for t in range(300):
                grads = {"a": (1000 + 0.001 * ((np.arange(3) + t) % 3 - 1.0)).astype(w["a"].dtype)}
                updates, state = tx.update(grads, state, w)
                assert np.isfinite(updates["a"].astype(np.float64)).all(), dtype


def test_clips_at_their_limits():
    o, zero = spmd.optim, {"a": np.zeros(3, np.float32)}
    with np.errstate(all="ignore"):
        for tx in (o.clip(0.0), o.clip_by_global_norm(0.0), o.clip_by_block_rms(0.0)):
            assert not tx.update(zero, (), zero)[0]["a"].any()
        assert not o.clip_by_global_norm(0.0).update({"a": np.ones(3)}, ())[0]["a"].any()
        for dtype in HALVES:
            kind = numpy_dtype(BY_NAME[dtype])
            grads = {"a": np.full(4, 300.0, kind), "b": np.full((2, 2), -300.0, kind)}
            norm = o.global_norm(grads)
            np.testing.assert_allclose(float(norm), 300 * np.sqrt(8), 2e-3)
            found = o.clip_by_global_norm(1.0).update(grads, ())[0]
            np.testing.assert_allclose(found["b"].astype(np.float64), -np.sqrt(1 / 8), 2e-3)


def test_norms_of_weights_whose_squares_float32_does_not_hold():
    signs = np.array([1, -1, 1, -1], np.float32)
    for tx, factor in ((spmd.optim.scale_by_trust_ratio(), 1.0), (spmd.optim.lars(1.0), -0.001)):
        for weight, gradient in ((1e20, 1.0), (1.0, 1e-25), (1e25, 1e30), (1e-30, 1e30)):
            w = {"w": (weight * signs).astype(np.float32)}
            found = tx.update({"w": (gradient * signs[::-1]).astype(np.float32)}, tx.init(w), w)[0]
            assert found["w"].dtype == np.float32
            np.testing.assert_allclose(found["w"], factor * weight * signs[::-1], 1e-6)


def test_gradients_are_added_in_the_type_that_holds_them():
    for dtype, least in (("float64", 1e-12), ("float16", 1e-3), ("bfloat16", 1e-2)):
        w = np.ones(2, numpy_dtype(BY_NAME[dtype]))
        tx = spmd.optim.MultiSteps(spmd.optim.sgd(1.0), 64, use_grad_mean=False)
        state = tx.init(w)
        for _ in range(64):
            grads = np.full(2, 1 / 3).astype(w.dtype)
            updates, state = tx.update(grads, state, w)
        exact = -64 * grads.astype(np.float64)
        np.testing.assert_allclose(updates.astype(np.float64), exact, least)
    for dtype in HALVES:  # a sum of squares of which each new one is less than half of a last digit
        w = np.ones(2, numpy_dtype(BY_NAME[dtype]))
        tx = spmd.optim.adagrad(1.0, initial_accumulator_value=0.0)
        state = tx.init(w)
        for _ in range(4096):
            updates, state = tx.update(np.ones_like(w), state, w)
        np.testing.assert_allclose(updates.astype(np.float64), -1 / 64, 1e-2)
