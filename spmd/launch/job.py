"""The ranks that this process hosts, over the engine: memory, arrays in and out, running.

In: a checked image, sizes of the mesh axes, scalars. Out: text while it runs, arrays afterwards.
Always holds: what one process fails at, all processes of the job leave; memory is checked before
it is taken, and nothing is left when the last process is gone.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from codegen.errors import (
    EXIT_PEER,
    CheckError,
    EnvironmentFault,
    ImageError,
    InputError,
    InternalError,
    OutputError,
    SpmdError,
    VersionError,
)
from codegen.image.manifest import ENTRY
from codegen.image.schema import AXES
from spmd import report
from spmd.engine import ffi, lib
from spmd.files.npy import SIZES
from spmd.launch import limits, loader
from spmd.launch.memory import address_space, available_memory, bytes_text
from spmd.launch.processes import Elsewhere, end_with_the_job
from spmd.launch.program_output import ProgramOutput
from spmd.launch.setup import EVERY_RANK, Setup
from spmd.launch.shared_constants import constants_of
from spmd.launch.transport import Transport
from spmd.launch.watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spmd.launch.held_interrupts import HeldInterrupts
    from spmd.launch.processes import Processes
    from spmd.launch.program_output import Listener

WAIT_MS = 100  # how long a signal may go unnoticed
STACK = 8 << 20  # bytes of a thread, as usual
OWED_S = 5e-4  # between two looks at frames that were made before a rank has failed
LAST_FRAMES_S = 0.3  # for which these are waited for: a compute phase may take much longer
LEAVE_MS = 2000  # how long an interrupted compute phase may take to notice


class RunError(SpmdError):
    """The program stopped while it ran; the exit code is the engine's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class Job:
    """The hosted ranks of one job, loaded. Use as a context; run it any number of times."""

    def __init__(
        self, checked: loader.Checked, setup: Setup, processes: Processes, time_limit: float
    ) -> None:
        self.setup, self.processes, self.time_limit = setup, processes, time_limit
        self.manifest = setup.manifest
        self.numbers = {a["name"]: k for k, a in enumerate(self.manifest["inputs"])}
        self.outputs = len(self.numbers)
        self.given_flags = bytearray(self.outputs)
        self.wanted = bytearray(b"\1" * len(self.manifest["outputs"]))
        # scalars on which more depends than what a run computes, by number
        self.loads = [k for k, row in enumerate(self.manifest["scalars"]) if row["loads"]]
        self.owner = os.getpid()
        self.image: Any = None
        self.positions_in: Any = None  # the image whose notes say what positions mean
        self.constants: Any = None
        self.transport: Any = None
        self.broken = False  # nobody may wait for the other processes any more
        self.watch: Any = None
        self.events = 0  # of every rank, that are kept
        self.keeps_times = False
        self.look: Callable[[], None] | None = None  # while it runs: whether a checkpoint waits
        self.look_frames: Callable[[], None] | None = None  # and whether frames wait
        self.look_feeds: Callable[[], None] | None = None  # and whether ranks starve
        self.turns = 0  # runs, and the end: what outputs lie in its memory are of the latest
        self._text: Any = None  # where the engine puts text that the program prints
        self._job = self._arena = self._board = ffi.NULL
        try:
            self._load(checked)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, checked: loader.Checked) -> None:
        """Make the arena, in its first process, or attach to it; then load this process's ranks."""
        hosts = self.setup.hosts
        mates = hosts.in_this_arena()
        if hosts.spans_hosts:
            self.transport = self.processes.run_in_all(
                lambda: Transport(self.processes, hosts), shared=False
            )
        addresses = self.processes.run_and_gather(lambda: self._make(checked, mates))
        (path, nonce, constants), arena = addresses[mates[0]][0], lib.spmd_job_bytes(self._job)
        several = self.processes.count > 1

        def attach() -> None:
            if self._arena == ffi.NULL:
                self._arena = self._take(
                    lambda to: lib.spmd_arena_attach(path.encode(), arena, nonce, to))
            if constants:
                self._read_constants(checked, constants)
            self._check(lib.spmd_job_load(self._job, self._arena))
            if "position" in self.manifest:
                self._check(lib.spmd_job_positions(self._job, self.manifest["position"]))
                self.positions_in = checked.image
            if several:
                self._attach_board(*addresses[hosts.on_this_host()[0]][1])

        self.processes.run_in_all(attach)
        lib.spmd_arena_close_fd(self._arena)
        if several:
            lib.spmd_arena_close_fd(self._board)
            self.watch = Watch(self)
            if self.processes.watch:
                self.processes.watch.trusted = True

    def _make_board(self) -> tuple[str, int]:
        """Make a board for all processes of a host, in its first one."""
        mates = self.setup.hosts.on_this_host()
        if self.processes.count == 1 or self.processes.number != mates[0]:
            return "", 0
        need = lib.spmd_board_bytes(self.processes.count)
        self._board = self._take(lambda to: lib.spmd_arena_new(need, int(len(mates) > 1), to))
        return arena_address(self._board)

    def _attach_board(self, path: str, nonce: int) -> None:
        need = lib.spmd_board_bytes(self.processes.count)
        if self._board == ffi.NULL:
            self._board = self._take(
                lambda to: lib.spmd_arena_attach(path.encode(), need, nonce, to)
            )
        self._check(lib.spmd_job_board(self._job, self._board))

    def _read_constants(self, checked: loader.Checked, path: str = "") -> str:
        """Has the image read its constants where this process has them, or a mate at a path; where
        its own mates find them, "" if there are none."""
        content = checked.constants()
        if not content:
            return ""
        if self.constants is None:
            self.constants = constants_of(checked.digest, content, path)
        lib.spmd_job_constants(self._job, self.constants.address)
        return str(self.constants.path)

    def _make(
        self, checked: loader.Checked, mates: list[int]
    ) -> tuple[tuple[str, int, str], tuple[str, int]]:
        """Return this process's job; for its mates an arena, constants, and a board: where they
        find them."""
        setup = self.setup
        index = list(setup.words)
        if self.manifest["entries"]:  # a local program runs any of them
            index[[s["name"] for s in self.manifest["scalars"]].index(ENTRY)] = 0
        self.image = checked.load(setup.first, setup.count, list(setup.sizes), index)
        sizes = ffi.new("int64_t[]", [*setup.sizes, *[1] * (AXES - len(setup.sizes))])
        words = ffi.new("int64_t[]", setup.words or [0])
        routines = ffi.new("void *[]", self.image.library or [ffi.NULL])
        processes = self._processes()
        hosts = setup.hosts
        settings = ffi.new(
            "spmd_settings *",
            {
                "image": self.image.table, "ranks": setup.ranks, "size": sizes, "scalar": words,
                "scalars": len(setup.words), "first": setup.first, "count": setup.count,
                "threads": setup.threads, "cores": hosts.cores,
                "strangers": setup.threads * (len(hosts.here) - len(hosts.in_this_arena())),
                "algorithm": setup.algorithm, "strict": setup.strict, "library": routines,
                "libraries": len(self.image.library), "processes": processes[0],
                "limits": limits.rows(hosts.limits),
            },
        )
        job = ffi.new("spmd_job **")
        self._check(lib.spmd_job_new(settings, job))
        self._job = job[0]
        self._check_addresses()
        if self.processes.number != mates[0]:
            return ("", 0, ""), self._make_board()
        have = available_memory()
        if self.host_bytes() > have:
            raise self._no_memory(have)
        need, shared = lib.spmd_job_bytes(self._job), int(len(mates) > 1)
        self._arena = self._take(lambda to: lib.spmd_arena_new(need, shared, to))
        return (*arena_address(self._arena), self._read_constants(checked)), self._make_board()

    def _processes(self) -> tuple[Any, ...]:
        """Return the processes of the job for the engine, and what must live as long."""
        hosts = self.setup.hosts
        first, arena = ffi.new("int64_t[]", hosts.first), ffi.new("int64_t[]", hosts.arenas)
        mpi = self.transport.settings if self.transport else ffi.NULL
        host = ffi.new("int64_t[]", hosts.hosts)
        fields = {"count": len(hosts.arenas), "number": hosts.number, "first": first,
                  "arena": arena, "host": host, "mpi": mpi}
        return ffi.new("spmd_processes *", fields), first, arena, host

    def _take(self, make: Any) -> Any:
        to = ffi.new("spmd_arena **")
        self._check(make(to))
        return to[0]

    def rank_bytes(self) -> int:
        """Return the most bytes of a rank, with copies for checkpoints where some are kept."""
        return int(lib.spmd_job_rank_bytes(self._job)) + self.setup.room_bytes

    def host_bytes(self) -> int:
        """Return the bytes that all ranks of this host take together."""
        return self.rank_bytes() * self.setup.hosts.ranks_of(self.setup.hosts.here)

    def _check_addresses(self) -> None:
        """Check that every process can map the whole arena, under its own limit (ulimit -v)."""
        stacks = lib.spmd_job_threads(self._job) * STACK
        need = lib.spmd_job_bytes(self._job) + lib.spmd_job_private_bytes(self._job) + stacks
        need += self.setup.room_bytes * self.setup.count
        have = address_space()
        if need > have:
            raise EnvironmentFault(
                "not enough address space for this process", expected=bytes_text(need),
                found=f"{bytes_text(have)} under the limit that it was started with",
                remedy="ulimit -v unlimited, fewer ranks, or smaller arrays",
            )

    def _no_memory(self, have: int) -> EnvironmentFault:
        return EnvironmentFault(
            f"not enough memory: needs {bytes_text(self.host_bytes())}, have {bytes_text(have)}",
            expected=f"{bytes_text(self.rank_bytes())} for each of "
            f"{self.setup.hosts.ranks_of(self.setup.hosts.here)} ranks",
            found=f"{bytes_text(have)} available", remedy="fewer ranks, or smaller arrays",
        )

    def _check(self, status: int) -> None:
        """Turns a status of the engine into the error it stands for."""
        if status == lib.SPMD_OK:
            return
        if status == lib.SPMD_BUSY and lib.spmd_job_failure(self._job, ffi.new("spmd_failure *")):
            raise self._failure()  # it was aborted by another process
        text = ffi.string(lib.spmd_status_text(status)).decode()
        if status == lib.SPMD_NO_MEMORY:
            if self._job != ffi.NULL:
                raise self._no_memory(available_memory())
            raise EnvironmentFault(text)
        if status == lib.SPMD_SYSTEM:
            raise EnvironmentFault(f"{text}: {os.strerror(ffi.errno)}")
        if status == lib.SPMD_MISMATCH:
            raise VersionError(f"image and engine do not fit: {text}",
                               remedy="build the image again; if that does not help, the engine is "
                                      "old: `make setup` in a checkout, else install spmd again")
        raise InternalError(f"engine: {text}")

    def _check_array(self, status: int, name: str, file: str = "") -> None:
        if status == lib.SPMD_CUT:
            raise InputError(
                f"input {name}: {file or 'its file'} became shorter while it was read",
                expected="a file that nobody writes to",
                remedy="write another file, then give it this one's name",
            )
        if status == lib.SPMD_RANGE:
            raise ImageError(
                f"the manifest and the machine code differ in array {name}",
                expected="one shape and one element type in both", found="others",
                remedy="build the image again",
            )
        self._check(status)

    def put(self, number: int, array: Global, rank: int = EVERY_RANK, file: str = "") -> None:
        """Copies the hosted ranks' parts of a global array into their memory, as input `number`.

        Raises InputError where the array lies in a mapped file that has become shorter.
        """
        name = self.manifest["inputs"][number]["name"]
        status = lib.spmd_job_scatter(self._job, number, rank, array.pointer)
        self._check_array(status, name, file)
        self.given_flags[number] = 1

    def keep_times(self, events: int) -> None:
        """Has the engine keep times from the next run on: totals, and up to so many events."""
        operations = len(self.manifest["operations"])
        self._check(lib.spmd_job_timeline(self._job, operations, events))
        self.events, self.keeps_times = events, True

    @property
    def may_run(self) -> bool:
        """Return whether the job can run again: it is loaded, and no run of it has failed."""
        return self._job != ffi.NULL and not self.broken

    def save_frames(self, number: int, rank: int, every: int, writes: bool) -> None:
        """From the next run on, a hosted rank makes a frame of save `number` in every so many
        turns, or, with 0, none; if it `writes`, its parts have to be taken."""
        self._check(lib.spmd_job_save(self._job, number, rank, every, int(writes)))

    def rebind(self, setup: Setup) -> bool:
        """Give the loaded ranks other scalars, if their buffers stay as they are; return whether.

        Where memory depends on the scalars, and in programs with feeds or points of checkpoints,
        False: then the job has to be loaded anew.
        """
        words = ffi.new("int64_t[]", setup.words or [0])
        if all(setup.words[k] == self.setup.words[k] for k in self.loads):
            self._check(lib.spmd_job_set_scalars(self._job, words))
        elif not self.set_words(words):
            return False
        self.setup = setup
        return True

    def undo(self) -> None:
        """Put states, after a run that failed, back to what they were, also where it wrote into
        them. A compute phase that still writes is waited for."""
        if not any(entry["updates"] for entry in self.manifest["entries"]):
            return
        while (status := lib.spmd_job_undo(self._job)) == lib.SPMD_BUSY:
            time.sleep(WAIT_MS / 1000)
        self._check(status)

    def set_words(self, words: Any) -> bool:
        """Have load() evaluate again what depends on scalars; return whether buffers stay as they
        are. words: of all scalars."""
        status = lib.spmd_job_scalars(self._job, words)
        if status == lib.SPMD_RANGE:
            return False
        self._check(status)
        return True

    def replace(self, pairs: list[int]) -> None:
        """Exchange each pair of buffers: what the run has left in the second is in the first from
        now on, so states get their values, uncopied. No undo() reaches the run then."""
        if pairs or any(entry["updates"] for entry in self.manifest["entries"]):
            self._check(lib.spmd_job_replace(self._job, pairs, len(pairs) // 2))

    def forget(self, given_flags: bytes | bytearray) -> None:
        """Let the next run compute the defaults of all inputs that are not put again; given_flags:
        by input, 1 where the run computes no default even so."""
        self.given_flags = bytearray(given_flags)

    def want(self, outputs: list[int]) -> None:
        """Let the next runs compute these outputs, by their numbers, and leave others alone where
        the image can."""
        self.wanted = bytearray(len(self.wanted))
        for k in outputs:
            self.wanted[k] = 1

    def get(self, number: int, into: Global, rank: int | None = None) -> None:
        """Copies the hosted ranks' parts of output `number`, or one's, into a global array."""
        self.get_array(self.outputs + number, into, rank)

    def get_input(self, number: int, into: Global) -> None:
        """Copies what this process holds of input `number`, as it lies there now, to an array; of
        inputs that no run writes to also where the run has failed."""
        for rank in self.setup.holders(self.array(number)["layout"]):
            self.get_array(number, into, rank)

    def get_array(self, array: int, into: Global, rank: int | None = None) -> None:
        """Copies the hosted ranks' parts, or one's, of an input or an output: outputs are numbered
        behind the inputs."""
        row = self.array(array)
        for k in self.setup.owners(row["layout"]) if rank is None else [rank]:
            self._check_array(lib.spmd_job_gather(self._job, array, k, into.pointer), row["name"])

    def array(self, array: int) -> dict[str, Any]:
        """Return the row of the manifest of an input or an output."""
        kind, first = ("inputs", 0) if array < self.outputs else ("outputs", self.outputs)
        row: dict[str, Any] = self.manifest[kind][array - first]
        return row

    def shard(self, array: int, rank: int) -> tuple[list[int], list[int], int]:
        """Return offset, extent and address of a hosted rank's part of an array."""
        offset, extent = ffi.new("int64_t[8]"), ffi.new("int64_t[8]")
        address = ffi.new("void **")
        self._check(lib.spmd_job_shard(self._job, array, rank, offset, extent, address))
        dims = len(self.array(array)["shape"])
        return list(offset[0:dims]), list(extent[0:dims]), int(ffi.cast("intptr_t", address[0]))

    def run(
        self, told: Listener | None = None, call: Any = None, number: int | None = None
    ) -> None:
        """Runs the program once; its text goes to sys.stdout as it comes.

        told: hears the superstep, again and again, and "" before there is text. call: a spmd_call,
        which says what is put in before; number: by which those who follow this process know it.
        """
        self.turns += 1
        try:
            if call is None:
                self._check(lib.spmd_job_start(self._job, bytes(self.given_flags + self.wanted)))
            else:
                if number is not None:
                    lib.spmd_job_lead(self._job, number)
                self._check_array(lib.spmd_call_start(self._job, call), "of a call")
            held = self.processes.held
            state = self._wait_led(held, told, number is not None) if held else self._wait(told)
        except BaseException as error:
            self.broken = True
            text = f"{type(error).__name__} on process {self.processes.number}"
            self.abort(report.exit_code(error), text)
            raise
        if state == lib.SPMD_ABORTED:
            self.broken = True
            raise self._failure()

    def finish(self, call: Any) -> None:
        """Copy the outputs of a spmd_call after its run; states get their new values."""
        self._check_array(lib.spmd_call_finish(self._job, call), "of a call")

    def follow(self, calls: list[Any]) -> bool:
        """Carries out the calls that process 0 leads, until it tells this process to leave; returns
        False where a run was aborted. calls: every spmd_call by number; NULL for what is none."""
        table = ffi.new("spmd_call *[]", calls)
        try:
            while True:
                state = lib.spmd_job_follow(self._job, table, WAIT_MS)
                self._say(None, None)
                if state != lib.SPMD_RUNNING:
                    self.broken = state == lib.SPMD_ABORTED
                    return not self.broken
        except BaseException as error:
            self.broken = True
            text = f"{type(error).__name__} on process {self.processes.number}"
            self.abort(report.exit_code(error), text)
            while lib.spmd_job_follow(self._job, table, WAIT_MS) == lib.SPMD_RUNNING:
                pass
            raise

    def _say(self, say: ProgramOutput | None, told: Listener | None) -> ProgramOutput | None:
        """Prints what the program has said so far."""
        if self._text is None:
            self._text = ffi.new("char[]", 1 << 16)
        text = self._text
        while length := lib.spmd_job_text(self._job, text, len(text)):
            if told:
                told("")
            say = say or ProgramOutput()
            say(ffi.buffer(text, length)[:].decode("utf-8", "replace"))
        return say

    def _wait(self, told: Listener | None) -> int:
        say = None
        while True:
            state = lib.spmd_job_wait(self._job, WAIT_MS)
            say = self._say(say, told)
            if self.look_frames is not None:
                with suppress(*[OutputError] * (state == lib.SPMD_ABORTED)):  # that one is said
                    self.look_frames()
                    if state == lib.SPMD_ABORTED:
                        self._await_frames(self.look_frames)
            if self.look is not None and state != lib.SPMD_ABORTED:
                self.look()
            if self.look_feeds is not None and state == lib.SPMD_RUNNING:
                self.look_feeds()
            if state != lib.SPMD_RUNNING:
                if say:
                    say.close()
                return int(state)
            if told and not (say and say.shown):
                told(f"superstep {self.superstep()}")

    def _wait_led(self, held: HeldInterrupts, told: Any, leads: bool) -> int:
        """Waits for the run of this process and, where it leads, of those that follow it."""
        with held.allowed:
            state = self._wait(told)
            waits = leads and state == lib.SPMD_FINISHED
            while waits and (state := lib.spmd_job_led(self._job, WAIT_MS)) == lib.SPMD_RUNNING:
                pass
        return state

    def _await_frames(self, look: Callable[[], None]) -> None:
        """Take, after a failure, the frames that the failed rank had made before, to which others
        still come."""
        end, owes = time.monotonic() + LAST_FRAMES_S, True
        while owes:
            owes = bool(lib.spmd_job_owes_frames(self._job)) and time.monotonic() < end
            time.sleep(OWED_S if owes else 0)
            look()

    def abort(self, code: int, text: str) -> None:
        """Ends the run of all processes of the job, and waits a moment until it has ended here."""
        lib.spmd_job_abort(self._job, code, -1, text.encode())
        for _ in range(LEAVE_MS // WAIT_MS):
            if lib.spmd_job_wait(self._job, WAIT_MS) != lib.SPMD_RUNNING:
                return

    def _failure(self) -> Exception:
        """Return why the engine says the run was aborted."""
        failure = ffi.new("spmd_failure *")
        lib.spmd_job_failure(self._job, failure)
        if failure.rank < 0:
            if failure.code == EXIT_PEER:
                end_with_the_job(EXIT_PEER)
            return Elsewhere(int(failure.code))
        row = self.row(failure.operation)
        where = f"{row['place']}: " if "place" in row else ""
        text = ffi.string(failure.text).decode("utf-8", "replace")
        if row.get("kind") == "expect":
            rank = f"rank {failure.rank} in superstep {failure.superstep}"
            return CheckError(text, row.get("place", ""), row.get("text", ""), rank)
        return RunError(
            f"{where}rank {failure.rank} in superstep {failure.superstep}: {text}",
            int(failure.code) or EXIT_PEER,
        )

    def row(self, operation: int) -> dict[str, Any]:
        """Return the row of the manifest's table of operations, {} for none."""
        rows = self.manifest["operations"]
        return rows[operation] if 0 <= operation < len(rows) else {}

    def state(self, rank: int) -> Any:
        """Return where a rank of this arena is, as a spmd_rank_state."""
        state = ffi.new("spmd_rank_state *")
        self._check(lib.spmd_job_watch(self._job, rank, state))
        return state

    def superstep(self) -> int:
        """Return how many exchanges the first hosted rank has completed."""
        return int(self.state(self.setup.first).superstep)

    def close(self) -> None:
        """Gives all memory back, unless an interrupted compute phase, or MPI, still uses it.

        A forked child has neither the threads nor the say.
        """
        if os.getpid() != self.owner:
            return
        if self.watch is not None:
            if self.processes.watch:
                self.processes.watch.may_leave = not self.broken
                self.processes.watch.trusted = False
            self.watch.end()
            self.watch = None
        self.turns += 1
        if self._job != ffi.NULL:
            if lib.spmd_job_free(self._job) != lib.SPMD_OK:
                return
            self._job = ffi.NULL
        if self.transport is not None and not self.broken:
            self.transport.close()
        self.transport = None
        lib.spmd_arena_free(self._arena)
        lib.spmd_arena_free(self._board)
        self._arena = self._board = ffi.NULL
        if self.image is not None:
            self.image.close()
            self.image = None
        if self.constants is not None:
            self.constants.close()
            self.constants = None


def arena_address(arena: Any) -> tuple[str, int]:
    """Return where the other processes of this host find an arena, and how they know it again."""
    return f"/proc/{os.getpid()}/fd/{lib.spmd_arena_fd(arena)}", lib.spmd_arena_nonce(arena)


class Global:
    """A global array for the engine. base: a buffer whose byte `start` is the first element's, or
    the address of that. A context for buffers, which are free again at its end: what is left to
    the garbage collector can crash it.

    swapped: its byte order is not this machine's; the parts of a complex number are swapped apart.
    """

    def __init__(
        self, base: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...],
        swapped: bool = False, start: int = 0,
    ) -> None:
        is_address = isinstance(base, int)
        self._buffer = None if is_address else ffi.from_buffer("char[]", base)
        address = ffi.cast("char *", base if is_address else self._buffer) + start
        self._keep = (ffi.new("int64_t[8]", shape), ffi.new("int64_t[8]", strides))
        size = SIZES[dtype]
        unit = size // 2 if dtype.startswith("complex") else size
        self.pointer = ffi.new(
            "spmd_global *",
            {
                "base": address, "dims": len(shape), "shape": self._keep[0],
                "stride": self._keep[1], "size": size, "swap": unit if swapped else 0,
            },
        )

    def __enter__(self) -> Global:
        return self

    def __exit__(self, *_: object) -> None:
        if self._buffer is not None:
            ffi.release(self._buffer)
