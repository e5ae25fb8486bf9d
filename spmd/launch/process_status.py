"""What a process shows the others of its host: whether it waits, computes or leaves, and where.

In: what it is at. Out: a memory file that host_processes.py reads, and answers to who asks where
it is.
Always holds: nobody has to answer in Python; nothing that has a name is made, so nothing is left.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
from importlib import import_module
from struct import Struct

# What a process is at. It waits in a meeting; it computes in an open job; its script has ended.
ELSEWHERE, WAITS, COMPUTES, LEAVES = range(4)
NAME = "spmd-presence"
WORDS = Struct("<5q")  # process, what it is at, group and number of the meeting, 1: it can be asked
ANSWERS = 4096  # where they begin in the file

_file = -1
_owner = 0
_asked = 0


def begin() -> None:
    """Makes this process visible, and able to say where it is, until it has ended."""
    global _file, _owner, _asked
    if _owner == os.getpid():
        return
    try:
        _file = os.memfd_create(NAME, os.MFD_CLOEXEC)
        os.lseek(_file, ANSWERS, os.SEEK_SET)
    except OSError:
        return
    _owner = os.getpid()
    try:
        lib = import_module("spmd.engine").lib  # `import spmd` goes on without it
        if signal.getsignal(signal.SIGURG) is signal.SIG_DFL and not lib.spmd_where_begin(_file):
            faulthandler.register(signal.SIGURG, _file, all_threads=False, chain=True)
            _asked = 1
    except (ImportError, OSError, ValueError):  # no engine, no descriptor left
        pass
    show(ELSEWHERE)
    atexit.register(show, LEAVES)


def is_forked() -> bool:
    """Return whether this process is a copy that `fork` made of one that had begun."""
    return _owner not in (0, os.getpid())


def show(state: int, group: int = 0, number: int = 0) -> None:
    if _owner == os.getpid():
        os.pwrite(_file, WORDS.pack(_owner, state, group, number, _asked), 0)
