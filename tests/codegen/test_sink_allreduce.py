"""What turns only add up is summed over the ranks once, behind the loop."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.graph import Module, Region
from codegen.ops import Exchange, Loop
from codegen.oracle import interpret
from spmd import nn

N, TURNS = 14, 5


def sums_behind(x, w, turns=range):
    """Accumulates ten sums, whole, by element, scaled, from an initial value and in nested
    loops."""
    total, means, rows, least = np.float64(2.5), np.zeros(3), np.ones((3, 4)), np.float32(0)
    count, product = np.int64(0), np.full((4, 2), 0.5)
    for k in turns(TURNS):
        total += np.sum(x[:, 0] * k)
        means[1] += np.mean(x[:, 1])
        means[0] -= np.sum(x * x) / (k + 1)
        rows[2] += np.sum(x * k, axis=0)
        rows[1] = rows[1] - 2.0 * (np.sum(x - k, axis=0) + np.sum(x, axis=0))
        count = count + np.sum(x[:, 2] > 0.1 * k)
        product += x.T @ (w * k)
        least = least + np.sum(x[:, 3].astype(np.float32))
    nested = np.zeros(2)
    for k in turns(3):
        for j in turns(k):
            nested = nested + np.sum(w * j, axis=0)
    return total, means, rows, count, product, least, nested


def sums_in_turns(x, w, turns=range):
    """Five that a turn reads, or that are a small part of what is carried."""
    total, seen, few, other, last = np.float64(0), np.zeros(TURNS), np.zeros((90, 4)), 0.0, 0.0
    for k in turns(TURNS):
        total += np.sum(x * k)
        seen[k] = total
        few[k] += np.sum(x, axis=0)
        other = 0.5 * other + np.sum(w * k)
        now = np.sum(x - k)
        last = last + now
        seen[k] += now
    return total, seen, few, other, last


def exchanges(program: Any) -> tuple[list[str], list[str]]:
    """Return the names of exchanges in loops, and of those outside of all loops."""
    within: tuple[list[str], list[str]] = ([], [])

    def walk(region: Region, inside: bool) -> None:
        for op in region.ops:
            if isinstance(op.kind, Exchange):
                within[not inside].append(op.kind.called)
            for r in op.regions:
                walk(r, inside or isinstance(op.kind, Loop))

    made: Module = lower(program.graph({})).program
    walk(made.body, False)
    return within


@spmd.program(mesh=("r",))
def program():
    x = spmd.input("x", (N, 4), np.float64, layout=("r", None))
    w = spmd.input("w", (N, 2), np.float64, layout=("r", None))
    return sums_behind(x, w, spmd.range), sums_in_turns(x, w, spmd.range)


def test_results_are_numpys_on_any_number_of_ranks():
    random = np.random.default_rng(4)
    given = {"x": random.random((N, 4)), "w": random.normal(size=(N, 2))}
    image = spmd.build(program)
    for ranks in (1, 3, 17):
        for body, found in zip((sums_behind, sums_in_turns), image.run(ranks=ranks, **given)):
            for a, b in zip(found, body(**given), strict=True):
                np.testing.assert_allclose(a, b, 1e-6 if a.dtype == np.float32 else 1e-13)


def test_one_sum_for_each_that_is_only_added_up():
    within, behind = exchanges(program)
    assert (len(within), len(behind)) == (4, 7)
    assert set(within + behind) == {"all_reduce"}


def test_what_the_user_exchanges_stays_where_it_is():
    @spmd.program(mesh=("r",))
    def asked():
        x = spmd.input("x", (N,), np.float64, layout=("r",))

        @spmd.shard_map(mesh="r", out_layouts=())
        def total(x):
            found = np.float64(0)
            for k in spmd.range(TURNS):
                found += spmd.psum(np.sum(x * k), "r")
            return found

        return total(x)

    assert exchanges(asked) == (["all_reduce"], [])


@pytest.mark.parametrize("cell", [nn.lstm_cell, spmd.remat(nn.lstm_cell)], ids=["plain", "remat"])
def test_a_gradient_of_a_recurrent_network_is_summed_once_a_weight(cell):
    hidden, batch = 3, 4

    @spmd.program(mesh=("x",), layout={"batch": "x"})
    def step():
        x = spmd.input("x", (spmd.Dim("batch", batch), 5, 2), np.float32)
        w = {name: spmd.input(name, shape, np.float32) for name, shape in (
            ("w", (2, 4, hidden)), ("u", (hidden, 4, hidden)), ("b", (4, hidden)),
            ("peepholes", (3, hidden)))}

        def loss(w):
            (output, _), _ = nn.recurrent(cell, w, x.swapaxes(0, 1))
            return np.mean(output**2)

        return spmd.grad(loss)(w)

    assert exchanges(step) == ([], ["all_reduce"] * 4)


def test_it_holds_along_both_axes_of_a_mesh():
    """Sums over one axis, of what is split along the other; and of loops by the condition."""
    @spmd.program(mesh=("a", "b"))
    def both():
        x = spmd.input("x", (6, 4), np.float64, layout=("a", "b"))
        columns, every, k, last = np.zeros(4), np.zeros(()), 0.0, np.max(x) - 18
        short = np.zeros(4, ml_dtypes.bfloat16)
        while k < last:
            columns += np.sum(x * k, axis=0)
            every += np.sum(x)
            short = short + np.sum((x >= k).astype(ml_dtypes.bfloat16), axis=0)
            k += 1
        return columns, every, short

    x = np.arange(24.0).reshape(6, 4)
    assert exchanges(both) == (["all_reduce"], ["all_reduce"] * 3)
    columns, every, short = spmd.build(both).run(ranks=6, x=x)
    np.testing.assert_allclose(columns, 10 * x.sum(0))
    assert every == TURNS * x.sum()
    np.testing.assert_array_equal(short, [26, 27, 28, 29])


def test_shares_that_are_far_larger_than_their_sum_or_not_finite():
    """Half types cannot hold such shares: their sums stay in the turns. So do those divided
    by what only the run knows."""
    @spmd.program(mesh=("r",))
    def kept():
        w = spmd.input("w", (2,), np.float64)
        out = {}
        for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
            x, total = spmd.input(name, (2,), dtype, layout=("r",)), np.zeros((), dtype)
            for _ in spmd.range(60):
                total = total + np.sum(x)
            out[name] = total
        over, y = np.zeros(()), spmd.input("y", (2,), np.float64, layout=("r",))
        for k in spmd.range(2):
            over = over + np.sum(y) / w[k]
        return {**out, "over": over}

    given = {"y": np.array([3.0, -2.0]), "w": np.array([0.0, 1.0]),
             "float16": np.float16([1000, -999]),
             "bfloat16": np.array([256, -255], ml_dtypes.bfloat16)}
    image = spmd.build(kept)
    for ranks in (1, 2, 3):
        found = image.run(ranks=ranks, **given)
        assert (float(found["float16"]), float(found["bfloat16"])) == (60, 60), ranks
        assert found["over"] == np.inf


@pytest.mark.parametrize("size", [None, 2])
def test_rows_of_which_each_rank_has_some_are_summed_to_their_owner(size):
    """Layers and batch are split over one axis: ranks' parts of the gradient are different rows."""
    @spmd.program(mesh={"x": size}, layout={"layers": "x", "batch": "x"})
    def stacked():
        w = spmd.input("w", (spmd.Dim("layers", 6), 4, 4), np.float64)
        x = spmd.input("x", (spmd.Dim("batch", 6), 4), np.float64)

        def loss(w):
            return np.mean(spmd.scan(lambda h, p: (np.tanh(h @ p), None), x, w)[0])

        return spmd.grad(loss)(w)

    random = np.random.default_rng(0)
    given = {"w": random.normal(size=(6, 4, 4)), "x": random.normal(size=(6, 4))}
    wanted = stacked.eager(ranks=size or 1, **given)
    graph = lower(stacked.graph({})).program
    for ranks in (size,) if size else (1, 2, 4):
        (found,) = interpret.run(graph, {"x": ranks}, given).values()
        np.testing.assert_allclose(found, wanted, 1e-12, 1e-14)
