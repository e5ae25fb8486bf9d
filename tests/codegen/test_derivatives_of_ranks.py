"""Derivatives inside a shard_map and through one: transposes of exchanges against differences, on
several meshes; how many exchanges there are; what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.ir.graph import walk
from codegen.ops import Exchange

# mypy: ignore-errors

POINTS = 12
WEIGHTS = 3
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


def wide(w):
    return np.concatenate([w, w * w, w])


@case
def sums(x, w, r):
    return spmd.psum(np.sum(x) * w, r) ** 2 * w[1] + spmd.pmean(x[0] * w, r) + spmd.psum(w, r)


@case
def extremes(x, w, r):
    return spmd.pmax(np.sum(x) * w, r) * x[0] + spmd.pmin(np.sum(x) * w, r) ** 2 + spmd.pmax(w, r)


@case
def products(x, w, r):
    return spmd.pprod(x[0] * w * 0.9, r) * x[0] + spmd.pprod(w[0], r)


@case
def sent(x, w, r):
    up = spmd.ppermute(x * w[0], r, to=lambda i, n: i + 1 if i + 1 < n else None)
    return x * spmd.ppermute(x * w[1], r, shift=2) + up**2 + spmd.ppermute(w, r, shift=1)[0]


@case
def gathered(x, w, r):
    y = spmd.all_gather(x * w[0], r, tiled=True)
    return np.sum(y**2) * w + np.sum(spmd.all_gather(w * w, r), 0) * np.sum(y) * x[0]


@case
def scattered(x, w, r):
    own = spmd.psum_scatter(np.sum(x) * wide(w), r, tiled=True)
    return own**2 * np.sum(spmd.psum_scatter(wide(w), r, tiled=True))


@case
def exchanged(x, w, r):
    return spmd.all_to_all(np.outer(x, wide(w)), r, 1, 0, tiled=True) ** 2 * x[0]


@case
def rooted(x, w, r):
    there = spmd.preduce(np.sum(x) * w, r, root=0) ** 2 * x[0]
    there += spmd.preduce(np.sum(x) * w, r, "max", root=0) * spmd.preduce(x[0] * w, r, "prod")
    back = spmd.pscatter(spmd.pgather(x * w[0], r, tiled=True) ** 2, r, tiled=True)
    return there + spmd.pbroadcast(np.sum(x) * w, r, 0) * np.sum(back)


@case
def scans(x, w, r):
    sums = spmd.pscan(np.sum(x) * w, r) ** 2 * x[0] + spmd.pexscan(w * x[0], r)
    most, least = spmd.pscan(x[0] * w, r, "max"), spmd.pscan(np.sin(5 * x[0]) * w, r, "min")
    before = np.where(spmd.axis_index(r) > 0, spmd.pexscan(x[1] * w, r, "max"), 0.0)
    products = spmd.pexscan(x[0] * w, r, "prod") + spmd.pscan(x[1] * w, r, "prod") * least
    return sums + most * products + before * spmd.pscan(w, r, "prod")


@case
def branches(x, w, r):
    i = spmd.axis_index(r)
    y = x * w[0] if i % 2 == 0 else np.sin(x) * w[1]
    z = spmd.switch(i % 3, [lambda w: w * 2, lambda w: w**2, lambda w: w * x[0]], w)
    return np.sum(z) * y * spmd.psum(np.sum(y), r)


@case
def loops(x, w, r):
    h, y = w * 1.0, x * 1.0
    for _ in spmd.range(3):
        left, right = spmd.ppermute(y[-1:], r, shift=1), spmd.ppermute(y[:1], r, shift=-1)
        u = np.concatenate([left, y, right])
        y = y + 0.1 * w[0] * (u[2:] - 2 * u[1:-1] + u[:-2]) * y
        h = h + 0.1 * spmd.psum(np.sin(y[0] * h), r)
    while np.sum(y) * h[0] > 0.5:
        h = h * 0.7
    return y * h[1]


@case
def ring(x, w, r):
    i, n = spmd.axis_index(r), spmd.axis_size(r)
    row = x[0] * wide(w) * (1 + i)
    b = spmd.blocks(row, n)
    for s in spmd.range(n - 1):
        b[(i - s - 1) % n] += spmd.ppermute(b[(i - s) % n], r, shift=1)
    for s in spmd.range(n - 1):
        b[(i - s) % n] = spmd.ppermute(b[(i + 1 - s) % n], r, shift=1)
    return row


@spmd.custom_vjp
def scaled(x, w):
    return x * w[0]


scaled.defvjp(lambda x, w: (x * w[0], (x, w)),
              lambda kept, g: (g * kept[1][0], np.sum(g * kept[0]) * np.array([1.0, 0, 0])))


@case
def repeated(x, w, r):
    layer = spmd.remat(lambda x, w: np.tanh(scaled(x, spmd.psum(x[0] * w, r))))
    return layer(layer(x, w), w * w)


TWO = {}


def two(f):
    TWO[f.__name__] = f
    return f


@two
def axis_by_axis(x, w, a, b):
    u = spmd.psum(np.sum(x) * w, a)
    return u * spmd.psum(u * w, b) + w * spmd.psum(u * w, (a, b)) * x[0]


@two
def partly_alike(x, w, a, b):
    u = spmd.psum(np.sum(x) * w, b)
    y = spmd.ppermute(u * w, (a, b), shift=1) * x[0] + spmd.pmax(u, (a, b)) + spmd.pscan(u, (a, b))
    return 0.01 * np.sum(spmd.all_gather(u * w, (a, b))) * y + spmd.pbroadcast(u, (a, b), 0)


@two
def turns_apart(x, w, a, b):
    h, i = w * 1.0, spmd.axis_index(a)
    for _ in spmd.range(i + 2):
        h = h * 1.1 + 0.1 * spmd.pmean(x[0] * w, b) * h
    if i == 0:
        h = h + spmd.psum(h * x[0], b)
    return h * h


def of_axes(cases, axes):
    """Return a program with each case's loss and gradients, taken in a shard_map and through
    one."""
    lie = ((axes,), (None,))

    @spmd.program(mesh=axes)
    def gradients():
        spmd.require(POINTS % spmd.axis_size(axes) == 0)
        x = spmd.input("x", (POINTS,), np.float64, layout=(axes,))
        w = spmd.input("w", (WEIGHTS,), np.float64, layout=(None,))
        out = {}
        for name, f in cases.items():
            def own(x, w, f=f):
                y = f(x, w, *axes)
                return np.sum(np.sin(y) * y)

            def inside(x, w, own=own):
                return spmd.value_and_grad(lambda x, w: spmd.psum(own(x, w), axes), (0, 1))(x, w)

            def through(x, w, own=own):
                each = spmd.shard_map(lambda x, w: (own(x, w) + 0 * x[0])[None], mesh=axes,
                                      in_layouts=lie, out_layouts=(axes,))
                return np.sum(each(x, w))

            out[name] = (spmd.shard_map(inside, mesh=axes, in_layouts=lie,
                                        out_layouts=((), lie))(x, w),
                         spmd.grad(through, (0, 1))(x, w))
        return out

    return gradients


@pytest.mark.parametrize("names", [list(CASES)[k::2] for k in range(2)] + [list(TWO)],
                         ids=" ".join)
def test_gradients_are_differences(names):
    axes = ("a", "b") if names[0] in TWO else ("r",)
    image = spmd.build(of_axes({name: (CASES | TWO)[name] for name in names}, axes))
    meshes = [(1, 3), (2, 1), (2, 2), (3, 2)] if len(axes) > 1 else [(1,), (2,), (3,), (4,), (6,)]
    rng = np.random.default_rng(0)
    x, w = rng.random(POINTS) * 0.8 + 0.3, rng.random(WEIGHTS) * 0.8 + 0.3
    dx, dw = rng.standard_normal(POINTS), rng.standard_normal(WEIGHTS)
    for mesh in meshes:
        def run(x, w, mesh=mesh):
            sizes = dict(zip(axes, mesh))
            return image.run(ranks=int(np.prod(mesh)), mesh=sizes, x=x, w=w)

        found = run(x, w)
        for along in ((dx, 0 * dw), (0 * dx, dw)):
            at = [run(x + 1e-6 * s * along[0], w + 1e-6 * s * along[1]) for s in (1, -1)]
            for name in names:
                (_, inside), through = found[name]
                wanted = (at[0][name][0][0] - at[1][name][0][0]) / 2e-6
                for how, gradient in (("inside", inside), ("through", through)):
                    got = sum(np.sum(g * d) for g, d in zip(gradient, along))
                    assert got == pytest.approx(wanted, 2e-6, 2e-6), f"{name}, {how}, on {mesh}"


def test_second_derivatives():
    def cubes(x, w):
        y = spmd.ppermute(x, "r", shift=1) * spmd.psum(x * w, "r")
        return spmd.psum(np.sum(y**2), "r")

    @spmd.program(mesh=("r",))
    def second():
        spmd.require(6 % spmd.axis_size("r") == 0)
        x = spmd.input("x", (6,), np.float64, layout=("r",))
        v = spmd.input("v", (6,), np.float64, layout=("r",))
        w = spmd.input("w", (1,), np.float64, layout=(None,))

        def products(x, v, w):
            g = spmd.grad(cubes, (0, 1))
            return g(x, w), spmd.jvp(g, (x, w), (v, w * 0.5))[1]

        inside = spmd.shard_map(products, mesh="r", in_layouts=(("r",), ("r",), (None,)),
                                out_layouts=((("r",), (None,)),) * 2)(x, v, w)
        through = spmd.grad(lambda x, w: spmd.shard_map(
            cubes, mesh="r", in_layouts=(("r",), (None,)), out_layouts=())(x, w), (0, 1))
        return inside, spmd.jvp(through, (x, w), (v, w * 0.5))[1]

    image, rng = spmd.build(second), np.random.default_rng(3)
    x, v, w = rng.random(6), rng.random(6), rng.random(1)
    for ranks in (1, 2, 3):
        (_, inside), through = image.run(ranks=ranks, x=x, v=v, w=w)
        at = [image.run(ranks=ranks, x=x + s * v, v=v, w=w + s * 0.5 * w)[0][0]
              for s in (1e-6, -1e-6)]
        for k in range(2):
            wanted = (at[0][k] - at[1][k]) / 2e-6
            np.testing.assert_allclose(inside[k], wanted, 1e-6, 1e-6)
            np.testing.assert_allclose(through[k], wanted, 1e-6, 1e-6)


# ---- how many exchanges -------------------------------------------------------------------------


def exchanges(program):
    return [(op.kind.called, *op.kind.axes) for op in walk(program.capture().body)
            if isinstance(op.kind, Exchange)]


def normed(x, g):
    x = x - np.mean(x, -1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5) * g


LIE = {"g": (None,), "h": (None,), "q": (None, "m"), "k": (None, "m"), "v": (None, "m"),
       "o": ("m", None), "up": (None, "m"), "down": ("m", None)}
SHAPES = {"g": (4,), "h": (4,), "q": (4, 6), "k": (4, 6), "v": (4, 6), "o": (6, 4), "up": (4, 12),
          "down": (12, 4)}


def block(x, p):
    """A Transformer block, heads and hidden dims split over m (Shoeybi and others 2019)."""
    a = normed(x, p["g"])
    scores = np.exp((a @ p["q"]) @ (a @ p["k"]).T)
    scores = scores / np.sum(scores, -1, keepdims=True)
    x = x + spmd.psum(scores @ (a @ p["v"]) @ p["o"], "m")
    return x + spmd.psum(np.tanh(normed(x, p["h"]) @ p["up"]) @ p["down"], "m")


@pytest.mark.parametrize("how", ["inside", "through"])
def test_a_block_has_two_all_reduces_forward_and_two_backward(how):
    @spmd.program(mesh=("d", "m"))
    def megatron():
        spmd.require(6 % spmd.axis_size("m") == 0)
        x = spmd.input("x", (6, 4), np.float64, layout=(None, None))
        p = {k: spmd.input(k, SHAPES[k], np.float64, layout=LIE[k]) for k in SHAPES}
        lie = ((None, None), LIE)
        if how == "inside":
            loss = spmd.value_and_grad(lambda x, p: np.sum(block(x, p) ** 2), (0, 1))
            return spmd.shard_map(loss, in_layouts=lie, out_layouts=((), lie))(x, p)
        mapped = spmd.shard_map(block, in_layouts=lie, out_layouts=(None, None))
        return spmd.value_and_grad(lambda x, p: np.sum(mapped(x, p) ** 2), (0, 1))(x, p)

    assert exchanges(megatron) == [("all_reduce", "m")] * 4


def trained(loss, shared=True):
    """Steps of descent in a shard_map, over data that are split."""
    @spmd.program(mesh=("r",))
    def training(steps: int = 5):
        x = spmd.input("x", (POINTS,), np.float64, layout=("r",))

        @spmd.shard_map(mesh="r", in_layouts=(("r",),), out_layouts=(None,) if shared else ("r",))
        def train(x):
            w = spmd.zeros(3, np.float64)
            w = w if shared else spmd.pvary(w, "r")
            for _ in spmd.range(steps):
                w = w - 0.02 * spmd.grad(loss)(w, x)
            return w

        return train(x)

    return training


def fit(w, x):
    return np.sum((w[0] + w[1] * x + w[2] * x * x - 1 - 2 * x) ** 2)


def test_data_parallel_training_sums_each_gradient_once():
    """All uses of a weight, in loops too, before they are summed; the loss is not needed."""
    def deep(w, x):
        for _ in spmd.range(3):
            x = np.sin(x * w[0]) + w[1]
        return spmd.psum(np.sum(x * w[2]) + fit(w, x), "r")

    assert exchanges(trained(deep)) == [("all_reduce", "r")]
    x = np.linspace(-1, 1, POINTS)

    def steps(x):
        w, a = np.zeros(3), np.stack([x**0, x, x * x], 1)
        for _ in range(5):
            w = w - 0.02 * 2 * a.T @ (a @ w - 1 - 2 * x)
        return w

    own = spmd.build(trained(fit, shared=False))
    for ranks in (1, 2, 3):
        found = spmd.build(trained(fit)).run(ranks=ranks, x=x)
        np.testing.assert_allclose(found, steps(x), 1e-12)
        each = [steps(part) for part in np.array_split(x, ranks)]
        np.testing.assert_allclose(own.run(ranks=ranks, x=x), np.concatenate(each), 1e-12)


def test_the_way_back_of_a_halo_is_a_halo():
    def step(x):
        left = spmd.ppermute(x[-1:], "r", to=lambda i, n: i + 1 if i + 1 < n else None)
        right = spmd.ppermute(x[:1], "r", to=lambda i, n: i - 1 if i > 0 else None)
        u = np.concatenate([left, x, right])
        return (u[2:] - 2 * u[1:-1] + u[:-2]) ** 2

    @spmd.program(mesh=("r",))
    def halo():
        spmd.require(POINTS % spmd.axis_size("r") == 0)
        x = spmd.input("x", (POINTS,), np.float64, layout=("r",))
        return spmd.grad(lambda x: np.sum(spmd.shard_map(step, mesh="r")(x)))(x)

    assert exchanges(halo) == [("permute", "r")] * 4


def test_of_what_all_have_alike_no_member_sends():
    def alike(x, w):
        w = spmd.ppermute(spmd.psum(spmd.pbroadcast(w, "r"), "r"), "r", shift=1)
        return spmd.psum(np.sum(w * w), "r")

    @spmd.program(mesh=("r",))
    def gradient():
        x = spmd.input("x", (POINTS,), np.float64, layout=("r",))
        w = spmd.input("w", (3,), np.float64, layout=(None,))
        return spmd.shard_map(lambda x, w: spmd.grad(alike, 1)(x, w), mesh="r",
                              in_layouts=(("r",), (None,)), out_layouts=(None,))(x, w)

    assert exchanges(gradient).count(("permute", "r")) == 1  # the first one, not its way back


# ---- names that a turn binds before it reads them -----------------------------------------------


def bound_in_the_loop(w, x):
    for _ in spmd.range(3):
        h = w * 2 + x
        w = w - 0.1 * spmd.grad(lambda w: np.sum(w * h))(w)
    return w + spmd.grad(lambda w: np.sum(w * h))(w)


def bound_in_loops_in_it(w, x):
    h = spmd.zeros(3)
    for _ in spmd.range(3):
        for k in spmd.range(2):
            h = w + k * x

            def loss(w):
                return spmd.psum(np.sum(w * h**2), "r")

            w = w - 0.01 * spmd.grad(loss)(w)
        for _ in spmd.range(2):
            w = w - 0.01 * spmd.value_and_grad(lambda w: np.sum(w**2 * h))(w)[1] * x[0]
    return w


def bound_and_one_for_all(w, x):
    for _ in spmd.range(3):
        h = x * w[0]
        w = w - 0.1 * spmd.grad(lambda w: spmd.psum(np.sum(w * h), "r"))(w)
    return w


def kept_for_the_next_turn(w, x):
    h = before = x * 0.5
    for _ in spmd.range(3):
        before, h = h, w * x
        w = w - 0.1 * spmd.grad(lambda w: np.sum(w * before * h))(w)
    return w


BOUND = [bound_in_the_loop, bound_in_loops_in_it, bound_and_one_for_all, kept_for_the_next_turn]


def test_names_bound_in_a_loop_are_read_by_what_is_differentiated():
    one = dict.fromkeys([bound_and_one_for_all])  # w stays the same on all ranks

    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (POINTS, 3), np.float64, layout=("r", None))
        w = spmd.input("w", (3,), np.float64, layout=(None,))
        out = {}
        for f in BOUND:
            def mapped(w, x, f=f):
                start = w if f in one else w + x[0]
                return f(start, x[0])[None]
            out[f.__name__] = spmd.shard_map(mapped, mesh="r", out_layouts=("r", None))(w, x)
        return out

    image, rng = spmd.build(program), np.random.default_rng(4)
    given = {"x": rng.normal(size=(POINTS, 3)), "w": rng.normal(size=3)}
    for ranks in (1, 3, 5):
        found, wanted = image.run(ranks=ranks, **given), program.eager(ranks=ranks, **given)
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], 1e-10, err_msg=name)
    first = given["x"][[0, 3, 6, 8, 10]]
    w = given["w"] + first
    for _ in range(3):
        h = w * 2 + first
        w = w - 0.1 * h
    np.testing.assert_allclose(found["bound_in_the_loop"], w + h, 1e-10)


# ---- what is refused ----------------------------------------------------------------------------


def diverging(x):
    w = spmd.zeros(3, np.float64)
    for _ in spmd.range(5):
        w = w - 0.02 * spmd.grad(fit)(w, x) + x[0]
    return w[None]


def cotangent_of_each(x):
    return spmd.vjp(lambda x: spmd.psum(np.sum(x), "r"), x)[1](x[0])[0]


MISTAKES = {
    "it differs after a turn": (diverging, "begins the same on all ranks along r"),
    "a cotangent on each rank": (cotangent_of_each, "a cotangent differs between the ranks"),
    "an op without one": (lambda x: spmd.grad(
        lambda x: np.sum(np.logaddexp.accumulate(x)))(x), "has no derivative here"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_explained(what):
    function, text = MISTAKES[what]

    @spmd.program(mesh=("r",))
    def mistaken():
        spmd.require(POINTS % spmd.axis_size("r") == 0)
        x = spmd.input("x", (POINTS,), np.float64, layout=("r",))
        return spmd.shard_map(function, mesh="r", out_layouts=("r",))(x)

    with pytest.raises(spmd.SpmdError, match=text) as found:
        mistaken.capture()
    assert found.value.place is not None and "expected" in str(found.value)
