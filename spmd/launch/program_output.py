"""What a program says while it runs: text as it is, and its steps as a line now and then.

In: lines from the engine. Out: text on standard output; of spmd.progress, and of print where it
says so, on standard error.
Always holds: on a terminal a line of progress gives way to text, and the last one stays.
"""

from __future__ import annotations

import sys

from codegen.progress import ARRAY, ERROR, FIELD, MARK, OPEN, Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Listener = Callable[[str], None]  # hears how far a run has come, superstep after superstep

CLEAR = "\r\x1b[K"


class ProgramOutput:
    """Print what the program says in one run."""

    def __init__(self) -> None:
        self.live = sys.stderr is not None and sys.stderr.isatty()
        self.steps = Steps(self.live)
        self.shown = False  # a line that is to be replaced
        self.arrays: dict[bool, str] = {}  # text that goes on, by: is it an error?

    def __call__(self, text: str) -> None:
        if not any(mark in text for mark in (MARK, ERROR, OPEN, ARRAY, FIELD)) and not self.arrays:
            self._plain(text)
            return
        for line in (f"{part}\n" for part in text.removesuffix("\n").split("\n")):
            try:
                said = self.steps.line(line[1:].rstrip("\n")) if line.startswith(MARK) else None
            except ValueError:  # it is somebody else's
                said = None
            if said is None:
                self._printed(line)
            elif said:
                self._progress(said, self.steps.ended)

    def close(self) -> None:
        """End what is being printed, since the run is over."""
        if self.shown:
            self._write("\n")
            self.shown = False

    def _printed(self, line: str) -> None:
        """Print one line, or a part of one."""
        error = line.startswith(ERROR)
        line = line.removeprefix(ERROR)
        if line.endswith(OPEN + "\n"):
            line = line[:-2]
        line = self.arrays.pop(error, "") + line
        if ARRAY in line or FIELD in line:
            from codegen.printed import is_whole, written  # NumPy: only such runs need it

            if not is_whole(line):
                self.arrays[error] = line  # the rest of it comes
                return
            line = written(line)
        self._plain(line, error)

    def _plain(self, text: str, error: bool = False) -> None:
        if self.shown:
            self._write(CLEAR)
            self.shown = False
        if error:
            self._write(text)
        else:
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
