"""Fields of CSV tables as values: the rules that files of arrays and spmd.data.csv share.

In: the text of a field. Out: a truth value, an integer or a float, or a ValueError that says why
the text is none.
"""

from __future__ import annotations

import csv
from math import isinf, nan

TRUTHS = {"true": True, "false": False, "1": True, "0": False}  # in small letters or capitals
MARK = "\ufeff"  # with which some programs let a file in UTF-8 begin

# The module refuses fields of more than 131,072 characters, which tables of texts have.
csv.field_size_limit(max(csv.field_size_limit(), (1 << 31) - 1))


def named(header: list[str]) -> list[str]:
    """Return the names of a header without the empty ones that commas at its end make."""
    count = len(header)
    while count > 1 and not header[count - 1].strip():
        count -= 1
    return header[:count]


def shortened(row: list[str], width: int, unnamed: int) -> list[str]:
    """Return a row of `width` columns without up to `unnamed` empty fields behind them; the row as
    it is where there are more, or one is not empty."""
    behind = row[width:]
    return row if len(behind) > unnamed or any(map(str.strip, behind)) else row[:width]


def truth(text: str) -> bool:
    """Return what true, false, 1 or 0 means. Raises ValueError for other text."""
    if (word := text.strip().lower()) not in TRUTHS:
        raise ValueError(f"{text!r}: neither of {', '.join(TRUTHS)}")
    return TRUTHS[word]


def integer(text: str) -> int:
    """Return a decimal integer. Raises ValueError for other text, also for 1_000."""
    if "_" in text:
        raise ValueError(f"{text!r} is no number")
    return int(text)


def real(text: str) -> float:
    """Return the number that a field holds, NaN for an empty one. Raises ValueError for other text,
    OverflowError for a number beyond float64."""
    if not text:
        return nan
    if "_" in text:
        raise ValueError(f"{text!r} is no number")
    value = float(text)
    if isinf(value) and "inf" not in text.lower():
        raise OverflowError(f"{text!r} is too large")
    return value


def is_word(text: str) -> bool:
    """Return whether a field is neither empty, a number nor a truth value: a row with such a one is
    a header."""
    if text.strip().lower() in TRUTHS:
        return False
    try:
        real(text)
    except ValueError:
        return True
    except OverflowError:
        return False
    return False
