"""The heartbeat of a worker: what it computes, in memory that its agent reads to name a hung one.

The worker writes before each example; the agent reads at any time, also after the worker's death.
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


class WorkerHeartbeat:
    """Shows what one worker computes now and has computed. Worker and agent map the same memfd
    `fd`."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("spmd-feed-heartbeat", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, SIZE)
        self._memory = mmap.mmap(self.fd, SIZE)

    # ---- the worker

    def set_idle(self) -> None:
        """Say that the worker computes nothing."""
        NOW.pack_into(self._memory, 0, IDLE, 0, 0, 0, 0)

    def set_preparing(self, state: int, where: dict[str, Any]) -> None:
        """Say that a pipeline is loaded, or its source read, before its first example. state: which
        of LOADING and READING."""
        self.set_pipeline(where)
        self.begin_example(0, BEFORE[state], 1, state)

    def set_pipeline(self, where: dict[str, Any]) -> None:
        """Say whose examples follow: pipeline, version, file, line, timeout."""
        self._put(WHERE_AT, WHERE_BYTES, where)

    def begin_example(self, position: int, name: str = "", count: int = 1,
                      state: int = COMPUTING) -> None:
        """Say that the computation of an example begins, or of `count` of them at once."""
        length = 0
        if name:
            said = name.encode("utf-8", "replace")[:NAME_BYTES]
            length = len(said)
            self._memory[NAME_AT : NAME_AT + length] = said
        NOW.pack_into(self._memory, 0, state, count, position, time.monotonic_ns(), length)

    def set_counts(self, counts: dict[str, Any]) -> None:
        """Set what was computed of each pipeline since the worker started."""
        self._put(MADE_AT, SIZE - MADE_AT, counts)

    def _put(self, offset: int, most: int, value: dict[str, Any]) -> None:
        said = json.dumps(value, separators=(",", ":")).encode()
        if len(said) + LENGTH.size > most:
            said = b"{}"
        self._memory[offset + 4 : offset + 4 + len(said)] = said
        LENGTH.pack_into(self._memory, offset, len(said))

    # ---- the agent

    def current(self) -> dict[str, Any]:
        """Return state, count, position, seconds since then, example, and what set_pipeline() said
        last."""
        state, count, position, since, length = NOW.unpack_from(self._memory, 0)
        name = self._memory[NAME_AT : NAME_AT + min(length, NAME_BYTES)]
        seconds = (time.monotonic_ns() - since) / 1e9 if since else 0.0
        return {"pipeline": None, "version": 0, "file": None, "line": None, "timeout": None,
                **self._get(WHERE_AT, WHERE_BYTES), "state": state, "count": count,
                "position": position, "seconds": max(seconds, 0.0),
                "example": name.decode("utf-8", "replace")}

    def counts(self) -> dict[str, Any]:
        """Return what was computed of each pipeline, as set_counts() said last."""
        return self._get(MADE_AT, SIZE - MADE_AT)

    def _get(self, offset: int, most: int) -> dict[str, Any]:
        """Return a JSON object; {} while it is being written."""
        (length,) = LENGTH.unpack_from(self._memory, offset)
        try:
            value = json.loads(self._memory[offset + 4 : offset + 4 + min(length, most)])
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)
