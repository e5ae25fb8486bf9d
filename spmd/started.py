"""Calls of one job from several threads: one after the other, in the order in which they came.

In: calls, some of which are started and not waited for. Out: the turn of each, and handles whose
results can be asked for later. Always holds: who comes first runs first, whether it waits or not.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident, start_new_thread
from collections import deque
from contextlib import contextmanager
from threading import TIMEOUT_MAX

from codegen.errors import UsageError
from spmd.tracebacks import plainly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable, Iterator
    from typing import Any


class FairLock:
    """A lock that goes to those who wait for it in the order in which they came. thread: whose turn
    it is, from when the turn begins; 0: nobody's, or that of a started call that waits for it."""

    def __init__(self) -> None:
        self._lock, self._busy, self.thread = allocate_lock(), False, 0
        self._gates: deque[tuple[LockType, int]] = deque()  # closed ones, and who waits there

    @contextmanager
    def during(self, take: Callable[[], object]) -> Iterator[None]:
        """Run the body of a `with` statement in a turn that `take` takes. The turn belongs to this
        thread from when it begins: an interrupt on the way in or out does not lose it."""
        within = self.is_mine()  # a call within a call, which `take` refuses
        try:
            take()
            yield
        finally:
            if not within:
                try:
                    self.leave()
                except BaseException:  # interrupted on the way
                    self.leave()
                    raise

    def is_mine(self) -> bool:
        """Return whether this thread has the turn."""
        return self.thread == get_ident()

    def take(self, waits: bool) -> bool:
        """Wait for a turn; return False, without one, where this thread has it already, and, unless
        it `waits`, where another one has it."""
        me = get_ident()
        with self._lock:
            if not self._busy:
                self._busy, self.thread = True, me
                return True
            if not waits or self.thread == me:
                return False
            gate = self._closed_gate(me)
        self._pass(gate)
        return True

    def reserve(self) -> LockType:
        """Return the gate of the next turn, which opens when that begins."""
        with self._lock:
            if self._busy:
                return self._closed_gate(0)
            self._busy = True
            return allocate_lock()

    def take_reserved(self, gate: LockType) -> None:
        """Wait for a turn that was reserved."""
        self._pass(gate)
        self.thread = get_ident()

    def leave(self) -> None:
        """Give the turn back if this thread has it."""
        if self.is_mine():
            self.give_back()

    def give_back(self) -> None:
        """End this turn, so that the next one begins."""
        with self._lock:
            if self._gates:
                gate, self.thread = self._gates.popleft()
                gate.release()
            else:
                self._busy, self.thread = False, 0

    def _closed_gate(self, thread: int) -> LockType:
        gate = allocate_lock()
        gate.acquire()
        self._gates.append((gate, thread))
        return gate

    def _pass(self, gate: LockType) -> None:
        try:
            gate.acquire()
        except BaseException:  # interrupted
            self.drop(gate)
            raise

    def drop(self, gate: LockType) -> None:
        """Give up a turn that was reserved, whether it has begun or not."""
        with self._lock:
            mine = next((pair for pair in self._gates if pair[0] is gate), None)
            if mine is not None:
                self._gates.remove(mine)
        if mine is None:
            self.give_back()


class Started:
    """A call that was started: what `start` gives. It runs whether its result is asked for or not.

    Example::

        @program(mesh=("r",))
        def halves(n: int = 8):
            return spmd.input("u", (n,), np.float64, layout=("r",)) / 2

        with spmd.build(halves).open(ranks=4) as job:
            calls = [job.start(u=np.full(8, k)) for k in range(3)]
            print([float(call.result()[0]) for call in calls])    # [0.0, 0.5, 1.0]
    """

    def __init__(self) -> None:
        self._gate, self._done = allocate_lock(), False
        self._gate.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return whether the call has ended, with a result or with an error."""
        return self._done

    @plainly
    def result(self, timeout: float | None = None) -> Any:
        """Return what the call returned, or raise what it raised; wait until it has ended.

        timeout: seconds; raises TimeoutError where the call has not ended by then. It goes on.
        """
        if not self._done:
            seconds = -1 if timeout is None else min(max(timeout, 0), TIMEOUT_MAX)
            if not self._gate.acquire(timeout=seconds):
                raise TimeoutError(f"the call has not ended within {timeout:g} s")
            self._gate.release()
        if self._error is not None:
            raise self._error
        return self._value

    def run(self, call: Callable[[], Any]) -> None:
        """Make the call here and now; `result()` says what became of it."""
        value, error = None, None
        try:
            value = call()
        except Exception as caught:
            error = caught
        self._end(value, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        self._value, self._error, self._done = value, error, True
        self._gate.release()


class Starter:
    """Runs started calls in a thread, which ends when there are none left."""

    def __init__(self, turns: FairLock) -> None:
        self._turns, self._lock, self._runs = turns, allocate_lock(), False
        self._calls: deque[tuple[LockType, Callable[[], Any], Started]] = deque()

    def add(self, run: Callable[[], Any]) -> Started:
        """Queue a call, which begins when the calls before it have ended."""
        started = Started()
        with self._lock:
            gate = self._turns.reserve()
            if not self._runs:
                try:
                    start_new_thread(self._serve, ())
                except BaseException:  # no more threads
                    self._turns.drop(gate)
                    raise
                self._runs = True
            self._calls.append((gate, run, started))
        return started

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._runs = False
                    return
                gate, run, started = self._calls.popleft()
            self._turns.take_reserved(gate)
            value, error = None, None
            try:
                value = run()
            except BaseException as caught:
                error = caught
            self._turns.give_back()
            started._end(value, error)
            del run, started, value, error


def refused(remedy: str = "") -> UsageError:
    """Return what a second call at a time raises where calls cannot wait for each other."""
    return UsageError(
        "this job is called while another call of it runs",
        expected="one call after the other, in the same order on every process",
        remedy=remedy or "call it from one thread, or open the image once for each thread, with a "
        "communicator of its own (comm.Dup())",
    )
