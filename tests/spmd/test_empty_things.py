"""No rows, no turns, more ranks than rows, one element on many ranks: as NumPy and JAX say."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import spmd
from spmd import nn
from tests.spmd.array_files import open_array, write
from tests.spmd.nn_cases import CASES

# mypy: ignore-errors

pytestmark = pytest.mark.one_mpi

RNG = np.random.default_rng(7)
# What tells no batch apart, or has constants of as many rows as its data.
WHOLE = ("embedding", "attention_with_cache", "update_statistics", "hinge_loss", "rotary",
         "softmax_cross_entropy_with_integer_labels", "attention causal", "masked")
EMPTY = [name for name in CASES if not any(w in name for w in WHOLE)]
SPLIT = ["attention", "adaptive_avg_pool", "avg_pool same", "batch_norm", "conv", "conv_transpose",
         "embedding", "kl_divergence", "layer_norm", "logsumexp", "max_pool", "mixture_of_experts",
         "recurrent", "softmax"]  # what adds up or moves rows


def shapes_of(name: str, empty: bool) -> list[tuple[int, ...]]:
    case = CASES[name]
    first = case.shapes[0][0]
    return [(0, *s[1:]) if empty and k < max(case.data, 1) and s[0] == first else s
            for k, s in enumerate(case.shapes)]


@spmd.program(mesh=("r",))
def called(names: tuple = tuple(EMPTY), empty: bool = True):
    """Return the results and gradients of network functions on data split over the ranks."""
    out = {}
    for name in names:
        parts = []
        for k, shape in enumerate(shapes_of(name, empty)):
            split = ("r", *[None] * (len(shape) - 1)) if k < max(CASES[name].data, 1) else None
            parts.append(spmd.input(f"x{list(CASES).index(name)}_{k}", shape, np.float64,
                                    layout=split))

        def loss(parts, name=name):
            made = spmd.tree.leaves(CASES[name].function(*parts))
            weighted = [np.sum(y * np.cos(np.arange(y.size).reshape(y.shape))) for y in made]
            return sum(weighted[1:], weighted[0]), made

        out[name] = spmd.grad(loss, has_aux=True)(parts)
    return out


@pytest.mark.parametrize("empty, names, ranks", [(True, EMPTY, 2), (False, SPLIT, 7)])
def test_networks_of_no_rows_and_of_fewer_rows_than_ranks(empty, names, ranks):
    given = {f"x{list(CASES).index(name)}_{k}": RNG.uniform(0.2, 2, s) * RNG.choice([-1, 1], s)
             for name in names for k, s in enumerate(shapes_of(name, empty))}
    with warnings.catch_warnings(action="ignore"):
        wanted = called.eager(names=tuple(names), empty=empty, **given)
    found = spmd.build(called, names=tuple(names), empty=empty).run(ranks=ranks, **given)
    for name in names:
        for x, y in zip(*map(spmd.tree.leaves, (found[name], wanted[name])), strict=True):
            np.testing.assert_allclose(x, y, 1e-9, 1e-11, err_msg=name)
            assert np.shape(x) == np.shape(y) and np.asarray(x).dtype == np.asarray(y).dtype, name


def turn(carry: Any, row: Any) -> Any:
    return carry + np.sum(row), {"double": carry * 2, "row": row.astype(np.float32)}


@spmd.program(mesh=("r",))
def loops(n: int = 0):
    x = spmd.input("x", (n, 2), np.float64)
    p = {"w": np.ones((2, 4)), "u": np.ones((4, 4)) / 4, "b": np.ones(4)}
    lstm = {"w": np.ones((2, 4, 3)), "u": np.ones((3, 4, 3)), "b": np.ones((4, 3))}
    total = np.zeros(())
    for k in spmd.range(n):
        total = total + x[k, 0]
    return {
        "scan": spmd.scan(turn, np.zeros(()), x), "reverse": spmd.scan(turn, 1.0, x, reverse=True),
        "length": spmd.scan(lambda c, _: (c + 1, c), 0, None, length=n),
        "grad": spmd.grad(lambda x: spmd.scan(turn, np.zeros(()), x)[0] * 3)(x),
        "fori": spmd.fori_loop(0, n, lambda k, c: c + x[k, 1], np.ones(())), "range": total,
        "recurrent": nn.recurrent(nn.rnn_cell, p, x.reshape(n, 1, 2)),
        "lstm": nn.recurrent(nn.lstm_cell, lstm, x.reshape(n, 1, 2)),
    }


def test_loops_over_no_rows():
    for n in (0, 1):
        x = np.full((n, 2), 3.0)
        found, eager = spmd.build(loops, n=n).run(ranks=2, x=x), loops.eager(n=n, x=x)
        for a, b in zip(*map(spmd.tree.leaves, (found, eager)), strict=True):
            np.testing.assert_allclose(a, b)
            assert np.shape(a) == np.shape(b)
        assert found["scan"][1]["double"].shape == (n,)
        assert found["scan"][1]["row"].dtype == np.float32 and found["scan"][0] == 6 * n
        assert found["recurrent"][1].shape == (n, 1, 4) and found["lstm"][0][0].shape == (1, 3)


REDUCED = ("all any argsort count_nonzero cumprod cumsum diff flip mean nanmean nansum prod sort "
           "std sum var").split()


@spmd.program(mesh=("r",))
def reduced(rows: int = 0, columns: int = 3):
    x = spmd.input("x", (rows, columns), np.float64, layout=("r", None))
    y = spmd.input("y", (rows, columns), np.float64, layout=(None, "r"))
    out = {f"{name} {axis}": (getattr(np, name)(x, axis=axis), getattr(np, name)(y, axis=axis))
           for name in REDUCED for axis in (0, 1)}
    return {**out, "matmul": x.T @ y, "outer": x @ y.T, "concat": np.concatenate([x, y], 0),
            "einsum": np.einsum("ij,ik->jk", x, y), "least": np.min(x, initial=5.0),
            "sums": (np.sum(x), np.prod(y), np.linalg.norm(x)), "norm": np.linalg.norm(y, axis=0),
            "where": np.where(x > 0, x, y), "roll": np.roll(x, 1, 0), "pad": np.pad(x, 1)}


@pytest.mark.parametrize("rows, columns, ranks", [(0, 3, 3), (3, 0, 2), (1, 1, 200), (2, 3, 5)])
def test_reductions_of_nothing_and_of_one_element(rows, columns, ranks):
    x = np.arange(rows * columns).reshape(rows, columns) + 0.5
    with warnings.catch_warnings(action="ignore"):  # of means of nothing
        wanted = reduced.eager(rows=rows, columns=columns, x=x, y=2 * x)
    found = spmd.build(reduced, rows=rows, columns=columns).run(ranks=ranks, x=x, y=2 * x)
    for name in wanted:
        for a, b in zip(*map(spmd.tree.leaves, (found[name], wanted[name])), strict=True):
            np.testing.assert_allclose(a, b, 1e-12, err_msg=name)
            assert np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype, name


def test_extremes_of_nothing_are_refused_as_numpy_refuses_them():
    for name in ("min", "max", "argmin", "argmax"):
        @spmd.program
        def extreme(name: str = name):
            return getattr(np, name)(spmd.input("x", (0, 3), np.float64), axis=0)

        with pytest.raises(ValueError):
            getattr(np, name)(np.zeros((0, 3)), axis=0)
        with pytest.raises(spmd.ShapeError):
            spmd.build(extreme)


PROGRAM = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def doubled(n: int = 0):
    return {"y": 2 * spmd.input("x", (n, 3), np.float64, layout=("r", None))}
"""


def test_files_without_rows(built, spmd_command, tmp_path):
    for n in (0, 1):
        image, x = built(PROGRAM, n=n), np.arange(3.0 * n).reshape(n, 3)
        for suffix in ("npy", "npz", "safetensors"):
            given, made = tmp_path / f"x{n}.{suffix}", tmp_path / f"y{n}.{suffix}"
            np.save(given, x) if suffix == "npy" else write(given, {"x": x})
            spmd_command("run", image, "--ranks", "3", "-i", f"x={given}", "-o", f"y={made}",
                         cwd=tmp_path).expect(0)
            found = open_array(str(made) if suffix == "npy" else f"{made}:y")
            assert found.shape == (n, 3) and np.array_equal(found, 2 * x), suffix


def test_feeds_without_examples():
    @spmd.program(mesh=("r",))
    def fed():
        total = np.zeros(2)
        for batch in spmd.feed(x=spmd.spec((3, 2), np.float64)):
            total = total + np.sum(batch.x, 0)
        return total

    for steps in (0, 2):
        found = spmd.build(fed).run(ranks=2, feed=iter([{"x": np.ones((3, 2))}] * steps))
        assert found.tolist() == [3.0 * steps] * 2
