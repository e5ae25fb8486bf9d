"""Another package called codegen in the way, or none: said clearly, with what to do."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import run


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
