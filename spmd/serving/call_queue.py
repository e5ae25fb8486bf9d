"""Calls that wait for the job: a bounded queue, and one thread that makes them in order.

In: calls, each with the seconds that it may take. Out: their results, inside an event loop. Always
holds: a call whose request is cancelled, or over its deadline, leaves the queue unless it has
begun; the queue never holds more than its bound; a joined call passes none that may change state.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

from codegen.errors import PeerError
from spmd.serving.joined_calls import ModelCall, results_of

TELL_S = 1e-3  # so long after the last ones, results are handed over though other calls wait


class FullError(PeerError):
    """The queue holds as many calls as it may."""


class DeadlineError(PeerError):
    """A call had no result by its deadline."""


class DrainingError(PeerError):
    """The server ends: it answers what waits, and takes no more."""


class Waiting:
    """A call in the queue. call: None once it has begun, or nobody waits for it; since: when it
    came."""

    def __init__(self, call: ModelCall, future: asyncio.Future[Any]) -> None:
        self.call: ModelCall | None = call
        self.future, self.since = future, time.monotonic()

    def end(self, value: Any, error: BaseException | None) -> None:
        """Hand over what has become of the call, if somebody still waits for it."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


def _tell(ended: list[tuple[Waiting, Any, BaseException | None]]) -> None:
    """Hand over, in the event loop, what has become of calls."""
    def end() -> None:
        for waiting, value, error in ended:
            waiting.end(value, error)

    with suppress(RuntimeError):  # the loop has ended
        ended[0][0].future.get_loop().call_soon_threadsafe(end)


class CallQueue:
    """A queue of at most so many waiting calls. wait: seconds that the first of them waits for
    others with which it is joined. Close it: its thread ends after the call that it makes."""

    def __init__(self, most: int, wait: float = 0.0) -> None:
        self.most, self.draining, self._closed = most, False, False
        self._wait = wait
        self._waiting: deque[Waiting] = deque()
        self._running = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="spmd serve", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def is_idle(self) -> bool:
        """Return whether no call waits and none runs."""
        with self._changed:
            return not self._waiting and not self._running

    def drain(self) -> None:
        """Take no more calls. A handler of a signal may call it."""
        self.draining = True

    def check_open(self) -> None:
        """Raise DrainingError once the queue takes no more calls."""
        if self.draining:
            raise DrainingError("this server ends", expected="another server, or this one later",
                                found="a request after SIGTERM")

    def add(self, call: ModelCall) -> Waiting:
        """Add a call. Raises FullError, and DrainingError."""
        self.check_open()
        loop = asyncio.get_running_loop()
        waiting = Waiting(call, loop.create_future())
        with self._changed:
            if len(self._waiting) >= self.most:
                raise FullError("too many requests wait", expected=f"at most {self.most}",
                                found=str(len(self._waiting)),
                                remedy="the same request later; --queue N of spmd serve")
            self._waiting.append(waiting)
        # The thread is woken once the loop has read all requests that are there: each time that
        # one of the two waits for the other costs more than a short call.
        loop.call_soon(self._wake)
        return waiting

    async def result(self, waiting: Waiting, seconds: float) -> Any:
        """Wait until the call has been made; return what it returned, or raise what it raised.
        Raises DeadlineError once the seconds are over."""
        try:
            async with asyncio.timeout(seconds):
                return await waiting.future
        except TimeoutError:
            raise self._late(waiting, seconds) from None
        finally:
            self._withdraw(waiting)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _late(self, waiting: Waiting, seconds: float) -> DeadlineError:
        has_begun = waiting.call is None
        return DeadlineError(
            f"the call has no result after {seconds:g} s", expected="a result by the deadline",
            found="a call that still runs: its result is dropped, what it does to state stays"
            if has_begun else f"a call that waits behind {len(self._waiting) - 1} others",
            remedy="a longer timeout in the request, at most --timeout SECONDS of spmd serve")

    def _withdraw(self, waiting: Waiting) -> None:
        with self._changed:
            if waiting.call is not None:
                self._waiting.remove(waiting)
                waiting.call = None

    def _begin(self) -> list[tuple[Waiting, ModelCall]]:
        """Take the first call out of the queue, and those behind it that are joined with it. Wait
        until there is one, or the queue is closed."""
        while not self._closed:
            batch = self._joined() if self._waiting else []
            seconds = self._seconds_more(batch) if batch else None
            if seconds is None or seconds > 0:
                self._changed.wait(seconds)
                continue
            begun = []
            for waiting in batch:
                assert waiting.call is not None
                begun.append((waiting, waiting.call))
                self._waiting.remove(waiting)
                waiting.call = None
            return begun
        return []

    def _joined(self) -> list[Waiting]:
        """Return the calls that the next one is made of."""
        batch = [self._waiting[0]]
        first = batch[0].call
        assert first is not None
        rows = first.rows
        for waiting in itertools.islice(self._waiting, 1, None):
            call = waiting.call
            if first.key is None or rows >= first.most or call is None or call.key is None:
                break
            if call.key == first.key and rows + call.rows <= first.most:
                batch.append(waiting)
                rows += call.rows
        return batch

    def _seconds_more(self, batch: list[Waiting]) -> float:
        """Return how long these still wait for others: 0 where no other can be joined with them."""
        calls = [waiting.call for waiting in batch]
        first, rows = calls[0], sum(call.rows for call in calls if call is not None)
        others = len(self._waiting) > len(batch)
        if not self._wait or first is None or first.key is None or rows >= first.most or others \
                or self.draining:
            return 0.0
        return max(batch[0].since + self._wait - time.monotonic(), 0.0)

    def _serve(self) -> None:
        ended: list[tuple[Waiting, Any, BaseException | None]] = []
        told = time.monotonic()
        while True:
            with self._changed:
                self._running = 0
                if ended and (not self._waiting or time.monotonic() - told > TELL_S):
                    _tell(ended)
                    ended, told = [], time.monotonic()
                begun = self._begin()
                self._running = len(begun)
            if not begun:
                return
            results = results_of([call for _, call in begun])
            ended += [(waiting, *result) for (waiting, _), result in zip(begun, results)]
            del begun, results

    def close(self) -> None:
        """End the thread. Calls that still wait are not made."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
