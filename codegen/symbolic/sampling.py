"""Values that symbols may have, small ones first; claims tried there that are not proved.

In: an Expr, and facts that hold where it is used. Out: the first values at which a claim fails,
those of the smallest mesh first, or None.
Always holds: the work is bounded and remembered; a claim with a failure among its samples is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import prod

from codegen.symbolic import expr
from codegen.symbolic.estimate import depth
from codegen.symbolic.expr import Expr, Sym
from codegen.symbolic.sample_points import divisors

Claim = tuple[str, Expr]  # "equal": to 0; "nonneg": at least 0; "truth": not 0
Facts = tuple[Expr, ...]  # each is 1
Values = tuple[tuple[str, int], ...]
Route = tuple[Expr, Expr, Expr, Expr]  # to, sends; source, receives

LIMIT = 64  # members tried where there is no proof
_POINTS = 2000  # samples of one claim
_LIMITS = {0: 1, 1: LIMIT, 2: 24}  # members, by how many axis sizes vary
_MANY = 12
_ROUTES = 16  # members up to which every route is followed

_TRUE = {
    "equal": lambda v: v == 0,
    "nonneg": lambda v: v >= 0,
    "truth": lambda v: v != 0,
}


def first_failure(claim: Claim, facts: Facts, unless: Facts) -> Values | None:
    """Where a claim fails while the facts hold and no extent in `unless` is 0."""
    kind, e = claim
    if any(f == 0 for f in facts):  # it never happens
        return None
    if e.is_const and _TRUE[kind](e.value):
        return None
    if kind == "nonneg" and expr.nonneg(e):
        return None
    near = related({*e.symbols()}.union(*(u.symbols() for u in unless)), facts)
    return _tried(kind, e, near, tuple(u for u in unless if not u.is_const or u == 0))


@lru_cache(maxsize=8192)
def _tried(kind: str, e: Expr, facts: Facts, unless: Facts) -> Values | None:
    used = e.symbols().union(*(f.symbols() for f in (*facts, *unless)))
    names = sorted(s.name for s in used)
    value, *extents = (expr.function(x, names) for x in (e, *unless))
    for values in samples(used, facts, _LIMITS.get(_sizes(used), _MANY)):
        at = [values[n] for n in names]
        if not any(extent(*at) <= 0 for extent in extents) and not _TRUE[kind](value(*at)):
            return tuple(zip(names, at, strict=True))
    return None


def samples(used: Iterable[Sym], facts: Facts, limit: int) -> Iterator[dict[str, int]]:
    """Values of the symbols, and of those in their bounds, at which all facts are 1."""
    names = sorted({s.name for s in used})
    holds = [expr.function(f, names) for f in facts]
    for values in islice(environments(used, None, limit), _POINTS):
        at = [values[n] for n in names]
        if all(h(*at) for h in holds):
            yield values


def _sizes(used: Iterable[Sym]) -> int:
    return sum(s.kind == "size" for s in _with_bounds(used))


def _with_bounds(used: Iterable[Sym]) -> set[Sym]:
    out: set[Sym] = set()
    todo = set(used)
    while todo:
        out |= todo
        bounds = [b.symbols() for s in todo for b in (s.lo, s.hi) if b is not None]
        todo = set().union(*bounds) - out
    return out


def related(used: set[Sym], facts: Facts) -> Facts:
    """The facts that share symbols with the used ones, through each other and through bounds."""
    used, left, out = _with_bounds(used), list(facts), []
    while True:
        found = [f for f in left if _with_bounds(f.symbols()) & used]
        if not found:
            return tuple(f for f in facts if f in out)
        out += found
        left = [f for f in left if f not in found]
        for f in found:
            used |= _with_bounds(f.symbols())


@lru_cache(maxsize=1024)
def route_fault(route: Route, var: Sym, size: Expr, facts: Facts) -> str | None:
    """The first member, on meshes of up to 16, that looks for its sender in the wrong place."""
    to, sends, source, receives = route
    used = to.symbols().union(*(e.symbols() for e in (sends, source, receives, size))) - {var}
    facts = related(used, facts)
    used = used.union(*(f.symbols() for f in facts))
    names = [var.name, *sorted(s.name for s in used)]
    functions = [expr.function(e, names) for e in route]
    count = expr.function(size, names)
    for values in samples(used, facts, _ROUTES):
        at = [values[n] for n in names[1:]]
        fault = _fault(functions, at, count(0, *at))
        if fault:
            shown = ", ".join(f"{n} = {values[n]}" for n in names[1:])
            return f"{fault} (with {shown})" if shown else fault
    return None


def _fault(functions: list, at: list[int], members: int) -> str | None:  # type: ignore[type-arg]
    to, sends, source, receives = functions
    sender = {to(k, *at): k for k in range(members) if sends(k, *at)}
    for k in range(members):
        says, real = source(k, *at), sender.get(k)
        if not 0 <= says < members:
            return f"member {k} looks at member {says}, which is none"
        if (says if receives(k, *at) else None) != real:
            finds = f"member {says}" if receives(k, *at) else "nobody"
            return f"member {k} receives from {finds}, and {_name(real)} sends to it"
    return None


def _name(member: int | None) -> str:
    return "nobody" if member is None else f"member {member}"


# ---- trying values -------------------------------------------------------------------------------


def environments(
    symbols: Iterable[Sym], size: Expr | None = None, limit: int = LIMIT
) -> Iterator[dict[str, int]]:
    """Values for symbols, those of the smallest `size` first: bounded work, for enumeration.

    Sizes that make up `size` run through every shape of at most `limit` members; other sizes to 3;
    coordinates through all positions (the ends when many); scalars and counters through a few.
    """
    wanted = _with_bounds(symbols)
    if size is None:
        main = sorted((s for s in wanted if s.kind == "size"), key=lambda s: s.name)
    else:
        main = sorted((s for s in size.symbols() if s.kind == "size"), key=lambda s: s.name)
    others = sorted((s for s in wanted if s not in main), key=_dependency_order)
    for shape in shapes(len(main), limit):
        start = {s.name: v for s, v in zip(main, shape, strict=True)}
        if size is not None and size.evaluate(start) > limit:  # axes that share one symbol
            continue
        if all(may_be(s, start[s.name], start) for s in main):
            yield from _fill(others, start)


def may_be(size: Sym, n: int, values: Mapping[str, int]) -> bool:
    """Whether as many ranks may lie along an axis, as far as its symbol tells."""
    if size.divides and size.divides % n:
        return False
    return (size.lo is None or n >= size.lo.evaluate(values)) and (
        size.hi is None or n <= size.hi.evaluate(values)
    )


_KINDS = ("size", "scalar", "coord", "counter", "var")


def _dependency_order(s: Sym) -> tuple[int, int, str]:
    return _KINDS.index(s.kind), depth(s), s.name


def shapes(axes: int, limit: int = LIMIT) -> list[tuple[int, ...]]:
    """Every shape of so many axes with at most `limit` members, smallest product first."""
    out: list[tuple[int, ...]] = [()]
    for _ in range(axes):
        out = [(*s, k) for s in out for k in range(1, limit // prod(s) + 1)]
    return sorted(out, key=lambda s: (prod(s), s))


def _fill(symbols: Sequence[Sym], values: dict[str, int]) -> Iterator[dict[str, int]]:
    if not symbols:
        yield values
        return
    sym = symbols[0]
    for v in candidates(sym, values):
        yield from _fill(symbols[1:], {**values, sym.name: v})


def candidates(sym: Sym, values: Mapping[str, int]) -> list[int]:
    """Some values that a symbol may have where others have theirs."""
    lo = sym.lo.evaluate(values) if sym.lo is not None else None
    hi = sym.hi.evaluate(values) if sym.hi is not None else None
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
