"""Every collective says what NumPy says: at every level, in the image, on every transport."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spmd
from codegen.checks.check_graph import check
from codegen.layouts.partition import partition
from codegen.oracle import interpret
from tests.programs.collectives import CASES, difference, given, operand

MESHES = [(1, 1), (2, 1), (1, 3), (2, 3), (3, 2), (2, 4)]
LARGE = (13, 2)  # more rows of ranks than rows; the image alone
EACH = [(name, dtype) for name, (_, _, dtypes) in CASES.items() for dtype in dtypes]


@pytest.fixture(scope="module")
def case(once: Callable[..., Path]) -> Callable[[str, str], Path]:
    """Return case("reduced", "int16"), which builds the image of a case."""

    def build(name: str, dtype: str) -> Path:
        def make(path: Path) -> None:
            program, _, dtypes = CASES[name]
            spmd.build(program, **given(dtypes, dtype)).save(path)

        return once(f"{name}-{dtype}.img", make)

    return build


@pytest.mark.parametrize("name, dtype", EACH)
def test_every_level_agrees_with_numpy(case, name: str, dtype: str) -> None:
    program, wanted, dtypes = CASES[name]
    parameters, u = given(dtypes, dtype), operand(dtype)
    image, graph = spmd.load(case(name, dtype)), check(program.capture(**parameters))
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
def test_verify_evaluates_them(name: str, case, spmd_here) -> None:
    image = case(name, CASES[name][2][0])
    done = spmd_here("verify", image, "--ranks", "1-9", "--execute")
    assert "say the same" in done.expect(0).out


@pytest.mark.slow
def test_on_every_transport(case, mpirun) -> None:
    """All cases, with each of their first two types."""
    images = [case(name, dtype) for name in CASES for dtype in CASES[name][2][:2]]
    done = mpirun(4, "-m", "tests.programs.collectives_mpi", *images, timeout=60 + 20 * len(CASES))
    assert done.expect(0).out.splitlines() == [f"right {len(images) * 4 * 2}"], done.out


DTYPES = ("bool", "int64", "float16", "bfloat16", "complex128")


@spmd.program(mesh=("r",))
def long_and_short():
    """Element types of every kind and size, in slots and where they lie, by all collectives."""

    @spmd.shard_map(mesh="r", out_layouts=(("r",),) * (2 * len(DTYPES)))
    def local():
        i, n = spmd.axis_index("r"), spmd.axis_size("r")
        out = []
        for length in (5, 6000):
            for dtype in DTYPES:
                k = (spmd.arange(length) + i) % 3  # 2048 and 1 are too far apart for a float16
                x = np.where(k == 0, 2048, k % 2).astype(dtype)
                parts = (
                    spmd.psum(x, "r"), spmd.pscan(x, "r", "max"), spmd.preduce(x, "r", root=n - 1),
                    spmd.psum_scatter(x, "r", tiled=True), spmd.all_gather(x, "r", tiled=True),
                    spmd.pgather(x, "r", root=n - 1, tiled=True), spmd.pexscan(x, "r"),
                    spmd.pbroadcast(x, "r", root=n - 1), spmd.all_to_all(x, "r", 0, 0, tiled=True),
                )
                weight = 1
                total = 0.0
                for part in parts:
                    near = part.real if dtype.startswith("complex") else part
                    near = near.astype(np.float64)
                    total = total + weight * np.sum(near * (1 + spmd.arange(near.shape[0]) % 5))
                    weight += 1
                out.append(np.reshape(total, (1,)))
        return tuple(out)

    return dict(zip([f"{d} {n}" for n in (5, 6000) for d in DTYPES], local()))


def test_element_types_short_and_long() -> None:
    image = spmd.build(long_and_short)
    for ranks, options in ((3, {}), (4, {"threads": 2, "algorithm": "ring"}), (9, {"threads": 2})):
        wanted = long_and_short.eager(mesh={"r": ranks})
        assert difference(image.run(ranks=ranks, **options), wanted) == "", (ranks, options)
