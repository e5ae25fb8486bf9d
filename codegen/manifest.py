"""Reading an image: digest, target, manifest, index words. The run path imports this.

Goes in: the bytes of a file. Comes out: an Image description, or the error that FAULTS names.
Always holds: nothing is executed; what a hostile file can make us do is bounded by its length; only
cheap modules of the standard library are imported.
"""

from __future__ import annotations

import struct

from codegen.elf import MACHINES, Sections, check_dynamic, damaged, printable, read_sections
from codegen.errors import ImageError, InputError, VersionError

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
INTERFACE = 8
INDEX_MAGIC = 0x78646E69646D7073
AXES = 3
INDEX_FIXED = 5 + AXES + 1  # words before the scalars: see spmd_index_words

_HOSTS = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64"}
DIGEST_SIZE = 32
SECTION_DIGEST_SIZE = 16
DIGEST_ROOM = 1088  # of the file, and of 64 sections with 2 to spare
MOST_NOTES = 1 << 26  # bytes of text for people


class Image:
    """An image. sections: name -> (offset, size). manifest: its JSON. digest: hexadecimal."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.machine, self.sections = read_sections(data)
        self.digest = ""
        self.manifest: dict[str, Any] = {}

    def section(self, name: str) -> bytes:
        offset, size = self.sections[name]
        return self.data[offset : offset + size]

    def notes(self) -> dict[str, Any]:
        """What only people read: the text of every level."""
        import json
        import zlib

        try:
            text = zlib.decompressobj().decompress(self.section(".spmd.notes"), MOST_NOTES)
            notes = json.loads(text)
        except (ValueError, RecursionError, zlib.error):
            notes = None
        if not (isinstance(notes, dict) and all(isinstance(v, str | list) for v in notes.values())):
            raise damaged("something else", "notes in JSON")
        return notes


def read(data: bytes, *, host: bool = True) -> Image:
    """Check an image's bytes and read its manifest.

    host: it must also run on this machine. Raises ImageError, VersionError or InputError.
    """
    image = Image(data)
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
    from os import uname

    here = _HOSTS.get(uname().machine.lower(), uname().machine)
    if machine != here:
        raise ImageError(f"built for {machine}, this machine is {here}",
                         remedy="build the image on a machine of this kind")  # fmt: skip


# ---- digest --------------------------------------------------------------------------------------


def digest_of(data: bytes, size: int, *blank: tuple[int, int]) -> bytes:
    """BLAKE2b of the bytes, as if the blank ranges (offset, size) were zero."""
    try:  # without hashlib, which loads OpenSSL
        from _blake2 import blake2b as hashed
    except ImportError:
        from hashlib import blake2b as hashed

    state, view, at = hashed(digest_size=size), memoryview(data), 0
    for offset, length in sorted(blank):
        state.update(view[at:offset])
        state.update(bytes(length))
        at = offset + length
    state.update(view[at:])
    digest: bytes = state.digest()
    return digest


def make_digest(data: bytes, sections: Sections) -> bytes:
    """The content of .spmd.digest: of the whole file, then of each section in order.

    The index words count as zero; so do, in the first, its own bytes.
    """
    at, room = sections[".spmd.digest"]
    parts = b""
    for name, (offset, size) in sections.items():
        content = bytes(size) if name in (".spmd.index", ".spmd.digest") else data[offset:][:size]
        parts += digest_of(content, SECTION_DIGEST_SIZE)
    parts = parts.ljust(room - DIGEST_SIZE, b"\0")
    whole = data[: at + DIGEST_SIZE] + parts + data[at + room :]
    return digest_of(whole, DIGEST_SIZE, sections[".spmd.index"], (at, DIGEST_SIZE)) + parts


def check_digest(image: Image) -> None:
    """Sets the image's digest. Sections are looked at one by one only to name the damaged one."""
    data, sections, found = image.data, image.sections, image.section(".spmd.digest")
    name = "headers"
    if len(found) == DIGEST_ROOM:
        blank = (sections[".spmd.index"], (sections[".spmd.digest"][0], DIGEST_SIZE))
        whole = digest_of(data, DIGEST_SIZE, *blank)
        if whole == found[:DIGEST_SIZE]:
            image.digest = whole.hex()
            return
        name = _damaged_section(sections, found, make_digest(data, sections), whole)
    raise ImageError(f"digest mismatch in section {printable(name)}",
                     remedy="the file was changed: copy or build it again")  # fmt: skip


def _damaged_section(sections: Sections, found: bytes, wanted: bytes, whole: bytes) -> str:
    if found[:DIGEST_SIZE] == wanted[:DIGEST_SIZE]:
        return ".spmd.digest"  # the digest of one section was damaged, not the section
    for k, name in enumerate(sections):
        at = DIGEST_SIZE + k * SECTION_DIGEST_SIZE
        if wanted[at : at + SECTION_DIGEST_SIZE] != found[at : at + SECTION_DIGEST_SIZE]:
            return name
    # Every section is sound. Two digests differ in about half of their bits, unless one of them
    # was damaged itself.
    differ = int.from_bytes(whole, "big") ^ int.from_bytes(found[:DIGEST_SIZE], "big")
    return ".spmd.digest" if differ.bit_count() <= DIGEST_SIZE else "headers"


# ---- manifest ------------------------------------------------------------------------------------


def parse(text: bytes) -> dict[str, Any]:
    import json

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
    """Nothing that the manifest says can move a terminal's cursor, wherever it is printed."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_escaped(v) for v in value]
    if isinstance(value, dict):
        return {printable(k): _escaped(v) for k, v in value.items()}
    return value


# What the runtime reads, and of which type: of the manifest, and of the rows of its tables.
_FIELDS = {
    "program": str, "parameters": dict, "target": dict, "mesh": list, "scalars": list,
    "inputs": list, "outputs": list, "returns": str, "conditions": list, "routes": list,
    "operations": list, "buffers": list, "libraries": list,
}  # fmt: skip
_ARRAY = {"name": str, "dtype": str, "shape": list, "layout": list, "buffer": int}
_ROWS: dict[str, dict[str, Any]] = {
    "mesh": {"name": str, "size": (int, type(None))},
    "scalars": {"name": str, "dtype": str, "default": (int, float, type(None))},
    "inputs": _ARRAY,
    "outputs": _ARRAY,
    "conditions": {"holds": (int, str, list), "text": str, "place": str},
    "routes": {"member": str, "to": (int, str, list), "sends": (int, str, list),
               "size": (int, str, list), "text": str, "place": str},
    "operations": {"number": int, "kind": str},
    "buffers": {"number": int, "name": str, "dtype": str, "bytes": (int, str, list),
                "operations": list},
    "libraries": {"number": int, "routine": str, "operations": list},
}  # fmt: skip
_ARGUMENTS = {"floordiv": 2, "mod": 2, "min": 2, "max": 2, "ge0": 1, "eq0": 1}
_MOST_NODES = 10_000
_MOST_DEPTH = 100


def check_manifest(m: dict[str, Any]) -> None:
    """Types, ranges and expressions of all that the runtime reads: a hostile file is refused."""
    _check_row("manifest", m, _FIELDS)
    _check_row("target", m["target"], {"machine": str, "level": str, "features": list})
    for table, fields in _ROWS.items():
        for row in m[table]:
            _check_row(table, row, fields)
        if "name" in fields and table != "buffers":
            names = {row["name"] for row in m[table]}
            _require(len(names) == len(m[table]), f"distinct names in {table}")
        if "number" in fields:
            _require([row["number"] for row in m[table]] == list(range(len(m[table]))),
                     f"{table} numbered in order")  # fmt: skip
    _require(len(m["mesh"]) <= AXES, f"at most {AXES} mesh axes")
    _require(all(a["size"] is None or 0 < a["size"] < 2**31 for a in m["mesh"]), "axis sizes")
    _require(all(s["dtype"] in ("int64", "float64") for s in m["scalars"]), "int64 or float64")
    symbols = {s["name"] for s in m["scalars"]}
    axes = {axis["name"] for axis in m["mesh"]}
    symbols |= {f"n_{name}" for name in axes}
    for array in (*m["inputs"], *m["outputs"]):
        _require(0 <= array["buffer"] < len(m["buffers"]), f"a buffer of {len(m['buffers'])}")
        _require(len(array["shape"]) == len(array["layout"]) <= 8, "a layout entry per dim")
        _require(all(isinstance(e, list) and axes.issuperset(e) for e in array["layout"]), "axes")
        for e in array["shape"]:
            check_expression(e, symbols)
    for condition in m["conditions"]:
        check_expression(condition["holds"], symbols)
    for route in m["routes"]:
        for part in ("to", "sends", "size"):
            check_expression(route[part], symbols | {route["member"]})
    for buffer in m["buffers"]:
        check_expression(buffer["bytes"], symbols)


def _require(holds: bool, expected: str) -> None:
    if not holds:
        raise damaged("another manifest", expected)


def _check_row(table: str, row: Any, fields: dict[str, Any]) -> None:
    _require(isinstance(row, dict), f"rows in {table}")
    for name, kind in fields.items():
        value = row.get(name, _require)  # _require: what no JSON value is
        _require(isinstance(value, kind) and value is not True and value is not False,
                 f"{name} in {table}")  # fmt: skip
        _require(not isinstance(value, int) or -(2**63) <= value < 2**63, f"64 bits in {table}")


def check_expression(e: Any, symbols: set[str]) -> None:
    """Raises ImageError unless `evaluate` can do it, in bounded time."""
    level, nodes = [e], 0
    for _ in range(_MOST_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, list):
                op, count = (node[0] if node else None), len(node) - 1
                known = op in ("+", "*") or (isinstance(op, str) and _ARGUMENTS.get(op) == count)
                _require(known, "an expression")
                below += node[1:]
            elif isinstance(node, str):
                _require(node in symbols, "symbols that the manifest declares")
            else:
                _require(type(node) is int and -(2**63) <= node < 2**63, "integers of 64 bits")
        nodes += len(level)
        if not below:
            return
        _require(nodes + len(below) <= _MOST_NODES, "a shorter expression")
        level = below
    _require(False, "an expression that nests less deeply")


def symbols(e: Any) -> set[str]:
    """Names in a checked expression."""
    if isinstance(e, str):
        return {e}
    return set().union(*map(symbols, e[1:])) if isinstance(e, list) else set()


def check_version(manifest: dict[str, Any]) -> None:
    found = manifest.get("format")
    if type(found) is not int:
        raise damaged("none", "a format version in the manifest")
    if found > FORMAT:
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
    from codegen.target import host_features, mark, native

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
        )  # fmt: skip


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


def operations() -> dict[str, Any]:
    """What the names of operations in expressions mean, `+` and `*` apart."""
    return _OPERATIONS


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


def damaged_words(expected: str, found: str) -> InputError:
    return InputError("damaged index words", expected=expected, found=found,
                      remedy="patch or build the image again")  # fmt: skip


class IndexWords:
    """What a local program says of itself."""

    def __init__(self, data: bytes) -> None:
        if len(data) < 8 * INDEX_FIXED or len(data) % 8:
            raise damaged_words(f"at least {8 * INDEX_FIXED} bytes", f"{len(data)} bytes")
        words = struct.unpack(f"<{len(data) // 8}q", data)
        check = fnv(data[:8] + data[16:])
        if words[1] != check:
            raise InputError(
                "digest mismatch in section .spmd.index: index words fail their check value",
                expected=str(check), found=str(words[1]), remedy="patch or build the image again",
            )  # fmt: skip
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
                                 found=str(n))  # fmt: skip
            ranks *= n
        if not (0 <= self.first and 1 <= self.count and self.first + self.count <= ranks):
            raise InputError(
                "index words out of range", expected=f"ranks within 0 … {ranks - 1}",
                found=f"{self.count} ranks from {self.first}",
            )  # fmt: skip


def patch(image: Image, first: int, count: int, sizes: list[int], scalars: list[int]) -> bytes:
    """A local program: the image with its index words. Raises InputError where they do not fit.

    What is a local program already stays what it is: it runs on its own ranks only.
    """
    data = local_program(image, first, count, sizes, scalars)
    own = IndexWords(image.section(".spmd.index"))
    if own.patched and data != image.data:
        wanted = IndexWords(index_words(1, first, count, sizes, scalars))
        raise InputError(
            "index words are not those of this rank", expected=str(wanted), found=str(own),
            remedy="give each process its own local program, or all of them the image",
        )  # fmt: skip
    return data


def local_program(
    image: Image, first: int, count: int, sizes: list[int], scalars: list[int]
) -> bytes:
    """An image, or a local program of it, with other index words. Raises InputError."""
    offset, size = image.sections[".spmd.index"]
    words = index_words(1, first, count, sizes, scalars)
    if len(words) != size:
        raise InputError("index words do not fit the image", expected=f"{size // 8} words",
                         found=f"{len(words) // 8}")  # fmt: skip
    IndexWords(words)
    return image.data[:offset] + words + image.data[offset + size :]
