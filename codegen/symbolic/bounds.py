"""A prover of e >= 0 for symbolic integers within the bounds of their symbols.

In: an Expr. Out: True where a proof was found: atoms are replaced by their bounds, truth values,
minima and wraps split into cases; what a sample point refutes is given up at once.
Always holds: True is never wrong, and the answer does not depend on what was asked before.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from codegen.symbolic import block_laws
from codegen.symbolic.terms import (
    CONSTRUCT,
    KINDS,
    ONE,
    TRUTH,
    ZERO,
    Atom,
    Call,
    Expr,
    IntLike,
    Sym,
    as_expr,
    calls,
    const,
    from_atom,
    linear_in,
    replace,
)

# (depth, steps) of the attempts at one proof, by how deep searches stand in each other: short
# proofs are found first, inner searches must stay small.
_ATTEMPTS = (((2, 8), (4, 30), (7, 120)), ((2, 6), (4, 16)), ((2, 5),))
_POINTS = 64  # so few are tried one by one
_known: tuple[dict[Expr, bool], ...] = ({}, {}, {})
_nesting = 0


def nesting() -> int:
    """Return how many searches are under way, at most 2; results are cached separately for each
    number."""
    return min(_nesting, len(_ATTEMPTS) - 1)


def nonneg(e: Expr) -> bool:
    """Return whether e >= 0 is proved for every value of its symbols within their bounds."""
    global _nesting
    if e.is_const:
        return e.value >= 0
    level = nesting()
    proved = _known[level].get(e)
    if proved is None:
        _nesting += 1
        try:
            proved = _evident(e) or (not refuted(e) and _searched(e, level))
        finally:
            _nesting -= 1
        _known[level][e] = proved
    return proved


def _searched(e: Expr, level: int) -> bool:
    """Search for a proof: first by the laws of blocks, with little work, then with the formulas of
    their beginnings."""
    attempts = _ATTEMPTS[level]
    if e.has_blocks:
        if any(_Search(steps).prove(e, (), depth) for depth, steps in attempts[:2]):
            return True
        e = block_laws.opened(e, level)
    return any(_Search(steps, True).prove(e, (), depth) for depth, steps in attempts)


def equal(a: IntLike, b: IntLike) -> bool:
    """Return whether a == b is proved."""
    gap = block_laws.opened(as_expr(a) - b, nesting())
    if gap.is_const:
        return gap.value == 0
    if any(gap.samples):
        return False
    places = _everywhere(gap.symbols())
    if places is None:
        return nonneg(gap) and nonneg(-gap)
    return all(gap.evaluate(values) == 0 for values in places)


def _everywhere(symbols: Iterable[Sym]) -> list[dict[str, int]] | None:
    """Return all values of the symbols, if each runs over a few constants; else None."""
    out: list[dict[str, int]] = [{}]
    for s in sorted(symbols, key=lambda s: s.name):
        if s.least is None or s.most is None or len(out) * (s.most - s.least + 1) > _POINTS:
            return None
        out = [{**values, s.name: v} for values in out for v in range(s.least, s.most + 1)]
    return out


def refuted(e: Expr, facts: tuple[Expr, ...] = ()) -> bool:
    """Return whether e < 0 at a sample point at which all facts are >= 0."""
    columns = [f.samples for f in facts]
    for p, v in enumerate(e.samples):
        if v is not None and v < 0:
            met = [column[p] for column in columns]
            if all(f is not None and f >= 0 for f in met):
                return True
    return False


class _Search:
    """One bounded search for a proof. opens: whether beginnings of blocks that occur in bounds are
    replaced by their formulas."""

    def __init__(self, steps: int, opens: bool = False) -> None:
        self.left, self.opens = steps, opens
        self.failed: set[tuple[Expr, tuple[Expr, ...]]] = set()

    def prove(self, e: Expr, facts: tuple[Expr, ...], depth: int) -> bool:
        """Return whether e >= 0 is proved wherever every fact is >= 0."""
        if self.opens:
            e = block_laws.opened(e, nesting())
        if e.is_const and e.value >= 0:
            return True
        if _evident(e):
            return True
        if refuted(e, facts) or (e.is_const and not facts):
            return False
        if (e, facts) in self.failed or depth <= 0 or self.left <= 0:
            return False
        self.left -= 1
        self.failed.add((e, facts))
        return (
            any(_evident(e - f) for f in facts)
            or self.by_bounds(e, facts, depth)
            or self.by_scaling(e, facts, depth)
            or self.by_cases(e, facts, depth)
            or _from_one(e)
            or self.vacuous(facts, depth)
        )

    def vacuous(self, facts: tuple[Expr, ...], depth: int) -> bool:
        """Return whether no value meets all facts: no sample does, and a proof shows it."""
        if not facts or not refuted(const(-1)):
            return False
        if refuted(const(-1), facts):
            return False
        return any(
            self.prove(-f - 1, facts[:k] + facts[k + 1 :], depth - 2)
            for k, f in enumerate(facts)
        )

    def by_bounds(self, e: Expr, facts: tuple[Expr, ...], depth: int) -> bool:
        for atom in sorted(e.atoms(), key=_elimination_order):
            slope, rest = linear_in(e, atom)
            if slope is None:
                continue
            sign = self.sign(slope, facts, depth)
            if not sign:
                continue
            for bound in _bounds(atom, e, facts, sign):
                if self.prove(slope * bound + rest, facts, depth - 1):
                    return True
        return False

    def sign(self, slope: Expr, facts: tuple[Expr, ...], depth: int) -> int:
        """Return 1 for slope >= 0, -1 for slope <= 0, 0 for not known."""
        if slope.is_const:
            return 1 if slope.value >= 0 else -1
        if self.prove(slope, facts, min(depth - 1, 3)):
            return 1
        return -1 if self.prove(-slope, facts, min(depth - 1, 3)) else 0

    def by_scaling(self, e: Expr, facts: tuple[Expr, ...], depth: int) -> bool:
        """Return whether e >= 0 is proved by scaling: for q = x // d and d >= 1, d * e has the sign
        of e, and d * q is x - x % d.

        If e is r - q or r + q, no remainder is needed: q <= r follows from x < d * (r + 1)."""
        for atom in e.atoms():
            if not (isinstance(atom, Call) and atom.op == "floordiv"):
                continue
            x, d = atom.args
            slope, rest = linear_in(e, atom)
            if slope is None or not _evident(d - 1):
                continue
            if slope == -1 and self.prove(d * rest + d - 1 - x, facts, depth - 1):
                return True
            if slope == 1 and self.prove(d * rest + x, facts, depth - 1):
                return True
            if self.prove(slope * (x - CONSTRUCT["mod"](x, d)) + d * rest, facts, depth - 2):
                return True
        return False

    def by_cases(self, e: Expr, facts: tuple[Expr, ...], depth: int) -> bool:
        """Prove by cases of one call, an outer one first."""
        outer = sorted((a for a in e.atoms() if isinstance(a, Call)), key=lambda a: a.order)
        inner = [c for c in calls(e) if c not in outer]
        for call in [*outer, *inner]:
            cases = self.cases(call, e, facts)
            if cases is None:
                continue
            return all(
                self.prove(case, (*facts, *(f for f in more if not _evident(f))), depth - 1)
                for case, more in cases
            )
        return False

    def cases(
        self, call: Call, e: Expr, facts: tuple[Expr, ...]
    ) -> list[tuple[Expr, tuple[Expr, ...]]] | None:
        """Return, for each case, e without the call and the facts of that case; one of the cases
        always holds."""
        x = call.args[0]
        if call.op == "ge0":
            return [
                (replace(e, {call: ONE}), (x,)),
                (replace(e, {call: ZERO}), (-x - 1,)),
            ]
        if call.op == "eq0":
            no = replace(e, {call: ZERO})
            return [(replace(e, {call: ONE}), (x, -x)), (no, (x - 1,)), (no, (-x - 1,))]
        y = call.args[1]
        if call.op in ("min", "max"):
            low, high = (x, y) if call.op == "min" else (y, x)
            return [
                (replace(e, {call: x}), (high - low,)),
                (replace(e, {call: y}), (low - high,)),
            ]
        if call.op in ("begin", "table"):
            return None
        return self.unwrap(call, x, y, e, facts)

    def unwrap(
        self, call: Call, x: Expr, d: Expr, e: Expr, facts: tuple[Expr, ...]
    ) -> list[tuple[Expr, tuple[Expr, ...]]] | None:
        """Return the cases of x % d or x // d where x lies within one d of [0, d), so that at most
        one d is added or subtracted; None if it may be farther away."""
        if not _evident(d - 1):
            return None

        def value(turns: int) -> Expr:
            new = const(turns) if call.op == "floordiv" else x - turns * d
            return replace(e, {call: new})

        if self.prove(x, facts, 3) and self.prove(2 * d - 1 - x, facts, 3):
            return [(value(0), (d - 1 - x,)), (value(1), (x - d,))]
        if self.prove(x + d, facts, 3) and self.prove(d - 1 - x, facts, 3):
            return [(value(0), (x,)), (value(-1), (-x - 1,))]
        return None


def _elimination_order(a: Atom) -> tuple[int, str]:
    """Return a sort key: calls first, sizes last, since bounds of calls mention symbols."""
    return (0, a.order) if isinstance(a, Call) else (1 + KINDS.index(a.kind), a.order)


@cache
def _evident(e: Expr) -> bool:
    """Return whether e has no negative coefficient, and atoms that cannot be negative."""
    if e.is_const:
        return e.value >= 0
    negative = [(m, c) for m, c in e.terms if c < 0]
    if not negative:
        return all(_atom_nonneg(a) for a in e.atoms())
    if len(negative) > 1 or negative[0][0]:
        return False
    # a positive product is at least 1
    least = sum(c for m, c in e.terms if m and all(a.positive for a in m))
    return least + negative[0][1] >= 0 and all(_atom_nonneg(a) for a in e.atoms())


@cache
def _atom_nonneg(a: Atom) -> bool:
    if isinstance(a, Sym):
        return a.least is not None and a.least >= 0
    if a.op in TRUTH:
        return True
    if a.op == "max":
        return any(map(_evident, a.args))
    if a.op == "mod":
        return _evident(a.args[1])
    if a.op == "table":
        return a.bound(-1) >= 0
    return all(map(_evident, a.args))


def _from_facts(atom: Atom, facts: tuple[Expr, ...], slope: int) -> list[Expr]:
    """Return the bounds of `atom` that follow from facts of the form slope * atom + rest >= 0:
    lower ones for slope 1, upper ones for -1."""
    out = []
    for f in facts:
        factor, rest = linear_in(f, atom)
        if factor is not None and factor.is_const and factor.value == slope:
            out.append(-rest * slope)
    return out


def _bounds(atom: Atom, e: Expr, facts: tuple[Expr, ...], sign: int) -> list[Expr]:
    """Return lower (sign 1) or upper bounds (-1) of an atom of e."""
    out = _from_facts(atom, facts, sign)
    if isinstance(atom, Sym):
        own = atom.lo if sign > 0 else atom.hi
        return out if own is None else [*out, own]
    if atom.op in TRUTH:
        return [*out, *_alike(atom, e, sign), ZERO if sign > 0 else ONE]
    if atom.op == "begin":
        return [*out, *block_laws.bounds(atom, e, sign, nonneg)]
    if atom.op == "table":
        return [*out, const(atom.bound(-sign))]
    if atom.op == ("max" if sign > 0 else "min"):
        return [*out, *atom.args]
    return [*out, *(_least if sign > 0 else _most)(atom, e, *atom.args)]


def _least(atom: Call, e: Expr, x: Expr, y: Expr) -> list[Expr]:
    """Return lower bounds of a minimum, a quotient or a remainder."""
    out = [ZERO] if _atom_nonneg(atom) else []
    if atom.op == "floordiv":
        out += _alike(atom, e, 1)
        most = _largest(y)
        if most is not None and nonneg(x) and nonneg(y - 1):
            out.append(CONSTRUCT["floordiv"](x, const(most)))
    if ZERO not in out and (atom.op == "mod" or nonneg(x)) and nonneg(y):
        out.append(ZERO)
    return out


def _most(atom: Call, e: Expr, x: Expr, y: Expr) -> list[Expr]:
    """Return upper bounds of a maximum (none is known), a quotient or a remainder."""
    if atom.op == "floordiv":
        return [*_alike(atom, e, -1), *([x] if nonneg(y) and nonneg(x) else [])]
    if atom.op == "mod" and nonneg(y - 1):
        return [y - 1, x] if nonneg(x) else [y - 1]
    return [y] if atom.op == "mod" and nonneg(y) else []


def _largest(e: Expr) -> int | None:
    """Return the greatest value of a product of positive symbols; None unless each has a constant
    upper bound."""
    if len(e.terms) != 1:
        return None
    (monomial, most), = e.terms
    for a in monomial:
        if not (isinstance(a, Sym) and a.positive and a.most is not None):
            return None
        most *= a.most
    return most


def _alike(atom: Call, e: Expr, sign: int) -> list[Expr]:
    """Return bounds of `atom` among other atoms of e, since a quotient or comparison rises with its
    argument: x >= y gives x // d >= y // d and (x >= 0) >= (y >= 0)."""
    if atom.op == "eq0":
        return []
    out = []
    for other in sorted((a for a in e.atoms() if isinstance(a, Call)), key=lambda a: a.order):
        if other is atom or other.op != atom.op or other.args[1:] != atom.args[1:]:
            continue
        if atom.op == "floordiv" and not _evident(atom.args[1]):
            continue
        gap = (atom.args[0] - other.args[0]) * sign
        if nonneg(gap):
            out.append(from_atom(other))
    return out


def _from_one(e: Expr) -> bool:
    """Return whether e >= 0 is evident once every positive symbol is written as 1 + m with m >= 0:
    if then no coefficient is negative."""
    shifted = {
        a: from_atom(Sym(f"{a.name}'", "var", ZERO)) + 1
        for a in e.atoms()
        if isinstance(a, Sym) and a.positive
    }
    if not shifted:
        return False
    total = ZERO
    for m, c in e.terms:
        term = const(c)
        for atom in m:
            term = term * (shifted[atom] if atom in shifted else from_atom(atom))
        total = total + term
    return _evident(total)
