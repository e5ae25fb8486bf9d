"""What the dynamic linker follows in an image: segments, dynamic entries, symbols, relocations.

In: the bytes of an ELF file. Out: nothing, or an ImageError.
Always holds: nothing is executed; all that the linker reads, writes or calls while it loads lies
where these tables say and was looked at here; nothing of the image runs before it is asked to.
Source: elf(5) and the gABI; glibc's elf/dl-load.c and elf/dl-reloc.c for what is trusted there.
"""

from __future__ import annotations

import struct

from codegen.errors import ImageError
from codegen.image.elf import damaged, printable, text_at

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from typing import NamedTuple

    class Segment(NamedTuple):
        kind: int
        flags: int
        offset: int
        address: int
        size: int  # bytes in the file
        room: int  # bytes in memory
        align: int
else:
    from collections import namedtuple

    Segment = namedtuple("Segment", "kind flags offset address size room align")

LIBRARIES = ("libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
MOST_MEMORY = 1 << 36  # bytes that an image may take as it is loaded

_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD, _DYNAMIC, _STACK, _RELRO = 1, 2, 0x6474E551, 0x6474E552
# Besides these: notes, the table itself, tables for unwinding, properties.
_KINDS = frozenset((_LOAD, _DYNAMIC, 4, 6, 0x6474E550, _STACK, _RELRO, 0x6474E553))
_EXECUTE, _WRITE = 1, 2

# Dynamic entries that only say where tables are and how to bind symbols. All others are refused.
_NEEDED, _PLTRELSZ, _GOT, _HASH, _STRINGS, _SYMBOLS, _RELA, _RELASZ, _RELAENT = range(1, 10)
_STRSZ, _SYMENT, _PLTREL, _JMPREL, _FLAGS, _RELRSZ, _RELR, _RELRENT = 10, 11, 20, 23, 30, 35, 36, 37
_GNU_HASH, _VERSIONS, _RELACOUNT = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFF9
_FLAGS_1, _VERNEED, _VERNEEDNUM = 0x6FFFFFFB, 0x6FFFFFFE, 0x6FFFFFFF
_HARMLESS = frozenset(
    (*range(1, 12), 16, _PLTREL, _JMPREL, 24, _FLAGS, _RELRSZ, _RELR, _RELRENT, _GNU_HASH,
     _VERSIONS, _RELACOUNT, _FLAGS_1, _VERNEED, _VERNEEDNUM, 0x70000001, 0x70000003, 0x70000005)
)
_REFUSED = {
    12: "an initialiser", 13: "a finaliser", 14: "a name for the linker", 15: "a library run path",
    22: "relocations in its code", 25: "constructors", 26: "destructors", 29: "a library run path",
    32: "constructors", 0x6FFFFEFB: "an audit library", 0x6FFFFEFC: "an audit library",
    0x7FFFFFFD: "an auxiliary library", 0x7FFFFFFF: "a filter",
}
_VALUES = {
    _SYMENT: (24,), _RELAENT: (24,), _RELRENT: (8,), _PLTREL: (_RELA,),
    _FLAGS: (0, 2, 8, 10), _FLAGS_1: (0, 1),  # symbolic, bound at once
}
# Of x86-64 and aarch64: relocations to a symbol, or to the image itself; what calls a resolver.
_TO_SYMBOL = (1, 6, 7, 257, 1025, 1026)
_RELATIVE = (8, 1027)
_RESOLVED = (37, 1032)
_THREAD_LOCAL, _INDIRECT = 6, 10  # kinds of symbols
_SPECIAL = 0xFF00  # section numbers from here on are none


def check_dynamic(data: bytes) -> None:
    """Raise ImageError unless there is no foreign library, no run path, nothing that runs when the
    file is only loaded, and no table that leads the dynamic linker astray. Follows the segments, as
    the linker does: the section table could say otherwise."""
    _Dynamic(data).check()


class _Dynamic:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.segments = list(_segments(data))
        self.loads = [s for s in self.segments if s.kind == _LOAD]
        self._check_segments()
        self.entries: dict[int, int] = {}

    # ---- segments ----------------------------------------------------------------------------

    def _check_segments(self) -> None:
        end = 0
        for s in self.loads:
            if s.align < 4096 or s.align & (s.align - 1) or (s.offset - s.address) % s.align:
                raise damaged(f"one at {s.address:#x} for {s.offset:#x}", "segments on pages")
            if s.address // s.align * s.align < end or s.room < s.size:
                raise damaged(f"one at {s.address:#x}",
                              "segments in order, each on pages of its own")
            end = -(-(s.address + s.room) // s.align) * s.align
        if not self.loads or end > MOST_MEMORY:
            raise damaged(f"{end} bytes", f"segments of at most {MOST_MEMORY} bytes")
        stacks = [s for s in self.segments if s.kind == _STACK]
        if len(stacks) != 1:
            raise damaged(f"{len(stacks)} of them", "one entry that says what the stack may do")
        for s in self.segments:
            if s.flags & _EXECUTE and (s.kind == _STACK or s.flags & _WRITE):
                raise ImageError(
                    "image has memory that can be written and executed",
                    expected="an image without", remedy="build the image again",
                )
            if s.kind == _RELRO and not any(
                w.flags & _WRITE and w.address <= s.address
                and s.address + s.room <= -(-(w.address + w.room) // w.align) * w.align
                for w in self.loads
            ):
                raise damaged(f"one at {s.address:#x}", "memory to protect within what is written")

    def place(self, address: int, size: int = 1, writes: bool = False) -> int:
        """Return the file offset of these bytes of memory; raise ImageError unless one segment has
        all of them."""
        for s in self.loads:
            if s.address <= address and address + size <= s.address + s.size:
                if not writes or s.flags & _WRITE:
                    return s.offset + address - s.address
        raise damaged(f"{size} bytes at address {address:#x} in no segment",
                      "tables within the file")

    def within(self, address: int, size: int = 0) -> bool:
        return any(s.address <= address and address + size <= s.address + s.room
                   for s in self.loads)

    # ---- entries -----------------------------------------------------------------------------

    def check(self) -> None:
        needed = list(self._read_entries())
        strings, length = self._required(_STRINGS), self._required(_STRSZ)
        offset = self.place(strings, length, writes=False)
        self.names = self.data[offset : offset + length]
        if not length or self.names[-1]:
            raise damaged("no end", "names that end with a zero byte")
        for value in needed:
            self._library(value)
        if _GOT in self.entries:
            self.place(self.entries[_GOT], 24, writes=True)
        count = self._symbols()
        self._hash_table(count)
        self._versions(count)
        self._relocations(count)

    def _read_entries(self) -> list[int]:
        segments = [s for s in self.segments if s.kind == _DYNAMIC]
        if len(segments) != 1:
            raise damaged(str(len(segments)), "one dynamic segment")
        self.dynamic = segments[0]
        first = self.place(self.dynamic.address, max(16, self.dynamic.room), writes=True)
        needed: list[int] = []
        for offset in range(first, first + self.dynamic.room - 15, 16):
            tag, value = struct.unpack_from("<QQ", self.data, offset)
            if tag == 0:
                return needed
            if tag not in _HARMLESS:
                raise ImageError(f"image has {_REFUSED.get(tag, 'an unknown dynamic entry')}",
                                 expected="an image without", found=f"dynamic entry {tag:#x}",
                                 remedy="build the image again")
            if tag == _NEEDED:
                needed.append(value)
            elif tag in self.entries or value not in _VALUES.get(tag, (value,)):
                raise damaged(f"{value:#x} for {tag:#x}", "each dynamic entry once, and its value")
            else:
                self.entries[tag] = value
        raise damaged("none", "an end of the dynamic segment")

    def _required(self, tag: int) -> int:
        if tag not in self.entries:
            raise damaged("none", f"a dynamic entry {tag:#x}")
        return self.entries[tag]

    def _name(self, offset: int) -> str:
        if offset >= len(self.names):
            raise damaged(f"one at {offset}", f"names within {len(self.names)} bytes")
        return text_at(self.names, offset)

    def _library(self, offset: int) -> None:
        name = self._name(offset)[:80]
        if name not in LIBRARIES:
            raise ImageError(
                f"image asks for the library {printable(name)}",
                expected="libm and libc only", found=printable(name),
                remedy="build the image again: spmd build links nothing else",
            )

    # ---- symbols -----------------------------------------------------------------------------

    def _symbols(self) -> int:
        """Return how many there are: linkers put the names right behind the symbols."""
        first, end = self._required(_SYMBOLS), self.entries[_STRINGS]
        if first >= end:
            raise damaged("symbols behind their names", "symbols before their names")
        count = (end - first) // 24
        offset = self.place(first, 24 * count)
        for k in range(count):
            name, info, _, section, value, size = struct.unpack_from(
                "<IBBHQQ", self.data, offset + 24 * k)
            self._name(name)
            if info & 15 == _INDIRECT:
                raise _indirect()
            if info & 15 == _THREAD_LOCAL or section >= _SPECIAL or (
                    section and not self.within(value, size)):
                raise damaged(printable(self._name(name)[:40]), "symbols within the image")
        return count

    def _hash_table(self, count: int) -> None:
        """Check the hash table by which the linker finds a name: every chain stays among the
        symbols and ends."""
        if _GNU_HASH in self.entries:
            self._gnu_hash(self.entries[_GNU_HASH], count)
        elif _HASH in self.entries:
            self._sysv_hash(self.entries[_HASH], count)
        else:
            raise damaged("none", "a table to find names by")
        if _HASH in self.entries and _GNU_HASH in self.entries:
            self._sysv_hash(self.entries[_HASH], count)

    def _gnu_hash(self, address: int, count: int) -> None:
        buckets, first, words, shift = struct.unpack_from(
            "<4I", self.data, self.place(address, 16))
        fits = buckets and first <= count and words and not words & (words - 1) and shift < 64
        if not fits or max(buckets, words) > 1 << 20:
            raise damaged(f"one of {buckets} rows", "a table of names")
        chains = max(0, count - first)
        offset = self.place(address, 16 + 8 * words + 4 * (buckets + chains)) + 16 + 8 * words
        starts = struct.unpack_from(f"<{buckets}I", self.data, offset)
        ends = struct.unpack_from(f"<{chains}I", self.data, offset + 4 * buckets)
        if any(s and not first <= s < count for s in starts) or (ends and not ends[-1] & 1):
            raise damaged("one beyond the symbols", "chains of names that end")

    def _sysv_hash(self, address: int, count: int) -> None:
        buckets, chains = struct.unpack_from("<2I", self.data, self.place(address, 8))
        if not 0 < buckets <= 1 << 20 or chains != count:
            raise damaged(f"one of {buckets} rows", "a table of names")
        offset = self.place(address, 8 + 4 * (buckets + chains)) + 8
        rows = struct.unpack_from(f"<{buckets + chains}I", self.data, offset)
        starts, following = rows[:buckets], rows[buckets:]
        if any(k >= count for k in rows):
            raise damaged("one beyond the symbols", "chains of names")
        for k in starts:
            for _ in range(count + 1):
                if not k:
                    break
                k = following[k]
            else:
                raise damaged("one without end", "chains of names that end")

    def _versions(self, count: int) -> None:
        """Check which symbol is wanted in which version of a library."""
        known = {0, 1}
        if _VERNEED in self.entries:
            address = self.entries[_VERNEED]
            for _ in range(min(self.entries.get(_VERNEEDNUM, 0), 16)):
                known |= self._version_row(address)
                (more,) = struct.unpack_from("<12xI", self.data, self.place(address, 16))
                address += more
                if not more:
                    break
            else:
                raise damaged("more", "as many versions as are said")
        if _VERSIONS in self.entries:
            place = self.place(self.entries[_VERSIONS], 2 * count)
            for version in struct.unpack_from(f"<{count}H", self.data, place):
                if version & 0x7FFF not in known:
                    raise damaged(f"version {version}", "versions that the image names")

    def _version_row(self, address: int) -> set[int]:
        """Return the numbers of the versions of one library."""
        revision, count, library, first = struct.unpack_from(
            "<HHII", self.data, self.place(address, 16))
        self._library(library)
        versions: set[int] = set()
        if revision != 1 or not 0 < count <= 256:
            raise damaged(f"{count} of revision {revision}", "versions of a library")
        row = address + first
        for k in range(count):
            _, _, number, name, more = struct.unpack_from(
                "<IHHII", self.data, self.place(row, 16))
            self._name(name)
            versions.add(number & 0x7FFF)
            if (more == 0) != (k == count - 1):
                raise damaged("another number", "as many versions as are said")
            row += more
        return versions

    # ---- relocations -------------------------------------------------------------------------

    def _relocations(self, count: int) -> None:
        for table, size in ((_RELA, _RELASZ), (_JMPREL, _PLTRELSZ)):
            length = self.entries.get(size, 0)
            if (table in self.entries) != bool(length) or length % 24:
                raise damaged(f"{length} bytes", "relocations of 24 bytes")
            offset = self.place(self.entries[table], length) if length else 0
            leading = self.entries.get(_RELACOUNT, 0) if table == _RELA else 0
            if leading * 24 > length:
                raise damaged(f"{leading} first ones", "as many relocations as are said")
            for k in range(length // 24):
                where, kind, symbol, addend = struct.unpack_from("<QIIq", self.data,
                                                                 offset + 24 * k)
                if kind in _RESOLVED:
                    raise _indirect()
                relative = kind in _RELATIVE
                known = relative or kind in _TO_SYMBOL
                if not known or symbol >= count or (k < leading and not relative):
                    raise damaged(f"kind {kind} of symbol {symbol}", "relocations of known kinds")
                self._written(where)
                if relative and not self.within(addend):
                    raise damaged(f"one to {addend:#x}", "relocations within the image")
        self._packed_relocations()

    def _packed_relocations(self) -> None:
        """Check packed relocations, of which an even word is an address; an odd one says which of
        the 63 words that follow it."""
        length = self.entries.get(_RELRSZ, 0)
        if (_RELR in self.entries) != bool(length) or length % 8:
            raise damaged(f"{length} bytes", "packed relocations of 8 bytes")
        if not length:
            return
        offset, where = self.place(self.entries[_RELR], length), 0
        for (word,) in struct.iter_unpack("<Q", self.data[offset : offset + length]):
            places = [word] if not word & 1 else [
                where + 8 * k for k in range(63) if word >> (k + 1) & 1]
            where = word + 8 if not word & 1 else where + 8 * 63
            for address in places:
                self._written(address)
                (to,) = struct.unpack_from("<Q", self.data, self.place(address, 8))
                if not self.within(to):
                    raise damaged(f"one to {to:#x}", "relocations within the image")

    def _written(self, where: int) -> None:
        """Check that the linker may write these 8 bytes, and reads none of its tables there."""
        self.place(where, 8, writes=True)
        first = self.dynamic.address
        if first - 8 < where < first + self.dynamic.room:
            raise damaged(f"one at {where:#x}", "relocations beside the dynamic segment")


def _segments(data: bytes) -> list[Segment]:
    start, entry, count = struct.unpack_from("<32xQ14xHH", data)
    if entry != _SEGMENT.size or not 0 < count <= 32 or start + count * entry > len(data):
        raise damaged(f"{count} of {entry} bytes at {start}", "a table of segments")
    segments = []
    for k in range(count):
        kind, flags, offset, address, _, size, room, align = _SEGMENT.unpack_from(
            data, start + k * entry)
        if offset + size > len(data) or kind not in _KINDS:
            raise damaged(f"kind {kind:#x} up to byte {offset + size}",
                          f"segments of known kinds within {len(data)} bytes")
        segments.append(Segment(kind, flags, offset, address, size, room, align))
    return segments


def _indirect() -> ImageError:
    return ImageError("image has an indirect function", expected="an image without",
                      found="code that runs while the file is loaded",
                      remedy="build the image again")
