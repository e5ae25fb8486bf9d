"""How a user's program ends where it is one of several processes: all of them end with it.

In: exceptions that nobody catches, `sys.exit`. Out: the end of all processes, with its exit code.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, NoReturn

from codegen.errors import SpmdError
from spmd.launch.launchers import library
from spmd.launch.processes import Elsewhere, Processes, end_with_the_job

_hooked = False
LEFT = "_spmd_left"  # the attribute of an exception that has left an open job


def end_all_on_error() -> None:
    """From now on an exception that nobody catches ends all processes, as `python -m mpi4py` does.

    The others would wait for this one for ever, in their next exchange or in MPI_Finalize. What is
    `Elsewhere` is said by that process. Of a `sys.exit` only mpi4py's runner is told. In threads
    only what has left an open job counts.
    """
    global _hooked
    if _hooked:
        return
    _hooked = True
    before, before_in_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        code = getattr(error, "exit_code", 130 if kind is KeyboardInterrupt else 1)
        if isinstance(error, Elsewhere):
            end_with_the_job(code)
        before(kind, error, trace)
        Processes(library().COMM_WORLD).abort(code)
        if isinstance(error, SpmdError):  # MPI believes that this process is alone
            sys.stderr.flush()
            os._exit(code)

    def hook_of_threads(found: threading.ExceptHookArgs) -> None:
        if getattr(found.exc_value, LEFT, False) and found.exc_value is not None:
            hook(found.exc_type, found.exc_value, found.exc_traceback)
        else:
            before_in_thread(found)

    sys.excepthook, threading.excepthook = hook, hook_of_threads


def end_all(error: SystemExit) -> NoReturn:
    """`sys.exit` with a code or a text, where the others are not leaving: ends all processes."""
    if not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
    code = error.code if isinstance(error.code, int) else 1
    Processes(library().COMM_WORLD).abort(code)
    os._exit(code)
