"""Random programs are differentiated: gradients, changes along a direction and second derivatives
are differences of what NumPy computes, whatever the layouts and the number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st

import spmd
from codegen.checks.check_graph import check
from codegen.checks.matching import check as check_matching
from codegen.checks.uniformity import check_uniform
from codegen.graph.sink_allreduce import sink_allreduce
from codegen.graph.split_at_edges import split_at_edges
from codegen.ir.graph import Module
from codegen.layouts.partition import partition
from codegen.oracle.interpret import run
from tests.programs import derived_recipes as recipes
from tests.programs.global_recipes import sizes
from tests.programs.test_global import search

# mypy: ignore-errors

PARTS = 2
PACK = 5  # recipes in an image
EXAMPLES = settings().max_examples


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_recipes_are_differentiated(part: int) -> None:
    search(part, EXAMPLES, differentiated, recipes.recipes(), st.integers(1, 9),
           st.integers(0, 5), st.booleans())


def parted(graph: Module) -> Module:
    return check(sink_allreduce(check(partition(check(split_at_edges(graph))))))


def close(found: Any, wanted: Any, error: Any, what: str) -> None:
    allowed = 1e-6 + 3e-6 * np.abs(wanted) + 3 * error
    assert np.all(np.abs(found - wanted) <= allowed), (what, found, wanted, error)


def differentiated(recipe: Any, ranks: int, choice: int, second: bool) -> None:
    xs, vs = recipes.given_to(recipe)
    plain = recipes.loss_program(recipe)

    def loss(arrays: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(plain.eager(**recipes.named("a", arrays))["loss"])

    wanted, error = recipes.central(loss, xs, vs)
    assume(np.isfinite(wanted) and error < 1e-4 * (1 + abs(wanted)))
    second = second and len(recipe.steps) < 4
    graph = check(recipes.derived_program(recipe, second=second).capture())
    given = {**recipes.named("a", xs), **recipes.named("v", vs)}
    mesh = sizes(ranks, recipe.axes, choice)
    found = run(graph, mesh, given)
    np.testing.assert_allclose(found["loss"], loss(xs), 1e-9, err_msg="the loss")
    gradients = [found[f"g{k}"] for k in range(len(xs))]
    along = sum(np.sum(g * v) for g, v in zip(gradients, vs))
    close(along, wanted, error, "the gradient along a direction")
    np.testing.assert_allclose(found["change"], along, 1e-8, 1e-8, err_msg="jvp")
    if second:
        check_second(graph, mesh, given, found, xs, vs)
    lowered = check_matching(check_uniform(parted(graph)))
    again = run(lowered, mesh, given)
    for name, x in found.items():
        np.testing.assert_allclose(again[name], x, 1e-8, 1e-8, err_msg=f"{name} over {mesh}")


def check_second(graph: Any, mesh: Any, given: Any, found: Any, xs: Any, vs: Any) -> None:
    def gradient(arrays: Any) -> Any:
        made = run(graph, mesh, {**given, **recipes.named("a", arrays)})
        return np.concatenate([made[f"g{k}"].ravel() for k in range(len(xs))])

    wanted, error = recipes.central(gradient, xs, vs)
    assume(np.all(np.isfinite(wanted)) and np.all(error < 1e-4 * (1 + np.abs(wanted))))
    close(np.concatenate([found[f"h{k}"].ravel() for k in range(len(xs))]), wanted, error,
          "the Hessian times a direction")


@pytest.mark.slow
def test_recipes_as_images() -> None:
    several = st.lists(st.integers(1, 9), min_size=2, max_size=2, unique=True)
    # The first one that hypothesis draws is always the simplest.
    search(0, max(EXAMPLES // 60, 2), executed, recipes.several(PACK), several)


def executed(followed: Any, ranks: list[int]) -> None:
    program, given = recipes.derived_program(*followed), {}
    for j, recipe in enumerate(followed):
        xs, vs = recipes.given_to(recipe)
        given |= {**recipes.named(f"r{j}_a", xs), **recipes.named(f"r{j}_v", vs)}
    expected = run(program.capture(), sizes(1, followed[0].axes, 0), given)
    image = spmd.build(program)
    for n in ranks:
        found = image.run(ranks=n, **given)
        for name, x in expected.items():
            np.testing.assert_allclose(found[name], x, 1e-7, 1e-7, err_msg=f"{name}, {n} ranks")


def test_what_random_programs_found() -> None:
    """A number that a shard_map reads; a loop of which only the run knows how often it turns, of
    an array whose split dim has one element; a number with the name that such turns had."""

    @spmd.program(mesh=("x",))
    def found() -> Any:
        x = spmd.input("x", (2, 5, 1), np.float64, layout=("x", None, None))
        w = spmd.input("w", (), np.float64)

        def waited(x: Any) -> Any:
            while np.sum(x) > 1:
                x = x * 0.5
            return np.sum(x)

        halved = spmd.grad(waited)(x)
        turns = spmd.scalar("turns", 3)

        def ranks(x: Any, w: Any) -> Any:
            inside = spmd.shard_map(lambda u, w: spmd.psum(np.sum(u * u) * w, "x"),
                                    in_layouts=(("x", None, None), None), out_layouts=None)
            return inside(x, w * w)

        def turned(x: Any) -> Any:
            u = x.relayout((None, None, "x")) * 1
            for _ in spmd.range(turns):
                u = u * u
            return np.sum(u)

        return {"ranks": spmd.grad(ranks, 1)(x, w), "turned": spmd.grad(turned)(x),
                "halved": halved}

    x = np.linspace(0.8, 1.2, 10).reshape(2, 5, 1)
    given = {"x": x, "w": np.array(0.7)}
    graph = check(found.capture())
    for module in (graph, parted(graph)):
        made = run(module, {"x": 2}, given)
        np.testing.assert_allclose(made["ranks"], 1.4 * np.sum(x * x))
        np.testing.assert_allclose(made["turned"], 8 * x**7)
        np.testing.assert_allclose(made["halved"], np.full(x.shape, 0.5**4))


def test_elements_that_stand_elsewhere_afterwards() -> None:
    """An array that is made element by element of those of another one, which nobody else reads:
    what is written first must not be what is read next."""
    orders = [(0, 1, 2, 3), (1, 0, 2, 3), (3, 2, 1, 0), (1, 2, 3, 0), (0, 0, 1, 1), (2, 3, 3, 2)]
    ways = {
        "joined": lambda x, order: np.concatenate([x[k : k + 1] * 2 for k in order]) / 2,
        "stacked": lambda x, order: np.stack([x[k] + 0 for k in order]),
        "gradient": lambda x, order: spmd.grad(lambda u: sum(u[k] * x[j] for k, j in enumerate(
            order)))(x * 0),
        "swapped": lambda x, order: spmd.grad(lambda u: u[order[0]] * u[order[1]])(x),
    }
    given = {f"{way}{k}": np.arange(4.0) + k for way in ways for k in range(len(orders))}

    @spmd.program(mesh=("x",))
    def moved() -> Any:
        return {name: ways[name[:-1]](spmd.input(name, (4,), np.float64), orders[int(name[-1])])
                for name in given}

    image = spmd.build(moved)
    for ranks in (1, 2):
        for name, found in image.run(ranks=ranks, **given).items():
            x, order = given[name], orders[int(name[-1])]
            wanted = x[list(order)]
            if name.startswith("swapped"):
                j, k = order[:2]
                wanted = x[k] * np.eye(4)[j] + x[j] * np.eye(4)[k]
            np.testing.assert_array_equal(found, wanted, err_msg=name)
