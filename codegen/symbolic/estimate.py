"""Sums and bounds of index expressions without some of their symbols.

In: an Expr, and the symbols to do without. Out: an Expr without them: the sum over all values of
one, or a bound that holds for all values within their own bounds (what a buffer's capacity is).
Always holds: a bound is sound; it is reached where extents are balanced blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from codegen.errors import ProgramError
from codegen.symbolic import block_laws, expr
from codegen.symbolic.expr import Atom, Call, Expr, Sym, const
from codegen.symbolic.facts import depth
from codegen.symbolic.terms import TRUTH


def root(e: Expr, var: Sym) -> tuple[Expr, int] | None:
    """Return (root, slope) of e = slope * (var - root), slope 1 or -1."""
    slope, rest = expr.linear_in(e, var)
    if slope is None or var in rest.symbols() or not slope.is_const:
        return None
    if slope.value not in (1, -1):
        return None
    return -rest * slope.value, slope.value


# ---- sums ----------------------------------------------------------------------------------------


def prefix_sum(extent: Expr, var: Sym, count: Expr) -> Expr | None:
    """Return the sum of extent(k) over 0 <= var = k < count, for count >= 0; None where not known.

    Known: powers of var up to two, truth values linear in var, extents of balanced blocks, and sums
    of them.
    """
    total = const(0)
    for call, slope, rest in block_laws.extents(extent):
        k, *dim = call.args
        zero = root(k, var)
        if zero is None or any(var in e.symbols() for e in (slope, *dim)):
            continue
        first, last = (k.subst({var: v}) for v in (const(0), count - 1)[:: zero[1]])
        total = total + slope * (expr.begin(last + 1, *dim) - expr.begin(first, *dim))
        extent = rest
    for monomial, coefficient in extent.terms:
        inside = [a for a in monomial if var in expr.from_atom(a).symbols()]
        outside = expr.from_monomial([a for a in monomial if a not in inside], coefficient)
        part = _sum_of(inside, var, count)
        if part is None:
            return None
        total = total + outside * part
    return total


def _sum_of(atoms: Sequence[Atom], var: Sym, count: Expr) -> Expr | None:
    if not atoms:
        return count
    if all(a == var for a in atoms):
        if len(atoms) == 1:
            return (count * (count - 1)) // 2
        return (count * (count - 1) * (2 * count - 1)) // 6 if len(atoms) == 2 else None
    (atom, *more) = atoms
    if more or not isinstance(atom, Call) or atom.op not in TRUTH:
        return None
    zero = root(atom.args[0], var)
    if zero is None:
        return None
    start, slope = zero
    if atom.op == "eq0":
        return expr.ge0(start) * expr.lt(start, count)
    if slope < 0:  # var <= start
        return expr.minimum(count, expr.maximum(start + 1, 0))
    return count - expr.minimum(count, expr.maximum(start, 0))


# ---- bounds without some symbols -----------------------------------------------------------------


def upper_bound(e: Expr, eliminate: Iterable[Sym]) -> Expr:
    """Return an Expr >= e for all values of the symbols to eliminate within their bounds, without
    them.

    Raises ProgramError where e has no upper bound.
    """
    return _bound(e, frozenset(eliminate), 1)


def largest(e: Expr) -> Expr:
    """Return an Expr >= e for all extents of named dims that only a run knows, without them."""
    return upper_bound(e, [s for s in e.symbols() if s.kind == "extent"]) if e.has_extents else e


def lower_bound(e: Expr, eliminate: Iterable[Sym]) -> Expr:
    """Return an Expr <= e for all values of the symbols to eliminate; see upper_bound."""
    return _bound(e, frozenset(eliminate), -1)


class _Unbounded(Exception):
    pass


def _bound(e: Expr, away: frozenset[Sym], sign: int) -> Expr:
    try:
        return _reach(e, away, sign, 4)
    except _Unbounded:
        names = ", ".join(sorted(s.name for s in e.symbols() & away))
        raise ProgramError(
            f"{e} has no {'upper' if sign > 0 else 'lower'} bound",
            expected=f"an extent that is bounded for all values of {names}",
            found=str(e),
            remedy="bound it with min(...) or max(...)",
        ) from None


def _reach(e: Expr, away: frozenset[Sym], sign: int, splits: int) -> Expr:
    """Return the bound of e upwards (sign 1) or downwards (-1)."""
    if not (e.symbols() & away):
        return e
    block = _block(e, away, sign)
    if block is not None:
        return _reach(block, away, sign, splits)
    choice = _choice(e, away) if splits else None
    if choice is not None:
        arms = [
            _reach(expr.replace(e, {choice: const(v)}), away, sign, splits - 1) for v in (0, 1)
        ]
        return expr.maximum(*arms) if sign > 0 else expr.minimum(*arms)
    for atom in sorted(e.atoms(), key=_elimination_order):
        if not (expr.from_atom(atom).symbols() & away):
            continue
        slope, rest = expr.linear_in(e, atom)
        if slope is None:
            return _by_terms(e, away, sign)
        if expr.nonneg(slope):
            return _reach(slope * _atom_bound(atom, away, sign) + rest, away, sign, splits)
        if expr.nonneg(-slope):
            return _reach(slope * _atom_bound(atom, away, -sign) + rest, away, sign, splits)
        return _by_terms(e, away, sign)
    raise _Unbounded


def _block(e: Expr, away: frozenset[Sym], sign: int) -> Expr | None:
    """Return a bound of e in which every block is the longest one, or the shortest one."""
    for call, slope, rest in block_laws.extents(e):
        k, extent, blocks = call.args
        if not (k.symbols() | extent.symbols()) & away or blocks.symbols() & away:
            continue
        if not (expr.nonneg(extent) and expr.nonneg(blocks)):
            continue
        if expr.nonneg(slope):
            upwards = sign
        elif expr.nonneg(-slope):
            upwards = -sign
        else:
            return block_laws.opened(e)
        k = _reach(k, away, -upwards, 4)  # extents fall with k, and rise with that of the dim
        dim = _reach(extent, away, upwards, 4), blocks
        return slope * (expr.begin(k + 1, *dim) - expr.begin(k, *dim)) + rest
    return None


def _elimination_order(a: Atom) -> tuple[int, int, str]:
    """Return a sort key: calls first, then symbols that occur in bounds of others."""
    return (0, 0, a.key) if isinstance(a, Call) else (1, -depth(a), a.key)


def _choice(e: Expr, away: frozenset[Sym]) -> Call | None:
    """Return a truth value (0 or 1) over eliminated symbols for which both values must be tried:
    the sign of its coefficient is not known, or the coefficient depends on eliminated symbols. None
    if there is none."""
    for call in expr.calls(e):
        if call.op not in TRUTH or not (call.args[0].symbols() & away):
            continue
        slope, rest = expr.linear_in(e, call)
        nested = any(call in expr.calls(expr.from_atom(a)) and a != call for a in e.atoms())
        if slope is None or nested or not (expr.nonneg(slope) or expr.nonneg(-slope)):
            return call
        if slope.symbols() & away:
            return call
    return None


def _by_terms(e: Expr, away: frozenset[Sym], sign: int) -> Expr:
    """Return a bound as the sum of bounds of the monomials, which exists if the atoms are
    bounded."""
    total = const(0)
    for monomial, coefficient in e.terms:
        low = high = const(coefficient)
        for atom in monomial:
            if expr.from_atom(atom).symbols() & away:
                a_low, a_high = _atom_bound(atom, away, -1), _atom_bound(atom, away, 1)
            else:
                a_low = a_high = expr.from_atom(atom)
            corners = [x * y for x in (low, high) for y in (a_low, a_high)]
            low, high = corners[0], corners[0]
            for corner in corners[1:]:
                low, high = expr.minimum(low, corner), expr.maximum(high, corner)
        total = total + (high if sign > 0 else low)
    return _reach(total, away, sign, 0)


def _atom_bound(atom: Atom, away: frozenset[Sym], sign: int) -> Expr:
    """Return a bound, free of the eliminated symbols, of an atom that mentions them."""
    if isinstance(atom, Sym):
        bound = atom.hi if sign > 0 else atom.lo
        if bound is None:
            raise _Unbounded
        return _reach(bound, away, sign, 4)
    if atom.op in TRUTH:
        return _truth_bound(atom, away, sign)
    if atom.op == "begin":
        k, extent, blocks = atom.args
        if blocks.symbols() & away or not (expr.nonneg(extent) and expr.nonneg(blocks)):
            return _reach(block_laws.opened(expr.from_atom(atom)), away, sign, 4)
        return expr.begin(_reach(k, away, sign, 4), _reach(extent, away, sign, 4), blocks)
    if atom.op == "table":
        return const(atom.bound(sign))
    x, y = atom.args
    if atom.op in ("min", "max"):
        return _extreme_bound(atom, away, sign)
    if y.symbols() & away:
        return _division_interval(atom, away, sign)
    if atom.op == "floordiv":
        if expr.nonneg(y):  # x // 0 is 0 for every x
            return _reach(x, away, sign, 4) // y
        return _division_interval(atom, away, sign)
    if not expr.nonneg(y):
        return _division_interval(atom, away, sign)
    return expr.maximum(y - 1, 0) if sign > 0 else const(0)


def _truth_bound(atom: Call, away: frozenset[Sym], sign: int) -> Expr:
    if atom.op == "eq0":
        return const(1 if sign > 0 else 0)
    try:
        return expr.ge0(_reach(atom.args[0], away, sign, 2))
    except _Unbounded:
        return const(1 if sign > 0 else 0)


def _extreme_bound(atom: Call, away: frozenset[Sym], sign: int) -> Expr:
    """Return a bound of a minimum or maximum: min is bounded above by either argument, max
    below."""
    bounds = []
    for arg in atom.args:
        try:
            bounds.append(_reach(arg, away, sign, 4))
        except _Unbounded:
            if (atom.op == "min") != (sign > 0):
                raise
    if not bounds:
        raise _Unbounded
    return reduce(expr.minimum if atom.op == "min" else expr.maximum, bounds)


def _division_interval(atom: Call, away: frozenset[Sym], sign: int) -> Expr:
    """Return an interval of a division: |x // d| <= |x| and |x % d| < |d| or 0, whatever d is."""
    x, y = atom.args
    if atom.op == "floordiv":
        low, high = _reach(x, away, -1, 4), _reach(x, away, 1, 4)
        if expr.nonneg(x) and expr.nonneg(y):
            if sign < 0:
                return const(0)
            least = _reach(y, away, -1, 4)
            return high // least if expr.nonneg(least - 1) else high
        size = expr.maximum(expr.maximum(-low, high), 0)
        return size if sign > 0 else -size
    if expr.nonneg(y):
        return expr.maximum(_reach(y, away, 1, 4) - 1, 0) if sign > 0 else const(0)
    if sign > 0:
        return expr.maximum(_reach(y, away, 1, 4) - 1, 0)
    return expr.minimum(_reach(y, away, -1, 4) + 1, 0)
