"""CSV tables as files of arrays: a column is an array, all columns are the rows of a 2-D one.

In: a mapped file. Out: for a column, or all, elements that a process parses of its own rows only.
Always holds: a row is one line, quoted as RFC 4180 has it; whatever is wrong is said with file,
line and column. Lines are counted in all of the file, rows that others have are not parsed.
"""

from __future__ import annotations

import csv
import struct
from array import array
from copy import copy
from math import inf, isinf

from spmd.files import npy
from spmd.files.csv_fields import MARK, integer, is_word, named, real, shortened, truth
from spmd.files.table_elements import TableElements
from spmd.files.table_elements import frame as frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator
    from typing import Any

    from spmd.files.inputs import InputFile

_MARK = MARK.encode()
# How array() and struct spell the types that fields are parsed to.
CODES = {"bool": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B",
         "uint16": "H", "uint32": "I", "uint64": "Q", "float16": "e", "bfloat16": "f",
         "float32": "f", "float64": "d"}


class CsvTable:
    """An index of a CSV file that says where its rows are. blocks: (first byte, bytes, rows before,
    lines before)."""

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self.blocks: list[tuple[int, int, int, int]] = []
        self.count = lines = 0
        offset = len(_MARK) if file.read(0, len(_MARK)) == _MARK else 0
        while offset < file.length:
            raw = self._whole_lines(offset)
            self.blocks.append((offset, len(raw), self.count, lines))
            here = raw.count(b"\n") + (not raw.endswith(b"\n"))
            self.count += here - _blank_lines(raw)
            lines, offset = lines + here, offset + len(raw)
        first = next(self._lines(0, 1), None)
        if first is None:
            raise file.wrong("is no table", "rows of numbers", "an empty file")
        _, self.first = next(self._rows(iter([first]), 0))
        self.header = any(map(is_word, self.first))
        self.names = self.first if self.header else [f"column{k}" for k in range(len(self.first))]
        if self.header:
            self.names = named(self.names)
        columns: dict[str, int] = {}
        for k, name in enumerate(self.names, 1):
            if columns.setdefault(name, k) != k:
                raise file.wrong(f"has two columns of one name, in line {first[0]}",
                                 "names that differ",
                                 f"{name!r} in columns {columns[name]} and {k}")
        self.rows = self.count - self.header

    def _whole_lines(self, offset: int) -> bytes:
        """Return whole lines from a byte on, about npy.AT_ONCE bytes."""
        most = npy.AT_ONCE
        while True:
            raw = self.file.read(offset, most)
            if not raw:
                raise self.file.wrong("became shorter while it was read", "more bytes", "none")
            if offset + len(raw) >= self.file.length:
                return raw
            if end := raw.rfind(b"\n") + 1:
                return raw[:end]
            most *= 2

    def _lines(self, low: int, high: int) -> Iterator[tuple[int, str]]:
        """Yield the lines of rows low to high - 1 with their numbers. The header is row 0; lines
        are counted from 1."""
        ends = [block[2] for block in self.blocks[1:]] + [self.count]
        for (offset, size, row, line), end in zip(self.blocks, ends, strict=False):
            if end <= low or row >= high:
                continue
            raw = self.file.read_all(offset, size)
            for text in raw.removesuffix(b"\n").split(b"\n"):
                line += 1
                if not text.strip(b"\r"):
                    continue
                if low <= row < high:
                    yield line, self._text(text.removesuffix(b"\r"), line)
                row += 1

    def _text(self, raw: bytes, line: int) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.file.wrong(f"has a line {line} that cannot be read", "text in UTF-8",
                                  str(error)) from None

    def _rows(self, lines: Iterator[tuple[int, str]], width: int) -> Iterator[
            tuple[int, list[str]]]:
        """Yield the number of each row's line, and its fields. Raises InputError for a row that has
        not `width` fields, but for empty ones behind them where the header ends with commas; width
        0 allows any number."""
        taken: list[int] = []  # numbers of the lines of one row

        def texts() -> Iterator[str]:
            for number, text in lines:
                taken.append(number)
                yield text

        try:
            for row in csv.reader(texts(), strict=True):
                if len(taken) > 1:
                    raise csv.Error("a quoted field that runs over the end of its line")
                if width and width < len(row) <= len(self.first):
                    row = shortened(row, width, len(self.first) - width)
                    if behind := [k for k in range(width, len(row)) if row[k].strip()]:
                        raise self.file.wrong(
                            f"has a value in line {taken[0]}, column {behind[0] + 1}, which has "
                            "no name", "nothing behind the last comma", repr(row[behind[0]]))
                if width and len(row) != width:
                    many = "few" if len(row) < width else "many"
                    raise self.file.wrong(f"has too {many} fields in line {taken[0]}",
                                          f"{width}, as there are columns", f"{len(row)}")
                yield taken.pop(), row
        except csv.Error as error:
            raise self.file.wrong(f"has a line {taken[0]} that cannot be read",
                                  "a row on one line, fields with ',' between them",
                                  str(error)) from None

    def parsed(self, low: int, high: int, column: int, dtype: str) -> Iterator[bytes]:
        """Yield the bytes of rows low to high - 1 of a column, in pieces; column -1 means all
        columns."""
        width = len(self.names)
        rows = self._rows(self._lines(low + self.header, high + self.header), width)
        numbers: list[int] = []
        fields: list[str] = []
        for line, row in rows:
            numbers.append(line)
            fields += row if column < 0 else (row[column],)
            if len(numbers) == 1 << 14:
                yield self._values(fields, numbers, column, dtype)
                numbers, fields = [], []
        if numbers:
            yield self._values(fields, numbers, column, dtype)

    def _values(self, fields: list[str], lines: list[int], column: int, dtype: str) -> bytes:
        read: Callable[[str], Any] = (
            truth if dtype == "bool" else real if "float" in dtype else integer)
        try:
            return packed(list(map(read, fields)), dtype)
        except (ValueError, OverflowError, struct.error):
            pass
        for k, field in enumerate(fields):
            try:
                packed([read(field)], dtype)
            except (ValueError, OverflowError, struct.error) as error:
                row, where = divmod(k, len(self.names)) if column < 0 else (k, column)
                how = "an empty field" if not field else repr(field)
                if isinstance(error, OverflowError | struct.error):
                    how += f", which does not fit {dtype}"
                raise self.file.wrong(
                    f"has a wrong value in line {lines[row]}, column {where + 1} "
                    f"({self.names[where]})", _kind(dtype), how) from None
        raise AssertionError("one of the fields is wrong")


def _kind(dtype: str) -> str:
    if dtype == "bool":
        return "true, false, 1 or 0"
    return f"a number of {dtype}" if "float" in dtype else f"an integer of {dtype}"


def packed(values: list[Any], dtype: str) -> bytes:
    """Return numbers as the bytes of a dtype. Raises OverflowError or struct.error for a number
    that is beyond it."""
    if dtype == "float16":
        return struct.pack(f"{len(values)}e", *values)
    numbers = array(CODES[dtype], values)
    if CODES[dtype] == "f":
        for k, value in enumerate(numbers):
            if isinf(value) and abs(values[k]) != inf:
                raise OverflowError
    return _halves(numbers) if dtype == "bfloat16" else numbers.tobytes()


def _halves(numbers: array[float]) -> bytes:
    """Return float32 numbers as bfloat16, rounded to even. NaN stays NaN."""
    out = array("H")
    for value, bits in zip(numbers, memoryview(numbers).cast("B").cast("I"), strict=True):
        out.append(0x7FC0 if value != value else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    return out.tobytes()


def _blank_lines(raw: bytes) -> int:
    """Return the number of blank lines, which are no rows: of nothing, or of carriage returns."""
    if raw.startswith((b"\n", b"\r")) or b"\n\n" in raw or b"\n\r" in raw:
        lines = raw.removesuffix(b"\n").split(b"\n")
        return sum(not line.strip(b"\r") for line in lines)
    return 0


def members(file: InputFile) -> dict[str, tuple[CsvTable, int]]:
    """Return the columns of a table by name. InputError for a file that is none."""
    table = CsvTable(file)
    return {name: (table, k) for k, name in enumerate(table.names)}


def whole(file: InputFile, columns: dict[str, tuple[CsvTable, int]]) -> TableElements:
    """Return all columns, as the rows of a 2-D array."""
    table, _ = next(iter(columns.values()))
    return _elements(file, table, -1)


def elements(file: InputFile, member: tuple[CsvTable, int]) -> TableElements:
    """Return one column as an array."""
    return _elements(file, *member)


def _elements(file: InputFile, table: CsvTable, column: int) -> TableElements:
    table = copy(table)
    table.file = file  # which stays open as long as these elements

    def fill(memory: mmap.mmap, dtype: str, low: int, high: int) -> None:
        width = 1 if column >= 0 else len(table.names)
        offset = low * width * npy.SIZES[dtype]
        for piece in table.parsed(low, high, column, dtype):
            memory[offset : offset + len(piece)] = piece
            offset += len(piece)
        if offset != high * width * npy.SIZES[dtype]:
            raise file.wrong("changed while it was read", f"rows {low} to {high - 1}", "others")

    shape = (table.rows,) if column >= 0 else (table.rows, len(table.names))
    return TableElements(file, shape, column, lambda dtype: dtype in CODES, fill, table.names)
