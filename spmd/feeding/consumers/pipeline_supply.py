"""PipelineSupply: a thread in a process of ranks that fills their rings with what workers compute.

In: a scheduler's address and a pipeline's name. Out: batches in rings, from begin() to finish().
Always holds: finish() ends the thread, which is noticed wherever it waits.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress

from spmd.engine.feed_rings import are_idle
from spmd.feeding.consumers.consumer import ConsumerLoop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from codegen.errors import SpmdError
    from spmd.feeding.messages.keys import Keys
    from spmd.feeding.messages.scheduler_replies import OpenedStream


class PipelineSupply:
    """pipeline@address, with the keys of the scheduler there. One for each feed.

    ranks: numbers of the ranks of this process; device: what they run on; run: of which run.
    opened: the stream that all processes of the run go on with; None: of this process alone.
    """

    helps = "more workers (spmd feed status says how many)"  # where ranks wait

    def __init__(self, pipeline: str, address: str, keys: Keys, *, ranks: tuple[int, ...] = (),
                 device: str = "cpu", run: str = "", opened: OpenedStream | None = None) -> None:
        self.pipeline, self.address, self.keys, self.opened = pipeline, address, keys, opened
        self._order = opened.order if opened else ""
        self.ranks, self.device, self.run_name = ranks, device, run
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._wake)

    def begin(self, feed: Any, rings: list[Any], start: int) -> None:
        """Fill the rings from batch `start` on, in a thread, until finish()."""
        self._stop.clear()
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)  # what ended the thread before this one
        filling = ConsumerLoop(self, feed, rings, start)
        run = filling.idle if are_idle(feed, rings) else filling.run
        self._thread = threading.Thread(target=run, name="feed-consumer", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """End the thread, and tell workers and scheduler."""
        self._stop.set()
        os.eventfd_write(self._wake, 1)
        if self._thread:
            self._thread.join(5)
            self._thread = None

    def order(self) -> str:
        """Return the digest by which a checkpoint knows the stream; "" until a worker has sent
        it."""
        return self._order

    def goes_on_with(self, order: str) -> None:
        """Set the order that all workers must have: that of a checkpoint, or of the first worker
        that answered."""
        self._order = order

    def text(self) -> str:
        """Return the digest of the pipeline's source; "" where it is not known."""
        return self.opened.text if self.opened else ""

    def settings(self) -> dict[str, Any]:
        """Return the pipeline's settings that determine which example has which position."""
        return (self.opened.settings if self.opened else None) or {}

    def name_of(self, position: int) -> str:
        """Return the name of an example; "" where only workers know the source."""
        return ""

    def has_finished(self) -> bool:
        return self._stop.is_set()

    def has_finished_within(self, seconds: float) -> bool:
        return self._stop.wait(seconds)

    def fileno(self) -> int:
        return self._wake

    def what_ended(self) -> SpmdError | None:
        """Return the error where a child process of this run died too often, else None."""
        return None
