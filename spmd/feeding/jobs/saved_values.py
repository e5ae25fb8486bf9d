"""Values that the ranks of a job save while they run, as its runner reads them.

In: the path of a series of frames, a condition. Out: whether it holds for one of them so far.
Always holds: each frame is looked at once, in order, when it is whole.
"""

from __future__ import annotations

import json
import math
import os

import numpy as np

from spmd.arrays import numpy_dtype
from spmd.feeding.messages.end_conditions import EndCondition
from spmd.files.frames import METADATA

HALF = np.dtype("V2")  # bfloat16, as NumPy's header has it


class SavedValues:
    """The frames of one save, as the mean of each. last: that of the newest that was looked at,
    None before the first; frames: how many were."""

    def __init__(self, path: str, condition: EndCondition) -> None:
        self.path, self.condition = path, condition
        self.frames = 0
        self.last: float | None = None
        self.holds = False

    def look(self) -> bool:
        """Return whether the condition holds for a frame; once it does, no other is looked at."""
        while not self.holds and (frame := self._next()) is not None:
            self.frames += 1
            self.last = float(np.mean(frame, dtype=np.float64)) if frame.size else math.nan
            self.holds = self.condition.holds(self.last)
        return self.holds

    def __str__(self) -> str:
        """Return, once the job has ended, whether the condition held, and what was seen last."""
        if self.last is None:
            return f"{self.condition} could not be looked at: nothing was saved"
        if self.holds:
            return f"{self.condition}: it was {self.last:.6g} in frame {self.frames - 1}"
        return f"{self.condition} never held: it was {self.last:.6g} in the last of {self.frames}"

    def _next(self) -> np.ndarray | None:
        try:
            if self.path.endswith(".npy"):
                frame: np.ndarray = np.load(self.path.format(self.frames))
                return frame.view(numpy_dtype("bfloat16")) if frame.dtype == HALF else frame
            with open(os.path.join(self.path, METADATA), "rb") as file:
                said = json.load(file)
            shape = said["shape"][1:]
            name = ".".join(map(str, (self.frames, *[0] * len(shape))))
            return np.fromfile(os.path.join(self.path, name), said["dtype"])
        except FileNotFoundError:
            return None
