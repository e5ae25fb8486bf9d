"""A ledger of the pieces of batches: each is requested of a worker, and recorded once.

In: how many batches there is room for, results of workers, workers that are lost. Out: pieces to
request, whole batches in order. Pure bookkeeping: no sockets, no clock of its own.
Always holds: a row of a batch is filled exactly once, however often its piece was requested.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from spmd.feeding.messages.wire import new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

DEADLY = 2  # so many workers that died at one example are enough,
KILLED = 3  # or so many with those that somebody killed: that may have been the kernel
LATE_S = 0.25  # beside what a piece should take, until another worker is asked for it
FIRST_S = 3.0  # the same where nothing was measured yet: the first piece has imports in it
LEAST_S = 5e-3  # a piece of less work is not worth a message
MOST_BYTES = 64 << 20  # of a piece
LEAST_BYTES = 64  # that a row counts for: an answer says of each whether it has an example
LEFT_OUT = 4096  # positions that a worker is told of
MOST_S = 0.25  # of a piece of several examples: who comes to its worker meanwhile waits so long
SPAN_BYTES = 8 << 20  # of a piece of several batches: a few of them lie in a cache


@dataclass(order=True)
class BatchPiece:
    """Rows of batch k from row `row` on: the examples at `count` positions from `first` on.

    batches: if more than one, the piece is all rows of batch k and of the batches behind it.
    """

    k: int
    row: int
    count: int = field(compare=False)
    first: int = field(compare=False)
    batches: int = field(default=1, compare=False)

    def per_batch(self) -> list[BatchPiece]:
        """Return the pieces of one batch each of which this one consists."""
        if self.batches == 1:
            return [self]
        rows = self.count // self.batches
        return [BatchPiece(self.k + i, 0, rows, self.first + i * rows)
                for i in range(self.batches)]


@dataclass
class PieceRequest:
    """A piece that a worker was asked for. spare: it is computed in time that others leave, and may
    take any time."""

    piece: BatchPiece
    worker: str
    when: float
    spare: bool


@dataclass
class PieceResult:
    """Holds a worker's answer to a request.

    arrays: of `piece.count` rows, zeros where there is no example. there: which rows have one, None
    where all do. number: by which its worker knows it.
    """

    piece: BatchPiece
    arrays: dict[str, Any]
    there: np.ndarray | None
    worker: str
    number: str

    def rows_of(self, k: int, batches: int) -> slice:
        """Return which of its rows belong to so many batches from batch k on."""
        each = self.piece.count // self.piece.batches
        begin = (k - self.piece.k) * each if self.piece.batches > 1 else 0
        return slice(begin, begin + batches * each)


class PieceLedger:
    """The pieces of one consumer: those that wait, those that are requested, and their results.

    segments: the ranges of rows of each batch that this consumer holds, disjoint, in order.
    keeps_cut: each batch is cut as the first was, so that a place stays with its worker.
    """

    def __init__(self, segments: list[tuple[int, int]], batch: int, start: int, *, masked: bool,
                 row_bytes: int = 1, keeps_cut: bool = False) -> None:
        self.segments, self.batch, self.masked = segments, batch, masked
        self.row_bytes = max(row_bytes, LEAST_BYTES)
        self.keeps_cut = keeps_cut
        self.cut: list[tuple[int, int]] = []  # (first row, rows) of the pieces of a batch
        self.opened = self.next = start  # batches below are asked for; below: were given on
        self.end: int | None = None  # positions of the stream, once known
        self.paused = False  # nothing is given on
        self.waiting: list[BatchPiece] = []
        self.requests: dict[str, PieceRequest] = {}
        self.results: dict[int, dict[int, PieceResult]] = {}  # by batch and row
        self.piece_counts: dict[int, int] = {}  # how many each open batch has
        self.deaths: dict[int, list[bool]] = {}  # by position: was it killed from outside?
        self.skipped: set[int] = set()
        self.examples_at_once = 1  # examples that the pipeline computes at once
        self.example_s = 0.0  # measured; 0: not yet
        self.round_trip_s = 0.0  # from asking to the answer, the way between included

    # ---- how many batches there are

    def batches(self) -> int | None:
        """Return how many batches the stream has, None if that is not known yet. The last one may
        be short where there is a mask."""
        if self.end is None:
            return None
        return -(-self.end // self.batch) if self.masked else self.end // self.batch

    def pause(self) -> int:
        """Hand over no further batch; return how many were handed over."""
        self.paused = True
        return self.next

    def end_after(self, batches: int) -> None:
        """End the stream after so many batches; at most so many were handed over already."""
        self.paused = False
        self._ends_at(batches * self.batch)

    def _ends_at(self, position: int) -> None:
        self.end = position if self.end is None else min(self.end, position)

    def leftover_examples(self) -> int:
        """Return how many examples at the end fill no batch, and are dropped."""
        return 0 if self.masked or self.end is None else self.end % self.batch

    def has_ended(self) -> bool:
        last = self.batches()
        return last is not None and self.next >= last

    # ---- pieces

    def cut_batches(self, room: int, workers: int, depth: int, span: int = 1,
                   stop: int | None = None, small: bool = False) -> None:
        """Cut the batches for which there is room, those before `room`, into pieces that wait to be
        requested.

        span: so many batches may be one piece, where each alone is not worth a message. stop: no
        batch from here on is asked for. small: the smallest pieces that are worth a message: they
        find a place between those of others.
        """
        if self.opened >= room:
            return
        limit = min(n for n in (room, stop, self.batches()) if n is not None)
        while self.opened < limit:
            k, many = self.opened, self._batches_per_piece(workers, depth, span)
            if room - k < many:
                break  # nearly all of the room is filled, or will be: a whole piece has time
            if (many := min(many, limit - k)) > 1:
                self._cut_span(k, many)
                continue
            self.opened = k + 1
            self.results[k], self.piece_counts[k] = {}, 0
            if not self.cut or not self.keeps_cut:
                self.cut = [rows for begin, end in self.segments
                            for rows in self._cut(k, begin, end, workers, depth, small)]
            for row, count in self.cut:
                heapq.heappush(self.waiting, BatchPiece(k, row, count, k * self.batch + row))
                self.piece_counts[k] += 1
            if not self.segments:  # no rows here: this process must only know where it ends
                heapq.heappush(self.waiting, BatchPiece(k, 0, 0, k * self.batch))
                self.piece_counts[k] = 1

    def skip_batches(self, limit: int) -> None:
        """Mark batches before `limit` as whole: they have no rows here, and it is known where the
        stream ends."""
        last = self.batches()
        self.waiting.clear()
        for k in range(self.next, limit if last is None else min(limit, last)):
            self.results[k], self.piece_counts[k], self.opened = {}, 0, max(self.opened, k + 1)

    def _batches_per_piece(self, workers: int, depth: int, span: int) -> int:
        """Return how many batches are worth one piece."""
        if span < 2 or not self.example_s or self.segments != [(0, self.batch)]:
            return 1
        most = min(span, depth // (2 * max(workers, 1)),
                   SPAN_BYTES // (self.row_bytes * self.batch))
        return max(1, min(most, int(LEAST_S / (self.example_s * self.batch))))

    def _cut_span(self, k: int, many: int) -> None:
        self.opened = k + many
        for number in range(k, k + many):
            self.results[number], self.piece_counts[number] = {}, 1
        heapq.heappush(self.waiting,
                       BatchPiece(k, 0, many * self.batch, k * self.batch, many))

    def _cut(self, k: int, begin: int, end: int, workers: int, depth: int,
             small: bool) -> Iterator[tuple[int, int]]:
        """Yield (first row, rows) of pieces of a batch: enough for all workers, none too small to
        be worth a message, cut between examples that the pipeline computes one by one."""
        rows = -(-(end - begin) * depth // (2 * max(workers, 1)))
        if self.example_s:
            least = round(LEAST_S / self.example_s)
            rows = least if small else max(rows, least)
        rows = max(1, min(rows, MOST_BYTES // self.row_bytes, end - begin))
        row, base = begin, k * self.batch
        while row < end:
            stop = row + rows
            if self.examples_at_once > 1:  # at the next multiple, counted in positions
                stop = -(-(base + stop) // self.examples_at_once) * self.examples_at_once - base
            stop = min(stop, end)
            yield row, stop - row
            row = stop

    def request(self, worker: str, now: float, spare: bool = False) -> list[Any] | None:
        """Request the next piece of a worker; return it as an item of a take message, None if no
        piece waits."""
        if not self.waiting:
            return None
        piece = heapq.heappop(self.waiting)
        self._split_long(piece)
        return self._request(piece, worker, now, spare)

    def _split_long(self, piece: BatchPiece) -> None:
        """Cut a piece that would take too long, as measured since it was cut; its rest waits."""
        if self.keeps_cut or piece.batches > 1 or not self.example_s:
            return
        stop = piece.first + max(1, int(MOST_S / self.example_s))
        stop = -(-stop // self.examples_at_once) * self.examples_at_once
        if (less := stop - piece.first) < piece.count:
            heapq.heappush(self.waiting, BatchPiece(
                piece.k, piece.row + less, piece.count - less, stop))
            piece.count = less
            self.piece_counts[piece.k] += 1

    def request_again(self, number: str, worker: str, now: float, spare: bool = False) -> list[Any]:
        """Request a piece once more, of another worker: the first result is recorded."""
        return self._request(self.requests[number].piece, worker, now, spare)

    def workers_asked(self, number: str) -> set[str]:
        """Return the workers that were asked for the piece of a request."""
        piece = self.requests[number].piece
        return {a.worker for a in self.requests.values() if a.piece == piece}

    def _request(self, piece: BatchPiece, worker: str, now: float, spare: bool) -> list[Any]:
        number = new_id()
        self.requests[number] = PieceRequest(piece, worker, now, spare)
        # Rows here do not tell whether the last rows of the batch are there.
        end = (piece.k + piece.batches) * self.batch - 1
        through = max(piece.first, piece.first + piece.count - 1) if self.masked else end
        stop = piece.first + piece.count  # before it too: what is computed together begins there
        out = sorted(p for p in self.skipped if piece.first - LEFT_OUT <= p < stop)
        return [number, piece.first, piece.count, through, out[-LEFT_OUT:]]

    def outstanding(self, workers: Iterable[str]) -> dict[str, int]:
        """Return how many pieces each of these workers owes."""
        counts = dict.fromkeys(workers, 0)
        for asked in self.requests.values():
            if asked.worker in counts:
                counts[asked.worker] += 1
        return counts

    def requests_to(self, worker: str) -> list[str]:
        return [n for n, a in self.requests.items() if a.worker == worker]

    def overdue_request(self, now: float, has_own: bool = True) -> str | None:
        """Return a request that holds up the next batch and takes much longer than it should, or
        None.

        has_own: there are workers with a share: they do soon what others leave no time for.
        """
        if self.keeps_cut:  # environments must not act twice
            return None
        for number, asked in self.requests.items():
            piece = asked.piece
            if not piece.k <= self.next < piece.k + piece.batches:
                continue
            takes = max(self.example_s * max(piece.count, self.examples_at_once), self.round_trip_s)
            same = [a for a in self.requests.values() if a.piece == piece]
            spare = all(a.spare for a in same)
            expected = FIRST_S if not self.example_s else (
                LEAST_S + takes if spare and has_own else LATE_S + 4 * takes)
            if (now - max(a.when for a in same) > expected and (spare or not self.waiting)
                    and sum(not a.spare for a in same) < 2):
                return number
        return None

    # ---- answers

    def batch_of(self, position: int) -> int:
        """Return the number of the batch in which ranks get a position: that of its place in the
        stream, unless a newer batch took it."""
        for piece in (*self.waiting, *(a.piece for a in self.requests.values())):
            for part in piece.per_batch():
                if part.first <= position < part.first + part.count:
                    return part.k
        return position // self.batch

    def is_wanted(self, number: str) -> bool:
        asked = self.requests.get(number)
        return asked is not None and bool(self._still_open(asked.piece))

    def _still_open(self, piece: BatchPiece) -> list[int]:
        """Return the batches of a piece that lack its rows."""
        begin, end = max(piece.k, self.next), piece.k + piece.batches
        return [k for k in range(begin, end) if piece.row not in self.results.get(k, ())]

    def record(self, number: str, arrays: dict[str, Any], rows: int,
             there: np.ndarray | None, end: int | None, seconds: float,
             now: float | None = None) -> int:
        """Record a result; return how many batches get rows from it, 0 if none needs it any more.

        there: which of the piece's rows have an example; None: the first `rows` of them.
        """
        if end is not None:
            self._ends_at(end)
        asked = self.requests.pop(number, None)
        wanted = self._still_open(asked.piece) if asked else []
        if asked is None or not wanted:
            return 0
        piece = asked.piece
        if now is not None and rows and not asked.spare:
            weight = 0.2 if self.round_trip_s else 1.0
            self.round_trip_s += (now - asked.when - self.round_trip_s) * weight
        if there is None and (rows < piece.count or self.skipped):
            there = np.arange(piece.count) < rows
        if there is not None:
            for position in self.skipped:
                if 0 <= (row := position - piece.first) < piece.count:
                    there[row] = False
        result = PieceResult(piece, arrays, there, asked.worker, number)
        for k in wanted:
            self.results[k][piece.row] = result
        if rows and seconds:
            mean = seconds / max(rows, self.examples_at_once)
            self.example_s = 0.8 * self.example_s + 0.2 * mean if self.example_s else mean
        return len(wanted)

    def split(self, number: str) -> bool:
        """Split a piece of several batches, which failed, into one for each; return False if it has
        only one."""
        if self.requests[number].piece.batches == 1:
            return False
        self.requeue([number])
        return True

    def requeue(self, numbers: list[str]) -> None:
        """Have the pieces of requests that will not be answered wait again, unless another worker
        was asked too. Each batch does so by itself, so that one that fails again holds up no
        other."""
        for number in numbers:
            asked = self.requests.pop(number, None)
            if asked is None:
                continue
            piece = asked.piece
            again = any(a.piece == piece for a in self.requests.values())
            for part in () if again else filter(self._still_open, piece.per_batch()):
                heapq.heappush(self.waiting, part)

    def count_death(self, position: int, outside: bool = False) -> int:
        """Count that a worker died while it computed a position, or was killed from outside then;
        return how many did, if these are enough to say that the example is the cause, else 0."""
        deaths = self.deaths.setdefault(position, [])
        deaths.append(outside)
        return len(deaths) if deaths.count(False) >= DEADLY or len(deaths) >= KILLED else 0

    def pop_batch(self, newest_first: bool = False) -> tuple[int, int, list[PieceResult]] | None:
        """Take out the next batch if all of it is there, with those behind it that came in the same
        piece; return its number, how many batches these are, and their results in order.

        newest_first: of those that are there, the one furthest on in the stream takes its place.
        """
        if self.paused or self.next >= self.opened or self.has_ended():
            return None
        k, batches = self.next, 1
        if newest_first and not self._has_spans():
            there = [j for j in self.results if len(self.results[j]) == self.piece_counts[j]]
            newest = max(there, key=self._first_position, default=k)
            if newest != k:
                self._swap_batches(k, newest)
        results = self.results[k]
        if len(results) < self.piece_counts[k]:
            return None
        first, last = next(iter(results.values()), None), self.batches()
        if first and first.piece.batches > 1:
            end = first.piece.k + first.piece.batches
            end = end if last is None else min(end, last)
            while k + batches < end and self.results[k + batches].get(0) is first:
                batches += 1
        for number in range(k, k + batches):
            del self.results[number], self.piece_counts[number]
        self.next += batches
        return k, batches, [results[row] for row in sorted(results)]

    def _first_position(self, k: int) -> int:
        """Return the position of the first example of what is now batch k, which is whole."""
        return min((result.piece.first for result in self.results[k].values()),
                   default=k * self.batch)

    def _has_spans(self) -> bool:
        """Return whether pieces of several batches are under way: these keep their order."""
        pieces = [*self.waiting, *(a.piece for a in self.requests.values()),
                  *(result.piece for by_row in self.results.values() for result in by_row.values())]
        return any(piece.batches > 1 for piece in pieces)

    def _swap_batches(self, k: int, newer: int) -> None:
        """Number batch `newer` as k, and what is still requested for k as `newer`."""
        for number in [n for n, a in self.requests.items() if a.piece.k == newer]:
            del self.requests[number]  # asked for twice, and there already
        self.results[k], self.results[newer] = self.results[newer], self.results[k]
        counts = self.piece_counts
        counts[k], counts[newer] = counts[newer], counts[k]
        moved = {id(p): p for p in [*self.waiting, *(a.piece for a in self.requests.values())]}
        for piece in moved.values():
            if piece.k == k:
                piece.k = newer
        heapq.heapify(self.waiting)


def merge_ranges(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, those that overlap or touch joined.

    ::

        >>> merge_ranges([(4, 8), (0, 4), (12, 16)])
        [(0, 8), (12, 16)]
    """
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(rows):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif begin < end:
            merged.append((begin, end))
    return merged
