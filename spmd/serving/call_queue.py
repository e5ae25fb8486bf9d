"""Calls that wait for the job: a bounded queue, and one thread that makes them in order.

In: calls, each with the seconds that it may take. Out: their results, inside an event loop. Always
holds: a call whose request is cancelled, or over its deadline, leaves the queue unless it has
begun; the queue never holds more than its bound.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from codegen.errors import PeerError

TELL_S = 1e-3  # so long after the last ones, results are handed over though other calls wait


class FullError(PeerError):
    """The queue holds as many calls as it may."""


class DeadlineError(PeerError):
    """A call had no result by its deadline."""


class DrainingError(PeerError):
    """The server ends: it answers what waits, and takes no more."""


class Waiting:
    """A call in the queue. call: None once it has begun, or nobody waits for it."""

    def __init__(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.call: Callable[[], Any] | None = call
        self.future = future

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
    """A queue of at most so many waiting calls. Close it: its thread ends after the call that it
    makes."""

    def __init__(self, most: int) -> None:
        self.most, self.draining, self._closed = most, False, False
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

    def add(self, call: Callable[[], Any]) -> Waiting:
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
            found="a call that still runs: its result is dropped"
            if has_begun else f"a call that waits behind {len(self._waiting) - 1} others",
            remedy="a longer timeout in the request, at most --timeout SECONDS of spmd serve")

    def _withdraw(self, waiting: Waiting) -> None:
        with self._changed:
            if waiting.call is not None:
                self._waiting.remove(waiting)
                waiting.call = None

    def _serve(self) -> None:
        ended: list[tuple[Waiting, Any, BaseException | None]] = []
        told = time.monotonic()
        while True:
            with self._changed:
                self._running = 0
                if ended and (not self._waiting or time.monotonic() - told > TELL_S):
                    _tell(ended)
                    ended, told = [], time.monotonic()
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                waiting = self._waiting.popleft()
                call, waiting.call, self._running = waiting.call, None, 1
            assert call is not None
            value, error = None, None
            try:
                value = call()
            except BaseException as caught:
                error = caught
            ended.append((waiting, value, error))
            del waiting, call, value, error

    def close(self) -> None:
        """End the thread. Calls that still wait are not made."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
