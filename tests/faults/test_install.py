"""Another package or a user's file in the way, or no engine: said, with what to do."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module

import pytest

from codegen.errors import InputError
from spmd.report import exit_code
from spmd.shadowed_modules import shadowing_error
from tests.conftest import ROOT, run


@pytest.fixture
def other_codegen(tmp_path):
    """A folder with an unrelated module of the name, as it is found on PyPI."""
    (tmp_path / "codegen.py").write_text("def to_source(node):\n    return ''\n")
    return tmp_path


def test_command_line(other_codegen):
    done = run([sys.executable, "-m", "spmd", "show", "x.img"], cwd=other_codegen)
    done.expect(69, "codegen", str(other_codegen / "codegen.py"), "try")


def test_import(other_codegen):
    code = "import spmd\ntry:\n    spmd.program\nexcept ImportError as e:\n    print('told', e)"
    done = run([sys.executable, "-c", code], cwd=other_codegen).expect(0, "told")
    assert str(other_codegen / "codegen.py") in done.out


DEVIATES = "import numpy as np\n\nprint(np.zeros(1))\n"
PROGRAM = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def total():
    return np.sum(spmd.input("x", (4,), np.float64, layout=("r",), default=lambda i: i))
"""


@pytest.mark.parametrize(("file", "text"), [
    ("random.py", "x = 1\n"), ("random.py", DEVIATES), ("random.py", "x = (\n"),
    ("selectors.py", "x = 1\n"), ("numpy/__init__.py", ""), ("numpy.py", DEVIATES),
    ("json.py", ""), ("enum.py", ""),  # Python reads it before any file of ours
])
def test_a_file_hides_a_module(tmp_path, file, text):
    """`python -m` looks in the current folder first. -P leaves it out."""
    mine = tmp_path / file
    mine.parent.mkdir(exist_ok=True)
    mine.write_text(text)
    (tmp_path / "total.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "spmd", "run", "total.py"]
    what = mine.parent if mine.name == "__init__.py" else mine
    run(command, cwd=tmp_path).expect(69, f"{what} hides the module {what.stem}", f"rename {what}")
    command[1:1] = ["-P"]
    run(command, cwd=tmp_path).expect(0, "6.0")


def test_a_defect_beside_a_file_that_hides_a_module(tmp_path, monkeypatch):
    """An error that has nothing to do with a hiding file keeps its message and exit code."""
    (tmp_path / "colorsys.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    hider = import_module("colorsys")
    assert shadowing_error(AttributeError("module 'colorsys' has no attribute 'y'")) is not None
    assert shadowing_error(AttributeError("'int' object has no attribute 'y'")) is None
    assert exit_code(AttributeError("module 'colorsys' has no attribute 'y'")) == 69
    assert exit_code(InputError("module 'colorsys' has no attribute 'y'")) == 65
    assert hider.x == 1


@pytest.fixture
def sources(tmp_path):
    """A source folder in which nothing is built."""
    built = shutil.ignore_patterns("*.so", "__pycache__", "_engine.c")
    for name in ("spmd", "codegen"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=built)
    return tmp_path


def test_the_source_folder_hides_what_is_installed(sources):
    """After `pip install .`, in that folder: Python looks there first."""
    code = "import spmd\ntry:\n    spmd.build\nexcept spmd.EnvironmentFault as e:\n    print(e)"
    done = run([sys.executable, "-c", code], cwd=sources).expect(0, "where it is not built")
    assert f"folder {sources}" in done.out and str(ROOT / "spmd") in done.out
    assert "-P" in done.out
    done = run([sys.executable, "-P", "-c", code], cwd=sources).expect(0)
    assert done.out == ""
    environment = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}  # no trial of it
    done = run([sys.executable, "-m", "spmd", "doctor"], cwd=sources, env=environment)
    done.expect(69, "where it is not built", "missing: engine")


def test_no_engine_and_another_pythons(sources):
    command = [sys.executable, "-m", "spmd", "run", "x.img"]
    alone = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
    command[1:1] = ["-S"]  # without the packages of this environment
    done = run(command, cwd=sources, env=alone)
    done.expect(69, "the engine of spmd is not built", "make setup")
    (sources / "spmd" / "engine" / "_engine.cpython-399-none.so").touch()
    run(command, cwd=sources, env=alone).expect(69, "built for another Python", "cpython-399")
