"""ELF files as images are: the machine and the sections.

Goes in: bytes that nobody has checked yet. Comes out: names and places, or an ImageError.
Always holds: nothing is executed; every offset is checked against the file before it is used; only
cheap modules of the standard library are imported.
"""

from __future__ import annotations

import struct

from codegen.errors import ImageError

Sections = dict[str, tuple[int, int]]  # name -> (offset, size)

MOST_SECTIONS = 64
OURS = (".spmd.index", ".spmd.manifest", ".spmd.notes", ".spmd.digest")
MACHINES = {62: "x86-64", 183: "aarch64", 243: "riscv64", 21: "ppc64", 22: "s390x"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SHARED_OBJECT = 3
_NOBITS = 8  # a section that occupies no space in the file


def damaged(found: str, expected: str) -> ImageError:
    return ImageError("damaged image", expected=expected, found=found,
                      remedy="copy or build the image again")


def printable(text: str) -> str:
    """Return a text without terminal escapes: what is no plain character is shown by its number."""
    return "".join(c if c.isprintable() else _escaped(ord(c)) for c in text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


# ---- sections ------------------------------------------------------------------------------------


def read_sections(data: bytes) -> tuple[str, Sections]:
    """Return the machine and the sections of an image."""
    try:
        machine, sections = _read_sections(data)
        if all(name in sections for name in OURS):
            return machine, sections
        raise ImageError("not an spmd image", expected=f"an ELF file with sections {OURS[0]} …",
                         found="an ELF file without them",
                         remedy="spmd build FILE.py makes one")
    except ImageError:
        if not _was_whole(data):
            raise
    raise ImageError("digest mismatch in section headers",
                     remedy="the file was changed: copy or build it again")


def _read_sections(data: bytes) -> tuple[str, Sections]:
    if len(data) < 4 or data[:4] != b"\x7fELF":
        content = "an empty file" if not data else f"{len(data)} bytes that begin with {data[:4]!r}"
        raise ImageError("not an spmd image", expected="an ELF shared object", found=content,
                         remedy="spmd build FILE.py makes an image")
    if len(data) < _HEADER.size:
        raise _truncated(_HEADER.size, len(data))
    header = _HEADER.unpack_from(data)
    ident, kind, machine, table, entry, count, names = header[:3] + header[6:7] + header[11:]
    if ident[4:6] != b"\x02\x01" or kind != _SHARED_OBJECT or entry != _SECTION.size or not count:
        raise ImageError("not an spmd image", expected="a 64-bit little-endian ELF shared object",
                         found="an ELF file of another kind")
    if table + count * entry != len(data):
        raise _truncated(table + count * entry, len(data))
    if count > MOST_SECTIONS or names >= count:
        raise ImageError("not an spmd image", expected=f"at most {MOST_SECTIONS} sections, named",
                         found=f"{count}, their names in number {names}")
    rows = [_SECTION.unpack_from(data, table + k * entry) for k in range(count)]
    for row in rows:
        if row[1] != _NOBITS and row[4] + row[5] > len(data):
            raise damaged(f"a section up to byte {row[4] + row[5]}",
                          f"sections within {len(data)} bytes")
    text = data[rows[names][4] : rows[names][4] + rows[names][5]]
    sections: Sections = {}
    for row in rows:
        name = text_at(text, row[0])
        if name in sections:
            raise damaged("two", f"one section {printable(name)}")
        sections[name] = (row[4], 0 if row[1] == _NOBITS else row[5])
    _refuse_overlap(sections)
    return MACHINES.get(machine, f"machine {machine}"), sections


def text_at(table: bytes, offset: int) -> str:
    return table[offset : table.find(b"\0", offset)].decode("ascii", "replace")


def _refuse_overlap(sections: Sections) -> None:
    """Raise ImageError if two sections share a byte: what is patched, or not in the digest, is
    nothing else."""
    end, before = 0, ""
    for offset, size, name in sorted((o, s, n) for n, (o, s) in sections.items() if s):
        if offset < end:
            raise damaged(f"{printable(before)} overlaps {printable(name)}", "sections apart")
        end, before = offset + size, name


def _truncated(expected: int, found: int) -> ImageError:
    problem = "truncated image" if found < expected else "image with bytes behind its end"
    return ImageError(f"{problem}: expected {expected} bytes, got {found}",
                      remedy="copy or build the image again")


def _was_whole(data: bytes) -> bool:
    """Return whether this was an image before a few bits of its headers changed; it was not cut
    off.

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
