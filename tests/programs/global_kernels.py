"""Steps of random programs (global_recipes.py) that call kernels, for the interpreters only: any
number of dims, which numba would compile for each anew."""

from __future__ import annotations

import numpy as np

import spmd


@spmd.kernel
def weighted(u, at, w, out):
    """Every neighbour that there is with a weight of its own, and the place."""
    first = at if isinstance(at, tuple) else (at,)
    for i in np.ndindex(*out.shape):
        box = tuple(slice(k, k + m - n + 1) for k, m, n in zip(i, u.shape, out.shape))
        part = u[box].ravel()
        place = sum((k + n) * (d + 3) for d, (k, n) in enumerate(zip(i, first)))
        total = (part * np.arange(1, part.size + 1)).sum() + place + w.sum()
        out[i] = np.asarray(total).astype(out.dtype)


@spmd.kernel
def backwards(u, out, sums):
    """Reverses the whole array: it also writes into its input, and not into all of its outputs."""
    u[...] = u[tuple(slice(None, None, -1) for _ in u.shape)]
    out[...] = u
    for k in range(0, sums.shape[0], 2):
        sums[k] = u[k:].sum().astype(sums.dtype)


@spmd.kernel(signature="(n),(),(n)->(n),()")
def lanes(a, b, w, out, total):
    out[:] = np.cumsum(a * b) - w[::-1]
    total[0] = out.sum().astype(total.dtype)


def windows(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    halo = [((c + k) % 3, (c * d + k) % 4) for k in range(x.ndim)]
    halo = [None if (c + d + k) % 5 == 0 else sides for k, sides in enumerate(halo)]
    boundary = ["edge", "wrap", -2, "zero"][d % 4]
    for n, sides in zip(x.shape, halo):
        if sides and (n == 0 or max(sides) > n):
            boundary = 3
    out = spmd.like(x) if d % 2 else spmd.empty(x.shape, x.dtype)
    return weighted(x, spmd.start(x), y.ravel()[:5], out=out, halo={"u": tuple(halo)},
                    boundary=boundary)


def whole(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    made, sums = backwards(x, out=spmd.like(x), sums=spmd.empty(x.shape[0], x.dtype))
    return sums if d % 3 == 0 else made


def by_signature(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    n = x.shape[-1]
    w = np.arange(n) * (c - 3)
    b = x[..., c % n] if n and d % 2 else c
    made, total = lanes(x, b, w, out=spmd.like(x), total=spmd.empty(x.shape[:-1], x.dtype))
    return made if d % 3 or x.ndim == 1 else total


STEPS = (windows, whole, by_signature)
