"""Symbolic integers over the index, axis sizes, run-time scalars and loop counters.

    Expr  = integer | symbol | Expr + Expr | Expr * Expr | call       a polynomial in its atoms
    call  = floordiv | mod | min | max                                of two Exprs
          | ge0 | eq0                                                 of one; 0 or 1
          | begin                       of k, e, n: where block k of n of e elements begins
          | table                       of k, and constants, of which it is number k; else 0
    `and` is a product, `not c` is 1 - c, `a if c else b` is c * a + (1 - c) * b

Construction always normalises (this module knows how, terms.py holds the objects, bounds.py proves,
spelling.py writes), so equal normal forms are equal objects.
Always holds: every operation is total; division by zero gives 0, as NumPy's integers do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import gcd

from codegen.symbolic.bounds import equal, nesting, nonneg
from codegen.symbolic.meaning import OPERATIONS
from codegen.symbolic.spelling import c_text, function, text, to_json
from codegen.symbolic.terms import (
    CONSTRUCT,
    LAUNCH,
    ONE,
    POWERS,
    SPELL,
    ZERO,
    Atom,
    Call,
    Expr,
    IntLike,
    Monomial,
    Sym,
    as_expr,
    calls,
    const,
    from_atom,
    from_monomial,
    linear_in,
    product,
    replace,
    symbol,
)

__all__ = [
    "Atom", "Call", "Expr", "IntLike", "LAUNCH", "Monomial", "POWERS", "Sym", "and_", "as_expr",
    "begin", "calls", "const", "eq", "eq0", "equal", "floordiv", "from_atom", "from_monomial",
    "function", "ge", "ge0", "gt", "le", "least", "linear_in", "lt", "maximum", "minimum",
    "mod", "most", "ne", "nonneg", "not_", "or_", "product", "replace", "select", "symbol",
    "table", "to_json",
]

# What terms.py calls of modules above it: here, and constructors in CONSTRUCT, by _remembered.
SPELL.update({"text": text, "c": c_text, "prefix": to_json})


def _remembered(construct: Callable[..., Expr]) -> Callable[..., Expr]:
    """Return the constructor with a cache of its results: a normal form depends only on the
    arguments and on how many proofs may be nested."""
    known: tuple[dict[tuple[Expr, ...], Expr], ...] = ({}, {}, {})

    @wraps(construct)
    def remember(*args: IntLike) -> Expr:
        key = tuple(as_expr(a) for a in args)
        table = known[nesting()]
        result = table.get(key)
        if result is None:
            result = table[key] = construct(*key)
        return result

    CONSTRUCT[{"minimum": "min", "maximum": "max"}.get(construct.__name__, construct.__name__)] = (
        remember
    )
    return remember


# ---- division ----------------------------------------------------------------------------------


def _can_split(d: Expr) -> bool:
    """Return whether d is a constant above 1, or a single product of symbols with a positive
    coefficient that its bounds prove to be positive."""
    if d.is_const:
        return d.value > 1
    return len(d.terms) == 1 and d.terms[0][1] >= 1 and nonneg(d - 1)


def _split_by(x: Expr, d: Expr, cut: Callable[[int, int], int]) -> tuple[Expr, Expr]:
    """Return quotient and rest of x = d * quotient + rest, term by term; `cut` divides a
    coefficient by a constant."""
    quotient: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    factors, constant = d.terms[0]
    for m, c in x.terms:
        left = list(m)
        try:
            for factor in factors:
                left.remove(factor)
        except ValueError:
            rest.append((m, c))
            continue
        q = cut(c, constant) if left else c // constant
        quotient.append((tuple(left), q))
        rest.append((m, c - q * constant))
    return _added(quotient), _added(rest)


def _divided(x: Expr, d: Expr) -> tuple[Expr, Expr]:
    """Return quotient and rest of x = d * quotient + rest, where d is a symbol that is known to
    divide some number."""
    (sym,) = d.atoms() if len(d.atoms()) == 1 else (None,)
    known = sym.divides if isinstance(sym, Sym) and d == symbol(sym) else 0
    if not known:
        return ZERO, x
    once = from_atom(Call("floordiv", (const(known), d)))
    whole = [(m, c) for m, c in x.terms if c % known == 0]
    rest = _added([(m, c) for m, c in x.terms if c % known])
    return _added([(m, c // known) for m, c in whole]) * once, rest


def _added(terms: list[tuple[Monomial, int]]) -> Expr:
    total = ZERO
    for m, c in terms:
        if c:
            total = total + Expr(((m, c),))
    return total


def _towards_zero(c: int, d: int) -> int:
    return c // d if c >= 0 else -(-c // d)


def _nearest(c: int, d: int) -> int:
    return (2 * c + d - 1) // (2 * d)


@_remembered
def floordiv(x: Expr, d: Expr) -> Expr:
    """Return the floor division; x // 0 is 0."""
    if x.is_const and d.is_const:
        return const(x.value // d.value if d.value else 0)
    if d.is_const and d.value < 0:
        return floordiv(-x, -d)
    if d == 1 or d == 0 or x == 0:
        return x if d == 1 else ZERO
    quotient, x = _divided(x, d)
    if _can_split(d):
        more, x = _split_by(x, d, _towards_zero)
        quotient = quotient + more
    if nonneg(x) and nonneg(d - 1 - x):
        return quotient
    if nonneg(-x - 1) and nonneg(x + d):
        return quotient - 1
    return quotient + from_atom(Call("floordiv", (x, d)))


@_remembered
def mod(x: Expr, d: Expr) -> Expr:
    """Return the remainder with the divisor's sign; x % 0 is 0."""
    if x.is_const and d.is_const:
        return const(x.value % d.value if d.value else 0)
    if d == 1 or d == -1 or d == 0 or x == 0:
        return ZERO
    if nonneg(d - 1):
        x = _divided(x, d)[1]
        if nonneg(x) and nonneg(d - 1 - x):
            return x
        if _can_split(d):
            _, x = _split_by(_open_mods(x, d), d, _nearest)
        if nonneg(x) and nonneg(d - 1 - x):
            return x
        if nonneg(-x - 1) and nonneg(x + d):
            return x + d
    if x.is_const and d.is_const:
        return const(x.value % d.value)
    return from_atom(Call("mod", (x, d)))


def _open_mods(x: Expr, d: Expr) -> Expr:
    """Write (k * (y % d) + z) % d as (k * y + z) % d, and return it."""
    if not any(isinstance(a, Call) and a.op == "mod" and a.args[1] is d for a in x.atoms()):
        return x
    total = ZERO
    for m, c in x.terms:
        term = const(c)
        for atom in m:
            if isinstance(atom, Call) and atom.op == "mod" and atom.args[1] is d:
                term = term * atom.args[0]
            else:
                term = term * from_atom(atom)
        total = total + term
    return total


# ---- blocks ------------------------------------------------------------------------------------


@_remembered
def begin(k: Expr, extent: Expr, blocks: Expr) -> Expr:
    """Return k * (extent // blocks) + min(k, extent % blocks): where balanced block k begins."""
    if mod(extent, blocks) == 0:
        return k * floordiv(extent, blocks) + minimum(k, ZERO)
    if k.is_const and extent.is_const and blocks.is_const:
        return const(OPERATIONS["begin"](k.value, extent.value, blocks.value))
    if k == 0 and nonneg(blocks):
        return ZERO
    if (k is blocks or k is blocks - 1) and nonneg(blocks - 1):  # the last one is not longer
        return extent if k is blocks else extent - floordiv(extent, blocks)
    return from_atom(Call("begin", (k, extent, blocks)))


@_remembered
def table(k: Expr, *values: Expr) -> Expr:
    """Return constant number k of these values, counted from 0; 0 where there is none."""
    if k.is_const:
        return const(OPERATIONS["table"](k.value, *(v.value for v in values)))
    if len(set(values)) == 1 and nonneg(k) and nonneg(len(values) - 1 - k):
        return values[0]
    return from_atom(Call("table", (k, *values)))


# ---- min and max, truth values -----------------------------------------------------------------


@_remembered
def minimum(a: Expr, b: Expr) -> Expr:
    if nonneg(b - a):
        return a
    return b if nonneg(a - b) else least(a, b)


@_remembered
def maximum(a: Expr, b: Expr) -> Expr:
    if nonneg(b - a):
        return b
    return a if nonneg(a - b) else most(a, b)


def least(a: IntLike, b: IntLike) -> Expr:
    """Return the minimum, without searching for a proof that one argument is never larger; for
    formulas that are evaluated but not compared."""
    return _unproved("min", as_expr(a), as_expr(b))


def most(a: IntLike, b: IntLike) -> Expr:
    """Return the maximum, without searching for a proof that one argument is never smaller."""
    return _unproved("max", as_expr(a), as_expr(b))


def _unproved(op: str, a: Expr, b: Expr) -> Expr:
    if a.is_const and b.is_const:
        return const(OPERATIONS[op](a.value, b.value))
    return a if a == b else from_atom(Call(op, (a, b) if a.order <= b.order else (b, a)))


def _scale(e: Expr) -> tuple[int, int]:
    """Return the greatest common divisor of the coefficients, and the constant term."""
    common, constant = 0, 0
    for m, c in e.terms:
        if m:
            common = gcd(common, c)
        else:
            constant = c
    return common, constant


def _scaled(e: Expr, common: int, constant: int) -> Expr:
    return Expr(tuple((m, c // common) for m, c in e.terms if m)) + constant


def _leading_negative(e: Expr) -> bool:
    return e.terms[0][1] < 0


@_remembered
def ge0(e: Expr) -> Expr:
    """Return 1 where e >= 0, else 0. In its normal form the leading coefficient is positive: 1 -
    ge0(-e - 1) equals ge0(e)."""
    if e.is_const:
        return const(int(e.value >= 0))
    common, constant = _scale(e)
    if common > 1:
        e = _scaled(e, common, constant // common)
    if nonneg(e):
        return ONE
    if nonneg(-e - 1):
        return ZERO
    if _leading_negative(e):
        return 1 - from_atom(Call("ge0", (-e - 1,)))
    return from_atom(Call("ge0", (e,)))


@_remembered
def eq0(e: Expr) -> Expr:
    """Return 1 where e == 0, else 0."""
    if e.is_const:
        return const(int(e.value == 0))
    common, constant = _scale(e)
    if constant % common:
        return ZERO
    if common > 1:
        e = _scaled(e, common, constant // common)
    if nonneg(e):
        return 1 - ge0(e - 1)
    if nonneg(-e):
        return ge0(e)
    if _leading_negative(e):
        e = -e
    if nonneg(e - 1) or nonneg(-e - 1):
        return ZERO
    return from_atom(Call("eq0", (e,)))


def ge(a: IntLike, b: IntLike) -> Expr:
    return ge0(as_expr(a) - b)


def gt(a: IntLike, b: IntLike) -> Expr:
    return ge0(as_expr(a) - b - 1)


def le(a: IntLike, b: IntLike) -> Expr:
    return ge0(as_expr(b) - a)


def lt(a: IntLike, b: IntLike) -> Expr:
    return ge0(as_expr(b) - a - 1)


def eq(a: IntLike, b: IntLike) -> Expr:
    return eq0(as_expr(a) - b)


def ne(a: IntLike, b: IntLike) -> Expr:
    return 1 - eq(a, b)


def and_(a: IntLike, b: IntLike) -> Expr:
    return as_expr(a) * b


def or_(a: IntLike, b: IntLike) -> Expr:
    return as_expr(a) + b - as_expr(a) * b


def not_(a: IntLike) -> Expr:
    return 1 - as_expr(a)


def select(condition: IntLike, a: IntLike, b: IntLike) -> Expr:
    """Return a where the condition (0 or 1) holds, else b."""
    c = as_expr(condition)
    return c * a + (1 - c) * b
