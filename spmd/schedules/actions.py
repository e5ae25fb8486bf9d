"""What a stage can do in a tick, and what each action needs: the vocabulary of schedules.

F is the forward pass of a microbatch, B its backward pass, W the gradients of the weights where B
computes only those of the input, U an update of the stage's weights at the end of a tick.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, TypeAlias

from codegen.symbolic.meaning import begin

KINDS = "FBWU"

# ticks[kind][stage][microbatch] of one step; ABSENT where there is no such action.
Ticks: TypeAlias = Mapping[str, Sequence[Sequence[int]]]
ABSENT = -1  # the tick of an action that a schedule does not have


class Action(NamedTuple):
    """An action of a schedule: at `tick`, `stage` does `kind` ("F", "B", "W" or "U") of
    `microbatch`."""

    tick: int
    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        """Return the cell of a table that stands for it, as 2F0."""
        return f"{self.stage}{self.kind}{self.microbatch}"


def plain_integer(x: Any) -> int | None:
    """Return an integer of Python's or NumPy's as Python's; None for what is none, and for bools.
    """
    try:
        return None if isinstance(x, bool) else index(x)
    except TypeError:
        return None


def needs(kind: str, stage: int, stages: int) -> list[tuple[str, int]]:
    """Return (kind, stage) of the actions on the same microbatch that must come in earlier ticks.

    An update follows from the gradients of several microbatches, and is not listed here.
    """
    if kind == "F":
        return [("F", stage - 1)] if stage else []
    if kind == "B":
        return [("F", stage), *([("B", stage + 1)] if stage + 1 < stages else [])]
    return [("B", stage)] if kind == "W" else []


def gradient_kind(kinds: Container[str]) -> str:
    """Return the kind of action that ends with the gradients of the weights: W, or else B."""
    return "W" if "W" in kinds else "B"


def row_of(stage: int, microbatch: int, stages: int, place: str) -> int:
    """Return the row of an action, of as many as there are stages: its stage; or, where ranks
    follow microbatches through all stages, the same one for every `stages`-th microbatch."""
    return (microbatch - 1) % stages if place == "microbatch" else stage


def rank_of(row: int, stages: int, ranks: int, place: str) -> int:
    """Return the rank of a row: contiguous blocks, "round" after round, or back and forth ("v").
    """
    if place == "round":
        return row % ranks
    if place == "v":
        fold = row % (2 * ranks)
        return min(fold, 2 * ranks - 1 - fold)
    blocks = min(ranks, stages)
    return max(r for r in range(blocks) if begin(r, stages, blocks) <= row)
