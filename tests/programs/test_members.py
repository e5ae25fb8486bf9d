"""Every function of NumPy's namespace under spmd.vmap: NumPy on each member, the results stacked.

The expressions are those of expressions.py. The default run takes one of each function and
interprets it; `make random` takes all of them, with the members split and each member split, and
builds images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.check_graph import check
from codegen.layouts.partition import partition
from codegen.oracle import interpret
from tests.programs import test_expressions as beside_numpy
from tests.programs.expressions import ARRAYS
from tests.programs.test_expressions import (
    FLAT,
    HEAD,
    LONG,
    WORKING,
    agree,
    functions,
    loaded,
    used,
)

pytestmark = pytest.mark.usefixtures("vectors_cc")

MEMBERS = 3
PART = 90


def members(name: str) -> np.ndarray:
    """Other arrays of the same kind: o and s stay in order."""
    array = ARRAYS[name][0]
    if name in ("o", "s"):
        return np.stack([array, array / 2, array + 1])
    return np.stack([array, array[::-1], np.roll(array, 2, 0)])


GIVEN = {name: members(name) for name in ARRAYS}


def drawn() -> list[str]:
    """One expression of each function; all of them in a long run."""
    texts = [(name, text) for name, text in WORKING if used(text)]
    first = dict(reversed(texts))
    return [text for _, text in texts] if LONG else list(first.values())[::2]


TEXTS = drawn()
PARTS = [TEXTS[k : k + PART] for k in range(0, len(TEXTS), PART)]


def mapped(texts: list[str], folder: Path, name: str, split: bool) -> Any:
    """One program of many expressions. split: the dim of members is; else dims of each member."""
    out = "@spmd.program(mesh=('r',))\ndef case():\n"
    for a in ARRAYS:
        if any(a in used(t) for t in texts):
            array, layout = GIVEN[a], ARRAYS[a][1]
            layout = ("r", *[None] * len(layout)) if split else (None, *layout)
            said = f"'{a}', {array.shape}, np.{array.dtype}, layout={layout}"
            out += f"    {a} = spmd.input({said})\n"
    made = "".join(f"        'e{k}': spmd.vmap(f{k})({', '.join(used(t))}),\n"
                   for k, t in enumerate(texts))
    out += "    found = {\n" + made + "    }\n    return flat(found)\n"
    return loaded(HEAD + FLAT + functions(texts) + out, folder, name).case


def numpy_says(text: str, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    each = []
    for k in range(MEMBERS):
        monkeypatch.setattr(beside_numpy, "GIVEN", {n: a[k] for n, a in GIVEN.items()})
        each.append(beside_numpy.numpy_says(text))
    return [np.stack(rows) for rows in zip(*each, strict=True)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("split", [True, False], ids=["members", "each member"])
@pytest.mark.parametrize("k", range(len(PARTS)))
def test_members_agree_with_numpy(
    k: int, split: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = PARTS[k] if LONG else PARTS[k][not split :: 2]
    expected = [numpy_says(text, monkeypatch) for text in texts]
    case = mapped(texts, tmp_path, f"part{k}{split}", split)
    graph = check(case.capture())
    given = {i.name: GIVEN[i.name] for i in graph.inputs}
    agree(interpret.run(graph, {"r": 2}, given), texts, expected, "the Graph")
    lowered = check(partition(graph))
    for ranks in (1, 3, 5) if LONG else (3,):
        agree(interpret.run(lowered, {"r": ranks}, given), texts, expected, f"{ranks} ranks")
    if LONG:
        image = spmd.build(case)
        for ranks in (1, 3, 5):
            agree(image.run(ranks=ranks, **given), texts, expected, f"an image on {ranks} ranks",
                  image=True)
