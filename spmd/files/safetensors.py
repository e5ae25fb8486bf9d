"""Files of the safetensors format: a header in JSON, then the elements of every array in turn.

In: a mapped file, or arrays by name. Out: where the elements of one lie, or all of a file but its
elements. Always holds: the arrays of a file that is read cover it without gaps and overlaps.
"""

from __future__ import annotations

import json

from codegen.errors import UsageError
from spmd.files import npy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.files.inputs import InputFile

LONGEST_HEADER = 100_000_000  # bytes, as the format has it
METADATA = "__metadata__"  # the one key that is no array
ALIGNMENT = 64  # of elements: a cache line, and a multiple of every element's size

DTYPES = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


class StoredArray:
    """One array of a file: its elements are bytes start to end."""

    def __init__(self, code: str, shape: tuple[int, ...], start: int, end: int) -> None:
        self.code, self.shape, self.start, self.end = code, shape, start, end


def members(file: InputFile) -> dict[str, StoredArray]:
    """Return the arrays of a file by name. InputError for a damaged one."""
    size = int.from_bytes(file.read(0, 8), "little")
    if file.length < 8:
        raise file.wrong("is not a .safetensors file", "8 bytes and more", f"{file.length} bytes")
    if size > LONGEST_HEADER:
        begins = f"{size} bytes; the file begins with {file.read(0, 8)!r}"
        raise file.wrong(
            "is not a .safetensors file", f"a header of up to {LONGEST_HEADER} bytes", begins
        )
    if 8 + size > file.length:
        raise npy.truncated(file.wrong, 8 + size, file.length)
    header = _parsed(file, file.read(8, size))
    header.pop(METADATA, None)
    by_name = {name: _member(file, name, row, 8 + size) for name, row in header.items()}
    end = 8 + size
    for name, member in sorted(by_name.items(), key=lambda item: (item[1].start, item[1].end)):
        if member.start != end:
            problem = "overlaps" if member.start < end else "a gap before"
            raise file.wrong(
                "is damaged", "arrays that lie one after the other",
                f"{problem} {name!r}: it begins at byte {member.start}, "
                f"the one before ends at {end}",
            )
        end = member.end
    if end > file.length:
        raise npy.truncated(file.wrong, end, file.length)
    if end < file.length:
        raise file.wrong("is damaged", f"{end} bytes", f"{file.length} bytes")
    return by_name


def _parsed(file: InputFile, raw: bytes) -> dict[str, Any]:
    """Return the header of a file. Whatever is wrong with its JSON is an InputError."""
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            last = {key: k for k, (key, _) in enumerate(pairs)}
            twice = next(key for k, (key, _) in enumerate(pairs) if last[key] != k)
            raise file.wrong("has a damaged header", "names that differ", f"{twice!r} twice")
        return entries

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or raw[:1] != b"{":
        raise file.wrong("has a damaged header", "an object in JSON", ascii(raw[:80]))
    return header


def _member(file: InputFile, name: str, row: Any, base: int) -> StoredArray:
    """Return one entry of the header, whose offsets count from byte `base`."""
    try:
        code, shape, (begin, end) = row["dtype"], row["shape"], row["data_offsets"]
        sound = npy.is_shape(shape) and npy.is_shape((begin, end)) and begin <= end
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound or not isinstance(code, str) or not isinstance(shape, list):
        raise file.wrong(
            "has a damaged header", "dtype, shape and data_offsets", f"{name!r}: {ascii(row)[:80]}"
        )
    if code in DTYPES:
        size = npy.element_count(shape) * npy.SIZES[DTYPES[code]]
        if end - begin != size:
            raise file.wrong(
                "is damaged", f"{size} bytes for {name!r}, {code} {shape}", f"{end - begin} bytes"
            )
    return StoredArray(code, tuple(shape), base + begin, base + end)


def elements(file: InputFile, member: StoredArray) -> npy.Elements:
    """Return where the elements of an array lie in the file."""
    if member.code not in DTYPES:
        raise file.wrong(
            "holds a type that programs do not have", ", ".join(DTYPES), repr(member.code)
        )
    return npy.Elements(member.start, DTYPES[member.code], member.shape)


def frame(arrays: list[tuple[str, str, tuple[int, ...]]]) -> npy.Frame:
    """Return a file of arrays (name, dtype, shape). UsageError for what the format cannot hold.

    It allows no gaps: the array that comes first begins at a multiple of 64 bytes, and those of the
    largest elements come first, so that every element lies at a multiple of its size.
    """
    for name, dtype, _ in arrays:
        if dtype not in CODES or name == METADATA:
            raise UsageError(
                f"a .safetensors file cannot hold {name}: {dtype}",
                expected=f"{', '.join(CODES)}; any name but {METADATA}", remedy="a .npz file",
            )
    order = sorted(range(len(arrays)), key=lambda k: -npy.SIZES[arrays[k][1]])
    header, starts, offset = {}, [0] * len(arrays), 0
    for k in order:
        name, dtype, shape = arrays[k]
        starts[k] = offset
        offset += npy.element_count(shape) * npy.SIZES[dtype]
        header[name] = {"dtype": CODES[dtype], "shape": shape, "data_offsets": (starts[k], offset)}
    text = json.dumps(header, separators=(",", ":")).encode()
    base = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT
    head = (base - 8).to_bytes(8, "little") + text.ljust(base - 8)
    return npy.Frame(base + offset, [(0, head)], [base + start for start in starts])
