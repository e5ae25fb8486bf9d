"""Upper bounds of extents, on any rank of any mesh, by which passes judge whether something
pays."""

from __future__ import annotations

from functools import cache

from codegen.symbolic import expr
from codegen.symbolic.estimate import upper_bound
from codegen.symbolic.expr import Expr
from codegen.symbolic.facts import with_bounds

UNKNOWN = 2**27 + 1  # where nothing is known: beyond all limits
LONGEST_AXIS = 2**20  # ranks along an axis for which bounds are looked at


@cache
def most(e: Expr) -> int:
    """Return the greatest value, and at least 1, that `e` has on any mesh; UNKNOWN if it has no
    constant bound."""
    inside = with_bounds(e.symbols())
    bound = upper_bound(e, (s for s in inside if not s.lays_out))
    sizes = [s for s in bound.symbols() if s.kind == "size"]
    ends = [bound.subst({s: expr.const(n) for s in sizes}) for n in (1, LONGEST_AXIS)]
    return max(1, *(end.value for end in ends)) if all(end.is_const for end in ends) else UNKNOWN
