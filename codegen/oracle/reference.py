"""Evaluates Exprs for the rules by which ops say what they mean in NumPy."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.ops.kind import Eval
from codegen.symbolic.expr import Expr, IntLike, as_expr


def evaluator(values: Mapping[str, int]) -> Eval:
    """A function that evaluates Exprs and ints for these symbol values, which must stay."""
    known: dict[Expr, int] = {}

    def value(e: IntLike) -> int:
        if e.__class__ is int:
            return e
        found = known.get(as_expr(e))
        return as_expr(e).evaluate(values, known) if found is None else found

    return value
