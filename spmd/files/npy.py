"""NumPy's .npy format without NumPy: element types, headers read and written.

In: bytes, or a dtype and a shape. Out: where the elements lie, or all of a file but those.
Always holds: a file is checked against its own header before any element is touched.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable
    from typing import Any

    from codegen.errors import InputError

    Wrong = Callable[[str, str, str], InputError]

AT_ONCE = 1 << 22  # bytes that are read or converted at a time
MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 1 << 16  # bytes; a longer one is no header, and is not read into memory
MOST_DIMS = 64  # as many as NumPy 2 allows

# Our element types and how a header spells them, without the byte order. NumPy knows no bfloat16:
# ml_dtypes writes two bytes of no type, and so do we.
SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}
_CODES = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


def dtype_of(descr: str) -> str:
    """Return our name for '<f4' and the like; "" when we have none."""
    if descr[1:] == "V2":
        return "bfloat16"
    if descr[1:] == "b1":
        return "bool"
    kind, digits = descr[1:2], descr[2:]
    number = digits.isascii() and digits.isdigit() and len(digits) <= 2
    name = f"{_CODES.get(kind, '')}{8 * int(digits)}" if number else ""
    return name if name in SIZES and descr[:1] in "<>|=" else ""


def descr_of(dtype: str) -> str:
    """Return how a .npy header spells one of our element types."""
    if dtype == "bfloat16":
        return "<V2"
    kind = "b" if dtype == "bool" else dtype[0]
    return f"{'|' if SIZES[dtype] == 1 else '<'}{kind}{SIZES[dtype]}"


def contiguous_strides(shape: tuple[int, ...], size: int, fortran: bool = False) -> tuple[int, ...]:
    """Return bytes between neighbours in each dim of a contiguous array."""
    strides = [size] * len(shape)
    dims = range(len(shape)) if fortran else range(len(shape) - 1, -1, -1)
    step = size
    for dim in dims:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def element_count(shape: Iterable[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


class Elements:
    """The place of an array's elements: from byte `start`, neighbours `strides` bytes apart.

    end: behind the last of them, in C order. swapped: their byte order is not this machine's.
    inflate(low, high, processes, available): the bytes that `start` counts in, where those of the
    file are compressed; only low to high need to be there, and as much again in other processes;
    available: bytes for all of them together. sum: of compressed bytes, as the archive has it.
    """

    def __init__(
        self, start: int, dtype: str, shape: tuple[int, ...], fortran: bool = False,
        swapped: bool = False,
    ) -> None:
        self.start, self.dtype, self.shape, self.swapped = start, dtype, shape, swapped
        self.strides = contiguous_strides(shape, SIZES[dtype], fortran)
        self.end = start + element_count(shape) * SIZES[dtype]
        self.inflate: Callable[[int, int, int, int], mmap.mmap] | None = None
        self.sum = 0


class Frame:
    """All of a file but its elements. starts: where those of each array begin.

    pieces: bytes and where they lie. sums: (first, end, places): the CRC-32 of these bytes, which
    are known last, goes to each of these places.
    """

    def __init__(
        self, size: int, pieces: list[tuple[int, bytes]], starts: list[int],
        sums: list[tuple[int, int, tuple[int, ...]]] | None = None,
    ) -> None:
        self.size, self.pieces, self.starts, self.sums = size, pieces, starts, sums or []


def frame(arrays: list[tuple[str, str, tuple[int, ...]]]) -> Frame:
    """Return a file of the one array (its name, dtype, shape)."""
    _, dtype, shape = arrays[0]
    head = header(dtype, shape)
    return Frame(len(head) + element_count(shape) * SIZES[dtype], [(0, head)], [len(head)])


def elements(
    read: Callable[[int, int], bytes], start: int, length: int, wrong: Wrong
) -> Elements:
    """Return what the `length` bytes of a .npy file, from byte `start` on, say of its elements.

    read(at, count): bytes of the header. Raises what wrong(what, expected, found) makes.
    """
    head = read(start, min(12, length))
    if head[:6] != MAGIC or len(head) < 10:
        actual = "an empty file" if not head else f"a file that begins with {head[:6]!r}"
        raise wrong("is not a .npy file", "a file made by numpy.save", actual)
    wide = head[6] > 1
    size = int.from_bytes(head[8:12] if wide else head[8:10], "little")
    first = (12 if wide else 10) + size
    if size > LONGEST_HEADER:
        raise wrong("is damaged", f"a header of up to {LONGEST_HEADER} bytes", str(size))
    if first > length:
        raise truncated(wrong, first, length)
    raw = read(start + first - size, size)
    described = _described(raw, start + first, wrong)
    if described.end > start + length:
        raise truncated(wrong, described.end - start, length)
    return described


def _described(raw: bytes, start: int, wrong: Wrong) -> Elements:
    try:
        header = parse_literal(raw.decode("utf-8"))
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        whole = is_shape(shape)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole or type(fortran) is not bool or type(shape) is not list or len(header) != 3:
        raise wrong("has a damaged header", "descr, fortran_order and shape", ascii(raw[:80]))
    dtype = dtype_of(descr) if isinstance(descr, str) else ""
    if not dtype:
        raise wrong("holds a type that programs do not have", ", ".join(SIZES), repr(descr))
    return Elements(start, dtype, tuple(shape), fortran, descr[0] == ">" and SIZES[dtype] > 1)


def is_shape(shape: Any) -> bool:
    """Return whether these are extents from 0, as many as NumPy allows: a product of more would
    take its time."""
    return len(shape) <= MOST_DIMS and all(type(n) is int and 0 <= n < 1 << 63 for n in shape)


def truncated(wrong: Wrong, expected: int, found: int) -> InputError:
    return wrong("is truncated", f"{expected} bytes", f"{found} bytes")


def parse_literal(text: str) -> dict[str, Any]:
    """Return the Python literal of a .npy header: a dict of strings, numbers, truth values and
    tuples.

    Read as JSON: `ast` costs every rank more time than its whole input. ValueError.
    """
    text = _PYTHON.sub(lambda match: _AS_JSON.get(match[0], ""), text)
    try:
        value = json.loads(text, object_pairs_hook=_without_twins)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(value, dict):
        raise ValueError("no dict")
    return value


# What the two write apart; what JSON does not have at all is left out: the comma before an end.
_AS_JSON = {"'": '"', "(": "[", ")": "]", "True": "true", "False": "false"}
_PYTHON = re.compile(r"['()]|True|False|,(?=\s*[)\]}])|(?<=\d)L")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name twice")
    return entries


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the head of a .npy file: elements follow at a multiple of 64 bytes, in C order."""
    text = f"{{'descr': '{descr_of(dtype)}', 'fortran_order': False, 'shape': {shape!r}, }}"
    length = -(-(10 + len(text) + 1) // 64) * 64 - 10
    return (
        MAGIC + b"\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"
    )
