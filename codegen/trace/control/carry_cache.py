"""A cache of what each loop carried in its last capture: the next capture begins with that.

A body is captured until the types that it carries are stable, and so are the loops in it: without
the cache, the number of captures would double with each enclosing loop. In and out: LoopCarry.
Always holds: a loop is found again by its call stack in the user's functions, and by how many times
that stack has reached it in this pass.
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
class LoopCarry:
    """Records the state that a loop carries. carried: leaves of variables. stored: memory that it
    writes. aliases: for a leaf, the memory that it may share. held: variables that it binds
    first."""

    carried: Mapping[Key, LeafType]
    stored: Mapping[Memory | Storage, ArrayType]
    aliases: Mapping[Key, tuple[Memory | Storage | Key, ...]]
    held: Mapping[str, Held]


@dataclass
class CarryCache:
    """Keeps the state that each loop in a body carried when the body was captured last."""

    carries: dict[tuple[Path, int], LoopCarry] = field(default_factory=dict)
    met: dict[Path, int] = field(default_factory=dict)  # how often each was reached in this pass

    def number(self) -> tuple[Path, int]:
        """Return the key of the loop that begins now: the call stack, and how often that has
        reached it."""
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
