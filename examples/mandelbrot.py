"""The Mandelbrot set with a kernel: numba compiles it into the image, every rank does its own rows.

    python examples/mandelbrot.py                      # writes mandelbrot.pgm
    mpirun -n 16 python -m spmd run examples/mandelbrot.py -o picture=mandelbrot.npy
"""

import numpy as np

import spmd


@spmd.kernel(signature="(),(),()->()")  # numbers in, a number out: called for every point
def escape(x, y, limit, out):
    re, im, k = 0.0, 0.0, 0
    while k < limit and re * re + im * im <= 4.0:
        re, im = re * re - im * im + x, 2.0 * re * im + y
        k += 1
    out[0] = k


@spmd.program(mesh=("rows",))
def mandelbrot(width: int = 640, height: int = 480):
    limit = spmd.scalar("limit", 200)
    x = np.linspace(-2.2, 1.0, width)
    y = spmd.input("y", (height, 1), np.float64, layout=("rows", None),
                   default=lambda r, _: 1.2 - 2.4 * r / (height - 1))
    return {"picture": escape(x, y, limit, out=spmd.empty((height, width), np.int32))}


def reference(width, height, limit):
    x = np.linspace(-2.2, 1.0, width)
    y = 1.2 - 2.4 * np.arange(height)[:, None] / (height - 1)
    re, im, out = np.zeros((3, height, width))
    for _ in range(limit):
        inside = re * re + im * im <= 4.0
        out += inside
        square, product = re * re - im * im, 2 * re * im
        re, im = np.where(inside, square + x, re), np.where(inside, product + y, im)
    return out.astype(np.int32)


def write_pgm(path, picture):
    """Write a greyscale picture, in which points that never escape are black."""
    grey = np.where(picture == picture.max(), 0, 255 - picture * 12 % 256).astype(np.uint8)
    with open(path, "wb") as file:
        file.write(f"P5 {grey.shape[1]} {grey.shape[0]} 255\n".encode() + grey.tobytes())


def check(ranks=(1, 2, 3, 16, 100)):
    """Any number of ranks draws NumPy's picture; with more ranks than rows, some have none."""
    image = spmd.build(mandelbrot, width=60, height=45)
    for n in ranks:
        got = image.run(ranks=n, limit=50)["picture"]
        np.testing.assert_array_equal(got, reference(60, 45, 50))


if __name__ == "__main__":
    check()
    write_pgm("mandelbrot.pgm", spmd.build(mandelbrot).run(ranks=4)["picture"])
    print("the picture is the same on 1 to 100 ranks; see mandelbrot.pgm")
