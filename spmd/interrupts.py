"""What SIGINT and SIGTERM do to a command of one process: it is left by an exception, once.

Always holds: a signal that comes again while the command is being left changes nothing; one that
comes again later ends the process at once; none is lost where Python drops exceptions.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from _thread import start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AGAIN_S = 1.0  # so much later one that comes again is meant
SOON_S = 0.01  # for a callback to end whose exceptions are dropped
_first: list[float] = []  # when a signal was heard, until the command has been left
_hook_before = sys.unraisablehook


class Terminated(BaseException):
    """The exception of SIGTERM: leave as promptly as for an interrupt."""

    exit_code = 143


def hear() -> None:
    """Leave by an exception on SIGINT and SIGTERM from now on, where they are not ignored."""
    _first.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _told)
    sys.unraisablehook = _say_again


def _told(number: int, _: object) -> None:
    if not _first:
        _first.append(time.monotonic())
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated
    if time.monotonic() - _first[0] > AGAIN_S:
        os._exit(128 + number)


def _say_again(unraisable: Any) -> None:
    """Send a signal again whose exception Python has dropped: it came while a finalizer ran, or the
    callback of a weak reference, as each import has one."""
    if issubclass(unraisable.exc_type, (KeyboardInterrupt, Terminated)) and _first:
        _first.clear()
        number = signal.SIGTERM if unraisable.exc_type is Terminated else signal.SIGINT
        start_new_thread(_send_soon, (number,))
    else:
        _hook_before(unraisable)


def _send_soon(number: int) -> None:
    time.sleep(SOON_S)
    os.kill(os.getpid(), number)
