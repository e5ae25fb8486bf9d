"""The ring buffers of a feed in one process: batches go in, released results and values come out.

In: results of workers in order, as PieceLedger has them. Out: batches in rings; the results that no
rank looks at any more; what ranks sent back.
Always holds: a result is named as free once, after every rank has left all batches made of it.
"""

from __future__ import annotations

import os
import time
from collections import deque

import numpy as np

from codegen.short_batches import MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from spmd.feeding.consumers.piece_ledger import PieceLedger, PieceResult
    from spmd.feeding.consumers.worker_connection import WorkerConnection
    from spmd.feeding.messages.wire import Message


class RingBuffers:
    """The rings of the ranks of one process. start: number of the first batch. The feed may have a
    field `mask`, which is made here."""

    def __init__(self, feed: Any, rings: list[Any], ledger: PieceLedger, start: int) -> None:
        self.feed, self.rings, self.ledger = feed, rings, ledger
        self.masked = any(f.name == MASK for f in feed.fields)
        self.depth = self.ahead = max(2, min(r.depth for r in rings))
        # Given to rings, not taken yet: the batch behind them, how many, what they are made of.
        self.held: deque[tuple[int, int, list[PieceResult]]] = deque()
        self.lent: dict[str, int] = {}  # by result: batches that are not taken yet
        self.sent = start  # batches behind which values were sent back
        self.ended = False

    def taken(self) -> int:
        """Return the first batch that not every rank of this process has taken."""
        return min(int(r.taken) for r in self.rings)

    def blocks(self) -> int:
        """Return into how many parts ranks of this process divide a batch."""
        return sum(r.rows[0] < r.rows[1] for r in self.rings)

    def is_wanted(self, k: int) -> bool:
        return any(r.is_wanted(k) for r in self.rings)

    def owes_more(self, k: int) -> bool:
        """Return whether a rank waits for batch k that has sent nothing back for the one before."""
        return any(r.owes(k) for r in self.rings)

    def descriptors(self) -> list[int]:
        """Return descriptors that are readable after a rank took a batch or sent values."""
        return [r.fileno() for r in self.rings]

    def drain_events(self, ready: set[int]) -> None:
        """Reset the descriptors that are among the readable ones."""
        for fd in ready.intersection(self.descriptors()):
            os.eventfd_read(fd)

    def limit_ahead(self, batches: int, newest_first: bool = False) -> None:
        """Let at most so many batches be requested ahead of those taken; with newest_first, one is
        put into the rings ahead."""
        self.ahead = min(self.depth, batches)
        for ring in self.rings:
            ring.fill_ahead(1 if newest_first else self.ahead)

    def wait_times(self) -> tuple[float, float]:
        """Return the seconds for which ranks waited, and those between two takes, of the slowest
        ring."""
        waited, between = zip(*(r.waits() for r in self.rings))
        return max(waited), max(between)

    def fail(self, error: BaseException) -> None:
        for ring in self.rings:
            ring.fail(error)

    # ---- in

    def record_result(self, worker: WorkerConnection, message: Message,
                fields: list[dict[str, Any]]) -> list[str]:
        """Record the results of a message; return those of which nothing is needed any more."""
        bits = message["there"]
        first = (message["id"], message["rows"], message["region"], message["seconds"])
        free, now = [], time.monotonic()
        if asked := self.ledger.requests.get(message["id"]):
            worker.note_answer(now - asked.when, message["seconds"])
        for number, rows, region, seconds in (first, *(message["more"] or ())):
            wanted, arrays, there = self.ledger.is_wanted(number), {}, None
            if wanted:
                count = self.ledger.requests[number].piece.count
                arrays = worker.arrays_of_frames(message, fields, count) if region is None else (
                    worker.arrays_of_region(region, fields, count))
                there = worker.present_rows(bits, count) if bits else None
            batches = self.ledger.record(number, arrays, rows, there, message["end"], seconds,
                                       now)
            if wanted and region is not None:
                self.lent[number] = batches
            else:
                free.append(number)
            bits = None  # of the first: all rows of the others have an example
        return free

    def fill(self, newest_first: bool) -> None:
        """Put whole batches into the rings; with newest_first, one for each that was taken, since
        which one is newest is not known before."""
        while (not newest_first or self.ledger.next <= self.taken()) and (
                batch := self.ledger.pop_batch(newest_first)):
            k, batches, pieces = batch
            if len(pieces) == 1 and pieces[0].piece.count == pieces[0].piece.batches * (
                    self.feed.batch):
                arrays = self.arrays(pieces[0], pieces[0].rows_of(k, batches))
                for ring in self.rings:
                    ring.put_whole(k, batches, arrays)
            else:
                for ring in self.rings:
                    ring.put(k, self.row_parts(ring.rows, pieces))
            self.held.append((k + batches, batches, pieces))

    def end(self) -> bool:
        """Tell the rings that the stream has ended, once it has; return True when it does."""
        if self.ended or not self.ledger.has_ended():
            return False
        self.ended = True
        for ring in self.rings:
            ring.end(self.ledger.next)
        return True

    def row_parts(self, rows: tuple[int, int], pieces: list[PieceResult]) -> list[Any]:
        """Return (first row, rows, arrays) of the results that lie in these rows."""
        parts = []
        for result in pieces:
            begin = max(result.piece.row, rows[0])
            end = min(result.piece.row + result.piece.count, rows[1])
            if begin < end:
                cut = slice(begin - result.piece.row, end - result.piece.row)
                parts.append((begin, end - begin, self.arrays(result, cut)))
        return parts

    def arrays(self, result: PieceResult, cut: slice) -> dict[str, np.ndarray]:
        """Return some rows of a result, with the mask."""
        arrays = result.arrays
        if cut.stop - cut.start < result.piece.count:
            arrays = {name: a[cut] for name, a in arrays.items()}
        if self.masked:
            there = np.ones(cut.stop - cut.start, np.bool_) if result.there is None else (
                result.there[cut])
            arrays = {**arrays, MASK: there}
        return arrays

    # ---- out

    def free(self) -> dict[str, list[str]]:
        """Return the results that no rank looks at any more, by worker."""
        taken, freed = self.taken(), {}  # type: ignore[var-annotated]
        while self.held and self.held[0][0] <= taken:
            _, batches, pieces = self.held.popleft()
            for result in pieces:
                left = self.lent.pop(result.number, 0) - batches
                if left > 0:
                    self.lent[result.number] = left
                elif left == 0:
                    freed.setdefault(result.worker, []).append(result.number)
        return freed

    def take_returned(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield values of feed.send(): a position, and a row for each place from there on."""
        while all(r.sent(self.sent) is not None for r in self.rings):
            for ring in self.rings:
                values = {n: np.ascontiguousarray(v) for n, v in ring.sent(self.sent).items()}
                yield self.sent * self.feed.batch + ring.rows[0], values
            self.sent += 1
