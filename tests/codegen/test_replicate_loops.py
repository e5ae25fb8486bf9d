"""Loops of short turns: what the estimates choose, and that results are NumPy's all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import Levels, lower, split
from codegen.explain.reasons import tables
from codegen.ir.plan import Exchange, Loop
from codegen.ir.steps import walk_steps
from codegen.layouts import gather_before_loop, replicate_loops, search, share_loops
from codegen.layouts.loop_dims import across
from codegen.layouts.owner_computes import rows_on_owners
from codegen.layouts.relayout import Inside, Laid, relaid
from codegen.oracle.interpret import run
from codegen.target import TARGET
from tests.programs import global_flow as flow
from tests.programs import global_recipes as recipes
from tests.programs.test_global import CHOICE, RANKS, expected_of, same
from tests.programs.test_global import search as search_for

N = 40
COUNT = 25  # random programs, which begin with one of the loops
LOOPS = flow.looped, flow.versions, flow.rows, flow.scanned


def assume(monkeypatch: pytest.MonkeyPatch, **fields: float) -> None:
    """Let the layout search assume another machine, or another rule of what pays."""
    for module in (search, gather_before_loop, replicate_loops, share_loops):
        monkeypatch.setattr(module, "TARGET", replace(TARGET, **fields))


def factored(a, turns=range):
    """Compute a Cholesky factor: a few numbers of every turn go into the next one."""
    a[0, 0] = np.sqrt(a[0, 0])
    for i in turns(1, a.shape[0]):
        for j in turns(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] = np.sqrt(a[i, i] - np.dot(a[i, :i], a[i, :i]))


def updated(c, a, turns=range):
    """c += a @ a.T below the diagonal: a is only read."""
    for i in turns(c.shape[0]):
        for k in turns(a.shape[1]):
            c[i, :i + 1] += a[i, k] * a[:i + 1, k]


def arrays(n: int = N) -> dict[str, Any]:
    random = np.random.default_rng(4)
    a = random.normal(size=(n, n))
    return {"a": a @ a.T + n * np.eye(n), "b": random.normal(size=(n, n))}


@spmd.program(mesh=("r",))
def both(n: int = N):
    a = spmd.input("a", (n, n), layout=("r", None))
    b = spmd.input("b", (n, n), layout=("r", None))
    c = np.zeros_like(b)
    factored(a, spmd.range)
    updated(c, b, spmd.range)
    return {"a": a, "c": c}


@spmd.program(mesh=("r",))
def one(n: int = N, turns: int = 0, held: bool = False, wide: int = 1):
    a = spmd.input("a", (n, n), layout=("r", None))
    b = spmd.input("b", (wide, n), layout=(None, "r"))
    steps = turns or spmd.scalar("steps", 2000)
    for _ in spmd.range(steps):
        a[1:] += 0.5 * a[:-1]
        a[0] = np.max(b) + a[0]
        if held:
            a = a.relayout(("r", None))
    return a


def exchanges_in_loops(levels: Levels) -> int:
    loops = [s for s in levels.plan.steps if isinstance(s, Loop)]
    return sum(isinstance(s, Exchange) for loop in loops for s in walk_steps(loop.body))


def test_what_the_estimates_choose():
    levels = lower(both.graph({}))
    assert exchanges_in_loops(levels) == 0
    (told,) = tables(levels)["chosen"]  # few bytes that are only read are gathered without a word
    assert "every rank computes all turns of this loop" in told["message"]
    assert "relayout((\"r\", None)) in the loop" in told["try"] and not told["costs"]
    assert told["place"]["text"].strip() == "for i in turns(1, a.shape[0]):"
    layouts = {o.name: o.layout for o in levels.graph.outputs}
    assert layouts == {"a": (("r",), ()), "c": (("r",), ())}


@pytest.mark.parametrize("given", [
    {"turns": 0},  # as many turns as a scalar says
    {"turns": 20},  # few
    {"turns": 2000, "held": True},  # the user says how a lies
    {"turns": 2000, "n": 2000},  # much to compute
    {"turns": 2000, "wide": 300_000},  # a large array would be gathered
], ids=str)
def test_other_loops_stay_as_they_are(given: dict[str, Any]):
    levels = lower(one.graph(given))
    assert exchanges_in_loops(levels) > 0 and tables(levels)["chosen"] == []


def swept(u, v, steps, turns=range):
    """Sweeps along both dims in turn, each of which reads what lies beside it along the other."""
    n = u.shape[0]
    for _ in turns(steps):
        for j in turns(1, n):
            v[j, 1:-1] = np.tanh(v[j - 1, 1:-1]) + u[1:-1, j] - 0.25 * (u[:-2, j] + u[2:, j])
        for j in turns(n - 2, -1, -1):
            u[1:-1, j] = np.tanh(u[1:-1, j + 1]) + v[:-2, j] - 0.25 * v[2:, j]


@spmd.program(mesh=("r",))
def sweeps(n: int = 300, steps: int = 30):
    u = spmd.input("a", (n, n), layout=("r", None))
    v = np.zeros_like(u)
    swept(u, v, steps, spmd.range)
    return u


def test_arrays_are_laid_out_anew_before_loops_that_walk_along_split_dims():
    levels = lower(sweeps.graph({}))
    inner = [s for s in walk_steps(levels.plan.steps) if isinstance(s, Loop)]
    counts = [sum(isinstance(s, Exchange) for s in walk_steps(loop.body)) for loop in inner]
    assert 0 < counts[0] <= 4 and not any(counts[1:])  # per step, and in a sweep
    (told,) = tables(levels)["chosen"]
    assert "walk along no split dim" in told["message"] and told["try"] == ""
    a = arrays(12)["a"] / 12
    levels = lower(sweeps.graph({"n": 12, "steps": 2}))
    expected = a.copy()
    swept(expected, np.zeros_like(a), 2)
    few = split(sweeps.graph({"n": 12, "steps": 2}))
    (outer,) = [op for op in few[0].graph.body.ops if op.kind.counts()]
    choices = {outer.kind.counts(): Laid((), Inside.FOLLOWS), **across(outer)}
    graph = relaid(few[0].graph, choices)
    for ranks in (1, 2, 3, 5, 16):
        for level in (few[1], graph, split(graph)[1]):
            out = run(level, {"r": ranks}, {"a": a})
            np.testing.assert_allclose(out["result"], expected, rtol=1e-12)


def test_ghost_cells_of_what_a_loop_only_reads_are_fetched_once():
    @spmd.program(mesh=("r",))
    def columns(n: int = 20):
        u = spmd.input("u", (n, n), layout=("r", None))
        w = spmd.zeros((n, n), layout=("r", None))
        for j in spmd.range(1, n):
            w[1:-1, j] = 0.5 * w[1:-1, j - 1] + u[2:, j] - u[:-2, j - 1]
        return w

    levels = lower(columns.graph({}))
    assert exchanges_in_loops(levels) == 0
    assert sum(isinstance(s, Exchange) for s in walk_steps(levels.plan.steps)) == 1
    u = arrays(20)["b"]
    expected = np.zeros((20, 20))
    for j in range(1, 20):
        expected[1:-1, j] = 0.5 * expected[1:-1, j - 1] + u[2:, j] - u[:-2, j - 1]
    for ranks in (1, 2, 3, 20, 23):
        out = run(levels.program, {"r": ranks}, {"u": u})
        np.testing.assert_array_equal(out["result"], expected)


def test_a_loop_of_short_turns_does_not():
    assert exchanges_in_loops(lower(one.graph({"turns": 2000}))) == 0


def test_results_are_numpys_on_any_number_of_ranks():
    given = arrays()
    a, c = given["a"].copy(), np.zeros((N, N))
    factored(a)
    updated(c, given["b"])
    levels = lower(both.graph({}))
    found = [run(levels.graph, {"r": 3}, given), run(levels.program, {"r": 3}, given)]
    image = spmd.build(both)
    found += [image.run(ranks=ranks, **given) for ranks in (1, 2, 3, 5, 16)]
    for out in found:
        np.testing.assert_allclose(out["a"], a, rtol=1e-9)
        np.testing.assert_allclose(out["c"], c, rtol=1e-9)


def test_random_programs_with_every_loop_computed_whole(monkeypatch: pytest.MonkeyPatch):
    """They give the same results if the estimates favour it for all loops with exchanges."""
    assume(monkeypatch, least_gain=-1.0, least_speedup=0.0)
    changed = []

    def compared(recipe: Any, ranks: int, choice: int) -> None:
        loop = (recipes.STEPS.index(LOOPS[choice % len(LOOPS)]), 0, ranks, 7, choice + 3)
        recipe = replace(recipe, steps=(loop, *recipe.steps))
        program = recipes.program_of(recipe)
        expected = expected_of(program)
        graph = program.capture()
        layouts = search.LayoutSearch(split, rows_on_owners)
        demands, lowered = layouts.best(graph, [replicate_loops.replicate_loops])
        changed.append(demands is not layouts.split(graph)[0])
        mesh = recipes.sizes(ranks, recipe.axes, choice)
        inputs = {i.name: expected[f"r0_{k}"] for k, i in enumerate(graph.inputs)}
        same(run(lowered, mesh, inputs), expected, f"the Program over {mesh}")
        same(run(demands.graph, mesh), expected, "the Graph")

    search_for(7, COUNT, compared, recipes.recipes(4), RANKS, CHOICE)
    assert any(changed)


def test_what_is_stored_is_computed_in_the_parts_in_which_the_array_lies():
    @spmd.program(mesh=("r",))
    def stages(n: int = 64):
        y = spmd.input("y", (n,), layout=("r",))
        for k in range(4):
            parts = np.transpose(np.reshape(y, (2**k, 2, n >> (k + 1))), (1, 0, 2))
            y[:] = np.reshape(np.array([[1.0, 1], [1, -1]]) @ np.reshape(parts, (2, n // 2)), (n,))
        return y

    # not by every rank, of what the first stage has gathered
    assert sum(isinstance(s, Exchange) for s in walk_steps(lower(stages.graph({})).plan.steps)) >= 4
