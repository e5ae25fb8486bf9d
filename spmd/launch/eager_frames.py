"""Frames of an eager run: the same files that an image writes.

In: paths by the names of saves, frames as NumPy arrays. Out: files, as spmd/files/frames.py has
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np

from codegen.errors import UsageError
from spmd.files.frames import FrameFiles, check_distinct


class EagerFrames:
    """Write the frames of one eager run to files."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        check_distinct(paths)
        self.paths = paths
        self.files: dict[str, FrameFiles] = {}
        self.counts = dict.fromkeys(paths, 0)

    def takers(self) -> dict[str, Callable[[np.ndarray], None]]:
        """Return for each save the function that writes a frame of it."""
        return {name: self._taker(name) for name in self.paths}

    def _taker(self, name: str) -> Callable[[np.ndarray], None]:
        def take(frame: np.ndarray) -> None:
            number = self.counts[name]
            if number == 0:
                self.files[name] = FrameFiles(name, self.paths[name], str(frame.dtype), frame.shape)
                self.files[name].begin(0, os.urandom(4).hex())
            files = self.files[name]
            try:
                files.write(number, (0,) * frame.ndim, frame.shape, frame.tobytes())
                files.close(number)
                files.commit(number)
            except BaseException:
                files.discard()
                files.remove_parts(number)
                raise
            self.counts[name] += 1

        return take

    def finish(self) -> None:
        """Report what was saved. Raises UsageError for a name under which nothing was saved."""
        for name, path in self.paths.items():
            if name not in self.files:
                raise UsageError(f"the program saved nothing under {name!r} in this run",
                                 expected=f'spmd.save("{name}", …) in a loop that has turns',
                                 found=f"{name}={path}")
            files, frames = self.files[name], self.counts[name]
            print(files.said(frames))
