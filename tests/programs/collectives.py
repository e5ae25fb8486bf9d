"""Collectives on a mesh of two axes with uneven shards, each with what NumPy says of it.

A case is a program, what every output of it is on a mesh, and the element types to try it with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import spmd

Arrays = dict[str, Any]
ALL = ("x", "y")


def shards(u: Any, x: int, y: int) -> list[list[Any]]:
    """The shard of rank (i, j) at [i][j]."""
    return [np.array_split(rows, y, axis=1) for rows in np.array_split(u, x, axis=0)]


@spmd.program(mesh=ALL)
def rooted(n: int = 11, m: int = 7):
    """Gathered by one rank, scattered by one rank: rows, columns, everything, one per rank."""
    u = spmd.input("u", (n, m), np.float64, layout=ALL)
    last = spmd.axis_size("y") - 1

    @spmd.shard_map(out_layouts=(ALL, (ALL,), ALL, (ALL, None), (ALL, None)))
    def local(a):
        rows = spmd.pgather(a, "y", root=last, dim=1, tiled=True)
        back = spmd.pscatter(rows * 2, "y", root=last, dim=1, tiled=True)
        whole = spmd.pgather(spmd.pgather(a, "y", 0, 1, True), "x", 0, 0, tiled=True)
        sums = np.reshape(np.sum(whole) + 1000 * whole.shape[0] + 100 * whole.shape[1], 1)
        columns = spmd.pscatter(spmd.pgather(a, "x", dim=0, tiled=True)[::-1], "x", tiled=True)
        mine = np.reshape(spmd.index() * 1.0, 1)
        stacked = spmd.pgather(mine, ALL, root=spmd.ranks() - 1)
        one = spmd.pscatter(stacked + 0.5, ALL, spmd.ranks() - 1)
        table = np.arange(10.0).reshape(2, 5) + 100 * spmd.index()
        for k in spmd.range(spmd.axis_size("y")):  # every member is the root once
            table = table + spmd.pscatter(spmd.pgather(table, "y", k), "y", k)
        return back, sums, columns, one.reshape(1, 1), table.reshape(1, 10)

    return dict(zip(("back", "sums", "columns", "one", "table"), local(u)))


def rooted_in_numpy(u: Any, x: int, y: int) -> Arrays:
    n, m = u.shape
    first = np.zeros(x * y)
    first[0] = u.sum() + 1000 * n + 100 * m
    for i in range(x):
        for j in range(y):
            if i or j:  # a dim that is gathered elsewhere is empty
                first[i * y + j] = 1000 * n * (i == 0) + 100 * m * (j == 0)
    index = np.arange(x * y)
    table = (np.arange(10.0) + 100 * index[:, None]) * 2.0**y
    return {"back": 2 * u, "sums": first, "columns": u[::-1], "one": index[:, None] + 0.5,
            "table": table}  # fmt: skip


Case = tuple[Any, Callable[..., Arrays], Sequence[str]]
CASES: dict[str, Case] = {
    "rooted": (rooted, rooted_in_numpy, ("float64",)),
}


def operand(dtype: str, n: int = 11, m: int = 7) -> Any:
    """The same numbers everywhere; small, so that sums of them are exact."""
    draw = np.random.default_rng(5)
    if dtype == "bool":
        return draw.integers(0, 2, (n, m)).astype(bool)
    return draw.integers(0 if dtype.startswith("u") else -9, 10, (n, m)).astype(dtype)


def given(dtypes: Sequence[str], dtype: str) -> Arrays:
    """The parameters of a case's program."""
    return {"dtype": dtype} if len(dtypes) > 1 else {}


def difference(found: Arrays, wanted: Arrays) -> str:
    """"" where they are equal, NaN being equal to itself; what differs elsewhere."""
    for name, want in wanted.items():
        got, want = np.asarray(found[name]), np.asarray(want)
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"{name}: {got.dtype}{got.shape}, wanted {want.dtype}{want.shape}"
        if not np.array_equal(got, want, equal_nan=want.dtype.kind in "fc"):
            return f"{name}: {got.tolist()}, wanted {want.tolist()}"
    return ""
