"""Symbolic integers as objects: symbols, calls, and normalised polynomials in them.

Everything is interned: two Exprs of one normal form are one object, so == is `is`. What needs proof
(division, comparison) is built by expr.py, which enters its constructors in CONSTRUCT.
Always holds: an object never changes; its order of terms depends on names only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from codegen.symbolic.meaning import rows_of, value
from codegen.symbolic.sample_points import Column, column, sampled

if TYPE_CHECKING:
    from codegen.symbolic.meaning import Row

# op -> constructor from argument Exprs; filled by codegen.symbolic.expr
CONSTRUCT: dict[str, Callable[..., Expr]] = {}
# style ("c", "text", "prefix") -> spelling of an Expr; filled by codegen.symbolic.expr
SPELL: dict[str, Callable[..., Any]] = {}

TRUTH = ("ge0", "eq0")
# of symbols, what moves most first; and those that a launch binds
KINDS = ("var", "counter", "coord", "flag", "extent", "scalar", "size")
LAUNCH = frozenset(("extent", "scalar", "size"))
POWERS = 1 << 62  # what divides it is a power of two


class Sym:
    """A named integer with bounds (both inclusive; None means unbounded).

    divides: a number that it is known to divide; 0 where nothing is known.
    Equal by name and what is known: what was proved of one must not be believed of another.

    kind: coord (position on a mesh axis), size (ranks along an axis), scalar (bound at launch),
    extent (of a named dim, bound by a run's inputs; memory is laid out for the most), flag (1 or 0,
    as each call says), counter (of a loop), var (bound by whoever made it: a loop nest's variable,
    a peer).
    """

    name: str
    kind: str
    lo: Expr | None
    hi: Expr | None
    divides: int
    _known: dict[tuple[str, str, Expr | None, Expr | None, int], Sym] = {}

    def __new__(
        cls, name: str, kind: str = "var", lo: Expr | None = None, hi: Expr | None = None,
        divides: int = 0,
    ) -> Sym:
        known = cls._known.get((name, kind, lo, hi, divides))
        if known is None:
            known = super().__new__(cls)
            known.name, known.kind, known.lo, known.hi, known.divides = name, kind, lo, hi, divides
            cls._known[name, kind, lo, hi, divides] = known
        return known

    def __reduce__(self) -> Any:
        return Sym, (self.name, self.kind, self.lo, self.hi, self.divides)

    def __repr__(self) -> str:
        return f"Sym({self.name!r}, {self.kind!r}, {self.lo}, {self.hi})"

    @cached_property
    def key(self) -> str:
        lo = "" if self.lo is None else self.lo.key
        hi = "" if self.hi is None else self.hi.key
        known = f"{lo},{hi},{self.divides}" if self.divides else f"{lo},{hi}"
        return f"{self.name}[{known}]" if known != "," else self.name

    @cached_property
    def order(self) -> str:
        return self.name

    @cached_property
    def least(self) -> int | None:
        """Return the lower bound if it is a constant, else None."""
        return self.lo.value if self.lo is not None and self.lo.is_const else None

    @cached_property
    def most(self) -> int | None:
        """Return the upper bound if it is a constant, else None."""
        return self.hi.value if self.hi is not None and self.hi.is_const else None

    @cached_property
    def positive(self) -> bool:
        """Return whether its lower bound is a number of at least 1."""
        return self.least is not None and self.least >= 1

    @property
    def lays_out(self) -> bool:
        """Return whether the layout of memory depends on the symbol: whether it is a size or a
        scalar."""
        return self.kind in ("size", "scalar")

    def within(self, values: Mapping[str, int]) -> tuple[int | None, int | None]:
        """Return the bounds as integers, given the values of other symbols; None for one that is
        unbounded."""
        lo, hi = (None if b is None else b.evaluate(values) for b in (self.lo, self.hi))
        return lo, hi

    @cached_property
    def samples(self) -> Column:
        return column(self)


class Call:
    """An operation that a polynomial cannot express. op: floordiv mod min max ge0 eq0
    begin table."""

    op: str
    args: tuple[Expr, ...]
    positive = False
    _known: dict[tuple[str, tuple[Expr, ...]], Call] = {}

    def __new__(cls, op: str, args: tuple[Expr, ...]) -> Call:
        known = cls._known.get((op, args))
        if known is None:
            known = super().__new__(cls)
            known.op, known.args = op, args
            cls._known[op, args] = known
        return known

    def __reduce__(self) -> Any:
        return Call, (self.op, self.args)

    def __repr__(self) -> str:
        return str(from_atom(self))

    @cached_property
    def key(self) -> str:
        return f"{self.op}({','.join(a.key for a in self.args)})"

    @cached_property
    def order(self) -> str:
        return f"{self.op}({','.join(a.order for a in self.args)})"

    @cached_property
    def samples(self) -> Column:
        return sampled(self.op, [a.samples for a in self.args])

    def bound(self, sign: int) -> int:
        """Return a bound of all values of a table: an upper one for sign 1, a lower one for -1."""
        values = [0, *(a.value for a in self.args[1:])]
        return max(values) if sign > 0 else min(values)


KNOWN = 1 << 16  # sums and products that are remembered

Atom: TypeAlias = Sym | Call
Monomial: TypeAlias = tuple[Atom, ...]
IntLike: TypeAlias = "Expr | int"


class Expr:
    """A normalised polynomial; build one with `const`, `symbol` and the operators below."""

    terms: tuple[tuple[Monomial, int], ...]
    _known: dict[tuple[tuple[Monomial, int], ...], Expr] = {}

    def __new__(cls, terms: tuple[tuple[Monomial, int], ...] = ()) -> Expr:
        known = cls._known.get(terms)
        if known is None:
            known = super().__new__(cls)
            known.terms = terms
            cls._known[terms] = known
        return known

    def __reduce__(self) -> Any:
        return Expr, (self.terms,)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same normal form. For a symbolic comparison use `eq`."""
        if isinstance(other, int):
            return self.is_const and self.value == other
        return self is other

    __hash__ = object.__hash__

    @cached_property
    def key(self) -> str:
        return "+".join(f"{c}*{'*'.join(a.key for a in m)}" for m, c in self.terms)

    @cached_property
    def order(self) -> str:
        """Return the key by which terms are sorted: like `key`, without the bounds of symbols."""
        return "+".join(f"{c}*{'*'.join(a.order for a in m)}" for m, c in self.terms)

    @cached_property
    def is_const(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    @property
    def value(self) -> int:
        """Return the integer of a constant Expr."""
        assert self.is_const, f"{self} is not constant"
        return self.terms[0][1] if self.terms else 0

    def atoms(self) -> set[Atom]:
        return {a for m, _ in self.terms for a in m}

    @cached_property
    def deep(self) -> frozenset[Atom]:
        """Return every atom anywhere in the expression (bounds of symbols not included)."""
        out: set[Atom] = set()
        for m, _ in self.terms:
            for a in m:
                out.add(a)
                if isinstance(a, Call):
                    for arg in a.args:
                        out |= arg.deep
        return frozenset(out)

    @cached_property
    def has_blocks(self) -> bool:
        """Return whether it calls `begin`, the first element of a block."""
        return any(isinstance(a, Call) and a.op == "begin" for a in self.deep)

    @cached_property
    def depth(self) -> int:
        """Return how deep calls are nested."""
        inner = (a.args for m, _ in self.terms for a in m if isinstance(a, Call))
        return max((1 + max(e.depth for e in args) for args in inner), default=0)

    @cached_property
    def _symbols(self) -> frozenset[Sym]:
        return frozenset(a for a in self.deep if isinstance(a, Sym))

    @cached_property
    def has_extents(self) -> bool:
        """Return whether it depends on the extent of a named dim that only a run knows."""
        return any(s.kind == "extent" for s in self._symbols)

    def symbols(self) -> set[Sym]:
        """Return every symbol anywhere in the expression (bounds of symbols not included)."""
        return set(self._symbols)

    @cached_property
    def samples(self) -> Column:
        """Return the values at the sample points within the bounds; None where a symbol has none
        there."""
        return sampled("+", [_monomial_samples(m, c) for m, c in self.terms or (((), 0),)])

    def subst(self, mapping: Mapping[Sym, IntLike]) -> Expr:
        """Replace symbols everywhere, then normalise again."""
        return replace(self, mapping)

    @cached_property
    def rows(self) -> list[Row]:
        """Return the formula as rows, of which the last one is the whole."""
        return rows_of(SPELL["prefix"](self))

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the integer for given symbol values, by name."""
        return int(value(self.rows, values))

    def c(self, name: Callable[[Sym], str]) -> str:
        """Return C source of an int64_t; `name` spells a symbol."""
        return str(SPELL["c"](self, name))

    @cached_property
    def _text(self) -> str:
        return str(SPELL["text"](self, lambda s: s.name))

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __add__(self, other: IntLike) -> Expr:
        return _sum(self, as_expr(other), 1)

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> Expr:
        return _sum(self, as_expr(other), -1)

    def __rsub__(self, other: IntLike) -> Expr:
        return _sum(as_expr(other), self, -1)

    def __neg__(self) -> Expr:
        return Expr(tuple((m, -c) for m, c in self.terms))

    def __mul__(self, other: IntLike) -> Expr:
        return _product(self, as_expr(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Expr:
        return CONSTRUCT["floordiv"](self, as_expr(other))

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return CONSTRUCT["floordiv"](as_expr(other), self)

    def __mod__(self, other: IntLike) -> Expr:
        return CONSTRUCT["mod"](self, as_expr(other))

    def __rmod__(self, other: IntLike) -> Expr:
        return CONSTRUCT["mod"](as_expr(other), self)


# ---- in other domains --------------------------------------------------------------------------


@cache
def _monomial_samples(atoms: Monomial, coefficient: int) -> Column:
    if coefficient == 1 and len(atoms) == 1:
        return atoms[0].samples
    return sampled("*", [sampled("number", (coefficient,)), *(a.samples for a in atoms)])


# ---- making and taking apart -------------------------------------------------------------------


def const(value: int) -> Expr:
    return Expr((((), int(value)),)) if value else ZERO


def as_expr(value: IntLike) -> Expr:
    return value if isinstance(value, Expr) else const(value)


def from_atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


def symbol(sym: Sym) -> Expr:
    return Expr((((sym,), 1),))


def from_monomial(atoms: Iterable[Atom], coefficient: int = 1) -> Expr:
    """Return the product of atoms, times an integer."""
    total = const(coefficient)
    for atom in atoms:
        total = total * from_atom(atom)
    return total


def product(values: Iterable[IntLike]) -> Expr:
    total = ONE
    for v in values:
        total = total * v
    return total


def calls(e: Expr) -> list[Call]:
    """Return every call in e, inner ones too, each once; in an order that depends on names only."""
    return sorted((a for a in e.deep if isinstance(a, Call)), key=lambda a: a.order)


def replace(e: Expr, mapping: Mapping[Any, IntLike]) -> Expr:
    """Replace atoms (symbols or calls) everywhere, then normalise again."""
    if not mapping or e.deep.isdisjoint(mapping.keys()):
        return e
    total = ZERO
    for monomial, coefficient in e.terms:
        term = const(coefficient)
        for atom in monomial:
            if atom in mapping:
                term = term * mapping[atom]
            elif isinstance(atom, Sym):
                term = term * from_atom(atom)
            else:
                term = term * CONSTRUCT[atom.op](*(replace(a, mapping) for a in atom.args))
        total = total + term
    return total


def linear_in(e: Expr, atom: Atom) -> tuple[Expr | None, Expr]:
    """Return (slope, rest) of e = slope * atom + rest, atom a factor of neither; None if
    squared."""
    slope: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for m, c in e.terms:
        count = m.count(atom)
        if count > 1:
            return None, e
        if count:
            slope.append((tuple(a for a in m if a is not atom), c))
        else:
            rest.append((m, c))
    return Expr(tuple(slope)), Expr(tuple(rest))


# ---- polynomial arithmetic ---------------------------------------------------------------------


def make(terms: Mapping[Monomial, int]) -> Expr:
    kept = [(m, c) for m, c in terms.items() if c]
    if len(kept) > 1:
        kept.sort(key=_term_order)
    return Expr(tuple(kept))


def _term_order(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    return -len(term[0]), [a.order for a in term[0]]


@lru_cache(maxsize=KNOWN)
def _sum(a: Expr, b: Expr, sign: int) -> Expr:
    if not b.terms:
        return a
    if not a.terms and sign == 1:
        return b
    terms = dict(a.terms)
    for m, c in b.terms:
        terms[m] = terms.get(m, 0) + sign * c
    return _collected(terms)


@lru_cache(maxsize=KNOWN)
def _product(a: Expr, b: Expr) -> Expr:
    if not a.terms or b is ONE:
        return a
    if not b.terms or a is ONE:
        return b
    terms: dict[Monomial, int] = {}
    for ma, ca in a.terms:
        for mb, cb in b.terms:
            m = times(ma, mb)
            if m is not None:
                terms[m] = terms.get(m, 0) + ca * cb
    return _collected(terms)


def _collected(terms: dict[Monomial, int]) -> Expr:
    """Return the sum of the terms, with every d * (x // d) written as x - x % d."""
    extra = ZERO
    for m, c in list(terms.items()):
        if c and any(isinstance(a, Call) and a.op == "floordiv" for a in m):
            undone = _undo_division(m, c)
            if undone is not None:
                terms[m] -= undone[1]
                extra = extra + undone[0]
    return make(terms) + extra if extra.terms else make(terms)


def times(a: Monomial, b: Monomial) -> Monomial | None:
    """Return the product of two monomials; None where it is always 0, because two of its truth
    values exclude each other."""
    if not a or not b:
        return a or b
    out = sorted(a + b, key=_atom_order)
    truths = [x for x in out if isinstance(x, Call) and x.op in TRUTH]
    if len(truths) > 1:
        kept = _meet(truths)
        if kept is None:
            return None
        if len(kept) < len(truths):
            others: list[Atom] = [x for x in out if not (isinstance(x, Call) and x.op in TRUTH)]
            out = sorted([*others, *kept], key=_atom_order)
    return tuple(out)


def _atom_order(a: Atom) -> str:
    return a.order


def _meet(truths: list[Call]) -> list[Call] | None:
    """Return truth values that may hold together, without those that others imply; None if they
    never hold together.

    Only those whose arguments differ by a constant are compared."""
    kept: list[Call] = []
    for new in truths:
        needed = True
        for old in list(kept):
            gap = as_expr(new.args[0]) - old.args[0]
            if not gap.is_const:
                continue
            g = gap.value  # new's argument is old's + g
            if new.op == old.op == "ge0":
                if g >= 0:
                    needed = False
                else:
                    kept.remove(old)
            elif new.op == old.op:  # eq0 twice
                if g:
                    return None
                needed = False
            elif old.op == "eq0":  # new is ge0 at old's argument 0: its own is g
                if g < 0:
                    return None
                needed = False
            else:
                if g > 0:  # new eq0: old's argument is -g there
                    return None
                kept.remove(old)
        if needed:
            kept.append(new)
    return kept


def _undo_division(m: Monomial, c: int) -> tuple[Expr, int] | None:
    """Return part of c * m, rewritten, and its coefficient: d * (x // d) is x - x % d where d >=
    1."""
    for i, atom in enumerate(m):
        if not (isinstance(atom, Call) and atom.op == "floordiv"):
            continue
        x, d = atom.args
        if len(d.terms) != 1 or not 0 < d.terms[0][1] <= abs(c):
            continue
        monomial, factor = d.terms[0]
        rest = list(m[:i] + m[i + 1 :])
        if not all(f.positive for f in monomial):  # x // 0 is 0
            continue
        try:
            for other in monomial:
                rest.remove(other)
        except ValueError:
            continue
        turns = abs(c) // factor * (1 if c > 0 else -1)
        return (x - CONSTRUCT["mod"](x, d)) * Expr(((tuple(rest), turns),)), turns * factor
    return None


ZERO = Expr(())
ONE = Expr((((), 1),))
