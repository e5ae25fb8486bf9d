"""Frames that a program saves while it runs, on their way to Python.

In: a loaded job, and who takes frames. Out: whole frames, in the order in which the program saved
them. Always holds: the thread that runs the job copies them as they come, so that ranks never wait
for whoever reads them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.errors import UsageError
from codegen.user.series import nothing_saved
from spmd.arrays import numpy_dtype
from spmd.engine import ffi, lib
from spmd.faces import Face
from spmd.frame_streams import FrameQueue
from spmd.launch.job import Job
from spmd.launch.saving import Saving
from spmd.launch.setup import EVERY_RANK, Setup


def check_saves(face: Face) -> None:
    """Raise UsageError where nothing is saved while this runs."""
    if not face.saves:
        raise nothing_saved(face.name)


@dataclass
class _Series:
    """The series of frames of one save. every: turns between two frames. holders: the hosted ranks
    whose parts make up a frame."""

    number: int
    name: str
    every: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    holders: list[int]


@dataclass
class _Frame:
    """A frame of which some parts may still come."""

    name: str
    array: np.ndarray
    missing: int  # parts


class Streaming:
    """Hands on the frames that a call saves, in one process. queue: gets the name of a save and
    each of its frames, as an array of its own; what it raises ends the call."""

    def __init__(self, face: Face, queue: FrameQueue) -> None:
        self.face, self.queue = face, queue
        self._series: dict[int, _Series] = {}
        self._frames: dict[int, _Frame] = {}  # by their place in the order of all saves
        self._next = 0  # the place of the frame that is put next
        self._mine: list[tuple[_Series, int]] = []  # ranks whose parts no file is made of
        self._saving: Saving | None = None
        self._job: Job | None = None

    def check(self, setup: Setup) -> None:
        """Raise UsageError for frames of which other processes have a part."""
        sizes = {axis["name"]: size
                 for axis, size in zip(setup.manifest["mesh"], setup.sizes, strict=True)}
        for number, row in enumerate(setup.manifest["saves"]):
            name = row["name"]
            if name not in self.face.saves:
                continue
            holders = setup.holders(row["layout"])
            if holders == [EVERY_RANK]:
                holders = list(range(setup.first, setup.first + setup.count))
            parts = math.prod(sizes[axis] for entry in row["layout"] for axis in entry)
            if len(holders) < parts:
                raise UsageError(
                    f"frames of {name} cannot be streamed: other processes have parts of them",
                    expected="frames that this process has whole",
                    found=f"{parts} parts, of which {len(holders)} "
                          f"{'lies' if len(holders) == 1 else 'lie'} here",
                    remedy=f'spmd.save("{name}", x.relayout(None)): every rank gets all of x')
            self._series[number] = _Series(number, name, row["every"], setup.shape(row),
                                           numpy_dtype(row["dtype"]), holders)

    def begin(self, job: Job, saving: Saving | None) -> None:
        """Have the ranks hand over frames in the next run. saving: it writes some to files, too."""
        self._job, self._saving = job, saving
        written = saving.begin_stream(self.take) if saving else set()
        for series in self._series.values():
            for rank in range(job.setup.first, job.setup.first + job.setup.count):
                holds = rank in series.holders
                job.save_frames(series.number, rank, series.every, holds)
                if holds and (series.number, rank) not in written:
                    self._mine.append((series, rank))
        job.look_frames = self.look

    def look(self) -> None:
        """Take the frames that wait."""
        frame = ffi.new("spmd_frame *")
        job = self._job
        assert job is not None
        self.queue.look()
        some = True
        while some:  # not all of one series first: its ring would fill up, and others wait
            some = False
            for series, rank in self._mine:
                if lib.spmd_job_frame(job._job, series.number, rank, frame):
                    self.take(series.number, frame)
                    lib.spmd_job_frame_written(job._job, series.number, rank)
                    some = True
        if self._saving is not None:
            self._saving.look()

    def take(self, number: int, frame: Any) -> None:
        """Copy a part of a frame, a spmd_frame; put all frames that are whole, in their order."""
        series, pending = self._series[number], self._frames.get(frame.order)
        if pending is None:
            pending = _Frame(series.name, np.empty(series.shape, series.dtype), len(series.holders))
            self._frames[frame.order] = pending
        if frame.bytes:
            dims = len(series.shape)
            offset, extent = frame.offset[0:dims], frame.extent[0:dims]
            where = tuple(slice(o, o + e) for o, e in zip(offset, extent))
            data = ffi.buffer(frame.data, frame.bytes)
            pending.array[where] = np.ndarray(tuple(extent), series.dtype, data)
        pending.missing -= 1
        while (first := self._frames.get(self._next)) is not None and not first.missing:
            del self._frames[self._next]
            self._next += 1
            self.queue.put(first.name, first.array)

    def end(self) -> None:
        """End the hand-over of frames: the call is over."""
        job = self._job
        if job is None or not job.may_run:
            return
        job.look_frames = None
        for number in self._series:
            for rank in range(job.setup.first, job.setup.first + job.setup.count):
                job.save_frames(number, rank, 0, False)
