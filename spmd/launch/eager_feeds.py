"""Feeds of eager runs: whole batches from the same supplies that fill the rings of images.

In: a pipeline's file, or PIPELINE@ADDRESS. Out: an object whose `batches` an eager run iterates.
Always holds: one ring that holds all rows, in Python alone: an eager run needs no engine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from codegen.errors import UsageError
from codegen.places import user_place
from spmd.data.pipeline_files import load_beside
from spmd.data.pipelines import Pipeline
from spmd.engine.feed_rings import FedFeed, FeedField
from spmd.launch.feeds import LEAST, served
from spmd.launch.iterable_supply import Supply
from spmd.launch.processes import Processes

WAIT_SECONDS = 0.1  # between two looks at whether the supply has failed


class WholeRing:
    """A ring for one reader that takes all rows: what FeedRing is for ranks."""

    depth = LEAST

    def __init__(self, feed: FedFeed) -> None:
        self.feed, self.rows, self.taken = feed, (0, feed.batch), 0
        self.error: BaseException | None = None
        self._there: dict[int, dict[str, np.ndarray]] = {}
        self._last: int | None = None
        self._changed = threading.Condition()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waits = False

    def put_whole(self, k: int, batches: int, arrays: Mapping[str, Any]) -> None:
        """Put the batches from k on, one behind the other."""
        rows = self.feed.batch
        for i in range(batches):
            part = {name: a[i * rows : (i + 1) * rows] for name, a in arrays.items()}
            self.put(k + i, [(0, rows, part)])

    def fill_ahead(self, batches: int) -> None:
        """Do nothing, since this ring tells of every batch."""

    def put(self, k: int, pieces: Sequence[tuple[int, int, Mapping[str, Any]]]) -> None:
        """Put batch k together from pieces of rows, as FeedRing does; rows of no piece are
        zeros."""
        whole = {f.name: np.zeros(f.shape, f.dtype) for f in self.feed.fields}
        for first, rows, fields in pieces:
            for name, array in whole.items():
                array[first : first + rows] = fields[name]
        with self._changed:
            self._there[k] = whole
            self._changed.notify_all()

    def end(self, k: int) -> None:
        with self._changed:
            self._last = k
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.error = error
            self._changed.notify_all()

    def fileno(self) -> int:
        return self._event

    def is_wanted(self, k: int) -> bool:
        return self._waits and self.taken == k

    def sent(self, k: int) -> None:
        """Do nothing, since an eager run sends nothing to workers."""

    def waits(self) -> tuple[float, float]:
        return 0.0, 0.0

    def take(self) -> dict[str, np.ndarray] | None:
        """Return the next batch; None at the end of the stream. Raises what the supply failed
        at."""
        with self._changed:
            self._waits = True
            while self.taken not in self._there and self._last != self.taken and self.error is None:
                self._changed.wait(WAIT_SECONDS)
            self._waits = False
            if (batch := self._there.pop(self.taken, None)) is not None:
                self.taken += 1
                os.eventfd_write(self._event, 1)
                return batch
            if self.error is not None:
                raise self.error
            return None

    def close(self) -> None:
        os.close(self._event)


class EagerFeed:
    """A feed that --feed names, for a run as plain NumPy."""

    masks = True  # its batches have the field mask, where one is declared

    def __init__(self, name: str, source: str, beside: list[Supply] | None = None,
                 mates: list[Pipeline] | None = None) -> None:
        """Note what is given for the feed. beside, mates: supplies of the other feeds of the run,
        and pipelines of files; its own come to them."""
        self.name, self.source = name, source
        self.mates: list[Pipeline] = [] if mates is None else mates
        self.beside: list[Supply] = [] if beside is None else beside
        self._acting: Pipeline | None = None  # of environments, which are here then
        self._open: Generator[dict[str, np.ndarray]] | None = None

    def batches(self, batch: int, fields: Mapping[str, tuple[Any, Any]]
                ) -> Iterator[dict[str, np.ndarray]]:
        """Return an iterator over whole batches. fields: shape of one example, and dtype."""
        source: str | Pipeline = self.source
        if "@" not in self.source:
            source = load_beside(self.source, self.mates)
            self.mates.append(source)
            if source.acts:
                source.check_batch(batch)
                self._acting = source
                return source.batches(batch, fields)
        self._open = self._served(source, batch, fields)
        return self._open

    def close(self) -> None:
        """End the feed's workers, wherever the program has stopped taking."""
        if self._open is not None:
            self._open.close()

    def send(self, first: int, values: Mapping[str, np.ndarray]) -> None:
        """Send values behind a batch, for the environments at the positions first, first + 1, …"""
        if self._acting is None:
            raise UsageError(
                f'the program sends values back to feed "{self.name}"', place=user_place(),
                expected="in an eager run: the file of a pipeline of data.environments",
                found=self.source, remedy="build it, and run the image with this feed")
        self._acting.send(first, values)

    def _served(self, source: str | Pipeline, batch: int, fields: Mapping[str, tuple[Any, Any]]
                ) -> Generator[dict[str, np.ndarray]]:
        feed = FedFeed(0, self.name, [FeedField(name, str(dtype), (batch, *shape))
                                      for name, (shape, dtype) in fields.items()], ())
        ring = WholeRing(feed)
        supply = served(source, feed, Processes(), (0,), beside=self.beside)
        self.beside.append(supply)
        supply.begin(feed, [ring], 0)  # type: ignore[list-item]
        try:
            while (arrays := ring.take()) is not None:
                yield arrays
        finally:
            supply.finish()
            ring.close()


@contextmanager
def eager_feeds(sources: Any) -> Iterator[Any]:
    """Yield the feeds that `run --eager --feed` gives, for program.eager(feed=…); close them behind
    the run."""
    single = isinstance(sources, str)
    beside: list[Supply] = []
    mates: list[Pipeline] = []
    feeds = {name: EagerFeed(name, text, beside, mates)
             for name, text in ({"feed": sources} if single else sources).items()}
    try:
        yield feeds["feed"] if single else feeds
    finally:
        for feed in feeds.values():
            feed.close()
