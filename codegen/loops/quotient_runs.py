"""Loop splitting where a quotient changes: b[j] = a[j // 20] reads one element in 20 iterations.

Goes in: a Store or a Sweep of a Plan. Comes out: the same over one more loop.
Always holds: the same points in the same order. The inner loop divides nothing, and vectorises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from codegen.ir.exprs import exprs, mapped, picked
from codegen.ir.indexing import long_loops
from codegen.ir.plan import Store, Sweep, Var
from codegen.symbolic import expr
from codegen.symbolic.expr import Call, Expr, Sym
from codegen.symbolic.terms import linear_in
from codegen.target import TARGET

# Turns of a run: of fewer, its loop costs more than the divisions, each of which costs two turns.
SHORT = TARGET.short_loop // 2
_Looped = TypeVar("_Looped", Store, Sweep)


class Quotient(NamedTuple):
    """(base + position) // divisor, or the remainder, in a loop over positions."""

    call: Call
    base: Expr
    divisor: int


def quotients(work: Store | Sweep) -> list[Quotient]:
    """Return the quotients and remainders of positions of the last loop by constants. A base that
    data decides is known within the loop only, and is none."""
    last = long_loops(work.loops)[-1]
    inner = {last.sym, *picked(work)}
    calls = dict.fromkeys(c for e in exprs(replace(work, loops=())) for c in expr.calls(e)
                          if c.op in ("floordiv", "mod"))
    slopes = ((c, linear_in(c.args[0], last.sym)) for c in calls)
    return [Quotient(c, base, c.args[1].value) for c, (slope, base) in slopes
            if slope == 1 and not inner & base.symbols() and c.args[1].is_const]


def in_runs(work: _Looped, divided: Sequence[Quotient]) -> _Looped:
    """Cut the last loop where the quotient by the least divisor changes; within a run, the
    quotients of which that is known are formulas of the run."""
    *long, last = long_loops(work.loops)
    _, base, width = min(divided, key=lambda q: q.divisor)
    first = base // width
    outer = Var(Sym(f"{last.sym.name}_run", "var", expr.const(0)),
                (base + last.extent - 1) // width - first + 1)
    run = first + (expr.symbol(outer.sym) if outer.extent != 1 else 0)
    begin = expr.maximum(run * width - base, expr.const(0))
    extent = expr.minimum((run + 1) * width - base, last.extent) - begin
    inner = Var(Sym(last.sym.name, "var", expr.const(0), expr.const(width - 1)), extent)
    position = begin + expr.symbol(inner.sym)
    change: dict[Sym | Call, Expr] = {last.sym: position}
    for call, own_base, divisor in divided:
        ahead = own_base - base
        if divisor % width == 0 and ahead % width == 0:
            quotient = (run + ahead // width) // (divisor // width)
            change[call] = (quotient if call.op == "floordiv"
                            else own_base + position - divisor * quotient)
    cut = mapped(replace(work, loops=()), lambda e: expr.replace(e, change))
    return replace(cut, loops=(*long, outer, inner))
