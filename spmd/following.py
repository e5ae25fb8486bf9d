"""Several processes of a job, of which one calls: the others carry out each call that it makes.

In: a communicator whose processes call all together, or of which process 0 calls and the others
follow. Out: in the others, the same calls. Always holds: which of the two it is, all processes have
agreed on before the first call; no Python of the user's runs in a follower between calls.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from typing import Any

from codegen.errors import AgreementError
from spmd.engine import ffi, lib
from spmd.launch.held_interrupts import HeldInterrupts
from spmd.launch.job import Job, arena_address
from spmd.launch.processes import Processes, listed
from spmd.started import FairLock

CALLS, FOLLOWS = "calls", "follows"
TAG = 0  # of messages of the communicator, which is a copy of the user's: no other has it
SPIN_S = 1e-3  # so long a follower looks again at once for a message
LATEST_S, SHARE = 2e-3, 0.05  # the longest pause between two looks; else, of the time waited


class Following:
    """The part of this process in calls: it `leads` or `follows` or, where all call, does
    neither."""

    def __init__(self, processes: Processes, close: Callable[[], None]) -> None:
        self.processes, self._close = processes, close
        self.agreed = processes.count == 1
        self.leads = self.follows = False
        self.held = HeldInterrupts()  # while all processes must do a thing to its end
        self._comm: Any = None  # a copy of the user's, whose messages are ours alone
        self.area: Any = None  # memory that all processes of a host see
        self._room = 0

    @property
    def is_led(self) -> bool:
        """Return whether process 0 makes the calls and all others follow."""
        return self.leads or self.follows

    def take(self, turns: FairLock) -> bool:
        """Take the turn of a call, and wait for it where calls of several threads may; else return
        False where another thread has it. Where all processes call, each could make another one of
        them first. Before they have agreed who calls, process 0 waits for the call that agrees."""
        agreed = self.agreed
        may_lead = self.leads or not (agreed or self.processes.number)
        if not turns.take(self.processes.count == 1 or may_lead):
            return False
        if agreed or self.leads or not self.agreed:
            return True
        turns.give_back()  # meanwhile a call of another thread was one that all processes make
        return False

    def agree(self, role: str) -> None:
        """Say what this process does, call or follow, and hear what the others do, once for a job.
        Raises AgreementError unless all call, or process 0 calls and all others follow.
        """
        if self.agreed:
            return
        processes = self.processes
        if role == FOLLOWS:
            request, pause = processes.comm.Ibarrier(), Pause()
            while not request.Test():
                pause.wait()
        with self.held, processes.waiting:
            if role == CALLS:
                processes.comm.Ibarrier().Wait()
            self._divide(processes.comm.allgather(role))

    def _divide(self, roles: list[str]) -> None:
        """Take the part that all have agreed on. roles: what each process does."""
        processes = self.processes
        followers = [k for k, theirs in enumerate(roles) if theirs == FOLLOWS]
        if followers and followers != list(range(1, processes.count)):
            calling = [k for k, theirs in enumerate(roles) if theirs == CALLS]
            processes.refuse(AgreementError(
                "some processes of a job call it and some follow",
                expected="process 0 calls and all others follow, or all of them call",
                found=f"{_named(calling)} called, {_named(followers)} followed"))
        if followers:
            self._comm = processes.comm.Dup()
            processes.held = self.held
            atexit.register(self._close)  # of a job that nobody closes
            self.leads, self.follows = processes.number == 0, processes.number > 0
        self.agreed = True

    # ---- orders by message -----------------------------------------------------------------------

    def tell(self, job: Job | None, order: tuple[Any, ...]) -> None:
        """Send an order to all followers, which stop to listen to the engine."""
        if job is not None and listens(job):
            lib.spmd_job_lead(job._job, lib.SPMD_LEAVE)
        for number in range(1, self.processes.count):
            self._comm.send(order, dest=number, tag=TAG)

    def release(self, job: Job | None, order: tuple[Any, ...]) -> None:
        """Tell the followers, if there are any, that no more calls come."""
        if self.leads:
            self.leads = False
            atexit.unregister(self._close)
            self.tell(job, order)

    def hear(self) -> tuple[Any, ...]:
        """Wait for the next order of process 0."""
        pause = Pause()
        while not self._comm.Iprobe(source=0, tag=TAG):
            pause.wait()
        order: tuple[Any, ...] = self._comm.recv(source=0, tag=TAG)
        return order

    # ---- orders by the engine --------------------------------------------------------------------

    def memory(self, count: int) -> Any:
        """Return the address of `count` bytes that all processes see. Every process must call it. A
        larger count than before moves the memory: addresses that it gave before are void."""
        if count > self._room:
            self.end_area()
            first = self.processes.number == 0
            need = max(count, 1 << 16) + lib.SPMD_ARENA_HEAD

            def make() -> tuple[str, int]:
                if not first:
                    return "", 0
                self.area = _arena(lambda to: lib.spmd_arena_new(need, 1, to))
                return arena_address(self.area)

            path, nonce = self.processes.run_and_gather(make)[0]

            def attach() -> None:
                if not first:
                    self.area = _arena(
                        lambda to: lib.spmd_arena_attach(path.encode(), need, nonce, to))

            self.processes.run_in_all(attach)
            lib.spmd_arena_close_fd(self.area)
            self._room = need - lib.SPMD_ARENA_HEAD
        return ffi.cast("char *", lib.spmd_arena_memory(self.area))

    def end_area(self) -> None:
        """Give the memory back that all processes see."""
        if self.area is not None:
            lib.spmd_arena_free(self.area)
        self.area, self._room = None, 0


class Pause:
    """Ever longer pauses, for whoever looks for something again and again."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def wait(self) -> None:
        waited = time.monotonic() - self._begin
        if waited < SPIN_S:
            os.sched_yield()
        else:
            time.sleep(min(SHARE * waited, LATEST_S))


def listens(job: Job) -> bool:
    """Return whether orders for this job go through the engine: all processes share memory."""
    return not job.setup.hosts.spans_hosts


def _arena(make: Any) -> Any:
    to = ffi.new("spmd_arena **")
    status = make(to)
    if status != lib.SPMD_OK:
        raise MemoryError(ffi.string(lib.spmd_status_text(status)).decode())
    return to[0]


def _named(numbers: list[int]) -> str:
    return f"process{'es' if len(numbers) > 1 else ''} {listed(numbers)}"
