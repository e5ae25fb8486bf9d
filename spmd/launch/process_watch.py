"""Whether the other processes come, and whether they live before and after a job's own watch.

In: the processes of a launcher. Out: a message and exit code 75 where one does not come, or one of
this host is stopped, or has gone before the job began.
Always holds: nobody waits for ever in MPI, which cannot be interrupted, for one that will not come.
"""

from __future__ import annotations

import os
from _thread import start_new_thread
from time import monotonic, sleep

from codegen.errors import EXIT_PEER, PeerError
from spmd import report
from spmd.engine import ffi, lib
from spmd.launch.launchers import unname_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.launch.processes import Processes

TURN_S = 0.25  # between two looks at the other processes
SHARE = 0.8  # of the limit: reported before it is over


# Limits that processes may take to come: a thousand of them read Python from one disk.
WARN_LIMITS, END_LIMITS = 6, 60
LATER_S, LATEST_S = 5, 30  # than the process before: of those who come, the first one says it


# Of a process, as the system says it.
ENDED, STOPPED = ("X", "Z"), ("T", "t")


def state_of(pid: int) -> str:
    """Return the state of a process in one letter; "X" where there is no such process any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return "X"


class StartWatch:
    """Says, from a thread without Python, that not all processes have come to MPI_Init."""

    def __init__(self, number: int, count: int, limit: float) -> None:
        warn, end = WARN_LIMITS * limit, END_LIMITS * limit
        message = f"of {count} processes not all have come to MPI_Init after {{:g}} s"
        warning = f"spmd: warning: {message.format(warn)}\n" if number == 0 else ""
        error = PeerError(
            message.format(end), expected=f"all of them within {END_LIMITS} times --time-limit",
            remedy="look for one that is stopped, or for a host that does not answer; "
            "a longer --time-limit, or 0 to wait for ever",
        )
        self.texts = [ffi.new("char[]", text.encode())
                      for text in (warning, report.error_text(error) + "\n")]
        end += min(number * LATER_S, LATEST_S)
        self.c_start = ffi.new("spmd_start *", {
            "warn_ms": int(1000 * warn), "end_ms": int(1000 * end),
            "code": EXIT_PEER, "warning": self.texts[0], "error": self.texts[1],
        })
        lib.spmd_start_begin(self.c_start)

    def end(self) -> None:
        """End the watch, since the processes have come."""
        lib.spmd_start_end()


def watch_the_end(processes: Processes, mates: dict[int, int], limit: float) -> None:
    """Watch from now on, also in MPI_Finalize: whoever of this host is stopped for too long is
    named.

    mates: the number that the system gives each of the other processes of this host.
    """
    numbers = sorted(mates)
    warnings, errors = [], []
    for number in numbers:
        who = f"process {number} of {processes.count} on {os.uname().nodename}"
        stopped = f"process {mates[number]} is stopped"
        warnings.append(f"spmd: warning: {who} late at its end: {stopped}\n")
        error = PeerError(
            f"{who} lost at its end", expected=f"it to end within {limit:g} s (--time-limit)",
            found=f"{stopped}, in MPI_Finalize; the outputs are whole",
            remedy="look why; a longer --time-limit, or 0 for none",
        )
        errors.append(report.error_text(error) + "\n")
    kept = [[ffi.new("char[]", text.encode()) for text in texts] for texts in (warnings, errors)]
    pids = ffi.new("int64_t[]", [mates[number] for number in numbers])
    warning, error_of = (ffi.new("char *[]", texts) for texts in kept)
    lib.spmd_finish_begin(ffi.new("spmd_finish *", {
        "processes": len(numbers), "before": sum(n < processes.number for n in numbers),
        "pid": pids, "warning": warning, "error": error_of, "limit_ms": int(1000 * limit),
        "late_ms": 1000, "code": EXIT_PEER,
    }))


class ProcessWatch:
    """A thread that looks at the launcher, and at the other processes of this host except while
    `trusted` is set.

    may_leave: the work is done, and a process that has ended is none of our business.
    """

    def __init__(
        self, processes: Processes, places: list[tuple[int, object]], limit: float
    ) -> None:
        self.processes, self.limit = processes, limit
        mine = places[processes.number][1]
        self.mates = {
            number: pid for number, (pid, place) in enumerate(places)
            if place == mine and number != processes.number
        }
        self.trusted = self.may_leave = False
        self.launcher = os.getppid()
        if limit:
            start_new_thread(self._run, ())

    def end(self) -> None:
        """End the watch, since all have come to the last meeting; what they wait in now is
        MPI_Finalize."""
        self.trusted = True
        if self.limit and self.mates:
            watch_the_end(self.processes, self.mates, self.limit)

    def _run(self) -> None:
        since: dict[int, float] = {}
        last = monotonic()
        while True:
            sleep(TURN_S)
            now, before, last = monotonic(), last, monotonic()
            if os.getppid() != self.launcher:
                unname_memory(end=True)
                os._exit(EXIT_PEER)  # whoever read what we print has ended, and the job with it
            if self.trusted or now - before > self.limit / 4:  # or I was away myself
                since.clear()
                continue
            still = {number for number, pid in self.mates.items() if self._absent(pid)}
            since = {number: since.get(number, now) for number in still}
            lost = [number for number in still if now - since[number] > SHARE * self.limit]
            # Of those who are here, the first one says it. Who has just gone may have said it.
            if lost and all(k in lost for k in self.mates if k < self.processes.number):
                self._end(lost[0])

    def _absent(self, pid: int) -> str:
        """Return why this process will not come; "" while it may."""
        state = state_of(pid)
        if state in ENDED:
            return "" if self.may_leave else "has ended"
        return "is stopped" if state in STOPPED else ""

    def _end(self, number: int) -> None:
        pid = self.mates[number]
        when = "at its end" if self.may_leave else "before the program ran"
        error = PeerError(
            f"process {number} of {self.processes.count} on {os.uname().nodename} lost {when}",
            expected=f"it to come within {self.limit:g} s (--time-limit)",
            found=f"process {pid} {self._absent(pid) or 'was stopped'}",
            remedy="look why; a longer --time-limit, or 0 for none",
        )
        self.processes.abort_lost(error)
