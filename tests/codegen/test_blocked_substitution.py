"""Loops in which a row meets all rows before it: in blocks where they can be, else as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import Levels, lower
from codegen.graph import blocked_substitution
from codegen.ir.plan import Exchange, Loop
from codegen.ir.steps import walk_steps
from codegen.oracle.interpret import run

N = 41  # no multiple of the rows of a block


def solved(a, b, turns=range):
    """Forward and back substitution; a, which lies in rows, is only read, and of what a turn has
    written only its own row."""
    n, most = a.shape[0], 0.0
    y, z = np.zeros(n), np.zeros_like(b)
    for i in turns(n):
        y[i] = (b[i, 0] - a[i, :i] @ y[:i]) / a[i, i]
        most = np.maximum(most, i * y[i])
    x = y.copy()
    for i in turns(n - 1, -1, -1):
        x[i] -= i * (a[i, i + 1 :] @ x[i + 1 :]) / n
    for i in turns(n):
        z[i] = b[i] - a[i, :i] @ z[:i]
    return y, x, z, most


def others(a, b, turns=range):
    """Rows that meet more than those before them, or are written in another order."""
    n, x, y, z = a.shape[0], b[:, 0].copy(), b[:, 0].copy(), b[:, 0].copy()
    for i in turns(1, n):
        x[i] = b[i, 0] - a[i, :i] @ x[:i] + x[i - 1]
    for i in turns(n):
        y[n - 1 - i] = b[i, 0] - a[i, :i] @ y[:i]
    for i in turns(n):
        z[i] = z[i] - a[i, :i] @ z[:i]
        y[i] += z[0] - z[n - 1]
    for i in turns(n):
        b[i] = b[n - 1 - i] @ a[:3, :3]
    return x, y, z, b


def program(of: Any, split: str | None = "r") -> Any:
    @spmd.program(mesh=("r",))
    def rows(n: int = N):
        a = spmd.input("a", (n, n), layout=(split, None))
        return of(a, spmd.input("b", (n, 3), layout=(split, None)), spmd.range)

    return rows


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_substitution, "BLOCK", 4)


def blocks(levels: Levels) -> int:
    return sum(s.counter.name.startswith("block") for s in walk_steps(levels.plan.steps)
               if isinstance(s, Loop) and s.counter is not None)


def same(of: Any) -> Levels:
    a, b = np.random.default_rng(1).normal(size=(2, N, N))
    a += 8 * np.eye(N)
    b = b[:, :3].copy()
    made, want = program(of), of(a, b.copy())
    levels, image = lower(made.graph({})), spmd.build(made)
    outs = [run(level, {"r": 3}, {"a": a, "b": b}) for level in (levels.graph, levels.program)]
    for found in (*outs, *(image.run(ranks=ranks, a=a, b=b) for ranks in (1, 2, 3, 5))):
        for one, other in zip(found.values() if isinstance(found, dict) else found, want):
            np.testing.assert_allclose(one, other, rtol=1e-9)
    return levels


def test_rows_are_computed_in_blocks():
    levels = same(solved)
    assert blocks(levels) == 3
    turns = [s for loop in walk_steps(levels.plan.steps) if isinstance(loop, Loop)
             for s in walk_steps(loop.body) if isinstance(s, Loop)]
    assert not any(isinstance(s, Exchange) for loop in turns for s in walk_steps(loop.body))


def test_other_loops_stay_as_they_are():
    assert blocks(same(others)) == 0
    assert blocks(lower(program(solved, None).graph({}))) == 0  # nothing is split
