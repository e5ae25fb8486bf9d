"""Other programs: found on PATH, started, waited for. The only file that starts any.

In: a command. Out: its exit code and what it printed.
Always holds: no program reads our standard input; what a program started ends with it, whatever
ends our waiting.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

TOO_LATE = 124  # the exit code of timeout(1)


@dataclass(frozen=True)
class Ended:
    """A program that has ended. code: negative for a signal; TOO_LATE when its time was over."""

    code: int
    out: str
    err: str


def path_of(name: str) -> str:
    """Return the path of a program of this name on PATH, or ""."""
    return shutil.which(name) or ""


def run(
    command: Sequence[str], *, folder: str | None = None,
    environment: Mapping[str, str] | None = None, limit_s: float | None = None,
) -> Ended:
    """Runs a program to its end, at most so many seconds. Raises OSError where it cannot start."""
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, errors="replace",
        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end(process.pid)
            out, err = process.communicate()
            return Ended(TOO_LATE, out, err)
        except BaseException:
            _end(process.pid)
            raise
        return Ended(process.returncode, out, err)


def _end(group: int) -> None:
    """End a program and all that it started, some of which may have ended meanwhile."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


class _Signalled(BaseException):
    """A signal that would have ended this process at once."""


@contextmanager
def unwound() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP, where they end this process at once, let everything
    inside be left in order first: files removed, programs ended."""
    plain = [
        n for n in (signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(n) is signal.SIG_DFL
    ]

    def leave(number: int, _: object) -> None:
        raise _Signalled(number)

    try:
        for number in plain:
            signal.signal(number, leave)
        yield
    except _Signalled as error:
        signal.signal(error.args[0], signal.SIG_DFL)
        os.kill(os.getpid(), error.args[0])
        raise
    finally:
        for number in plain:
            signal.signal(number, signal.SIG_DFL)
