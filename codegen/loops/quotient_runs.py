"""Loops in runs, within which a quotient stays: b[j] = a[j // 20] reads one element 20 times.

Goes in: a Store or a Sweep of a Plan. Comes out: the same over one more loop.
Always holds: the same points in the same order; a run divides nothing, and vectorises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from codegen.ir.exprs import exprs, mapped, picked
from codegen.ir.plan import Store, Sweep, Var
from codegen.symbolic import expr
from codegen.symbolic.expr import Call, Expr, Sym
from codegen.symbolic.terms import linear_in
from codegen.target import TARGET

# Turns of a run: of fewer, its loop costs more than the divisions, each of which costs two turns.
SHORT = TARGET.short_loop // 2
_Looped = TypeVar("_Looped", Store, Sweep)


def in_runs(work: _Looped) -> _Looped:
    """Cut the last loop where the quotients of its positions change."""
    long: list[Var] = [v for v in work.loops if v.extent != 1]
    if not long:
        return work
    last: Var = long[-1]
    divided = list(_divided(replace(work, loops=()), last))
    widths = [d for _, _, d in divided]
    if not divided or (last.extent.is_const and last.extent.value < 2 * SHORT):
        return work
    width = min(widths)
    base = next(base for _, base, d in divided if d == width)
    first = base // width
    outer = Var(Sym(f"{last.sym.name}_run", "var", expr.const(0)),
                (base + last.extent - 1) // width - first + 1)
    run = first + (expr.symbol(outer.sym) if outer.extent != 1 else 0)
    begin = expr.maximum(run * width - base, expr.const(0))
    extent = expr.minimum((run + 1) * width - base, last.extent) - begin
    inner = Var(Sym(last.sym.name, "var", expr.const(0), expr.const(width - 1)), extent)
    position = begin + expr.symbol(inner.sym)
    change: dict[Sym | Call, Expr] = {last.sym: position}
    for call, their, d in divided:
        ahead = their - base
        if d % width == 0 and ahead % width == 0:
            quotient = (run + ahead // width) // (d // width)
            change[call] = (quotient if call.op == "floordiv"
                            else their + position - d * quotient)
    loops = (*long[:-1], outer, inner)
    cut = mapped(replace(work, loops=()), lambda e: expr.replace(e, change))
    return replace(cut, loops=loops)


def _divided(work: _Looped, last: Var) -> Iterator[tuple[Call, Expr, int]]:
    """Yield quotients and remainders of (base + the last loop's position) by a number, each with
    base and number. A base that data decides is known within the loop only."""
    found: dict[Call, None] = {}
    inner = {last.sym, *picked(work)}
    for e in exprs(work):
        found |= dict.fromkeys(c for c in expr.calls(e) if c.op in ("floordiv", "mod"))
    for call in found:
        x, d = call.args
        slope, base = linear_in(x, last.sym)
        if slope == 1 and not inner & base.symbols() and d.is_const and d.value >= SHORT:
            yield call, base, d.value
