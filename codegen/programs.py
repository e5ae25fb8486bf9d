"""Other programs: found on PATH, started, waited for. The only file that starts any.

In: a command. Out: its exit code and what it printed.
Always holds: no program reads our standard input; under a time limit, what a program started ends
with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TOO_LATE = 124  # the exit code of timeout(1)


@dataclass(frozen=True)
class Ended:
    """A program that has ended. code: negative for a signal; TOO_LATE when its time was over."""

    code: int
    out: str
    err: str


def found(name: str) -> str:
    """Where on PATH a program of this name is, or ""."""
    return shutil.which(name) or ""


def run(
    command: Sequence[str], *, folder: str | None = None,
    environment: Mapping[str, str] | None = None, limit_s: float | None = None,
) -> Ended:  # fmt: skip
    """Runs a program to its end, at most so many seconds. Raises OSError where it cannot start."""
    limited = limit_s is not None
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, errors="replace",
        start_new_session=limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return Ended(TOO_LATE, out, err)
        except BaseException:
            if limited:
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise
        return Ended(process.returncode, out, err)
