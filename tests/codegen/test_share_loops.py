"""Loops over arrays that a program makes: ranks share them where estimates say that it pays."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import spmd
from codegen.compile import lower, split
from codegen.explain.reasons import tables
from codegen.layouts.owner_computes import rows_on_owners
from codegen.layouts.search import LayoutSearch
from codegen.layouts.share_loops import share_loops
from codegen.oracle.interpret import run
from tests.codegen.test_replicate_loops import assume, exchanges_in_loops


def escaped(n: int, turns: int, counted=range):
    x = np.linspace(-1.75, 0.25, n)
    y = np.linspace(-1.0, 1.0, n)
    c = x + y[:, None] * 1j
    count, left = np.zeros(c.shape, np.int64), 0.0
    z = np.zeros(c.shape, np.complex128)
    for k in counted(turns):
        inside = np.less(abs(z), 2.0)
        count[inside] = k
        z[inside] = z[inside] ** 2 + c[inside]
        left = left + np.sum(inside)
    count[count == turns - 1] = 0
    return {"count": count, "left": left}


@spmd.program(mesh=("r",))
def escape(n: int = 120, turns: int = 60):
    return escaped(n, turns, spmd.range)


@spmd.program(mesh=("r",))
def other(turns: int = 2000, how: str = "free", wide: int = 60):
    a = np.ones((60, wide))
    u = spmd.input("u", (60, 60), layout=(None, "r"), default=lambda i, j: 1.0 * i)
    for k in spmd.range(turns or spmd.scalar("steps", 2000)):
        if how == "chained":
            a[1:] = a[1:] + a[:-1]
            a[0] = np.max(a[-1]) + a[0]
        elif how == "given":
            u = u * 1.5 + a[:, :1]
        else:
            a = np.sin(a) * k
    return {"a": a, "u": u}


def layouts(levels):
    return {o.name: o.layout for o in levels.graph.outputs}


def test_ranks_share_what_is_computed_element_by_element():
    levels = lower(escape.graph({}))
    assert layouts(levels)["count"] == (("r",), ()) and exchanges_in_loops(levels) == 1
    (told,) = tables(levels)["chosen"]
    assert "ranks share this loop" in told["message"] and told["try"] == ""
    assert told["place"]["text"].strip() == "for k in counted(turns):"
    assert layouts(lower(other.graph({})))["a"] == (("r",), ())


@pytest.mark.parametrize("given", [
    {"how": "given"},  # the layout of another array is given
    {"how": "chained"},  # every turn would exchange
    {"turns": 0},  # as many turns as a scalar says
    {"turns": 10},  # few
    {"turns": 500, "wide": 1},  # little to compute
], ids=str)
def test_other_loops_stay_as_they_are(given):
    assert layouts(lower(other.graph(given)))["a"] == ((), ())


def test_results_are_numpys_on_any_number_of_ranks():
    expected = escaped(120, 60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing that a user could do better
        image = spmd.build(escape)
    for ranks in (1, 2, 3, 5, 16, 130):
        out = image.run(ranks=ranks)
        np.testing.assert_array_equal(out["count"], expected["count"])
        assert out["left"] == expected["left"]


@spmd.program(mesh=("r",))
def nested(n: int = 7):
    """Loops in loops, branches, sums, products and transposes of what is carried."""
    a, b = np.ones((n, n)), np.zeros(n)
    total, turned = 0.0, np.zeros((n, n))
    for k in spmd.range(4):
        for j in spmd.range(n):
            a[j] = a[j] * 0.5 + b
            if np.sum(a) > 10.0:
                a = a @ np.eye(n)[::-1] - 0.25 * k
            else:
                turned = a.T + turned
                b = b + np.sum(turned, axis=1) / n
        total = total + np.max(turned)
    return {"a": a * 2, "b": b[::-1], "sum": a + turned, "total": total}


def test_a_program_of_which_all_follows(monkeypatch: pytest.MonkeyPatch):
    """If the estimates favour every loop, all of a program is laid out, and its results stay the
    same."""
    assume(monkeypatch, least_gain=-1e9, least_speedup=0.0)
    demands, program = LayoutSearch(split, rows_on_owners).best(nested.graph({}), [share_loops])
    assert {o.name: o.layout for o in demands.graph.outputs} == {
        "a": (("r",), ()), "b": (("r",),), "sum": (("r",), ()), "total": ()}
    expected = nested.eager()
    for ranks in (1, 2, 3, 9):
        for level in (demands.graph, program):
            out = run(level, {"r": ranks}, {})
            for name, value in expected.items():
                np.testing.assert_allclose(out[name], value, rtol=1e-12)
