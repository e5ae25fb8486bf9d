"""Children that are started again when they die: the scheduler and the agent of one command.

In: how each is started, and greeted. A thread notices a death within a tenth of a second, starts
the next one, and says one line. Out: the error of a child that dies again and again.
Always holds: none is started after end(); when end() returns, they and what they started are gone.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from codegen.errors import EnvironmentFault, PeerError, SpmdError
from spmd.feeding.host.children import Child, end_marked, ended_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S = 0.1
DEATHS, WITHIN_S = 5, 10.0  # so many in so many seconds end the run
CALM_S = 0.2  # whoever ends one of us often ends us all
END_S = 1.0


class SupervisedChild:
    """what: as people call it. start: makes it, in any thread; greet: until it works."""

    def __init__(self, what: str, start: Callable[[], Child],
                 greet: Callable[[Child], None]) -> None:
        self.what, self.start, self.greet = what, start, greet
        self.child: Child | None = None
        self.deaths: list[float] = []
        self.words = ""  # why it did not begin, as it said
        self.works = False  # it was met: from then on its keeper looks after it

    def meet(self) -> None:
        """Waits until the child works. Raises what greet does."""
        if self.child:
            self.greet(self.child)
            self.works = True

    def has_died(self) -> str:
        """How, in words; "" while it lives."""
        status = self.child.has_ended() if self.child else None
        return "" if status is None else ended_by(status)


class ChildSupervisor:
    """of: what the children work for, in lines and errors. They end in the order of add()."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.kept: list[SupervisedChild] = []
        self.error: PeerError | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def add(self, one: SupervisedChild) -> None:
        """Starts it; let it be met when all is there that it needs. From then on it is watched."""
        self.kept.append(one)
        self._start(one)
        if not self._thread:
            self._thread = threading.Thread(target=self._watch, name="feed-keeper", daemon=True)
            self._thread.start()

    def meet(self, one: SupervisedChild) -> None:
        """Until it works. One that somebody kills before that is started again, as it is later."""
        for left in reversed(range(DEATHS)):
            try:
                one.meet()
                return
            except EnvironmentFault:
                if not left or not one.child or not one.child.was_killed():
                    raise
                end_marked([one.child.mark])
                self._start(one)

    def end(self) -> None:
        """Ends them and the watch, also while one of them is being started."""
        if os.getpid() != self._process:  # a fork of ours ends: they are not its children
            return
        with self._lock:
            self._over.set()
            children = [one.child for one in self.kept if one.child]
        for child in children:
            child.end(END_S)
        end_marked(child.mark for child in children)
        if self._thread:
            self._thread.join(END_S)
        self.kept.clear()

    def _start(self, one: SupervisedChild) -> None:
        with self._lock:
            if not self._over.is_set():
                one.child = one.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S) and self.error is None:
            for one in self.kept:
                if one.works and not self._over.is_set() and (how := one.has_died()):
                    self._again(one, how)

    def _again(self, one: SupervisedChild, how: str) -> None:
        now = time.monotonic()
        one.deaths = [d for d in one.deaths if now - d < WITHIN_S] + [now]
        assert one.child is not None
        one.child.end(0.0)
        end_marked([one.child.mark])
        if len(one.deaths) >= DEATHS:
            self.error = PeerError(
                f"pipeline {self.of}: {one.what} of this run {how}, for the {DEATHS}th time "
                f"within {WITHIN_S:g} s", found=one.words,
                expected=f"{one.what} that lives as long as the run",
                remedy="start the run again, with --resume if it was kept; what did it say?")
            return
        if self._over.wait(CALM_S):
            return
        try:
            self._start(one)
            one.meet()
        except (SpmdError, OSError) as error:
            one.words = str(error)
            return  # it has ended: the next look says how
        if not self._over.is_set():
            print(f"spmd feed: {one.what} of {self.of} {how}; another one has started after "
                  f"{time.monotonic() - now:.1f} s", file=sys.stderr, flush=True)
