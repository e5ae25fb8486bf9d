"""Number: a symbolic integer in the user's code (axis indices, counters, run-time int scalars).

Integer arithmetic and comparisons stay symbolic, so that a Number may stand in subscripts and
extents; with floats, arrays and NumPy functions it turns into a weak 0-d array.
Always holds: a Number is never constant; `number` gives a Python int or bool where it would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from codegen.errors import TracedValueError
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.context import Context, refuse_constant, require_context
from codegen.trace.control.conversion import why_unconverted
from codegen.user import dims

# For who makes a text of what only the run knows.
TEXT_REMEDY = (
    'print(f"… {value}"), or spmd.print("… {}", value), prints it while the program runs; '
    'assert test, f"… {value}" shows it where a test fails'
)



def no_text(text: str) -> TracedValueError:
    """Return the error of a text that is made while building, of what only the run knows.

    text: how it is made, and of what.
    """
    return TracedValueError(
        "this text shows a value that only the run knows", found=text, remedy=TEXT_REMEDY,
        expected="a text of values that are known while building")


UNHASHED = (
    "np.array([...])[k] looks a number up; if and elif choose; ppermute takes perm=[(0, 1), …]"
)


def number(e: Expr, truth: bool = False, strong: bool = False) -> Any:
    """Return a Python int (bool for a truth value) where e is constant, else a Number. strong: one
    of NumPy's."""
    if not e.is_const:
        return Number(e, truth, strong)
    if strong:
        return np.bool_(e.value) if truth else np.int64(e.value)
    return bool(e.value) if truth else e.value


def is_strong(x: object) -> bool:
    """Return whether x is a formula that promotes as NumPy's integers do."""
    return isinstance(x, Number) and x.strong


def expr_of(x: object) -> Expr | None:
    """Return the Expr of a Number, a named dim, or a Python or NumPy integer; None for anything
    else."""
    if isinstance(x, Number):
        return x.expr
    if isinstance(x, (bool, int, np.bool_, np.integer)):
        return expr.const(int(x))
    return expr_of(x.extent()) if isinstance(x, dims.BoundedDim) else None


DEEPEST = 10  # operations in each other in one formula: beyond it a number is computed step by step


def condition_of(x: object) -> Expr | None:
    """Return the truth (0 or 1) of a Number or Python number as an Expr; None for anything else."""
    if isinstance(x, Number):
        return x.expr if x.truth else expr.ne(x.expr, 0)
    if isinstance(x, (bool, int, float, np.bool_, np.integer, np.floating)):
        return expr.const(int(bool(x)))
    return None


if TYPE_CHECKING:  # registration.py puts them into Number
    from codegen.trace.arithmetic import NumberMethods
else:
    NumberMethods = object


class Number(NumberMethods):
    """A symbolic integer; `truth` marks the result of a comparison (0 or 1, printed as a bool).

    strong: it promotes as NumPy's integers do, an element of an array; others as Python's.
    """

    __array_priority__ = 1000
    __slots__ = ("expr", "strong", "truth")

    def __init__(self, e: Expr, truth: bool = False, strong: bool = False) -> None:
        self.expr = e
        self.truth = truth
        self.strong = strong

    def __repr__(self) -> str:
        return f"<symbolic {self.expr}>"

    def __str__(self) -> str:
        return self.__format__("")

    def __neg__(self) -> Any:
        return number(-self.expr, strong=self.strong)

    def __pos__(self) -> Any:
        return Number(self.expr, strong=self.strong)

    def __invert__(self) -> Any:
        if self.truth and self.strong:
            return number(1 - self.expr, True, True)
        return number(-self.expr - 1, strong=self.strong)  # of Python's truth values too

    def __abs__(self) -> Any:
        return number(expr.maximum(self.expr, -self.expr), strong=self.strong)

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

    def item(self) -> Number:
        return Number(self.expr, self.truth)

    def conjugate(self) -> Number:
        return self

    # ---- where Python needs a value while building -------------------------------------------

    def __bool__(self) -> bool:
        self._unknown("a truth value", "if, while, and, or, not in the program's own source are "
                      "compiled; elsewhere use np.where or spmd.cond")

    def __index__(self) -> int:
        self._unknown("a Python integer", "use spmd.range for loops, spmd.zeros(shape) for arrays; "
                      "only a program parameter is known while building")

    __int__ = __index__

    def __float__(self) -> float:
        self._unknown("a Python float", "use the number as it is: NumPy functions take it")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._unknown("a NumPy array", "use the number as it is; to subscript a NumPy array a with "
                      "it: spmd.asarray(a)[x]")

    def __hash__(self) -> int:
        self._unknown("a known key of a dict or set", UNHASHED)

    def __iter__(self) -> NoReturn:
        raise TypeError("a symbolic number is not iterable: use spmd.range(n)")

    def __format__(self, spec: str) -> str:
        refuse_constant()
        raise no_text(f"a text of the number {self.expr}")

    def _unknown(self, needed: str, remedy: str) -> NoReturn:
        refuse_constant()
        raise TracedValueError(
            f"Python needs a value that only the run knows: {self.expr}", expected=needed,
            found="a number that depends on the index, the mesh, a scalar or a loop counter" +
            where_asked(needed), remedy=remedy,
        )


class DimNumber(Number):
    """The extent of a named dim, known at run time only. Its formula is looked up in the current
    trace, so that one object serves several traces."""

    __slots__ = ("at_most", "name")

    def __init__(self, name: str, at_most: int) -> None:
        self.name, self.at_most = name, at_most
        self.truth = self.strong = False

    @property
    def expr(self) -> Expr:  # type: ignore[override]
        return expr.symbol(require_context("a dim").dim(self.name, self.at_most))


def bounded_dim(name: str, at_most: int) -> DimNumber | None:
    """Return the extent of a named dim in the capture that is under way; None outside of any."""
    if Context.current() is None:
        return None
    extent = DimNumber(name, at_most)
    assert extent.expr is not None  # it is declared here
    return extent


def where_asked(needed: str) -> str:
    """Return why the `if` that asks for a truth value is not compiled."""
    why = why_unconverted() if needed == "a truth value" else ""
    return f"; {why}" if why else ""


@dataclass(frozen=True)
class Maybe:
    """A number that stands only where `holds` is 1; None elsewhere. Made by `choose`."""

    value: Expr
    holds: Expr


def maybe(x: object) -> Maybe | None:
    """Return a destination that a `to` function may give: None, an integer, a Number or a Maybe."""
    if x is None:
        return Maybe(expr.const(0), expr.const(0))
    if isinstance(x, Maybe):
        return x
    e = expr_of(x)
    return None if e is None else Maybe(e, expr.const(1))


def choose(condition: object, a: object, b: object) -> Any:
    """Return `a if condition else b` of Numbers and Nones, both arms evaluated
    (Context.selecting)."""
    c = condition_of(condition)
    first, second = maybe(a), maybe(b)
    if c is None or first is None or second is None:
        raise TracedValueError(
            "this `a if condition else b` cannot be computed with numbers",
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
