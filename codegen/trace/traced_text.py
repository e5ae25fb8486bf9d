"""Texts with values that only the run knows: f-strings in print and assert; elsewhere refused.

In: what the user's code makes a text of. Out: pieces for an op that prints, or an error with the
way out. Always holds: where all values are known, the text is Python's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from codegen import printed
from codegen.errors import UsageError
from codegen.progress import ARRAY, FIELD
from codegen.trace.array import Array, Number, as_array, is_traced
from codegen.trace.context import Context
from codegen.trace.number import no_text

MOST_ELEMENTS = 64  # of an array that is printed
_NUMPY_TEXT = repr(np.float64(0)).startswith("np.")  # NumPy 2 writes np.float64(0.0)
_UNKNOWN = ("<spmd array ", "<symbolic ")  # how reprs of values of the run begin
_CONVERTED: dict[int, Callable[[Any], Any]] = {  # by the letter of an f-string's conversion
    -1: lambda x: x, ord("s"): str, ord("r"): repr, ord("a"): ascii,
}

Piece = str | tuple[Array, str]  # text, or a number (an array of shape ()) and its format


class Text:
    """An f-string of a print or an assert, with values that only the run knows."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces

    def _refuse(self, *_: Any) -> NoReturn:
        refuse("a text that is printed, used as one that is known")

    __str__ = __repr__ = __format__ = __mod__ = __len__ = __iter__ = _refuse

    def __add__(self, other: Any) -> Text:
        return Text([*self.pieces, *_pieces(other)]) if _is_text(other) else NotImplemented

    def __radd__(self, other: Any) -> Text:
        return Text([*_pieces(other), *self.pieces]) if _is_text(other) else NotImplemented


def _is_text(x: Any) -> bool:
    return isinstance(x, (str, Text))


def _pieces(x: Any) -> Sequence[Piece]:
    return [x] if isinstance(x, str) else x.pieces


def fstring(*parts: Any) -> Any:
    """Return the value of an f-string that stands in a print or an assert. parts: texts, and tuples
    of a value, its format and its conversion (the number of a letter, or -1)."""
    pieces: list[Piece] = []
    for part in parts:
        if isinstance(part, str):
            pieces.append(part)
            continue
        value, spec, conversion = part
        pieces += _formatted(value, spec, conversion)
    known = [p for p in pieces if isinstance(p, str)]
    return "".join(known) if len(known) == len(pieces) else Text(pieces)


def _formatted(value: Any, spec: str, conversion: int) -> Iterator[Piece]:
    if not is_unknown(value):
        text = _CONVERTED[conversion](value)
        yield known_text(value, format(text, spec))
    elif conversion != -1:
        text = shown(value, of_repr=conversion in (ord("r"), ord("a")))
        yield from aligned(text, spec) if spec else text
    elif spec and (not is_traced(value) or np.ndim(value)):
        raise UsageError(f"the format {spec!r} is for one number", expected="a number",
                         found=_kind_text(value),
                         remedy="one element, a sum, or the array as it is")
    elif spec:
        _check(value, spec)
        yield as_array(value), spec
    else:
        yield from shown(value)


def aligned(pieces: Iterable[Piece], spec: str) -> Iterator[Piece]:
    """Yield the pieces of a text that takes a format as a whole: f"{x!r:>8}". Raises UsageError for
    a format that texts do not have."""
    _try_format("", spec)
    yield FIELD + spec + FIELD
    yield from pieces
    yield FIELD


def _check(value: Any, spec: str) -> None:
    """Raise UsageError for a format that Python's numbers of this type do not have."""
    _try_format(np.zeros((), as_array(value).dtype)[()].item(), spec)


def _try_format(example: object, spec: str) -> None:
    try:
        format(example, spec)
    except ValueError as error:
        raise UsageError(f"{error}", expected=f"a format that a {type(example).__name__} has",
                         found=repr(spec)) from None


def shown(value: Any, of_repr: bool = False) -> Iterator[Piece]:
    """Yield the pieces of str(value), or of repr(value)."""
    if isinstance(value, Text):
        yield from value.pieces
    elif not is_unknown(value):
        yield known_text(value, repr(value) if of_repr else str(value))
    elif not is_traced(value):
        yield from _container(value)
    elif isinstance(value, Array) and value.ndim:
        yield from _elements(value, of_repr)
    else:
        yield from _number(value, of_repr)


def _number(value: Any, of_repr: bool) -> Iterator[Piece]:
    array = as_array(value)
    weak = not value.strong if isinstance(value, Number) else array.weak
    if not of_repr or weak or not _NUMPY_TEXT:
        around = ("", "")
    elif not array.scalar:
        yield from _elements(array, of_repr)
        return
    else:
        around = ("np.", "_") if array.dtype.kind == "b" else (f"np.{array.dtype.name}(", ")")
    yield from (around[0], (array, ""), around[1])


def _elements(array: Array, of_repr: bool) -> Iterator[Piece]:
    extents = [e.value if e.is_const else None for e in array.extents]
    count = int(np.prod([MOST_ELEMENTS + 1 if e is None else e for e in extents]))
    if count > MOST_ELEMENTS:
        raise UsageError(
            f"print shows arrays of up to {MOST_ELEMENTS} elements", expected="a number, a part",
            found=str(array.type),
            remedy="print one element, a part or a reduction, or return the array from the program",
        )
    shape = tuple(int(e) for e in extents if e is not None)
    yield ARRAY + printed.array_mark(array.dtype.name, shape, of_repr)
    for place in np.ndindex(shape):
        yield from ((as_array(array[place]), ""), " ")
    yield ARRAY


def _container(value: Any) -> Iterator[Piece]:
    """Yield the text of a list, a tuple or a dict with values of the run in it."""
    if type(value) is dict:
        yield "{"
        for k, (key, item) in enumerate(value.items()):
            yield f"{', ' * (k > 0)}{key!r}: "
            yield from shown(item, True)
        yield "}"
        return
    if type(value) not in (list, tuple):
        refuse(f"a text of {_kind_text(value)}")
    yield "[" if type(value) is list else "("
    for k, item in enumerate(value):
        yield ", " * (k > 0)
        yield from shown(item, True)
    yield "]" if type(value) is list else ",)" if len(value) == 1 else ")"


def is_unknown(value: Any) -> bool:
    """Return whether the text of a value is known at run time only."""
    if isinstance(value, (list, tuple)):
        return any(map(is_unknown, value))
    if isinstance(value, dict):
        return any(map(is_unknown, value.values()))
    return isinstance(value, Text) or (
        is_traced(value) and not (isinstance(value, Array) and value.is_known))


def known_text(value: Any, text: str) -> str:
    """Return the text of a value that is known; refused where it shows what only the run knows."""
    if any(mark in text for mark in _UNKNOWN):
        refuse(f"a text of {_kind_text(value)}")
    return text


# ---- elsewhere ----------------------------------------------------------------------------------


def refuse(text: str) -> NoReturn:
    """Raise the error of a text that is made while building, of what only the run knows."""
    raise no_text(text)


def of(plain: Any) -> Any:
    """Return str, repr or ascii of values that are known."""

    def text(*args: Any, **kwargs: Any) -> Any:
        if args and Context.current() is not None:
            if is_unknown(args[0]):
                refuse(f"{plain.__name__}() of {_kind_text(args[0])}")
            return known_text(args[0], plain(*args, **kwargs))
        return plain(*args, **kwargs)

    return text


def converted(value: Any) -> Any:
    """Return the value that an f-string writes by !r or !s outside of print and assert; refuse one
    that only the run knows."""
    if Context.current() is not None and is_unknown(value):
        refuse(f"an f-string with {_kind_text(value)} in it")
    return value


def percent(text: str, values: Any) -> str:
    """Return text % values; refuse values that only the run knows."""
    if Context.current() is not None and is_unknown(values):
        refuse(f"text % {_kind_text(values)}")
    return known_text(values, text % values)


def _kind_text(value: Any) -> str:
    """Return what a value is, in words."""
    if isinstance(value, Number):
        return f"the number {value.expr}"
    if isinstance(value, Array):
        return f"the array {value.type}" if value.ndim else f"a number, {value.type}"
    kind = type(value).__name__
    return f"a {kind} with a value of the program in it"
