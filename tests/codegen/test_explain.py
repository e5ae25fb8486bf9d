"""What a user is told of layouts and communication: in the text of a Program, and in tables."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.compile import Levels, lower
from codegen.ir import walk
from codegen.mesh import local_extent, local_offset
from codegen.naming import Naming
from codegen.printer import module_text


@spmd.program(mesh=("x", "y"))
def stencil(n: int = 30):
    steps = spmd.scalar("steps", 3)
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"))
    for _ in spmd.range(steps):
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        u[1:-1, 1:-1] += 0.1 * (around - 4 * u[1:-1, 1:-1])
    return {"u": u, "peak": np.max(u)}


@pytest.fixture(scope="module")
def levels() -> Levels:
    return lower(stencil.capture())


# ---- short names in the text of a Program ------------------------------------------------------


def test_bounds_of_blocks_have_short_names(levels: Levels) -> None:
    text = module_text(levels.program)
    assert 'block x0:x1 of 30 over "x": x0 = (30 // n_x) * i_x + min(i_x, 30 % n_x)' in text
    assert "have=((x0, x1), (y0, y1)), want=((x0 - 1, x1 + 1), (y0 - 1, y1 + 1))" in text
    used = text.partition("parameter")[2]
    assert "//" not in used and "i_x" not in used


@pytest.mark.parametrize("mesh", [(1, 1), (2, 3), (7, 2), (40, 33)])
def test_short_names_mean_what_they_stand_for(levels: Levels, mesh: tuple[int, int]) -> None:
    exprs = {e for op in walk(levels.program.body) for v in op.results for e in v.type.shape}
    naming = Naming(levels.program.mesh, exprs)
    for at in [(0, 0), (mesh[0] - 1, mesh[1] - 1), (mesh[0] // 2, 0)]:
        values = dict(zip(("n_x", "n_y", "i_x", "i_y"), (*mesh, *at)))
        said = {"min": min, "max": max, **values}
        for (extent, axes), (low, high) in naming.names.items():
            begin = local_offset(naming.mesh, extent, axes)
            end = begin + local_extent(naming.mesh, extent, axes)
            said |= {low.name: begin.evaluate(values), high.name: end.evaluate(values)}
        for e in exprs:
            assert eval(naming(e), {}, dict(said)) == e.evaluate(values), e
    assert sum("x0" in naming(e) or "y0" in naming(e) for e in exprs) > 5


def test_a_name_of_the_users_is_not_taken() -> None:
    @spmd.program(mesh=("x",))
    def taken():
        x0 = spmd.scalar("x0", 1)
        u = spmd.input("u", (9,), np.float64, layout=("x",))
        return u * x0

    text = module_text(lower(taken.capture()).program)
    assert "block x0_2:x1_2 of 9" in text and "scalar x0" in text
