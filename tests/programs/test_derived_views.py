"""Functions whose results are views, differentiated in images; `make random` takes all of them."""

from __future__ import annotations

import pytest
from hypothesis import settings

import spmd
from tests.codegen.test_derivatives_of_views import FIRST, VIEWS, X, check, packed

# mypy: ignore-errors

PACKS = [list(VIEWS)[k::9] for k in range(9)]  # that many functions share an image


FEW = [["T", "element", "logsumexp"]]


@pytest.mark.parametrize("names", PACKS if settings().max_examples > 25 else FEW, ids=" ".join)
def test_results_that_are_views_are_differentiated_in_images(names):
    image = spmd.build(packed(names))
    for ranks, first in FIRST.items():
        check(image.run(ranks=ranks, x=X, one=X[0]), names, ranks, first)
