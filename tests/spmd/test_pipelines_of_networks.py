"""Real networks in pipelines, on real data: as plain training where they flush; they learn where
they never do; layers are cut by what they have to do."""

from __future__ import annotations

import cProfile
import pstats

import numpy as np
import pytest

import spmd
from codegen.trace.state import fill, flatten
from spmd import optim
from tests.spmd.pipeline_networks import NETWORKS, Network

pytestmark = pytest.mark.usefixtures("vectors_cc")  # they compute for long

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


def in_pipeline(network, optimizer, stages, epochs=1, **options):
    """Return a program that goes through all batches so many times."""
    @spmd.program(mesh=("stage",))
    def train():
        weights, xs, ys = given(network)
        pipe = spmd.pipeline(list(zip(network.layers, weights)), stages=stages,
                             microbatches=MICROBATCHES, optimizer=optimizer, **options)
        steps = steps_of(network)
        state, losses = pipe.init(), spmd.zeros(epochs * steps)
        for k in spmd.range(epochs * steps):
            state, loss = pipe.step(state, at(xs, k % steps), at(ys, k % steps))
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


@pytest.mark.parametrize("name", ["bert", "lstm", "conv"])  # others: an example, and figures
def test_stages_that_never_wait_learn(name):
    options = {"tied": False} if name == "bert" else {}  # the word vectors are in two stages
    network = NETWORKS[name](4, 12, 2, np.float32, **options)
    epochs = 25
    image = spmd.build(in_pipeline(network, optim.adamw(0.01), 3, epochs, schedule="continuous",
                                   accumulate=2))
    losses = image.run(ranks=1)["losses"].reshape(epochs, -1)
    assert np.mean(losses[-1]) < 0.7 * np.mean(losses[1])  # the pipeline fills in the first one
    np.testing.assert_array_equal(image.run(ranks=3)["losses"].reshape(epochs, -1), losses)


# ---- what layers may do: branches, loops that only the run can count, conditions, integers


def indexed(w, x):
    """Numbers of rows are handed on with the rows."""
    return {"rows": w[x[:, 0]], "x": x}


def branching(w, t):
    h = t["rows"]
    if np.sum(h) > 0:
        h = h @ w["a"]
    return {**t, "rows": h + spmd.cond(h[0, 0] > 0, lambda: np.sin(h), lambda: w["b"] * h)}


def counted(w, t):
    """Apply a layer one time more often than the number of the column with the largest sum."""
    turns = np.argmax(np.sum(np.abs(t["rows"]), axis=0)) + 1
    return {**t, "rows": spmd.fori_loop(0, turns, lambda k, h: np.tanh(h @ w) + k, t["rows"])}


def halved(w, t):
    """Turns until a number that follows from the microbatch is small."""
    def turn(state):
        return np.tanh(state[0] @ w), state[1] / 2

    return spmd.while_loop(lambda s: s[1] > 1, turn, (t["rows"], np.sum(np.abs(t["rows"]))))[0]


def solved(w, h):
    """A matrix that follows from the weights alone, and has a condition."""
    column = h[:, np.argmax(np.sum(h, axis=0))]
    return h @ np.linalg.inv(w @ w.T + np.eye(4)) * column[:, None]


def test_layers_of_all_kinds():
    random = np.random.default_rng(3)

    def new(*shape):
        return random.standard_normal(shape) / 2

    network = Network(
        [indexed, branching, counted, halved, solved, squares],
        [new(5, 4), {"a": new(4, 4), "b": new(4)}, new(4, 4), new(4, 4), new(4, 4), new(4, 2)],
        random.integers(5, size=(3, BATCH, 2)).astype(np.int32), new(3, BATCH, 2))
    expected = spmd.build(plain(network, optim.sgd(0.1))).run(ranks=1)
    for schedule in ("1f1b", "zb-h1"):
        image = spmd.build(in_pipeline(network, optim.sgd(0.1), 6, schedule=schedule))
        for ranks in (1, 2):
            out = image.run(ranks=ranks)
            np.testing.assert_allclose(out["losses"], expected["losses"], rtol=1e-9)


# ---- how often a program is captured


def calls(profile, file, name):
    return sum(row[0] for (where, _, what), row in pstats.Stats(profile).stats.items()
               if what == name and where.endswith(file))


@pytest.mark.parametrize(("schedule", "traces", "ticks"), [
    ("1f1b", 1, 2),  # the loop over steps is captured twice: first it shows what it carries
    ("continuous", 2, 3),  # the first step says what batches are like; a tick in `drain`
])
def test_ticks_are_captured_once_wherever_they_stand(schedule, traces, ticks):
    network = NETWORKS["conv"](3, BATCH, 1, np.float64)
    program = in_pipeline(network, optim.sgd(0.1), 2, schedule=schedule)
    with cProfile.Profile() as profile:
        program.capture()
    assert calls(profile, "program.py", "_trace") == traces
    assert calls(profile, "ticks.py", "tick") == ticks


# ---- cuts by operations, and by seconds


def linear(w, h):
    return h @ w


def squares(w, h, y):
    return np.mean((h @ w - y) ** 2)


WIDTHS = (4, 30, 3, 100, 2)


def products(rows):
    """Return how many operations each layer has: a product forward, and for each gradient one; the
    loss has a few more."""
    every = [rows * a * b for a, b in zip(WIDTHS, WIDTHS[1:])]
    return [2 * every[0], *(3 * n for n in every[1:])]


def cut_of(cut, capfd, schedule="1f1b"):
    """Return what pipe.cut says of linear layers of these widths."""
    @spmd.program(mesh=("stage",))
    def train():
        x, y = (spmd.input(name, (8, n), np.float64, default=lambda i, j: i) for name, n in (
            ("x", 4), ("y", 2)))
        ws = [np.ones(shape) for shape in zip(WIDTHS, WIDTHS[1:])]
        pipe = spmd.pipeline(
            list(zip([linear, linear, linear, squares], ws)), stages=2, microbatches=2,
            schedule=schedule, optimizer=optim.sgd(0.1), cut=cut)
        loss = pipe.step(pipe.init(), x, y)[1]
        spmd.print(pipe.cut)
        return loss

    spmd.build(train).run(ranks=1)
    return capfd.readouterr().out.split("\n")


def test_a_cut_by_parameters_by_seconds_and_by_operations(capfd):
    assert cut_of("parameters", capfd)[:3] == [  # the default
        "stage 0: layers 0 to 1, 210 parameters", "stage 1: layers 2 to 3, 500 parameters",
        "at most 1.42 times as fast as one stage"]
    assert cut_of([0.5, 0.1, 0.1, 0.1], capfd)[:3] == [
        "stage 0: layer 0, 0.5 seconds", "stage 1: layers 1 to 3, 0.3 seconds",
        "at most 1.60 times as fast as one stage"]
    counts = products(rows=4)
    for schedule in ("1f1b", "continuous"):
        said = cut_of("operations", capfd, schedule)
        assert said[0] == f"stage 0: layers 0 to 2, {sum(counts[:3]):,} operations of a microbatch"
        found = int(said[1].split()[4].replace(",", ""))
        assert counts[3] <= found < counts[3] + 100
        assert said[1].startswith("stage 1: layer 3, ")


@pytest.mark.parametrize("cut", ["size", [1.0, 2.0], [1, 1, 1, -1], [1, 1, 1, float("nan")]])
def test_a_cut_that_is_none_is_refused(cut, capfd):
    with pytest.raises(spmd.UsageError, match="cut=.* of a pipeline of 4 layers"):
        cut_of(cut, capfd)
