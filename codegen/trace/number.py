"""Number: a symbolic integer in the user's hands (axis indices, counters, run-time int scalars).

Integer arithmetic and comparisons stay symbolic, so that a Number may stand in subscripts and
extents; with floats, arrays and NumPy functions it turns into a weak 0-d array.
Always holds: a Number is never constant; `number` gives a Python int or bool where it would be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from codegen import expr
from codegen.errors import TracedValueError
from codegen.expr import Expr, Sym
from codegen.trace.context import refuse_constant, user_place

UNHASHED = (
    "np.array([...])[k] looks a number up; if and elif choose; ppermute takes perm=[(0, 1), …]"
)


def number(e: Expr, truth: bool = False) -> Any:
    """A Python int (bool for a truth value) where e is constant, else a Number."""
    if e.is_const:
        return bool(e.value) if truth else e.value
    return Number(e, truth)


def expr_of(x: object) -> Expr | None:
    """The Expr of a Number or of a Python or NumPy integer; None for anything else."""
    if isinstance(x, Number):
        return x.expr
    if isinstance(x, (bool, int, np.bool_, np.integer)):
        return expr.const(int(x))
    return None


DEEPEST = 10  # operations in each other in one formula: beyond it a number is computed step by step


def condition_of(x: object) -> Expr | None:
    """The truth (0 or 1) of a Number or Python number as an Expr; None for anything else."""
    if isinstance(x, Number):
        return x.expr if x.truth else expr.ne(x.expr, 0)
    if isinstance(x, (bool, int, float, np.bool_, np.integer, np.floating)):
        return expr.const(int(bool(x)))
    return None


def _as_array(x: object) -> Any:
    from codegen.trace.array import as_array

    return as_array(x)


def _arithmetic(symbolic: Any, ufunc: str, truth: bool = False, divides: bool = False) -> Any:
    """A binary operator and its reflection: symbolic for integers, else on 0-d arrays.

    symbolic: of two Exprs, an Expr; None where that is none. divides: Python's own numbers raise
    where b is 0.
    """

    def apply(a: object, b: object) -> Any:
        left, right = expr_of(a), expr_of(b)
        if divides and _is_python(a) and _is_python(b):
            from codegen.trace.expecting import nonzero

            nonzero(b)
        if symbolic is not None and left is not None and right is not None:
            found = symbolic(left, right)
            if found.depth <= DEEPEST:
                return number(found, truth)
        from codegen.trace.elementwise import operate

        return operate(getattr(np, ufunc), a, b)

    def forward(self: Number, other: object) -> Any:
        return apply(self, other)

    def reflected(self: Number, other: object) -> Any:
        return apply(other, self)

    return forward, reflected


def _is_python(x: object) -> bool:
    """A number of Python's own. NumPy divides by zero without an error."""
    return isinstance(x, (Number, int, float)) and not isinstance(x, np.generic)


def _logic(symbolic: Callable[[Expr, Expr], Expr], ufunc: str) -> Any:
    """& and |: symbolic between truth values, bit by bit on integers."""

    def forward(self: Number, other: object) -> Any:
        bits = isinstance(other, (bool, np.bool_)) or (isinstance(other, Number) and other.truth)
        right = expr_of(other)
        if self.truth and bits and right is not None:
            return number(symbolic(self.expr, right), True)
        if not bits and not self.truth and right is not None:
            both = _both(self.expr, right)
            if both is not None:
                return number(_BITWISE[ufunc](self.expr, right, both))
        from codegen.trace.elementwise import bitwise

        return bitwise(getattr(np, ufunc), self, other)

    return forward


# From a, b and a & b.
_BITWISE: dict[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "bitwise_and": lambda a, b, both: both,
    "bitwise_or": lambda a, b, both: a + b - both,
    "bitwise_xor": lambda a, b, both: a + b - 2 * both,
}


def _both(a: Expr, b: Expr) -> Expr | None:
    """a & b as a formula, where one of them is a number with few bits or a power of two."""
    for e, mask in ((a, b), (b, a)):
        if mask.is_const:
            return _bits(e, mask.value)
        (sym,) = mask.atoms() if len(mask.atoms()) == 1 else (None,)
        if isinstance(sym, Sym) and sym.divides == expr.POWERS and mask == expr.symbol(sym):
            return e // mask % 2 * mask
    return None


def _bits(e: Expr, mask: int) -> Expr | None:
    """e & mask as a formula; None where the mask has many bits apart, or all of them."""
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


class Number:
    """A symbolic integer; `truth` marks the result of a comparison (0 or 1, printed as a bool)."""

    __array_priority__ = 1000
    __slots__ = ("expr", "truth")

    def __init__(self, e: Expr, truth: bool = False) -> None:
        self.expr = e
        self.truth = truth

    def __repr__(self) -> str:
        return f"<symbolic {self.expr}>"

    def __str__(self) -> str:
        return self.__format__("")

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

    def __eq__(self, other: object) -> Any:
        return self._compare(other, expr.eq, np.equal)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, expr.ne, np.not_equal)

    def _compare(self, other: object, symbolic: Callable[..., Expr], ufunc: np.ufunc) -> Any:
        right = expr_of(other)
        if right is not None:
            return number(symbolic(self.expr, right), True)
        if other is None or isinstance(other, (str, bytes, tuple)):
            return NotImplemented
        from codegen.trace.elementwise import operate

        return operate(ufunc, self, other)

    def __pow__(self, other: object) -> Any:
        right = expr_of(other)
        if right is not None and (power := _power(self.expr, right)) is not None:
            return number(power)
        from codegen.trace.elementwise import operate

        if right is not None and right.is_const and right.value < 0:  # a float, as Python's
            return operate(np.power, operate(np.multiply, self, 1.0), other)
        return operate(np.power, self, other)

    def __rpow__(self, other: object) -> Any:
        from codegen.trace.elementwise import operate

        return operate(np.power, other, self)

    def __lshift__(self, other: object) -> Any:
        if isinstance(other, int) and 0 <= other < 62:
            return self * (1 << other)
        from codegen.trace.elementwise import operate

        return operate(np.left_shift, self, other)

    def __rshift__(self, other: object) -> Any:
        if isinstance(other, int) and 0 <= other < 62:
            return self // (1 << other)
        from codegen.trace.elementwise import operate

        return operate(np.right_shift, self, other)

    def __rlshift__(self, other: object) -> Any:
        from codegen.trace.elementwise import operate

        return operate(np.left_shift, other, self)

    def __rrshift__(self, other: object) -> Any:
        from codegen.trace.elementwise import operate

        return operate(np.right_shift, other, self)

    def __divmod__(self, other: object) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> Any:
        return other // self, other % self

    def __matmul__(self, other: object) -> Any:
        return _as_array(self) @ other

    def __neg__(self) -> Any:
        return number(-self.expr)

    def __pos__(self) -> Any:
        return Number(self.expr)

    def __invert__(self) -> Any:
        return number(1 - self.expr, True) if self.truth else number(-self.expr - 1)

    def __abs__(self) -> Any:
        return number(expr.maximum(self.expr, -self.expr))

    # ---- what a Python number also has -------------------------------------------------------

    @property
    def dtype(self) -> Any:
        return np.dtype(np.bool_ if self.truth else np.int64)

    shape: tuple[int, ...] = ()
    ndim = 0
    size = 1

    @property
    def real(self) -> Number:
        return self

    @property
    def imag(self) -> int:
        return 0

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        return _as_array(self).astype(dtype)

    def item(self) -> Number:
        return self

    def conjugate(self) -> Number:
        return self

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from codegen.trace import dispatch

        return dispatch.call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from codegen.trace import dispatch

        return dispatch.call_function(function, args, kwargs)

    # ---- where Python needs a value while building -------------------------------------------

    def __bool__(self) -> bool:
        self._unknown("a truth value", "if, while, and, or, not in the program's own source are "
                      "compiled; elsewhere use np.where or spmd.cond")  # fmt: skip

    def __index__(self) -> int:
        self._unknown("a Python integer", "use spmd.range for loops, spmd.zeros(shape) for arrays; "
                      "only a program parameter is known while building")  # fmt: skip

    __int__ = __index__

    def __float__(self) -> float:
        self._unknown("a Python float", "use the number as it is: NumPy functions take it")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._unknown("a NumPy array", "use the number as it is; to subscript a NumPy array a with "
                      "it: spmd.asarray(a)[x]")  # fmt: skip

    def __hash__(self) -> int:
        self._unknown("a known key of a dict or set", UNHASHED)

    def __iter__(self) -> NoReturn:
        raise TypeError("a symbolic number is not iterable: use spmd.range(n)")

    def __format__(self, spec: str) -> str:
        self._unknown("text", 'spmd.print("... {}", value) prints it while the program runs')

    def _unknown(self, needed: str, remedy: str) -> NoReturn:
        refuse_constant()
        raise TracedValueError(
            f"Python needs a value that only the run knows: {self.expr}",
            place=user_place(),
            expected=needed,
            found="a number that depends on the index, the mesh, a scalar or a loop counter"
            + where_asked(needed),
            remedy=remedy,
        )


def where_asked(needed: str) -> str:
    """Why the `if` that asks for a truth value is not compiled."""
    from codegen.trace.source import why_unconverted

    why = why_unconverted() if needed == "a truth value" else ""
    return f"; {why}" if why else ""


@dataclass(frozen=True)
class Maybe:
    """A number that stands only where `holds` is 1; None elsewhere. Made by `choose`."""

    value: Expr
    holds: Expr


def maybe(x: object) -> Maybe | None:
    """A destination that a `to` function may give: None, an integer, a Number or a Maybe."""
    if x is None:
        return Maybe(expr.const(0), expr.const(0))
    if isinstance(x, Maybe):
        return x
    e = expr_of(x)
    return None if e is None else Maybe(e, expr.const(1))


def choose(condition: object, a: object, b: object) -> Any:
    """`a if condition else b` of Numbers and Nones, both arms evaluated (Context.selecting)."""
    c = condition_of(condition)
    first, second = maybe(a), maybe(b)
    if c is None or first is None or second is None:
        raise TracedValueError(
            "this `a if condition else b` cannot be computed with numbers",
            place=user_place(),
            expected="a condition on numbers, and arms that are integers, numbers or None",
            found=f"{type(a).__name__} and {type(b).__name__}",
        )
    if c.is_const:
        return a if c.value else b
    truth = all(isinstance(x, (bool, np.bool_)) or getattr(x, "truth", False) for x in (a, b))
    if first.holds == 1 and second.holds == 1:
        return number(expr.select(c, first.value, second.value), truth)
    holds = expr.select(c, first.holds, second.holds)
    if second.holds == 0:
        return Maybe(first.value, holds)
    if first.holds == 0:
        return Maybe(second.value, holds)
    return Maybe(expr.select(c, first.value, second.value), holds)


def minimum(*values: Any) -> Any:
    """Built-in min of numbers and 0-d arrays."""
    return _extreme(values, expr.minimum, np.minimum)


def maximum(*values: Any) -> Any:
    """Built-in max of numbers and 0-d arrays."""
    return _extreme(values, expr.maximum, np.maximum)


def _extreme(values: tuple[Any, ...], symbolic: Callable[..., Expr], ufunc: np.ufunc) -> Any:
    from codegen.trace.elementwise import operate

    out = values[0]
    for x in values[1:]:
        a, b = expr_of(out), expr_of(x)
        out = operate(ufunc, out, x) if a is None or b is None else number(symbolic(a, b))
    return out
