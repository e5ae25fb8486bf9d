"""Arrays of a job in files: every process moves what its own ranks have of them.

In: a loaded job, open files of arrays. Out: arrays in the memory of the ranks, or in files.
Always holds: processes of one job are given equal arrays, or none goes on.
"""

from __future__ import annotations

import mmap
import os

from codegen.errors import EnvironmentFault
from spmd.files.npy import SIZES, contiguous_strides
from spmd.launch.job import Global
from spmd.launch.processes import disagreement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from spmd.files.inputs import InputArray
    from spmd.launch.job import Job
    from spmd.launch.processes import Processes

    Versions = dict[str, tuple[str, tuple[Any, ...]]]  # by name: a path, and what tells files apart


def versions_of(opened: Mapping[str, InputArray]) -> Versions:
    """Return the path of each array, and its version, which tells two files apart."""
    return {name: (array.path, array.version) for name, array in opened.items()}


def compare(
    processes: Processes, opened: Mapping[str, InputArray], everyones: list[Versions],
    holder: str, kind: str,
) -> None:
    """Check that all processes were given the same arrays: the same files, or others of equal
    elements.

    holder: "rank" or "process", of whom messages speak. kind: what messages call the arrays.
    """
    other = [
        name for name in opened
        if any(files[name][1] != everyones[0][name][1] for files in everyones)
    ]
    if not other:
        return
    digests = processes.run_and_gather(lambda: {name: opened[name].digest() for name in other})
    for name in other:
        odd = [k for k, theirs in enumerate(digests) if theirs[name] != digests[0][name]]
        if odd:
            processes.refuse(disagreement(
                f"ranks of one job were given different arrays for {kind} {name}", holder, odd,
                expected=f"the elements of {everyones[0][name][0]} ({holder} 0)",
                found=f"others in {everyones[odd[0]][name][0]} ({holder} {odd[0]})",
                remedy="give every rank the same file, or a copy of it",
            ))


def put(job: Job, opened: Mapping[str, InputArray], numbers: Mapping[str, int], kind: str) -> None:
    """Copy the hosted ranks' parts of inputs from their files into the memory of the ranks."""
    for name, file in opened.items():
        reserve(job, file, numbers[name])
    for name, file in opened.items():
        try:
            how = file.dtype, file.shape, file.strides, file.swapped, file.start
            with Global(file.buffer, *how) as whole:
                job.put(numbers[name], whole, file=file.path)
        except MemoryError:
            raise no_memory(name, file, kind) from None
        file.close()


def reserve(job: Job, file: InputArray, number: int) -> None:
    """Says which part of an array this process takes, where it is made in memory."""
    if file.is_made:
        here = job.setup.hosts.here
        file.reserve(*_span(job, number, file), len(here), job.host_bytes())


def no_memory(name: str, file: InputArray, kind: str) -> EnvironmentFault:
    return EnvironmentFault(f"{kind} {name}: not enough memory to read {file.path}",
                            remedy="more processes")


def _span(job: Job, number: int, file: InputArray) -> tuple[int, int]:
    """Return the bytes of an input's buffer, low to high, that the hosted ranks' parts lie
    between."""
    low, high = file.start, file.start
    for rank in range(job.setup.first, job.setup.first + job.setup.count):
        offset, extent, _ = job.shard(number, rank)
        if 0 in extent:
            continue
        first = file.start + sum(o * s for o, s in zip(offset, file.strides))
        last = first + sum((e - 1) * s for e, s in zip(extent, file.strides))
        low = first if high == file.start else min(low, first)
        high = max(high, last + SIZES[file.dtype])
    return low, high


def mapped(path: str) -> mmap.mmap:
    """Return a whole file, mapped for writing by all."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def collect(job: Job, rooms: Mapping[int, tuple[str, int]], kind: str) -> dict[int, Any]:
    """Copies the hosted ranks' parts of arrays, by their numbers, to where they go: a file, with
    the byte where it begins; "" for what process 0 is to get in memory where that is possible. In
    all processes together. Returns the files, mapped, and what process 0 got. kind: what
    messages call the arrays, as "output".
    """
    if job.setup.hosts.count > 1:
        from spmd import output_parts  # NumPy, where memory is not shared

        return output_parts.collect(job, rooms, kind)
    views: dict[int, Any] = job.processes.run_in_all(
        lambda: {array: fill(job, array, *room) for array, room in rooms.items() if room[0]},
        shared=False)
    return views


def fill(job: Job, array: int, path: str, start: int) -> mmap.mmap:
    """Copies the hosted ranks' parts of an input or output into a file of this host, whose elements
    begin at start; returns the file, mapped."""
    row, view = job.array(array), mapped(path)
    shape = job.setup.shape(row)
    strides = contiguous_strides(shape, SIZES[row["dtype"]])
    with Global(view, row["dtype"], shape, strides, start=start) as into:
        job.get_array(array, into)
    return view
