"""Frames that a served call saves, on their way to who streams them.

In: frames, from the thread of the call. Out: the same, in an event loop. Always holds: a call is
ended where its client goes, or stops reading; until then it waits for who reads slowly.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from spmd.frame_streams import FrameQueue
from spmd.serving.call_queue import FullError

STALL_S = 2.0  # without a frame read, once as many wait as may: then the call is ended
LOOK_S = 1e-3  # between two looks at whether there is room
FRAME_BYTES = 512  # that a frame takes beside its elements


class SentFrame(NamedTuple):
    """A frame that a call has saved. version: of the job that was called."""

    version: str
    name: str
    array: np.ndarray


class SentFrames(FrameQueue):
    """Frames on their way from the thread of the call to the event loop. most_bytes: that may wait
    there for the client."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(is_named=True)
        self._loop, self._most = asyncio.get_running_loop(), most_bytes
        self._sent = self._read = 0  # bytes; each is written by one thread
        self._arrived: asyncio.Queue[SentFrame | None] = asyncio.Queue()
        self.version = ""  # of the job that is called
        self._error: BaseException | None = None

    def put(self, name: str, array: np.ndarray) -> None:
        """Send a frame to the event loop; where too many wait there, wait until one has been read.
        Raises FullError where none is read for STALL_S."""
        self.look()
        size = _bytes_of(array)
        self._sent += size
        read, since = self._read, time.monotonic()
        while self._sent - self._read > max(self._most, size):
            if self._read != read:
                read, since = self._read, time.monotonic()
            elif time.monotonic() - since > STALL_S:
                raise FullError(f"the client has read no frame for {STALL_S:g} s",
                                expected=f"at most {self._most} bytes that wait for it",
                                found=f"{self._sent - self._read} bytes", remedy="a client that "
                                "reads on; --max-body SIZE of spmd serve")
            time.sleep(LOOK_S)
            self.look()
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._arrived.put_nowait,
                                            SentFrame(self.version, name, array))

    def look(self) -> None:
        """Raise the error that ends the call, if there is one: nobody waits for its frames."""
        if self._error is not None:
            raise self._error

    def end(self, error: BaseException | None = None) -> None:
        """No frame comes behind those that are there. error: ends a call that still runs."""
        self._error = error
        self._arrived.put_nowait(None)

    async def arrived(self) -> SentFrame | None:
        """Wait for the next frame; None: there is none left."""
        item = await self._arrived.get()
        if item is not None:
            self._read += _bytes_of(item.array)
        return item


def _bytes_of(array: np.ndarray) -> int:
    """Return how much memory a frame takes while it waits."""
    return array.nbytes + FRAME_BYTES
