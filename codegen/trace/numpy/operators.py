"""Operators of Python, and its min and max, on arrays and numbers: one `map`, or a formula.

Operands that are all Python's own numbers give a result that promotes as these do. In a formula of
the index, what is computed is a symbol.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from codegen.errors import ShapeError, TracedValueError, UsageError
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace import known_arrays
from codegen.trace.array import Array, Number, as_array
from codegen.trace.context import Context, require_context
from codegen.trace.control.computed_symbols import as_symbol, no_branches
from codegen.trace.number import expr_of, number
from codegen.trace.numpy.elementwise import (
    Operand,
    apply,
    extents_of,
    is_weak,
    normal,
    result_type,
    select,
)

_SYMBOLIC: dict[np.ufunc, Any] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul,
    np.floor_divide: operator.floordiv, np.remainder: operator.mod, np.negative: operator.neg,
    np.less: operator.lt, np.less_equal: operator.le, np.greater: operator.gt,
    np.greater_equal: operator.ge, np.equal: operator.eq, np.not_equal: operator.ne,
    np.bitwise_and: operator.and_, np.bitwise_or: operator.or_, np.bitwise_xor: operator.xor,
}


def _is_plain(x: Any) -> bool:
    plain = (bool, int, float, complex, np.generic, np.ndarray)
    return known_arrays.is_known(x) or isinstance(x, plain)


def operate(ufunc: np.ufunc, *inputs: Any, out: Array | None = None) -> Any:
    """Run an operator of Python on arrays: weak operands give a weak result."""
    if any(x is None or isinstance(x, (str, bytes, dict, NDArrayOperatorsMixin)) for x in inputs):
        return NotImplemented  # the mixin: x[mask], which knows better
    first = inputs[0]
    bools = isinstance(first, Array) and not first.scalar and first.dtype == np.bool_
    if ufunc is np.power and bools and type(inputs[1]) is int and inputs[1] == 2:
        ufunc, inputs = np.square, inputs[:1]  # as NumPy: an int8, where np.power makes an int64
    if all(map(_is_plain, inputs)) and not any(map(known_arrays.is_huge, inputs)):
        into = () if out is None else (out,)
        if all(map(known_arrays.writable, into)):
            options = {} if out is None else {"out": out}
            return known_arrays.evaluate(ufunc, None, inputs, options, into)
    return _recorded(ufunc, inputs, out)


def _recorded(ufunc: np.ufunc, inputs: Sequence[Any], out: Array | None) -> Any:
    """Record an operator on operands that are known only at run time."""
    _refuse_rows(ufunc, inputs)
    operands = [normal(x) for x in inputs]
    context = Context.current()
    if context is not None and context.selecting:  # in a formula, what is computed is a symbol
        operands = [as_symbol(x) for x in operands]
        if ufunc in _SYMBOLIC and all(expr_of(x) is not None for x in operands):
            return _SYMBOLIC[ufunc](*operands)
        with no_branches(context):
            known = tuple(expr_of(x) for x in operands)
            if None in known:
                return _operated(ufunc, operands, out)
            key = ("formula", ufunc.__name__, known)  # written twice, it is one number
            return context.remember(key, lambda: _operated(ufunc, operands, out))
    if ufunc in (np.equal, np.not_equal) and (known := _power_of_two(ufunc, operands)) is not None:
        return known
    return _operated(ufunc, operands, out)


def _refuse_rows(ufunc: np.ufunc, inputs: Sequence[Any]) -> None:
    """Refuse a list in arithmetic: a list times a number has so many copies of it, and Python has
    no other operator for the two."""
    if not any(isinstance(x, (list, tuple)) for x in inputs):
        return
    of_python = any(isinstance(x, (Number, Array)) and is_weak(x) for x in inputs)
    element = any(isinstance(x, Array) and x.scalar for x in inputs)
    if of_python or (element and ufunc is np.multiply):
        raise TracedValueError(
            "a list or tuple and a number that only the run knows have no operator",
            expected="a list times a number known while building: its elements, so many times",
            found=f"np.{ufunc.__name__} of " + " and ".join(type(x).__name__ for x in inputs),
            remedy="np.array([...]) of the list, for arithmetic on its elements",
        )


def _operated(ufunc: np.ufunc, operands: list[Operand], out: Array | None) -> Any:
    of_python = out is None and all(map(_is_pythons, operands))
    if of_python and ufunc in _COUNTING:
        operands = [_counted(x) for x in operands]
    result = apply(ufunc, *operands, out=out)
    if of_python and isinstance(result, Array):
        result.weak = True
    return result


_COUNTING = (np.add, np.subtract, np.multiply, np.negative, np.floor_divide, np.remainder, np.power,
             np.invert)


def _is_pythons(x: Operand) -> bool:
    """Return whether x is a number, or a truth value, that Python computes with: not an element of
    an array."""
    if isinstance(x, Number):
        return not x.strong
    return is_weak(x) or type(x) is bool or getattr(x, "weak", False)


def _counted(x: Operand) -> Operand:
    """Return a truth value of Python's as 0 or 1, which it is in sums: True + True is 2."""
    if not isinstance(x, Array) or x.dtype != np.bool_:
        return int(x) if type(x) is bool else x
    count = as_array(x).astype(np.int64)
    count.weak = True
    return count


def bitwise(ufunc: np.ufunc, a: Number, b: Any) -> Any:
    """Compute & | ^ of integers that are no formula together: refuse them in `to=` of a permute,
    else take arrays.

    Of n & (n - 1) is remembered that it is 0 where n is a power of two: see _power_of_two.
    """
    context = require_context(f"np.{ufunc.__name__}")
    right = expr_of(b)
    if context.selecting and right is not None:
        raise UsageError(
            f"np.{ufunc.__name__} of {a.expr} and {right} cannot be a formula",
            expected="in to= of a ppermute one side is a number that is known while building, or "
            "surely a power of two: 1, doubled by d *= 2 or d <<= 1; 1 << k",
            found="two numbers that are known at run time only",
            remedy="arithmetic: i + d if i // d % 2 == 0 else i - d",
        )
    result = operate(ufunc, a, b) if right is None else apply(ufunc, *(as_array(x) for x in (a, b)))
    if right is not None and ufunc is np.bitwise_and:
        result.weak = True
        n, less = (a.expr, right) if a.expr - right == 1 else (right, a.expr)
        if n - less == 1 and expr.nonneg(less):
            power = expr.eq(expr.mod(expr.const(expr.POWERS), n), 0)
            context.remember(("power of two", result.read()), lambda: power)
    return result


def _power_of_two(ufunc: np.ufunc, operands: list[Operand]) -> Any:
    """Return n & (n - 1) == 0 as a condition: n divides a large power of two. None for anything
    else."""
    array = next((x for x in operands if isinstance(x, Array)), None)
    zero = any(type(x) is int and x == 0 for x in operands)
    if array is None or array.ndim or not zero:
        return None
    key = ("power of two", array.read())
    power = require_context("a condition").remember(key, lambda: None)
    if power is None:
        return None
    return number(power if ufunc is np.equal else 1 - power, True)


# ---- min and max ------------------------------------------------------------------------------


def minimum(*values: Any) -> Any:
    """Return built-in min of numbers and 0-d arrays."""
    return _extreme(values, expr.minimum, np.minimum, np.less)


def maximum(*values: Any) -> Any:
    """Return built-in max of numbers and 0-d arrays."""
    return _extreme(values, expr.maximum, np.maximum, np.greater)


def _extreme(
    values: tuple[Any, ...], symbolic: Callable[..., Expr], ufunc: np.ufunc, beyond: np.ufunc
) -> Any:
    out = values[0]
    for x in values[1:]:
        a, b = expr_of(out), expr_of(x)
        if a is None or b is None:
            out = _beyond_first(ufunc, beyond, out, x)
        else:
            out = number(symbolic(a, b))
    return out


def _beyond_first(ufunc: np.ufunc, beyond: np.ufunc, a: Operand, b: Operand) -> Any:
    """Return Python's max or min: the second where it is beyond the first, which NaN never is."""
    context = require_context("min and max")
    if any(e != 1 for x in (a, b) for e in extents_of(normal(x))):
        raise ShapeError(
            "min() and max() of arrays ask whether one array is the greater",
            expected="numbers, or one array to go through",
            found=" and ".join(str(x.type) if isinstance(x, Array) else repr(x) for x in (a, b)),
            remedy=f"np.{ufunc.__name__}(a, b), element by element",
        )
    if result_type(a, b).kind != "f" or context.selecting:
        return operate(ufunc, a, b)
    chosen = select(apply(beyond, b, a), b, a)
    chosen.weak = is_weak(a) and is_weak(b)
    return chosen
