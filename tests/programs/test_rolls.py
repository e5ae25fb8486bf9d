"""Rolls, reads that go on beyond the ends of a dim: results are NumPy's on any number of ranks.

In loops and branches, by counters, of views, of one another, of parts, of nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd


@spmd.program(mesh=("x",))
def rolled() -> Any:
    u = spmd.input("u", (13, 4), np.float64, layout=("x", None),
                   default=lambda i, j: (i * 7 + j * 3) % 11)
    v = u * 1.0
    for k in spmd.range(5):
        v[2:-2] += np.roll(v, 1, 0)[2:-2]
        v[k] = np.roll(v, k, 0)[k] + np.roll(u, 1, 1)[k]
        if k % 2 == 0:
            v = v - np.roll(v, 2, 0)
        else:
            v = np.roll(v, (1, -1), (0, 1)) * 0.5
    v[np.roll(v > 0, 3, 0)] *= 2.0
    return {
        "v": v, "twice": np.roll(np.roll(v, 20, 0), -13, 0), "sum": np.sum(np.roll(v, 1, 0) * v),
        "flipped": np.roll(v[::-1], 4, 0), "running": np.cumsum(np.roll(v, 1, 0), axis=0),
        "turned": np.roll(v.T, 1, 1).sum(axis=0), "of one": np.roll(v[:, None, :], 1, 1),
        "of none": np.roll(v[:0], 1, 0), "repeated": np.roll(np.broadcast_to(v[0], (5, 4)), 1, 0),
    }


def same(found: dict[str, Any], expected: dict[str, Any], ranks: int) -> None:
    for name, e in expected.items():
        np.testing.assert_allclose(found[name], e, rtol=1e-12, err_msg=f"{name} on {ranks} ranks")


def test_rolls() -> None:
    """In loops and branches, by a counter, of views, of one another, of nothing."""
    image, expected = spmd.build(rolled), rolled.eager()
    for ranks in (1, 2, 5, 17):
        same(image.run(ranks=ranks), expected, ranks)


@spmd.program(mesh=("x",))
def rolled_by_the_mesh() -> Any:
    u = spmd.input("u", (2 * spmd.axis_size("x"), 3), np.float64, layout=("x", None),
                   default=lambda i, j: i * i + j)
    for _ in spmd.range(3):
        u = u + np.roll(u, 1, 0) * 0.5 + np.roll(u, -2, 0) * 0.25 + np.roll(u, 5, 0)
    return u


def test_rolls_longer_than_the_dim() -> None:
    """How often it goes around is known only at launch."""
    image = spmd.build(rolled_by_the_mesh)
    for ranks in (1, 2, 3, 7):
        i, j = np.indices((2 * ranks, 3))
        u = (i * i + j).astype(np.float64)
        for _ in range(3):
            u = u + np.roll(u, 1, 0) * 0.5 + np.roll(u, -2, 0) * 0.25 + np.roll(u, 5, 0)
        np.testing.assert_allclose(image.run(ranks=ranks), u)


@spmd.program(mesh=("x",))
def parts(n: int = 8) -> Any:
    u = spmd.asarray(np.arange(n) * 1.0, layout=("x",))
    w, v, y, f = u * 1, u * 1, u * 0, u * 1
    f[0] = np.roll(f, 1)[-1]
    w[1:-1] = (np.roll(u, 1) + np.roll(u, -1) - 2 * u)[1:-1]
    v[:1] = (np.roll(u, 1) + u)[:1]
    v[1:] = (np.roll(u, 1) + u)[1:]
    v[3:5] = (np.roll(u, 3) * u)[3:5]
    y[4:8] = np.roll(np.full(4, 1.5) + spmd.asarray(np.arange(4.0)), 1)
    z = u.reshape(2, 4).relayout(("x", None))
    return {
        "w": w, "v": v, "y": y, "first": f,
        "after": np.roll(u, 1)[1:], "before": np.roll(u, -2)[:-2],
        "column": np.roll(z, (1, 1), (0, 1))[:, 2],
        "both": (np.roll(z, -1, 1) + np.roll(z, 1, 0))[:, :-1],
    }


def test_parts_of_rolls() -> None:
    image, expected = spmd.build(parts), parts.eager()
    for ranks in (1, 2, 3, 9):
        same(image.run(ranks=ranks), expected, ranks)


@spmd.program(mesh=("x",))
def of_some(n: int = 12) -> Any:
    k = spmd.scalar("k", 0)
    spmd.require(k >= 0)
    spmd.require(k <= n)
    v = spmd.asarray(np.arange(n) * 1.0, layout=("x",))[:k] * 2
    return {"sum": np.sum(np.roll(v, 70) + np.roll(v, 69))}


@pytest.mark.parametrize("k", [0, 1, 5])
def test_rolls_of_what_may_be_nothing(k: int) -> None:
    """Also where a pair of ranks has more than 64 boxes, and nobody knows which have elements."""
    image, expected = spmd.build(of_some), of_some.eager(k=k)
    for ranks in (1, 2, 3, 5):
        same(image.run(ranks=ranks, k=k), expected, ranks)
