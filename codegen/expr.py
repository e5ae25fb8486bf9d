"""Symbolic integers over the index, axis sizes, run-time scalars and loop counters.

An Expr is a polynomial with integer coefficients whose atoms are symbols and calls (floordiv, mod,
min, max, and the truth values ge0 and eq0, which are 0 or 1). Conditions are Exprs too: `and` is a
product, `not c` is 1 - c. Construction always normalises, so equal normal forms are equal objects.
Always holds: every operation is total; division by zero gives 0, as NumPy's integers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Union


@dataclass(frozen=True, eq=False)
class Sym:
    """A named integer with bounds (both inclusive; None means unbounded).

    Equal by name and bounds: what was proved of one must not be believed of another.

    kind: coord (position on a mesh axis), size (ranks along an axis), scalar (bound at launch),
    counter (of a loop), var (bound by whoever made it: a loop nest's variable, a peer).
    """

    name: str
    kind: str = "var"
    lo: Expr | None = None
    hi: Expr | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sym) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def key(self) -> str:
        lo = "" if self.lo is None else self.lo.key
        hi = "" if self.hi is None else self.hi.key
        return f"{self.name}[{lo},{hi}]"


@dataclass(frozen=True)
class Call:
    """An operation that a polynomial cannot express. op: floordiv mod min max ge0 eq0."""

    op: str
    args: tuple[Expr, ...]

    @cached_property
    def key(self) -> str:
        return f"{self.op}({','.join(a.key for a in self.args)})"

    def __hash__(self) -> int:
        return hash(self.key)


Atom = Union[Sym, Call]
Monomial = tuple[Atom, ...]
IntLike = Union["Expr", int]


@dataclass(frozen=True, eq=False, repr=False)
class Expr:
    """A normalised polynomial; build one with `const`, `symbol` and the operators below."""

    terms: tuple[tuple[Monomial, int], ...] = field(default=())

    @cached_property
    def key(self) -> str:
        return "+".join(f"{c}*{'*'.join(a.key for a in m)}" for m, c in self.terms)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        """Structural: the same normal form. For a symbolic comparison use `eq`."""
        if isinstance(other, int):
            return self.is_const and self.value == other
        return isinstance(other, Expr) and self.key == other.key

    @property
    def is_const(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    @property
    def value(self) -> int:
        """The integer, for a constant Expr only."""
        assert self.is_const, f"{self} is not constant"
        return self.terms[0][1] if self.terms else 0

    def atoms(self) -> set[Atom]:
        return {a for m, _ in self.terms for a in m}

    def symbols(self) -> set[Sym]:
        """Every symbol anywhere in the expression (bounds of symbols not included)."""
        out: set[Sym] = set()
        for atom in self.atoms():
            if isinstance(atom, Sym):
                out.add(atom)
            else:
                for arg in atom.args:
                    out |= arg.symbols()
        return out

    def subst(self, mapping: Mapping[Sym, IntLike]) -> Expr:
        """Replace symbols everywhere, then normalise again."""
        if not mapping or not (self.symbols() & mapping.keys()):
            return self
        total = const(0)
        for monomial, coefficient in self.terms:
            product = const(coefficient)
            for atom in monomial:
                product = product * _subst_atom(atom, mapping)
            total = total + product
        return total

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The integer for given symbol values, by name."""
        total = 0
        for monomial, coefficient in self.terms:
            for atom in monomial:
                if coefficient == 0:
                    break
                if isinstance(atom, Sym):
                    coefficient *= values[atom.name]
                else:
                    coefficient *= EVALUATE[atom.op](*(a.evaluate(values) for a in atom.args))
            total += coefficient
        return total

    def c(self, name: Callable[[Sym], str]) -> str:
        """C source of an int64_t; `name` spells a symbol."""
        return _text(self, name, C_CALLS)

    def __str__(self) -> str:
        return _text(self, lambda s: s.name, TEXT_CALLS)

    __repr__ = __str__

    def __add__(self, other: IntLike) -> Expr:
        return _sum(self, as_expr(other), 1)

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> Expr:
        return _sum(self, as_expr(other), -1)

    def __rsub__(self, other: IntLike) -> Expr:
        return _sum(as_expr(other), self, -1)

    def __neg__(self) -> Expr:
        return _make({m: -c for m, c in self.terms})

    def __mul__(self, other: IntLike) -> Expr:
        return _product(self, as_expr(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: IntLike) -> Expr:
        return floordiv(self, as_expr(other))

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return floordiv(as_expr(other), self)

    def __mod__(self, other: IntLike) -> Expr:
        return mod(self, as_expr(other))

    def __rmod__(self, other: IntLike) -> Expr:
        return mod(as_expr(other), self)


def const(value: int) -> Expr:
    return Expr((((), int(value)),)) if value else Expr(())


def as_expr(value: IntLike) -> Expr:
    return value if isinstance(value, Expr) else const(value)


def symbol(sym: Sym) -> Expr:
    return Expr((((sym,), 1),))


def from_atom(atom: Atom) -> Expr:
    return Expr((((atom,), 1),))


def from_monomial(atoms: Iterable[Atom], coefficient: int = 1) -> Expr:
    """The product of atoms, times an integer."""
    total = const(coefficient)
    for atom in atoms:
        total = total * from_atom(atom)
    return total


def calls(e: Expr) -> list[Call]:
    """Every call in e, inner ones too, each once."""
    out: dict[Call, None] = {}
    for atom in sorted(e.atoms(), key=lambda a: a.key):
        if isinstance(atom, Call):
            out.setdefault(atom)
            for arg in atom.args:
                out.update(dict.fromkeys(calls(arg)))
    return list(out)


def replace(e: Expr, mapping: Mapping[Atom, IntLike]) -> Expr:
    """Replace atoms (calls as well as symbols) everywhere, then normalise again."""
    total = const(0)
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
    """(slope, rest) of e = slope * atom + rest, atom in neither as a factor; slope None if squared."""
    return _linear_in(e, atom)


def function(e: Expr, names: Iterable[str]) -> Callable[..., int]:
    """A Python function of the named symbols' values, in that order; fast, for enumeration."""
    names = list(names)
    spelled = {n: f"v{k}" for k, n in enumerate(names)}
    body = _text(e, lambda s: spelled[s.name], PYTHON_CALLS)
    return eval(f"lambda {', '.join(spelled.values())}: {body}", dict(_PYTHON))  # type: ignore


def product(values: Iterable[IntLike]) -> Expr:
    total = const(1)
    for v in values:
        total = total * v
    return total


# ---- polynomial arithmetic ---------------------------------------------------------------------

_TRUTH = ("ge0", "eq0")


def _make(terms: Mapping[Monomial, int]) -> Expr:
    kept = [(m, c) for m, c in terms.items() if c]
    kept.sort(key=lambda t: (-len(t[0]), tuple(a.key for a in t[0])))
    return Expr(tuple(kept))


def _sum(a: Expr, b: Expr, sign: int) -> Expr:
    terms = dict(a.terms)
    for m, c in b.terms:
        terms[m] = terms.get(m, 0) + sign * c
    return _collected(terms)


def _product(a: Expr, b: Expr) -> Expr:
    terms: dict[Monomial, int] = {}
    for ma, ca in a.terms:
        for mb, cb in b.terms:
            m = _times(ma, mb)
            terms[m] = terms.get(m, 0) + ca * cb
    return _collected(terms)


def _collected(terms: dict[Monomial, int]) -> Expr:
    """The sum of the terms, with every d * (x // d) written as x - x % d."""
    extra = const(0)
    for m, c in list(terms.items()):
        undone = _undo_division(m, c) if c else None
        if undone is not None:
            terms[m] -= undone[1]
            extra = extra + undone[0]
    return _make(terms) + extra if extra.terms else _make(terms)


def _times(a: Monomial, b: Monomial) -> Monomial:
    merged = sorted(a + b, key=lambda atom: atom.key)
    out: list[Atom] = []
    for atom in merged:  # a truth value times itself is itself
        if out and isinstance(atom, Call) and atom.op in _TRUTH and out[-1] == atom:
            continue
        out.append(atom)
    return tuple(out)


def _undo_division(m: Monomial, c: int) -> tuple[Expr, int] | None:
    """Part of c * m, rewritten, and its coefficient: d * (x // d) is x - x % d where d >= 1."""
    for i, atom in enumerate(m):
        if not (isinstance(atom, Call) and atom.op == "floordiv"):
            continue
        x, d = atom.args
        if len(d.terms) != 1 or abs(c) < d.terms[0][1]:
            continue
        monomial, factor = d.terms[0]
        rest = list(m[:i] + m[i + 1 :])
        try:
            for other in monomial:
                rest.remove(other)
        except ValueError:
            continue
        if not nonneg(d - 1):  # x // 0 is 0
            continue
        times = abs(c) // factor * (1 if c > 0 else -1)
        return (x - mod(x, d)) * _make({tuple(rest): times}), times * factor
    return None


def _subst_atom(atom: Atom, mapping: Mapping[Sym, IntLike]) -> Expr:
    if isinstance(atom, Sym):
        return as_expr(mapping[atom]) if atom in mapping else symbol(atom)
    return CONSTRUCT[atom.op](*(a.subst(mapping) for a in atom.args))


# ---- division, min and max, truth values -----------------------------------------------------------


def _split_by(x: Expr, d: Expr) -> tuple[Expr, Expr]:
    """x = d * quotient + rest, by terms; d is one monomial with a positive coefficient."""
    quotient, rest = const(0), const(0)
    monomial, factor = d.terms[0]
    for m, c in x.terms:
        left = list(m)
        try:
            for atom in monomial:
                left.remove(atom)
        except ValueError:
            rest = rest + _make({m: c})
            continue
        quotient = quotient + _make({tuple(left): c // factor})
        rest = rest + _make({m: c % factor})
    return quotient, rest


def _can_split(d: Expr) -> bool:
    return len(d.terms) == 1 and d.terms[0][1] >= 1


def floordiv(x: IntLike, d: IntLike) -> Expr:
    """Floor division; x // 0 is 0."""
    x, d = as_expr(x), as_expr(d)
    if x.is_const and d.is_const:
        return const(x.value // d.value if d.value else 0)
    if d.is_const and d.value < 0:
        return floordiv(-x, -d)
    if d == 1 or d == 0:
        return x if d == 1 else const(0)
    quotient = const(0)
    if _can_split(d) and (d.is_const or nonneg(d - 1)):
        quotient, x = _split_by(x, d)
    if nonneg(x) and nonneg(d - 1 - x):
        return quotient
    if nonneg(-x - 1) and nonneg(x + d):
        return quotient - 1
    return quotient + _make({(Call("floordiv", (x, d)),): 1})


def mod(x: IntLike, d: IntLike) -> Expr:
    """Remainder with the divisor's sign; x % 0 is 0."""
    x, d = as_expr(x), as_expr(d)
    if x.is_const and d.is_const:
        return const(x.value % d.value if d.value else 0)
    if d == 1 or d == 0:
        return const(0)
    if _can_split(d) and (nonneg(d - 1)):
        _, x = _split_by(_open_mods(x, d), d)
    if nonneg(d - 1):
        if nonneg(x) and nonneg(d - 1 - x):
            return x
        if nonneg(-x - 1) and nonneg(x + d):
            return x + d
    return _make({(Call("mod", (x, d)),): 1})


def _open_mods(x: Expr, d: Expr) -> Expr:
    """(k * (y % d) + z) % d is (k * y + z) % d."""
    total = const(0)
    for m, c in x.terms:
        product_ = const(c)
        for atom in m:
            if isinstance(atom, Call) and atom.op == "mod" and atom.args[1] == d:
                product_ = product_ * atom.args[0]
            else:
                product_ = product_ * _make({(atom,): 1})
        total = total + product_
    return total


def minimum(a: IntLike, b: IntLike) -> Expr:
    a, b = as_expr(a), as_expr(b)
    if nonneg(b - a):
        return a
    if nonneg(a - b):
        return b
    a, b = sorted((a, b), key=lambda e: e.key)
    return _make({(Call("min", (a, b)),): 1})


def maximum(a: IntLike, b: IntLike) -> Expr:
    a, b = as_expr(a), as_expr(b)
    if nonneg(b - a):
        return b
    if nonneg(a - b):
        return a
    a, b = sorted((a, b), key=lambda e: e.key)
    return _make({(Call("max", (a, b)),): 1})


def _leading_negative(e: Expr) -> bool:
    return e.terms[0][1] < 0


def ge0(e: IntLike) -> Expr:
    """1 where e >= 0, else 0. Kept with a positive leading coefficient: not ge0(-e-1) is ge0(e)."""
    e = as_expr(e)
    if e.is_const:
        return const(int(e.value >= 0))
    if nonneg(e):
        return const(1)
    if nonneg(-e - 1):
        return const(0)
    if _leading_negative(e):
        return 1 - _make({(Call("ge0", (-e - 1,)),): 1})
    return _make({(Call("ge0", (e,)),): 1})


def eq0(e: IntLike) -> Expr:
    """1 where e == 0, else 0."""
    e = as_expr(e)
    if e.is_const:
        return const(int(e.value == 0))
    if nonneg(e - 1) or nonneg(-e - 1):
        return const(0)
    if _leading_negative(e):
        e = -e
    return _make({(Call("eq0", (e,)),): 1})


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
    """a where the condition (0 or 1) holds, else b."""
    c = as_expr(condition)
    return c * a + (1 - c) * b


CONSTRUCT: dict[str, Callable[..., Expr]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
    "ge0": ge0,
    "eq0": eq0,
}

EVALUATE: dict[str, Callable[..., int]] = {
    "floordiv": lambda x, d: x // d if d else 0,
    "mod": lambda x, d: x % d if d else 0,
    "min": min,
    "max": max,
    "ge0": lambda e: int(e >= 0),
    "eq0": lambda e: int(e == 0),
}

# ---- text -------------------------------------------------------------------------------------------

C_CALLS = {
    "floordiv": "spmd_floordiv({}, {})",
    "mod": "spmd_mod({}, {})",
    "min": "spmd_min({}, {})",
    "max": "spmd_max({}, {})",
    "ge0": "({} >= 0)",
    "eq0": "({} == 0)",
}

PYTHON_CALLS = {
    "floordiv": "floordiv({}, {})",
    "mod": "mod({}, {})",
    "min": "min({}, {})",
    "max": "max({}, {})",
    "ge0": "({} >= 0)",
    "eq0": "({} == 0)",
}

_PYTHON = {"floordiv": EVALUATE["floordiv"], "mod": EVALUATE["mod"], "min": min, "max": max}

TEXT_CALLS = {
    "floordiv": "({} // {})",
    "mod": "({} % {})",
    "min": "min({}, {})",
    "max": "max({}, {})",
    "ge0": "({} >= 0)",
    "eq0": "({} == 0)",
}


def _text(e: Expr, name: Callable[[Sym], str], calls: Mapping[str, str]) -> str:
    if not e.terms:
        return "0"
    out = ""
    for monomial, coefficient in e.terms:
        factors = [_atom_text(a, name, calls) for a in monomial]
        size = abs(coefficient)
        if size != 1 or not factors:
            factors.insert(0, str(size))
        sign = "-" if coefficient < 0 else "+"
        body = " * ".join(factors)
        out += f" {sign} {body}" if out else (f"-{body}" if sign == "-" else body)
    return out


def _atom_text(a: Atom, name: Callable[[Sym], str], calls: Mapping[str, str]) -> str:
    if isinstance(a, Sym):
        return name(a)
    args = []
    for arg in a.args:
        text = _text(arg, name, calls)
        simple = len(arg.terms) <= 1 and not text.startswith("-") and "*" not in text
        in_call = a.op in ("min", "max") or calls is C_CALLS
        args.append(text if simple or in_call or a.op in _TRUTH else f"({text})")
    return calls[a.op].format(*args)


# ---- proof ------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def nonneg(e: Expr) -> bool:
    """True when e >= 0 is proved for every value of its symbols within their bounds."""
    return _nonneg(e, 6)


def equal(a: IntLike, b: IntLike) -> bool:
    """True when a == b is proved."""
    return as_expr(a) - b == 0


def _atom_bounds(a: Atom) -> tuple[list[Expr], list[Expr]]:
    """Lower and upper bounds of one atom, as expressions in other atoms."""
    if isinstance(a, Sym):
        return ([a.lo] if a.lo is not None else []), ([a.hi] if a.hi is not None else [])
    if a.op in _TRUTH:
        return [const(0)], [const(1)]
    x, y = a.args
    if a.op == "min":
        lower = [const(0)] if nonneg(x) and nonneg(y) else []
        return lower, [x, y]
    if a.op == "max":
        return [x, y], []
    if not nonneg(y - 1):
        return [], []
    if a.op == "mod":
        return [const(0)], [y - 1, *([x] if nonneg(x) else [])]
    upper = [x] if nonneg(x) else []
    if y.is_const and nonneg(x):
        upper = []
    return ([const(0)] if nonneg(x) else []), upper


_ORDER = {"var": 1, "counter": 2, "coord": 3, "scalar": 4, "size": 5}


def _rank(a: Atom) -> int:
    return 0 if isinstance(a, Call) else _ORDER[a.kind]


def _nonneg(e: Expr, depth: int) -> bool:
    if e.is_const:
        return e.value >= 0
    atoms = sorted(e.atoms(), key=lambda a: (_rank(a), a.key))
    if all(c >= 0 for _, c in e.terms) and all(_atom_nonneg(a) for a in atoms):
        return True
    if depth == 0:
        return False
    for atom in atoms:
        slope, rest = _linear_in(e, atom)
        if slope is None:
            continue
        lower, upper = _atom_bounds(atom)
        if _nonneg(slope, depth - 1):
            bounds = lower
        elif _nonneg(-slope, depth - 1):
            bounds = upper
        else:
            continue
        if any(_nonneg(slope * b + rest, depth - 1) for b in bounds):
            return True
    return _nonneg_from_one(e)


def _atom_nonneg(a: Atom) -> bool:
    if isinstance(a, Sym):
        return a.lo is not None and (a.lo.is_const and a.lo.value >= 0)
    return any(b.is_const and b.value >= 0 for b in _atom_bounds(a)[0])


def _linear_in(e: Expr, atom: Atom) -> tuple[Expr | None, Expr]:
    """e = slope * atom + rest; slope is None where the atom stands squared."""
    slope: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in e.terms:
        count = m.count(atom)
        if count > 1:
            return None, e
        if count:
            slope[tuple(a for a in m if a != atom)] = c
        else:
            rest[m] = c
    return _make(slope), _make(rest)


def _nonneg_from_one(e: Expr) -> bool:
    """Write every symbol that is at least 1 as 1 + m, m >= 0: enough if no coefficient is negative."""
    total = const(0)
    for m, c in e.terms:
        term = const(c)
        for atom in m:
            one = isinstance(atom, Sym) and atom.lo is not None and atom.lo == 1
            term = term * (_make({(atom,): 1, (): 1}) if one else _make({(atom,): 1}))
        total = total + term
    return all(c >= 0 for _, c in total.terms) and all(
        _atom_nonneg(a) for a in total.atoms() if not isinstance(a, Sym) or a.lo != 1
    )
