"""The job of a server: an open image, which another one replaces between two calls.

In: files of an image and a state. Out: calls of what is open, each with the version that made it.
Always holds: a call begins and ends with one job; a job is closed after its last call.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from codegen.errors import InputError, UsageError
from codegen.user.entry_methods import not_given
from spmd.faces import needed_of
from spmd.image import Image, Opened, OpenedEntity
from spmd.image_or_program import image_or_built
from spmd.launch import loader
from spmd.serving.refusals import Refusal
from spmd.serving.sent_frames import SentFrames
from spmd.started import FairLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.entries import EntryCall

DIGITS = 12  # of a digest, in versions


@dataclass(frozen=True)
class JobSource:
    """The files from which a job is opened. image: an image, or a FILE.py[:NAME], which is built
    with these settings; state: a state file, or None for what `__init__` makes."""

    image: str
    state: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OpenJob:
    """An image that is open. version: the beginning of the image's digest and, where a state file
    was given, of that file's, as 0123456789ab-ba9876543210. opened: None where only replicas are
    to open it; state: the state file, open, whose name another one may have taken."""

    files: JobSource
    image: Image
    opened: Opened | None
    version: str
    state: BinaryIO | None = None

    def handed_over(self) -> tuple[bytes, bytes | None]:
        """Return the bytes of the image and of the state file. Raises InputError where that file
        has been written since."""
        if self.state is None:
            return self.image.data, None
        self.state.seek(0)
        data = self.state.read()
        if not self.version.endswith(hashlib.sha256(data).hexdigest()[:DIGITS]):
            raise _was_written(str(self.files.state))
        return self.image.data, data

    def close(self) -> None:
        """Free the memory of the job."""
        if self.state is not None:
            self.state.close()
        if self.opened is not None:
            self.opened.close()


Opening = Callable[[JobSource, Callable[[Image], None]], OpenJob]  # open_job, with its options


def open_job(files: JobSource, check: Callable[[Image], None], *,
             options: Mapping[str, Any] | None, no_cache: bool) -> OpenJob:
    """Open the image of some files. check: raises for an image that will not do; options: those of
    image.open, without state; None: only replicas open it. Raises what reading, building and
    opening raise, and InputError for a state file that changes meanwhile."""
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
        opened = None if options is None else image.open(**options)
        return OpenJob(files, image, opened, version)
    before = _identity(files.state)
    opened = None if options is None else image.open(**options, state=files.state)
    try:
        state = open(files.state, "rb")
        digest = hashlib.file_digest(state, "sha256").hexdigest()
    except OSError:
        digest = ""
    job = OpenJob(files, image, opened, f"{version}-{digest[:DIGITS]}", state if digest else None)
    if not digest or _identity(files.state) != before:
        job.close()
        raise _was_written(files.state)
    return job


def entry_of(opened: Opened, entry: str | None) -> Opened | EntryCall:
    """Return what calls an entry of what is open, or its program where it is None."""
    return opened.entries[entry] if isinstance(opened, OpenedEntity) and entry else opened


def _was_written(path: str) -> InputError:
    """Return the error of a state file that has changed while it was needed."""
    return InputError(f"{path} was written while it was read", expected="a file that stays as it "
                      "is", found="another size or time, or no file",
                      remedy="write another file, and rename it to this one")


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
    def opened(self) -> OpenJob | None:
        """The job that is there; None where none is."""
        return self._job

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
        self._turns.take(waits=True)
        try:
            job = self.check(version)
            called = job.opened
            assert called is not None  # the queue makes no call here
            call = entry_of(called, entry)
            if frames is not None:
                frames.version = job.version
            return job.version, call._saving_into(frames, arguments)
        finally:
            self._turns.leave()

    def replace(self, job: OpenJob | None) -> None:
        """Put another job, or none, into the place of the one that is there, once the call that
        runs has ended; close that one."""
        with self._turns.during(lambda: self._turns.take(waits=True)):
            before, self._job = self._job, job
        if before is not None:
            before.close()
