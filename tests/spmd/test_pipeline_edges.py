"""Pipelines where users do what nobody does on purpose: what comes out, and what is said."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import numpy as np
import pytest

import spmd
from codegen.explain import advice
from spmd import optim
from spmd.pipelining.stage_cuts import cut
from tests.conftest import Launch
from tests.spmd import pipeline_by_hand as by_hand


def middle(w, h):
    return np.tanh(h @ w)


def last(w, h, y):
    return np.mean((h @ w - y) ** 2)


def each(w, h, y):
    return np.mean((h @ w - y) ** 2, axis=1)


EYE = np.eye(4)


# ---- checkpoints


LONG = """
import numpy as np
import spmd
from spmd import optim
from tests.spmd.test_pipeline_edges import last, middle

@spmd.program(mesh=("stage",))
def train():
    steps = spmd.scalar("steps", 3)
    x = spmd.input("x", (6, 4), np.float64, default=lambda i, j: (i + j) % 3)
    layers = [(middle, np.eye(4) / 2), (middle, np.eye(4) / 3), (last, np.eye(4))]
    pipe = spmd.pipeline(layers, stages=3, microbatches=3, schedule="continuous", accumulate=2,
                         optimizer=optim.adam(1e-4))
    state, last_loss = pipe.init(), spmd.zeros(())
    for k in spmd.range(steps):
        state, last_loss = pipe.step(state, x, x)
    return {"loss": last_loss, "ws": pipe.params(pipe.drain(state))}
"""


@pytest.fixture(scope="module")
def long_training(tmp_path_factory):
    """An image with checkpoints, and its file."""
    file = tmp_path_factory.mktemp("long") / "long_training.py"
    file.write_text(LONG)
    names = {}
    exec(compile(LONG, str(file), "exec"), names)
    image = spmd.build(names["train"], checkpoint=True)
    image.save(file.with_suffix(".img"))
    return image, file.with_suffix(".img")


def same(a, b):
    assert a["loss"] == b["loss"]
    for mine, theirs in zip(a["ws"], b["ws"], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_run_goes_on_with_more_steps_and_never_in_the_middle_of_drain(long_training, tmp_path):
    image, _ = long_training
    image.run(ranks=2, steps=3, checkpoint=str(tmp_path), every=1)
    turns = [re.match(r"loop(\d+)-turn0*(\d+)", f.name) for f in tmp_path.iterdir()]
    assert sorted(m.groups() for m in turns if m) == [("0000", "1"), ("0000", "2")]
    same(image.run(ranks=1, steps=5, resume=str(tmp_path)), image.run(ranks=3, steps=5))


@pytest.mark.mpi
def test_a_killed_run_goes_on_on_another_number_of_ranks(long_training, tmp_path):
    image, file = long_training
    kept, steps = tmp_path / "kept", 20000
    argv = ["mpirun", "-n", 3, sys.executable, "-m", "spmd", "run", file, "--set",
            f"steps={steps}", "--checkpoint", kept, "--every", 200]
    with Launch(argv) as launch:
        until = time.monotonic() + 60
        while (not list(kept.glob("loop*/checkpoint.json")) and time.monotonic() < until
               and launch.process.poll() is None):
            time.sleep(0.05)
        os.kill(launch.ranks(3)[1], signal.SIGKILL)
        assert launch.finish().code != 0
    assert list(kept.glob("loop0000-*/checkpoint.json"))
    same(image.run(ranks=2, steps=steps, resume=str(kept)), image.run(ranks=1, steps=steps))


# ---- gradients and rows that are not finite


def rooted(w, h):
    """A layer whose weights have infinite gradients where they are zeros."""
    return np.tanh(h @ w["m"] + np.sqrt(w["r"]))


def test_a_step_is_skipped_by_all_stages_or_by_none():
    optimizer = optim.apply_if_finite(optim.adam(0.05), 2)
    random = np.random.default_rng(3)
    ws = [{"m": random.standard_normal((4, 4)), "r": np.ones(4)} for _ in range(3)]
    xs = random.standard_normal((5, 8, 4))

    def program(stages):
        @spmd.program(mesh=("stage",))
        def train():
            x = spmd.input("x", xs.shape, np.float64, layout=(None,) * 3)
            roots = spmd.input("roots", (5, 4), np.float64, layout=(None, None))

            def end(w, h, y):  # the slope by v is infinite where y has a zero root
                return last(w["m"], h, y["x"]) + np.sum(np.sqrt(w["v"] * np.mean(y["r"], axis=0)))

            layers = [*((rooted, w) for w in ws), (end, {"m": EYE, "v": np.ones(4)})]

            def batch(k):
                return x[k], {"x": x[k], "r": np.broadcast_to(roots[k], (8, 4))}

            if stages:
                pipe = spmd.pipeline(layers, stages=stages, microbatches=2, optimizer=optimizer)
                state = pipe.init()
                for k in spmd.range(5):
                    state, _ = pipe.step(state, *batch(k))
                return pipe.params(state)

            def loss(own, x, y):
                for w in own[:-1]:
                    x = rooted(w, x)
                return end(own[-1], x, y)

            own = [dict(w) for _, w in layers]
            state = optimizer.init(own)
            for k in spmd.range(5):
                changes, state = optimizer.update(spmd.grad(loss)(own, *batch(k)), state, own)
                own = optim.apply_updates(own, changes)
            return own

        return spmd.build(train)

    roots = np.ones((5, 4))
    roots[1:3, 2] = 0
    given = {"x": xs, "roots": roots}
    expected, image = program(0).run(ranks=1, **given), program(4)
    assert np.isfinite(expected[3]["v"]).all() and (expected[0]["m"] != ws[0]["m"]).any()
    for ranks in (1, 3):
        for mine, theirs in zip(image.run(ranks=ranks, **given), expected, strict=True):
            for name, x in theirs.items():
                np.testing.assert_allclose(mine[name], x, rtol=1e-9)


def normed(w, h):
    """A layer without a finite value at zero."""
    return (h / np.sqrt(np.sum(h * h, axis=1, keepdims=True))) @ w


@pytest.mark.parametrize("schedule", ["1f1b", "continuous"])
def test_what_rows_hold_that_are_not_there_changes_nothing(schedule):
    random = np.random.default_rng(5)
    x, y = random.standard_normal((2, 2, 12, 4))
    masks = np.ones((2, 12), bool)
    masks[1, 5:] = False  # of four microbatches, half of the second one, and two without any
    masks[0, 3] = False

    @spmd.program(mesh=("data", "stage"))
    def train():
        xs, ys = (spmd.input(n, x.shape, np.float64, layout=(None, "data", None)) for n in "xy")
        mask = spmd.input("mask", masks.shape, np.bool_, layout=(None, "data"))
        pipe = spmd.pipeline([(normed, EYE + 1), (middle, EYE / 2), (each, EYE)], stages=3,
                             microbatches=3, schedule=schedule, accumulate=3,
                             optimizer=optim.sgd(0.1))
        state, losses = pipe.init(), spmd.zeros(2)
        for k in spmd.range(2):
            state, losses[k] = pipe.step(state, xs[k], ys[k], mask[k])
        state = pipe.drain(state)
        return {"losses": losses, "ws": pipe.params(state),
                "after": pipe.evaluate(state, xs[1], ys[1], mask[1])}

    image = spmd.build(train)
    for mesh in ({"data": 1, "stage": 2}, {"data": 2, "stage": 2}):
        outs = []
        for value in (0.5, 0.0, np.nan, np.inf):
            for a in (x, y):
                a[~masks] = value
            outs.append(image.run(mesh=mesh, x=x, y=y, mask=masks))
        assert all(np.isfinite(w).all() for w in outs[0]["ws"])
        for out in outs[1:]:
            np.testing.assert_allclose(out["after"], outs[0]["after"], rtol=1e-12)
            np.testing.assert_allclose(out["losses"], outs[0]["losses"], rtol=1e-12)
            for mine, theirs in zip(out["ws"], outs[0]["ws"], strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-12)


# ---- norms of all gradients, parameters that a class computes


def plus_one(w, h):
    return h + 1


def shared_begin(w, h):
    return np.tanh(h @ w["t"] + w["bias"])


def shared_end(w, h, y):
    return last(w["t"], h, y)


def test_copies_of_a_weight_stay_alike_beside_weights_of_another_type():
    random = np.random.default_rng(8)
    t, bias = random.standard_normal((4, 4)), random.standard_normal(4).astype(np.float32)

    @spmd.program(mesh=("stage",))
    def train():
        x = spmd.input("x", (6, 4), np.float64)
        layers = [(shared_begin, {"bias": bias, "t": t}), (middle, EYE), (shared_end, {"t": t})]
        pipe = spmd.pipeline(layers, stages=3, microbatches=2, optimizer=optim.chain(
            optim.clip_by_global_norm(0.01), optim.sgd(0.5)))
        state = pipe.init()
        for _ in spmd.range(9):
            state, _ = pipe.step(state, x, x)
        return [pipe.params(state)[k]["t"] for k in (0, 2)]

    first, end = spmd.build(train).run(ranks=2, x=random.standard_normal((6, 4)))
    np.testing.assert_array_equal(first, end)
    assert not np.array_equal(first, t)


@pytest.mark.parametrize("place", ["block", "v"])
def test_a_norm_of_all_gradients_has_the_same_bits_on_any_ranks(place):
    random = np.random.default_rng(8)
    ws = [random.standard_normal((4, 4)) / 2 for _ in range(5)]

    @spmd.program(mesh=("stage",))
    def train():
        x = spmd.input("x", (8, 4), np.float64)
        layers = [*((middle, w) for w in ws[:4]), (plus_one, {}), (last, ws[4])]
        pipe = spmd.pipeline(layers, stages=6, microbatches=2, place=place, optimizer=optim.chain(
            optim.clip_by_global_norm(0.01), optim.sgd(0.3)))
        state = pipe.init()
        for _ in spmd.range(8):
            state, _ = pipe.step(state, x, x)
        return [w for w in pipe.params(state) if not isinstance(w, dict)]

    image = spmd.build(train)
    for x in random.standard_normal((6, 8, 4)):
        one = image.run(ranks=1, x=x)
        length = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(one, ws, strict=True)))
        assert 0.01 < length < 8 * 0.01 * 0.3 * (1 + 1e-9)
        for n in (2, 3, 6):
            np.testing.assert_equal(image.run(ranks=n, x=x), one)


def test_parameters_that_a_class_computes():
    @spmd.program(mesh=("stage",))
    class Net:
        def __init__(self):
            layers = [(middle, spmd.asarray(EYE) / 2), (last, spmd.asarray(EYE) * 3)]
            self.pipe = spmd.pipeline(layers, stages=2, microbatches=2, optimizer=optim.sgd(0.1))
            self.state = self.pipe.init()

        @spmd.entry
        def step(self):
            x = spmd.input("x", (4, 4), np.float64)
            self.state, loss = self.pipe.step(self.state, x, x)
            return loss, self.pipe.evaluate(self.state, x, x)

    x = np.random.default_rng(9).standard_normal((4, 4))
    with spmd.build(Net).open(ranks=2) as net:
        (first, after), (second, _) = net.step(x=x), net.step(x=x)
    np.testing.assert_allclose(first, np.mean((np.tanh(x / 2) * 3 - x) ** 2), rtol=1e-12)
    np.testing.assert_allclose(after, second, rtol=1e-12)


# ---- batches of other sizes, schedules of the user's own


def late(s, p, k, m):
    """Return the ticks of 1F1B with idle ticks between them."""
    return {"F": 4 * k + s, "B": 4 * k + 2 * p - 1 - s, "U": 4 * k + 2 * p - 1 - s}


def test_a_schedule_object_with_a_correction_and_batches_of_other_sizes():
    random = np.random.default_rng(7)
    layers = by_hand.network(random, 4)
    xs, ys = random.standard_normal((3, 6, 4)), random.standard_normal((3, 6, 2))
    sizes = (1, 5, 9)
    made = spmd.schedules.make_schedule(late, 3, np.int64(3), accumulate=2, correction="stash")

    @spmd.program(mesh=("stage",))
    def train():
        x, y = (spmd.input(n, a.shape, np.float64) for n, a in (("x", xs), ("y", ys)))
        pipe = spmd.pipeline(layers, stages=np.int64(3), microbatches=3, schedule=made,
                             optimizer=optim.sgd(0.05))
        assert pipe.schedule is made
        state = pipe.init()
        for k in spmd.range(3):
            state, _ = pipe.step(state, x[k], y[k])
        state = pipe.drain(state)
        flat, targets = x.reshape(18, 4), y.reshape(18, 2)
        return {"ws": pipe.params(state),
                "after": [pipe.evaluate(state, flat[:n], targets[:n]) for n in sizes]}

    cuts = cut([sum(x.size for x in w.values()) for _, w in layers], 3)
    _, ws = by_hand.without_flush(
        layers, cuts, by_hand.SGD(0.05), xs, ys, 3, 2,
        reads="then", period=4,
        ticks=lambda s, p, k: (late(s, p, k, 3)["F"], late(s, p, k, 3)["B"]))
    out = spmd.build(train).run(ranks=2, x=xs, y=ys)
    for mine, theirs in zip(out["ws"], ws, strict=True):
        for name, w in theirs.items():
            np.testing.assert_allclose(mine[name], w, rtol=1e-9)
    for n, loss in zip(sizes, out["after"], strict=True):
        h = xs.reshape(18, 4)[:n]
        for (f, _), w in zip(layers, ws):
            h = f(w, h, *([ys.reshape(18, 2)[:n]] if f is by_hand.end else []))
        np.testing.assert_allclose(loss, h, rtol=1e-9)


# ---- what is said


def pipeline_of(layers, use=None, **options):
    """Return a program with a pipeline of layers, or of a function of x that returns them; `use`
    takes the pipeline and x in the place of a step."""
    @spmd.program(mesh=("stage",))
    def train():
        x = spmd.input("x", (8, 4), np.float64)
        pipe = spmd.pipeline(
            layers(x) if callable(layers) else layers,
            **{"stages": 2, "microbatches": 2, "optimizer": optim.sgd(0.1), **options})
        return use(pipe, x) if use else pipe.step(pipe.init(), x, x)[1]

    return train


def unpacks(w, pair):
    a, b = pair
    return a + b @ w


def forgets(w, h):
    h @ w


def in_shard_map(pipe, x):
    state = pipe.init()
    return spmd.shard_map(lambda x: pipe.evaluate(state, x, x), in_layouts=((None, None),),
                          out_layouts=())(x)


def some_rows():
    return spmd.input("rows_of", (spmd.Dim("rows", at_most=9), 4), np.float64)


def two_sizes(pipe, x):
    state, _ = pipe.step(pipe.init(), x, x)
    return pipe.step(state, x[:4], x[:4])[1]


def anyhow(w, h, y):
    return np.mean(h @ w)


def mask_once(pipe, x):
    state, _ = pipe.step(pipe.init(), x, x, spmd.arange(8) < 6)
    return pipe.step(state, x, x)[1]


def two_trees(pipe, x):
    state, _ = pipe.step(pipe.init(), x, x)
    return pipe.step(state, x, (x,))[1]


def of_another(pipe, x):
    other = spmd.pipeline(LAYERS, stages=2, microbatches=2, schedule="continuous",
                          optimizer=optim.sgd(0.1))
    return other.step(pipe.init(), x, x)[1]


LAYERS = [(middle, EYE), (middle, EYE + 0), (last, EYE + 0)]
SAID = {  # layers, what is done with them, what the message has
    "no targets": (LAYERS, lambda p, x: p.evaluate(p.init(), x),
                   ["layer 2, last", "'y'", "(parameters, h)", "def last(w, h, y)", "y=None"]),
    "one parameter": ([(middle, EYE), (lambda h: h, EYE), LAYERS[2]], None,
                      ["layer 1, <lambda>", "(parameters, h)", "too many", "lambda h: h, EYE"]),
    "three parameters": ([(middle, EYE), (last, EYE), LAYERS[2]], None,
                         ["layer 1, last", "missing a required argument: 'y'", "float64[4, 4]"]),
    "unpacks": ([(lambda w, h: (h, h, h), EYE), (unpacks, EYE), LAYERS[2]], None,
                ["layer 1, unpacks", "too many values to unpack", "a, b = pair",
                 "h float64[4, 4], float64[4, 4], float64[4, 4]", "layer 0, <lambda>, returns"]),
    "no fit": ([(middle, EYE), (unpacks, EYE), (last, np.eye(5))], None,
               ["layer 1, unpacks", "a, b = pair", "layer 0, middle"]),
    "no fit of shapes": ([(middle, EYE), LAYERS[1], (last, np.eye(5))], None,
                         ["layer 2, last", "np.mean((h @ w - y) ** 2)", "def middle(w, h):",
                          "(4, 4) and (5, 5)", "h float64[4, 4]"]),
    "returns nothing": ([(middle, EYE), (forgets, EYE), LAYERS[2]], None,
                        ["layer 1, forgets", "returns None", "def forgets", "try"]),
    "integers": ([(middle, EYE.astype(int)), *LAYERS[1:]], None,
                 ["layer 0, middle", "int64[4, 4]", "floats", "astype"]),
    "no parameters": ([(lambda w, h: h, ()), (lambda w, h, y: np.mean(h - y), [])], None,
                      ["no layer of the pipeline has parameters", "try"]),
    "closure": (lambda x: [(lambda w, h: h + x[:4] @ w, EYE), *LAYERS[1:]], None,
                ["layer 0, <lambda>", "an array of the program", "float64[8, 4]", "x[:4]",
                 "among the parameters"]),
    "no state": (LAYERS, lambda p, x: p.step(None, x, x)[1],
                 ["no state of this pipeline", "None", "pipe.init()"]),
    "no tuple": (LAYERS, lambda p, x: p.step(p.step(p.init(), x, x), x, x)[1],
                 ["a tuple of 2", "state, loss = pipe.step"]),
    "half a state": (LAYERS, lambda p, x: p.drain({"weights": p.init()["weights"]})["steps"],
                     ["a dict without 'moments', 'steps'"]),
    "another state": (LAYERS, lambda p, x: p.evaluate({**p.init(), "weights": {}}, x, x),
                      ["weights of other layers"]),
    "an index": ([(lambda w, h: h @ w * spmd.axis_index("stage"), EYE), *LAYERS[1:]], None,
                 ['the index of its rank along "stage"', "any number of ranks"]),
    "no optimizer": ([*LAYERS, {"optimizer": optim.GradientTransformation}], None,
                     ["no optimizer", "spmd.optim"]),
    "in a shard_map": (LAYERS, in_shard_map, ["a pipeline in a shard_map", "one pipeline"]),
    "only the run knows": (LAYERS, lambda p, x: p.step(p.init(), some_rows(), some_rows())[1],
                           ["only the run knows", "float64[rows, 4]", "mask"]),
    "another size": ([*LAYERS, {"schedule": "continuous"}], two_sizes,
                     ["unlike those that are in flight", "float64[4, 4]", "float64[2, 4]"]),
    "no more mask": ([*LAYERS[:2], (each, EYE + 0), {"schedule": "continuous"}], mask_once,
                     ["unlike those that are in flight",
                      "expected: microbatches of float64[4, 4], float64[4, 4], mask bool[4]",
                      "found:    float64[4, 4], float64[4, 4]\n"]),
    "another tree": ([*LAYERS[:2], (anyhow, EYE + 0), {"schedule": "continuous"}], two_trees,
                     ["unlike those that are in flight", "in other containers"]),
    "another pipeline": ([*LAYERS, {"schedule": "continuous"}], of_another,
                         ["another call of spmd.pipeline", "self.pipe"]),
    "a number": (LAYERS, lambda p, x: p.step(p.init(), 1.0, x)[1],
                 ["x has no examples", "float64[]", "dim 0"]),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_wrong_is_said_with_layer_and_line(name):
    layers, use, parts = SAID[name]
    options = layers[-1] if isinstance(layers, list) and isinstance(layers[-1], dict) else {}
    with pytest.raises(spmd.SpmdError) as caught:
        pipeline_of(layers[:-1] if options else layers, use, **options).capture()
    message = str(caught.value)
    assert "test_pipeline_edges.py:" in message and "try:" in message
    assert not isinstance(caught.value, spmd.InternalError)
    for part in parts:
        assert part in message, message


def test_eager_runs_and_sizes_of_other_schedules_are_refused():
    with pytest.raises(spmd.UnsupportedError, match=r"(?s)eager run.*spmd.build"):
        pipeline_of(LAYERS).eager(x=np.ones((8, 4)))
    made = spmd.schedules.make_schedule("1f1b", 2, 4)
    with pytest.raises(spmd.UsageError, match=r"(?s)microbatches=2, and the schedule has 4.*try"):
        pipeline_of(LAYERS, schedule=made).capture()


def test_layers_read_numbers_that_change_between_steps():
    @spmd.program(mesh=("stage",))
    def train():
        scale = {"by": 1.0}
        x = spmd.input("x", (8, 4), np.float64, default=lambda i, j: np.sin(i + j))
        layers = [(lambda w, h: np.tanh(h @ w) * scale["by"], EYE + 0), (last, EYE + 0)]
        pipe = spmd.pipeline(layers, stages=2, microbatches=2, schedule="1f1b",
                             optimizer=optim.sgd(0.1))
        state, found = pipe.init(), []
        for k in range(3):
            scale["by"] = 1 - k / 4
            before = pipe.evaluate(state, x, x)
            state, loss = pipe.step(state, x, x)
            found.append((before, loss))
        return found

    for before, loss in spmd.build(train).run(ranks=2):
        assert before == pytest.approx(loss, 1e-12)


def test_calls_in_a_python_loop_are_named_and_code_of_the_library_is_not(monkeypatch):
    monkeypatch.setattr(advice, "LONG_PROGRAM", 500)
    monkeypatch.setattr(advice, "OFTEN", 8)

    def train(steps, layers):
        own = [(middle, EYE + k) for k in range(layers)] + [(last, EYE + 0)]

        def steps_of(pipe, x):
            state = pipe.init()
            for _ in range(steps):
                state, loss = pipe.step(state, x, x)
            return loss

        return pipeline_of(own, steps_of, stages=layers + 1).capture()

    place, often = advice.unrolled(train(8, 1))
    assert often == 8 and "pipe.step(" in place.source_line()
    assert advice.unrolled(train(1, 6)) is None
