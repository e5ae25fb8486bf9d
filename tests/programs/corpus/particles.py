"""Particles that pull, push, flock and carry charge, as people write them in NumPy."""

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them

import numpy as np

import spmd
from tests.programs.corpus.cases import case


@case(9, 300, lambda n, r: dict(pos=r(n, 3), vel=r(n, 3) - 0.5, mass=r(n), steps=4))
def gravity(pos, vel, mass, steps, dt=0.01, softening=0.1):
    def acceleration(pos):
        x, y, z = pos[:, 0:1], pos[:, 1:2], pos[:, 2:3]
        dx, dy, dz = x.T - x, y.T - y, z.T - z
        inv_r3 = (dx**2 + dy**2 + dz**2 + softening**2) ** -1.5
        ax = (dx * inv_r3) @ mass
        ay = (dy * inv_r3) @ mass
        az = (dz * inv_r3) @ mass
        return np.stack([ax, ay, az], axis=1)

    energy = np.zeros(steps)
    acc = acceleration(pos)
    for i in spmd.range(steps):
        vel += acc * dt / 2
        pos += vel * dt
        acc = acceleration(pos)
        vel += acc * dt / 2
        energy[i] = 0.5 * np.sum(mass * np.sum(vel**2, axis=1))
    return pos, vel, energy


@case(8, 256, lambda n, r: dict(pos=4 * r(n, 2), vel=r(n, 2) - 0.5, box=4.0, steps=3))
def lennard_jones(pos, vel, box, steps, dt=1e-4, cutoff=2.0):
    """Velocity Verlet in a periodic box: the nearest image of each other particle."""

    def forces(pos):
        delta = pos[:, None, :] - pos[None, :, :]
        delta -= box * np.round(delta / box)
        r2 = np.sum(delta**2, axis=-1)
        np.fill_diagonal(r2, 1.0)
        near = r2 < cutoff**2
        np.fill_diagonal(near, False)
        r2 = np.maximum(r2, 0.3)
        inv6 = 1.0 / r2**3
        magnitude = np.where(near, 24 * (2 * inv6**2 - inv6) / r2, 0.0)
        potential = 0.5 * np.sum(np.where(near, 4 * (inv6**2 - inv6), 0.0))
        return np.einsum("ij,ijk->ik", magnitude, delta), potential

    f, _ = forces(pos)
    potentials = np.zeros(steps)
    for step in spmd.range(steps):
        vel = vel + 0.5 * dt * f
        pos = (pos + dt * vel) % box
        f, potentials[step] = forces(pos)
        vel = vel + 0.5 * dt * f
    temperature = np.mean(np.sum(vel**2, axis=1)) / 2
    return pos, vel, potentials, temperature


@case(40, 200000, lambda n, r: dict(pos=r(n, 2), weight=r(n), cells=8))
def cell_list(pos, weight, cells):
    """Particles sorted by their cells, and what each cell holds."""
    where = (pos * cells).astype(np.int64)
    cell = where[:, 0] * cells + where[:, 1]
    order = np.argsort(cell, kind="stable")
    count = np.bincount(cell, minlength=cells * cells)
    start = np.cumsum(count) - count
    mass = np.zeros(cells * cells)
    np.add.at(mass, cell, weight)
    heaviest = np.zeros(cells * cells)
    np.maximum.at(heaviest, cell, weight)
    return pos[order], start, mass.reshape(cells, cells), heaviest


@case(30, 50000, lambda n, r: dict(x=r(n), v=r(n) - 0.5, cells=16, steps=3))
def particle_in_cell(x, v, cells, steps, dt=0.1):
    """Electrons in one dimension: charge to the grid, the field by a transform, and back."""
    k = 2 * np.pi * np.fft.rfftfreq(cells, 1.0 / cells)
    k2 = np.where(k == 0, 1.0, k**2)
    field_energy = np.zeros(steps)
    for step in spmd.range(steps):
        place = x * cells
        left = np.floor(place).astype(np.int64) % cells
        share = place - np.floor(place)
        density = np.zeros(cells)
        np.add.at(density, left, 1 - share)
        np.add.at(density, (left + 1) % cells, share)
        rho = 1.0 - density * cells / x.shape[0]
        rho_k = np.fft.rfft(rho)
        phi_k = np.where(k == 0, 0, rho_k / k2)
        e = np.fft.irfft(-1j * k * phi_k, cells)
        field_energy[step] = 0.5 * np.sum(e**2) / cells
        v = v - dt * (e[left] * (1 - share) + e[(left + 1) % cells] * share)
        x = (x + dt * v) % 1.0
    return x, v, field_energy


@case(10, 300, lambda n, r: dict(pos=10 * r(n, 2), vel=r(n, 2) - 0.5, steps=3))
def boids(pos, vel, steps, radius=3.0):
    for _ in spmd.range(steps):
        offset = pos[None, :, :] - pos[:, None, :]
        distance = np.sqrt((offset**2).sum(axis=2))
        near = (distance < radius) & (distance > 0)
        many = np.maximum(near.sum(axis=1), 1)[:, None]
        centre = (near[:, :, None] * pos[None]).sum(axis=1) / many
        heading = (near[:, :, None] * vel[None]).sum(axis=1) / many
        crowd = (distance < 1.0) & (distance > 0)
        apart = -(crowd[:, :, None] * offset).sum(axis=1)
        alone = near.sum(axis=1)[:, None] == 0
        steer = 0.01 * (centre - pos) + 0.125 * (heading - vel)
        vel = vel + np.where(alone, 0, steer) + 0.05 * apart
        speed = np.linalg.norm(vel, axis=1, keepdims=True)
        vel = np.where(speed > 1.0, vel / np.maximum(speed, 1e-12), vel)
        pos = (pos + vel) % 10.0
    return pos, vel


@case(12, 200, lambda n, r: dict(spins=np.where(r(n, n) < 0.5, -1.0, 1.0), draws=r(4, n, n),
                                 beta=0.44))
def ising(spins, draws, beta):
    """A checkerboard of spins: all black sites may flip, then all white ones."""
    n = spins.shape[0]
    i, j = np.indices((n, n))
    black = (i + j) % 2 == 0
    magnetisation = np.zeros(draws.shape[0])
    for t in spmd.range(draws.shape[0]):
        for colour in (black, ~black):
            neighbours = (np.roll(spins, 1, 0) + np.roll(spins, -1, 0)
                          + np.roll(spins, 1, 1) + np.roll(spins, -1, 1))
            energy = 2 * spins * neighbours
            flip = colour & (draws[t] < np.exp(-beta * energy))
            spins[flip] *= -1
        magnetisation[t] = np.abs(spins.mean())
    return spins, magnetisation


@case(12, 400, lambda n, r: dict(pos=r(n, 2), vel=np.zeros((n, 2)), mass=1.0 / n, steps=2))
def smoothed_particles(pos, vel, mass, steps, h=0.2, dt=0.001):
    """Smoothed-particle hydrodynamics with a Gaussian kernel."""
    for _ in spmd.range(steps):
        dx = pos[:, 0][:, None] - pos[:, 0][None, :]
        dy = pos[:, 1][:, None] - pos[:, 1][None, :]
        kernel = (1.0 / (h**2 * np.pi)) * np.exp(-(dx**2 + dy**2) / h**2)
        rho = np.sum(mass * kernel, axis=1, keepdims=True)
        pressure = 0.1 * rho**2
        factor = -2 * kernel / h**2
        share = pressure / rho**2 + (pressure / rho**2).T
        ax = -np.sum(mass * share * factor * dx, axis=1)
        ay = -np.sum(mass * share * factor * dy, axis=1)
        vel += dt * (np.column_stack((ax, ay)) - 1.5 * pos - 0.8 * vel)
        pos += dt * vel
    return pos, vel, rho
