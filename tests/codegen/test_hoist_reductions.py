"""Sums that each turn of a loop makes are made before it, tile by tile of what all of them read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.graph import hoist_reductions
from codegen.ir.graph import walk
from codegen.loops import row_tiles
from codegen.ops import Loop, Reduce
from codegen.target import TARGET

N, BINS = 150, 9


def of_arrays(x, w, turns=range):
    """Reductions of arrays that their loops only read."""
    means, peaks, found = np.zeros(BINS), np.zeros(BINS), np.zeros((3, BINS), np.int64)
    spread, near = np.zeros(BINS), np.zeros(BINS, bool)
    for i in turns(BINS):
        low, high = i / BINS, (i + 1) / BINS
        chosen = np.logical_and(low <= x, x < high)
        means[i] = w[chosen].mean()
        peaks[i] = np.where(chosen, w, -5.0).max()
        away = x - i / BINS
        spread[i] = np.sum(away * away) + w[i]
    for k in turns(3):
        for i in turns(BINS - 1, -1, -2):
            found[k, i] = np.sum(x > (i + 2 * k) / BINS)
            near[i] = np.any(np.abs(x[3:] - 0.1 * i) < 1e-3) or near[i]
    return means, peaks, found, spread, near


def of_written(x, w, turns=range):
    """Reductions of what the loop writes, of rows that turns choose, and where few are taken."""
    sums, rows, some = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)
    for i in turns(BINS):
        sums[i] = np.sum(x * i)
        x[i] = sums[i] / N
    for i in turns(BINS):
        rows[i] = np.sum(w[i:i + 40] - i)
    for i in turns(BINS):
        if x[i] > 0.5:
            some[i] = np.max(w - i)
    return sums, rows, some, x


def program(body: Any) -> Any:
    @spmd.program(mesh=("r",))
    def kernel():
        x = spmd.input("x", (N,), np.float64, layout=("r",))
        w = spmd.input("w", (N,), np.float64, layout=("r",))
        return body(x, w, spmd.range)

    return kernel


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hoist_reductions, "ELEMENTS", 8)
    monkeypatch.setattr(row_tiles, "TARGET", replace(TARGET, reused=128))


def test_no_turn_combines_what_it_only_reads():
    for body, left in ((of_arrays, 0), (of_written, 3)):
        graph = lower(program(body).graph({})).graph
        turns = [o for op in walk(graph.body) if isinstance(op.what, Loop)
                 for r in op.regions for o in walk(r) if isinstance(o.what, Reduce)]
        assert len([o for o in turns if o.result.type.ndim == 0]) == left


def test_what_all_read_is_read_in_tiles():
    assert "_tile" in lower(program(of_arrays).graph({})).source.text


@pytest.mark.parametrize("body", [of_arrays, of_written])
def test_results_are_numpys_on_any_number_of_ranks(body: Any):
    random = np.random.default_rng(4)
    given = {"x": random.random(N), "w": random.normal(size=N)}
    wanted = body(*(v.copy() for v in given.values()))
    image = spmd.build(program(body))
    for ranks in (1, 2, 3, 5, 16, 200):
        for found, e in zip(image.run(ranks=ranks, **given), wanted, strict=True):
            np.testing.assert_allclose(found, e, rtol=1e-12)


def test_sums_of_float32_are_rounded_once():
    """A tile's sum would be rounded as it is added to the one before."""
    n = 200_000
    w = np.ones(n, np.float32)
    w[0], w[-1] = 1e8, -1e8

    @spmd.program(mesh=("r",))
    def sums():
        w = spmd.input("w", (n,), np.float32, layout=("r",))
        made = np.zeros(8, np.float32)
        for t in spmd.range(8):
            made[t] = np.sum(w * (t + 1))
        return made

    found = spmd.build(sums).run(ranks=1, w=w)
    np.testing.assert_allclose(found, (n - 2) * np.arange(1.0, 9), 1e-6)


def test_what_would_take_an_array_for_each_turn_stays():
    @spmd.program(mesh=("r",))
    def far():
        a = spmd.input("a", (5000, 4), np.float64, layout=("r", None))
        made = np.zeros(50)
        for t in spmd.range(50):
            made[t] = np.sum(np.max(np.abs(a - t), axis=1))
        return made

    graph = far.capture()
    assert hoist_reductions.hoist_reductions(graph) is graph
