"""When an opportunistic worker may work: "20:00-07:00,12:30-13:00", in its own local time.

In: that text. Out: whether a minute of the day is in it.
"""

from __future__ import annotations

import re

DAY = 24 * 60
_SPAN = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)-([01]?\d|2[0-4]):([0-5]\d)")


def free_times(text: str) -> list[tuple[int, int]]:
    """Spans in minutes of the day. Raises ValueError, which says what is expected."""
    spans = []
    for part in text.split(","):
        found = _SPAN.fullmatch(part.strip())
        first, last = (int(found[1]) * 60 + int(found[2]),
                       int(found[3]) * 60 + int(found[4])) if found else (-1, -1)
        if not found or max(first, last) > DAY or first == last:
            raise ValueError(f"{text!r} is not HH:MM-HH:MM, or several of these with commas")
        spans.append((first, last))
    return spans


def checked(text: str) -> str:
    """For the command line: the text itself, if it says times."""
    free_times(text)
    return text


def is_free(text: str | None, minute: int) -> bool:
    """Whether a worker that said so may work at this minute of the day. Nothing said: always."""
    if not text:
        return True
    try:
        spans = free_times(text)
    except ValueError:
        return True
    return any(first <= minute < last if first < last else minute >= first or minute < last
               for first, last in spans)
