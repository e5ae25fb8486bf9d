"""What is typed on a command line, as values: counts, ranges, sizes, NAME=VALUE, meshes.

In: one word. Out: its value, or a ValueError that says what it is not.
"""

from __future__ import annotations

import re

from spmd.files import ARCHIVES, TABLES

MOST_SECONDS = 1e6  # eleven days: a larger number is a mistake
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 4000


def pair(text: str) -> tuple[str, str]:
    """Return name and value of a text NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


def file(text: str) -> tuple[str, str]:
    """Return name and path of name=path; a file of many arrays may stand alone: its name is then
    ""."""
    name, equals, path = text.partition("=")
    if (not equals or "/" in name) and text.endswith((*ARCHIVES, *TABLES)):
        return "", text
    if not equals or not name or not path:
        raise ValueError(f"{text!r} is not NAME=FILE, FILE.npz, FILE.safetensors, FILE.csv or "
                         "FILE.parquet")
    return name, path


def feed(text: str) -> tuple[str, str]:
    """Return name and source of name=FILE.py or name=PIPELINE@ADDRESS; for the only feed without
    its name, which is then ""."""
    name, equals, source = text.partition("=")
    if not equals or not name.isidentifier():
        return "", text
    if not source:
        raise ValueError(f"{text!r} is not NAME=FILE.py, or NAME=PIPELINE@ADDRESS")
    return name, source


def mesh(text: str) -> dict[str, int]:
    """Return the sizes of axes in a text such as x=4,y=4."""
    sizes = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        if not equals or not is_number(size) or not name or name in sizes:
            raise ValueError(f"{text!r} is not AXIS=SIZE,AXIS=SIZE")
        sizes[name] = int(size)
    return sizes


def count(text: str) -> int:
    if not is_number(text) or int(text) < 1:
        raise ValueError(f"{text!r} is not a number from 1")
    return int(text)


def index(text: str) -> int:
    if not is_number(text):
        raise ValueError(f"{text!r} is not an index from 0")
    return int(text)


def factor(text: str) -> int:
    if not is_number(text) or int(text) < 2:
        raise ValueError(f"{text!r} is not a whole number from 2")
    return int(text)


def counts(text: str) -> range:
    """Return the numbers that a text means: 4, or 1-64."""
    low, dash, high = text.partition("-")
    if not is_number(low) or (dash and not is_number(high)):
        raise ValueError(f"{text!r} is not N or N-M")
    first, last = int(low), int(high or low)
    if not 1 <= first <= last < first + 4096:
        raise ValueError(f"{text!r} is not a range of at most 4096 from 1")
    return range(first, last + 1)


def sizes(text: str) -> tuple[int, int]:
    """Return the bytes that a text means, from and to, such as 8-16m."""
    match = re.fullmatch(r"(\d{1,12})([kmg]?)(?:-(\d{1,12})([kmg]?))?", text.lower())
    if not match:
        raise ValueError(f"{text!r} is not a range of sizes such as 8-16m")
    low, low_unit, high, high_unit = match.groups()
    least = max(1, int(low) * _UNITS[low_unit])
    most = int(high) * _UNITS[high_unit] if high else least
    if most < least:
        raise ValueError(f"{text!r}: the second size must be the larger one")
    return least, most


def names(text: str) -> list[str]:
    """Return the names in a text NAME,NAME,…"""
    return [name.strip() for name in text.split(",")]


def rivals(text: str) -> list[str]:
    """Return what to measure beside: mpi, floor, or both as mpi,floor."""
    names = text.split(",")
    unknown = [name for name in names if name not in ("mpi", "floor")]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is neither mpi nor floor")
    return names


def every(text: str) -> int | str:
    """Return what a text means: 100 (turns), or 30s."""
    if text.endswith("s"):
        seconds(text[:-1])
        return text
    return count(text)


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < MOST_SECONDS:
        raise ValueError(f"{text!r} is not a number of seconds")
    return number


def duration(text: str) -> float:
    """Return a number of seconds, written as 2ms, 500us or 1.5s; 0 needs no unit. Raises
    ValueError."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(us|ms|s)", "0s" if text == "0" else text)
    if not match:
        raise ValueError(f"{text!r} is not a time such as 2ms, 500us or 1.5s")
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]


def port(text: str) -> int:
    """Return the number of a port, from 0 to 65535. Raises ValueError."""
    if not is_number(text) or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def size(text: str) -> int:
    """Return a number of bytes, written as 65536, 64m or 8g. Raises ValueError."""
    return sizes(text)[0]
