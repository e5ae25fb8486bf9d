"""Every function of the namespaces is differentiated, interpreted and in images, and at its edges;
the default run takes a few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings

import spmd
from codegen.oracle import interpret
from tests.codegen import test_derivatives_at_edges as edges
from tests.codegen.test_derivatives_of_namespaces import (
    CASES,
    HERE,
    PACKS,
    check_interpreted,
    given,
    moved,
    packed,
)

# mypy: ignore-errors

LONG = settings().max_examples > 25
IMAGES = [list(CASES)[k::len(CASES) // 10] for k in range(len(CASES) // 10)] if LONG else [
    ["np.sinc", "nn.logsumexp", "special.boxcox"]]
REST = [pack for pack in PACKS if pack not in HERE] if LONG else [["np.std", "nn.layer_norm"]]
EDGES = edges.PACKS if LONG else [["np.abs", "np.tanh", "np.hypot"]]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")


@pytest.mark.parametrize("names", REST, ids=lambda names: names[0])
def test_functions_are_differentiated_as_losses(names):
    check_interpreted(names)


@pytest.mark.parametrize("names", EDGES, ids=lambda names: names[0])
def test_derivatives_at_edges_are_their_limits(names):
    assert edges.wrong(names) == []
    edges.check_narrow(names)


@pytest.mark.parametrize("names", IMAGES, ids=lambda names: names[0])
def test_images_give_the_derivatives_that_interpreters_give(names):
    program, inputs = packed(names), given(names, moved(0))
    wanted, image = interpret.run(program.capture(), {"r": 1}, inputs), spmd.build(program)
    for ranks in (1, 3, 5):
        found = image.run(ranks=ranks, **inputs)
        for name, x in wanted.items():
            np.testing.assert_allclose(found[name], x, 1e-7, 1e-8, err_msg=f"{name}, {ranks}")
