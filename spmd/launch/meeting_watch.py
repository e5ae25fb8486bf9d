"""Who has not come to a meeting of processes: a warning, an end where one can come no more.

In: the meetings of jobs that a program of the user's has opened (`comm=`). Out: messages from one
of those who have come; exit code 75.
Always holds: nobody waits for ever in MPI, which cannot be interrupted; who is late and still
computes has END_LIMITS times as long as who has ended, is leaving, is stopped or waits elsewhere.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident, start_new_thread
from time import monotonic, sleep

from codegen.errors import PeerError
from spmd.launch import host_processes, launchers, process_status
from spmd.launch.process_watch import END_LIMITS, SHARE, TURN_S
from spmd.launch.processes import Processes, say

LEAVING, LATE = 0.25, 0.5  # parts of the limit: who is leaving is named, who is late warned of
WARN_LIMITS = 10  # between two warnings
SAMPLES = 3  # in which nobody computes: they wait for each other
LATER_S = 2  # for whoever is not the first of those who have come

_meetings: dict[int, Meeting] = {}  # by thread
_numbers: dict[int, int] = {}  # of meetings so far, by group
_started = False


class MeetingWatch:
    """The processes of a communicator. world: their numbers as the launcher has them.

    A context, for as long as this process waits for all the others.
    """

    def __init__(self, processes: Processes, limit: float) -> None:
        MPI = processes.mpi()
        self.processes, self.limit = processes, limit
        group = processes.comm.Get_group()
        world = MPI.COMM_WORLD.Get_group()
        self.world: list[int] = list(
            MPI.Group.Translate_ranks(group, list(range(processes.count)), world)
        )
        group.Free()
        world.Free()
        self.key = hash(tuple(self.world)) & (1 << 62) - 1

    def __enter__(self) -> None:
        global _started
        number = _numbers[self.key] = _numbers.get(self.key, 0) + 1
        _meetings[get_ident()] = Meeting(self, number)
        process_status.show(process_status.WAITS, self.key, number)
        if not _started:
            _started = True
            start_new_thread(_run, ())

    def __exit__(self, *_: object) -> None:
        _meetings.pop(get_ident(), None)
        process_status.show(process_status.ELSEWHERE, self.key, _numbers[self.key])


def _run() -> None:
    last = monotonic()
    while True:
        sleep(TURN_S)
        now, before, last = monotonic(), last, monotonic()
        for thread, meeting in list(_meetings.items()):
            if now - before > max(4 * TURN_S, meeting.group.limit / 4):
                meeting.begin(now)  # I was away myself
            elif meeting.group.limit:
                meeting.look(now, thread)


class Meeting:
    """A meeting of the processes, while this process waits in it."""

    def __init__(self, group: MeetingWatch, number: int) -> None:
        self.group, self.number = group, number
        self.begin(monotonic())

    def begin(self, now: float) -> None:
        self.since, self.warned, self.sampled, self.samples = now, 0.0, 0.0, 0
        self.places: dict[int, tuple[str, int]] = {}
        self.stopped: dict[int, float] = {}
        self.mates: dict[int, host_processes.HostProcess] | None = None

    def look(self, now: float, thread: int) -> None:
        limit, waited = self.group.limit, now - self.since
        if waited < LEAVING * limit:
            return
        if self.mates is None or waited > limit * (1 + self.warned):
            self.mates = host_processes.find()
        for mate in self.mates.values():
            mate.look()
        missing = [k for k in range(self.group.processes.count) if not self._has_come(k)]
        if not missing:
            return
        mine = self.group.processes.number
        here = [k for k in range(self.group.processes.count) if k not in missing]
        first = here[0] == mine
        # Of those who have come, the first one says it. Who has ended may have just said it.
        waited -= 0 if first and not any(map(self._has_ended, range(mine))) else LATER_S
        lost = next((k for k in missing if self._is_lost(k, waited)), None)
        if lost is None and waited > LATE * limit:
            if self._nobody_computes(now) and waited > SHARE * limit:
                lost = missing[0]
            elif waited > END_LIMITS * limit and not self._computes(missing[0]):
                lost = missing[0]
        if lost is not None:
            self._end(lost, thread)
        if first and waited > (LATE + self.warned) * limit:
            self.warned += WARN_LIMITS
            self._warn(missing, now)

    def _has_ended(self, k: int) -> bool:
        mate = self._mate(k)
        return mate.has_ended if mate else self._all_here()

    def _mate(self, k: int) -> host_processes.HostProcess | None:
        return (self.mates or {}).get(self.group.world[k])

    def _has_come(self, k: int) -> bool:
        mate = self._mate(k)
        if k == self.group.processes.number:
            return True
        return (
            mate is not None
            and (mate.group, mate.activity) == (self.group.key, process_status.WAITS)
            and mate.meeting >= self.number
        )

    def _computes(self, k: int) -> bool:
        mate = self._mate(k)
        return mate is not None and mate.activity == process_status.COMPUTES

    def _is_lost(self, k: int, waited: float) -> bool:
        """Return whether a process can come no more. One that was stopped may be let go on within
        the limit."""
        mate, limit = self._mate(k), self.group.limit
        if mate is None or mate.has_ended:
            return waited > SHARE * limit and (mate is not None or self._all_here())
        if mate.activity == process_status.LEAVES:
            return waited > LEAVING * limit
        if not mate.is_stopped:
            self.stopped.pop(k, None)
            return False
        return waited - max(0.0, self.stopped.setdefault(k, waited)) > SHARE * limit

    def _all_here(self) -> bool:
        """Return whether the launcher says that all of its processes were started on this host."""
        count = launchers.launcher()[1]
        local = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
        return any(os.environ.get(name) == str(count) for name in local)

    def _nobody_computes(self, now: float) -> bool:
        """Return whether every process of the launcher waits in a meeting or inside MPI, where it
        waited before.

        Each was found there SAMPLES times, at one line of its program.
        """
        if now - self.sampled > self.group.limit / 10:
            self.sampled = now
            still = len(self.mates or {}) == launchers.launcher()[1]
            for mate in (self.mates or {}).values():
                if mate.activity in (process_status.WAITS, process_status.LEAVES):
                    continue
                in_mpi, file, line = mate.where()
                still &= in_mpi and self.places.get(mate.number, (file, line)) == (file, line)
                self.places[mate.number] = file, line
            self.samples = self.samples + 1 if still else 0
        return self.samples >= SAMPLES

    def _doing(self, k: int) -> str:
        """Return in words what is known of a process that has not come."""
        mate = self._mate(k)
        if self._has_ended(k):
            return "has ended"
        if mate is None:
            return "is on another host, or has ended"
        if mate.is_stopped:
            return "is stopped"
        if mate.activity == process_status.LEAVES:
            return "has come to the end of its script"
        if mate.activity == process_status.WAITS:
            return "waits for the processes of another communicator, or in an earlier call"
        if mate.activity == process_status.COMPUTES:
            return "still runs the program"
        in_mpi, file, line = mate.where()
        place = f" at {host_processes.line_text(file, line)}" if file else ""
        return f"waits inside MPI{place}" if in_mpi else f"is{place or ' somewhere else'}"

    def _name(self, k: int) -> str:
        mate = self._mate(k)
        where = f" (process {mate.pid} on {os.uname().nodename})" if mate else ""
        return f"rank {k} of {self.group.processes.count}{where}"

    def _warn(self, missing: list[int], now: float) -> None:
        k = missing[0]
        if self._computes(k):
            return  # the watch of the job speaks of it
        others = f", nor have ranks {', '.join(map(str, missing[1:5]))}" if missing[1:] else ""
        say(f"spmd: warning: {self._name(k)} has not come to a call that every rank makes"
             f"{others}; waiting for {now - self.since:.1f} s; it {self._doing(k)}")

    def _end(self, k: int, thread: int) -> None:
        frame, frames = sys._current_frames().get(thread), []
        while frame:
            frames.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        mine = host_processes.line_text(*host_processes.user_place(frames))
        error = PeerError(
            f"{self._name(k)} has not come to a call that every rank makes",
            expected=f"all {self.group.processes.count} ranks at {mine}, "
            f"within {self.group.limit:g} s (time_limit)",
            found=f"it {self._doing(k)}",
            remedy="the same calls on every rank of comm; "
            "comm.Split makes a communicator of some of them",
        )
        self.group.processes.abort_lost(error)
