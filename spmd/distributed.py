"""Arrays whose parts lie in several places: inputs and outputs of the processes of a communicator,
and outputs that stay in the memory of the ranks.

In: a job that has run. Out: this process's part, or the whole array in one process.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import UsageError
from spmd import output_parts
from spmd.arrays import SMALL, numpy_dtype
from spmd.launch.job import Global, Job
from spmd.tables import pre
from spmd.tracebacks import plainly


class Local:
    """The type of `spmd.local(part)`: this process's part of an input."""

    def __init__(self, part: Any, offsets: tuple[int, ...] | None = None) -> None:
        self.part = dtypes.as_numpy(part)
        self.offsets = offsets  # where it begins, if that is known


def local(part: Any) -> Local:
    """Mark an array as this rank's shard of an input: `image.run(comm=comm, u=spmd.local(part))`.

    Its shape is that of the shard: balanced blocks, the larger ones first, as numpy.array_split
    cuts. Without it, every process gives the whole array.
    """
    return Local(part)


class Distributed:
    """An output whose parts lie with the ranks: of a run with `comm=`, or of a job with `keep=`.

    `shape` and `dtype` are those of the whole array. `local` is the part of this process, an array
    of its own, and `offsets` say where it begins in the whole array, for each dim. A process that
    hosts all ranks has all of it. As an input of the next call it is handed in as it is.

    NumPy's functions take it where this process has all of it. Elsewhere, `out.gather()`.

    Example::

        @program(mesh=("r",))
        def halves(n: int = 8):
            return spmd.input("u", (n,), np.float64, layout=("r",)) / 2

        image = spmd.build(halves)
        with image.open(ranks=4, keep=True) as job:
            out = job(u=np.arange(8.0))
            out = job(u=out)
        print(np.asarray(out))    # [0.   0.25 0.5  0.75 1.   1.25 1.5  1.75]
    """

    def __init__(
        self, job: Job, number: int, one_rank: bool, kept: bool, kind: str = "output"
    ) -> None:
        """Wrap an output of a job. number: of the array, where outputs are numbered behind the
        inputs."""
        row = job.array(number)
        self.name: str = row["name"]
        self.shape, self.dtype = job.setup.shape(row), numpy_dtype(row["dtype"])
        self._processes, self._number, self._what = job.processes, number, kind
        self._rank = job.setup.first if one_rank else None
        self.offsets, self._extent = (0,) * len(self.shape), self.shape
        if one_rank:
            offset, extent, _ = job.shard(number, job.setup.first)
            self.offsets, self._extent = tuple(offset), tuple(extent)
        self._job, self._turn = job, job.turns
        self._local: np.ndarray | None = None
        if not kept:
            self.copy_out()

    def is_held(self) -> bool:
        """Return whether its parts lie in the memory of the ranks, and nowhere else."""
        return self._local is None and self._job.turns == self._turn

    def lies_in(self, job: Job | None) -> bool:
        """Return whether it is held by the ranks of this job."""
        return self._job is job and self.is_held()

    @property
    def number(self) -> int:
        """Return the number of this array in the job; outputs are numbered behind the inputs."""
        return self._number

    def copy_out(self) -> None:
        """Copies the part of this process out of the memory of the ranks, once."""
        if self._local is None:
            self._local = self.copied()

    def copied(self) -> np.ndarray:
        """Return a copy of this process's part, which lies in the memory of the ranks.

        Raises UsageError once their job has been called again.
        """
        if not self.is_held():
            raise UsageError(
                f"{self._what} {self.name} was kept on the ranks, and their job has been called "
                "again",
                expected="the outputs of the latest call",
                remedy="np.asarray(out) before the next call, or leave the output out of keep=",
            )
        array = np.empty(self._extent, self.dtype)
        start = sum(o * s for o, s in zip(self.offsets, array.strides, strict=True))
        dtype = self._job.array(self._number)["dtype"]
        into = Global(address(array) - start, dtype, self.shape, array.strides)
        self._job.get_array(self._number, into, self._rank)
        return array

    def stays_in(self, array: np.ndarray) -> None:
        """Make `array` this process's part from now on: the memory of the ranks is gone."""
        self._local = array

    @property
    @plainly
    def local(self) -> np.ndarray:
        """Return the part of this process. A kept output is copied from the ranks when it is asked
        for.

        Raises UsageError once the job of a kept output has been called again.
        """
        self.copy_out()
        assert self._local is not None
        return self._local

    @plainly
    def gather(self, root: int = 0) -> np.ndarray | None:
        """Return the whole array in process `root`, and None in the others::

            whole = out.gather(root=0)
            if comm.rank == 0:
                np.save("u.npy", whole)

        Every process must call it.
        """
        part = [(self.offsets, self.local)]
        if self._processes.count == 1:
            return self.local
        with self._processes.waiting:
            return output_parts.gather(self._processes.comm, part, self.shape, self.dtype, root)

    @plainly
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole array, where this process has all of it. Raises UsageError elsewhere."""
        if self._extent != self.shape:
            raise UsageError(
                f"this process has only a part of {self._what} {self.name}",
                expected=f"an array of shape {self.shape}",
                found=f"a part of shape {self._extent}; the other processes have the rest",
                remedy="whole = out.gather(root=0) in every process, or out.local for this part",
            )
        return np.array(self.local, dtype, copy=copy)

    def __repr__(self) -> str:
        here = ", ".join(f"{o}:{o + e}" for o, e in zip(self.offsets, self._extent))
        head = f"<spmd.Distributed {self.name}: {self.dtype} {self.shape}"
        if self._local is not None:
            text = np.array2string(self._local, threshold=SMALL)
            return f"{head}, here [{here}]:\n{text}>"
        return f"{head}, " + ("kept on the ranks>" if self.is_held() else "no longer there>")

    def _repr_html_(self) -> str:
        return pre(repr(self))


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def global_of(array: np.ndarray, dtype: str) -> Global:
    return Global(address(array), dtype, array.shape, array.strides)


def moves_of(job: Job, value: Distributed, number: int) -> list[tuple[int, int, int]] | None:
    """Return from where to where, and how many bytes, for every hosted rank; None for other
    layouts."""
    moves = []
    for rank in range(job.setup.first, job.setup.first + job.setup.count):
        *source, start = job.shard(value.number, rank)
        *target, to = job.shard(number, rank)
        if source != target:
            return None
        size = math.prod(source[1]) * value.dtype.itemsize
        if size and start != to:
            moves.append((start, to, size))
    return moves
