"""NumPy's .npz files: .npy files as members of a zip archive, read and laid out.

In: a mapped file, or arrays by name. Out: where a member's elements lie, or all of a file but its
elements. Always holds: what a damaged directory can make us read is bounded by the file's length;
elements are written at multiples of 64 bytes, members beyond 4 GiB as zip64.
"""

from __future__ import annotations

import mmap
import zlib
from struct import Struct, pack, unpack_from

from spmd.files import npy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from spmd.files.inputs import InputFile

# Records of a zip archive, as APPNOTE.TXT 4.3 numbers their fields. They are read here and not by
# zipfile, since every rank with such an input would import that: 10 ms of CPU time beside the 50 of
# all else that it imports (Python 3.11). Of 1,000 members a directory takes 4 ms here, 2 ms there.
# Layouts of new files need the records anyway: zipfile cannot write what ranks write at once.
LOCAL = Struct("<4s5H3L2H")
ENTRY = Struct("<4s6H3L5H2L")
END = Struct("<4s4H2LH")
END64 = Struct("<4sQ2H2L4Q")
LOCATOR = Struct("<4sLQL")
LOCAL_MARK, ENTRY_MARK, END_MARK = b"PK\3\4", b"PK\1\2", b"PK\5\6"
END64_MARK, LOCATOR_MARK = b"PK\6\6", b"PK\6\7"
CRC_IN_LOCAL, CRC_IN_ENTRY = 14, 16  # bytes from the start of the record

WIDE, MANY = 0xFFFFFFFF, 0xFFFF  # fields that say: see the zip64 record
SIZES_ID, PADDING_ID = 1, 0xD935  # extra fields: zip64; filler, as zipalign writes it
STORED, DEFLATED = 0, 8
ENCRYPTED, UTF8 = 1, 0x800
JANUARY_1980 = 0x21  # the first day there is: files do not differ by when they were made
DENSEST = 1032  # bytes that one byte of a deflated member stands for, at most
ALIGNMENT = 64  # of elements, as numpy.save has it: a cache line
AT_ONCE = 1 << 18  # bytes that are read, and inflated, in one step


class NpzMember:
    """One row of the archive's directory. end: where the next member, or the directory, begins."""

    def __init__(
        self, raw: bytes, flags: int, method: int, crc: int, packed: int, size: int, offset: int
    ) -> None:
        self.raw, self.flags, self.method, self.crc = raw, flags, method, crc
        self.packed, self.size, self.offset, self.end = packed, size, offset, 0


def members(file: InputFile) -> dict[str, NpzMember]:
    """Return the members of an archive by name, as NumPy names them. InputError for a damaged
    one."""
    offset, end, count = _directory(file)
    first = offset
    by_name: dict[str, NpzMember] = {}
    for number in range(count):
        if offset + ENTRY.size > end:
            raise file.wrong("is damaged", f"a directory of {count} members", f"{number} of them")
        mark, _, _, flags, method, _, _, crc, packed, size, *lengths, _, _, _, local = (
            ENTRY.unpack(file.read_all(offset, ENTRY.size))
        )
        stop = offset + ENTRY.size + sum(lengths)
        if mark != ENTRY_MARK or stop > end:
            raise file.wrong("is damaged", f"a directory of {count} members", f"{number} of them")
        raw = file.read(offset + ENTRY.size, lengths[0])
        extra = file.read(offset + ENTRY.size + lengths[0], lengths[1])
        size, packed, local = _widened(file, extra, [size, packed, local])
        name = raw.decode("utf-8" if flags & UTF8 else "cp437", "replace").removesuffix(".npy")
        if name in by_name:
            raise file.wrong("is damaged", "members of different names", f"{name!r} twice")
        by_name[name] = NpzMember(raw, flags, method, crc, packed, size, local)
        offset = stop
    _check_disjoint(file, by_name, first)
    return by_name


def _directory(file: InputFile) -> tuple[int, int, int]:
    """Return where the directory begins, a bound of its end, and how many members it has."""
    tail = file.read(max(0, file.length - END.size - MANY), END.size + MANY)
    offset = tail.rfind(END_MARK)
    while offset >= 0 and (
        offset + END.size > len(tail)
        or offset + END.size + END.unpack_from(tail, offset)[-1] != len(tail)
    ):
        offset = tail.rfind(END_MARK, 0, offset)
    if offset < 0:
        zipped = file.read(0, 2) == b"PK"
        beginning = f"a file that begins with {file.read(0, 6)!r}" if file.length else ""
        raise file.wrong(
            "is truncated" if zipped else "is not a .npz file",
            "a zip archive with its directory at the end" if zipped else "a file of numpy.savez",
            "none" if zipped else beginning or "an empty file",
        )
    _, disk, first_disk, here, count, size, start, _ = END.unpack_from(tail, offset)
    end = offset = file.length - len(tail) + offset
    if offset >= LOCATOR.size and file.read(offset - LOCATOR.size, 4) == LOCATOR_MARK:
        _, _, end, _ = LOCATOR.unpack(file.read_all(offset - LOCATOR.size, LOCATOR.size))
        if end + END64.size > offset or file.read(end, 4) != END64_MARK:
            raise file.wrong("is damaged", "a zip64 record before the end", f"none at byte {end}")
        *_, disk, first_disk, here, count, size, start = END64.unpack(
            file.read_all(end, END64.size)
        )
    if disk or first_disk or here != count:
        raise file.wrong("is damaged", "an archive in one file", "one part of several")
    if start + size > end:
        raise file.wrong(
            "is damaged", f"a directory before byte {end}", f"{size} bytes at byte {start}"
        )
    return start, start + size, count


def _widened(file: InputFile, extra: bytes, fields: list[int]) -> list[int]:
    """Return fields of 32 bits, with those that did not fit taken from the zip64 extra field."""
    if WIDE not in fields:
        return fields
    offset = 0
    while offset + 4 <= len(extra):
        kind, length = unpack_from("<2H", extra, offset)
        offset += 4
        if kind == SIZES_ID:
            need = fields.count(WIDE)
            if min(length, len(extra) - offset) < 8 * need:
                break
            wide = iter(unpack_from(f"<{need}Q", extra, offset))
            return [next(wide) if field == WIDE else field for field in fields]
        offset += length
    raise file.wrong("is damaged", "64-bit sizes of a large member", "a directory without them")


def _check_disjoint(file: InputFile, by_name: dict[str, NpzMember], directory: int) -> None:
    """Check that no two members share bytes; tell every member where the next one begins."""
    end = directory
    for name, member in sorted(by_name.items(), key=lambda item: item[1].offset, reverse=True):
        member.end = end
        stop = member.offset + LOCAL.size + len(member.raw) + member.packed
        if stop > end:
            raise file.wrong(
                "is damaged", f"member {name!r} from byte {member.offset} to end before byte {end}",
                f"it is {member.packed} bytes long, to byte {stop}",
            )
        end = member.offset


def elements(file: InputFile, member: NpzMember) -> npy.Elements:
    """Return where a member's elements lie: in the file, or, for a compressed member, once
    inflated."""
    start = _start(file, member)
    if member.flags & ENCRYPTED or member.method not in (STORED, DEFLATED):
        how = "an encrypted member" if member.flags & ENCRYPTED else f"method {member.method}"
        raise file.wrong(
            "is packed in a way we do not read", "numpy.savez or numpy.savez_compressed", how
        )
    if member.method == STORED:
        if member.size != member.packed:
            raise file.wrong("is damaged", f"{member.size} bytes, stored", f"{member.packed} bytes")
        return _whole(file, member, npy.elements(file.read, start, member.size, file.wrong), start)
    if member.size > DENSEST * member.packed:
        raise file.wrong(
            "is damaged",
            f"at most {DENSEST * member.packed} bytes out of {member.packed} compressed ones",
            f"{member.size} bytes",
        )
    head = next(_inflated(file, start, member, npy.LONGEST_HEADER + 12), b"")
    inflated = npy.elements(
        lambda offset, count: head[offset : offset + count], 0, member.size, file.wrong
    )
    inflated.sum = member.crc
    _whole(file, member, inflated, 0)
    inflated.inflate = lambda *span: _inflate(file, start, member, *span)
    return inflated


def _whole(file: InputFile, member: NpzMember, stored: npy.Elements, start: int) -> npy.Elements:
    """Check that nothing follows the elements: it would be inflated, or summed, for nothing."""
    if stored.end - start != member.size:
        raise file.wrong("is damaged", f"{stored.end - start} bytes, as its header says",
                         f"{member.size} bytes")
    return stored


def _start(file: InputFile, member: NpzMember) -> int:
    """Return the first byte of a member's content, after its local header."""
    if member.offset + LOCAL.size > file.length:
        raise npy.truncated(file.wrong, member.offset + LOCAL.size, file.length)
    mark, _, _, method, *_, name, extra = LOCAL.unpack(file.read_all(member.offset, LOCAL.size))
    start = member.offset + LOCAL.size + name + extra
    raw = file.read(member.offset + LOCAL.size, name)
    if mark != LOCAL_MARK or method != member.method or raw != member.raw:
        raise file.wrong(
            "is damaged", f"member {member.raw!r} at byte {member.offset}",
            f"{mark!r}, member {raw[:80]!r}",
        )
    if start + member.packed > member.end:
        raise npy.truncated(file.wrong, member.packed, member.end - start)
    return start


def _inflated(file: InputFile, start: int, member: NpzMember, most: int) -> Iterator[bytes]:
    """Yield the content of a deflated member, in pieces of up to `most` bytes."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    offset, end, rest = start, start + member.packed, b""
    try:
        while not stream.eof:
            if not rest and offset < end:
                rest = file.read_all(offset, min(AT_ONCE, end - offset))
                offset += len(rest)
            piece = stream.decompress(rest, most)
            rest = stream.unconsumed_tail
            if piece:
                yield piece
            elif not rest and offset == end:
                return  # short: the caller counts
    except zlib.error as error:
        raise file.wrong("is damaged", "deflated data", str(error)) from None


def _inflate(
    file: InputFile, start: int, member: NpzMember, low: int, high: int, processes: int,
    available: int,
) -> mmap.mmap:
    """Return the content of a deflated member, in memory of this process: its bytes low to high.

    The rest is looked at for the checksum only. Pages that nothing is written to take no memory.
    """
    remedy = "numpy.savez: of a file that is not compressed, each process reads its part"
    memory = file.memory("inflated", member.size, high - low, processes, available, remedy)
    offset = crc = 0
    for piece in _inflated(file, start, member, AT_ONCE):
        first, end = max(offset, low), min(offset + len(piece), high)
        if first < end:
            memory[first:end] = piece[first - offset : end - offset]
        offset += len(piece)
        if offset > member.size:
            break
        crc = zlib.crc32(piece, crc)
    if offset != member.size:
        more = "more" if offset > member.size else f"{offset} bytes"
        raise file.wrong("is damaged", f"{member.size} bytes, inflated", more)
    if crc != member.crc:
        raise file.wrong("is damaged", f"CRC-32 {member.crc:08x}", f"{crc:08x}")
    return memory


def frame(arrays: list[tuple[str, str, tuple[int, ...]]]) -> npy.Frame:
    """Return an archive of arrays (name, dtype, shape), stored one after the other."""
    pieces: list[tuple[int, bytes]] = []
    starts, spans, entries, offset = [], [], [], 0
    sums: list[tuple[int, int, tuple[int, ...]]] = []
    for name, dtype, shape in arrays:
        head = npy.header(dtype, shape)
        raw = f"{name}.npy".encode()
        size = len(head) + npy.element_count(shape) * npy.SIZES[dtype]
        local = _local(raw, size, offset)
        pieces.append((offset, local + head))
        entries.append(_entry(raw, size, offset))
        spans.append((offset + len(local), offset + len(local) + size, offset + CRC_IN_LOCAL))
        starts.append(offset + len(local) + len(head))
        offset += len(local) + size
    directory = offset
    for (first, end, place), entry in zip(spans, entries):
        sums.append((first, end, (place, offset + CRC_IN_ENTRY)))
        offset += len(entry)
    tail = b"".join(entries) + _end(len(arrays), offset - directory, directory)
    pieces.append((directory, tail))
    return npy.Frame(directory + len(tail), pieces, starts, sums)


def _needs(wide: bool) -> int:
    """Return the version of the format that a reader must know."""
    return 45 if wide else 20


def _flags(raw: bytes) -> int:
    return 0 if raw.isascii() else UTF8


def _local(raw: bytes, size: int, offset: int) -> bytes:
    """Return the header of a member at byte `offset`, so long that the content begins at a multiple
    of 64."""
    wide = size >= WIDE
    extra = pack("<2H2Q", SIZES_ID, 16, size, size) if wide else b""
    unpadded = LOCAL.size + len(raw) + len(extra) + 6
    filler = -(offset + unpadded) % ALIGNMENT
    extra += pack("<3H", PADDING_ID, 2 + filler, ALIGNMENT) + bytes(filler)
    short = WIDE if wide else size
    return LOCAL.pack(
        LOCAL_MARK, _needs(wide), _flags(raw), STORED, 0, JANUARY_1980, 0, short, short,
        len(raw), len(extra),
    ) + raw + extra


def _entry(raw: bytes, size: int, offset: int) -> bytes:
    """Return the directory's row of a member."""
    wide = [n for n in (size, size, offset) if n >= WIDE]
    extra = pack(f"<2H{len(wide)}Q", SIZES_ID, 8 * len(wide), *wide) if wide else b""
    version, readable = 3 << 8 | _needs(bool(wide)), 0o644 << 16  # as on Unix
    short = min(size, WIDE)
    return ENTRY.pack(
        ENTRY_MARK, version, _needs(bool(wide)), _flags(raw), STORED, 0, JANUARY_1980, 0, short,
        short, len(raw), len(extra), 0, 0, 0, readable, min(offset, WIDE),
    ) + raw + extra


def _end(count: int, size: int, start: int) -> bytes:
    """Return the record behind the directory, which says where that begins; twice, if 32 bits do
    not hold it."""
    few = min(count, MANY)
    end = END.pack(END_MARK, 0, 0, few, few, min(size, WIDE), min(start, WIDE), 0)
    if count < MANY and size < WIDE and start < WIDE:
        return end
    wide = END64.pack(END64_MARK, END64.size - 12, 3 << 8 | 45, 45, 0, 0, count, count, size, start)
    return wide + LOCATOR.pack(LOCATOR_MARK, 0, start + size, 1) + end
