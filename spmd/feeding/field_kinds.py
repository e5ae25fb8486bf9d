"""What a field of a message may hold: one small checker per kind of value.

In: a value that JSON gave. Out: nothing, or a ValueError whose text says what was expected.
Always holds: every length, count and depth has a limit, so that no message is costly to check.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Check = Callable[[Any], None]

ID = re.compile(r"[0-9a-f]{16}")
NAME = re.compile(r"[A-Za-z0-9_.@:+-]{1,128}")
ADDRESS = re.compile(r"(tcp|ipc|inproc)://[\x21-\x7e]{1,256}")
KEY = re.compile(r"[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}|")  # Z85, or none
LARGEST = 2**62


def _expect(holds: bool, what: str, found: object) -> None:
    if not holds:
        text = repr(found)
        raise ValueError(f"expected {what}, found {text[:77] + '...' if len(text) > 80 else text}")


def text(limit: int = 4096) -> Check:
    def check(value: Any) -> None:
        _expect(isinstance(value, str) and len(value) <= limit,
                f"a text of at most {limit} characters", value)
    return check


def pattern(expression: re.Pattern[str], what: str) -> Check:
    def check(value: Any) -> None:
        _expect(isinstance(value, str) and expression.fullmatch(value) is not None, what, value)
    return check


identity = pattern(ID, "16 hexadecimal digits")
name = pattern(NAME, "a name of letters, digits and _.@:+-")
address = pattern(ADDRESS, "an address such as tcp://host:5555")
key = pattern(KEY, "a key of 40 characters")


def whole(least: int = 0, most: int = LARGEST) -> Check:
    def check(value: Any) -> None:
        _expect(type(value) is int and least <= value <= most,
                f"a whole number from {least} to {most}", value)
    return check


count = whole()


def number(value: Any) -> None:
    """A finite number that is not negative: a rate, seconds, a share."""
    _expect(type(value) in (int, float) and 0 <= value <= 1e300, "a number from 0 on", value)


def flag(value: Any) -> None:
    _expect(type(value) is bool, "true or false", value)


def one_of(*values: str) -> Check:
    def check(value: Any) -> None:
        _expect(isinstance(value, str) and value in values, " or ".join(values), value)
    return check


def each(inner: Check, most: int) -> Check:
    def check(value: Any) -> None:
        _expect(isinstance(value, list) and len(value) <= most, f"a list of at most {most}", value)
        for item in value:
            inner(item)
    return check


def row(*inners: Check) -> Check:
    """A list of so many values, each of its own kind."""
    def check(value: Any) -> None:
        _expect(isinstance(value, list) and len(value) == len(inners),
                f"a list of {len(inners)} values", value)
        for inner, item in zip(inners, value):
            inner(item)
    return check


def by_name(inner: Check, most: int, of: Check = name) -> Check:
    """An object whose keys are names."""
    def check(value: Any) -> None:
        _expect(isinstance(value, dict) and len(value) <= most,
                f"an object of at most {most} entries", value)
        for one, item in value.items():
            of(one)
            inner(item)
    return check


def maybe(inner: Check) -> Check:
    """May be missing or null; decode() then gives None."""
    def check(value: Any) -> None:
        if value is not None:
            inner(value)
    check.may_be_missing = True  # type: ignore[attr-defined]
    return check


def is_optional(check: Check) -> bool:
    return getattr(check, "may_be_missing", False)


def record(**fields: Check) -> Check:
    """An object with these fields and no others."""
    def check(value: Any) -> None:
        _expect(isinstance(value, dict), "an object", value)
        check_fields(value, fields)
    return check


def check_fields(value: dict[str, Any], fields: dict[str, Check]) -> None:
    """Every field is there, unless it may be missing, and holds what it should; none is unknown."""
    for unknown in value.keys() - fields.keys():
        raise ValueError(f"expected only the fields {', '.join(fields)}, found {unknown[:80]!r}")
    for one, check in fields.items():
        if one not in value:
            if not is_optional(check):
                raise ValueError(f"expected a field {one!r}, found none")
            value[one] = None
            continue
        try:
            check(value[one])
        except ValueError as error:
            raise ValueError(f"{one}: {error}") from None


def plain(depth: int = 4, most: int = 256) -> Check:
    """Settings: texts, numbers, flags, lists and objects of them, to a depth."""
    def check(value: Any, left: int = depth) -> None:
        if isinstance(value, dict | list):
            _expect(left > 0 and len(value) <= most,
                    f"at most {most} entries, {depth} levels deep", value)
            for item in value.values() if isinstance(value, dict) else value:
                check(item, left - 1)
            for one in value if isinstance(value, dict) else ():
                _expect(len(one) <= 128, "a key of at most 128 characters", one)
            return
        if isinstance(value, str):
            _expect(len(value) <= 65536, "a text of at most 65536 characters", value)
        elif isinstance(value, float):
            _expect(abs(value) <= 1e300, "a finite number", value)
        elif type(value) is int:
            _expect(abs(value) <= LARGEST, f"a whole number up to {LARGEST}", value)
        else:
            _expect(value is None or type(value) is bool, "a text, a number or a flag", value)
    return check


settings = by_name(plain(), 256)
