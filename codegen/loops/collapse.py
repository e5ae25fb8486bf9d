"""Loop collapsing: nested loops that run through memory without gaps become one loop.

Goes in: Work of a Plan. Comes out: the same Work over fewer loops.
Always holds: the same points in the same order; short rows vectorise like long ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from codegen.ir.indexing import leaves, long_loops, rewritten
from codegen.ir.plan import (
    Integer,
    Load,
    LocalValue,
    M,
    Nest,
    Node,
    Reduce,
    Store,
    Sweep,
    Var,
    Work,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

_Change = Mapping[Sym, Expr]


def collapsed(work: Work[M]) -> Work[M]:
    """Return a work whose loops are joined from the last one outwards, as long as every offset is a
    formula of the joined loop."""
    if isinstance(work, Store) and not work.rows and not work.bounds:
        loops, change = _joined(work.loops, [work.offset, *_exprs(work.value)])
        return replace(work, loops=loops, offset=work.offset.subst(change),
                       value=substituted(work.value, change))
    if isinstance(work, Reduce) and not work.rows:
        inner, change = _joined(work.inner, list(_exprs(work.value)))
        return replace(work, inner=inner, value=substituted(work.value, change))
    if isinstance(work, Nest):
        return replace(work, sweeps=tuple(_sweep(s) for s in work.sweeps))
    return work


def _sweep(sweep: Sweep[M]) -> Sweep[M]:
    if any(isinstance(p, Reduce) for p in sweep.parts):  # its row has a loop of its own
        return sweep
    touched = [e for p in sweep.parts for e in _exprs(p.value)]
    touched += [p.offset for p in sweep.parts if isinstance(p, Store)]
    loops, change = _joined(sweep.loops, touched)
    parts: list[LocalValue[M] | Store[M] | Reduce[M]] = []
    for p in sweep.parts:
        value = substituted(p.value, change)
        if isinstance(p, LocalValue):
            parts.append(replace(p, value=value))
        else:
            parts.append(replace(p, value=value, offset=p.offset.subst(change)))
    return Sweep(loops, tuple(parts))


def _joined(
    loops: Sequence[Var], touched: Sequence[Expr | None]
) -> tuple[tuple[Var, ...], _Change]:
    """Return the joined loops, and what the old variables become. touched: offsets; one that is
    None forbids it."""
    left = list(long_loops(loops))
    change: dict[Sym, Expr] = {}
    offsets = [e for e in touched if e is not None]
    if len(offsets) < len(touched):
        return tuple(loops), change
    while len(left) > 1:
        a, b = left[-2:]
        extent = a.extent * b.extent
        last = Var(Sym(b.sym.name, "var", expr.const(0), extent - 1), extent)
        step = {a.sym: expr.const(0), b.sym: expr.symbol(last.sym)}
        along = {last.sym: b.extent * expr.symbol(a.sym) + expr.symbol(b.sym)}
        after = [e.subst(step) for e in offsets]
        if any(e.subst(along) != old for e, old in zip(after, offsets, strict=True)):
            break
        change = {s: e.subst(step) for s, e in change.items()} | step
        left[-2:], offsets = [last], after
    return (tuple(left), change) if change else (tuple(loops), change)


def _exprs(node: Node[M]) -> Iterator[Expr | None]:
    for x in leaves(node):
        if isinstance(x, Load | Integer):
            yield None if x.bounds else x.offset if isinstance(x, Load) else x.value


def substituted(node: Node[M], change: _Change) -> Node[M]:
    """Return a node in which loop variables have been replaced."""

    def changed(x: Node[M]) -> Node[M] | None:
        if isinstance(x, Load):
            return replace(x, offset=x.offset.subst(change))
        return replace(x, value=x.value.subst(change)) if isinstance(x, Integer) else None

    return rewritten(node, changed) if change else node
