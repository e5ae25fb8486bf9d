"""Pipelines beside training in plain Python, on several numbers of ranks; what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk
from codegen.ir.plan import Exchange, LibraryCall, Phase
from codegen.ir.steps import walk_steps
from codegen.ops import MatMul
from spmd import optim
from spmd.pipelining.stage_cuts import cut
from tests.spmd import pipeline_by_hand as by_hand

OPTIMIZERS = {
    "sgd": (optim.sgd(0.05), by_hand.SGD(0.05)),
    "adamw": (optim.adamw(0.01), by_hand.AdamW(0.01)),
}
STEPS = 4


class Case:
    """Layers, batches, and a program that trains them in a pipeline."""

    def __init__(self, seed, layers, microbatches, size=2):
        random = np.random.default_rng(seed)
        self.layers = by_hand.network(random, layers)
        self.microbatches = microbatches
        self.xs = random.standard_normal((STEPS, microbatches * size, 4))
        self.ys = random.standard_normal((STEPS, microbatches * size, 2))

    def cuts(self, stages):
        return cut([sum(x.size for x in w.values()) for _, w in self.layers], stages)

    def program(self, stages, optimizer, mesh=("stage",), data=None, masked=False, **options):
        def train():
            ws = [{n: spmd.input(f"{n}{k}", x.shape, np.float64, layout=(None,) * x.ndim)
                   for n, x in w.items()} for k, (_, w) in enumerate(self.layers)]
            layout = (None, data, None)
            x = spmd.input("x", self.xs.shape, np.float64, layout=layout)
            y = spmd.input("y", self.ys.shape, np.float64, layout=layout)
            masks = spmd.input("masks", self.xs.shape[:2], np.bool_,
                               layout=(None, data)) if masked else None
            functions = [f for f, _ in self.layers]
            if masked:
                functions[-1] = by_hand.end_each
            pipe = spmd.pipeline(list(zip(functions, ws)), axis="stage", stages=stages,
                                 microbatches=self.microbatches, optimizer=optimizer, **options)
            state, losses = pipe.init(), spmd.zeros(STEPS)
            for k in spmd.range(STEPS):
                state, loss = pipe.step(state, x[k], y[k], masks[k] if masked else None)
                losses[k] = loss
            last = pipe.drain(state)
            after = pipe.evaluate(last, x[0], y[0], masks[0] if masked else None)
            return {"losses": losses, "ws": pipe.params(last), "after": after}

        return spmd.program(mesh=mesh)(train)

    @property
    def inputs(self):
        found = {f"{n}{k}": x for k, (_, w) in enumerate(self.layers) for n, x in w.items()}
        return {**found, "x": self.xs, "y": self.ys}

    def check(self, out, expected, there=slice(None), evaluated=True):
        losses, ws = expected
        np.testing.assert_allclose(out["losses"], losses, rtol=1e-9, atol=1e-9)
        for mine, theirs in zip(out["ws"], ws, strict=True):
            for name, x in theirs.items():
                np.testing.assert_allclose(mine[name], x, rtol=1e-9, atol=1e-9)
        if not evaluated:
            return
        t = self.xs[0][there]
        for (f, _), w in zip(self.layers, ws):
            t = f(w, t, *([self.ys[0][there]] if f is by_hand.end else []))
        np.testing.assert_allclose(out["after"], t, rtol=1e-9)


def same_bits(a, b):
    np.testing.assert_array_equal(a["losses"], b["losses"])
    for mine, theirs in zip(a["ws"], b["ws"], strict=True):
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])


FLUSHING = [  # layers, stages, microbatches
    ("gpipe", "sgd", 3, 1, 1), ("1f1b", "adamw", 5, 3, 4), ("1f1b", "sgd", 8, 8, 8),
    ("gpipe", "adamw", 6, 4, 5), ("zb-h1", "sgd", 4, 2, 3), ("zb-h2", "adamw", 6, 3, 5),
]  # others lie round after round, or there and back, in test_pipeline_places.py


@pytest.mark.parametrize(("schedule", "name", "layers", "stages", "microbatches"), FLUSHING)
def test_schedules_that_flush_equal_plain_training(schedule, name, layers, stages, microbatches):
    mine, theirs = OPTIMIZERS[name]
    case = Case(stages + 10 * microbatches, layers, microbatches)
    image = spmd.build(case.program(stages, mine, schedule=schedule))
    expected = by_hand.plain(case.layers, theirs, case.xs, case.ys, microbatches)
    outs = [image.run(ranks=n, **case.inputs) for n in (1, 2, 3, 5, 16)]
    case.check(outs[0], expected)
    for out in outs[1:]:
        same_bits(out, outs[0])


WITHOUT_FLUSH = [  # layers, stages, microbatches, accumulate
    ("sgd", 3, 1, 1, 1), ("adamw", 5, 3, 4, 1), ("sgd", 8, 8, 3, 4), ("adamw", 4, 2, 8, 8),
    ("sgd", 6, 3, 2, "3 ticks"),
    ("sgd", 5, 4, 3, "1 cycle"),
]


@pytest.mark.parametrize(("name", "layers", "stages", "microbatches", "accumulate"), WITHOUT_FLUSH)
def test_stages_updated_alone_equal_a_simulation(name, layers, stages, microbatches, accumulate):
    mine, theirs = OPTIMIZERS[name]
    case = Case(stages + 10 * microbatches, layers, microbatches)
    image = spmd.build(case.program(stages, mine, schedule="continuous", accumulate=accumulate))
    count = microbatches if accumulate == "1 cycle" else accumulate
    expected = by_hand.without_flush(case.layers, case.cuts(stages), theirs, case.xs, case.ys,
                                     microbatches, count)
    outs = [image.run(ranks=n, **case.inputs) for n in (1, 2, 3, 5)]
    case.check(outs[0], expected)
    for out in outs[1:]:
        same_bits(out, outs[0])


@pytest.mark.parametrize(("schedule", "stages", "microbatches", "accumulate", "reads", "crossed"), [
    ("pipedream", 4, 3, 2, "then", ()), ("2bw", 3, 4, 4, "then", ()),
    ("pipemare", 4, 3, 2, "estimate", (2, 1, 1, 0))])
def test_backward_passes_read_the_weights_of_their_forward_pass(
        schedule, stages, microbatches, accumulate, reads, crossed):
    mine, theirs = OPTIMIZERS["adamw"]
    case = Case(4, 5, microbatches)
    image = spmd.build(case.program(stages, mine, schedule=schedule, accumulate=accumulate))
    cuts = case.cuts(stages)
    expected, other = (
        by_hand.without_flush(case.layers, cuts, theirs, case.xs, case.ys, microbatches,
                              accumulate, reads=which, crossed=crossed) for which in (reads, "now"))
    assert abs(expected[0][-1] - other[0][-1]) > 1e-6  # it matters here
    outs = [image.run(ranks=n, **case.inputs) for n in (1, 2, 3, 5)]
    case.check(outs[0], expected)
    for out in outs[1:]:
        same_bits(out, outs[0])


def late(s, p, k, m):
    """W comes two microbatches behind B, and updates between them."""
    b = 4 * k + 2 * p - 1 - s
    return {"F": 4 * k + s, "B": b, "W": b + 6, "U": b + 6}


def test_gradients_of_weights_that_come_after_an_update():
    mine, theirs = OPTIMIZERS["adamw"]
    case = Case(8, 5, 2)
    image = spmd.build(case.program(3, mine, schedule=late))
    expected = by_hand.without_flush(
        case.layers, case.cuts(3), theirs, case.xs, case.ys, 2, 1,
        lambda s, p, k: tuple(late(s, p, k, 2)[kind] for kind in "FBW"), period=4)
    outs = [image.run(ranks=n, **case.inputs) for n in (1, 2, 3)]
    case.check(outs[0], expected)
    for out in outs[1:]:
        same_bits(out, outs[0])


@pytest.mark.parametrize("every", [2, 3])
def test_gradients_of_several_steps_that_flush(every):
    mine, theirs = OPTIMIZERS["adamw"]
    case = Case(9, 4, 3)
    image = spmd.build(case.program(3, mine, accumulate=3 * every))
    xs, ys = (np.concatenate([*x[:every]]) for x in (case.xs, case.ys))
    rest = [np.concatenate([*x[every:]]) for x in (case.xs, case.ys)]  # applied by drain
    first = by_hand.plain(case.layers, theirs, [xs], [ys], 3 * every)
    outs = [image.run(ranks=n, **case.inputs) for n in (1, 2, 5)]
    np.testing.assert_allclose(np.mean(outs[0]["losses"][:every]), first[0][0], rtol=1e-9)
    twice = by_hand.plain_steps(case.layers, theirs, [(xs, ys, 3 * every),
                                                      (*rest, 3 * (STEPS - every))])
    case.check({**outs[0], "losses": outs[0]["losses"][:0]}, (np.array([]), twice))
    for out in outs[1:]:
        same_bits(out, outs[0])


def test_a_run_that_breaks_off_goes_on_with_what_was_in_flight(tmp_path):
    case = Case(6, 4, 3)
    ws = [w for _, w in case.layers]

    @spmd.program(mesh=("stage",))
    def train():
        feed = spmd.feed(x=spmd.spec(case.xs.shape[1:], np.float64),
                         y=spmd.spec(case.ys.shape[1:], np.float64))
        layers = [(f, w) for (f, _), w in zip(case.layers, ws)]
        pipe = spmd.pipeline(layers, axis="stage", stages=4, microbatches=3, accumulate=2,
                             schedule="pipedream", optimizer=optim.adamw(0.01))
        state = pipe.init()
        for _ in spmd.range(STEPS):
            b = feed.next()
            state, _ = pipe.step(state, b.x, b.y)
        return pipe.params(pipe.drain(state))

    given = [{"x": x, "y": y} for x, y in zip(case.xs, case.ys)]

    def breaks_off():
        yield from given[:2]
        raise OSError("the disk is gone")

    image = spmd.build(train, checkpoint=True)
    whole = image.run(ranks=1, feed=given)
    with pytest.raises(spmd.InputError, match="the disk is gone"):
        image.run(ranks=4, feed=breaks_off, checkpoint=str(tmp_path), every=1)
    for n in (1, 2, 3, 6):
        resumed = image.run(ranks=n, feed=given, resume=str(tmp_path))
        same_bits({"losses": 0, "ws": resumed}, {"losses": 0, "ws": whole})


def test_a_pipeline_that_is_drained_fills_again():
    mine, theirs = OPTIMIZERS["sgd"]
    case = Case(5, 3, 3)

    @spmd.program(mesh=("stage",))
    def train():
        layers = [(f, {n: spmd.input(f"{n}{k}", x.shape, np.float64) for n, x in w.items()})
                  for k, (f, w) in enumerate(case.layers)]
        x, y = (spmd.input(n, a.shape, np.float64) for n, a in (("x", case.xs), ("y", case.ys)))
        pipe = spmd.pipeline(layers, stages=2, microbatches=3, accumulate=2, optimizer=mine,
                             schedule="continuous")
        state, losses = pipe.init(), spmd.zeros(STEPS)
        for half in spmd.range(2):
            for k in spmd.range(2 * half, 2 * half + 2):
                state, losses[k] = pipe.step(state, x[k], y[k])
            state = pipe.drain(state)
        return {"losses": losses, "ws": pipe.params(state)}

    losses, ws = [], [w for _, w in case.layers]
    for steps in (slice(0, 2), slice(2, STEPS)):
        layers = [(f, w) for (f, _), w in zip(case.layers, ws)]
        some, ws = by_hand.without_flush(
            layers, case.cuts(2), theirs, case.xs[steps], case.ys[steps], 3, 2)
        losses += [*some]
    image = spmd.build(train)
    outs = [image.run(ranks=n, **case.inputs) for n in (1, 2)]
    case.check(outs[0], (np.array(losses), ws), evaluated=False)
    same_bits(*outs)


def slow(s, p, k, m):
    """Return a schedule in which arrivals wait for several ticks, and updates come after
    gradients."""
    return {"F": 2 * k + 3 * s, "B": 2 * (k + 3 * p) - 3 - 3 * s, "U": 2 * (k + 3 * p) - 3 - 3 * s}


def test_a_schedule_in_which_arrivals_wait():
    mine, theirs = OPTIMIZERS["adamw"]
    case = Case(5, 5, 2)
    image = spmd.build(case.program(3, mine, schedule=slow, accumulate=2))
    expected = by_hand.without_flush(
        case.layers, case.cuts(3), theirs, case.xs, case.ys, 2, 2,
        lambda s, p, k: (slow(s, p, k, 2)["F"], slow(s, p, k, 2)["B"]))
    for n in (1, 2):
        case.check(image.run(ranks=n, **case.inputs), expected)


@pytest.mark.parametrize("schedule", ["1f1b", "continuous"])
def test_a_data_axis_beside_the_stages(schedule):
    mine, theirs = OPTIMIZERS["adamw"]
    case = Case(7, 5, 3, size=4)
    image = spmd.build(case.program(3, mine, ("data", "stage"), "data", schedule=schedule,
                                    accumulate=3))
    expected = (
        by_hand.plain(case.layers, theirs, case.xs, case.ys, 3) if schedule == "1f1b" else
        by_hand.without_flush(case.layers, case.cuts(3), theirs, case.xs, case.ys, 3, 3))
    for data, stage in ((1, 2), (2, 1), (2, 3), (4, 2)):
        out = image.run(ranks=data * stage, mesh={"data": data, "stage": stage}, **case.inputs)
        case.check(out, expected)


@pytest.mark.parametrize(("schedule", "accumulate"), [("1f1b", 4), ("1f1b", 8), ("continuous", 2)])
def test_gradients_are_weighted_by_the_examples_that_are_there(schedule, accumulate):
    mine, theirs = OPTIMIZERS["adamw"]
    case = Case(12, 4, 4, size=4)
    masks = np.random.default_rng(0).random(case.xs.shape[:2]) < 0.6
    masks[1, 4:8] = False  # a microbatch without any
    masks[3, -7:] = False  # the end of the data
    image = spmd.build(case.program(3, mine, ("data", "stage"), "data", masked=True,
                                    schedule=schedule, accumulate=accumulate))
    if schedule == "continuous":
        expected = by_hand.without_flush(case.layers, case.cuts(3), theirs, case.xs, case.ys, 4,
                                         accumulate, masks=masks)
    else:
        each = [(x[m], y[m]) for x, y, m in zip(case.xs, case.ys, masks)]
        steps = accumulate // 4
        groups = [each[k:k + steps] for k in range(0, STEPS, steps)]
        joined = [[np.concatenate(parts) for parts in zip(*group)] for group in groups]
        expected = by_hand.plain(case.layers, theirs, *zip(*joined), 1)
    for data, stage in ((1, 1), (1, 3), (2, 2)):
        out = image.run(ranks=data * stage, mesh={"data": data, "stage": stage}, masks=masks,
                        **case.inputs)
        if accumulate == 8:  # losses are those of steps
            counts = masks.sum(axis=1)
            out["losses"] = np.array([np.average(out["losses"][k:k + 2], weights=counts[k:k + 2])
                                      for k in (0, 2)])
        case.check(out, expected, masks[0])


def affine(w, h, y=None):
    out = h @ w["o"]
    return {"out": out, "best": np.argmax(out, axis=1)} if y is None else np.mean((out - y) ** 2)


def split_over_all_axes(data):
    """Return a program of stages whose axis stands between two others; one of them splits the
    batch, and weights lie along the other one."""
    @spmd.program(mesh=("data", "stage", "model"))
    def train():
        x = spmd.input("x", (8, 4), np.float64, layout=(data, None))
        ws = [{"a": spmd.input(f"a{k}", (4, 6), np.float64, layout=(None, "model")),
               "c": spmd.input(f"c{k}", (6, 4), np.float64, layout=("model", None))}
              for k in range(3)]
        o = spmd.input("o", (4, 4), np.float64, layout=("model", None))
        layers = [*((widened, w) for w in ws), (affine, {"o": o})]
        pipe = spmd.pipeline(layers, stages=3, microbatches=2, optimizer=optim.sgd(0.1))
        state = pipe.init()
        for _ in spmd.range(2):
            state, _ = pipe.step(state, x, x)
        return {"ws": pipe.params(state), "found": pipe.evaluate(state, x)}

    return train


def widened(w, h):
    return h + np.tanh(h @ w["a"]) @ w["c"]


@pytest.mark.parametrize("data", [None, "data"])
def test_what_the_last_layer_returns_on_other_axes(data):
    random = np.random.default_rng(4)
    given = {"x": random.standard_normal((8, 4)), "o": random.standard_normal((4, 4))}
    for k in range(3):
        given |= {f"a{k}": random.standard_normal((4, 6)) * 0.4,
                  f"c{k}": random.standard_normal((6, 4)) * 0.4}
    a, c, o, x = ([given[f"a{k}"] for k in range(3)], [given[f"c{k}"] for k in range(3)],
                  given["o"], given["x"])
    for _ in range(2):
        hs, us = [x], []
        for k in range(3):
            us.append(np.tanh(hs[k] @ a[k]))
            hs.append(hs[k] + us[k] @ c[k])
        error = 2 * (hs[3] @ o - x) / x.size
        o, d = o - 0.1 * hs[3].T @ error, error @ o.T
        for k in (2, 1, 0):
            z = d @ c[k].T * (1 - us[k] ** 2)
            c[k], d, a[k] = c[k] - 0.1 * us[k].T @ d, d + z @ a[k].T, a[k] - 0.1 * hs[k].T @ z
    h = x
    for k in range(3):
        h = h + np.tanh(h @ a[k]) @ c[k]
    image = spmd.build(split_over_all_axes(data))
    for axes in ((1, 1, 1), (1, 3, 2), (2, 1, 1), (4, 2, 1), (2, 2, 2)):
        mesh = dict(zip(("data", "stage", "model"), axes))
        out = image.run(ranks=np.prod(axes), mesh=mesh, **given)
        np.testing.assert_allclose(out["found"]["out"], h @ o, rtol=1e-9)
        np.testing.assert_array_equal(out["found"]["best"], np.argmax(h @ o, axis=1))
        np.testing.assert_allclose(out["ws"][1]["a"], a[1], rtol=1e-9)
        np.testing.assert_allclose(out["ws"][3]["o"], o, rtol=1e-9)


def products(layers):
    return sum({by_hand.begin: 2, by_hand.narrow: 1, by_hand.residual: 2, by_hand.end: 2}[f]
               for f, _ in layers)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_no_product_is_computed_twice(schedule):
    case = Case(3, 6, 4)
    module = case.program(6, optim.sgd(0.1), schedule=schedule).capture()
    count = sum(isinstance(op.kind, MatMul) for region in module.regions for op in walk(region))
    forward = products(case.layers)
    inputs = 2  # products of the first layer with x, which has no gradient
    assert count == forward + (2 * forward - inputs) + forward  # and evaluate, forward once more


@pytest.mark.parametrize("schedule", ["1f1b", "continuous"])
def test_ticks_copy_no_weights_and_pairs_of_ranks_meet_alone(schedule):
    """Gradients are added up where they lie, and an update reads weights where it writes them."""
    width = 40

    def middle(w, h):
        return np.tanh(h @ w)

    def last(w, h, y):
        return np.mean((h @ w - y) ** 2)

    @spmd.program(mesh=("stage",))
    def train():
        x = spmd.input("x", (32, width), np.float64)
        w = [spmd.input(f"w{k}", (width, width), np.float64) for k in range(6)]
        layers = list(zip([middle] * 5 + [last], w))
        pipe = spmd.pipeline(layers, stages=3, microbatches=4, schedule=schedule, accumulate=4,
                             optimizer=optim.sgd(0.1))
        state, losses = pipe.init(), spmd.zeros(3)
        for k in spmd.range(3):
            state, losses[k] = pipe.step(state, x, x)
        return losses

    plan = lower(train.capture()).plan
    weights = width * width
    sizes = {b.name: b.capacity.evaluate({"n_stage": 3}) for b in plan.buffers}
    # inputs, one row of weights and one of gradients, and nothing that ticks need
    assert [name for name, size in sizes.items() if size == weights] == [f"w{k}" for k in range(6)]
    rows = [name for name, size in sizes.items() if size == 2 * weights]
    assert len(rows) == 2 and "weights" in rows[0]
    calls = [act for step in walk_steps(plan.steps) if isinstance(step, Phase)
             for act in step.work if isinstance(act, LibraryCall)]
    added = [c for c in calls if c.numbers[-1] == 1 and c.parts[2].buffer.name == rows[1]]
    # of the stages' six weights: the stages in the middle have one code
    assert len(added) == 6
    routes = [step for step in walk_steps(plan.steps) if isinstance(step, Exchange)
              and step.kind == "permute"]
    assert len(routes) == 2 and all(x.source is not None for x in routes)


def test_a_rank_under_mpirun(mpirun, tmp_path):
    case = Case(11, 4, 3)
    mine, theirs = OPTIMIZERS["sgd"]
    spmd.build(case.program(3, mine)).save(tmp_path / "pipe.img")
    given = []
    for name, x in case.inputs.items():
        np.save(tmp_path / f"{name}.npy", x)
        given += ["-i", f"{name}={tmp_path / name}.npy"]
    mpirun(3, "-m", "spmd", "run", tmp_path / "pipe.img", *given, "-o",
           f"losses={tmp_path / 'losses.npy'}", "--only", "losses").expect(0)
    expected = by_hand.plain(case.layers, theirs, case.xs, case.ys, 3)[0]
    np.testing.assert_allclose(np.load(tmp_path / "losses.npy"), expected, rtol=1e-9)


def test_pipelines_of_one_line_have_batches_of_their_own():
    def loss_after(width):
        x = spmd.input(f"x{width}", (4, width), np.float64)
        pipe = spmd.pipeline([(wide_begin, np.eye(width)), (last_layer, 2 * np.eye(width))],
                             stages=2, microbatches=2, schedule="continuous",
                             optimizer=optim.sgd(0.0))
        return pipe.step(pipe.init(), x, x)[1]

    @spmd.program(mesh=("stage",))
    def both():
        return loss_after(3), loss_after(5)

    random = np.random.default_rng(0)
    xs = [random.standard_normal((4, n)) for n in (3, 5)]
    found = spmd.build(both).run(ranks=2, x3=xs[0], x5=xs[1])
    np.testing.assert_allclose(found, [np.mean(x ** 2) for x in xs])


# ---- cuts


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_stage_is_least(seed):
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 9, 7).tolist()
    for stages in range(1, 8):
        found = cut(sizes, stages)
        best = min(
            max(sum(sizes[a:b]) for a, b in itertools.pairwise((0, *inner, 7)))
            for inner in itertools.combinations(range(1, 7), stages - 1))
        assert len(found) == stages + 1 and found[0] == 0 and found[-1] == 7
        assert all(a < b for a, b in itertools.pairwise(found))
        assert max(sum(sizes[a:b]) for a, b in itertools.pairwise(found)) == best


# ---- what is refused


def wide_begin(w, x):
    return x @ w


def refused(layers=3, stages=2, microbatches=2, batch=4, schedule="1f1b", optimizer=None, **more):
    """Return the message of a build."""
    @spmd.program(mesh=("stage",))
    def train():
        ws = [np.ones((4, 4)) for _ in range(layers - 1)]
        x = spmd.input("x", (batch, 4), np.float64)
        own = [(wide_begin, w) for w in ws] + [(more.get("last", last_layer), np.ones((4, 4)))]
        if "narrow" in more:
            own[1] = (wide_begin, np.ones((3, 4)))
        own = more.get("own", own)
        pipe = spmd.pipeline(own, axis=more.get("axis", "stage"), stages=stages,
                             microbatches=microbatches, schedule=schedule,
                             optimizer=more.get("other", optimizer or optim.sgd(0.1)),
                             cut=more.get("cut", "parameters"))
        mask = spmd.zeros(*more["mask"]) if "mask" in more else None
        y = spmd.input("y", more["targets"], np.float64) if "targets" in more else x
        return pipe.step(pipe.init(), x, y, mask)[1]

    with pytest.raises(spmd.SpmdError) as caught:
        spmd.build(train)
    return str(caught.value)


def last_layer(w, h, y):
    return np.mean((h @ w - y) ** 2)


REFUSED = [
    ({"stages": 9, "layers": 8}, ["at most one for each layer", "stages=8, or parts of layers"]),
    ({"stages": "2"}, ["'2' stages", "3 layers"]),
    ({"own": []}, ["no layers", "pairs (function, parameters)", "[]"]),
    ({"own": [wide_begin, last_layer]}, ["layer 0 is no pair", "wide_begin"]),
    ({"other": optim.sgd}, ["a transformation of spmd.optim", "function sgd"]),
    ({"cut": None}, ["cut=None", "3 layers"]),
    ({"microbatches": 7, "batch": 32},
     ["equal", "microbatches=4 or 8", "a batch of 35 with a mask"]),
    ({"mask": (4, np.int64)}, ["bool[4]", "int64[4]"]),
    ({"mask": (5, np.bool_)}, ["bool[4]", "bool[5]"]),
    ({"mask": (4, np.bool_)}, ["the loss of each example", "float64[]"]),
    ({"microbatches": 0}, ["microbatches=0", "at least 1"]),
    ({"axis": "stages"}, ["no axis 'stages'", 'axis="stage", if that is what you mean']),
    ({"batch": 0}, ["2 microbatches of a batch of 0", "try:      a batch of 2 with a mask"]),
    ({"targets": (6, 4)}, ["not as many examples", "4 examples in dim 0", "float64[6, 4]"]),
    ({"narrow": True}, ["layer 1, wide_begin", "layer 0, wide_begin", "test_pipelines.py",
                        "float64[2, 4]"]),
    ({"last": wide_begin, "layers": 2}, ["layer 1, wide_begin", "(parameters, h, y)"]),
    ({"last": lambda w, h, y: h - y}, ["gives the loss", "float64[2, 4]", "np.mean"]),
    ({"schedule": "continuous",
      "optimizer": optim.chain(optim.clip_by_global_norm(0.1), optim.sgd(0.5))},
     ["norm of all stages' gradients", '"1f1b"', "clip_by_block_rms"]),
    ({"optimizer": optim.MultiSteps(optim.chain(optim.clip_by_global_norm(0.1), optim.sgd(0.5)),
                                    2)},
     ["all stages' gradients, as for their norm, in some", "accumulate="]),
    ({"optimizer": optim.apply_if_finite(
        optim.chain(optim.clip_by_global_norm(0.1), optim.sgd(0.5)), 3)},
     ["all stages' gradients, as for their norm, in some", "apply_if_finite"]),
]


def test_a_function_of_the_program_makes_pipelines_for_different_batches():
    def begun(batch):
        x = spmd.zeros((batch, 4))
        pipe = spmd.pipeline([(wide_begin, np.eye(4)), (last_layer, np.eye(4))], stages=2,
                             microbatches=2, schedule="continuous", accumulate=1,
                             optimizer=optim.sgd(0.1))
        return pipe.step(pipe.init(), x, x + 1)[1]

    @spmd.program(mesh=("stage",))
    def train():
        return begun(4), begun(6)

    np.testing.assert_array_equal(spmd.build(train).run(ranks=2), [1, 1])


@pytest.mark.parametrize(("options", "parts"), REFUSED)
def test_refused_with_a_remedy(options, parts):
    message = refused(**options)
    for part in parts:
        assert part in message


@pytest.mark.parametrize("schedule", ["gpipe", "continuous"])
def test_a_loss_that_is_nan_ends_the_run(schedule):
    case = Case(2, 3, 4)
    case.ys[2, 2] = np.nan  # two examples in a microbatch: 9 is the second one of step 2
    image = spmd.build(case.program(2, optim.sgd(0.1), schedule=schedule))
    with pytest.raises(spmd.CheckError, match="loss of microbatch 9 is NaN: step 2"):
        image.run(ranks=2, **case.inputs)
