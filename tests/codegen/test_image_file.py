"""The image file: ELF, digest, index words, target, machine code. Damage is refused by name."""

import random
import shutil
import struct
import subprocess

import pytest

from codegen.compile import build
from codegen.errors import EnvironmentFault, ImageError, InputError, VersionError
from codegen.image import link, manifest
from tests.codegen import sample_programs
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def data():
    return build(sample_programs.branches, {})


@pytest.fixture(scope="module")
def image(data):
    return manifest.read(data)


def rebuilt(image, **changes):
    """The same image with another manifest."""
    return link.link(
        "int unused;\n", objects=[], constants=b"", manifest={**image.manifest, **changes},
        notes={}, index_words=0, target=image.manifest["target"]["level"],
    )


def test_one_flipped_bit_anywhere_is_refused(data, image):
    draw = random.Random(1)
    places = [draw.randrange(len(data)) for _ in range(300)]
    places += [start + size // 2 for start, size in image.sections.values() if size]
    for at in places:
        broken = bytearray(data)
        broken[at] ^= 1 << draw.randrange(8)
        with pytest.raises((ImageError, VersionError, InputError)):
            manifest.patch(manifest.read(bytes(broken)), 0, 1, [1], [3, 0])


@pytest.mark.parametrize("content", [b"", b"hello", b"\x7fELF" + bytes(100), b"#!/bin/sh\n" * 20])
def test_not_an_image(content):
    with pytest.raises(ImageError, match="not an spmd image|truncated"):
        manifest.read(content)


def test_other_architecture(data):
    other = bytearray(data)
    struct.pack_into("<H", other, 18, 183)
    with pytest.raises(ImageError, match="built for aarch64, this machine is x86-64"):
        manifest.read(bytes(other))


def test_missing_cpu_feature(image):
    target = {**image.manifest["target"], "level": "x86-64-v9", "features": ["sse2", "warp"]}
    with pytest.raises(ImageError, match="needs x86-64-v9; this host has (?s:.*)warp"):
        manifest.read(rebuilt_with(image, target=target))


def rebuilt_with(image, **changes):
    return link.link(
        "int unused;\n", objects=[], constants=b"", manifest={**image.manifest, **changes},
        notes={}, index_words=0, target="x86-64",
    )


def test_newer_format(image):
    newer = manifest.FORMAT + 1
    with pytest.raises(VersionError, match=f"image format {newer}, this runtime reads {newer - 1}"):
        manifest.read(rebuilt(image, format=newer))


def test_one_interface_for_the_compiler_and_the_engine():
    header = (ROOT / "csrc" / "spmd_image.h").read_text()
    assert f"#define SPMD_INTERFACE {manifest.INTERFACE}\n" in header


def test_other_interface(image):
    with pytest.raises(VersionError, match="engine interface"):
        manifest.read(rebuilt(image, interface=99))


@pytest.mark.parametrize(
    "source, what",
    [
        ("volatile int n;\n__attribute__((constructor)) static void f(void) { n = 1; }\n",
         "constructors"),
        ("static void f(void) {}\nstatic void (*g(void))(void) { return f; }\n"
         'void h(void) __attribute__((ifunc("g"), visibility("default")));\n', "indirect function"),
    ],
    ids=["constructor", "ifunc"],
)
def test_code_that_runs_when_loaded_is_refused(image, source, what):
    with pytest.raises(ImageError, match=what):
        link.link(source, objects=[], constants=b"", manifest=image.manifest, notes={},
                  index_words=0, target="x86-64")


# ---- index words -------------------------------------------------------------------------------


def test_local_programs_differ_in_the_index_words_only(data, image):
    offset, size = image.sections[".spmd.index"]
    programs = [manifest.patch(image, i, 1, [4], [3, 0]) for i in range(4)]
    assert len(set(programs)) == 4
    for program in programs:
        assert program[:offset] == data[:offset]
        assert program[offset + size :] == data[offset + size :]
        assert manifest.read(program).digest == image.digest


@pytest.mark.parametrize("first, count, sizes", [(-1, 1, [4]), (4, 1, [4]), (0, 5, [4]),
                                                 (0, 0, [4]), (0, 1, [0])])
def test_index_words_out_of_range(image, first, count, sizes):
    with pytest.raises(InputError, match="index words out of range"):
        manifest.patch(image, first, count, sizes, [3, 0])


def test_index_words_that_fail_their_check_value(image):
    program = bytearray(manifest.patch(image, 1, 1, [4], [3, 0]))
    offset, _ = image.sections[".spmd.index"]
    program[offset + 24] ^= 1  # the first rank
    with pytest.raises(InputError, match="check value"):
        manifest.patch(manifest.read(bytes(program)), 0, 1, [4], [3, 0])


def test_index_words_of_another_program(image):
    with pytest.raises(InputError, match="do not fit"):
        manifest.patch(image, 0, 1, [4], [])


# ---- making one --------------------------------------------------------------------------------


def test_the_same_program_gives_the_same_bytes(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert build(sample_programs.branches, {}) == data


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(EnvironmentFault, match="not found; install gcc or set CC") as caught:
        build(sample_programs.halo, {})
    assert caught.value.exit_code == 69


def test_tools_can_read_it(data, tmp_path):
    if not shutil.which("nm"):
        pytest.skip("nm is not installed")
    (tmp_path / "image.so").write_bytes(data)
    done = subprocess.run(["nm", "-D", str(tmp_path / "image.so")], capture_output=True, text=True)
    assert "spmd_image_table" in done.stdout
    outside = {ln.split()[-1].split("@")[0] for ln in done.stdout.splitlines() if " U " in ln}
    libc = {"memcpy", "memset", "memmove", "strlen", "strchr", "snprintf", "strtod"}
    assert outside <= libc
