"""Unroll and jam: several iterations of an outer loop in one inner loop, which reads several rows.

Goes in: a Nest of a Plan. Comes out: a Nest for several iterations each, and one for those left.
Always holds: each iteration computes the same for itself. What is summed up over iterations is
combined with fewer trips to memory, and rows that one sweep has read are in the cache for the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

from codegen.functions import COMBINE
from codegen.ir.exprs import picked
from codegen.ir.indexing import positions, rewritten
from codegen.ir.plan import (
    Apply,
    LocalRead,
    LocalValue,
    Nest,
    Node,
    Reduce,
    Store,
    Sweep,
    Var,
)
from codegen.loops.collapse import substituted
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

_Change = Mapping[Sym, Expr]
_Part = LocalValue | Store | Reduce


def is_legal(nest: Nest) -> bool:
    """Return whether several iterations of the last outer loop may be computed in one: no loop
    inside has an extent that depends on it, and data decides about no position."""
    if not nest.loops or nest.loops[-1].extent == 1:
        return False
    symbol = nest.loops[-1].sym
    same = all(symbol not in v.extent.symbols() for sweep in nest.sweeps for v in sweep.loops)
    return same and next(picked(nest), None) is None


def unroll_and_jam(nest: Nest, jammed: Sequence[bool]) -> Iterator[Nest]:
    """Yield a nest that takes `nest.unroll` iterations of its last outer loop in each of its own,
    and one for the iterations left. Each sweep is one loop for all of them where `jammed` says so,
    else a loop for each."""
    *outer, v = nest.loops
    done = expr.const(0)
    for many in (nest.unroll, 1):
        extent = (v.extent - done) // many
        loop = Var(Sym(v.sym.name, "var", expr.const(0), extent - 1), extent)
        begin = done + many * positions((loop,))[0]
        changes = [(k, {v.sym: begin + k}) for k in range(many)]
        sweeps = tuple(
            _sweep(sweep, some) for sweep, is_jammed in zip(nest.sweeps, jammed)
            for some in ([changes] if is_jammed else [[c] for c in changes])
        )
        if extent != 0:
            yield Nest((*outer, loop), sweeps, nest.place)
        done = many * extent


def _sweep(sweep: Sweep, changes: Sequence[tuple[int, _Change]]) -> Sweep:
    """Return a sweep for several iterations of the loop around it."""
    parts: list[_Part] = []
    for part in sweep.parts:
        values = [_in_iteration(part.value, k, change) for k, change in changes]
        if isinstance(part, Reduce):
            parts.append(replace(part, value=reduce(partial(_combined, part), values)))
            continue
        for value, (k, change) in zip(values, changes):
            if isinstance(part, LocalValue):
                parts.append(replace(part, name=_local_name(part.name, k), value=value))
            else:
                parts.append(replace(part, value=value, offset=part.offset.subst(change)))
    return replace(sweep, parts=tuple(parts))


def _in_iteration(node: Node, k: int, change: _Change) -> Node:
    """Return a node as iteration k evaluates it, which reads the locals of that iteration."""

    def local(x: Node) -> Node | None:
        return replace(x, name=_local_name(x.name, k)) if isinstance(x, LocalRead) else None

    return rewritten(substituted(node, change), local)


def _local_name(name: str, k: int) -> str:
    return f"{name}.{k}" if k else name


def _combined(row: Reduce, a: Node, b: Node) -> Node:
    """Return two terms of a fold combined into one."""
    return Apply(COMBINE[row.fn], row.dtype, (a, b), row.dtype)
