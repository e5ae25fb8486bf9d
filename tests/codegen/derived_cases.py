"""Functions of one array of POINTS floats, whose gradients are compared with differences.

`spmd.range` is Python's where a function is called on NumPy's arrays. Each works there and in a
program; `X` says where it is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import spmd

# mypy: ignore-errors

POINTS = 12
X = np.random.default_rng(1).random(POINTS) * 0.9 + 0.2
CASES: dict[str, Callable[[Any], Any]] = {}


def case(f):
    CASES[f.__name__] = f
    return f


@case
def boxes(x):
    y = x.copy()
    y[1:-1] += 0.5 * (y[2:] + y[:-2])
    y[3] = x[2] * x[5]
    y *= x
    return np.sum(y * y) + np.sum(x[::2] ** 3) + np.sum(x[::-1][:5] * x[3:8])


@case
def shapes(x):
    a = x.reshape(3, 4)
    rolled = np.sum(np.roll(x, 3) * x**2) + np.sum(np.pad(x, 2, mode="wrap") ** 3)
    joined = np.sum(np.concatenate([x, x[:3] * 2, x[::-1]]) ** 3)
    return rolled + joined + np.sum(np.exp(x[:, None] * x[None, :])) + np.sum(a.T[1] * a[0, 1])


@case
def products(x):
    a = x.reshape(3, 4)
    return (np.sum(np.tanh(a @ a.T)) + np.einsum("ij,kj,kl->", a, a**2, a) + np.dot(x, x)
            + np.sum(np.outer(x, x[:5]) ** 2))


@case
def extremes(x):
    return (np.max(np.sin(5 * x)) + np.min(x * x) + np.sum(np.clip(x, 0.4, 1.0)) + np.prod(x)
            + np.sum(np.cumsum(x) ** 2) + np.std(x) + np.sum(np.cumprod(x))
            + np.sum(np.where(x > 0.8, x**2, np.sqrt(x))))


@case
def looked_up(x):
    i = np.array([3, 1, 1, 7])
    y = x * 0
    np.add.at(y, i, x[:4] ** 2)
    y[i] = x[4:8]
    z, v = x.copy(), np.concatenate([x[2:6], x[:2] - X[:2]])  # the last two are 0
    np.multiply.at(z, np.array([3, 1, 1, 7, 1, 2]), v)
    return (np.sum(x[i] ** 2 * np.arange(4)) + np.sum(y**2 * np.arange(1.0, POINTS + 1))
            + np.sum(z**3))


@case
def sorted_(x):
    y = np.sin(9 * x)
    return (np.sum(np.sort(y) * np.arange(1.0, POINTS + 1)) + np.median(y)
            + np.sum(np.sort(y.reshape(3, 4), 0) * y.reshape(3, 4))
            + np.sum(np.percentile(y.reshape(3, 4), 30.0, axis=1) ** 2))


@case
def transformed(x):
    a = x.reshape(3, 4)
    return (np.sum(np.abs(np.fft.fft(x)) ** 2 * np.arange(POINTS))
            + np.sum(np.fft.irfftn(np.fft.rfftn(a) ** 2) ** 2)
            + np.sum(np.fft.irfft(x + 1j * x**2, 9) ** 2))


@case
def of_parts(x):
    z = x + 1j * x[::-1]
    w = np.exp(z) * z.conj() / (1 + z * z)
    return np.sum(w.real**2 + np.abs(w) + w.imag)


@case
def solved(x):
    a = x.reshape(3, 4)
    s = a @ a.T + np.eye(3)
    return (np.sum(np.linalg.cholesky(s)) + np.linalg.det(s) + np.sum(np.linalg.inv(s))
            + np.sum(np.linalg.solve(s, a) ** 2) + np.linalg.norm(a)
            + np.sum(np.linalg.pinv(x.reshape(4, 3)) ** 2)
            + np.sum(np.linalg.solve(a=x.reshape(3, 2, 2) + np.eye(2), b=x[:2]) ** 2)
            + np.sum(np.linalg.solve(x.reshape(3, 2, 2) + np.eye(2), x[:4].reshape(1, 2, 2)) ** 2))


@case
def spectra(x):
    a = x.reshape(4, 3)
    s = a[:3] + a[:3].T
    u, d, vt = np.linalg.svd(a, False)
    q, r = np.linalg.qr(a, "reduced")
    w, v = np.linalg.eigh(s)
    k = np.arange(9.0).reshape(3, 3)
    return (np.sum(d**3) + np.sum((u @ vt) ** 3) + np.sum(q**3) + np.sum(r**2 * k)
            + np.sum(w**3) + np.sum(v**2 * k) + np.sum(np.linalg.eigvalsh(s) ** 2))


@case
def spectra_of_any(x):
    a, k = x.reshape(4, 3), np.arange(9.0).reshape(3, 3)
    m = np.sin(9 * a[:3]) + k - 2 * np.triu(k)  # two of its eigenvalues are complex
    w, v = np.linalg.eig(m)
    u, d, vt = np.linalg.svd(a.T)  # the last row of vt spans what the matrix maps to 0
    q, r = np.linalg.qr(a.T)
    return (np.sum((w**2).imag ** 2) + np.sum(np.abs(v) ** 2 * k) + np.sum((v**3).real * k)
            + np.sum(np.linalg.eigvals(m + m @ m).real ** 3) + np.sum(vt[3] ** 2 * np.arange(4))
            + np.sum((u @ (d[:, None] * vt[:3])) ** 3) + np.sum(q**3) + np.sum(r**2 * x[:4])
            + np.sum(np.linalg.qr(a.T, "complete")[1] ** 3) + np.sum(np.linalg.qr(a, "r") ** 2 * k)
            + np.sum(np.linalg.pinv(a.T @ a, hermitian=True) ** 2))


@case
def loops(x):
    y, u = x.copy(), x.copy()
    for k in spmd.range(5):
        y = np.sin(y) * 1.1 + 0.1 * k
    for _ in spmd.range(4):
        u[1:-1] = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]) * u[1:-1]
    return np.sum(y) + np.sum(u**2)


@case
def recurrences(x):
    y, z, s = x.copy(), x.copy(), x[0] * 0
    for k in spmd.range(1, POINTS):
        y[k] = y[k] + np.sin(y[k - 1]) * x[k]
    for k in spmd.range(1, POINTS):
        z[k] = z[k] - np.dot(x[:k], z[:k]) * 0.1
    for k in spmd.range(POINTS - 1, 0, -3):
        s = s + x[k] * x[k - 1] ** 2
    return np.sum(y * y) + np.sum(z**2) + s


@case
def taken_over(x):
    """Reads a box of an array before a loop, elements of it in the loop, and writes the box after
    it."""
    u = x * 2
    s = np.sum(u[1:-1] ** 3)
    for k in spmd.range(1, POINTS):
        s = s + u[k] * u[k - 1]
    u[1:-1] = x[1:-1] ** 2
    return s + np.sum(u * u)


@case
def nested(x):
    y = x.copy()
    for k in spmd.range(3):
        for j in spmd.range(2, POINTS):
            y[j] = 0.5 * y[j - 1] * y[j - 2] + np.cos(y[j]) * (k + 1)
    return np.sum(y**2)


@case
def branches(x):
    y = x**2 if np.sum(x) > 5 else x**3
    s = np.sum(y)
    for k in spmd.range(POINTS):
        if k % 2 == 0:
            s = s + x[k] ** 2
        else:
            s = s * 0.9 + np.sin(x[k])
    return s


@case
def ended(x):
    s, t = np.sum(x) * 0, np.sum(x)
    for k in spmd.range(POINTS):
        s = s + x[k] ** 2
        if s > 2:
            break
    while t > 1:
        t = t * 0.7 * np.cos(0.1 * t)
    u = x[0] * 1
    for k in spmd.range(POINTS):
        u = u * u * 0.5 + x[k]
        if u > 1.5:
            break
    return s + t + u
