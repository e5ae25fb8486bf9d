"""Recognises maps of members that are their own inverse, such as i ^ d: partners swap.

In: an Expr in one member's position. Out: whether it is its own inverse, hence injective for every
size, and where it stays among the members. Source: the butterfly of recursive doubling.
"""

from __future__ import annotations

from codegen.symbolic import expr
from codegen.symbolic.expr import Call, Expr, Sym, const, symbol
from codegen.symbolic.terms import TRUTH


def own_inverse(to: Expr, var: Sym) -> bool:
    """Return whether to(to(var)) is var, by normal form: partners that swap, as in i ^ d.

    Such a map is injective, whatever the size. Only maps with a remainder of var are tried.
    """
    if not any(c.op == "mod" and var in c.args[0].symbols() for c in expr.calls(to)):
        return False
    to = _bits(to)
    return _bits(to.subst({var: to})) == symbol(var)


def exists(to: Expr, size: Expr) -> Expr:
    """Return a formula that is 1 where a member has a partner: where to(var) lies in 0 … size -
    1."""
    return expr.lt(to, size) * (1 if _not_negative(_bits(to)) else expr.ge0(to))


def _bits(e: Expr) -> Expr:
    """Return e with x % 2 in place of comparisons of x % 2, and m - 1 - x % m in place of (-1 - x)
    % m."""
    for call in expr.calls(e):
        if call.op in TRUTH:
            atoms = call.args[0].atoms()
            bit = next(iter(atoms)) if len(atoms) == 1 else None
            if isinstance(bit, Call) and bit.op == "mod" and bit.args[1] == 2:
                no, yes = (expr.replace(expr.from_atom(call), {bit: k}) for k in (0, 1))
                return _bits(expr.replace(e, {call: no + (yes - no) * expr.from_atom(bit)}))
        if call.op == "mod" and call.args[1].is_const:
            m, x = call.args[1].value, -1 - call.args[0]
            turned = m - 1 - expr.mod(x, call.args[1])
            if _constant(call.args[0]) % m == m - 1 and expr.from_atom(call) not in (
                expr.mod(x, call.args[1]), turned):
                return _bits(expr.replace(e, {call: turned}))
    return e


def _not_negative(e: Expr) -> bool:
    """Return whether e >= 0 is proved, where a subtracted 2 * (x % m) may be replaced by x + m - 1,
    which is no less for x >= 0."""
    for call in expr.calls(e):
        slope, rest = expr.linear_in(e, call)
        x, m = call.args if call.op == "mod" else (const(-1), const(0))
        if slope is not None and expr.nonneg(-slope) and expr.nonneg(x) and expr.nonneg(m - 1):
            half = expr.floordiv(-slope, const(2))
            if half * 2 == -slope and expr.nonneg(rest - half * (x + m - 1)):
                return True
    return expr.nonneg(e)


def _constant(e: Expr) -> int:
    return sum(c for m, c in e.terms if not m)
