"""Layers of a pipeline that are split over a further axis of the mesh, as their parameters lie."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen import compile as compiler
from codegen.image import manifest
from codegen.ir.graph import walk
from codegen.ops import Move
from spmd import nn, optim, pipeline_notes
from spmd.launch.sizes import mesh_symbols
from spmd.pipelining.layer_costs import operations
from spmd.show import _rank_bytes

AXES = "data", "stage", "model"
WIDTH, HIDDEN, HEADS, PART, ROWS = 4, 7, 4, 2, 8  # 7 and 4 are no multiples of 2, 3 and 5 ranks
MESHES = [(1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 2, 2), (1, 1, 5), (2, 2, 2)]
OPTIMIZERS = {
    "sgd": optim.sgd(0.1), "adamw": optim.adamw(1e-2), "lamb": optim.lamb(1e-2),
    "clip": optim.chain(optim.clip_by_global_norm(0.1), optim.sgd(0.1)),
}


def narrow(w, h):
    return h + np.tanh(h @ w["a"] + w["b"]) @ w["c"] + w["d"]


def attention(w, h):
    q, k, v = (np.einsum("btd,dhe->bthe", nn.layer_norm(h, w["n"]), w[name]) for name in "qkv")
    return h + np.einsum("bthe,hed->btd", nn.attention(q, k, v, causal=True), w["o"])


def branching(w, h):
    def more(h):
        return h + np.tanh(h @ w["a"]) @ w["c"]

    return spmd.cond(np.sum(h ** 2) > 1, more, lambda h: h + 0 * w["d"] @ w["c"].T @ w["c"], h)


def last(w, h, y=None):
    z = h @ w["z"]
    return z if y is None else np.mean((z - y) ** 2)


SPLIT = {"a": (None, "model"), "b": ("model",), "c": ("model", None),
         "q": (None, "model", None), "k": (None, "model", None), "v": (None, "model", None),
         "o": ("model", None, None)}
SHAPES = {
    narrow: {"a": (WIDTH, HIDDEN), "b": (HIDDEN,), "c": (HIDDEN, WIDTH), "d": (WIDTH,)},
    attention: {"n": (WIDTH,), **dict.fromkeys("qkv", (WIDTH, HEADS, PART)),
                "o": (HEADS, PART, WIDTH)},
    branching: {"a": (WIDTH, HIDDEN), "c": (HIDDEN, WIDTH), "d": (WIDTH,)},
    last: {"z": (WIDTH, WIDTH)},
}


def network(kind, count, split, shapes=SHAPES):
    """Return layers, and their parameters as arrays of a program."""
    random, functions = np.random.default_rng(5), [kind] * count + [last]
    return [(f, {name: spmd.asarray(0.4 * random.standard_normal(shape)).relayout(
        SPLIT.get(name) if split else None) for name, shape in shapes[f].items()})
        for f in functions]


def batch(rows=ROWS):
    return spmd.input("x", (spmd.Dim("batch", rows), 3, WIDTH), np.float64,
                      default=lambda i, j, k: np.sin(5.0 * i + 2.0 * j + k))


def pipelined(kind, optimizer, schedule="1f1b", split=True):
    @spmd.program(mesh=AXES, layout={"batch": "data"})
    def train():
        x, loss = batch(), spmd.asarray(0.0)
        pipe = spmd.pipeline(network(kind, 3, split), stages=2, microbatches=4, schedule=schedule,
                             optimizer=OPTIMIZERS[optimizer])
        state = pipe.init()
        for _ in spmd.range(3):
            state, loss = pipe.step(state, x, x)
        state = pipe.drain(state)
        return {"loss": loss, "ws": pipe.params(state), "out": pipe.evaluate(state, x)}

    return train


def plain(kind, optimizer):
    """Return the same training without a pipeline."""
    @spmd.program(mesh=("r",))
    def train():
        x, loss = batch(), spmd.asarray(0.0)
        tx, ws = OPTIMIZERS[optimizer], [w for _, w in network(kind, 3, False)]

        def forward(ws, y):
            h = x
            for w in ws[:-1]:
                h = kind(w, h)
            return last(ws[-1], h, y)

        state = tx.init(ws)
        for _ in spmd.range(3):
            loss, slopes = spmd.value_and_grad(forward)(ws, x)
            updates, state = tx.update(slopes, state, ws)
            ws = optim.apply_updates(ws, updates)
        return {"loss": loss, "ws": ws, "out": forward(ws, None)}

    return spmd.build(train).run(ranks=1)


def close(out, expected):
    for one, other in zip(leaves(out), leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def leaves(tree):
    parts = [tree[k] for k in sorted(tree)] if isinstance(tree, dict) else tree
    return [x for part in parts for x in leaves(part)] if isinstance(
        parts, (dict, list, tuple)) else [tree]


def on(image, axes, **given):
    return image.run(ranks=np.prod(axes), mesh=dict(zip(AXES, axes)), **given)


@pytest.mark.parametrize("kind, optimizer", [(narrow, "sgd"), (narrow, "lamb"), (narrow, "clip"),
                                             (attention, "adamw"), (branching, "sgd")])
def test_split_layers_learn_as_whole_ones(kind, optimizer):
    expected = plain(kind, optimizer)
    image = spmd.build(pipelined(kind, optimizer))
    for axes in MESHES if optimizer in ("sgd", "adamw") and kind is not branching else MESHES[1:4]:
        close(on(image, axes), expected)


@pytest.mark.parametrize("schedule, optimizer", [("continuous", "adamw"), ("zb-h1", "sgd"),
                                                 ("pipedream", "adamw"), ("pipemare", "sgd")])
def test_split_layers_follow_every_schedule(schedule, optimizer):
    expected = spmd.build(pipelined(narrow, optimizer, schedule, split=False)).run(ranks=1)
    image = spmd.build(pipelined(narrow, optimizer, schedule))
    for axes in MESHES[2:]:
        close(on(image, axes), expected)


@pytest.mark.parametrize("kind", [narrow, attention])
def test_a_rank_does_and_holds_its_part(kind):
    big = {narrow: {"a": (64, 512), "b": (512,), "c": (512, 64), "d": (64,)},
           attention: {"n": (64,), **dict.fromkeys("qkv", (64, 16, 16)), "o": (16, 16, 64)},
           last: {"z": (64, 64)}}

    @spmd.program(mesh=("stage", "model"))
    def train():
        x = spmd.input("x", (16, 3, 64), np.float64)
        pipe = spmd.pipeline(network(kind, 2, True, big), stages=2, microbatches=4,
                             optimizer=optim.adamw(1e-2))
        return pipe.step(pipe.init(), x, x)[1]

    body = compiler.lower(train.capture()).program.body
    assert not any(isinstance(op.kind, Move) and "model" in op.kind.axes for op in walk(body))
    image = manifest.read(spmd.build(train).data)
    done, held, kept = [], [], []
    for ranks in (1, 2, 4):
        symbols = mesh_symbols(image.manifest, (2, ranks))
        done.append(operations(body.ops, {**symbols, "i_stage": 0, "i_model": 0}))
        held.append(_rank_bytes(image.manifest, symbols))
        (notes,) = pipeline_notes.pipelines_of(image, mesh={"model": ranks})
        kept.append(notes.kept[0])
    for ranks, *found in zip((2, 4), done[1:], held[1:], kept[1:]):
        for own, whole in zip(found, (done[0], held[0], kept[0])):
            assert own < (1 / ranks + 0.2) * whole
    assert "layers are split over \"model\"" in "\n".join(notes.facts())


def test_an_axis_along_which_nothing_is_split_is_said():
    image = manifest.read(spmd.build(pipelined(narrow, "sgd", split=False)).data)
    (said,) = pipeline_notes.warnings(image)
    assert 'all ranks along "model" compute the same: no parameter lies along it' in said
    assert '"data"' not in said.split("\n", 3)[3]


@pytest.mark.parametrize("place, shared", [("round", False), ("v", True), ("block", True)])
def test_split_weights_that_lie_and_are_shared_in_other_ways(place, shared):
    def train_with(split):
        @spmd.program(mesh=("stage", "model"))
        def train():
            x = batch()
            layers = network(narrow, 3, split)
            if shared:
                layers[2] = (narrow, {**layers[2][1], "a": layers[0][1]["a"],
                                      "b": layers[0][1]["b"]})
            pipe = spmd.pipeline(layers, stages=4, microbatches=2, place=place,
                                 optimizer=optim.adamw(1e-2))
            state, loss = pipe.step(pipe.init(), x, x)
            return {"loss": loss, "ws": pipe.params(state), "out": pipe.evaluate(state, x, x)}

        return train

    expected = spmd.build(train_with(False)).run(ranks=1)
    image = spmd.build(train_with(True))
    for stage, model in ((1, 2), (2, 2), (1, 3), (4, 2)):
        close(image.run(ranks=stage * model, mesh={"stage": stage, "model": model}), expected)


def test_the_axis_of_the_data_splits_no_weights():
    """Even where a parameter lies along it; a rank computes the products of its own examples."""
    @spmd.program(mesh=("data", "stage"), layout={"batch": "data"})
    def train():
        x = batch()
        layers = network(narrow, 2, False)
        layers[0][1]["a"] = layers[0][1]["a"].relayout((None, "data"))
        pipe = spmd.pipeline(layers, stages=2, microbatches=4, schedule="continuous",
                             optimizer=optim.sgd(0.1))
        state, loss = pipe.step(pipe.init(), x, x)
        return {"loss": loss, "ws": pipe.params(pipe.drain(state))}

    image = spmd.build(train)
    close(image.run(ranks=4, mesh={"data": 2, "stage": 2}), image.run(ranks=1))


def test_a_state_goes_on_on_as_many_ranks_of_a_split_axis(tmp_path):
    even = {narrow: {"a": (4, 8), "b": (8,), "c": (8, 4)}, last: {"z": (4, 4)}}

    def sum_of(w, h):
        return h + np.tanh(h @ w["a"] + w["b"]) @ w["c"]

    @spmd.program(mesh=("stage", "model"))
    class Net:
        def __init__(self):
            layers = [(sum_of if f is narrow else f, w) for f, w in network(narrow, 2, True, even)]
            layers[-1][1]["z"] = layers[-1][1]["z"].relayout((None, "model"))
            self.pipe = spmd.pipeline(layers, stages=2, microbatches=2, optimizer=optim.sgd(0.1))
            self.state = self.pipe.init()

        @spmd.entry
        def train(self):
            x = batch()
            self.state, loss = self.pipe.step(self.state, x, x)
            return loss

    image, path = spmd.build(Net), tmp_path / "net.safetensors"
    with image.open(ranks=4, mesh={"stage": 2, "model": 2}) as net:
        net.train()
        net.save(path)
        expected = net.train()
    with image.open(ranks=2, mesh={"stage": 1, "model": 2}) as net:
        net.load(path)
        np.testing.assert_allclose(net.train(), expected, rtol=1e-12)
    with image.open(ranks=1) as net:
        net.load(path)
        with pytest.raises(spmd.CheckError, match='lie as on 2 ranks along "model"'):
            net.train()


def test_a_split_layer_that_reads_an_array_of_the_program_is_refused():
    @spmd.program(mesh=("stage", "model"))
    def train():
        x = batch()
        shift = 2 * x[:1]
        layers = network(narrow, 2, True)
        layers[1] = (lambda w, h: narrow(w, h) + shift, layers[1][1])
        pipe = spmd.pipeline(layers, stages=2, microbatches=4, optimizer=optim.sgd(0.1))
        return pipe.step(pipe.init(), x, x)[1]

    with pytest.raises(spmd.ProgramError, match="an array of the program that it is not given"):
        train.capture()
