"""Parquet tables as files of arrays, by pyarrow: a column is an array, as in csv_tables.py.

In: a mapped file. Out: for a column, or all, elements; only row groups are read of which a process
needs rows. Always holds: pyarrow is imported only by a process that reads or writes such a file.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from codegen.errors import EnvironmentFault
from spmd.files import npy
from spmd.files.table_elements import TableElements, repeated
from spmd.files.table_elements import frame as frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import Any

    from spmd.files.inputs import InputFile

# Types of columns, as Arrow calls them, and ours.
TYPES = {"bool": "bool", "halffloat": "float16", "float": "float32", "double": "float64",
         **{name: name for bits in (8, 16, 32, 64) for name in (f"int{bits}", f"uint{bits}")}}


def check_arrow() -> None:
    """Raise EnvironmentFault, naming the extra to install, where pyarrow is missing."""
    if find_spec("pyarrow") is None:
        raise EnvironmentFault("pyarrow is not there, by which Parquet tables are read and written",
                               expected="pyarrow", found="no such module",
                               remedy='pip install "spmd[tables]"; or a .csv file')


def arrow() -> tuple[Any, Any]:
    """Return the modules pyarrow and pyarrow.parquet, imported by the first process that needs
    them."""
    check_arrow()
    return import_module("pyarrow"), import_module("pyarrow.parquet")


class ParquetTable:
    """A table that is open: names and types of its columns, and how many rows each row group
    has."""

    def __init__(self, file: InputFile) -> None:
        self.file, (_, reader) = file, arrow()
        try:
            self.opened = reader.ParquetFile(f"/proc/self/fd/{file.descriptor()}")
        except Exception as error:  # pyarrow's own classes, and OSError
            raise file.wrong("is no Parquet table", "a file of pyarrow, pandas or the like",
                             str(error).split("\n")[0][:200]) from None
        schema, meta = self.opened.schema_arrow, self.opened.metadata
        self.names = list(schema.names)
        self.types = [str(field.type) for field in schema]
        self.rows = meta.num_rows
        self.groups = [meta.row_group(k).num_rows for k in range(meta.num_row_groups)]
        if (twice := repeated(self.names)) is not None:
            raise file.wrong("has two columns of one name", "names that differ", repr(twice))

    def column(self, k: int, low: int, high: int) -> Any:
        """Return rows low to high - 1 of a column as a NumPy array; a null is NaN."""
        first = start = 0
        wanted: list[int] = []
        for group, rows in enumerate(self.groups):
            if start < high and start + rows > low:
                first = first if wanted else start
                wanted.append(group)
            start += rows
        name = self.names[k]
        try:
            read = self.opened.read_row_groups(wanted, columns=[name]).column(0)
        except Exception as error:  # as above: a damaged page is found only here
            raise self.file.wrong("is damaged", f"rows of column {name!r}",
                                  str(error).split("\n")[0][:200]) from None
        read = read.slice(low - first, high - low)
        if read.null_count and "float" not in self.dtype(k):
            row = low + read.is_null().to_pylist().index(True)
            raise self.file.wrong(f"has no value in row {row + 1}, column {name!r}",
                                  f"a value of {self.dtype(k)}", "a null")
        return read.to_numpy()

    def dtype(self, k: int) -> str:
        """Return the dtype of a column, or "" where programs have no such dtype."""
        return TYPES.get(self.types[k], "")


def members(file: InputFile) -> dict[str, tuple[ParquetTable, int]]:
    """Return the columns of a table by name. Raises InputError for a file that is no table."""
    table = ParquetTable(file)
    return {name: (table, k) for k, name in enumerate(table.names)}


def whole(file: InputFile, columns: dict[str, tuple[ParquetTable, int]]) -> TableElements:
    """Return a 2-D array: a row for each row of the table, a column for each column."""
    if not columns:
        raise file.wrong("is no table of numbers", "columns", "none")
    table, _ = next(iter(columns.values()))
    return _elements(file, table, list(range(len(table.names))), -1)


def elements(file: InputFile, member: tuple[ParquetTable, int]) -> TableElements:
    """Return one column as a 1-D array."""
    return _elements(file, member[0], [member[1]], member[1])


def _elements(
    file: InputFile, table: ParquetTable, columns: list[int], column: int
) -> TableElements:
    from spmd.files.convert import cast_rows, casts  # NumPy, where pyarrow is

    for k in columns:
        if not table.dtype(k):
            raise file.wrong(f"has a column {table.names[k]!r} of a type that programs do not have",
                             ", ".join(TYPES), table.types[k])
    types = [table.dtype(k) for k in columns]

    def fill(memory: mmap.mmap, dtype: str, low: int, high: int) -> None:
        arrays = [table.column(k, low, high) for k in columns]
        begin = low * len(columns) * npy.SIZES[dtype]
        data = cast_rows(arrays, dtype)
        memory[begin : begin + len(data)] = data

    shape = (table.rows,) if column >= 0 else (table.rows, len(columns))
    common = next((t for t in types if all(casts(other, t) for other in types)), "float64")
    return TableElements(file, shape, column, lambda dtype: all(casts(t, dtype) for t in types),
                         fill, table.names, common)
