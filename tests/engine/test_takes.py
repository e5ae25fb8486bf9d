"""What an exchange brings, cast as it arrives: the engine's copies beside NumPy's assignment.

A part of an array comes to a part of another one, whose elements have another size. Both may lie
any way: by rows, by columns, inside of a wider array, with gaps.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from spmd.engine import ffi, lib

SIZES = (1, 2, 4, 8, 16)  # bytes of an element; those of 16 are two words, as complex128
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
EXTENTS = range(1, 17)

# How an array of these extents lies in memory: the array that it is a part of, and which part.
LIES = {
    "by rows": lambda a, b: ((a, b), lambda x: x),
    "by columns": lambda a, b: ((b, a), lambda x: x.T),
    "in a wider array": lambda a, b: ((a + 1, b + 3), lambda x: x[1:, 2:-1]),
    "in a wider one, by columns": lambda a, b: ((b + 3, a), lambda x: x[3:].T),
    "every second": lambda a, b: ((a, 2 * b), lambda x: x[:, ::2]),
}
PAIRS = [*itertools.product(SIZES, SIZES)]


def words(size: int) -> np.dtype:
    """An element of so many bytes, that NumPy assigns without looking at it."""
    return np.dtype(UNSIGNED[size]) if size in UNSIGNED else np.dtype((np.void, size))


def taken(into: np.ndarray, source: np.ndarray) -> None:
    """into[...] = source, by the engine."""
    def strides(x):
        return ffi.new("int64_t[]", list(x.strides))

    lib.spmd_take_probe(
        ffi.cast("char *", into.ctypes.data), strides(into), into.itemsize,
        ffi.cast("char *", source.ctypes.data), strides(source), source.itemsize,
        ffi.new("int64_t[]", list(source.shape)), source.ndim)


def compare(shape: tuple[int, int], into_lies: str, from_lies: str, into_size: int, from_size: int):
    """Check that taking one region leaves every byte of the destination as NumPy would."""
    whole, part = LIES[from_lies](*shape)
    data = np.arange(np.prod(whole), dtype=np.uint8).reshape(whole)
    bytes_ = np.zeros((*whole, from_size), np.uint8)
    bytes_[..., 0] = data
    source = part(bytes_.view(words(from_size))[..., 0])
    whole, into = LIES[into_lies](*shape)
    found = np.full((*whole, into_size), 7, np.uint8)
    wanted = found.copy()
    taken(into(found.view(words(into_size))[..., 0]), source)
    cast = np.zeros((*shape, into_size), np.uint8)
    cast[..., 0] = LIES[from_lies](*shape)[1](data)
    into(wanted.view(words(into_size))[..., 0])[...] = cast.view(words(into_size))[..., 0]
    assert (found == wanted).all(), (shape, into_lies, from_lies, into_size, from_size)


@pytest.mark.parametrize("into_lies, from_lies", [*itertools.product(LIES, LIES)])
def test_every_shape_and_pair_of_sizes(into_lies, from_lies):
    """All shapes and sizes are tried, as one side's stride may equal the other one's element."""
    for shape in itertools.product(EXTENTS, EXTENTS):
        for into_size, from_size in PAIRS:
            compare(shape, into_lies, from_lies, into_size, from_size)


@pytest.mark.parametrize("shape", [(64, 16), (65, 17), (130, 40), (300, 3), (3, 300)])
def test_shapes_of_several_tiles(shape):
    for into_lies, from_lies in itertools.product(LIES, LIES):
        for into_size, from_size in PAIRS:
            compare(shape, into_lies, from_lies, into_size, from_size)
