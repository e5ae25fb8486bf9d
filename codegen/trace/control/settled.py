"""What a loop carried when it was captured last, with which its next capture begins.

The body of a loop is captured again and again, the loops in it too: without this the number of
captures would double with each loop around. In: what a settled loop carries. Out: the same.
Always holds: a loop is the same one if the user's functions have come to it in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from codegen.places import is_user_file

if TYPE_CHECKING:
    from codegen.ir.graph import ArrayType
    from codegen.trace.state import Held, LeafType, Memory
    from codegen.trace.storage import Storage

Key = tuple[str, int]  # a leaf: the variable, and which leaf of it
Path = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Settled:
    """A record of what a loop carries: leaves, memory, what may be one memory, variables bound
    inside."""

    carried: Mapping[Key, LeafType]
    stored: Mapping[Memory | Storage, ArrayType]
    aliases: Mapping[Key, tuple[Memory | Storage | Key, ...]]
    held: Mapping[str, Held]


@dataclass
class Inner:
    """The loops in a body: what each of them carried when the body was captured last."""

    carries: dict[tuple[Path, int], Settled] = field(default_factory=dict)
    met: dict[Path, int] = field(default_factory=dict)  # how often, in this pass

    def number(self) -> tuple[Path, int]:
        """Return the number of the loop that begins now: where it stands, and how often it was
        met."""
        path = _path()
        self.met[path] = self.met.get(path, 0) + 1
        return path, self.met[path]


def _path() -> Path:
    """Return the positions in the user's functions that run now, the innermost first."""
    out = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            out.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(out)
