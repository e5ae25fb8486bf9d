"""A function in C, of median.c, takes specks out of a picture: every rank calls it on its own part.

    python examples/median.py
    mpirun -n 16 python -m spmd run examples/median.py -o clean=clean.npy
"""

import numpy as np

import spmd

median = spmd.c_kernel(
    "median.c", "void median(const float *u, float *out, int64_t rows, int64_t cols)")


def picture(i, j):
    """Rings, and a white speck here and there."""
    rings = np.sin(((i - 30) ** 2 + (j - 40) ** 2) / 200)
    return np.where((i * 31 + j * 17) % 23 == 0, 2.0, rings)


@spmd.program(mesh=("x", "y"))
def cleaned(rows: int = 60, columns: int = 80):
    times = spmd.scalar("times", 2)
    u = spmd.input("u", (rows, columns), np.float32, layout=("x", "y"), default=picture)
    for _ in spmd.range(times):
        u = median(u, out=spmd.like(u), halo={"u": (1, 1)}, boundary="edge")  # rows, cols: of out
    return {"clean": u}


def reference(u, times):
    for _ in range(times):
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(u, 1, mode="edge"), (3, 3))
        u = np.median(windows, axis=(2, 3)).astype(np.float32)
    return u


def check(ranks=(1, 3, 6, 16)):
    """Any number of ranks gives NumPy's picture, bit by bit; so does the function called once."""
    image, u = spmd.build(cleaned), np.fromfunction(picture, (60, 80)).astype(np.float32)
    for n in ranks:
        np.testing.assert_array_equal(image.run(ranks=n)["clean"], reference(u, 2))
    np.testing.assert_array_equal(cleaned.eager()["clean"], reference(u, 2))
    return u, image.run(ranks=4)["clean"]


if __name__ == "__main__":
    before, after = check()
    specks = [np.sum(u == 2) for u in (before, after)]
    print(f"{specks[0]} specks before, {specks[1]} after; the same on 1 to 16 ranks")
