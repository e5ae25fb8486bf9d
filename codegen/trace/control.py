"""What rewritten functions call (as `__spmd__`): statements and operators on unknown values.

Always holds: on plain Python values, and outside a capture, every function here does exactly what
the statement or operator does that it stands for.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from codegen import expr
from codegen.errors import TracedValueError, UnsupportedError
from codegen.trace.array import Array, as_array, maximum, minimum
from codegen.trace.branches import captured_if, captured_switch
from codegen.trace.context import Context, place_in, user_place
from codegen.trace.loops import captured_while, explained, refuse_raise, refuse_return
from codegen.trace.number import Number, condition_of, expr_of, number
from codegen.trace.ranges import Range, captured_for
from codegen.trace.regions import condition
from codegen.trace.state import NO_NAMES, Names

__all__ = ["Names"]

NameError = builtins.NameError
_TRACED = (Array, Number)


# ---- statements --------------------------------------------------------------------------------


def if_(
    test: Any, names: Names, bound: Sequence[str], touched: Sequence[str],
    *later: Callable[[], Any],
) -> Iterable[int]:  # fmt: skip
    """The numbers of the arms to run: one where the tests are known, else each in turn."""
    for k, evaluate in enumerate((lambda: test, *later)):
        value = evaluate()
        if isinstance(value, _TRACED):
            return captured_if(value, later[k:], names, bound, touched, k)
        if value:
            return (k,)
    return (len(later) + 1,)


def for_(
    iterable: Any, names: Names, bound: Sequence[str], touched: Sequence[str],
    flags: Sequence[str], loop_number: int, hint: str,
) -> Iterable[Any]:  # fmt: skip
    """The iterable itself, or the passes of a captured loop over an spmd.range."""
    if isinstance(iterable, Range):
        return captured_for(iterable, names, bound, touched, flags, loop_number, hint)
    if isinstance(iterable, Number):
        raise TracedValueError(
            "a for loop over a number",
            place=user_place(),
            expected="something to iterate over",
            found=repr(iterable),
            remedy="for i in spmd.range(n)",
        )
    return iterable  # type: ignore[no-any-return]


def while_(
    test: Callable[[], Any], names: Names, bound: Sequence[str], touched: Sequence[str],
    flags: Sequence[str], loop_number: int,
) -> Iterator[None]:  # fmt: skip
    context = Context.current()
    if context is None:
        return _plain_while(test)
    return captured_while(context, test, names, bound, touched, flags, loop_number)


def _plain_while(test: Callable[[], Any]) -> Iterator[None]:
    while test():
        yield


def left(names: Names, loop_number: int, *flags: Any) -> bool:
    """Whether a loop that Python runs was left by break or return."""
    if loop_number in names.tracing:
        return False
    return any(not isinstance(f, _TRACED) and f for f in flags)


returning = refuse_return
raising = refuse_raise


def plain(test: Any, what: str, reason: str) -> Any:
    """A test that Python itself takes; refuses one that is known only at run time."""
    if not isinstance(test, _TRACED):
        return test
    if what == "assert":
        raise UnsupportedError(
            "assert on a value known only at run time",
            place=user_place(),
            remedy="spmd.require(...) checks sizes at launch; return or print what depends on data",
        )
    raise UnsupportedError(
        f"`{what}` on a value known only at run time, in a function that cannot be compiled",
        place=user_place(),
        found=reason,
        remedy="move this part into a function of its own",
    )


def explain(error: builtins.NameError, names: Names) -> None:
    """Raise what says why a variable has no value, where a loop or branch took it away."""
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    if tb is None or not names.lost:
        return
    text = str(error).split("'")
    name = getattr(error, "name", None) or (text[1] if len(text) > 1 else "")
    found = explained(name, names, place_in(tb.tb_frame.f_code, tb.tb_lasti, tb.tb_lineno))
    if found is not None:
        raise found from None


# ---- operators ---------------------------------------------------------------------------------


def and_(first: Any, *rest: Callable[[], Any]) -> Any:
    value = first
    for k, later in enumerate(rest):
        if isinstance(value, _TRACED):
            return _logical(value, and_(later(), *rest[k + 1 :]), expr.and_, np.logical_and)
        if not value:
            return value
        value = later()
    return value


def or_(first: Any, *rest: Callable[[], Any]) -> Any:
    value = first
    for k, later in enumerate(rest):
        if isinstance(value, _TRACED):
            return _logical(value, or_(later(), *rest[k + 1 :]), expr.or_, np.logical_or)
        if value:
            return value
        value = later()
    return value


def _logical(a: Any, b: Any, symbolic: Callable[..., Any], ufunc: Any) -> Any:
    """The truth of two values, the first of them unknown: the right one is evaluated too."""
    left_, right = condition_of(a), condition_of(b)
    if left_ is not None and right is not None:
        return number(symbolic(left_, right), True)
    return ufunc(_truth(a), _truth(b))


def _truth(x: Any) -> Array:
    """x as a 0-d bool array; refuses what has several elements."""
    found = condition(x, "and, or, not")
    if isinstance(found, expr.Expr):
        return as_array(number(found, True))
    truth: Array = as_array(x).astype(np.bool_).reshape(())
    return truth


def not_(x: Any) -> Any:
    if not isinstance(x, _TRACED):
        return not x
    c = condition_of(x)
    return number(expr.not_(c), True) if c is not None else np.logical_not(_truth(x))


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le,
    "Gt": operator.gt, "GtE": operator.ge, "Is": operator.is_, "IsNot": operator.is_not,
    "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b,
}  # fmt: skip


def compare(ops: Sequence[str], first: Any, second: Any, *rest: Callable[[], Any]) -> Any:
    """A chain of comparisons; every operand is evaluated at most once."""
    held = _COMPARE[ops[0]](first, second)
    if not rest:
        return held
    return and_(held, lambda: compare(ops[1:], second, rest[0](), *rest[1:]))


def ifexp(test: Any, then: Callable[[], Any], other: Callable[[], Any]) -> Any:
    if not isinstance(test, _TRACED):
        return then() if test else other()
    return captured_switch(condition(test, "if"), (other, then), NO_NAMES)


# ---- calls -------------------------------------------------------------------------------------


def call(function: Any) -> Any:
    """What to call instead: helpers converted, built-ins that know unknown values."""
    if Context.current() is None:
        return function
    known = _BUILTINS.get(id(function))
    if known is not None:
        return known
    if isinstance(function, type):
        if issubclass(function, np.generic):
            return _scalar_type(function)
        return function
    from codegen.trace.dispatch import aware
    from codegen.trace.source import convert

    return aware(function) or convert(function)


def _scalar_type(cls: type[np.generic]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], _TRACED):
            return as_array(args[0]).astype(cls)
        return cls(*args, **kwargs)

    return make


def _extreme(plain_: Callable[..., Any], unknown: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        values = args
        if len(args) == 1 and isinstance(args[0], (list, tuple)):
            values = tuple(args[0])
        if kwargs or len(values) < 2 or not any(isinstance(v, _TRACED) for v in values):
            return plain_(*args, **kwargs)
        return unknown(*values)

    return extreme


def _range(*args: Any) -> Any:
    if any(isinstance(a, _TRACED) for a in args):
        unknown = next(a for a in args if isinstance(a, _TRACED))
        raise TracedValueError(
            "range(n) needs a Python integer, because it is unrolled while building",
            place=user_place(),
            expected="bounds known while building",
            found=f"{unknown!r}, known only at run time",
            remedy="for i in spmd.range(...), which is compiled to a loop",
        )
    return range(*args)


def _converted(plain_: type, dtype: Any) -> Callable[..., Any]:
    def convert_number(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or not isinstance(args[0], _TRACED):
            return plain_(*args, **kwargs)
        x = args[0]
        e = expr_of(x)
        if e is not None and plain_ is int:
            return number(e)
        if e is not None and plain_ is bool:
            return number(condition_of(x), True)  # type: ignore[arg-type]
        array = _truth(x) if plain_ is bool else as_array(x).astype(dtype)
        array = array.reshape(()) if array.ndim else array
        array.weak = plain_ is not bool
        return array

    return convert_number


def _len(x: Any) -> Any:
    if isinstance(x, Array) and x.ndim:
        return x.shape[0]
    return len(x)


# by id: what is called need not be hashable
_BUILTINS: dict[int, Callable[..., Any]] = {
    id(min): _extreme(min, minimum),
    id(max): _extreme(max, maximum),
    id(range): _range,
    id(int): _converted(int, np.int64),
    id(float): _converted(float, np.float64),
    id(bool): _converted(bool, np.bool_),
    id(len): _len,
}
