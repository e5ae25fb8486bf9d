"""A user's source that takes long in this process: which one it is, and at which line it stands.

In: the pipeline whose source is being read. Out: a line on standard error after some seconds.
Always holds: the reading goes on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from spmd.feeding.results.skipped_examples import say

TELL_S = 5.0
OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@contextmanager
def said_if_slow(pipeline: str, file: str, speaks: bool = True) -> Iterator[None]:
    """file: of the user, in which it mostly stands. speaks: this process says it."""
    if not speaks:
        yield
        return
    reader = threading.get_ident()

    def tell() -> None:
        where = _place(sys._current_frames().get(reader), file)
        say(f"the source of pipeline {pipeline} is still being read after {TELL_S:g} s, at {where}")

    timer = threading.Timer(TELL_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _place(frame: FrameType | None, file: str) -> str:
    """The innermost line of that file, else the innermost that is not ours."""
    others = ""
    while frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if name == file:
            return f"{name}:{line}"
        if not others and not name.startswith((OURS, "<")):
            others = f"{name}:{line}"
        frame = frame.f_back
    return others or file
