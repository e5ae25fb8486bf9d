"""What an image is opened with: options, which are checked, and the processes of a communicator.

In: options as users give them. Out: the same, checked; processes. Always holds: nothing is loaded.
"""

from __future__ import annotations

import os
from typing import Any

from codegen.errors import EnvironmentFault, UsageError
from codegen.mesh import checked_count, checked_sizes
from codegen.user import named
from spmd.launch import launchers, process_status
from spmd.launch.meeting_watch import MeetingWatch
from spmd.launch.options import OPTIONS, TIME_LIMIT, Options
from spmd.launch.processes import Elsewhere, Processes
from spmd.launch.script_exit import end_all_on_error
from spmd.texts import MOST_SECONDS


class Process:
    """The number of this process. Asking the system takes as long as a part of a short call."""

    number = os.getpid()


os.register_at_fork(after_in_child=lambda: setattr(Process, "number", os.getpid()))


def check_options(options: Options, manifest: dict[str, Any], processes: Processes) -> None:
    """Check the options of an open image, and put sizes in the place of what was given for them.
    Raises UsageError. With several processes all of them must hear of a wrong one.
    """
    names = tuple(axis["name"] for axis in manifest["mesh"])
    options.mesh = checked_sizes({} if options.mesh is None else options.mesh, names)
    for option in ("ranks", "threads"):
        if (count := getattr(options, option)) is not None:
            setattr(options, option, checked_count(option, count))
    for option, row in OPTIONS.items():
        if row.known and (name := getattr(options, option)) not in row.known:
            raise UsageError(f"there is no {option} {name!r}", expected=", ".join(row.known))
    if not _is_limit(options.time_limit):
        raise UsageError(
            f"time_limit {options.time_limit!r} is not a number of seconds",
            expected=f"0 (for ever) to {MOST_SECONDS:.0f}",
        )
    if options.comm is not None and options.ranks not in (None, processes.count):
        raise UsageError("with comm= every process is one rank", found=f"ranks={options.ranks}")


def group_of(comm: Any, time_limit: Any) -> Processes:
    """Return the processes of a communicator, or this one alone where it is None. Raises UsageError
    for what is no communicator."""
    if comm is not None:
        if not hasattr(comm, "Get_rank"):
            raise UsageError(f"comm={comm!r} is not a communicator", found=type(comm).__name__,
                             expected="comm=MPI.COMM_WORLD, of mpi4py")
        _check_launcher()
    processes = Processes(comm)
    if processes.count > 1:
        limit = time_limit if _is_limit(time_limit) else TIME_LIMIT
        processes.waiting = MeetingWatch(processes, limit)
    return processes


def _check_launcher() -> None:
    if process_status.is_forked():
        raise UsageError(
            "a process that was forked cannot use the MPI of the one that it was forked from",
            remedy="leave comm= out, or make the process by mpirun",
        )
    try:
        launchers.check_world()
    except EnvironmentFault as error:
        end_all_on_error()  # with its exit code
        if launchers.launcher()[0]:
            raise Elsewhere(error.exit_code, str(error)) from None
        raise


def kept_outputs(manifest: dict[str, Any], keep: Any) -> tuple[str, ...]:
    """Return the names of the outputs that stay on the ranks. True: all of them."""
    known = [output["name"] for output in manifest["outputs"]]
    if isinstance(keep, bool):
        return tuple(known) if keep else ()
    return tuple(named.asked(keep, known, "keep"))


def _is_limit(limit: object) -> bool:
    return isinstance(limit, (int, float)) and 0 <= limit < MOST_SECONDS
