"""Calls of an entry that were started in an eager run, and what they saved, as a stream.

In: a call of an entry, the names of its saves. Out: what it saved, item by item; then the result,
or what was wrong. Always holds: the run has ended before the first item is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

Taker = Callable[[np.ndarray[Any, Any]], Any]
Takers = Mapping[str, Taker]


class EndedCall:
    """A call that was started and has ended at once, as eager runs do: its result, or its error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: Exception | None = None
        try:
            self._value = call()
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        """Return True, since the call has ended."""
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Return what the call returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._value


class SavedItems(EndedCall):
    """The frames that one eager call saved, to iterate over. names: of its saves; with several of
    them, items are pairs of a name and an array. call: is given a function that returns the takers
    of frames, and calls that function again if it begins anew."""

    def __init__(
        self, names: Collection[str], call: Callable[[Callable[[], Takers]], Any]
    ) -> None:
        self._names = list(names)
        self._items: deque[Any] = deque()
        self._is_told = False  # of the error, in the loop
        super().__init__(lambda: call(self._takers))

    def _takers(self) -> Takers:
        self._items.clear()
        return {name: self._taker(name) for name in self._names}

    def _taker(self, name: str) -> Taker:
        several = len(self._names) > 1
        return lambda array: self._items.append((name, array) if several else array)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next item. Raises, behind the last one, what was wrong with the call."""
        if self._items:
            return self._items.popleft()
        if self._error is not None and not self._is_told:
            self._is_told = True
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """Drop the items that nobody has asked for."""
        self._items.clear()
        self._is_told = True


def both(first: Takers, second: Takers) -> Takers:
    """Return takers that give each frame to both, where both have one of its name."""
    takers = {**first, **second}
    for name in first.keys() & second.keys():
        takers[name] = _in_turn(first[name], second[name])
    return takers


def _in_turn(first: Taker, second: Taker) -> Taker:
    def take(array: np.ndarray[Any, Any]) -> None:
        first(array)
        second(array.copy())

    return take
