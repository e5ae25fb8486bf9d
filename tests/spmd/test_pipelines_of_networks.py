"""Real networks in pipelines, on real data: as plain training where they flush, and else they learn
too."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.trace.state import fill, flatten
from spmd import optim
from tests.spmd.pipeline_networks import NETWORKS

MICROBATCHES = 3
BATCH = 6


def given(network):
    """Return the inputs of a program: the weights of each layer, and all batches. The same array
    of two layers is one input."""
    known = {}

    def one(x):
        if id(x) not in known:
            known[id(x)] = x, spmd.input(f"w{len(known)}", x.shape, x.dtype, default=x,
                                         layout=(None,) * x.ndim)
        return known[id(x)][1]

    def batches(name, tree):
        shape, leaves = flatten(tree)
        return fill(shape, iter([
            spmd.input(f"{name}{k}", a.shape, a.dtype, default=a, layout=(None,) * a.ndim)
            for k, a in enumerate(leaves)]), fresh=True)

    weights = [fill(flatten(w)[0], iter([one(x) for x in flatten(w)[1]]), fresh=True)
               for w in network.weights]
    return weights, batches("x", network.xs), batches("y", network.ys)


def at(tree, *index):
    shape, leaves = flatten(tree)
    return fill(shape, iter([x[index] for x in leaves]), fresh=True)


def steps_of(network):
    return len(flatten(network.xs)[1][0])


def in_pipeline(network, optimizer, stages, **options):
    @spmd.program(mesh=("stage",))
    def train():
        weights, xs, ys = given(network)
        pipe = spmd.pipeline(list(zip(network.layers, weights)), stages=stages,
                             microbatches=MICROBATCHES, optimizer=optimizer, **options)
        state, losses = pipe.init(), spmd.zeros(steps_of(network))
        for k in spmd.range(steps_of(network)):
            state, loss = pipe.step(state, at(xs, k), at(ys, k))
            losses[k] = loss.astype(np.float64)
        return {"losses": losses, "ws": pipe.params(pipe.drain(state))}

    return train


def plain(network, optimizer):
    """The same network as one function; gradients are averaged over microbatches."""
    @spmd.program(mesh=("stage",))
    def train():
        ws, xs, ys = given(network)
        unique = list({id(x): x for x in flatten(ws)[1]}.values())
        places = [[x is y for y in unique].index(True) for x in flatten(ws)[1]]
        tree = flatten(ws)[0]

        def loss(unique, x, y):
            weights, t = fill(tree, iter([unique[k] for k in places]), fresh=True), x
            for f, w in zip(network.layers, weights):
                t = f(w, t, *([y] if f is network.layers[-1] else []))
            return t

        state, losses = optimizer.init(unique), spmd.zeros(steps_of(network))
        size = BATCH // MICROBATCHES
        for k in spmd.range(steps_of(network)):
            total = [np.zeros_like(x) for x in unique]
            for m in spmd.range(MICROBATCHES):
                part = slice(m * size, m * size + size)
                value, slopes = spmd.value_and_grad(loss)(
                    unique, at(xs, k, part), at(ys, k, part))
                losses[k] += value / MICROBATCHES
                total = [a + b / MICROBATCHES for a, b in zip(total, slopes, strict=True)]
            changes, state = optimizer.update(total, state, unique)
            unique = optim.apply_updates(unique, changes)
        return {"losses": losses, "ws": fill(tree, iter([unique[k] for k in places]), fresh=True)}

    return train


@pytest.mark.parametrize("name", NETWORKS)
def test_1f1b_equals_plain_training(name):
    network = NETWORKS[name](3, BATCH, 1, np.float64)
    expected = spmd.build(plain(network, optim.adamw(0.01))).run(ranks=1)
    image = spmd.build(in_pipeline(network, optim.adamw(0.01), 3, schedule="1f1b"))
    for ranks in (1, 3):
        out = image.run(ranks=ranks)
        np.testing.assert_allclose(out["losses"], expected["losses"], rtol=1e-9)
        for mine, theirs in zip(flatten(out["ws"])[1], flatten(expected["ws"])[1], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)
