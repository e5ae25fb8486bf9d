"""Ways back: gone in another loop than their function was called in."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.ir import walk
from codegen.ops import Loop
from codegen.oracle import interpret

# mypy: ignore-errors

X = np.linspace(0.3, 1.1, 6)


def loops(x, steps):
    for k in spmd.range(3):
        x = np.sin(x) + 0.1 * (k + 1)
    for _ in spmd.range(steps):
        x = x + 0.01 * np.sin(x)
    while np.sum(x) > 5:
        x = x * 0.9 * np.cos(0.1 * x)
    return spmd.remat(lambda x: np.tanh(x) * x)(x) * np.exp(x)


def exchanges(x, steps):
    for _ in spmd.range(steps):
        x = np.sin(x) + 0.1 * spmd.psum(np.sum(x), "r")
    return x


def mapped(x, steps):
    return spmd.shard_map(lambda x: np.sin(spmd.psum(np.sum(np.sin(x)), "r") * x), mesh="r")(x)


def of_some_turns(x, back):
    """back: from a cotangent of what is differentiated to that of x; again and again."""
    u, k = x, x[0] * 0
    while k < 3:
        u = 0.5 * back(u) + 0.1
        if k > 0:
            u = u + 0.1 * back(u * u)
        k = k + 1
    return u


@pytest.mark.parametrize("f", [loops, exchanges, mapped], ids=lambda f: f.__name__)
def test_a_way_back_is_gone_in_loops_and_branches_behind_its_function(f):
    """As where the function is called there too; and what is made so is differentiated."""

    def once(x, steps):
        back = spmd.vjp(lambda x: f(x, steps), x)[1]
        return of_some_turns(x, lambda u: back(u)[0])

    def each_time(x, steps):
        return of_some_turns(x, lambda u: spmd.vjp(lambda x: f(x, steps), x)[1](u)[0])

    @spmd.program(mesh=("r",))
    def program():
        steps = spmd.scalar("steps", 5)
        x = spmd.input("x", (6,), np.float64, layout=("r",))
        out = []
        for way in (once, each_time):
            if f is exchanges:
                way = spmd.shard_map(lambda x, steps, way=way: way(x, steps), mesh="r",
                                     in_layouts=(("r",), ()))
            out.append(spmd.value_and_grad(lambda x, way=way: np.sum(way(x, steps)))(x))
        return out

    graph = program.capture()
    for steps in (0, 70) if f is loops else (5,):
        value, slope, *wanted = interpret.run(graph, {"r": 2}, {"x": X, "steps": steps}).values()
        assert np.isfinite(wanted[0]) and np.linalg.norm(wanted[1]) > 1e-3
        np.testing.assert_allclose(value, wanted[0], 1e-12)
        np.testing.assert_allclose(slope, wanted[1], 1e-9, 1e-12)


def test_what_a_function_does_is_kept_for_all_its_ways_back():
    @spmd.program(mesh=("r",))
    def program():
        x = spmd.input("x", (6,), np.float64, layout=("r",))

        def f(x):
            for _ in spmd.range(9):
                x = np.sin(x)
            return x

        back = spmd.vjp(f, x)[1]
        u = back(x)[0]
        for _ in spmd.range(3):
            u = u + back(u)[0] + back(2 * u)[0]
        return u

    every = [op for op in walk(program.capture().body) if isinstance(op.what, Loop)]
    assert sum(any(o.what.said().get("fn") == "sin" for o in op.regions[-1].ops)
               for op in every) == 1
    assert [len(op.results) for op in every] == [2, 1, 1, 1, 1]
