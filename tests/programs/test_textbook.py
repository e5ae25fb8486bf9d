"""Parallel algorithms of the textbooks, as users write them, against NumPy on many meshes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.layouts.partition import partition
from codegen.oracle import interpret
from codegen.oracle.eager import mesh_sizes

DRAW = np.random.default_rng(7)


@spmd.program(mesh=("x", "y"))
def cannon(n: int = 12):
    """Multiply matrices by Cannon's algorithm (1969): blocks travel round a square mesh."""
    a = spmd.input("a", (n, n), np.float64, layout=("x", "y"))
    b = spmd.input("b", (n, n), np.float64, layout=("x", "y"))
    q = spmd.axis_size("x")
    spmd.require(spmd.axis_size("y") == q)
    spmd.require(n % q == 0)

    @spmd.shard_map(mesh=("x", "y"), out_layouts=("x", "y"))
    def multiply(a, b):
        a = spmd.ppermute(a, ("x", "y"), to=lambda p, _: p // q * q + (p % q - p // q) % q)
        b = spmd.ppermute(b, ("x", "y"), to=lambda p, _: (p // q - p % q) % q * q + p % q)
        c = np.zeros(a.shape[:1] + b.shape[1:])
        for _ in spmd.range(q):
            c += a @ b
            a = spmd.ppermute(a, "y", shift=-1)
            b = spmd.ppermute(b, "x", shift=-1)
        return c

    return {"c": multiply(a, b)}


@spmd.program(mesh=("r",))
def odd_even_sort(n: int = 40):
    """Sort by odd-even transposition: of two neighbours one keeps the lower half, one the upper."""
    x = spmd.input("x", (n,), np.int32, layout=("r",))
    spmd.require(n % spmd.axis_size("r") == 0)

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def ordered(x):
        p, ranks = spmd.axis_index("r"), spmd.axis_size("r")
        m = x.shape[0]
        x = np.sort(x)
        for s in spmd.range(ranks):
            below = spmd.ppermute(x, "r", to=lambda i, n: i + 1 if i + 1 < n else None)
            above = spmd.ppermute(x, "r", to=lambda i, n: i - 1 if i > 0 else None)
            if (p + s) % 2 == 0:
                if p + 1 < ranks:
                    x = np.sort(np.concatenate([x, above]))[:m]
            elif p > 0:
                x = np.sort(np.concatenate([below, x]))[m:]
        return x

    return {"y": ordered(x)}


@spmd.program(mesh=("r",))
def prefix_sum(n: int = 10):
    """Hillis and Steele (1986): partial sums from 1, 2, 4 … ranks away."""
    x = spmd.input("x", (n,), np.float64, layout=("r",))

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def sums(x):
        total = own = np.sum(x)
        d = 1
        while d < spmd.axis_size("r"):
            total = total + spmd.ppermute(total, "r", to=lambda i, n: i + d if i + d < n else None)
            d *= 2
        return np.cumsum(x) + (total - own)

    return {"y": sums(x)}


@spmd.program(mesh=("r",))
def broadcast_tree():
    """A binomial tree; which rank takes part in which round is a branch on the index."""

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def sent():
        p = spmd.axis_index("r")
        v = np.zeros(1)
        if p == 0:
            v = v + 42.0
        for k in spmd.range(4):
            d = 2**k
            got = spmd.ppermute(v, "r", to=lambda i, n: i + d if i < d and i + d < n else None)
            if (p >= d) & (p < 2 * d):
                v = got
        return v

    return {"y": sent()}


@spmd.program(mesh=("r",))
def rotated(n: int = 24):
    """How far is read from the data, and agreed on; then neighbours in pairs exchange."""
    x = spmd.input("x", (n,), np.float64, layout=("r",))
    spmd.require(n % spmd.axis_size("r") == 0)

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def moved(x):
        far = spmd.pmax(np.max(x).astype(np.int64), "r")
        x = spmd.ppermute(x, "r", shift=far % 5)
        return spmd.ppermute(x, "r", to=lambda i, n: i ^ 1 if i ^ 1 < n else None)

    return {"y": moved(x)}


def rotated_in_numpy(x: Any, ranks: int) -> Any:
    parts = np.split(x, ranks)
    parts = [parts[(k - int(x.max()) % 5) % ranks] for k in range(ranks)]
    none = np.zeros_like(parts[0])
    return np.concatenate([parts[k ^ 1] if k ^ 1 < ranks else none for k in range(ranks)])


@spmd.program(mesh=("x", "y"))
def life(h: int = 11, w: int = 13, steps: int = 3):
    """Conway's game on a torus: halos in two steps, so that corners are right."""
    g = spmd.input("g", (h, w), np.uint8, layout=("x", "y"))
    spmd.require(spmd.axis_size("x") <= h)
    spmd.require(spmd.axis_size("y") <= w)

    @spmd.shard_map(mesh=("x", "y"), out_layouts=("x", "y"))
    def played(g):
        for _ in spmd.range(steps):
            e = np.concatenate([spmd.ppermute(g[-1:], "x", shift=1), g,
                                spmd.ppermute(g[:1], "x", shift=-1)])
            e = np.concatenate([spmd.ppermute(e[:, -1:], "y", shift=1), e,
                                spmd.ppermute(e[:, :1], "y", shift=-1)], axis=1)
            s = np.zeros(g.shape, np.uint8)
            for a in range(3):
                for b in range(3):
                    if (a, b) != (1, 1):
                        s = s + e[a : a + g.shape[0], b : b + g.shape[1]]
            g = ((s == 3) | ((s == 2) & (g == 1))).astype(np.uint8)
        return g

    return {"g": played(g)}


def life_in_numpy(g: Any) -> Any:
    near = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    for _ in range(3):
        s = sum(np.roll(g, shift, (0, 1)) for shift in near)
        g = ((s == 3) | ((s == 2) & (g == 1))).astype(np.uint8)
    return g


@spmd.program(mesh=("r",))
def conjugate_gradient(n: int = 12):
    """Hestenes and Stiefel (1952), with the matrix in rows; ends when the residual is small."""
    a = spmd.input("a", (n, n), np.float64, layout=("r", None))
    b = spmd.input("b", (n,), np.float64, layout=("r",))

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def solved(a, b):
        x, r, p = np.zeros_like(b), b.copy(), b.copy()
        rs = spmd.psum(r @ r, "r")
        steps = 0
        while (rs > 1e-24) & (steps < 50):
            q = a @ spmd.all_gather(p, "r", tiled=True)
            alpha = rs / spmd.psum(np.dot(p, q), "r")
            x += alpha * p
            r -= alpha * q
            before, rs = rs, spmd.psum(r @ r, "r")
            p = r + rs / before * p
            steps += 1
        return x

    return {"x": solved(a, b)}


A, B = DRAW.random((12, 12)), DRAW.random((12, 12))
SPD, V = A @ A.T + 12 * np.eye(12), DRAW.random(12)
V2 = DRAW.random(24)
X = DRAW.permutation(40).astype(np.int32)
G = (DRAW.random((11, 13)) < 0.4).astype(np.uint8)

CASES: list[tuple[Any, list[int], dict[str, Any], Any]] = [
    (cannon, [1, 4, 9, 16, 36, 144], {"a": A, "b": B}, lambda n: A @ B),
    (odd_even_sort, [1, 2, 4, 5, 8, 40], {"x": X}, lambda n: np.sort(X)),
    (prefix_sum, [1, 2, 3, 5, 8, 12, 32], {"x": V[:10]}, lambda n: np.cumsum(V[:10])),
    (broadcast_tree, [1, 2, 3, 5, 8, 16], {}, lambda n: np.full(n, 42.0)),
    (rotated, [1, 2, 3, 8, 24], {"x": 9 * V2}, lambda n: rotated_in_numpy(9 * V2, n)),
    (life, [1, 2, 4, 6, 9, 100], {"g": G}, lambda n: life_in_numpy(G)),
    (conjugate_gradient, [1, 2, 5, 12, 16], {"a": SPD, "b": V}, lambda n: np.linalg.solve(SPD, V)),
]


@pytest.mark.parametrize(
    "program, sizes, inputs, wanted", CASES, ids=lambda c: getattr(c, "name", "")
)
def test_agrees_with_numpy(program: Any, sizes: Any, inputs: Any, wanted: Any) -> None:
    image, graph = spmd.build(program), program.capture()
    for n in sizes:
        (found,) = image.run(ranks=n, **inputs).values()
        np.testing.assert_allclose(found, wanted(n), rtol=1e-9, err_msg=f"{n} ranks")
        if n > 9:
            continue
        plain = program.eager(ranks=n, **inputs)
        sizes_of_mesh = mesh_sizes(program.mesh.names, {}, n)
        levels = [interpret.run(m, sizes_of_mesh, inputs, {}) for m in (graph, partition(graph))]
        for found in (plain, *levels):
            np.testing.assert_allclose(*found.values(), wanted(n), rtol=1e-9, err_msg=f"{n} ranks")


def test_what_was_required_is_checked_at_launch() -> None:
    """A condition that the compiler uses to simplify is still tested on the mesh of a launch."""
    with pytest.raises(spmd.MeshError, match="2, 4, 5, 8, 10, 20, 40"):
        spmd.build(odd_even_sort).run(ranks=3, x=X)
    with pytest.raises(spmd.MeshError, match="1, 4, 9, 16, 36"):
        spmd.build(cannon).run(ranks=6, a=A, b=B)
