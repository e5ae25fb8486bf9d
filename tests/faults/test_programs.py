"""Programs and kernels that cannot be built, and a machine without a compiler (27-29)."""

from __future__ import annotations

import re
import sys

import pytest

from spmd import cli
from tests.conftest import Finished, run
from tests.pages import kept_signals

HEAD = """import numpy as np
import spmd

@spmd.program(mesh=("r",))
def program():
    x = spmd.input("x", (12, 5), np.float32, layout=("r", None), default=lambda i, j: i + j)

    @spmd.shard_map(mesh="r", out_layouts=("r", None))
    def body(x):
"""
TAIL = """
        return x

    return body(x)
"""

# name: lines of the body (the faulty one is marked), what the message must say
PROGRAMS = {
    "shapes": ("y = x + np.ones(7)  # fault", ["5", "7"]),
    "inner extents": ("y = x @ np.ones((4, 3))  # fault", ["5", "4"]),
    "index": ("y = x[:, 9]  # fault", ["9", "5"]),
    "carried dtype": (
        "t = np.sum(x)\n        for i in spmd.range(3):  # fault\n            t = t > 1",
        ["t", "float32", "bool"],
    ),
    "carried shape": (
        "y = x\n        for i in spmd.range(3):  # fault\n            y = y[:, 0]",
        ["y", "float32"],
    ),
    "data-dependent shape": ("y = np.sort(np.nonzero(x)[0])  # fault", ["nonzero", "where"]),
    "Python needs the value": (
        "y = [0 for _ in range(spmd.axis_size('r'))]  # fault", ["spmd.range"],
    ),
    "axis": ('y = spmd.psum(x, "rows")  # fault', ["rows", "r"]),
    "not injective": (
        'y = spmd.ppermute(np.sum(x, 0), "r", to=lambda i, n: i // 2)  # fault',
        ["ranks 0 and 1 both send to 0"],
    ),
    "twice in perm": (
        'y = spmd.ppermute(x, "r", perm=[(0, 1), (1, 1)])  # fault',
        ["rank 1 stands twice as a destination"],
    ),
    "a forgotten argument": (
        "y = spmd.psum(x)  # fault", ["expected: spmd.psum(x, axis)", "missing", "'axis'"],
    ),
    "an unknown argument": (
        'y = spmd.psum(x, "r", dim=0)  # fault', ["'dim'", "spmd.psum(x, axis)"],
    ),
    "a function of too few arguments": (
        'y = spmd.ppermute(x, "r", to=lambda i: i)  # fault', ["expected: a function of i, n"],
    ),
    "no function": (
        'y = spmd.ppermute(x, "r", to=[1, 0])  # fault', ["a function of i, n", "[1, 0]"],
    ),
    "a branch of too many arguments": (
        "y = spmd.switch(spmd.index(), [lambda a, b: a], x)  # fault", ["'b'"],
    ),
    "a name of MPI": ("y = spmd.send(x, 1)  # fault", ["'send'", "spmd.ppermute"]),
    "a shift that is no integer": (
        'y = spmd.ppermute(x, "r", shift=1.5)  # fault', ["expected: an integer", "found:    1.5"],
    ),
    "a value too few": ('spmd.print("{} {}", x[0])  # fault', ["expected: a place {} per value"]),
    "recursion": (
        "def again(v): return again(v - 1) if np.sum(v) > 0 else v  # fault\n        again(x)",
        ["recursion", "@spmd.recursive", "spmd.range"],
    ),
    "layout": (
        'y = spmd.input("y", (4, 4), np.float32, layout=("r", "r"))  # fault', ["r"],
    ),
}


@pytest.fixture
def building(capsys):
    """Return building(path, ...), which gives what `spmd build` prints, run in this process."""

    def start(path, *arguments):
        with kept_signals():
            code = cli.main(["build", str(path), *arguments])
        shown = capsys.readouterr()
        return Finished(code, shown.out, shown.err, 0.0)

    return start


@pytest.mark.parametrize("fault", PROGRAMS)
def test_program_errors(building, tmp_path, fault):
    body, fragments = PROGRAMS[fault]
    source = HEAD + "        " + body + TAIL
    path = tmp_path / "program.py"
    path.write_text(source)
    line = next(k for k, text in enumerate(source.splitlines(), 1) if "# fault" in text)
    done = building(path).expect(65, *fragments)
    assert re.search(rf"program\.py:{line}\b", done.err), f"not line {line}:\n{done.err}"
    assert source.splitlines()[line - 1].split("#")[0].strip() in done.err
    assert "^" in done.err
    if "a name of MPI" not in fault:  # Python's own message, with a hint
        assert re.search(r"expected|try", done.err), done.err
    assert not path.with_suffix(".img").exists()


def test_python_that_is_wrong(building, tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import spmd\ndef program(:\n")
    building(path).expect(65, "program.py:2", "^")


@pytest.mark.parametrize("text", ["", "import spmd\nx = 1\n"])
def test_no_program_in_the_file(building, tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    done = building(path)
    assert done.code in (2, 65) and "program.py" in done.err and "Traceback" not in done.err


def test_an_unknown_parameter(building, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD.replace("program():", "program(rows: int = 3):") + TAIL)
    building(path, "--set", "columns=3").expect(2, "columns", "rows")


KERNEL = """import numpy as np
import spmd

@spmd.kernel
def work(x, out):
    for i in range(x.shape[0]):
        {line}  # fault

@spmd.program(mesh=("r",))
def program():
    x = spmd.input("x", (12,), np.float64, layout=("r",), default=lambda i: i)

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def body(x):
        return work(x, out=spmd.like(x))

    return body(x)
"""

KERNELS = {
    "cannot be compiled": ("out[i] = x[i].no_such_thing", ["no_such_thing"]),
    "unknown name": ("out[i] = undefined_name(x[i])", ["undefined_name"]),
    "allocates": ("out[i] = np.zeros(i + 1)[0] + x[i]", ["allocat"]),
    "raises": ("if x[i] < 0: raise ValueError('negative')", ["rais"]),
}


@pytest.mark.parametrize("fault", KERNELS)
def test_kernel_errors(building, tmp_path, fault):
    line, fragments = KERNELS[fault]
    path = tmp_path / "program.py"
    path.write_text(KERNEL.format(line=line))
    done = building(path).expect(65, *fragments)
    found = re.search(r"program\.py:(\d+)", done.err)
    assert found and 4 <= int(found[1]) <= 7, f"the kernel's own line is not named:\n{done.err}"


def test_a_good_kernel(spmd_command, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(KERNEL.format(line="out[i] = 2 * x[i]"))
    spmd_command("build", path).expect(0)
    spmd_command("run", tmp_path / "program.img", "--ranks", "5").expect(0, "22")


def test_no_compiler(spmd_command, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + "        pass" + TAIL)
    done = spmd_command("build", path, env={"CC": "no-such-compiler"})
    done.expect(69, "no-such-compiler not found", "install", "CC")
    assert not path.with_suffix(".img").exists()


def test_a_script_shows_no_frames_of_ours(tmp_path):
    """The traceback that Python prints ends with the message, not far below it."""
    path = tmp_path / "script.py"
    path.write_text(HEAD + "        y = spmd.psum(x)\n" + TAIL + "\nspmd.build(program)\n")
    done = run([sys.executable, path])
    assert done.code == 1 and "missing a required argument: 'axis'" in done.err
    assert done.err.count('  File "') <= 2 and "codegen/" not in done.err
