"""Tables that are written: outputs as the columns of a CSV or Parquet file.

In: elements of arrays as ranks have written them. Out: one file.
Always holds: text of a number reads back as that number; rows are converted some at a time.
"""

from __future__ import annotations

import csv
import io
import mmap
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from spmd.arrays import numpy_dtype
from spmd.files.npy import element_count
from spmd.files.parquet import arrow
from spmd.files.table_elements import columns_of

ROWS = 1 << 16  # that are converted at once

Arrays = list[tuple[str, str, tuple[int, ...]]]


def write(path: str, file: IO[bytes], arrays: Arrays, starts: list[int], view: mmap.mmap) -> None:
    """Write the arrays (name, dtype, shape), whose elements begin at byte offsets `starts` of
    `view`."""
    rows = arrays[0][2][0] if arrays[0][2] else 1
    names = [column.name for column in columns_of(arrays)]
    writer = _write_parquet if path.endswith(".parquet") else _write_csv
    writer(file, names, _pieces(arrays, starts, view, rows))


def _pieces(
    arrays: Arrays, starts: list[int], view: mmap.mmap, rows: int
) -> Iterator[list[np.ndarray]]:
    """Yield copies of the columns, ROWS rows at a time; a table without rows yields once."""
    for low in range(0, max(1, rows), ROWS):
        high = min(low + ROWS, rows)
        piece: list[np.ndarray] = []
        for (_, dtype, shape), start in zip(arrays, starts, strict=True):
            kind, width = numpy_dtype(dtype), element_count(shape[1:])
            first = start + low * width * kind.itemsize
            raw = view[first : first + (high - low) * width * kind.itemsize]
            piece += list(np.frombuffer(raw, kind).reshape(high - low, width).T)
        yield piece


def _write_csv(file: IO[bytes], names: list[str], pieces: Iterator[list[np.ndarray]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(names)
    file.write(text.getvalue().encode())
    for piece in pieces:
        rows = zip(*(_texts(column) for column in piece), strict=True)
        file.write("".join(f"{','.join(row)}\n" for row in rows).encode())


def _texts(column: np.ndarray) -> Any:
    """Return for each element the shortest text that reads back as the same number."""
    if column.dtype.kind in "iub" or column.dtype == np.float64:
        return map(repr, column.tolist())
    return map(str, column)


def _write_parquet(file: IO[bytes], names: list[str], pieces: Iterator[list[np.ndarray]]) -> None:
    pyarrow, parquet = arrow()
    writer = None
    for piece in pieces:
        columns = [c if c.dtype.kind in "biuf" else c.astype(np.float32) for c in piece]  # bfloat16
        table = pyarrow.table([pyarrow.array(c) for c in columns], names=names)
        if writer is None:
            writer = parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
