"""A source of unique names: a user's own x_2 is never taken for the second x."""

from __future__ import annotations

from collections.abc import Iterable


class Fresh:
    """A source of unique names. taken: names that are in use already."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._count = dict.fromkeys(taken, 1)

    def name(self, base: str) -> str:
        """Return the first of base, base_2, base_3, … that is not in use, and take it."""
        count = self._count.get(base, 0) + 1
        while (name := base if count == 1 else f"{base}_{count}") in self._count:
            count += 1
        self._count[base] = count
        self._count.setdefault(name, 1)
        return name

    def names(self) -> list[str]:
        """Return the names that were taken or handed out, in that order."""
        return list(self._count)

    def take(self, names: Iterable[str]) -> None:
        for name in names:
            self._count.setdefault(name, 1)

    def copy(self) -> Fresh:
        copied = Fresh()
        copied._count = dict(self._count)
        return copied
