"""Random programs that are differentiated: a recipe is a list of small integers.

`Case` runs one: its loss as plain NumPy, and what derivatives say of it in a program. Differences
are trusted where those of two steps agree: a kink or a jump between the two points is seen by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import spmd
from tests.programs import derived_steps
from tests.programs.global_recipes import AXES, Recipe, _layouts

# mypy: ignore-errors

EXTENTS = (1, 2, 3, 4, 5, 7)
STEPS = derived_steps.STEPS


@st.composite
def recipes(draw: Any, steps: int = 5, axes: int = 0, fewest: int = 1) -> Recipe:
    """Draw recipes of programs to differentiate; `axes` of the mesh, 0 for any number."""
    axes = axes or draw(st.integers(1, 3))
    arrays = []
    for _ in range(draw(st.integers(1, 2))):
        ndim = draw(st.integers(1, 3))
        shape = tuple(draw(st.sampled_from(EXTENTS)) for _ in range(ndim))
        arrays.append(("float64", shape, draw(_layouts(ndim, axes))))
    step = st.tuples(st.integers(0, len(STEPS) - 1), *[st.integers(0, 11)] * 4)
    return Recipe(axes, tuple(arrays), tuple(draw(st.lists(step, min_size=fewest, max_size=steps))))


@st.composite
def several(draw: Any, count: int) -> list[Recipe]:
    """Recipes for one mesh."""
    axes = draw(st.integers(1, 3))
    return [draw(recipes(4, axes, 3)) for _ in range(count)]


def loss_of(recipe: Recipe, arrays: Sequence[Any]) -> Any:
    """A number that depends on every element of every array that the steps make."""
    pool = list(arrays)
    for kind, a, b, c, d in recipe.steps:
        x, y = pool[a % len(pool)], pool[-1 - b % len(pool)]
        if 0 in x.shape or 0 in y.shape:
            continue
        made = STEPS[kind](pool, x, y, c, d, AXES[: recipe.axes])
        if made is not None and made.ndim < 4 and made.size < 200:
            pool.append(made)
    total = np.sum(pool[-1]) * 0.1
    for k, x in enumerate(pool):
        if 0 not in x.shape:
            total = total + np.sum(derived_steps.apart(x) * np.sin(x + 0.3 * k))
    return total


def given_to(recipe: Recipe) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The arrays, and a direction."""
    draw = np.random.default_rng(len(recipe.steps))
    made = [(draw.uniform(-1.2, 1.2, shape), draw.normal(size=shape))
            for _, shape, _ in recipe.arrays]
    return [x for x, _ in made], [v for _, v in made]


def loss_program(recipe: Recipe) -> Any:
    @spmd.program(mesh=AXES[: recipe.axes])
    def plain():
        return {"loss": loss_of(recipe, _inputs(recipe))}

    return plain


def _inputs(recipe: Recipe, name: str = "a") -> list[Any]:
    return [spmd.input(f"{name}{k}", shape, np.float64, layout=layout)
            for k, (_, shape, layout) in enumerate(recipe.arrays)]


def derived_program(*followed: Recipe, second: bool = False) -> Any:
    """The loss, its gradients, its change in a direction; second: and that of its gradients. The
    names of a recipe's inputs and outputs begin with its number, if there are several."""

    @spmd.program(mesh=AXES[: followed[0].axes])
    def derived():
        found = {}
        for j, recipe in enumerate(followed):
            before = f"r{j}_" if len(followed) > 1 else ""
            xs, vs = _inputs(recipe, f"{before}a"), _inputs(recipe, f"{before}v")
            loss = lambda *xs, recipe=recipe: loss_of(recipe, xs)
            numbers = tuple(range(len(xs)))
            value, gradients = spmd.value_and_grad(loss, numbers)(*xs)
            found |= {f"{before}loss": value, f"{before}change": spmd.jvp(loss, xs, vs)[1]}
            found |= {f"{before}g{k}": g for k, g in enumerate(gradients)}
            if second:
                changes = spmd.jvp(spmd.grad(loss, numbers), xs, vs)[1]
                found |= {f"{before}h{k}": h for k, h in enumerate(changes)}
        return found

    return derived


def named(name: str, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{name}{k}": x for k, x in enumerate(arrays)}


def central(f: Any, xs: Sequence[np.ndarray], vs: Sequence[np.ndarray]) -> Any:
    """The change of f along vs, and how far two steps' differences are from each other."""
    found = []
    for h in (3e-5, 1e-5):
        up, down = (f([x + s * h * v for x, v in zip(xs, vs)]) for s in (1, -1))
        found.append((up - down) / (2 * h))
    return found[1], np.abs(found[0] - found[1])
