"""Input files that do not fit what the program declared (26): named, with expected and found."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import spmd
from codegen.errors import InputError
from spmd.files import npy
from tests.conftest import PATIENCE, run
from tests.faults.test_launch import TAKES_INPUT
from tests.spmd.array_files import open_input, write

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
    """Return give(array or bytes), which runs the program with this as its input file."""

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


@pytest.mark.parametrize("dtype", ["complex128"])
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


@pytest.mark.one_mpi
@pytest.mark.parametrize("change", ["cut", "longer", "overlap", "type", "twice"])
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_archives_that_are_damaged(built, spmd_command, mpirun, tmp_path, suffix, change):
    """The one message names the file, what was expected and what was found."""
    path = tmp_path / f"x.{suffix}"
    write(path, {"x": np.ones(1000), "y": np.ones(3)})
    data = path.read_bytes()
    row = data.rindex(b"PK\1\2") if suffix == "npz" else 0  # of y
    data = {
        "cut": lambda: data[:-30],
        "longer": lambda: data.replace(b"1000", b"9000"),
        "overlap": lambda: data[: row + 42] + bytes(4) + data[row + 46 :] if row
        else data.replace(b"[8000,8024]", b"[7976,8000]"),
        "type": lambda: data.replace(b"<f8", b"<U8").replace(b'"F64"', b'"F61"'),
        "twice": lambda: data[: row + 46] + b"x" + data[row + 47 :] if row
        else data.replace(b'"y"', b'"x"'),
    }[change]()
    path.write_bytes(data)
    arguments = ("run", built(TAKES_INPUT), "-i", f"x={path}", "-o", f"total={tmp_path}/t.npz")
    done = spmd_command(*arguments).expect(65, str(path), "expected: ", "found: ")
    words = {"cut": "truncated", "longer": "bytes", "overlap": "y"}
    assert words.get(change, change) in done.err
    if change == "cut":
        both = mpirun(2, "-m", "spmd", *arguments).expect(65)
        assert both.err.startswith(done.err), both.err  # launchers may add a notice of theirs
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]


@pytest.mark.one_mpi
def test_a_compressed_member_that_is_damaged(built, mpirun, tmp_path):
    """Noticed while it is inflated, in every process at once: told once, and nothing is left."""
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random(1000))
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)
    done = mpirun(3, "-m", "spmd", "run", built(TAKES_INPUT), "-i", f"x={path}",
                  "-o", f"total={tmp_path}/t.npz")
    done.expect(65, f"{path}:x is damaged", "expected: ", "found: ")
    assert done.err.count("spmd: ") == 1, done.err
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_archives_that_cannot_be_read(built, spmd_command, tmp_path):
    (tmp_path / "d.npz").mkdir()
    image = built(TAKES_INPUT)
    for option in (f"x={tmp_path}/no.npz:x", f"{tmp_path}/no.safetensors", f"x={tmp_path}/no.npz"):
        spmd_command("run", image, "-i", option).expect(74, f"{tmp_path}/no.", "No such file")
    spmd_command("run", image, "-i", f"{tmp_path}/d.npz").expect(65, "d.npz is not a file")


def test_archives_of_other_arrays(built, spmd_command, tmp_path):
    np.savez(tmp_path / "x.npz", y=np.ones(1000), x=np.ones((10, 100)))
    run = ("run", built(TAKES_INPUT), "-i")
    spmd_command(*run, f"x={tmp_path}/x.npz").expect(65, "x.npz:x", "(1000,)", "(10, 100)")
    spmd_command(*run, f"x={tmp_path}/x.npz:z").expect(65, "no member 'z'", "expected: y, x")
    spmd_command(*run, f"{tmp_path}/x.npz").expect(65, "not an input of the program: y", "inputs x")


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
                        "-o", f"y={tmp_path}/o.npy", "-o", f"z={tmp_path}/./o.npy")
    done.expect(2, "y and z", "o.npy")
    assert not (tmp_path / "o.npy").exists()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(built, closed):
    """A shell may start a job without them."""
    command = f"{sys.executable} -m spmd run {built(PRINTS)} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, "defect" in done.stdout + done.stderr) == (0, False)


def test_an_output_that_cannot_be_written(built, spmd_command, tmp_path):
    np.save(tmp_path / "a.npy", np.ones(1000))
    done = spmd_command(
        "run", built(TAKES_INPUT), "--ranks", "2", "-i", f"x={tmp_path}/a.npy",
        "-o", f"total={tmp_path}/no/such/folder.npy",
    )
    done.expect(74, "folder.npy")


@pytest.mark.one_mpi
@pytest.mark.mpi
def test_another_file_on_one_rank(built, tmp_path):
    """A copy of the file is the same input; a file of other elements is none."""
    x = np.arange(1000.0)
    for name, array in (("a", x), ("copy", x), ("b", x + 1)):
        np.save(tmp_path / f"{name}.npy", array)
    usual = [sys.executable, "-m", "spmd", "run", built(TAKES_INPUT), "-i"]

    def start(other):
        return run(["mpirun", "-n", 2, *usual, f"x={tmp_path}/a.npy",
                    ":", "-n", 1, *usual, f"x={tmp_path}/{other}.npy"])

    start("copy").expect(0, "total: float64 499500")
    done = start("b").expect(
        78, "different arrays for input x: rank 2 differs", "elements of", "a.npy (rank 0)",
        "b.npy (rank 2)",
    )
    assert done.err.count("spmd:") == 1, done.err


def test_files_that_are_cut_short_while_they_are_read(built, tmp_path):
    """Another process may do that at any time: an error, and no bus error."""
    x = np.random.default_rng(0).random(1000)
    np.save(tmp_path / "x.npy", np.tile(x, 100))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")[-1000:]
    image = spmd.load(built(TAKES_INPUT))
    assert image.run(x=mapped)["total"] == pytest.approx(x.sum())
    os.truncate(tmp_path / "x.npy", 4096)
    with pytest.raises(InputError, match="input x: its file became shorter"):
        image.run(x=mapped)
    assert image.run(x=x)["total"] == pytest.approx(x.sum())
    np.savez_compressed(tmp_path / "x.npz", x=x)
    file = open_input(str(tmp_path / "x.npz"), "x")
    os.truncate(tmp_path / "x.npz", 4000)
    with pytest.raises(InputError, match="x.npz:x became shorter"):
        len(file.buffer)
    file.close()


def test_a_member_that_goes_on_behind_its_elements(built, spmd_command, tmp_path):
    """Four gigabytes of zeros are four megabytes of a file, and twenty seconds of inflating."""
    head = npy.header("float64", (1000,)) + bytes(8000)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", head + bytes(1 << 24))
    spmd_command("run", built(TAKES_INPUT), "-i", f"x={tmp_path}/x.npz").expect(
        65, "x.npz:x is damaged", "expected: 8128 bytes, as its header says", f"{8128 + (1 << 24)}"
    )
