"""Mesh axes bound at launch: balanced sizes, fixed axes, conditions, what a refusal suggests."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from codegen.errors import MeshError, UsageError
from spmd.launch import sizes
from spmd.launch.hosts import hosted
from spmd.launch.processes import Processes


def manifest(*axes: tuple[str, int | None], conditions: tuple[Any, ...] = ()) -> dict[str, Any]:
    return {
        "mesh": [{"name": name, "size": size} for name, size in axes],
        "scalars": [],
        "routes": [],
        "conditions": [
            {"holds": holds, "text": text, "place": "p.py:3"} for holds, text in conditions
        ],
    }


SQUARE = (["eq0", ["+", "n_x", ["*", -1, "n_y"]]], "axis_size('x') == axis_size('y')")


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_sizes_are_balanced_and_not_increasing(dims: int) -> None:
    for ranks in range(1, 130):
        found = sizes.balanced_sizes(ranks, [None] * dims)
        assert found and prod(found) == ranks and list(found) == sorted(found, reverse=True)
        spread = [max(f) - min(f) for f in sizes.factorings(ranks, dims)]
        assert max(found) - min(found) == min(spread)


def test_as_mpi_dims_create() -> None:
    assert sizes.balanced_sizes(16, [None, None]) == (4, 4)
    assert sizes.balanced_sizes(12, [None, None]) == (4, 3)
    assert sizes.balanced_sizes(12, [None, 2]) == (6, 2)
    assert sizes.balanced_sizes(24, [None, None, None]) == (4, 3, 2)
    assert sizes.balanced_sizes(24, [None, 2, None]) == (4, 2, 3)
    assert sizes.balanced_sizes(7, [None, 2]) is None
    assert sizes.balanced_sizes(10**6, [None, None, None]) == (100, 100, 100)


def test_what_is_given_wins() -> None:
    xy = manifest(("x", None), ("y", None))
    assert sizes.bind_mesh(xy, None, {}, {}) == (1, 1)
    assert sizes.bind_mesh(xy, None, {}, {}, processes=6) == (3, 2)
    assert sizes.bind_mesh(xy, None, {"x": 2, "y": 3}, {}) == (2, 3)
    assert sizes.bind_mesh(xy, 12, {"x": 2}, {}) == (2, 6)
    assert sizes.bind_mesh(manifest(("x", 3), ("y", None)), 6, {}, {}) == (3, 2)


def refused(
    what: dict[str, Any], ranks: int | None, given: dict[str, int], processes: int = 1
) -> str:
    with pytest.raises(MeshError) as caught:
        sizes.bind_mesh(what, ranks, given, {}, processes)
    assert caught.value.exit_code == 78
    return str(caught.value)


def test_a_refusal_names_axis_condition_and_what_would_work() -> None:
    square = manifest(("x", None), ("y", None), conditions=(SQUARE,))
    assert sizes.bind_mesh(square, 9, {}, {}) == (3, 3)
    text = refused(square, 6, {})
    assert "axis_size('x') == axis_size('y') (p.py:3)" in text and "x=3,y=2" in text
    assert "1, 4, 9, 16, 25, 36, 49, 64" in text
    assert "--mesh x=4,y=4" in refused(square, 16, {"x": 8})
    assert "multiple of 4" in refused(manifest(("x", 4), ("y", None)), 6, {})
    assert "x=4" in refused(manifest(("x", 4)), None, {"x": 5})
    xy = manifest(("x", None), ("y", None))
    text = refused(xy, None, {"x": 2, "y": 3}, 5)
    assert "x=2,y=3" in text and "--ranks 6" in text
    assert "--ranks 150" in refused(xy, 4, {"x": 15, "y": 10})
    assert "--ranks with one of 3, 6, 9" in refused(xy, None, {"x": 3})
    never = manifest(("x", None), conditions=((["ge0", ["+", -100, "n_x"]], "many"),))
    assert "no number of ranks up to 64" in refused(never, 3, {})
    shift = manifest(("x", None), conditions=((["ge0", ["+", -1, "k"]], "k >= 1"),))
    with pytest.raises(MeshError, match=r"x=2,k=0\n.*other values: --set k="):
        sizes.bind_mesh(shift, 2, {}, {"k": 0})
    most = manifest(("x", None), conditions=((["ge0", ["+", 5, ["*", -1, "n_x"]]], "few"),))
    assert "1 to 5" in refused(most, 6, {})
    assert "1 or more" in refused(manifest(("x", None)), None, {"x": 0})


def test_an_unknown_axis_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no mesh axis 'z'") as caught:
        sizes.bind_mesh(manifest(("x", None), ("y", None)), 4, {"z": 2}, {})
    assert "x, y" in str(caught.value)


def test_ranks_are_hosted_in_balanced_blocks() -> None:
    class Some(Processes):
        def __init__(self, number: int, count: int) -> None:
            super().__init__()
            self.number, self.count = number, count

    parts = [hosted(10, Some(k, 4)) for k in range(4)]
    assert parts == [(0, 3), (3, 3), (6, 2), (8, 2)]
    with pytest.raises(MeshError, match="4 processes were started for 3 ranks"):
        hosted(3, Some(0, 4))
