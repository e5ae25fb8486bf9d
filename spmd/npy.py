"""NumPy's .npy files without NumPy: mapped for reading, written in place part by part.

In: a path. Out: where the elements lie, as an address, a dtype and strides in bytes.
Always holds: a file is checked against its own header before any element is touched; an output
takes its name only when it is whole.
"""

from __future__ import annotations

import mmap
import os

from codegen.errors import InputError, OutputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 1 << 16
DEEPEST_HEADER = 8

# Our element types and how a header spells them, without the byte order. NumPy knows no bfloat16:
# ml_dtypes writes two bytes of no type, and so do we.
SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
_CODES = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


def dtype_of(descr: str) -> str:
    """Our name for '<f4' and the like; "" when we have none."""
    if descr[1:] == "V2":
        return "bfloat16"
    if descr[1:] == "b1":
        return "bool"
    kind, digits = descr[1:2], descr[2:]
    number = digits.isascii() and digits.isdigit()
    name = f"{_CODES.get(kind, '')}{8 * int(digits)}" if number else ""
    return name if name in SIZES and descr[:1] in "<>|=" else ""


def descr_of(dtype: str) -> str:
    """How a .npy header spells one of our element types."""
    if dtype == "bfloat16":
        return "<V2"
    kind = "b" if dtype == "bool" else dtype[0]
    return f"{'|' if SIZES[dtype] == 1 else '<'}{kind}{SIZES[dtype]}"


def contiguous_strides(shape: tuple[int, ...], size: int, fortran: bool = False) -> tuple[int, ...]:
    """Bytes between neighbours in each dim of a contiguous array."""
    strides = [size] * len(shape)
    dims = range(len(shape)) if fortran else range(len(shape) - 1, -1, -1)
    step = size
    for dim in dims:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def element_count(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


class ArrayFile:
    """A .npy file mapped for reading.

    buffer: the whole file; the first element is at `start`; `strides` are in bytes; `swapped` says
    that its byte order is not this machine's. Raises InputError for whatever is wrong with it,
    OutputError where it cannot be opened.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise OutputError(f"input {name}: cannot open {path}: {error.strerror}") from None
        try:
            self._open(fd)
        finally:
            os.close(fd)

    def _open(self, fd: int) -> None:
        status = os.fstat(fd)
        if status.st_mode & 0o170000 != 0o100000:
            raise self._wrong("is not a file", "a .npy file", "a directory, a pipe or a device")
        head = os.read(fd, 12)
        if head[:6] != MAGIC or len(head) < 10:
            found = "an empty file" if not head else f"a file that begins with {head[:6]!r}"
            raise self._wrong("is not a .npy file", "a file made by numpy.save", found)
        wide = head[6] > 1
        length = int.from_bytes(head[8:12] if wide else head[8:10], "little")
        self.start = (12 if wide else 10) + length
        if length > LONGEST_HEADER:
            raise self._wrong(
                "is damaged", f"a header of up to {LONGEST_HEADER} bytes", str(length)
            )
        if self.start > status.st_size:
            raise self._truncated(self.start, status.st_size)
        self._read_header(os.pread(fd, length, self.start - length))
        expected = self.start + element_count(self.shape) * SIZES[self.dtype]
        if status.st_size < expected:
            raise self._truncated(expected, status.st_size)
        self.buffer = mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)

    def _read_header(self, raw: bytes) -> None:
        try:
            header = parse_literal(raw.decode("utf-8"))
            descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
            whole = all(type(extent) is int and extent >= 0 for extent in shape)
        except (ValueError, KeyError, TypeError):
            whole = False
        if not whole or type(fortran) is not bool or type(shape) is not tuple or len(header) != 3:
            raise self._wrong(
                "has a damaged header", "descr, fortran_order and shape", ascii(raw[:80])
            )
        dtype = dtype_of(descr) if isinstance(descr, str) else ""
        if not dtype:
            raise self._wrong(
                "holds a type that programs do not have", ", ".join(SIZES), repr(descr)
            )
        self.dtype: str = dtype
        self.shape: tuple[int, ...] = shape
        self.fortran = fortran
        self.swapped = descr[0] == ">" and SIZES[dtype] > 1
        self.strides = contiguous_strides(shape, SIZES[dtype], self.fortran)

    def close(self) -> None:
        self.buffer.close()

    def _wrong(self, what: str, expected: str, found: str) -> InputError:
        return InputError(f"input {self.name}: {self.path} {what}", expected=expected, found=found)

    def _truncated(self, expected: int, found: int) -> InputError:
        return self._wrong("is truncated", f"{expected} bytes", f"{found} bytes")


def parse_literal(text: str) -> dict[str, Any]:
    """The Python literal of a .npy header: a dict of strings, numbers, truth values and tuples.

    Written here because `ast` costs every rank more time than its whole input. ValueError.
    """
    value, end = _value(text, 0, 0)
    if text[end:].strip() or not isinstance(value, dict):
        raise ValueError("no dict")
    return value


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    at = _skip(text, at)
    if depth > DEEPEST_HEADER or at >= len(text):
        raise ValueError("too deep, or nothing there")
    first = text[at]
    if first in "'\"":
        end = text.index(first, at + 1)
        return text[at + 1 : end], end + 1
    if first in "([{":
        return _sequence(text, at, depth)
    end = at
    while end < len(text) and text[end] not in ",:)]} \t\r\n":
        end += 1
    word = text[at:end]
    if word in ("True", "False"):
        return word == "True", end
    if len(word) > 20:
        raise ValueError("a number of that length")
    return int(word.rstrip("L")), end


def _sequence(text: str, at: int, depth: int) -> tuple[Any, int]:
    """A tuple, a list or a dict that begins at `at`."""
    first = text[at]
    close = {"(": ")", "[": "]", "{": "}"}[first]
    items: list[object] = []
    keys: list[object] = []
    at = _skip(text, at + 1)
    while at < len(text) and text[at] != close:
        item, at = _value(text, at, depth + 1)
        at = _skip(text, at)
        if first == "{":
            if text[at : at + 1] != ":" or not isinstance(item, str) or item in keys:
                raise ValueError("no key")
            keys.append(item)
            item, at = _value(text, at + 1, depth + 1)
            at = _skip(text, at)
        items.append(item)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != close:
            raise ValueError("no end")
    if at >= len(text):
        raise ValueError("no end")
    if first == "{":
        return dict(zip(keys, items)), at + 1
    return (tuple(items) if first == "(" else items), at + 1


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The head of a .npy file: elements follow at a multiple of 64 bytes, in C order."""
    text = f"{{'descr': '{descr_of(dtype)}', 'fortran_order': False, 'shape': {shape!r}, }}"
    length = -(-(10 + len(text) + 1) // 64) * 64 - 10
    return (
        MAGIC + b"\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"
    )


class OutputFile:
    """A .npy file under construction: `create` in one process, `attach` in every, then `commit`.

    The file is complete in length before anything is written (a full disk is noticed then), lies in
    the target's directory under another name, and replaces the target in one step.
    """

    def __init__(self, path: str, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.path = os.path.realpath(path)
        self.name, self.dtype, self.shape = name, dtype, shape
        self.head = header(dtype, shape)
        self.start = len(self.head)
        self.strides = contiguous_strides(shape, SIZES[dtype])
        self.part = ""

    def check(self) -> None:
        """Refuses what can be refused before anything has been computed."""
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise self._failed(f"there is no directory {folder}")
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise self._failed("it exists and is not a file")
        if not os.access(folder, os.W_OK):
            raise self._failed(f"directory {folder} may not be written to")

    def create(self) -> str:
        """Makes the file under another name, with all of its space, and returns that name."""
        folder, base = os.path.split(self.path)
        self.part = os.path.join(folder, f".{base}.{os.getpid()}.{os.urandom(4).hex()}.part")
        try:
            fd = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self.part = ""
            raise self._failed(error.strerror) from None
        try:
            os.posix_fallocate(fd, 0, self.start + element_count(self.shape) * SIZES[self.dtype])
            os.pwrite(fd, self.head, 0)
        except OSError as error:
            self.discard()
            raise self._failed(error.strerror) from None
        finally:
            os.close(fd)
        return self.part

    def attach(self, part: str) -> mmap.mmap:
        """The whole file, mapped for writing; the first element is at `start`."""
        try:
            fd = os.open(part, os.O_RDWR | os.O_CLOEXEC)
            try:
                return mmap.mmap(fd, 0)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._failed(error.strerror) from None

    def commit(self) -> None:
        """Gives the whole file its name; the one that was there before is replaced."""
        try:
            fd = os.open(self.part, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(self.part, self.path)
        except OSError as error:
            self.discard()
            raise self._failed(error.strerror) from None
        self.part = ""

    def discard(self) -> None:
        """Removes an unfinished file; the target stays as it was."""
        if self.part:
            try:
                os.unlink(self.part)
            except OSError:
                pass
        self.part = ""

    def _failed(self, why: str | None) -> OutputError:
        return OutputError(f"output {self.name}: cannot write {self.path}: {why}")
