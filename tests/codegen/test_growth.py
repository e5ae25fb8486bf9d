"""Builds grow with the program, nothing else: calls are counted, so that no clock is asked."""

from __future__ import annotations

import cProfile
import re
from pathlib import Path

import numpy as np
import pytest

import spmd
from benchmarks.growth import HEAD, KINDS
from codegen.compile import lower
from codegen.emit import cutting
from spmd.source import find_program

COUNTS = {"updates of slices": 3, "shifted reads": 3, "nested loops": 10}


def work(path: Path, source: str) -> int:
    """How many calls it takes to write the C of a program."""
    path.write_text(source)
    program = find_program(str(path))
    profile = cProfile.Profile(subcalls=False, builtins=False)
    profile.enable()
    lower(program.graph({}, ()))
    profile.disable()
    return sum(row.callcount for row in profile.getstats())


@pytest.mark.parametrize("kind", KINDS)
def test_work_per_statement_stays(tmp_path: Path, kind: str) -> None:
    def calls(count: int) -> int:
        return work(tmp_path / f"{kind.replace(' ', '_')}_{count}.py", KINDS[kind](count))

    count = COUNTS.get(kind, 20)
    calls(max(count // 4, 2))  # what is remembered of formulas
    few = calls(count)
    assert calls(4 * count) < 5 * few


DEEP = """    w = y * 2.0
{loops}{indent}x = x * 0.5 + {last}
{indent}y[1:] = y[1:] + x[:-1] + w[1:]
{indent}x = x + y
    return x, y
"""


def test_depth_of_loops_is_no_exponent(tmp_path: Path) -> None:
    def calls(depth: int) -> int:
        loops = "".join(f"{'    ' * (k + 1)}for i{k} in spmd.range(2):\n" for k in range(depth))
        body = DEEP.format(loops=loops, indent="    " * (depth + 1), last=f"i{depth - 1}")
        return work(tmp_path / f"deep_{depth}.py", HEAD + body)

    calls(2)
    assert calls(6) < 5 * calls(3)


@spmd.program(mesh=("r",))
def long(n: int = 23):
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i % 7)
    steps = m = spmd.scalar("steps", 3)
    for k in range(24):
        m = m // 2 + k
    for t in spmd.range(steps):
        for k in range(3):
            x = np.roll(x, k + 1) + 0.5 * x[::-1]
            if steps > t + k:
                x[1:-1] += x[2:] - np.sum(x)
                x = np.roll(x, -2)
            else:
                x = x / 2
        spmd.print("{}", np.max(x))
    return x, np.sum(x), x[m % n]


def test_long_functions_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "LONGEST", 3)
    text = lower(long.graph({}, ())).source.text
    assert {"step_1", "load_1"} <= set(re.findall(r"static \w+ (\w+)\(", text))
    image = spmd.build(long)
    want = long.eager()
    for ranks in (1, 3, 4):
        for a, b in zip(image.run(ranks=ranks), want, strict=True):
            np.testing.assert_allclose(a, b)
