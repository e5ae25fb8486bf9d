"""Gravity between all pairs of bodies, by leap-frog: bodies are split, energy is kept.

Every rank computes what pulls its bodies; for that it needs where all of them are.
    python -m spmd build examples/n_body.py --set n=2000 && \
    mpirun -n 6 python -m spmd run examples/n_body.img --set steps=1000 -o x=x.npy
"""

import numpy as np

import spmd

SOFT = 0.05  # close bodies pull as if they were this far apart: no collisions


def distances(x):
    """To each body from each other one: (n, n, 3), and squared lengths: (n, n)."""
    d = x[:, None] - x
    return d, np.sum(d * d, axis=2) + SOFT**2


def pull(x):
    """Accelerations; together the bodies have a mass of 1."""
    d, r2 = distances(x)
    return -np.sum(d / (r2 * np.sqrt(r2))[:, :, None], axis=1) / len(x)


def energy(x, v):
    n = len(x)
    pairs = np.sum(1 / np.sqrt(distances(x)[1])) - n / SOFT  # without each with itself
    return np.sum(v * v) / (2 * n) - pairs / (2 * n * n)


@spmd.program(mesh=("r",))
def n_body(n: int = 300):
    steps, dt = spmd.scalar("steps", 200), spmd.scalar("dt", 0.01)
    x = spmd.random.normal(1, (n, 3), layout=("r", None))
    v = spmd.random.normal(2, (n, 3), 0, 0.3, layout=("r", None))
    first = energy(x, v)
    v += dt / 2 * pull(x)
    for _ in spmd.range(steps):
        x += dt * v
        v += dt * pull(x)
    v -= dt / 2 * pull(x)
    return {"x": x, "v": v, "first": first, "last": energy(x, v)}


def check(n=61, steps=50, ranks=(1, 2, 3, 7, 16)):
    image = spmd.build(n_body, n=n)
    expected = n_body.eager(n=n, steps=steps)
    for count in ranks:
        out = image.run(ranks=count, steps=steps)
        np.testing.assert_allclose(out["x"], expected["x"], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(out["v"], expected["v"], rtol=1e-9, atol=1e-9)
        assert abs(out["last"] / out["first"] - 1) < 1e-3
    return float(out["last"] / out["first"] - 1)


if __name__ == "__main__":
    print(f"the orbits of NumPy's on up to 16 ranks; energy changed by {check():.1e} of itself")
