"""What a process sees of the others of its host: who has come to a meeting, has ended, and where.

In: a launcher's environment, /proc, what process_status.py shows. Out: a HostProcess for each
process, by number.
"""

from __future__ import annotations

import linecache
import os
import re
import time
from struct import error

from codegen.places import is_user_file
from spmd.engine import lib
from spmd.launch.launchers import variables
from spmd.launch.process_status import ANSWERS, ELSEWHERE, NAME, WORDS
from spmd.launch.process_watch import ENDED, STOPPED, state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ANSWER_S = 0.3  # for which another process is waited for that was asked where it is


class HostProcess:
    """A process of this host. number: the launcher's. pid: 0 where there is none any more.

    what, group, number_of_meeting: what it shows; ELSEWHERE where it shows nothing.
    """

    def __init__(self, number: int, pid: int, fd: str = "") -> None:
        self.number, self.pid, self.fd = number, pid, fd
        self.activity, self.group, self.meeting, self.can_say = ELSEWHERE, 0, 0, False
        self.state = ""
        self.look()

    def look(self) -> None:
        """Reads again what it shows, and whether it runs."""
        self.state = state_of(self.pid)
        if self.fd and not self.has_ended:
            _, self.activity, self.group, self.meeting, can_say = _words(self.fd)
            self.can_say = bool(can_say)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_stopped(self) -> bool:
        return self.state in STOPPED

    def where(self) -> tuple[bool, str, int]:
        """Return whether its main thread is inside MPI, and the user's line that it is at, ""
        unknown."""
        if not self.can_say or self.is_stopped or self.has_ended:
            return False, "", 0
        try:
            with open(self.fd, "rb") as file:
                before = max(ANSWERS, os.fstat(file.fileno()).st_size)
                if lib.spmd_where_ask(self.pid):
                    return False, "", 0
                answer = _answer(file, before, lib.spmd_where_bytes())
                return _parsed(answer, self.pid, lib.spmd_where_bytes()) if answer else (
                    False, "", 0)
        except OSError:
            return False, "", 0


def _words(path: str) -> tuple[int, ...]:
    try:
        with open(path, "rb", buffering=0) as file:
            return WORDS.unpack(file.read(WORDS.size))
    except (OSError, error):  # or it has just begun
        return 0, ELSEWHERE, 0, 0, 0


def _answer(file: Any, offset: int, words: int) -> bytes:
    """Wait for what is appended to the file, and return it once it is whole: lines of Python, then
    `words` bytes of addresses; b"" if it does not come in time."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        text = os.pread(file.fileno(), 1 << 16, offset)
        if len(text) > words and text.endswith(bytes(8)):
            return text
        time.sleep(0.005)
    return b""


def _parsed(answer: bytes, pid: int, words: int) -> tuple[bool, str, int]:
    text, raw = answer[:-words], answer[-words:]
    addresses = [int.from_bytes(raw[k : k + 8], "little") for k in range(0, words, 8)]
    in_mpi = False
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if os.path.basename(line.rstrip()).startswith("libmpi"):
                low, _, high = line.split()[0].partition("-")
                in_mpi |= any(int(low, 16) <= a < int(high, 16) for a in addresses)
    frames = re.findall(r'File "(.*?)", line (\d+)', text.decode(errors="replace"))
    place, line_number = user_place([(file, int(line)) for file, line in frames])
    return in_mpi, place and os.path.join(f"/proc/{pid}/cwd", place), line_number


def user_place(frames: list[tuple[str, int]]) -> tuple[str, int]:
    """Return the innermost of these that is the user's own: neither Python's, nor ours, nor
    installed."""
    users = (frame for frame in frames if is_user_file(frame[0]))
    return next(users, frames[0] if frames else ("", 0))


def line_text(file: str, line: int) -> str:
    """Return a line of a file as text, such as script.py:12: comm.Barrier()."""
    linecache.checkcache(file)
    text = linecache.getline(file, line).strip()
    return f"{os.path.basename(file)}:{line}" + (f": {text}" if text else "")


def find() -> dict[int, HostProcess]:
    """Return the processes of this launcher on this host, by number; this one too."""
    number, _ = variables()
    if not number:
        return {}
    needle = f"{number}=".encode()
    mine = _launcher(os.getpid(), needle)
    pids_of: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            value = _variable(int(entry), needle)
            if value.isdigit() and _launcher(int(entry), needle) == mine:
                pids_of.setdefault(int(value), []).append(int(entry))
    return {value: _mate(value, sorted(pids)) for value, pids in pids_of.items()}


def _mate(number: int, pids: list[int]) -> HostProcess:
    """Return the mate among the processes that a launcher's process has started: the one that has
    begun."""
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                if os.readlink(f"{folder}/{name}").startswith(f"/memfd:{NAME} "):
                    if _words(f"{folder}/{name}")[0] == pid:
                        return HostProcess(number, pid, f"{folder}/{name}")
        except OSError:
            continue
    return HostProcess(number, pids[-1])


def _variable(pid: int, needle: bytes) -> str:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return ""
    return next((w[len(needle) :].decode("ascii", "replace") for w in words
                 if w.startswith(needle)), "")


def _launcher(pid: int, needle: bytes) -> int:
    """Return the nearest ancestor that was not started as one of several: the launcher's own
    process."""
    while pid > 1 and _variable(pid, needle):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return 0
    return pid
