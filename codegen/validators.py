"""Checkers of JSON values, and what combines them: for manifests of images and messages of feeding.

In: a value that JSON gave. Out: nothing, or Invalid: the place in the value, what is expected there
and what was found. Always holds: the work is bounded by the size of the value; nothing is imported,
since every rank imports this module at start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator
    from typing import Any

    Check = Callable[[Any], None]

BITS_64 = range(-(2**63), 2**63)
MOST_ITEMS = 1 << 20
_SHOWN = 80  # characters of a value in an error
_KINDS = {"NoneType": "nothing", "dict": "an object", "list": "a list"}


class Invalid(ValueError):
    """A value that a checker refuses. path: its place, as `.inputs[0].dtype`, "" for the whole.

    The path grows from the inside out, so that checking a valid value builds no path.
    """

    def __init__(self, expected: str, value: object) -> None:
        self.expected, self.found, self.path = expected, shown(value), ""
        super().__init__(expected)

    def inside(self, part: str) -> Invalid:
        """Put a part, as `.inputs` or `[0]`, in front of the path; return the error."""
        self.path = part + self.path
        return self

    def __str__(self) -> str:
        where = f"{self.path.lstrip('.')}: " if self.path else ""
        return f"{where}expected {self.expected}, found {self.found}"


def shown(value: object) -> str:
    """Return a text or a number as Python writes it, cut to 80 characters; of others the kind."""
    if not isinstance(value, (str, int, float)):
        kind = type(value).__name__
        return _KINDS.get(kind, f"a value of type {kind}")
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


# ---- single values -------------------------------------------------------------------------------


def anything(value: Any) -> None:
    """Accept every value, since only people read it."""


def text(most: int | None = 4096) -> Check:
    """Return the checker of a text of at most so many characters; None sets no limit."""
    expected = "a text" if most is None else f"a text of at most {most} characters"

    def check(value: Any) -> None:
        if not isinstance(value, str) or (most is not None and len(value) > most):
            raise Invalid(expected, value)

    return check


def pattern(expression: re.Pattern[str], expected: str) -> Check:
    """Return the checker of a text that a regular expression matches as a whole."""
    matches = expression.fullmatch

    def check(value: Any) -> None:
        if not isinstance(value, str) or matches(value) is None:
            raise Invalid(expected, value)

    return check


def one_of(*values: str) -> Check:
    """Return the checker of a text that is one of these."""
    expected = values[0] if len(values) == 1 else f"one of {', '.join(values)}"

    def check(value: Any) -> None:
        if not isinstance(value, str) or value not in values:
            raise Invalid(expected, value)

    return check


def integer(least: int = BITS_64[0], most: int = BITS_64[-1]) -> Check:
    """Return the checker of an integer between two bounds, both included."""
    expected = f"an integer from {least} to {most}"

    def check(value: Any) -> None:
        if type(value) is not int or not least <= value <= most:
            raise Invalid(expected, value)

    return check


def number(value: Any) -> None:
    """Check that a value is a finite number of at least 0: a rate, seconds, a share."""
    if type(value) not in (int, float) or not 0 <= value <= 1e300:
        raise Invalid("a number from 0 on", value)


def flag(value: Any) -> None:
    """Check that a value is true or false."""
    if type(value) is not bool:
        raise Invalid("true or false", value)


# ---- values inside others ------------------------------------------------------------------------


def maybe(inner: Check) -> Check:
    """Return the checker of a value that may be null. In a record() the field may be missing too:
    it is then None."""

    def check(value: Any) -> None:
        if value is not None:
            inner(value)

    check.may_be_missing = True  # type: ignore[attr-defined]
    return check


def may_be_missing(check: Check) -> bool:
    """Return whether maybe() has made a checker."""
    return getattr(check, "may_be_missing", False)


def all_of(*inners: Check) -> Check:
    """Return the checker of a value that all of these accept."""

    def check(value: Any) -> None:
        for inner in inners:
            inner(value)

    return check


def each(inner: Check, most: int = MOST_ITEMS) -> Check:
    """Return the checker of a list of at most so many items, all of one kind."""
    expected = f"a list of at most {most} items"

    def check(value: Any) -> None:
        if not isinstance(value, list):
            raise Invalid(expected, value)
        if len(value) > most:
            raise Invalid(expected, len(value))
        items = iter(value)
        try:
            for item in items:
                inner(item)
        except Invalid as error:
            raise error.inside(_last_of(value, items)) from None

    return check


def _last_of(values: list[Any], items: Iterator[Any]) -> str:
    """Return the index, as `[3]`, of the item that an iterator over a list gave last. Counting with
    enumerate would cost each valid message a fifth more time."""
    return f"[{len(values) - 1 - items.__length_hint__()}]"  # type: ignore[attr-defined]


def row(*inners: Check) -> Check:
    """Return the checker of a list of just so many items, each of its own kind."""
    expected = f"a list of {len(inners)} items"

    def check(value: Any) -> None:
        if not isinstance(value, list):
            raise Invalid(expected, value)
        if len(value) != len(inners):
            raise Invalid(expected, len(value))
        items = iter(value)
        try:
            for inner, item in zip(inners, items):
                inner(item)
        except Invalid as error:
            raise error.inside(_last_of(value, items)) from None

    return check


def by_name(inner: Check, most: int, name: Check) -> Check:
    """Return the checker of an object of at most so many entries, whose keys are names."""
    expected = f"an object of at most {most} entries"

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise Invalid(expected, value)
        if len(value) > most:
            raise Invalid(expected, len(value))
        for key, item in value.items():
            name(key)
            try:
                inner(item)
            except Invalid as error:
                raise error.inside(f".{key}") from None

    return check


def table(optional: dict[str, Check] | None = None, /, **fields: Check) -> Check:
    """Return the checker of an object that has these fields and perhaps optional ones. Nobody reads
    what else is there. A name that Python reserves is written with an underscore behind it."""
    required = {name.rstrip("_"): inner for name, inner in fields.items()}
    known = {**required, **(optional or {})}

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise Invalid("an object", value)
        for name in required:
            if name not in value:
                raise Invalid(f"a field {name!r}", None)
        for name, inner in known.items():
            if name in value:
                try:
                    inner(value[name])
                except Invalid as error:
                    raise error.inside(f".{name}") from None

    return check


def record(**fields: Check) -> Check:
    """Return the checker of an object that has these fields and no others. A field of maybe() that
    is missing becomes None in the object."""

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise Invalid("an object", value)
        if not value.keys() <= fields.keys():
            raise Invalid(f"only the fields {', '.join(fields)}", min(value.keys() - fields.keys()))
        for name, inner in fields.items():
            if name not in value:
                if not may_be_missing(inner):
                    raise Invalid(f"a field {name!r}", None)
                value[name] = None
                continue
            try:
                inner(value[name])
            except Invalid as error:
                raise error.inside(f".{name}") from None

    return check
