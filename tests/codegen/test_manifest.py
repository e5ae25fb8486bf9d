"""Hostile images: every field that is read is checked first, and the work to do so is bounded."""

import contextlib
import json
import os
import random
import struct
import time
import zlib

import pytest

from codegen import dtypes
from codegen.compile import build
from codegen.errors import ImageError, InputError, SpmdError, VersionError
from codegen.image import elf, link, manifest, schema
from spmd import arguments, show
from spmd.launch import sizes
from spmd.ledger import Ledger
from tests.codegen import sample_programs


@pytest.fixture(scope="module")
def data():
    return build(sample_programs.branches, {})


@pytest.fixture(scope="module")
def good(data):
    return manifest.read(data).manifest


def sealed(data):
    """The bytes with a digest that fits them: made so, not damaged."""
    _, sections = elf.read_sections(bytes(data))
    at, room = sections[".spmd.digest"]
    out = bytearray(data)
    out[at : at + room] = manifest.make_digest(bytes(data), sections)
    return bytes(out)


def with_manifest(content, notes=None):
    """An image of nothing but this manifest, whatever it is; the section is filled by hand."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    data = bytearray(
        link.link("int unused;\n", objects=[], constants=b"", manifest={"": "x" * len(text)},
                  notes={"": random.Random(1).randbytes(len(notes or b"")).hex()}, index_words=2,
                  target="x86-64")
    )
    _, sections = elf.read_sections(bytes(data))
    for name, new in ((".spmd.manifest", text), (".spmd.notes", notes)):
        offset, size = sections[name]
        if new is not None:
            assert len(new) <= size
            data[offset : offset + size] = new.ljust(size, b" ")
    return sealed(data)


def refused(data, *texts, kind=ImageError):
    def seconds():
        start = time.process_time()  # of this process: others may be busy
        with pytest.raises(kind) as caught:
            image = manifest.read(data)
            image.notes()
        found.append(caught)
        return time.process_time() - start

    found = []
    assert any(seconds() < 1 for _ in range(5))
    caught = found[-1]
    assert caught.value.exit_code == 65
    for text in texts:
        assert text in str(caught.value), str(caught.value)


def test_one_bit_of_the_headers_is_known_by_name(data):
    """Every bit of the ELF header, and some of the tables: they could pass for other damage."""
    tables = [*range(64, 64 + 56 * 8), *range(len(data) - 64 * 30, len(data))]
    places = [8 * at + bit for at in range(64) for bit in range(8)]
    places += [8 * at + random.Random(at).randrange(8) for at in tables]
    for place in places:
        at = place // 8
        broken = bytearray(data)
        broken[at] ^= 1 << place % 8
        with pytest.raises((ImageError, InputError), match="digest mismatch in section"):
            manifest.read(bytes(broken))


@pytest.mark.parametrize("name", [".text", ".spmd.index", ".spmd.digest", ".shstrtab", ".dynamic"])
def test_a_flipped_bit_names_its_section(data, name):
    offset, size = elf.read_sections(data)[1][name]
    for at in (offset, offset + size // 2):
        broken = bytearray(data)
        broken[at] ^= 16
        expected = "headers|.shstrtab" if name == ".shstrtab" else name
        with pytest.raises((ImageError, InputError), match=f"in section ({expected})"):
            manifest.read(bytes(broken))


def test_cut_off_anywhere(data):
    ends = [*range(len(data) - 64 * 28, len(data), 32), *range(len(data) - 40, len(data))]
    for length in [*range(64, 2000, 97), *ends]:
        with pytest.raises(ImageError) as caught:
            manifest.read(data[:length])
        assert f"truncated image: expected {len(data)} bytes, got {length}" in str(caught.value)


def test_bytes_behind_the_end(data):
    refused(data + b"more", f"expected {len(data)} bytes, got {len(data) + 4}")


# ---- JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"[" * 100_000, b'{"a":' * 50_000, b'{"a": 1, "a": 2}', b'{"x": 1e',
     b'{"n": ' + b"9" * 5000 + b"}", b"\xff\xfe{}"],
    ids=["empty", "list", "null", "nested", "nested dicts", "duplicate", "cut", "digits", "bytes"],
)
def test_hostile_json(text):
    refused(with_manifest(text), "damaged image")


def changed(good, path, value):
    """A copy of the manifest with one place replaced; value `del` removes it."""
    out = json.loads(json.dumps(good))
    at = out
    for key in path[:-1]:
        at = at[key]
    if value is del_:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return out


del_ = object()
DEEP = 1
for _ in range(150):
    DEEP = ["+", DEEP, 1]
DEEP_LIST = 0
for _ in range(150):
    DEEP_LIST = ["list", DEEP_LIST]


@pytest.mark.parametrize(
    "path, value",
    [
        (["target"], del_), (["mesh"], {}), (["program"], 7), (["scalars", 0, "default"], "x"),
        (["scalars", 0, "dtype"], "float32"), (["mesh", 0, "size"], 0),
        (["mesh", 0, "size"], 2**70), (["mesh", 0, "size"], True),
        (["mesh"], [{"name": str(k), "size": None} for k in range(4)]),
        (["mesh"], [{"name": "a", "size": None}] * 2), (["buffers", 0, "number"], 5),
        (["buffers", 0, "bytes"], "unknown"), (["buffers", 0, "bytes"], ["evil", 1]),
        (["buffers", 0, "bytes"], ["mod", 1]), (["buffers", 0, "bytes"], [[], 1]),
        (["buffers", 0, "bytes"], []), (["buffers", 0, "bytes"], DEEP),
        (["buffers", 0, "bytes"], ["+", *[1] * 20_000]), (["buffers", 0, "bytes"], 2**64),
        (["buffers", 0, "bytes"], None), (["outputs", 0, "buffer"], 999),
        (["outputs", 0, "buffer"], -1), (["outputs", 0, "layout"], [["no such axis"]]),
        (["outputs", 0, "layout"], [[]] * 9), (["outputs", 0, "shape"], 3), (["outputs", 0], None),
        (["target", "features"], "avx"), (["operations"], [1]), (["buffers", 0, "bytes"], ["+"]),
        (["buffers", 0, "dtype"], "flrat32"), (["outputs", 0, "dtype"], ["float32"]),
        (["outputs", 0, "shape", 0], -1), (["target", "features"], [{}]), (["returns"], {}),
        (["returns"], ["dict"]), (["returns"], ["dict", 0]), (["returns"], ["dict", ["a", 7]]),
        (["returns"], ["set", 0]), (["returns"], []), (["returns"], ["named"]),
        (["returns"], ["tuple", *range(9)]), (["returns"], DEEP_LIST),
        (["mesh", 0, "name"], ["r"]), (["outputs", 0, "layout", 0], [7]),
        (["outputs", 0, "layout", 0], ["r", "r"]), (["format"], 0), (["format"], -5),
        (["scalars", 0, "default"], float("inf")), (["operations", 0, "buffers"], {}),
    ],
)
def test_hostile_fields(good, path, value):
    refused(with_manifest(changed(good, path, value)), "damaged image")


def test_the_schema_knows_what_the_compiler_writes():
    assert set(schema.DTYPES) == set(dtypes.BY_NAME)


def paths(value, at=()):
    """Every place in what JSON holds."""
    items = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ())
    for key, inner in items:
        yield (*at, key)
        yield from paths(inner, (*at, key))


@pytest.mark.parametrize(
    "value", [del_, None, [], {"a": 1}, "text", 2**40],
    ids=["removed", "null", "list", "object", "text", "large"],
)
def test_whatever_a_manifest_lacks_or_holds_is_known_or_unread(data, good, value):
    """Each place removed, and replaced: refused as damaged, or shown and launched as it is."""
    draw, image = random.Random(3), manifest.read(data)
    every = [p for p in paths(good) if p[0] != "parameters"]
    for path in draw.sample(every, min(120, len(every))):
        at = changed(good, path, value)
        try:
            schema.check_manifest(at)
        except ImageError:
            continue
        image.manifest = at
        assert "\n".join(show.summary(image)) and show.size_table(image) is not None
        settings = {s["name"]: 1 for s in at["scalars"]}
        arguments.scalars_of(at, settings)
        with contextlib.suppress(SpmdError):
            sizes.bind_mesh(at, 2, {}, arguments.scalars_of(at, settings))
            Ledger(image, "it").check_arrays((2,), {})


def test_an_unchanged_manifest_is_accepted(good):
    """The check of the checks above: rebuilt by the same means, nothing is refused."""
    assert manifest.read(with_manifest(good)).manifest == good


def test_wide_layouts_of_expressions_stay_fast(good):
    e = ["+", *[["*", 2**62, 2**62, 2**62]] * 2000]
    image = manifest.read(with_manifest(changed(good, ["buffers", 0, "bytes"], e)))

    def seconds():
        start = time.process_time()  # of this process: others may be busy
        with pytest.raises(ImageError, match="formulas of 64 bits"):
            manifest.evaluate(image.manifest["buffers"][0]["bytes"], {})
        return time.process_time() - start

    assert any(seconds() < 1 for _ in range(5))


def test_notes_that_unpack_without_end(good):
    bomb = zlib.compress(b" " * (1 << 28), 9)
    refused(with_manifest(good, bomb), "notes")
    refused(with_manifest(good, zlib.compress(b"[" * 10**6)), "notes")
    refused(with_manifest(good, b"not compressed"), "notes")


def test_terminal_escapes_are_shown_not_sent(good):
    evil = "\x1b]0;owned\x07\u202egpj.exe"
    image = manifest.read(with_manifest(changed(good, ["program"], evil)))
    assert image.manifest["program"] == "\\x1b]0;owned\\x07\\u202egpj.exe"
    assert elf.printable("grün\n") == "grün\\x0a"


# ---- the ELF file --------------------------------------------------------------------------------


def with_section(data, name, **fields):
    """The image with fields of one row of its section table changed, and a digest that fits."""
    out = bytearray(data)
    table, count = struct.unpack_from("<40xQ12xH", data)
    names = list(elf.read_sections(data)[1])
    at = table + 64 * names.index(name)
    for field, value in fields.items():
        struct.pack_into("<Q", out, at + {"address": 16, "offset": 24, "size": 32}[field], value)
    return out


@pytest.mark.parametrize(
    "fields", [{"offset": 2**63}, {"size": 2**64 - 1}, {"offset": 2**64 - 8, "size": 16},
               {"offset": 64}, {"size": 2**40}]
)
@pytest.mark.parametrize("name", [".spmd.index", ".spmd.manifest", ".spmd.digest", ".text"])
def test_hostile_section_table(data, name, fields):
    out = bytes(with_section(data, name, **fields))
    with pytest.raises(ImageError):
        manifest.read(out)


def dynamic_entries(data):
    """File offset, tag and value of each entry of the dynamic segment."""
    offset, size = elf.read_sections(data)[1][".dynamic"]
    rows = ((at, *struct.unpack_from("<QQ", data, at)) for at in range(offset, offset + size, 16))
    return [row for row in rows if row[1]]


@pytest.mark.parametrize(
    "tag, what",
    [(12, "an initialiser"), (13, "a finaliser"), (15, "run path"), (25, "constructors"),
     (29, "run path"), (14, "a name"), (22, "relocations in its code"), (0x6FFFFEFC, "audit"),
     (0x7FFFFFFF, "filter"), (0x12345678, "unknown")],
)
def test_dynamic_entries_that_are_refused(data, tag, what):
    out = bytearray(data)
    at = next(at for at, found, _ in dynamic_entries(data) if found == 0x6FFFFFF9)  # RELACOUNT
    struct.pack_into("<Q", out, at, tag)
    refused(sealed(out), what)


def test_a_foreign_library_is_refused(data):
    out = bytearray(data)
    rows = dynamic_entries(data)
    spare = next(at for at, found, _ in rows if found == 0x6FFFFFF9)
    strings, _ = elf.read_sections(data)[1][".dynstr"]
    name = data.index(b"\0spmd_image_table\0", strings) + 1 - strings
    struct.pack_into("<QQ", out, spare, 1, name)
    refused(sealed(out), "asks for the library spmd_image_table", "libm and libc only")


def test_the_section_table_cannot_hide_what_the_linker_reads(data):
    """A run path that stands in the segment while the section table points elsewhere."""
    out = bytearray(data)
    at = next(at for at, found, _ in dynamic_entries(data) if found == 0x6FFFFFF9)
    struct.pack_into("<Q", out, at, 29)
    out = with_section(bytes(out), ".dynamic", size=0)
    refused(sealed(out), "run path")


def test_code_that_can_be_written_is_refused(data):
    start, count = struct.unpack_from("<32xQ16xH", data)
    for k in range(count):
        kind, flags = struct.unpack_from("<II", data, start + 56 * k)
        if (kind, flags) == (1, 5) or kind == 0x6474E551:
            out = bytearray(data)
            struct.pack_into("<I", out, start + 56 * k + 4, 7)
            refused(sealed(out), "written and executed")


def test_every_segment_stands_on_pages_of_its_own(data):
    """Two that share a page: what is mapped is then not what was looked at."""
    start, count = struct.unpack_from("<32xQ16xH", data)
    rows = [start + 56 * k for k in range(count)]
    loads = [at for at in rows if struct.unpack_from("<I", data, at) == (1,)]
    out = bytearray(data)
    struct.pack_into("<QQ", out, loads[1] + 8, *struct.unpack_from("<QQ", data, loads[0] + 8))
    refused(sealed(out), "pages of its own")
    out = bytearray(data)
    (stack,) = (at for at in rows if struct.unpack_from("<I", data, at) == (0x6474E551,))
    struct.pack_into("<I", out, stack, 4)  # a note instead: the stack could be executed
    refused(sealed(out), "what the stack may do")


def test_no_damage_to_the_tables_of_the_linker_ends_this_process(data):
    """Bytes changed in all that the linker reads: refused, or loaded by a child that lives."""
    from spmd.launch import loader

    draw = random.Random(5)
    sections = elf.read_sections(data)[1]
    names = (".gnu.hash", ".dynsym", ".dynstr", ".gnu.version", ".gnu.version_r", ".rela.dyn",
             ".rela.plt", ".dynamic")
    places = [at for name in names if name in sections
              for at in range(sections[name][0], sum(sections[name]))]
    places += range(64, 64 + 56 * 8)
    loaded = 0
    for _ in range(150):
        out = bytearray(data)
        out[draw.choice(places)] = draw.choice((0, 1, 8, 127, 128, 255, draw.randrange(256)))
        try:
            manifest.read(sealed(out))
        except SpmdError:
            continue
        loaded += 1
        if (child := os.fork()) == 0:
            try:
                loader.check(sealed(out)).load_any(1)
            except SpmdError:
                pass
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert loaded > 5


def test_random_damage_with_a_fitting_digest_never_escapes(data):
    """Bytes changed at random in headers and manifest: refused in a known way, or harmless."""
    draw = random.Random(11)
    _, sections = elf.read_sections(data)
    offset, size = sections[".spmd.manifest"]
    places = [*range(64, 64 + 56 * 8), *range(len(data) - 64 * 28, len(data))]
    places += [*range(offset, offset + size)] * 2
    for _ in range(600):
        out = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            out[draw.choice(places)] = draw.randrange(256)
        try:
            image = manifest.read(sealed(out))
            image.notes()
        except SpmdError as error:
            assert isinstance(error, ImageError | InputError | VersionError)
