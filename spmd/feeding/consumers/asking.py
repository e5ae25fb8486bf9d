"""What a consumer asks for: batches cut into pieces, each asked of a worker, each filled once.

In: what is wanted, what workers answer, who is lost. Out: pieces to ask for, whole batches in
order. Pure bookkeeping: no sockets, no clock of its own.
Always holds: a row of a batch is filled exactly once, however often its piece was asked for.
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
class AskedPiece:
    """Rows of batch k from row `row` on, the positions from `first` on.

    batches: of more than one, it is all rows of batch k and of those behind it.
    """

    k: int
    row: int
    count: int = field(compare=False)
    first: int = field(compare=False)
    batches: int = field(default=1, compare=False)

    def each(self) -> list[AskedPiece]:
        """Its part of every batch."""
        if self.batches == 1:
            return [self]
        rows = self.count // self.batches
        return [AskedPiece(self.k + i, 0, rows, self.first + i * rows)
                for i in range(self.batches)]


@dataclass
class Asked:
    """spare: of what others leave of a worker's time: it may take any time."""

    piece: AskedPiece
    worker: str
    when: float
    spare: bool


@dataclass
class Filled:
    """An answer. arrays: of `piece.count` rows, zeros where there is no example; there: which rows
    have one, None where all do."""

    piece: AskedPiece
    arrays: dict[str, Any]
    there: np.ndarray | None
    worker: str
    number: str  # by which its worker knows it

    def rows_of(self, k: int, batches: int) -> slice:
        """Its rows of the batches from k on."""
        each = self.piece.count // self.piece.batches
        begin = (k - self.piece.k) * each if self.piece.batches > 1 else 0
        return slice(begin, begin + batches * each)


class Asking:
    """segments: rows of each batch that this consumer holds, apart from each other, in order.

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
        self.holds = False  # nothing is given on
        self.waiting: list[AskedPiece] = []
        self.asked: dict[str, Asked] = {}
        self.filled: dict[int, dict[int, Filled]] = {}  # by batch and row
        self.pieces: dict[int, int] = {}  # how many each open batch has
        self.deaths: dict[int, list[bool]] = {}  # by position: was it killed from outside?
        self.left_out: set[int] = set()
        self.together = 1  # examples that the pipeline computes at once
        self.example_s = 0.0  # measured; 0: not yet
        self.took_s = 0.0  # from asking to the answer, the way between included

    # ---- how many batches there are

    def batches(self) -> int | None:
        """Batches of the stream, once known: the last may be short where there is a mask."""
        if self.end is None:
            return None
        return -(-self.end // self.batch) if self.masked else self.end // self.batch

    def hold(self) -> int:
        """Gives on no further batch; returns how many were given on."""
        self.holds = True
        return self.next

    def end_after(self, batches: int) -> None:
        """The stream has no more than so many batches, and no fewer were given on."""
        self.holds = False
        self._ends_at(batches * self.batch)

    def _ends_at(self, position: int) -> None:
        self.end = position if self.end is None else min(self.end, position)

    def not_given(self) -> int:
        """Examples at the end that do not fill a batch, and are not given."""
        return 0 if self.masked or self.end is None else self.end % self.batch

    def has_ended(self) -> bool:
        last = self.batches()
        return last is not None and self.next >= last

    # ---- pieces

    def open_until(self, room: int, workers: int, depth: int, span: int = 1,
                   stop: int | None = None, small: bool = False) -> None:
        """Cuts the batches for which there is room, those before `room`, into pieces that wait to
        be asked for.

        span: so many batches may be one piece, where each alone is not worth a message. stop: no
        batch from here on is asked for. small: the smallest pieces that are worth a message: they
        find a place between those of others.
        """
        if self.opened >= room:
            return
        limit = min(n for n in (room, stop, self.batches()) if n is not None)
        while self.opened < limit:
            k, many = self.opened, self._spanned(workers, depth, span)
            if room - k < many:
                break  # nearly all of the room is filled, or will be: a whole piece has time
            if (many := min(many, limit - k)) > 1:
                self._open_together(k, many)
                continue
            self.opened = k + 1
            self.filled[k], self.pieces[k] = {}, 0
            if not self.cut or not self.keeps_cut:
                self.cut = [rows for begin, end in self.segments
                            for rows in self._cut(k, begin, end, workers, depth, small)]
            for row, count in self.cut:
                heapq.heappush(self.waiting, AskedPiece(k, row, count, k * self.batch + row))
                self.pieces[k] += 1
            if not self.segments:  # no rows here: this process must only know where it ends
                heapq.heappush(self.waiting, AskedPiece(k, 0, 0, k * self.batch))
                self.pieces[k] = 1

    def pass_until(self, limit: int) -> None:
        """Batches before `limit` need no answer: they have no rows here, and it is known where the
        stream ends."""
        last = self.batches()
        self.waiting.clear()
        for k in range(self.next, limit if last is None else min(limit, last)):
            self.filled[k], self.pieces[k], self.opened = {}, 0, max(self.opened, k + 1)

    def _spanned(self, workers: int, depth: int, span: int) -> int:
        """How many batches are worth one piece."""
        if span < 2 or not self.example_s or self.segments != [(0, self.batch)]:
            return 1
        most = min(span, depth // (2 * max(workers, 1)),
                   SPAN_BYTES // (self.row_bytes * self.batch))
        return max(1, min(most, int(LEAST_S / (self.example_s * self.batch))))

    def _open_together(self, k: int, many: int) -> None:
        self.opened = k + many
        for one in range(k, k + many):
            self.filled[one], self.pieces[one] = {}, 1
        heapq.heappush(self.waiting,
                       AskedPiece(k, 0, many * self.batch, k * self.batch, many))

    def _cut(self, k: int, begin: int, end: int, workers: int, depth: int,
             small: bool) -> Iterator[tuple[int, int]]:
        """Enough pieces for all workers, none too small to be worth it, cut between examples
        that are not computed together."""
        rows = -(-(end - begin) * depth // (2 * max(workers, 1)))
        if self.example_s:
            least = round(LEAST_S / self.example_s)
            rows = least if small else max(rows, least)
        rows = max(1, min(rows, MOST_BYTES // self.row_bytes, end - begin))
        at, base = begin, k * self.batch
        while at < end:
            stop = at + rows
            if self.together > 1:  # at the next multiple, counted in positions
                stop = -(-(base + stop) // self.together) * self.together - base
            stop = min(stop, end)
            yield at, stop - at
            at = stop

    def take(self, worker: str, now: float, spare: bool = False) -> list[Any] | None:
        """The next piece, as an item of a take message."""
        if not self.waiting:
            return None
        piece = heapq.heappop(self.waiting)
        self._shorten(piece)
        return self._ask(piece, worker, now, spare)

    def _shorten(self, piece: AskedPiece) -> None:
        """Cuts off what takes too long, by what was measured since it was cut; that waits."""
        if self.keeps_cut or piece.batches > 1 or not self.example_s:
            return
        stop = piece.first + max(1, int(MOST_S / self.example_s))
        stop = -(-stop // self.together) * self.together
        if (less := stop - piece.first) < piece.count:
            heapq.heappush(self.waiting, AskedPiece(
                piece.k, piece.row + less, piece.count - less, stop))
            piece.count = less
            self.pieces[piece.k] += 1

    def ask_again(self, number: str, worker: str, now: float, spare: bool = False) -> list[Any]:
        """A piece once more, of another worker: whoever answers first fills it."""
        return self._ask(self.asked[number].piece, worker, now, spare)

    def askers(self, number: str) -> set[str]:
        """The workers that were asked for this piece."""
        piece = self.asked[number].piece
        return {a.worker for a in self.asked.values() if a.piece == piece}

    def _ask(self, piece: AskedPiece, worker: str, now: float, spare: bool) -> list[Any]:
        number = new_id()
        self.asked[number] = Asked(piece, worker, now, spare)
        # Rows here do not tell whether the last rows of the batch are there.
        end = (piece.k + piece.batches) * self.batch - 1
        through = max(piece.first, piece.first + piece.count - 1) if self.masked else end
        stop = piece.first + piece.count  # before it too: what is computed together begins there
        out = sorted(p for p in self.left_out if piece.first - LEFT_OUT <= p < stop)
        return [number, piece.first, piece.count, through, out[-LEFT_OUT:]]

    def loads(self, workers: Iterable[str]) -> dict[str, int]:
        """How many pieces each of these workers owes."""
        found = dict.fromkeys(workers, 0)
        for asked in self.asked.values():
            if asked.worker in found:
                found[asked.worker] += 1
        return found

    def of(self, worker: str) -> list[str]:
        return [n for n, a in self.asked.items() if a.worker == worker]

    def late(self, now: float, has_own: bool = True) -> str | None:
        """A piece that holds up the next batch, and takes much longer than it should.

        has_own: there are workers with a share: they do soon what others leave no time for.
        """
        if self.keeps_cut:  # environments must not act twice
            return None
        for number, asked in self.asked.items():
            piece = asked.piece
            if not piece.k <= self.next < piece.k + piece.batches:
                continue
            takes = max(self.example_s * max(piece.count, self.together), self.took_s)
            same = [a for a in self.asked.values() if a.piece == piece]
            spare = all(a.spare for a in same)
            expected = FIRST_S if not self.example_s else (
                LEAST_S + takes if spare and has_own else LATE_S + 4 * takes)
            if (now - max(a.when for a in same) > expected and (spare or not self.waiting)
                    and sum(not a.spare for a in same) < 2):
                return number
        return None

    # ---- answers

    def batch_of(self, position: int) -> int:
        """As which batch ranks get this position: by its place, unless a newer one took that."""
        for piece in (*self.waiting, *(a.piece for a in self.asked.values())):
            for one in piece.each():
                if one.first <= position < one.first + one.count:
                    return one.k
        return position // self.batch

    def is_wanted(self, number: str) -> bool:
        asked = self.asked.get(number)
        return asked is not None and bool(self._still_open(asked.piece))

    def _still_open(self, piece: AskedPiece) -> list[int]:
        """Batches that lack what this piece has of them."""
        begin, end = max(piece.k, self.next), piece.k + piece.batches
        return [k for k in range(begin, end) if piece.row not in self.filled.get(k, ())]

    def fill(self, number: str, arrays: dict[str, Any], rows: int,
             there: np.ndarray | None, end: int | None, seconds: float,
             now: float | None = None) -> int:
        """Takes an answer. Returns of how many batches it fills a part; 0: it is not wanted.

        there: which of the piece's rows have an example; None: the first `rows` of them.
        """
        if end is not None:
            self._ends_at(end)
        asked = self.asked.pop(number, None)
        wanted = self._still_open(asked.piece) if asked else []
        if asked is None or not wanted:
            return 0
        piece = asked.piece
        if now is not None and rows and not asked.spare:
            self.took_s += (now - asked.when - self.took_s) * (0.2 if self.took_s else 1.0)
        if there is None and (rows < piece.count or self.left_out):
            there = np.arange(piece.count) < rows
        if there is not None:
            for position in self.left_out:
                if 0 <= (row := position - piece.first) < piece.count:
                    there[row] = False
        found = Filled(piece, arrays, there, asked.worker, number)
        for k in wanted:
            self.filled[k][piece.row] = found
        if rows and seconds:
            mean = seconds / max(rows, self.together)
            self.example_s = 0.8 * self.example_s + 0.2 * mean if self.example_s else mean
        return len(wanted)

    def apart(self, number: str) -> bool:
        """A piece of several batches failed: each is asked for by itself. False: it is of one."""
        if self.asked[number].piece.batches == 1:
            return False
        self.back([number])
        return True

    def back(self, numbers: list[str]) -> None:
        """These will not be answered: they wait again, unless another worker was asked too. Each
        batch does so by itself, so that what fails once more holds up no other."""
        for number in numbers:
            asked = self.asked.pop(number, None)
            if asked is None:
                continue
            piece = asked.piece
            again = any(a.piece == piece for a in self.asked.values())
            for one in () if again else filter(self._still_open, piece.each()):
                heapq.heappush(self.waiting, one)

    def died_at(self, position: int, outside: bool = False) -> int:
        """A worker died while it computed this position, or was killed from outside then. How many
        have died so, if that is enough to say that the example is the cause; else 0."""
        deaths = self.deaths.setdefault(position, [])
        deaths.append(outside)
        return len(deaths) if deaths.count(False) >= DEADLY or len(deaths) >= KILLED else 0

    def whole(self, newest_first: bool = False) -> tuple[int, int, list[Filled]] | None:
        """The next batch, if all of it is there: its number, how many batches, and the pieces in
        order. It is given on then, with those behind it that came in the same piece.

        newest_first: of those that are there, the one furthest on in the stream takes its place.
        """
        if self.holds or self.next >= self.opened or self.has_ended():
            return None
        k, batches = self.next, 1
        if newest_first and not self._has_spans():
            there = [j for j in self.filled if len(self.filled[j]) == self.pieces[j]]
            newest = max(there, key=self._position, default=k)
            if newest != k:
                self._swap(k, newest)
        found = self.filled[k]
        if len(found) < self.pieces[k]:
            return None
        one, last = next(iter(found.values()), None), self.batches()
        if one and one.piece.batches > 1:
            end = one.piece.k + one.piece.batches
            end = end if last is None else min(end, last)
            while k + batches < end and self.filled[k + batches].get(0) is one:
                batches += 1
        for given in range(k, k + batches):
            del self.filled[given], self.pieces[given]
        self.next += batches
        return k, batches, [found[row] for row in sorted(found)]

    def _position(self, k: int) -> int:
        """Of the first example of batch k, which is there: of what now has that number."""
        return min((one.piece.first for one in self.filled[k].values()), default=k * self.batch)

    def _has_spans(self) -> bool:
        """Are pieces of several batches under way? Their batches keep their order."""
        pieces = [*self.waiting, *(a.piece for a in self.asked.values()),
                  *(one.piece for found in self.filled.values() for one in found.values())]
        return any(piece.batches > 1 for piece in pieces)

    def _swap(self, k: int, newer: int) -> None:
        """Batch `newer` is given as number k, and what is still asked for as k later on."""
        for number in [n for n, a in self.asked.items() if a.piece.k == newer]:
            del self.asked[number]  # asked for twice, and there already
        self.filled[k], self.filled[newer] = self.filled[newer], self.filled[k]
        self.pieces[k], self.pieces[newer] = self.pieces[newer], self.pieces[k]
        moved = {id(p): p for p in [*self.waiting, *(a.piece for a in self.asked.values())]}
        for piece in moved.values():
            if piece.k == k:
                piece.k = newer
        heapq.heapify(self.waiting)


def merged(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that overlap or touch become one.

    ::

        >>> merged([(4, 8), (0, 4), (12, 16)])
        [(0, 8), (12, 16)]
    """
    found: list[tuple[int, int]] = []
    for begin, end in sorted(rows):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif begin < end:
            found.append((begin, end))
    return found
