"""Transforms: equations in Fourier space, and signals, as people write them in NumPy."""

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them

import numpy as np

import spmd
from tests.programs.corpus.cases import case


@case(12, 512, lambda n, r: dict(f=r(n, n)))
def fourier_poisson(f):
    n, m = f.shape
    kx = 2 * np.pi * np.fft.fftfreq(n, 1 / n)
    ky = 2 * np.pi * np.fft.rfftfreq(m, 1 / m)
    k2 = kx[:, None] ** 2 + ky[None, :] ** 2
    k2[0, 0] = 1.0
    f_hat = np.fft.rfft2(f - f.mean())
    u = np.fft.irfft2(-f_hat / k2, s=(n, m))
    return u, np.abs(u).max()


@case(32, 4096, lambda n, r: dict(u=np.sin(2 * np.pi * np.arange(n) / n), steps=6))
def burgers(u, steps, nu=0.01, dt=1e-3):
    """Pseudo-spectral, Runge and Kutta's fourth order, dealiased by the rule of two thirds."""
    n = len(u)
    k = np.fft.rfftfreq(n, 1 / n)
    dealias = k < n / 3

    def slope(u_hat):
        ux = np.fft.irfft(1j * k * u_hat, n)
        u = np.fft.irfft(u_hat, n)
        return -np.fft.rfft(u * ux) * dealias - nu * k**2 * u_hat

    u_hat = np.fft.rfft(u)
    for _ in spmd.range(steps):
        k1 = slope(u_hat)
        k2 = slope(u_hat + 0.5 * dt * k1)
        k3 = slope(u_hat + 0.5 * dt * k2)
        k4 = slope(u_hat + dt * k3)
        u_hat = u_hat + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return np.fft.irfft(u_hat, n)


@case(12, 128, lambda n, r: dict(w=r(n, n) - 0.5, steps=3))
def vortices(w, steps, nu=1e-3, dt=0.01):
    """Navier and Stokes in two dimensions: vorticity, its stream function by transforms."""
    n = w.shape[0]
    k = np.fft.fftfreq(n, 1 / n)
    kx, ky = np.meshgrid(k, k, indexing="ij")
    k2 = kx**2 + ky**2
    inverse = np.where(k2 == 0, 0.0, 1 / np.where(k2 == 0, 1, k2))
    dealias = (np.abs(kx) < n / 3) & (np.abs(ky) < n / 3)
    w_hat = np.fft.fft2(w)
    energy = np.zeros(steps)
    for t in spmd.range(steps):
        psi_hat = w_hat * inverse
        u = np.fft.ifft2(1j * ky * psi_hat).real
        v = np.fft.ifft2(-1j * kx * psi_hat).real
        wx = np.fft.ifft2(1j * kx * w_hat).real
        wy = np.fft.ifft2(1j * ky * w_hat).real
        advection = np.fft.fft2(u * wx + v * wy) * dealias
        w_hat = (w_hat - dt * advection) / (1 + dt * nu * k2)
        energy[t] = 0.5 * np.mean(u**2 + v**2)
    return np.fft.ifft2(w_hat).real, energy


@case(100, 100000, lambda n, r: dict(signal=np.sin(0.3 * np.arange(n)) + 0.1 * r(n)))
def spectrogram(signal, window=16, hop=8):
    frames = 1 + (len(signal) - window) // hop
    places = hop * np.arange(frames)[:, None] + np.arange(window)
    power = np.abs(np.fft.rfft(signal[places] * np.hanning(window), axis=1)) ** 2
    centroid = (power * np.arange(power.shape[1])).sum(1) / power.sum(1)
    return 10 * np.log10(power + 1e-10), centroid


@case(24, 2048, lambda n, r: dict(psi=np.exp(-((np.arange(n) - n / 2) ** 2) / n) + 0j, steps=5))
def schroedinger(psi, steps, dt=0.01):
    """Step Schrödinger's equation by splitting: the potential in space, the momentum in Fourier
    space."""
    n = len(psi)
    x = np.linspace(-5, 5, n)
    k = 2 * np.pi * np.fft.fftfreq(n, 10 / n)
    half = np.exp(-0.5j * dt * 0.5 * x**2)
    kinetic = np.exp(-0.5j * dt * k**2)
    for _ in spmd.range(steps):
        psi = half * np.fft.ifft(kinetic * np.fft.fft(half * psi))
    density = np.abs(psi) ** 2
    return psi, density / density.sum(), np.sum(x * density) / density.sum()


@case(6, 16, lambda n, r: dict(x=r(2**n) + 1j * r(2**n)))
def stockham(x):
    """A Fourier transform of a power of two in stages, without bit reversal."""
    n = len(x)
    butterfly = np.array([[1.0, 1.0], [1.0, -1.0]])
    y = x.copy()
    for stage in range(n.bit_length() - 1):
        blocks = 2**stage
        v = np.transpose(np.reshape(y, (blocks, 2, n // (2 * blocks))), (1, 0, 2))
        turn = np.exp(-1j * np.pi * np.arange(2)[:, None] * np.arange(blocks) / blocks)
        factors = np.repeat(np.reshape(turn, (2, blocks, 1)), n // (2 * blocks), axis=2)
        v = np.reshape(v, (n,)) * np.reshape(factors, (n,))
        y[:] = np.reshape(butterfly @ np.reshape(v, (2, n // 2)), (n,))
    return y
