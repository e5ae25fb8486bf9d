"""What a long build, check or run is at, after two seconds: one line of a terminal or a notebook,
which changes; of builds, where standard error is neither, a line every so often.

In: what codegen.progress tells. Out: text on standard error, or in the output of a cell, gone at
the end. `display` may be replaced. Always holds: one process of a job writes it.
"""

from __future__ import annotations

import contextvars
import html
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from codegen import progress
from codegen.progress import announce as announce
from spmd.launch.launchers import launcher

AFTER_S = 2.0  # what is done sooner says nothing
AGAIN_S = 0.2  # between two lines, so that a terminal is not flooded
LOG_AGAIN_S = 10.0  # between lines that stay
CHOSEN = "SPMD_PROGRESS"  # "off": no lines that stay


class Line:
    """A listener that rewrites one line of a terminal; a thread of its own shows the seconds.

    When it is told nothing, the line is gone before it returns: what comes next stands alone.
    """

    again_s = AGAIN_S

    def __init__(self, stream: TextIO, after_s: float | None = None) -> None:
        self.stream, self.after_s = stream, AFTER_S if after_s is None else after_s
        self.text = ""
        self.begun = time.monotonic()
        self._wrote = False
        self._writes = threading.Lock()
        self._over = threading.Event()
        context = contextvars.copy_context()  # in it a kernel keeps which cell runs
        self._thread = threading.Thread(target=context.run, args=(self._show,), daemon=True)
        self._thread.start()

    def __call__(self, activity: str, done: int, total: int) -> None:
        self.text = f"{activity}, {done} of {total}" if total else activity
        if not activity:
            self._clear()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._clear()

    def _show(self) -> None:
        pause = self.after_s
        while not self._over.wait(pause):
            pause = self.again_s
            with self._writes:
                if text := self.text:
                    self._write(f"spmd: {text} ({time.monotonic() - self.begun:.0f} s)")
                    self._wrote = True

    def _clear(self) -> None:
        with self._writes:
            if self._wrote:
                self._write("")
            self._wrote = False

    def _write(self, text: str) -> None:
        """Puts a text in the place of the last one."""
        self._put(f"\r\x1b[K{text}")

    def _put(self, text: str) -> None:
        try:
            self.stream.write(text.encode(self.stream.encoding or "ascii", "replace").decode())
            self.stream.flush()
        except (OSError, ValueError):  # the terminal has gone
            pass


class Log(Line):
    """Lines that stay, for a file or a pipe."""

    again_s = LOG_AGAIN_S

    def _write(self, text: str) -> None:
        if text:
            self._put(f"{text}\n")


class Cell(Line):
    """A listener that shows progress in the output of the cell that runs in a kernel of Jupyter."""

    handle: Any = None

    def _write(self, text: str) -> None:
        data = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>" if text else ""}
        if self.handle is None:
            self.handle = sys.modules["IPython.display"].display(data, raw=True, display_id=True)
        elif self.handle:
            self.handle.update(data, raw=True)


def in_notebook() -> bool:
    """Return whether this is a kernel of Jupyter: IPython has been imported there, by others."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python and "IPython.display" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def where_somebody_looks() -> Line | None:
    return Cell(sys.stderr) if in_notebook() else on_terminal()


def on_terminal() -> Line | None:
    """Return a line for the first rank's standard error, where that is a terminal; else None."""
    if sys.stderr is None or not sys.stderr.isatty() or launcher()[0] != 0:
        return None
    return Line(sys.stderr)


def in_log() -> Line | None:
    """Return a line for the first rank's standard error, whatever it is, unless
    SPMD_PROGRESS=off."""
    if sys.stderr is None or launcher()[0] != 0 or os.environ.get(CHOSEN) == "off":
        return None
    return Log(sys.stderr)


# Makes the listener of a task: a function of (what, done, total) with a `close`, or None.
display: Callable[[], Line | None] = where_somebody_looks


class shown:
    """A context in which progress is shown; inside another one it does nothing. logged: also where
    standard error is no terminal."""

    def __init__(self, logged: bool = False) -> None:
        self.logged = logged

    def __enter__(self) -> None:
        self.line = None if progress.is_heard() else display()
        if self.line is None and self.logged and not progress.is_heard():
            self.line = in_log()
        if self.line:
            self.told = progress.told(self.line)
            self.told.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.line:
            self.told.__exit__()
            self.line.close()
