"""The Parallel Research Kernels, which check themselves, and what they are made of, on any N."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from benchmarks import research_kernels
from codegen.compile import lower
from codegen.ir.plan_text import plan_text
from codegen.loops.schedule import schedule

SMALL = {
    "stencil": {"n": 23, "r": 2}, "transpose": {"n": 37}, "nstream": {"n": 1001},
    "dgemm": {"n": 24}, "reduce": {"n": 100}, "random": {"log2": 12, "ahead": 64},
    "branch": {"n": 1000}, "synch_p2p": {"m": 17, "n": 11},
}


@pytest.mark.filterwarnings("ignore::spmd.LayoutWarning")  # a product reads all of b
@pytest.mark.parametrize("name", research_kernels.KERNELS)
def test_they_find_what_the_c_finds(name: str) -> None:
    image = spmd.build(getattr(research_kernels, name), **SMALL[name])
    for ranks in (1, 2, 5):
        image.run(ranks=ranks, steps=3)


def test_few_points_go_to_all_ranks_and_the_table_stays() -> None:
    plan = plan_text(schedule(lower(research_kernels.random.graph({})).plan))
    assert plan.count("all_gather") == plan.count("; 256 looked at before") == 2
    assert "reduce_scatter" not in plan


def test_an_element_that_follows_from_another_one_is_one_statement() -> None:
    """In place, and C sees that it reads what it wrote in the turn before."""
    text = lower(research_kernels.synch_p2p.graph({})).source.text
    assert "x_2[e2 + i_2 + 1] = x_2[e2 + i_2] + x_2[e3 + i_2] - x_2[e3 + i_2 - 1];" in text


@spmd.program(mesh=("r",))
def looked_up(n: int = 1000):
    """Positions that are kept, and read twice; two arrays; what is read is written after it."""
    x = spmd.input("x", (n,), np.float64, layout=("r",))
    h = spmd.input("h", (n,), np.float16, layout=("r",))
    k = spmd.input("k", (n,), np.int32, layout=("r",))
    for _ in spmd.range(3):
        x = x - 0.5 * x[k] + np.sqrt(h[k ^ 1] * h)
    at = k * 2 - 999
    return x, at, (x[at] - x[np.abs(at)]) * 2.0 + at


@spmd.program(mesh=("r",))
def updated(n: int = 5000, points: int = 700):
    x = spmd.input("x", (n,), np.float64, layout=("r",))
    y = spmd.input("y", (n, 3), np.float64, layout=("r", None))
    v = spmd.input("v", (points,), np.float64)
    k = spmd.input("k", (points,), np.int64)
    np.add.at(x, k, v)
    z = x.copy()
    z[k] = v
    y[k] = v[:, None]
    return x, z, y


def test_points_that_meet_are_taken_in_their_order() -> None:
    rng = np.random.default_rng(3)
    x, y, v = rng.random(5000), rng.random((5000, 3)), 10.0 ** rng.integers(-9, 9, 700)
    k = rng.integers(-5000, 5000, 700) // 50
    wanted = updated.eager(x=x.copy(), y=y.copy(), v=v, k=k)
    image = spmd.build(updated)
    for ranks in (1, 3, 8):
        for got, want in zip(image.run(ranks=ranks, x=x, y=y, v=v, k=k), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_what_is_read_ahead_is_what_stands_there() -> None:
    rng = np.random.default_rng(4)
    given = {"x": rng.random(1000), "h": rng.random(1000).astype(np.float16),
             "k": rng.permutation(1000).astype(np.int32)}
    wanted = looked_up.eager(**{name: x.copy() for name, x in given.items()})
    assert "ahead_0 is" in plan_text(schedule(lower(looked_up.graph({})).plan))
    image = spmd.build(looked_up)
    for ranks in (1, 3):
        for got, want in zip(image.run(ranks=ranks, **given), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-14)
