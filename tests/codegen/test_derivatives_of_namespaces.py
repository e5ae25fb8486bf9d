"""Every function of spmd.numpy, spmd.nn, scipy.special and spmd.optim as the loss itself: first and
second derivatives, beside differences of what plain NumPy computes. Here are a fourth of
them; `make random` takes all, in images too."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import spmd
import spmd.numpy
from codegen.oracle import interpret
from codegen.trace.namespace import states
from codegen.trace.numpy import special
from tests.codegen.namespace_cases import CASES, REASONS, special_cases

# mypy: ignore-errors

special_cases(pytest.importorskip("scipy.special"))
PACK = 25  # functions that share a program
PACKS = [list(CASES)[k::len(CASES) // PACK + 1] for k in range(len(CASES) // PACK + 1)]
HERE = PACKS[::4]


def test_every_function_is_differentiated_or_says_why_not():
    """A new function needs arguments in namespace_cases.py, or a reason there."""
    numpy = {f"np.{name}" for name in dir(spmd.numpy)}
    numpy |= {f"np.{s.name}" for s in states() if s.name.startswith(("linalg.", "fft."))}
    names = numpy | {f"special.{name}" for name in special.names()}
    names |= {f"nn.{name}" for name in spmd.nn.__all__}
    names |= {f"optim.{name}" for name in spmd.optim.__all__}
    assert sorted(names - {*CASES} - {*REASONS}) == []
    assert sorted({*CASES} & {*REASONS}) == []
    assert sorted(({*CASES} | {*REASONS}) - names - {"np.fft"}) == []


def leaves(x):
    if isinstance(x, dict):
        x = list(x.values())
    return sum(map(leaves, x), []) if isinstance(x, (tuple, list)) else [x]


def weight(y, k):
    return np.cos(np.arange(y.size) + 0.4 * k).reshape(y.shape)


def loss_of(name):
    """The function itself where it returns one float; else a sum of what it returns."""
    f = CASES[name][0]

    def loss(*xs):
        made = f(*xs)
        if not isinstance(made, (tuple, list, dict)) and not np.ndim(made):
            return made
        total = 0.0
        for k, y in enumerate(leaves(made)):
            if y.dtype.kind == "c":
                total = total + np.sum(weight(y, 7) * y.imag)
            if y.dtype.kind in "fc":
                total = total + np.sum(weight(y, k) * y.real)
        return total

    return loss


def given(names, point):
    """The arguments, and directions, by the names of inputs."""
    return {f"{kind}{j}_{k}": x for j, name in enumerate(names)
            for kind, xs in zip("xv", point(name)) for k, x in enumerate(xs)}


@functools.cache
def directions(name):
    rng = np.random.default_rng(len(name))
    return [rng.uniform(0.5, 1, x.shape) * rng.choice([-1, 1], x.shape) for x in CASES[name][1]]


def packed(names, derived=True):
    @spmd.program(mesh=("r",))
    def program():
        out = {}
        for j, name in enumerate(names):
            arrays = CASES[name][1]
            layout = [("r", *[None] * (x.ndim - 1)) if k % 2 else None
                      for k, x in enumerate(arrays)]
            xs, vs = ([spmd.input(f"{kind}{j}_{k}", x.shape, x.dtype, layout=lie)
                       for k, (x, lie) in enumerate(zip(arrays, layout))] for kind in "xv")
            loss, numbers = loss_of(name), tuple(range(len(xs)))
            if not derived:
                out[f"f{j}"] = loss(*xs)
                continue
            (value, slopes), (change, second) = spmd.jvp(
                spmd.value_and_grad(loss, numbers), tuple(xs), tuple(vs))
            out |= {f"f{j}": value, f"df{j}": change}
            out |= {f"{kind}{j}_{k}": y for kind, ys in zip("gh", (slopes, second))
                    for k, y in enumerate(ys)}
        return out

    return program


def moved(step):
    def point(name):
        return [x + step * v for x, v in zip(CASES[name][1], directions(name))], directions(name)

    return point


def central(run, step):
    """The derivative along the directions, by what a run gives, and a bound of its error."""
    near, far = ({n: (a - b) / (2 * h) for (n, a), b in
                  zip(run(h).items(), run(-h).values())} for h in (step, 2 * step))
    return {n: ((4 * near[n] - far[n]) / 3, np.abs(near[n] - far[n])) for n in near}


def close(found, wanted, error, what):
    scale = 1 + np.abs(wanted)
    assert np.all(error < 1e-3 * scale), f"{what}: differences say nothing, {wanted} {error}"
    assert np.all(np.abs(found - wanted) <= 2e-6 * scale + error / 20), (what, found, wanted)


def check(names, run, plain):
    """Check a pack's derivatives against differences. `run` computes the program, `plain` NumPy's
    values."""
    found = run(given(names, moved(0)))
    slopes = central(lambda h: plain(given(names, moved(h))), 1e-4)
    second = central(lambda h: run(given(names, moved(h))), 1e-4)
    for j, name in enumerate(names):
        np.testing.assert_allclose(found[f"f{j}"], plain(given(names, moved(0)))[f"f{j}"], 1e-9,
                                   1e-12, err_msg=name)
        count = len(directions(name))
        along = sum(np.sum(found[f"g{j}_{k}"] * directions(name)[k]) for k in range(count))
        close(along, *slopes[f"f{j}"], f"{name}: the gradient along a direction")
        close(found[f"df{j}"], *slopes[f"f{j}"], f"{name}: jvp")
        for k in range(count):
            close(found[f"h{j}_{k}"], *second[f"g{j}_{k}"], f"{name}: jvp of grad, argument {k}")


@pytest.mark.filterwarnings("ignore:`row_stack`:DeprecationWarning")
@pytest.mark.parametrize("names", HERE, ids=lambda names: names[0])
def test_functions_are_differentiated_as_losses(names):
    check_interpreted(names)


def check_interpreted(names):
    values, graph = packed(names, False), packed(names).capture()
    check(names, lambda inputs: interpret.run(graph, {"r": 2}, inputs),
          lambda inputs: values.eager(**inputs))
