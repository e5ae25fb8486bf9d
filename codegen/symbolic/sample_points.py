"""Sixteen points at which every Expr is known: what fails at one needs no search for a proof.

In: a symbol, the number of a point. Out: its value there, within its bounds; None: it has none.
Always holds: a value depends on the symbol's name, kind and bounds only. At the last two points the
mesh is large, and this rank and another one are at its opposite ends.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeAlias

from codegen.symbolic.meaning import MANY, OPERATIONS

if TYPE_CHECKING:
    from codegen.symbolic.terms import Sym

Column: TypeAlias = tuple[int | None, ...]  # a value for each point

POINTS, _ENDS = 16, 14
_LARGE_SIZE = 1500  # of an axis without a bound
_SIZES = (1, 2, 3, 4, 1, 5, 7, 2, 8, 3, 16, 6, 1500, 40)
_FREE = (0, 1, -1, 2, -5, 7, 3, -2, 100, 4, 13, -37, 5000, -5000)
_ABOVE = (0, 9, 1, 0, 2, 30, 4, 3, 17, 1, 5, 100, 5000, 64)


@cache
def _all_divisors(n: int) -> tuple[int, ...]:
    """Return all divisors of n; of a number beyond 2**40 those up to 2**20, and all if it is a
    power of two."""
    if n & (n - 1) == 0:
        return tuple(1 << k for k in range(n.bit_length()))
    small = [k for k in range(1, min(isqrt(n), 1 << 20) + 1) if n % k == 0]
    return tuple(sorted({*small, *(n // k for k in small)}))


def divisors(n: int, lo: int | None, hi: int | None) -> list[int]:
    """Return the divisors of n between lo and hi, both included; a bound of None is no bound."""
    return [k for k in _all_divisors(n) if (lo is None or lo <= k) and (hi is None or k <= hi)]


def column(sym: Sym) -> Column:
    return tuple(_sample(sym, point) for point in range(POINTS))


def sampled(op: str, columns: Sequence[Any]) -> Column:
    """Compute an operation on columns of sample values; a value is None where an argument is
    None."""
    if op == "number":
        return (columns[0],) * POINTS
    points = zip(*columns, strict=True)
    if op in MANY:
        compute = MANY[op]
        return tuple([None if None in point else compute(point) for point in points])
    return tuple([None if None in point else OPERATIONS[op](*point) for point in points])


def _sample(sym: Sym, point: int) -> int | None:
    lo = None if sym.lo is None else sym.lo.samples[point]
    hi = None if sym.hi is None else sym.hi.samples[point]
    if (sym.lo is not None and lo is None) or (sym.hi is not None and hi is None):
        return None
    mixed = zlib.crc32(f"{sym.name} {point}".encode())
    if sym.divides:
        choices = divisors(sym.divides, lo, hi)
        return choices[(0, -1, 0, -1)[point] if point < 4
                       else mixed % len(choices)] if choices else None
    if lo is not None and hi is not None:
        if hi < lo:
            return None
        if point >= _ENDS:
            return lo if (sym.kind == "coord") == (point == _ENDS) else hi
        return (lo, hi, lo, hi)[point] if point < 4 else (
            (lo, hi, lo + mixed % (hi - lo + 1), lo + mixed % (hi - lo + 1))[mixed >> 20 & 3])
    if point >= _ENDS and sym.kind == "size" and lo is not None and hi is None:
        return max(_LARGE_SIZE, lo)
    if sym.kind == "size" and sym.lo is not None:
        size = _SIZES[point] if point < 4 else _SIZES[mixed % _ENDS]
        return max(size, lo or 0)
    if lo is not None:
        return lo + (_ABOVE[point] if point < 4 else _ABOVE[mixed % _ENDS])
    if hi is not None:
        return hi - (_ABOVE[point] if point < 4 else _ABOVE[mixed % _ENDS])
    return _FREE[point] if point < 4 else _FREE[mixed % _ENDS]
