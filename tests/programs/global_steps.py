"""Steps of random programs (global_recipes.py): NumPy on whole arrays, nothing else.

A step takes the pool of arrays, two of them, two choices and the mesh axes; it gives a new array,
or None where it does not apply. What rounding could make something else of is kept small or whole.
"""

from __future__ import annotations

import numpy as np


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
    )
    return made[c % 8]()


def cut(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    dim = d % x.ndim
    key = (
        slice(1, None), slice(None, -1), slice(None, None, -1), slice(None, None, 2),
        slice(c, None), slice(-3, None), slice(5, 1, -2), slice(1, -1), slice(2, 4),
        slice(None, None, -3),
    )
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
    return (np.cumsum, np.sort, np.flip, transformed)[c % 4](x, axis=dim)


def transformed(x, axis):
    """Transform to Fourier space and back: whole numbers come out again."""
    if not x.shape[axis]:
        return x
    made = np.fft.rfft(np.round(np.clip(x * 1.0, -99, 99)), axis=axis)
    return np.round(np.fft.irfft(made, x.shape[axis], axis))


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
    if x.ndim > 1 and x.size and (d % 2 or x.ndim > 2):
        return factored(x, c // 3)
    if x.ndim > 2 or y.ndim > 2 or 0 in x.shape + y.shape:
        return None
    return np.outer(x[..., 0], y[0])


def factored(x, c):
    """Into factors and back: whole numbers come out again."""
    whole = np.round(np.clip(x * 1.0, -9, 9))
    gram = whole @ whole.swapaxes(-1, -2) + np.eye(x.shape[-2])
    if c == 0:
        lower = np.linalg.cholesky(gram)
        return np.round(lower @ lower.swapaxes(-1, -2))
    if c == 1:
        return np.round(np.linalg.solve(gram, gram @ whole))
    q, r = np.linalg.qr(whole)
    u, s, v = np.linalg.svd(q @ r, full_matrices=False)
    return np.round((u * s[..., None, :]) @ v)


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


def ufunc(pool, x, y, c, d, mesh):
    z = np.clip(x, -4, 4)
    made = (
        lambda: np.exp(z), lambda: np.sin(z), lambda: np.hypot(z, 3), lambda: np.arctan2(z, 2),
        lambda: np.floor(z / 2), lambda: np.sign(x), lambda: np.square(z) - z**3, lambda: x // 3,
        lambda: (x > 0) & (z != 2) | ~(x == x), lambda: np.logical_xor(x, z > 1),
        lambda: np.where(np.isfinite(x), x, 0), lambda: np.divide(z, 4) ** 2 + 1 / (z * z + 1),
    )
    return made[c]()


def bits(pool, x, y, c, d, mesh):
    if x.dtype.kind != "i":
        return (x > 1, x == d, x >= 0, x != 3)[c % 4]
    return (x & 6, x | 1, x ^ 5, ~x, x << 2, x >> 1, (x & 3) == d)[c % 7]


def spread(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return x + np.arange(3)
    if c % 4 == 0 and x.ndim < 3:
        return x[..., None] * 2 + np.arange(d % 4)
    if c % 4 == 1:
        return x - x[:1] + (x[..., -1:] if d % 2 else 0)
    if c % 4 == 2 and x.ndim == 1 and y.ndim == 1:
        return x[:, None] - y[None, :]
    if c % 4 == 3 and x.ndim < 3:
        return np.broadcast_to(x, (2, *x.shape))
    return x * np.max(np.abs(x), axis=d % x.ndim, keepdims=True) if 0 not in x.shape else None


def picked(pool, x, y, c, d, mesh):
    """Arrays of integers as subscripts; those of the pool are known at run time only."""
    if x.ndim == 0 or 0 in x.shape:
        return None
    n, dim = x.shape[0], d % x.ndim
    if c % 8 == 0:
        return x[[0, n - 1, d % n]]
    if c % 8 == 1:
        return x[np.array([[0, -1], [d % n, 0]])]
    if c % 8 == 2 and x.ndim > 1:
        return x[[0, n - 1], [x.shape[1] - 1, 0]]
    if c % 8 == 3 and x.ndim > 1:
        return x[:, [0, -1, 0]]
    if c % 8 == 4 and y.ndim == 1:
        return x[np.abs(np.clip(y, -99, 99).astype(np.int64)) % n]
    if c % 8 == 5:
        return np.take_along_axis(x, np.argsort(x, axis=dim), axis=dim)
    if c % 8 == 6 and x.ndim == 1:
        known = np.where(np.isfinite(x), x, 0)
        return np.searchsorted(np.sort(known), np.where(np.isfinite(y), y, 0))
    at = x.at[np.array([0, d % n, 0])]
    return at.add(2) if c % 2 else at.max(3)


def binned(pool, x, y, c, d, mesh):
    """Histograms, and places among sorted values: also of what is no number."""
    if x.ndim == 0 or 0 in x.shape or 0 in y.shape:
        return None
    x, y = (v if v.dtype.kind == "i" else np.rint(v * 13) / 13 for v in (x, y))  # no rounding left
    known = np.clip(np.where(np.isfinite(x), x, 2), -9, 9)
    ordered = np.sort(known.ravel()) * 1.0
    odd = np.where(y == d - 5, np.nan, np.clip(y, -9, 9))
    made = (
        lambda: np.histogram(known, bins=1 + d)[0], lambda: np.histogram(x, 3 + d, (-3, 5))[0],
        lambda: np.histogram(known / 3, bins=3 + d)[0], lambda: np.digitize(odd, [-1, 0, d]),
        lambda: np.histogram(known, [-2.5, 0, 1, d + 2], weights=known)[0],
        lambda: np.searchsorted(ordered, odd, ("left", "right")[d % 2]),
        lambda: np.searchsorted(np.append(ordered, np.nan), odd), lambda: np.unwrap(ordered[::-1]),
        lambda: np.interp(odd, [-4, 0, 1, d + 2], [1.0, 3, -2, 5]),
        lambda: np.histogram2d(known.ravel(), known.ravel() // 2, 1 + d % 4)[0],
        lambda: np.digitize(known, [d, 0, -3]),
        lambda: np.nanmedian(np.where(x > d, np.nan, known)),
    )
    return made[c]()


def flattened(pool, x, y, c, d, mesh):
    """Views in another shape, which are views where strides allow it: written through."""
    if x.ndim == 0:
        return None
    u = x.copy()
    dim = d % x.ndim
    shown = (
        lambda: u.T, lambda: u[1:], lambda: u[(*[slice(None)] * dim, slice(None, None, 2))],
        lambda: u[::-1], lambda: np.swapaxes(u, 0, -1)[..., :1], lambda: u[..., None].T,
        lambda: u[:1].T, lambda: np.moveaxis(u, 0, -1),
    )
    flat = shown[c % 8]().reshape(-1)
    flat[d % 4 :: 3] = 7
    return u if d % 2 else flat


def contracted(pool, x, y, c, d, mesh):
    if x.ndim == 0 or 0 in x.shape or x.size > 2000:
        return None
    x, y = np.clip(x, -9, 9), np.clip(y, -9, 9)
    if x.ndim == 1:
        with_y = y if y.ndim == 1 else x
        return (np.einsum("i,j->ij", x, with_y), x @ x, np.multiply.outer(x, with_y))[c % 3]
    if x.ndim == 2:
        made = (
            lambda: np.einsum("ij,ij->i", x, x), lambda: np.einsum("ij->j", x),
            lambda: x @ x[0], lambda: x[:, 0] @ x, lambda: np.inner(x, x),
            lambda: np.tensordot(x, x, axes=([d % 2], [d % 2])),
            lambda: np.einsum("ij,ik->kj", x, x), lambda: np.tensordot(x, x),
        )
        return made[c % 8]()
    if x.ndim == 3:
        z = np.swapaxes(x, 1, 2)
        made = (
            lambda: x @ z, lambda: np.einsum("bij,bkj->bik", x, x), lambda: np.einsum("ijk->ki", x),
            lambda: np.tensordot(x, x, axes=([0, 1], [0, 1])),
        )
        return made[c % 4]()
    return None


def summed(pool, x, y, c, d, mesh):
    if x.ndim == 0 or 0 in x.shape:
        return None
    dim = d % x.ndim
    z = np.clip(x, -9, 9)
    made = (
        lambda: np.sum(x, axis=(0, -1)) if x.ndim > 1 else np.sum(x), lambda: np.var(z, axis=dim),
        lambda: np.sum(x, axis=dim, keepdims=True), lambda: np.cumprod(np.clip(x, -1, 1), axis=dim),
        lambda: np.max(x, axis=tuple(range(x.ndim))), lambda: np.sum(z, axis=dim, where=x > 0),
        lambda: np.diff(x, axis=dim), lambda: np.cumsum(z), lambda: np.ptp(z, axis=dim),
        lambda: np.count_nonzero(x, axis=dim), lambda: np.std(z),
        lambda: np.average(z, axis=dim, weights=np.arange(1, x.shape[dim] + 1)),
    )
    return made[c]()


def rearranged(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    dim = d % x.ndim
    made = (
        lambda: np.roll(x, (1, -2)[: x.ndim], axis=(0, -1)[: x.ndim]),
        lambda: np.roll(x, d - 5), lambda: np.flip(x), lambda: np.repeat(x, 2, axis=dim),
        lambda: np.rot90(x) if x.ndim == 2 else np.flip(x, 0), lambda: np.tile(x, 2),
        lambda: np.moveaxis(x, dim, 0), lambda: np.expand_dims(x, dim),
        lambda: np.squeeze(x[:1], 0) if x.shape[0] else x,
        lambda: np.array_split(x, 3, axis=dim)[1],
        lambda: np.pad(x, 1, mode=("edge", "wrap", "reflect", "symmetric")[d % 4])
        if min(x.shape) > 1 else x,
        lambda: np.triu(x) if x.ndim == 2 else np.concatenate([x[1:], x[:1], x[::-1]]),
    )
    return made[c]()


def viewed(pool, x, y, c, d, mesh):
    """Written through views of views, through masks and arrays of integers."""
    if x.ndim == 0 or 0 in x.shape:
        return None
    u = x.copy()
    if c % 8 == 0:
        v = u[1:]
        v *= 2
        u[:1] -= 1
    elif c % 8 == 1:
        v = u[::-1][::2]
        v[...] = v + 3
    elif c % 8 == 2:
        u.reshape(-1)[d % 3 :: 3] = 9
    elif c % 8 == 3:
        u[0], u[-1] = u[-1] + 0, u[0] + 1
    elif c % 8 == 4:
        u[..., 1:] += u[..., :-1]
    elif c % 8 == 5:
        u[[0, -1]] = 4
    elif c % 8 == 6:
        u[u > d - 5] = 3
    elif x.ndim == 2:
        u[1:-1, 1:-1] = u[:-2, 1:-1] + u[2:, 1:-1] - u[1:-1, :-2] - u[1:-1, 2:]
    elif x.ndim == 3:
        v = np.take(u, 0, axis=1)  # no view
        v[...] = 5
    return u


def edited(pool, x, y, c, d, mesh):
    """Elements put in, left out, combined in parts of a dim."""
    if x.ndim == 0 or 0 in x.shape:
        return None
    dim, n = d % x.ndim, x.shape[d % x.ndim]
    z = np.clip(np.where(np.isfinite(x), x, 2), -9, 9).astype(np.int64)
    at = [0, n - 1, d % n]
    made = (
        lambda: np.insert(x, at, 5, axis=dim), lambda: np.delete(x, at, axis=dim),
        lambda: np.pad(z, 1, mode=("linear_ramp", "maximum", "minimum", "median")[d % 4]),
        lambda: np.add.reduceat(z, at, axis=dim), lambda: np.maximum.reduceat(x, at, axis=dim),
        lambda: np.gcd.reduce(z, axis=dim), lambda: np.fmax.accumulate(x * 1.0, axis=dim),
        lambda: np.bitwise_or.reduceat(z, np.sort(np.abs(z.ravel()) % n), axis=dim),
        lambda: np.logical_xor.accumulate(z > d, axis=dim), lambda: np.subtract.reduce(z, axis=dim),
        lambda: np.gradient(z, axis=dim, edge_order=1 + (n > 2)) if n > 1 else z,
        lambda: np.frexp(z)[1] + np.lcm(z, 4),
    )
    return made[c]()


def ordered(pool, x, y, c, d, mesh):
    """Return results of sorting and ranking, with many equal elements and NaNs."""
    if x.ndim == 0 or 0 in x.shape:
        return None
    dim = d % x.ndim
    z = x if x.dtype.kind == "i" else np.where(x == d - 5, np.nan, np.rint(x * 13) / 13)
    made = (
        lambda: np.median(z, axis=dim), lambda: np.nanmedian(z * 1.0, axis=dim),
        lambda: np.argsort(z, axis=dim, kind="stable"), lambda: np.sort(z, axis=dim, stable=True),
        lambda: np.quantile(z, [0.25, 0.9], axis=dim, method="lower"),
        lambda: np.take(np.partition(z, 0, axis=dim), 0, axis=dim),
        lambda: np.searchsorted(np.sort(z.ravel()), y.ravel() * 1.0),
        lambda: np.nanpercentile(z * 1.0, 30, axis=dim, method="higher"),
    )
    return made[c % 8]()


STEPS = (add, unary, cut, pick, shifted, reduced, running, roll, joined, turned, reshaped, product,
         taken, written, scattered, ufunc, bits, spread, picked, contracted, summed, rearranged,
         viewed, binned, flattened, edited, ordered)
