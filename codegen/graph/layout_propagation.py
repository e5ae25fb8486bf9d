"""The layout of an operation's result, where nobody says one: it follows from the operands.

Goes in: what an op does, the types of its operands, its result without a layout.
Comes out: the result with one. A literal is free: it takes on whatever layout others have.
Always holds: no mesh axis stands in two entries of a layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from codegen.ir.graph import ArrayType
from codegen.mesh import Layout, LayoutEntry, joined_layout
from codegen.ops import Kind, Relayout
from codegen.ops.kind import Types


def laid_out(kind: Kind, operands: Types, result: ArrayType) -> ArrayType:
    """Return the result's type with a layout; 0-d ones need none."""
    if not result.ndim or result.layout is not None:
        return result
    free = all(t.free or not t.ndim for t in operands) and not isinstance(kind, Relayout)
    return replace(result, layout=without_repeats(kind.layout(operands, result)), free=free)


def without_repeats(entries: Iterable[LayoutEntry]) -> Layout:
    """Return a layout in which each axis stands only once, where it stands first."""
    seen: set[str] = set()
    out = []
    for entry in entries:
        kept = tuple(a for a in entry if a not in seen)
        seen.update(kept)
        out.append(entry if len(kept) == len(entry) else ())
    return tuple(out)


def met(a: ArrayType, b: ArrayType) -> ArrayType:
    """Return the common type of two that differ in their layouts at most: of what is carried, or
    comes from one arm or another. A chosen layout wins over a free one."""
    if not a.layout or not b.layout:
        return a if a.layout else b
    if a.free != b.free:
        return b if a.free else a
    return replace(a, layout=joined_layout([a.layout, b.layout]))
