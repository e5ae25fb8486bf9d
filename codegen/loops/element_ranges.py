"""Ranges of elements that loops touch in memory, and whether two of them are surely apart.

Always holds: everything here is arithmetic of Exprs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.ir.graph import Value
from codegen.ir.indexing import affine, loads
from codegen.ir.loops import Act
from codegen.ir.plan import Lane, LibraryCall, Nest, Reduce, Var
from codegen.ir.steps import nodes
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


@dataclass(frozen=True)
class ElementRange:
    """Elements from `low` to `high` of an array, both included."""

    low: Expr
    high: Expr

    def is_apart(self, other: ElementRange) -> bool:
        """Return whether no element surely lies in both."""
        return _is_less(self.high, other.low) or _is_less(other.high, self.low)


# What is read, where in it, by which part of a nest, and at which offset.
Loaded = tuple[Value, ElementRange | None, int, Expr | None]


def range_of(offset: Expr, loops: Sequence[Var]) -> ElementRange | None:
    """Return where an offset lies in all turns of loops; None where it is not affine."""
    symbols = offset.symbols()
    turning = [v for v in loops if v.sym in symbols]
    found = affine(offset, turning)
    if found is None:
        return None
    low = high = found[0]
    for v, step in zip(turning, found[1], strict=True):
        if expr.nonneg(step):
            high = high + step * (v.extent - 1)
        elif expr.nonneg(-step):
            low = low + step * (v.extent - 1)
        else:
            return None
    return ElementRange(low, high)


def loaded_ranges(act: Act) -> Iterator[Loaded]:
    """Yield what an act reads; no range where data decides, and no offset where a routine does."""
    if isinstance(act, LibraryCall):
        yield from ((p.buffer, None, 0, None) for p in act.parts if not p.writes)
    parts: list[tuple[tuple[Var, ...], Any]] = [((), act)]
    if isinstance(act, Nest):
        parts = [((*act.loops, *sweep.loops), p) for sweep in act.sweeps for p in sweep.parts]
    for number, (around, part) in enumerate(parts):
        loops = (*around, *getattr(part, "loops", ()))
        if isinstance(part, Reduce):
            loops = (*loops, *part.inner)
        elif isinstance(part, Lane):
            loops = (*loops, part.along)
        for load in (load for node in nodes(part) for load in loads(node)):
            where = None if load.bounds else range_of(load.offset, loops)
            yield load.buffer, where, number, load.offset


def _is_less(a: Expr, b: Expr) -> bool:
    return expr.nonneg(b - a - 1)
