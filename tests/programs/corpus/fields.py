"""Fields on grids that flow, wave and react, as people write them in NumPy."""

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them

import numpy as np

import spmd
from tests.programs.corpus.cases import case


@case(12, 300, lambda n, r: dict(h=1 + 0.1 * r(n, n), steps=5))
def shallow_water(h, steps, g=9.8, dx=1.0, dt=0.02):
    """Lax and Friedrichs on a torus."""
    u = np.zeros_like(h)
    v = np.zeros_like(h)

    def mean(a):
        return 0.25 * (np.roll(a, 1, 0) + np.roll(a, -1, 0) + np.roll(a, 1, 1) + np.roll(a, -1, 1))

    def dxx(a):
        return (np.roll(a, -1, 0) - np.roll(a, 1, 0)) / (2 * dx)

    def dyy(a):
        return (np.roll(a, -1, 1) - np.roll(a, 1, 1)) / (2 * dx)

    for _ in spmd.range(steps):
        hu, hv = h * u, h * v
        new_h = mean(h) - dt * (dxx(hu) + dyy(hv))
        new_hu = mean(hu) - dt * (dxx(hu * u + 0.5 * g * h**2) + dyy(hu * v))
        new_hv = mean(hv) - dt * (dxx(hu * v) + dyy(hv * v + 0.5 * g * h**2))
        h, u, v = new_h, new_hu / new_h, new_hv / new_h
    return h, u, v


@case(13, 400, lambda n, r: dict(u=r(n, n), steps=12))
def wave(u, steps, c=0.4):
    """Leap-frog with fixed edges, and a record of what a microphone hears."""
    previous = u.copy()
    heard = np.zeros(steps)
    for t in spmd.range(steps):
        nxt = np.zeros_like(u)
        nxt[1:-1, 1:-1] = (2 * u[1:-1, 1:-1] - previous[1:-1, 1:-1] + c**2 * (
            u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]))
        previous, u = u, nxt
        heard[t] = u[u.shape[0] // 2, u.shape[1] // 3]
    return u, heard


@case(11, 300, lambda n, r: dict(u=1 - 0.1 * r(n, n), v=0.2 * r(n, n), steps=10))
def gray_scott(u, v, steps, du=0.16, dv=0.08, feed=0.035, kill=0.065):
    def laplacian(z):
        return (np.roll(z, 1, axis=0) + np.roll(z, -1, axis=0) + np.roll(z, 1, axis=1)
                + np.roll(z, -1, axis=1) - 4 * z)

    for _ in spmd.range(steps):
        uvv = u * v * v
        u = u + du * laplacian(u) - uvv + feed * (1 - u)
        v = v + dv * laplacian(v) + uvv - (feed + kill) * v
    return u, v


@case(40, 100000, lambda n, r: dict(q=r(n), velocity=0.5, steps=20))
def upwind_advection(q, velocity, steps):
    """Van Leer's limiter, on a ring."""
    for _ in spmd.range(steps):
        left, right = q - np.roll(q, 1), np.roll(q, -1) - q
        product = left * right
        slope = np.where(product > 0, 2 * product / np.where(product > 0, left + right, 1), 0)
        flux = velocity * (q + 0.5 * (1 - velocity) * slope)
        q = q - (flux - np.roll(flux, 1))
    return q, q.sum()


@case(30, 20000, lambda n, r: dict(n=n, steps=10))
def sod_tube(n, steps, gamma=1.4):
    """Euler's equations in a shock tube: conserved rows, Rusanov's fluxes."""
    x = (np.arange(n) + 0.5) / n
    state = np.stack([np.where(x < 0.5, 1.0, 0.125), np.zeros(n),
                      np.where(x < 0.5, 1.0, 0.1) / (gamma - 1)])
    for _ in spmd.range(steps):
        rho, momentum, energy = state
        u = momentum / rho
        p = (gamma - 1) * (energy - 0.5 * rho * u**2)
        speed = np.abs(u) + np.sqrt(gamma * p / rho)
        dt = 0.4 / n / speed.max()
        flux = np.stack([momentum, momentum * u + p, u * (energy + p)])
        fastest = np.maximum(speed[:-1], speed[1:])
        face = 0.5 * (flux[:, :-1] + flux[:, 1:]) - 0.5 * fastest * (state[:, 1:] - state[:, :-1])
        state[:, 1:-1] -= dt * n * (face[:, 1:] - face[:, :-1])
    return state


@case(10, 120, lambda n, r: dict(f=1 + 0.01 * r(9, n, n), steps=5))
def lattice_boltzmann(f, steps, tau=0.6):
    """Nine velocities, a cylinder in the stream from which particles bounce back."""
    cx = np.array([0, 0, 1, 1, 1, 0, -1, -1, -1])
    cy = np.array([0, 1, 1, 0, -1, -1, -1, 0, 1])
    weights = np.array([4 / 9, 1 / 9, 1 / 36, 1 / 9, 1 / 36, 1 / 9, 1 / 36, 1 / 9, 1 / 36])
    opposite = [0, 5, 6, 7, 8, 1, 2, 3, 4]
    _, ny, nx = f.shape
    y, x = np.indices((ny, nx))
    cylinder = (x - nx / 4) ** 2 + (y - ny / 2) ** 2 < (ny / 4) ** 2
    for _ in spmd.range(steps):
        f = np.stack([np.roll(np.roll(f[i], cx[i], axis=1), cy[i], axis=0) for i in range(9)])
        bounced = f[opposite]
        rho = f.sum(axis=0)
        ux = np.tensordot(cx, f, axes=1) / rho
        uy = np.tensordot(cy, f, axes=1) / rho
        square = 1.5 * (ux**2 + uy**2)
        new = []
        for i in range(9):
            cu = 3 * (cx[i] * ux + cy[i] * uy)
            equilibrium = rho * weights[i] * (1 + cu + 0.5 * cu**2 - square)
            new.append(np.where(cylinder, bounced[i], f[i] + (equilibrium - f[i]) / tau))
        f = np.stack(new)
    return f, rho


@case(12, 200, lambda n, r: dict(u=r(n, n), steps=3, r=0.3))
def crank_nicolson(u, steps, r):
    """Heat in a plate: implicit along rows then along columns, by dense inverses."""
    n = u.shape[0]
    second = np.eye(n, k=1) + np.eye(n, k=-1) - 2 * np.eye(n)
    forward = np.eye(n) + r / 2 * second
    step = np.linalg.inv(np.eye(n) - r / 2 * second) @ forward
    for _ in spmd.range(steps):
        u = step @ u @ step.T
    return u


@case(9, 300, lambda n, r: dict(temperature=r(n, n), conductivity=0.5 + r(n, n), tol=1e-3))
def steady_heat(temperature, conductivity, tol):
    """Jacobi's iteration with a conductivity of its own in each cell, until it settles."""
    kx = 2 / (1 / conductivity[1:, :] + 1 / conductivity[:-1, :])
    ky = 2 / (1 / conductivity[:, 1:] + 1 / conductivity[:, :-1])
    weight = kx[1:, 1:-1] + kx[:-1, 1:-1] + ky[1:-1, 1:] + ky[1:-1, :-1]
    turns = 0
    while True:
        old = temperature.copy()
        temperature[1:-1, 1:-1] = (
            kx[1:, 1:-1] * old[2:, 1:-1] + kx[:-1, 1:-1] * old[:-2, 1:-1]
            + ky[1:-1, 1:] * old[1:-1, 2:] + ky[1:-1, :-1] * old[1:-1, :-2]) / weight
        temperature[0, :] = 1.0
        temperature[-1, :] = 0.0
        turns += 1
        if np.max(np.abs(temperature - old)) < tol or turns >= 40:
            break
    return temperature, turns
