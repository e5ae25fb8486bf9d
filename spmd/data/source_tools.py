"""What sources are made of: examples with fields, check sums, files that are read at places.

In: paths as users write them. Out: absolute ones, bytes, names for messages.
Always holds: a file is opened by the process that reads it, when it first does.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from codegen.errors import InputError, Place

Wrong = Callable[..., InputError]  # ExampleSource.wrong

HERE = os.path.dirname(os.path.abspath(__file__))

_folder: ContextVar[str] = ContextVar("folder", default="")


@contextmanager
def relative_to(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Let relative paths of sources that are made meanwhile begin at this folder."""
    token = _folder.set(os.path.abspath(folder))
    try:
        yield
    finally:
        _folder.reset(token)


def absolute(path: str | os.PathLike[str], pattern: bool = False) -> str:
    """Return a path, or a pattern of paths, as it is meant where the source is made, wherever it is
    read.

    A relative one begins at the folder of the file that names it: all workers find that one. In a
    session or a notebook it begins at the current folder.
    """
    place = caller()
    beside = os.path.dirname(os.path.abspath(place.file)) if (
        place and os.path.isfile(place.file)) else os.getcwd()
    base = _folder.get() or beside
    base = glob.escape(base) if pattern else base
    return os.path.normpath(os.path.join(base, os.path.expanduser(os.fspath(path))))


def caller() -> Place | None:
    """Return the user's line that calls into this package."""
    frame = sys._getframe(1)
    while frame and os.path.dirname(os.path.abspath(frame.f_code.co_filename)) == HERE:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)


def made_once(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that returns what make() gives, made when it is first asked for, once in
    each process."""
    kept: list[Any] = []
    lock = Lock()

    def get() -> Any:
        if not kept:
            with lock:
                if not kept:
                    kept.append(make())
        return kept[0]

    return get



class Record:
    """An example with fields: `example.x` and `example["x"]` are the same.

    A field called keys is only `example["keys"]`: `keys()` gives the names of all fields.
    """

    __slots__ = ("_fields", "_name")

    def __init__(self, fields: dict[str, Any], name: str = "example") -> None:
        self._fields = fields
        self._name = name

    def __getattr__(self, field: str) -> Any:
        try:
            return self._fields[field] if field[:1] != "_" else object.__getattribute__(self, field)
        except KeyError:
            raise AttributeError(
                f"{self._name} has no field {field!r}; it has {', '.join(self._fields)}"
            ) from None

    def __getitem__(self, field: str) -> Any:
        return self._fields[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def keys(self) -> Any:
        """Return the names of its fields: dict(example) has them all."""
        return self._fields.keys()

    def __repr__(self) -> str:
        return f"<{self._name}: {', '.join(self._fields)}>"


class Digest:
    """A check sum of what tells examples apart."""

    def __init__(self, kind: str) -> None:
        self._sum = hashlib.blake2b(kind.encode(), digest_size=16)

    def add(self, *parts: Any) -> Digest:
        for part in parts:
            raw = part if isinstance(part, bytes) else str(part).encode(errors="surrogateescape")
            self._sum.update(len(raw).to_bytes(8, "little") + raw)
        return self

    def add_samples(self, size: int, read: Any) -> Digest:
        """Add samples of `size` bytes: all of a mebibyte or less, else 16 parts of it from begin to
        end."""
        part = 1 << 16
        self.add(size)
        starts = range(0, size, part) if size <= 16 * part else (
            np.linspace(0, size - part, 16).astype(np.int64).tolist())
        for start in starts:
            self.add(read(start, min(part, size - start)))
        return self

    def text(self) -> str:
        return self._sum.hexdigest()


class SourceFailed(InputError):
    """A source that does not say how many examples it has, or has none: no example is right."""


class ChangedFile(InputError):
    """A file that was written to during a run: no other example of it is right either."""


class PlainFile:
    """A file that is read at places: opened when first read, by each process for itself."""

    def __init__(self, path: str, wrong: Wrong) -> None:
        self.path = path
        self._wrong = wrong
        self._fd, self._process = -1, 0
        self._was: os.stat_result | None = None  # when it was first opened

    def _open(self) -> int:
        if self._process != os.getpid():  # nobody else's file, not even a parent's
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise unreadable(self._wrong, self.path, error) from None
            self._process = os.getpid()
            self._was = self._was or os.fstat(self._fd)
        return self._fd

    def check_unchanged(self) -> None:
        """Raise ChangedFile if somebody has written to it since it was first opened: what is known
        of where examples lie is not true any more."""
        now = os.fstat(self._open())
        was = self._was or now
        if (now.st_size, now.st_mtime_ns) != (was.st_size, was.st_mtime_ns):
            said = self._wrong(
                f"{short(self.path)} was changed while it was read",
                f"the file of {was.st_size} bytes that it was, until the run ends",
                f"{now.st_size} bytes, written {(now.st_mtime_ns - was.st_mtime_ns) / 1e9:.3g} s "
                "later", "write another file and rename it (mv, os.replace): a run goes on with "
                "the one that it has opened")
            raise ChangedFile(said.message, place=said.place, expected=said.expected,
                              found=said.found, remedy=said.remedy)

    def size(self) -> int:
        return os.fstat(self._open()).st_size

    def read(self, start: int, count: int) -> bytes:
        """Return bytes from start on; fewer at the end of the file. Raises ChangedFile."""
        parts = []
        while count > 0 and (raw := os.pread(self._open(), count, start)):
            parts.append(raw)
            start, count = start + len(raw), count - len(raw)
        self.check_unchanged()
        return b"".join(parts)

    def __del__(self) -> None:
        if self._fd >= 0 and self._process == os.getpid():
            os.close(self._fd)


def unreadable(wrong: Wrong, path: str, error: OSError) -> InputError:
    return wrong(
        f"{path} cannot be read", "a file", (error.strerror or str(error)).lower(),
        "a relative path begins at the folder of the pipeline's file; workers need the same files")


def short(path: str) -> str:
    """Return a path as a message shows it: from the current folder, where that is shorter."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):
        return path
    return relative if len(relative) < len(path) else str(Path(path))
