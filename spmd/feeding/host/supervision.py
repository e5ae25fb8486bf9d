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
    """Holds a child process that is started again when it dies. name: for messages. start: starts
    it, in any thread; greet: returns once it works."""

    def __init__(self, name: str, start: Callable[[], Child],
                 greet: Callable[[Child], None]) -> None:
        self.name, self.start, self.greet = name, start, greet
        self.child: Child | None = None
        self.deaths: list[float] = []
        self.words = ""  # why it did not begin, as it said
        self.works = False  # it was met: from then on its keeper looks after it

    def meet(self) -> None:
        """Wait until the child works. Raises what greet does."""
        if self.child:
            self.greet(self.child)
            self.works = True

    def has_died(self) -> str:
        """Return in words how the child died; "" while it lives."""
        status = self.child.has_ended() if self.child else None
        return "" if status is None else ended_by(status)


class ChildSupervisor:
    """Starts children again that die. of: the name of what they work for, in messages. They end in
    the order of add()."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.kept: list[SupervisedChild] = []
        self.error: PeerError | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def add(self, supervised: SupervisedChild) -> None:
        """Start a child and watch it from now on; meet() waits for it."""
        self.kept.append(supervised)
        self._start(supervised)
        if not self._thread:
            self._thread = threading.Thread(target=self._watch, name="feed-keeper", daemon=True)
            self._thread.start()

    def meet(self, supervised: SupervisedChild) -> None:
        """Wait until a child works. It is started again if somebody kills it before that."""
        for left in reversed(range(DEATHS)):
            try:
                supervised.meet()
                return
            except EnvironmentFault:
                if not left or not supervised.child or not supervised.child.was_killed():
                    raise
                end_marked([supervised.child.mark])
                self._start(supervised)

    def end(self) -> None:
        """End the children and the watch, also while a child is being started."""
        if os.getpid() != self._process:  # a fork of ours ends: they are not its children
            return
        with self._lock:
            self._over.set()
            children = [supervised.child for supervised in self.kept if supervised.child]
        for child in children:
            child.end(END_S)
        end_marked(child.mark for child in children)
        if self._thread:
            self._thread.join(END_S)
        self.kept.clear()

    def _start(self, supervised: SupervisedChild) -> None:
        with self._lock:
            if not self._over.is_set():
                supervised.child = supervised.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S) and self.error is None:
            for supervised in self.kept:
                if supervised.works and not self._over.is_set() and (how := supervised.has_died()):
                    self._again(supervised, how)

    def _again(self, supervised: SupervisedChild, how: str) -> None:
        now = time.monotonic()
        supervised.deaths = [d for d in supervised.deaths if now - d < WITHIN_S] + [now]
        assert supervised.child is not None
        supervised.child.end(0.0)
        end_marked([supervised.child.mark])
        if len(supervised.deaths) >= DEATHS:
            self.error = PeerError(
                f"pipeline {self.of}: {supervised.name} of this run {how}, for the {DEATHS}th time "
                f"within {WITHIN_S:g} s", found=supervised.words,
                expected=f"{supervised.name} that lives as long as the run",
                remedy="start the run again, with --resume if it was kept; what did it say?")
            return
        if self._over.wait(CALM_S):
            return
        try:
            self._start(supervised)
            supervised.meet()
        except (SpmdError, OSError) as error:
            supervised.words = str(error)
            return  # it has ended: the next look says how
        if not self._over.is_set():
            print(f"spmd feed: {supervised.name} of {self.of} {how}; another one has started after "
                  f"{time.monotonic() - now:.1f} s", file=sys.stderr, flush=True)
