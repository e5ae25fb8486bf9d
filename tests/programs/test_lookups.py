"""Lookups whose indices count along a split dim, as those of a batch do: nothing is exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk
from codegen.ops import Exchange


@spmd.program(mesh=("x", "y"), layout={"batch": "x", "heads": "y"})
def looked_up() -> Any:
    batch, heads = spmd.Dim("batch", 7), spmd.Dim("heads", 4)
    x = spmd.input("x", (batch, 3, heads, 2), np.float32)
    at = spmd.input("at", (batch, 5), np.int64)
    labels = spmd.input("labels", (batch,), np.int64)

    def beams(_: Any, cache: Any) -> Any:
        return np.take_along_axis(cache + x, at[:, :3, None, None], 1)

    def loss(x: Any) -> Any:
        return np.take_along_axis(x * x, at[:, :, None, None], 1), x[np.arange(7), labels] ** 3

    made, back = spmd.vjp(loss, x)
    grid = x[np.arange(7)[:, None], at]
    return {
        "made": made[0], "picked": made[1], "grid": grid, "gradient": back((3 * grid, made[1])),
        "beams": spmd.fori_loop(0, 3, beams, spmd.zeros((7, 3, 4, 2), np.float32)),
    }


def test_a_batch_is_looked_up_where_it_lies() -> None:
    assert not [op for op in walk(lower(looked_up.graph({}, ())).program.body)
                if isinstance(op.kind, Exchange)]
    random = np.random.default_rng(0)
    given = {"x": random.normal(size=(7, 3, 4, 2)).astype(np.float32),
             "at": random.integers(-3, 3, (7, 5)), "labels": random.integers(-3, 3, 7)}
    expected, image = looked_up.eager(**given), spmd.build(looked_up)
    for mesh in ((1, 1), (3, 1), (2, 3), (9, 5)):
        found = image.run(mesh=dict(zip("xy", mesh)), ranks=mesh[0] * mesh[1], **given)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=f"{name} on {mesh}")


def test_other_counts_are_not_taken_for_a_batch() -> None:
    """Beside a part of the rows, along another dim, from 1 on, twice."""
    @spmd.program(mesh=("x",))
    def others() -> Any:
        x = spmd.input("x", (6, 6), np.float64, layout=("x", None))
        at = spmd.input("at", (6,), np.int64, layout=("x",))
        n = np.arange(6)
        return x[n[:4], at[:4]], x[at, n], x[n[1:], at[1:]], x[n, n], x[n[:, None], n], x[n - 1, at]

    x, at = np.arange(36.0).reshape(6, 6), np.array([3, 1, 4, 1, 5, 0])
    expected, image = others.eager(x=x, at=at), spmd.build(others)
    for ranks in (1, 4):
        for a, b in zip(image.run(ranks=ranks, x=x, at=at), expected):
            np.testing.assert_array_equal(a, b)


def test_a_table_that_is_split_over_another_axis_is_summed_in_its_parts() -> None:
    @spmd.program(mesh=("x", "y"), layout={"batch": "x", "vocab": "y"})
    def table() -> Any:
        ids = spmd.input("ids", (spmd.Dim("batch", 8), 5), np.int64)
        rows = spmd.input("rows", (spmd.Dim("batch", 8), 5, 3), np.float64)
        return spmd.zeros((spmd.Dim("vocab", 12), 3)).at[ids].add(rows)

    total, = (op.result.type for op in walk(lower(table.graph({}, ())).program.body)
              if isinstance(op.kind, Exchange))
    known = {"n_x": 2, "n_y": 3, "i_x": 0, "i_y": 0}
    assert [e.evaluate(known) for e in total.shape] == [4, 3]
    random = np.random.default_rng(0)
    given = {"ids": random.integers(0, 12, (8, 5)), "rows": random.random((8, 5, 3))}
    expected, image = table.eager(**given), spmd.build(table)
    for x, y in ((1, 1), (2, 3), (3, 13)):
        found = image.run(mesh={"x": x, "y": y}, ranks=x * y, **given)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_table_that_is_looked_up_and_multiplied_with_has_one_sum_of_gradients() -> None:
    """Also where the product shows it the other way round, and of float16, which is added wide."""
    @spmd.program(mesh=("x", "y"), layout={"batch": "x", "vocab": "y"})
    def tied() -> Any:
        ids = spmd.input("ids", (spmd.Dim("batch", 8), 5), np.int64)
        table = spmd.input("table", (spmd.Dim("vocab", 12), 3), np.float64)

        def loss(table: Any) -> Any:
            return np.sum(np.tanh(spmd.nn.embedding(ids, table) @ table.T))

        return spmd.grad(loss)(table), spmd.grad(loss)(table.astype(np.float16))

    along = [op.kind.axes for op in walk(lower(tied.graph({}, ())).program.body)
             if isinstance(op.kind, Exchange)]
    assert along.count(("x",)) == 2  # of each table one
    random = np.random.default_rng(0)
    given = {"ids": random.integers(0, 12, (8, 5)), "table": random.random((12, 3))}
    expected, image = tied.eager(**given), spmd.build(tied)
    for x, y in ((1, 1), (2, 3), (3, 1)):
        found = image.run(mesh={"x": x, "y": y}, ranks=x * y, **given)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-2)
