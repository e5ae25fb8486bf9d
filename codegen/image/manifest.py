"""Reading an image: digest, target, manifest, index words. The run path imports this.

Goes in: the bytes of a file. Comes out: an Image description, or the error that FAULTS names.
Always holds: nothing is executed; what a hostile file can make us do is bounded by its length; only
cheap modules of the standard library are imported.
"""

from __future__ import annotations

import json
import os
import struct

from codegen.errors import ImageError, InputError, UsageError, VersionError
from codegen.image.elf import MACHINES, Sections, damaged, printable, read_sections
from codegen.image.elf_dynamic import check_dynamic
from codegen.image.schema import AXES, check_formula, check_manifest, check_notes
from codegen.image.target import host_features, mark, native
from codegen.symbolic.meaning import integers, rows_of, value
from codegen.validators import BITS_64

try:  # without hashlib, which loads OpenSSL
    from _blake2 import blake2b as hashed
except ImportError:
    from hashlib import blake2b as hashed

__all__ = ["AXES", "hashed"]  # for those who read manifests

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

FORMAT = 8
INTERFACE = 18
ENTRY = "entry"  # the scalar that says which of several entries runs
INDEX_MAGIC = 0x78646E69646D7073
INDEX_FIXED = 5 + AXES + 1  # words before the scalars: see spmd_index_words

_HOSTS = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64"}
DIGEST_SIZE = 32
SECTION_DIGEST_SIZE = 16
DIGEST_ROOM = 1088  # of the file, and of 64 sections with 2 to spare
MOST_NOTES = 1 << 26  # bytes of text for people
MOST_BITS = 1024  # of numbers in formulas that are only compared


class ImageFile:
    """An image in memory. sections: name -> (offset, size). manifest: its JSON. digest:
    hexadecimal."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.machine, self.sections = read_sections(data)
        self.digest = ""
        self.manifest: dict[str, Any] = {}

    def section(self, name: str) -> bytes:
        offset, size = self.sections[name]
        return self.data[offset : offset + size]

    def notes(self) -> dict[str, Any]:
        """Return the notes, the text of every level, which only people read."""
        import zlib  # what only people read: ranks do without

        try:
            text = zlib.decompressobj().decompress(self.section(".spmd.notes"), MOST_NOTES)
            notes: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError, zlib.error):
            raise damaged("something else", "notes in JSON") from None
        check_notes(notes)
        return notes


def read(data: bytes, *, host: bool = True) -> ImageFile:
    """Check an image's bytes and read its manifest.

    host: it must also run on this machine. Raises ImageError, VersionError or InputError.
    """
    image = ImageFile(data)
    if host and image.machine in MACHINES.values():  # else a damaged header: the digest says so
        check_machine(image.machine)
    check_digest(image)
    if host:
        check_machine(image.machine)
    IndexWords(image.section(".spmd.index"))
    image.manifest = parse(image.section(".spmd.manifest"))
    check_version(image.manifest)
    check_manifest(image.manifest)
    check_dynamic(data)
    if host:
        check_features(image.manifest["target"])
    return image


def check_machine(machine: str) -> None:
    here = _HOSTS.get(os.uname().machine.lower(), os.uname().machine)
    if machine != here:
        raise ImageError(f"built for {machine}, this machine is {here}",
                         remedy="build the image on a machine of this kind")


# ---- digest --------------------------------------------------------------------------------------


def digest_of(data: bytes, size: int, *blank: tuple[int, int]) -> bytes:
    """Return BLAKE2b of the bytes, as if the blank ranges (offset, size) were zero."""
    state, view, position = hashed(digest_size=size), memoryview(data), 0
    for offset, length in sorted(blank):
        state.update(view[position:offset])
        state.update(bytes(length))
        position = offset + length
    state.update(view[position:])
    digest: bytes = state.digest()
    return digest


def make_digest(data: bytes, sections: Sections) -> bytes:
    """Return the content of .spmd.digest: of the whole file, then of each section in order.

    The index words count as zero; so do, in the first, its own bytes.
    """
    start, room = sections[".spmd.digest"]
    parts = b""
    for name, (offset, size) in sections.items():
        content = bytes(size) if name in (".spmd.index", ".spmd.digest") else data[offset:][:size]
        parts += digest_of(content, SECTION_DIGEST_SIZE)
    parts = parts.ljust(room - DIGEST_SIZE, b"\0")
    whole = data[: start + DIGEST_SIZE] + parts + data[start + room :]
    return digest_of(whole, DIGEST_SIZE, sections[".spmd.index"], (start, DIGEST_SIZE)) + parts


def check_digest(image: ImageFile) -> None:
    """Sets the image's digest. Sections are looked at one by one only to name the damaged one."""
    data, sections, digests = image.data, image.sections, image.section(".spmd.digest")
    name = "headers"
    if len(digests) == DIGEST_ROOM:
        blank = (sections[".spmd.index"], (sections[".spmd.digest"][0], DIGEST_SIZE))
        whole = digest_of(data, DIGEST_SIZE, *blank)
        if whole == digests[:DIGEST_SIZE]:
            image.digest = whole.hex()
            return
        name = _damaged_section(sections, digests, make_digest(data, sections), whole)
    raise ImageError(f"digest mismatch in section {printable(name)}",
                     remedy="the file was changed: copy or build it again")


def _damaged_section(sections: Sections, digests: bytes, wanted: bytes, whole: bytes) -> str:
    if digests[:DIGEST_SIZE] == wanted[:DIGEST_SIZE]:
        return ".spmd.digest"  # the digest of one section was damaged, not the section
    for k, name in enumerate(sections):
        start = DIGEST_SIZE + k * SECTION_DIGEST_SIZE
        part = slice(start, start + SECTION_DIGEST_SIZE)
        if wanted[part] != digests[part]:
            return name
    # Every section is sound. Two digests differ in about half of their bits, unless one of them
    # was damaged itself.
    differ = int.from_bytes(whole, "big") ^ int.from_bytes(digests[:DIGEST_SIZE], "big")
    return ".spmd.digest" if differ.bit_count() <= DIGEST_SIZE else "headers"


# ---- manifest ------------------------------------------------------------------------------------


def parse(text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text, object_pairs_hook=_distinct)
        if b"\\" in text:  # only then can a string hold what is not printable
            manifest = _escaped(manifest)
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise damaged("something else", "a manifest in JSON")
    return manifest


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise damaged("one that stands twice", "distinct keys in the manifest")
    return out


def _escaped(value: Any) -> Any:
    """Return what a manifest says without control characters: no text can move a terminal's cursor,
    wherever it is printed."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_escaped(v) for v in value]
    if isinstance(value, dict):
        # Keys of a dict that the program returns are the user's own, and nobody prints them.
        return {printable(k): v if k == "returns" else _escaped(v) for k, v in value.items()}
    return value


def check_expression(e: Any, known: set[str]) -> None:
    """Raises ImageError unless `evaluate` can do it, in bounded time."""
    check_formula(e, known, "an expression")


def check_version(manifest: dict[str, Any]) -> None:
    version = manifest.get("format")
    if type(version) is not int or version < 1:
        raise damaged(printable(repr(version)[:20]), "a format version in the manifest")
    if version != FORMAT:
        newer = "install a newer spmd, or " if version > FORMAT else ""
        raise VersionError(f"image format {version}, this runtime reads {FORMAT}",
                           remedy=f"{newer}build the image again")
    if manifest.get("interface") != INTERFACE:
        raise VersionError(
            f"image for engine interface {manifest.get('interface')}, this engine has {INTERFACE}",
            remedy="build the image again with this version of spmd",
        )


def check_features(target: dict[str, Any]) -> None:
    """Check that the CPU has what the code uses. Reads /proc/cpuinfo only when something is
    needed."""
    needed = target.get("features") or []
    if not needed:
        return
    have = host_features()
    missing = [f for f in needed if f not in have]
    if missing and have:
        needs, has = mark(target["level"]), mark(native())
        if needs == has:  # of one level, and yet something is missing
            needs = ", ".join(printable(str(f)) for f in missing[:3])
        raise ImageError(
            f"needs {printable(needs)}; this host has {has}",
            expected=f"a CPU with {printable(target['level'])}",
            found=f"a CPU without {', '.join(printable(str(f)) for f in missing[:12])}",
            remedy="build with --target native on this machine, or with --target x86-64-v2",
        )


def evaluate(e: Any, values: dict[str, int]) -> int:
    """Return the integer of an expression in prefix form. Raises ImageError as of_64_bits does."""
    number: int = value(rows_of(e), values, of_64_bits)
    return number


def of_64_bits(op: str, args: Sequence[int]) -> int:
    """Compute an operation in the domain of integers of 64 bits. Raises ImageError beyond them,
    which no image that spmd has built needs."""
    if op != "*":
        return within_64(sum(args)) if op == "+" else integers(op, args)
    total = 1
    for factor in args:
        total = within_64(total * factor)
    return total


def within_64(n: int) -> int:
    """Return n; raise ImageError if it has more than 64 bits."""
    if n not in BITS_64:
        raise damaged("a number beyond them", "formulas of 64 bits")
    return n


def bounded(n: int) -> int:
    """Return n; raise ImageError if work on such numbers has no bound."""
    if n.bit_length() > MOST_BITS:
        raise too_large(f"numbers of {MOST_BITS} bits", f"{n.bit_length()} bits")
    return n


def too_large(expected: str, found: str) -> ImageError:
    return ImageError("a formula of the image is too large to be compared", expected=expected,
                      found=found, remedy="extents and places of fewer factors and terms")


# ---- index words ---------------------------------------------------------------------------------


def fnv(words: bytes) -> int:
    """Return FNV-1a, 64 bit, of which the low 63 bits count (Fowler, Noll, Vo)."""
    h = 0xCBF29CE484222325
    for b in words:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h & 0x7FFFFFFFFFFFFFFF


def index_words(
    patched: int, first: int, count: int, sizes: list[int], scalars: list[int]
) -> bytes:
    """Return the bytes of .spmd.index, with their check value."""
    words = [patched, first, count, *sizes, *[1] * (AXES - len(sizes)), len(scalars), *scalars]
    magic, rest = struct.pack("<q", INDEX_MAGIC), struct.pack(f"<{len(words)}q", *words)
    return magic + struct.pack("<q", fnv(magic + rest)) + rest


def damaged_words(expected: str, found: str) -> InputError:
    return InputError("damaged index words", expected=expected, found=found,
                      remedy="patch or build the image again")


class IndexWords:
    """The index words of a local program: what it says of itself."""

    def __init__(self, data: bytes) -> None:
        if len(data) < 8 * INDEX_FIXED or len(data) % 8:
            raise damaged_words(f"at least {8 * INDEX_FIXED} bytes", f"{len(data)} bytes")
        words = struct.unpack(f"<{len(data) // 8}q", data)
        check = fnv(data[:8] + data[16:])
        if words[1] != check:
            raise InputError(
                "digest mismatch in section .spmd.index: index words fail their check value",
                expected=str(check), found=str(words[1]), remedy="patch or build the image again",
            )
        if words[0] != INDEX_MAGIC:
            raise damaged_words(hex(INDEX_MAGIC), hex(words[0] & (2**64 - 1)))
        self.patched, self.first, self.count = words[2:5]
        self.sizes = words[5 : 5 + AXES]
        self.scalars = words[INDEX_FIXED:]
        if words[INDEX_FIXED - 1] != len(self.scalars):
            raise damaged_words(f"{words[INDEX_FIXED - 1]} scalars", str(len(self.scalars)))
        if self.patched:
            self.check_range()

    def __str__(self) -> str:
        ranks = f"{self.first} to {self.first + self.count - 1}" if self.count > 1 else self.first
        sizes = " x ".join(map(str, self.sizes))
        return f"rank {ranks} of {sizes}, scalars {list(self.scalars)}"

    def check_range(self) -> None:
        ranks = 1
        for n in self.sizes:
            if n < 1:
                raise InputError("index words out of range", expected="axis sizes of at least 1",
                                 found=str(n))
            ranks *= n
        if not (0 <= self.first and 1 <= self.count and self.first + self.count <= ranks):
            raise InputError(
                "index words out of range", expected=f"ranks within 0 … {ranks - 1}",
                found=f"{self.count} ranks from {self.first}",
            )


def patch(image: ImageFile, first: int, count: int, sizes: list[int], scalars: list[int]) -> bytes:
    """Return the local program: the image with its index words. Raises InputError where they do not
    fit.

    What is a local program already stays what it is: it runs on its own ranks only.
    """
    data = local_program(image, first, count, sizes, scalars)
    own = IndexWords(image.section(".spmd.index"))
    if own.patched and data != image.data:
        wanted = IndexWords(index_words(1, first, count, sizes, scalars))
        raise InputError(
            "index words are not those of this rank", expected=str(wanted), found=str(own),
            remedy="give each process its own local program, or all of them the image",
        )
    return data


def local_program(
    image: ImageFile, first: int, count: int, sizes: list[int], scalars: list[int]
) -> bytes:
    """Return an image, or a local program of it, with other index words. Raises InputError.

    Extents of named dims are not patched in: each run takes them from its inputs.
    """
    offset, size = image.sections[".spmd.index"]
    patched = [s.get("at_most", word) for s, word in zip(image.manifest["scalars"], scalars)]
    words = index_words(1, first, count, sizes, patched)
    if len(words) != size:
        raise InputError("index words do not fit the image", expected=f"{size // 8} words",
                         found=f"{len(words) // 8}")
    IndexWords(words)
    return image.data[:offset] + words + image.data[offset + size :]


def scalar_value(scalar: dict[str, Any], value: Any) -> int | float:
    """Return a scalar of the declared type. UsageError for what is none, or does not fit 64
    bits."""
    flag, whole = type(scalar["default"]) is bool, scalar["dtype"] == "int64"
    number = None
    try:
        if type(value).__name__ == "bool":  # Python's, and NumPy's
            number = int(value) if flag else None
        else:
            number = value.__index__() if whole else value.__float__()
    except (ValueError, TypeError, AttributeError, OverflowError):
        pass
    low, high = (0, 2) if flag else (-(1 << 63), 1 << 63)
    if "at_most" in scalar:
        low, high = 0, scalar["at_most"] + 1
    rounded = not flag and isinstance(number, float) and hasattr(value, "__index__") and (
        not getattr(value, "shape", ()) and value.__index__() != number)
    if number is None or rounded or (whole and not low <= number < high):
        raise UsageError(
            f"scalar {scalar['name']} cannot be {value!r}",
            expected="True or False" if flag else f"0 to {high - 1}, the extent of a dim"
            if "at_most" in scalar else "an integer of 64 bits" if whole else
            "an integer that a float does not round" if rounded else "a number",
            found=f"a {type(value).__name__}",
        )
    return number
