"""One infinity, one NaN, one masked class or padded token of a network stays where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from spmd import nn
from tests.spmd.nn_cases import CASES, uncalled

# mypy: ignore-errors

pytestmark = pytest.mark.one_mpi

FINITE, POISON = (0.9, -1.1, 30.0, -30.0), (np.nan, np.inf, -np.inf)
WIDE = 600  # numbers of a case
MOST = 20  # elements of each case that are spoiled, one after the other
RNG = np.random.default_rng(3)
POISONED = {name: case for name, case in CASES.items() if case.data}


def results(name: str, data: Any) -> list[Any]:
    """The results of a case, their number, and gradients of its data, of a flat vector of all."""
    case, parts, begin = CASES[name], [], 0
    for shape in case.shapes:
        parts.append(data[begin : begin + int(np.prod(shape))].reshape(shape))
        begin += int(np.prod(shape))

    def loss(parts: Any) -> Any:
        made = spmd.tree.leaves(case.function(*parts))
        flat = np.concatenate([np.ravel(y) for y in made])
        return np.sum(flat * data[begin : begin + flat.size]), flat

    slopes, flat = spmd.grad(loss, has_aux=True)(parts)
    return [flat, *(np.ravel(s) for s in slopes[: case.data])]


@spmd.program
def everything(names: tuple = tuple(POISONED)):
    x = spmd.input("x", (len(names), WIDE), np.float64)
    made = [results(name, x[k]) for k, name in enumerate(names)]
    sizes = [sum(r.size for r in row) for row in made]
    return np.concatenate([r for row in made for r in row]), np.array(sizes), np.array(
        [row[0].size for row in made])


def test_every_function_of_networks_has_a_case():
    assert not uncalled()


def test_what_no_finite_change_reaches_neither_infinity_nor_nan_does():
    """An element of the data, or of the cotangents, is changed: whatever stays the same for each
    of four finite values stays for an infinity and for NaN."""
    rows = np.zeros((len(POISONED), WIDE))
    rows[:] = RNG.uniform(0.2, 2, rows.shape) * RNG.choice([-1, 1], rows.shape)
    with spmd.build(everything).open(ranks=1) as job:
        whole, sizes, counts = job(x=rows)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        places = []
        for case, results in zip(POISONED.values(), counts, strict=True):
            extents = [int(np.prod(shape)) for shape in case.shapes]
            mine = [*range(sum(extents[: case.data])), *range(sum(extents), sum(extents) + results)]
            places.append(RNG.permutation(mine)[:MOST])
        spoiled = []
        for r in range(MOST):
            made = {}
            for value in (*FINITE, *POISON):
                x = rows.copy()
                for k, mine in enumerate(places):
                    x[k, mine[r % len(mine)]] = value
                made[value] = job(x=x)[0]
            still = np.all([made[value] == whole for value in FINITE], 0)
            assert still.any() and not still.all()
            for value in POISON:
                wrong = still & ~(made[value] == whole)
                spoiled += [f"{list(POISONED)[k]}: {value} at {places[k][r % len(places[k])]}"
                            for k in np.unique(owner[wrong])]
    assert not spoiled, "\n".join(spoiled)


def softmaxes(x: Any) -> dict[str, Any]:
    """Return losses of three rows of logits, none of which asks for the last class."""
    chances = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.25, 0.5, 0.25, 0.0]])
    asked = chances > 0
    return {
        "softmax": nn.softmax(x), "log_softmax": np.where(asked, nn.log_softmax(x), 0),
        "logsumexp": nn.logsumexp(x), "loss": nn.softmax_cross_entropy(x, chances),
        "labels": nn.softmax_cross_entropy(x, np.array([1, 1, 2])),
        "binary": nn.sigmoid_binary_cross_entropy(x, chances * asked),
        "divergence": nn.kl_divergence(np.where(asked, nn.log_softmax(x), x), chances),
    }


def test_a_class_at_minus_infinity_is_as_one_that_is_most_unlikely():
    @spmd.program
    def costs(least: float = -1e30):
        x = np.where(np.arange(4) == 3, least, spmd.input("x", (3, 4), np.float64))

        def loss(x, name):
            made = softmaxes(x)[name]
            return np.sum(made * np.cos(np.arange(made.size).reshape(made.shape))), made

        return {name: spmd.grad(lambda x: loss(x, name), has_aux=True)(x)
                for name in softmaxes(np.ones((3, 4)))}

    x = RNG.normal(size=(3, 4))
    wanted = spmd.build(costs).run(x=x)
    for found in (spmd.build(costs, least=-np.inf).run(x=x), costs.eager(least=-np.inf, x=x)):
        for name, (slope, value) in wanted.items():
            assert np.isfinite(found[name][0]).all(), name
            np.testing.assert_allclose(found[name][0], slope, 1e-12, 1e-14, err_msg=name)
            np.testing.assert_allclose(found[name][1], value, 1e-12, 1e-14, err_msg=name)


def test_a_class_without_a_chance_costs_nothing():
    found = nn.softmax_cross_entropy(np.array([0.0, 0.0, -np.inf]), np.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(found, np.log(2))
