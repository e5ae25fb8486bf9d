"""A class with entries for the tests of state files, commands and tables."""

import numpy as np

import spmd


@spmd.program(mesh=("r",), layout={"n": "r"})
class Walks:
    def __init__(self, n: int = 10):
        self.n = spmd.Dim("n", n)
        self.u = spmd.zeros((self.n, 3), np.float64)
        self.parts = {"in": np.arange(4, dtype=np.float32), "b": [spmd.ones((self.n,), np.int32)]}
        self.steps = 0

    @spmd.entry
    def walk(self):
        by = spmd.input("by", (self.n, 3), np.float64)
        factor = spmd.scalar("factor", 1.0)
        self.u = self.u + factor * by
        self.parts["b"][0] = self.parts["b"][0] + 1
        self.steps = self.steps + 1
        return {"sum": np.sum(self.u), "u": self.u}

    @spmd.entry
    def turned(self):
        shift = spmd.scalar("shift", 1)

        @spmd.shard_map(out_layouts=(None,))
        def from_another(x):
            return spmd.psum(spmd.ppermute(np.sum(x)[None], "r", shift=shift), "r")

        return from_another(self.u)[0]

    @spmd.entry
    def where(self):
        return self.u, self.steps

    @spmd.entry
    def reset(self):
        self.u = spmd.zeros((self.n, 3), np.float64)
