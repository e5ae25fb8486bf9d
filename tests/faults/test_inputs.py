"""Input files that do not fit what the program declared (26): named, with expected and found."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.faults.test_launch import TAKES_INPUT

WIDE = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def weigh():
    x = spmd.input("x", (6, 4), np.float64, layout=("r", None))

    @spmd.shard_map(mesh="r", out_layouts=("r", None))
    def scale(x):
        return x * np.arange(4.0)

    return {"y": scale(x)}
'''


PRINTS = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def says():
    @spmd.shard_map(mesh="r", out_layouts=())
    def f():
        spmd.print("all of {}", spmd.psum(np.ones(3).sum(), "r"))
        return spmd.psum(np.float64(1), "r")

    return f()
'''


@pytest.fixture
def give(built, spmd_command, tmp_path):
    """give(array or bytes): runs the program with this as its input file."""

    def start(content, program=TAKES_INPUT, *args):
        path = tmp_path / "x.npy"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.save(path, content)
        return spmd_command("run", built(program), "--ranks", "3", "-i", f"x={path}", *args)

    return start


def test_wrong_shape(give):
    give(np.ones((10, 100))).expect(65, "x.npy", "(1000,)", "(10, 100)")
    give(np.ones(999)).expect(65, "x.npy", "(1000,)", "(999,)")


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex128"])
def test_wrong_dtype(give, dtype):
    give(np.ones(1000, dtype)).expect(65, "x.npy", "float64", dtype)


def test_too_short(give, tmp_path):
    np.save(tmp_path / "whole.npy", np.ones(1000))
    data = (tmp_path / "whole.npy").read_bytes()
    done = give(data[:-100]).expect(65, "x.npy")
    assert "expected: 8128 bytes" in done.err and "found:    8028 bytes" in done.err, done.err
    give(data[:50]).expect(65, "x.npy")
    give(b"").expect(65, "x.npy")
    give(b"no array at all").expect(65, "x.npy")


def test_too_short_under_mpirun(built, mpirun, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones(1000))
    path.write_bytes(path.read_bytes()[:-100])
    done = mpirun(3, "-m", "spmd", "run", built(TAKES_INPUT), "-i", f"x={path}")
    assert done.code == 65, done.text
    assert "Traceback" not in done.text


@pytest.mark.parametrize("change", ["byte order", "Fortran order"])
def test_converted_or_named(give, tmp_path, change):
    x = np.random.default_rng(0).random((6, 4))
    file = x.astype(">f8") if change == "byte order" else np.asfortranarray(x)
    done = give(file, WIDE, "-o", f"y={tmp_path}/y.npy")
    if done.code == 0:
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x * np.arange(4.0))
    else:
        done.expect(65, "x.npy", change)


def test_no_input_given(built, spmd_command):
    done = spmd_command("run", built(TAKES_INPUT), "--ranks", "2")
    done.expect(2, "input x was not given", "try:      -i x=")


def test_an_input_of_another_name(built, spmd_command, tmp_path):
    np.save(tmp_path / "a.npy", np.ones(1000))
    done = spmd_command("run", built(TAKES_INPUT), "--ranks", "2", "-i", f"y={tmp_path}/a.npy")
    done.expect(2, "no input 'y'", "expected: x")


def test_files_that_cannot_be_read(built, spmd_command, tmp_path):
    spmd_command("run", built(TAKES_INPUT), "-i", f"x={tmp_path}/no.npy").expect(74, "no.npy")
    spmd_command("build", f"{tmp_path}/no.py").expect(74, "no.py")
    (tmp_path / "image.img").write_bytes(b"\x7fELF\0\0")
    spmd_command("build", f"{tmp_path}/image.img").expect(65, "image.img", "an image", "run")


def test_two_outputs_of_one_name(built, spmd_command, tmp_path):
    np.save(tmp_path / "a.npy", np.ones((6, 4)))
    image = built(WIDE.replace('{"y": scale(x)}', '{"y": scale(x), "z": scale(x)}'))
    done = spmd_command("run", image, "-i", f"x={tmp_path}/a.npy",
                        "-o", f"y={tmp_path}/o.npy", "-o", f"z={tmp_path}/./o.npy")  # fmt: skip
    done.expect(2, "y and z", "o.npy")
    assert not (tmp_path / "o.npy").exists()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(built, closed):
    """A shell may start a job without them."""
    command = f"{sys.executable} -m spmd run {built(PRINTS)} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "defect" in done.stdout + done.stderr) == (0, False)


def test_an_output_that_cannot_be_written(built, spmd_command, tmp_path):
    np.save(tmp_path / "a.npy", np.ones(1000))
    done = spmd_command(
        "run", built(TAKES_INPUT), "--ranks", "2", "-i", f"x={tmp_path}/a.npy",
        "-o", f"total={tmp_path}/no/such/folder.npy",
    )  # fmt: skip
    done.expect(74, "folder.npy")
