"""Convolutions and pooling against sums written down, however dims are split, with derivatives."""

from itertools import product
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.errors import DtypeError, ShapeError, UsageError
from codegen.ir.graph import walk
from codegen.ops import Convolve
from spmd.nn.convolution import pairs

N = None
# x, the window, out, strides, padding, dilation, groups; how x and w lie
CASES = [
    ((3, 9, 2), (3,), 4, (2,), "SAME", (1,), 1, (N, "r", N), (N, N, N)),
    ((2, 6, 5, 3), (3, 2), 2, (1, 1), "SAME", (1, 2), 1, (N, "r", N, N), (N, N, N, "r")),
    ((2, 7, 6, 4), (2, 3), 6, (1, 2), [(2, 0), (0, 3)], (2, 1), 2, (N, N, "r", N), (N,) * 4),
    ((5, 5, 4, 6), (3, 3), 6, (1, 1), "SAME", (1, 1), 6, ("r", N, N, N), (N,) * 4),
    ((1, 4, 5, 3, 5), (2, 2, 2), 3, (1, 2, 1), "VALID", (1, 1, 1), 1, (N, N, N, N, "r"), (N,) * 5),
    ((2, 4, 4, 5), (3, 3), 3, (1, 1), 1, (1, 1), 1, (N, N, N, "r"), (N, N, "r", N)),
]


def parts(x, window, strides, pads, dilation, fill=0.0):
    """For each place k in a window what stands there, and where in x that is."""
    wide = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill)
    places = [(e - (k - 1) * d - 1) // s + 1
              for e, k, s, d in zip(wide.shape[1:], window, strides, dilation)]
    for k in product(*map(range, window)):
        box = (slice(j * d, j * d + s * (m - 1) + 1, s)
               for j, d, s, m in zip(k, dilation, strides, places))
        yield k, wide[(slice(None), *box)]


def matrix(x, w, strides, padding, dilation, groups):
    """The convolution with w as a matrix that is applied to x."""
    pads = pairs(padding, x.shape[1:-1], w.shape[:-2], strides, dilation)
    at = np.arange(x.size).reshape(x.shape)
    wide, many = w.shape[-2], w.shape[-1] // groups
    rows = None
    for k, where in parts(at, w.shape[:-2], strides, pads, dilation, -1):
        rows = np.zeros((*where.shape[:-1], w.shape[-1], x.size + 1)) if rows is None else rows
        for group, c, f in product(range(groups), range(wide), range(many)):
            into = rows[..., group * many + f, :].reshape(-1, x.size + 1)
            one = where[..., group * wide + c].ravel()
            into[np.arange(len(one)), one] += w[(*k, c, group * many + f)]
    return rows[..., :-1]


@spmd.program(mesh=("r",))
def convolved():
    out = {}
    for k, (shape, window, many, *how, groups, of_x, of_w) in enumerate(CASES):
        x = spmd.input(f"x{k}", shape, np.float64, layout=of_x)
        w = spmd.input(f"w{k}", (*window, shape[-1] // groups, many), np.float64, layout=of_w)

        def loss(x, w, how=how, groups=groups):
            return np.sum(np.sin(spmd.nn.conv(x, w, None, *how, groups)))

        out[f"y{k}"] = spmd.nn.conv(x, w, None, *how, groups)
        out[f"gx{k}"], out[f"gw{k}"] = spmd.grad(loss, (0, 1))(x, w)
        if k == 1:
            out["second"] = spmd.grad(lambda w: np.sum(spmd.grad(loss)(x, w) ** 2))(w)
    peak = spmd.input("peak", PEAKS, np.float64, layout=(N, "r", N, N))
    out["peaks"] = spmd.grad(lambda x: np.sum(spmd.nn.max_pool(x, (3, 2), (2, 1), "SAME") ** 2))(
        peak)
    return out


PEAKS = (2, 7, 6, 3)


def peaks(x):
    """Twice the largest of each window, where it stands first."""
    found = np.zeros(x.size + 1)
    pads = pairs("SAME", x.shape[1:-1], (3, 2), (2, 1), (1, 1))
    at = np.arange(x.size).reshape(x.shape)
    where = np.stack([p for _, p in parts(at, (3, 2), (2, 1), pads, (1, 1), -1)])
    values = np.append(x.ravel(), -np.inf)[where]
    first = np.take_along_axis(where, np.argmax(values, 0)[None], 0)
    np.add.at(found, first, 2 * values.max(0))
    return found[:-1].reshape(x.shape)


def test_convolutions_and_their_derivatives_are_sums_of_products():
    rng, given, expected = np.random.default_rng(0), {}, {}
    for k, (shape, window, many, *how, groups, _, _) in enumerate(CASES):
        x = given[f"x{k}"] = rng.standard_normal(shape)
        w = given[f"w{k}"] = rng.standard_normal((*window, shape[-1] // groups, many))
        by_x = matrix(x, w, *how, groups)
        y = expected[f"y{k}"] = (by_x @ x.ravel())
        expected[f"gx{k}"] = np.tensordot(np.cos(y), by_x, y.ndim).reshape(shape)
        gw = expected[f"gw{k}"] = np.zeros(w.shape)
        for at in np.ndindex(*w.shape):
            one = np.zeros(w.shape)
            one[at] = 1
            gw[at] = np.sum(np.cos(y) * (matrix(x, one, *how, groups) @ x.ravel()))
    x, w = given["x1"], given["w1"]

    def squares(w):
        by_x = matrix(x, w, *CASES[1][3:7])
        return np.sum(np.tensordot(np.cos(by_x @ x.ravel()), by_x, 4) ** 2)

    expected["second"] = np.zeros(w.shape)
    for at in np.ndindex(*w.shape):
        step = np.zeros(w.shape)
        step[at] = 1e-6
        expected["second"][at] = (squares(w + step) - squares(w - step)) / 2e-6
    given["peak"] = rng.integers(-3, 4, PEAKS).astype(float)
    expected["peaks"] = peaks(given["peak"])
    image = spmd.build(convolved)
    for ranks in (1, 2, 3, 5):
        for name, found in image.run(ranks=ranks, **given).items():
            near = 1e-4 if name == "second" else 1e-10
            np.testing.assert_allclose(found, expected[name], near, near, err_msg=f"{name} {ranks}")


@spmd.program(mesh=("r",))
def pooled():
    x = spmd.input("x", (2, 7, 6, 3), np.float32, layout=(N, "r", N, N))
    h = spmd.input("h", (2, 5, 3), np.float16, layout=("r", N, N))
    w = spmd.input("w", (3, 2, 3, 4), np.float32)
    nn = spmd.nn
    return {
        "max": nn.max_pool(x, (3, 2), (2, 1), "SAME"), "avg": nn.avg_pool(x, 2),
        "within": nn.avg_pool(x, 3, 2, "SAME", count_include_pad=False),
        "adaptive": nn.adaptive_avg_pool(x, (3, 1)),
        "wider": nn.conv_transpose(x, w, np.ones(4, np.float32), (2, 3)),
        "valid": nn.conv_transpose(x, w, None, (2, 1), "VALID", 2),
        "half": nn.conv(h, np.ones((2, 1, 3), np.float16), groups=3),
    }


def spread(x, w, strides, before, places, dilation):
    """Return a transposed convolution: each element of x adds a flipped window to the result."""
    out = np.zeros((x.shape[0], *places, w.shape[-1]))
    for b, i, j, k, m in np.ndindex(*x.shape[:3], *w.shape[:2]):
        at = [s * o + p - d * n for s, o, p, d, n in
              zip(strides, (i, j), before, dilation, (k, m))]
        if all(0 <= p < n for p, n in zip(at, places)):
            out[(b, *at)] += x[b, i, j] @ w[k, m]
    return out


def test_pooling_and_transposed_convolutions():
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, (2, 7, 6, 3)).astype(np.float32)
    h = rng.integers(-3, 4, (2, 5, 3)).astype(np.float16)
    w = rng.standard_normal((3, 2, 3, 4)).astype(np.float32)
    inside = [p for _, p in parts(np.ones_like(x), (3, 3), (2, 2), [(1, 1), (0, 1)], (1, 1))]
    sums = [p for _, p in parts(x, (3, 3), (2, 2), [(1, 1), (0, 1)], (1, 1))]
    rows = [x[:, a:b].mean((1, 2)) for a, b in ((0, 3), (2, 5), (4, 7))]
    expected = {
        "max": np.max([p for _, p in parts(x, (3, 2), (2, 1), [(1, 1), (0, 1)], (1, 1), -9)], 0),
        "avg": np.mean([p for _, p in parts(x, (2, 2), (2, 2), [(0, 0)] * 2, (1, 1))], 0),
        "within": np.sum(sums, 0) / np.sum(inside, 0), "adaptive": np.stack(rows, 1)[:, :, None],
        "wider": 1 + spread(x, w, (2, 3), (2, 1), (14, 18), (1, 1)),
        "valid": spread(x, w, (2, 1), (4, 2), (17, 8), (2, 2)),
        "half": h + np.pad(h[:, 1:], ((0, 0), (0, 1), (0, 0))),
    }
    image = spmd.build(pooled)
    for out in (image.run(ranks=1, x=x, h=h, w=w), image.run(ranks=3, x=x, h=h, w=w),
                pooled.eager(x=x, h=h, w=w)):
        for name, value in expected.items():
            np.testing.assert_allclose(out[name], value, 1e-5, 1e-5, err_msg=name)
        assert out["half"].dtype == np.float16


def test_memory_for_windows_does_not_grow():
    """An array of 16 times the rows has the same room for windows."""
    def rows(n):
        @spmd.program(mesh=("r",))
        def blurred():
            x = spmd.input("x", (1, n, 64, 8), np.float32)
            return spmd.nn.conv(x, np.ones((3, 3, 8, 8), np.float32))

        buffers = lower(blurred.graph(blurred.bind({}))).plan.buffers
        return [b.capacity.value for b in buffers if b.name.endswith("_rows")]

    assert rows(1024) == rows(16 * 1024) != []


@pytest.mark.parametrize(("made", "kind", "said"), [
    (lambda x: spmd.nn.conv(x, np.ones((3, 3, 2, 4))), ShapeError, "x: (1, 4, 4, 3)"),
    (lambda x: spmd.nn.conv(x, np.ones((3, 3, 4))), ShapeError, "1 to 3 spatial dims"),
    (lambda x: spmd.nn.conv(x, np.ones((3, 3, 3, 4)), padding="same as"), UsageError, "SAME"),
    (lambda x: spmd.nn.conv(x, np.ones((3, 3, 3, 4)), strides=0), UsageError, "strides is 0"),
    (lambda x: spmd.nn.conv(x.astype(int), np.ones((3, 3, 3, 4), int)), DtypeError, "astype"),
    (lambda x: spmd.nn.max_pool(x + 1j, 2), DtypeError, "order"),
])
def test_what_does_not_fit_is_refused(made, kind, said):
    @spmd.program(mesh=("r",))
    def wrong():
        return made(spmd.input("x", (1, 4, 4, 3), np.float64))

    with pytest.raises(kind) as found:
        spmd.build(wrong)
    assert said in str(found.value)


def test_layers_behind_each_other_fetch_their_ghost_rows() -> None:
    """A rank computes its own rows of each layer, and of each gradient: no others once more."""
    @spmd.program(mesh=("x",))
    def layers() -> Any:
        x = spmd.input("x", (64, 5, 3), np.float64, layout=("x", None, None))
        w = spmd.input("w", (3, 3, 3, 3, 3), np.float64)

        def loss(w: Any, h: Any) -> Any:
            for k in range(3):
                h = h + np.tanh(spmd.nn.conv(h[None], w[k])[0])
            return np.sum(h * h)

        return spmd.grad(loss, argnums=(0, 1))(w, x)

    program = lower(layers.graph({}, ())).program
    rows = [op.result.type.shape[1].evaluate({"n_x": 4, "i_x": 1}) for op in walk(program.body)
            if isinstance(op.kind, Convolve) and op.kind.gives != "w"]
    assert rows == [16] * 6
    random = np.random.default_rng(0)
    given = {"x": random.random((64, 5, 3)), "w": random.random((3, 3, 3, 3, 3)) / 20}
    expected, image = layers.eager(**given), spmd.build(layers)
    for ranks in (1, 3, 70):
        for a, b in zip(image.run(ranks=ranks, **given), expected):
            np.testing.assert_allclose(a, b, rtol=1e-12)
