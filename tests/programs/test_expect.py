"""What a program expects: where it does not hold, oracles and image end alike, and say where."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.errors import EXIT_DATA, CheckError
from codegen.oracle.interpret import run
from codegen.trace.runtime_checks import AT, expect


def positive(x):
    expect(x.context, (x > 0).read(), "x is ", x.read(), " at ", AT, "\n  expected: more than 0")


@spmd.program(mesh=("x", "y"))
def everywhere():
    u = spmd.input("u", (7, 5), np.float32, layout=("x", "y"))
    for _ in spmd.range(3):
        u = u - 1
        positive(u)

    @spmd.shard_map(out_layouts=("x", "y"))
    def below(part):
        total = np.sum(part)
        expect(total.context, (total < 400).read(), "the sum is ", total.read())
        return part

    return below(u) * 2


@pytest.fixture(scope="module")
def image():
    return spmd.build(everywhere)


def test_the_run_ends_with_line_place_and_rank(image):
    """All of it holds, or an element of a global array, or a number of one rank does not."""
    graph = everywhere.capture()
    levels = graph, lower(graph).program
    for u, sizes, first, rank in (
        (np.full((7, 5), 10.0), (2, 2), "", ""),
        (np.where(np.arange(35).reshape(7, 5) == 23, 2.5, 10), (1, 1), "x is -0.5 at (4, 3)", "0"),
        (np.where(np.arange(35).reshape(7, 5) == 23, 2.5, 10), (2, 2), "x is -0.5 at (4, 3)", "3"),
        (np.full((7, 5), 43.0), (2, 2), "the sum is 480.0", "0"),
    ):
        given, mesh = {"u": u.astype(np.float32)}, dict(zip("xy", sizes))
        if not first:
            assert np.array_equal(image.run(mesh=mesh, **given), 2 * (u - 3))
            continue
        said = []
        for at, module in enumerate((*levels, None)):
            with pytest.raises(CheckError) as error:
                run(module, mesh, given) if module else image.run(mesh=mesh, **given)
            assert error.value.exit_code == EXIT_DATA
            place, message, *more = str(error.value).replace("\n", ": ", 1).split(": ", 2)
            assert message == first and "test_expect.py:" in place
            said.append(more[0].split("  where: ")[0].strip())
            if at or first[0] == "t":  # the Graph's interpreter has no ranks in the global view
                assert f"where:    rank {rank}" in more[0]
        assert len(set(said)) == 1
