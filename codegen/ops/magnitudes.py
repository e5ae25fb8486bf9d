"""Comparisons of magnitudes with a number, without their square roots: abs(z) < 2.

Goes in: a comparison. Comes out: one of the sum of squares with the square of that number, or None.
Always holds: the answer for every z is that of abs, also of those that are infinite or NaN.
"""

from __future__ import annotations

from math import inf, nextafter, sqrt

from codegen.dtypes import BOOL, COMPLEX128, FLOAT64
from codegen.ir.plan import Apply, Literal, Load, LocalRead, M, Node

_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_FAR = 2.0**400  # numbers up to this one, and from its inverse on, have squares that are in range


def compared(fn: str, args: tuple[Node[M], ...]) -> Node[M] | None:
    """Return fn(abs(z), number), where z lies in memory or is kept: it is read more than once."""
    if fn not in _TURNED:
        return None
    a, b = args
    if isinstance(a, Literal):
        fn, a, b = _TURNED[fn], b, a
    if not (isinstance(a, Apply) and a.fn == "abs" and a.operand == COMPLEX128):
        return None
    (z,) = a.args
    if not isinstance(z, Load | LocalRead) or not (
        isinstance(b, Literal) and 1 / _FAR < b.value < _FAR
    ):
        return None
    limit = float(b.value)
    squared = _square(limit if fn in ("lt", "ge") else nextafter(limit, inf))
    parts = [Apply(part, FLOAT64, (z,), COMPLEX128) for part in ("real", "imag")]
    squares = tuple(Apply("mul", FLOAT64, (x, x), FLOAT64) for x in parts)
    total, edge = Apply("add", FLOAT64, squares, FLOAT64), Literal(squared, FLOAT64)
    if fn in ("lt", "le"):
        return Apply("lt", BOOL, (total, edge), FLOAT64)
    far = Apply("isinf", BOOL, (z,), COMPLEX128)  # whatever the other part is, NaN too
    return Apply("bit_or", BOOL, (Apply("ge", BOOL, (total, edge), FLOAT64), far), BOOL)


def _square(x: float) -> float:
    """Return the least number whose square root is x, or more."""
    square = x * x
    while sqrt(nextafter(square, 0)) >= x:
        square = nextafter(square, 0)
    while sqrt(square) < x:
        square = nextafter(square, inf)
    return square
