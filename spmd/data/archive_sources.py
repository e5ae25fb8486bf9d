"""The source of files in one archive: zip, or tar that is not compressed, read at places.

In: the path of an archive. Out: examples as of data.files: path, label, bytes.
Always holds: the order is that of the names; the archive is opened, and its table of contents read,
by each process for itself, when it first needs an example.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any, NamedTuple

from codegen.errors import InputError, UsageError
from spmd.data.file_sources import FOLDER, FileExample
from spmd.data.source_base import ExampleSource
from spmd.data.source_tools import (
    ChangedFile,
    Digest,
    PlainFile,
    absolute,
    caller,
    made_once,
    short,
    unreadable,
)

LINKS = 40  # that lead on to links, as Linux has it


class ArchiveFile(FileExample):
    """A file of an archive: its `path` in there, its `label`, and its `bytes`, read now."""

    __slots__ = ("_index",)

    def __init__(self, path: str, label: Any, source: _Archive, index: int) -> None:
        super().__init__(path, label, source)
        self._index = index

    @property
    def bytes(self) -> bytes:
        """Return the content of the file, which is unpacked at each access."""
        return self._source.read(self._index)  # type: ignore[attr-defined]


class PackedFile(NamedTuple):
    name: str
    size: int  # unpacked
    where: int  # of a tar: its first byte; of a zip: its check sum
    info: Any


class _Archive(ExampleSource):
    def __init__(self, path: str, match: str, label: Any) -> None:
        self.place = caller()
        self.path, self.match, self.label = path, match, label
        self._file = PlainFile(path, self.wrong)
        self._members: Callable[[], list[PackedFile]] = made_once(self._listed)
        self._classes: Callable[[], dict[str, int]] = made_once(lambda: {
            name: k for k, name in enumerate(sorted({_folder(m.name) for m in self._members()}))})
        self._zip: zipfile.ZipFile | None = None
        self._process = 0

    @property
    def classes(self) -> list[str]:
        """Return the names of the folders in the order of their labels."""
        return list(self._classes())

    def _listed(self) -> list[PackedFile]:
        self._file.check_unchanged()  # from here on
        try:
            members = _of_zip(self.path) if zipfile.is_zipfile(self.path) else (
                _of_tar(self.path, self.match))
        except OSError as error:
            raise unreadable(self.wrong, self.path, error) from None
        except (zipfile.BadZipFile, tarfile.TarError, ValueError) as error:
            compressed = self._file.read(0, 6)[:2] in (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5")
            raise self.wrong(
                f"{short(self.path)} is no archive that can be read at places",
                "a zip, or a tar that is not compressed",
                "a compressed file" if compressed else str(error),
                "unpack it once, or write a zip: its files are compressed one by one",
            ) from None
        return sorted(m for m in members if fnmatch(m.name, self.match))

    def length(self) -> int:
        return len(self._members())

    def get(self, index: int) -> ArchiveFile:
        name = self._members()[index].name
        if self.label == FOLDER:
            label: Any = self._classes()[_folder(name)]
        else:
            label = self.label(name) if self.label else None
        return ArchiveFile(name, label, self, index)

    def read(self, index: int) -> bytes:
        """Return the bytes of a member. InputError where they are damaged."""
        member = self._members()[index]
        if member.info is None:
            raw = self._file.read(member.where, member.size)
            if len(raw) != member.size:
                raise self._damaged(member, f"{len(raw)} of {member.size} bytes")
            return raw
        try:
            if self._zip is None or self._process != os.getpid():  # no file of a parent
                self._zip, self._process = zipfile.ZipFile(self.path), os.getpid()
            raw = self._zip.read(member.info)
            self._file.check_unchanged()
            return raw
        except ChangedFile:
            raise
        except OSError as error:
            raise unreadable(self.wrong, self.path, error) from None
        except Exception as error:  # a key is needed, a method is unknown, bytes are damaged
            raise self._damaged(member, str(error)) from None

    def _damaged(self, member: PackedFile, found: str) -> InputError:
        return self.wrong(f"{member.name} in {short(self.path)} cannot be unpacked",
                          "a whole file, without a password", found)

    def name(self, index: int) -> str:
        return f"{self._members()[index].name} in {short(self.path)}"

    def digest(self) -> str:
        """Return a hash of names and sizes; for a zip also of the check sums of its files."""
        digest = Digest("archive")
        for member in self._members():
            digest.add(member.name, member.size, member.where if member.info else "")
        return digest.text()

    def empty(self) -> InputError:
        return self.wrong(f"no file in {short(self.path)} is called {self.match}",
                          "one file or more", "none", "match='*' takes all")


def _folder(name: str) -> str:
    return os.path.basename(os.path.dirname(name))


def _of_zip(path: str) -> list[PackedFile]:
    with zipfile.ZipFile(path) as opened:
        return [PackedFile(info.filename, info.file_size, info.CRC, info)
                for info in {info.filename: info for info in opened.infolist()}.values()
                if not info.is_dir()]


def _of_tar(path: str, match: str) -> list[PackedFile]:
    """Return the files of a tar. Of several files of one name the last one counts, as where it is
    unpacked; a link is the file that it leads to."""
    with tarfile.open(path, "r:") as opened:
        every = {os.path.normpath(info.name): info for info in opened}
    members = []
    for info in every.values():
        file = _linked(info, every) if fnmatch(info.name, match) else info
        if file.issparse() and fnmatch(info.name, match):
            raise ValueError(f"{info.name} is stored without its holes")
        if file.isreg():
            members.append(PackedFile(info.name, file.size, file.offset_data, None))
    return members


def _linked(info: tarfile.TarInfo, every: dict[str, tarfile.TarInfo]) -> tarfile.TarInfo:
    """Return the file that a link leads to. ValueError where that is not in the archive."""
    for _ in range(LINKS):
        if not (info.islnk() or info.issym()):
            return info
        folder = os.path.dirname(info.name) if info.issym() else ""
        target = os.path.normpath(os.path.join(folder, info.linkname))
        if target not in every:
            break
        info = every[target]
    raise ValueError(f"{info.name} is a link to {info.linkname}, which is not in the archive")


def archive(
    path: str | os.PathLike[str], /, *, match: str = "*",
    label: str | Callable[[str], Any] | None = None,
) -> ExampleSource:
    """Return a source of the files in a zip, or in a tar that is not compressed.

    An example has `path` (its name in the archive), `bytes`, `name` and `label`, as those of
    `data.files`; files are sorted by path. match: only files with such a path, where `*` stands for
    anything, also for folders. label="folder" counts the folders by name; a function gets the path.

    Raises InputError, when a pipeline first reads it, if it is no archive, or no file matches.

    ::

        photos = data.archive("photos.zip", match="train/*.jpg", label="folder")
    """
    if not (label is None or label == FOLDER or callable(label)):
        raise UsageError("label of data.archive is wrong", place=caller(),
                         expected="'folder', or a function of the path", found=repr(label))
    return _Archive(absolute(path), match, label)
