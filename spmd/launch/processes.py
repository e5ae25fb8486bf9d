"""Starting a job: which processes there are, what they agree on, which ranks each of them hosts.

In: the launcher's environment or a communicator. Out: `Processes`.
Always holds: an error on one process becomes an error of all at the next meeting; it is printed
once; nobody waits for a process that failed.
"""

from __future__ import annotations

import os
import sys

from codegen.errors import AgreementError, EnvironmentFault, MeshError, SpmdError
from spmd.launch import limits
from spmd.launch.launchers import launcher as launcher  # for those who ask about processes here
from spmd.launch.launchers import library, unname_memory, world

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TextIO

# One name per process, "a,a,b": hosts that this one host plays, so that one machine can try what
# several do. For tests.
PRETENDED = "SPMD_PRETEND_HOSTS"

TRANSPORTS = ("auto", "shm", "mpi")
TIME_LIMIT = 5.0  # seconds of silence until a process counts as lost
MOST_SECONDS = 1e6


class Elsewhere(SpmdError):
    """Another process failed, and says so itself; this one leaves with the same exit code."""

    def __init__(self, exit_code: int, text: str = "") -> None:
        self.exit_code = exit_code
        super().__init__(f"another process failed: {text or f'exit code {exit_code}'}")


def end_with_the_job(code: int) -> NoReturn:
    """Waits for the process that says what is wrong: it ends all of us."""
    import time

    time.sleep(10)
    os._exit(code)


class _NobodyLooks:
    """A context that does nothing."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Processes:
    """The processes of one job. comm: an mpi4py communicator, or None for this process alone."""

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm
        self.number: int = comm.Get_rank() if comm is not None else 0
        self.count: int = comm.Get_size() if comm is not None else 1
        # The error that all processes know of: nobody waits for this one any more.
        self.met: Exception | None = None
        self.patience: Any = None
        self.start: Any = None
        self.waiting: Any = _NobodyLooks()  # while this process waits for the others
        if self.count > 1:
            unname_memory()

    def mpi(self) -> Any:
        """The module mpi4py.MPI, where there is a communicator."""
        return library()

    def all_gather(self, value: Any) -> list[Any]:
        """One value per process, in every process."""
        if self.count == 1:
            return [value]
        with self.waiting:
            return list(self.comm.allgather(value))

    def to_first(self, value: Any) -> list[Any]:
        """One value per process, in process 0; nothing in the others."""
        if self.count == 1:
            return [value]
        with self.waiting:
            return self.comm.gather(value, root=0) or []

    def broadcast(self, value: Any) -> Any:
        """Process 0's value, in every process."""
        if self.count == 1:
            return value
        with self.waiting:
            return self.comm.bcast(value, root=0)

    def together(self, step: Callable[[], Any], *, shared: bool = True) -> Any:
        """This process's result of `step`, once every process has succeeded at it.

        The failing process of the lowest number raises its own error, the others `Elsewhere`.
        shared: the result may travel to the others.
        """
        if shared:
            return self.meet(step)[self.number]
        kept: list[Any] = []
        self.meet(lambda: kept.append(step()))
        return kept[0]

    def meet(self, step: Callable[[], Any]) -> list[Any]:
        """Every process's result of `step`, in every process; fails as `together` does."""
        if self.count == 1:
            return [step()]
        value, failure, code = None, None, 0
        try:
            value = step()
        except Exception as error:
            from spmd import report

            failure, code = error, report.exit_code(error)
        # Who only heard of a failure elsewhere does not speak of it, unless nobody else does.
        heard = isinstance(failure, Elsewhere)
        met = self.all_gather((code, heard, str(failure) if code else value))
        failed = sorted((heard, k) for k, (code, heard, _) in enumerate(met) if code)
        if not failed:
            return [value for _, _, value in met]
        speaker = failed[0][1]
        if failure is not None and speaker == self.number:
            self.met = failure
            raise failure
        raise Elsewhere(met[speaker][0], met[speaker][2])

    def refuse(self, error: SpmdError) -> NoReturn:
        """What all processes have found wrong: the first one says it."""
        if self.number:
            raise Elsewhere(error.exit_code, str(error)) from None
        self.met = error
        raise error

    def from_first(self, step: Callable[[], Any]) -> Any:
        """Process 0's result of `step`, in every process; it alone runs it."""
        return self.meet(step if self.number == 0 else lambda: None)[0]

    def abort(self, code: int) -> None:
        """Ends every process of the job at once, where there are others."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads it
        if self.count > 1:
            _until_read(sys.stdout, sys.stderr)
            self.comm.Abort(code)


    def have_come(self) -> None:
        """After the first meeting."""
        if self.start:
            self.start.end()

    def be_patient(self, everyones: list[tuple[int, object]], limit: float) -> None:
        """Before and after a job's own watch: nobody waits for a process that will not come.

        everyones: the number that the system gives each process, and its `place`.
        """
        from spmd.launch.patience import Patience

        self.patience = Patience(self, everyones, limit)

    def attend(self, limit: float) -> None:
        """From now on somebody looks who does not come to a meeting."""
        if self.count > 1:
            from spmd.launch.attendance import Group

            self.waiting = Group(self, limit)

    def finish(self) -> None:
        """The last meeting. MPI_Finalize would hold up whoever looks for those who do not come."""
        if self.patience:
            self.patience.may_leave = True
            self.comm.Barrier()
            self.patience.end()


def _until_read(*streams: TextIO) -> None:
    """Waits, a second at most, until the launcher has read these pipes: it drops what is in them
    when it is told to end the job.
    """
    import array
    import fcntl
    import termios
    import time

    deadline = time.monotonic() + 1
    for stream in streams:
        left = array.array("i", [1])
        try:
            while left[0] and time.monotonic() < deadline:
                fcntl.ioctl(stream, termios.FIONREAD, left)
                time.sleep(0.01)
        except (OSError, TypeError, ValueError):
            pass  # no pipe, or closed


_hooked = False
LEFT = "_spmd_left"  # the attribute of an exception that has left an open job


def end_all_on_error() -> None:
    """From now on an exception that nobody catches ends all processes, as `python -m mpi4py` does.

    The others would wait for this one for ever, in their next exchange or in MPI_Finalize. What is
    `Elsewhere` is said by that process. Of a `sys.exit` only mpi4py's runner is told. In threads
    only what has left an open job counts.
    """
    global _hooked
    if _hooked:
        return
    _hooked = True
    import threading

    before, before_in_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        code = getattr(error, "exit_code", 130 if kind is KeyboardInterrupt else 1)
        if isinstance(error, Elsewhere):
            end_with_the_job(code)
        before(kind, error, trace)
        Processes(library().COMM_WORLD).abort(code)
        if isinstance(error, SpmdError):  # MPI believes that this process is alone
            sys.stderr.flush()
            os._exit(code)

    def hook_of_threads(found: threading.ExceptHookArgs) -> None:
        if getattr(found.exc_value, LEFT, False) and found.exc_value is not None:
            hook(found.exc_type, found.exc_value, found.exc_traceback)
        else:
            before_in_thread(found)

    sys.excepthook, threading.excepthook = hook, hook_of_threads


def end_all(error: SystemExit) -> NoReturn:
    """`sys.exit` with a code or a text, where the others are not leaving: ends all processes."""
    if not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
    code = error.code if isinstance(error.code, int) else 1
    Processes(library().COMM_WORLD).abort(code)
    os._exit(code)


def find(limit: float = 0) -> Processes:
    """The processes that the launcher started; without a launcher, this one alone.

    limit: seconds, of --time-limit; how long they may take to come goes by it. 0: for ever.
    """
    number, count, _ = launcher()
    start = None
    if count > 1 and limit:
        from spmd.launch.patience import Start

        start = Start(number, count, limit)
    processes = Processes(world())
    processes.start = start
    return processes


def mine(digest: str, settings: dict[str, Any], first: int, count: int) -> dict[str, Any]:
    """What this process, host of so many ranks, brings to `agree`. settings: by name."""
    return {
        "ranks": range(first, first + count),
        "digest": digest,
        "settings": {name: repr(value) for name, value in settings.items()},
        "host": os.uname().nodename,
        "place": place(),
        "cores": tuple(os.sched_getaffinity(0)),
        "limits": limits.in_use() if first == 0 else None,  # process 0's count
    }


def place() -> tuple[str, ...]:
    """Equal for two processes that can reach each other's memory: kernel and process table."""
    parts = [os.uname().nodename]
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass
    return tuple(parts)


class Hosts:
    """Where the processes of a job are. Lists have one entry per process.

    names: of their hosts; hosts: their numbers. arenas: the number of the arena whose memory each
    of them shares. first: rank of each, and behind the last one the number of ranks. cores: usable
    on this process's host. limits: process 0's, of spmd.launch.limits.
    """

    def __init__(
        self, number: int, everyones: list[dict[str, Any]], transport: str = "auto"
    ) -> None:
        places = [theirs["place"] for theirs in everyones]
        pretended = os.environ.get(PRETENDED, "").split(",")
        if len(pretended) == len(places):
            places = [(*place, "pretended", name) for place, name in zip(places, pretended)]
        order = list(dict.fromkeys(places))
        self.number = number
        self.count = len(order)
        self.names = [
            f"{theirs['host']}#{place[-1]}" if "pretended" in place else theirs["host"]
            for theirs, place in zip(everyones, places)
        ]
        self.hosts = [order.index(place) for place in places]
        self.arenas = list(range(len(places))) if transport == "mpi" else self.hosts
        self.first = [theirs["ranks"].start for theirs in everyones] + [everyones[-1]["ranks"].stop]
        mine = everyones[number]["place"]  # pretended hosts share what cores there are
        self.here = [k for k, theirs in enumerate(everyones) if theirs["place"] == mine]
        self.limits = everyones[0]["limits"]
        self.cores = len({core for k in self.here for core in everyones[k]["cores"]})

    @property
    def parted(self) -> bool:
        """Whether data must travel by MPI."""
        return len(set(self.arenas)) > 1

    def ranks_of(self, processes: list[int]) -> int:
        """How many ranks these processes host."""
        return sum(self.first[k + 1] - self.first[k] for k in processes)

    def together_with(self) -> list[int]:
        """The processes of this one's arena."""
        return [k for k, arena in enumerate(self.arenas) if arena == self.arenas[self.number]]

    def beside(self) -> list[int]:
        """The processes of this one's host, pretended or not."""
        return [k for k, host in enumerate(self.hosts) if host == self.hosts[self.number]]


def agree(processes: Processes, everyones: list[dict[str, Any]], transport: str = "auto") -> Hosts:
    """Every process holds the same image and settings; where they are.

    Raises AgreementError or EnvironmentFault in process 0, `Elsewhere` in the others.
    """
    try:
        _compare(everyones)
        hosts = Hosts(processes.number, everyones, transport)
        if transport == "shm" and hosts.count > 1:
            raise EnvironmentFault(
                f"the processes run on {hosts.count} hosts",
                expected="one host, where --transport shm is asked for",
                found=", ".join(dict.fromkeys(hosts.names)),
                remedy="--transport auto",
            )
    except SpmdError as error:
        processes.refuse(error)
    return hosts


def _compare(everyones: list[dict[str, Any]]) -> None:
    for key, what in (("digest", "images"), ("settings", "settings")):
        groups: dict[Any, list[int]] = {}
        for number, theirs in enumerate(everyones):
            groups.setdefault(repr(theirs[key]), []).append(number)
        if len(groups) == 1:
            continue
        usual = max(groups.values(), key=len)
        others = [theirs for number, theirs in enumerate(everyones) if number not in usual]
        odd = [rank for theirs in others for rank in theirs["ranks"]]
        one = len(odd) == 1
        expected, found = everyones[usual[0]], others[0]
        raise AgreementError(
            f"ranks of one job hold different {what}: "
            f"rank{'' if one else 's'} {listed(odd)} differ{'s' if one else ''}",
            expected=f"{_different(key, expected, found)} (rank {expected['ranks'][0]})",
            found=f"{_different(key, found, expected)} (rank {found['ranks'][0]})",
            remedy="give every rank the same image and the same options",
        )


def _different(key: str, one: dict[str, Any], other: dict[str, Any]) -> str:
    """What one process holds that the other does not, by name."""
    value = one[key]
    if not isinstance(value, dict):
        return f"{key} {value}"
    return ", ".join(f"{k} {v}" for k, v in value.items() if other[key].get(k) != v)


def listed(numbers: list[int], most: int = 8) -> str:
    text = ", ".join(map(str, numbers[:most]))
    return text + (", …" if len(numbers) > most else "")


def ranks_text(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def block(total: int, blocks: int, k: int) -> tuple[int, int]:
    """First element and size of block k of a balanced cut."""
    size, longer = divmod(total, blocks)
    return k * size + min(k, longer), size + (k < longer)


def hosted(ranks: int, processes: Processes) -> tuple[int, int]:
    """The first rank of this process and how many it hosts."""
    if ranks < processes.count:
        raise MeshError(
            f"{processes.count} processes were started for {ranks_text(ranks)}",
            expected="at least one rank for every process",
            remedy=f"mpirun -n {ranks}, or --ranks {processes.count}",
        )
    return block(ranks, processes.count, processes.number)
