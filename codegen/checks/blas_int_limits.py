"""Checks that numbers fit the C int of BLAS and LAPACK, while building or as a condition at launch.

Goes in: a Plan. Comes out: the same, with conditions on sizes for the numbers that may be larger.
Always holds: no number that a routine takes as an int wraps around.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.errors import UnsupportedError
from codegen.ir.graph import Condition
from codegen.ir.graph_text import user_text
from codegen.ir.loops import bounded
from codegen.ir.plan import LibraryCall, Phase, Plan
from codegen.ir.steps import simple_works, walk_steps
from codegen.library_routines import MOST
from codegen.mesh import Mesh
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


def blas_int_limits(plan: Plan) -> Plan:
    """Return the Plan with these conditions. Raises UnsupportedError at the first call with a
    number that is too large on every mesh."""
    known = {c.holds for c in plan.conditions}
    new: dict[Expr, Condition] = {}
    seen: set[Expr] = set()
    for step in walk_steps(plan.steps):
        for call in simple_works(step) if isinstance(step, Phase) else ():
            if isinstance(call, LibraryCall) and any(
                    r.counts_in_ints for r in call.function.routines):
                for e in call.numbers:
                    condition = None if e in seen else _condition(
                        call, e.subst(plan.named), plan.mesh)
                    seen.add(e)
                    if condition is not None and condition.holds not in known:
                        new.setdefault(condition.holds, condition)
    return replace(plan, conditions=(*plan.conditions, *new.values())) if new else plan


def _condition(call: LibraryCall, e: Expr, mesh: Mesh) -> Condition | None:
    """Return the condition under which a number fits an int, or None if it always does."""
    if e.is_const and e.value <= MOST:
        return None
    most = bounded(e)
    holds = expr.le(most, MOST)
    if holds == 1:
        return None
    names = ", ".join(r.name for r in call.function.routines)
    if holds == 0:
        raise UnsupportedError(
            f"an extent, or workspace, that is too large for {names}", place=call.place,
            expected=f"at most {MOST}: BLAS and LAPACK count in ints",
            found=user_text(mesh, most),
            remedy="split a dim of the batch or of the matrix over ranks, or take it part by part",
        )
    text = f"{user_text(mesh, holds)}, so that it fits the ints with which {names} counts"
    return Condition(holds, text, call.place)
