"""spmd.print and spmd.progress: what a program says while it runs, as text and numbers."""

from __future__ import annotations

import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from codegen.errors import UsageError
from codegen.ir.graph import Value
from codegen.ops import Print
from codegen.progress import ERROR, MARK, OPEN
from codegen.suggest import meant
from codegen.trace import traced_text
from codegen.trace.array import Array, Number, as_array
from codegen.trace.context import Context, require_context
from codegen.user.numbers import pace_spec


def print_(text: Any, *values: Any, every_rank: bool = False, **named: Any) -> None:
    """Print while the program runs: once, from index 0, or on every rank, after its index.

    text: as of str.format, with a place {} for each value; or an f-string. values: numbers, arrays
    of shape (), and 1-D arrays of up to 64 elements; `spmd.print("loss {:.4f} after {}", loss,
    step)`. A float32 has the digits that tell it from other float32 numbers: 0.1. UsageError for
    other arrays, and where places and values do not fit.
    """
    context = require_context("spmd.print")
    if isinstance(text, traced_text.Text) and not values and not named:
        _emit_lines(context, text.pieces, "", every_rank)
        return
    if not isinstance(text, str):
        values, text = (text, *values), " ".join(["{}"] * (len(values) + 1))
    parts: list[str] = [""]
    operands: list[Value] = []
    fields = _fields(text, values, named)
    for literal, spec, value in fields:
        parts[-1] += literal
        if value is _NOTHING:
            continue
        if not isinstance(value, (Array, Number, np.inexact)):
            parts[-1] += format(value, spec)
            continue
        _print_array(as_array(value), spec, parts, operands)
    context.emit(Print(parts=tuple(parts), every_rank=bool(every_rank)), operands)


_LINE_BYTES = 900  # of a Print op: the engine's lines have 1024
_NUMBER_BYTES = 40, 400  # of a number without a format, and with one


def printed(
    *values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None,
    flush: bool = False,
) -> None:
    """Print as Python's print does, while the program runs, once, from index 0.

    The text is Python's own, braces and all; arrays have up to 64 elements. file: sys.stdout or
    sys.stderr, which is written as it comes; into another one, what is known is written now.
    """
    context = require_context("print")
    standard = file is None or file in (sys.stdout, sys.__stdout__)
    if not standard and file not in (sys.stderr, sys.__stderr__):
        if any(map(traced_text.is_unknown, values)):
            raise UsageError("print into a file, of a value that only the run knows",
                             expected="file=sys.stdout or file=sys.stderr", found=f"{file!r}",
                             remedy="return the value from the program, and write it then")
        print(*values, sep=sep, end=end, file=file, flush=flush)
        return
    pieces: list[traced_text.Piece] = []
    for k, value in enumerate(values):
        pieces += [(" " if sep is None else sep) * (k > 0), *traced_text.shown(value)]
    pieces.append("\n" if end is None else end)
    if isinstance(pieces[-1], str) and pieces[-1].endswith("\n"):
        pieces[-1] = pieces[-1][:-1]  # a line of the engine's ends with it
    else:
        pieces.append(OPEN)
    _emit_lines(context, pieces, "" if standard else ERROR)


def _emit_lines(
    context: Context, pieces: Sequence[traced_text.Piece], begin: str, every_rank: bool = False
) -> None:
    """Emit a text as Print ops, each of a length that the engine has room for. begin: what each of
    its lines begins with."""
    parts, operands, left = [begin], list[Value](), _LINE_BYTES
    for piece in _short(pieces):
        text = piece.replace("\n", "\n" + begin) if isinstance(piece, str) else ""
        size = len(text.encode()) if isinstance(piece, str) else _NUMBER_BYTES[piece[1] != ""]
        if size > left:
            parts[-1] += OPEN
            context.emit(Print(parts=tuple(parts), every_rank=every_rank), operands)
            parts, operands, left = [begin], [], _LINE_BYTES
        left -= size
        parts[-1] += text
        if not isinstance(piece, str):
            parts += [piece[1], ""]
            operands.append(piece[0].read())
    context.emit(Print(parts=tuple(parts), every_rank=every_rank), operands)


def _short(pieces: Sequence[traced_text.Piece]) -> Iterator[traced_text.Piece]:
    """Yield the pieces, with long texts in several."""
    for piece in pieces:
        if isinstance(piece, str):
            yield from (piece[k : k + 200] for k in range(0, len(piece), 200))
        else:
            yield piece


def progress(
    step: Any, steps: Any, /, *, per_step: Mapping[str, float] | None = None, **shown: Any
) -> None:
    """Show the progress of a loop now and then: step, values, amounts per second, time left.

    - step: of the loop, from 0 on; steps: how many there are.
    - per_step: by name, how much a step does of something, known when you build: what that makes
      per second is shown.
    - shown: by name, numbers (arrays of shape ()).

    On a terminal it is one line that changes; elsewhere a line every 5 seconds, and the last one.
    Index 0 writes them to standard error. What is shown is computed in every step. Put it at the
    end of a step. UsageError for other arrays.

    Example::

        @program(mesh=("r",))
        def train(steps: int = 50):
            x = spmd.input("x", (64,), np.float32, layout=("r",), default=1)
            w = spmd.asarray(np.float32(0))
            for step in spmd.range(steps):
                loss = np.mean((w * x - 3) ** 2)
                w = w + 0.2 * np.mean((3 - w * x) * x)
                spmd.progress(step, steps, per_step={"samples": 64}, loss=loss)
            return w

        print(spmd.build(train).run(ranks=2).round(3))    # 3.0

    Standard error has: ``step 50 of 50, loss 2.1e-09, in 0:00``, and in longer runs samples/s
    """
    context = require_context("spmd.progress")
    if type(step) is int:
        step = np.int64(step)
    parts = [MARK]
    operands: list[Value] = []
    for value in (step + 1, steps):
        _add_number(np.int64(value) if type(value) is int else value, "", parts, operands)
        parts[-1] += "\t"
    parts[-1] = ""
    for name, amount in (per_step or {}).items():
        if not isinstance(amount, (int, float, np.number)):
            raise UsageError(f"spmd.progress: a step does {name}={amount!r}", found=repr(amount),
                             expected="a number that is known when you build",
                             remedy=f"{name}=…, without per_step, shows a number as it is")
        parts[-1] += f"\t/{name}={float(amount)}"
    for name, value in shown.items():
        if isinstance(value, (int, float, np.inexact)):
            parts[-1] += f"\t{name}={format(value, pace_spec(value))}"
        else:
            parts[-1] += f"\t{name}="
            _add_number(value, ".4g" if as_array(value).dtype.kind in "fc" else "", parts, operands)
    context.emit(Print(parts=tuple(parts), every_rank=False, paced=True), operands)


def _add_number(value: Any, spec: str, parts: list[str], operands: list[Value]) -> None:
    array = as_array(value)
    if array.ndim:
        raise UsageError("spmd.progress takes numbers: arrays of shape ()", expected="a number",
                         found=str(array.type), remedy="show a sum, a mean or one element of it")
    _print_array(array, spec, parts, operands)


_NOTHING = object()


def _fields(text: str, values: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Return (literal text, format spec, value) for each field of a text."""
    out: list[Any] = []
    used = 0
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError as error:
        raise _print_error(text, str(error)) from None
    for literal, field, spec, conversion in parsed:
        if field is None:
            out.append((literal, "", _NOTHING))
            continue
        if "{" in (spec or "") or conversion:
            raise _print_error(text, "nested formats and conversions are not compiled")
        key: Any = field
        if field == "":
            key, used = used, used + 1
        elif field.isdigit():
            key, used = int(field), max(used, int(field) + 1)
        try:
            value = values[key] if isinstance(key, int) else named[key]
        except (IndexError, KeyError):
            raise _print_error(text, f"no value for {{{field}}}") from None
        out.append((literal, spec or "", value))
    unused = [name for name in named if not any(field[2] is named[name] for field in out)]
    if unused:
        raise _print_error(text, f"no place for {unused[0]}=…", meant(
            unused[0], ("every_rank",), "{}=…"))
    if used < len(values):
        raise _print_error(text, f"{len(values)} values for {used} places")
    return out


def _print_error(text: str, reason: str, remedy: str = "") -> UsageError:
    return UsageError(f"spmd.print: {reason}",
                      expected='a place {} per value, as in "epoch {} loss {:.4f}"',
                      found=repr(text), remedy=remedy)


def _print_array(array: Array, spec: str, parts: list[str], operands: list[Value]) -> None:
    """Add an array to a message: a 0-d array is one operand; a short 1-D one is printed as NumPy
    prints a list."""
    try:
        format(np.zeros((), array.dtype)[()].item(), spec)
    except (ValueError, TypeError) as error:
        raise _print_error(spec, f"{error} (for {array.dtype})") from None
    if array.ndim == 0:
        parts += [spec, ""]
        operands.append(array.read())
        return
    extent = array.extents[0]
    if array.ndim > 1 or not extent.is_const or extent.value > 64:
        raise UsageError(
            "spmd.print takes 0-d arrays and 1-D ones of up to 64 elements", expected="a number",
            found=str(array.type),
            remedy="print one element or a reduction, or return the array from the program",
        )
    parts[-1] += "["
    for k in range(extent.value):
        parts += [spec, " " if k + 1 < extent.value else ""]
        operands.append(as_array(array[k]).read())
    parts[-1] += "]"
