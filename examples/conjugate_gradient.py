"""Poisson's equation by conjugate gradients: the five-point operator is four slices of a 2-D mesh.

The edge of the plate is kept at 0. It runs until the residual is small: `while` on a sum of all.
    python -m spmd build examples/conjugate_gradient.py --set n=1000 && \
    mpirun -n 6 python -m spmd run examples/conjugate_gradient.img --set eps=1e-6 -o u=u.npy
"""

import numpy as np

import spmd


def laplace(u):
    """4 u - its four neighbours; there are zeros around."""
    out = 4 * u
    out[1:] -= u[:-1]
    out[:-1] -= u[1:]
    out[:, 1:] -= u[:, :-1]
    out[:, :-1] -= u[:, 1:]
    return out


@spmd.program(mesh=("x", "y"))
def poisson(n: int = 200):
    eps = spmd.scalar("eps", 1e-8)
    b = spmd.input("b", (n, n), np.float64, layout=("x", "y"),
                   default=lambda i, j: (abs(i - n // 3) + abs(j - n // 2) < n // 8) / n**2)
    u, r, p = np.zeros_like(b), b.copy(), b.copy()
    square, steps = np.sum(r * r), 0
    enough = eps**2 * square
    while square > enough:
        q = laplace(p)
        alpha = square / np.sum(p * q)
        u += alpha * p
        r -= alpha * q
        before, square = square, np.sum(r * r)
        p = r + square / before * p
        steps += 1
    return {"u": u, "steps": steps}


def check(n=45, ranks=(1, 2, 3, 4, 6, 12, 35)):
    """It solves the equation, in as many steps as NumPy and on any number of ranks."""
    i, j = np.indices((n, n))
    b = (abs(i - n // 3) + abs(j - n // 2) < n // 8) / n**2
    expected = poisson.eager(n=n)
    image = spmd.build(poisson, n=n)
    for count in ranks:
        out = image.run(ranks=count)
        assert abs(out["steps"] - expected["steps"]) <= 1
        np.testing.assert_allclose(out["u"], expected["u"], rtol=1e-6)
        assert np.linalg.norm(b - laplace(out["u"])) < 2e-8 * np.linalg.norm(b)
    return int(out["steps"])


if __name__ == "__main__":
    print(f"solved in {check()} steps, as by NumPy, on up to 35 ranks")
