"""What a line of the user's source assigns: values are named after it.

Goes in: a Place. Comes out: the variable that its line assigns and how, or the keyword argument
that its line begins with.
Always holds: a line whose file is not Python, or is not to be had, assigns nothing.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass

from codegen.errors import Place


@dataclass(frozen=True)
class Target:
    """The target of an assignment. part: of the variable (x[k] = v). anew: not what it was before
    (x = v, not x += v)."""

    name: str = ""
    part: bool = False
    anew: bool = True

    @property
    def written(self) -> bool:
        """Whether what the variable stands for is written, not replaced."""
        return bool(self.name) and (self.part or not self.anew)


_files: dict[str, tuple[list[str], dict[int, Target]]] = {}


def target_at(place: Place | None) -> Target:
    """Return the target of the first assignment that begins on a line; for `a = b = v` this is
    `a`."""
    if place is None:
        return Target()
    lines = linecache.getlines(place.file)
    known = _files.get(place.file)
    if known is None or known[0] is not lines:
        known = _files[place.file] = lines, _targets("".join(lines))
    return known[1].get(place.line, Target())


def assigned_name(place: Place | None) -> str:
    """Return the name of the variable that a line assigns, or ""."""
    return target_at(place).name


def _targets(text: str) -> dict[int, Target]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    targets: dict[int, Target] = {}
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and (target := _target(node)).name:
            targets.setdefault(node.lineno, target)
        elif isinstance(node, ast.keyword) and node.arg:
            if not lines[node.lineno - 1][: node.col_offset].strip():
                targets.setdefault(node.lineno, Target(node.arg))
    return targets


def _target(node: ast.stmt) -> Target:
    match node:
        case ast.Assign(targets=[to, *_]) | ast.AnnAssign(target=to, value=ast.expr()):
            anew = True
        case ast.AugAssign(target=to):
            anew = False
        case _:
            return Target()
    inner: ast.expr = to
    while isinstance(inner, ast.Subscript):
        inner = inner.value
    return Target(inner.id, inner is not to, anew) if isinstance(inner, ast.Name) else Target()
