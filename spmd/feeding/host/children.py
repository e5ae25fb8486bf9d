"""Processes that feeding starts: each ends with the one that started it, however that ends.

A child gets a channel, one end of a pair of sockets, on which both send lines of JSON; its end
says that the other is gone. The kernel kills a child whose parent died (PR_SET_PDEATHSIG).
What a child started itself, and left behind, is found by a mark in its environment.
Always holds: no secret stands on a command line or in an environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PR_SET_PDEATHSIG = 1
LINE_BYTES = 4 << 20
MARKS = "SPMD_FEED_CHILD"  # in the environment of a child: its mark, behind those of its parents
END_S = 1.0  # for a child that has closed its channel
WALKS = 5  # in each of which what is left may have started something more
# Workers are as many as there are cores: libraries of theirs need no threads beside.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# The order of a set of strings is the same in each process, on each machine.
SAME_SETS = {"PYTHONHASHSEED": "0"}


class Channel:
    """Lines of JSON between a process and its child. It never waits, except in `wait_for`.

    parent: in a child, the process that has to live.
    """

    def __init__(self, end: socket.socket, parent: int = 0) -> None:
        self.socket, self.parent = end, parent
        self._got = bytearray()
        self._rest = bytearray()
        end.setblocking(False)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, **said: Any) -> None:
        """Send a message; bytes that do not fit now go with the next flush()."""
        self._rest += json.dumps(said, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            while self._rest:
                del self._rest[: self.socket.send(self._rest)]
        except BlockingIOError:
            pass
        except OSError:
            self._rest.clear()  # it has ended: reading says so

    def said(self) -> list[dict[str, Any]] | None:
        """Return the messages that have come; None once the other side has ended."""
        # What a parent forks has its end of the line too, and may live longer.
        ended = bool(self.parent) and os.getppid() != self.parent
        try:
            while data := self.socket.recv(1 << 16):
                self._got += data
                if len(self._got) > LINE_BYTES:
                    return None
            ended = True
        except BlockingIOError:
            pass
        except OSError:
            ended = True
        *lines, rest = self._got.split(b"\n")
        self._got = bytearray(rest)
        return None if ended and not lines else [json.loads(line) for line in lines]

    def wait_for(self, seconds: float) -> bool:
        self.flush()
        poller = select.poll()  # select() knows no descriptor above 1023
        poller.register(self.socket, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def close(self) -> None:
        self.socket.close()


class Child:
    """A process of ours that runs a module of spmd. fds stay open in it, under the same numbers.

    What it prints goes to standard error. dies_with_thread: the thread that starts it lives as
    long as it should; the main thread always does. ends_itself: it has something to end first when
    its parent is gone, so the kernel leaves it alone. It leads a group: Ctrl-C of a terminal is not
    for it, and what it starts itself ends with it.
    """

    def __init__(self, module: str, fds: tuple[int, ...] = (), dies_with_thread: bool = False,
                 ends_itself: bool = False) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.mark = uuid.uuid4().hex
        with theirs:
            # The kernel takes the end of the thread that starts a child for its parent's death.
            dies = threading.current_thread() is threading.main_thread() or dies_with_thread
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(os.getpid()),
                 str(int(dies and not ends_itself)), *map(str, fds)],
                pass_fds=(theirs.fileno(), *fds), stdin=subprocess.DEVNULL, stdout=2,
                process_group=0,
                env={**ONE_THREAD, **os.environ, **SAME_SETS, "PYTHONPATH": _python_path(),
                     MARKS: f"{os.environ.get(MARKS, '')} {self.mark}".strip()},
            )
        self.channel = Channel(mine)
        self._killed = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_ended(self) -> int | None:
        """Return its exit status as Popen says it (-9: killed by signal 9), or None while it
        runs."""
        return self.process.poll()

    def was_killed(self) -> bool:
        """Return whether somebody else than this process has killed the child."""
        status = self.has_ended()
        return status is not None and status < 0 and not self._killed

    def kill(self) -> None:
        if self.process.poll() is None:
            self._killed = True
            self.process.kill()
        self.wait()

    def first_word(self, seconds: float) -> tuple[dict[str, Any] | None, str]:
        """Return the child's first message, or None and why it ended."""
        said = self.channel.said() if self.channel.wait_for(seconds) else []
        if said:
            return said[0], ""
        if said is None:  # it ends
            with contextlib.suppress(subprocess.TimeoutExpired):
                return None, f"it {ended_by(self.wait(END_S))}"
        self.kill()
        return None, f"no word of it for {seconds:g} s"

    def wait(self, seconds: float | None = None) -> int:
        """Wait until the child has ended, and end what it started; return its exit status. Raises
        TimeoutExpired."""
        status = self.process.wait(seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return status

    def end(self, seconds: float) -> None:
        """Says that it is over, by closing the channel; kills it if that does not help."""
        self.channel.close()
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()


def end_together(children: list[Child], seconds: float) -> None:
    """End children, all within this time, and what they have started."""
    for child in children:
        child.channel.close()
    last = time.monotonic() + seconds
    for child in children:
        child.end(max(0.0, last - time.monotonic()))
    end_marked(child.mark for child in children)


def end_marked(marks: Iterable[str]) -> None:
    """Kill the processes that ended children of ours have started, in any group or session."""
    wanted = {mark.encode() for mark in marks}
    for _ in range(WALKS if wanted else 0):
        left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                if wanted & _marks_of(pid)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _marks_of(pid: int) -> set[bytes]:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # not ours, or gone
        return set()
    of = f"{MARKS}=".encode()
    return {mark for word in words if word.startswith(of) for mark in word[len(of):].split()}


def of_parent(arguments: list[str]) -> tuple[Channel, list[int]]:
    """Return, in a child, its channel and the descriptors that its parent passed.

    From here on the death of its parent is its own, or said on the channel.
    """
    fd, parent, dies, *fds = map(int, arguments)
    if dies:
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.register_at_fork(  # what an operation forks, and forgets, ends with us
            after_in_child=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:  # it died before we asked
        os._exit(0)
    for descriptor in (fd, *fds):
        os.set_inheritable(descriptor, False)
    return Channel(socket.socket(fileno=fd), parent), fds


def _python_path() -> str:
    """Return the PYTHONPATH with which a child finds spmd, whatever folder it is started in."""
    mine = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    before = os.environ.get("PYTHONPATH", "")
    return f"{mine}{os.pathsep}{before}" if before else mine


def ended_by(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
