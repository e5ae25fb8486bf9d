"""Heat spreads over a plate whose rim is kept at 0: halo exchange by ppermute on a 2-D mesh.

Each rank keeps its shard in an array with one ghost cell on every side. A rank at the edge of the
mesh receives nothing there, and what receives nothing gets zeros: the rim.
    python -m spmd build examples/heat.py && \
    mpirun -n 6 python -m spmd run examples/heat.img --set steps=500 -o u=end.npy
"""

import numpy as np

import spmd


def forward(i, n):
    return i + 1 if i + 1 < n else None


def back(i, n):
    return i - 1 if i > 0 else None


@spmd.program(mesh=("x", "y"))
def heat(n: int = 256):
    steps = spmd.scalar("steps", 100)
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"),
                   default=lambda r, c: 100 * (abs(r - n // 3) + abs(c - n // 2) < n // 4))
    spmd.require(spmd.axis_size("x") <= n)
    spmd.require(spmd.axis_size("y") <= n)

    @spmd.shard_map(mesh=("x", "y"), out_layouts=(("x", "y"), ()))
    def spread(shard):
        rows, columns = shard.shape
        v = spmd.zeros((rows + 2, columns + 2), np.float32)        # with ghost cells
        v[1:-1, 1:-1] = shard
        for _ in spmd.range(steps):
            v[0, 1:-1] = spmd.ppermute(v[-2, 1:-1], "x", to=forward)
            v[-1, 1:-1] = spmd.ppermute(v[1, 1:-1], "x", to=back)
            v[1:-1, 0] = spmd.ppermute(v[1:-1, -2], "y", to=forward)
            v[1:-1, -1] = spmd.ppermute(v[1:-1, 1], "y", to=back)
            v[1:-1, 1:-1] += 0.1 * (v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:]
                                    - 4 * v[1:-1, 1:-1])
        peak = spmd.pmax(np.max(v[1:-1, 1:-1]), ("x", "y"))
        spmd.print("peak {:.3f} after {} steps", peak, steps)
        return v[1:-1, 1:-1], peak

    end, peak = spread(u)
    return {"u": end, "peak": peak}


def reference(u, steps):
    v = np.pad(u, 1)
    for _ in range(steps):
        v[1:-1, 1:-1] += 0.1 * (v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:]
                                - 4 * v[1:-1, 1:-1])
    return v[1:-1, 1:-1]


def check(n=50, steps=30, ranks=(1, 2, 3, 4, 6, 7, 12, 35)):
    """The same bits as NumPy's, for even and uneven shards."""
    image = spmd.build(heat, n=n)
    u = np.random.default_rng(0).random((n, n)).astype(np.float32)
    expected = reference(u, steps)
    for count in ranks:
        out = image.run(ranks=count, u=u, steps=steps)
        np.testing.assert_array_equal(out["u"], expected)
        assert out["peak"] == expected.max()


if __name__ == "__main__":
    check()
    print("heat equals NumPy's loop to the bit on up to 35 ranks")
