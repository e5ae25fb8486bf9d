"""Schedules as formulas: evaluated for the sizes asked, and proved for all sizes where they can be.

In: a function of stage s of p, microbatch k of m that returns the tick of each kind of action. Out:
its ticks for one step; and whether the prover of symbolic integers shows that it is legal for every
p and m. A False of the prover says nothing: then the sizes asked are all that is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from operator import index
from typing import Any

from codegen.errors import UsageError
from codegen.symbolic.expr import Expr, Sym, const, nonneg, symbol
from spmd.schedules.actions import KINDS, Ticks, gradient_kind, needs
from spmd.schedules.built_in import Formulas

MOST_TICKS = 100_000  # of a step: each is a row of tables
EXAMPLE = 'lambda s, p, k, m: {"F": 2*k + s, "B": 2*(k + p) - 1 - s}'


class UnknownInteger:
    """An integer that a formula may add, multiply and divide, and not compare or look up.

    A symbolic integer is equal to another one if both are written alike: a formula that asks
    would take one branch for all values, and what is proved of that branch would not hold.
    """

    __slots__ = ("expr",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __bool__(self) -> bool:
        raise TypeError("it is not known")

    def __eq__(self, other: object) -> bool:
        raise TypeError("it is not known")

    def __neg__(self) -> UnknownInteger:
        return UnknownInteger(-self.expr)

    def __add__(self, other: Any) -> UnknownInteger:
        return UnknownInteger(self.expr + _expr(other))

    def __mul__(self, other: Any) -> UnknownInteger:
        return UnknownInteger(self.expr * _expr(other))

    def __sub__(self, other: Any) -> UnknownInteger:
        return UnknownInteger(self.expr - _expr(other))

    def __rsub__(self, other: Any) -> UnknownInteger:
        return UnknownInteger(_expr(other) - self.expr)

    def __floordiv__(self, other: Any) -> UnknownInteger:
        return UnknownInteger(self.expr // _expr(other))

    def __mod__(self, other: Any) -> UnknownInteger:
        return UnknownInteger(self.expr % _expr(other))

    __radd__, __rmul__ = __add__, __mul__


def _expr(value: Any) -> Expr:
    return value.expr if isinstance(value, UnknownInteger) else const(index(value))


def where_written(formulas: Formulas) -> str:
    """Return file and line of a function, for messages; "" where it has none."""
    code = getattr(formulas, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}: " if code else ""


def ticks_of_formulas(formulas: Formulas, p: int, m: int, first: int = 0) -> Ticks:
    """Return the ticks of microbatches first, …, first + m - 1; UsageError where there are none."""
    rows: dict[str, list[list[int]]] = {}
    most = MOST_TICKS * (2 if first else 1)
    for s in range(p):
        for k in range(first, first + m):
            try:
                cells = {kind: index(tick) for kind, tick in formulas(s, p, k, m).items()}
            except Exception as error:
                raise UsageError(
                    f"{where_written(formulas)}no ticks for s={s}, p={p}, k={k}, m={m}: "
                    f"{type(error).__name__}: {error}",
                    expected="a dict of integers", remedy=EXAMPLE) from error
            if not {"F", "B"} <= set(cells) <= set(KINDS) or not (
                    0 <= min(cells.values()) <= max(cells.values()) < most):
                raise UsageError(
                    f"{where_written(formulas)}ticks {cells} for s={s}, p={p}, k={k}, m={m}",
                    expected=f"ticks from 0 to {most - 1}, of F and B, and of W and U where you "
                    "want them",
                    remedy=EXAMPLE)
            for kind, tick in cells.items():
                rows.setdefault(kind, [[] for _ in range(p)])[s].append(tick)
    if any(len(row) != m for row_of in rows.values() for row in row_of):
        raise UsageError(
            f"{where_written(formulas)}some stages or microbatches lack W or U that others have",
            expected="the same kinds of actions for all s and k", remedy=EXAMPLE)
    return {kind: rows[kind] for kind in KINDS if kind in rows}


def period_of_formulas(formulas: Formulas, ticks: Ticks, p: int, m: int) -> int | None:
    """Return how many ticks later a microbatch of the next step does the same; None with a flush.

    UsageError where microbatches of the next step do not all follow after as many ticks.
    """
    if "U" not in ticks:
        return None
    following = ticks_of_formulas(formulas, p, m, m)
    distances = {b - a for kind in ticks for before, after in zip(ticks[kind], following[kind])
                 for a, b in zip(before, after)}
    if len(distances) != 1 or min(distances) < 1:
        raise UsageError(
            f"{where_written(formulas)}the next {m} microbatches follow after "
            f"{', '.join(map(str, sorted(distances)))} ticks",
            expected="the same number for all actions: a schedule with U goes on without end",
            remedy="no U, for a schedule that flushes; or ticks that grow with k alike everywhere")
    return distances.pop()


def proved(formulas: Formulas, kept: Callable[[Any, Any, Any], Any] | None = None) -> bool:
    """Return whether the schedule is proved legal for all numbers of stages and microbatches.

    kept: a formula for the slots of each stage, which is then proved too.
    """
    p, m = (symbol(Sym(name, "size", const(1))) for name in "pm")
    k = symbol(Sym("k", "var", const(0)))
    try:
        s = symbol(Sym("s", "var", const(0), p - 1))
        kinds = set(formulas(*map(UnknownInteger, (s, p, k, m))))
        if not {"F", "B"} <= kinds <= set(KINDS):
            return False
        claims = _Claims(formulas, kinds, p, m)
        return all(map(nonneg, claims.order())) and claims.never_meet() and claims.repeats() and (
            kept is None or nonneg(claims.slots_suffice(kept)))
    except Exception:  # it compares, or calls something that takes integers only
        return False


class _Claims:
    """Claims for a schedule of formulas to be legal: symbolic integers that must be at least 0."""

    def __init__(self, formulas: Formulas, kinds: set[str], p: Expr, m: Expr) -> None:
        self.formulas, self.kinds, self.p, self.m = formulas, kinds, p, m
        self.flushes = "U" not in kinds

    def stage(self, last: Expr) -> Expr:
        return symbol(Sym("s", "var", const(0), last))

    def microbatch(self, name: str, behind: int = 0) -> Expr:
        """Return a microbatch of the step, or, where steps go on without end, any at all."""
        return symbol(Sym(name, "var", const(0), self.m - 1 - behind if self.flushes else None))

    def tick(self, kind: str, s: Expr, k: Expr) -> Expr:
        return _expr(self.formulas(*map(UnknownInteger, (s, self.p, k, self.m)))[kind])

    def order(self) -> list[Expr]:
        """Return what is at least 0 if ticks begin at 0, rise with microbatches, and come after
        what they need."""
        s, inner = self.stage(self.p - 1), self.stage(self.p - 2)
        k, next_k = self.microbatch("k"), self.microbatch("k", 1)
        claims = [self.tick("F", s, k)]
        for kind in sorted(self.kinds):
            claims.append(self.tick(kind, s, next_k + 1) - self.tick(kind, s, next_k) - 1)
            for before, other in needs(kind, 1, 3):  # a stage with neighbours, as offsets
                stage, near = (s, s) if other == 1 else (inner, inner + 1)
                if other == 0:
                    stage, near = inner + 1, inner
                claims.append(self.tick(kind, stage, k) - self.tick(before, near, k) - 1)
        if "U" in self.kinds:
            last = gradient_kind(self.kinds)
            claims.append(self.tick("U", s, k) - self.tick(last, s, k))
            claims.append(self.tick(last, s, next_k + 1) - self.tick("U", s, next_k) - 1)
        return claims

    def never_meet(self) -> bool:
        """Return whether two kinds of action never meet in one tick of a stage."""
        s = self.stage(self.p - 1)
        a, b = self.microbatch("k"), self.microbatch("j")
        kinds = sorted(self.kinds - {"U"})
        return all(
            _never_zero(self.tick(x, s, a) - self.tick(y, s, b))
            for i, x in enumerate(kinds) for y in kinds[i + 1:]
        )

    def repeats(self) -> bool:
        """Return whether the next step follows as many ticks later for all actions, where none
        flushes."""
        if self.flushes:
            return True
        s, k = self.stage(self.p - 1), self.microbatch("k")
        distances = {self.tick(x, s, k + self.m) - self.tick(x, s, k) for x in self.kinds}
        names = {n.name for d in distances for n in d.symbols()}
        return len(distances) == 1 and not names & {"s", "k"}

    def slots_suffice(self, kept: Callable[[Any, Any, Any], Any]) -> Expr:
        """Return what is at least 0 if the activations of k are read before those of microbatch
        k + kept are there."""
        s = self.stage(self.p - 1)
        slots = _expr(kept(*map(UnknownInteger, (s, self.p, self.m))))
        k = symbol(Sym("k", "var", const(0)))  # a step of flushing schedules has no later one
        end = self.tick(gradient_kind(self.kinds), s, k)
        if self.flushes and slots == self.m:
            return const(0)
        return self.tick("F", s, k + slots) - end - 1


def _never_zero(difference: Expr) -> bool:
    """Return whether a difference is proved to have one sign, or a rest by a number that divides
    all but one term."""
    rest = next((c for atoms, c in difference.terms if not atoms), 0)
    common = gcd(*(c for atoms, c in difference.terms if atoms))
    return (common > 1 and rest % common != 0) or nonneg(difference - 1) or nonneg(-difference - 1)
