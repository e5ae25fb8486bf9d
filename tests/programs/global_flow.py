"""Steps of random programs (global_recipes.py) that only spmd has, and control flow.

As in global_steps.py: a step gives a new array, or None where it does not apply.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import spmd


def moved(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    order = [(c + k * (1 + d % 2)) % 3 for k in range(x.ndim)]
    entries = [mesh[k] if k < len(mesh) else None for k in order]
    layout = [e if e not in entries[:k] else None for k, e in enumerate(entries)]
    if d > 8:  # one dim over several axes, in any order, or over all ranks
        layout = [None] * x.ndim
        layout[c % x.ndim] = (mesh[::-1], mesh[:2], spmd.mesh("all"))[d % 3]
    return x.relayout(tuple(layout))


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


def versions(pool, x, y, c, d, mesh):
    """Arrays that change places in a loop, and updates of which neighbours are read at once."""
    if x.ndim == 0:
        return None
    axis = d % x.ndim
    u, v, w = x * 1, x - c, x + d
    both, kept = np.stack([x, w]), u[1:-1] * 0
    for k in spmd.range(d % 5):
        if c % 4 == 0:
            new = 2 * u - v
            kept = new[1:-1].copy()
            new[1:-1] += u[2:] - u[:-2] + k
            u, v = new, u
        elif c % 4 == 1:
            v[:-1] -= u[1:] - u[:-1]
            u[1:-1] += v[1:-1] - v[:-2]
        elif c % 4 == 2:
            u, v, w = v, w, np.roll(u, 1, axis) - v
        else:
            left, right = np.roll(both[0], 1, axis), np.roll(both[1], -1, axis)
            both = np.stack([right - left, left + k])
            u = both[d % 2]
    return u + np.sum(kept) if d % 2 else u - v


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


def own_rows(pool, x, y, c, d, mesh):
    """Turns that touch their own rows of split arrays only."""
    if x.ndim == 0 or 0 in x.shape:
        return None
    x = x * 1.0
    u, v = x.copy(), x * 2 - c
    for k in spmd.range(d % 2, x.shape[0]):
        row = x[k] * 2 - v[k]
        for t in spmd.range(c % 3):
            row = row - np.sum(row) * t
        if c % 4 == 0:
            u[k] = row + k
        elif c % 4 == 1:
            u[k] += row
            v[k] = u[k] - x[k]
        elif c % 4 == 2:
            if k % 2 == 0:
                u[k] -= row * 3
        else:
            v[k] = spmd.switch(k % 3, [lambda a: a + 1, lambda a: np.flip(a, 0) if a.ndim else -a,
                                       lambda a: a * 0], row)
    return u - v if d % 3 else np.roll(u, 1, axis=0) + v


def chosen(pool, x, y, c, d, mesh):
    if np.sum(x) > c:
        z = x[::-1] if x.ndim else x
    else:
        z = x * 2
    return z + 0


def waited(pool, x, y, c, d, mesh):
    """Run a while loop as long as the largest element is small."""
    if x.ndim == 0 or 0 in x.shape:
        return None
    u, n = x + 0, 0
    while n < d % 4 and np.max(u) < 3 * c:
        if n % 2 == 0:
            u = np.roll(u, 1, axis=0) + 1
        else:
            u[1:] = u[:-1] * 2 + u[1:]
        n = n + 1
    return u + n


def branched(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return spmd.cond(x > c, lambda a: a + 1, lambda a: a * 2, x)
    if c % 3 == 2:
        at = np.sum(x > 0) % 3
        return spmd.switch(at, [lambda a: a + 1, lambda a: np.flip(a, 0), lambda a: -a], x)
    return spmd.cond(np.sum(x) > c - 5, lambda a: a[::-1] + 1, lambda a: np.roll(a, 2, 0) * 2, x)


def scanned(pool, x, y, c, d, mesh):
    if x.ndim == 0 or 0 in x.shape:
        return None
    if c % 3 == 2:
        return spmd.fori_loop(0, d % 4, lambda i, s: np.roll(s, i, axis=0) - s + i, x)
    step = lambda carry, row: (carry * 2 + row, carry - row)
    last, rows = spmd.scan(step, x[0] * 0, x, reverse=d % 2 == 1)
    return rows if c % 3 else last


def drawn(pool, x, y, c, d, mesh):
    """Draw random numbers of a shape of the pool, in a layout of their own."""
    if x.ndim == 0:
        return x + spmd.random.randint(c, (), 0, 9)
    layout = (mesh[d % len(mesh)], *[None] * (x.ndim - 1)) if d % 3 else None
    if c % 4 == 0:
        return x + spmd.random.uniform(c, x.shape, layout=layout, stream=d)
    if c % 4 == 1:
        return spmd.random.randint(c, x.shape, -3, 9, layout=layout)
    if c % 4 == 2:
        return np.take(x, spmd.random.permutation(d, x.shape[0]), axis=0)
    total = x * 1.0
    for k in spmd.range(3):
        total = total - spmd.random.normal(c, x.shape, stream=k)
    return total


def mapped(pool, x, y, c, d, mesh):
    """One rank's view inside: what it computes must not depend on the number of ranks."""
    if x.ndim == 0:
        return None
    axis = mesh[d % len(mesh)]
    layout = (axis, *[None] * (x.ndim - 1))
    if c % 3 == 0:
        inside = spmd.shard_map(lambda u: u * 2 + 1, in_layouts=(layout,), out_layouts=layout)
        return inside(x)

    @spmd.shard_map(in_layouts=(layout,), out_layouts=spmd.replicated)
    def combined(u):
        z = np.clip(u, -9, 9)
        if c % 3 == 1:
            return spmd.psum(np.sum(z), axis)
        return spmd.all_gather(z, axis, tiled=True)

    return combined(x)


def half(pool, x, y, c, d, mesh):
    """Half types and float32 between two casts: every operation is rounded as NumPy does it."""
    kind = (np.float16, np.float32, ml_dtypes.bfloat16)[d % 3]
    h = np.clip(x, -4, 4).astype(kind)
    if x.ndim == 0 or 0 in x.shape:
        return (h * 2).astype(np.float64)
    made = (
        lambda: h * 3 - h / 2, lambda: np.roll(h, 1, axis=0) + h, lambda: h[1:] - h[:-1],
        lambda: np.max(h, axis=d % x.ndim), lambda: np.where(h > 1, h, -h),
        lambda: np.sort(h, axis=0),
    )
    return made[c % 6]().astype(np.float64)


STEPS = (moved, looped, versions, rows, own_rows, chosen, waited, branched, scanned, drawn, mapped,
         half)
