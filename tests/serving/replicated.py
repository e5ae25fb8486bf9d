"""Servers with replicas, and a class whose answers say which state they come from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from tests.conftest import PATIENCE, Launch, until
from tests.serving.serving_kit import Server, ending_with_us, serving

ROWS = """
import numpy as np
import spmd

@spmd.program(mesh=("r",), layout={"batch": "r"})
class Scaled:
    def __init__(self):
        self.rows = spmd.Dim("batch", at_most=8)
        self.w = np.full(2, 1.0)

    @spmd.entry
    def scale(self):
        x = spmd.input("x", (self.rows, 2), np.float64)
        z = x
        for _ in spmd.range(spmd.scalar("turns", 1)):
            z = np.sin(z)
        return {"y": x * self.w, "w": z * 0 + self.w}

    @spmd.entry
    def add(self):
        self.w = self.w + 1
        return self.w

    @spmd.entry
    def positive(self):
        x = spmd.input("x", (spmd.Dim("n", at_most=3),), np.float64)
        assert np.all(x >= 0), "x must not be negative"
        return np.sqrt(x)

    @spmd.entry
    def doubled(self):
        return 2 * spmd.input("x", (spmd.Dim("many", at_most=1 << 20),), np.float64)

    @spmd.entry
    def count(self):
        y = self.w
        for _ in spmd.range(spmd.scalar("frames", 3)):
            y = y + 1
            spmd.save("at", y)
        return y
"""
LOAD = "/v2/repository/models/scaled/load"


def folder_of(path: Path, built: Callable[..., Path], states: int = 5) -> Path:
    """A folder with scaled.img, states w2.safetensors, w3.safetensors, …, and a damaged one."""
    path.mkdir()
    (path / "scaled.img").write_bytes(built(ROWS).read_bytes())
    with spmd.load(path / "scaled.img").open() as scaled:
        for k in range(2, 2 + states):
            scaled.load({"w": np.full(2, float(k))})
            scaled.save(path / f"w{k}.safetensors")
    (path / "half.safetensors").write_bytes((path / "w2.safetensors").read_bytes()[:-5])
    return path


@contextmanager
def with_replicas(image: object, *words: object) -> Iterator[tuple[Server, str]]:
    """A server of an image which lets replicas join, and where they do."""
    with serving(image, "--replicas", "tcp://127.0.0.1:*", *words) as server:
        (line,) = (line for line in server.lines if line.startswith("replicas join at "))
        yield server, line.rpartition(" ")[2]


def replica(address: str, *words: object, ranks: int = 0) -> Launch:
    """A replica that joins there; ranks: under mpirun, with so many processes."""
    argv: list[Any] = [sys.executable, "-m", "spmd", "serve", "--join", address, *words]
    return Launch(ending_with_us(argv) if not ranks else ["mpirun", "-n", ranks, *argv])


def has(server: Server, count: int) -> None:
    """Wait until so many replicas have joined."""
    until(lambda: server.metric("spmd_replicas") == count, PATIENCE)
