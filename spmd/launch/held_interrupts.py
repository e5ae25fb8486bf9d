"""Ctrl-C waits while a process does with others what all of them must do to the end.

In: SIGINT, in the main thread. Out: its handler is called at the next moment that allows it.
Always holds: an interrupt may come late, and is never lost.
"""

from __future__ import annotations

import signal
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class HeldInterrupts:
    """A context in which SIGINT waits, but for the parts in `allowed`. It does nothing in other
    threads than the main one, which hear no signals, and where SIGINT has no handler in Python."""

    def __init__(self) -> None:
        self._handler: Callable[[int, Any], Any] | None = None  # of the user, while SIGINT is held
        self._depth, self._came = 0, False
        self.allowed = Allowed(self)

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and threading.get_ident() == threading.main_thread().ident:
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                self.hold()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            try:
                self.release()
            finally:
                self._handler = None

    def hold(self) -> None:
        """Let SIGINT wait from now on, if this context holds it."""
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._note)

    def release(self) -> None:
        """Give SIGINT its handler back, which hears of one that has come before."""
        handler = self._handler
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
            if self._came:
                self._came = False
                handler(signal.SIGINT, None)

    def _note(self, number: int, frame: Any) -> None:
        self._came = True


class Allowed:
    """A part of such a context that an interrupt may end, also one that has come before."""

    def __init__(self, held: HeldInterrupts) -> None:
        self._held, self._depth = held, 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            try:
                self._held.release()
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            try:
                self._held.hold()
            except BaseException:  # it has come at this very moment
                self._held.hold()
                raise
