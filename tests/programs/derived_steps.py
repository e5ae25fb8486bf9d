"""Steps of random programs that are differentiated (derived_recipes.py): smooth almost everywhere.

As in global_steps.py: a step takes the pool of arrays, two of them, two choices and the mesh axes,
and gives a new array, or None where it does not apply. Numbers stay about 1, and no two are equal.
"""

from __future__ import annotations

import numpy as np

import spmd
from tests.programs import global_steps
from tests.programs.global_flow import moved

# mypy: ignore-errors


def tame(x):
    """The same, where it is small; never more than 2."""
    return x / np.sqrt(1 + 0.25 * x * x)


def apart(x):
    """So many different numbers, about 1."""
    n = int(np.prod(x.shape))
    return np.cos(1.0 + 2.3 * np.arange(n)).reshape(x.shape)


def fitting(x, y):
    """y where it can be combined with x, else x."""
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return x
    return y


def add(pool, x, y, c, d, mesh):
    y = fitting(x, y)
    made = (
        lambda: x + y, lambda: x * y, lambda: x - 0.5 * y, lambda: x / (2.5 + np.sin(y)),
        lambda: np.maximum(x, y * 0.9 + 0.05), lambda: np.minimum(x, y - 0.1),
        lambda: np.hypot(x, y - 0.3), lambda: np.arctan2(x, 1.5 + y * y),
        lambda: np.logaddexp(x, y), lambda: (0.5 + np.abs(x)) ** y,
        lambda: np.where(x > y + 0.1, x * y, x - y),
        lambda: np.fmax(x, 1.1 * y) * np.copysign(x, y - 0.2),
    )
    return tame(made[c]())


def unary(pool, x, y, c, d, mesh):
    made = (
        lambda: np.sin(3 * x), lambda: np.tanh(x), lambda: np.exp(-x * x),
        lambda: np.sqrt(1 + x * x), lambda: np.log1p(x * x), lambda: np.abs(x - 0.07),
        lambda: np.clip(x, -0.51, 0.63), lambda: np.where(x > 0.11, x**2, np.sin(x)),
        lambda: np.arcsinh(x) + np.expm1(-np.abs(x)), lambda: x**3 - np.square(x),
        lambda: np.cbrt(1.7 + np.cos(x)) * np.arctan(x), lambda: np.sinc(x) + 1 / (2 + x * x),
    )
    return tame(made[c]())


def reduced(pool, x, y, c, d, mesh):
    dim = None if x.ndim == 0 or d % 3 == 0 else d % x.ndim
    z = x * (1.1 + apart(x) * 0.3)
    made = (
        lambda: np.sum(z, axis=dim), lambda: np.mean(z, axis=dim), lambda: np.max(z, axis=dim),
        lambda: np.min(z, axis=dim), lambda: np.prod(z, axis=dim), lambda: np.var(z, axis=dim),
        lambda: np.std(z + apart(x)) if x.size > 1 else z, lambda: np.median(z, axis=dim),
        lambda: np.ptp(z, axis=dim), lambda: np.linalg.norm(np.ravel(z) + 0.1),
        lambda: np.log(np.sum(np.exp(z), axis=dim)), lambda: np.quantile(z, 0.3, axis=dim),
    )
    return tame(made[c]())


def running(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    dim = d % x.ndim
    z = x * (1.1 + apart(x) * 0.3)
    made = (
        lambda: np.cumsum(z, axis=dim), lambda: np.cumprod(z, axis=dim),
        lambda: np.sort(z, axis=dim), lambda: np.sort(z.ravel())[::-1] * z.ravel(),
        lambda: np.maximum.accumulate(z, axis=dim), lambda: np.minimum.accumulate(z, axis=dim),
        lambda: np.fmax.accumulate(z[::-1], axis=dim), lambda: np.diff(z, axis=dim),
        lambda: np.take_along_axis(z, np.argsort(z, axis=dim), axis=dim),
        lambda: np.partition(z, x.shape[dim] // 2, axis=dim)[..., :1],
        lambda: np.gradient(z, axis=dim) if x.shape[dim] > 1 else z,
        lambda: z[np.argsort(z[(slice(None), *[0] * (x.ndim - 1))])],
    )
    return tame(made[c]())


def transformed(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    dim, n = d % x.ndim, x.shape[d % x.ndim]
    z = x + 1j * np.sin(x)
    made = (
        lambda: np.fft.irfft(np.fft.rfft(x, axis=dim) * 0.5, n + 1, axis=dim),
        lambda: np.abs(np.fft.fft(x, axis=dim)) ** 2, lambda: np.fft.ifft(z, axis=dim).imag,
        lambda: (np.exp(z) * z.conj()).real, lambda: np.abs(1.3 + z), lambda: np.angle(2.5 + z),
        lambda: (1 / (1.5 + z * z.conj())).real, lambda: np.sum(z * z, axis=dim).imag,
        lambda: np.sqrt(3 + z).imag, lambda: np.log(3 + z).real,
        lambda: np.fft.rfft2(x).real if x.ndim == 2 else np.sin(z).imag,
        lambda: np.sum(np.fft.fftn(z).imag * apart(x)),
    )
    return tame(made[c]())


def product(pool, x, y, c, d, mesh):
    made = (_one, _two, _three)
    return tame(made[x.ndim - 1](x, y, c, d)) if 1 <= x.ndim <= 3 else None


def _one(x, y, c, d):
    v = y if y.ndim == 1 else x
    made = (
        lambda: np.outer(x, v), lambda: x @ x * x, lambda: np.einsum("i,j->ij", x, v * v),
        lambda: np.convolve(x, v[:3]), lambda: np.convolve(v[:2], x, "valid"),
        lambda: np.vander(x[:3], 3), lambda: np.polyval(x[:3], v), lambda: np.trapezoid(x, dx=0.3),
        lambda: np.interp(x, [-2.0, 0.03, 2.1], [0.1, 0.7, -0.3]), lambda: np.dot(x, x),
        lambda: np.kron(x, v), lambda: np.correlate(x, v[:2], "full"),
    )
    return made[c]()


def _two(x, y, c, d):
    if y.ndim == 2 and y.shape[0] == x.shape[1] and c % 2:
        return x @ y
    made = (
        lambda: x @ x.T, lambda: np.einsum("ij,kj,kl->il", x, x * x, x), lambda: x @ x[0],
        lambda: np.einsum("ij->j", x), lambda: x[:, 0] @ x, lambda: np.tensordot(x, x),
        lambda: np.einsum("ij,ij->i", x, np.sin(x)), lambda: np.trace(x),
        lambda: np.triu(x) + np.tril(x, -1) * 2, lambda: np.cov(x) if min(x.shape) > 1 else x,
        lambda: np.inner(x, x), lambda: np.kron(x[:2, :2], x[:2, :1]),
    )
    return made[c]()


def _three(x, y, c, d):
    z = np.swapaxes(x, 1, 2)
    made = (
        lambda: x @ z, lambda: np.einsum("bij,bkj->bik", x, x), lambda: np.einsum("ijk->ki", x),
        lambda: np.tensordot(x, x, axes=([0, 1], [0, 1])),
        lambda: np.einsum("bij,bik->jk", x, np.cos(x)), lambda: x @ z[0],
    )
    return made[c % 6]()


def factored(pool, x, y, c, d, mesh):
    if x.ndim < 2:
        return None
    n = x.shape[-2]
    gram = x @ x.swapaxes(-1, -2) + np.eye(n) * (2 + 0.3 * np.arange(n))
    made = (
        lambda: np.linalg.cholesky(gram), lambda: np.linalg.solve(gram, x),
        lambda: np.linalg.inv(gram), lambda: np.log(np.linalg.det(gram)),
        lambda: np.linalg.slogdet(gram)[1], lambda: np.linalg.eigvalsh(gram),
        lambda: np.linalg.eigh(gram)[1] ** 2, lambda: np.linalg.svd(gram, compute_uv=False),
        lambda: np.linalg.qr(gram)[1], lambda: np.linalg.pinv(gram)[..., :1],
        lambda: np.linalg.matrix_power(gram, 2), lambda: np.linalg.solve(gram.swapaxes(-1, -2), x),
    )
    return tame(made[c]())


def written(pool, x, y, c, d, mesh):
    """Updates in place, through views, masks and arrays of integers."""
    if x.ndim == 0:
        return None
    dim, n = d % x.ndim, x.shape[d % x.ndim]
    before = (slice(None),) * dim
    u, y = x.copy(), fitting(x, y)
    if np.broadcast_shapes(x.shape, y.shape) != x.shape:
        y = x
    if c == 0:
        u[(*before, slice(1, -1))] += u[(*before, slice(2, None))] * u[(*before, slice(None, -2))]
    elif c == 1:
        u[(*before, slice(None, None, 2))] = 0.3
    elif c == 2:
        u.T[...] = u.T * np.sin(u.T)
    elif c == 3:
        u[(*before, d % n)] = u[(*before, 0)] * np.sum(y)
    elif c == 4:
        v = u[1:]
        v *= 2
        u[:1] -= u[-1:] ** 2
    elif c == 5:
        v = u[::-1][::2]
        v[...] = v * v + 0.3
    elif c == 6:
        u.reshape(-1)[d % 3 :: 3] *= u.reshape(-1)[0] + 0.2
    elif c == 7:
        u[u > 0.13] = u[u > 0.13] ** 2
    elif c == 8:
        u[[0, -1]] = y[0] * y[-1] if y.shape == x.shape else 0.4
    elif c == 9:
        u *= y
        u += x
    elif c == 10:
        u[:0:-1] = u[-2::-1] * 0.5 + u[:0:-1]
    else:
        u[u < -0.2] *= 0.5
        u[0], u[-1] = u[-1] + 0, u[0] * u[-1]
    return tame(u)


def picked(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    dim, n = d % x.ndim, x.shape[0]
    at = np.array([0, d % n, 0])
    there = np.abs(np.rint(y * 5).astype(np.int64)).ravel() % n
    made = (
        lambda: x[[0, n - 1, d % n]], lambda: x[np.array([[0, -1], [d % n, 0]])],
        lambda: x[there], lambda: x.at[at].add(0.3 * x[:1] * x[-1:]),
        lambda: x.at[there].add(x[0] * 0.1), lambda: x.at[at].max(x[-1:] * 1.1),
        lambda: x.at[0].set(x[-1] * x[0]), lambda: _added(x, at), lambda: _added(x, there),
        lambda: x.at[there[:1]].set(x[-1:] * 2), lambda: x.at[at].min(x[-1:] * 1.1 - 0.3),
        lambda: np.take(x, [0, -1, 0], axis=dim),
    )
    return tame(made[c]())


def _added(x, at):
    u = x * 0.5
    np.add.at(u, at, np.sin(x[at]))
    return u


def rearranged(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    dim = d % x.ndim
    made = (
        lambda: np.flip(x, dim), lambda: np.repeat(x, 2, axis=dim), lambda: np.tile(x, 2),
        lambda: np.roll(x, d - 5), lambda: np.moveaxis(x, dim, 0),
        lambda: np.array_split(x, 2, axis=dim)[0], lambda: np.insert(x, [0], 0.5, axis=dim),
        lambda: np.pad(x, 1, mode=("edge", "wrap", "reflect", "symmetric")[d % 4])
        if min(x.shape) > 1 else x,
        lambda: np.concatenate([x[1:], x[:1] * 2, x[::-1]]), lambda: np.delete(x, [0], axis=dim),
        lambda: np.pad(x, 1, mode=("constant", "mean", "linear_ramp", "maximum")[d % 4]),
        lambda: np.broadcast_to(x, (2, *x.shape)) * (x + 0.1),
    )
    return made[c]() if 0 not in x.shape else None


def looped(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    u, total = x * 1, np.sum(x) * 0
    for k in spmd.range(c % 4):
        if d % 4 == 0:
            u[1:-1] = u[1:-1] + 0.2 * (u[2:] - u[:-2]) * u[1:-1] + 0.01 * k
            u = np.roll(u, 1, axis=0)
        elif d % 4 == 1:
            u[:-1] = np.sin(u[1:]) - u[:-1] * u[-1:]
        elif d % 4 == 2:
            u[-2::-1] = u[:0:-1] * u[:1] - 0.1 * k
        else:
            for j in spmd.range(2):
                u = np.sin(u + 0.3 * j) * (k + 1)
                total = total + u.sum() * total
        total = total + np.sum(u * u)
    return tame(u if d % 2 else u * 0.5 + total)


def recurrences(pool, x, y, c, d, mesh):
    """A loop counter as a subscript of a split dim."""
    if x.ndim == 0:
        return None
    n, u = x.shape[0], x.copy()
    total = x[0] * 0
    for k in spmd.range(1, n):
        if c % 4 == 0:
            u[k] = u[k] + np.sin(u[k - 1]) * x[k]
        elif c % 4 == 1:
            total = total * x[k] + x[k - 1]
        elif c % 4 == 2:
            u[k:] = u[k:] * 0.7 + x[: n - k] * u[k - 1 : k]
        else:
            u[k] = u[k] - np.sum(u[:k] * x[:k], axis=0) * 0.2
    return tame(u + total)


def counted(pool, x, y, c, d, mesh):
    """Runs loops of as many turns as the run finds; some are left early."""
    turns = pool[0].size % 3 + spmd.scalar("turns", 3)
    u, s, n = x * 1, np.sum(x) * 0.3, 0
    if c % 4 == 0:
        for k in spmd.range(turns):
            u = np.sin(1.4 * u) + 0.1 * k
    elif c % 4 == 1:
        while np.sum(u * u) > 0.3 and n < 9:
            u = u * 0.6 + 0.05 * u * u
            n = n + 1
    elif c % 4 == 2:
        for k in spmd.range(turns):
            s = s + np.sum(np.cos(u * (k + 1)))
            if s > 1.57:
                break
            u = u * 1.1
    else:
        for _ in spmd.range(5):
            s = s * 0.8 + np.mean(u) ** 2
            if s < 0.21:
                continue
            u = u * np.sin(s)
    return tame(u + s)


def branched(pool, x, y, c, d, mesh):
    made = (
        lambda: spmd.cond(np.sum(x) > 0.123, lambda a: a * a, lambda a: np.sin(2 * a), x),
        lambda: spmd.switch(np.sum(x > 0) % 3, [lambda a: a * 2, lambda a: a**3, np.cos], x),
        lambda: _chosen(x, y), lambda: spmd.remat(lambda a, b: np.sin(a) * np.sum(b * b))(x, y),
        lambda: spmd.fori_loop(0, d % 4, lambda i, s: np.sin(s) * (1 + 0.2 * i), x),
        lambda: spmd.while_loop(lambda s: np.max(np.abs(s)) > 0.7, lambda s: s * 0.6, x),
    )
    return tame(made[c % 6]())


def _chosen(x, y):
    if np.sum(x) > 0.2:
        z = x * np.sum(y)
    elif np.sum(y) > 0.1:
        z = np.cos(x)
    else:
        z = x * x
    return z + x


def scanned(pool, x, y, c, d, mesh):
    if x.ndim == 0:
        return None
    w = np.mean(y)

    def step(carry, row):
        return np.tanh(carry * w + row), carry * row + w

    last, rows = spmd.scan(step, x[0] * 0, x, reverse=d % 2 == 1)
    return rows if c % 3 else last


def mapped(pool, x, y, c, d, mesh):
    """One rank's view inside: what it computes must not depend on the number of ranks."""
    if x.ndim == 0:
        return None
    axis = mesh[d % len(mesh)]
    layout = (axis, *[None] * (x.ndim - 1))
    if c % 4 == 0:
        inside = spmd.shard_map(lambda u: np.sin(u) * u, in_layouts=(layout,), out_layouts=layout)
        return inside(x)

    @spmd.shard_map(in_layouts=(layout, spmd.replicated), out_layouts=spmd.replicated)
    def combined(u, w):
        if c % 4 == 1:
            return spmd.psum(np.sum(u * np.sum(w)), axis) ** 2
        if c % 4 == 2:
            return spmd.all_gather(np.sin(u) * np.sum(w), axis, tiled=True)
        return spmd.psum(np.sum(np.sin(u), axis=0), axis) * np.sum(w)

    return tame(combined(x, y))


PLAIN = (global_steps.cut, global_steps.pick, global_steps.shifted, global_steps.roll,
         global_steps.joined, global_steps.turned, global_steps.reshaped, global_steps.spread)
STEPS = (add, unary, reduced, running, transformed, product, factored, written, picked,
         rearranged, looped, recurrences, counted, branched, scanned, mapped, moved, *PLAIN,
         add, unary, written)
