"""Group the dims that a reshape keeps, merges or splits, by equal numbers of elements."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.ir.graph import Shape
from codegen.mesh import Layout
from codegen.symbolic import expr
from codegen.symbolic.expr import product


@dataclass(frozen=True)
class DimGroup:
    """Dims of the operand and of the result that hold the same elements; none of extent 1."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def groups(before: Shape, after: Shape) -> list[DimGroup]:
    """Return the finest groups, left to right."""
    old = [d for d, e in enumerate(before) if e != 1]
    new = [d for d, e in enumerate(after) if e != 1]
    out: list[DimGroup] = []
    while old or new:
        i, j = (1 if old else 0), (1 if new else 0)
        while True:
            a, b = product(before[d] for d in old[:i]), product(after[d] for d in new[:j])
            if a == b or expr.equal(a, b) or (i == len(old) and j == len(new)):
                break
            more_old = j == len(new) or (i < len(old) and expr.nonneg(b - a))
            i, j = (i + 1, j) if more_old else (i, j + 1)
        if i == 0 or j == 0:  # an extent of 0, or one that is 1 only at launch: all that is left
            i, j = len(old), len(new)
        out.append(DimGroup(tuple(old[:i]), tuple(new[:j])))
        old, new = old[i:], new[j:]
    return out


def reshaped_layout(before: Shape, after: Shape, have: Layout) -> Layout:
    """Return the layout of the result: split dims that stay, or lead their group, stay split."""
    entries: list[tuple[str, ...]] = [()] * len(after)
    for group in groups(before, after):
        if group.before and group.after:
            entries[group.after[0]] = have[group.before[0]]
    return tuple(entries)
