"""Builds grow with the program, nothing else: calls are counted, so that no clock is asked."""

from __future__ import annotations

import cProfile
import re
from pathlib import Path

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.emit import cutting
from spmd.source import find_program
from tests.figures_growth import KINDS

COUNTS = {"updates of slices": 4, "shifted reads": 4, "branches": 20, "nested loops": 20}


def build(folder: Path, kind: str, count: int) -> tuple[int, int]:
    """How many calls a build makes, and how many lines the longest function of its C has."""
    path = folder / f"{re.sub(' |-', '_', kind)}_{count}.py"
    path.write_text(KINDS[kind](count))
    program = find_program(str(path))
    profile = cProfile.Profile(subcalls=False, builtins=False)
    profile.enable()
    text = lower(program.graph({}, ())).source.text
    profile.disable()
    calls = sum(row.callcount for row in profile.getstats())
    return calls, max(f.count("\n") for f in re.split(r"\n(?=static )", text))


@pytest.mark.parametrize("kind", KINDS)
def test_work_per_statement_stays(tmp_path: Path, kind: str) -> None:
    count = COUNTS.get(kind, 40)
    build(tmp_path, kind, count // 4)  # what is remembered of formulas
    few, _ = build(tmp_path, kind, count)
    many, _ = build(tmp_path, kind, 4 * count)
    assert many < 5 * few


@spmd.program(mesh=("r",))
def long(n: int = 23):
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i % 7)
    steps = spmd.scalar("steps", 3)
    for t in spmd.range(steps):
        for k in range(3):
            x = np.roll(x, k + 1) + 0.5 * x[::-1]
            if steps > t + k:
                x[1:-1] += x[2:] - np.sum(x)
                x = np.roll(x, -2)
            else:
                x = x / 2
        spmd.print("{}", np.max(x))
    return x, np.sum(x)


def test_long_functions_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "LONGEST", 3)
    text = lower(long.graph({}, ())).source.text
    assert {"step_1", "load_1"} <= set(re.findall(r"static \w+ (\w+)\(", text))
    image = spmd.build(long)
    want = long.eager()
    for ranks in (1, 3, 4):
        for a, b in zip(image.run(ranks=ranks), want, strict=True):
            np.testing.assert_allclose(a, b)
