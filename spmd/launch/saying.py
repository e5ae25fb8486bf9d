"""What a program says while it runs: text as it is, and its steps as a line now and then.

In: lines from the engine. Out: text on standard output; of spmd.progress, on standard error.
Always holds: on a terminal a line of progress gives way to text, and the last one stays.
"""

from __future__ import annotations

import sys

from codegen.progress import MARK, Steps

CLEAR = "\r\x1b[K"


class Saying:
    """Of one run."""

    def __init__(self) -> None:
        self.live = sys.stderr is not None and sys.stderr.isatty()
        self.steps = Steps(self.live)
        self.shown = False  # a line that is to be replaced

    def __call__(self, text: str) -> None:
        if MARK not in text:
            self._plain(text)
            return
        for line in (f"{one}\n" for one in text.removesuffix("\n").split("\n")):
            try:
                said = self.steps.line(line[1:].rstrip("\n")) if line.startswith(MARK) else None
            except ValueError:  # it is somebody else's
                said = None
            if said is None:
                self._plain(line)
            elif said:
                self._progress(said, self.steps.ended)

    def close(self) -> None:
        """The run is over."""
        if self.shown:
            self._write("\n")
            self.shown = False

    def _plain(self, text: str) -> None:
        if self.shown:
            self._write(CLEAR)
            self.shown = False
        sys.stdout.write(text)
        sys.stdout.flush()

    def _progress(self, line: str, last: bool) -> None:
        self.shown = self.live and not last
        self._write(f"{CLEAR * self.live}{line}" + "\n" * (not self.shown))

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads it
            pass
