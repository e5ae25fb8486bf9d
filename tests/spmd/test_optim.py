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


def test_what_does_not_fit_the_leaves_is_named():
    o, w = spmd.optim, {"a": {"b": np.ones(2)}, "c": np.ones(2)}
    for make, message in (
        (lambda: o.partition({"x": o.sgd(1)}, {"a": "x", "c": "y"}), "a label has no transf"),
        (lambda: o.masked(o.sgd(1), {"a": {"d": True}, "c": True}), r"not fit the tree\['a'\]"),
        (lambda: o.masked(o.sgd(1), {"a": True, "c": {"d": True}}), r"not fit the tree\['c'\]"),
        (lambda: o.named_chain(("a", o.sgd(1)), ("a", o.sgd(1))), "one name is given twice"),
        (lambda: o.inject_hyperparams(o.sgd, static_args="rate"), "no parameters of it"),
    ):
        with pytest.raises(spmd.UsageError, match=message):
            make().init(w)
