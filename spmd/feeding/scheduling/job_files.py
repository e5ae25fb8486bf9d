"""Files of jobs at the scheduler: what a job reads, what it prints, and its outputs.

In: bytes at offsets. Out: the same, part by part. A folder for each job, beside the state, holds
one for each of its attempts; number 0 has what the job reads. Names come checked (wire.job_file).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress

from codegen.errors import OutputError, UsageError

PART_BYTES = 1 << 20  # that one message has of a file
UNCLAIMED_S = 3600.0  # for whoever sends the files of a job to submit it


class JobFiles:
    """Keeps the files of jobs. folder: "" for a scheduler that keeps nothing and takes no jobs."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def put(self, job: str, attempt: int, file: str, offset: int, data: bytes) -> None:
        """Write bytes of a file; the same bytes may come twice.

        Raises OutputError where they cannot be written, UsageError where some before them lack.
        """
        path = self._path(job, attempt, file)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                if os.fstat(fd).st_size < offset:
                    raise UsageError(f"{file} of a job: bytes before {offset} did not come",
                                     found=f"{os.fstat(fd).st_size}", remedy="send it again")
                written = os.pwrite(fd, data, offset)
            finally:
                os.close(fd)
        except OSError as error:
            raise OutputError(f"the scheduler cannot keep a file of this job: {error.strerror}",
                              found=path, remedy="make room on that disk, then ask again") from None
        if written < len(data):
            raise OutputError("the scheduler cannot keep a file of this job: its disk is full",
                              found=path, remedy="make room on that disk, then ask again")

    def get(self, job: str, attempt: int, file: str, offset: int) -> tuple[int, bytes]:
        """Return the size of a file and its next bytes; of one that is not there 0 and none."""
        try:
            with open(self._path(job, attempt, file), "rb") as opened:
                return os.fstat(opened.fileno()).st_size, os.pread(
                    opened.fileno(), PART_BYTES, offset)
        except FileNotFoundError:
            return 0, b""

    def size(self, job: str, attempt: int, file: str) -> int | None:
        """Return how many bytes of a file are here, or None where there is no such file."""
        with suppress(FileNotFoundError):
            return os.stat(self._path(job, attempt, file)).st_size
        return None

    def last_lines(self, job: str, attempt: int, file: str, lines: int) -> list[str]:
        """Return the last lines of what a job has printed, as far as they are short."""
        size = self.size(job, attempt, file) or 0
        _, data = self.get(job, attempt, file, max(0, size - 4096))
        return data.decode("utf-8", "replace").splitlines()[-lines:]

    def drop(self, job: str) -> None:
        shutil.rmtree(os.path.join(self.folder, job), ignore_errors=True)

    def drop_attempt(self, job: str, attempt: int) -> None:
        shutil.rmtree(os.path.join(self.folder, job, str(attempt)), ignore_errors=True)

    def drop_unclaimed(self, known: Collection[str]) -> None:
        """Remove files that were sent for jobs which nobody has submitted since."""
        with suppress(OSError):
            for job in set(os.listdir(self.folder)) - set(known):
                if time.time() - os.stat(os.path.join(self.folder, job)).st_mtime > UNCLAIMED_S:
                    self.drop(job)

    def _path(self, job: str, attempt: int, file: str) -> str:
        if not self.folder:
            raise UsageError("this scheduler belongs to one run: it takes no jobs",
                             remedy="python -m spmd feed serve starts one that does")
        return os.path.join(self.folder, job, str(attempt), file)
