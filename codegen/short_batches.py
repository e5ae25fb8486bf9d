"""Batches with fewer examples than declared: the field mask says which are missing.

In: how many examples there are, the fields of a feed. Out: what a run says, or why it is refused.
Always holds: eager runs, images and workers have one rule: a batch that is not full, or has a hole,
is given only where the feed declares the field mask.
"""

from __future__ import annotations

from collections.abc import Iterable

from codegen.errors import Place, UsageError

MASK = "mask"  # the field that says which rows of a batch are there


def check_holes(pipeline: str, skips: bool, batch: int, fields: Iterable[str],
                place: Place | None = None) -> None:
    """Raise UsageError where examples that fail are skipped, and no field can say which."""
    if skips and MASK not in (names := list(fields)):
        raise UsageError(
            f"pipeline {pipeline} skips examples that fail, and the program cannot know which",
            place=place, expected=f"a field mask=spmd.spec(({batch},), np.bool_)",
            found=", ".join(names) or "no fields",
            remedy='declare mask in spmd.feed(…), or set on_error="stop"')


def not_given(whose: str, rest: int, batch: int) -> str:
    """Return the message for the last examples of a stream, where a feed has no mask."""
    return (f"{whose}: the last {rest} example{'s do' if rest > 1 else ' does'} not fill a batch "
            f"of {batch} and {'are' if rest > 1 else 'is'} not given; a field mask would let "
            f"{'them' if rest > 1 else 'it'} through")
