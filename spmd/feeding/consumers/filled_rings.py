"""The rings of a feed in one process: whole batches go in, memory of workers and values come out.

In: what workers answered, as Asking has it, in order. Out: batches in rings; the results that no
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

    from spmd.feeding.consumers.asked_worker import AskedWorker
    from spmd.feeding.consumers.asking import Asking, Filled
    from spmd.feeding.messages.wire import Message


class FilledRings:
    """start: number of the first batch. The feed may have a field `mask`, which is made here."""

    def __init__(self, feed: Any, rings: list[Any], asking: Asking, start: int) -> None:
        self.feed, self.rings, self.asking = feed, rings, asking
        self.masked = any(f.name == MASK for f in feed.fields)
        self.depth = self.ahead = max(2, min(r.depth for r in rings))
        # Given to rings, not taken yet: the batch behind them, how many, what they are made of.
        self.held: deque[tuple[int, int, list[Filled]]] = deque()
        self.lent: dict[str, int] = {}  # by result: batches that are not taken yet
        self.sent = start  # batches behind which values were sent back
        self.ended = False

    def taken(self) -> int:
        """Every rank of this process has taken the batches before this one."""
        return min(int(r.taken) for r in self.rings)

    def blocks(self) -> int:
        """How many parts of a batch ranks of this process take, each its own."""
        return sum(r.rows[0] < r.rows[1] for r in self.rings)

    def is_wanted(self, k: int) -> bool:
        return any(r.is_wanted(k) for r in self.rings)

    def owe(self, k: int) -> bool:
        """Whether a rank waits for batch k that has sent nothing back behind the one before."""
        return any(r.owes(k) for r in self.rings)

    def descriptors(self) -> list[int]:
        """Readable after something was taken, or sent."""
        return [r.fileno() for r in self.rings]

    def hear(self, ready: set[int]) -> None:
        """ready: descriptors at which there is something."""
        for fd in ready.intersection(self.descriptors()):
            os.eventfd_read(fd)

    def fill_ahead(self, batches: int, newest_first: bool = False) -> None:
        """No more than so many are made ahead of those taken; of the newest, one is put ahead."""
        self.ahead = min(self.depth, batches)
        for ring in self.rings:
            ring.fill_ahead(1 if newest_first else self.ahead)

    def waits(self) -> tuple[float, float]:
        """Seconds for which ranks waited, and seconds between two takes: of the slowest ring."""
        waited, between = zip(*(r.waits() for r in self.rings))
        return max(waited), max(between)

    def fail(self, error: BaseException) -> None:
        for ring in self.rings:
            ring.fail(error)

    # ---- in

    def take_in(self, worker: AskedWorker, message: Message,
                fields: list[dict[str, Any]]) -> list[str]:
        """An answer. Gives the results in it that nobody looks at any more."""
        bits = message["there"]
        first = (message["id"], message["rows"], message["region"], message["seconds"])
        free, now = [], time.monotonic()
        if asked := self.asking.asked.get(message["id"]):
            worker.answered(now - asked.when, message["seconds"])
        for number, rows, region, seconds in (first, *(message["more"] or ())):
            wanted, arrays, there = self.asking.is_wanted(number), {}, None
            if wanted:
                count = self.asking.asked[number].piece.count
                arrays = worker.in_frames(message, fields, count) if region is None else (
                    worker.in_region(region, fields, count))
                there = worker.rows_there(bits, count) if bits else None
            batches = self.asking.fill(number, arrays, rows, there, message["end"], seconds,
                                       now)
            if wanted and region is not None:
                self.lent[number] = batches
            else:
                free.append(number)
            bits = None  # of the first: all rows of the others have an example
        return free

    def fill(self, newest_first: bool) -> None:
        """Whole batches, as far as they are there; of the newest, one for each that was taken:
        which one is newest is not known before."""
        while (not newest_first or self.asking.next <= self.taken()) and (
                found := self.asking.whole(newest_first)):
            k, batches, pieces = found
            if len(pieces) == 1 and pieces[0].piece.count == pieces[0].piece.batches * (
                    self.feed.batch):
                arrays = self.arrays(pieces[0], pieces[0].rows_of(k, batches))
                for ring in self.rings:
                    ring.put_whole(k, batches, arrays)
            else:
                for ring in self.rings:
                    ring.put(k, self.parts(ring.rows, pieces))
            self.held.append((k + batches, batches, pieces))

    def end(self) -> bool:
        """Says that the stream has ended, once it has. True if that is news."""
        if self.ended or not self.asking.has_ended():
            return False
        self.ended = True
        for ring in self.rings:
            ring.end(self.asking.next)
        return True

    def parts(self, rows: tuple[int, int], pieces: list[Filled]) -> list[Any]:
        """The pieces as far as they lie in these rows, with the mask."""
        found = []
        for one in pieces:
            begin = max(one.piece.row, rows[0])
            end = min(one.piece.row + one.piece.count, rows[1])
            if begin < end:
                cut = slice(begin - one.piece.row, end - one.piece.row)
                found.append((begin, end - begin, self.arrays(one, cut)))
        return found

    def arrays(self, one: Filled, cut: slice) -> dict[str, np.ndarray]:
        """Some rows of an answer, with the mask."""
        found = one.arrays
        if cut.stop - cut.start < one.piece.count:
            found = {name: a[cut] for name, a in found.items()}
        if self.masked:
            there = np.ones(cut.stop - cut.start, np.bool_) if one.there is None else (
                one.there[cut])
            found = {**found, MASK: there}
        return found

    # ---- out

    def free(self) -> dict[str, list[str]]:
        """By worker: results that no rank looks at any more."""
        taken, found = self.taken(), {}  # type: ignore[var-annotated]
        while self.held and self.held[0][0] <= taken:
            _, batches, pieces = self.held.popleft()
            for one in pieces:
                left = self.lent.pop(one.number, 0) - batches
                if left > 0:
                    self.lent[one.number] = left
                elif left == 0:
                    found.setdefault(one.worker, []).append(one.number)
        return found

    def sent_back(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Values of feed.send(): the first position, and a row for each place from there on."""
        while all(r.sent(self.sent) is not None for r in self.rings):
            for ring in self.rings:
                values = {n: np.ascontiguousarray(v) for n, v in ring.sent(self.sent).items()}
                yield self.sent * self.feed.batch + ring.rows[0], values
            self.sent += 1
