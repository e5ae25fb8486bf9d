"""ELF files as images are: the machine, the sections, what the dynamic linker would do with them.

Goes in: bytes that nobody has checked yet. Comes out: names and places, or an ImageError.
Always holds: nothing is executed; every offset is checked against the file before it is used; only
cheap modules of the standard library are imported.
"""

from __future__ import annotations

import struct

from codegen.errors import ImageError

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from collections.abc import Iterator

Sections = dict[str, tuple[int, int]]  # name -> (offset, size)
Segment = tuple[int, int, int, int, int]  # kind, flags, offset, bytes in the file, address

MOST_SECTIONS = 64
OURS = (".spmd.index", ".spmd.manifest", ".spmd.notes", ".spmd.digest")
MACHINES = {62: "x86-64", 183: "aarch64", 243: "riscv64", 21: "ppc64", 22: "s390x"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SHARED_OBJECT = 3
_NOBITS = 8  # a section that occupies no space in the file

LIBRARIES = ("libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")


def damaged(found: str, expected: str) -> ImageError:
    return ImageError("damaged image", expected=expected, found=found,
                      remedy="copy or build the image again")  # fmt: skip


def printable(text: str) -> str:
    """Without terminal escapes: what is no plain character is shown by its number."""
    return "".join(c if c.isprintable() else _escaped(ord(c)) for c in text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


# ---- sections ------------------------------------------------------------------------------------


def read_sections(data: bytes) -> tuple[str, Sections]:
    """The machine and the sections of an image."""
    try:
        machine, sections = _read_sections(data)
        if all(name in sections for name in OURS):
            return machine, sections
        raise ImageError("not an spmd image", expected=f"an ELF file with sections {OURS[0]} …",
                         found="an ELF file without them",
                         remedy="python -m spmd build program.py makes one")  # fmt: skip
    except ImageError:
        if not _was_whole(data):
            raise
    raise ImageError("digest mismatch in section headers",
                     remedy="the file was changed: copy or build it again")  # fmt: skip


def _read_sections(data: bytes) -> tuple[str, Sections]:
    if len(data) < 4 or data[:4] != b"\x7fELF":
        found = "an empty file" if not data else f"{len(data)} bytes that begin with {data[:4]!r}"
        raise ImageError("not an spmd image", expected="an ELF shared object", found=found,
                         remedy="python -m spmd build program.py makes an image")  # fmt: skip
    if len(data) < _HEADER.size:
        raise _truncated(_HEADER.size, len(data))
    header = _HEADER.unpack_from(data)
    ident, kind, machine, table, entry, count, names = header[:3] + header[6:7] + header[11:]
    if ident[4:6] != b"\x02\x01" or kind != _SHARED_OBJECT or entry != _SECTION.size or not count:
        raise ImageError("not an spmd image", expected="a 64-bit little-endian ELF shared object",
                         found="an ELF file of another kind")  # fmt: skip
    if table + count * entry != len(data):
        raise _truncated(table + count * entry, len(data))
    if count > MOST_SECTIONS or names >= count:
        raise ImageError("not an spmd image", expected=f"at most {MOST_SECTIONS} sections, named",
                         found=f"{count}, their names in number {names}")  # fmt: skip
    rows = [_SECTION.unpack_from(data, table + k * entry) for k in range(count)]
    for row in rows:
        if row[1] != _NOBITS and row[4] + row[5] > len(data):
            raise damaged(f"a section up to byte {row[4] + row[5]}",
                          f"sections within {len(data)} bytes")  # fmt: skip
    text = data[rows[names][4] : rows[names][4] + rows[names][5]]
    sections: Sections = {}
    for row in rows:
        name = _text(text, row[0])
        if name in sections:
            raise damaged("two", f"one section {printable(name)}")
        sections[name] = (row[4], 0 if row[1] == _NOBITS else row[5])
    _refuse_overlap(sections)
    return MACHINES.get(machine, f"machine {machine}"), sections


def _text(table: bytes, at: int) -> str:
    return table[at : table.find(b"\0", at)].decode("ascii", "replace")


def _refuse_overlap(sections: Sections) -> None:
    """No two sections share a byte: what is patched, or not in the digest, is nothing else."""
    end, before = 0, ""
    for offset, size, name in sorted((o, s, n) for n, (o, s) in sections.items() if s):
        if offset < end:
            raise damaged(f"{printable(before)} overlaps {printable(name)}", "sections apart")
        end, before = offset + size, name


def _truncated(expected: int, found: int) -> ImageError:
    what = "truncated image" if found < expected else "image with bytes behind its end"
    return ImageError(f"{what}: expected {expected} bytes, got {found}",
                      remedy="copy or build the image again")  # fmt: skip


def _was_whole(data: bytes) -> bool:
    """Whether this was an image before a few bits of its headers changed; it was not cut off.

    The linker puts the section table last, its first row zero, the section of names in its last.
    """
    if len(data) < 16 * _SECTION.size or sum(name.encode() in data for name in OURS) < 2:
        return False
    table, count, names = struct.unpack_from("<40xQ12xHH", data)
    if table + count * _SECTION.size == len(data):
        return True
    left, over = divmod(len(data) - table, _SECTION.size)
    if over == 0 and left == names + 1:  # the count was changed
        return True
    start = len(data) - count * _SECTION.size  # the table's offset was changed
    if count != names + 1 or start <= 0 or any(data[start : start + _SECTION.size]):
        return False
    row = _SECTION.unpack_from(data, start + names * _SECTION.size)
    return OURS[0].encode() in data[row[4] : min(row[4] + row[5], start)]


# ---- what the dynamic linker would do ------------------------------------------------------------

# Entries that only say where tables are and how to bind symbols: elf(5). All others are refused.
_HARMLESS = frozenset(
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 20, 23, 24, 30, 35, 36, 37, 0x6FFFFEF5, 0x6FFFFFF0,
     0x6FFFFFF9, 0x6FFFFFFB, 0x6FFFFFFE, 0x6FFFFFFF, 0x70000001, 0x70000003, 0x70000005)
)  # fmt: skip
_REFUSED = {
    12: "an initialiser", 13: "a finaliser", 14: "a name for the linker", 15: "a library run path",
    22: "relocations in its code", 25: "constructors", 26: "destructors", 29: "a library run path",
    32: "constructors", 0x6FFFFEFB: "an audit library", 0x6FFFFEFC: "an audit library",
    0x7FFFFFFD: "an auxiliary library", 0x7FFFFFFF: "a filter",
}  # fmt: skip
_NEEDED, _STRINGS, _SYMBOLS = 1, 5, 6
_RELOCATIONS = ((7, 8), (23, 2))  # where they are, how many bytes
_RESOLVED = {62: 37, 183: 1032}  # the relocation that calls a resolver, by machine
_INDIRECT = 10  # a symbol that is a resolver
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_EXECUTE, _WRITE = 1, 2


def check_dynamic(data: bytes) -> None:
    """No foreign library, no run path, nothing that runs when the file is only loaded.

    Follows the segments, as the dynamic linker does: the section table could say otherwise.
    """
    segments = _segments(data)
    entries = list(_dynamic_entries(data, segments))
    table = dict(entries)  # the linker too keeps the last of each
    for tag, value in entries:
        if tag not in _HARMLESS:
            raise ImageError(f"image has {_REFUSED.get(tag, 'an unknown dynamic entry')}",
                             expected="an image without", found=f"dynamic entry {tag:#x}",
                             remedy="build the image again")  # fmt: skip
        if tag == _NEEDED:
            name = _text(data, _file_offset(segments, table.get(_STRINGS, 0)) + value)[:80]
            if name not in LIBRARIES:
                raise ImageError(
                    f"image asks for the library {printable(name)}",
                    expected="libm and libc only", found=printable(name),
                    remedy="build the image again: spmd build links nothing else",
                )  # fmt: skip
    if _has_indirect_function(data, segments, table):
        raise ImageError("image has an indirect function", expected="an image without",
                         found="code that runs while the file is loaded",
                         remedy="build the image again")  # fmt: skip


def _segments(data: bytes) -> list[Segment]:
    start, entry, count = struct.unpack_from("<32xQ14xHH", data)
    if entry != _SEGMENT.size or not 0 < count <= 32 or start + count * entry > len(data):
        raise damaged(f"{count} of {entry} bytes at {start}", "a table of segments")
    out: list[Segment] = []
    end = 0
    for k in range(count):
        kind, flags, offset, address, _, size, room, _ = _SEGMENT.unpack_from(
            data, start + k * entry
        )
        if offset + size > len(data):
            raise damaged(f"a segment up to byte {offset + size}", f"at most {len(data)}")
        if kind == _LOAD:
            if address < end or room < size:
                raise damaged(f"one at {address:#x}", "segments apart and in order")
            end = address + room
        code = flags & _EXECUTE
        if (kind == _STACK and code) or (kind == _LOAD and code and flags & _WRITE):
            raise ImageError(
                "image has memory that can be written and executed",
                expected="an image without", remedy="build the image again",
            )  # fmt: skip
        out.append((kind, flags, offset, size, address))
    return out


def _dynamic_entries(data: bytes, segments: list[Segment]) -> Iterator[tuple[int, int]]:
    found = [s for s in segments if s[0] == _DYNAMIC]
    if len(found) != 1:
        raise damaged(str(len(found)), "one dynamic segment")
    first = _file_offset(segments, found[0][4])
    for at in range(first, min(first + found[0][3], len(data)) - 15, 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        if tag == 0:
            return
        yield tag, value
    raise damaged("none", "an end of the dynamic segment")


def _file_offset(segments: list[Segment], address: int) -> int:
    for kind, _, offset, size, start in segments:
        if kind == _LOAD and start <= address < start + size:
            return offset + address - start
    raise damaged(f"address {address:#x} in no segment", "tables within the file")


def _has_indirect_function(data: bytes, segments: list[Segment], table: dict[int, int]) -> bool:
    """A relocation that calls a resolver, or a symbol that is one (STT_GNU_IFUNC)."""
    (machine,) = struct.unpack_from("<18xH", data)
    for where, size in _RELOCATIONS:
        if where in table and table.get(size, 0):
            at = _file_offset(segments, table[where])
            for row in range(at, min(at + table[size], len(data)) - 23, 24):
                if struct.unpack_from("<8xI", data, row)[0] == _RESOLVED.get(machine):
                    return True
    if _SYMBOLS not in table:
        return False
    first, end = (_file_offset(segments, table.get(tag, 0)) for tag in (_SYMBOLS, _STRINGS))
    if first >= end:  # linkers put the names right behind the symbols: so we know how many
        raise damaged("symbols behind their names", "symbols before their names")
    return any(data[at + 4] & 15 == _INDIRECT for at in range(first, end - 23, 24))
