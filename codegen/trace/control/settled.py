"""What a loop carried when it was captured before: where the body around it is captured again, the
loop begins with that, so that captures grow with the depth of loops and not exponentially.

Goes in: what a settled loop carries. Comes out: the same for the next pass of the body around it.
Always holds: a loop is the same one if the user's functions have come to it in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from codegen.places import is_user_file

if TYPE_CHECKING:
    from codegen.ir import ArrayType
    from codegen.trace.state import Held, LeafType, Memory
    from codegen.trace.storage import Storage

Key = tuple[str, int]  # a leaf: the variable, and which leaf of it
Path = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Settled:
    """What a loop carries: leaves, memory, what may be one memory, variables bound inside."""

    carried: Mapping[Key, LeafType]
    stored: Mapping[Memory | Storage, ArrayType]
    aliases: Mapping[Key, tuple[Memory | Storage | Key, ...]]
    held: Mapping[str, Held]


@dataclass
class Inner:
    """The loops in a body: what each of them carried when the body was captured last."""

    found: dict[tuple[Path, int], Settled] = field(default_factory=dict)
    met: dict[Path, int] = field(default_factory=dict)  # how often, in this pass

    def number(self) -> tuple[Path, int]:
        """Of the loop that begins now."""
        path = _path()
        self.met[path] = self.met.get(path, 0) + 1
        return path, self.met[path]


def _path() -> Path:
    """Where the user's functions that run now stand, the innermost first."""
    out = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            out.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(out)
