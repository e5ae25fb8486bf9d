"""Outputs in parts: what each process holds of a global array, and the whole of it in one process.

In: a job that has run, over one host or several. Out: NumPy arrays.
Always holds: an element that several ranks hold travels once.
"""

from __future__ import annotations

import numpy as np

from spmd import report
from spmd.engine import ffi
from spmd.job import EVERY_RANK, Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MOST_GATHERED = 1 << 30  # bytes of one process that are gathered: MPI counts them in an int


def hosted_parts(job: Job, number: int) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """Where the hosted ranks' parts of output `number` begin, and views of their elements."""
    output = job.manifest["outputs"][number]
    dtype = report.numpy_dtype(output["dtype"])
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


def gather(
    comm: Any, parts: list[tuple[tuple[int, ...], np.ndarray]], shape: tuple[int, ...],
    dtype: np.dtype, root: int = 0,
) -> np.ndarray | None:  # fmt: skip
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
