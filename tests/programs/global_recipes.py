"""Random programs on global arrays: a recipe is a list of small integers; any is a program.

`program_of` gives a program that follows a recipe; the same source runs eagerly in NumPy and is
traced. What a step cannot do with the arrays there are, it leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import spmd

EXTENTS = (0, 1, 2, 3, 4, 5, 7, 12, 18, 33)


@dataclass(frozen=True)
class Recipe:
    """axes: how many. arrays: per input dtype, extents, layout. steps: kind and four choices."""

    axes: int
    arrays: tuple[tuple[str, tuple[int, ...], tuple[Any, ...]], ...]
    steps: tuple[tuple[int, ...], ...]


@st.composite
def recipes(draw: Any, steps: int = 8) -> Recipe:
    axes = draw(st.integers(1, 3))
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        ndim = draw(st.integers(1, 3))
        shape = tuple(draw(st.sampled_from(EXTENTS)) for _ in range(ndim))
        layout = _layout(draw(st.permutations(range(max(3, axes)))), ndim, axes)
        if axes > 1 and draw(st.integers(0, 5)) == 0:
            layout = (("x", "y"), *[None] * (ndim - 1))
        arrays.append((draw(st.sampled_from(("float64", "int64"))), shape, layout))
    step = st.tuples(st.integers(0, len(STEPS) - 1), *[st.integers(0, 11)] * 4)
    return Recipe(axes, tuple(arrays), tuple(draw(st.lists(step, min_size=1, max_size=steps))))


def _layout(order: Any, ndim: int, axes: int) -> tuple[Any, ...]:
    """Dim d is split over axis order[d], if there is one of that number."""
    names = ("x", "y", "z")[:axes]
    return tuple(names[k] if k < axes else None for k in order[:ndim])


def sizes(ranks: int, axes: int, choice: int) -> dict[str, int]:
    """One of the meshes of so many ranks."""
    found = [
        (a, b, ranks // a // b)
        for a in range(1, ranks + 1) for b in range(1, ranks + 1)
        if ranks % (a * b) == 0 and (axes > 2 or ranks == a * b) and (axes > 1 or b == 1)
    ]  # fmt: skip
    return dict(zip(("x", "y", "z")[:axes], found[choice % len(found)]))


def program_of(recipe: Recipe) -> Any:
    """The program; its outputs are all arrays that it made."""
    mesh = ("x", "y", "z")[: recipe.axes]

    @spmd.program(mesh=mesh)
    def recipe_program():
        pool = []
        for k, (dtype, shape, layout) in enumerate(recipe.arrays):
            default = lambda *i, k=k: (sum(i) * 7 + i[0] * i[0] + k) % 11 - 4
            pool.append(spmd.input(f"a{k}", shape, dtype, layout=layout, default=default))
        for step in recipe.steps:
            made = follow(pool, step, mesh)
            if made is not None:
                pool.append(made)
        return {f"r{k}": x for k, x in enumerate(pool)}

    return recipe_program


def follow(pool: Any, step: Any, mesh: Any) -> Any:
    """One step: a new array, or None where it only writes or does not apply."""
    kind, a, b, c, d = step
    x, y = (v.astype(np.int64) if v.dtype == np.bool_ else v
            for v in (pool[a % len(pool)], pool[b % len(pool)]))  # fmt: skip
    return STEPS[kind](pool, x, y, c, d, mesh)


def add(pool, x, y, c, d, mesh):
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return x + 1
    return (x + y, x - y, x * 2 + y, np.maximum(x, y), np.minimum(x, y))[c % 5]


def unary(pool, x, y, c, d, mesh):
    made = (
        lambda: -x, lambda: np.abs(x) + 1, lambda: np.sqrt(np.abs(x)), lambda: np.clip(x, -2, 3),
        lambda: np.where(x > 0, x, 7), lambda: x.astype(np.float32).astype(np.float64),
        lambda: x % 5, lambda: x.copy(),
    )  # fmt: skip
    return made[c % 8]()


def cut(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    dim = d % x.ndim
    key = (
        slice(1, None), slice(None, -1), slice(None, None, -1), slice(None, None, 2),
        slice(c, None), slice(-3, None), slice(5, 1, -2), slice(1, -1), slice(2, 4),
        slice(None, None, -3),
    )  # fmt: skip
    return x[(*[slice(None)] * dim, key[c % 10])]


def pick(pool, x, y, c, d, mesh):
    if x.ndim == 0 or x.shape[d % x.ndim] == 0:
        return None
    dim = d % x.ndim
    at = c % x.shape[dim]
    return x[(*[slice(None)] * dim, at - x.shape[dim] if c % 2 else at)]


def shifted(pool, x, y, c, d, mesh):
    """A difference of neighbours: the first thing that wants a halo."""
    if x.ndim == 0:
        return None
    dim = d % x.ndim
    before = (slice(None),) * dim
    return x[(*before, slice(1 + c % 3, None))] - x[(*before, slice(None, -1 - c % 3))]


def reduced(pool, x, y, c, d, mesh):
    axis = None if d == 0 or x.ndim == 0 else d % x.ndim
    if 0 in x.shape and c % 9 > 3:
        return None
    f = (np.sum, np.any, np.all, np.prod, np.max, np.min, np.mean, np.argmax, np.argmin)[c % 9]
    return f(np.clip(x, -1, 2), axis=axis) if f is np.prod else f(x, axis=axis)


def running(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    dim = d % x.ndim
    return (np.cumsum, np.sort, np.flip)[c % 3](x, axis=dim)


def roll(pool, x, y, c, d, mesh):
    return np.roll(x, c - 5, axis=d % x.ndim) if x.ndim else None


def joined(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    dim = d % x.ndim
    if c % 3 == 0:
        return np.stack([x, x * 2], axis=dim)
    if c % 3 == 1:
        return np.pad(x, [(c % 2, 2) if k == dim else (0, 0) for k in range(x.ndim)])
    return np.concatenate([x, y if y.shape == x.shape else x], axis=dim)


def turned(pool, x, y, c, d, mesh):
    if x.ndim < 2:
        return None
    return np.swapaxes(x, 0, d % x.ndim) if c % 2 else np.transpose(x)


def reshaped(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    if c % 4 == 0:
        return x.reshape(-1) if 0 not in x.shape else x.ravel()
    if c % 4 == 1 and x.ndim > 1:
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
    if c % 4 == 2 and x.shape[0] % 2 == 0:
        return x.reshape(x.shape[0] // 2, 2, *x.shape[1:])
    return x.reshape(1, *x.shape) if c % 2 else x.reshape(*x.shape, 1)


def product(pool, x, y, c, d, mesh):
    if x.ndim == 0 or y.ndim == 0:
        return None
    if c % 3 == 0 and x.ndim == 2 and y.ndim == 2:
        return x @ (y if x.shape[1] == y.shape[0] else x.T)
    if c % 3 == 1 and x.ndim == 2:
        return np.einsum("ij,kj->ik", x, x)
    if x.ndim > 2 or y.ndim > 2 or 0 in x.shape + y.shape:
        return None
    return np.outer(x[..., 0], y[0])


def taken(pool, x, y, c, d, mesh):
    if x.ndim == 0 or x.shape[d % x.ndim] == 0:
        return None
    dim = d % x.ndim
    n = x.shape[dim]
    if c % 2 or y.ndim != 1:
        return np.take(x, np.array([0, n - 1, c % n]), axis=dim)
    return np.take(x, np.abs(y.astype(np.int64)) % n, axis=dim)


def written(pool, x, y, c, d, mesh):
    """Into a copy, through a view; then whoever reads it sees that."""
    if x.ndim == 0:
        return None
    dim = d % x.ndim
    u = x.copy()
    before = (slice(None),) * dim
    inner = (*before, slice(1, -1))
    if c % 4 == 0:
        u[inner] += u[(*before, slice(2, None))] - u[(*before, slice(None, -2))]
    elif c % 4 == 1:
        u[(*before, slice(None, None, 2))] = 3
    elif c % 4 == 2:
        u.T[...] = u.T * 2
    elif x.shape[dim]:
        u[(*before, c % x.shape[dim])] = u[(*before, 0)] + 1
    return u


def scattered(pool, x, y, c, d, mesh):
    if x.ndim == 0 or x.shape[0] == 0:
        return None
    u = x.copy()
    if y.ndim == 1 and d % 2:
        at = np.abs(y.astype(np.int64)) % x.shape[0]
        if c % 3:
            np.add.at(u, at, 2)
        else:
            np.maximum.at(u, at, x[at] + 1)
        return u
    np.add.at(u, np.array([0, c % x.shape[0], x.shape[0] - 1, 0]), 2)
    return u


def moved(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    order = [(c + k * (1 + d % 2)) % 3 for k in range(x.ndim)]
    entries = [mesh[k] if k < len(mesh) else None for k in order]
    return x.relayout(tuple(e if e not in entries[:k] else None for k, e in enumerate(entries)))


def looped(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    u = x * 1
    total = np.sum(x) * 0
    for k in spmd.range(c % 4):
        if d % 3 == 0:
            u[1:-1] = u[2:] - u[:-2] + k
            u = np.roll(u, 1, axis=0)
        elif d % 3 == 1:
            u[:-1] = u[1:] - u[:-1] // 2
        else:
            u[-2::-1] = u[:0:-1] - k
        total = total + np.sum(u)
    return u if d % 2 else total


def rows(pool, x, y, c, d, mesh):
    """A loop counter as a subscript of a split dim."""
    if x.ndim == 0 or 0 in x.shape:
        return None
    total = np.zeros(x.shape[1:]) + 0 * x[0]
    u = x.copy()
    for k in spmd.range(x.shape[0]):
        total = total * 2 + x[k]
        u[k] = u[k] - x[0]
    return u if d % 2 else total


def chosen(pool, x, y, c, d, mesh):
    if np.sum(x) > c:
        z = x[::-1] if x.ndim else x
    else:
        z = x * 2
    return z + 0


STEPS = (add, unary, cut, pick, shifted, reduced, running, roll, joined, turned, reshaped, product,
         taken, written, scattered, moved, looped, rows, chosen)  # fmt: skip
