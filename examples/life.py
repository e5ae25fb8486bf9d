"""Conway's Game of Life on a torus: np.roll on a 2-D mesh; one exchange a turn.

    python -m spmd build examples/life.py && \
    mpirun -n 6 python -m spmd run examples/life.img --set steps=1000 -o cells=end.npy
"""

import numpy as np

import spmd


@spmd.program(mesh=("x", "y"))
def life(n: int = 512):
    steps, seed = spmd.scalar("steps", 100), spmd.scalar("seed", 1)
    soup = spmd.random.uniform(seed, (n, n), layout=("x", "y"))
    cells = (soup < 0.3).astype(np.uint8)
    for _ in spmd.range(steps):
        rows = np.roll(cells, 1, axis=0) + cells + np.roll(cells, -1, axis=0)
        around = np.roll(rows, 1, axis=1) + rows + np.roll(rows, -1, axis=1)
        cells = ((around == 3) | (cells & (around == 4))).astype(np.uint8)  # around has the cell
    return {"cells": cells, "alive": np.sum(cells, dtype=np.int64)}


def check(n=37, ranks=(1, 2, 3, 4, 6, 12, 35)):
    image = spmd.build(life, n=n)
    for steps in (1, 30):
        expected = life.eager(n=n, steps=steps)
        for count in ranks:
            out = image.run(ranks=count, steps=steps)
            np.testing.assert_array_equal(out["cells"], expected["cells"])
            assert out["alive"] == expected["alive"]
    assert expected["alive"] > 0


if __name__ == "__main__":
    check()
    print("Life equals NumPy's, cell by cell, on up to 35 ranks")
