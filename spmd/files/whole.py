"""Files that are there with all of their bytes, or not at all; what may not be written over.

In: paths, bytes. Out: files.
Always holds: a file is made under another name in the same folder and replaces the old one in one
step; it has the mode of the one that it replaces.
"""

from __future__ import annotations

import os
from contextlib import suppress

from codegen.errors import OutputError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import BufferedWriter

ENDING = ".part"  # of the other name


def part_of(path: str) -> str:
    """Return a name in the same folder that nobody else takes."""
    folder, base = os.path.split(path)
    return os.path.join(folder, f".{base}.{os.getpid()}.{os.urandom(4).hex()}{ENDING}")


def no_folder(path: str) -> str:
    """Return why a path cannot be a folder, and none can be made there: something else has the name
    of it, or of one around it. Else return ""."""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    return f"{path} is there, and is no folder" if path and not os.path.isdir(path) else ""


class whole:
    """A context that gives a file to write to: it takes its name when all went well, else it goes.

    sync: wait until it is on the disk.
    """

    def __init__(self, path: str, sync: bool = True) -> None:
        self.path, self.sync = os.path.realpath(path), sync
        self.part = part_of(self.path)

    def __enter__(self) -> BufferedWriter:
        self.file = open(self.part, "xb")
        return self.file

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            with self.file:
                if kind is None:
                    keep_mode(self.file.fileno(), self.path)
                    self.file.flush()
                    if self.sync:
                        os.fsync(self.file.fileno())
            if kind is None:
                os.replace(self.part, self.path)
                self.part = ""
        finally:
            if self.part:
                with suppress(FileNotFoundError):  # a signal came once it had its name
                    os.unlink(self.part)


def write_whole(path: str, data: bytes) -> None:
    """Write these bytes to a file. Raises OutputError."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OutputError(f"cannot write {path}: it exists and is not a file")
    try:
        with whole(path) as file:
            file.write(data)
    except OSError as error:
        raise OutputError(f"cannot write {os.path.realpath(path)}: {error.strerror}") from None


def keep_mode(fd: int, path: str) -> None:
    """Gives a new file the mode, and where that is allowed the owner, of the one it replaces."""
    try:
        old, new = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(fd, old.st_uid, old.st_gid)
        except PermissionError:
            pass
    os.fchmod(fd, old.st_mode & 0o777)


def refuse_replacing(target: str, sources: dict[str, str]) -> None:
    """Refuse to write a file that the command also reads. sources: what it reads, by path. Raises
    UsageError where a file to write is of it."""
    for path, role in sources.items():
        try:
            same = os.path.samefile(target, path)
        except OSError:  # one of them is not there
            same = False
        if same:
            raise UsageError(f"{target} is {role}: it would be replaced",
                             expected="a file of its own for what is written",
                             remedy="another name for it")


def check_place(path: str, title: str) -> None:
    """Refuse, before anything is computed, a path that cannot be written. Raises OutputError."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.access(folder, os.W_OK | os.X_OK) or os.path.isdir(path):
        raise OutputError(f"{title}: cannot write {path}", found=folder,
                          expected="a file in a directory that may be written to")
