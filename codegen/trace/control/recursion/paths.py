"""Paths through a function, one at a time: which arm each of its branches takes.

Goes in: how many arms a branch has, as the function runs. Comes out: the arm to run. No branch is
captured on a path, which shows what the function returns where it does not call itself.
"""

from __future__ import annotations

from collections.abc import Iterator


class Path:
    """Enumerates the paths through a function. loops: how many loops are open where it begins;
    branches in further loops are captured as usual."""

    def __init__(self, loops: int) -> None:
        self.loops = loops
        self._taken: list[tuple[int, int]] = []  # by each branch: the arm, and how many there are
        self._met = 0

    def choose(self, arms: int) -> int:
        """Return the arm that the next branch takes."""
        if self._met == len(self._taken):
            self._taken.append((0, arms))
        self._met += 1
        return self._taken[self._met - 1][0]

    def each(self, most: int) -> Iterator[None]:
        """Yield before each path, until all are taken; at most `most` times."""
        for _ in range(most):
            self._met = 0
            yield
            del self._taken[self._met :]
            while self._taken and self._taken[-1][0] + 1 == self._taken[-1][1]:
                self._taken.pop()
            if not self._taken:
                return
            arm, arms = self._taken.pop()
            self._taken.append((arm + 1, arms))
