"""Results that their layouts say are equal on all ranks: surely varying ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.replicas import check_replicas
from codegen.errors import MatchingError


def checked(body: Callable[..., Any], out: Any, axes: Any = "r", **options: Any) -> Any:
    """body(split, whole, sizes…) as a shard_map whose results have these layouts."""

    @spmd.program(mesh=("r", "c"))
    def case():
        split = spmd.input("split", (12,), np.float64, layout=(axes,))
        whole = spmd.input("whole", (12,), np.float64, layout=(None,))
        return spmd.shard_map(body, out_layouts=out, **options)(split, whole)

    return check_replicas(case.capture())


def ring(split, whole):
    total = passing = np.sum(split)
    for _ in spmd.range(spmd.axis_size("r") - 1):
        passing = spmd.ppermute(passing, "r", shift=1)
        total = total + passing
    return total


def counted(split, whole):
    n = np.sum(whole)
    for _ in spmd.range(3):
        n = n + spmd.axis_index("r")
    return n


def chosen(split, whole):
    n = np.sum(whole)
    if spmd.axis_index("r") == 0:
        n = n + 1
    return n


def as_often_as_own_data_says(split, whole):
    n = np.sum(whole)
    while n > split[0]:
        n = n - 1
    return n


def both(split, whole):
    return whole + 1, np.max(split, keepdims=True)


VARYING = [
    (lambda split, whole: whole * spmd.axis_index("r"), (None,), "r", "index"),
    (lambda split, whole: np.sum(split), (), "r", '"split", which is split over "r"'),
    (lambda split, whole: whole[spmd.axis_index("r") % 3], (), "r", "index"),
    (lambda split, whole: spmd.psum(np.sum(split), "r"), (), ("r", "c"), 'split over "c"'),
    (lambda split, whole: spmd.pscan(np.sum(split), "r"), (), "r", '"split"'),
    (lambda split, whole: np.sum(whole) * split.shape[0], (), "r", "index"),
    (counted, (), "r", "index"),
    (chosen, (), "r", "index"),
    (as_often_as_own_data_says, (), "r", '"split"'),
    (both, ((None,), (None,)), "r", '"split"'),
]
EQUAL = [
    (lambda split, whole: spmd.psum(np.sum(split), "r"), (), "r"),
    (lambda split, whole: spmd.pbroadcast(whole * spmd.axis_index("r"), "r"), (None,), "r"),
    (lambda split, whole: np.max(spmd.all_gather(np.max(split), "r")), (), "r"),
    (lambda split, whole: spmd.psum(np.sum(split), ("r", "c")), (), ("r", "c")),
    (both, ((None,), ("r",)), "r"),
    (ring, (), "r"),  # what others sent goes in: nobody knows
]


@pytest.mark.parametrize(("body", "out", "axes", "found"), VARYING)
def test_what_each_rank_makes_of_its_own_is_refused(body, out, axes, found):
    with pytest.raises(MatchingError) as error:
        checked(body, out, axes)
    e = error.value
    assert e.place is not None and e.place.file == __file__
    assert "differs between the ranks" in e.message and found in e.found
    assert "spmd.psum(value" in e.remedy and "spmd.pbroadcast(value" in e.remedy
    checked(body, out, axes, check_vma=False)


@pytest.mark.parametrize(("body", "out", "axes"), EQUAL)
def test_what_is_equal_or_may_be_is_not_refused(body, out, axes):
    checked(body, out, axes)
