"""Conditions that end a job: a value that the program saves, compared with a number.

In: a text as `--until` has it: "loss < 0.1". Out: an EndCondition, or a UsageError.
"""

from __future__ import annotations

import math
import operator
import re
from typing import Any, NamedTuple

from codegen.errors import UsageError
from codegen.suggest import meant

OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_TEXT = re.compile(rf"\s*(.*?)\s*({'|'.join(OPERATORS)})\s*(.*?)\s*")


class EndCondition(NamedTuple):
    """Holds a condition on a saved value, at which a job ends. name: under which the program saves
    it. sign: one of OPERATORS."""

    name: str
    sign: str
    limit: float

    def holds(self, value: float) -> bool:
        """Return whether it holds for a value; it does for no NaN."""
        return bool(OPERATORS[self.sign](value, self.limit))

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.limit:g}"


def condition(text: str) -> EndCondition:
    """Return the condition that a text says.

    Raises UsageError for any other text.

    ::

        >>> condition("loss<0.1")
        EndCondition(name='loss', sign='<', limit=0.1)
    """
    match = _TEXT.fullmatch(text)
    name, sign, number = match.groups() if match else ("", "", "")
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if not name or not math.isfinite(limit):
        raise UsageError(f"--until {text!r} is no condition", found=repr(text),
                         expected="NAME OP NUMBER, where OP is <, <=, > or >=",
                         remedy="--until 'loss < 0.1', of spmd.save(\"loss\", …)")
    return EndCondition(name, sign, limit)


def check_condition(condition: EndCondition, manifest: dict[str, Any], feed: str) -> None:
    """Raise UsageError where a program saves nothing that a condition could compare, or could not
    end when it holds. feed: the one that ends then, "" for the only one."""
    rows = {row["name"]: row for row in manifest["saves"]}
    if condition.name not in rows:
        output = any(row["name"] == condition.name for row in manifest["outputs"])
        raise UsageError(
            f"--until {condition}: the program saves nothing under {condition.name!r} "
            "while it runs",
            expected=", ".join(rows) or f'spmd.save("{condition.name}", …) in its loop',
            found=f"{condition.name}, an output, which is there at the end" if output else (
                condition.name),
            remedy=f'spmd.save("{condition.name}", …) in the loop' if output else (
                meant(condition.name, rows)))
    if rows[condition.name]["dtype"].startswith("complex"):
        raise UsageError(f"--until {condition}: {condition.name} is complex",
                         expected="a real value", found=rows[condition.name]["dtype"],
                         remedy=f'spmd.save("{condition.name}", abs(…))')
    feeds = [row["name"] for row in manifest["feeds"] if feed in ("", row["name"])]
    asks = any(row["kind"] == "more" and row["feed"] in feeds for row in manifest["operations"])
    if not asks:
        raise UsageError(
            f"--until {condition}: the program cannot end before it has taken all of its batches",
            expected="a loop that ends with its feed: for batch in feed, or while feed.more()",
            found="feed.next() in a loop that counts its turns" if feeds else "no feed",
            remedy="for batch in feed: …")
