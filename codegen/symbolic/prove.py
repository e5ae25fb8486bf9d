"""Proofs about who sends to whom: inverses, injectivity, sums and bounds of index expressions.

In: Exprs in one member's position `var` along mesh axes taken as one, 0 <= var < size. Out: the
receiver's side of a permute, a Proof with the smallest counter-example, or an Expr without `var`.
Always holds: what is called proved is true for every size; the rest is tried up to LIMIT members.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from codegen.symbolic import expr, partners
from codegen.symbolic.estimate import root
from codegen.symbolic.expr import LAUNCH, Call, Expr, Sym, const, symbol
from codegen.symbolic.facts import LIMIT, Facts, Values, environments, tried
from codegen.symbolic.terms import TRUTH

_BRANCHES = 128  # cases of one `to`


@dataclass(frozen=True)
class CounterExample:
    """Two members that send to one target, or a member whose target does not exist. values: those
    of the symbols that matter, sizes first; members: the number of members."""

    values: Mapping[str, int]
    members: int
    senders: tuple[int, ...]
    target: int

    def __str__(self) -> str:
        ranks = "1 rank" if self.members == 1 else f"{self.members} ranks"
        if len(self.senders) == 2:
            a, b = self.senders
            return f"with {ranks}, ranks {a} and {b} both send to {self.target}"
        return (
            f"with {ranks}, rank {self.senders[0]} sends to {self.target}, which does not exist"
        )


@dataclass(frozen=True)
class Proof:
    """The result of a proof that members send to distinct, existing targets by a map `to`. always:
    they do for every size. condition: they do where `condition` is 1. refuted: `counter_example`
    shows that they do not. checked: they do for up to `checked` members; the launch tries its own
    size."""

    verdict: Literal["always", "condition", "refuted", "checked"]
    condition: Expr | None = None
    counter_example: CounterExample | None = None
    checked: int = 0

    @property
    def holds(self) -> bool:
        """Return whether the map is right, as far as is known, for every size that meets
        `condition`."""
        return self.verdict != "refuted"


# ---- the cases of a map -----------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A case of the map var -> to, which applies where `guard` is 1 (which implies lo <= var <=
    hi); `to` has no truth value of var. pin: the only value of var in this case, so that `to` is
    free of var; or None."""

    guard: Expr
    to: Expr
    lo: Expr
    hi: Expr
    pin: Expr | None = None


class _TooManyCases(Exception):
    pass


def cases(to: Expr, sends: Expr, var: Sym, size: Expr) -> list[Case] | None:
    """Return the map var -> to as cases, split at the truth values that mention var; None if there
    are too many."""
    out: list[Case] = []
    try:
        _cut(to, sends, var, size, const(1), const(0), size - 1, out)
    except _TooManyCases:
        return None
    return out


def _cut(
    to: Expr, sends: Expr, var: Sym, size: Expr, guard: Expr, lo: Expr, hi: Expr, out: list[Case]
) -> None:
    if sends == 0 or guard == 0 or expr.nonneg(lo - hi - 1):
        return
    if len(out) >= _BRANCHES:
        raise _TooManyCases
    if expr.nonneg(lo - hi):
        _pin(to, sends, var, size, guard, lo, out)
        return
    to, sends = _within(to, var, lo, hi), _within(sends, var, lo, hi)
    atom = _next_truth(to, sends, var)
    if atom is None:
        if sends != 0:
            out.append(Case(guard * sends, to, lo, hi))
        return
    truth = expr.from_atom(atom)
    zero = root(atom.args[0], var)
    yes = {atom: const(1)}
    no = {atom: const(0)}
    if zero is not None and atom.op == "eq0":
        inside = expr.ge(zero[0], lo) * expr.le(zero[0], hi) * guard.subst({var: zero[0]})
        _pin(to, sends, var, size, inside, zero[0], out)
        _cut(expr.replace(to, no), expr.replace(sends, no), var, size,
             guard * (1 - truth), lo, hi, out)
        return
    yes_range, no_range = (lo, hi), (lo, hi)
    if zero is not None:  # var >= bound, or var <= bound
        bound, slope = zero
        if slope > 0:
            yes_range = (expr.maximum(lo, bound), hi)
            no_range = (lo, expr.minimum(hi, bound - 1))
        else:
            yes_range = (lo, expr.minimum(hi, bound))
            no_range = (expr.maximum(lo, bound + 1), hi)
    _cut(expr.replace(to, yes), expr.replace(sends, yes), var, size,
         guard * truth, *yes_range, out)
    _cut(expr.replace(to, no), expr.replace(sends, no), var, size,
         guard * (1 - truth), *no_range, out)


def _within(e: Expr, var: Sym, lo: Expr, hi: Expr) -> Expr:
    """Return e, a formula of var, simplified for lo <= var <= hi."""
    narrow = Sym(var.name, "var", lo, hi)
    return e.subst({var: symbol(narrow)}).subst({narrow: symbol(var)})


def _pin(
    to: Expr, sends: Expr, var: Sym, size: Expr, guard: Expr, position: Expr, out: list[Case]
) -> None:
    guard = guard.subst({var: position}) * sends.subst({var: position})
    guard = guard * expr.ge0(position) * expr.lt(position, size)
    if guard != 0:
        out.append(Case(guard, to.subst({var: position}), position, position, position))


def _next_truth(to: Expr, sends: Expr, var: Sym) -> Call | None:
    """Return an innermost truth value that mentions var, an equation if there is one, since it
    fixes var; None if there is none. If `to` has none, only truth values that bound var are taken:
    an injective map stays so for any subset of senders."""
    truths = [a for e in (to, sends) for a in expr.calls(e) if a.op in TRUTH]
    truths = [a for a in truths if var in a.args[0].symbols()]
    inner = [a for a in truths if not any(c.op in TRUTH for c in expr.calls(a.args[0]))]
    bounds = [a for a in inner if root(a.args[0], var) is not None]
    for a in bounds:
        if a.op == "eq0":
            return a
    cut = bounds if not any(a.op in TRUTH for a in expr.calls(to) if var in a.args[0].symbols()) \
        else bounds + inner
    return cut[0] if cut else None


# ---- the receiver's side -----------------------------------------------------------------------


def inverse(to: Expr, sends: Expr, var: Sym, size: Expr) -> tuple[Expr, Expr] | None:
    """Return (source, receives) for an injective map: the member that sends to member var, and
    whether there is one.

    source always lies in [0, size - 1]; receives is 1 exactly where some member sends to var.
    Return None where the map cannot be solved."""
    position = Sym(var.name, "var", const(0), size - 1)
    here = {var: symbol(position)}
    back_again = {position: symbol(var)}
    to, sends = to.subst(here), sends.subst(here)
    if partners.own_inverse(to, position):
        exists = partners.exists(to, size)
        receives = exists if sends == exists else exists * sends.subst({position: to})
        source = expr.maximum(0, expr.minimum(to, size - 1))
        return source.subst(back_again), receives.subst(back_again)
    parts = cases(to, sends, position, size)
    if parts is None:
        return None
    if not parts:
        return const(0), const(0)
    solved = []
    for case in parts:
        back = _solve_case(case, position, size)
        if back is None:
            return None
        solved.append(back)
    source, receives = _join(solved, position, size)
    return source.subst(back_again), receives.subst(back_again)


def _solve_case(case: Case, var: Sym, size: Expr) -> tuple[Expr, Expr] | None:
    """Return (source, receives) of one case."""
    here = symbol(var)
    if case.pin is not None:
        return case.pin, case.guard * expr.eq(here, case.to)
    wrapped = case.to
    modulus = None
    atoms = case.to.atoms()
    call = next(iter(atoms)) if len(atoms) == 1 else None
    if isinstance(call, Call) and call.op == "mod" and case.to == expr.from_atom(call):
        wrapped, modulus = call.args
        if modulus != size:
            return None
    slope, rest = expr.linear_in(wrapped, var)
    if slope is None or not slope.is_const or var in rest.symbols():
        return None
    a = slope.value
    if a == 0 or (abs(a) != 1 and modulus is not None):
        return None
    if modulus is not None:
        source = expr.mod((here - rest) * a, size)
        return source, case.guard.subst({var: source})
    if abs(a) == 1:
        source, receives = (here - rest) * a, const(1)
    else:
        source, receives = (here - rest) // a, expr.eq0((here - rest) % a)
    receives = receives * expr.ge(source, case.lo) * expr.le(source, case.hi)
    if receives == 0:
        return const(0), const(0)
    # the guard's own linear bounds are in [lo, hi]; inside it the rest of the guard is left
    narrow = Sym(var.name, "var", case.lo, case.hi)
    guard = case.guard.subst({var: symbol(narrow)}).subst({narrow: source})
    return source, receives * guard


def _join(solved: list[tuple[Expr, Expr]], var: Sym, size: Expr) -> tuple[Expr, Expr]:
    solved = [(s, r) for s, r in solved if r != 0]
    if not solved:
        return const(0), const(0)
    merged: dict[Expr, Expr] = {}
    for source, receives in solved:
        merged[source] = merged[source] + receives if source in merged else receives
    if len(merged) == 1:
        ((source, receives),) = merged.items()
        return expr.maximum(0, expr.minimum(source, size - 1)), receives
    total = const(0)
    for receives in merged.values():
        total = total + receives
    turn = _common_turn(merged, var, size)
    if turn is not None:
        return turn, total
    joined = const(0)
    for source, receives in merged.items():
        joined = joined + receives * source
    return joined, total


def _common_turn(merged: Mapping[Expr, Expr], var: Sym, size: Expr) -> Expr | None:
    """Return one formula (±var + b) % size that equals every case's source where that case
    receives; None if there is none."""
    for source in merged:
        slope, _ = expr.linear_in(source, var)
        if slope is None or not slope.is_const or slope.value not in (1, -1):
            continue
        turn = expr.mod(source, size)
        if all(_agree(turn, s, r, var) for s, r in merged.items()):
            return turn
    return None


def _agree(a: Expr, b: Expr, guard: Expr, var: Sym) -> bool:
    parts = cases(a - b, guard, var, var.hi + 1) if var.hi is not None else None
    return parts is not None and all(p.to == 0 for p in parts)


# ---- injectivity ---------------------------------------------------------------------------------


def injective(
    to: Expr, sends: Expr, var: Sym, size: Expr, facts: Facts = ()
) -> Proof:
    """Return the proof whether all members send to distinct, existing targets.

    facts: conditions on sizes that the program states; only sizes that meet them count."""
    condition = _prove_injective(to, sends, var, size)
    if condition is not None and condition == 1:
        return Proof("always")
    if condition is not None and condition != 0 and _holds_at_large(condition, facts):
        return Proof("condition", condition)
    counter = counter_example(to, sends, var, size, facts)
    if counter is not None:
        return Proof("refuted", counter_example=counter)
    if _all_tried(size, (to.symbols() | sends.symbols()) - {var}):
        return Proof("always")
    return Proof("checked", checked=LIMIT)


def _all_tried(size: Expr, symbols: set[Sym]) -> bool:
    """Return whether at most LIMIT members are possible and no other symbol matters, so that trying
    all sizes is a proof."""
    largest = size.subst({s: s.hi for s in size.symbols() if s.hi is not None})
    return largest.is_const and largest.value <= LIMIT and symbols <= size.symbols()


def proved(to: Expr, sends: Expr, var: Sym, size: Expr) -> bool:
    """Return whether the map is proved right for all sizes, or for those that meet a condition."""
    return _prove_injective(to, sends, var, size) is not None


def _prove_injective(to: Expr, sends: Expr, var: Sym, size: Expr) -> Expr | None:
    """Return the condition on sizes under which the map is right; None where it is unknown."""
    position = Sym(var.name, "var", const(0), size - 1)
    here = {var: symbol(position)}
    to, sends, var = to.subst(here), sends.subst(here), position
    if partners.own_inverse(to, var):
        if sends * (1 - partners.exists(to, size)) == 0:
            return const(1)
    parts = cases(to, sends, var, size)
    if parts is None:
        return None
    condition = const(1)
    images: list[tuple[Expr, Expr]] = []
    for case in parts:
        checked = _case_condition(case, var, size)
        if checked is None:
            return None
        fits, low, high = checked
        condition = condition * fits
        images.append((low, high))
    for (a_lo, a_hi), (b_lo, b_hi) in itertools.combinations(images, 2):
        if not (expr.nonneg(b_lo - a_hi - 1) or expr.nonneg(a_lo - b_hi - 1)):
            return None
    if any(s.kind not in LAUNCH for s in condition.symbols()):
        return None
    return condition


def _case_condition(case: Case, var: Sym, size: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Return (condition, lowest target, highest target) of one case that is injective by itself."""
    to = case.to
    if case.pin is not None:
        inside = expr.ge0(to) * expr.lt(to, size)
        return 1 - case.guard * (1 - inside), to, to
    slope, rest = expr.linear_in(to, var)
    if slope is not None and slope.is_const and slope.value and var not in rest.symbols():
        first, last = to.subst({var: case.lo}), to.subst({var: case.hi})
        low, high = (first, last) if slope.value > 0 else (last, first)
        inside = expr.ge0(low) * expr.lt(high, size)
        if inside == 1:
            return inside, low, high
        exists = expr.le(case.lo, case.hi)
        only_bounds = var not in case.guard.symbols() or (
            _within(case.guard, var, case.lo, case.hi) == 1)
        if not only_bounds:
            return None
        return 1 - exists * (1 - inside), low, high
    return _wrapped_condition(to, var, size)


def _wrapped_condition(to: Expr, var: Sym, size: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Return the condition of one case that wraps: (a * var + b) % size is a permutation exactly
    where gcd(a, size) is 1."""
    atoms = to.atoms()
    call = next(iter(atoms)) if len(atoms) == 1 else None
    if not (isinstance(call, Call) and call.op == "mod" and to == expr.from_atom(call)):
        return None
    slope, rest = expr.linear_in(call.args[0], var)
    if call.args[1] != size or slope is None or not slope.is_const or var in rest.symbols():
        return None
    condition = const(1)
    for prime in primes(abs(slope.value)):
        condition = condition * expr.ne(size % prime, 0)
    if slope.value == 0:
        condition = expr.eq(size, 1)
    return condition, const(0), size - 1


def primes(a: int) -> list[int]:
    """Return the primes that divide a."""
    out, p = [], 2
    while p * p <= a:
        if a % p == 0:
            out.append(p)
            while a % p == 0:
                a //= p
        p += 1
    return [*out, a] if a > 1 else out


def _holds_at_large(condition: Expr, facts: Facts) -> bool:
    """Return whether arbitrarily large sizes meet a condition; one that only a few sizes meet
    indicates a mistake in the program."""
    symbols = _all_symbols((condition, *facts))
    if any(s.kind != "size" for s in symbols):
        return True

    def met(e: Expr, places: Iterable[Values]) -> bool:
        return any(value() for _, (value,) in tried(places, (e,), facts))

    if any(s.hi is not None for s in symbols):
        return met(condition, (v for v in environments(symbols) if max(v.values()) > 1))
    ranges = [range(97, 97 + 121)] if len(symbols) == 1 else [range(11, 24)] * len(symbols)
    large = [dict(zip((s.name for s in symbols), point, strict=True))
             for point in itertools.product(*ranges)]
    return met(condition, large) or (
        met(condition, environments(symbols)) and not met(const(1), large))


def counter_example(
    to: Expr, sends: Expr, var: Sym, size: Expr, facts: Facts = (), limit: int = LIMIT
) -> CounterExample | None:
    """Return the smallest number of members, up to limit, at which the map is wrong."""
    places = environments(_all_symbols((to, sends, size, *facts)) - {var}, size, limit)
    for values, (target_of, sends_of, size_of) in tried(places, (to, sends, size), facts, var):
        members, taken = size_of(0), dict[int, int]()
        for k in range(members):
            if not sends_of(k):
                continue
            target = target_of(k)
            senders = (taken[target], k) if target in taken else (k,)
            if target in taken or not 0 <= target < members:
                return CounterExample(dict(values), members, senders, target)
            taken[target] = k
    return None


def _all_symbols(exprs: Iterable[Expr]) -> set[Sym]:
    return set[Sym]().union(*(e.symbols() for e in exprs))
