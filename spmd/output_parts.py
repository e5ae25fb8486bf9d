"""Outputs in parts: what each process holds of a global array, and the whole of it in one process.

In: a job that has run, over one host or several. Out: NumPy arrays.
Always holds: an element that several ranks hold travels once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from codegen.errors import OutputError
from spmd.arrays import numpy_dtype
from spmd.engine import ffi
from spmd.files.npy import contiguous_strides
from spmd.launch.job import EVERY_RANK, Job

MOST_GATHERED = 1 << 30  # bytes of one process that are gathered: MPI counts them in an int


def hosted_parts(job: Job, number: int) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """Where the hosted ranks' parts of output `number` begin, and views of their elements."""
    output = job.manifest["outputs"][number]
    dtype = numpy_dtype(output["dtype"])
    ranks: Iterable[int] = job.setup.owners(output["layout"])
    if ranks == [EVERY_RANK]:
        ranks = range(job.setup.first, job.setup.first + job.setup.count)
    parts = []
    for rank in ranks:
        offset, extent, address = job.shard(job.outputs + number, rank)
        count = int(np.prod(extent))
        memory = ffi.buffer(ffi.cast("char *", address), max(1, count * dtype.itemsize))
        parts.append((tuple(offset), np.frombuffer(memory, dtype, count).reshape(extent)))
    return parts


def collect(job: Job, rooms: list[tuple[str, int]]) -> dict[int, np.ndarray]:
    """Brings every output to its room: a file, with the byte where it begins; without one ("") to
    the first process, where these arrays come out. Every process must come.
    """
    def fill() -> None:
        for number, (path, start) in enumerate(rooms):
            if path:
                store(job, number, path, start)

    job.processes.together(fill)
    found = {}
    wanted = [(k, row) for k, row in enumerate(job.manifest["outputs"]) if job.wanted[k]]
    for number, output in wanted:
        shape, dtype = job.setup.shape(output), numpy_dtype(output["dtype"])
        if rooms[number][0] or math.prod(shape) * dtype.itemsize > MOST_GATHERED:
            continue
        array = gather(job.processes.comm, hosted_parts(job, number), shape, dtype)
        if array is not None:
            found[number] = array
    return found


def store(job: Job, number: int, path: str, start: int) -> None:
    """Writes the hosted ranks' parts of output `number` into a file whose elements begin at start.

    Byte by byte, where hosts share a file but not its pages in memory. Raises OutputError.
    """
    output = job.manifest["outputs"][number]
    shape = job.setup.shape(output)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for offsets, part in hosted_parts(job, number):
                _store_part(fd, start, shape, offsets, part)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise OutputError(
            f"output {output['name']}: cannot write {path}: {error.strerror}",
            expected="a directory that all hosts see", found=f"host {os.uname().nodename}",
            remedy=f"a shared directory, or leave -o {output['name']} out",
        ) from None


def _store_part(
    fd: int, start: int, shape: tuple[int, ...], offsets: tuple[int, ...], part: np.ndarray
) -> None:
    """A part lies in runs: the trailing dims that it has in full, and one more."""
    inner = len(shape)
    while inner > 0 and part.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    outer = max(0, inner - 1)
    strides = contiguous_strides(shape, part.itemsize)
    first = start + sum(o * s for o, s in zip(offsets, strides, strict=True))
    if part.size == 0:
        return
    for at in np.ndindex(part.shape[:outer]):
        run = np.ascontiguousarray(part[at]).reshape(-1).view(np.uint8).data
        place = first + sum(k * s for k, s in zip(at, strides))
        while run:
            written = os.pwrite(fd, run, place)
            run, place = run[written:], place + written


def gather(
    comm: Any, parts: list[tuple[tuple[int, ...], np.ndarray]], shape: tuple[int, ...],
    dtype: np.dtype, root: int = 0,
) -> np.ndarray | None:
    """The global array in process `root`, None in the others. Every process must come."""
    everyones = comm.gather(parts, root=root)
    if everyones is None:
        return None
    whole = np.empty(shape, dtype)
    for theirs in everyones:
        for offsets, part in theirs:
            place = tuple(slice(o, o + e) for o, e in zip(offsets, part.shape, strict=True))
            whole[place] = part
    return whole
