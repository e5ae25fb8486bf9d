"""Reading an image: ELF sections, digest, target, manifest, index words. The run path imports this.

Goes in: the bytes of a file. Comes out: an Image description, or the error that FAULTS names.
Always holds: nothing is executed; every offset is checked against the file before it is used; only
cheap modules of the standard library are imported.
"""

from __future__ import annotations

import struct

from codegen.errors import ImageError, InputError, VersionError

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
INTERFACE = 1
INDEX_MAGIC = 0x78646E69646D7073
AXES = 3
INDEX_FIXED = 5 + AXES + 1  # words before the scalars: see spmd_index_words

_MACHINES = {62: "x86-64", 183: "aarch64", 243: "riscv64", 21: "ppc64", 22: "s390x"}
_HOSTS = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
DIGEST_SIZE = 32
SECTION_DIGEST_SIZE = 16
MOST_SECTIONS = 64
DIGEST_ROOM = DIGEST_SIZE + SECTION_DIGEST_SIZE * (MOST_SECTIONS + 1)

_LIBRARIES = ("libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
# Dynamic entries that run code or change where libraries are looked for.
_FORBIDDEN = {
    12: "an initialiser", 13: "a finaliser", 15: "a library run path", 25: "constructors",
    26: "destructors", 29: "a library run path", 32: "constructors",
}  # fmt: skip


def blake2b(data: bytes, size: int) -> bytes:
    try:  # without hashlib, which loads OpenSSL
        from _blake2 import blake2b as hashed
    except ImportError:
        from hashlib import blake2b as hashed
    digest: bytes = hashed(data, digest_size=size).digest()
    return digest


class Image:
    """An image. sections: name -> (offset, size). manifest: its JSON. digest: hexadecimal."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.machine, self.sections = read_sections(data)
        self.digest = ""
        self.manifest: dict[str, Any] = {}

    def section(self, name: str) -> bytes:
        if name not in self.sections:
            raise ImageError("not an spmd image", expected=f"an ELF file with section {name}",
                             found="an ELF file without it",
                             remedy="python -m spmd build program.py makes one")  # fmt: skip
        offset, size = self.sections[name]
        return self.data[offset : offset + size]

    def notes(self) -> dict[str, Any]:
        """What only people read: the text of every level."""
        import json
        import zlib

        notes: dict[str, Any] = json.loads(zlib.decompress(self.section(".spmd.notes")))
        return notes


def read(data: bytes, *, host: bool = True) -> Image:
    """Check an image's bytes and read its manifest.

    host: it must also run on this machine. Raises ImageError or VersionError.
    """
    image = Image(data)
    if host:
        check_machine(image.machine)
    image.section(".spmd.index")
    check_digest(image)
    image.manifest = parse(image.section(".spmd.manifest"))
    check_version(image.manifest)
    check_dynamic(image)
    if host:
        check_features(image.manifest["target"])
    return image


def read_sections(data: bytes) -> tuple[str, dict[str, tuple[int, int]]]:
    """The machine and the sections of an ELF file: name -> (offset, size)."""
    if len(data) < 4 or data[:4] != b"\x7fELF":
        found = "an empty file" if not data else f"{len(data)} bytes that begin with {data[:4]!r}"
        raise ImageError("not an spmd image", expected="an ELF shared object", found=found,
                         remedy="python -m spmd build program.py makes an image")  # fmt: skip
    if len(data) < _HEADER.size:
        raise _truncated(_HEADER.size, len(data))
    ident, _, machine, _, _, _, table, _, _, _, _, entry, count, names = _HEADER.unpack_from(data)
    if ident[4:6] != b"\x02\x01" or entry != _SECTION.size or not 0 < count <= MOST_SECTIONS:
        raise ImageError("not an spmd image", expected="a 64-bit little-endian ELF shared object",
                         found="an ELF file of another kind")  # fmt: skip
    end = table + count * entry
    if end != len(data):
        raise _truncated(end, len(data))
    rows = [_SECTION.unpack_from(data, table + k * entry) for k in range(count)]
    for row in rows:
        if row[1] != 8 and row[4] + row[5] > len(data):  # 8: occupies no space in the file
            raise ImageError("damaged image", expected=f"sections within {len(data)} bytes",
                             found=f"a section up to byte {row[4] + row[5]}")  # fmt: skip
    if names >= count:
        raise ImageError("damaged image", expected="a table of section names", found="none")
    text = data[rows[names][4] : rows[names][4] + rows[names][5]]
    sections: dict[str, tuple[int, int]] = {}
    for row in rows:
        name = text[row[0] : text.find(b"\0", row[0])].decode("ascii", "replace")
        if name in sections and name.startswith(".spmd"):
            raise ImageError("damaged image", expected=f"one section {name}", found="two")
        sections[name] = (row[4], row[5] if row[1] != 8 else 0)
    return _MACHINES.get(machine, f"machine {machine}"), sections


def _truncated(expected: int, found: int) -> ImageError:
    what = "truncated image" if found < expected else "image with bytes behind its end"
    return ImageError(f"{what}: expected {expected} bytes, got {found}",
                      remedy="copy or build the image again")  # fmt: skip


def check_machine(machine: str) -> None:
    from os import uname

    here = _HOSTS.get(uname().machine.lower(), uname().machine)
    if machine != here:
        raise ImageError(f"built for {machine}, this machine is {here}",
                         remedy="build the image on a machine of this kind")  # fmt: skip


# ---- digest --------------------------------------------------------------------------------------


def blanked(data: bytes, sections: dict[str, tuple[int, int]]) -> bytearray:
    """The file with the index words and the digest zeroed: what the digest is taken over."""
    out = bytearray(data)
    for name in (".spmd.index", ".spmd.digest"):
        offset, size = sections[name]
        out[offset : offset + size] = bytes(size)
    return out


def make_digest(data: bytes, sections: dict[str, tuple[int, int]]) -> bytes:
    """The content of .spmd.digest: of the whole file, then of each section in order."""
    plain = bytes(blanked(data, sections))
    out = blake2b(plain, DIGEST_SIZE)
    for offset, size in sections.values():
        out += blake2b(plain[offset : offset + size], SECTION_DIGEST_SIZE)
    return out.ljust(DIGEST_ROOM, b"\0")


def check_digest(image: Image) -> None:
    found = image.section(".spmd.digest")
    if len(found) != DIGEST_ROOM:
        raise ImageError("digest mismatch in section .spmd.digest",
                         expected=f"{DIGEST_ROOM} bytes", found=f"{len(found)}")  # fmt: skip
    wanted = make_digest(image.data, image.sections)
    whole = wanted[:DIGEST_SIZE]
    if wanted == found:
        image.digest = whole.hex()
        return
    name = ".spmd.digest" if whole == found[:DIGEST_SIZE] else "headers"
    for k, section in enumerate(image.sections):
        at = DIGEST_SIZE + k * SECTION_DIGEST_SIZE
        if name == ".spmd.digest":
            break
        if wanted[at : at + SECTION_DIGEST_SIZE] != found[at : at + SECTION_DIGEST_SIZE]:
            name = section
            break
    raise ImageError(f"digest mismatch in section {printable(name)}",
                     expected=found[:DIGEST_SIZE].hex()[:16], found=whole.hex()[:16],
                     remedy="the file was changed: copy or build it again")  # fmt: skip


# ---- manifest ------------------------------------------------------------------------------------


def parse(text: bytes) -> dict[str, Any]:
    import json

    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise ImageError("damaged image", expected="a manifest in JSON", found="something else")
    return manifest


def check_version(manifest: dict[str, Any]) -> None:
    found = manifest.get("format")
    if not isinstance(found, int) or found > FORMAT:
        raise VersionError(f"image format {found}, this runtime reads up to {FORMAT}",
                           remedy="install a newer spmd, or build the image again")  # fmt: skip
    if manifest.get("interface") != INTERFACE:
        raise VersionError(
            f"image for engine interface {manifest.get('interface')}, this engine has {INTERFACE}",
            remedy="build the image again with this version of spmd",
        )


def check_features(target: dict[str, Any]) -> None:
    """The CPU has what the code uses. Reads /proc/cpuinfo only when something is needed."""
    needed = target.get("features") or []
    if not needed:
        return
    from codegen.target import host_features

    have = host_features()
    missing = [f for f in needed if f not in have]
    if missing and have:
        raise ImageError(
            f"needs {target['level']} ({', '.join(missing[:3])}); this host lacks it",
            expected=target["level"], found=f"a CPU without {', '.join(missing)}",
            remedy="build with --target x86-64-v2 or on this machine",
        )  # fmt: skip


def check_dynamic(image: Image) -> None:
    """No foreign library, no run path, nothing that runs when the file is only loaded."""
    data = image.section(".dynamic") if ".dynamic" in image.sections else b""
    strings = image.section(".dynstr") if ".dynstr" in image.sections else b""
    for at in range(0, len(data) - 15, 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        if tag == 0:
            break
        if tag == 1:
            name = strings[value : strings.find(b"\0", value)].decode("ascii", "replace")
            if name not in _LIBRARIES:
                raise ImageError(f"image asks for the library {printable(name)}",
                                 expected="libm and libc only", found=printable(name))  # fmt: skip
        elif tag in _FORBIDDEN:
            raise ImageError(f"image has {_FORBIDDEN[tag]}", expected="none",
                             found=f"dynamic entry {tag}")  # fmt: skip
    if _has_indirect_function(image):
        raise ImageError("image has an indirect function", expected="none",
                         found="code that runs while the file is loaded")  # fmt: skip


def _has_indirect_function(image: Image) -> bool:
    """A relocation that calls a resolver, or a symbol that is one (STT_GNU_IFUNC)."""
    for name in (".rela.dyn", ".rela.plt"):
        rows = image.section(name) if name in image.sections else b""
        for at in range(0, len(rows) - 23, 24):
            if struct.unpack_from("<Q", rows, at + 8)[0] & 0xFFFFFFFF in (37, 1032):
                return True
    symbols = image.section(".dynsym") if ".dynsym" in image.sections else b""
    return any(symbols[at + 4] & 15 == 10 for at in range(0, len(symbols) - 23, 24))


def evaluate(e: Any, values: dict[str, int]) -> int:
    """The integer of an expression in prefix form: int, symbol, or [op, argument …]."""
    if isinstance(e, int):
        return e
    if isinstance(e, str):
        return values[e]
    op, *rest = e
    args = [evaluate(a, values) for a in rest]
    if op == "+":
        return sum(args)
    if op == "*":
        total = 1
        for a in args:
            total *= a
        return total
    return int(_OPERATIONS[op](*args))


_OPERATIONS: dict[str, Any] = {
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "ge0": lambda a: a >= 0,
    "eq0": lambda a: a == 0,
}


def printable(text: str) -> str:
    """Without terminal escapes: what is no plain character is shown as \\xNN."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


# ---- index words ---------------------------------------------------------------------------------


def fnv(words: bytes) -> int:
    """FNV-1a, 64 bit, of which the low 63 bits count (Fowler, Noll, Vo)."""
    h = 0xCBF29CE484222325
    for b in words:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h & 0x7FFFFFFFFFFFFFFF


def index_words(
    patched: int, first: int, count: int, sizes: list[int], scalars: list[int]
) -> bytes:
    """The bytes of .spmd.index, with their check value."""
    words = [patched, first, count, *sizes, *[1] * (AXES - len(sizes)), len(scalars), *scalars]
    magic, rest = struct.pack("<q", INDEX_MAGIC), struct.pack(f"<{len(words)}q", *words)
    return magic + struct.pack("<q", fnv(magic + rest)) + rest


class IndexWords:
    """What a local program says of itself."""

    def __init__(self, data: bytes) -> None:
        if len(data) < 8 * INDEX_FIXED or len(data) % 8:
            raise InputError("damaged index words", expected=f"at least {8 * INDEX_FIXED} bytes",
                             found=f"{len(data)} bytes")  # fmt: skip
        words = struct.unpack(f"<{len(data) // 8}q", data)
        if words[0] != INDEX_MAGIC:
            raise InputError("damaged index words", expected="their magic number",
                             found=hex(words[0] & (2**64 - 1)))  # fmt: skip
        check = fnv(data[:8] + data[16:])
        if words[1] != check:
            raise InputError("index words fail their check value", expected=str(check),
                             found=str(words[1]), remedy="patch the image again")  # fmt: skip
        self.patched, self.first, self.count = words[2:5]
        self.sizes = words[5 : 5 + AXES]
        self.scalars = words[INDEX_FIXED:]
        if words[INDEX_FIXED - 1] != len(self.scalars):
            raise InputError("damaged index words", expected=f"{words[INDEX_FIXED - 1]} scalars",
                             found=str(len(self.scalars)))  # fmt: skip
        if self.patched:
            self.check_range()

    def check_range(self) -> None:
        ranks = 1
        for n in self.sizes:
            if n < 1:
                raise InputError("index words out of range", expected="axis sizes of at least 1",
                                 found=str(n))  # fmt: skip
            ranks *= n
        if not (0 <= self.first and 1 <= self.count and self.first + self.count <= ranks):
            raise InputError(
                "index words out of range", expected=f"ranks within 0 … {ranks - 1}",
                found=f"{self.count} ranks from {self.first}",
            )  # fmt: skip


def patch(image: Image, first: int, count: int, sizes: list[int], scalars: list[int]) -> bytes:
    """A local program: the image with its index words. Raises InputError where they do not fit."""
    IndexWords(image.section(".spmd.index"))
    offset, size = image.sections[".spmd.index"]
    words = index_words(1, first, count, sizes, scalars)
    if len(words) != size:
        raise InputError("index words do not fit the image", expected=f"{size // 8} words",
                         found=f"{len(words) // 8}")  # fmt: skip
    IndexWords(words)
    return image.data[:offset] + words + image.data[offset + size :]
