"""Facts about symbols, and small values that meet them, to try claims that have no proof.

In: symbols, of which their bounds are known and what they divide; facts, Exprs that are 1 where an
expression stands. Out: values of symbols, those of the smallest mesh first, and of Exprs there.
Always holds: values are within all that is known; the work is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import TypeAlias

from codegen.symbolic.sample_points import divisors
from codegen.symbolic.spelling import function
from codegen.symbolic.terms import KINDS, Expr, Sym

Facts: TypeAlias = tuple[Expr, ...]  # each is 1
Values: TypeAlias = dict[str, int]

LIMIT = 64  # members tried where there is no proof


# ---- what is known -------------------------------------------------------------------------------


def _below(s: Sym) -> set[Sym]:
    return set().union(*(b.symbols() for b in (s.lo, s.hi) if b is not None))


def depth(s: Sym) -> int:
    """Return how long the longest chain of symbols is that starts at `s` and in which each occurs
    in the bounds of the one before it."""
    return max((1 + depth(t) for t in _below(s)), default=0)


def with_bounds(used: Iterable[Sym]) -> set[Sym]:
    """Return these symbols, and the symbols in their bounds."""
    out, left = set[Sym](), set(used)
    while left:
        out |= left
        left = set[Sym]().union(*map(_below, left)) - out
    return out


def related(used: Iterable[Sym], facts: Facts) -> Facts:
    """Return the facts that share symbols with `used`, directly or through other facts and the
    bounds of symbols."""
    near, count = with_bounds(used), -1
    while count != len(near):
        count = len(near)
        out = tuple(f for f in facts if with_bounds(f.symbols()) & near)
        near = near.union(*(with_bounds(f.symbols()) for f in out))
    return out


def may_be(size: Sym, n: int, values: Mapping[str, int]) -> bool:
    """Return whether a mesh axis may have n ranks: whether n meets the bounds and the divisibility
    of the symbol `size`, given other symbols' values."""
    lo, hi = size.within(values)
    return not (size.divides and size.divides % n) and (lo is None or n >= lo) and (
        hi is None or n <= hi)


# ---- small values --------------------------------------------------------------------------------


def environments(
    symbols: Iterable[Sym], size: Expr | None = None, limit: int = LIMIT
) -> Iterator[Values]:
    """Yield values for symbols, those of the smallest `size` first: bounded work, for enumeration.

    Sizes that make up `size` run through every shape of at most `limit` members; other sizes to 3;
    coordinates through all positions (the ends when many); scalars and counters through a few.
    """
    wanted = with_bounds(symbols)
    among = wanted if size is None else size.symbols()
    main = sorted((s for s in among if s.kind == "size"), key=lambda s: s.name)
    others = sorted((s for s in wanted if s not in main), key=_dependency_order)
    for shape in shapes(len(main), limit):
        start = {s.name: v for s, v in zip(main, shape, strict=True)}
        if size is not None and size.evaluate(start) > limit:  # axes that share one symbol
            continue
        if all(may_be(s, start[s.name], start) for s in main):
            yield from _fill(others, start)


def _dependency_order(s: Sym) -> tuple[int, int, str]:
    return -KINDS.index(s.kind), depth(s), s.name


def shapes(axes: int, limit: int = LIMIT) -> list[tuple[int, ...]]:
    """Return every shape of so many axes with at most `limit` members, smallest product first."""
    out: list[tuple[int, ...]] = [()]
    for _ in range(axes):
        out = [(*s, k) for s in out for k in range(1, limit // prod(s) + 1)]
    return sorted(out, key=lambda s: (prod(s), s))


def _fill(symbols: Sequence[Sym], values: Values) -> Iterator[Values]:
    if not symbols:
        yield values
        return
    sym = symbols[0]
    for v in candidates(sym, values):
        yield from _fill(symbols[1:], {**values, sym.name: v})


def candidates(sym: Sym, values: Mapping[str, int]) -> list[int]:
    """Return some values that a symbol may have, given those of other symbols."""
    lo, hi = sym.within(values)
    if sym.kind == "size":
        return [n for n in (1, 2, 3) if may_be(sym, n, values)]
    if sym.divides:
        return divisors(sym.divides, lo, hi)[:8]
    if lo is not None and hi is not None:
        if hi - lo < 8:
            return list(range(lo, hi + 1))
        return [lo, lo + 1, lo + 2, (lo + hi) // 2, hi - 2, hi - 1, hi]
    if lo is not None:
        return [lo, lo + 1, lo + 2, lo + 5]
    if hi is not None:
        return [hi - 5, hi - 1, hi]
    return [0, 1, 2, 5, -1, -3]


def tried(
    places: Iterable[Values], exprs: Sequence[Expr], facts: Facts, var: Sym | None = None
) -> Iterator[tuple[Values, list[Callable[..., int]]]]:
    """Yield values of symbols at which all facts are 1, with functions that evaluate the Exprs
    there, as functions of `var` if it is not None."""
    used = set[Sym]().union(*(e.symbols() for e in (*exprs, *facts))) - {var}
    names = sorted(s.name for s in used)
    holds = [function(f, names) for f in facts]
    functions = [function(e, [*names, var.name] if var else names) for e in exprs]
    for values in places:
        point = [values[n] for n in names]
        if all(h(*point) for h in holds):
            yield values, [partial(f, *point) for f in functions]
