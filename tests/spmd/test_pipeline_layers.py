"""Layers of a pipeline that share a weight, or drop elements, beside plain training."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from spmd import nn, optim


def tied_begin(w, x):
    return np.tanh(x @ w["t"])


def tied_middle(w, h):
    return h + np.tanh(h @ w["a"])


def tied_end(w, h, y):
    return np.mean((h @ w["t"].T - y) ** 2)


def tied(stages, optimizer, schedule="1f1b"):
    """Return a program that trains with a weight in the first and the last layer: with spmd.grad
    where there are no stages."""
    @spmd.program(mesh=("stage",))
    def train():
        t = spmd.input("t", (4, 5), np.float64, layout=(None, None))
        own = [spmd.input(f"a{k}", (5, 5), np.float64, layout=(None, None)) for k in range(3)]
        x = spmd.input("x", (6, 4), np.float64, layout=(None, None))
        layers = [(tied_begin, {"t": t}), *((tied_middle, {"a": a}) for a in own),
                  (tied_end, {"t": t})]
        if stages:
            pipe = spmd.pipeline(layers, axis="stage", stages=stages, microbatches=2,
                                 schedule=schedule, optimizer=optimizer)
            state = pipe.init()
            for _ in spmd.range(3):
                state, _ = pipe.step(state, x, x)
            found = pipe.params(pipe.drain(state))
            return [found[0]["t"], *(w["a"] for w in found[1:4])]

        def loss(ws):
            h = tied_begin({"t": ws[0]}, x)
            for a in ws[1:]:
                h = tied_middle({"a": a}, h)
            return tied_end({"t": ws[0]}, h, x)

        ws = [t, *own]
        state = optimizer.init(ws)
        for _ in spmd.range(3):
            updates, state = optimizer.update(spmd.grad(loss)(ws), state, ws)
            ws = optim.apply_updates(ws, updates)
        return ws

    return train


CLIPPED = optim.chain(optim.clip_by_global_norm(0.1), optim.sgd(0.5, momentum=0.9),
                      optim.clip_by_global_norm(0.03))


@pytest.mark.parametrize(("optimizer", "stages"), [
    (optim.adamw(0.01), 3), (CLIPPED, 1), (CLIPPED, 4)])
def test_a_weight_of_two_layers_and_norms_of_all_gradients(optimizer, stages):
    random = np.random.default_rng(1)
    given = {"t": random.standard_normal((4, 5)), "x": random.standard_normal((6, 4))}
    given |= {f"a{k}": random.standard_normal((5, 5)) * 0.3 for k in range(3)}
    expected = spmd.build(tied(0, optimizer)).run(ranks=1, **given)
    image = spmd.build(tied(stages, optimizer))
    for n in (1, 3):
        for mine, theirs in zip(image.run(ranks=n, **given), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


# ---- dropout


def dropped_begin(w, x, stream=0):
    return nn.dropout(np.tanh(x @ w), 0.25, seed=3, stream=stream)


def dropped_middle(w, h, stream=0):
    return h + nn.dropout(h @ w, 0.5, seed=3, stream=stream + 50)


def dropped_end(w, h, y, stream=0):
    return np.mean((nn.dropout(h, 0.5, seed=3, stream=stream) @ w - y) ** 2)


DROPPED = [dropped_begin, *[dropped_middle] * 3, dropped_end]


def dropped(stages, axis, schedule="1f1b"):
    """Return a program that trains three steps of two microbatches with dropout, with spmd.grad
    where there are no stages; and without it once more."""
    @spmd.program(mesh=("data", "stage"))
    def train():
        ws = [spmd.input(f"w{k}", (6, 6), np.float64, layout=(None, None)) for k in range(5)]
        xs = spmd.input("x", (3, 8, 6), np.float64, layout=(None, axis, None))
        if stages:
            pipe = spmd.pipeline(list(zip(DROPPED, ws)), stages=stages, microbatches=2,
                                 schedule=schedule, accumulate=2, optimizer=optim.sgd(0.3))
            state = pipe.init()
            for k in spmd.range(3):
                state, _ = pipe.step(state, xs[k], xs[k])
            last = pipe.drain(state)
            return [*pipe.params(last), pipe.evaluate(last, xs[0], xs[0])]

        def loss(ws, x, microbatch):
            h, stream = x, microbatch * 5
            for k in range(4):
                h = DROPPED[k](ws[k], h, stream=stream + k)
            return dropped_end(ws[4], h, x, stream=stream + 4)

        for step in range(3):
            slopes = [spmd.grad(loss)(ws, xs[step, 4 * k:4 * k + 4], 2 * step + k)
                      for k in range(2)]
            ws = [w - 0.3 * (a + b) / 2 for w, a, b in zip(ws, *slopes)]
        h = np.tanh(xs[0] @ ws[0])
        for w in ws[1:4]:
            h = h + h @ w
        return [*ws, np.mean((h @ ws[4] - xs[0]) ** 2)]

    return train


@pytest.mark.parametrize(("schedule", "stages"), [("1f1b", 3), ("continuous", 1)])
def test_dropout_follows_from_the_layer_and_the_microbatch(schedule, stages):
    random = np.random.default_rng(5)
    given = {f"w{k}": random.standard_normal((6, 6)) * 0.4 for k in range(5)}
    given["x"] = random.standard_normal((3, 8, 6))
    expected = spmd.build(dropped(0, None)).run(ranks=1, **given)
    image = spmd.build(dropped(stages, "data", schedule))
    for data, stage in ((1, 1), (1, 3), (2, 1), (2, 3)):
        out = image.run(ranks=data * stage, mesh={"data": data, "stage": stage}, **given)
        for mine, theirs in zip(out, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


# ---- what is refused


def test_a_weight_of_two_stages_that_are_updated_apart_is_refused():
    with pytest.raises(spmd.UsageError, match=r"'t'.*of layer 0 is in stages 0 and 2"):
        spmd.build(tied(3, optim.sgd(0.1), "continuous"))
