"""What a long build or check is at, on a terminal: one line, from the third second on.

In: what codegen.progress tells. Out: text on standard error, gone at the end. Elsewhere, as in a
notebook, `display` is replaced. Always holds: nothing is written where nobody looks.
"""

from __future__ import annotations

import sys
import threading
import time

from codegen import progress
from spmd import launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

AFTER_S = 2.0  # what is done sooner says nothing
AGAIN_S = 0.2


class Line:
    """A listener that rewrites one line of a terminal; a thread of its own shows the seconds."""

    def __init__(self, stream: TextIO, after_s: float = AFTER_S) -> None:
        self.stream, self.after_s = stream, after_s
        self.text = ""
        self.begun = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def __call__(self, what: str, done: int, total: int) -> None:
        self.text = f"{what}, {done} of {total}" if total else what

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        wrote = False
        pause = self.after_s
        while not self._over.wait(pause):
            pause = AGAIN_S
            if self.text:
                self._write(f"\r\x1b[Kspmd: {self.text} ({time.monotonic() - self.begun:.0f} s)")
                wrote = True
        if wrote:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text.encode(self.stream.encoding or "ascii", "replace").decode())
            self.stream.flush()
        except (OSError, ValueError):  # the terminal has gone
            pass


def on_terminal() -> Line | None:
    """For the first rank's standard error, where that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty() or launch.launcher()[0] != 0:
        return None
    return Line(sys.stderr)


# Makes the listener of a task: a function of (what, done, total) with a `close`, or None.
display: Callable[[], Line | None] = on_terminal


class shown:
    """A context in which progress is shown; inside another one it does nothing."""

    def __enter__(self) -> None:
        self.line = None if progress.is_heard() else display()
        if self.line:
            self.told = progress.told(self.line)
            self.told.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.line:
            self.told.__exit__()
            self.line.close()
