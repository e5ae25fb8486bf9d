"""Every collective says what NumPy says: at every level, in the image, on every transport."""

from __future__ import annotations

from pathlib import Path

import pytest

import spmd
from codegen.oracle import interpret
from codegen.passes.check import check
from codegen.passes.partition import partition
from tests.programs.collectives import CASES, difference, given, operand

MESHES = [(1, 1), (2, 1), (1, 3), (2, 3), (3, 2), (2, 4)]
LARGE = (13, 2)  # more rows of ranks than rows; the image alone
EACH = [(name, dtype) for name, (_, _, dtypes) in CASES.items() for dtype in dtypes]


@pytest.mark.parametrize("name, dtype", EACH)
def test_every_level_agrees_with_numpy(name: str, dtype: str) -> None:
    program, wanted, dtypes = CASES[name]
    parameters, u = given(dtypes, dtype), operand(dtype)
    image, graph = spmd.build(program, **parameters), check(program.capture(**parameters))
    levels = {"Graph": graph, "Program": check(partition(graph))}
    for x, y in [*MESHES, LARGE]:
        mesh, found = {"x": x, "y": y}, {}
        found["image"] = image.run(ranks=x * y, mesh=mesh, u=u)
        if (x, y) != LARGE:
            found["eager"] = program.eager(mesh=mesh, u=u, **parameters)
            found |= {k: interpret.run(m, mesh, {"u": u}, {}) for k, m in levels.items()}
        for level, out in found.items():
            assert difference(out, wanted(u, x, y)) == "", f"{level} on {mesh}"


@pytest.mark.parametrize("name", CASES)
def test_verify_evaluates_them(name: str, tmp_path: Path, spmd_command) -> None:
    program, _, dtypes = CASES[name]
    spmd.build(program, **given(dtypes, dtypes[0])).save(tmp_path / "case.img")
    done = spmd_command("verify", tmp_path / "case.img", "--ranks", "1-9", "--execute")
    assert "say the same" in done.expect(0).out


def test_on_every_transport(mpirun) -> None:
    done = mpirun(4, "-m", "tests.programs.collectives_mpi", timeout=60 + 20 * len(CASES))
    lines = done.expect(0).out.splitlines()
    runs = sum(min(len(dtypes), 2) for _, _, dtypes in CASES.values()) * 4 * 2
    assert lines == [f"right {runs}"], done.out
