"""Damaged files, and files that are no images: refused before any is loaded (1-6, 9, 31)."""

from __future__ import annotations

import os
import re
import sys

import numpy as np
import pytest

from codegen.image import manifest

PROGRAM = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def total():
    x = spmd.input("x", (8,), np.float64, layout=("r",), default=lambda i: i * 1.5)

    @spmd.shard_map(mesh="r", out_layouts=())
    def add(x):
        return spmd.psum(np.sum(x), "r")

    return {"total": add(x)}
"""


@pytest.fixture(scope="module")
def image(built):
    return built(PROGRAM)


@pytest.fixture
def damaged(image, tmp_path):
    """Return damaged(change), which copies the image after change(bytearray)."""

    def copy(change):
        data = bytearray(image.read_bytes())
        data = change(data) or data
        path = tmp_path / "damaged.img"
        path.write_bytes(data)
        return path

    return copy


def test_the_whole_image_runs(image, spmd_command):
    spmd_command("run", image, "--ranks", "3").expect(0, "42")


@pytest.mark.parametrize("part", [0.999, 0.5, 0.1])
def test_truncated(image, damaged, spmd_command, part):
    size = image.stat().st_size
    path = damaged(lambda data: data[: int(size * part)])
    done = spmd_command("run", path, "--ranks", "2").expect(65, str(path))
    assert "expected" in done.err and str(size) in done.err and str(int(size * part)) in done.err


@pytest.mark.parametrize("part", [0.05, 0.25, 0.45, 0.65, 0.85, 0.99])
def test_flipped_bit(image, damaged, spmd_command, part):
    def flip(data):
        data[int(len(data) * part)] ^= 16

    spmd_command("run", damaged(flip), "--ranks", "2").expect(65, "digest mismatch")


@pytest.mark.one_mpi
def test_flipped_bit_under_mpirun(damaged, mpirun):
    def flip(data):
        data[len(data) // 2] ^= 1

    done = mpirun(3, "-m", "spmd", "run", damaged(flip))
    assert done.code == 65, done.text
    assert done.err.count("digest mismatch") == 1


@pytest.mark.parametrize("kind", ["text", "empty", "directory", "fifo"])
def test_not_an_image(spmd_command, tmp_path, kind):
    path = tmp_path / "thing.img"
    if kind == "text":
        path.write_text("not machine code\n" * 100)
    elif kind == "empty":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    done = spmd_command("run", path, "--ranks", "2")
    done.expect(65, "not an spmd image", str(path))


def test_a_missing_file(spmd_command, tmp_path):
    done = spmd_command("run", tmp_path / "none.img", "--ranks", "2")
    done.expect(74, f"cannot read {tmp_path}/none.img", "No such file")


def test_another_shared_object(spmd_command):
    import _ctypes

    spmd_command("run", _ctypes.__file__, "--ranks", "2").expect(65, "not an spmd image")


def _edited(data, old, new):
    """The image with its manifest changed and a digest that fits: made so, not damaged."""
    sections = manifest.read_sections(bytes(data))[1]
    offset, size = sections[".spmd.manifest"]
    text = bytes(data[offset : offset + size])
    edited, count = re.subn(old, new, text)
    assert count == 1 and len(edited) <= size, text[:300]
    data[offset : offset + size] = edited.ljust(size)
    at, room = sections[".spmd.digest"]
    data[at : at + room] = manifest.make_digest(bytes(data), sections)
    return data


def test_another_architecture(damaged, spmd_command):
    def other(data):
        data[18:20] = (183).to_bytes(2, "little")

    done = spmd_command("run", damaged(other), "--ranks", "2")
    done.expect(65, "built for aarch64, this machine is x86-64")


def test_a_newer_format(damaged, spmd_command):
    ours = manifest.FORMAT
    old, new = f'"format": ?{ours}'.encode(), f'"format":{ours + 1}'.encode()
    path = damaged(lambda data: _edited(data, old, new))
    spmd_command("run", path, "--ranks", "2").expect(
        78, f"image format {ours + 1}", f"this runtime reads {ours}")


def test_a_missing_cpu_feature(damaged, spmd_command):
    path = damaged(lambda data: _edited(data, rb'"features": ?\["[^"]*"', b'"features":["zz"'))
    spmd_command("run", path, "--ranks", "2").expect(65, "needs", "zz")


def test_an_image_for_another_machine_is_whole_and_says_so(damaged, spmd_command):
    path = damaged(lambda data: _edited(data, rb'"features": ?\["[^"]*"', b'"features":["zz"'))
    done = spmd_command("verify", path, "--ranks", "2").expect(0, "whole", "not for this machine")
    assert "zz" in done.out or "needs" in done.out


@pytest.mark.parametrize("arrays", [b"inputs", b"outputs"])
def test_a_manifest_that_differs_from_the_machine_code(damaged, spmd_command, tmp_path, arrays):
    """Its arrays are larger than their buffers."""
    old = rb'("%s".*?"dtype": ?)"float64"(.*)"streams": ?1,' % arrays
    path = damaged(lambda data: _edited(data, old, rb'\1"complex128"\2'))
    np.save(tmp_path / "x.npy", np.ones(8, np.complex128))
    spmd_command("run", path, "--ranks", "2", "-i", f"x={tmp_path / 'x.npy'}").expect(65)


def test_which_of_several_images_is_damaged(image, damaged, spmd_command):
    path = damaged(lambda data: data[:-1])
    spmd_command("verify", image, path, "--ranks", "2").expect(65, f"{path}: truncated")
    spmd_command("show", path).expect(65, f"{path}: truncated")


@pytest.mark.parametrize("word", [0, 1, 3, 5])
def test_damaged_index_words(damaged, spmd_command, word):
    def flip(data):
        offset, _ = manifest.read_sections(bytes(data))[1][".spmd.index"]
        data[offset + 8 * word] ^= 64

    spmd_command("run", damaged(flip), "--ranks", "2").expect(65, "index words")


# ---- index words of a local program: 31 ----------------------------------------------------------


@pytest.fixture
def local(image, tmp_path):
    """Return local(2, 4), which writes the local program of rank 2 of 4 to a file."""

    def write(first, ranks, count=1):
        checked = manifest.read(image.read_bytes())
        offset, size = checked.sections[".spmd.index"]
        words = manifest.index_words(1, first, count, [ranks], [])
        path = tmp_path / f"rank{first}of{ranks}.img"
        path.write_bytes(checked.data[:offset] + words + checked.data[offset + size :])
        return path

    return write


def test_a_local_program_runs_on_its_own_rank(local, spmd_command):
    spmd_command("run", local(0, 3, count=3), "--ranks", "3").expect(0, "42")


def test_index_words_out_of_range(local, spmd_command):
    done = spmd_command("run", local(9, 4), "--ranks", "4")
    done.expect(65, "index words out of range", "ranks within 0 … 3", "from 9")


def test_index_words_of_another_rank(local, spmd_command):
    done = spmd_command("run", local(3, 4))
    done.expect(65, "index words are not those of this rank", "rank 0 to 3 of 4", "rank 3 of 4")


def _processes(mpirun, *images):
    """One process per image file, in one job."""
    rest = [x for i in images[1:] for x in (":", "-n", 1, sys.executable, "-m", "spmd", "run", i)]
    return mpirun(1, "-m", "spmd", "run", images[0], *rest)


@pytest.mark.one_mpi
def test_local_programs_of_one_job(local, mpirun):
    _processes(mpirun, local(0, 2), local(1, 2)).expect(0, "42")


@pytest.mark.one_mpi
def test_duplicate_index_words(local, mpirun):
    done = _processes(mpirun, local(1, 2), local(1, 2))
    assert done.code == 65, done.text
    assert done.err.count("index words are not those of this rank") == 1, done.text
    assert "expected: rank 0 of 2" in done.err and "found:    rank 1 of 2" in done.err


# ---- what else a launch may be given ------------------------------------------------------------


@pytest.mark.parametrize("option", [("--ranks", "9" * 20), ("--mesh", "r=" + "9" * 20)])
def test_more_ranks_than_can_be_counted(image, spmd_command, option):
    spmd_command("run", image, *option).expect(78, "at most 2147483648 ranks", "9" * 20)


def test_the_message_says_what_was_expected_and_found(image, damaged, spmd_command):
    size = image.stat().st_size
    path = damaged(lambda data: data[: size // 2])
    done = spmd_command("show", path)
    done.expect(65, f"expected {size} bytes, got {size // 2}")


@pytest.mark.parametrize("command", ["run", "show"])
def test_code_that_runs_when_loaded_is_refused(damaged, spmd_command, command):
    """A dynamic entry for a constructor in place of a harmless one, and a digest that fits: 9."""

    def hostile(data):
        sections = manifest.read_sections(bytes(data))[1]
        at, size = sections[".dynamic"]
        for entry in range(at, at + size, 16):
            if int.from_bytes(data[entry : entry + 8], "little") == 0x6FFFFFF9:  # RELACOUNT
                data[entry : entry + 8] = (12).to_bytes(8, "little")  # INIT
        at, room = sections[".spmd.digest"]
        data[at : at + room] = manifest.make_digest(bytes(data), sections)

    spmd_command(command, damaged(hostile)).expect(65, "initialiser")
