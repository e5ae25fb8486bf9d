"""Supplies of feeds: who fills the rings of a process with batches; and one from a Python iterable.

In: an iterable of dicts of whole batches, or a function that gives one. Out: batches in rings.
Always holds: every process iterates alike, and each keeps the rows of its ranks; arrays are copied,
so that the iterable may use its own again.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from codegen import dtypes
from codegen.errors import InputError, SpmdError, UsageError
from codegen.places import is_user_file, place_at
from codegen.short_batches import MASK, not_given
from codegen.user import whole_batches
from codegen.user.casts import may_cast, range_text
from codegen.user.named import by_path
from spmd.engine.feed_rings import FedFeed, FeedField, FeedRing, are_idle
from spmd.launch.processes import say

AHEAD = 16  # batches that are read ahead, at most
LEAVE_SECONDS = 2.0  # for which the end of a run waits for an iterable that computes
WANTED_SECONDS = 0.01  # between two looks at whether a rank waits for a batch that failed


class Supply(Protocol):
    """Whoever fills rings with batches, from `begin` until `finish`.

    A ring of no rows hears of every batch too, `put(k, [])`, `end(k)`: where the program asks for
    more, see are_idle.
    """

    def begin(self, feed: FedFeed, rings: list[FeedRing], start: int) -> None:
        """Fill the rings from batch `start` on, on threads of its own; what goes wrong there goes
        to `fail` of a ring."""

    def finish(self) -> None:
        """Stop, so that from now on no ring is touched. It may be begun again, at a batch that was
        not taken."""


class IterableSupply:
    """Batches that an iterable gives as dicts of arrays by field, each with all rows.

    A thread reads ahead as far as the rings have room. A stream ends with its iterable, or with a
    batch that has fewer rows and no field `mask`, which is not given.
    """

    def __init__(self, source: Iterable[Mapping[str, Any]] | Callable[[], Any],
                 speaks: bool = True) -> None:
        self.source, self.speaks = source, speaks  # speaks: this process says what there is to say
        self.stream: Iterator[Any] | None = None
        self.next = 0  # of the stream
        self.held: dict[int, dict[str, np.ndarray]] = {}  # whole batches that may not be taken yet
        self.ended: int | None = None
        self.reply: dict[str, Any] | None = None  # that a generator has not been told yet
        self.thread: threading.Thread | None = None
        self.stops = False
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def begin(self, feed: FedFeed, rings: list[FeedRing], start: int) -> None:
        """Raises UsageError where batch `start` cannot be had any more."""
        if are_idle(feed, rings):
            return
        if self.thread is not None and self.thread.is_alive():
            raise InputError(f'feed "{feed.name}": the iterable still computes batch {self.next}',
                             expected="that it gives a batch, or ends", found="neither, since the "
                             "run before this one has ended", remedy="another iterable")
        if self.stream is None or (start < self.next and start not in self.held
                                   and self.ended != start):
            self._open(feed, start)
        if feed.sends:
            self._check_told(feed, rings, start)
        self.stops = False
        self.thread = threading.Thread(target=self._run, args=(feed, rings, start), daemon=True,
                                       name=f"feed {feed.name}")
        self.thread.start()

    def _open(self, feed: FedFeed, start: int) -> None:
        source = self.source() if callable(self.source) else self.source
        try:
            stream = iter(source)
        except TypeError:
            raise UsageError(
                f'feed "{feed.name}" is given something that has no batches',
                expected="an iterable of dicts of arrays, a function that gives one, a pipeline, "
                "or the path of a pipeline's file", found=type(source).__name__) from None
        if self.stream is not None and stream is self.stream:
            raise UsageError(
                f'feed "{feed.name}": the iterable is beyond batch {start}',
                expected="one that can begin again: a list, or a function that gives an iterator",
                found=f"an iterator that has given {self.next} batches")
        self.stream, self.next, self.held, self.ended, self.reply = stream, 0, {}, None, None

    def _check_told(self, feed: FedFeed, rings: list[FeedRing], start: int) -> None:
        """Check that all that ranks send reaches the iterable. Raises UsageError."""
        if not isinstance(self.stream, Generator):
            raise whole_batches.untold(feed.name)
        rows = {row for ring in rings for row in range(*ring.rows)}
        if len(rows) < feed.batch:
            raise UsageError(
                f'feed "{feed.name}": a generator is told what ranks of other processes send',
                expected=f"all {feed.batch} rows of an answer in each process",
                found=f"{len(rows)} rows", remedy="one process, run --ranks N; fields with "
                "layout=spmd.replicated; or a pipeline of data.environments")
        if start > self.next:
            raise UsageError(
                f'feed "{feed.name}": a generator cannot go on at batch {start}',
                expected="what it was told behind the batches before", found="a run that goes on "
                "from a checkpoint", remedy="a pipeline of data.environments, which begins anew")

    def finish(self) -> None:
        """Waits a moment for the thread; one that is inside the iterable then stays there."""
        self.stops = True
        os.eventfd_write(self.wake, 1)
        if self.thread is not None:
            self.thread.join(LEAVE_SECONDS)

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self, feed: FedFeed, rings: list[FeedRing], start: int) -> None:
        k = start
        for ring in rings:
            ring.fill_ahead(AHEAD)
        try:
            while self._has_room(rings, k):
                if feed.sends and k > start and k not in self.held:
                    self._await_reply(feed, rings, k - 1)
                batch = self._batch(feed, k, min(rings[0].depth, AHEAD))
                if self.stops:
                    return
                if batch is None:
                    for ring in rings:
                        ring.end(k)
                    return
                for ring in rings:
                    begin, end = ring.rows
                    part = {name: array[begin:end] for name, array in batch.items()}
                    ring.put(k, [(begin, end - begin, part)] if begin < end else [])
                k += 1
        except BaseException as error:
            self._fail(rings, k, error)

    def _has_room(self, rings: list[FeedRing], k: int) -> bool:
        """Waits until batch k has room in all of them. False: nobody wants more."""
        while not self.stops and any(
                k >= ring.taken + min(ring.depth, AHEAD) for ring in rings):
            self._wait(rings)
        return not self.stops

    def _wait(self, rings: list[FeedRing], seconds: float | None = None) -> None:
        """Wait until something was taken or sent, or the run ends."""
        poll = select.poll()
        for fd in (self.wake, *(ring.fileno() for ring in rings)):
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(None if seconds is None else 1000 * seconds):
            try:
                os.eventfd_read(fd)
            except BlockingIOError:
                pass

    def _await_reply(self, feed: FedFeed, rings: list[FeedRing], k: int) -> None:
        """Waits for what ranks send behind batch k, until one asks for the next batch without."""
        while True:
            over = self.stops  # what came before is not lost: the next run goes on with it
            parts = [(ring.rows, ring.sent(k)) for ring in rings]
            if all(part is not None for _, part in parts):
                reply = {f.name: np.empty(f.shape, f.dtype) for f in feed.sends}
                for name, whole in reply.items():
                    for (begin, end), part in parts:
                        whole[begin:end] = part[name]  # type: ignore[index]
                self.reply = whole_batches.told(reply)
                return
            if over or any(ring.owes(k + 1) for ring in rings):
                return
            self._wait(rings, WANTED_SECONDS)

    def _fail(self, rings: list[FeedRing], k: int, error: BaseException) -> None:
        """Ends the run, once a rank asks for the batch that could not be had."""
        while not self.stops and not any(ring.is_wanted(k) for ring in rings):
            threading.Event().wait(WANTED_SECONDS)
        if not self.stops:
            rings[0].fail(error)

    # ---- batches ---------------------------------------------------------------------------------

    def _batch(self, feed: FedFeed, k: int, depth: int) -> dict[str, np.ndarray] | None:
        """Return the whole batch k, or None if there is none."""
        if k in self.held:
            return self.held[k]
        assert self.stream is not None
        while self.ended is None and self.next <= k and not self.stops:
            batch = self._read(feed)
            if self.ended is None and self.next == k:
                self.held[k] = self._whole(feed, k, batch, self.held.pop(k - depth, None))
            self.next += self.ended is None
        for old in [n for n in self.held if n < k - depth]:
            del self.held[old]
        return self.held.get(k)

    def _read(self, feed: FedFeed) -> Any:
        """Return the next item of the iterable; set `ended` where there is none."""
        assert self.stream is not None
        try:
            reply, self.reply = self.reply, None
            batch = next(self.stream) if reply is None else self.stream.send(reply)  # type: ignore
        except StopIteration:
            self.ended = self.next
            return None
        except SpmdError:
            raise
        except Exception as error:
            raise _iterable_error(feed, self.next, error) from error
        batch = by_path(batch, [f.name for f in feed.fields],
                        f'feed "{feed.name}", batch {self.next}: field')
        rows = _rows(feed, batch)
        if rows is not None and rows < feed.batch and all(f.name != MASK for f in feed.fields):
            self.ended = self.next
            if self.speaks:
                say("spmd: " + not_given(f'feed "{feed.name}"', rows, feed.batch))
        return batch

    def _whole(self, feed: FedFeed, k: int, batch: Any, into: dict[str, np.ndarray] | None
               ) -> dict[str, np.ndarray]:
        where = f'feed "{feed.name}", batch {k}'
        if not isinstance(batch, Mapping):
            raise InputError(f"{where} is no dict of arrays", found=type(batch).__name__,
                             expected="arrays by the names of fields: {" + ", ".join(
                                 f'"{f.name}": …' for f in feed.fields) + "}")
        known = [f.name for f in feed.fields]
        for name in batch:
            if name not in known:
                raise InputError(f"{where} has a field {name!r} that the feed does not declare",
                                 expected=", ".join(known), found=", ".join(map(str, batch)))
        rows, arrays = _rows(feed, batch), {}
        for field in feed.fields:
            array = into[field.name] if into else np.empty(field.shape, field.dtype)
            if field.name in batch:
                part = _converted(where, field, batch[field.name], rows)
                array[: len(part)] = part
                array[len(part) :] = np.zeros((), field.dtype)
            elif field.name == MASK:
                array[:rows], array[rows:] = True, False
            else:
                raise InputError(f"{where} has no field {field.name}", expected=", ".join(known),
                                 found=", ".join(map(str, batch)) or "none")
            arrays[field.name] = array
        return arrays


def _rows(feed: FedFeed, batch: Any) -> int | None:
    """Return how many rows a batch has, by its first field; None where it has none."""
    for field in feed.fields:
        if isinstance(batch, Mapping) and field.name in batch and field.name != MASK:
            shape = getattr(batch[field.name], "shape", None)
            if shape is None:
                shape = np.shape(batch[field.name])
            return int(shape[0]) if len(shape) else None
    return None


def _converted(where: str, field: FeedField, value: Any, rows: int | None) -> np.ndarray:
    """Return an array of the declared dtype, cast as workers cast what a pipeline gives."""
    try:
        array: np.ndarray = dtypes.as_numpy(value)
    except SpmdError as error:  # it says what is wrong with the value, and what to do
        raise InputError(f"{where}: field {field.name}: {error.message}", expected=error.expected,
                         found=error.found, remedy=error.remedy) from None
    except Exception as error:
        raise InputError(f"{where}: field {field.name} is no array: {error}",
                         expected=f"{field.dtype} {list(field.shape)}",
                         found=type(value).__name__) from None
    if not may_cast(array, field.dtype):
        raise InputError(f"{where}: field {field.name} has dtype {array.dtype}, which does not fit "
                         f"{field.dtype}", expected=str(field.dtype),
                         found=f"{array.dtype}{range_text(array)}",
                         remedy=f"array.astype({str(field.dtype)!r})")
    wanted = (rows if rows is not None and rows <= field.shape[0] else field.shape[0],
              *field.shape[1:])
    if array.shape != wanted:
        raise InputError(f"{where}: field {field.name} has another shape",
                         expected=str(wanted), found=str(array.shape),
                         remedy="a batch has all rows, of all ranks; each takes its part")
    return array.astype(field.dtype, copy=False)


def _iterable_error(feed: FedFeed, k: int, error: Exception) -> InputError:
    """Return the error for what an iterable has raised, with the line in which it did."""
    place, step = None, error.__traceback__
    while step is not None:
        if is_user_file(step.tb_frame.f_code.co_filename):
            place = place_at(step)
        step = step.tb_next
    text = str(error).strip() or "no message"
    return InputError(f'feed "{feed.name}", batch {k}: {type(error).__name__}: {text}', place=place,
                      expected="an iterable that gives batches, or ends")


def supply_of(source: Any, feed: FedFeed, speaks: bool) -> Supply | None:
    """Return the supply of something that Python itself can iterate; None: another one is meant."""
    if all(callable(getattr(source, name, None)) for name in ("begin", "finish")):
        supply: Supply = source
        return supply
    if isinstance(source, (str, os.PathLike)) or hasattr(source, "compute"):
        return None
    is_batches = callable(source) or hasattr(source, "__iter__")
    if not is_batches or isinstance(source, (Mapping, bytes)):
        raise UsageError(f'feed "{feed.name}" is given something that has no batches',
                         expected="an iterable of dicts of arrays, a function that gives one, a "
                         "pipeline, or the path of a pipeline's file", found=type(source).__name__)
    return IterableSupply(source, speaks)
