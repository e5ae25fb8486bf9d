"""Indices that are known before data are: in bounds on all ranks, or refused at build or launch;
and rows that pick among their own elements."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import MeshError, ShapeError
from codegen.ir.graph import walk
from codegen.layouts.partition import partition
from codegen.ops import Exchange
from codegen.oracle import interpret

TABLE = np.arange(4.0)


def local(f: Callable[..., Any], mesh: Any = ("r",)) -> Any:
    """f on the shards of 20 elements."""

    def whole():
        x = spmd.input("x", (20,), layout=("r",), default=lambda i: i * 1.0)
        return spmd.shard_map(f, out_layouts=("r",))(x)

    return spmd.program(whole, mesh=mesh)


def stored(v):
    v[5] = 3
    return v


def added(v):
    np.add.at(v, [1, 5], 1)
    return v


def looped(v):
    for _ in spmd.range(spmd.scalar("steps", 0)):
        v = v + v[5]
    return v


def branched(v):
    return v + v[5] if spmd.index() == 0 else v


# what holds at launch, by how many ranks: the smallest shard of 20 has 20 // n elements
CONDITIONS: list[tuple[Callable[..., Any], list[str]]] = [
    (lambda v: v + v[5], ["20 // n_r >= 6"]),
    (lambda v: v + v[0], ["20 // n_r > 0"]),
    (lambda v: v + v[-6], ["20 // n_r >= 6"]),
    (lambda v: v + v[[1, 5]].sum(), ["20 // n_r >= 6"]),
    (lambda v: v + v[np.array([1, -5])].sum(), ["20 // n_r >= 2", "20 // n_r >= 5"]),
    (stored, ["20 // n_r >= 6"]),
    (added, ["20 // n_r >= 6"]),
    (lambda v: v.at[5].add(1), ["20 // n_r >= 6"]),
    (lambda v: v + np.take(v, 5), ["20 // n_r >= 6"]),
    (lambda v: v + spmd.asarray(TABLE)[spmd.index()], ["n_r < 5"]),
    (lambda v: v + v[:5].sum() + spmd.asarray(TABLE)[-4], []),
    (looped, []),  # where it may never run, nothing is asked
    (branched, []),
]


@pytest.mark.parametrize(("f", "conditions"), CONDITIONS)
def test_conditions_of_the_launch(f: Callable[..., Any], conditions: list[str]) -> None:
    module = local(f).capture()
    assert sorted(str(c.holds) for c in module.conditions) == sorted(conditions)
    assert all(c.place is not None and "in bounds of dim 0" in c.text for c in module.conditions)


def test_global_extents_that_follow_from_the_mesh() -> None:
    @spmd.program(mesh=("r",))
    def rows():
        n = spmd.axis_size("r")
        x = spmd.input("x", (n, 3), layout=("r", None), default=1.0)
        return x[5] + x[n - 1] + x[-1]

    assert [str(c.holds) for c in rows.capture().conditions] == ["n_r >= 6"]


REFUSED: list[tuple[Callable[..., Any], Any, str]] = [
    (lambda v: v + v[20], ("r",), "index 20 is out of bounds for dim 0"),
    (lambda v: v + v[-21], ("r",), "index -21 is out of bounds for dim 0"),
    (lambda v: v + v[np.array([1, 50])].sum(), ("r",), "index 50 is out of bounds for dim 0"),
    (lambda v: v + v[6], {"r": 3}, "on some rank, dim 0 has fewer elements"),
    (lambda v: v + v[-7], {"r": 3}, "on some rank, dim 0 has fewer elements"),
    (lambda v: v + spmd.asarray(TABLE)[spmd.index()], {"r": 5}, "on some rank"),
]


@pytest.mark.parametrize(("f", "mesh", "said"), REFUSED)
def test_missing_in_every_launch(f: Callable[..., Any], mesh: Any, said: str) -> None:
    with pytest.raises(ShapeError) as caught:
        local(f, mesh).capture()
    assert said in str(caught.value) and "^" in str(caught.value)


def test_launches_without_the_element_are_refused() -> None:
    image = spmd.build(local(stored))
    assert image.run(ranks=3)[5] == 3
    with pytest.raises(MeshError, match="index 5 is in bounds of dim 0 on all ranks"):
        image.run(ranks=4)


# ---- rows that are read where they lie -----------------------------------------------------------


def test_each_row_picks_among_its_own() -> None:
    """Split rows are not gathered where each reads in itself; rows of neighbours are halos."""
    rng = np.random.default_rng(0)
    x, k, rows = rng.random((7, 5, 3)), rng.integers(0, 5, (7, 4)), np.arange(7)[:, None]

    @spmd.program(mesh=("r", "c"))
    def picked() -> Any:
        given = spmd.input("x", x.shape, np.float64, layout=("r", None, "c"))
        places = spmd.input("k", k.shape, np.int64, layout=("r", None))
        along = np.take_along_axis(given, places[..., None], 1)
        return along, given[rows, places], along[1:] - along[:-1]

    def turned() -> Any:
        given = spmd.input("x", x.shape, np.float64, layout=("r", None, "c"))
        return given[rows[::-1], k], np.take_along_axis(given, k[..., None], 1)[::2]

    want = x[rows, k]
    wanted = (want, want, want[1:] - want[:-1])
    lowered = partition(picked.capture())
    for sizes in ({"r": 1, "c": 1}, {"r": 3, "c": 2}, {"r": 9, "c": 1}):
        found = interpret.run(lowered, sizes, {"x": x, "k": k}).values()
        for got, part in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, part, str(sizes))
    kinds = {op.kind.called for op in walk(lowered.body) if isinstance(op.kind, Exchange)}
    assert "all_gather" not in kinds
    other = partition(spmd.program(mesh=("r", "c"))(turned).capture())
    found = interpret.run(other, {"r": 3, "c": 2}, {"x": x}).values()
    for got, part in zip(found, (x[rows[::-1], k], want[::2]), strict=True):
        np.testing.assert_array_equal(got, part)
    assert "all_gather" in {op.kind.called for op in walk(other.body)
                            if isinstance(op.kind, Exchange)}
