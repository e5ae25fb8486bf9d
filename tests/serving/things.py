"""A class to serve: entries over each kind of input and output, one that changes state, one that
sleeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import spmd

nap = spmd.c_kernel("../spmd/nap.c",
                    "void nap(const double *x, double seconds, double *out, int64_t n)")


class Pair(NamedTuple):
    low: Any
    high: Any


@spmd.program(mesh=("r",), layout={"batch": "r"})
class Things:
    def __init__(self) -> None:
        self.rows = spmd.Dim("batch", at_most=6)
        self.total = np.zeros(3)
        self.steps = 0

    @spmd.entry
    def add(self) -> Any:
        """Changes the entity's state by adding x."""
        x = spmd.input("x", (3,), np.float64)
        self.total = self.total + x
        self.steps += 1
        return {"total": self.total, "steps": self.steps}

    @spmd.entry
    def scaled(self) -> Any:
        """Takes a tree, a scalar, and an input that may be left out; returns a tree."""
        f32 = np.float32
        w = spmd.input("w", {"a": spmd.spec((self.rows, 2), f32), "b": [spmd.spec((2,), f32)]})
        on = spmd.input("on", (), np.bool_, default=True)
        more = spmd.input("more", (2,), f32, optional=True)
        by, negated = spmd.scalar("by", 2.0), spmd.scalar("negated", False)
        y = w["a"] * w["b"][0]
        low = np.where(on, np.min(w["b"][0]) * by, 0.0)
        low = np.where(negated, -low, low)
        return {"y": y, "pair": Pair(low, (np.max(w["b"][0]), more + 1))}

    @spmd.entry
    def kinds(self) -> Any:
        """Returns its inputs, one of each of some dtypes."""
        names = ("bool", "int8", "uint64", "float16", "float64", "complex64")
        found = {name: spmd.input(f"x_{name}", (3,), np.dtype(name)) for name in names}
        found["bfloat16"] = spmd.input("x_bfloat16", (3,), "bfloat16")
        return {name: np.where(True, x, x) for name, x in found.items()}

    @spmd.entry
    def least(self) -> Any:
        """Ends with a message where its input is negative."""
        x = spmd.input("x", (3,), np.float64)
        assert np.min(x) >= 0, "x must not be negative"
        return np.min(x)

    @spmd.entry
    def rest(self) -> Any:
        """Sleeps as long as it is told, and returns what it gets."""
        seconds = spmd.scalar("seconds", 0.05)
        u = spmd.input("u", (2,), np.float64, default=1.0)
        return nap(u, seconds, out=spmd.like(u))
