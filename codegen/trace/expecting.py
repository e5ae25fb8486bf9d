"""What a program expects while it runs: where it finds otherwise, its run ends with a message.

In: a truth value of the program, and what to say where it does not hold. Out: an `expect` op.
Always holds: the text is put together only where something does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import ProgramError, ShapeError
from codegen.ir.graph import Shape, Value
from codegen.ops import POSITION, Expect, Map
from codegen.progress import ARRAY, FIELD
from codegen.symbolic import expr
from codegen.symbolic.expr import LAUNCH, Expr
from codegen.trace import traced_text
from codegen.trace.array import as_array, as_value, is_traced
from codegen.trace.constants import broadcast_value
from codegen.trace.context import Context, require_context
from codegen.trace.control.regions import condition
from codegen.trace.number import expr_of, number
from codegen.trace.view import index_value

AT = object()  # in a text: the index of the first element that does not hold


def expect(context: Context, holds: Value, *text: Any, check: str = "") -> None:
    """End the run where `holds` (bool, of any shape) is not true everywhere, with this text: what
    is a Value (of the same shape, or 0-d) is shown as it is at the first such element; AT is that
    element's index. The first line is the message; more lines follow it, as an error's do. check:
    the row of CHECKS that asks for it."""
    parts, shown = [""], []
    for item in text:
        if item is AT:
            parts += [POSITION, ""]
        elif isinstance(item, Value):
            shown.append(item)
            parts += ["", ""]
        else:
            parts[-1] += str(item)
    context.emit(Expect(tuple(parts), check=check), (holds, *shown))


def asserted(test: Any, source: str, message: Callable[[], Any]) -> Any:
    """Return the test that Python's own `assert` gets; for one that is known only at run time,
    return True and end the run where it does not hold, with the text of the message."""
    if not is_traced(test):
        return test
    context = require_context("assert")
    holds = condition(test, "assert")
    if isinstance(holds, Expr):
        holds = as_value(context, number(holds, True), dtypes.BOOL)
    parts, shown = [""], []
    for piece in traced_text.shown(message()):
        if not isinstance(piece, str):
            shown.append(piece[0].read())
            parts += [piece[1], ""]
        elif FIELD in piece:
            raise ShapeError("the message of an assert has numbers with formats of their own",
                             expected="{x:>9}, or {x!r}", found="!r, !s or !a before a format",
                             remedy="leave one of them out")
        elif ARRAY in piece:
            raise ShapeError("the message of an assert shows numbers", expected="0-d arrays",
                             found="an array with dims", remedy="x[k], x.max(), …")
        else:
            parts[-1] += piece
    parts[-1] += f"\n  expected: {source}" if parts != [""] else f"assert {source} does not hold"
    context.emit(Expect(parts=tuple(parts)), (holds, *shown))
    return True


def within(
    context: Context, index: Expr | Value, extent: Expr, dim: int, size: Expr | None = None
) -> None:
    """Expect that an index, or each of an array of them, is inside a dim of this extent, if bounds
    are checked; negative ones count from the end. size: of the box that begins there."""
    if "bounds" not in context.checks or context.selecting:
        return
    last = extent - (expr.const(1) if size is None else size)
    if isinstance(index, Expr):
        if expr.nonneg(index + extent) and expr.nonneg(last - index):
            return
        index = index_value(context, index)
    context.remember(("within", index, extent, last), lambda: _within(context, index, extent, last,
                                                                      dim, size))


def _within(
    context: Context, index: Value, extent: Expr, last: Expr, dim: int, size: Expr | None
) -> bool:
    shape: Shape = index.type.shape
    if index.type.dtype != dtypes.INT64:
        index = context.emit_one(Map("cast", dtype=dtypes.INT64), index)

    # an empty box may stand anywhere
    holds = _compared(context, index, ge=-extent, le=last)
    element_text = (" (element ", AT, " of the indices)") if shape else ()
    message = f"index of dim {dim} is out of bounds: " if size is None else (
        f"a box begins out of bounds in dim {dim}: ")
    expect(context, holds, message, index, *element_text,
           "\n  expected: ", index_value(context, -extent), " to ", index_value(context, last),
           ", of an extent of ", index_value(context, extent),
           *((" for a box of ", index_value(context, size)) if size is not None else ()),
           check="bounds")
    return True


def _compared(context: Context, value: Value, **limits: Expr) -> Value:
    """Return whether every comparison, ge= or le=, with a limit holds."""
    holds = []
    for fn, limit in limits.items():
        wide = broadcast_value(context, index_value(context, limit), value.type.shape)
        holds.append(context.emit_one(Map(fn), value, wide))
    return reduce(lambda a, b: context.emit_one(Map("logical_and"), a, b), holds)


def nonzero(divisor: Any) -> None:
    """Return a divisor of Python's own numbers, for which Python raises ZeroDivisionError: refuse
    it where it is 0 for sure, refuse launches where it is known then; else end a run that checks
    bounds."""
    context, e = require_context("a division"), expr_of(divisor)
    if divisor == 0 if e is None else e == 0:
        raise ProgramError("division by zero", expected="a divisor that is not 0",
                           found=f"{divisor!r}")
    if e is None or expr.nonneg(e - 1) or expr.nonneg(-e - 1):
        return
    if {s.kind for s in e.symbols()} <= LAUNCH and context.in_every_launch:
        context.hold(expr.ne(e, 0), f"the divisor {e} is not 0")
    elif "bounds" in context.checks and not context.selecting:
        context.remember(("nonzero", e), lambda: _nonzero(context, e))


def _nonzero(context: Context, e: Expr) -> bool:
    value, zero = (index_value(context, x) for x in (e, expr.const(0)))
    holds = context.emit_one(Map("ne"), value, zero)
    expect(context, holds, f"division by zero: {e} is 0\n  expected: a divisor that is not 0\n"
           "  try:      a // b if b != 0 else 0", check="bounds")
    return True


def at_least(least: int, extent: Expr, operation: str) -> None:
    """Expect that an axis has at least `least` elements, where only a run knows how many there are:
    launches with fewer are refused; an operation that may not run at all ends the run."""
    context = require_context(operation)
    if not extent.has_extents or context.rank_view or expr.nonneg(extent - least):
        return
    holds = expr.ge(extent, least)
    text = f"{operation} needs {least} or more elements along its axis"
    if context.in_every_launch:
        context.hold(holds, f"{text}: {extent} >= {least}")
    elif not context.selecting:
        context.remember(("at least", holds), lambda: _at_least(context, holds, text, extent))


def _at_least(context: Context, holds: Expr, text: str, extent: Expr) -> bool:
    expect(context, as_value(context, number(holds, True), dtypes.BOOL), text,
           f"\n  expected: {extent} of at least that\n  found:    ", index_value(context, extent))
    return True


def may_be_empty(extent: Expr) -> bool:
    """Return whether only a run knows if there are elements."""
    return extent.has_extents and not expr.nonneg(extent - 1)


def held_by(x: Any, dtype: DType) -> bool:
    """Return whether it is proved that an integer type holds an integer known by a formula."""
    info = np.iinfo(dtype.name)
    return bool(dtype.name == "int64" or (
        expr.nonneg(x.expr - int(info.min))
        and (info.max >= 2**63 - 1 or expr.nonneg(-x.expr + int(info.max)))))


def hold_in(x: Any, dtype: DType) -> None:
    """Ask that an integer type holds an integer known by a formula. A launch is refused where its
    sizes and scalars make it too large; other values end a run that checks bounds."""
    context, e, info = require_context("an integer"), x.expr, np.iinfo(dtype.name)
    if held_by(x, dtype):
        return
    low, high = int(info.min), None if info.max >= 2**63 - 1 else int(info.max)
    if {s.kind for s in e.symbols()} <= LAUNCH and context.in_every_launch:
        limits = [(e - low, f"{e} >= {low}")]
        limits += [] if high is None else [(-e + high, f"{e} <= {high}")]
        for least, text in limits:
            if not expr.nonneg(least):
                context.hold(expr.ge0(least), f"{text}, as {dtype.name} holds")
    between(x, low, high, f"an integer is out of bounds for {dtype.name}",
            "x.astype(np.int64), an array that holds it")


def between(x: Any, low: int, high: int | None, message: str, remedy: str) -> None:
    """Expect integers that lie between two numbers, as NumPy asks of them: refuse them where they
    are known and do not; where bounds are checked, end the run at the first that does not."""
    context, e = require_context(message), expr_of(x)
    limits = f"{low} or more" if high is None else f"{low} to {high}"
    if e is not None:
        below, above = expr.nonneg(e - low), high is None or expr.nonneg(-e + (high or 0))
        if below and above:
            return
        wrong = [e] if expr.nonneg(-e + (low - 1)) or (
            high is not None and expr.nonneg(e - (high + 1))) else []
    else:
        array = as_array(x)
        data = np.empty(0, int) if array.known is None else array.known
        wrong = data[(data < low) | (data > (data if high is None else high))].tolist()
    if wrong:
        raise ShapeError(message, expected=limits, found=str(wrong[0]), remedy=remedy)
    if "bounds" not in context.checks or context.selecting or (e is None and array.is_known):
        return
    value = as_value(context, x, dtypes.INT64)
    most = {} if high is None else {"le": expr.const(high)}
    holds = _compared(context, value, ge=expr.const(low), **most)
    element_text = (" (element ", AT, ")") if value.type.shape else ()
    after = f"\n  expected: {limits}\n  try:      {remedy}"
    expect(context, holds, f"{message}: ", value, *element_text, after, check="bounds")
