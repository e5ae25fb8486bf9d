"""Kernels with a way back, and derivatives in eager runs: beside differences, on several ranks."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.errors import KernelError, UnsupportedError, UsageError
from codegen.user.pytree import leaves
from tests.codegen.derived_cases import CASES, POINTS, X

# mypy: ignore-errors


@spmd.kernel
def slopes(u, out):
    for i in range(out.shape[0]):
        out[i] = u[i + 2] * u[i + 2] - u[i]


@spmd.kernel
def slopes_back(u, g, out):
    for i in range(out.shape[0]):
        out[i] = 2.0 * u[i + 1] * g[i] - g[i + 2]


slopes.defvjp(lambda u, out, g: (
    slopes_back(u, g, out=spmd.like(u), halo={"u": 1, "g": 1}, boundary={"u": 0.0, "g": 0.0}),))


@spmd.kernel(signature="(n),()->(n),()")
def powers(x, k, out, total):
    total[0] = 0.0
    for i in range(x.shape[0]):
        out[i] = x[i] ** k
        total[0] += out[i]


powers.defvjp(lambda x, k, out, total, g, h: (k * out / x * (g + h[..., None]), None))


@spmd.kernel
def thrice(u, out):
    for i in range(out.shape[0]):
        out[i] = 3.0 * u[i] * u[i]


@spmd.custom_vjp
def wrapped(u):
    return thrice(u, out=spmd.like(u))


wrapped.defvjp(lambda u: (thrice(u, out=spmd.like(u)), u), lambda u, g: (6.0 * u * g,))


def loss(x):
    y = slopes(x, out=spmd.like(x), halo={"u": 1}, boundary=0.0) * x
    for _ in spmd.range(2):
        y = y + slopes(np.sin(y), out=spmd.like(y), halo={"u": 1}, boundary="zero")
    made, total = powers(x.reshape(4, 3), 2.0, out=spmd.empty((4, 3)), total=spmd.empty((4,)))
    return (np.sum(y**2) + np.sum(made * x[:3]) + np.sum(total**2) + np.sum(wrapped(x) * x)
            + np.sum(np.pad(x.reshape(4, 3), ((2, 1), (0, 4)), mode="edge") ** 3))


@spmd.program(mesh=("r",))
def by_kernels():
    x = spmd.input("x", (POINTS,), np.float64, layout=("r",))
    return spmd.value_and_grad(loss)(x)


@spmd.program(mesh=("r",))
def value():
    return loss(spmd.input("x", (POINTS,), np.float64, layout=("r",)))


def test_kernels_with_a_way_back():
    value_there, found = by_kernels.eager(x=X, ranks=3)
    for way in np.random.default_rng(2).normal(size=(3, POINTS)):
        step = 1e-6 * way
        wanted = (value.eager(x=X + step) - value.eager(x=X - step)) / 2e-6
        np.testing.assert_allclose(np.sum(found * way), wanted, 1e-6)
    image = spmd.build(by_kernels)
    for ranks in (1, 2, 5):
        a, b = image.run(ranks=ranks, x=X)
        np.testing.assert_allclose(a, value_there, 1e-12)
        np.testing.assert_allclose(b, found, 1e-10, 1e-12)


def captured(f):
    return spmd.program(lambda: spmd.grad(f)(spmd.asarray(X))).capture()


def test_what_a_way_back_must_be():
    @spmd.kernel
    def plain(u, out):
        for i in range(out.shape[0]):
            out[i] = u[i]

    @spmd.kernel
    def added(u, out):
        for i in range(out.shape[0]):
            out[i] += u[i]

    with pytest.raises(UnsupportedError, match="kernel plain has no derivative") as error:
        captured(lambda x: np.sum(plain(x, out=spmd.like(x))))
    assert "plain.defvjp(back)" in error.value.remedy
    plain.defvjp(lambda u, out, g: g)
    with pytest.raises(KernelError, match="returns no cotangent for each input"):
        captured(lambda x: np.sum(plain(x, out=spmd.like(x))))
    plain.defvjp(lambda u, g: (g,))
    with pytest.raises(KernelError, match="its way back takes other arguments") as error:
        captured(lambda x: np.sum(plain(x, out=spmd.like(x))))
    assert "(u, out, d_out)" in error.value.expected
    added.defvjp(lambda u, out, g: (g,))
    captured(lambda x: np.sum(added(x, out=np.ones(POINTS) + spmd.zeros(POINTS))))
    with pytest.raises(UsageError, match="reads what is differentiated by from around it"):
        captured(lambda x: np.sum(added(x, out=x * 2)))


@spmd.program(mesh=("r",))
def in_eager_runs():
    x = spmd.input("x", (POINTS,), np.float64, layout=("r",))
    twice = spmd.shard_map(lambda p: p * np.sum(p), mesh="r", out_layouts=("r",))
    made, back = spmd.vjp(lambda x: {"a": x**2, "b": np.sum(x)}, x)
    kept = spmd.remat(lambda x: x**2 + spmd.stop_gradient(x))

    @spmd.shard_map(mesh="r", in_layouts=(("r",), None), out_layouts=(None, ("r",), None))
    def inside(u, w):
        loss = lambda u, w: spmd.psum(np.sum(u**2), "r") * w
        value, gradients = spmd.value_and_grad(loss, (0, 1))(u, w)
        return value, *gradients

    return {
        "cases": [spmd.grad(CASES[name])(x) for name in ("boxes", "looked_up")],
        "has_aux": spmd.value_and_grad(lambda x, y: (np.sum(x * y), [y]), (0, 1), True)(x, 2 * x),
        "again": spmd.grad(lambda x: np.sum(kept(x) ** 2))(x),
        "pair": spmd.jvp(spmd.grad(lambda x: np.sum(x**3)), (x,), (np.ones(POINTS),)),
        "back": back({"a": x, "b": 3.0}), "made": made,
        "tree": spmd.grad(lambda w: np.sum(w["a"] * x) + w["b"] ** 2)({"a": x, "b": 3.0}),
        "closed": spmd.grad(lambda s: np.sum(s * twice(x)))(2.0),
        "ranks": inside(x, spmd.asarray(3.0)),
    }


def test_derivatives_in_eager_runs():
    found, wanted = in_eager_runs.eager(x=X, ranks=3), spmd.build(in_eager_runs).run(ranks=3, x=X)
    for a, b in zip(leaves(found), leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, 1e-12)


def test_what_ranks_read_from_around_is_no_derivative_in_eager_runs():
    @spmd.program(mesh=("r",))
    def around():
        x = spmd.input("x", (POINTS,), np.float64, layout=("r",))
        inside = spmd.shard_map(lambda u: spmd.grad(lambda u: np.sum(u * x))(u), mesh="r",
                                out_layouts=("r",))
        return inside(x * 2)

    with pytest.raises(UnsupportedError, match="reads global arrays from around it"):
        around.eager(x=X, ranks=2)
