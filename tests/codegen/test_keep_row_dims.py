"""Rows of split arrays that are computed of rows: by their owner, without an exchange."""

from __future__ import annotations

import numpy as np

import spmd
from codegen.compile import lower
from codegen.ir.plan import Exchange, Loop
from codegen.ir.steps import walk_steps
from codegen.verify.rows import table_of
from codegen.verify.sample import sample

ROWS = np.random.default_rng(3).normal(size=(11, 7))
OTHER = np.random.default_rng(4).normal(size=(11, 7))


def sweeps(a, b, turns=range):
    """Gauss and Seidel's, row by row and element by element; and along columns."""
    for i in turns(1, 10):
        a[i, 1:-1] += 0.1 * (a[i - 1, :-2] + a[i + 1, 2:] * b[i, 1:-1])
        for j in turns(1, 7):
            a[i, j] = (a[i, j] + a[i, j - 1] * 2.0) / 3.0
        b[i] = np.maximum(b[i], a[i]) - b[i - 1] + i
    for j in turns(1, 7):
        a[:, j] = a[:, j] - 0.5 * a[:, j - 1] + b[3, j]
        a[4, j] = -abs(a[4, j]) + b[4, 0] * a[5, j]


@spmd.program(mesh=("r",))
def rows():
    a = spmd.input("a", ROWS.shape, layout=("r", None))
    b = spmd.input("b", OTHER.shape, layout=("r", None))
    sweeps(a, b, spmd.range)
    return {"a": a, "b": b}


def test_results_are_numpys_on_any_number_of_ranks():
    a, b = ROWS.copy(), OTHER.copy()
    sweeps(a, b)
    image = spmd.build(rows)
    for ranks in (1, 2, 3, 5, 12):
        out = image.run(ranks=ranks, a=ROWS, b=OTHER)
        np.testing.assert_allclose(out["a"], a, rtol=1e-13)
        np.testing.assert_allclose(out["b"], b, rtol=1e-13)


def test_a_row_is_computed_where_it_lies():
    """The loop along a row has no exchange; of the rows around it a rank gets those alone."""
    plan = lower(rows.graph({})).plan
    down, _ = (s for s in walk_steps(plan.steps) if isinstance(s, Loop))  # that along is a phase's
    assert sum(isinstance(s, Exchange) for s in walk_steps(down.body)) == 2


def edges(u, turns=range):
    """Rows that are copies of others, beside them and far away."""
    for _ in turns(4):
        u[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] - 2 * u[1:-1, 1:-1])
        u[-1, :] = u[-2, :]
        u[0, :] = u[-3, :]
        u[3, :] = u[7, :]


@spmd.program(mesh=("r",))
def rimmed():
    u = spmd.input("u", ROWS.shape, layout=("r", None))
    edges(u, spmd.range)
    return u


def test_a_row_that_is_copied_goes_to_its_new_owner_alone():
    levels = lower(rimmed.graph({}))
    exchanges = [s for s in walk_steps(levels.plan.steps) if isinstance(s, Exchange)]
    assert len(exchanges) == 4 and {x.flow for x in exchanges} == {"near"}
    u, image = ROWS.copy(), spmd.build(rimmed)
    edges(u)
    for ranks in (1, 2, 3, 5, 12):
        assert (image.run(ranks=ranks, u=ROWS) == u).all()


def triangles(x, a, first, last, turns=range):
    """Parts of rows, whose lengths are counters; loops may have no turn."""
    for i in turns(first):
        x[i] -= x[:i] @ a[:i, i]
    for i in turns(first, 7):
        x[i] -= a[i, i + 1 :] @ x[i + 1 :]
    for i in turns(last, first, -1):
        x[:i] += a[:i, :] @ x
    return x


def test_loops_of_no_turn():
    """Loops without turns work, though their temporaries would have a negative length."""

    @spmd.program(mesh=("r",))
    def triangular():
        first, last = spmd.scalar("first", 0), spmd.scalar("last", 0)
        x = spmd.input("x", (7,), layout=("r",))
        return triangles(x, spmd.input("a", (7, 7), layout=("r", None)), first, last, spmd.range)

    image = spmd.build(triangular)
    for first, last in ((0, 0), (3, 5), (7, 0), (0, 6), (6, 0)):
        expected = triangles(ROWS[0].copy(), ROWS[:7], first, last)
        for ranks in (1, 3):
            got = image.run(ranks=ranks, x=ROWS[0], a=ROWS[:7], first=first, last=last)
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-9)


def test_a_row_of_much_that_is_computed():
    """Values that are used twice, and long expressions, are looked at once."""

    @spmd.program(mesh=("r",))
    def written():
        a = spmd.input("a", ROWS.shape, layout=("r", None))
        x, y = a[0], a[1]
        for _ in range(40):
            x = x + x * 0.5
        for _ in range(600):
            y = y * 0.5 + 1.0
        a[2], a[3] = x, y
        return {"a": a}

    program = lower(written.graph({})).program
    assert sum(op.kind.name == "update" for op in program.body.ops) == 2


def test_a_build_tries_meshes_that_meet_the_conditions():
    """The sample meshes meet conditions on scalars that no exchange names and that have no value
    yet."""

    @spmd.program(mesh=("r",))
    def asks():
        k = spmd.scalar("k", dtype=int)
        spmd.require(k > 3, "k is more than 3")
        return {"total": np.sum(spmd.input("x", (9,), layout=("r",)))}

    plan = lower(asks.graph({})).plan
    meshes = list(sample(plan, table_of(plan)))
    assert len(meshes) >= 3 and all(values["k"] > 3 for values in meshes)
