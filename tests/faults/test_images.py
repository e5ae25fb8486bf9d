"""Damaged files, and files that are no images: refused before anything of them is loaded (1-3)."""

from __future__ import annotations

import os

import pytest

PROGRAM = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def total():
    x = spmd.input("x", (8,), np.float64, layout=("r",), default=lambda i: i * 1.5)

    @spmd.shard_map(mesh="r", out_layouts=())
    def add(x):
        return spmd.psum(np.sum(x), "r")

    return {"total": add(x)}
'''


@pytest.fixture(scope="module")
def image(built):
    return built(PROGRAM)


@pytest.fixture
def damaged(image, tmp_path):
    """damaged(change): a copy of the image after change(bytearray)."""

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
    done = spmd_command("run", path, "--ranks", "2", timeout=20)
    done.expect(65, "not an spmd image", str(path))


def test_a_missing_file(spmd_command, tmp_path):
    done = spmd_command("run", tmp_path / "none.img", "--ranks", "2")
    assert done.code in (2, 65, 74) and "none.img" in done.err
    assert "Traceback" not in done.err


def test_another_shared_object(spmd_command):
    import _ctypes

    spmd_command("run", _ctypes.__file__, "--ranks", "2").expect(65, "not an spmd image")
