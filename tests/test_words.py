"""One word for one thing: the glossary in docs/reference/glossary.md, held against the sources."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(p for f in ("codegen", "spmd", "csrc") for p in (ROOT / f).rglob("*.[pch]*")
                 if p.suffix in (".py", ".c", ".h"))
MODULES = [p for p in SOURCES if p.suffix == ".py" and p.stem not in ("__init__", "__main__")]

# One thing on its way down: what users write, the op, the step or work of the Plan; or its oracle.
LEVELS = ("codegen/trace/", "codegen/ops/", "codegen/ir/plan.py", "codegen/oracle/")
# Where it is a word of NumPy, of BLAS, of JAX or of zarr.
QUOTED = {
    "codegen/emit/phases.py", "codegen/oracle/ranks.py", "codegen/trace/numpy/joining.py",
    "codegen/trace/numpy/picking.py", "codegen/trace/numpy/searching.py",
    "codegen/trace/ranks/combining.py", "spmd/files/frames.py",
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def rows() -> list[tuple[str, str, str]]:
    text = (ROOT / "docs/reference/glossary.md").read_text()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()
             if line.startswith("| ")]
    return [(word, means, instead) for word, means, instead in cells[1:]]


def test_the_table_is_in_order():
    words = [word for word, means, _ in rows() if means]
    assert len(words) == len(rows()) > 30
    assert words == sorted(words, key=str.lower)


def spoken(path: Path) -> set[str]:
    """The words of a file, those within names too."""
    text = re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z]+", " ", path.read_text())
    return set(text.lower().split())


def test_no_file_has_another_word():
    other = {w.strip() for _, _, instead in rows() for w in instead.split(",") if w.strip()}
    assert len(other) >= 10
    found = {name(p): said for p in SOURCES if name(p) not in QUOTED
             if (said := spoken(p) & {w + s for w in other for s in ("", "s")})}
    assert found == {}


def test_no_two_classes_have_one_name():
    where = defaultdict(set)
    for path in MODULES:
        level = next((one for one in LEVELS if name(path).startswith(one)), name(path))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].add("the levels" if level in LEVELS else level)
    assert {cls: files for cls, files in where.items() if len(files) > 1} == {}
