"""Write an Expr: for people, in C, as a Python function, and in prefix form for manifests.

A polynomial that chooses (c * a + (1 - c) * b) is written as a choice, 1 - (i - n + 1 >= 0) as
`i < n - 1`.
Always holds: C and Python give the value of the Expr in 64 bits; every operand stands in
parentheses where its operator could bind less tightly than what is around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from codegen.symbolic.block_laws import written
from codegen.symbolic.bounds import nonneg
from codegen.symbolic.meaning import OPERATIONS, rows_of, value
from codegen.symbolic.terms import (
    KINDS,
    ONE,
    TRUTH,
    ZERO,
    Atom,
    Call,
    Expr,
    Monomial,
    Sym,
    linear_in,
    times,
)

Name = Callable[[Sym], str]


class Binds(IntEnum):
    """The precedence of an operator. The operators & | ^ and ! bind less tightly here than in C,
    since C compilers warn where they stand beside others without parentheses."""

    CHOICE = 0
    OR = 1
    AND = 2
    BITS = 3
    NOT = 4
    COMPARE = 5
    SUM = 6
    PRODUCT = 7
    UNARY = 8
    ATOM = 9


Text = tuple[str, Binds]


def within(text: Text, least: Binds) -> str:
    """Return a text, in parentheses if it binds less tightly than `least`."""
    return text[0] if text[1] >= least else f"({text[0]})"



@dataclass(frozen=True)
class Style:
    """Spellings of one language. {0} {1} {2} are operands, already in parentheses where needed."""

    choice: str
    and_: str
    or_: str
    infix: Mapping[str, str]  # operations that are operators
    call: str  # others


_TEXT = Style("{1} if {0} else {2}", "and", "or", {"floordiv": "//", "mod": "%"}, "{}")
_C = Style("{0} ? {1} : {2}", "&&", "||", {}, "spmd_{}")


class _Writer:
    def __init__(self, style: Style, name: Name) -> None:
        self.style = style
        self.name = name
        self.known: dict[Expr, Text] = {}  # Exprs share their parts

    def expr(self, e: Expr) -> Text:
        text = self.known.get(e)
        if text is None:
            text = self.known[e] = self._text(e)
        return text

    def _text(self, e: Expr) -> Text:
        e = written(e)
        truth = _is_truth(e)
        if truth and not e.is_const:
            return self.condition(e)
        split = _choice(e)
        if split is None:
            return self.sum(e)
        call, yes, no = split
        test = within(self.condition(_literal(call)), Binds.OR)
        a, b = within(self.expr(yes), Binds.COMPARE), within(self.expr(no), Binds.COMPARE)
        if len(call.args[0].terms) and _prefers_else(call, yes, no):
            test = within(self.condition(ONE - _literal(call)), Binds.OR)
            a, b = b, a
        return self.style.choice.format(test, a, b), Binds.CHOICE

    def condition(self, e: Expr) -> Text:
        """Return an Expr that is 0 or 1 as a comparison, or as a combination of comparisons."""
        if e.is_const:
            return str(e.value), Binds.ATOM
        positive, negative = _as_literal(e)
        if positive is not None:
            return self.comparison(positive, False)
        if negative is not None:
            return self.comparison(negative, True)
        for call in _outer_truths(e):
            yes, no = _when(e, call, True), _when(e, call, False)
            both = {ONE: self.style.or_, ZERO: self.style.and_}
            if no is ZERO or yes is ONE:  # c and yes, or c or no
                word = both[ZERO if no is ZERO else ONE]
                other = yes if no is ZERO else no
                if _is_truth(other):
                    return self.joined(word, _literal(call), other)
            if yes is ZERO or no is ONE:  # not c and no, or not c or yes
                word = both[ZERO if yes is ZERO else ONE]
                other = no if yes is ZERO else yes
                if _is_truth(other):
                    return self.joined(word, ONE - _literal(call), other)
        return self.sum(e)

    def joined(self, word: str, a: Expr, b: Expr) -> Text:
        level = Binds.AND if word == self.style.and_ else Binds.OR
        # C compilers warn of && inside || without parentheses: comparisons only stand bare
        left, right = self.condition(a), self.condition(b)
        if left[1] == level or right[1] == level:  # a chain of one word needs none
            inner = level
        else:
            inner = Binds.COMPARE
        return f"{within(left, inner)} {word} {within(right, inner)}", level

    def comparison(self, call: Call, negate: bool) -> Text:
        left, right, shift = _sides(call.args[0])
        if call.op == "eq0":
            sign, right = ("!=" if negate else "=="), right - shift
        elif _kind(right) < _kind(left):  # what moves most stands on the left: `i < n - 1`
            sign, by = self.order(call, shift + 1, ("<", ">="), ("<=", ">"), negate)
            left, right = right, left + by
        else:
            sign, by = self.order(call, -shift, (">=", "<"), (">", "<="), negate)
            right = right + by
        a, b = within(self.expr(left), Binds.SUM), within(self.expr(right), Binds.SUM)
        return f"{a} {sign} {b}", Binds.COMPARE

    def order(
        self, call: Call, by: int, sign: tuple[str, str], other: tuple[str, str], negate: bool
    ) -> tuple[str, int]:
        """Return the comparison sign for a truth value ge0(e), or its negation, and the number to
        add to its right side. Bounds of e give the simplest form, such as `i == 0`. sign: the signs
        of the comparison and its negation; other: those to use when 1 is subtracted from the right
        side."""
        e = call.args[0]
        if nonneg(e + 1):  # lowest is -1: `i > 0`, `i == 0`; `i < n`, `i == n`
            if sign[0] == ">=":
                return ("==" if negate else ">"), by - 1
            return ("==", by) if negate else ("<", by)
        if nonneg(-e):  # highest is 0: `i == n - 1`, `i < n - 1`
            if sign[0] == ">=":
                return ("<" if negate else "=="), by
            return (">", by - 1) if negate else ("==", by - 1)
        if by == 1 and e.terms and any(c < 0 for m, c in e.terms if m):
            return other[negate], by - 1
        return sign[negate], by

    def sum(self, e: Expr) -> Text:
        if not e.terms:
            return "0", Binds.ATOM
        terms, negated = _unfolded(e)
        if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
            return self.atom(terms[0][0][0], terms[0][0] in negated)
        out = ""
        for monomial, coefficient in terms:
            size = abs(coefficient)
            alone = len(monomial) == 1 and coefficient == 1
            level = Binds.PRODUCT if alone else Binds.ATOM
            turned = monomial in negated
            factors = [within(self.atom(a, turned), level) for a in monomial]
            least = coefficient == -(2**63) and self.style is _C  # C has no literal of it
            if size != 1 or not factors:
                factors.insert(0, "INT64_MIN" if least else str(size))
            sign = "-" if coefficient < 0 and not least else "+"
            body = " * ".join(factors)
            if out:
                out += f" {sign} {body}"
            else:
                out = body if sign == "+" else f"-{body}"
        if len(terms) > 1 or out.startswith("-"):
            return out, Binds.SUM
        return out, Binds.PRODUCT if len(factors) > 1 else Binds.ATOM

    def atom(self, a: Atom, negate: bool = False) -> Text:
        if isinstance(a, Sym):
            return self.name(a), Binds.ATOM
        if a.op in TRUTH:
            return self.comparison(a, negate)
        args = [self.expr(arg) for arg in a.args]
        if sign := self.style.infix.get(a.op):
            return f" {sign} ".join(within(arg, Binds.ATOM) for arg in args), Binds.PRODUCT
        if a.op == "begin" and a.args[0] == 1 and self.style is _TEXT:  # the longest block
            return f"ceil({' / '.join(within(arg, Binds.ATOM) for arg in args[1:])})", Binds.ATOM
        if a.op == "table" and self.style is _TEXT:
            inside = ", ".join(text for text, _ in args[1:])
            return f"({inside})[{args[0][0]}]", Binds.ATOM
        return f"{self.style.call.format(a.op)}({', '.join(text for text, _ in args)})", Binds.ATOM


def _literal(call: Call) -> Expr:
    return Expr((((call,), 1),))


def _as_literal(e: Expr) -> tuple[Call | None, Call | None]:
    """Return (c, None) for e = c, (None, c) for e = 1 - c."""
    for terms, negate in ((e.terms, False), ((ONE - e).terms, True)):
        if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
            call = terms[0][0][0]
            if isinstance(call, Call) and call.op in TRUTH:
                return (None, call) if negate else (call, None)
    return None, None


def _outer_truths(e: Expr) -> list[Call]:
    truths = {a for a in e.atoms() if isinstance(a, Call) and a.op in TRUTH}
    return sorted(truths, key=lambda a: a.order)


def _is_truth(e: Expr, depth: int = 8) -> bool:
    """Return whether e is made of truth values only and is 0 or 1 for all of theirs."""
    if e.is_const:
        return e.value in (0, 1)
    truths = _outer_truths(e)
    if len(truths) > depth or any(a not in truths for a in e.atoms()):
        return False
    return all(_is_truth(_when(e, truths[0], v), depth - 1) for v in (True, False))


def _when(e: Expr, call: Call, holds: bool) -> Expr:
    """Return e, simplified where a truth value is 1 (`holds`) or 0."""
    if holds:
        slope, rest = linear_in(e * _literal(call), call)
        assert slope is not None
        return slope + rest
    kept = []
    for m, c in e.terms:
        if call not in m and not any(times((a,), (call,)) == (a,) for a in m if a in _truths(m)):
            kept.append((m, c))
    return Expr(tuple(kept))


def _truths(monomial: Iterable[Atom]) -> list[Call]:
    return [a for a in monomial if isinstance(a, Call) and a.op in TRUTH]


def _choice(e: Expr) -> tuple[Call, Expr, Expr] | None:
    """Return (c, a, b) of c * a + (1 - c) * b where that reads better than the sum."""
    for call in _outer_truths(e):
        slope, rest = linear_in(e, call)
        if slope is not None and not slope.is_const:
            return call, _when(e, call, True), _when(e, call, False)
    return None


def _prefers_else(call: Call, yes: Expr, no: Expr) -> bool:
    """Return whether a choice is written with the negated condition, as `a if i < n - 1 else b`, so
    that the longer value comes first."""
    return call.op == "ge0" and len(no.terms) > len(yes.terms)


def _unfolded(e: Expr) -> tuple[list[tuple[Monomial, int]], set[Monomial]]:
    """Return the terms of e in the order of writing, and the truth values c among them for which -c
    + 1 is written as a negation.

    Positive terms come first; within each sign, terms with loop variables follow those without, and
    comparisons come last."""
    truths = _outer_truths(e)
    left = sum(c for m, c in e.terms if not m)
    terms: list[tuple[Monomial, int]] = []
    negated: set[Monomial] = set()
    for m, c in e.terms:
        if len(m) == 1 and c < 0 and c + left >= 0 and m[0] in truths:
            left += c
            terms.append((m, -c))
            negated.add(m)
        elif m:
            terms.append((m, c))
    terms.sort(key=lambda t: (t[1] < 0, len(t[0]) == 1 and t[0][0] in truths, _moves(t[0])))
    if left > 0 and terms and terms[0][1] < 0:
        return [((), left), *terms], negated
    return terms + [((), left)] * bool(left), negated


def _moves(monomial: Monomial) -> bool:
    return any(isinstance(a, Sym) and a.kind == "var" for a in monomial)


def _kind(e: Expr) -> int:
    """Return the position in KINDS of the fastest changing kind of symbol in e; len(KINDS) if it
    has none."""
    return min((KINDS.index(s.kind) for s in e.symbols()), default=len(KINDS))


def _sides(e: Expr) -> tuple[Expr, Expr, int]:
    """Return (left, right, constant) of e = left - right + constant, without negative terms."""
    left = Expr(tuple((m, c) for m, c in e.terms if m and c > 0))
    right = Expr(tuple((m, -c) for m, c in e.terms if m and c < 0))
    return left, right, sum(c for m, c in e.terms if not m)


def text(e: Expr, name: Name) -> str:
    """Return an Expr as text for people."""
    return _Writer(_TEXT, name).expr(e)[0]


def c_text(e: Expr, name: Name) -> str:
    """Return C source of an int64_t, in parentheses where it is not a sum, a product or an atom."""
    return within(c_operand(e, name), Binds.SUM)


def c_operand(e: Expr, name: Name) -> Text:
    """Return the C source of e and its precedence, for a caller that adds parentheses itself."""
    return _Writer(_C, name).expr(e)



# ---- as a Python function, in prefix form --------------------------------------------------------


def function(e: Expr, names: Iterable[str]) -> Callable[..., int]:
    """Return a Python function of the named symbols' values, in that order; fast, for enumeration.

    Every call in e is evaluated once, however often it occurs."""
    spelled = {n: f"v{k}" for k, n in enumerate(names)}
    lines = [f"def compiled({', '.join(spelled.values())}):"]

    def spell(op: str, args: Sequence[Any]) -> str:
        if op in OPERATIONS:
            lines.append(f" t{len(lines)} = {op}({', '.join(args)})")
            return f"t{len(lines) - 1}"
        return {"+": " + ", "*": "*"}.get(op, "").join(map(str, args))

    lines.append(f" return {value(rows_of(to_json(e)), spelled, spell)}")
    space: dict[str, Any] = dict(OPERATIONS)
    exec("\n".join(lines), space)
    compiled: Callable[..., int] = space["compiled"]
    return compiled


@cache
def to_json(e: Expr) -> Any:
    """Return the prefix form of e: an integer, a symbol's name, or [op, ...] with ops + * and those
    of calls.

    The result is cached: callers must not modify it."""
    terms = [_term_json(m, c) for m, c in written(e).terms or (((), 0),)]
    return terms[0] if len(terms) == 1 else ["+", *terms]


def _term_json(monomial: Monomial, coefficient: int) -> Any:
    factors: list[Any] = [
        a.name if isinstance(a, Sym) else [a.op, *map(to_json, a.args)] for a in monomial
    ]
    if coefficient != 1 or not factors:
        factors.insert(0, coefficient)
    return factors[0] if len(factors) == 1 else ["*", *factors]

