"""Index formulas, evaluated for many values of their symbols at once.

In: formulas in prefix form, what their names stand for. Out: numbers of terms, which are rows that
sums and products of numbers are taken out of; their values at many points, bounds over many ranges.
Always holds: equal terms have one number; values are exact: in 64 bits only where all steps fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add, mul
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.image.manifest import bounded, too_large
from codegen.symbolic.meaning import MANY, OPERATIONS, evaluate, integers, rows_of, value

if TYPE_CHECKING:
    from codegen.symbolic.meaning import Row

Array = Any  # an array, or one Python integer for all points
Range = tuple[Array, Array]  # least and most value; the same object twice where it is one value
Digits = tuple[tuple[int, int], ...]  # terms, and terms of sizes: a position along several axes
LEAVES = ("number", "symbol")
MOST = 1 << 62  # what 64 bits hold, with room for one more step
# Beyond these a formula is no image's of ours: work on it would have no bound.
MOST_PARTS, MOST_TERMS = 1 << 12, 1 << 20


class Terms:
    """A table of simplified formulas: row number k is the term k, and `make` adds a row. The args
    of a symbol are its name, its least and its greatest value."""

    def __init__(self) -> None:
        self.table: list[Row] = []
        self.numbers: dict[Row, int] = {}
        self.fixed: dict[int, int] = {}  # of every number: its term
        self.within: dict[int, tuple[int, int]] = {}  # of every symbol: its least and most value
        self.size: list[int] = []  # of every term: no value, and no step to it, is larger than that
        self._parts: dict[tuple[int, ...], dict[int, list[int]]] = {}

    # ---- making ------------------------------------------------------------------------------

    def row(self, op: str, *args: Any) -> int:
        row = self.numbers.get((op, args))
        if row is None:
            if len(args) > MOST_PARTS or len(self.table) > MOST_TERMS:
                raise too_large(f"{MOST_PARTS} parts in one, {MOST_TERMS} terms in all",
                                f"{len(args)} parts, {len(self.table)} terms")
            row = self.numbers[op, args] = len(self.table)
            self.table.append((op, args))
            parts = args if op in LEAVES else [self.size[a] for a in args]
            self.size.append(bounded(most(op, parts)))
        return row

    def number(self, value: int) -> int:
        term = self.fixed.get(value)
        if term is None:
            term = self.fixed[value] = self.row("number", int(value))
        return term

    def symbol(self, name: str, least: int, most: int) -> int:
        if least == most:
            return self.number(least)
        term = self.row("symbol", name, least, most)
        self.within[term] = (least, most)
        return term

    def value(self, term: int) -> int | None:
        """Return the number that a term always has; None if it is not a constant."""
        op, args = self.table[term]
        return args[0] if op == "number" else None

    def read(self, e: Any, names: Mapping[str, int | Digits]) -> int:
        """Return the term of a formula. names: the terms of its symbols. Raise KeyError for other
        symbols."""
        return self._one(value(rows_of(e), names, self._domain))

    def _domain(self, op: str, parts: Sequence[int | Digits]) -> int | Digits:
        """Compute an operation on terms, and on positions that are given by a digit for each
        axis."""
        if op == "number":
            return self.number(*parts)  # type: ignore[arg-type]
        if tuple in map(type, parts):
            first, parts = parts[0], [self._one(p) for p in parts]
            if op in ("floordiv", "mod") and isinstance(first, tuple):
                if split := self._split(first, parts[1]):
                    domain: int | Digits = split[op == "mod"]
                    return domain
        return self.make(op, *parts)  # type: ignore[arg-type]

    def _one(self, domain: int | Digits) -> int:
        return domain if isinstance(domain, int) else self.joined(domain)

    def _split(self, digits: Digits, divisor: Any) -> tuple[Any, Any] | None:
        """Return quotient and remainder of a position, if each is a position along some of the
        axes: if the divisor is the product of the last axes' sizes. Else return None."""
        size = self.number(1)
        for k in range(len(digits), 0, -1):
            size = self.make("*", size, digits[k - 1][1])
            if size == divisor:
                return tuple(d[0][0] if len(d) == 1 else d or self.number(0)
                             for d in (digits[: k - 1], digits[k - 1 :]))  # type: ignore
        return None

    def joined(self, digits: Digits) -> int:
        """Return the term of a position that is given by a digit for each axis."""
        total = self.number(0)
        for term, size in digits:
            total = self.make("+", self.make("*", total, size), term)
        return total

    def make(self, op: str, *parts: int) -> int:
        if op == "+":
            return self._sum(parts)
        if op == "*":
            return self._product(parts)
        if op in ("min", "max"):
            return self._extreme(op, parts)
        if op == "begin":
            each, left = (self.make(o, *parts[1:]) for o in ("floordiv", "mod"))
            return self.make("+", self.make("*", parts[0], each), self.make("min", parts[0], left))
        if op == "eq0":
            parts = (self._unsigned(parts[0]),)
        known = [self.value(p) for p in parts]
        if all(k is not None for k in known):
            return self.number(OPERATIONS[op](*known))
        if op in ("floordiv", "mod") and known[1] in (0, 1):
            return parts[0] if op == "floordiv" and known[1] else self.number(0)
        return self.row(op, *parts)

    def _flat(self, op: str, parts: Iterable[int]) -> list[int]:
        flat: list[int] = []
        for part in parts:
            inner, args = self.table[part]
            if inner == op:
                flat += args
            else:
                flat.append(part)
        return flat

    def _sum(self, parts: Sequence[int]) -> int:
        """Return the sum of terms. Equal terms are collected, so that a term minus itself
        vanishes."""
        times: dict[int, int] = {}
        for part in self._flat("+", parts):
            rest, factor = self._factor(part)
            times[rest] = times.get(rest, 0) + factor
        fixed = times.pop(-1, 0)
        terms = [self._product((self.number(k), part)) for part, k in times.items() if k]
        terms += [self.number(fixed)] if fixed or not terms else []
        return terms[0] if len(terms) == 1 else self.row("+", *sorted(terms))

    def _unsigned(self, term: int) -> int:
        """Return one of the term and its negative: the same one for both."""
        op, args = self.table[term]
        factors = [self._factor(a) for a in (args if op == "+" else (term,))]
        _, first = min(factors)
        return self._product((self.number(-1), term)) if first < 0 else term

    def _factor(self, term: int) -> tuple[int, int]:
        """Return (term, number) of a term that is a product with a number; the first is -1 if it is
        a number itself."""
        op, args = self.table[term]
        if op == "number":
            return -1, args[0]
        factor = self.value(args[0]) if op == "*" else None
        if factor is None:
            return term, 1
        return args[1] if len(args) == 2 else self.row("*", *args[1:]), factor

    def _product(self, parts: Sequence[int]) -> int:
        """Return the product of terms; a number is its first factor."""
        flat, fixed, rest = self._flat("*", parts), 1, []
        for part in flat:
            value = self.value(part)
            if value is None:
                rest.append(part)
            else:
                fixed *= value
        if not fixed or not rest:
            return self.number(fixed)
        if fixed != 1 and len(rest) == 1 and self.table[rest[0]][0] == "+":
            factor = self.number(fixed)
            return self._sum([self._product((factor, a)) for a in self.table[rest[0]][1]])
        rest = ([self.number(fixed)] if fixed != 1 else []) + sorted(rest)
        return rest[0] if len(rest) == 1 else self.row("*", *rest)

    def _extreme(self, op: str, parts: Sequence[int]) -> int:
        flat = set(self._flat(op, parts))
        if self.number(op == "max") in flat and all(map(self._is_truth, flat)):
            return self.number(op == "max")
        known = [v for p in flat if (v := self.value(p)) is not None]
        rest = sorted(p for p in flat if self.value(p) is None)
        rest += [self.number(min(known) if op == "min" else max(known))] if known else []
        return rest[0] if len(rest) == 1 else self.row(op, *rest)

    # ---- truths: 0 or 1 ----------------------------------------------------------------------

    def _is_truth(self, term: int) -> bool:
        op, args = self.table[term]
        return op in ("ge0", "eq0") or (op == "number" and args[0] in (0, 1)) or (
            op in ("min", "max") and all(map(self._is_truth, args)))

    def at_least(self, a: int, b: int) -> int:
        return self.make("ge0", self.make("+", a, self.make("*", self.number(-1), b)))

    def less(self, a: int, b: int) -> int:
        return self.at_least(b, self.make("+", a, self.number(1)))

    def differ(self, a: int, b: int) -> int:
        return self.number(0) if a == b else self.any(self.less(a, b), self.less(b, a))

    def all(self, *truths: int) -> int:
        left = [t for t in truths if self.value(t) != 1]
        return self._extreme("min", left) if left else self.number(1)

    def any(self, *truths: int) -> int:
        left = [t for t in truths if self.value(t) != 0]
        return self._extreme("max", left) if left else self.number(0)

    def negated(self, truth: int) -> int:
        return self.make("eq0", truth)

    # ---- evaluating --------------------------------------------------------------------------

    def _arguments(self, term: int) -> tuple[int, ...]:
        op, args = self.table[term]
        return () if op in LEAVES else args

    def parts(self, terms: tuple[int, ...]) -> dict[int, list[int]]:
        """Return, in order of computing, each term on which these depend, with the terms that no
        later one needs."""
        known = self._parts.get(terms)
        if known is None:
            needed, left = set[int](), list(terms)
            while left:
                term = left.pop()
                if term not in needed:
                    needed.add(term)
                    left += self._arguments(term)
            ends, seen = dict[int, list[int]](), set(terms)
            for term in sorted(needed, reverse=True):
                ends[term] = sorted(set(self._arguments(term)) - seen)
                seen.update(ends[term])
            known = self._parts[terms] = dict(reversed(ends.items()))
        return known

    def symbols(self, *terms: int) -> set[int]:
        return {t for t in self.parts(terms) if self.table[t][0] == "symbol"}

    def dtype(self, *terms: int) -> Any:
        """Return the dtype in which terms are evaluated: int64, or object where values may exceed
        64 bits."""
        if all(self.size[part] < MOST for part in self.parts(terms)):
            return np.int64
        exact = {}
        for s in self.symbols(*terms):
            ends = np.array(self.within[s], dtype=object)
            exact[s] = (ends[:1], ends[1:])
        bounds = self.ranges(terms, exact)
        size = {t: max(1, *(abs(int(np.ravel(b)[0])) for b in bounds[t])) for t in bounds}
        for term, largest in size.items():
            op, args = self.table[term]
            steps = integers(op, [size[a] for a in args]) if op in MANY else largest  # in any order
            if steps >= MOST:
                return object
        return np.int64

    def exact(self, terms: tuple[int, ...], point: Mapping[int, int]) -> list[int]:
        """Return the values of these terms at one point, as Python's integers."""
        values = evaluate(self.table, self._named(point), integers, self.parts(terms))
        return [values[t] for t in terms]

    def points(self, terms: tuple[int, ...], symbols: Mapping[int, Array]) -> dict[int, Array]:
        """Return the values of these terms at many points. An intermediate value is dropped after
        its last use, so that the values in use stay in the cache."""
        parts = self.parts(terms)
        return evaluate(self.table, self._named(symbols), vectors, parts, parts)

    def ranges(
        self, terms: tuple[int, ...], symbols: Mapping[int, Range]
    ) -> dict[int, Range]:
        """Return bounds of these terms and of the terms in them, where every symbol takes each
        value of its range. They are exact if no symbol occurs twice."""
        return evaluate(self.table, self._named(symbols), ranges, self.parts(terms))

    def _named(self, symbols: Mapping[int, Any]) -> dict[str, Any]:
        return {self.table[s][1][0]: values for s, values in symbols.items()}


# ---- domains -------------------------------------------------------------------------------------


def most(op: str, args: Sequence[Any]) -> int:
    """Compute an operation on upper bounds of magnitude: the result bounds the operation's value
    and every intermediate result."""
    if op in LEAVES:
        return max(abs(int(a)) for a in args if not isinstance(a, str))
    if op in ("ge0", "eq0"):
        return 1
    if op in MANY:
        return integers(op, args)
    largest: int = args[op == "mod"] if op in ("floordiv", "mod") else max(args)
    return max(largest, 1)


def _number(value: int) -> Array:
    """Return an integer as NumPy takes it; one beyond 64 bits as an array of objects."""
    return value if abs(value) < MOST else np.array([value], dtype=object)


def vectors(op: str, args: Sequence[Array]) -> Array:
    """Compute an operation in the domain of arrays of integers."""
    if op in _MANY:
        return reduce(_MANY[op], args)
    if op == "number":
        return _number(args[0])
    if op in ("ge0", "eq0"):
        truth = args[0] >= 0 if op == "ge0" else args[0] == 0
        return truth.astype(args[0].dtype)
    if op == "table":
        values, entries = np.asarray(args[0]), np.array([*args[1:], 0])
        inside = (values >= 0) & (values < len(entries) - 1)
        return entries[np.where(inside, values, -1).astype(np.int64)]
    a, b = args
    if isinstance(b, int):
        quotient = a // b if b else a  # NumPy divides by one number much faster than it does %
        return quotient if op == "floordiv" else a - quotient * b
    none = b == 0
    safe = np.where(none, 1, b)
    return np.where(none, 0, a // safe if op == "floordiv" else a % safe)


_MANY: dict[str, Any] = {"+": add, "*": mul, "min": np.minimum, "max": np.maximum}


def ranges(op: str, args: Sequence[Any]) -> Range:
    """Compute an operation in the domain of ranges: arrays of least values and of most ones."""
    if op == "number" or all(least is most for least, most in args):
        exact = vectors(op, args if op == "number" else [least for least, _ in args])
        return exact, exact
    if op in ("+", "min", "max"):
        low, high = (reduce(_MANY[op], ends) for ends in zip(*args, strict=True))
        return low, high
    if op == "*":
        product: Range = reduce(_times, args)
        return product
    low, high = args[0]
    if op == "ge0":
        return _truth(low >= 0, low), _truth(high >= 0, high)
    if op == "eq0":
        return _truth((low == 0) & (high == 0), low), _truth((low <= 0) & (high >= 0), high)
    if op == "table":
        entries = [least for least, _ in args[1:]]
        here, exact = vectors(op, [low, *entries]), low == high
        return np.where(exact, here, min(0, *entries)), np.where(exact, here, max(0, *entries))
    return _quotient(op, low, high, *args[1])


def _truth(values: Any, like: Array) -> Array:
    return np.asarray(values).astype(like.dtype if isinstance(like, np.ndarray) else np.int64)


def _times(a: Range, b: Range) -> Range:
    if b[0] is b[1]:
        a, b = b, a
    if a[0] is a[1]:
        ends = [a[0] * b[0], a[0] * b[1]]
        if isinstance(a[0], int):
            return (ends[0], ends[1]) if a[0] >= 0 else (ends[1], ends[0])
    else:
        ends = [x * y for x in a for y in b]
    low = high = ends[0]
    for end in ends[1:]:
        low, high = np.minimum(low, end), np.maximum(high, end)
    return low, high


def _quotient(op: str, low: Array, high: Array, least: Array, most: Array) -> Range:
    """Return bounds of floordiv or mod: narrow ones for positive divisors, as in formulas of
    blocks, else bounds that always hold."""
    if least is most and isinstance(least, int) and least > 0:
        first, last = low // least, high // least
        if op == "floordiv":
            return first, last
        same = first == last
        return (np.where(same, low - first * least, 0),
                np.where(same, high - last * least, least - 1))
    positive = least > 0
    if op == "floordiv":
        size = np.maximum(abs(low), abs(high))
        small, large = np.maximum(least, 1), np.maximum(most, 1)
        down = np.minimum(low // small, low // large)
        up = np.maximum(high // small, high // large)
        return np.where(positive, down, -size), np.where(positive, up, size)
    size = np.maximum(abs(least), abs(most))
    return np.where(positive, 0, -size), np.where(positive, most - 1, size)
