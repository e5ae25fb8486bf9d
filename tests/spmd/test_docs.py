"""What `help` says: every public name has a docstring, and its examples are true."""

from __future__ import annotations

import inspect
import re
import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd

CALL = re.compile(r"^ *>>> (.+)\n *(.+)$", re.M)
PROGRAM = re.compile(r"^ *Example::\n\n((?:(?: {4}.*)?\n)+)", re.M)
RESULT = re.compile(r"print\((.+)\)    # (.+)$", re.M)

HEAD = "import numpy as np\nimport spmd\nfrom spmd import {names}\n"
ON_EACH_RANK = """
def example_{k}(x):
    y = {call}
    return np.concatenate([y, np.zeros(9 - y.shape[0]) + np.nan]).reshape(1, 9)
"""
ALL = """
@spmd.program(mesh={{"r": 4}})
def examples():
    def local(example):
        return lambda: example(np.zeros(1) + spmd.index())

    return {{name: spmd.shard_map(local(f), mesh="r", out_layouts=("r", None))()
            for name, f in {functions}.items()}}
"""


def documented() -> Iterator[tuple[str, str]]:
    """Public names, with the methods of classes, and their docstrings."""
    inside = [(f"{package}.{n}", getattr(getattr(spmd, package), n))
              for package in ("nn", "optim", "tree", "extend")
              for n in getattr(spmd, package).__all__]
    for name, what in [*((n, getattr(spmd, n)) for n in spmd.__all__), *inside]:
        yield name, inspect.getdoc(what) or ""
        if inspect.isclass(what) and not issubclass(what, BaseException | Warning):
            for inner, method in vars(what).items():
                if not inner.startswith("_"):
                    yield f"{name}.{inner}", inspect.getdoc(method) or ""


SHOWN = [(name, *found) for name, text in documented() for found in CALL.findall(text)
         if not name.startswith("nn.")]  # tests/spmd/test_nn.py runs those
PROGRAMS = [(name, found) for name, text in documented() for found in PROGRAM.findall(text + "\n")]


@pytest.mark.parametrize("name", spmd.__all__)
def test_every_public_name_is_explained(name: str) -> None:
    what = getattr(spmd, name)
    assert len((what.__doc__ or "").split()) >= 4, f"spmd.{name} has no docstring"
    if inspect.isfunction(what):
        assert "args" not in str(inspect.signature(what)).split(",")[0], "no parameters are shown"


def test_examples_are_true(tmp_path: Path) -> None:
    """On 4 ranks, x is [index]; what each of them gets. All in one image."""
    source = HEAD.format(names=", ".join(n for n in spmd.__all__ if n != "numpy"))
    for k, (_, call, _) in enumerate(SHOWN):
        source += ON_EACH_RANK.format(k=k, call=call)
    functions = ", ".join(f'"e{k}": example_{k}' for k in range(len(SHOWN)))
    path = tmp_path / "examples.py"
    path.write_text(source + ALL.format(functions="{" + functions + "}"))
    out = spmd.build(path).run()
    for k, (name, call, result) in enumerate(SHOWN):
        whole = "." not in result
        found = [row[~np.isnan(row)] for row in out[f"e{k}"]]
        shown = ", ".join(str(f.astype(int) if whole else f) for f in found)
        assert shown == result, f"spmd.{name}: {call}"


@pytest.mark.parametrize("name, text", PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_programs_are_true(name: str, text: str, tmp_path: Path, capsys: Any) -> None:
    """A whole program in a docstring; what it prints stands behind the print."""
    path = tmp_path / f"{name.replace('.', '_')}.py"
    path.write_text(HEAD.format(names="program") + textwrap.dedent(text))
    runpy.run_path(str(path))
    shown = [result for _, result in RESULT.findall(text)]
    assert shown and capsys.readouterr().out.splitlines() == shown


def test_there_are_examples() -> None:
    assert {"ppermute", "psum", "all_gather", "blocks"} <= {name for name, _, _ in SHOWN}
    assert {"program", "input", "shard_map", "optim.adam"} <= {name for name, _ in PROGRAMS}
    assert all(len((getattr(spmd.optim, n).__doc__ or "").split()) > 3 for n in spmd.optim.__all__)
