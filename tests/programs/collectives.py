"""Collectives on a mesh of two axes with uneven shards, each with what NumPy says of it.

A case is a program, what every output of it is on a mesh, and the element types to try it with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  so that NumPy knows the name bfloat16
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
            "table": table}

NAMES = ("sum", "prod", "min", "max")
BITS = ("and", "or", "xor")
_UFUNCS = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}


def ops_of(dtype: str) -> tuple[str, ...]:
    return NAMES if dtype.startswith("float") else NAMES + BITS


@spmd.program(mesh=ALL)
def reduced(n: int = 11, m: int = 7, dtype: str = "float64"):
    """Every op to a root, along an axis and along both in another order; all-reduces of bits."""
    u = spmd.input("u", (n, m), dtype, layout=(None, None))
    ops = ops_of(dtype)
    bits = tuple(f"p{op}" for op in ops[len(NAMES):])

    @spmd.shard_map(out_layouts=tuple((ALL, None) for _ in range(3 * len(ops) + 2 * len(bits) + 1)))
    def local(u):
        row = u[spmd.index() % n]
        at = (0, spmd.axis_size("y") - 1, spmd.ranks() // 2)
        out = [spmd.preduce(row, axes, op, root) for op in ops
               for axes, root in zip(("x", "y", ("y", "x")), at)]
        for name in bits:
            out += [getattr(spmd, name)(row, "y"), getattr(spmd, name)(row, ALL)]
        one = spmd.preduce(np.sum(row), ALL, root=spmd.ranks() - 1)  # of no dims
        return tuple(np.reshape(x, (1, -1)) for x in [*out, one])

    names = [f"{op} {k}" for op in ops for k in range(3)]
    names += [f"{name} {k}" for name in bits for k in range(2)]
    return dict(zip([*names, "one"], local(u)))


@spmd.program(mesh=ALL)
def prefixed(n: int = 11, m: int = 7, dtype: str = "float64"):
    """Every op up to each member and before each member; where the largest and the smallest is."""
    u = spmd.input("u", (n, m), dtype, layout=(None, None))
    ops = ops_of(dtype)

    @spmd.shard_map(out_layouts=tuple((ALL, None) for _ in range(6 * len(ops) + 8)))
    def local(u):
        row = u[spmd.index() % n]
        out = [scan(row, axes, op) for op in ops for axes in ("x", "y", ("y", "x"))
               for scan in (spmd.pscan, spmd.pexscan)]
        for axes in ("x", ("y", "x")):
            out += [*spmd.pargmax(row, axes), *spmd.pargmin(row, axes)]
        return tuple(np.reshape(x, (1, -1)) for x in out)

    names = [f"{op} {k} {kind}" for op in ops for k in range(3) for kind in ("up to", "before")]
    names += [f"{what} {k}" for k in range(2) for what in ("max", "argmax", "min", "argmin")]
    return dict(zip(names, local(u)))


@spmd.kernel
def later_half(a, b, out):
    """Neither commutative nor associative."""
    for k in range(out.shape[0]):
        out[k] = b[k] - 0.5 * a[k]


@spmd.program(mesh=ALL)
def folded(n: int = 11, m: int = 7):
    """Functions and kernels of the user's own, to a root, to all and up to each."""
    u = spmd.input("u", (n, m), np.float64, layout=(None, None))

    def longer(a, b):
        return np.where(np.abs(b) > np.abs(a), b, a) + 1

    def halved(a, b):
        return b - a * 0.5 + b.shape[0]

    def turned(a, b):
        return b - a[::-1]

    @spmd.shard_map(out_layouts=tuple((ALL, None) for _ in range(9)))
    def local(u):
        row = u[spmd.index() % n]
        part = spmd.blocks(u, spmd.axis_size("x"))[spmd.axis_index("x")] + spmd.axis_index("y")
        parts = spmd.preduce(part, "y", halved, None), spmd.pscan(part, "y", halved)
        one = spmd.preduce(np.sum(row), ALL, lambda a, b: b - a, None)
        out = (
            spmd.preduce(row, "y", longer), spmd.preduce(row, ("y", "x"), later_half, None),
            spmd.pscan(row, "x", longer), spmd.pscan(row, ALL, later_half), one,
            spmd.preduce(row, ALL, turned, None), spmd.pscan(row, ("y", "x"), turned),
            *(np.sum(part, axis=0) for part in parts),
        )
        return tuple(np.reshape(x, (1, -1)) for x in out)

    names = "longer", "half", "longer up to", "half up to", "one", "turned", "turned up to"
    return dict(zip((*names, "parts", "parts up to"), local(u)))


def folded_in_numpy(u: Any, x: int, y: int) -> Arrays:
    rows, mesh = u[np.arange(x * y) % len(u)], (x, y)

    def longer(a: Any, b: Any) -> Any:
        return np.where(np.abs(b) > np.abs(a), b, a) + 1

    def up_to(r: Any, f: Any) -> list[Any]:
        return list(itertools.accumulate(r, f))

    def half(a: Any, b: Any) -> Any:
        return b - 0.5 * a

    def turned(a: Any, b: Any) -> Any:
        return b - a[::-1]

    def first(r: Any) -> list[Any]:
        return [up_to(r, longer)[-1], *(0 * r[1:])]

    parts: list[Any] = []
    for part in np.array_split(u, x):
        each = [part + k for k in range(y)]
        parts += up_to(each, lambda a, b: b - a * 0.5 + len(b))
    sums = np.array([part.sum(axis=0) for part in parts])

    total = up_to(np.sum(rows, axis=1), lambda a, b: b - a)[-1]
    return {
        "longer": by_group(rows, mesh, ("y",), first),
        "half": by_group(rows, mesh, ("y", "x"), lambda r: up_to(r, half)[-1:] * len(r)),
        "longer up to": by_group(rows, mesh, ("x",), lambda r: up_to(r, longer)),
        "half up to": by_group(rows, mesh, ALL, lambda r: up_to(r, half)),
        "one": np.full((x * y, 1), total),
        "turned": by_group(rows, mesh, ALL, lambda r: up_to(r, turned)[-1:] * len(r)),
        "turned up to": by_group(rows, mesh, ("y", "x"), lambda r: up_to(r, turned)),
        "parts": sums[np.arange(x * y) // y * y + y - 1],
        "parts up to": sums,
    }


def groups(x: int, y: int, axes: tuple[str, ...]) -> list[list[int]]:
    """The ranks of every group along some axes, in the order of their positions."""
    index = np.arange(x * y).reshape(x, y)
    along = {("x",): index.T, ("y",): index, ALL: index.reshape(1, -1),
             ("y", "x"): index.T.reshape(1, -1)}[axes]
    return [list(map(int, group)) for group in along]


def by_group(rows: Any, mesh: tuple[int, int], axes: tuple[str, ...], given: Any) -> Any:
    """given(rows of a group) as rows, put back where the ranks of the group stand."""
    out: list[Any] = [None] * len(rows)
    for group in groups(*mesh, axes):
        for rank, row in zip(group, given(rows[group])):
            out[rank] = row
    return np.array(out)


def summed(rows: Any, op: str) -> Any:
    """Return the reduction of all rows up to each row by an op; bools are counted."""
    if rows.dtype == bool and op in ("sum", "prod"):
        rows = rows.astype(np.int64)
    wide = rows.astype(np.float32) if str(rows.dtype) in HALVES else rows
    with np.errstate(all="ignore"):
        return _UFUNCS[op].accumulate(wide, axis=0, dtype=wide.dtype).astype(rows.dtype)


def at_root(rows: Any, op: str, root: int) -> Any:
    total = summed(rows, op)[-1]
    return [total if k == root else np.zeros_like(total) for k in range(len(rows))]


def reduced_in_numpy(u: Any, x: int, y: int) -> Arrays:
    rows, mesh, out = u[np.arange(x * y) % len(u)], (x, y), {}
    ways = (("x",), 0), (("y",), y - 1), (("y", "x"), x * y // 2)
    ops = ops_of(str(u.dtype))
    for op in ops:
        for k, (axes, root) in enumerate(ways):
            out[f"{op} {k}"] = by_group(rows, mesh, axes, lambda r: at_root(r, op, root))
    for op in ops[len(NAMES) :]:
        for k, axes in enumerate((("y",), ALL)):
            out[f"p{op} {k}"] = by_group(rows, mesh, axes, lambda r: [summed(r, op)[-1]] * len(r))
    sums = np.sum(rows, axis=1, dtype=_sum_type(u.dtype)).reshape(-1, 1)
    out["one"] = np.array(at_root(sums, "sum", x * y - 1))
    return out


def _sum_type(dtype: Any) -> Any:
    return np.sum(np.zeros(1, dtype)).dtype


def before(rows: Any, op: str) -> Any:
    """Return the reduction of all rows before each row by an op (an exclusive scan)."""
    sums = summed(rows, op)
    if sums.dtype.kind in "fV":
        least, most = -np.inf, np.inf
    elif sums.dtype == bool:
        least, most = 0, 1
    else:
        least, most = np.iinfo(sums.dtype).min, np.iinfo(sums.dtype).max
    none = {"prod": 1, "min": most, "max": least}.get(op, 0)
    if op == "and":
        none = np.invert(np.zeros(1, sums.dtype))[0]
    return np.concatenate([np.full_like(sums[:1], none), sums[:-1]])


def prefixed_in_numpy(u: Any, x: int, y: int) -> Arrays:
    rows, mesh, out = u[np.arange(x * y) % len(u)], (x, y), {}
    for op in ops_of(str(u.dtype)):
        for k, axes in enumerate((("x",), ("y",), ("y", "x"))):
            out[f"{op} {k} up to"] = by_group(rows, mesh, axes, lambda r: summed(r, op))
            out[f"{op} {k} before"] = by_group(rows, mesh, axes, lambda r: before(r, op))
    for k, axes in enumerate((("x",), ("y", "x"))):
        for what in ("max", "argmax", "min", "argmin"):
            find = getattr(np, what)
            out[f"{what} {k}"] = by_group(rows, mesh, axes, lambda r: [find(r, axis=0)] * len(r))
    return out


@spmd.program(mesh=ALL)
def halves(n: int = 11, m: int = 7, dtype: str = "float16"):
    """Sums in which what is small beside the first would vanish, were they rounded in between."""
    u = spmd.input("u", (n, m), dtype, layout=(None, None))

    @spmd.shard_map(out_layouts=((ALL,), *((ALL, None) for _ in range(4))))
    def local(u):
        row = u[spmd.index() % n] + np.where(spmd.index() == 0, HALVES[dtype], 0).astype(dtype)
        rows = (spmd.psum(row, ALL), spmd.preduce(row, ALL, root=spmd.ranks() // 2),
                spmd.pscan(row, ALL), spmd.pexscan(row, ALL))
        return (spmd.psum_scatter(row, ALL, tiled=True), *(np.reshape(x, (1, m)) for x in rows))

    return dict(zip(("scattered", "all", "root", "up to", "before"), local(u)))


HALVES = {"float16": 2048, "bfloat16": 256}  # and what 1 vanishes beside


def halves_in_numpy(u: Any, x: int, y: int) -> Arrays:
    rows = u[np.arange(x * y) % len(u)]
    rows[0] += np.asarray(HALVES[str(u.dtype)], u.dtype)
    sums = summed(rows, "sum")
    return {
        "scattered": sums[-1],
        "all": sums[-1:].repeat(len(rows), 0),
        "root": np.array(at_root(rows, "sum", x * y // 2)),
        "up to": sums,
        "before": before(rows, "sum"),
    }


TYPES = ("float64", "bool", "int16", "uint8", "float32", "float16")
Case = tuple[Any, Callable[..., Arrays], Sequence[str]]
CASES: dict[str, Case] = {
    "rooted": (rooted, rooted_in_numpy, ("float64",)),
    "reduced": (reduced, reduced_in_numpy, TYPES),
    "prefixed": (prefixed, prefixed_in_numpy, TYPES),
    "folded": (folded, folded_in_numpy, ("float64",)),
    "halves": (halves, halves_in_numpy, tuple(HALVES)),
}


def operand(dtype: str, n: int = 11, m: int = 7) -> Any:
    """The same numbers everywhere; small, so that sums of them are exact. One float32 is NaN."""
    draw = np.random.default_rng(5)
    if dtype == "bool":
        return draw.integers(0, 2, (n, m)).astype(bool)
    whole = draw.integers(0 if dtype.startswith("u") else -9, 10, (n, m)).astype(dtype)
    if dtype == "float32":
        whole[2, 3] = np.nan
    return whole


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
