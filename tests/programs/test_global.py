"""Programs on global arrays: layouts and the number of ranks never change what they compute.

Random recipes (hypothesis): the program run as plain NumPy, its Graph, its Program on several
meshes, and, for some, its image.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen.oracle.interpret import run
from codegen.passes.check import check
from codegen.passes.matching import check as check_matching
from codegen.passes.partition import partition
from codegen.passes.uniform import check_uniform

_spec = importlib.util.spec_from_file_location(
    "global_recipes", Path(__file__).parent / "global_recipes.py"
)
assert _spec and _spec.loader
recipes = importlib.util.module_from_spec(_spec)
import sys  # noqa: E402

sys.modules["global_recipes"] = recipes
_spec.loader.exec_module(recipes)


def same(found: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    for name, e in expected.items():
        e, f = np.asarray(e), np.asarray(found[name])
        assert f.dtype == e.dtype and f.shape == e.shape, (what, name, f.dtype, e.dtype)
        np.testing.assert_allclose(f, e, rtol=1e-9, atol=1e-9, err_msg=f"{what}: {name}")


@settings(max_examples=int(os.environ.get("RANDOM_PROGRAMS", "150")), deadline=None, suppress_health_check=list(HealthCheck))
@given(recipes.recipes(), st.integers(1, 12), st.integers(0, 5))
def test_recipes(recipe: Any, ranks: int, choice: int) -> None:
    program = recipes.program_of(recipe)
    with np.errstate(all="ignore"):
        expected = program.eager()
    graph = check(program.capture())
    mesh = recipes.sizes(ranks, recipe.axes, choice)
    same(run(graph, mesh), expected, "the Graph")
    lowered = check_matching(check_uniform(check(partition(graph))))
    same(run(lowered, mesh), expected, f"the Program over {mesh}")
