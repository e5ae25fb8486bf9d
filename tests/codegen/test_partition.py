"""The exchanges of textbook programs on global arrays: kind, axes and bytes per rank, counted.

Bytes are those that a rank gets from others, on the mesh that the case names, the most of any rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.ir.graph import Module, Op, walk
from codegen.layouts.partition import partition
from codegen.ops import Exchange

N = 24


def source(name: str, shape: tuple[int, ...], layout: Any, dtype: Any = np.float64) -> Any:
    return spmd.input(name, shape, dtype, layout=layout, default=lambda *i: sum(i))


def program_of(body: Callable[[], Any], mesh: tuple[str, ...]) -> Module:
    @spmd.program(mesh=mesh)
    def case():
        return body()

    return partition(case.capture())


def coordinates(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    at = [dict(zip(sizes, k)) for k in np.ndindex(*sizes.values())]
    return [{f"n_{a}": n for a, n in sizes.items()} | {f"i_{a}": k for a, k in c.items()} | {"k": 0}
            for c in at]


def received(op: Op, sizes: Mapping[str, int]) -> int:
    """Bytes that the rank with the most of them gets from other ranks."""
    ranks = coordinates(sizes)
    value = op.result
    size = value.type.dtype.size

    def elements(shape: Any, rank: dict[str, int]) -> int:
        return int(np.prod([e.evaluate(rank) for e in shape], dtype=int))

    if op.kind.called in ("redistribute", "halo"):
        def own(rank: dict[str, int]) -> int:
            both = [
                min(b.evaluate(rank), d.evaluate(rank)) - max(a.evaluate(rank), c.evaluate(rank))
                for (a, b), (c, d) in zip(op.kind.have, op.kind.want)
            ]
            return int(np.prod([max(0, e) for e in both], dtype=int))

        inside = [_inside(op, rank, sizes) for rank in ranks]
        return size * max(i - own(rank) for i, rank in zip(inside, ranks))
    mine = [elements(op.operands[0].type.shape, rank) for rank in ranks]
    got = [elements(value.type.shape, rank) for rank in ranks]
    if op.kind.called in ("all_gather", "all_to_all"):
        members = np.prod([sizes[a] for a in op.kind.axes])
        kept = mine if op.kind.called == "all_gather" else [m // members for m in mine]
        return size * max(int(g - k) for g, k in zip(got, kept))
    return size * max(got)


def _inside(op: Op, rank: dict[str, int], sizes: Mapping[str, int]) -> int:
    """Elements wanted that some member holds."""
    total = 1
    wraps = getattr(op.kind, "wraps", None) or [None] * len(op.kind.have)
    for (a, b), (c, d), around in zip(op.kind.have, op.kind.want, wraps):
        if around:  # somebody holds whatever lies beyond the ends
            total *= d.evaluate(rank) - c.evaluate(rank)
            continue
        last = {**rank, **{f"i_{x}": sizes[x] - 1 for x in op.kind.axes}}
        first = {**rank, **{f"i_{x}": 0 for x in op.kind.axes}}
        low = max(a.evaluate(first), c.evaluate(rank))
        total *= max(0, min(b.evaluate(last), d.evaluate(rank)) - low)
    return total


def five_points(layout: Any) -> Callable[[], Any]:
    def body() -> Any:
        u = source("u", (N, N), layout)
        for _ in spmd.range(3):
            u[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        return u

    return body


def nine_points() -> Any:
    u = source("u", (N, N), ("x", "y"))
    v = u.copy()
    v[1:-1, 1:-1] = sum(u[1 + i : N - 1 + i, 1 + j : N - 1 + j] for i in (-1, 0, 1)
                        for j in (-1, 0, 1))
    return v


def product(la: Any, lb: Any) -> Callable[[], Any]:
    return lambda: source("a", (N, N), la) @ source("b", (N, N), lb)


def far() -> Any:
    u, w = source("u", (N,), ("x",)), source("w", (N,), ("x",))
    w[8:] += u[:-8]
    return w


def all_pairs() -> Any:
    x = source("x", (N,), ("x",))
    return np.sum(x - x[:, None], axis=1)


def looked_up() -> Any:
    ids = source("ids", (N, 2), ("x", None), np.int64) % 5
    return spmd.grad(lambda table: np.sum(table[ids] ** 3))(source("table", (5, 3), (None, None)))


def both_ways() -> Any:
    u = np.sqrt(source("u", (N, N), ("x", "y"))) + 1
    rows = np.roll(u, 1, 0) + u + np.roll(u, -1, 0)
    return np.roll(rows, 1, 1) * np.roll(rows, -1, 1)


def around() -> Any:
    u = source("u", (N, N), ("x", "y")) * 1.0
    for _ in spmd.range(10):
        u = (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1)) / 4
    return u


def leapfrog() -> Any:
    u = source("u", (N, N), ("x", None))
    p = u.copy()
    for _ in spmd.range(5):
        q = 2 * u - p
        q[1:-1, 1:-1] += u[2:, 1:-1] + u[:-2, 1:-1] - 2 * u[1:-1, 1:-1]
        u, p = q, u
    return u


def one_of_two() -> Any:
    u = source("u", (N, N), ("x", None))
    p = u.copy()
    for _ in spmd.range(5):
        u, p = np.roll(p, 1, 1) + np.roll(u, 1, 0), u
    return u


def staggered() -> Any:
    e = source("e", (N, N), ("x", "y"))
    h, w = np.zeros_like(e), np.zeros_like(e)
    for _ in spmd.range(5):
        h[:, :-1] -= e[:, 1:] - e[:, :-1]
        w[:-1, :] += e[1:, :] - e[:-1, :]
        e[1:-1, 1:-1] += w[1:-1, 1:-1] - w[:-2, 1:-1] - h[1:-1, 1:-1] + h[1:-1, :-2]
    return e


def streams() -> Any:
    f = source("f", (3, N, N), (None, "x", None))
    for _ in spmd.range(5):
        g = [f[0], np.roll(f[1], (1, 1), (0, 1)), np.roll(f[2], -1, 0)]
        mean = (g[0] + g[1] + g[2]) / 3
        f = np.stack([(part + mean) / 2 for part in g])
    return f


def part_rolled() -> Any:
    return np.roll(source("u", (N,), ("x",))[3:-4], 1)


def rows() -> Any:
    a = source("a", (N, 5), ("x", None))
    total = spmd.zeros((5,))
    for k in spmd.range(N):
        total += a[k, :]
    return total


X, XY = {"x": 4}, {"x": 4, "y": 3}
EIGHT = 8  # bytes of an element

Exchanged = list[tuple[str, tuple[str, ...], int]]
CASES: dict[str, tuple[Callable[[], Any], dict[str, int], Exchanged]] = {
    "element by element": (
        lambda: np.exp(source("a", (N,), ("x",))) + source("b", (N,), ("x",)) * 2, X, []),
    "a dim that is not split is reduced": (
        lambda: np.sum(source("a", (N, 7), ("x", None)), axis=1), X, []),
    "a split dim is reduced": (
        lambda: np.sum(source("a", (N, 7), ("x", None)), axis=0), X,
        [("all_reduce", ("x",), 7 * EIGHT)]),
    "all of it is reduced": (
        lambda: np.max(source("a", (N, N), ("x", "y"))), XY, [("all_reduce", ("x", "y"), EIGHT)]),
    "sums are added first": (
        lambda: np.sum(source("a", (N,), ("x",))) - np.sum(source("b", (N, 3), ("x", None))), X,
        [("all_reduce", ("x",), EIGHT)]),
    "a sum that is wanted split": (
        lambda: np.sum(source("a", (N, N), ("x", None)), axis=0).relayout(("x",)), X,
        [("reduce_scatter", ("x",), N // 4 * EIGHT)]),
    "what the user lays out otherwise is computed as it lies": (
        lambda: (source("a", (N,), ("x",)) * source("b", (N,), ("x",))).relayout((None,)), X,
        [("all_gather", ("x",), N * 3 // 4 * EIGHT)]),
    "five points, rows split": (five_points(("x", None)), X,
                                [("halo", ("x",), 2 * (N - 2) * EIGHT)]),
    "five points, both split": (five_points(("x", "y")), XY,
                                [("halo", ("x", "y"), (8 * 10 - 6 * 8) * EIGHT)]),
    "nine points": (nine_points, XY, [("redistribute", ("x", "y"), (8 * 10 - 6 * 8) * EIGHT)]),
    "a halo over several neighbours": (
        far, X, [("redistribute", ("x",), 6 * EIGHT)]),
    "a roll": (
        lambda: np.roll(source("a", (N,), ("x",)), 2), X,
        [("redistribute", ("x",), 2 * EIGHT)]),
    "rolls both ways, element by element before": (
        both_ways, XY, [("redistribute", ("x", "y"), (8 * 10 - 6 * 8) * EIGHT)]),
    "rolls around in a loop": (around, XY, [("halo", ("x", "y"), (8 * 10 - 6 * 8) * EIGHT)]),
    "two versions that change places": (
        leapfrog, X, [("halo", ("x",), 2 * (N - 2) * EIGHT)]),
    "of the other version, around a dim that is not split": (
        one_of_two, X, [("halo", ("x",), N * EIGHT)]),
    "staggered grids": (
        staggered, XY, [("halo", ("x", "y"), 15 * EIGHT), ("halo", ("y",), 6 * EIGHT),
                        ("halo", ("x",), 8 * EIGHT)]),
    "streams of a stack": (
        streams, X, [("halo", ("x",), 2 * (8 * 25 - 6 * 24) * EIGHT)]),
    "a roll of a part": (
        part_rolled, X, [("redistribute", ("x",), 2 * EIGHT), ("redistribute", ("x",), EIGHT)]),
    "split rows to split columns": (
        lambda: source("a", (N, N), ("x", None)).relayout((None, "x")), X,
        [("all_to_all", ("x",), 18 * 6 * EIGHT)]),
    "split to whole": (
        lambda: source("a", (N, N), ("x", None)).relayout((None, None)), X,
        [("all_gather", ("x",), 18 * N * EIGHT)]),
    "whole to split": (lambda: source("a", (N,), (None,)).relayout(("x",)), X, []),
    "one axis to another": (
        lambda: source("a", (N,), ("x",)).relayout(("y",)), XY,
        [("redistribute", ("x",), 8 * EIGHT)]),
    "product of rows": (product(("x", None), (None, None)), X, []),
    "product of columns": (product((None, None), (None, "x")), X, []),
    "product over a split dim": (product((None, "x"), ("x", None)), X,
                                 [("all_reduce", ("x",), N * N * EIGHT)]),
    "product in two dims": (product(("x", "y"), ("y", None)), XY,
                            [("all_reduce", ("y",), 6 * N * EIGHT)]),
    "product of rows and rows": (product(("x", None), ("x", None)), X,
                                 [("all_gather", ("x",), 18 * N * EIGHT)]),
    "a row in a loop": (rows, X, [("redistribute", ("x",), 5 * EIGHT)]),
    "all pairs": (all_pairs, X, [("all_gather", ("x",), 18 * EIGHT)]),
    "a running sum": (
        lambda: np.cumsum(source("a", (N, 3), ("x", None)), axis=0), X,
        [("scan", ("x",), 3 * EIGHT)]),
    "a histogram": (
        lambda: spmd.zeros((5,)).at[source("k", (N,), ("x",), np.int64) % 5].add(1), X,
        [("all_reduce", ("x",), 5 * EIGHT)]),
    "rows of a table, and their gradient": (looked_up, X,
                                            [("all_reduce", ("x",), 5 * 3 * EIGHT)]),
    "picked by indices that are split": (
        lambda: source("table", (7,), (None,))[source("k", (N,), ("x",), np.int64) % 7], X, []),
}


@pytest.mark.parametrize("name", CASES)
def test_exchanges(name: str) -> None:
    body, sizes, expected = CASES[name]
    program = program_of(body, tuple(sizes))
    found = [
        (op.kind.called, tuple(op.kind.axes), received(op, sizes))
        for op in walk(program.body) if isinstance(op.kind, Exchange)
    ]
    assert found == expected


NETWORKS = {
    # layouts of x, w1, w2; exchanges of a step: forward, then the gradients
    "data": (("x", None), (None, None), (None, None), ["x", "x"]),
    "model": ((None, None), (None, "x"), ("x", None), ["x"]),
    "both": (("x", None), (None, "y"), ("y", None), ["y", "x", "x"]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_two_layers(name: str) -> None:
    lx, l1, l2, expected = NETWORKS[name]

    def body() -> Any:
        x, t = source("x", (8, 6), lx), source("t", (8, 4), (lx[0], None))
        w1, w2 = source("w1", (6, 10), l1), source("w2", (10, 4), l2)
        for _ in spmd.range(2):
            a = np.maximum(x @ w1, 0)
            e = a @ w2 - t
            g2, g1 = a.T @ e, x.T @ ((e @ w2.T) * (a > 0))
            w1 -= 0.01 * g1
            w2 -= 0.01 * g2
        return {"w1": w1, "w2": w2}

    program = program_of(body, ("x", "y") if name == "both" else ("x",))
    found = [op for op in walk(program.body) if isinstance(op.kind, Exchange)]
    assert [(op.kind.called, "".join(op.kind.axes)) for op in found] == [
        ("all_reduce", a) for a in expected
    ]
