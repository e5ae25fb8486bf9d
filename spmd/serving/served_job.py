"""The job of a server: an open image, which another one replaces between two calls.

In: files of an image and a state. Out: calls of what is open, each with the version that made it.
Always holds: a call begins and ends with one job; a job is closed after its last call.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from codegen.errors import InputError, UsageError
from codegen.user.entry_methods import not_given
from spmd.faces import needed_of
from spmd.image import Image, Opened, OpenedEntity
from spmd.launch import loader
from spmd.looking import image_or_built
from spmd.serving.refusals import Refusal
from spmd.serving.sent_frames import SentFrames
from spmd.started import FairLock

DIGITS = 12  # of a digest, in versions


@dataclass(frozen=True)
class JobSource:
    """What a job is opened from. image: an image, or a FILE.py[:NAME], which is built with these
    settings; state: a state file, or None for what `__init__` makes."""

    image: str
    state: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OpenJob:
    """An image that is open. version: the beginning of the image's digest and, where a state file
    was given, of that file's, as 0123456789ab-ba9876543210."""

    files: JobSource
    image: Image
    opened: Opened
    version: str


Opening = Callable[[JobSource, Callable[[Image], None]], OpenJob]  # open_job, with its options


def open_job(files: JobSource, check: Callable[[Image], None], *, options: Mapping[str, Any],
             no_cache: bool) -> OpenJob:
    """Open the image of some files. check: raises for an image that will not do; options: those of
    image.open, without state. Raises what reading, building and opening raise, and InputError for
    a state file that changes meanwhile."""
    data, parameters = image_or_built(files.image, dict(files.settings), no_cache)
    if others := [name for name in files.settings if name not in parameters]:
        raise UsageError(f"--set {others[0]}: no parameter of a program that is built now",
                         expected="scalars in requests", found=f"--set {others[0]}=…")
    with loader.named(files.image):
        image = Image(loader.check(data))
    check(image)
    version = image.digest[:DIGITS]
    if files.state is None:
        if needed := needed_of(image.manifest):
            raise not_given(image.manifest["program"], needed)
        return OpenJob(files, image, image.open(**options), version)
    before = _identity(files.state)
    opened = image.open(**options, state=files.state)
    digest = _digest(files.state)
    if digest is None or _identity(files.state) != before:
        opened.close()
        raise InputError(f"{files.state} was written while it was read", expected="a file that "
                         "stays as it is", found="another size or time, or no file",
                         remedy="write another file, and rename it to this one")
    return OpenJob(files, image, opened, f"{version}-{digest[:DIGITS]}")


def _digest(path: str) -> str | None:
    """Return the SHA-256 digest of a file; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _identity(path: str) -> tuple[int, ...]:
    """Return what tells a file from one that has taken its name, or from what it was before; ()
    where it is not there."""
    try:
        row = os.stat(path)
    except OSError:
        return ()
    return row.st_dev, row.st_ino, row.st_size, row.st_mtime_ns


class ServedJob:
    """The job that a server calls now. name: of the image, which refusals say."""

    def __init__(self, name: str, job: OpenJob) -> None:
        self.name, self._turns = name, FairLock()
        self._job: OpenJob | None = job

    @property
    def version(self) -> str | None:
        """The version of the job that is there; None where none is."""
        job = self._job
        return None if job is None else job.version

    def check(self, version: str | None) -> OpenJob:
        """Return the job that is there. Raises Refusal where none is, or one of another version
        than this; None: any will do."""
        job = self._job
        if job is None:
            raise Refusal(404, UsageError(
                f"{self.name} is not loaded", expected="a model that is loaded",
                found="a request behind its unload",
                remedy=f"POST /v2/repository/models/{self.name}/load"))
        if version not in (None, job.version):
            raise Refusal(404, UsageError(f"{self.name} has no version {version!r}",
                                          expected=job.version, found=version))
        return job

    def call(self, entry: str | None, arguments: dict[str, Any], version: str | None,
             frames: SentFrames | None = None) -> tuple[str, Any]:
        """Call an entry, or the program where it is None. Returns the version that was called, and
        what it has returned. frames: takes what the call saves. Raises what the call raises, and
        Refusal where this version is gone."""
        with self._turns.during(lambda: self._turns.take(waits=True)):
            job = self.check(version)
            called = job.opened
            call = called.entries[entry] if isinstance(called, OpenedEntity) and entry else called
            if frames is None:
                return job.version, call(**arguments)
            frames.version = job.version
            return job.version, call._saving_into(frames, arguments)

    def replace(self, job: OpenJob | None) -> None:
        """Put another job, or none, into the place of the one that is there, once the call that
        runs has ended; close that one."""
        with self._turns.during(lambda: self._turns.take(waits=True)):
            before, self._job = self._job, job
        if before is not None:
            before.opened.close()
