"""Frames of one series on their way to another machine: packed into one file, and unpacked.

In: the path of a series: frames/{}.npy, or FILE.zarr. Out: a tar file of its frames, by number; or
the series, from such a file.
Always holds: frames that come take their names together, once all are on the disk; none before.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from contextlib import suppress

from codegen.errors import OutputError
from spmd.files import ZARR
from spmd.files.frames import frame_number, no_place
from spmd.files.whole import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedRandom

MEMBER = re.compile(r"\d+(\.0)*|\.zarray|\.zattrs")  # files of zarr; of others, the numbers alone


def frames_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield what is packed of a series: the name of each file there, and its path here."""
    folder = path if path.endswith(ZARR) else os.path.dirname(path) or "."
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        file = os.path.join(folder, entry)
        number = frame_number(path, file)
        if path.endswith(ZARR):
            if MEMBER.fullmatch(entry):
                yield entry, file
        elif number is not None:
            yield str(number), file


def pack(path: str, into: str) -> None:
    """Write the frames of a series to one file; a series without frames makes an empty one."""
    with tarfile.open(into, "w") as packed:
        for name, file in frames_of(path):
            packed.add(file, arcname=name, recursive=False)


class unpacked:
    """A context that gives a file to write packed frames to, for the series `path`. `unpack` then
    puts them beside their places, which they take when all went well, instead of older frames."""

    def __init__(self, path: str) -> None:
        self.path, self.is_zarr = os.path.abspath(path), path.endswith(ZARR)
        if why := no_place(path):
            raise OutputError(f"cannot write {path}: {why}", remedy="another path")
        self.folder = self.path if self.is_zarr else os.path.dirname(self.path)
        self.part = part_of(self.path)

    def __enter__(self) -> unpacked:
        os.makedirs(self.part)
        self.file: BufferedRandom = open(f"{self.part}/packed", "x+b")
        return self

    def unpack(self) -> None:
        """Take apart what was written, and wait until all of it is on the disk."""
        self.file.seek(0)
        with tarfile.open(fileobj=self.file) as packed:
            for member in packed:
                data = packed.extractfile(member) if MEMBER.fullmatch(member.name) else None
                if data is None:
                    raise OutputError(f"{member.name!r} is no frame of {self.path}")
                with open(os.path.join(self.part, member.name), "xb") as frame:
                    shutil.copyfileobj(data, frame)
                    frame.flush()
                    os.fsync(frame.fileno())
        self.file.close()
        os.unlink(f"{self.part}/packed")

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._take_places()
        finally:
            self.file.close()
            shutil.rmtree(self.part, ignore_errors=True)
            if kind is not None and not self.is_zarr:
                with suppress(OSError):  # it was there before
                    os.rmdir(self.folder)

    def _take_places(self) -> None:
        if self.is_zarr:
            with suppress(FileNotFoundError):
                shutil.rmtree(self.folder)
            os.rename(self.part, self.folder)
            return
        for _, old in list(frames_of(self.path)):
            os.unlink(old)
        pattern = os.path.basename(self.path)
        for name in os.listdir(self.part):
            os.rename(os.path.join(self.part, name),
                      os.path.join(self.folder, pattern.format(int(name))))
