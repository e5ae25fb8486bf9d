"""Whether the other processes of a job live: warnings about late ones, an end for lost ones.

In: a loaded job. Out: messages on standard error, from one process of the job; exit code 75.
Always holds: a long compute phase is no reason to end a job; a process that has ended, or is
stopped, ends it within the time limit, and is named.
"""

from __future__ import annotations

import atexit
import os
from _thread import allocate_lock, start_new_thread

from codegen.errors import PeerError
from spmd.engine import ffi, lib
from spmd.launch.processes import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.launch.job import Job


class Watch:
    """The thread that shows the others that this process lives, and heeds what they show."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.done = allocate_lock()
        self.done.acquire()
        atexit.register(self.end)  # of a job that nobody closes
        start_new_thread(self._run, ())

    def end(self) -> None:
        """Let the other processes leave from now on. Returns when the thread has ended."""
        if os.getpid() != self.job.owner:
            return  # forked: there is no such thread
        atexit.unregister(self.end)
        lib.spmd_job_heed_end(self.job._job)
        self.done.acquire()

    def _run(self) -> None:
        notice = ffi.new("spmd_notice *")
        try:
            limit = int(1000 * self.job.time_limit)
            while (kind := lib.spmd_job_heed(self.job._job, limit, notice)) != lib.SPMD_NOTICE_END:
                if kind == lib.SPMD_NOTICE_LOST:
                    self._end_job(notice)
                say(f"spmd: warning: {self._warning(notice)}")
        finally:
            self.done.release()

    def _end_job(self, notice: Any) -> None:
        job = self.job
        job.processes.abort_lost(self._lost(notice), lambda: lib.spmd_job_heed_last(job._job))

    def _who(self, notice: Any) -> str:
        last = notice.rank + notice.ranks - 1
        ranks = f"rank {notice.rank}" if notice.ranks == 1 else f"ranks {notice.rank} to {last}"
        return f"{ranks} on {self.job.setup.hosts.names[notice.process]}"

    def _where(self, notice: Any) -> str:
        if notice.site == lib.SPMD_NOT_RUNNING:
            return "was reading inputs or writing outputs"
        row = self.job.row(notice.operation)
        doing = "waited in" if notice.site >= 0 else "ran"
        over = f" over ({', '.join(row['axes'])})" if row.get("axes") else ""
        place = f", {row['place']}: {row['text']}" if "place" in row else ""
        return f"{doing} operation {notice.operation}, {row.get('kind', 'start')}{over}{place}"

    def _lost(self, notice: Any) -> PeerError:
        limit = f"a sign of life within {self.job.time_limit:g} s (--time-limit)"
        pid = f"process {notice.pid}" if notice.pid else "its process"
        state = {
            lib.SPMD_GONE: f"{pid} has ended",
            lib.SPMD_STOPPED: f"{pid} is stopped, silent for {notice.milliseconds / 1000:.1f} s",
            lib.SPMD_SILENT: f"{pid} has been silent for {notice.milliseconds / 1000:.1f} s",
        }[notice.cause]
        return PeerError(
            f"{self._who(notice)} lost in superstep {notice.superstep}",
            expected=limit if notice.cause != lib.SPMD_GONE else "all to stay until all are done",
            found=f"{state}; it {self._where(notice)}{self._in_pipeline(notice)}",
            remedy="look why it ended: out of memory, a crash, another's kill"
            if notice.cause == lib.SPMD_GONE
            else "a longer --time-limit, or 0 for none",
        )

    def _in_pipeline(self, notice: Any) -> str:
        """Return what a lost process held of a pipeline; "" where it was in none."""
        if self.job.positions_in is None:
            return ""
        from spmd.pipeline_positions import positions_of  # the schedules, for this message alone

        positions = positions_of(self.job)
        held = positions and positions.work_of(notice.position, notice.rank, notice.ranks)
        return f"; {held.text()}" if held else ""

    def _warning(self, notice: Any) -> str:
        seconds = f"{notice.milliseconds / 1000:.1f} s"
        if notice.kind == lib.SPMD_NOTICE_SLOW:
            name = self.job.setup.hosts.names[notice.process]
            return (
                f"rank {notice.rank} on {name} is slow: others wait for it; for {seconds} it "
                f"{self._where(notice)} (superstep {notice.superstep})"
            )
        stopped = f": process {notice.pid} is stopped" if notice.cause == lib.SPMD_STOPPED else ""
        return (
            f"{self._who(notice)} late: no sign of life for {seconds}{stopped}; "
            f"it {self._where(notice)} (superstep {notice.superstep})"
        )
