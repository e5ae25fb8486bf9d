"""Kernels as NPBench has them, which make their arrays inside: one image, some numbers of ranks."""

from __future__ import annotations

import numpy as np

import spmd

# mypy: ignore-errors


def correlation(data, m):
    mean = np.mean(data, axis=0)
    stddev = np.std(data, axis=0)
    stddev[stddev <= 0.1] = 1.0
    data = (data - mean) / (np.sqrt(float(data.shape[0])) * stddev)
    corr = np.eye(m, dtype=data.dtype)
    for i in range(m - 1):
        corr[i + 1 : m, i] = corr[i, i + 1 : m] = data[:, i] @ data[:, i + 1 : m]
    return corr


def mandelbrot(xmin, xmax, n, turns):
    x = np.linspace(xmin, xmax, n)
    y = np.linspace(-1.2, 1.2, n)
    c = x + y[:, None] * 1j
    count = np.zeros(c.shape, dtype=np.int64)
    z = np.zeros(c.shape, dtype=np.complex128)
    for k in spmd.range(turns):
        inside = np.less(abs(z), 2.0)
        count[inside] = k
        z[inside] = z[inside] ** 2 + c[inside]
    count[count == turns - 1] = 0
    return count


def acceleration(pos, mass, softening):
    dx, dy = pos[:, 0] - pos[:, 0:1], pos[:, 1] - pos[:, 1:2]
    inverse = dx**2 + dy**2 + softening**2
    inverse = inverse ** (-1.5)
    a = np.empty(pos.shape)
    a[:, 0] = (dx * inverse) @ mass
    a[:, 1] = (dy * inverse) @ mass
    return a


def n_body(pos, vel, mass, steps, dt):
    energy = np.ndarray(steps + 1, dtype=np.float64)
    acc = acceleration(pos, mass, 0.1)
    energy[0] = 0.5 * np.sum(mass * np.sum(vel**2, axis=1))
    for i in spmd.range(steps):
        vel += acc * dt / 2.0
        pos += vel * dt
        acc[:] = acceleration(pos, mass, 0.1)
        vel += acc * dt / 2.0
        energy[i + 1] = 0.5 * np.sum(mass * np.sum(vel**2, axis=1))
    return pos, energy


def vertical(u, w):
    """vadv: a tridiagonal system in the last dim, by elimination forward and back."""
    k_size = u.shape[1]
    ccol = np.ndarray(u.shape, dtype=u.dtype)
    dcol = np.ndarray(u.shape, dtype=u.dtype)
    out = np.zeros_like(u)
    below = np.empty((u.shape[0],), dtype=u.dtype)
    for k in range(k_size):
        g = 0.25 * w[:, k]
        if k == 0:
            ccol[:, k], dcol[:, k] = g / (1 + g), u[:, k] / (1 + g)
        else:
            divided = 1.0 / (1 + g - ccol[:, k - 1] * -g)
            ccol[:, k] = g * divided
            dcol[:, k] = (u[:, k] + dcol[:, k - 1] * -g) * divided
    for k in range(k_size - 1, -1, -1):
        below[:] = dcol[:, k] if k == k_size - 1 else dcol[:, k] - ccol[:, k] * below[:]
        out[:, k] = below
    return out


def cholesky(a, n):
    a[0, 0] = np.sqrt(a[0, 0])
    for i in spmd.range(1, n):
        for j in spmd.range(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] -= np.dot(a[i, :i], a[i, :i])
        a[i, i] = np.sqrt(a[i, i])
    return a


def lu(a, n):
    for i in spmd.range(n):
        for j in spmd.range(i):
            a[i, j] -= a[i, :j] @ a[:j, j]
            a[i, j] /= a[j, j]
        for j in spmd.range(i, n):
            a[i, j] -= a[i, :i] @ a[:i, j]
    return a


@spmd.program(mesh=("x",))
def kernels(n: int = 12):
    rng = np.random.default_rng(0)
    mass = np.full(n, 20.0) / n
    mass[0] *= 2
    pos, vel = rng.standard_normal((n, 2)), np.zeros((n, 2))
    vel[:, 1] = np.linspace(-1, 1, n)
    data = spmd.input("data", (n, 5), layout=("x", None), default=lambda i, j: (i * (j + 3)) % 7)
    wind = np.arange(n * 5.0).reshape(n, 5) / 60
    pos, energy = n_body(pos, vel, mass, 6, 0.01)
    count = mandelbrot(-1.75, 0.25, 10, 9)
    matrix = spmd.input("matrix", (6, 6), layout=("x", None),
                        default=lambda i, j: np.where(i == j, 10.0, 1 / (1 + i + j)))
    factors = cholesky(matrix.copy(), 6), lu(matrix.copy(), 6)
    return correlation(data, 5), count, pos, energy, vertical(data, wind), *factors


def test_kernels_that_make_arrays_inside():
    image, want = spmd.build(kernels), kernels.eager()
    for ranks in (1, 3, 5):
        for got, expected in zip(image.run(ranks=ranks), want, strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)
