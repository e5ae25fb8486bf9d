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
BITS = re.compile(r"(?:[0-9a-f]{2}){1,262144}")
JOB = re.compile(r"[A-Za-z0-9_.@:+-]{1,128}/\d{1,18}")
JOB_FILE = re.compile(r"image|stdout|stderr|(?:in|out|start|said|end)\.\d{1,3}")
FILE_NAME = re.compile(r"(?!\.\.?$)[^-/\0\n][^/\0\n]{0,254}")
KEY = re.compile(r"[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}|")  # Z85, or none
LARGEST = 2**62


def _wrong(what: str, found: object) -> ValueError:
    text = repr(found)
    return ValueError(
        f"expected {what}, found {text[:77] + '...' if len(text) > 80 else text}")


def text(limit: int = 4096) -> Check:
    what = f"a text of at most {limit} characters"

    def check(value: Any) -> None:
        if not isinstance(value, str) or len(value) > limit:
            raise _wrong(what, value)
    return check


def pattern(expression: re.Pattern[str], what: str) -> Check:
    matches = expression.fullmatch

    def check(value: Any) -> None:
        if not isinstance(value, str) or matches(value) is None:
            raise _wrong(what, value)
    return check


identity = pattern(ID, "16 hexadecimal digits")
name = pattern(NAME, "a name of letters, digits and _.@:+-")
address = pattern(ADDRESS, "an address such as tcp://host:5555")
bits = pattern(BITS, "pairs of hexadecimal digits, 262144 at most")
key = pattern(KEY, "a key of 40 characters")
job_name = pattern(JOB, "the name of a job, as images/3")
job_file = pattern(JOB_FILE, "image, stdout, stderr, in.N, out.N, start.N, said.N or end.N")
file_name = pattern(FILE_NAME, "the name of a file, without folders")


def whole(least: int = 0, most: int = LARGEST) -> Check:
    what = f"a whole number from {least} to {most}"

    def check(value: Any) -> None:
        if type(value) is not int or not least <= value <= most:
            raise _wrong(what, value)
    return check


count = whole()


def number(value: Any) -> None:
    """A finite number that is not negative: a rate, seconds, a share."""
    if type(value) not in (int, float) or not 0 <= value <= 1e300:
        raise _wrong("a number from 0 on", value)


def flag(value: Any) -> None:
    if type(value) is not bool:
        raise _wrong("true or false", value)


def one_of(*values: str) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, str) or value not in values:
            raise _wrong(" or ".join(values), value)
    return check


def each(inner: Check, most: int) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, list) or len(value) > most:
            raise _wrong(f"a list of at most {most}", value)
        for item in value:
            inner(item)
    return check


def row(*inners: Check) -> Check:
    """A list of so many values, each of its own kind."""
    def check(value: Any) -> None:
        if not isinstance(value, list) or len(value) != len(inners):
            raise _wrong(f"a list of {len(inners)} values", value)
        for inner, item in zip(inners, value):
            inner(item)
    return check


def by_name(inner: Check, most: int, of: Check = name) -> Check:
    """An object whose keys are names."""
    def check(value: Any) -> None:
        if not isinstance(value, dict) or len(value) > most:
            raise _wrong(f"an object of at most {most} entries", value)
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
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        check_fields(value, fields)
    return check


def check_fields(value: dict[str, Any], fields: dict[str, Check]) -> None:
    """Every field is there, unless it may be missing, and holds what it should; none is unknown."""
    if not value.keys() <= fields.keys():
        unknown = min(value.keys() - fields.keys())
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
            if left <= 0 or len(value) > most:
                raise _wrong(f"at most {most} entries, {depth} levels deep", value)
            for item in value.values() if isinstance(value, dict) else value:
                check(item, left - 1)
            for one in value if isinstance(value, dict) else ():
                if len(one) > 128:
                    raise _wrong("a key of at most 128 characters", one)
            return
        if isinstance(value, str):
            if len(value) > 65536:
                raise _wrong("a text of at most 65536 characters", value)
        elif isinstance(value, float):
            if not abs(value) <= 1e300:
                raise _wrong("a finite number", value)
        elif type(value) is int:
            if abs(value) > LARGEST:
                raise _wrong(f"a whole number up to {LARGEST}", value)
        elif value is not None and type(value) is not bool:
            raise _wrong("a text, a number or a flag", value)
    return check


settings = by_name(plain(), 256)
