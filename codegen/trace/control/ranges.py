"""spmd.range: the loop that is compiled. Bounds may be integers, numbers or 0-d integer arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from codegen.errors import DtypeError, TracedValueError, UnsupportedError, UsageError
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace import known_arrays
from codegen.trace.array import Array
from codegen.trace.context import require_context
from codegen.trace.control.computed_symbols import as_formula
from codegen.trace.control.conversion import in_a_for_statement
from codegen.trace.number import expr_of


class Range:
    """start, stop and step as given: Python integers, Numbers or 0-d arrays."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self.start, self.stop, self.step = start, stop, step

    def __iter__(self) -> Iterator[int]:
        bounds = [expr_of(b) for b in (self.start, self.stop, self.step)]
        if all(b is not None and b.is_const for b in bounds):
            return iter(range(*(b.value for b in bounds if b is not None)))
        why, remedy = in_a_for_statement()
        raise TracedValueError(
            "spmd.range can only stand in a for statement",
            expected="for i in spmd.range(n): in the program's own source", found=f"{self!r}{why}",
            remedy=remedy,
        )

    def __reversed__(self) -> Range:
        _, sign = step_of(self)
        last = self.start + (self.stop - self.start - sign) // self.step * self.step
        return Range(last, self.start - self.step, -self.step)

    def __len__(self) -> Any:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"spmd.range({self.start!r}, {self.stop!r}, {self.step!r})"


def spmd_range(start: Any, stop: Any = None, step: Any = 1) -> Range:
    """Return a range whose `for` loop is compiled, and runs on the ranks.

    Outside of a program it is range itself, so that functions with such loops run in plain NumPy.

    `reversed(spmd.range(n))` counts down. Bounds are integers, or numbers that only the run knows:
    scalars, axis sizes, the index, counters, integer arrays of shape (). The sign of the step is
    known while building. Names that
    the body rebinds are carried from turn to turn and keep their shape and dtype (CarryError
    otherwise).

    Example::

        @spmd.program(mesh=("r",))
        def powers(n: int = 5):
            turns = spmd.scalar("turns", 3)
            x = spmd.input("x", (n,), np.int64, layout=("r",), default=lambda i: i)
            for i in spmd.range(turns):
                x = x * 2 + i
            return x

        print(powers.eager(turns=2))    # [ 1  5  9 13 17]
    """
    require_context("spmd.range")
    start, stop = (0, start) if stop is None else (start, stop)
    return Range(*(_bound(x) for x in (start, stop, step)))


def step_of(bounds: Range) -> tuple[Expr, int]:
    """Return the step and its sign."""
    e = expr_of(bounds.step)
    if e is not None:
        for sign in (1, -1):
            if expr.nonneg(e * sign - 1):
                return e, sign
        if e == 0:
            raise UsageError("spmd.range() step must not be zero")
    raise UnsupportedError(
        "the sign of a step must be known while building", found=repr(bounds.step),
        remedy="loop over spmd.range(count) and compute start + k * step",
    )


def _bound(x: Any) -> Any:
    x = known_arrays.plain(x)
    if isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype.kind in "iu":
        x = int(x)
    e = expr_of(x)
    if e is not None and e.is_const and not -(2**63) <= e.value < 2**63:
        raise DtypeError("a bound of spmd.range is no integer of 64 bits",
                         expected="-2**63 to 2**63 - 1", found=str(e.value))
    if e is not None:
        return x
    if isinstance(x, Array) and x.ndim == 0 and x.dtype.kind in "iu":
        return as_formula(x)
    raise DtypeError("a bound of spmd.range must be an integer",
                     expected="a Python integer, a number or a 0-d integer array",
                     found=str(x.type) if isinstance(x, Array) else repr(x))
