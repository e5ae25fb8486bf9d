"""Images from Python: build, save, load, run, and open to be run many times.

In: programs, paths, NumPy arrays. Out: what the program returns, as NumPy arrays, or one part per
process where a communicator was given.
"""

from __future__ import annotations

import functools
import os
import warnings
from _thread import allocate_lock, get_ident
from contextlib import contextmanager

import numpy as np

from codegen import dtypes
from codegen.checks import checks_of
from codegen.errors import (
    EnvironmentFault,
    InputError,
    InternalError,
    LayoutWarning,
    SpmdError,
    UsageError,
)
from codegen.mesh import checked_count, checked_sizes
from spmd import launch, launchers, loader, parts, presence, report, sizes, source
from spmd.arguments import (
    check_array,
    check_checks,
    check_given,
    check_names,
    patched_in,
    scalars_of,
)
from spmd.cache import Cache
from spmd.job import ALGORITHMS, BARRIERS, Global, Job, Setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


def build(
    program: Any, *, target: str = "native", cache: bool = True, check: Any = False,
    **parameters: Any,
) -> Image:  # fmt: skip
    """The image of a program, or of the one in "FILE.py[:NAME]", with these parameters.

    - target: the instruction set: "native" for this machine, or "x86-64-v2", "-v3", "-v4".
    - cache: take an image that was built before from the user's cache directory, as long as nothing
      that the program reads has changed. False builds it in any case, as SPMD_CACHE=off does.
    - check: what the image checks whenever it runs: True, "all", or names such as "bounds,nan"
      (see `run --check`). What is found wrong ends the run in a CheckError, with the line.

    Raises ProgramError and its kin, with the line, for what cannot be compiled; EnvironmentFault
    without a C compiler. Warns of layouts (LayoutWarning) with which every rank gets a large array
    whole.
    """
    if isinstance(program, str | os.PathLike):
        program = source.find_program(os.fspath(program))
    if not hasattr(program, "parameters"):
        raise UsageError(
            "spmd.build takes a program or the path of a Python file",
            found=type(program).__name__,
            remedy="decorate the function with @spmd.program(mesh=...)",
        )
    for name in parameters:
        if name not in program.parameters:
            raise UsageError(
                f"the program has no parameter {name!r}",
                expected=", ".join(program.parameters) or "no parameters",
            )
    checks = checks_of(check)
    try:
        data = source.build_program(
            program, parameters, target, None if cache else Cache(""), checks
        )
    except SpmdError as error:
        if report.debugging() or isinstance(error, InternalError):
            raise
        raise error.with_traceback(None) from None  # its message has the place: no frames of ours
    for text in source.warnings_of(data):
        warnings.warn(text, LayoutWarning, stacklevel=2)
    again = functools.partial(build, program, target=target, cache=cache, **parameters)
    return Image(loader.check(data), again)


def load(path: str | os.PathLike[str]) -> Image:
    """The image in a file that `spmd build` or Image.save wrote.

    Raises ImageError for a file that is no image or is damaged (the digest is compared),
    VersionError for an image of a newer format, OutputError for a file that cannot be read.
    """
    return Image(loader.open_file(os.fspath(path)))


class Local:
    """This process's part of an input: see `local`."""

    def __init__(self, part: Any) -> None:
        self.part = dtypes.as_numpy(part)


def local(part: Any) -> Local:
    """Marks an array as this rank's shard of an input, for `image.run(comm=comm,
    u=spmd.local(part))`.

    Its shape is that of the shard: balanced blocks, the larger ones first, as numpy.array_split
    cuts. Without it, every process gives the whole array.
    """
    return Local(part)


class Image:
    """One executable image: what spmd.build and spmd.load give.

    `data` are its bytes, `manifest` its description, `digest` is the hash of its content.
    """

    def __init__(self, checked: loader.Checked, again: Callable[..., Image] | None = None) -> None:
        self._checked = checked
        self._again = again  # builds the same program, with check=
        self._with_checks: dict[tuple[str, ...], Image] = {}
        self.data = checked.image.data
        self.manifest: dict[str, Any] = self._checked.manifest
        self.digest: str = self._checked.digest

    def __repr__(self) -> str:
        return (
            f"<spmd image {self.manifest['program']}, {len(self.data)} bytes, {self.digest[:12]}>"
        )

    def checking(self, check: Any) -> Image:
        """The image that checks this: itself if it does, else it is built, once.

        Raises UsageError for one that was loaded from a file, for an unknown check, and where the
        program has changed meanwhile.
        """
        checks = checks_of(check)
        if self._again is None or set(checks) <= set(self.manifest["checks"]):
            asked = repr(",".join(checks))
            check_checks(self.manifest, checks, f"spmd.build(program, check={asked})")
            return self
        if checks not in self._with_checks:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LayoutWarning)
                if self._again(check=self.manifest["checks"]).digest != self.digest:
                    raise UsageError(
                        "the program, or what it reads, has changed since this image was built",
                        expected="the same program, which is built again with checks",
                        remedy="build it now: spmd.build(program, check=True)",
                    )
                self._with_checks[checks] = self._again(check=checks)
        return self._with_checks[checks]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the image to a file, in one step: never a part of it. Raises OutputError."""
        source.write_whole(os.fspath(path), self.data)

    def run(
        self,
        *,
        ranks: int | None = None,
        mesh: Mapping[str, int] | None = None,
        threads: int | None = None,
        algorithm: str = "auto",
        barrier: str = "auto",
        transport: str = "auto",
        time_limit: float = launch.TIME_LIMIT,
        comm: Any = None,
        check: Any = False,
        **arguments: Any,
    ) -> Any:
        """Runs once; inputs and scalars by name. Returns what the program returns, as NumPy arrays.

        - ranks: how many this process hosts; 1 unless `mesh` says more.
        - mesh: sizes of axes, {"x": 4, "y": 2}; as equal as possible unless you say otherwise.
        - threads: how many advance the ranks; as many as there are cores and ranks.
        - comm: an mpi4py communicator, one rank per process; outputs are then Distributed.
        - check: True, "all" or names such as "bounds,nan". The program is built once more, with
          checks (an image from `load` has to have them already); CheckError names the line and
          the rank.
        - algorithm: of all-reduce: auto, flat, blocks, or ring (in both directions).
        - barrier: auto (ranks wait for those whom they read, and who read them), or strict (all
          members of an exchange meet before it and after it).
        - transport: auto (shared memory inside a host, MPI between hosts), shm or mpi.
        - time_limit: seconds of silence after which a process counts as lost, and the job ends with
          exit code 75; 0 waits for ever. So does a process for which the others wait here though it
          has left its script, has ended, or waits in MPI for something else; one that computes
          is warned of, and has 60 times as long.

        InputError for an array of another shape or dtype, MeshError for ranks that do not fit the
        program, UsageError for an unknown name, PeerError for a lost process.
        """
        with self.open(
            ranks=ranks, mesh=mesh, threads=threads, algorithm=algorithm, barrier=barrier,
            transport=transport, time_limit=time_limit, comm=comm, check=check,
        ) as job:  # fmt: skip
            return job(**arguments)

    def open(
        self,
        *,
        ranks: int | None = None,
        mesh: Mapping[str, int] | None = None,
        threads: int | None = None,
        algorithm: str = "auto",
        barrier: str = "auto",
        transport: str = "auto",
        time_limit: float = launch.TIME_LIMIT,
        comm: Any = None,
        check: Any = False,
    ) -> Opened:
        """A context whose value is called as `run` is; the image is loaded once for all calls.

        `with image.open(ranks=4) as job: out = job(u=u0)`. Options are those of `run`.
        """
        return Opened(
            self.checking(check), ranks, mesh, threads, algorithm, barrier, transport,
            time_limit, comm,
        )  # fmt: skip


class Opened:
    """An image that stays loaded: what image.open gives. It is loaded again only when a scalar
    changes.
    """

    def __init__(
        self,
        image: Image,
        ranks: int | None,
        mesh: Mapping[str, int] | None,
        threads: int | None,
        algorithm: str,
        barrier: str,
        transport: str,
        time_limit: float,
        comm: Any,
    ) -> None:
        self.image, self.ranks, self.threads = image, ranks, threads
        self.mesh: Any = {} if mesh is None else mesh
        self.algorithm, self.barrier = algorithm, barrier
        self.transport, self.time_limit = transport, time_limit
        self._owner, self._turn, self._thread = os.getpid(), allocate_lock(), 0
        if comm is not None:
            if not hasattr(comm, "Get_rank"):
                raise UsageError(f"comm={comm!r} is not a communicator", found=type(comm).__name__,
                                 expected="comm=MPI.COMM_WORLD, of mpi4py")  # fmt: skip
            self._check_launcher()
        self.processes = launch.Processes(comm)
        self.distributed = comm is not None
        self._checked = image._checked
        self._job: Job | None = None
        if self.processes.count > 1:
            launch.end_all_on_error()
            self.processes.attend(time_limit if _is_limit(time_limit) else launch.TIME_LIMIT)
        else:
            self._check()

    def _check_launcher(self) -> None:
        if presence.is_forked():
            raise UsageError(
                "a process that was forked cannot use the MPI of the one that it was forked from",
                remedy="leave comm= out, or make the process by mpirun",
            )
        try:
            launchers.check_world()
        except EnvironmentFault as error:
            launch.end_all_on_error()  # with its exit code
            if launch.launcher()[0]:
                raise launch.Elsewhere(error.exit_code, str(error)) from None
            raise

    def _check(self) -> None:
        """The options. With several processes all of them must hear of a wrong one."""
        names = tuple(axis["name"] for axis in self.image.manifest["mesh"])
        self.mesh = checked_sizes(self.mesh, names)
        for what in ("ranks", "threads"):
            if (count := getattr(self, what)) is not None:
                setattr(self, what, checked_count(what, count))
        for what, name, known in (
            ("algorithm", self.algorithm, ALGORITHMS),
            ("barrier", self.barrier, BARRIERS),
            ("transport", self.transport, launch.TRANSPORTS),
        ):
            if name not in known:
                raise UsageError(f"there is no {what} {name!r}", expected=", ".join(known))
        if not _is_limit(self.time_limit):
            raise UsageError(
                f"time_limit {self.time_limit!r} is not a number of seconds",
                expected=f"0 (for ever) to {launch.MOST_SECONDS:.0f}",
            )
        if self.distributed and self.ranks not in (None, self.processes.count):
            raise UsageError("with comm= every process is one rank", found=f"ranks={self.ranks}")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self.processes.count > 1 and os.getpid() == self._owner:
            if isinstance(error, SystemExit):
                if error.code:
                    launch.end_all(error)
            elif error is not None:
                setattr(error, launch.LEFT, True)
                if self._job is not None:
                    self._job.broken = True  # the others are not leaving, they may be running
                    text = f"process {self.processes.number} left"
                    self._job.abort(report.exit_code(error), text)
        self.close()

    def close(self) -> None:
        """Gives the job's memory back. In a forked child it does nothing."""
        if os.getpid() == self._owner:
            with self._alone(waits=True):
                self._close()

    def _close(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None

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

    def __call__(self, **arguments: Any) -> Any:
        """Runs the program once with these inputs and scalars, by name.

        Calls from several threads run one after the other; with several processes a second one is
        refused. Raises UsageError for that, and in a forked child.
        """
        with self._alone(waits=self.processes.count == 1):
            return self._call(arguments)

    def _call(self, arguments: dict[str, Any]) -> Any:
        manifest = self.image.manifest
        met = self.processes.meet(lambda: self._prepare(arguments))
        setup = self._setup(launch.agree(self.processes, met, self.transport))
        if self._job is None or self._job.setup.words != setup.words:
            self._close()
            self._job = Job(self._checked, setup, self.processes, self.time_limit)
        job = self._job
        try:
            self.processes.together(lambda: self._compute(job))
        except BaseException:
            self._close()
            raise
        outputs = [self._output(job, k) for k in range(len(manifest["outputs"]))]
        names = [output["name"] for output in manifest["outputs"]]
        return structure(manifest["returns"], dict(zip(names, outputs, strict=True)))

    def _prepare(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Sorts the arguments and checks them; returns what all processes must share."""
        self._check()
        manifest = self.image.manifest
        known = [array["name"] for array in manifest["inputs"]]
        names = [scalar["name"] for scalar in manifest["scalars"]]
        for name in arguments:
            if name not in known + names and name not in manifest["parameters"]:
                raise UsageError(
                    f"the program has no input or scalar {name!r}",
                    expected=", ".join(known + names) or "no inputs and no scalars",
                )
        given = {name: value for name, value in arguments.items() if name in known}
        settings, mesh, ranks = patched_in(
            self._checked.image,
            {name: value for name, value in arguments.items() if name not in known},
            self.mesh,
            self.ranks,
        )
        self.scalars = scalars_of(manifest, settings)
        check_names(manifest["inputs"], given, "input", "")
        check_given(manifest, given)
        self.bound = sizes.bind_mesh(manifest, ranks, mesh, self.scalars, self.processes.count)
        setup = self._setup()
        self.arrays = {
            array["name"]: _fitting(array, setup.shape(array), given[array["name"]])
            for array in manifest["inputs"]
            if array["name"] in given
        }
        return launch.mine(
            self.image.digest,
            {
                "mesh": self.bound, **self.scalars, "inputs": sorted(given),
                "algorithm": self.algorithm, "barrier": self.barrier,
                "transport": self.transport,
                "time_limit": self.time_limit,
            },  # fmt: skip
            setup.first,
            setup.count,
        )

    def _setup(self, hosts: launch.Hosts | None = None) -> Setup:
        return Setup(
            self.image.manifest, self.processes, self.bound, self.scalars, self.threads, hosts,
            self.algorithm, self.barrier,
        )

    def _compute(self, job: Job) -> None:
        try:
            job.forget()
            for number, array in enumerate(self.image.manifest["inputs"]):
                value = self.arrays.get(array["name"])
                if isinstance(value, Local):
                    self._put_part(job, number, array, value.part)
                elif value is not None:
                    job.put(array["name"], _global(value, array["dtype"]))
        except BaseException as error:
            job.abort(report.exit_code(error), str(error))
            raise
        finally:
            self.arrays = {}
        presence.show(presence.COMPUTES)
        job.run()

    def _put_part(self, job: Job, number: int, array: dict[str, Any], part: np.ndarray) -> None:
        """One rank's shard: a global array of which only this part is there."""
        rank = job.setup.first
        offset, extent, _ = job.shard(number, rank)
        check_array(array, tuple(extent), part)
        start = sum(o * s for o, s in zip(offset, part.strides, strict=True))
        shape = job.setup.shape(array)
        base = _address(part) - start
        job.put(array["name"], Global(base, array["dtype"], shape, part.strides), rank)

    def _output(self, job: Job, number: int) -> Any:
        output = self.image.manifest["outputs"][number]
        shape = job.setup.shape(output)
        dtype = report.numpy_dtype(output["dtype"])
        if self.distributed:
            return Distributed(job, number, output, shape, dtype)
        array = np.empty(shape, dtype)
        job.get(number, _global(array, output["dtype"]))
        return array


class Distributed:
    """An output of which every process of a communicator holds one part.

    `shape` and `dtype` are those of the whole array, `local` is this rank's part, an array of its
    own, and `offsets` say where it begins in the whole array, for each dim.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        output: dict[str, Any],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.shape, self.dtype, self._processes = shape, dtype, job.processes
        offset, extent, _ = job.shard(job.outputs + number, job.setup.first)
        self.offsets = tuple(offset)
        self.local = np.empty(extent, dtype)
        start = sum(o * s for o, s in zip(offset, self.local.strides, strict=True))
        into = Global(_address(self.local) - start, output["dtype"], shape, self.local.strides)
        job.get(number, into, job.setup.first)

    def gather(self, root: int = 0) -> np.ndarray | None:
        """The global array in process `root`, None in the others. Every process must call it."""
        part = [(self.offsets, self.local)]
        with self._processes.waiting:
            return parts.gather(self._processes.comm, part, self.shape, self.dtype, root)


def structure(returns: str, outputs: dict[str, Any]) -> Any:
    """Outputs as the program returned them: what was nested has names with dots."""
    if returns == "array":
        return next(iter(outputs.values()))
    inner: dict[str, dict[str, Any]] = {}
    for name, value in outputs.items():
        head, _, rest = name.partition(".")
        inner.setdefault(head, {})[rest] = value
    built = {}
    for head, within in inner.items():
        numbered = list(within) == [str(k) for k in range(len(within))]
        leaf = list(within) == [""]
        built[head] = within[""] if leaf else structure("tuple" if numbered else "dict", within)
    return tuple(built.values()) if returns == "tuple" else built


def _is_limit(limit: object) -> bool:
    return isinstance(limit, (int, float)) and 0 <= limit < launch.MOST_SECONDS


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _global(array: np.ndarray, dtype: str) -> Global:
    return Global(_address(array), dtype, array.shape, array.strides)


def _fitting(declared: dict[str, Any], shape: tuple[int, ...], value: Any) -> np.ndarray | Local:
    """An array of the declared dtype. Only conversions that lose nothing are made."""
    part = value.part if isinstance(value, Local) else dtypes.as_numpy(value)
    wanted = report.numpy_dtype(declared["dtype"])
    # Lists and Python numbers have no dtype of their own: they adapt, as in NumPy.
    casting: Any = "safe" if hasattr(value, "dtype") or isinstance(value, Local) else "same_kind"
    if not np.can_cast(part.dtype, wanted, casting):
        raise InputError(
            f"input {declared['name']} has dtype {part.dtype}, which does not fit {wanted}",
            expected=str(wanted),
            found=str(part.dtype),
            remedy=f"array.astype({declared['dtype']!r})",
        )
    part = part.astype(wanted, copy=False)
    if isinstance(value, Local):
        return Local(part)
    check_array(declared, shape, part)
    return part
