"""What SIGINT and SIGTERM do to a command of one process: it is left by an exception, once.

Always holds: a signal that comes again while the command is being left changes nothing; one that
comes again later ends the process at once.
"""

from __future__ import annotations

import os
import signal
import time

AGAIN_S = 1.0  # so much later one that comes again is meant


class Terminated(BaseException):
    """The exception of SIGTERM: leave as promptly as for an interrupt."""

    exit_code = 143


def hear() -> None:
    """Leave by an exception on SIGINT and SIGTERM from now on, where they are not ignored."""
    first: list[float] = []

    def told(number: int, _: object) -> None:
        if not first:
            first.append(time.monotonic())
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        if time.monotonic() - first[0] > AGAIN_S:
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, told)
