"""A class to serve whose state says what it answers, and which saves while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import spmd

TEXTS = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
class Texts:
    def __init__(self):
        self.w = np.full({length}, 1.0)
        self.calls = 0

    @spmd.entry
    def write(self):
        prompt = spmd.input("prompt", (spmd.Dim("n", at_most=8),), np.float64, default=0.0)
        count = spmd.scalar("count", 2)
        y = np.sum(self.w) + np.sum(prompt)
        for _ in spmd.range(count):
            y = y + 1
            spmd.save("token", y)
        self.calls = self.calls + 1
        return {{"at": y, "calls": self.calls}}

    @spmd.entry
    def fill(self):
        y = np.full(512, self.w[0])
        for _ in spmd.range(spmd.scalar("count", 2)):
            y = y + 1 / 3
            spmd.save("row", y)

    @spmd.entry
    def read(self):
        x = spmd.input("x", (2,), np.float64)
        return {{"y": {body}, "w": self.w, "calls": self.calls}}
"""
SAME = {"length": 3, "body": "x * self.w[0]"}
OTHER = {**SAME, "body": "-x * self.w[0]"}
LONGER = {**SAME, "length": 4}


def folder_of(path: Path, built: Callable[..., Path]) -> Path:
    """A folder with texts.img, other.img, which answers the negative, longer.img, whose state has
    another shape, w2.safetensors to w5.safetensors, and damaged files."""
    path.mkdir()
    for name, words in (("texts", SAME), ("other", OTHER), ("longer", LONGER)):
        data = built(TEXTS.format(**words)).read_bytes()
        (path / f"{name}.img").write_bytes(data)
    (path / "half.img").write_bytes(data[:len(data) // 2])
    (path / "changed.img").write_bytes(data[:-900] + bytes([data[-900] ^ 1]) + data[-899:])
    with spmd.load(path / "texts.img").open() as texts:
        for k in range(2, 6):
            texts.load(state(k))
            texts.save(path / f"w{k}.safetensors")
    (path / "half.safetensors").write_bytes((path / "w2.safetensors").read_bytes()[:-5])
    with spmd.load(path / "longer.img").open() as longer:
        longer.save(path / "longer.safetensors")
    return path


def state(k: int) -> dict[str, Any]:
    return {"w": np.full(3, float(k)), "calls": 0}
