"""Code of a user that is read in this process: a pipeline's file, and its source.

In: what is read. Out: a line on standard error after some seconds; at the limit, which is that of
workers, an InputError with the line at which it stands. Always holds: only what Python runs in the
main thread is ended, and nothing that somebody looks at with a debugger.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import FrameType

from codegen.errors import InputError, Place, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.data.pipelines import Pipeline

TELL_S = 5.0  # after which a user hears that a file is still being read
LOAD_S = 120.0  # a pipeline's file that is not loaded by then hangs
READ_TIMES = 20  # the time of an example, for its source: files are listed and counted
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class _TooLong(BaseException):
    """Raised in the user's code when its time is over. It is no Exception, since that code may
    catch every Exception."""

    def __init__(self, place: Place) -> None:
        self.place = place


def source_limit(timeout: float | None) -> float | None:
    """Return seconds for a source to say which examples there are; None: any time. timeout: for
    one."""
    return timeout and max(LOAD_S, READ_TIMES * timeout)


def source_in_time(pipeline: Pipeline) -> AbstractContextManager[None]:
    """Limit the time in which a source is asked which examples there are."""
    return read_in_time(
        f"the source of pipeline {pipeline.name}", pipeline.file,
        source_limit(pipeline.settings.timeout),
        f"timeout= in @data.pipeline allows it {READ_TIMES} times as long, None for ever")


@contextmanager
def read_in_time(title: str, file: str, limit: float | None, longer: str) -> Iterator[None]:
    """Limit the time in which code of a user is read. file: of the user, in which it mostly stands.
    longer: what to try where it needs more time. Of a launcher's processes the first one says that
    it is slow."""
    reader = threading.get_ident()

    def tell() -> None:
        if import_module("spmd.launch.launchers").launcher()[0]:  # mostly nothing is slow
            return
        where = _place(sys._current_frames().get(reader), file)
        text = f"spmd feed: {title} is still being read after {TELL_S:g} s, at {where}"
        print(shown(text), file=sys.stderr, flush=True)

    timer = threading.Timer(TELL_S, tell)
    timer.daemon = True
    timer.start()
    try:
        with _ended_after(limit, file):
            yield
    except _TooLong as error:
        raise InputError(f"{title} is not read within {limit:g} s, as workers want it",
                         place=error.place, expected="its end by then",
                         found="it is still at this line",
                         remedy=f"look why; {longer}") from None
    finally:
        timer.cancel()


@contextmanager
def _ended_after(limit: float | None, file: str) -> Iterator[None]:
    """Raise _TooLong in the code that runs after `limit` seconds, unless somebody else uses the
    timer of this process."""
    def end(_: int, frame: FrameType | None) -> None:
        raise _TooLong(_place(frame, file))

    is_main = threading.current_thread() is threading.main_thread()
    if not limit or not is_main or sys.gettrace() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, limit)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)


def _place(frame: FrameType | None, file: str) -> Place:
    """Return the innermost line of that file, else the innermost that is not ours."""
    other = None
    while frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if name == file:
            return Place(name, line)
        if other is None and not name.startswith((OURS, "<")):
            other = Place(name, line)
        frame = frame.f_back
    return other or Place(file, 1)
