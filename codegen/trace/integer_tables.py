"""Tables of integers that are known while building, looked up by a formula: a formula again.

In: a table, and an index for each of its dims, integers and formulas. Out: the sum of its elements,
each where the index says so; it may stand in to= of ppermute. Always holds: an index that the table
does not have gives 0, and who sends there is seen by the checks of exchanges.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from codegen.errors import UsageError
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.context import Context
from codegen.trace.number import Number, expr_of, number

_MOST_TERMS = 1024


def in_formula(table: Any, key: Any) -> Number | int | None:
    """Return `table[key]` as a formula where one is being captured and the key holds its numbers,
    else None."""
    context = Context.current()
    keys = key if isinstance(key, tuple) else (key,)
    if context is None or not context.selecting or not any(isinstance(k, Number) for k in keys):
        return None
    data, index = np.asarray(table), [expr_of(k) for k in keys]
    if data.dtype.kind not in "biu" or data.ndim != len(keys) or None in index:
        return None
    element = looked_up(data, [e for e in index if e is not None])
    formula: Number | int = number(element, data.dtype.kind == "b")
    return formula


def looked_up(data: np.ndarray, index: Sequence[Expr]) -> Expr:
    """Return the formula of data[index]. Raises UsageError where it would have too many terms."""
    places = [[e.value] if e.is_const else range(n) for e, n in zip(index, data.shape)]
    if (count := int(np.prod([len(p) for p in places]))) > _MOST_TERMS:
        raise UsageError("a table is too large for a formula",
                         expected=f"up to {_MOST_TERMS} elements that may be meant",
                         found=f"{count} elements", remedy="a formula of i and n: (i + 1) % n")
    total = expr.const(0)
    for place in itertools.product(*places):
        here = expr.const(1)
        for e, k, n in zip(index, place, data.shape):
            if not e.is_const:
                here = here * expr.eq(e if expr.nonneg(e) else from_the_end(e, n), k)
        total = total + here * int(data[place])
    return total


def from_the_end(e: Expr, extent: int) -> Expr:
    """Return an index of a dim; a negative one counts from the end."""
    return expr.select(expr.ge(e, 0), e, e + extent)


def power_of_two(e: Expr) -> Expr | None:
    """Return the formula of 2**e where e is known to lie between 0 and 62, else None."""
    most = next((k for k in range(63) if expr.nonneg(-e + k)), None)
    if most is None or not expr.nonneg(e):
        return None
    return looked_up(np.array([1 << k for k in range(most + 1)]), [e])
