"""spmd.nn beside closed formulas: values, gradients, layouts, and what ranks exchange for them."""

from __future__ import annotations

import doctest
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk
from codegen.ops import Exchange, Loop
from codegen.symbolic import expr
from spmd import nn

pytestmark = pytest.mark.one_mpi

RNG = np.random.default_rng(1)


def modules() -> list[ModuleType]:
    return [module for module in vars(nn).values() if isinstance(module, ModuleType)]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_examples_of_docstrings(module):
    options = doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, extraglobs={"spmd": spmd}, optionflags=options).failed == 0


def test_every_name_says_what_it_does():
    assert [name for name in nn.__all__ if len((getattr(nn, name).__doc__ or "").split()) < 3] == []


# ---- activations ---------------------------------------------------------------------------------

X = np.array([-1000.0, -30.0, -3.5, -1.0, -0.25, 0.0, 0.25, 1.0, 2.75, 3.25, 6.5, 40.0, 1000.0])
logistic = np.where(X < 0, np.exp(np.minimum(X, 0)), 1) / (1 + np.exp(-np.abs(X)))
other = np.where(X > 0, np.exp(-np.maximum(X, 0)), 1) / (1 + np.exp(-np.abs(X)))  # of -X
cdf = 0.5 * (1 + np.vectorize(math.erf)(X / math.sqrt(2)))
density = np.exp(-X * X / 2) / math.sqrt(2 * math.pi)
inner = np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))
negative = np.exp(np.minimum(X, 0))
ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805

# by name: the value, and the derivative
ACTIVATIONS = {
    "relu": (np.maximum(X, 0), X > 0),
    "relu6": (X.clip(0, 6), (X > 0) & (X < 6)),
    "sigmoid": (logistic, logistic * other),
    "log_sigmoid": (np.minimum(X, 0) - np.log1p(np.exp(-np.abs(X))), other),
    "softplus": (np.maximum(X, 0) + np.log1p(np.exp(-np.abs(X))), logistic),
    "soft_sign": (X / (1 + np.abs(X)), (1 + np.abs(X)) ** -2),
    "silu": (X * logistic, logistic + X * logistic * other),
    "gelu": (0.5 * X * (1 + inner), 0.5 * (1 + inner) + 0.5 * X * (1 - inner**2)
             * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * X * X)),
    "elu": (np.where(X > 0, X, negative - 1), np.where(X > 0, 1, negative)),
    "celu": (np.where(X > 0, X, negative - 1), np.where(X > 0, 1, negative)),
    "selu": (SCALE * np.where(X > 0, X, ALPHA * (negative - 1)),
             SCALE * np.where(X > 0, 1, ALPHA * negative)),
    "leaky_relu": (np.where(X > 0, X, 0.01 * X), np.where(X >= 0, 1, 0.01)),
    "hard_tanh": (X.clip(-1, 1), np.abs(X) < 1),
    "hard_sigmoid": ((X + 3).clip(0, 6) / 6, (np.abs(X) < 3) / 6),
    "hard_silu": (X * (X + 3).clip(0, 6) / 6, (X + 3).clip(0, 6) / 6 + X * (np.abs(X) < 3) / 6),
}  # fmt: skip


def test_activations_and_their_gradients():
    @spmd.program(mesh=("r",))
    def all_of_them():
        x = spmd.input("x", X.shape, np.float64, layout=("r",))
        out = {name: (f(x), spmd.grad(lambda x, f=f: np.sum(f(x)))(x))
               for name in ACTIVATIONS if (f := getattr(nn, name))}
        exact = lambda x: nn.gelu(x, approximate=False)
        return {**out, "exact": (exact(x), spmd.grad(lambda x: np.sum(exact(x)))(x))}

    found = spmd.build(all_of_them).run(ranks=3, x=X)
    rows = {**ACTIVATIONS, "exact": (X * cdf, cdf + X * density)}
    for name, (value, slope) in rows.items():
        got_value, got_slope = found[name]
        np.testing.assert_allclose(got_value, value, 1e-12, 1e-13, err_msg=name)
        np.testing.assert_allclose(got_slope, slope, 1e-11, 1e-12, err_msg=name)


# ---- layers under layouts ------------------------------------------------------------------------

LAYOUTS = {"data": {"batch": "x"}, "model": {"hidden": "y", "classes": "y"},
           "both": {"batch": "x", "hidden": "y", "classes": "y"}}  # fmt: skip


def numeric(f: Any, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The gradient of f at x by central differences."""
    found = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        d = np.zeros_like(x)
        d[at] = step
        found[at] = (f(x + d) - f(x - d)) / (2 * step)
    return found


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("rules", LAYOUTS)
def test_a_classifier_with_an_embedding(rules):
    """Loss and gradients beside closed formulas; one all-reduce for the split embedding."""
    @spmd.program(mesh=("x", "y"), layout={
        dim: axis for dim, axis in LAYOUTS[rules].items() if dim != "hidden"})
    def network():
        batch, vocabulary = spmd.Dim("batch", 6), spmd.Dim("classes", 7)
        w = spmd.input("w", {
            "table": spmd.spec((vocabulary, 4), np.float64),
            "out": spmd.spec((4, vocabulary), np.float64), "b": spmd.spec(vocabulary, np.float64),
        })
        ids = spmd.input("ids", (batch,), np.int32)
        labels = spmd.input("labels", (batch,), np.int32)

        def loss(w):
            h = nn.embedding(ids, w["table"])
            return np.sum(nn.softmax_cross_entropy(nn.dense(h, w["out"], w["b"]), labels))

        return spmd.value_and_grad(loss)(w)

    ids, labels = np.int32([0, 3, 6, -1, 3, 9]), np.int32([1, 0, 6, 2, 5, 5])
    w = {"table": RNG.normal(size=(7, 4)) * 30, "out": RNG.normal(size=(4, 7)) * 30,
         "b": RNG.normal(size=7)}
    rows = np.where(ids < 0, ids + 7, ids).clip(0, 6)
    h = w["table"][rows]
    logits = h @ w["out"] + w["b"]
    error = softmax_of(logits) - np.eye(7)[labels]
    table = np.zeros((7, 4))
    np.add.at(table, rows, error @ w["out"].T)
    most = logits.max(-1)
    wanted = np.log(np.exp(logits.T - most).sum(0)) + most - logits[np.arange(6), labels]
    image = spmd.build(network)
    for mesh in ({"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 2, "y": 3}, {"x": 1, "y": 9}):
        value, got = image.run(mesh=mesh, w=w, ids=ids, labels=labels)
        np.testing.assert_allclose(value, wanted.sum(), 1e-12)
        for name, part in {"table": table, "out": h.T @ error, "b": error.sum(0)}.items():
            np.testing.assert_allclose(got[name], part, 1e-9, 1e-9, err_msg=f"{name} {mesh}")
    largest = max((row["rank_bytes"] for row in image.layouts(mesh={"x": 1, "y": 3}).exchanges),
                  default=0)
    assert largest <= 6 * 4 * 8 * 2  # rows of the embedding: never the table nor the logits


def test_two_layers_as_megatron_has_them():
    """They need one all-reduce of activations forward and one backward (M. Shoeybi et al.,
    2019)."""
    @spmd.program(mesh=("x",), layout={"hidden": "x"})
    def block():
        hidden = spmd.Dim("hidden", 64)
        x = spmd.input("x", (8, 16), np.float32, layout=spmd.replicated)
        w = spmd.input("w", {"a": spmd.spec((16, hidden)), "b": spmd.spec((hidden, 16))})

        def loss(x, w):
            return np.sum(nn.dense(nn.gelu(nn.dense(x, w["a"])), w["b"]) ** 2)

        return spmd.grad(loss, argnums=(0, 1))(x, w)

    rows = spmd.build(block).layouts(ranks=4).exchanges
    assert [(row["kind"], row["rank_bytes"]) for row in rows] == [("all-reduce", 8 * 16 * 4)] * 2


def test_labels_that_are_no_classes_and_wrong_shapes():
    logits = np.zeros((2, 3))
    found = nn.softmax_cross_entropy(logits, np.array([0, 3]))
    assert np.isnan(found).tolist() == [False, True]
    for labels, error in ((np.zeros((3, 2)), "labels do not fit"), (np.zeros(2), "are integers")):
        with pytest.raises(spmd.SpmdError, match=error):
            nn.softmax_cross_entropy(logits, labels)
    with pytest.raises(spmd.ShapeError, match="dim -1 of x does not fit dim 0 of w"):
        nn.dense(np.ones((2, 3)), np.ones((2, 3)))
    with pytest.raises(spmd.ShapeError, match="x does not fit the router"):
        nn.mixture_of_experts(np.ones((8, 4)), np.ones((4, 2)), lambda t: t)
    with pytest.raises(spmd.UsageError, match="gru_cell: a weight is missing: u, c\n"):
        nn.gru_cell({"w": 1, "b": 1}, np.ones(2), np.ones(2))


@pytest.mark.parametrize("layout", [("x", None), (None, "x")])
def test_normalisation(layout):
    given = RNG.normal(size=(6, 4)) * 3 + 2

    @spmd.program(mesh=("x",))
    def normed():
        x = spmd.input("x", (6, 4), np.float64, layout=layout)
        scale = np.arange(4.0) + 1

        def loss(x):
            y, statistics = nn.batch_norm(x, scale, scale)
            return np.sum(y**3) + np.sum(nn.layer_norm(x, scale) ** 3) + np.sum(
                nn.rms_norm(x, scale) ** 3), statistics

        return spmd.value_and_grad(loss, has_aux=True)(x)

    def plain(x: np.ndarray) -> Any:
        scale = np.arange(4.0) + 1
        b = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * scale + scale
        y = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * scale
        r = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * scale
        return (b**3).sum() + (y**3).sum() + (r**3).sum()

    for ranks in (1, 3, 9):
        (value, statistics), slope = spmd.build(normed).run(ranks=ranks, x=given)
        np.testing.assert_allclose(value, plain(given), 1e-12)
        np.testing.assert_allclose(slope, numeric(plain, given), 1e-6, 1e-6)
        np.testing.assert_allclose(statistics["variance"], given.var(0), 1e-12)


def test_batch_norm_on_one_rank_s_part_sees_the_whole_batch():
    given = RNG.normal(size=(7, 3))

    @spmd.program(mesh=("x",))
    def normed():
        x = spmd.input("x", (7, 3), np.float64, layout=("x", None))
        return spmd.shard_map(lambda x: nn.batch_norm(x, ranks="x")[0], mesh="x",
                              out_layouts=("x", None))(x)

    wanted = nn.batch_norm(given)[0]
    np.testing.assert_allclose(spmd.build(normed).run(ranks=3, x=given), wanted, 1e-12, 1e-13)


# ---- recurrent networks --------------------------------------------------------------------------


def steps_of(kind: str, p: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The outputs of a cell, step by step, in plain NumPy."""
    s = lambda z: 1 / (1 + np.exp(-z))
    h = c = np.zeros((x.shape[1], p["u"].shape[0]))
    out = []
    for now in x:
        a, b = np.tensordot(now, p["w"], 1), np.tensordot(h, p["u"], 1)
        if kind == "rnn_cell":
            h = np.tanh(a + b + p["b"])
        elif kind == "gru_cell":
            a, b = a + p["b"], b + p["c"]
            z = s(a[:, 1] + b[:, 1])
            h = (1 - z) * np.tanh(a[:, 2] + s(a[:, 0] + b[:, 0]) * b[:, 2]) + z * h
        else:
            g, q = a + b + p["b"], p["peepholes"]
            c = s(g[:, 1] + q[1] * c) * c + s(g[:, 0] + q[0] * c) * np.tanh(g[:, 2])
            h = s(g[:, 3] + q[2] * c) * np.tanh(c)
        out.append(h)
    return np.array(out)


@pytest.mark.parametrize("kind, gates", [("rnn_cell", ()), ("gru_cell", (3,)), ("lstm_cell", (4,))])
def test_recurrent_networks(kind, gates):
    n, hidden = 3, 4
    shapes = {"w": (n, *gates, hidden), "u": (hidden, *gates, hidden), "b": (*gates, hidden)}
    if kind == "gru_cell":
        shapes["c"] = (3, hidden)
    if kind == "lstm_cell":
        shapes["peepholes"] = (3, hidden)
    p = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    x = RNG.normal(size=(5, 2, n))

    @spmd.program(mesh=("x",), layout={"hidden": "x"})
    def network():
        wide = spmd.Dim("hidden", hidden)
        specs = {name: spmd.spec((*shape[:-1], wide), np.float64) for name, shape in shapes.items()}
        p, x = spmd.input("p", specs), spmd.input("x", (5, 2, n), np.float64)

        def loss(p):
            _, out = nn.recurrent(getattr(nn, kind), p, x)
            return np.sum(out**2), out

        return spmd.value_and_grad(loss, has_aux=True)(p)

    loops = [op for op in lower(network.graph({}, ())).program.body.ops
             if isinstance(op.kind, Loop)]
    carried = [op for loop in loops for op in walk(loop.regions[0])
               if isinstance(op.kind, Exchange)]
    states = [expr.product(op.result.type.shape).evaluate({"n_x": 1, "i_x": 0}) for op in carried]
    assert len(loops) == 2 and {*states} == {2 * hidden}  # what travels has no gates
    wanted = steps_of(kind, p, x)
    image = spmd.build(network)
    for found in (image.run(ranks=1, p=p, x=x), image.run(ranks=3, p=p, x=x)):
        np.testing.assert_allclose(found[0][1], wanted, 1e-12, 1e-13)
        for name in p:
            slope = numeric(lambda w: (steps_of(kind, {**p, name: w}, x) ** 2).sum(), p[name])
            np.testing.assert_allclose(found[1][name], slope, 1e-6, 1e-7, err_msg=name)


# ---- experts, dropout, initial values ------------------------------------------------------------


def test_a_mixture_of_experts():
    groups, tokens, n, experts, k, room = 2, 6, 3, 4, 2, 3
    x, router = RNG.normal(size=(groups, tokens, n)), RNG.normal(size=(n, experts))
    w = RNG.normal(size=(experts, n, n))

    @spmd.program(mesh=("x",))
    def network():
        given = spmd.input("x", x.shape, np.float64, layout=("x", None, None))
        v = spmd.input("w", w.shape, np.float64, layout=("x", None, None))

        def loss(x, v):
            y, told = nn.mixture_of_experts(x, router, lambda t: t @ v, k, room, axis="x")
            return np.sum(y**2), (y, told)

        return spmd.value_and_grad(loss, argnums=(0, 1), has_aux=True)(given, v)

    def plain(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        out = np.zeros_like(x)
        for g in range(groups):
            chances = softmax_of(x[g] @ router)
            chosen = np.argsort(-chances, -1)[:, :k]
            taken = [0] * experts
            for choice in range(k):
                for t in range(tokens):
                    e = chosen[t, choice]
                    if taken[e] < room:
                        gate = chances[t, e] / chances[t, chosen[t]].sum()
                        out[g, t] += gate * (x[g, t] @ w[e])
                    taken[e] += 1
        return out

    image = spmd.build(network)
    for ranks in (1, 2, 3):
        (_, (y, told)), slopes = image.run(ranks=ranks, x=x, w=w)
        np.testing.assert_allclose(y, plain(x, w), 1e-12, 1e-13)
        assert 0 < told["dropped"] < 0.5
    wanted = (numeric(lambda x: (plain(x, w) ** 2).sum(), x),
              numeric(lambda w: (plain(x, w) ** 2).sum(), w))  # fmt: skip
    for got, slope in zip(slopes, wanted):
        np.testing.assert_allclose(got, slope, 1e-5, 1e-6)
    rows = image.layouts(mesh={"x": 2}).exchanges
    moved = [row["rank_bytes"] for row in rows if row["rank_bytes"] > 100]
    assert moved == [experts * room * n * 8 // 2] * 4  # there and back, forward and backward


def test_dropout_has_the_same_bits_on_any_mesh():
    @spmd.program(mesh=("x",))
    def drops():
        x = spmd.ones((30, 40), np.float32, layout=("x", None))
        return nn.dropout(x, 0.25, 1, 2), spmd.grad(lambda x: np.sum(nn.dropout(x, 0.25, 1, 2)))(x)

    kept = nn.dropout(np.ones((30, 40), np.float32), 0.25, 1, 2)
    assert abs((kept == 0).mean() - 0.25) < 0.04 and np.unique(kept).size == 2
    for part in spmd.build(drops).run(ranks=7):
        assert np.array_equal(part, kept)


def test_initial_values():
    made = {name: getattr(nn.init, name) for name in (
        "glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_normal")}
    fans = {"glorot": 2 / (300 + 200), "he": 2 / 300, "lecun": 1 / 300}

    @spmd.program(mesh=("x",))
    def drawn():
        out = {name: f()(3, (300, 200), layout=("x", None)) for name, f in made.items()}
        square = nn.init.orthogonal()(3, (6, 2, 4), np.float64, (None, None, "x"))
        return {**out, "orthogonal": square}

    found = spmd.build(drawn).run(ranks=3)
    for name, f in made.items():
        values, variance = found[name], fans[name.partition("_")[0]]
        assert values.dtype == np.float32 and abs(values.mean()) < 4 * math.sqrt(variance / 60000)
        np.testing.assert_allclose(values.var(), variance, 0.03)
        np.testing.assert_allclose(f()(3, (300, 200)), values, 1e-5, 1e-7)  # plain NumPy
    flat = found["orthogonal"].reshape(12, 4)
    np.testing.assert_allclose(flat.T @ flat, np.eye(4), 1e-12, 1e-12)


def test_a_split_table_of_matrices_and_small_ids():
    table, ids = np.arange(540.0).reshape(180, 3), np.array([1, -1, 100], np.int8)

    @spmd.program(mesh=("r",))
    def looked_up():
        flat = spmd.input("table", table.shape, layout=("r", None))
        return nn.embedding(ids, flat), nn.embedding(ids, spmd.asarray(
            table.reshape(180, 3, 1) * np.ones(2), layout=("r", None, None)))

    for n in (1, 2):
        rows, matrices = spmd.build(looked_up).run(ranks=n, table=table)
        np.testing.assert_array_equal(rows, table[ids])
        np.testing.assert_array_equal(matrices, table[ids][..., None] * np.ones(2))


def test_rows_for_a_text_of_which_both_dims_are_split():
    """Each rank adds up the gradient of its own tokens, into a table that all then reduce."""
    @spmd.program(mesh=("x", "y"))
    def learned():
        ids = spmd.input("ids", (5, 7), np.int32, layout=("x", "y"))
        tables = [spmd.input(f"t{k}", (6, 3), np.float64, layout=layout)
                  for k, layout in enumerate([(None, None), ("x", None), (None, "y")])]
        return [spmd.grad(lambda t: np.sum(nn.embedding(ids, t) ** 3))(t) for t in tables]

    ids, table = RNG.integers(0, 6, (5, 7), np.int32), RNG.normal(size=(6, 3))
    counts = np.bincount(ids.ravel(), minlength=6)
    image = spmd.build(learned)
    for mesh in ({"x": 1, "y": 1}, {"x": 3, "y": 2}, {"x": 7, "y": 4}):
        for found in image.run(mesh=mesh, ids=ids, t0=table, t1=table, t2=table):
            np.testing.assert_allclose(found, 3 * table**2 * counts[:, None], 1e-12)


@pytest.mark.parametrize("kind", [np.uint8, np.int64])
def test_labels_of_any_integer_type(kind):
    logits = np.random.default_rng(2).normal(size=(3, 300)).astype(np.float32)
    labels = np.array([5, 7, 100])
    found = nn.softmax_cross_entropy(logits, labels.astype(kind))
    np.testing.assert_allclose(found, nn.softmax_cross_entropy(logits, np.eye(300)[labels]), 1e-5)
    found = nn.sigmoid_binary_cross_entropy(logits[:, 0], np.array([0, 1, 1], kind))
    sign = np.where([True, False, False], 1, -1)
    np.testing.assert_allclose(found, np.log1p(np.exp(sign * logits[:, 0])), 1e-5)


def test_norms_of_short_floats_do_not_overflow():
    x = np.array([[300.0, 400.0]], np.float16)
    np.testing.assert_allclose(nn.rms_norm(x), [[0.8486, 1.131]], 1e-3)
    np.testing.assert_allclose(nn.layer_norm(x * 2), [[-1, 1]], 1e-3)
    assert nn.layer_norm(x).dtype == nn.batch_norm(x)[0].dtype == np.float16


def test_bfloat16_stays_what_it_is():
    """NumPy makes float32 of it, or float64, beside Python's floats."""
    names = ("gelu", "elu", "celu", "selu", "leaky_relu", "silu", "softplus", "softmax",
             "log_softmax", "layer_norm", "rms_norm", "glu", "hard_silu", "mish")

    @spmd.program(mesh=("x",))
    def network():
        x = spmd.input("x", (2, 4, 6), np.float32)
        short = x.astype("bfloat16")
        labels = np.zeros((2, 4), np.int32)
        made = {name: getattr(nn, name)(short) for name in names} | {
            "pool": nn.avg_pool(short, 2), "drop": nn.dropout(short, 0.5, 1),
            "loss": nn.softmax_cross_entropy(short, labels)}
        assert {str(y.dtype) for y in made.values()} == {"bfloat16"}
        return {name: y.astype(np.float32) for name, y in made.items()}

    x = RNG.normal(size=(2, 4, 6)).astype(np.float32)
    image = spmd.build(network).run(x=x)
    for name in names:
        np.testing.assert_allclose(image[name], getattr(nn, name)(x), 0.03, 0.03, err_msg=name)
