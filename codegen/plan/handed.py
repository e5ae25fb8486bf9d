"""Steps of a Plan that take batches of feeds, send values back, save frames: part of its grammar.

Goes in, comes out: buffers, each with its place in a global array; of a feed, its first dim is the
batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from codegen.errors import Place

if TYPE_CHECKING:
    from codegen.plan.grammar import Array, Home, M
else:
    from typing import TypeVar

    M = TypeVar("M")


@dataclass(frozen=True)
class Take(Generic[M]):
    """The feed's next batch is written into these buffers, a field each."""

    number: int
    feed: str
    into: tuple[M, ...]
    homes: tuple[Home, ...]
    place: Place | None = None


@dataclass(frozen=True)
class More(Generic[M]):
    """Whether the feed has a next batch is written into a buffer: one truth value."""

    feed: str
    into: M
    place: Place | None = None


@dataclass(frozen=True)
class Send(Generic[M]):
    """Send the content of these buffers to those who made the batch that was taken last."""

    number: int
    feed: str
    given: tuple[M, ...]
    homes: tuple[Home, ...]
    place: Place | None = None


@dataclass(frozen=True)
class Save(Generic[M]):
    """Save this buffer as a frame of `series`, in every so many turns of the loop around."""

    series: str
    every: int
    given: tuple[M, ...]  # of one
    homes: tuple[Home, ...]
    place: Place | None = None


@dataclass(frozen=True)
class Saved:
    """A save, and the array of which it hands over frames."""

    series: str
    every: int
    array: Array
    place: Place | None


@dataclass(frozen=True)
class Handed:
    """A step that takes of a feed, or sends to it. feed, number: of the step, and its arrays."""

    feed: str
    number: int
    arrays: tuple[Array, ...]
