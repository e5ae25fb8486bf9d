"""Images: filters, edges, histograms, distances, labels, as people write them in NumPy."""

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them

import numpy as np

import spmd
from tests.programs.corpus.cases import case


@case(14, 600, lambda n, r: dict(image=r(n, n + 3), sigma=1.5))
def gaussian_blur(image, sigma):
    """A separable filter; the border repeats."""
    radius = int(3 * sigma)
    t = np.arange(-radius, radius + 1)
    kernel = np.exp(-(t**2) / (2 * sigma**2))
    kernel /= kernel.sum()
    padded = np.pad(image, ((radius, radius), (0, 0)), mode="edge")
    rows = sum(w * padded[k : k + image.shape[0]] for k, w in enumerate(kernel))
    padded = np.pad(rows, ((0, 0), (radius, radius)), mode="edge")
    return sum(w * padded[:, k : k + image.shape[1]] for k, w in enumerate(kernel))


@case(12, 500, lambda n, r: dict(image=r(n, n), kernel=r(3, 5)))
def convolution(image, kernel):
    kh, kw = kernel.shape
    out = np.zeros((image.shape[0] - kh + 1, image.shape[1] - kw + 1))
    flipped = kernel[::-1, ::-1]
    for i in range(kh):
        for j in range(kw):
            out += flipped[i, j] * image[i : i + out.shape[0], j : j + out.shape[1]]
    return out


@case(16, 700, lambda n, r: dict(image=(256 * r(n, n) ** 2).astype(np.uint8)))
def equalised(image):
    histogram = np.bincount(image.ravel(), minlength=256)
    cdf = histogram.cumsum()
    lowest = np.min(np.where(cdf > 0, cdf, image.size))
    table = np.round((cdf - lowest) / np.maximum(image.size - lowest, 1) * 255)
    table = np.clip(table, 0, 255).astype(np.uint8)
    return table[image], histogram


@case(13, 500, lambda n, r: dict(image=r(n, n), low=0.6, high=1.4))
def edges(image, low, high):
    """Sobel's gradients, thin ridges, and a threshold with hysteresis of one step."""
    p = np.pad(image, 1, mode="reflect")
    gx = (p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:]) - (p[:-2, :-2] + 2 * p[1:-1, :-2] + p[2:, :-2])
    gy = (p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:]) - (p[:-2, :-2] + 2 * p[:-2, 1:-1] + p[:-2, 2:])
    magnitude = np.hypot(gx, gy)
    angle = np.rad2deg(np.arctan2(gy, gx)) % 180
    m = np.pad(magnitude, 1)
    centre = m[1:-1, 1:-1]
    horizontal = (angle < 45) | (angle >= 135)
    before = np.where(horizontal, m[1:-1, :-2], m[:-2, 1:-1])
    after = np.where(horizontal, m[1:-1, 2:], m[2:, 1:-1])
    thin = np.where((centre >= before) & (centre >= after), centre, 0)
    strong, weak = thin > high, thin > low
    s = np.pad(strong, 1)
    touched = np.zeros_like(strong)
    for di in range(3):
        for dj in range(3):
            touched |= s[di : di + strong.shape[0], dj : dj + strong.shape[1]]
    return strong | (weak & touched)


@case(11, 300, lambda n, r: dict(mask=r(n, n) < 0.1))
def distance_transform(mask):
    """How far the next marked pixel is, in steps; forwards by rows, then backwards."""
    far = mask.shape[0] + mask.shape[1]
    d = np.where(mask, 0, far)
    for i in spmd.range(1, d.shape[0]):
        d[i] = np.minimum(d[i], d[i - 1] + 1)
    for i in spmd.range(d.shape[0] - 2, -1, -1):
        d[i] = np.minimum(d[i], d[i + 1] + 1)
    for j in spmd.range(1, d.shape[1]):
        d[:, j] = np.minimum(d[:, j], d[:, j - 1] + 1)
    for j in spmd.range(d.shape[1] - 2, -1, -1):
        d[:, j] = np.minimum(d[:, j], d[:, j + 1] + 1)
    return d


@case(12, 300, lambda n, r: dict(image=r(n, n)))
def median_filter(image):
    p = np.pad(image, 1, mode="symmetric")
    n, m = image.shape
    windows = np.stack([p[i : i + n, j : j + m] for i in range(3) for j in range(3)])
    return np.median(windows, axis=0)


@case(12, 200, lambda n, r: dict(mask=r(n, n) < 0.6))
def labelled(mask):
    """Connected components: each pixel takes the smallest label of its neighbours."""
    n, m = mask.shape
    labels = np.where(mask, np.arange(1, n * m + 1).reshape(n, m), 0)
    changed = True
    while changed:
        padded = np.pad(labels, 1)
        best = labels
        for shifted in (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]):
            best = np.where((shifted > 0) & (shifted < best), shifted, best)
        best = np.where(mask, best, 0)
        changed = np.any(best != labels)
        labels = best
    return labels


@case(10, 400, lambda n, r: dict(image=r(n, n, 3), angle=0.4))
def turned_picture(image, angle):
    """Rotated about its centre, bilinear, black outside."""
    n, m, _ = image.shape
    y, x = np.indices((n, m))
    cy, cx = (n - 1) / 2, (m - 1) / 2
    sy = np.cos(angle) * (y - cy) - np.sin(angle) * (x - cx) + cy
    sx = np.sin(angle) * (y - cy) + np.cos(angle) * (x - cx) + cx
    y0, x0 = np.floor(sy).astype(int), np.floor(sx).astype(int)
    wy, wx = (sy - y0)[..., None], (sx - x0)[..., None]
    inside = (y0 >= 0) & (y0 < n - 1) & (x0 >= 0) & (x0 < m - 1)
    y0, x0 = np.clip(y0, 0, n - 2), np.clip(x0, 0, m - 2)
    top = (1 - wx) * image[y0, x0] + wx * image[y0, x0 + 1]
    bottom = (1 - wx) * image[y0 + 1, x0] + wx * image[y0 + 1, x0 + 1]
    return np.where(inside[..., None], (1 - wy) * top + wy * bottom, 0)


@case(13, 600, lambda n, r: dict(image=r(n, n), radius=2))
def box_filter(image, radius):
    """The mean of each window, by sums over everything above and left of a pixel."""
    w = 2 * radius + 1
    total = np.zeros((image.shape[0] + 1, image.shape[1] + 1))
    total[1:, 1:] = image.cumsum(0).cumsum(1)
    sums = total[w:, w:] - total[:-w, w:] - total[w:, :-w] + total[:-w, :-w]
    return sums / w**2


@case(12, 300, lambda n, r: dict(image=r(n, n), steps=5, kappa=0.2))
def anisotropic_diffusion(image, steps, kappa):
    """Perona and Malik: smooth, but not across edges."""
    u = image.astype(np.float32)
    for _ in spmd.range(steps):
        north = np.zeros_like(u)
        south = np.zeros_like(u)
        east = np.zeros_like(u)
        west = np.zeros_like(u)
        north[1:] = u[:-1] - u[1:]
        south[:-1] = u[1:] - u[:-1]
        west[:, 1:] = u[:, :-1] - u[:, 1:]
        east[:, :-1] = u[:, 1:] - u[:, :-1]
        u = u + 0.2 * sum(np.exp(-((d / kappa) ** 2)) * d for d in (north, south, east, west))
    return u
