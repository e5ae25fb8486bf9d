"""Claims that are not proved, tried at small values.

In: claims of Exprs, and facts that hold where they are used. Out: the first values at which a claim
fails, those of the smallest mesh first, or None.
Always holds: the work is bounded and remembered; a claim with a failure among its samples is false.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import islice

from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.symbolic.facts import LIMIT, Facts, environments, related, tried, with_bounds

Claim = tuple[str, Expr]  # "equal": to 0; "nonneg": at least 0; "truth": not 0
Failure = tuple[tuple[str, int], ...]
Route = tuple[Expr, Expr, Expr, Expr]  # to, sends; source, receives

_POINTS = 2000  # samples of one claim
_LIMITS = {0: 1, 1: LIMIT, 2: 24}  # members, by how many axis sizes vary
_LIMIT_OF_MORE = 12  # and where more of them vary
_ROUTES = 16  # members up to which every route is followed

_TRUE = {
    "equal": lambda v: v == 0,
    "nonneg": lambda v: v >= 0,
    "truth": lambda v: v != 0,
}


def first_failure(claim: Claim, facts: Facts, unless: Facts) -> Failure | None:
    """Return the first values at which a claim fails while the facts hold and no extent in `unless`
    is 0; None if it never does."""
    kind, e = claim
    if any(f == 0 for f in facts):  # it never happens
        return None
    if e.is_const and _TRUE[kind](e.value):
        return None
    if kind == "nonneg" and expr.nonneg(e):
        return None
    near = related(e.symbols().union(*(u.symbols() for u in unless)), facts)
    return _first(kind, e, near, tuple(u for u in unless if not u.is_const or u == 0))


@lru_cache(maxsize=8192)
def _first(kind: str, e: Expr, facts: Facts, unless: Facts) -> Failure | None:
    used = e.symbols().union(*(f.symbols() for f in (*facts, *unless)))
    sizes = sum(s.kind == "size" for s in with_bounds(used))
    places = islice(environments(used, None, _LIMITS.get(sizes, _LIMIT_OF_MORE)), _POINTS)
    for values, (value, *extents) in tried(places, (e, *unless), facts):
        if not any(extent() <= 0 for extent in extents) and not _TRUE[kind](value()):
            return tuple((n, values[n]) for n in sorted(s.name for s in used))
    return None


@lru_cache(maxsize=1024)
def route_fault(route: Route, var: Sym, size: Expr, facts: Facts) -> str | None:
    """Return a text about the first member, on meshes of up to 16, whose `source` is not the member
    that sends to it; None if there is none."""
    used = size.symbols().union(*(e.symbols() for e in route)) - {var}
    facts = related(used, facts)
    used = used.union(*(f.symbols() for f in facts))
    places = islice(environments(used, None, _ROUTES), _POINTS)
    for values, (*functions, count) in tried(places, (*route, size), facts, var):
        fault = _fault(functions, count(0))
        if fault:
            shown = ", ".join(f"{n} = {values[n]}" for n in sorted(s.name for s in used))
            return f"{fault} (with {shown})" if shown else fault
    return None


def _fault(functions: list[Callable[..., int]], members: int) -> str | None:
    to, sends, source, receives = functions
    sender = {to(k): k for k in range(members) if sends(k)}
    for k in range(members):
        says, real = source(k), sender.get(k)
        if not 0 <= says < members:
            return f"member {k} looks at member {says}, which is none"
        if (says if receives(k) else None) != real:
            finds = f"member {says}" if receives(k) else "nobody"
            sends_it = "nobody" if real is None else f"member {real}"
            return f"member {k} receives from {finds}, and {sends_it} sends to it"
    return None
