"""Eager runs give the derivatives that images give, whatever functions write, keep and count."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest

import spmd
from codegen.errors import UnsupportedError

# mypy: ignore-errors

X = np.linspace(0.3, 1.1, 4)
ONES = np.ones(4)
CASES = {}


class Model:
    def __init__(self, scale):
        self.scale, self.mean, self.calls = scale, 0.0, 0

    def loss(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + np.mean(x)
        return np.sum(x**2) * self.mean * self.calls + np.sum(self.scale * x)


class Slotted:
    __slots__ = ("kept",)


def case(f):
    CASES[f.__name__] = f
    return f


@case
def writes_its_argument(x):
    def loss(y):
        y *= 2
        return np.sum(y * y)

    changed = spmd.jvp(lambda y: (loss(y), y), (x,), (ONES,))
    return spmd.value_and_grad(loss)(x), spmd.grad(loss)(x), changed, x


@case
def takes_a_tree_with_none_in_it(x):
    value, slopes = spmd.value_and_grad(lambda tree: np.sum(tree[0] ** 2) * tree[2])((x, None, 2.0))
    return value, slopes[0], slopes[2]


@case
def writes_an_argument_that_is_not_differentiated(x):
    y = x * 3

    def loss(x, y):
        y[1:] *= x[1:]
        return np.sum(y * x)

    return spmd.value_and_grad(loss)(x, y), y


@case
def argument_is_returned(x):
    def loss(y):
        return np.sum(y * y), y

    (value, y), g = spmd.value_and_grad(loss, has_aux=True)(x)
    z, back = spmd.vjp(lambda x: x, x)
    y[:], z[1] = 7.0, 5.0
    return value, y, g, z, back(ONES), x


@case
def written_between(x):
    a, c, x = np.full(4, 2.0), np.ones(4), x * 1
    y, back = spmd.vjp(lambda x: x**2 * a, x)
    first = back(c)
    a[:], x[:2], c[:] = 100, 50.0, 9
    again = back(ONES)
    a = np.full(4, 1000.0)
    return y, first, again, back(ONES), a


@case
def written_in_a_loop(x):
    a = np.ones(4)
    for k in spmd.range(3):
        _, back = spmd.vjp(lambda x: x * a, x)
        a[k] = 5.0
        x = back(x)[0]
    return x


@case
def writes_around(x):
    a, b = np.zeros(4), np.ones(4)

    def loss(x):
        a[:] = a + x
        b[1] += 1.0
        return np.sum(a * x * b)

    return spmd.value_and_grad(loss)(x), spmd.value_and_grad(loss)(x), a, b


@case
def keeps_and_counts(x):
    kept, n, log = SimpleNamespace(m=1.0), 0, []
    slots = Slotted()
    slots.kept = {"all": [0.5]}

    def loss(x, by=1.0):
        nonlocal n
        n += 1
        kept.m = kept.m + np.mean(x)
        log.append(x * n)
        slots.kept["all"][0] = slots.kept["all"][0] + np.max(x)
        return np.sum(x * x) * kept.m * n * by + slots.kept["all"][0]

    g = spmd.value_and_grad(loss)(x, by=2.0)
    h = spmd.value_and_grad(functools.partial(loss, by=0.5))(x)
    return g, h, kept.m, n, log, slots.kept["all"][0]


@case
def methods(x):
    model = Model(x * 2)
    first = spmd.value_and_grad(model.loss)(x)
    return first, spmd.value_and_grad(model.loss)(x), model.mean, model.calls


@case
def nests(x):
    w = {"a": x, "b": [2.0, (x * 3,)]}

    def loss(w):
        w["a"] = w["a"] * 2
        w["b"][0] = w["b"][0] * 3
        w["b"].append(1.0)
        return np.sum(w["a"] ** 2 * w["b"][1][0]) * w["b"][0]

    return spmd.value_and_grad(loss)(w), len(w["b"]), w["a"], w["b"][0]


@case
def inside_each_other(x):
    a = np.ones(4)

    def outer(x):
        g = spmd.grad(lambda x: np.sum(x**3 * a))(x)
        a[0] = 3.0
        return np.sum(g * x)

    hessian = spmd.jvp(spmd.grad(lambda x: np.sum(x**4 * a)), (x,), (ONES,))
    return hessian, spmd.value_and_grad(outer)(x), a


@case
def with_ways_back_of_their_own(x):
    a = np.full(4, 2.0)

    @spmd.custom_vjp
    def scaled(x):
        return x * a

    scaled.defvjp(lambda x: (x * a, x), lambda x, g: (g * a + x,))
    y, back = spmd.vjp(lambda x: spmd.remat(lambda x: x**2 * a)(scaled(x)), x)
    a[:] = 100
    return y, back(ONES)


@case
def random_numbers(x):
    rng = np.random.default_rng(3)
    noise = rng.normal(size=4)
    spare = [noise[::-1], x]
    return spmd.value_and_grad(lambda x: np.sum(x * noise * spare[0] + spare[1] * x))(x)


def leaves(x):
    if isinstance(x, dict):
        x = list(x.values())
    return sum(map(leaves, x), []) if isinstance(x, (tuple, list)) else [np.asarray(x)]


@spmd.program(mesh=("r",))
def all_cases():
    x = spmd.input("x", (4,), np.float64, layout=("r",))
    return {name: f(x * 1) for name, f in CASES.items()}


@pytest.fixture(scope="module")
def image():
    return spmd.build(all_cases)


@pytest.mark.parametrize("ranks", (1, 3))
def test_an_eager_run_gives_what_the_image_gives(image, ranks):
    given = X.copy()
    found, wanted = all_cases.eager(x=given, ranks=ranks), image.run(x=X, ranks=ranks)
    np.testing.assert_array_equal(given, X)
    for name in CASES:
        for a, b in zip(leaves(found[name]), leaves(wanted[name]), strict=True):
            np.testing.assert_allclose(a, b, 1e-12, err_msg=name)
    assert wanted["writes_its_argument"][0][1][0] == pytest.approx(8 * X[0])
    np.testing.assert_allclose(wanted["written_between"][2][0], 4 * X)


def test_memory_that_is_written_through_one_array_and_read_through_another():
    """It is refused, as two copies would not see what both arrays of a program see; reading alone
    is not."""

    def program(write):
        def body():
            x = spmd.asarray(X)
            a = np.ones(4)
            b = a[1:]

            def loss(x):
                write(a, x)
                return np.sum(a * x) + np.sum(b * x[1:] ** 2)

            return spmd.grad(loss)(x)

        return spmd.program(body)

    np.testing.assert_allclose(program(lambda a, x: None).eager(), [1, *(1 + 2 * X[1:])])

    def traced(a, x):
        a[:] = 2 * x

    def known(a, x):
        a[1] = 3.0

    for write in (traced, known):
        with pytest.raises(UnsupportedError, match="memory that it reaches through two arrays"):
            program(write).eager()
