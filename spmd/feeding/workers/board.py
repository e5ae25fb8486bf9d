"""What a worker is at, in memory that its agent sees: a killed or hung one is named by it.

The worker writes before each example; the agent reads whenever it likes, also after its death.
Always holds: writing costs a microsecond, and needs no help of the other side.
"""

from __future__ import annotations

import json
import mmap
import os
import struct

from spmd.feeding.host import steady_clock as time
from spmd.feeding.messages.wire import WHILE_LOADED, WHILE_READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZE = 1 << 18
# state, examples at once, position, since when (monotonic ns), bytes of the name
NOW = struct.Struct("<IIqqI")
NAME_AT, NAME_BYTES = 64, 1024
WHERE_AT, WHERE_BYTES = 2048, 8192  # length, JSON: pipeline, version, file, line, timeout
MADE_AT = 16384  # length, JSON: what was made of each pipeline
LENGTH = struct.Struct("<I")
IDLE, LOADING, READING, COMPUTING = range(4)
BEFORE = {LOADING: WHILE_LOADED, READING: WHILE_READ}  # what it is at then

OUT_OF_MEMORY = 76  # the status with which a worker ends that is full


class Board:
    """One worker's. Both sides map the same memfd."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("spmd-feed-board", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, SIZE)
        self._memory = mmap.mmap(self.fd, SIZE)

    # ---- the worker

    def idle(self) -> None:
        NOW.pack_into(self._memory, 0, IDLE, 0, 0, 0, 0)

    def before(self, state: int, where: dict[str, Any]) -> None:
        """It is loaded, or its source read, before the first example."""
        self.where(where)
        self.at(0, BEFORE[state], 1, state)

    def where(self, where: dict[str, Any]) -> None:
        """The pipeline whose examples follow."""
        self._put(WHERE_AT, WHERE_BYTES, where)

    def at(self, position: int, name: str = "", count: int = 1, state: int = COMPUTING) -> None:
        """The computation of an example begins, or of `count` of them at once."""
        length = 0
        if name:
            said = name.encode("utf-8", "replace")[:NAME_BYTES]
            length = len(said)
            self._memory[NAME_AT : NAME_AT + length] = said
        NOW.pack_into(self._memory, 0, state, count, position, time.monotonic_ns(), length)

    def made(self, made: dict[str, Any]) -> None:
        self._put(MADE_AT, SIZE - MADE_AT, made)

    def _put(self, at: int, most: int, value: dict[str, Any]) -> None:
        said = json.dumps(value, separators=(",", ":")).encode()
        if len(said) + LENGTH.size > most:
            said = b"{}"
        self._memory[at + 4 : at + 4 + len(said)] = said
        LENGTH.pack_into(self._memory, at, len(said))

    # ---- the agent

    def now(self) -> dict[str, Any]:
        """state, count, position, seconds, example, and what `where` said."""
        state, count, position, since, length = NOW.unpack_from(self._memory, 0)
        name = self._memory[NAME_AT : NAME_AT + min(length, NAME_BYTES)]
        seconds = (time.monotonic_ns() - since) / 1e9 if since else 0.0
        return {"pipeline": None, "version": 0, "file": None, "line": None, "timeout": None,
                **self._get(WHERE_AT, WHERE_BYTES), "state": state, "count": count,
                "position": position, "seconds": max(seconds, 0.0),
                "example": name.decode("utf-8", "replace")}

    def all_made(self) -> dict[str, Any]:
        return self._get(MADE_AT, SIZE - MADE_AT)

    def _get(self, at: int, most: int) -> dict[str, Any]:
        """{} where it is just being written."""
        (length,) = LENGTH.unpack_from(self._memory, at)
        try:
            found = json.loads(self._memory[at + 4 : at + 4 + min(length, most)])
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)
