"""Calls that wait for the job: a bounded queue; threads make them in order, or the event loop.

In: calls, each with the seconds that it may take. Out: their results, inside an event loop. Always
holds: a call whose request is cancelled, or over its deadline, leaves the queue unless it has
begun; the queue never holds more than its bound; a joined call passes none that may change state.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from codegen.errors import EnvironmentFault, PeerError
from spmd.prepared_calls import brief_calls
from spmd.serving.joined_calls import CallPlace, ModelCall, Result, results_of

BRIEF_S = 1e-3  # calls of at most so long are made by the event loop itself
TRIED_S = 0.02  # what takes longer in the thread is not tried in the event loop
MOST_KNOWN = 1024  # keys of calls, of which is known how long they take
WATCH_S = 0.1  # whether the client goes is asked of calls that take longer
TELL_S = 1e-3  # so long after the last ones, results are handed over though other calls wait
MOST_LOST = 3  # places that a call may be lost with: it may be what ends them


Gone = Callable[[], Awaitable[Any]] | None


class FullError(PeerError):
    """The queue holds as many calls as it may."""


class DeadlineError(PeerError):
    """A call had no result by its deadline."""


class DrainingError(PeerError):
    """Raised once the server ends: it answers what waits, and takes no more."""


class GoneError(PeerError):
    """The client of a call has gone."""


class LostError(PeerError):
    """A place was lost while it made a call, which may be made again elsewhere."""


class Waiting:
    """A call in the queue. call: None once it has begun, or nobody waits for it; since: when it
    came; lost: how many places were lost while they made it."""

    def __init__(self, call: ModelCall, future: asyncio.Future[Any]) -> None:
        self.call: ModelCall | None = call
        self.future, self.since, self.lost = future, time.monotonic(), 0
        self._watch: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def end(self, value: Any, error: BaseException | None) -> None:
        """Hand over what has become of the call, if somebody still waits for it."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


    def watch(self, seconds: float, gone: Gone) -> None:
        """From now on, end the wait for the call when gone() returns, or in so many seconds."""
        self._timer = self.future.get_loop().call_later(seconds, self.end, None, TimeoutError())
        if gone is not None:
            self._watch = asyncio.ensure_future(gone())
            self._watch.add_done_callback(self._end_gone)

    def _end_gone(self, watch: asyncio.Future[Any]) -> None:
        if not watch.cancelled():
            self.end(None, GoneError("the client has gone"))

    def forget(self) -> None:
        """Nobody waits for the call any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()


Begun = tuple[Waiting, ModelCall]


def _tell(ended: list[tuple[Waiting, Any, BaseException | None]]) -> None:
    """Hand over, in the event loop, what has become of calls."""
    def end() -> None:
        for waiting, value, error in ended:
            waiting.end(value, error)

    with suppress(RuntimeError):  # the loop has ended
        ended[0][0].future.get_loop().call_soon_threadsafe(end)


def _calls_of(batch: list[Waiting]) -> list[ModelCall]:
    return [waiting.call for waiting in batch if waiting.call is not None]


def _kind_of(calls: list[ModelCall]) -> Hashable:
    """Return what is equal for calls that take about as long as these, which are made as one."""
    rows = calls[0].rows if len(calls) == 1 else sum(call.rows for call in calls)
    return calls[0].key, rows.bit_length()


class CallQueue:
    """A queue of at most so many waiting calls. wait: seconds that the first of them waits for
    others with which it is joined; here: whether there is a job in this process that makes them,
    beside the places that come. Close it: its threads end after the calls that they make."""

    def __init__(self, most: int, wait: float = 0.0, here: bool = True) -> None:
        self.most, self.draining, self._closed = most, False, False
        self._here, self._paused = here, False
        self._running_here = False  # a call runs in the job of this process
        self._wait, self._wakes = wait, False
        # of calls that nobody watches so far: their seconds, and what waits for their client to go
        self._fresh: dict[Waiting, tuple[float, Gone]] = {}
        self._look: asyncio.TimerHandle | None = None
        # seconds that calls take, by their key, and by the power of two below their rows
        self._took: dict[Hashable, float] = {}
        self._waiting: deque[Waiting] = deque()
        self.running = 0  # calls, joined ones as one
        self.connections: Collection[Any] = ()  # over HTTP
        self._lock = threading.RLock()  # taken itself it is quicker than by the condition
        self._changed = threading.Condition(self._lock)
        self._threads: dict[CallPlace | None, threading.Thread] = {}
        if here:
            self.add_place(None)

    def add_place(self, place: CallPlace | None) -> None:
        """Have a thread make calls at a place too, until that has left; None: in the job of this
        process."""
        thread = threading.Thread(target=self._serve, args=(place,), name="spmd serve", daemon=True)
        with self._changed:
            self._threads[place] = thread
            thread.start()

    def look(self) -> None:
        """A place may have left: its thread ends."""
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Begin no call inside the with statement, which is entered once those that run have
        ended."""
        with self._changed:
            self._paused = True
            self._changed.wait_for(lambda: not self.running)
        try:
            yield
        finally:
            with self._changed:
                self._paused = False
                self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._waiting)

    def is_idle(self) -> bool:
        """Return whether no call waits and none runs."""
        with self._changed:
            return not self._waiting and not self.running

    def drain(self) -> None:
        """Take no more calls. A handler of a signal may call it."""
        self.draining = True

    def check_open(self) -> None:
        """Raise DrainingError once the queue takes no more calls."""
        if self.draining:
            raise DrainingError("this server ends", expected="another server, or this one later",
                                found="a request after SIGTERM")

    def check_ready(self) -> None:
        """Raise what a call would be refused with: DrainingError, and EnvironmentFault where there
        is no place to make it."""
        self.check_open()
        if not self._threads:
            raise EnvironmentFault("no replica is there, and the server has no ranks of its own",
                                   expected="a replica that has joined", found="none",
                                   remedy="python -m spmd serve --join ADDRESS starts one")

    async def run(self, call: ModelCall, seconds: float, gone: Gone = None) -> Any:
        """Add a call; return what it returned, or raise what it raised: see result()."""
        if self._begin_at_once(call):
            value, error = self._made_here([call])[0]
            if error is not None:
                raise error
            return value
        return await self.result(self.add(call), seconds, gone)

    def _begin_at_once(self, call: ModelCall) -> bool:
        """Begin a call that is brief, and waits neither for others nor to be joined with them: its
        rows fill it, or only one client is connected."""
        joins = call.rows < call.most and (self._wait or len(self.connections) != 1)
        if self._waiting or joins or not self._is_brief([call]):
            return False
        with self._lock:
            if not self._here or self._closed or self.draining or not self._is_free(None):
                return False
            self.running += 1
            self._running_here = True
        return True

    def _made_here(self, calls: list[ModelCall]) -> list[Result]:
        """Make a call in the event loop, joined if these are several, which has begun."""
        with brief_calls:
            results = self._results(calls, None, here=True)
        with self._lock:
            self._end(None)
        return results

    def add(self, call: ModelCall) -> Waiting:
        """Add a call to the queue. Raises FullError, and what check_ready does."""
        self.check_ready()
        loop = asyncio.get_running_loop()
        waiting = Waiting(call, loop.create_future())
        with self._changed:
            if len(self._waiting) >= self.most:
                raise FullError("too many requests wait", expected=f"at most {self.most}",
                                found=str(len(self._waiting)),
                                remedy="the same request later; --queue N of spmd serve")
            self._waiting.append(waiting)
        # Calls begin once the loop has read all requests that are there.
        if not self._wakes:
            self._wakes = True
            loop.call_soon(self._wake)
        return waiting

    async def result(self, waiting: Waiting, seconds: float,
                     gone: Gone = None) -> Any:
        """Wait until the call has been made; return what it returned, or raise what it raised.
        Raises DeadlineError once the seconds are over, and GoneError once gone(), which is asked
        for calls that take longer than a moment, returns."""
        if seconds < WATCH_S:
            waiting.watch(seconds, gone)
        else:
            self._fresh[waiting] = seconds, gone
            if self._look is None:
                self._look = asyncio.get_running_loop().call_later(WATCH_S, self._look_after)
        try:
            return await waiting.future
        except TimeoutError:
            raise self._late(waiting, seconds) from None
        finally:
            self._fresh.pop(waiting, None)
            waiting.forget()
            self._withdraw(waiting)

    def _look_after(self) -> None:
        """Have those calls watched that have waited for a moment: a timer for each call would take
        longer than many a call."""
        now, self._look = time.monotonic(), None
        for waiting, (seconds, gone) in list(self._fresh.items()):
            if now - waiting.since >= WATCH_S:
                del self._fresh[waiting]
                waiting.watch(waiting.since + seconds - now, gone)
        if self._fresh:
            self._look = asyncio.get_running_loop().call_later(WATCH_S, self._look_after)

    def _wake(self) -> None:
        """Make calls here, in the event loop, while they are brief; else wake the thread: that the
        two wait for each other takes longer than a short call."""
        self._wakes = False
        end = time.monotonic() + BRIEF_S
        while begun := self._begin_brief():
            results = self._made_here([call for _, call in begun])
            for (waiting, _), result in zip(begun, results):
                waiting.end(*result)
            if time.monotonic() > end and not self._wakes:  # requests that have come are read first
                self._wakes = True
                asyncio.get_running_loop().call_soon(self._wake)
                return

    def _begin_brief(self) -> list[Begun]:
        """Take the next call out of the queue, if it is brief. Else leave it to the thread."""
        with self._changed:
            batch = self._ready(None) if self._here else []
            if batch and self._is_brief(_calls_of(batch)) and not self._seconds_more(batch):
                return self._taken(batch, None)
            if self._waiting:
                self._changed.notify_all()
            return []

    def _is_brief(self, calls: list[ModelCall]) -> bool:
        """Return whether the call of these is known to be short. What independent rows take depends
        on how many they are, not on what is in them."""
        return self._took.get(_kind_of(calls), math.inf) < BRIEF_S

    def _results(self, calls: list[ModelCall], place: CallPlace | None, here: bool
                 ) -> list[Result]:
        """Make a call at a place, joined if these are several, and note how long it takes. here:
        in the event loop."""
        began = time.monotonic()
        results = results_of(calls, place)
        if calls[0].key is not None and place is None:
            self._note(_kind_of(calls), time.monotonic() - began, here)
        return results

    def _note(self, kind: Hashable, seconds: float, here: bool) -> None:
        """Note how long a call took. Other programs may have had the core meanwhile, and in the
        thread it waited for the event loop: so that a call is long is believed slowly here, and
        what the thread has found is tried here now and then."""
        known = self._took.get(kind, seconds)
        if here:
            seconds = min(seconds, 4 * known)
        elif seconds < TRIED_S:
            seconds = 0.9 * min(seconds, known)
        if len(self._took) >= MOST_KNOWN:
            self._took.clear()
        self._took[kind] = seconds

    def _late(self, waiting: Waiting, seconds: float) -> DeadlineError:
        state = "a call that still runs: its result is dropped"
        with self._changed:
            if waiting.call is not None:
                before = self._waiting.index(waiting) + self.running
                state = f"a call that waits behind {before} other{'s' * (before != 1)}"
        return DeadlineError(
            f"the call has no result after {seconds:g} s", expected="a result by the deadline",
            found=state,
            remedy="a longer timeout in the request, at most --timeout SECONDS of spmd serve")

    def _withdraw(self, waiting: Waiting) -> None:
        if waiting.call is None:
            return
        with self._changed:
            if waiting.call is not None:
                self._waiting.remove(waiting)
                waiting.call = None

    def _begin(self, place: CallPlace | None, waits: bool) -> list[Begun]:
        """Take the first call out of the queue, and those behind it that are joined with it. Wait,
        where it waits, until one may begin at this place, or that has left, or the queue is closed.
        A brief one is left to the event loop, which would else never have one while others wait.
        """
        while not self._ends(place):
            batch = self._ready(place)
            seconds = self._seconds_more(batch) if batch else None
            brief = seconds == 0 and place is None and self._is_brief(_calls_of(batch))
            if seconds == 0 and not brief:
                return self._taken(batch, place)
            if not waits:
                break
            if brief:
                seconds = None
                with suppress(RuntimeError):  # the loop has ended
                    batch[0].future.get_loop().call_soon_threadsafe(self._wake)
            self._changed.wait(seconds)
        return []

    def _ends(self, place: CallPlace | None) -> bool:
        """Return whether no more calls are made at a place."""
        return self._closed or (place is not None and place.has_left)

    def _ready(self, place: CallPlace | None) -> list[Waiting]:
        """Return the calls that the next one at a place is made of; none while it must wait."""
        return self._joined() if self._waiting and self._is_free(place) else []

    def _is_free(self, place: CallPlace | None) -> bool:
        """Return whether a call may begin at a place now."""
        return not (self._paused or (place is None and self._running_here))

    def _end(self, place: CallPlace | None) -> None:
        """A call that was taken has ended."""
        self.running -= 1
        if place is None:
            self._running_here = False
        if self._paused:
            self._changed.notify_all()

    def _taken(self, batch: list[Waiting], place: CallPlace | None) -> list[Begun]:
        """Take these calls out of the queue: they run from now on."""
        begun = []
        for waiting in batch:
            assert waiting.call is not None
            begun.append((waiting, waiting.call))
            self._waiting.remove(waiting)
            waiting.call = None
        self.running += 1
        if place is None:
            self._running_here = True
        return begun

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

    def _serve(self, place: CallPlace | None) -> None:
        ended: list[tuple[Waiting, Any, BaseException | None]] = []
        told = time.monotonic()
        while True:
            with self._changed:
                begun = self._begin(place, waits=not ended)
                if not begun and not ended:  # the end
                    self._threads.pop(place)
                    return
            if ended and (not begun or time.monotonic() - told > TELL_S):
                _tell(ended)
                ended, told = [], time.monotonic()
            if not begun:
                continue
            results = self._results([call for _, call in begun], place, here=False)
            with self._changed:
                self._end(place)
                ended += [(waiting, *result) for (waiting, call), result in zip(begun, results)
                          if not self._is_made_again(waiting, call, result)]
            del begun, results

    def _is_made_again(self, waiting: Waiting, call: ModelCall, result: Result) -> bool:
        """Put a call whose place was lost before all that wait. Return False for others, and for
        one that was lost too often."""
        if not isinstance(result[1], LostError) or waiting.future.done():
            return False
        waiting.lost += 1
        if waiting.lost >= MOST_LOST:
            return False
        waiting.call = call
        self._waiting.appendleft(waiting)
        self._changed.notify_all()
        return True

    def close(self) -> None:
        """End the queue's threads. Calls that still wait are not made."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join()
