"""Loops of a few numbers each are compute phases; what is long, exchanges or is checked is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import Levels, lower
from codegen.ir.plan import Loop, Phase, WorkBranch, WorkLoop
from codegen.ir.steps import walk_steps, walk_works

N = 11
GIVEN = {"a": np.random.default_rng(5).normal(size=(N, N)), "s": np.arange(N) * 7 % 4}


def folded(a: Any, s: Any, turns: Any) -> Any:
    """Runs loops that depend on each other; `turns` is spmd.range, or Python's range for NumPy."""
    table = np.zeros((N, N), np.int64)
    for i in turns(N - 1, -1, -1):
        for j in turns(i + 1, N):
            table[i, j] = table[i, j - 1]
            if i + 1 < N:
                table[i, j] = max(table[i, j], table[i + 1, j])
                if i < j - 1 and s[i] + s[j] == 3:
                    table[i, j] = max(table[i, j], table[i + 1, j - 1] + 1)
            for k in turns(i + 1, j):
                table[i, j] = max(table[i, j], table[i, k] + table[k + 1, j])
    first = s.copy()
    for k in turns(1, N):
        first[k] += first[k - 1]
        if first[k] > 9:
            break
    swept = a.copy()
    for t in turns(0, 7, 3):
        for i in turns(1, N):
            swept[i, :] += swept[i - 1, :] / (t + 2)
            for j in turns(N - 2, 0, -2):
                swept[i, j] = (swept[i, j] + swept[i, j + 1]) * 0.5
    return {"table": table, "swept": swept, "first": first}


@spmd.program(mesh=("x",))
def case(rows: str = "") -> Any:
    layout = (rows,) if rows else (None,)
    a = spmd.input("a", (N, N), np.float64, layout=(*layout, None))
    return folded(a, spmd.input("s", (N,), np.int64, layout=layout), spmd.range)


@spmd.program(mesh=("x",))
def long() -> Any:
    x = spmd.input("x", (9000,), np.float64, layout=(None,))
    y = spmd.input("y", (4,), np.float64, layout=(None,))
    for _ in spmd.range(3):
        x = x * 0.5 + 1
        for k in spmd.range(1, 4):
            y[k] += y[k - 1]
    for _ in spmd.range(2**40):  # nobody knows when it ends
        y[0] += 1
    return {"x": x, "y": y}


def phases_with_loops(levels: Levels) -> list[list[Any]]:
    phases = [s for s in walk_steps(levels.plan.steps) if isinstance(s, Phase)]
    works = [list(walk_works(p.work)) for p in phases]
    return [some for some in works if any(isinstance(w, WorkLoop) for w in some)]


def test_loops_of_numbers_are_one_phase() -> None:
    levels = lower(case.capture())
    table, swept = phases_with_loops(levels)
    assert sum(isinstance(w, WorkLoop) for w in table) == 3
    assert sum(isinstance(w, WorkBranch) for w in table) >= 2
    assert sum(isinstance(w, WorkLoop) for w in swept) == 3
    loops = [s for s in walk_steps(levels.plan.steps) if isinstance(s, Loop)]
    assert [loop.flag is not None for loop in loops] == [True]  # data decides when it ends


def test_what_takes_long_stays_a_loop_of_steps() -> None:
    levels = lower(long.capture())
    loops = [s for s in walk_steps(levels.plan.steps) if isinstance(s, Loop)]
    assert [loop.stop.value for loop in loops if loop.stop is not None] == [3, 2**40]
    assert len(phases_with_loops(levels)) == 1


@pytest.mark.parametrize("rows", ["", "x"])
def test_they_compute_what_numpy_does(rows: str) -> None:
    image, wanted = spmd.build(case, rows=rows), folded(**GIVEN, turns=range)
    for ranks in (1, 2, 3, 5):
        found = image.run(ranks=ranks, **GIVEN)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{name} on {ranks}")


def test_a_fault_inside_is_told_where_it_is() -> None:
    @spmd.program(mesh=("x",))
    def faulty() -> Any:
        x = spmd.input("x", (6,), np.float64, layout=(None,))
        at = spmd.input("at", (6,), np.int64, layout=(None,))
        for k in spmd.range(6):
            x[k] = x[at[k]] + 1
        return x

    given = {"x": np.zeros(6), "at": np.array([0, 1, 2, 9, 4, 5])}
    with pytest.raises(spmd.SpmdError, match=r"test_loops_into_phases.py:\d+"):
        spmd.build(faulty, check=True).run(ranks=2, **given)
    assert len(phases_with_loops(lower(faulty.capture()))) == 1
