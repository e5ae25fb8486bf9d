"""Ways back: gone in another loop than their function was called in; how often they run turns."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.ir.graph import walk
from codegen.ops import Loop, Map
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
    """Apply `back`, from a cotangent of the result to one of x, again and again in a loop."""
    u, k = x, x[0] * 0
    while k < 3:
        if k > 0:
            u = 0.5 * back(u) + 0.1
        k = k + 1
    return u


@pytest.mark.parametrize("f", [loops, exchanges, mapped], ids=lambda f: f.__name__)
def test_a_way_back_is_gone_in_loops_and_branches_behind_its_function(f):
    """It gives the gradients that a call in the same place gives, and can be differentiated
    again."""

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
                out.append(spmd.shard_map(lambda x, way=way: way(x, steps), mesh="r")(x))
            else:
                out += spmd.value_and_grad(lambda x, way=way: np.sum(way(x, steps)))(x)
        return out

    graph = program.capture()
    for steps in (0, 70) if f is loops else (3,):
        found = list(interpret.run(graph, {"r": 2}, {"x": X}, {"steps": steps}).values())
        for mine, wanted in zip(found, found[len(found) // 2 :]):
            assert np.linalg.norm(wanted) > 1e-3
            np.testing.assert_allclose(mine, wanted, 1e-9, 1e-12)


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

    every = [op for op in walk(program.capture().body) if isinstance(op.kind, Loop)]
    assert sum(any(o.kind.attributes().get("fn") == "sin" for o in op.regions[-1].ops)
               for op in every) == 1
    assert [len(op.results) for op in every] == [2, 1, 1, 1, 1]


SNAPSHOTS = 192  # on three levels of 64


@spmd.program(mesh=("r",))
def counted():
    steps = spmd.scalar("steps", 5)
    x = spmd.input("x", (6,), np.float64, layout=("r",))

    def repeated(x):
        for _ in spmd.range(steps):
            x = np.tanh(x) * 1.1
        return np.sum(x)

    def ended(x):
        k = 0 * x[0]
        while k < steps:
            x, k = np.tanh(x) * 1.1, k + 1
        return np.sum(x)

    return spmd.grad(repeated)(x), spmd.grad(ended)(x)


def test_turns_run_hardly_more_often_than_the_best_plan_says(monkeypatch):
    """Revolve's plan knows how many turns there will be (Griewank and Walther 2000), and needs two
    runs of each but the last. Ours needs two up to 64 turns, and at most three up to 4096."""
    schedules = pytest.importorskip("checkpoint_schedules")
    turns, reference = [0], Map.reference

    def counting(what, operands, value):
        turns[0] += what.fn == "tanh"
        return reference(what, operands, value)

    monkeypatch.setattr(Map, "reference", counting)
    graph = counted.capture()
    for steps in (1, 10, 64, 65, 500):
        plan = schedules.MultistageCheckpointSchedule(steps, min(SNAPSHOTS, steps), 0)
        actions = iter(plan)
        best, action = 0, next(actions)
        while not isinstance(action, schedules.EndReverse):
            if isinstance(action, schedules.Forward):
                best += action.n1 - action.n0
            action = next(actions)
        turns[0] = 0
        first, second = interpret.run(graph, {"r": 1}, {"x": X}, {"steps": steps}).values()
        np.testing.assert_array_equal(first, second)
        made = turns[0] - steps  # one way there only counts the turns of the while
        assert made <= 2 * (best + 1 if steps <= 64 else 1.5 * best), steps
