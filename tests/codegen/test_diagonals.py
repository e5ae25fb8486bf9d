"""np.diag, np.trace and index arrays in equal steps: as in NumPy, and only what is read moves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import spmd

N = 12
COUNT = np.arange(N)
KEYS = {  # of an array (12, 12, 5); what NumPy makes of each is the answer
    "pairs": (COUNT, COUNT),
    "pairs behind a dim": (slice(None), COUNT[:5], COUNT[:5]),
    "pairs apart": (COUNT[:5], slice(None), COUNT[:5]),
    "all three": (COUNT[:5], COUNT[:5], COUNT[:5]),
    "backwards": (COUNT[::-1], COUNT),
    "other steps": (COUNT[:6] * 2, COUNT[:6] + 3),
    "from the end": (-1 - COUNT, COUNT),
    "a grid": np.ix_(COUNT[2:5], COUNT[7:1:-2]),
    "a grid turned": (COUNT[:3], COUNT[4:6, None]),
    "one column of pairs": (COUNT[:, None], COUNT[:, None]),
    "with an integer": (COUNT[:4], 7),
    "an integer first": (3, slice(None), COUNT[:4]),
    "repeated": (np.full((2, 3), 4), COUNT[:3]),
    "with a new dim": (COUNT, None, COUNT),
    "one index": ([5],),
    "two": ([9, 2],),
    "nothing": (np.zeros(0, int),),
    "a wide grid": (COUNT[:4].reshape(2, 2), 0),
    "no steps": ([0, 1, 5],),
}


def whole() -> np.ndarray:
    return np.arange(N * N * 5.0).reshape(N, N, 5)


@pytest.fixture(scope="module")
def results():
    """Return the results of all keys on arrays in three layouts, by number of ranks, from one
    image."""
    layouts = {"rows": ("r", None, None), "columns": (None, "r", None), "last": (None, None, "r")}

    @spmd.program(mesh=("r",))
    def reads():
        out = {}
        for name, layout in layouts.items():
            x = spmd.input(name, (N, N, 5), np.float64, layout=layout)
            for k, key in enumerate(KEYS.values()):
                out[f"{name}{k}"] = x[key]
            m = x[:, :, 1]
            out[f"{name}_diag"] = np.diag(m)
            out[f"{name}_off"] = np.diagonal(x, -3, 0, 1)
            out[f"{name}_far"] = np.diagonal(x, 20, 0, 1)
            out[f"{name}_trace"] = np.trace(x, 2)
            out[f"{name}_einsum"] = np.einsum("iij->ij", x)
            out[f"{name}_turned"] = np.diagonal(x, 1, 2, 0)
            out[f"{name}_grad"] = spmd.grad(lambda y: np.sum(np.diagonal(y, 1, 2, 0) ** 2))(x)
        return out

    image = spmd.build(reads)
    return {ranks: image.run(ranks=ranks, **{name: whole() for name in layouts})
            for ranks in (1, 3, 5)}


@pytest.mark.parametrize("layout, key", [*itertools.product(["rows", "columns", "last"], KEYS)])
def test_a_key_reads_what_numpy_reads(results, layout, key):
    for found in results.values():
        mine = found[f"{layout}{list(KEYS).index(key)}"]
        np.testing.assert_array_equal(mine, whole()[KEYS[key]], strict=True)


@pytest.mark.parametrize("layout", ["rows", "columns", "last"])
def test_diagonals_are_those_of_numpy(results, layout):
    x = whole()
    k = np.arange(5)
    slope = np.zeros_like(x)
    slope[k + 1, :, k] = 2 * x[k + 1, :, k]
    right = {"diag": np.diag(x[:, :, 1]), "off": np.diagonal(x, -3), "far": np.diagonal(x, 20),
             "trace": np.trace(x, 2), "einsum": np.einsum("iij->ij", x),
             "turned": np.diagonal(x, 1, 2, 0), "grad": slope}
    for found in results.values():
        for name, value in right.items():
            np.testing.assert_allclose(found[f"{layout}_{name}"], value, strict=True)


@pytest.mark.parametrize("read", [
    lambda a, k: np.diag(a), lambda a, k: np.trace(a), lambda a, k: a[k, k],
    lambda a, k: np.einsum("ii", a), lambda a, k: np.linalg.det(a[k[:2]][:, k[:2]]),
], ids=["diag", "trace", "pairs", "einsum", "corner"])
@pytest.mark.parametrize("layout", [("r", None), (None, "r")])
def test_only_what_is_read_reaches_another_rank(read, layout):
    @spmd.program(mesh=("r",))
    def reads(n: int = 1000):
        a = spmd.input("a", (n, n), np.float64, layout=layout)
        return read(a, np.arange(n))

    moved = spmd.build(reads).layouts(ranks=4).exchanges
    assert sum(row["bytes"] for row in moved) <= 64, moved


def test_a_view_that_is_returned_is_read_where_it_is_returned():
    @spmd.program(mesh=("r",))
    def returns(n: int = 9):
        a = spmd.input("a", (n, n), np.float64, layout=("r", None))
        return {"off": np.diagonal(a, 4)}

    image = spmd.build(returns)
    assert [row["name"] for row in image.layouts()] == ["a", "off"]
    line = returns.function.__code__.co_firstlineno + 3
    assert {row["place"]["line"] for row in image.layouts(ranks=3).exchanges} == {line}
