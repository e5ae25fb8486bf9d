"""Turns of an outer loop that are taken together: rows of a matrix that are read at once.

Goes in: a Nest of a Plan. Comes out: one for several turns at once, and one for those left.
Always holds: what a turn computes for itself is the same; what is summed up over the turns is
combined with fewer trips to memory, and a row that one sweep has read is near for the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

from codegen.functions import COMBINE
from codegen.ir.indexing import leaves, positions, rewritten
from codegen.ir.plan import (
    Apply,
    Keep,
    Kept,
    Nest,
    Node,
    Reduce,
    Store,
    Sweep,
    Var,
)
from codegen.loops.collapse import moved
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET

_Change = Mapping[Sym, Expr]
_Part = Keep | Store | Reduce


def together(nest: Nest) -> Iterator[Nest]:
    """Yield nests over the same points, each of which takes one turn at a time."""
    rows = any(isinstance(p, Reduce) for p in nest.parts)
    if nest.together == 1 or not _is_plain(nest) or not (rows or any(map(_is_long, nest.sweeps))):
        yield replace(nest, together=1)
        return
    *outer, v = nest.loops
    done = expr.const(0)
    for many in (nest.together, 1):
        extent = (v.extent - done) // many
        turns = Var(Sym(v.sym.name, "var", expr.const(0), extent - 1), extent)
        begin = done + many * positions((turns,))[0]
        changes = [(k, {v.sym: begin + k}) for k in range(many)]
        sweeps = tuple(
            _sweep(sweep, some) for sweep in nest.sweeps
            for some in ([[c] for c in changes] if _one_by_one(sweep) else [changes])
        )
        if extent != 0:
            yield Nest((*outer, turns), sweeps, nest.place)
        done = many * extent


def _is_plain(nest: Nest) -> bool:
    """Return whether no loop inside depends on the turn, and no position on data."""
    v = nest.loops[-1]
    return v.extent != 1 and not any(
        v.sym in loop.extent.symbols() for sweep in nest.sweeps for loop in sweep.loops
    ) and not any(
        getattr(x, "bounds", ()) for part in nest.parts for x in (part, *leaves(part.value))
    )


def _is_long(sweep: Sweep) -> bool:
    row = sweep.long[-1].extent if sweep.long else expr.const(1)
    return row.is_const and any(row.value * f.dtype.size >= TARGET.l1 // 2 for f in sweep.folds)


def _one_by_one(sweep: Sweep) -> bool:
    return len(sweep.folds) == len(sweep.parts) and not _is_long(sweep)


def _sweep(sweep: Sweep, changes: Sequence[tuple[int, _Change]]) -> Sweep:
    """Return a sweep for several turns of the loop around it."""
    parts: list[_Part] = []
    for part in sweep.parts:
        values = [_turn(part.value, k, change) for k, change in changes]
        if isinstance(part, Reduce):
            parts.append(replace(part, value=reduce(partial(_both, part), values)))
            continue
        for value, (k, change) in zip(values, changes):
            if isinstance(part, Keep):
                parts.append(replace(part, name=_name(part.name, k), value=value))
            else:
                parts.append(replace(part, value=value, offset=part.offset.subst(change)))
    return replace(sweep, parts=tuple(parts))


def _turn(node: Node, k: int, change: _Change) -> Node:
    """Return a node as turn k evaluates it, which reads what was kept in that turn."""

    def kept(x: Node) -> Node | None:
        return replace(x, name=_name(x.name, k)) if isinstance(x, Kept) else None

    return rewritten(moved(node, change), kept)


def _name(kept: str, k: int) -> str:
    return f"{kept}.{k}" if k else kept


def _both(row: Reduce, a: Node, b: Node) -> Node:
    """Return two terms of a fold combined into one."""
    return Apply(COMBINE[row.fn], row.dtype, (a, b), row.dtype)
