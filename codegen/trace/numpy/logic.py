"""Operators of Python that choose what runs: and, or, not, comparisons, conditional expressions.

What stands behind an operand that is known only at run time is captured as an arm of a branch.
Always holds: the value is the operand that Python gives, and an operand runs where Python runs it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen.errors import CarryError, UnsupportedError
from codegen.ir.graph import Value
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, is_traced, wrap
from codegen.trace.control.branches import captured_switch
from codegen.trace.control.regions import condition
from codegen.trace.control.stateful import refuse_left_early
from codegen.trace.number import condition_of, number

_Later = Callable[[], Any]


def and_(first: Any, *rest: _Later) -> Any:
    return _first_deciding(False, first, rest)


def or_(first: Any, *rest: _Later) -> Any:
    return _first_deciding(True, first, rest)


def both(first: Any, *rest: _Later) -> Any:
    """Compute `and` where its truth alone is asked: operands of any types."""
    return _first_deciding(False, first, rest, as_truth=True)


def either(first: Any, *rest: _Later) -> Any:
    """Compute `or` where its truth alone is asked."""
    return _first_deciding(True, first, rest, as_truth=True)


def _first_deciding(stop: bool, value: Any, rest: Sequence[_Later], as_truth: bool = False) -> Any:
    """Return the first operand whose truth is `stop`, else the last one."""
    if not rest:
        return value
    holds = _known_truth(value)
    if holds is stop:
        return stop if as_truth else value

    def others() -> Any:
        return _first_deciding(stop, rest[0](), rest[1:], as_truth)

    return others() if holds is not None else _short_circuit(stop, value, others, as_truth)


def _known_truth(x: Any) -> bool | None:
    """Return the truth of x while building; None where it is known only at run time."""
    if not is_traced(x):
        return bool(x)
    c = condition_of(x)
    return bool(c.value) if c is not None and c.is_const else None


def _short_circuit(stop: bool, left: Any, right: _Later, as_truth: bool) -> Any:
    """Return `left` where its truth is `stop`, else `right()`, captured in an arm of its own."""
    on = condition(left, "and, or, not")
    is_truth = isinstance(left, Array) and left.scalar and left.dtype == np.bool_

    def kept() -> Any:
        return stop if as_truth or is_truth else left

    def taken() -> Any:
        return truth(right()) if as_truth else right()

    try:
        return captured_switch(on, (taken, kept) if stop else (kept, taken))
    except CarryError as error:
        word = "or" if stop else "and"
        raise CarryError(
            f"`{word}` gives one operand or the other, and they are of different types",
            expected="operands of one type, because the left one is known only at run time",
            found=" and ".join(t.rsplit(" (", 1)[0] for t in (error.found, error.expected)),
            remedy=f"bool(a) {word} bool(b) for their truth, " +
            ("np.where(a, a, b)" if stop else "np.where(a, b, a)") + " for a number",
        ) from None


def truth(x: Any) -> Any:
    """Return the truth of x: a bool, a Number, or a 0-d bool array. Refuses what has several
    elements."""
    if not is_traced(x):
        return bool(x)
    holds = condition(x, "and, or, not")
    return wrap(x.context, holds, True) if isinstance(holds, Value) else number(holds, True)


def not_(x: Any) -> Any:
    if not is_traced(x):
        return not x
    c = condition_of(x)
    if c is not None:
        return number(expr.not_(c), True)
    return truth(np.logical_not(truth(x)))


def any_of(values: Sequence[Any]) -> Any:
    """Return whether one of several operands holds that all have run."""
    held: Any = False
    for value in map(truth, values):
        a, b = condition_of(held), condition_of(value)
        if a is not None and b is not None:
            held = number(expr.or_(a, b), True)
        else:
            held = truth(np.logical_or(as_array(held), as_array(value)))
        if held is True:
            break
    return held


def _in(x: Any, container: Any) -> Any:
    """Return x in container, as Python asks one element after the other."""
    if isinstance(container, Array):
        return truth(np.any(container == x))
    refuse_left_early(container)
    plain = isinstance(container, (list, tuple, dict, set, frozenset, range))
    if not plain or not (is_traced(x) or any(map(is_traced, container))):
        return x in container
    return any_of([x is e or x == e for e in container])


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le,
    "Gt": operator.gt, "GtE": operator.ge, "Is": operator.is_, "IsNot": operator.is_not,
    "In": _in, "NotIn": lambda a, b: not_(_in(a, b)),
}


def compare(ops: Sequence[str], first: Any, second: Any, *rest: _Later) -> Any:
    """Evaluate a chain of comparisons, every operand at most once."""
    held = _COMPARE[ops[0]](first, second)
    if not rest:
        return held
    return and_(held, lambda: compare(ops[1:], second, rest[0](), *rest[1:]))


def ifexp(test: Any, then: _Later, other: _Later) -> Any:
    holds = _known_truth(test)
    if holds is not None:
        return then() if holds else other()
    return captured_switch(condition(test, "if"), (other, then))


def known(value: Any, construct: str) -> Any:
    """Return a value that decides whether Python evaluates an operand that binds a name or
    waits."""
    if not is_traced(value):
        return value
    raise UnsupportedError(
        f"`{construct}` decides at run time whether a name is bound by :=, or an await is run",
        expected="operands that bind nothing, or a condition known while building",
        found=str(value.type) if isinstance(value, Array) else repr(value),
        remedy="bind the name in a statement before, or nest: if a: y = f(x)",
    )
