"""Outputs in parts: what each process holds of a global array, and the whole of it in one process.

In: a job that has run, over one host or several. Out: NumPy arrays.
Always holds: an element that several ranks hold travels once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from codegen.errors import OutputError
from spmd.arrays import numpy_dtype
from spmd.engine import ffi
from spmd.files.npy import contiguous_strides
from spmd.launch.job import Job
from spmd.launch.setup import EVERY_RANK

MOST_GATHERED = 1 << 30  # bytes of one process that are gathered: MPI counts them in an int
MOST_SENT = 1 << 26  # bytes of a part that are sent at once

Part = tuple[tuple[int, ...], np.ndarray]  # where it begins in its array, its elements


def hosted_parts(job: Job, array: int) -> list[Part]:
    """Return where the hosted ranks' parts of an input or output begin, and views of their
    elements."""
    row = job.array(array)
    dtype = numpy_dtype(row["dtype"])
    ranks: Iterable[int] = job.setup.owners(row["layout"])
    if ranks == [EVERY_RANK]:
        ranks = range(job.setup.first, job.setup.first + job.setup.count)
    parts = []
    for rank in ranks:
        offset, extent, address = job.shard(array, rank)
        count = int(np.prod(extent))
        memory = ffi.buffer(ffi.cast("char *", address), max(1, count * dtype.itemsize))
        parts.append((tuple(offset), np.frombuffer(memory, dtype, count).reshape(extent)))
    return parts


def collect(job: Job, rooms: Mapping[int, tuple[str, int]], kind: str) -> dict[int, np.ndarray]:
    """Brings arrays, by their numbers, to their rooms: a file, with the byte where it begins;
    without one ("") to the first process, where these arrays come out. Every process must come.
    kind: what messages call the arrays, as "output".
    """
    processes = job.processes
    files = {array: room for array, room in rooms.items() if room[0]}
    # The first process has made the files; other hosts may not see them.
    seen = processes.run_and_gather(lambda: [os.path.exists(path) for path, _ in files.values()])

    def fill() -> None:
        for (array, (path, start)), here in zip(files.items(), seen[processes.number], strict=True):
            if here:
                store(job, array, path, start, kind, hosted_parts(job, array))

    processes.run_in_all(fill)
    if not all(map(all, seen)):
        processes.run_in_all(lambda: _bring(job, files, seen, kind))
    arrays = {}
    for array in (array for array in rooms if array not in files):
        row = job.array(array)
        shape, dtype = job.setup.shape(row), numpy_dtype(row["dtype"])
        if math.prod(shape) * dtype.itemsize > MOST_GATHERED:
            continue
        whole = gather(processes.comm, hosted_parts(job, array), shape, dtype)
        if whole is not None:
            arrays[array] = whole
    return arrays


def _bring(job: Job, files: Mapping[int, tuple[str, int]], seen: list[list[bool]],
           kind: str) -> None:
    """Sends parts from processes that do not see a file to the first one, which writes them. It
    takes all that is sent before it raises OutputError: nobody waits for it."""
    comm, failure = job.processes.comm, None
    for k, (array, (path, start)) in enumerate(files.items()):
        for sender in (s for s, theirs in enumerate(seen) if not theirs[k]):
            if job.processes.number == sender:
                for piece in _pieces(hosted_parts(job, array)):
                    comm.send(piece, dest=0)
                comm.send(None, dest=0)
            elif job.processes.number == 0:
                parts = iter(partial(comm.recv, source=sender), None)
                try:
                    store(job, array, path, start, kind, parts)
                except OutputError as error:
                    failure = failure or error
                for _ in parts:  # of a file that takes no more
                    pass
    if failure is not None:
        raise failure


def _pieces(parts: Iterable[Part]) -> Iterator[Part]:
    """Yields parts of an array in pieces that MPI can send: where each begins, its elements."""
    for offsets, part in parts:
        if part.nbytes <= MOST_SENT:
            yield offsets, part
        elif len(part) == 1:
            for inner, piece in _pieces([(offsets[1:], part[0])]):
                yield (offsets[0], *inner), piece[None]
        else:
            half = len(part) // 2
            yield from _pieces([(offsets, part[:half]),
                                ((offsets[0] + half, *offsets[1:]), part[half:])])


def store(job: Job, array: int, path: str, start: int, kind: str, parts: Iterable[Part]) -> None:
    """Writes parts of an array into a file whose elements begin at start.

    Byte by byte, where hosts share a file but not its pages in memory. Raises OutputError.
    """
    row = job.array(array)
    shape = job.setup.shape(row)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for offsets, part in parts:
                _store_part(fd, start, shape, offsets, part)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise OutputError(
            f"{kind} {row['name']}: cannot write {path}: {error.strerror}",
            expected="a directory that may be written to",
            found=f"host {os.uname().nodename}", remedy="a path in another directory",
        ) from None


def _store_part(
    fd: int, start: int, shape: tuple[int, ...], offsets: tuple[int, ...], part: np.ndarray
) -> None:
    """Write a part in runs: the trailing dims that it has in full, and one more."""
    inner = len(shape)
    while inner > 0 and part.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    outer = max(0, inner - 1)
    strides = contiguous_strides(shape, part.itemsize)
    first = start + sum(o * s for o, s in zip(offsets, strides, strict=True))
    if part.size == 0:
        return
    for position in np.ndindex(part.shape[:outer]):
        run = np.ascontiguousarray(part[position]).reshape(-1).view(np.uint8).data
        place = first + sum(k * s for k, s in zip(position, strides))
        while run:
            written = os.pwrite(fd, run, place)
            run, place = run[written:], place + written


def gather(
    comm: Any, parts: list[Part], shape: tuple[int, ...],
    dtype: np.dtype, root: int = 0,
) -> np.ndarray | None:
    """Return the global array in process `root`, None in the others. Every process must come."""
    everyones = comm.gather(parts, root=root)
    if everyones is None:
        return None
    whole = np.empty(shape, dtype)
    for theirs in everyones:
        for offsets, part in theirs:
            place = tuple(slice(o, o + e) for o, e in zip(offsets, part.shape, strict=True))
            whole[place] = part
    return whole
