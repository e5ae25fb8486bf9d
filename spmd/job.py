"""The ranks that this process hosts, over the engine: memory, arrays in and out, running.

In: a checked image, sizes of the mesh axes, scalars. Out: text while it runs, arrays afterwards.
Always holds: what one process fails at, all processes of the job leave; memory is checked before
it is taken, and nothing is left when the last process is gone.
"""

from __future__ import annotations

import os
import struct
import sys

from codegen.errors import EXIT_PEER, EnvironmentFault, SpmdError
from codegen.manifest import evaluate
from spmd import engine, launch, load
from spmd.memory import available_memory, bytes_text
from spmd.npy import SIZES
from spmd.sizes import mesh_symbols

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WAIT_MS = 100  # how long a signal may go unnoticed
LEAVE_MS = 2000  # how long an interrupted compute phase may take to notice


class RunError(SpmdError):
    """The program stopped while it ran; the exit code is the engine's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class Setup:
    """What a launch binds: mesh axes, scalars, ranks of this process, threads.

    sizes: of each mesh axis. scalars: by name. shapes: of each input and output, by name.
    """

    def __init__(
        self,
        manifest: dict[str, Any],
        processes: launch.Processes,
        sizes: tuple[int, ...],
        scalars: dict[str, int | float],
        threads: int | None = None,
        cores: int = 0,
    ) -> None:
        self.manifest, self.sizes, self.scalars = manifest, sizes, scalars
        self.ranks = 1
        for size in sizes:
            self.ranks *= size
        self.first, self.count = launch.hosted(self.ranks, processes)
        self.cores = cores or len(os.sched_getaffinity(0))
        share = max(1, self.cores // processes.count)
        self.threads = max(1, min(self.count, threads or share))
        values = {**scalars, **mesh_symbols(manifest, sizes)}
        self.shapes = {
            array["name"]: tuple(int(evaluate(extent, values)) for extent in array["shape"])
            for array in (*manifest["inputs"], *manifest["outputs"])
        }
        self.words = [
            _word(scalar["dtype"], scalars[scalar["name"]]) for scalar in manifest["scalars"]
        ]

    def owners(self, layout: list[list[str]]) -> list[int]:
        """Hosted ranks that between them hold every element of an array once.

        Along an axis that splits no dim all ranks hold the same: the first of them speaks.
        """
        used = {name for entry in layout for name in entry}
        spare = []
        stride = self.ranks
        for axis, size in zip(self.manifest["mesh"], self.sizes, strict=True):
            stride //= size
            if axis["name"] not in used and size > 1:
                spare.append((stride, size))
        hosted = range(self.first, self.first + self.count)
        if not spare:
            return [engine.EVERY_RANK]
        return [r for r in hosted if all(r // stride % size == 0 for stride, size in spare)]


def _word(dtype: str, value: int | float) -> int:
    """A scalar as the 64 bits that the index words and the engine hold."""
    if dtype == "float64":
        return int(struct.unpack("=q", struct.pack("=d", value))[0])
    return int(value)


class Job:
    """The hosted ranks of one job, loaded. Use as a context; run it any number of times."""

    def __init__(self, checked: load.Checked, setup: Setup, processes: launch.Processes) -> None:
        self.setup, self.processes = setup, processes
        self.manifest = setup.manifest
        self.numbers = {a["name"]: k for k, a in enumerate(self.manifest["inputs"])}
        self.outputs = len(self.numbers)
        self.given = bytearray(self.outputs)
        self.image: Any = None
        self._job: engine.Job | None = None
        self._arena: engine.Arena | None = None
        try:
            self._load(checked)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ranks(self) -> engine.Job:
        """The engine's side of this job."""
        assert self._job is not None, "a closed job runs nothing"
        return self._job

    def _load(self, checked: load.Checked) -> None:
        """Process 0 makes the arena, all attach to it, then every rank is loaded."""
        path, nonce = self.processes.meet(lambda: self._make(checked))[0]
        self.processes.together(lambda: self._attach(path, nonce))
        if self._arena is not None:
            self._arena.close_fd()

    def _make(self, checked: load.Checked) -> tuple[str, int]:
        """This process's job, and in process 0 its arena: where others find it, and its nonce."""
        setup = self.setup
        self.image = checked.load(setup.first, setup.count, setup.sizes, setup.words)
        self._job = engine.Job(
            self.image.table,
            ranks=setup.ranks,
            size=setup.sizes,
            scalars=setup.words,
            first=setup.first,
            count=setup.count,
            threads=setup.threads,
            cores=setup.cores,
            library=self.image.library,
        )
        if self.processes.number:
            return "", 0
        need, have = self.ranks.bytes, available_memory()
        if need > have:
            raise EnvironmentFault(
                f"not enough memory: needs {bytes_text(need)}, have {bytes_text(have)}",
                expected=f"{bytes_text(self.ranks.rank_bytes)} for each of {setup.ranks} ranks",
                found=f"{bytes_text(have)} available on {os.uname().nodename}",
                remedy="fewer ranks, or smaller arrays",
            )
        self._arena = engine.Arena(need, self.processes.count > 1)
        return self._arena.path, self._arena.nonce

    def _attach(self, path: str, nonce: int) -> None:
        if self._arena is None:
            self._arena = engine.Arena.attach(path, self.ranks.bytes, nonce)
        self.ranks.load(self._arena)

    def put(self, name: str, array: Global, rank: int = engine.EVERY_RANK) -> None:
        """Copies the hosted ranks' parts of a global array into their memory."""
        number = self.numbers[name]
        self.ranks.scatter(
            number, array.base, array.shape, array.strides, array.size, array.swap, rank
        )
        self.given[number] = 1

    def forget(self) -> None:
        """The next run computes the defaults of all inputs that are not put again."""
        self.given = bytearray(self.outputs)

    def get(self, number: int, into: Global, rank: int | None = None) -> None:
        """Copies the hosted ranks' parts of output `number`, or one's, into a global array."""
        layout = self.manifest["outputs"][number]["layout"]
        for k in self.setup.owners(layout) if rank is None else [rank]:
            self.ranks.gather(
                self.outputs + number, into.base, into.shape, into.strides, into.size, 0, k
            )

    def shard(self, array: int, rank: int) -> engine.Shard:
        """A hosted rank's part of an array; inputs are numbered first, then outputs."""
        arrays = (*self.manifest["inputs"], *self.manifest["outputs"])
        return self.ranks.shard(array, rank, len(arrays[array]["shape"]))

    def run(self, progress: bool = False) -> None:
        """Runs the program once; its text goes to sys.stdout as it comes."""
        self.ranks.start(self.given)
        try:
            state = self._wait(progress)
        except BaseException as error:
            code = getattr(error, "exit_code", 130 if isinstance(error, KeyboardInterrupt) else 70)
            self.abort(code, f"{type(error).__name__} on process {self.processes.number}")
            raise
        if state == engine.ABORTED:
            raise self._failure()

    def _wait(self, progress: bool) -> int:
        shown = Progress(self) if progress else None
        while True:
            state = self.ranks.wait(WAIT_MS)
            while text := self.ranks.text():
                if shown:
                    shown.clear()
                sys.stdout.write(text.decode("utf-8", "replace"))
                sys.stdout.flush()
            if state != engine.RUNNING:
                if shown:
                    shown.clear()
                return state
            if shown:
                shown.show()

    def abort(self, code: int, text: str) -> None:
        """Ends the run of all processes of the job, and waits a moment until it has ended here."""
        self.ranks.abort(code, text)
        for _ in range(LEAVE_MS // WAIT_MS):
            if self.ranks.wait(WAIT_MS) != engine.RUNNING:
                return

    def _failure(self) -> Exception:
        """Why the engine says the run was aborted."""
        failure = self.ranks.failure()
        if failure is None:
            return RunError("the run was aborted", EXIT_PEER)
        if failure.rank < 0:
            return launch.Elsewhere(failure.code)
        operation = self.ranks.watch(failure.rank).operation
        rows = self.manifest["operations"]
        place = rows[operation].get("place") if 0 <= operation < len(rows) else ""
        where = f"{place}: " if place else ""
        return RunError(
            f"{where}rank {failure.rank} in superstep {failure.superstep}: {failure.text}",
            failure.code or EXIT_PEER,
        )

    def superstep(self) -> int:
        """How many exchanges the first hosted rank has completed."""
        return self.ranks.watch(self.setup.first).superstep

    def close(self) -> None:
        """Gives all memory back, unless a compute phase that was interrupted still uses it."""
        if self._job is not None:
            if not self._job.free():
                return
            self._job = None
        if self._arena is not None:
            self._arena.free()
            self._arena = None
        if self.image is not None:
            self.image.close()
            self.image = None


class Global:
    """A global array for the engine. base: a buffer, or the address of the first element.

    swapped: its byte order is not this machine's; the parts of a complex number are swapped apart.
    """

    def __init__(
        self,
        base: Any,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        swapped: bool = False,
    ) -> None:
        self.base, self.shape, self.strides = base, shape, strides
        self.size = SIZES[dtype]
        unit = self.size // 2 if dtype.startswith("complex") else self.size
        self.swap = unit if swapped else 0


class Progress:
    """One line on standard error, while nothing else is written there: the current superstep."""

    def __init__(self, job: Job) -> None:
        self.job, self.turns, self.width = job, 0, 0

    def show(self) -> None:
        self.turns += 1
        if self.turns % 5 == 0:
            line = f"superstep {self.job.superstep()}"
            self.width = max(self.width, len(line))
            print(f"\r{line.ljust(self.width)}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.width:
            print(f"\r{' ' * self.width}\r", end="", file=sys.stderr, flush=True)
        self.width = 0
