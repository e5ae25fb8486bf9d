"""The operators of Number: symbolic between integers; else those of 0-d arrays.

number.py is below NumPy's functions; methods.py puts these methods into it, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.trace.array import as_array
from codegen.trace.context import Context
from codegen.trace.expecting import nonzero
from codegen.trace.integer_tables import power_of_two
from codegen.trace.number import DEEPEST, Number, expr_of, is_strong, number
from codegen.trace.numpy import dispatch
from codegen.trace.numpy.operators import bitwise, operate


def _arithmetic(symbolic: Any, ufunc: str, truth: bool = False, divides: bool = False) -> Any:
    """Return a binary operator and its reflection: symbolic for integers, else on 0-d arrays.

    symbolic: of two Exprs, an Expr; None where that is none. divides: Python's own numbers raise
    where b is 0.
    """

    def apply(a: object, b: object) -> Any:
        left, right = expr_of(a), expr_of(b)
        strong = is_strong(a) or is_strong(b)
        if divides and not strong and _is_python(a) and _is_python(b):
            nonzero(b)
        of_truths = strong and any(getattr(x, "truth", False) for x in (a, b))
        if symbolic is not None and left is not None and right is not None and not of_truths:
            formula = symbolic(left, right)
            if formula.depth <= DEEPEST:
                return number(formula, truth, strong)
        return operate(getattr(np, ufunc), a, b)

    def forward(self: Number, other: object) -> Any:
        return apply(self, other)

    def reflected(self: Number, other: object) -> Any:
        return apply(other, self)

    return forward, reflected


def _is_python(x: object) -> bool:
    """Return whether x is a number of Python's own. NumPy divides by zero without an error."""
    return isinstance(x, (Number, int, float)) and not isinstance(x, np.generic)


def _logic(symbolic: Callable[[Expr, Expr], Expr], ufunc: str) -> Any:
    """Return the methods for & and |: symbolic between truth values, bit by bit on integers."""

    def forward(self: Number, other: object) -> Any:
        bits = isinstance(other, (bool, np.bool_)) or (isinstance(other, Number) and other.truth)
        right = expr_of(other)
        if self.truth and bits and right is not None:
            return number(symbolic(self.expr, right), True, self.strong or is_strong(other))
        if not bits and not self.truth and right is not None:
            both = _both(self.expr, right)
            if both is not None:
                strong = self.strong or is_strong(other)
                return number(_BITWISE[ufunc](self.expr, right, both), strong=strong)
        return bitwise(getattr(np, ufunc), self, other)

    return forward


# From a, b and a & b.
_BITWISE: dict[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "bitwise_and": lambda a, b, both: both,
    "bitwise_or": lambda a, b, both: a + b - both,
    "bitwise_xor": lambda a, b, both: a + b - 2 * both,
}


def _both(a: Expr, b: Expr) -> Expr | None:
    """Return a & b as a formula, where one of them is a number with few bits or a power of two."""
    for e, mask in ((a, b), (b, a)):
        if mask.is_const:
            return _bits(e, mask.value)
        (sym,) = mask.atoms() if len(mask.atoms()) == 1 else (None,)
        if isinstance(sym, Sym) and sym.divides == expr.POWERS and mask == expr.symbol(sym):
            return e // mask % 2 * mask
    return None


def _bits(e: Expr, mask: int) -> Expr | None:
    """Return e & mask as a formula; None where the mask has many separate bits, or all of them."""
    if mask < 0 or mask.bit_count() > 4 and mask & (mask + 1):
        return None
    if mask & (mask + 1) == 0:
        return expr.mod(e, expr.const(mask + 1))
    places = [1 << k for k in range(mask.bit_length()) if mask >> k & 1]
    return sum((e // bit % 2 * bit for bit in places), expr.const(0))


def _power(a: Expr, b: Expr) -> Expr | None:
    if b.is_const and 0 <= b.value <= 8:
        return expr.product([a] * b.value)
    return None


class NumberMethods:
    """Number gets its operators and conversions from this class; `self` is a Number."""

    __add__, __radd__ = _arithmetic(lambda a, b: a + b, "add")
    __sub__, __rsub__ = _arithmetic(lambda a, b: a - b, "subtract")
    __mul__, __rmul__ = _arithmetic(lambda a, b: a * b, "multiply")
    __floordiv__, __rfloordiv__ = _arithmetic(expr.floordiv, "floor_divide", divides=True)
    __mod__, __rmod__ = _arithmetic(expr.mod, "remainder", divides=True)
    __truediv__, __rtruediv__ = _arithmetic(None, "divide", divides=True)
    __lt__, _ = _arithmetic(expr.lt, "less", True)
    __le__, _ = _arithmetic(expr.le, "less_equal", True)
    __gt__, _ = _arithmetic(expr.gt, "greater", True)
    __ge__, _ = _arithmetic(expr.ge, "greater_equal", True)
    __and__ = __rand__ = _logic(expr.and_, "bitwise_and")
    __or__ = __ror__ = _logic(expr.or_, "bitwise_or")
    __xor__ = __rxor__ = _logic(lambda a, b: a + b - 2 * a * b, "bitwise_xor")

    def __eq__(self: Any, other: object) -> Any:
        return self._compare(other, expr.eq, np.equal)

    def __ne__(self: Any, other: object) -> Any:
        return self._compare(other, expr.ne, np.not_equal)

    def _compare(self: Any, other: object, symbolic: Callable[..., Expr], ufunc: np.ufunc) -> Any:
        right = expr_of(other)
        if right is not None:
            return number(symbolic(self.expr, right), True, self.strong or is_strong(other))
        if other is None or isinstance(other, (str, bytes, tuple)):
            return NotImplemented
        return operate(ufunc, self, other)

    def __pow__(self: Any, other: object) -> Any:
        right = expr_of(other)
        if right is not None and (power := _power(self.expr, right)) is not None:
            return number(power, strong=self.strong or is_strong(other))
        if self.strong or is_strong(other):
            return operate(np.power, self, other)
        if right is not None and right.is_const and right.value < 0:  # a float, as Python's
            return operate(np.power, operate(np.multiply, self, 1.0), other)
        return operate(np.power, self, other)

    def __rpow__(self: Any, other: object) -> Any:
        if type(other) is int and other == 2 and expr.nonneg(self.expr):
            context = Context.current()
            computed = {s.kind for s in self.expr.symbols()} <= {"counter", "extent", "scalar"}
            if context is not None and context.selecting and not computed:
                if (formula := power_of_two(self.expr)) is not None:
                    return number(formula)
            return self.__rlshift__(1)
        return operate(np.power, other, self)

    def __lshift__(self: Any, other: object) -> Any:
        if isinstance(other, int) and 0 <= other < 62:
            return self * (1 << other)
        return operate(np.left_shift, self, other)

    def __rshift__(self: Any, other: object) -> Any:
        if isinstance(other, int) and 0 <= other < 62:
            return self // (1 << other)
        return operate(np.right_shift, self, other)

    def __rlshift__(self: Any, other: object) -> Any:
        return operate(np.left_shift, other, self)

    def __rrshift__(self: Any, other: object) -> Any:
        return operate(np.right_shift, other, self)

    def __divmod__(self: Any, other: object) -> Any:
        return self // other, self % other

    def __rdivmod__(self: Any, other: object) -> Any:
        return other // self, other % self

    def __matmul__(self: Any, other: object) -> Any:
        return as_array(self) @ other

    def astype(self: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        return as_array(self).astype(dtype)

    def __array_ufunc__(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return dispatch.call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return dispatch.call_function(function, args, kwargs)
