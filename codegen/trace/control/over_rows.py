"""Python's loops over many rows of an array, or over np.ndindex, as loops of the program.

In: what a `for` goes through. Out: a spmd.range of its turns, and what the loop variable is in
each.
Always holds: the program is captured again, with these loops run by Python, where a capture with
them as loops of the program fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import ProgramError
from codegen.trace.array import Array, as_array
from codegen.trace.context import UNROLLED_TURNS, Context
from codegen.trace.control.ranges import Range
from codegen.trace.number import Number, expr_of

Turns = tuple[Range, Callable[[Any], Any]]


class Indices(np.ndindex):
    """np.ndindex as a program makes it: it knows its shape, and whether it was asked before.

    As any iterator, it is used up by a loop. Once a loop over it is compiled, nobody may ask it:
    the error has the program captured again, with its loops run by Python.
    """

    def __init__(self, *shape: Any) -> None:
        super().__init__(*shape)
        self.shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        self.is_asked = self.is_compiled = False

    def __next__(self) -> Any:
        if self.is_compiled:
            raise ProgramError(
                "an np.ndindex goes on where the loop before has left it",
                expected="one loop over an np.ndindex, which is used up then",
                remedy="for ... in np.ndindex(...), a new one for each loop")
        self.is_asked = True
        return super().__next__()


def turns_of(context: Context, iterable: Any) -> Turns | None:
    """Return the turns of a loop that is to be compiled; None of any other, which Python runs."""
    if context.selecting:
        return None
    if (unknown := _of_unknown(iterable)) is not None or context.rows_by_python:
        return unknown
    iteration = (_of_places(context, iterable) if isinstance(iterable, Indices)
                 else _of_array(iterable))
    if iteration is not None:
        context.has_rows = True
    return iteration


def _of_unknown(array: Any) -> Turns | None:
    """Return the turns over the rows of an array whose number only a run knows, which Python cannot
    loop over; None for any other value."""
    if not isinstance(array, Array) or not array.ndim or not array.extents[0].has_extents:
        return None
    return Range(0, array.shape[0], 1), lambda turn: array[turn]


def _of_places(context: Context, places: Indices) -> Turns | None:
    count = math.prod(places.shape)
    if places.is_asked or places.is_compiled or count <= UNROLLED_TURNS:
        return None
    places.is_compiled = True
    strides = [math.prod(places.shape[d + 1 :]) for d in range(len(places.shape))]

    def place(turn: Any) -> tuple[Any, ...]:
        return tuple(turn // stride % n if d else turn // stride
                     for d, (stride, n) in enumerate(zip(strides, places.shape)))

    return Range(0, count, 1), place


def _of_array(array: Any) -> Turns | None:
    if not isinstance(array, Array) and not _has_plain_rows(array) or not np.ndim(array):
        return None
    count = expr_of(array.shape[0])
    if count is None or not count.is_const or count.value <= UNROLLED_TURNS:
        return None
    known = array.known if isinstance(array, Array) else array
    if known is not None and known.ndim == 1 and known.dtype == np.int64:
        first, step = int(known[0]), int(known[1] - known[0])
        if np.array_equal(known, first + step * np.arange(len(known))):
            return Range(0, count.value, 1), lambda turn: _integer(first + step * turn)
    rows = as_array(array)
    return Range(0, count.value, 1), lambda turn: rows[turn]


def _has_plain_rows(x: Any) -> bool:
    """Return whether it is a NumPy array of numbers; rows of a matrix or of a masked array are
    another."""
    return type(x) in (np.ndarray, np.memmap) and dtypes.from_numpy(x.dtype) is not None


def _integer(x: Any) -> Any:
    """Return a formula as an element of an array of integers: np.int64, or a number like it."""
    e = expr_of(x)
    assert e is not None
    return Number(e, strong=True) if isinstance(x, Number) else np.int64(x)
