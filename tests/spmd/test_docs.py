"""What `help` says: every public name has a docstring, and its examples are true."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import spmd

EXAMPLE = re.compile(r"^ *>>> (.+)\n *(.+)$", re.M)
SHOWN = [
    (name, call, result)
    for name in spmd.__all__
    for call, result in EXAMPLE.findall(getattr(spmd, name).__doc__ or "")
]


PROGRAM = """
import numpy as np
import spmd
from spmd import {names}

@spmd.program(mesh={{"r": 4}})
def example():
    @spmd.shard_map(mesh="r", out_layouts=("r", None))
    def local():
        x = np.zeros(1) + spmd.index()
        y = {call}
        return np.concatenate([y, np.zeros(9 - y.shape[0]) + np.nan]).reshape(1, 9)

    return local()
"""


@pytest.mark.parametrize("name", spmd.__all__)
def test_every_public_name_is_explained(name: str) -> None:
    what = getattr(spmd, name)
    assert len((what.__doc__ or "").split()) >= 4, f"spmd.{name} has no docstring"
    if inspect.isfunction(what):
        assert "args" not in str(inspect.signature(what)).split(",")[0], "no parameters are shown"


@pytest.mark.parametrize("name, call, result", SHOWN, ids=lambda text: text.split("\n")[0][:40])
def test_examples_are_true(name: str, call: str, result: str, tmp_path: Path) -> None:
    """On 4 ranks, x is [index]; what each of them gets."""
    path = tmp_path / "example.py"
    path.write_text(PROGRAM.format(call=call, names=", ".join(spmd.__all__)))
    rows = spmd.build(path).run()
    whole = "." not in result
    found = [row[~np.isnan(row)] for row in rows]
    assert ", ".join(str(f.astype(int) if whole else f) for f in found) == result


def test_there_are_examples() -> None:
    assert {"ppermute", "psum", "all_gather", "blocks"} <= {name for name, _, _ in SHOWN}
