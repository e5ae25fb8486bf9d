"""What a call saves while it runs, as a stream that Python iterates over while the call goes on.

In: a call that was started, and frames from the thread that runs it. Out: the frames, in the order
in which the program saved them. Always holds: the call never waits for whoever iterates.
"""

from __future__ import annotations

from _queue import SimpleQueue

from spmd.started import Started
from spmd.tracebacks import plainly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    import numpy as np


class FrameQueue:
    """The frames between the thread that runs a call and whoever iterates over its stream.

    is_named: items are pairs of a name and an array, as there are several saves.
    """

    def __init__(self, is_named: bool) -> None:
        self.is_named, self.is_closed = is_named, False
        self._items: SimpleQueue[Any] = SimpleQueue()

    def put(self, name: str, array: np.ndarray) -> None:
        """Add a frame, unless nobody wants more of them."""
        if not self.is_closed:
            self._items.put((name, array) if self.is_named else array)

    def look(self) -> None:
        """Do what is to be done again and again while the call runs. What this, or put(), raises
        ends the call."""

    def during(self, call: Callable[[], Any]) -> Any:
        """Make a call, behind which no more frames come, whatever becomes of it."""
        try:
            return call()
        finally:
            self._items.put(None)

    def close(self) -> None:
        """Drop the frames that are there, and those that are still to come."""
        self.is_closed = True
        self._items.put(None)

    def get(self) -> Any:
        """Wait for the next item. Return None when there is none left."""
        item = None if self.is_closed else self._items.get()
        if item is None or self.is_closed:
            self._items.put(None)  # for the next one who asks, who may wait already
            return None
        return item


class FrameStream:
    """An iterator over what a call saves by spmd.save while it runs; `stream` returns one.

    With one spmd.save each item is its array; with several it is a pair, the name and the array.
    Items come in the order in which the program saves them, each as soon as it is saved. What is
    wrong with the call comes out of the loop, behind the items that were saved before.

    Example::

        @program(mesh=("r",))
        def halves(n: int = 8):
            u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: 8 * i)
            for _ in spmd.range(3):
                u = u / 2
                spmd.save("u", u)
            return np.sum(u)

        with spmd.build(halves).open(ranks=4) as job:
            stream = job.stream()
            print([float(u[1]) for u in stream], stream.result())    # [4.0, 2.0, 1.0] 28.0
    """

    def __init__(self, frames: FrameQueue, started: Started) -> None:
        self._frames, self._started = frames, started

    def __iter__(self) -> Iterator[Any]:
        return self

    @plainly
    def __next__(self) -> Any:
        """Return the next item; wait until it is saved, or the call has ended."""
        item = self._frames.get()
        if item is not None:
            return item
        if not self._frames.is_closed:
            self._frames.close()
            self._started.result()  # raises what was wrong with the call
        raise StopIteration

    def done(self) -> bool:
        """Return whether the call has ended, with a result or with an error."""
        return self._started.done()

    @plainly
    def result(self, timeout: float | None = None) -> Any:
        """Return what the call returned, or raise what it raised; wait until it has ended.

        Items that nobody has asked for stay in the stream. timeout: seconds; raises TimeoutError
        where the call has not ended by then. It goes on.
        """
        return self._started.result(timeout)

    def close(self) -> None:
        """Drop all items that nobody has asked for, also those that are still to be saved. The call
        itself runs to its end, and `result()` waits for it.

        A stream that nobody refers to any more is closed, too.
        """
        self._frames.close()

    def __del__(self) -> None:
        self._frames.is_closed = True
