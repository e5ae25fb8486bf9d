"""An image that stays loaded, and what a call of it does: arrays in, one run, arrays out.

In: options of a run, then inputs and scalars by name, as often as you like. Out: what the program
returns. Always holds: outputs that are kept stay in the memory of the ranks until the next call.
"""

from __future__ import annotations

import math
import os
import weakref
from _thread import allocate_lock, get_ident
from collections import namedtuple
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.casts import inexact
from codegen.errors import EnvironmentFault, InputError, UsageError
from codegen.mesh import checked_count, checked_sizes
from codegen.suggest import meant
from codegen.user import named
from spmd import report, tables, timeline
from spmd.arguments import check_array
from spmd.arrays import numpy_dtype
from spmd.distributed import Distributed, Local, address, global_of
from spmd.engine import ffi
from spmd.launch import launchers, presence
from spmd.launch.attendance import Attendance
from spmd.launch.course import Launch
from spmd.launch.ending import LEFT, end_all, end_all_on_error
from spmd.launch.job import Global, Job, Setup
from spmd.launch.loader import Checked
from spmd.launch.options import OPTIONS, TIME_LIMIT, Options
from spmd.launch.processes import Elsewhere, Processes
from spmd.mistakes import plainly
from spmd.texts import MOST_SECONDS

Form = tuple[np.dtype, tuple[int, ...]]  # of an array


class Opened:
    """An image that stays loaded: what image.open gives. Another value of a scalar loads it again
    only where memory depends on it, and in programs with feeds, frames or checkpoints.
    """

    def __init__(self, checked: Checked, options: Options) -> None:
        self.keep = _kept(checked.manifest, options.keep)
        self._latest: list[weakref.ref[Distributed]] = []  # outputs of the latest call, kept
        self._owner, self._turn, self._thread = os.getpid(), allocate_lock(), 0
        self._closed = False
        self.processes = group_of(options.comm, options.time_limit)
        self.distributed = options.comm is not None
        self._options, self._manifest = options, checked.manifest
        # of the latest call: see _repeats
        self._known: tuple[Setup, dict[str, Form], Any] | None = None
        self._launch = Launch(checked, options, self.processes)
        if self.processes.count > 1:
            end_all_on_error()
        else:
            self._check()

    @property
    def _job(self) -> Job | None:
        return self._launch.job

    def _check(self) -> None:
        """The options. With several processes all of them must hear of a wrong one."""
        options = self._options
        names = tuple(axis["name"] for axis in self._manifest["mesh"])
        options.mesh = checked_sizes({} if options.mesh is None else options.mesh, names)
        for what in ("ranks", "threads"):
            if (count := getattr(options, what)) is not None:
                setattr(options, what, checked_count(what, count))
        for what, row in OPTIONS.items():
            if row.known and (name := getattr(options, what)) not in row.known:
                raise UsageError(f"there is no {what} {name!r}", expected=", ".join(row.known))
        if not _is_limit(options.time_limit):
            raise UsageError(
                f"time_limit {options.time_limit!r} is not a number of seconds",
                expected=f"0 (for ever) to {MOST_SECONDS:.0f}",
            )
        if self.distributed and options.ranks not in (None, self.processes.count):
            raise UsageError("with comm= every process is one rank", found=f"ranks={options.ranks}")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self.processes.count > 1 and os.getpid() == self._owner:
            if isinstance(error, SystemExit):
                if error.code:
                    end_all(error)
            elif error is not None:
                setattr(error, LEFT, True)
                if self._job is not None:
                    self._job.broken = True  # the others are not leaving, they may be running
                    text = f"process {self.processes.number} left"
                    self._job.abort(report.exit_code(error), text)
        self.close()

    @plainly
    def close(self) -> None:
        """Free the job's memory. Kept outputs that are still used are copied out first.

        In a forked child it does nothing.
        """
        if os.getpid() == self._owner:
            with self._alone(waits=True):
                self._closed = True
                if self._job is not None and not self._job.broken:
                    for reference in self._latest:
                        if (output := reference()) is not None and output.is_held():
                            output.copy_out()
                self._launch.end()

    @contextmanager
    def _alone(self, waits: bool) -> Iterator[None]:
        """The engine runs one call of a job at a time; the calls of other threads wait.

        With several processes they are refused: each could make another one of them first.
        """
        if os.getpid() != self._owner:
            raise UsageError(
                f"this job was opened by process {self._owner}, from which this one was forked",
                expected="a job of its own: threads and memory of the engine are not copied",
                remedy="image.open in the child, or multiprocessing's start method 'spawn'",
            )
        if self._thread == get_ident() or not self._turn.acquire(blocking=waits):
            raise UsageError(
                "this job is called while another call of it runs",
                expected="one call after the other, in the same order on every process",
                remedy="call it from one thread, or open the image once for each thread, with a "
                "communicator of its own (comm.Dup())",
            )
        self._thread = get_ident()
        try:
            yield
        finally:
            self._thread = 0
            self._turn.release()

    @plainly
    def __call__(self, **arguments: Any) -> Any:
        """Run the program once with these inputs and scalars, by name.

        A program with feeds goes on with the next batch of what it was opened with; `feed=…` in a
        call begins another stream. An output that this job kept, or that a run with comm= gave, can
        be an input as it is: `out = job(u=out["u"])`.

        `only="label"`, or several names, asks for some outputs, as files know them (`a.b`): None
        stands for the others. None, too, stands for what needs an optional input that is not given,
        or given as None.

        Calls from several threads run one after the other; with several processes a second one is
        refused. Raises UsageError for that, in a forked child, and once the job is closed.

        A call that a check, an assert or a feed ends leaves the outputs that were kept as they
        were: they are copied before such a call.
        """
        with self._alone(waits=self.processes.count == 1):
            if self._closed:
                raise UsageError("this job is closed", expected="an open one",
                                 found="a call after close(), or behind its with block",
                                 remedy="image.open(…) again, or call it inside the block")
            return self._call(arguments)

    def _profiled(self, arguments: dict[str, Any]) -> tables.Profile:
        """Runs once; where the time went, on all ranks, in every process."""
        job, times = self._measured(arguments, events=False)
        rows = self.processes.broadcast(timeline.profile(job, times) if times else None)
        ranks = job.setup.ranks
        inside = tables.rows_html(timeline.profile_title(ranks, rows), timeline.HEAD,
                                  list(timeline.profile_cells(rows)))
        return tables.Profile(rows, timeline.profile_text(ranks, rows), inside)

    def _timed(self, path: str, arguments: dict[str, Any]) -> str:
        """Runs once; process 0 writes what every rank did when. What there is to say of it."""
        job, times = self._measured(arguments, events=True)
        return str(self.processes.from_first(lambda: timeline.write(path, job, times)))

    def _measured(
        self, arguments: dict[str, Any], events: bool
    ) -> tuple[Job, list[timeline.RankEvents]]:
        """The job that has run, and in process 0 the times of all ranks."""
        self._launch.times = events
        self(**arguments)
        assert self._job is not None
        return self._job, timeline.gather(self._job)

    def _call(self, arguments: dict[str, Any]) -> Any:
        only = None
        if "only" in arguments and "only" not in self._names():
            only = arguments.pop("only")
        if any(v is None for v in arguments.values()):  # of optional inputs that nobody has
            optional = {row.get("optional") for row in self._manifest["inputs"]}
            arguments = {k: v for k, v in arguments.items() if v is not None or k not in optional}
        setup = self._repeats(arguments, only)
        if setup is None:
            setup, _ = self._launch.agreed(lambda: self._prepare(arguments, only))
            forms = {
                array["name"]: (numpy_dtype(array["dtype"]), setup.shape(array))
                for array in self._manifest["inputs"] if array["name"] in arguments
            }
            # A tree or a scalar that one call gives, the next may leave out.
            self._known = (setup, forms, only) if forms.keys() == arguments.keys() else None
        if self._job is not None and not self._launch.fits(setup):
            for value in self.arrays.values():
                if isinstance(value, Distributed):
                    value.copy_out()
        kept = self._kept_now()
        try:
            job = self._launch.loaded(setup, self._put)
            self.processes.together(lambda: self._compute(job))
            self._launch.kept()
        except BaseException:
            self._launch.end()
            for output, array in kept:
                output.stays_in(array)
            raise
        outputs = [self._output(job, k) if wanted else None for k, wanted in enumerate(job.wanted)]
        self._latest = [weakref.ref(output) for output in outputs
                        if isinstance(output, Distributed) and output.is_held()]
        return structure(self._manifest["returns"], outputs)

    def _names(self) -> list[str]:
        """The names of inputs and scalars."""
        return [row["name"] for kind in ("inputs", "scalars") for row in self._manifest[kind]]

    def _repeats(self, arguments: dict[str, Any], only: Any) -> Setup | None:
        """Return the setup of the call before, if this one needs no other: both give the same
        inputs by their names, as arrays of the dtypes and shapes that were checked then, ask for
        the same outputs, and give nothing else. Else None.

        Several processes must agree on every call; feeds, frames and checkpoints look at each.
        """
        if (self._known is None or self._job is None or self.processes.count > 1
                or self.distributed or self._launch.looks_at_calls()):
            return None
        setup, forms, asked = self._known
        if (self._job.setup.words != setup.words or asked != only
                or arguments.keys() != forms.keys()):
            return None
        for name, value in arguments.items():
            if type(value) is not np.ndarray or (value.dtype, value.shape) != forms[name]:
                return None
        self.arrays = arguments
        return setup

    def _kept_now(self) -> list[tuple[Distributed, np.ndarray]]:
        """Return copies of the outputs that were kept, where the program itself can end a run."""
        rows = self._manifest["operations"]
        if not self._manifest["feeds"] and all(row.get("kind") != "expect" for row in rows):
            return []
        held = [output for reference in self._latest if (output := reference()) is not None]
        return [(output, output.copied()) for output in held if output.is_held()]

    def _prepare(self, arguments: dict[str, Any], only: Any) -> dict[str, Any]:
        """Sorts the arguments and checks them; returns what all processes must share."""
        self._check()
        manifest = self._manifest
        known = [array["name"] for array in manifest["inputs"]]
        names = [scalar["name"] for scalar in manifest["scalars"]]
        if manifest["feeds"] and "feed" not in known:
            self._options.feed = arguments.pop("feed", self._options.feed)
        arguments = named.spread(arguments, known)
        for name in arguments:
            if name not in known + names and name not in manifest["parameters"]:
                raise UsageError(
                    f"the program has no input or scalar {name!r}",
                    expected=named.listed(known + names) or "no inputs and no scalars",
                    remedy=meant(name, [*known, *names, *OPTIONS], "{}=…"),
                )
        given = {name: value for name, value in arguments.items() if name in known}
        settings = {k: v for k, v in arguments.items() if k not in known}
        setup = self._launch.bound(settings, given, only)
        self.arrays = {
            array["name"]: _fitting(array, setup.shape(array), given[array["name"]])
            for array in manifest["inputs"]
            if array["name"] in given
        }
        said = {**self._launch.scalars, "inputs": sorted(given), "only": self._launch.computed,
                **self._options.agreed()}
        return self._launch.mine(setup, said)

    def _compute(self, job: Job) -> None:
        try:
            self._launch.run(job, self._put)
        finally:
            self.arrays = {}

    def _put(self, job: Job) -> None:
        job.forget()
        self._hand_over(job)
        for number, array in enumerate(self._manifest["inputs"]):
            value = self.arrays.get(array["name"])
            if isinstance(value, Local):
                self._put_part(job, number, array, value)
            elif value is not None:
                assert isinstance(value, np.ndarray)  # the others have been handed over
                job.put(array["name"], global_of(value, array["dtype"]))
        presence.show(presence.COMPUTES)

    def _hand_over(self, job: Job) -> None:
        """Outputs of the last call become inputs inside the memory of every rank.

        Those whose layouts differ go through Python where this process has all of them.
        """
        moves: list[tuple[Any, int, int]] = []  # from, to, bytes
        for number, array in enumerate(self._manifest["inputs"]):
            value = self.arrays.get(array["name"])
            if not isinstance(value, Distributed):
                continue
            if not value.lies_in(job) or (found := _moves(job, value, number)) is None:
                self.arrays[array["name"]] = (
                    Local(value.local, value.offsets) if self.distributed else value.local
                )
            else:
                moves += found
                job.given[number] = 1
                del self.arrays[array["name"]]
        # Memory of one array may be that of another: what would be overwritten is read first.
        targets = [(to, to + size) for _, to, size in moves]
        for k, (start, to, size) in enumerate(moves):
            others = (t for j, t in enumerate(targets) if j != k)
            if any(start < high and low < start + size for low, high in others):
                staged = ffi.new("char[]", size)
                ffi.memmove(staged, ffi.cast("char *", start), size)
                moves[k] = staged, to, size
        for start, to, size in moves:
            ffi.memmove(ffi.cast("char *", to), ffi.cast("char *", start), size)

    def _put_part(self, job: Job, number: int, array: dict[str, Any], given: Local) -> None:
        """One rank's shard: a global array of which only this part is there."""
        rank, part = job.setup.first, given.part
        offset, extent, _ = job.shard(number, rank)
        found = given.offsets, part.shape
        if given.offsets is not None and found != (tuple(offset), tuple(extent)):
            raise UsageError(
                f"input {array['name']} was given an output of another layout",
                expected=f"the part of shape {tuple(extent)} that begins at {tuple(offset)}",
                found=f"the part of shape {part.shape} that begins at {given.offsets}",
                remedy="give output and input one layout in the program; or out.gather(), "
                "comm.bcast, and hand in the whole array",
            )
        check_array(array, tuple(extent), part)
        start = sum(o * s for o, s in zip(offset, part.strides, strict=True))
        shape = job.setup.shape(array)
        base = address(part) - start
        job.put(array["name"], Global(base, array["dtype"], shape, part.strides), rank)

    def _output(self, job: Job, number: int) -> Any:
        output = self._manifest["outputs"][number]
        kept = output["name"] in self.keep
        if self.distributed or kept:
            return Distributed(job, number, self.distributed, kept)
        array = np.empty(job.setup.shape(output), numpy_dtype(output["dtype"]))
        job.get(number, global_of(array, output["dtype"]))
        return array


def group_of(comm: Any, time_limit: Any) -> Processes:
    """The processes of a communicator, or this one alone where it is None. Raises UsageError."""
    if comm is not None:
        if not hasattr(comm, "Get_rank"):
            raise UsageError(f"comm={comm!r} is not a communicator", found=type(comm).__name__,
                             expected="comm=MPI.COMM_WORLD, of mpi4py")
        _check_launcher()
    processes = Processes(comm)
    if processes.count > 1:
        limit = time_limit if _is_limit(time_limit) else TIME_LIMIT
        processes.waiting = Attendance(processes, limit)
    return processes


def _check_launcher() -> None:
    if presence.is_forked():
        raise UsageError(
            "a process that was forked cannot use the MPI of the one that it was forked from",
            remedy="leave comm= out, or make the process by mpirun",
        )
    try:
        launchers.check_world()
    except EnvironmentFault as error:
        end_all_on_error()  # with its exit code
        if launchers.launcher()[0]:
            raise Elsewhere(error.exit_code, str(error)) from None
        raise


def _kept(manifest: dict[str, Any], keep: Any) -> tuple[str, ...]:
    """The names of the outputs that stay on the ranks. True: all of them."""
    known = [output["name"] for output in manifest["outputs"]]
    if isinstance(keep, bool):
        return tuple(known) if keep else ()
    found: list[str] = []
    for name in (keep,) if isinstance(keep, str) else tuple(keep):
        leaves = [name] if name in known else named.of_tree(name, known)
        if not leaves:
            raise UsageError(f"keep={name!r}: the program has no output {name!r}",
                             expected=named.listed(known) or "no outputs")
        found += leaves
    return tuple(found)


def _moves(job: Job, value: Distributed, number: int) -> list[tuple[int, int, int]] | None:
    """From where to where, and how many bytes, for every hosted rank; None: other layouts."""
    moves = []
    for rank in range(job.setup.first, job.setup.first + job.setup.count):
        *source, start = job.shard(job.outputs + value.number, rank)
        *target, to = job.shard(number, rank)
        if source != target:
            return None
        size = math.prod(source[1]) * value.dtype.itemsize
        if size and start != to:
            moves.append((start, to, size))
    return moves


def structure(tree: Any, outputs: list[Any]) -> Any:
    """Outputs as the program returned them: tree as a manifest holds it (codegen.ir.Returned)."""
    if not isinstance(tree, list):
        return outputs[tree]
    kind, *inner = tree
    if kind == "dict":
        return {key: structure(below, outputs) for key, below in inner}
    if kind == "named":
        name, *fields = inner
        values = (structure(below, outputs) for _, below in fields)
        return _named(name, tuple(field for field, _ in fields), values)
    values = (structure(below, outputs) for below in inner)
    return list(values) if kind == "list" else tuple(values)


def _named(name: str, fields: tuple[str, ...], values: Iterable[Any]) -> Any:
    """A named tuple like the program's: its class is not where the image is."""
    return _named_class(name, fields)(*values)


@cache
def _named_class(name: str, fields: tuple[str, ...]) -> Any:
    found = namedtuple("Returned", fields, rename=True)  # type: ignore[misc]
    found.__name__ = found.__qualname__ = name

    def reduced(self: Any) -> Any:  # the class has no module where pickle could look it up
        return _named, (name, fields, tuple(self))

    found.__reduce__ = reduced  # type: ignore[method-assign]
    return found


def _loaded_from(name: str, value: Any) -> str:
    """Return how Python reads a file whose path was given as an array; "" for other text."""
    if not isinstance(value, str):
        return ""
    readers = {".safetensors": "safetensors.numpy.load_file({!r})[{!r}]",
               ".npz": "np.load({!r})[{!r}]", ".csv": "np.loadtxt({!r}, delimiter=',')"}
    reader = readers.get(os.path.splitext(value)[1], "np.load({!r})")
    return f"{name}={reader.format(value, name)}: only the command line takes paths of files"


def _is_limit(limit: object) -> bool:
    return isinstance(limit, (int, float)) and 0 <= limit < MOST_SECONDS


def _fitting(
    declared: dict[str, Any], shape: tuple[int, ...], value: Any
) -> np.ndarray | Local | Distributed:
    """An array of the declared dtype. Only conversions that lose nothing are made."""
    if isinstance(value, Distributed):
        check_array(declared, shape, value)
        if not value.is_held():
            value.copy_out()  # of an earlier call of a job: refused
        return value
    part = value.part if isinstance(value, Local) else dtypes.as_numpy(value)
    wanted = numpy_dtype(declared["dtype"])
    if part.dtype.kind in "US":
        name = declared["name"]
        raise InputError(f"input {name} was given text", expected=f"an array of {wanted}",
                         found=repr(value)[:80], remedy=_loaded_from(name, value))
    # Lists and Python numbers have no dtype of their own: they adapt, as in NumPy.
    casting: Any = "safe" if hasattr(value, "dtype") or isinstance(value, Local) else "same_kind"
    if not np.can_cast(part.dtype, wanted, casting):
        raise InputError(
            f"input {declared['name']} has dtype {part.dtype}, which does not fit {wanted}",
            expected=str(wanted),
            found=str(part.dtype),
            remedy=f"array.astype({declared['dtype']!r})",
        )
    if (lost := inexact(part, wanted)) is not None:
        raise InputError(
            f"input {declared['name']} would be rounded: {wanted} does not hold {lost}",
            expected=f"integers up to 2**53, or others that {wanted} holds", found=str(part.dtype),
            remedy=f"array.astype({declared['dtype']!r}), or a program of int64")
    part = part.astype(wanted, copy=False)
    if isinstance(value, Local):
        return Local(part)
    check_array(declared, shape, part)
    return part
