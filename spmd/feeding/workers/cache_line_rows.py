"""Rows of memory that another process reads next, on another core: long ones by whole lines.

A line that the reader's cache has takes longer to come from there than it takes to write it anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmd.engine import ffi, lib

LEAST_BYTES = 64 << 10  # of a row


def rows_by_cache_lines(array: np.ndarray) -> Any:
    """Return an object that stores rows: `rows[k] = value`, of the shape of a row, or `rows[j:k]`,
    of so many."""
    long = len(array) and array.nbytes >= LEAST_BYTES * len(array)
    lies = array.flags.c_contiguous and array.dtype.kind in "biufc"  # others show no buffer
    return CacheLineRows(array) if long and lies else array


class CacheLineRows:
    """Stores rows of a contiguous array by whole cache lines."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype, self.row_bytes = array, array.dtype, array.nbytes // len(array)
        self.memory = ffi.cast("char *", array.ctypes.data)

    def __setitem__(self, rows: int | slice, value: np.ndarray) -> None:
        first, end = (rows, rows + 1) if isinstance(rows, int) else (rows.start, rows.stop)
        size, plain = (end - first) * self.row_bytes, value.flags.c_contiguous
        if value.dtype == self.dtype and value.nbytes == size and plain:
            lib.spmd_copy_lines(self.memory + first * self.row_bytes, ffi.from_buffer(value), size)
        else:
            self.array[rows] = value
