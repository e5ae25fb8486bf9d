"""Arrays that NumPy makes in a program: known while building until they meet what is not, and
written through every name and view of them, as in plain Python."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import SpmdError
from codegen.ir.graph import walk
from codegen.oracle import interpret

# ruff: noqa: B007
# mypy: ignore-errors

X = np.round(np.random.default_rng(3).standard_normal(6), 2)
TABLE = np.array([4.0, 1.0, 3.0, 2.0, 5.0, 0.5])
SQUARE = np.round(np.random.default_rng(4).standard_normal((3, 3)), 1)


def capture(f, in_ranks=False):
    @spmd.program(mesh=("r",))
    def program():
        k, t = spmd.scalar("k", 2), spmd.scalar("t", 0.5)
        x = spmd.input("x", (6,))
        if not in_ranks:
            return f(x, k, t)
        return spmd.shard_map(lambda x: f(x, k, t), out_layouts=spmd.replicated)(x)

    return program


def leaves(x):
    return [y for e in x for y in leaves(e)] if isinstance(x, (tuple, list)) else [np.asarray(x)]


def agree(f, in_ranks):
    program = capture(f, in_ranks)
    module = program.capture()
    for k in (0, 2):
        expected = leaves(program.eager(2, x=X.copy(), k=k, t=0.5))
        found = interpret.run(module, {"r": 2}, {"x": X}, {"k": k, "t": 0.5})
        found = [np.asarray(v) for v in found.values()]
        assert len(found) == len(expected)
        for got, want in zip(found, expected):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-13)


# ---- made anywhere, written anyhow -----------------------------------------------------------


def every_maker(x, k, t):
    made = [np.zeros(6), np.ones(6), np.empty(6), np.full(6, 2.0), np.arange(6.0), np.eye(6)[0],
            np.identity(6)[1], np.linspace(0, 1, 6), np.array([1.0] * 6), np.asarray([2.0] * 6),
            np.ndarray(6), np.zeros_like(TABLE), np.ones_like(TABLE), np.full_like(TABLE, 3),
            np.empty_like(TABLE), TABLE.copy(), np.array(TABLE), np.copy(TABLE), TABLE * 2, -TABLE,
            TABLE[[0, 0, 1, 2, 3, 4]], TABLE.astype(np.float32), np.sort(TABLE), np.outer(X, X)[0],
            np.concatenate([TABLE[:3], TABLE[3:]]), np.diag(TABLE)[2].copy(),
            TABLE.reshape(6) + 0]
    for m in made:
        m[2:] = 7.0
        m[1] = x[3]
        m[k] += t
        m[0] = 2
    return made


def before_and_after(x, k, t):
    a, b = helper(3), spmd.zeros(6)
    a[0, 1], b[2] = x[0], 5
    a += 1
    return a, b, helper(2) * t


def helper(n):
    table = np.zeros((n, 2))
    for i in range(n):
        for j in range(2):
            table[i, j] = (i * j + 1) % 3 / 3
    return table


def in_inner_functions(x, k, t):
    def inner():
        a = np.zeros(3)

        def put(i, v):
            a[i] = v

        put(1, x[2])
        put(0, 4.0)
        return a

    rows = [np.zeros(2) for _ in range(3)]
    for j, row in enumerate(rows):
        row[j % 2] = x[j]
    make = lambda n: np.ones(n)
    b = make(2)
    b[0] -= t
    c = functools.partial(np.full, 3)(2.5)
    c[k] = 0
    return inner(), *rows, b, c


class Grid:
    def __init__(self, n):
        self.u = np.zeros((n, n))
        self.n = n
        self.u[0] = 1

    def step(self, x):
        self.u[1:-1, 1:-1] += x[0]


def in_objects(x, k, t):
    grid = Grid(4)
    grid.step(x)
    grid.u[2, 3] = t
    return grid.u


# ---- other names of one array, and views of it -----------------------------------------------


def aliases(x, k, t):
    a = np.arange(6.0)
    b, c = a, a[1:4]
    held = {"a": a, "c": [c]}
    a[0] = 9
    c[0] = x[1]
    held["c"][0][1] += t
    held["a"][5] = x[0]
    b[k] = 1
    return a, b, c


def views(x, k, t):
    a = np.zeros((4, 6))
    flat, rows, turned, every = a.ravel(), a[1:3], a.T, a[::2, ::-2]
    rows[0] = TABLE
    flat[3] = -1
    turned[5, 3] = 8
    every[1, 0] = 3
    flat[2] = x[2]
    turned[0] = x[:4]
    rows[:, 1] *= 2
    every[:] += 1
    return a, flat, rows, turned, every


def views_of_views(x, k, t):
    a = np.arange(24.0).reshape(2, 3, 4)
    b = a[1].T[1:, ::-1].reshape(3, 3)[None, ..., 1:]
    b[0, 1] = 5
    c = a.swapaxes(0, 2)[..., 1]
    c[2] = 1.5
    d = np.squeeze(a[:1]).T
    d[1, 2] = x[1]
    b[0, 0, 0] = t
    return a, b, c, d


def copies_are_copies(x, k, t):
    a = np.arange(6.0)
    b, c, d, e = a.copy(), np.array(a), a[[0, 1, 2]], a.astype(float)
    f, g = copy.copy(a), a.reshape(2, 3).T.ravel()
    h = np.asarray(a)
    a[0] = x[0]
    b[1], c[1], d[1], e[1], f[1], g[1], h[1] = x[1], 1, 2, 3, 4, 5, 6
    return a, b, c, d, e, f, g, h


def written_to_itself(x, k, t):
    a = np.arange(6.0)
    a[1:] = a[:-1]
    b = np.arange(6.0)
    b[::-1] = b
    c = np.arange(6)
    c[c > 3] = -1
    c[[0, 0]] += 5
    np.add.at(c, [1, 1], 2)
    a[1:] += a[:-1] + x[1:]
    return a, b, c


def swapped(x, k, t):
    a, b = np.zeros(6), np.ones(6)
    for i in spmd.range(3):
        b[1:] = a[:-1] + x[1:]
        a, b = b, a
    return a, b


def order_of_memory(x, k, t):
    a = np.zeros((2, 3), order="F")
    b = a.ravel(order="F")
    b[2] = 5
    b[0] = x[0]
    c = np.asfortranarray(SQUARE)
    c[0, 1] = x[1]
    d = (SQUARE.T + 0).copy(order="F")
    d.T[0, 2] = t
    return a, c, d


# ---- where the code does not run once --------------------------------------------------------


def written_in_loops(x, k, t):
    a, count = np.zeros(6), np.zeros(1, np.int64)
    b = a[2:]
    for i in spmd.range(6):
        a[i] = i * x[i]
        count[0] += 1
        b[0] = 1
    for i in spmd.range(k):
        a[5] = 100
        count += 2
    return a, count, b


def read_then_written_in_a_loop(x, k, t):
    a, b = np.arange(6.0), np.zeros(6)
    for i in spmd.range(k + 1):
        b += a * 2
        a[0] = a[0] + 1
        b[1] = 3
    return a, b


def rebound_in_a_loop(x, k, t):
    a = np.zeros(3)
    total = np.zeros(())
    for i in spmd.range(k):
        a = np.ones(3) * i + a
        total += a.sum()
    return a, total


def made_in_a_loop(x, k, t):
    out = np.zeros((4, 3))
    for i in spmd.range(4):
        row = np.zeros(3)
        row[0] = 1
        row[1] = x[i]
        part = row[1:]
        part[1] = i
        out[i] = row
    return out


def written_in_branches(x, k, t):
    a, b = np.zeros(6), np.full(6, 3.0)
    if x[0] > 0:
        a[0] = 1
        b[1:3] = x[:2]
    else:
        a[1] = 2
        b = b * 2
    if k > 1:
        a[2] += 5
    else:
        c = np.zeros(2)
        c[0] = 4
        a[4:] = c
    return a, b


def known_while(x, k, t):
    a, i = np.zeros(6), 0
    while i < 4:
        a[i] = i * 0.5
        i += 1
    order = []
    while a[i - 1] > 0.6:
        order.append(float(a[i - 1]))
        i -= 1
    while a[5] < t:
        a[5] += 0.25
        a[0] += 1
    return a, np.array(order)


def functional(x, k, t):
    w = np.zeros(6)
    w[0] = 1
    a = spmd.fori_loop(0, 3, lambda i, c: c + w * x, np.ones(6))
    b = spmd.cond(k > 1, lambda v: v + w, lambda v: v - w, np.full(6, 2.0))
    carry, out = spmd.scan(lambda c, v: (c + v, c * v), np.zeros(()), np.arange(4.0))
    w[1] = t
    return a, b, w, carry, out


def by_value_in_ranks(x, k, t):
    w = np.zeros(6)
    w[0] = 5
    y = spmd.shard_map(lambda a, b: (a + b * w, a * 2), out_layouts=spmd.replicated)(w, x)
    w[1] = 7
    return w, *y


# ---- what Python needs while building --------------------------------------------------------


def build_time(x, k, t):
    order = np.argsort(TABLE)
    shape = np.array([2, 3])
    weights = np.array([0.25, 0.5, 0.25])
    weights[1] = 0.75
    total = float(np.sum(weights)) + weights.max() + sum(weights) + math.fsum(weights)
    y = x[order] + x[np.arange(6)] + np.zeros(shape).ravel() * total
    for v in np.linspace(0, 1, 5):
        y = y + v
    if weights[1] > 0.5 and weights.any() and not (weights > 2).any():
        y = y * 2
    inverse = np.linalg.inv(SQUARE + np.eye(3))
    inverse[0, 0] = x[0]
    unique, counts = np.unique(np.array([3, 1, 3]), return_counts=True)
    text = f"{weights[0]:.2f} {weights.tolist()} {len(weights)} {shape}"
    y = y * len(text) + range(10)[shape[0]] + [5, 6, 7][np.array(1)]
    mask = np.zeros(6, bool)
    mask[[1, 4]] = True
    steps = np.array(3)
    for i in spmd.range(steps):
        y[mask] += i
    y[order[:2]] = 0.5
    n = int(shape.prod())
    data = dataclasses.replace(Point(np.zeros(2)), y=weights)
    return y, inverse, unique, counts, np.zeros(n), x.reshape(shape), data.x, data.y[::-1]


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


def of_other_libraries(x, k, t):
    import scipy.linalg

    a = np.eye(3) * 2
    a[0, 1] = 1
    lu, pivots = scipy.linalg.lu_factor(a)
    root = scipy.linalg.sqrtm(a)
    root[0, 0] = x[0]
    rng = np.random.default_rng(5)
    order = np.arange(6)
    rng.shuffle(order)
    drawn = rng.random(3)
    drawn[1] = t
    return a @ x[:3], root, lu, order, x[order], drawn


def constants_read(x, k, t):
    return TABLE[k], TABLE[k:][:1] if isinstance(k, int) else x[:1] * 0 + TABLE[k], TABLE + x


CASES = [
    every_maker, before_and_after, in_inner_functions, in_objects, aliases, views, views_of_views,
    copies_are_copies, written_to_itself, swapped, order_of_memory, written_in_loops,
    read_then_written_in_a_loop, rebound_in_a_loop, made_in_a_loop, written_in_branches,
    known_while, functional, build_time, of_other_libraries, constants_read,
]


@pytest.mark.parametrize("in_ranks", [False, True], ids=["global", "ranks"])
@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_as_in_plain_python(f, in_ranks):
    before = TABLE.copy()
    agree(f, in_ranks)
    np.testing.assert_array_equal(TABLE, before)


def test_arguments_of_shard_map_are_by_value():
    agree(by_value_in_ranks, False)


# ---- constants, and what else is refused -----------------------------------------------------


def through_a_loop(x):
    for row in SQUARE:
        row[0] = 1
    return x


def through_a_view(x):
    part = SQUARE.T[1:]
    part[0] = x[:3]
    return x


def by_a_name(x):
    table = {"t": TABLE}["t"]
    table += 1
    return x


def with_a_subscript(x):
    TABLE[2] = 5
    return x


def of_an_argument(x, table=TABLE):
    table[1:] -= x[1:]
    return x


CONSTANTS = [
    (through_a_loop, "w = row.copy()"), (through_a_view, "w = part.copy()"),
    (by_a_name, "w = table.copy()"), (with_a_subscript, "w = TABLE.copy()"),
    (of_an_argument, "w = table.copy()"),
    (lambda x: TABLE.sort(), "w = TABLE.copy()"),
    (lambda x: np.copyto(TABLE, 1.0), "TABLE.copy()"),
    (lambda x: np.add.at(TABLE, 0, 1), "TABLE.copy()"),
    (lambda x: np.sin(x, out=TABLE), "TABLE.copy()"),
    (lambda x: np.sin(TABLE, out=TABLE), "TABLE.copy()"),
    (lambda x: np.fill_diagonal(SQUARE, 1), "SQUARE.copy()"),
]


@pytest.mark.parametrize("k", range(len(CONSTANTS)))
def test_constants_are_not_written(k):
    f, remedy = CONSTANTS[k]
    before = TABLE.copy(), SQUARE.copy()
    with pytest.raises(SpmdError, match="from outside the program") as caught:
        capture(lambda x, k, t: f(x)).capture()
    assert remedy in str(caught.value)
    assert caught.value.place.file == __file__
    for now, then in zip((TABLE, SQUARE), before):
        np.testing.assert_array_equal(now, then)


def test_written_in_a_shard_map_that_it_comes_from_outside_of():
    def f(x, k, t):
        w = np.zeros(6)

        def body(row):
            w[0] = row[0]
            return row

        return spmd.shard_map(body, out_layouts=spmd.replicated)(x)

    with pytest.raises(SpmdError, match="by value|outside"):
        capture(f).capture()


def test_blank_and_uniform_arrays_and_grids_are_no_data():
    """Arrays of 8 GB each: neither building nor the graph holds their elements."""

    def f(x, k, t):
        big = (32768, 32768)
        a, b, c = np.zeros(big), np.ones(big), np.full(big, 2.5)
        a[0, :] = 1
        a[1:-1, 1:-1] = b[1:-1, 1:-1] * c[1:-1, 1:-1] * x[0]
        return a[:2, :2], np.arange(1 << 20)[k]

    module = capture(f).capture()
    assert "const" not in {op.kind.name for op in walk(module.body)}


KEPT: dict[int, Any] = {}


def test_what_a_cache_keeps_is_a_constant_of_the_next_build():
    def table(n):
        if n not in KEPT:
            KEPT[n] = np.hanning(n)
        return KEPT[n]

    def reads(x, k, t):
        return x * table(6), table(6)[k]

    for _ in range(2):
        agree(reads, False)
        np.testing.assert_array_equal(KEPT[6] + 1, np.hanning(6) + 1)
    with pytest.raises(SpmdError, match="kept from another build"):
        capture(lambda x, k, t: table(6).__setitem__(0, x[0])).capture()


def test_empty_arrays_that_python_writes_are_zeros():
    """An array of np.empty that Python fills in part is zero elsewhere, not what memory held."""
    data = np.ones((9, 40))

    @spmd.program(mesh=("r",))
    def written():
        made = np.empty([9, 40]), np.empty_like(data)
        for array in made:
            for k in range(0, 9, 2):
                array[k] = np.arange(40) ** 2 + k
        return made

    kept = [np.full((9, 40), 7.0) for _ in range(50)]
    del kept  # what is free is not zero
    for found in spmd.build(written).run(ranks=2):
        np.testing.assert_array_equal(found[1::2], 0)
