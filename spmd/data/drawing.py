"""Positions of a stream to examples of a source: by number, by reading on, or by acting.

Always holds: the example at a position follows from source, settings and position; only where
actions decide (reinforcement learning) it follows from these too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from codegen.errors import UsageError
from spmd.data.own_examples import add_example, copied
from spmd.data.permutations import independent, once, permuted
from spmd.data.settings import Settings
from spmd.data.source_base import ExampleSource
from spmd.data.source_tools import Digest

WINDOW = 1024  # examples that are shuffled among each other where only reading on gives them
KEPT = 2 * WINDOW  # examples that were read last
COMPARED = 16  # examples that are read on to, and told apart from those of other workers
BLOCK, BLOCKS = 1024, 8  # positions whose keys are computed together; how often they are kept


class EndOfStream(Exception):
    """Raised where there is no example at this position, nor behind it."""


class Drawn:
    """Find examples by position. A key says which one it is, whatever the source is."""

    def __init__(self, source: ExampleSource, settings: Settings) -> None:
        self.source, self.settings = source, settings

    length: int | None = None  # of an epoch, asked for once; None: not known yet

    def total(self) -> int | None:
        """Return how many positions there are, or None: no end, or not known yet."""
        epochs = self.settings.epochs
        return None if self.length is None or epochs is None else self.length * epochs

    def digest(self) -> str:
        """Return a hash that is equal where two workers draw the same, as far as the source's own
        digest cannot tell."""
        return str(self.length)

    def keys(self, first: int, count: int) -> Sequence[int]:
        """Return the keys of the positions first, first + 1, …"""
        raise NotImplementedError

    def get(self, key: int) -> Any:
        raise NotImplementedError

    def get_many(self, keys: Sequence[int]) -> Any:
        return [self.get(key) for key in keys]

    def name(self, key: int) -> str:
        raise NotImplementedError


class ByNumber(Drawn):
    """Find examples of a source whose examples have numbers; the key is one."""

    def __init__(self, source: ExampleSource, settings: Settings) -> None:
        super().__init__(source, settings)
        self.length = checked_length(source)
        if self.length == 0:
            raise source.empty()
        self._blocks: dict[int, list[int]] = {}  # keys of BLOCK positions, the oldest first

    def keys(self, first: int, count: int) -> Sequence[int]:
        """Return the keys of positions. Where they are drawn, those of many positions take little
        more time than that of one: they are kept for the next call."""
        assert self.length is not None
        if self.settings.shuffle is False and self.settings.sampling == "once":
            return [position % self.length for position in range(first, first + count)]
        keys: list[int] = []
        start, end = first, first + count
        while start < end:
            number, begin = divmod(start, BLOCK)
            keys += self._block(number)[begin : begin + end - start]
            start = (number + 1) * BLOCK
        return keys

    def _block(self, number: int) -> list[int]:
        if number not in self._blocks:
            if len(self._blocks) >= BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = self._keys(np.arange(number * BLOCK, (number + 1) * BLOCK))
        return self._blocks[number]

    def _keys(self, positions: np.ndarray) -> list[int]:
        n, s = self.length, self.settings
        assert n is not None
        if s.sampling == "independent":
            return independent(n, positions, s.seed).tolist()
        return once(n, positions, s.seed, s.shuffle).tolist()

    def get(self, key: int) -> Any:
        return self.source.get(key)

    def get_many(self, keys: Sequence[int]) -> Any:
        return self.source.get_many(list(keys))

    def name(self, key: int) -> str:
        return self.source.name(key)


class ByReading(Drawn):
    """Find examples of a source that is read from its begin, in a pass for each epoch, shuffled in
    windows.

    The key is the position. Positions behind the last one asked for are read on to. What was read
    last is kept, as ranks do not ask in order; further back, a pass begins anew.
    """

    def __init__(self, source: ExampleSource, settings: Settings) -> None:
        super().__init__(source, settings)
        if settings.sampling == "independent":
            source.counted("sampling='independent'")
        shuffle = settings.shuffle
        self.window = WINDOW if shuffle is True else int(shuffle) or 1
        # Epoch and window -> names and examples in the order of the stream, the oldest first.
        self._kept: dict[tuple[int, int], list[tuple[str, Any]]] = {}
        self._restart(0)

    def _restart(self, epoch: int) -> None:
        self._epoch, self._read = epoch, 0  # of the pass: its epoch, how many examples it gave
        self._pass: Iterator[tuple[str, Any]] | None = None

    def digest(self) -> str:
        """Return a hash of the first examples: what reads on in another order elsewhere begins with
        others."""
        digest = Digest("read")
        for place in range(COMPARED):
            example = self._find(0, place)
            if example is None:
                break
            add_example(digest, example[1])
        return digest.text()

    def keys(self, first: int, count: int) -> Sequence[int]:
        return range(first, first + count)

    def get(self, key: int) -> Any:
        return self._at(key)[1]

    def name(self, key: int) -> str:
        epoch, place = divmod(key, self.length) if self.length else (0, key)
        number, inside = divmod(place, self.window)
        window = self._kept.get((epoch, number), [])
        return window[inside][0] if inside < len(window) else f"example {place} of the source"

    def _at(self, position: int) -> tuple[str, Any]:
        """Return the epoch and the place of a position, from the length, which the first pass to
        its end tells."""
        example = self._find(0, position) if self.length is None else None
        if example is not None:
            return example
        assert self.length is not None  # that pass came to its end
        epoch, place = divmod(position, self.length)
        if self.settings.epochs is not None and epoch >= self.settings.epochs:
            raise EndOfStream
        example = self._find(epoch, place)
        assert example is not None  # else _came_to_end has raised
        return example

    def _find(self, epoch: int, place: int) -> tuple[str, Any] | None:
        """Return the name and the example at a place of an epoch, reading on to it; None if the
        pass ends before."""
        number, inside = divmod(place, self.window)
        if (epoch, number) not in self._kept:
            if epoch != self._epoch or number * self.window < self._read:
                self._restart(epoch)
            while self._read <= place and self._read_window():
                pass
        window = self._kept.get((epoch, number), [])
        return window[inside] if inside < len(window) else None

    def _read_window(self) -> bool:
        """Read the next window of the pass, or what is left of it; return False if nothing is."""
        if self._pass is None:
            self._pass = iter(self.source.begin())
        try:
            # What is read on may write to the same array again.
            held = [(name, copied(e)) for name, e in islice(self._pass, self.window)]
        except Exception:
            self._restart(self._epoch)  # whoever asks again meets the same again
            raise
        if held:
            self._keep(self._read // self.window, held)
        self._read += len(held)
        if len(held) < self.window:
            self._came_to_end(self._read)
        return bool(held)

    def _keep(self, number: int, held: list[tuple[str, Any]]) -> None:
        if self.settings.shuffle is not False:
            places = permuted(
                len(held), np.arange(len(held)), self.settings.seed, self._epoch, number + 1)
            held = [held[k] for k in places.tolist()]
        while len(self._kept) * self.window >= KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[self._epoch, number] = held

    def _came_to_end(self, length: int) -> None:
        if length == 0:
            raise self.source.empty()
        if self.length is not None and length != self.length:
            raise self.source.wrong(
                "the source gave another number of examples than before",
                f"{self.length}, as in the first pass", str(length),
                "a source gives the same examples in the same order each time")
        self.length = length


class ByActing(Drawn):
    """Find what environments show: the key is the position; place and turn follow from it."""

    def __init__(self, source: ExampleSource, settings: Settings) -> None:
        super().__init__(source, settings)
        usual = Settings()
        wrong = [s for s in ("sampling", "epochs") if getattr(settings, s) != getattr(usual, s)]
        if wrong:
            raise UsageError(
                f"{wrong[0]} does not apply to environments", place=source.place,
                expected="what an environment shows next, without end",
                found=f"{wrong[0]}={getattr(settings, wrong[0])!r}", remedy=f"remove {wrong[0]}")

    def total(self) -> None:
        return None

    def keys(self, first: int, count: int) -> Sequence[int]:
        return range(first, first + count)

    def get(self, key: int) -> Any:
        return self.source.observe(key, self.settings.seed)

    def name(self, key: int) -> str:
        return self.source.name(key)


_MOST = 2**62  # examples that a source may have


def checked_length(source: ExampleSource) -> int:
    n = source.counted("a stream")
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 0 <= n < _MOST:
        raise source.wrong(f"length() of {type(source).__name__} is no number of examples",
                           "an integer from 0 and below 2**62, or None where only reading them all "
                           "can tell", repr(n))
    return int(n)


def drawn(source: ExampleSource, settings: Settings) -> Drawn:
    """Return how the examples of a source are found by position."""
    kinds = {"number": ByNumber, "reading": ByReading, "acting": ByActing}
    return kinds[source.found_by()](source, settings)
