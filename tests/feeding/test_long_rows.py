"""Rows that a worker writes for a reader on another core hold what they should."""

import numpy as np
import pytest

from spmd.feeding.workers.cache_line_rows import LEAST_BYTES, CacheLineRows, rows_by_cache_lines

ROW = LEAST_BYTES // 4


@pytest.mark.parametrize("shape", [(ROW,), (ROW + 3,), (7, ROW // 7 + 1), (1, ROW, 1)])
@pytest.mark.parametrize("make", [
    np.ascontiguousarray, np.asfortranarray, lambda a: a[..., ::-1],
    lambda a: np.concatenate([np.zeros(1, np.int8), np.frombuffer(a.tobytes(), np.int8)])[1:]
    .view(a.dtype).reshape(a.shape), lambda a: a.astype(np.int16), lambda a: a.astype(">f4"),
    lambda a: np.broadcast_to(a[:1], a.shape)], ids=[
    "contiguous", "fortran", "reversed", "odd address", "cast", "bytes swapped", "broadcast"])
def test_long_rows_are_as_assigned(make, shape):
    array = np.full((4, *shape), -1, np.float32)
    rows = rows_by_cache_lines(array)
    assert isinstance(rows, CacheLineRows)
    wanted = array.copy()
    for k in (2, 0):
        value = make(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 30_000 + k)
        rows[k], wanted[k] = value, value
    many = make(np.arange(2 * np.prod(shape), dtype=np.float32).reshape(2, *shape) % 999)
    rows[1:3], wanted[1:3] = many, many
    np.testing.assert_array_equal(array, wanted)


def test_a_value_of_another_size_writes_no_more_than_a_row():
    array = np.zeros((3, ROW), np.float32)
    rows = rows_by_cache_lines(array)
    rows[1] = np.ones((1,), np.float32)
    with pytest.raises(ValueError, match="broadcast"):
        rows[0] = np.ones(2 * ROW, np.float32)
    assert array.sum(axis=1).tolist() == [0, ROW, 0]


def test_short_rows_and_those_that_lie_apart_are_assigned():
    short, apart = np.zeros((4, ROW - 1), np.float32), np.zeros((4, 2 * ROW), np.float32)[:, ::2]
    none = np.zeros((0, ROW), np.float32)
    assert all(rows_by_cache_lines(a) is a for a in (short, apart, none))
