"""How a user's program ends where it is one of several processes: all of them end with it.

In: exceptions that nobody catches, `sys.exit`, the end of the script. Out: the end of all
processes, with its exit code.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from codegen.errors import SpmdError
from spmd.launch import host_processes, process_status
from spmd.launch.launchers import library
from spmd.launch.processes import Elsewhere, Processes, end_with_the_job

TURNS_S = 0.01, 0.25  # of the wait for those who have not come to their end: first, longest
ASK_S, SAMPLES = 1.0, 3  # in which one of them was found inside MPI: perhaps in MPI_Finalize

_hooked = False
LEFT = "_spmd_left"  # the attribute of an exception that has left an open job


def end_all_on_error() -> None:
    """Let an exception that nobody catches end all processes from now on, as `python -m mpi4py`
    does.

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

    def hook_of_threads(args: threading.ExceptHookArgs) -> None:
        if getattr(args.exc_value, LEFT, False) and args.exc_value is not None:
            hook(args.exc_type, args.exc_value, args.exc_traceback)
        else:
            before_in_thread(args)

    sys.excepthook, threading.excepthook = hook, hook_of_threads


def end_all(error: SystemExit) -> NoReturn:
    """End all processes at `sys.exit` with a code or a text, where the others are not leaving."""
    if not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
    code = error.code if isinstance(error.code, int) else 1
    Processes(library().COMM_WORLD).abort(code)
    os._exit(code)


def leave_together() -> None:
    """Wait, at the end of a script, until the others of this host have come to theirs.

    For launchers with a PMIx server, such as Open MPI's. When a job is aborted while a process
    waits in MPI_Finalize, PMIx 5 may take one wait off its list twice: then the launcher prints
    once more what it had printed, or dies of SIGSEGV. So nobody waits there for long.
    """
    process_status.show(process_status.LEAVES)
    MPI = sys.modules.get("mpi4py.MPI")
    if process_status.is_forked() or not MPI or not MPI.Is_initialized() or MPI.Is_finalized():
        return
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in MPI_Finalize, no Python hears it
    launcher, turn = os.getppid(), TURNS_S[0]
    others = [Other(mate) for mate in host_processes.find().values() if mate.pid != os.getpid()]
    while os.getppid() == launcher and any(other.may_come() for other in others):
        MPI.COMM_WORLD.Iprobe()  # what others still expect of this process goes on
        time.sleep(turn)
        turn = min(2 * turn, TURNS_S[1])


class Other:
    """A process that this one waits for before it leaves."""

    def __init__(self, mate: host_processes.HostProcess) -> None:
        self.mate = mate
        self.asked, self.samples = time.monotonic(), 0

    def may_come(self) -> bool:
        """Return whether it has not come to the end of its script, as far as it shows what it does.

        The user's own MPI_Finalize is such an end too.
        """
        mate = self.mate
        mate.look()
        if not mate.fd or mate.has_ended or mate.activity == process_status.LEAVES:
            return False
        if mate.activity != process_status.WAITS and time.monotonic() > self.asked + ASK_S:
            self.asked = time.monotonic()
            self.samples = self.samples + 1 if mate.where()[0] else 0
        return mate.activity == process_status.WAITS or self.samples < SAMPLES
