"""spmd.optim beside what optax gave, in any layout, split over the data, skipping and adding up."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.image.manifest import evaluate
from tests.spmd.optimizers import (
    COUNTS,
    GOLDEN,
    OPTIMIZERS,
    SCHEDULES,
    SHAPES,
    START,
    STEPS,
    gradient,
)

# mypy: ignore-errors

OPTAX = json.loads(GOLDEN.read_text())
SOME = ("lamb", "adafactor", "clipped", "accumulated")  # where leaves or steps meet
ALIKE = ("amsgrad", "adabelief", "nadamw", "lars", "adaptive", "frozen")  # as others, for ranks
LAYOUTS = {"a": (None, "m"), "b": ("m",), "c": ()}


@spmd.program(mesh=("d", "m"))
def trained(names: tuple = tuple(OPTIMIZERS), split: bool = False):
    out = {}
    for name in names:
        tx = OPTIMIZERS[name](spmd.optim)
        tx = spmd.optim.sharded(tx, "d") if split else tx
        w = {k: spmd.asarray(START[k], layout=LAYOUTS[k]) for k in SHAPES}
        state = tx.init(w)
        for t in spmd.range(STEPS):
            updates, state = tx.update(gradient(w, t, np), state, w)
            w = spmd.optim.apply_updates(w, updates)
        out[name] = w
    return out


def close(found: Any, name: str) -> None:
    for k in SHAPES:
        np.testing.assert_allclose(found[name][k], OPTAX["optimizers"][name][k], 1e-6, 1e-6,
                                   err_msg=f"{name} {k}")


@pytest.mark.parametrize("split, names", [
    (False, tuple(n for n in OPTIMIZERS if n not in ALIKE)), (True, SOME)])
def test_a_hundred_steps_are_those_of_optax(split, names):
    image = spmd.build(trained, split=split, names=names)
    for mesh in ({"d": 1, "m": 1}, {"d": 3, "m": 1}, {"d": 2, "m": 2}):
        found = image.run(mesh=mesh)
        for name in names:
            close(found, name)


def test_eager_steps_are_those_of_optax():
    found = trained.eager(names=SOME + ALIKE)
    for name in SOME + ALIKE:
        close(found, name)


def test_schedules_are_those_of_optax():
    @spmd.program
    def rates():
        counts = np.array(COUNTS)
        return {name: make(spmd.optim)(counts) + 0.0 * counts for name, make in SCHEDULES.items()}

    found = spmd.build(rates).run(ranks=2)
    for name, values in OPTAX["schedules"].items():
        np.testing.assert_allclose(found[name], values, 2e-6, 1e-9, err_msg=name)


@spmd.program(mesh=("d",))
def layers(n: int = 7, split: bool = True):
    x = spmd.input("x", (n, 6), np.float64, layout=("d", None), default=lambda i, j: np.sin(i + j))
    w = {"w": np.cos(np.arange(30.0)).reshape(6, 5), "b": np.zeros(5), "c": np.ones(())}
    tx = spmd.optim.adam(0.1)
    tx = spmd.optim.sharded(tx, "d") if split else tx
    state = tx.init(w)
    for _ in spmd.range(20):
        grads = spmd.grad(lambda w: np.mean((np.tanh(x @ w["w"] + w["b"]) - w["c"]) ** 2))(w)
        updates, state = tx.update(grads, state, w)
        w = spmd.optim.apply_updates(w, updates)
    return w, state[0]


def test_a_split_optimizer_scatters_sums_and_gathers_updates():
    split, plain = (spmd.build(layers, split=split) for split in (True, False))
    wanted = plain.run(ranks=1)
    for ranks in (1, 2, 3, 5):
        found = split.run(ranks=ranks)
        for k in "wbc":
            np.testing.assert_allclose(found[0][k], wanted[0][k], 1e-12, 1e-13)
            np.testing.assert_allclose(found[1].nu[k], wanted[1].nu[k], 1e-12, 1e-13)
    held = {row["name"]: row["layout"] for row in split.layouts(ranks=5).rows}
    assert held["1.mu.w"] == held["1.nu.w"] == [["d"], []] and held["1.nu.b"] == [["d"]]

    def sent(image):
        rows = image.layouts(ranks=5).exchanges
        return sorted((row["kind"], row["rank_bytes"]) for row in rows)

    def as_large_as_w(image):
        sizes = [evaluate(b["bytes"], {"n_d": 5}) for b in image.manifest["buffers"]]
        return sizes.count(8 * 30)

    # Of w itself, and its gradient as it comes; else of two moments and the sum of gradients too.
    assert (as_large_as_w(split), as_large_as_w(plain)) == (2, 5)
    scattered, gathered = [8 * 5, 8 * 30], [8 * 4, 8 * 25]
    assert sent(split) == [*(("all-gather", n) for n in gathered), ("all-reduce", 8),
                           *(("reduce-scatter", n) for n in scattered)]
    assert {kind for kind, _ in sent(plain)} == {"all-reduce"}


CARRIED = {
    "momentum": lambda o: o.sgd(0.1, 0.9), "nesterov": lambda o: o.sgd(0.1, 0.9, nesterov=True),
    "adam": lambda o: o.adam(0.1), "adamw": lambda o: o.adamw(0.1),
    "amsgrad": lambda o: o.amsgrad(0.1), "adabelief": lambda o: o.adabelief(0.1),
    "lamb": lambda o: o.lamb(0.1), "lars": lambda o: o.lars(0.1), "lion": lambda o: o.lion(0.1),
    "adagrad": lambda o: o.adagrad(0.1), "rmsprop": lambda o: o.rmsprop(0.1),
    "centered": lambda o: o.rmsprop(0.1, centered=True, momentum=0.9),
    "ema": lambda o: o.ema(0.9), "injected": lambda o: o.inject_hyperparams(o.adam)(0.1),
}


@spmd.program(mesh=("d",))
def short(names: tuple = tuple(CARRIED), dtype: str = "bfloat16", grads: str = "bfloat16"):
    out = {}
    for name in names:
        tx = CARRIED[name](spmd.optim)
        w = np.full(4, 0.5, np.float32).astype(dtype)
        state = before = tx.init(w)
        for _ in spmd.range(3):
            updates, state = tx.update(w.astype(grads), state, w)
            w = spmd.optim.apply_updates(w, updates)
        pairs = zip(*map(spmd.tree.leaves, (before, state)), strict=True)
        assert w.dtype == dtype and all(x.dtype == y.dtype for x, y in pairs), name
        out[name] = w.astype(np.float32)
    return out


def test_states_of_short_floats_keep_their_types():
    exact = short.eager(dtype="float32", grads="float32")
    for dtype in ("bfloat16", "float16"):
        for grads in (dtype, "float32"):
            for name, w in short.eager(dtype=dtype, grads=grads).items():
                np.testing.assert_allclose(w, exact[name], 0.05, 0.01, err_msg=f"{name} {dtype}")
            short.capture(dtype=dtype, grads=grads)
    found = spmd.build(short, names=("nesterov", "adabelief", "injected")).run(ranks=2)
    for name, w in found.items():
        np.testing.assert_allclose(w, exact[name], 0.05, 0.01, err_msg=name)


def test_units_of_arrays_with_one_long_dim_are_whole_as_in_optax():
    u, p = np.array([3.0, 0.01, 0.01]), np.array([1.0, 2.0, 3.0])
    for shape in ((3,), (1, 3), (3, 1), (1, 1, 3)):
        found = spmd.optim.adaptive_grad_clip(0.01).update(u.reshape(shape), (), p.reshape(shape))
        np.testing.assert_allclose(found[0].ravel(), [  # optax 0.2.8
            0.037416158134958646, 0.00012472052711652882, 0.00012472052711652882], 1e-14)


def test_a_function_that_is_a_mask_is_no_schedule():
    w, o = {"a": np.ones(2), "b": np.ones(2)}, spmd.optim
    found = []
    for mask in (lambda w: {"a": True, "b": False}, {"a": True, "b": False}):
        tx = o.inject_hyperparams(o.adamw)(0.1, weight_decay=0.5, mask=mask)
        state = tx.init(w)
        assert "mask" not in state.hyperparams and "learning_rate" in state.hyperparams
        found.append(tx.update(w, state, w)[0])
    np.testing.assert_array_equal(found[0]["a"], found[1]["a"])
    assert (found[0]["a"] < found[0]["b"]).all()


def test_hyperparams_that_are_missing_are_named():
    w, tx = np.ones(2), spmd.optim.inject_hyperparams(spmd.optim.adam)(0.1)
    state = tx.init(w)
    with pytest.raises(spmd.UsageError, match=r"state.hyperparams lacks b1, b2, eps, eps_root"):
        tx.update(w, state._replace(hyperparams={"learning_rate": 0.2}), w)
    changed = state._replace(hyperparams={**state.hyperparams, "learning_rate": 0.2})
    np.testing.assert_allclose(tx.update(w, changed, w)[0], 2 * tx.update(w, state, w)[0], 1e-7)


def test_keys_of_dicts_have_no_order():
    o, w = spmd.optim, {"body": [np.ones(2), np.ones(3)], "head": np.full(2, 2.0)}
    other = {"head": w["head"], "body": w["body"]}
    added = spmd.tree.map(lambda x, y: x + y, w, other)
    assert list(added) == ["body", "head"] and added["head"].tolist() == [4.0, 4.0]
    masked = o.masked(o.scale(3.0), {"head": True, "body": False})
    split = o.partition({"x": o.scale(3.0), "y": o.scale(1.0)}, {"head": "x", "body": "y"})
    for tx in (masked, split):
        found, _ = tx.update(w, tx.init(other), other)
        assert found["head"].tolist() == [6.0, 6.0] and found["body"][0].tolist() == [1.0, 1.0]


def test_what_does_not_fit_the_leaves_is_named():
    o, w = spmd.optim, {"a": {"b": np.ones(2)}, "c": np.ones(2)}
    for make, message in (
        (lambda: o.partition({"x": o.sgd(1)}, {"a": "x", "c": "y"}), "a label has no transf"),
        (lambda: o.partition({"x": o.sgd(1)}, {"a": None, "c": "x"}), r"a.*b.* is None"),
        (lambda: o.partition({"x": o.sgd(1)}, None), "is None"),
        (lambda: o.masked(o.sgd(1), {"a": {"d": True}, "c": True}), r"not fit the tree\['a'\]"),
        (lambda: o.masked(o.sgd(1), {"a": True, "c": {"d": True}}), r"not fit the tree\['c'\]"),
        (lambda: o.named_chain(("a", o.sgd(1)), ("a", o.sgd(1))), "one name is given twice"),
        (lambda: o.inject_hyperparams(o.sgd, static_args="rate"), "no parameters of it"),
    ):
        with pytest.raises(spmd.UsageError, match=message):
            make().init(w)
    with pytest.raises(spmd.UsageError, match="needs the state of the step before"):
        o.adam(1e-3).update(w, None, w)


def test_a_global_norm_is_one_all_reduce_for_each_set_of_axes():
    layouts = [("m", None), (), (None, "m"), ("d", "m"), (), ("m", "d")]

    @spmd.program(mesh=("d", "m"))
    def clipped():
        w = [spmd.input(f"w{k}", (4, 4), np.float64, layout=layout, default=lambda i, j: i + j)
             for k, layout in enumerate(layouts)]
        return spmd.optim.clip_by_global_norm(1.0).update(w, None)[0]

    image, norm = spmd.build(clipped), np.sqrt(6 * np.sum(np.add.outer(range(4), range(4)) ** 2))
    found = image.run(mesh={"d": 2, "m": 2})
    np.testing.assert_allclose(found[3], np.add.outer(range(4), range(4)) / norm, 1e-12)
    rows = image.layouts(mesh={"d": 2, "m": 2}).exchanges
    assert sorted(tuple(row["axes"]) for row in rows) == [("d", "m"), ("m",)]
