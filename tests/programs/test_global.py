"""Programs on global arrays: layouts and the number of ranks never change what they compute.

Random recipes (hypothesis): the program run as plain NumPy, its Graph, its Program on several
meshes, and, for some, its image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import spmd
from codegen.oracle.interpret import run
from codegen.passes.check import check
from codegen.passes.matching import check as check_matching
from codegen.passes.partition import partition
from codegen.passes.uniform import check_uniform
from tests.programs import global_recipes as recipes

# The profile that tests/conftest.py loads says how many: few, and always the same, or many.
EXAMPLES = settings().max_examples


def same(found: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    for name, e in expected.items():
        e, f = np.asarray(e), np.asarray(found[name])
        assert f.dtype == e.dtype and f.shape == e.shape, (what, name, f.dtype, e.dtype)
        np.testing.assert_allclose(f, e, rtol=1e-9, atol=1e-9, err_msg=f"{what}: {name}")


def expected_of(program: Any) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        out: dict[str, Any] = program.eager()
    return out


@settings(max_examples=EXAMPLES * 6, print_blob=False)
@given(recipes.recipes(), st.integers(1, 12), st.integers(0, 5))
def test_recipes(recipe: Any, ranks: int, choice: int) -> None:
    program = recipes.program_of(recipe)
    expected = expected_of(program)
    graph = check(program.capture())
    mesh = recipes.sizes(ranks, recipe.axes, choice)
    same(run(graph, mesh), expected, "the Graph")
    lowered = check_matching(check_uniform(check(partition(graph))))
    same(run(lowered, mesh), expected, f"the Program over {mesh}")


@settings(max_examples=max(3, EXAMPLES // 4), print_blob=False)
@given(recipes.recipes(steps=5), st.lists(st.integers(1, 12), min_size=3, max_size=3))
def test_recipes_as_images(recipe: Any, ranks: list[int]) -> None:
    program = recipes.program_of(recipe)
    expected = expected_of(program)
    image = spmd.build(program)
    for n in ranks:
        same(image.run(ranks=n), expected, f"the image on {n} ranks")
