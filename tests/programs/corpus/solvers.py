"""Solvers of linear and nonlinear systems, and of eigenvalues, as people write them in NumPy."""

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them

import numpy as np

import spmd
from tests.programs.corpus.cases import case


def positive_definite(n, r):
    a = r(n, n)
    return a @ a.T / n + np.eye(n)


def diagonally_dominant(n, r):
    return r(n, n) / n + np.diag(1 + r(n))


@case(11, 600, lambda n, r: dict(a=positive_definite(n, r), b=r(n)))
def conjugate_gradients(a, b, tol=1e-8, max_iter=60):
    x = np.zeros_like(b)
    r = b - a @ x
    p = r.copy()
    rs_old = r @ r
    k = 0
    while rs_old > tol**2 and k < max_iter:
        ap = a @ p
        alpha = rs_old / (p @ ap)
        x = x + alpha * p
        r = r - alpha * ap
        rs_new = r @ r
        p = r + (rs_new / rs_old) * p
        rs_old = rs_new
        k += 1
    return x, rs_old < tol


@case(10, 400, lambda n, r: dict(f=r(n, n), steps=20))
def preconditioned_plate(f, steps):
    """Conjugate gradients on a five-point operator, preconditioned by its diagonal."""

    def apply(u):
        out = 4.0 * u
        out[1:, :] -= u[:-1, :]
        out[:-1, :] -= u[1:, :]
        out[:, 1:] -= u[:, :-1]
        out[:, :-1] -= u[:, 1:]
        return out

    u = np.zeros_like(f)
    r = f.copy()
    z = r / 4.0
    p = z.copy()
    rz = np.sum(r * z)
    for _ in spmd.range(steps):
        ap = apply(p)
        alpha = rz / np.sum(p * ap)
        u += alpha * p
        r -= alpha * ap
        z = r / 4.0
        rz_next = np.sum(r * z)
        p = z + rz_next / rz * p
        rz = rz_next
    return u, np.sqrt(np.sum(r**2))


@case(9, 800, lambda n, r: dict(a=diagonally_dominant(n, r), b=r(n), iterations=25))
def jacobi(a, b, iterations):
    d = np.diag(a)
    rest = a - np.diagflat(d)
    x = np.zeros(len(b))
    for _ in spmd.range(iterations):
        x = (b - rest @ x) / d
    return x, np.linalg.norm(a @ x - b)


@case(10, 500, lambda n, r: dict(u=r(n, n), f=r(n, n), sweeps=10, omega=1.5))
def red_black_sor(u, f, sweeps, omega):
    h2 = 1.0 / (u.shape[0] - 1) ** 2
    i, j = np.meshgrid(np.arange(1, u.shape[0] - 1), np.arange(1, u.shape[1] - 1), indexing="ij")
    red = (i + j) % 2 == 0
    for _ in spmd.range(sweeps):
        for mask in (red, ~red):
            gauss = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
                            - h2 * f[1:-1, 1:-1])
            u[1:-1, 1:-1] = np.where(mask, (1 - omega) * u[1:-1, 1:-1] + omega * gauss,
                                     u[1:-1, 1:-1])


@case(17, 129, lambda n, r: dict(f=r(n, n), cycles=1))
def multigrid(f, cycles):
    """V-cycles for Poisson's equation; n is a power of two and one."""

    def residual(u, f, h):
        res = np.zeros_like(u)
        res[1:-1, 1:-1] = f[1:-1, 1:-1] - (
            u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]) / h**2
        return res

    def smooth(u, f, h, times):
        for _ in spmd.range(times):
            u[1:-1, 1:-1] += 0.2 * -(h**2) * residual(u, f, h)[1:-1, 1:-1]
        return u

    def restrict(r):
        coarse = r[::2, ::2].copy()
        coarse[1:-1, 1:-1] = (
            4 * r[2:-2:2, 2:-2:2]
            + 2 * (r[1:-3:2, 2:-2:2] + r[3:-1:2, 2:-2:2] + r[2:-2:2, 1:-3:2] + r[2:-2:2, 3:-1:2])
            + r[1:-3:2, 1:-3:2] + r[1:-3:2, 3:-1:2] + r[3:-1:2, 1:-3:2] + r[3:-1:2, 3:-1:2]) / 16
        return coarse

    def prolong(c):
        n = 2 * (c.shape[0] - 1) + 1
        fine = np.zeros((n, n))
        fine[::2, ::2] = c
        fine[1::2, ::2] = 0.5 * (c[:-1] + c[1:])
        fine[:, 1::2] = 0.5 * (fine[:, :-2:2] + fine[:, 2::2])
        return fine

    def cycle(u, f, h):
        u = smooth(u, f, h, 3)
        if u.shape[0] <= 5:
            return smooth(u, f, h, 20)
        correction = cycle(np.zeros((u.shape[0] // 2 + 1,) * 2), restrict(residual(u, f, h)), 2 * h)
        u[1:-1, 1:-1] += prolong(correction)[1:-1, 1:-1]
        return smooth(u, f, h, 3)

    h = 1.0 / (f.shape[0] - 1)
    u = np.zeros_like(f)
    for _ in range(cycles):
        u = cycle(u, f, h)
    return u, np.max(np.abs(residual(u, f, h)))


@case(12, 500, lambda n, r: dict(a=positive_definite(n, r), v=r(n), m=8))
def lanczos(a, v, m):
    """The largest eigenvalues of a symmetric matrix, with full reorthogonalisation."""
    n = len(v)
    basis = np.zeros((m + 1, n))
    alpha, beta = np.zeros(m), np.zeros(m)
    basis[0] = v / np.linalg.norm(v)
    for j in range(m):
        w = a @ basis[j]
        alpha[j] = w @ basis[j]
        w = w - basis[: j + 1].T @ (basis[: j + 1] @ w)
        w = w - basis[: j + 1].T @ (basis[: j + 1] @ w)
        beta[j] = np.linalg.norm(w)
        basis[j + 1] = w / beta[j]
    t = np.diag(alpha) + np.diag(beta[:-1], 1) + np.diag(beta[:-1], -1)
    return np.linalg.eigvalsh(t)[::-1][:3]


@case(12, 500, lambda n, r: dict(a=diagonally_dominant(n, r), b=r(n), m=10))
def gmres(a, b, m):
    """One cycle: Arnoldi's basis by modified Gram-Schmidt, then a small least-squares problem."""
    n = len(b)
    q = np.zeros((n, m + 1))
    h = np.zeros((m + 1, m))
    beta = np.linalg.norm(b)
    q[:, 0] = b / beta
    for k in spmd.range(m):
        y = a @ q[:, k]
        for j in spmd.range(k + 1):
            h[j, k] = q[:, j] @ y
            y = y - h[j, k] * q[:, j]
        h[k + 1, k] = np.linalg.norm(y)
        q[:, k + 1] = y / h[k + 1, k]
    e1 = np.zeros(m + 1)
    e1[0] = beta
    y = np.linalg.lstsq(h, e1, rcond=None)[0]
    x = q[:, :m] @ y
    return x, np.linalg.norm(b - a @ x)


@case(10, 400, lambda n, r: dict(a=diagonally_dominant(n, r), b=r(n), steps=6))
def bicgstab(a, b, steps):
    x = np.zeros_like(b)
    r = b - a @ x
    r_hat = r.copy()
    rho = alpha = omega = 1.0
    v = p = np.zeros_like(b)
    for _ in spmd.range(steps):
        rho_next = np.dot(r_hat, r)
        beta = (rho_next / rho) * (alpha / omega)
        p = r + beta * (p - omega * v)
        v = np.dot(a, p)
        alpha = rho_next / np.dot(r_hat, v)
        s = r - alpha * v
        t = np.dot(a, s)
        omega = np.dot(t, s) / np.dot(t, t)
        x = x + alpha * p + omega * s
        r = s - omega * t
        rho = rho_next
    return x


@case(12, 2000, lambda n, r: dict(lower=r(n), diagonal=3 + r(n), upper=r(n), rhs=r(n, 5)))
def thomas(lower, diagonal, upper, rhs):
    """A tridiagonal system with many right-hand sides."""
    n = len(diagonal)
    c = np.zeros(n)
    d = np.zeros_like(rhs)
    c[0] = upper[0] / diagonal[0]
    d[0] = rhs[0] / diagonal[0]
    for i in spmd.range(1, n):
        m = diagonal[i] - lower[i] * c[i - 1]
        c[i] = upper[i] / m
        d[i] = (rhs[i] - lower[i] * d[i - 1]) / m
    x = d.copy()
    for i in spmd.range(n - 2, -1, -1):
        x[i] -= c[i] * x[i + 1]
    return x


@case(8, 200, lambda n, r: dict(x=1 + r(n), turns=5))
def newton_system(x, turns):
    """Broyden's tridiagonal function, with its dense Jacobian."""
    n = len(x)
    for _ in spmd.range(turns):
        f = (3 - 0.5 * x) * x + 1
        f[1:] -= x[:-1]
        f[:-1] -= 2 * x[1:]
        jacobian = np.diag(3 - x) - np.eye(n, k=-1) - 2 * np.eye(n, k=1)
        x = x - np.linalg.solve(jacobian, f)
    return x


@case(14, 1000, lambda n, r: dict(links=(r(n, n) < 0.3).astype(np.float64), damping=0.85))
def page_rank(links, damping):
    n = links.shape[0]
    out_degree = links.sum(axis=1)
    share = links / np.maximum(out_degree, 1)[:, None]
    transition = np.where(out_degree[:, None] > 0, share, 1 / n)
    rank = np.full(n, 1 / n)
    change = 1.0
    while change > 1e-10:
        updated = (1 - damping) / n + damping * (transition.T @ rank)
        change = np.abs(updated - rank).sum()
        rank = updated
    return rank
