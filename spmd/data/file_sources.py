"""The source of files: one example a file, sorted by name, with labels from folders or a function.

Always holds: the order is that of the names, which every process sees alike; a file is read when
its bytes are asked for.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable
from typing import Any

from codegen.errors import UsageError
from spmd.data.source_base import ExampleSource
from spmd.data.source_tools import Digest, absolute, caller, made_once, short, unreadable

FOLDER = "folder"
MOST_READ = 256  # files, from the first to the last, of which a digest knows
END_BYTES = 4096  # the first and the last of each


class FileExample:
    """An example is a file: its `path`, its `label` (None if nothing gives one), and its `bytes`,
    read now."""

    __slots__ = ("_source", "label", "path")

    def __init__(self, path: str, label: Any, source: ExampleSource) -> None:
        self.path, self.label, self._source = path, label, source

    @property
    def bytes(self) -> bytes:
        """Return the content of the file, which is read at each access."""
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except OSError as error:
            raise unreadable(self._source.wrong, self.path, error) from None

    @property
    def name(self) -> str:
        """Return the name of the file, without folders."""
        return os.path.basename(self.path)

    def __repr__(self) -> str:
        return f"<file {short(self.path)}>"


class _Files(ExampleSource):
    def __init__(self, patterns: list[str], listed: bool, label: Any) -> None:
        self.place = caller()
        self.label = label
        self._said = ", ".join(patterns[:3])
        self._paths: Callable[[], list[str]] = made_once(
            lambda: patterns if listed else _matching(patterns))
        self._classes: Callable[[], dict[str, int]] = made_once(lambda: {
            name: k for k, name in enumerate(sorted({_folder_of(p) for p in self._paths()}))})

    @property
    def classes(self) -> list[str]:
        """Return the names of the folders in the order of their labels."""
        return list(self._classes())

    def length(self) -> int:
        return len(self._paths())

    def get(self, index: int) -> FileExample:
        path = self._paths()[index]
        if self.label == FOLDER:
            label: Any = self._classes()[_folder_of(path)]
        else:
            label = self.label(path) if self.label else None
        return FileExample(path, label, self)

    def name(self, index: int) -> str:
        return short(self._paths()[index])

    def digest(self) -> str:
        """Return a hash of names below their common folder, sizes, and both ends of some files:
        copies on other machines have other times, and to read all takes long."""
        paths = self._paths()
        common = os.path.commonpath({os.path.dirname(p) for p in paths}) if paths else ""
        digest, sizes = Digest("files"), []
        for path in paths:
            try:
                sizes.append(os.stat(path).st_size)
            except OSError as error:
                raise unreadable(self.wrong, path, error) from None
            digest.add(_below(common, path), sizes[-1])
        read = min(len(paths), MOST_READ)
        for k in (i * (len(paths) - 1) // max(read - 1, 1) for i in range(read)):
            digest.add(_ends(paths[k], sizes[k]))
        return digest.text()

    def empty(self) -> Any:
        return self.wrong(
            f"no file is called {self._said}", "one file or more", "none",
            "a relative path begins at the folder of the pipeline's file")


def _below(common: str, path: str) -> str:
    """Return a path below a folder as os.path.relpath does, in a tenth of the time where there is
    nothing to do."""
    begin = os.path.join(common, "")
    plain = path.startswith(begin) and "//" not in path and "/." not in path
    return path[len(begin):] if plain else os.path.relpath(path, common)


def _ends(path: str, size: int) -> bytes:
    """Return the first and the last bytes of a file; none of one that this process may not read,
    which is a bad example."""
    try:
        with open(path, "rb", buffering=0) as file:
            return b"".join(os.pread(file.fileno(), END_BYTES, offset)
                            for offset in (0, max(0, size - END_BYTES)))
    except OSError:
        return b""


def _folder_of(path: str) -> str:
    return os.path.basename(os.path.dirname(path))


def _matching(patterns: list[str]) -> list[str]:
    paths = {path for pattern in patterns
             for path in (pattern, *glob.iglob(pattern, recursive=True)) if os.path.isfile(path)}
    return sorted(paths)


def files(
    pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], /, *,
    label: str | Callable[[str], Any] | None = None,
) -> ExampleSource:
    """Return a source of files: by a pattern, with `*`, `?`, `[…]` and `**` as in glob, or by a
    list.

    An example has `path`, `bytes`, `name` and `label`. Files of a pattern are sorted by path;
    a list keeps its order. label="folder" counts the folders in which files lie, by name, from 0
    (`source.classes` has their names); a function gets the path.

    Raises InputError, when a pipeline first reads it, if no file matches.

    ::

        photos = data.files("photos/*/*.jpg", label="folder")
        scans = data.files("scans/*.png", label=lambda path: int(path[-5]))
    """
    if isinstance(label, str) and label != FOLDER or not (
            label is None or isinstance(label, str) or callable(label)):
        raise UsageError(
            "label of data.files is wrong", place=caller(),
            expected="'folder', or a function of the path", found=repr(label))
    if isinstance(pattern, str | os.PathLike):
        return _Files([absolute(pattern, pattern=True)], False, label)
    try:
        return _Files([absolute(p) for p in pattern], True, label)
    except TypeError:
        raise UsageError(
            "data.files gets a pattern, or a list of paths", place=caller(),
            expected="data.files('photos/*.jpg')", found=repr(pattern)) from None
