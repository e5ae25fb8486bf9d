"""Rank 0 computes for long before it takes what the others have sent to it."""

import numpy as np

import spmd


@spmd.program(mesh=("r",))
def late_root(steps: int = 1_000):
    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def local():
        i = spmd.axis_index("r")
        x = np.ones(4) + i
        if i == 0:
            z = np.ones(100_000)
            for _ in spmd.range(steps):
                z = z * 1.0000001
            x = x + z[:4]
        return spmd.preduce(x, "r", root=0)

    return {"y": local()}
