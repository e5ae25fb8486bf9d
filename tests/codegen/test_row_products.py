"""Products that each turn of a loop makes are made before it; results are NumPy's all the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.graph import loop_motion
from codegen.ir.graph import Op, Region, walk
from codegen.ops import Loop, MatMul

N, M = 24, 20


def read(x, w, c, turns=range):
    """Products of arrays that their loops only read, or write behind what a turn reads."""
    n, m = x.shape
    rows, down = np.zeros((n, n)), np.zeros((m, n + 3), w.dtype)
    sums, dots, kept = np.zeros(n), np.zeros((n, n)), np.zeros((m, n))
    both, behind = np.zeros((m, m)), np.eye(m, dtype=x.dtype)
    turned = np.zeros((n, n), c.dtype)
    for i in turns(n):
        rows[i] = 2 * (x[i] @ w[:m]) + x[0, 0]
        sums[i:] += x[i:, :] @ w[:m, i]
        kept[:, i] = x.T @ w[5] + w[0, i]
        turned[i] += c[i, :] @ c.T
    for i in turns(m):
        both[i:, i] = both[i, i:] = x[:, i] @ x[:, i:] / (n - 1)
    for i in turns(m - 1):
        behind[i + 1:, i] = behind[i, i + 1:] = x[:, i] @ x[:, i + 1:m]
    square = np.zeros((m, m))
    for i in turns(m):
        square[i] = w[i, :m] @ w[:m, :m]
    for i in turns(m - 1, -1, -2):
        down[i, 3:] = w[:m].T @ x[i]
    for j in turns(3):
        for i in turns(n):
            dots[i] += j * (x[i] @ w[j:m + j])
    q, s = x.copy(), 0.1 * both
    for k in turns(m):  # the modified Gram-Schmidt process
        q[:, k] /= np.sqrt(np.sum(q[:, k] ** 2))
        for j in turns(k + 1, m):
            q[:, j] -= q[:, k] * (q[:, k] @ q[:, j])
    for i in turns(m - 2, -1, -1):
        s[i] = s[i] @ both + s[i + 1]
    return rows, sums, kept, turned, both, behind, down, dots, q, s, square


def written(a, b, turns=range):
    """Products of what their loops write, or that not every turn makes, or few make of much."""
    n = a.shape[0]
    y, s, t = np.zeros(n), np.zeros((n, n)), np.zeros((n, n))
    for i in turns(n):  # Cholesky's factor
        for j in turns(i):
            a[i, j] = (a[i, j] - a[i, :j] @ a[j, :j]) / a[j, j]
        a[i, i] = np.sqrt(a[i, i] - a[i, :i] @ a[i, :i])
    for i in turns(n):
        y[i] = (b[i, 0] - a[i, :i] @ y[:i]) / a[i, i]
    for i in turns(1, n):
        a[i] = 0.01 * (a[i - 1] @ a) + b[i]
    for i in turns(n - 1):
        t[i] += 1.5
        t[i + 1] = 0.01 * (t[i] @ b) + b[0] @ a[:, i] + t[i + 1] @ b
    for i in turns(n):
        if y[i] > 0:
            s[i] = b[i] @ a
        t[i, i:i + 3] += b[i] @ a[:, i:i + 3]
        t[i] += b[i, :i] @ a[:i]
    return a, y, s, t


def arrays() -> dict[str, Any]:
    random = np.random.default_rng(3)
    x, w, c = (random.normal(size=shape) for shape in ((N, M), (M + 2, N), (N, M)))
    return {"x": x, "w": w, "c": (c + 1j * x).astype(np.complex64)}


@spmd.program(mesh=("r",))
def only_read(layouts: Any = (("r", None), (None, None), ("r", None))):
    types = (N, M), (M + 2, N), (N, M)
    x, w, c = (
        spmd.input(name, shape, np.complex64 if name == "c" else np.float64, layout=layout)
        for name, shape, layout in zip("xwc", types, layouts))
    return read(x, w, c, spmd.range)


@spmd.program(mesh=("r",))
def others():
    a = spmd.input("a", (N, N), layout=("r", None))
    b = spmd.input("b", (N, N), layout=("r", None))
    return written(a, b, spmd.range)


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_motion, "WORK", 1)


def products(ops: Iterable[Op]) -> list[Any]:
    """Rows, columns, and the extent that is summed."""
    return sorted((*(e.value for e in op.result.type.shape), op.operands[0].type.shape[1].value)
                  for op in ops if isinstance(op.kind, MatMul))


def in_loops(region: Region) -> Iterator[Op]:
    for op in walk(region):
        if isinstance(op.kind, Loop):
            yield from (o for o in op.regions[-1].ops if isinstance(o.kind, MatMul))


def test_no_turn_makes_a_product_of_arrays_that_are_only_read():
    graph = lower(only_read.graph({})).graph
    one_each = [op for op in in_loops(graph.body) if op.result.type.shape[0].is_const]
    assert products(one_each) == [(N, N, M)]  # one for each j, and one for each k
    assert [str(op.result.type.shape[0]) for op in in_loops(graph.body) if op not in one_each] == [
        f"{M - 1} - k"]
    assert products(graph.body.ops) == sorted([
        (N, N, M), (N, N, M), (1, M, N), (N, N, M), (M, M, N), (M, M, N), (M // 2, N, M),
        (M - 1, M, M), (M, M, M)])


def test_products_stay_where_the_loop_writes_operands_or_few_want_them():
    before, after = others.graph({}), lower(others.graph({})).graph
    assert len(list(in_loops(before.body))) == 9
    assert len(list(in_loops(after.body))) == 8  # all but b[0] @ a[:, i]
    assert products(after.body.ops) == [(N - 1, 1, N)]


@pytest.mark.parametrize("layouts", [
    (("r", None), (None, None), ("r", None)),
    ((None, "r"), ("r", None), (None, "r")),
    (("r", None), (None, "r"), (None, None)),
], ids=str)
def test_results_are_numpys_on_any_number_of_ranks(layouts: Any):
    given = arrays()
    expected = read(**given)
    image = spmd.build(only_read, layouts=layouts)
    for ranks in (1, 2, 3, 5):
        for found, e in zip(image.run(ranks=ranks, **given), expected, strict=True):
            np.testing.assert_allclose(found, e, rtol=1e-9 if e.dtype != np.complex64 else 1e-3)
