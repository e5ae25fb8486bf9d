"""What is fetched once instead of in every turn, or in every loop; and what is solved in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import Levels, lower
from codegen.ir.plan import Exchange, Loop
from codegen.ir.steps import walk_steps
from codegen.layouts import replicate_loops
from codegen.oracle.interpret import run
from tests.codegen.test_replicate_loops import assume

N = 800


def picked(a, b, turns=range):
    """Sums of a few elements of each row; b is written, so that its elements cannot wait."""
    s, pairs = 0.0, np.zeros(2)
    for i in turns(a.shape[0]):
        s += np.tanh(a[i, i]) * a[i, i]
    for i in turns(a.shape[0] - 2, -1, -1):
        pairs += a[i + 1, a.shape[0] - 2 - i : a.shape[0] - i] - a[i, 150::-100]
    for i in turns(1, 4):
        b[i] += b[i - 1, i]
        if s > 0:
            s += a[i - 1, i]
    return s, pairs, b


@spmd.program(mesh=("r",))
def elements(n: int = N):
    a = spmd.input("a", (n, n), layout=("r", None))
    return picked(a, spmd.input("b", (n, n), layout=("r", None)), spmd.range)


POINTS = 0.5, 1.5, 2.5


def solved(h, y, points, turns=range):
    """A matrix of the same few for each point, which is solved for the columns of y."""
    total = np.zeros(y.shape)
    for z in points:
        t = np.zeros(h.shape[1:])
        for n in turns(h.shape[0]):
            t += z**n * h[n]
        total += np.linalg.solve(t, y)
    return total


@spmd.program(mesh=("r",))
def points(n: int = 40):
    h = spmd.input("h", (3, n, n), layout=("r", None, None))
    y = spmd.input("y", (n, 48), layout=("r", None))
    return [solved(h, y, POINTS, spmd.range)]


def in_loops(levels: Levels) -> list[int]:
    """Return the number of exchanges in each outermost loop of the Plan."""
    loops = [s for s in levels.plan.steps if isinstance(s, Loop)]
    return [sum(isinstance(s, Exchange) for s in walk_steps(loop.body)) for loop in loops]


def same_on_any_number_of_ranks(program: Any, want: Any, **given: Any) -> None:
    levels, image = lower(program.graph({})), spmd.build(program)
    oracle = run(levels.program, {"r": 3}, given).values()
    for found in (oracle, *(image.run(ranks=ranks, **given) for ranks in (1, 2, 3, 5))):
        for one, other in zip(found, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def test_elements_that_a_loop_only_reads_are_fetched_before_it():
    """Not those that it writes, nor those that only some turns read."""
    assert in_loops(lower(elements.graph({}))) == [2]
    a, b = np.random.default_rng(3).normal(size=(2, N, N))
    same_on_any_number_of_ranks(elements, picked(a, b.copy()), a=a, b=b)


def test_what_several_loops_read_is_fetched_once_and_solved_in_parts(
    monkeypatch: pytest.MonkeyPatch,
):
    assume(monkeypatch, least_gain=0.0)
    levels = lower(points.graph({}))
    gathered = [op for op in levels.program.body.ops if op.kind.called == "all_gather"]
    assert not any(in_loops(levels)) and len(gathered) == 1
    assert [o.layout for o in levels.graph.outputs] == [((), ("r",))]
    h, y = np.random.default_rng(4).normal(size=(3, 40, 40)), np.ones((40, 48))
    y[:, 5] = range(40)
    same_on_any_number_of_ranks(points, [solved(h, y, POINTS)], h=h, y=y)


@spmd.program(mesh=("r",))
def of_what_is_gathered(n: int = 400):
    a = spmd.input("a", (n, n), layout=(None, "r"))
    s = 0.0
    for i in spmd.range(n):
        row = np.tanh(a[i] * 2)
        s += np.sum(row) + a[i, i // 2 + 7]
        for j in spmd.range(n):
            s = np.tanh(s + row[j] * row[n - 1 - j])
    return s


def test_what_is_made_of_a_gathered_array_is_gathered_as_it_lies_then(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(replicate_loops, "_gathered", lambda *_: -1.0)
    assume(monkeypatch, least_gain=-1.0)
    lower(of_what_is_gathered.graph({}, ()))
