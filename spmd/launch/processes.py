"""The processes of a job: what they do together, and how all of them leave when one fails.

In: a communicator, or none. Out: `Processes`.
Always holds: an error on one process becomes an error of all at the next meeting; it is printed
once; nobody waits for a process that failed.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

from codegen.errors import AgreementError, SpmdError
from spmd import report
from spmd.launch.launchers import library, unname_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TextIO

    from codegen.errors import PeerError
    from spmd.launch.held_interrupts import HeldInterrupts
    from spmd.launch.process_watch import ProcessWatch

FIONREAD = 0x541B  # of Linux: how many bytes nobody has read yet


class Elsewhere(SpmdError):
    """Raised where another process failed, and says so itself; this one leaves with the same exit
    code."""

    def __init__(self, exit_code: int, text: str = "") -> None:
        self.exit_code = exit_code
        super().__init__(f"another process failed: {text or f'exit code {exit_code}'}")


def end_with_the_job(code: int) -> NoReturn:
    """Waits for the process that says what is wrong: it ends all of us."""
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
        self.met: BaseException | None = None
        # Where process 0 leads: an interrupt is an error like others, and waits while it must.
        self.held: HeldInterrupts | None = None
        self.watch: ProcessWatch | None = None  # where a launcher has started them
        self.waiting: Any = _NobodyLooks()  # while this process waits for the others
        self.at_the_end: Callable[[], None] = lambda: None  # called when all have finished
        self.told: Callable[[], int] = lambda: 0  # the signal that ends this process too
        if self.count > 1:
            unname_memory()

    def mpi(self) -> Any:
        """Return the module mpi4py.MPI, where there is a communicator."""
        return library()

    def all_gather(self, value: Any) -> list[Any]:
        """Return one value per process, in every process."""
        if self.count == 1:
            return [value]
        with self.waiting:
            return list(self.comm.allgather(value))

    def gather_to_first(self, value: Any) -> list[Any]:
        """Return one value per process, in process 0; nothing in the others."""
        if self.count == 1:
            return [value]
        with self.waiting:
            return self.comm.gather(value, root=0) or []

    def broadcast(self, value: Any) -> Any:
        """Return process 0's value in every process."""
        if self.count == 1:
            return value
        with self.waiting:
            return self.comm.bcast(value, root=0)

    def run_in_all(self, step: Callable[[], Any], *, shared: bool = True) -> Any:
        """Return this process's result of `step`, once every process has succeeded at it.

        The failing process of the lowest number raises its own error, the others `Elsewhere`.
        shared: the result may travel to the others.
        """
        if shared:
            return self.run_and_gather(step)[self.number]
        kept: list[Any] = []
        self.run_and_gather(lambda: kept.append(step()))
        return kept[0]

    def run_and_gather(self, step: Callable[[], Any]) -> list[Any]:
        """Return every process's result of `step`, in every process; fails as `run_in_all` does."""
        if self.count == 1:
            return [step()]
        value, code = None, 0
        failure: BaseException | None = None
        try:
            value = step()
        except BaseException as error:
            if not isinstance(error, Exception) and self.held is None:
                raise
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
        """Raise an error that all processes have found: the first process prints it, the others
        leave."""
        if self.number:
            raise Elsewhere(error.exit_code, str(error)) from None
        self.met = error
        raise error

    def run_in_first(self, step: Callable[[], Any]) -> Any:
        """Return process 0's result of `step`, in every process; it alone runs it."""
        return self.run_and_gather(step if self.number == 0 else lambda: None)[0]

    def abort(self, code: int, quiet: bool = False) -> None:
        """End every process of the job at once, where there are others.

        quiet: MPI, too, says nothing of it.
        """
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads it
        if self.count > 1:
            _until_read(sys.stdout, sys.stderr)
            if quiet:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            self.comm.Abort(code)

    def abort_lost(self, error: PeerError, then: Callable[[], object] = bool) -> NoReturn:
        """Says which process is lost, and ends all: there is nothing that MPI could go on with."""
        if number := self.told():
            self.abort(128 + number, quiet=True)
            os._exit(128 + number)
        say(report.error_text(error))
        then()
        self.abort(error.exit_code)
        os._exit(error.exit_code)

    def finish(self) -> None:
        """Wait in the last meeting of all processes. MPI_Finalize would hold up whoever looks for
        those who do not come."""
        if self.watch:
            self.watch.may_leave = True
            self.comm.Barrier()
            self.watch.end()
            self.at_the_end()


def say(text: str) -> None:
    """Print on standard error, whether anybody reads it or not."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def _until_read(*streams: TextIO) -> None:
    """Waits, a second at most, until the launcher has read these pipes: it drops what is in them
    when it is told to end the job.
    """
    deadline = time.monotonic() + 1
    for stream in streams:
        left = bytearray(b"\1\0\0\0")  # an int of C
        try:
            while any(left) and time.monotonic() < deadline:
                fcntl.ioctl(stream, FIONREAD, left)
                time.sleep(0.01)
        except (OSError, TypeError, ValueError):
            pass  # no pipe, or closed


def disagreement(
    message: str, holder: str, odd: list[int], *, expected: str, found: str, remedy: str
) -> AgreementError:
    """Return the error for ranks or processes of one job that differ in what they should have
    alike."""
    which = holder if len(odd) == 1 else {"rank": "ranks", "process": "processes"}[holder]
    return AgreementError(f"{message}: {which} {listed(odd)} differ{'s' if len(odd) == 1 else ''}",
                          expected=expected, found=found, remedy=remedy)


def listed(numbers: list[int], most: int = 8) -> str:
    text = ", ".join(map(str, numbers[:most]))
    return text + (", …" if len(numbers) > most else "")
