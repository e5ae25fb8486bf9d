"""Classes to serve: entries whose rows are independent, and entries whose rows are not."""

from __future__ import annotations

from typing import Any

import numpy as np

import spmd
from spmd import nn


@spmd.program(mesh=("r",), layout={"batch": "r"})
class Independent:
    def __init__(self) -> None:
        self.rows = spmd.Dim("batch", at_most=6)
        self.w = np.linspace(-1, 1, 12).reshape(4, 3)
        self.table = np.linspace(0, 1, 15).reshape(5, 3)

    @spmd.entry
    def network(self) -> Any:
        x = spmd.input("x", (self.rows, 4), np.float64)
        y = nn.softmax(np.tanh(x @ self.w))
        return {"y": y, "label": np.argmax(y, 1)}

    @spmd.entry
    def sorted_rows(self) -> Any:
        x = spmd.input("x", (self.rows, 4), np.float64)
        return {"y": np.take_along_axis(x, np.argsort(x, 1), 1), "sum": np.cumsum(x, 1)}

    @spmd.entry
    def loop(self) -> Any:
        x = spmd.input("x", (self.rows, 4), np.float64)
        for k in range(5):
            x = np.where(x > 0, np.sin(x) + k, x * x)
        return {"x": x}

    @spmd.entry
    def looked_up(self) -> Any:
        ids = spmd.input("ids", (self.rows,), np.int64)
        return {"y": self.table[ids] @ self.w.T}


@spmd.program(mesh=("r",), layout={"batch": "r"})
class Joined:
    """Entries that join requests in several ways: rows in dim 1, a scalar, no rows, errors."""

    def __init__(self) -> None:
        self.rows = spmd.Dim("batch", at_most=64)
        self.total = np.zeros(2)

    @spmd.entry
    def scaled(self) -> Any:
        x = spmd.input("x", (2, self.rows), np.float64)
        shift = spmd.input("shift", (2,), np.float64, default=0.0)
        by = spmd.scalar("by", 2.0)
        return {"y": x.T * by + shift, "shift": shift, "least": np.min(x, 0)}

    @spmd.entry
    def positive(self) -> Any:
        """Ends with a message where a number is negative."""
        x = spmd.input("x", (self.rows,), np.float64)
        assert np.all(x >= 0), "x must not be negative"
        return np.sqrt(x)

    @spmd.entry
    def centred(self) -> Any:
        x = spmd.input("x", (self.rows,), np.float64)
        return x - np.mean(x)

    @spmd.entry
    def add(self) -> Any:
        x = spmd.input("x", (2,), np.float64)
        self.total = self.total + x
        return self.total
