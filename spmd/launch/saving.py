"""Frames that a program saves while it runs, from the ranks of this process to their files.

In: paths by the names of saves, a loaded job. Out: frames, written while the ranks go on.
Always holds: this process's main thread writes the parts of its ranks; process 0 gives a frame its
name once all processes have written theirs; a run that goes on from a checkpoint first cuts the
frames that were made after it.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from functools import partial
from struct import pack, unpack

from codegen.errors import InputError, OutputError
from spmd.engine import ffi, lib
from spmd.files.frames import FrameFiles, check_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spmd.launch.job import Job
    from spmd.launch.lifecycle import Launch

LATE_NS = 1e9  # for which a rank waits before it is said
SEE_SECONDS = 5.0  # until a file of one host is seen by another
NONE_HERE = 1 << 62  # frames of a process whose ranks write none


class _Series:
    """One save that has a path. owners: hosted ranks that write; done: frames of which this process
    has written its parts; whole: those that have their names."""

    def __init__(self, number: int, files: FrameFiles, owners: list[int]) -> None:
        self.number, self.files, self.owners = number, files, owners
        self.next: dict[int, int] = {}
        self.done = self.whole = 0
        self.done_fd = -1
        self.is_late = False


class Saving:
    """The frames that a launch saves, in one process."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.processes = launch, launch.processes
        self.first = launch.processes.number == 0
        self.series: list[_Series] = []
        self.job: Job | None = None
        self._take: Callable[[int, Any], None] | None = None  # every part, for a stream
        self._said: list[str] = []

    def check(self) -> None:
        """Raise the errors that can be known before anything is loaded."""
        check_paths(self.launch.manifest, self.launch.options.save or {})

    def begin(self, job: Job, resumed: dict[str, Any] | None) -> None:
        """Prepare a run. All processes call this at the same time. resumed: the index of the set
        that the run goes on from."""
        self.job = job
        frames = self.processes.run_in_all(lambda: self._prepare(job, resumed))
        nonce = self.processes.run_in_first(lambda: self._open(frames))
        self.processes.run_in_all(lambda: self._join(nonce, frames))
        self.processes.run_in_first(self._see_others)
        job.look_frames = self.look

    def _prepare(self, job: Job, resumed: dict[str, Any] | None) -> dict[str, int]:
        """Create the engine's rings for frames. Return how many frames each series starts with."""
        kept = {} if resumed is None else resumed.get("saves")
        self.series, frames = [], {}
        for number, row in enumerate(job.manifest["saves"]):
            if row["name"] not in self.launch.face.saves:
                continue  # another entry makes these frames
            if (path := (self.launch.options.save or {}).get(row["name"])) is None:
                continue
            name, shape = row["name"], job.setup.shape(row)
            begins = kept.get(name, 0) if isinstance(kept, dict) else -1
            if type(begins) is not int or begins < 0:
                raise InputError("the checkpoint is damaged", expected=f"frames of {name}",
                                 found=repr(kept)[:80])
            files = FrameFiles(name, path, row["dtype"], shape)
            hosted = range(job.setup.first, job.setup.first + job.setup.count)
            owners = job.setup.owners(row["layout"])
            owners = list(hosted) if owners == [lib.SPMD_EVERY_RANK] else owners
            for rank in hosted:
                job.save_frames(number, rank, row["every"], rank in owners)
                job._check(lib.spmd_job_save_from(job._job, number, rank, begins))
            series = _Series(number, files, owners)
            files.others = partial(self._others, series)
            series.next = dict.fromkeys(owners, begins)
            series.whole = begins
            series.done = begins if owners else NONE_HERE
            self.series.append(series)
            frames[name] = begins
        return frames

    def _open(self, frames: dict[str, int]) -> str:
        nonce = os.urandom(4).hex()
        for series in self.series:
            series.files.begin(frames[series.files.name], nonce)
        return nonce

    def _join(self, nonce: str, frames: dict[str, int]) -> None:
        for series in self.series:
            series.files.nonce = nonce
            if self.processes.count > 1:
                path = series.files.done_path(self.processes.number)
                try:
                    series.done_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                except OSError as error:
                    raise series.files.failed(error.strerror) from None
                self._tell(series)

    def _see_others(self) -> None:
        """Raise OutputError where what other processes write is not seen here."""
        end = time.monotonic() + SEE_SECONDS
        for series in self.series:
            while any(self._told(series, k) is None for k in range(1, self.processes.count)):
                if time.monotonic() > end:
                    raise _unseen(series, series.whole)
                time.sleep(0.001)

    def begin_stream(self, take: Callable[[int, Any], None]) -> set[tuple[int, int]]:
        """Give `take` every part that this run writes, as the number of its save and a spmd_frame.
        Return the saves and ranks of which there are parts."""
        self._take = take
        return {(series.number, rank) for series in self.series for rank in series.owners}

    # ---- while it runs ---------------------------------------------------------------------------

    def look(self) -> None:
        """Write the parts of frames that wait, and give the complete frames their names."""
        job = self.job
        assert job is not None
        frame = ffi.new("spmd_frame *")
        for series in self.series:
            self._say_late(job, series)
            while self._write_next(job, series, frame):
                pass
            self._name_whole(series)

    def _write_next(self, job: Job, series: _Series, frame: Any) -> bool:
        """Write the parts that wait of the frame that is next here, and none of later ones: when a
        write fails, no earlier frame lacks a part of this process. Return whether there were any.
        """
        some = False
        for rank in series.owners:
            if series.next[rank] == series.done and lib.spmd_job_frame(
                    job._job, series.number, rank, frame):
                self._write(job, series, rank, frame)
                some = True
        if some and min(series.next.values()) > series.done:
            series.files.close(series.done)
            series.done += 1
            self._tell(series)
            self._name_whole(series)
        return some

    def _write(self, job: Job, series: _Series, rank: int, frame: Any) -> None:
        dims = len(series.files.shape)
        data = ffi.buffer(frame.data, frame.bytes) if frame.bytes else b""
        box = list(frame.offset[0:dims]), list(frame.extent[0:dims])
        if self._take is not None:
            self._take(series.number, frame)
        series.files.write(frame.number, *box, data)
        series.next[rank] = frame.number + 1
        lib.spmd_job_frame_written(job._job, series.number, rank)

    def _tell(self, series: _Series) -> None:
        if series.done_fd >= 0:
            os.pwrite(series.done_fd, pack("<q", series.done), 0)

    def _name_whole(self, series: _Series) -> None:
        if self.first:
            for frame in range(series.whole, min(series.done, self._others(series))):
                series.files.commit(frame)
                series.whole = frame + 1

    def _others(self, series: _Series) -> int:
        """Return how many frames every other process has written its parts of."""
        least = NONE_HERE
        for process in range(self.processes.count):
            if process == self.processes.number:
                continue
            least = min(least, self._told(series, process) or 0)
        return least

    def _told(self, series: _Series, process: int) -> int | None:
        """Return how many frames a process says that it has written its parts of; None where that
        is not seen."""
        try:
            with open(series.files.done_path(process), "rb") as file:
                text = file.read(8)
        except OSError:
            return None
        return int(unpack("<q", text)[0]) if len(text) == 8 else None

    def _all(self, series: _Series) -> int:
        """Return how many frames the first rank of this process has made."""
        job = self.job
        assert job is not None
        return int(lib.spmd_job_frames(job._job, series.number, job.setup.first, 0))

    def _say_late(self, job: Job, series: _Series) -> None:
        if not series.is_late and lib.spmd_job_save_held(job._job, series.number) > LATE_NS:
            series.is_late = True
            print(f"spmd: ranks wait for frames of {series.files.name} to be written to "
                  f"{series.files.pattern}", file=sys.stderr)

    def kept(self) -> dict[str, int]:
        """Return how many frames each series had when the latest checkpoint was taken."""
        job = self.job
        assert job is not None
        first = job.setup.first
        return {s.files.name: int(lib.spmd_job_frames(job._job, s.number, first, 1))
                for s in self.series}

    def has(self, frames: dict[str, int]) -> bool:
        """Return whether at least this many frames of each series are whole, so that a checkpoint
        may rely on them."""
        return all(series.whole >= frames[series.files.name] for series in self.series)

    # ---- after it --------------------------------------------------------------------------------

    def finish(self) -> None:
        """Name the last frames after all ranks have run, and report how long saving took."""
        job = self.job
        assert job is not None
        job.look_frames = None
        self.processes.run_in_all(self.look)
        self.processes.run_in_first(self._last)
        held = self.processes.run_and_gather(lambda: [
            int(lib.spmd_job_save_held(job._job, s.number)) for s in self.series])
        for k, series in enumerate(self.series):
            longest = max(theirs[k] for theirs in held)
            if self.first and longest > LATE_NS / 10:
                print(f"spmd: ranks waited {longest / 1e9:.1f} s for frames of "
                      f"{series.files.name} to be written", file=sys.stderr)
        self._said = [series.files.said(series.whole) for series in self.series]
        self.processes.run_in_all(self.close)

    def _last(self) -> None:
        end = time.monotonic() + SEE_SECONDS
        for series in self.series:
            frames = self._all(series)
            while series.whole < frames and time.monotonic() < end:
                self._name_whole(series)
                time.sleep(0.001)
            if series.whole < frames:
                raise _unseen(series, series.whole)

    def said(self) -> list[str]:
        """Return a line for each series that says how many frames it has, and where."""
        return self._said

    def close(self) -> None:
        """Name the complete frames, whatever ended the run, and remove the others."""
        for series in self.series:
            series.files.discard()
            if self.first:
                with suppress(OutputError):
                    series.files.remove_parts(min(series.done, self._others(series)))
                    self._name_whole(series)
                with suppress(OutputError):
                    series.files.remove_parts(series.whole)
            if series.done_fd >= 0:
                os.close(series.done_fd)
                series.done_fd = -1
            for process in range(self.processes.count if self.first else 0):
                with suppress(OSError):
                    os.unlink(series.files.done_path(process))
        self.series, self._take = [], None


def _unseen(series: _Series, frame: int) -> OutputError:
    """Return the error of a frame of which parts that others have written are not seen here."""
    files = series.files
    return OutputError(
        f"save {files.name}, frame {frame}: parts of other processes are missing in "
        f"{files.folder}", expected="a folder that all hosts share",
        remedy=f"-o '{files.name}=…' on a shared file system")
