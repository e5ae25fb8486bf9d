"""Texts in print and assert that str, repr, ascii, format, text.format or text % values makes.

In: what the user's code calls, and with what. Out: the same text as an f-string would make it.
Always holds: where all values are known, Python itself makes the text.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from codegen.errors import UsageError
from codegen.trace.array import as_array
from codegen.trace.traced_text import fstring, is_unknown, percent, refuse

_PLAIN = -1  # the conversion of an f-string without !s, !r or !a


def called(function: Any, *args: Any, **options: Any) -> Any:
    """Return str(x), repr(x), ascii(x) or format(x, spec) of an x that only the run knows; None for
    any other call."""
    if not any(function is f for f in (str, repr, ascii, format)) or options or not args:
        return None
    value, *rest = args
    if not is_unknown(value) or len(rest) > (function is format):
        return None
    conversion = _PLAIN if function is format else ord(function.__name__[0])
    return fstring((value, rest[0] if rest else "", conversion))


def formatted(text: Any, *args: Any, **named: Any) -> Any:
    """Return text.format(*args, **named), with values that only the run knows as pieces."""
    if not isinstance(text, str) or not is_unknown([args, named]):
        return text.format(*args, **named)
    return fstring(*_format_parts(text, args, named, itertools.count()))


def _format_parts(
    text: str, args: Sequence[Any], named: Mapping[str, Any], count: Iterator[int]
) -> Iterator[Any]:
    """Yield the parts of an f-string that shows what text.format(*args, **named) does. count: the
    numbers of fields without a name, also of those in the formats of others."""
    formatter = string.Formatter()
    for literal, name, spec, conversion in formatter.parse(text):
        yield literal
        if name is None:
            continue
        if not name or name[0] in ".[":
            name = f"{next(count)}{name}"
        try:
            value, _ = formatter.get_field(name, args, named)
        except (IndexError, KeyError):
            raise UsageError(f"text.format has no value for {{{name}}}", found=repr(text),
                             expected="a value for each field") from None
        form = fstring(*_format_parts(spec or "", args, named, count))
        if not isinstance(form, str):
            refuse("the format of a value")
        yield value, form, ord(conversion) if conversion else _PLAIN


# ---- text % values -------------------------------------------------------------------------------


class _Field(NamedTuple):
    """One field of a text, as %(key)-8.3f."""

    key: str
    flags: str
    width: str
    digits: str
    kind: str

    def __str__(self) -> str:
        return f"%{self.flags}{self.width}{self.digits}{self.kind}"


def percent_text(text: str, values: Any) -> Any:
    """Return text % values, with values that only the run knows as pieces."""
    fields = _fields(text) if is_unknown(values) else None
    if fields is None:
        return percent(text, values)
    keys = [f.key for f in fields if isinstance(f, _Field)]
    if any(keys):
        missing = [key for key in keys if not isinstance(values, Mapping) or key not in values]
        if missing:
            raise UsageError(f"text % values has no value for %({missing[0]})",
                             expected="a dict with the key of each field", found=repr(text))
        taken = iter([values[key] for key in keys])
    else:
        taken = iter(values if isinstance(values, tuple) else (values,))
        if (count := len(values) if isinstance(values, tuple) else 1) != len(keys):
            raise UsageError("text % values has another number of values than fields",
                             expected=f"{len(keys)}, for {text!r}", found=str(count))
    return fstring(*[f if isinstance(f, str) else _part(next(taken), f) for f in fields])


def _fields(text: str) -> Sequence[str | _Field] | None:
    """Return the fields of a text and the texts between them; None where Python alone reads it."""
    fields: list[str | _Field] = []
    literal, mark, rest = text.partition("%")
    while mark:
        fields.append(literal)
        key = ""
        if rest.startswith("("):
            key, _, rest = rest[1:].partition(")")
        flags, rest = _begin(rest, "-+ 0#")
        width, rest = _begin(rest, string.digits)
        digits = ""
        if rest.startswith("."):
            digits, rest = _begin(rest[1:], string.digits)
            digits = f".{digits or 0}"
        kind, rest = rest[:1], rest[1:]
        if not kind or kind not in "diueEfFgGxXosra%":
            return None
        fields.append("%" if kind == "%" else _Field(key, flags, width, digits, kind))
        literal, mark, rest = rest.partition("%")
    return [*fields, literal]


def _begin(text: str, letters: str) -> tuple[str, str]:
    """Return what a text begins with of these letters, and the rest of it."""
    rest = text.lstrip(letters)
    return text[: len(text) - len(rest)], rest


def _part(value: Any, field: _Field) -> Any:
    """Return the part of an f-string that shows a value as a field of text % values does."""
    _, flags, width, digits, kind = field
    if not is_unknown(value):
        return str(field) % (value,)
    align = ("<" if "-" in flags else ">") if width else ""
    if kind in "sra":
        return value, align + width + digits, ord(kind)
    if kind in "diu":
        if digits:
            refuse(f"{str(field)!r} % a value")
        value, kind = as_array(value), "d"
        if value.dtype.kind == "f":
            value = np.trunc(value).astype(np.int64)
    if align == ">" and "0" in flags:
        align, width = "", "0" + width
    sign, mark = "+" if "+" in flags else " " * (" " in flags), "#" * ("#" in flags)
    return value, f"{align}{sign}{mark}{width}{digits}{kind}", _PLAIN
