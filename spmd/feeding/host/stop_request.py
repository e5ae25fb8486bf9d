"""Why a loop should stop: whoever says it first, a signal too, is heard, and nobody takes it back.

Always holds: it only ever becomes true, so no signal is lost between a look at it and a change.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class StopRequest:
    """False until somebody has said why; threads and handlers of signals may do so."""

    def __init__(self) -> None:
        self._said: list[str] = []  # appended to, never changed otherwise

    def say(self, why: str) -> None:
        """Record why the service should stop; the first reason stays. "" is no reason."""
        if why:
            self._said.append(why)

    @property
    def why(self) -> str:
        """Return the first reason to stop, or "" while there is none."""
        return self._said[0] if self._said else ""

    def __bool__(self) -> bool:
        return bool(self._said)

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM record their names as reasons to stop, inside the with
        statement."""
        def stop(number: int, _: object) -> None:
            self.say(signal.Signals(number).name)

        before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
