"""The constants of images, once in each process, in pages that nobody can write.

In: section .spmd.constants of an image. Out: its address, which all jobs of the process that run
the image share; so do processes that share an arena.
Always holds: what lies there is what was hashed with the image; it is mapped for reading only.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from _thread import allocate_lock

from codegen.errors import EnvironmentFault
from spmd.engine import ffi
from spmd.launch.loader import places, private_file

TYPE_CHECKING = False  # typing is not imported: every rank pays for what this file imports
if TYPE_CHECKING:
    from typing import Any

_SEALS = 0x2 | 0x8  # neither shrunk nor written: F_SEAL_SHRINK, F_SEAL_WRITE
_AT_ONCE = 1 << 20  # bytes that are compared
_held: dict[str, Constants] = {}  # by digest of the image
_turn = allocate_lock()


class Constants:
    """One image's constants, mapped. address: of the first byte. path: where the other processes
    of this host can map the same pages. Use `held`, then close() once for each use."""

    def __init__(self, digest: str, file: int, size: int) -> None:
        self._digest, self._file, self.users = digest, file, 0
        # Private, as kernels before 6.7 map no sealed file otherwise; all pages now, none in a run.
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0)
        self.pages = mmap.mmap(file, size, flags, mmap.PROT_READ)
        self._view: Any = ffi.from_buffer("char[]", self.pages)
        self.address: Any = ffi.cast("void *", self._view)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        """Unmap them when nobody uses them any more."""
        with _turn:
            self.users -= 1
            if self.users == 0:
                del _held[self._digest]
                ffi.release(self._view)
                self.pages.close()
                os.close(self._file)


def constants_of(digest: str, content: memoryview, path: str = "") -> Constants:
    """Return the constants of the image with this digest, whose section they are. path: of another
    process's, whose pages are taken if they hold the same. Raises EnvironmentFault where there is
    no place for them."""
    with _turn:
        constants = _held.get(digest)
        if constants is None:
            constants = _attached(digest, content, path) if path else None
            constants = _held[digest] = constants or Constants(digest, _file(content), len(content))
        constants.users += 1
        return constants


def _file(content: memoryview) -> int:
    """Return a private file that holds the bytes."""
    reasons: list[str] = []
    for place in places():
        try:
            file, path = private_file(content, place)
        except OSError as error:
            reasons.append(f"{place or 'memory'}: {error.strerror}")
            continue
        if place:
            os.unlink(path)
        return file
    raise EnvironmentFault(
        "the constants of the image cannot be mapped", expected="memory files, or a directory",
        found="; ".join(dict.fromkeys(reasons)), remedy="set TMPDIR to a directory with room",
    )


def _attached(digest: str, content: memoryview, path: str) -> Constants | None:
    """Return another process's constants; None where they cannot be had, or are others."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if sealed and os.fstat(file).st_size == len(content):
            constants = Constants(digest, file, len(content))
            if _same(constants.pages, content):
                return constants
    except OSError:  # no memory file
        pass
    os.close(file)
    return None


def _same(pages: mmap.mmap, content: memoryview) -> bool:
    return all(pages[k : k + _AT_ONCE] == bytes(content[k : k + _AT_ONCE])
               for k in range(0, len(content), _AT_ONCE))
