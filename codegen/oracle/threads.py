"""N ranks as N threads of which one runs at a time: deterministic, and a deadlock is an error.

A rank runs until it stands in an exchange; then the next one runs. When all members of a group
stand in the same exchange (kind, axes, place), it is computed and each goes on with its result.
Always holds: when `run` returns or raises, all its threads have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.errors import MatchingError, Place

Combine = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class ExchangeCall:
    """One rank's part in an exchange. combine: the members' payloads to the members' results."""

    kind: str
    axes: tuple[str, ...]
    place: Place | None
    payload: Any
    combine: Combine

    def matches(self, other: ExchangeCall | None) -> bool:
        return other is not None and (self.kind, self.axes, self.place) == (
            other.kind, other.axes, other.place,
        )

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}" if self.place else self.kind


class _Abandoned(BaseException):
    """Unwinds a rank of a job that has failed; no Exception, so that user code does not catch
    it."""


class _Worker:
    def __init__(self, crew: Crew, rank: int, body: Callable[[], Any]) -> None:
        self.turn = threading.Semaphore(0)
        self.call: ExchangeCall | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = False
        self.abandoned = False
        self.thread = threading.Thread(target=self._main, args=(crew, body), name=f"rank {rank}")

    def _main(self, crew: Crew, body: Callable[[], Any]) -> None:
        self.turn.acquire()
        try:
            if not self.abandoned:
                self.result = body()
        except _Abandoned:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        crew.back.release()


class Crew:
    """The ranks of one job. group(rank, axes) gives a rank's members along axes, in order."""

    def __init__(self, group: Callable[[int, tuple[str, ...]], list[int]]) -> None:
        self.group = group
        self.back = threading.Semaphore(0)  # released whenever the running rank stops
        self.workers: list[_Worker] = []

    def run(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Runs one body per rank; their results. The first rank's exception ends the job."""
        self.workers = [_Worker(self, k, body) for k, body in enumerate(bodies)]
        for worker in self.workers:
            worker.thread.start()
        try:
            for worker in self.workers:
                self._let(worker)
            while not all(w.ended for w in self.workers):
                self._complete(self._ready())
        finally:
            for worker in self.workers:
                if not worker.ended:
                    worker.abandoned = True
                    worker.turn.release()
                worker.thread.join()
        return [w.result for w in self.workers]

    def exchange(self, rank: int, call: ExchangeCall) -> Any:
        """Wait, on a rank's own thread, for the group; return this rank's result."""
        worker = self.workers[rank]
        worker.call = call
        self.back.release()
        worker.turn.acquire()
        if worker.abandoned:
            raise _Abandoned
        return worker.result

    def _let(self, worker: _Worker) -> None:
        """Hands the turn to a rank until it stands in an exchange or has ended."""
        worker.call = None
        worker.turn.release()
        self.back.acquire()
        if worker.error is not None:
            raise worker.error

    def _ready(self) -> list[_Worker]:
        waiting = [k for k, w in enumerate(self.workers) if w.call is not None and not w.ended]
        for k in waiting:
            call = self.workers[k].call
            assert call is not None
            members = [self.workers[m] for m in self.group(k, call.axes)]
            if all(not m.ended and call.matches(m.call) for m in members):
                return members
        raise self._deadlock(waiting[0])

    def _complete(self, members: Sequence[_Worker]) -> None:
        calls = [m.call for m in members if m.call is not None]
        results = calls[0].combine([c.payload for c in calls])
        for member, result in zip(members, results, strict=True):
            member.result = result
            self._let(member)

    def _deadlock(self, rank: int) -> MatchingError:
        call = self.workers[rank].call
        assert call is not None
        other = next(
            m for m in self.group(rank, call.axes)
            if self.workers[m].ended or not call.matches(self.workers[m].call)
        )
        if self.workers[other].ended:
            where = f"rank {other} has ended"
        else:
            where = f"rank {other} in {self.workers[other].call}"
        return MatchingError(
            f"rank {rank} waits in {call}, {where}", place=call.place,
            expected="all ranks of a group in the same exchange",
            remedy="move the exchange out of the branch, so that every rank reaches it",
        )
