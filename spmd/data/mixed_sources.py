"""Sources that give what a user's function yields, and sources put together of several others.

In: functions, sources, weights. Out: sources; which example stands where follows from numbers
alone, so that every process finds the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import gcd
from typing import Any

import numpy as np

from codegen.errors import UsageError
from spmd.data.array_sources import Rows
from spmd.data.source_base import ExampleSource
from spmd.data.source_tools import Digest, caller, made_once

LONGEST_PATTERN = 1000  # examples after which the pattern of a mix repeats, about
STOPS = ("first", "last")


class _Iterator(ExampleSource):
    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self.place = caller()
        self.function = function

    def length(self) -> None:
        return None

    def begin(self) -> Iterator[tuple[str, Any]]:
        for number, example in enumerate(self.function()):
            yield f"example {number} of {self._called()}", example

    def _called(self) -> str:
        return getattr(self.function, "__name__", "the iterator")

    def get(self, index: int) -> Any:
        raise NotImplementedError("an iterator is read in order")

    def digest(self) -> str:
        return Digest("iterator").add(self._called()).text()


def iterator(function: Callable[[], Iterable[Any]], /) -> ExampleSource:
    """Return a source of the examples that function() yields, one after the other, until it ends.

    The function is called anew for each epoch, and by each worker, and gives the same examples in
    the same order each time: no unseeded random numbers, no order that a set or a folder happens to
    have. A run is refused if the first 16 differ at two workers; nothing compares those behind
    them. Arrays are copied as they are read, so that it may write each example to the same one.

    Its length is known when it ends. A worker that is asked for a position reads on to it from
    where it is, so an iterator feeds few workers well; with shuffle=True each 1024 examples are
    shuffled among each other.

    ::

        >>> def countdown():
        ...     yield from (3, 2, 1)
        >>> [example for name, example in data.iterator(countdown).begin()]
        [3, 2, 1]
    """
    if not callable(function):
        raise UsageError(
            "data.iterator gets a function", place=caller(),
            expected="a function that gives a new iterator each time", found=repr(function)[:80],
            remedy="data.iterator(lambda: …): what is used up once cannot be read again")
    return _Iterator(function)


class _Several(ExampleSource):
    """Examples of several sources; `_find` says of which one."""

    def __init__(self, sources: Sequence[ExampleSource]) -> None:
        self.place = caller()
        self.sources = list(sources)
        self._one_table = made_once(self._has_one_table)
        self._lengths = made_once(self._asked_lengths)

    def _asked_lengths(self) -> list[int] | None:
        """Return the lengths of the sources; None if one is not known."""
        lengths = [source.length() for source in self.sources]
        if 0 in lengths:
            raise self.sources[lengths.index(0)].empty()
        return None if None in lengths else [n for n in lengths if n is not None]

    def _find(self, index: int) -> tuple[int, int]:
        raise NotImplementedError

    def get(self, index: int) -> Any:
        source, number = self._find(index)
        return self.sources[source].get(number)

    def get_many(self, indices: list[int]) -> Any:
        """Return Rows where each source gives Rows with the same fields of the same shape and
        dtype; else a list."""
        examples = [self._find(index) for index in indices]
        if not examples or not self._one_table():
            return super().get_many(indices)
        places: dict[int, list[int]] = {}
        for place, (source, _) in enumerate(examples):
            places.setdefault(source, []).append(place)
        fields: dict[str, Any] = {}
        for source, mine in places.items():
            rows = self.sources[source].get_many([examples[place][1] for place in mine])
            for name in rows.keys():
                if name not in fields:
                    column = rows[name]
                    fields[name] = np.empty((len(indices), *column.shape[1:]), column.dtype)
                fields[name][mine] = rows[name]
        return Rows(fields, indices)

    def _has_one_table(self) -> bool:
        if any(type(s).get_many is ExampleSource.get_many for s in self.sources):
            return False  # they give lists
        first = [source.get_many([0]) for source in self.sources]
        return all(isinstance(rows, Rows) for rows in first) and len({
            tuple(sorted((n, r[n].shape, str(r[n].dtype)) for n in r.keys())) for r in first}) == 1

    def name(self, index: int) -> str:
        source, number = self._find(index)
        return self.sources[source].name(number)


class _Concatenated(_Several):
    def __init__(self, sources: Sequence[ExampleSource]) -> None:
        super().__init__(sources)
        self._ends = made_once(lambda: np.cumsum(self._lengths() or [0]).tolist())

    def length(self) -> int | None:
        return None if self._lengths() is None else int(self._ends()[-1])

    def _find(self, index: int) -> tuple[int, int]:
        ends = self._ends()
        source = bisect_right(ends, index)
        return source, index - (ends[source - 1] if source else 0)

    def begin(self) -> Iterator[tuple[str, Any]]:
        return chain.from_iterable(source.begin() for source in self.sources)

    def digest(self) -> str:
        return Digest("concatenated").add(*(s.digest() for s in self.sources)).text()


def concatenate(*sources: ExampleSource) -> ExampleSource:
    """Return a source of all examples of several sources, one source after the other.

    ::

        >>> both = data.concatenate(data.range(3), data.range(10, 12))
        >>> [both.get(i) for i in range(both.length())]
        [0, 1, 2, 10, 11]
    """
    return _Concatenated(_checked(sources, "concatenate"))


class _Mixed(_Several):
    """A pattern of sources repeats: in each, they stand as evenly as their weights permit."""

    def __init__(self, sources: Sequence[ExampleSource], weights: list[float], stop: str) -> None:
        super().__init__(sources)
        self.stop = stop
        self.counts = _whole_weights(weights)
        self.pattern, self.number_in = _pattern(self.counts)
        self._n = made_once(self._total)

    def length(self) -> int | None:
        return None if self._lengths() is None else int(self._n())

    def _total(self) -> int:
        """Return how many places there are until the first source, or the last, is used up."""
        lengths = self._lengths()
        assert lengths is not None
        places = [self._place(k, n - 1 if self.stop == "last" else n)
                  for k, n in enumerate(lengths)]
        return max(places) + 1 if self.stop == "last" else min(places)

    def _place(self, source: int, number: int) -> int:
        """Return the place of this example of a source, counted on without an end."""
        turn, rest = divmod(number, self.counts[source])
        first = np.flatnonzero(np.array(self.pattern) == source)
        return turn * len(self.pattern) + int(first[rest])

    def _find(self, index: int) -> tuple[int, int]:
        turn, place = divmod(index, len(self.pattern))
        source = self.pattern[place]
        number = turn * self.counts[source] + self.number_in[place]
        lengths = self._lengths()
        assert lengths is not None
        return source, number % lengths[source]

    def begin(self) -> Iterator[tuple[str, Any]]:
        if self.length() is not None:
            yield from super().begin()
            return
        passes = [source.begin() for source in self.sources]
        done: set[int] = set()
        while True:
            for source in self.pattern:
                item = next(passes[source], None)
                if item is None:
                    done.add(source)
                    if self.stop == "first" or len(done) == len(passes):
                        return
                    passes[source] = self.sources[source].begin()
                    item = next(passes[source], None)
                    if item is None:
                        raise self.sources[source].empty()
                yield item

    def digest(self) -> str:
        every = (s.digest() for s in self.sources)
        return Digest("mixed").add(self.stop, self.counts, *every).text()


def mix(
    *sources: ExampleSource, weights: Sequence[float] | None = None, stop: str = "first"
) -> ExampleSource:
    """Return a source in which the examples of several sources alternate, by weight.

    weights: how often each comes, in any unit; all alike without them. They are rounded so that
    the pattern repeats after about 1000 examples at most. stop="first" ends an epoch when the first
    source is used up; stop="last" when every one has been: shorter ones begin again.

    ::

        >>> both = data.mix(data.range(4), data.range(10, 20), weights=(1, 2))
        >>> [both.get(i) for i in range(both.length())]
        [10, 0, 11, 12, 1, 13, 14, 2, 15, 16, 3, 17, 18]
    """
    checked = _checked(sources, "mix")
    shares = [1.0] * len(checked) if weights is None else [float(w) for w in weights]
    if len(shares) != len(checked) or not all(0 < w < float("inf") for w in shares):
        raise UsageError(
            "weights of data.mix are wrong", place=caller(),
            expected=f"{len(checked)} numbers above 0, one for each source", found=repr(weights))
    if stop not in STOPS:
        raise UsageError(
            "stop of data.mix is wrong", place=caller(), expected="'first' or 'last'",
            found=repr(stop))
    return _Mixed(checked, shares, stop)


def _checked(sources: Sequence[Any], function: str) -> Sequence[ExampleSource]:
    wrong = [s for s in sources if not isinstance(s, ExampleSource)]
    if not sources or wrong:
        raise UsageError(
            f"data.{function} gets sources", place=caller(), expected="one source or more",
            found=type(wrong[0]).__name__ if wrong else "nothing",
            remedy=f"data.{function}(first, second)")
    return sources


def _whole_weights(weights: list[float]) -> list[int]:
    """Return integers in about these proportions, each 1 or more: exact ones if they are small."""
    scale = 1.0
    if not all(w == int(w) for w in weights) or sum(weights) > LONGEST_PATTERN:
        scale = LONGEST_PATTERN / sum(weights)
    counts = [max(1, round(w * scale)) for w in weights]
    common = gcd(*counts)
    return [c // common for c in counts]


def _pattern(counts: list[int]) -> tuple[list[int], list[int]]:
    """Return which source stands at each place of a pattern, and how often it stood there
    before."""
    places = sorted(
        ((2 * k + 1) / (2 * count), source, k)
        for source, count in enumerate(counts) for k in range(count))
    return [source for _, source, _ in places], [k for _, _, k in places]
