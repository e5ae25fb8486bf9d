"""What SIGINT and SIGTERM do to a process: an exit code of 128 and their number, without a word.

In: the processes of a job; words for whoever interrupts it. Out: the end of all of them.
Always holds: whatever a process is in, imports, compute phases and MPI_Init too, it ends within
seconds; those of a launcher end together, once they have met in MPI_Init.
"""

from __future__ import annotations

import os
import signal
import time
from _thread import start_new_thread

from spmd.engine import lib
from spmd.launch.launchers import MPICH, family_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.launch.processes import Processes

GRACE_S = 0.3  # so much later the signal of another may come here, of one and the same kill
LATER_S = 1.0  # than process 0, which has something to say: the others end the job, if it does not


def begin(waits: bool = False) -> None:
    """Let a signal that is not ignored end this process from now on. waits: until
    `end_all_from_now_on`, as an end of one of several would be the launcher's business."""
    numbers = {n for n in (signal.SIGINT, signal.SIGTERM)
               if signal.getsignal(n) is not signal.SIG_IGN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)  # Python has no part in it
    lib.spmd_leave_begin(waits)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def end_all_from_now_on(processes: Processes) -> None:
    """Let a signal for one process, an earlier one too, end the job, now that MPI has started.

    This is done under MPICH only. Its launcher kills the others when one has ended, and says that
    they were killed; the code of a job that a process has aborted is that of the process. Open
    MPI's launcher always says 1, and an abort makes it talk."""
    if processes.count > 1 and family_of(processes.mpi().Get_library_version()) == MPICH:
        heard, told = os.pipe()
        start_new_thread(_end_all, (processes, heard))
        lib.spmd_leave_tell(told)
        processes.at_the_end, processes.told = at_the_end, told_to_end
    else:
        at_the_end()


def told_to_end() -> int:
    """Return the signal that this process was told to end by, or hears of soon; 0: none. Then
    another that has ended is not lost."""
    end = time.monotonic() + GRACE_S
    while not (number := int(lib.spmd_leave_told())) and time.monotonic() < end:
        time.sleep(0.01)
    return number


def at_the_end() -> None:
    """Let a signal, an earlier one too, end this process: there is no job to abort."""
    lib.spmd_leave_tell(-1)


def say(words: str) -> None:
    """Set the line that this process prints first when it is told to end."""
    lib.spmd_leave_words(f"{words}\n".encode())


def _end_all(processes: Processes, heard: int) -> None:
    code = 128 + os.read(heard, 1)[0]
    if processes.number:
        time.sleep(LATER_S)
    processes.abort(code, quiet=True)
    os._exit(code)
