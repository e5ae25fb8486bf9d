"""What every source of a pipeline is: examples with a number and a name, and parts of a source.

Always holds: nothing is opened or listed before the first length, digest or example is asked for,
so that a source may be made in one process and read in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from codegen.errors import InputError, Place, UsageError
from spmd.data.own_examples import copied
from spmd.data.permutations import permuted
from spmd.data.source_tools import Digest, SourceFailed, caller, made_once

TOGETHER = 1 << 14  # places of a permutation that are computed at once


class ExampleSource:
    """A source of raw examples for a pipeline: `data.files` and others make one.

    A class of your own has `length`, `get` and `digest`; `name` says in messages which one it is.
    """

    place: Place | None = None

    def length(self) -> int | None:
        """Return the number of examples, or None if only reading all of them tells."""
        raise NotImplementedError

    def get(self, index: int) -> Any:
        """Return the example with this number, from 0."""
        raise NotImplementedError

    def get_many(self, indices: list[int]) -> Any:
        """Return several examples, for a function of a batch: a list, or an object like one."""
        return [copied(self.get(index)) for index in indices]

    def name(self, index: int) -> str:
        """Return the name of an example for messages: a file, a row, a line."""
        return f"example {index}"

    def digest(self) -> str:
        """Return a hash that is equal if two processes read the same examples, as far as it
        shows."""
        raise NotImplementedError

    def begin(self) -> Iterator[tuple[str, Any]]:
        """Yield all examples in their own order, each with its name."""
        if self.length() is None:
            raise UsageError(
                f"{type(self).__name__} does not say its examples one after the other",
                place=self.place, found="length() is None, and no begin()",
                expected="begin(), a generator of (name, example), where the length is not known",
                remedy="data.iterator(function) makes a source of a generator")
        for index in range(self.counted("this")):
            yield self.name(index), self.get(index)

    def counted(self, user: str) -> int:
        """Return the number of examples. Raises UsageError if it is not known; `user` is what needs
        it."""
        n = self.length()
        if n is None:
            raise UsageError(
                f"{user} needs a source of known length", place=self.place,
                expected="files, arrays, csv, lines or range",
                found="a source whose length is only known at its end",
                remedy="sampling='once', with shuffle=False or a window such as shuffle=1000",
            )
        return n

    def found_by(self) -> str:
        """Return how an example is found: by its "number", by "reading" all before it, or by
        "acting"."""
        return "reading" if self.length() is None else "number"

    def observe(self, position: int, seed: int) -> Any:
        """Return what there is at a position of the stream, for sources that are found by
        acting."""
        raise NotImplementedError

    def empty(self) -> InputError:
        return SourceFailed(
            "the source of a pipeline is empty", place=self.place, expected="one example or more",
            found="none", remedy="source.length() says how many it has; is a file empty, or does "
            "source.where(…) or .take(…) leave none?")

    def wrong(self, message: str, expected: str, found: str, remedy: str = "") -> InputError:
        """Return the error to raise when the data is not what it should be."""
        return InputError(
            message, place=self.place, expected=expected, found=found, remedy=remedy)

    # ---- parts of it

    def take(self, n: int) -> ExampleSource:
        """Return a source of the first n examples.

        ::

            >>> [data.range(9).take(2).get(i) for i in (0, 1)]
            [0, 1]
        """
        return _Part(self, 0, _size(n, 'take', self.place))

    def skip(self, n: int) -> ExampleSource:
        """Return a source of all but the first n examples."""
        return _Part(self, _size(n, 'skip', self.place), None)

    def where(self, chosen: Any) -> ExampleSource:
        """Choose examples by an array: `chosen` has truth values, one per example, or numbers.

        By what is in them: `where([s.get(k).split == "train" for k in range(s.length())])` of s.

        ::

            >>> odd = data.range(6).where([False, True] * 3)
            >>> odd.length(), odd.get(2)
            (3, 5)
        """
        return _Chosen(self, lambda: _numbers(self, chosen))

    def split(
        self, *fractions: float, seed: int = 0, shuffle: bool = True
    ) -> tuple[ExampleSource, ...]:
        """Split into parts that share no example, by fractions; the last one may be left out.

        shuffle: drawn at random by seed, always in the same way; False cuts them in order.

        ::

            >>> train, test = data.range(10).split(0.8)
            >>> train.length(), test.length()
            (8, 2)
        """
        return _split(self, fractions, seed, shuffle)

    def map(self, function: Any) -> ExampleSource:
        """Return a source whose examples are function(example).

        ::

            >>> data.range(5).map(lambda i: i * i).get(3)
            9
        """
        return _Mapped(self, function)


# ---- parts


class _View(ExampleSource):
    """A source made of another one."""

    def __init__(self, source: ExampleSource) -> None:
        self.source = source
        self.place = caller() or source.place


class _Part(_View):
    """Examples of a source one after the other: count of them from `first` on, or all."""

    def __init__(self, source: ExampleSource, first: int, count: int | None) -> None:
        super().__init__(source)
        self.first, self.count = first, count

    def length(self) -> int | None:
        n = self.source.length()
        if n is None:
            return None
        rest = max(n - self.first, 0)
        return rest if self.count is None else min(rest, self.count)

    def get(self, index: int) -> Any:
        return self.source.get(self.first + index)

    def get_many(self, indices: list[int]) -> Any:
        return self.source.get_many([self.first + index for index in indices])

    def name(self, index: int) -> str:
        return self.source.name(self.first + index)

    def digest(self) -> str:
        return Digest("part").add(self.source.digest(), self.first, self.count).text()

    def begin(self) -> Iterator[tuple[str, Any]]:
        end = None if self.count is None else self.first + self.count
        return islice(self.source.begin(), self.first, end)


class _Chosen(_View):
    """Examples of a source by their numbers, which are found when first asked for."""

    def __init__(self, source: ExampleSource, find: Callable[[], Any]) -> None:
        super().__init__(source)
        self._find = made_once(find)

    def length(self) -> int:
        return len(self._find())

    def get(self, index: int) -> Any:
        return self.source.get(int(self._find()[index]))

    def get_many(self, indices: list[int]) -> Any:
        return self.source.get_many(self._find()[np.asarray(indices, np.int64)].tolist())

    def name(self, index: int) -> str:
        return self.source.name(int(self._find()[index]))

    def digest(self) -> str:
        numbers = self._find()
        return Digest("chosen").add(self.source.digest(), numbers.tobytes()).text()


class _Mapped(_View):
    """Each example as a function of the user gives it."""

    def __init__(self, source: ExampleSource, function: Callable[[Any], Any]) -> None:
        super().__init__(source)
        self.function = function

    def length(self) -> int | None:
        return self.source.length()

    def get(self, index: int) -> Any:
        return self.function(self.source.get(index))

    def name(self, index: int) -> str:
        return self.source.name(index)

    def digest(self) -> str:
        return self.source.digest()

    def begin(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.function(example)) for name, example in self.source.begin())


def _size(n: Any, quantity: str, place: Place | None) -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
        raise UsageError(
            f"{quantity} of a source", place=caller() or place,
            expected="a number of examples, from 0", found=repr(n))
    return int(n)


def _numbers(source: ExampleSource, chosen: Any) -> Any:
    """Return the numbers of examples that a mask, or an array of numbers, chooses."""
    n = source.counted("where")
    numbers = np.asarray(chosen)
    if numbers.dtype == np.bool_ and numbers.shape == (n,):
        return np.flatnonzero(numbers)
    whole = numbers.ndim == 1 and (np.issubdtype(numbers.dtype, np.integer) or not numbers.size)
    if whole and np.all((numbers >= 0) & (numbers < n)):
        return numbers.astype(np.int64)
    raise UsageError(
        "where chooses examples that the source does not have", place=source.place,
        expected=f"{n} truth values, or numbers from 0 to {n - 1}",
        found="a function" if callable(chosen) else f"{numbers.dtype} {numbers.shape}" + (
            f", from {numbers.min()} to {numbers.max()}" if whole else ""),
        remedy="source.where([function(source.get(k)) for k in range(source.length())])"
        if callable(chosen) else "np.flatnonzero makes numbers of a condition",
    )


def _split(
    source: ExampleSource, fractions: tuple[float, ...], seed: int, shuffle: bool
) -> tuple[ExampleSource, ...]:
    total = sum(fractions)
    if not fractions or min(fractions) <= 0 or total > 1 + 1e-9:
        raise UsageError(
            "split of a source", place=caller() or source.place,
            expected="fractions above 0 that add up to 1 at most", found=repr(fractions),
            remedy="train, test = source.split(0.8)")
    parts = (*fractions, 1 - total) if total < 1 - 1e-9 else fractions
    ends = [0.0, *np.cumsum(parts).tolist()]

    def numbers(k: int) -> Any:
        n = source.counted("split")
        begin, end = (round(n * e) for e in ends[k : k + 2])
        if shuffle:
            return _shuffled_part(n, begin, end, seed)
        return np.arange(begin, end, dtype=np.int64)

    def part(k: int) -> ExampleSource:
        return _Chosen(source, lambda: numbers(k))

    return tuple(part(k) for k in range(len(parts)))


def _shuffled_part(n: int, begin: int, end: int, seed: int) -> Any:
    """Return the numbers below n that a permutation has at the places from begin to end, in order.

    The fewer places are computed, these or the others, and not all at once.
    """
    few = 2 * (end - begin) <= n
    mine = np.full(n, not few)
    for first, last in [(begin, end)] if few else [(0, begin), (end, n)]:
        for start in range(first, last, TOGETHER):
            mine[permuted(n, np.arange(start, min(start + TOGETHER, last)), seed)] = few
    return np.flatnonzero(mine)
