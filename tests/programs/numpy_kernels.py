"""Kernels of many fields as people write them in NumPy: one source for NumPy, numba and spmd.

In: a size. Out: of each kernel the arguments, arrays and numbers. A kernel returns its results, or
changes its arrays. Loops that are meant to be compiled are `spmd.range`; `plain()` has `range`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import spmd

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them


# Stencils.


def three_points(u, v, steps):
    for _ in spmd.range(steps):
        v[1:-1] = (u[:-2] + u[1:-1] + u[2:]) / 3
        u[1:-1] = (v[:-2] + v[1:-1] + v[2:]) / 3


def five_points(u, v, steps):
    for _ in spmd.range(steps):
        v[1:-1, 1:-1] = 0.2 * (u[1:-1, 1:-1] + u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2]
                               + u[1:-1, 2:])
        u[1:-1, 1:-1] = 0.2 * (v[1:-1, 1:-1] + v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2]
                               + v[1:-1, 2:])


def heat_in_space(u, v, steps):
    for _ in spmd.range(steps):
        c = u[1:-1, 1:-1, 1:-1]
        v[1:-1, 1:-1, 1:-1] = c + (
            0.125 * (u[2:, 1:-1, 1:-1] - 2 * c + u[:-2, 1:-1, 1:-1])
            + 0.125 * (u[1:-1, 2:, 1:-1] - 2 * c + u[1:-1, :-2, 1:-1])
            + 0.125 * (u[1:-1, 1:-1, 2:] - 2 * c + u[1:-1, 1:-1, :-2])
        )
        u[:] = v


def seidel(u, steps):
    """Nine points in place: a row wants the new row above, a point the new one before it."""
    for _ in spmd.range(steps):
        for i in spmd.range(1, u.shape[0] - 1):
            u[i, 1:-1] += (u[i - 1, :-2] + u[i - 1, 1:-1] + u[i - 1, 2:] + u[i, 2:]
                           + u[i + 1, :-2] + u[i + 1, 1:-1] + u[i + 1, 2:])
            for j in spmd.range(1, u.shape[1] - 1):
                u[i, j] = (u[i, j] + u[i, j - 1]) / 9


def implicit(u, v, p, q, r):
    """Do half a step, implicit along dim 1 and explicit along dim 0, by elimination and
    substitution."""
    n = u.shape[0]
    v[1:-1, 0] = 1.0
    p[1:-1, 0] = 0.0
    q[1:-1, 0] = 1.0
    for j in spmd.range(1, n - 1):
        divisor = 1 + 2 * r - r * p[1:-1, j - 1]
        p[1:-1, j] = r / divisor
        q[1:-1, j] = (r * u[:-2, j] + (1 - 2 * r) * u[1:-1, j] + r * u[2:, j]
                      + r * q[1:-1, j - 1]) / divisor
    v[1:-1, n - 1] = 1.0
    for j in spmd.range(n - 2, 0, -1):
        v[1:-1, j] = p[1:-1, j] * v[1:-1, j + 1] + q[1:-1, j]


def alternating_directions(u, v, p, q, steps):
    for _ in spmd.range(steps):
        implicit(u, v, p, q, 0.3)
        implicit(v.T, u.T, p, q, 0.3)


def staggered(ex, ey, hz, steps):
    """Step Maxwell's equations by Yee's scheme, with fields on grids shifted by half a cell."""
    for t in spmd.range(steps):
        ey[0, :] = 0.1 * t
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


def limited_diffusion(field, coefficient):
    """Diffuse the horizontal planes of an atmosphere; fluxes against the gradient are cut off."""
    lap = 4 * field[1:-1, 1:-1] - (field[2:, 1:-1] + field[:-2, 1:-1]
                                   + field[1:-1, 2:] + field[1:-1, :-2])
    dx, dy = lap[1:, 1:-1] - lap[:-1, 1:-1], lap[1:-1, 1:] - lap[1:-1, :-1]
    fx = np.where(dx * (field[2:-1, 2:-2] - field[1:-2, 2:-2]) > 0, 0, dx)
    fy = np.where(dy * (field[2:-2, 2:-1] - field[2:-2, 1:-2]) > 0, 0, dy)
    return field[2:-2, 2:-2] - coefficient * (fx[1:] - fx[:-1] + fy[:, 1:] - fy[:, :-1])


def cavity(u, v, p, steps, sweeps):
    """Flow in a box under a moving lid: a Poisson equation for the pressure in each step."""
    dt, h, nu = 0.001, 2.0 / (u.shape[0] - 1), 0.1
    b = np.zeros_like(p)
    for _ in spmd.range(steps):
        b[1:-1, 1:-1] = (u[1:-1, 2:] - u[1:-1, :-2] + v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * h * dt)
        for _ in spmd.range(sweeps):
            w = p.copy()
            p[1:-1, 1:-1] = (w[1:-1, 2:] + w[1:-1, :-2] + w[2:, 1:-1] + w[:-2, 1:-1]
                             - h * h * b[1:-1, 1:-1]) / 4
            p[:, -1] = p[:, -2]
            p[0, :] = p[1, :]
            p[:, 0] = p[:, 1]
            p[-1, :] = 0
        a, c = u.copy(), v.copy()
        x, y = a[1:-1, 1:-1], c[1:-1, 1:-1]
        u[1:-1, 1:-1] = (
            x - dt / h * (x * (x - a[1:-1, :-2]) + y * (x - a[:-2, 1:-1]))
            - dt / (2 * h) * (p[1:-1, 2:] - p[1:-1, :-2])
            + nu * dt / h**2 * (a[1:-1, 2:] + a[1:-1, :-2] + a[2:, 1:-1] + a[:-2, 1:-1] - 4 * x))
        v[1:-1, 1:-1] = (
            y - dt / h * (x * (y - c[1:-1, :-2]) + y * (y - c[:-2, 1:-1]))
            - dt / (2 * h) * (p[2:, 1:-1] - p[:-2, 1:-1])
            + nu * dt / h**2 * (c[1:-1, 2:] + c[1:-1, :-2] + c[2:, 1:-1] + c[:-2, 1:-1] - 4 * y))
        u[0, :] = 0
        u[:, 0] = 0
        u[:, -1] = 0
        u[-1, :] = 1
        v[0, :] = 0
        v[-1, :] = 0
        v[:, 0] = 0
        v[:, -1] = 0


def channel(u, limit):
    """A driven flow along a channel that closes on itself, until it hardly changes."""
    change, steps = 1.0, 0
    while change > limit:
        w = u.copy()
        u[1:-1, 1:-1] = w[1:-1, 1:-1] + 0.01 + 0.1 * (
            w[1:-1, 2:] + w[1:-1, :-2] + w[2:, 1:-1] + w[:-2, 1:-1] - 4 * w[1:-1, 1:-1])
        u[1:-1, -1] = w[1:-1, -1] + 0.01 + 0.1 * (
            w[1:-1, 0] + w[1:-1, -2] + w[2:, -1] + w[:-2, -1] - 4 * w[1:-1, -1])
        u[1:-1, 0] = w[1:-1, 0] + 0.01 + 0.1 * (
            w[1:-1, 1] + w[1:-1, -1] + w[2:, 0] + w[:-2, 0] - 4 * w[1:-1, 0])
        change = (np.sum(u) - np.sum(w)) / np.sum(u)
        steps += 1
    return steps, u


# Recurrences along a dim.


def vertical(u, w):
    """A tridiagonal system in the last dim of every column, by elimination and back."""
    n = u.shape[2]
    c, d, out = np.empty_like(u), np.empty_like(u), np.empty_like(u)
    g = 0.25 * w[:, :, 0]
    c[:, :, 0] = g / (1 + g)
    d[:, :, 0] = u[:, :, 0] / (1 + g)
    for k in spmd.range(1, n):
        g = 0.25 * w[:, :, k]
        divided = 1.0 / (1 + g + c[:, :, k - 1] * g)
        c[:, :, k] = g * divided
        d[:, :, k] = (u[:, :, k] - d[:, :, k - 1] * g) * divided
    out[:, :, n - 1] = d[:, :, n - 1]
    for k in spmd.range(n - 2, -1, -1):
        out[:, :, k] = d[:, :, k] - c[:, :, k] * out[:, :, k + 1]
    return out


def recursive_filter(image, decay):
    """A smoothing of infinite extent: forward and back along rows, then along columns."""
    k, a = (1 - decay) ** 2, 2 * decay
    y, z = np.empty_like(image), np.empty_like(image)
    y[:, 0] = k * image[:, 0]
    y[:, 1] = k * image[:, 1] + a * y[:, 0]
    for j in spmd.range(2, image.shape[1]):
        y[:, j] = k * image[:, j] + a * y[:, j - 1] - decay**2 * y[:, j - 2]
    z[:, -1] = 0.0
    z[:, -2] = k * image[:, -1]
    for j in spmd.range(image.shape[1] - 3, -1, -1):
        z[:, j] = k * image[:, j + 1] + a * z[:, j + 1] - decay**2 * z[:, j + 2]
    rows = y + z
    y[0, :] = k * rows[0, :]
    y[1, :] = k * rows[1, :] + a * y[0, :]
    for i in spmd.range(2, image.shape[0]):
        y[i, :] = k * rows[i, :] + a * y[i - 1, :] - decay**2 * y[i - 2, :]
    return y


def levinson(r):
    """A symmetric Toeplitz system, order after order."""
    y = np.empty_like(r)
    alpha, beta = -r[0], 1.0
    y[0] = alpha
    for k in spmd.range(1, r.shape[0]):
        beta *= 1 - alpha * alpha
        alpha = -(r[k] + np.dot(np.flip(r[:k]), y[:k])) / beta
        y[:k] += alpha * np.flip(y[:k])
        y[k] = alpha
    return y


def folding(bases):
    """The most pairs of bases that do not cross (Nussinov): from shorter intervals to longer."""
    n = bases.shape[0]
    best = np.zeros((n, n), np.int64)
    for i in spmd.range(n - 2, -1, -1):
        for j in spmd.range(i + 1, n):
            found = max(best[i, j - 1], best[i + 1, j])
            if i < j - 1:
                found = max(found, best[i + 1, j - 1] + (bases[i] + bases[j] == 3))
            for k in spmd.range(i + 1, j):
                found = max(found, best[i, k] + best[k + 1, j])
            best[i, j] = found
    return best


def shortest_paths(d):
    for k in spmd.range(d.shape[0]):
        d[:] = np.minimum(d, d[:, k : k + 1] + d[k, :])


# Linear algebra.


def products(a, b, c, d):
    d[:] = 1.5 * a @ b @ c + 1.2 * d


def batch_of_products(a, c):
    a[:] = np.reshape(np.reshape(a, (a.shape[0] * a.shape[1], a.shape[2])) @ c, a.shape)


def there_and_back(a, x):
    return (a @ x) @ a


def two_vectors(a, p, r):
    return r @ a, a @ p


def rank_two(a, u1, v1, u2, v2, y, z):
    a += np.outer(u1, v1) + np.outer(u2, v2)
    x = 1.2 * y @ a + z
    return x, 1.5 * a @ x


def symmetric_update(a, c):
    for i in spmd.range(a.shape[0]):
        c[i, : i + 1] *= 1.2
        for k in spmd.range(a.shape[1]):
            c[i, : i + 1] += 1.5 * a[i, k] * a[: i + 1, k]


def triangular_product(a, b):
    for i in spmd.range(b.shape[0]):
        for j in spmd.range(b.shape[1]):
            b[i, j] += np.dot(a[i + 1 :, i], b[i + 1 :, j])
    b *= 1.5


def triangular_solve(a, x, b):
    for i in spmd.range(a.shape[0]):
        x[i] = (b[i] - a[i, :i] @ x[:i]) / a[i, i]


def cholesky(a):
    a[0, 0] = np.sqrt(a[0, 0])
    for i in spmd.range(1, a.shape[0]):
        for j in spmd.range(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] -= np.dot(a[i, :i], a[i, :i])
        a[i, i] = np.sqrt(a[i, i])


def lu(a):
    for i in spmd.range(a.shape[0]):
        for j in spmd.range(i):
            a[i, j] -= a[i, :j] @ a[:j, j]
            a[i, j] /= a[j, j]
        for j in spmd.range(i, a.shape[0]):
            a[i, j] -= a[i, :i] @ a[:i, j]


def gram_schmidt(a):
    n = a.shape[1]
    q, r = np.zeros_like(a), np.zeros((n, n))
    for k in spmd.range(n):
        r[k, k] = np.sqrt(np.dot(a[:, k], a[:, k]))
        q[:, k] = a[:, k] / r[k, k]
        for j in spmd.range(k + 1, n):
            r[k, j] = np.dot(q[:, k], a[:, j])
            a[:, j] -= q[:, k] * r[k, j]
    return q, r


def covariance(data):
    centred = data - np.mean(data, axis=0)
    cov = np.zeros((data.shape[1], data.shape[1]))
    for i in spmd.range(data.shape[1]):
        cov[i:, i] = cov[i, i:] = centred[:, i] @ centred[:, i:] / (data.shape[0] - 1.0)
    return cov


def correlation(data):
    n = data.shape[1]
    deviation = np.std(data, axis=0)
    deviation[deviation <= 0.1] = 1.0
    data = (data - np.mean(data, axis=0)) / (np.sqrt(float(data.shape[0])) * deviation)
    corr = np.eye(n)
    for i in spmd.range(n - 1):
        corr[i + 1 : n, i] = corr[i, i + 1 : n] = data[:, i] @ data[:, i + 1 : n]
    return corr


# Networks.


def convolution(images, weights, bias):
    """Compute a convolution layer: windows times all filters; negative results become 0."""
    n, k = images.shape[1] - weights.shape[0] + 1, weights.shape[0]
    out = np.empty((images.shape[0], n, n, weights.shape[3]), np.float32)
    for i in spmd.range(n):
        for j in spmd.range(n):
            window = images[:, i : i + k, j : j + k, :, np.newaxis]
            out[:, i, j, :] = np.sum(window * weights[np.newaxis], axis=(1, 2, 3))
    return np.maximum(out + bias, 0)


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def perceptron(x, w1, b1, w2, b2):
    hidden = np.maximum(x @ w1 + b1, 0)
    return softmax(hidden @ w2 + b2)


# Of all kinds.


def acceleration(pos, mass):
    dx, dy = pos[:, 0] - pos[:, 0:1], pos[:, 1] - pos[:, 1:2]
    inverse = (dx**2 + dy**2 + 0.01) ** (-1.5)
    a = np.empty(pos.shape)
    a[:, 0] = (dx * inverse) @ mass
    a[:, 1] = (dy * inverse) @ mass
    return a


def n_body(pos, vel, mass, steps):
    energy = np.ndarray(steps + 1, dtype=np.float64)
    acc = acceleration(pos, mass)
    energy[0] = 0.5 * np.sum(mass * np.sum(vel**2, axis=1))
    for i in spmd.range(steps):
        vel += acc * 0.005
        pos += vel * 0.01
        acc[:] = acceleration(pos, mass)
        vel += acc * 0.005
        energy[i + 1] = 0.5 * np.sum(mass * np.sum(vel**2, axis=1))
    return pos, energy


def mandelbrot(n, turns):
    c = np.linspace(-1.75, 0.25, n) + np.linspace(-1.2, 1.2, n)[:, None] * 1j
    count = np.zeros(c.shape, dtype=np.int64)
    z = np.zeros(c.shape, dtype=np.complex128)
    for k in spmd.range(turns):
        inside = np.less(abs(z), 2.0)
        count[inside] = k
        z[inside] = z[inside] ** 2 + c[inside]
    count[count == turns - 1] = 0
    return count


def distance_on_a_sphere(lat1, lon1, lat2, lon2):
    half = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin(
        (lon2 - lon1) / 2) ** 2
    return 2 * np.arctan2(np.sqrt(half), np.sqrt(1 - half))


def mean_by_radius(radius, data, bins):
    return np.histogram(radius, bins, weights=data)[0] / np.histogram(radius, bins)[0]


def stages(x):
    """A Fourier transform of 2^k elements by Stockham's stages, which need no reordering."""
    m, s = x.shape[0] // 2, 1
    while m >= 1:
        turn = np.exp(-1j * np.pi * np.arange(m) / m).reshape((m, 1))
        pair = x.reshape((2, m, s))
        y = np.empty((m, 2, s), np.complex128)
        y[:, 0] = pair[0] + pair[1]
        y[:, 1] = (pair[0] - pair[1]) * turn
        x = y.reshape((2 * m * s,))
        m, s = m // 2, s * 2
    return x


def echoes(waves, near, weights, heard):
    """Add to `heard` what nodes hear, in each band and at each time, of neighbours' earlier
    waves."""
    for band in spmd.range(waves.shape[0]):
        for t in spmd.range(waves.shape[1]):
            for delay in spmd.range(weights.shape[0]):
                for a in spmd.range(near.shape[0]):
                    for b in spmd.range(near.shape[1]):
                        if t - delay >= 0:
                            sent = waves[band, t - delay, near[a, b]]
                            heard[band, t, a] += sent @ weights[delay, a, b]


def trace_of_tanh(a):
    trace = 0.0
    for i in spmd.range(a.shape[0]):
        trace += np.tanh(a[i, i])
    return a + trace


@dataclass(frozen=True)
class Kernel:
    """A function of this file: its size when measured, when tested, and its arguments by size.

    Most are tested with fewer elements than ranks; some are large enough for calls of BLAS.
    """

    size: int
    small: int
    arguments: Callable[[int, Callable[..., Any]], dict[str, Any]]


def _matrix(draw, n):
    """One whose elimination needs no pivots."""
    a = draw(n, n)
    return a @ a.T + n * np.eye(n)


# By name. `r(shape…)`: random numbers between 0 and 1. Times of NumPy are 20 to 200 ms each.
KERNELS: dict[str, Kernel] = {
    "three_points": Kernel(16000, 40, lambda n, r: dict(u=r(n), v=r(n), steps=n // 10)),
    "five_points": Kernel(250, 19, lambda n, r: dict(u=r(n, n), v=r(n, n), steps=n // 3)),
    "heat_in_space": Kernel(50, 8, lambda n, r: dict(u=r(n, n, n), v=r(n, n, n), steps=n // 2)),
    "seidel": Kernel(100, 9, lambda n, r: dict(u=r(n, n), steps=3)),
    "alternating_directions": Kernel(200, 9, lambda n, r: dict(
        u=r(n, n), v=r(n, n), p=r(n, n), q=r(n, n), steps=n // 4)),
    "staggered": Kernel(300, 12, lambda n, r: dict(
        ex=r(n, n), ey=r(n, n), hz=r(n, n), steps=n // 4)),
    "limited_diffusion": Kernel(128, 9, lambda n, r: dict(
        field=r(n + 4, n + 4, n // 2), coefficient=r(n, n, n // 2))),
    "cavity": Kernel(80, 9, lambda n, r: dict(
        u=r(n, n), v=r(n, n), p=r(n, n), steps=n // 4, sweeps=n // 4)),
    "channel": Kernel(100, 9, lambda n, r: dict(u=1 + r(n, n), limit=0.3 / n)),
    "vertical": Kernel(80, 6, lambda n, r: dict(u=r(n, n, n), w=r(n, n, n))),
    "recursive_filter": Kernel(800, 8, lambda n, r: dict(image=r(n, n + 5), decay=0.4)),
    "levinson": Kernel(3000, 11, lambda n, r: dict(r=r(n) / n)),
    "folding": Kernel(70, 10, lambda n, r: dict(bases=(4 * r(n)).astype(np.int64))),
    "shortest_paths": Kernel(250, 11, lambda n, r: dict(d=r(n, n))),
    "products": Kernel(500, 71, lambda n, r: dict(
        a=r(n, n + 1), b=r(n + 1, n), c=r(n, n), d=r(n, n))),
    "batch_of_products": Kernel(150, 30, lambda n, r: dict(a=r(n, n, n), c=r(n, n))),
    "there_and_back": Kernel(3000, 301, lambda n, r: dict(a=r(n, n), x=r(n))),
    "two_vectors": Kernel(3000, 8, lambda n, r: dict(a=r(n, n), p=r(n), r=r(n))),
    "rank_two": Kernel(1500, 8, lambda n, r: dict(
        a=r(n, n), u1=r(n), v1=r(n), u2=r(n), v2=r(n), y=r(n), z=r(n))),
    "symmetric_update": Kernel(120, 7, lambda n, r: dict(a=r(n, n), c=r(n, n))),
    "triangular_product": Kernel(180, 7, lambda n, r: dict(a=r(n, n), b=r(n, n))),
    "triangular_solve": Kernel(3000, 101, lambda n, r: dict(a=_matrix(r, n), x=r(n), b=r(n))),
    "cholesky": Kernel(200, 29, lambda n, r: dict(a=_matrix(r, n))),
    "lu": Kernel(180, 6, lambda n, r: dict(a=_matrix(r, n))),
    "gram_schmidt": Kernel(150, 23, lambda n, r: dict(a=r(n, n))),
    "covariance": Kernel(400, 45, lambda n, r: dict(data=r(n + 100, n))),
    "correlation": Kernel(400, 5, lambda n, r: dict(data=r(n + 100, n))),
    "convolution": Kernel(32, 6, lambda n, r: dict(
        images=r(8, n, n, 3).astype(np.float32), weights=r(3, 3, 3, 16).astype(np.float32),
        bias=r(16).astype(np.float32))),
    "softmax": Kernel(128, 5, lambda n, r: dict(x=r(16, 8, n, n).astype(np.float32))),
    "perceptron": Kernel(600, 67, lambda n, r: dict(
        x=r(n, n), w1=r(n, n) / n, b1=r(n), w2=r(n, 10), b2=r(10))),
    "n_body": Kernel(100, 7, lambda n, r: dict(
        pos=r(n, 2), vel=r(n, 2), mass=r(n), steps=n // 2)),
    "mandelbrot": Kernel(200, 10, lambda n, r: dict(n=n, turns=n // 2)),
    "distance_on_a_sphere": Kernel(1000000, 12, lambda n, r: dict(
        lat1=r(n), lon1=r(n), lat2=r(n), lon2=r(n))),
    "mean_by_radius": Kernel(500000, 200, lambda n, r: dict(radius=r(n), data=r(n), bins=12)),
    "stages": Kernel(1 << 18, 16, lambda n, r: dict(
        x=(r(n) + 1j * r(n))[: 1 << (n.bit_length() - 1)])),
    "echoes": Kernel(10, 6, lambda n, r: dict(
        waves=r(n // 2, n, n, 3, 3), near=(n * r(n, 2)).astype(np.int64),
        weights=r(n // 2, n, 2, 3, 3), heard=r(n // 2, n, n, 3, 3))),
    "trace_of_tanh": Kernel(2000, 7, lambda n, r: dict(a=r(n, n))),
}


def arguments(name: str, size: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return KERNELS[name].arguments(size, lambda *shape: draw.random(shape))


def plain(compiled: Callable[[Any], Any] = lambda f: f) -> dict[str, Any]:
    """The functions of this file with `range` for `spmd.range`, each as `compiled` makes it."""
    module = types.ModuleType("plain_kernels")
    source = Path(__file__).read_text().replace("spmd.range(", "range(")
    module.__dict__["__file__"] = __file__
    exec(compile(source.split("@dataclass")[0], __file__, "exec"), module.__dict__)
    for name, value in list(module.__dict__.items()):
        if isinstance(value, types.FunctionType):
            setattr(module, name, compiled(value))
    return {name: getattr(module, name) for name in KERNELS}


def changed(returned: Any, given: dict[str, Any]) -> list[Any]:
    """Return the arrays that a kernel returned, or else those that it was given and changed."""
    if returned is None:
        return [v for v in given.values() if hasattr(v, "shape")]
    return list(returned) if isinstance(returned, tuple) else [returned]


def program(sizes: dict[str, int]) -> Any:
    """The kernels of these names in one program, all arrays split over their first dim."""
    given = {name: arguments(name, size) for name, size in sizes.items()}

    @spmd.program(mesh=("r",))
    def kernels() -> Any:
        out = {}
        for name, values in given.items():
            mine = dict(values)
            for k, v in values.items():
                if isinstance(v, np.ndarray):
                    layout = ("r", *[None] * (v.ndim - 1))
                    mine[k] = spmd.input(f"{name}_{k}", v.shape, v.dtype, layout)
            out[name] = changed(globals()[name](**mine), mine)
        return out

    return kernels


def inputs(sizes: dict[str, int]) -> dict[str, Any]:
    return {
        f"{name}_{k}": v for name, size in sizes.items()
        for k, v in arguments(name, size).items() if isinstance(v, np.ndarray)
    }
