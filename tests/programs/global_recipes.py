"""Random programs on global arrays: a recipe is a list of small integers; any is a program.

`program_of` gives a program that follows recipes, one after the other; the same source runs eagerly
in NumPy and is traced. What a step cannot do with the arrays there are, it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import spmd
from tests.programs import global_flow, global_kernels, global_steps

EXTENTS = (0, 1, 2, 3, 4, 5, 7, 12, 18, 33)
DTYPES = ("float64", "int64", "float64", "int64", "int32", "bool")
COMPILED = global_steps.STEPS + global_flow.STEPS  # of images
STEPS = COMPILED + global_kernels.STEPS
AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Recipe:
    """A random program with its axes, each input's dtype, extents and layout, and steps of a kind
    and four choices."""

    axes: int
    arrays: tuple[tuple[str, tuple[int, ...], Any], ...]
    steps: tuple[tuple[int, ...], ...]


@st.composite
def recipes(draw: Any, steps: int = 8, axes: int = 0, kinds: int = len(STEPS)) -> Recipe:
    """Draw recipes of programs; `axes` of the mesh, 0 for any number; the first `kinds` of
    STEPS."""
    axes = axes or draw(st.integers(1, 3))
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        ndim = draw(st.integers(1, 3))
        shape = tuple(draw(st.sampled_from(EXTENTS)) for _ in range(ndim))
        arrays.append((draw(st.sampled_from(DTYPES)), shape, draw(_layouts(ndim, axes))))
    step = st.tuples(st.integers(0, kinds - 1), *[st.integers(0, 11)] * 4)
    return Recipe(axes, tuple(arrays), tuple(draw(st.lists(step, min_size=1, max_size=steps))))


@st.composite
def several(draw: Any, count: int, steps: int = 5) -> list[Recipe]:
    """Recipes for one mesh."""
    axes = draw(st.integers(1, 3))
    return [draw(recipes(steps, axes, len(COMPILED))) for _ in range(count)]


@st.composite
def _layouts(draw: Any, ndim: int, axes: int) -> Any:
    """An axis, several or none for each dim; None where the compiler is to choose."""
    order = draw(st.permutations(range(max(3, axes))))
    choice = draw(st.integers(0, 9))
    if choice == 0:
        return None
    if choice == 1 and axes > 1:
        taken = tuple(AXES[k] for k in order if k < axes)[: draw(st.integers(2, 3))]
        at = draw(st.integers(0, ndim - 1))
        return tuple(taken if d == at else None for d in range(ndim))
    return tuple(AXES[k] if k < axes else None for k in order[:ndim])


def sizes(ranks: int, axes: int, choice: int) -> dict[str, int]:
    """One of the meshes of so many ranks."""
    found = [
        (a, b, ranks // a // b)
        for a in range(1, ranks + 1) for b in range(1, ranks + 1)
        if ranks % (a * b) == 0 and (axes > 2 or ranks == a * b) and (axes > 1 or b == 1)
    ]
    return dict(zip(AXES[:axes], found[choice % len(found)]))


def program_of(*followed: Recipe, given: bool = False) -> Any:
    """The program; its outputs are all arrays that it made: r2_0 is the first one of recipe 2.
    given: its inputs have no defaults; they are those of `inputs_of`."""
    mesh = AXES[: followed[0].axes]

    @spmd.program(mesh=mesh)
    def recipe_program():
        out = {}
        for j, recipe in enumerate(followed):
            pool = []
            for k, (dtype, shape, layout) in enumerate(recipe.arrays):
                default = None if given else lambda *i, k=k: filling(i, k)
                pool.append(spmd.input(f"a{j}_{k}", shape, dtype, layout=layout, default=default))
            for step in recipe.steps:
                made = follow(pool, step, mesh)
                if made is not None:
                    pool.append(made)
            out.update({f"r{j}_{k}": x for k, x in enumerate(pool)})
        return out

    return recipe_program


def filling(i: Sequence[Any], k: int) -> Any:
    return (sum(i) * 7 + i[0] * i[0] + k) % 11 - 4


def inputs_of(*followed: Recipe) -> dict[str, np.ndarray]:
    return {f"a{j}_{k}": filling(np.indices(shape), k).astype(dtype)
            for j, recipe in enumerate(followed)
            for k, (dtype, shape, _) in enumerate(recipe.arrays)}


def follow(pool: Sequence[Any], step: Any, mesh: Any) -> Any:
    """Return a step's new array, or None where it only writes or does not apply."""
    kind, a, b, c, d = step
    x, y = (v.astype(np.int64) if v.dtype == np.bool_ else v
            for v in (pool[a % len(pool)], pool[b % len(pool)]))
    return STEPS[kind](pool, x, y, c, d, mesh)
