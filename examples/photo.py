"""Edges of a photograph: a Gaussian blur, then Sobel's operator, both written with slices.

The photograph is split over a 2-D mesh; who needs pixels of neighbours is found by the compiler.
    python -m spmd build examples/photo.py && \
    mpirun -n 6 python -m spmd run examples/photo.img -o edges=edges.npy
    python examples/photo.py edges.png        # checks itself, and writes the picture
"""

import sys

import numpy as np
from sklearn.datasets import load_sample_image

import spmd

CHINA = load_sample_image("china.jpg")  # 427 rows of 640 pixels: red, green, blue


def blur(u):
    """Binomial weights along both dims; 2 pixels less on each side."""
    u = (u[:-4] + u[4:] + 4 * (u[1:-3] + u[3:-1]) + 6 * u[2:-2]) / 16
    return (u[:, :-4] + u[:, 4:] + 4 * (u[:, 1:-3] + u[:, 3:-1]) + 6 * u[:, 2:-2]) / 16


def slope(u):
    """The length of Sobel's gradient; 1 pixel less on each side."""
    down, across = u[2:] - u[:-2], u[:, 2:] - u[:, :-2]
    down = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    across = across[:-2] + 2 * across[1:-1] + across[2:]
    return np.sqrt(down * down + across * across) / 8


@spmd.program(mesh=("x", "y"))
def photo(rows: int = CHINA.shape[0], columns: int = CHINA.shape[1]):
    shown = spmd.input("photo", (rows, columns, 3), np.uint8, layout=("x", "y", None),
                       default=CHINA[:rows, :columns])
    grey = shown @ np.array([0.299, 0.587, 0.114], np.float32)
    return {"edges": np.minimum(4 * slope(blur(grey)), 255).astype(np.uint8)}


def check(ranks=(1, 2, 6, 12, 35)):
    """Within 1 of NumPy's: its product adds the colours in another order."""
    image = spmd.build(photo)
    expected = photo.eager()["edges"].astype(int)
    for count in ranks:
        edges = image.run(ranks=count)["edges"]
        assert edges.shape == (421, 634) and abs(edges - expected).max() <= 1
    return edges


if __name__ == "__main__":
    edges = check()
    print("the same edges as NumPy's on up to 35 ranks")
    if len(sys.argv) > 1:
        from PIL import Image

        Image.fromarray(255 - edges).save(sys.argv[1])
