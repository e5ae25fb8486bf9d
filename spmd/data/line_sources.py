"""Sources of text files: lines, and rows of CSV tables; big files are not kept in memory.

In: paths. Out: lines and rows by number, over an index of where every 32nd line begins, made by
reading once through the file when it is first needed.
"""

from __future__ import annotations

import csv as tables_of_text
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from codegen.errors import UsageError
from spmd.data.source_base import ExampleSource
from spmd.data.source_tools import (
    Digest,
    PlainFile,
    Record,
    absolute,
    caller,
    made_once,
    short,
)
from spmd.files import csv_fields

STRIDE = 32  # lines: the index has the begin of every so many
AT_ONCE = 1 << 22  # bytes that are read at once
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
NUMBERS = {"int": int, "float": float, "str": str}


class TextLine:
    """A line of a text file, without its end: `text`, its `number` in the file from 1, `path`."""

    __slots__ = ("number", "path", "text")

    def __init__(self, text: str, number: int, path: str) -> None:
        self.text, self.number, self.path = text, number, path

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<line {self.number} of {short(self.path)}>"


class _LineIndex:
    """An index of where lines of a file begin."""

    def __init__(self, file: PlainFile) -> None:
        self.file = file
        self.size = file.size()
        starts: list[np.ndarray] = []
        count, offset = 0, 0  # lines that end before `at`
        while raw := file.read(offset, AT_ONCE):
            ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == 10) + (offset + 1)
            numbers = np.arange(count + 1, count + 1 + len(ends))  # of the lines that begin there
            starts.append(ends[numbers % STRIDE == 0])
            count, offset, last = count + len(ends), offset + len(raw), raw[-1:]
        self.lines = count + (1 if offset and last != b"\n" else 0)
        self.starts = np.concatenate([np.zeros(1, np.int64), *starts])

    def get(self, index: int) -> bytes:
        """Return a line with its end."""
        place, rest = divmod(index, STRIDE)
        start = int(self.starts[place])
        end = int(self.starts[place + 1]) if place + 1 < len(self.starts) else self.size
        begin = self.file.read(start, end - start)
        offset = 0
        for _ in range(rest):  # they are there: the file has not changed
            offset = begin.index(b"\n", offset) + 1
        stop = begin.find(b"\n", offset)
        return begin[offset:] if stop < 0 else begin[offset : stop + 1]


class _Lines(ExampleSource):
    def __init__(self, paths: list[str], encoding: str) -> None:
        self.place = caller()
        self.paths, self.encoding = paths, encoding
        self._files = [PlainFile(path, self.wrong) for path in paths]
        self._index = made_once(self._read)

    def _read(self) -> tuple[list[_LineIndex], list[int]]:
        indices = [_LineIndex(file) for file in self._files]
        return indices, [0, *np.cumsum([index.lines for index in indices]).tolist()]

    def length(self) -> int:
        return int(self._index()[1][-1])

    def _find(self, index: int) -> tuple[int, int]:
        """Return which file an example is in, and which line of it."""
        begins = self._index()[1]
        number = bisect_right(begins, index) - 1
        return number, index - begins[number]

    def get(self, index: int) -> TextLine:
        number, line = self._find(index)
        raw = self._index()[0][number].get(line).removesuffix(b"\n").removesuffix(b"\r")
        try:
            text = raw.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise self.wrong(f"{self.name(index)} cannot be read", f"text in {self.encoding}",
                             str(error), "encoding='latin-1', if it is that") from None
        return TextLine(text, line + 1, self.paths[number])

    def name(self, index: int) -> str:
        number, line = self._find(index)
        return f"line {line + 1} of {short(self.paths[number])}"

    def digest(self) -> str:
        digest = Digest("lines")
        for file in self._files:
            digest.add_samples(file.size(), file.read)
        return digest.text()


def lines(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], /, *, encoding: str = "utf-8"
) -> ExampleSource:
    """Return a source of the lines of text files, one after the other.

    An example has `text`, without the end of the line, `number` and `path`. Only an index of the
    files is kept in memory, 8 bytes for 32 lines; each process reads through them once for it.

    Raises InputError, when a pipeline first reads it, for a file that cannot be read, and for a
    line that is no text in this encoding; UsageError for an encoding in which a line does not end
    with one byte.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    every = [absolute(p) for p in named]
    _check_plain(every, "lines")
    _check_encoding(encoding, "lines")
    return _Lines(every, encoding)


def _check_plain(paths: list[str], function: str) -> None:
    packed = [p for p in paths if p.endswith(COMPRESSED)]
    if packed:
        raise UsageError(
            f"data.{function} reads plain text", place=caller(),
            expected="a file that is not packed", found=short(packed[0]),
            remedy="unpack it, or data.iterator(lambda: gzip.open(path, 'rt')), read in order")


def _check_encoding(encoding: str, function: str) -> None:
    """Raise UsageError where an end of line is not the byte 10, by which files are cut into
    lines."""
    try:
        text = b"\n".decode(encoding)
    except (LookupError, UnicodeDecodeError):
        text = ""
    if text != "\n":
        raise UsageError(
            f"data.{function} cannot read encoding={encoding!r}", place=caller(),
            expected="an encoding in which the end of a line is one byte, as utf-8 or latin-1",
            found=repr(encoding), remedy="iconv -t utf-8 makes such a file")


# ---- CSV


class _Csv(ExampleSource):
    def __init__(
        self, path: str, header: bool | list[str], types: dict[str, Any], delimiter: str,
        encoding: str,
    ) -> None:
        self.place = caller()
        self.path, self.header, self.types = path, header, types
        self.delimiter, self.encoding = delimiter, encoding
        self._file = PlainFile(path, self.wrong)
        self._index = made_once(self._read)

    def _rows(self, start: int) -> Iterator[tuple[int, list[str]]]:
        """Yield rows from a byte on, each with where it begins."""
        offset = start

        def texts() -> Iterator[str]:
            nonlocal offset
            rest, read = b"", start
            while raw := self._file.read(read, 1 << 16):
                read += len(raw)
                *whole, rest = (rest + raw).split(b"\n")
                for line in whole:
                    text = self._text(line, offset)
                    offset += len(line) + 1
                    yield text + "\n"
            if rest:
                text = self._text(rest, offset)
                offset += len(rest)
                yield text

        rows = tables_of_text.reader(texts(), delimiter=self.delimiter, strict=True)
        begin = offset
        for row in rows:
            if row:
                yield begin, row
            begin = offset

    def _text(self, line: bytes, offset: int) -> str:
        text = line.decode(self.encoding)
        return text if offset else text.removeprefix(csv_fields.MARK)

    def _read(self) -> tuple[np.ndarray, int, dict[str, Any]]:
        """Return where every 32nd row begins, how many there are, and the types of their
        columns."""
        count, starts = 0, []
        names: list[str] = []
        types: list[str] = []
        unnamed = 0  # empty names at the end of the header
        try:
            for begin, row in self._rows(0):
                if not names:
                    names = csv_fields.named(row) if self.header is True else (
                        self.header or [f"column{k}" for k in range(len(row))])
                    types = ["int"] * len(names)
                    self._check_names(names, begin)
                    if self.header is True:
                        unnamed = len(row) - len(names)
                        continue
                if len(row) > len(names):
                    row = csv_fields.shortened(row, len(names), unnamed)
                if len(row) != len(names):
                    raise self.wrong(
                        f"row {count + 1} of {short(self.path)} has another number of values",
                        f"{len(names)}, as there are columns", f"{len(row)}: {row}"[:200])
                types = [_widened(kind, value) for kind, value in zip(types, row)]
                if count % STRIDE == 0:
                    starts.append(begin)
                count += 1
        except (tables_of_text.Error, UnicodeDecodeError) as error:
            raise self.wrong(
                f"row {count + 1} of {short(self.path)} cannot be read",
                f"values with {self.delimiter!r} between them, in {self.encoding}", str(error),
            ) from None
        columns = {name: self.types.get(name, NUMBERS[kind]) for name, kind in zip(names, types)}
        return np.array(starts, np.int64), count, columns

    def _check_names(self, names: list[str], begin: int) -> None:
        unknown = [t for t in self.types if t not in names]
        if len(set(names)) != len(names) or unknown:
            raise self.wrong(
                f"{short(self.path)} has other columns", f"{', '.join(self.types)}" if unknown
                else "names that differ", ", ".join(names),
                "header=False, or a list of names, if the first row is no header")

    def length(self) -> int:
        return self._index()[1]

    def get(self, index: int) -> Record:
        starts, _, types = self._index()
        rows = self._rows(int(starts[index // STRIDE]))
        row = next(islice(rows, index % STRIDE, None))[1]
        fields = {}
        for (name, kind), value in zip(types.items(), row):
            try:
                fields[name] = _value(kind, value)
            except (ValueError, OverflowError) as error:
                raise self.wrong(
                    f"column {name!r} of {self.name(index)} has another type",
                    getattr(kind, "__name__", str(kind)), str(error)) from None
        return Record(fields, self.name(index))

    def name(self, index: int) -> str:
        return f"row {index + 1} of {short(self.path)}"

    def digest(self) -> str:
        return Digest("csv").add_samples(self._file.size(), self._file.read).text()


def _widened(kind: str, value: str) -> str:
    """Return the type of a column, one more value seen."""
    if "_" in value:  # Python would read numbers with it, no other program does
        return "str"
    if kind == "int":
        try:
            int(value)
            return kind
        except ValueError:
            kind = "float"
    if kind == "float" and value:
        try:
            float(value)
        except ValueError:
            return "str"
    return kind


def _value(kind: Any, value: str) -> Any:
    kind = kind if isinstance(kind, type) or callable(kind) else np.dtype(kind).type
    if kind in (bool, np.bool_):
        return kind(csv_fields.truth(value))
    if kind is int:
        return csv_fields.integer(value)
    if kind is float:
        return csv_fields.real(value)
    with np.errstate(over="ignore"):  # said below
        number = kind(value)
    if isinstance(number, float | np.floating) and np.isinf(number) and "inf" not in value.lower():
        raise OverflowError(f"{value!r} is too large")
    return number


def csv(
    path: str | os.PathLike[str], /, *, header: bool | list[str] = True,
    types: dict[str, Any] | None = None, delimiter: str = ",", encoding: str = "utf-8",
) -> ExampleSource:
    """Return a source of the rows of a CSV table, quoted as RFC 4180 has it.

    An example has a field for each column. header: True if the first row names the columns; False
    calls them column0, column1, …; a list of names is taken as it is. types: column -> a type, a
    function of the text, or a dtype; bool reads true, false, 1 and 0. The others are int if all
    values are, else float (an empty value is nan), else str. Each process reads through the file
    once, and keeps an index of it.

    Raises InputError, when a pipeline first reads it, for a table whose rows are unequally long,
    and for a value that its column's type cannot be.
    """
    whole = absolute(path)
    _check_plain([whole], "csv")
    _check_encoding(encoding, "csv")
    names = [str(n) for n in header] if isinstance(header, list | tuple) else bool(header)
    return _Csv(whole, names, dict(types or {}), delimiter, encoding)
