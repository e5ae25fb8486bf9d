"""Mistakes of NumPy users in programs on global arrays: each is told where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.errors import (
    DtypeError,
    LayoutError,
    ProgramError,
    ShapeError,
    SpmdError,
    TracedValueError,
    UnsupportedError,
)
from spmd.source import guarded


def u(layout: Any = ("x", None)) -> Any:
    return spmd.input("u", (8, 6), np.float64, layout=layout, default=lambda i, j: i + j)


def counter_of_an_arrays_name():
    k, x = spmd.zeros(3), spmd.zeros(8)
    for _ in spmd.range(2):
        for k in spmd.range(8):
            x[k] = k
    return x, k


def carried_shape() -> Any:
    x = u()
    for _ in spmd.range(3):
        x = x[1:]
    return x


def scalar_extent() -> Any:
    n = spmd.scalar("n", 4)
    return spmd.zeros((n, 3))


def python_range() -> Any:
    total = u()
    for k in range(spmd.scalar("n", 4)):
        total = total + k
    return total


def read_only() -> Any:
    x = np.broadcast_to(u()[0], (8, 6))
    x[0] = 1
    return x


def element_into_constant() -> Any:
    table = np.zeros(8)
    table[0] = u()[1, 2]
    return table


def imaginary_part() -> Any:
    x = u()
    x.imag = 2
    return x


def into_diagonal() -> Any:
    x = u()
    np.diagonal(x)[0] = 1
    return x


def other_mask() -> Any:
    x = u()
    x[x > 3] = x[x < 3]
    return x


def whole_into_mask() -> Any:
    x = u()
    x[x > 3] = np.ones((8, 6))
    return x


def masked_result() -> Any:
    x = u()
    return x[x > 3]


def scalar_slices() -> Any:
    k = spmd.scalar("k", 3)
    x = u()[:, 0]
    return x[k:] + x[: 8 - k]


def complex_element() -> Any:
    x = u()
    x[0, 0] = 1 + 2j
    return x


def twice_split() -> Any:
    return u().relayout(("x", "x"))


MISTAKES: dict[str, tuple[Callable[[], Any], type[SpmdError], tuple[str, ...]]] = {
    "shapes do not fit": (lambda: u() + np.ones(5), ShapeError, ("(8, 6)", "(5,)", "broadcast")),
    "inner extents of a product": (lambda: u() @ u(), ShapeError, ("matmul", "6", "8")),
    "an index beyond the end": (lambda: u()[8], ShapeError, ("out of bounds", "dim 0")),
    "too many indices": (lambda: u()[0, 0, 0], ShapeError, ("too many indices",)),
    "an axis of the array that is none": (lambda: np.sum(u(), axis=2), ShapeError, ("axis 2",)),
    "an unknown mesh axis": (lambda: u(("z", None)), LayoutError, ("not an axis", '"x"')),
    "an unknown mesh axis of a relayout": (
        lambda: u().relayout(("rows", None)), LayoutError, ("no axis", '"x"')),
    "an axis for two dims": (twice_split, LayoutError, ("splits two dims", '("x", None)')),
    "too few entries": (lambda: u().relayout(("x",)), LayoutError, ("one entry per dim",)),
    "an extent known at launch": (scalar_extent, TracedValueError, ("extent", "parameter")),
    "Python's range": (python_range, TracedValueError, ("spmd.range",)),
    "a mask as a subscript": (masked_result, UnsupportedError, ("np.where",)),
    "a function of what a mask chooses": (
        lambda: np.sort(u()[u() > 3]), UnsupportedError, ("np.where", "sums and means")),
    "the largest of nothing, maybe": (
        lambda: np.max(u()[u() > 3]), UnsupportedError, ("where=mask, initial=",)),
    "what another mask chooses": (other_mask, UnsupportedError, ("the same mask for both",)),
    "a whole array where a mask holds": (
        whole_into_mask, UnsupportedError, ("x[mask] = y[mask]", "np.where")),
    "a mask of another shape": (
        lambda: u()[np.sum(u(), axis=0) > 3], ShapeError, ("boolean index", "(8,)", "(6,)")),
    "slices of a scalar": (
        scalar_slices, ShapeError, ("for k = -1 they are 1 and 8", "spmd.require", "np.roll")),
    "nonzero": (
        lambda: np.sort(np.nonzero(u())[0]), UnsupportedError, ("depends on data", "size=n")),
    "unique": (lambda: np.unique(u()), UnsupportedError, ()),
    "a shape that changes in a loop": (carried_shape, SpmdError, ("loop", "shape")),
    "a counter with the name of an array": (
        counter_of_an_arrays_name, SpmdError, ("\"k\" changes its type",)),
    "a constant that gets an element": (
        lambda: guarded(element_into_constant), SpmdError, ("not known", "w = table.copy()")),
    "an imaginary part of real numbers": (imaginary_part, DtypeError, ("complex128",)),
    "a diagonal that is written": (into_diagonal, ProgramError, ("read-only", "fill_diagonal")),
    "a complex number among real ones": (complex_element, DtypeError, ("float64", ".real")),
    "a broadcast view that is written": (read_only, ProgramError, ("read-only", ".copy()")),
    "the index outside of shard_map": (
        lambda: u() * spmd.axis_index("x"), ProgramError, ("outside a shard_map",)),
    "an exchange outside of shard_map": (
        lambda: spmd.psum(np.sum(u()), "x"), ProgramError, ("shard_map",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    body, kind, words = MISTAKES[name]

    @spmd.program(mesh=("x",))
    def mistake():
        return body()

    with pytest.raises(kind) as caught:
        mistake.capture()
    text = str(caught.value)
    assert "test_global.py:" in text
    assert caught.value.exit_code in (2, 65)
    for word in words:
        assert word in text, text
