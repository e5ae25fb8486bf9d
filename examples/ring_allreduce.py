"""All-reduce as a ring: reduce-scatter, then all-gather, in fragments that travel round.

One image serves any number of ranks: every fragment, peer and address is arithmetic on the index.
    python -m spmd build examples/ring_allreduce.py --set count=1000 && \
    mpirun -n 16 python -m spmd run examples/ring_allreduce.img
"""

import numpy as np

import spmd


@spmd.program(mesh=("ring",))
def ring_allreduce(count: int = 1 << 20):
    n = spmd.axis_size("ring")
    part = spmd.input("part", (n, count), np.float32, layout=("ring", None),  # one row per rank
                      default=lambda r, c: r + c % 7)                        # of the global indices

    @spmd.shard_map(mesh="ring", out_layouts=("ring", None))
    def reduce(row):                                   # row: (1, count)
        i = spmd.axis_index("ring")
        b = spmd.blocks(row[0], n)                     # n balanced fragments of a local array
        for s in spmd.range(n - 1):                    # reduce-scatter
            b[(i - s - 1) % n] += spmd.ppermute(b[(i - s) % n], "ring", shift=1)
        for s in spmd.range(n - 1):                    # all-gather
            b[(i - s) % n] = spmd.ppermute(b[(i + 1 - s) % n], "ring", shift=1)
        return row

    return {"sum": reduce(part)}


def check(ranks=range(1, 34), counts=(100, 7, 1)):
    """Every rank's row equals NumPy's sum: for counts that n does not divide, and below n."""
    for count in counts:
        image = spmd.build(ring_allreduce, count=count)
        for n in ranks:
            part = np.add.outer(np.arange(n), np.arange(count) % 7).astype(np.float32)
            got = image.run(ranks=n)["sum"]
            np.testing.assert_array_equal(got, np.tile(part.sum(axis=0), (n, 1)))


if __name__ == "__main__":
    check()
    print("ring_allreduce equals NumPy's sum for 1 to 33 ranks")
