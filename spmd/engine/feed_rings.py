"""Rings of batches: a supply puts them in, the ranks of this process take their parts out.

In: whole rows of NumPy arrays, batch after batch. Out: which batches were taken, and what ranks
sent back. Always holds: arrays stay alive until every rank of the ring has left the batch; after
`close` nothing of the engine is touched any more.
"""

from __future__ import annotations

from _thread import RLock
from collections import deque
from typing import Any

import numpy as np

from codegen.errors import InternalError, Place
from spmd.arrays import numpy_dtype
from spmd.engine import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Piece = tuple[int, int, dict[str, np.ndarray]]

NS = 1e9  # nanoseconds of a second


def address_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


class FeedField:
    """A field of a feed: shape is that of a whole batch."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.name, self.dtype, self.shape = name, numpy_dtype(dtype), shape

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype} {list(self.shape)}"


class FedFeed:
    """A feed of an image, for one job: name, batch (rows of one), fields; sends: fields of what
    ranks send back. asked: the program asks whether there are more batches. copied: several
    processes hold the same rows, which must be equal in all. place: where it is declared."""

    copied = False

    def __init__(self, number: int, name: str, fields: Sequence[FeedField],
                 sends: Sequence[FeedField], asked: bool = True,
                 place: Place | None = None) -> None:
        self.number, self.name, self.asked, self.place = number, name, asked, place
        self.fields, self.sends = tuple(fields), tuple(sends)
        self.batch = self.fields[0].shape[0]

    @property
    def row_bytes(self) -> int:
        return sum(f.dtype.itemsize * int(np.prod(f.shape[1:], dtype=np.int64))
                   for f in self.fields)


def are_idle(feed: FedFeed, rings: Sequence[FeedRing]) -> bool:
    """Return whether no rank of this process holds a row or asks how far the stream goes."""
    return not feed.asked and all(ring.rows[0] == ring.rows[1] for ring in rings)


class FeedRing:
    """Batches on their way to the ranks of this process that hold the same rows.

    rows: which, of every batch. depth: how many batches may be there at a time. One thread at a
    time puts; `fail` ends the run.
    """

    def __init__(self, feed: FedFeed, ring: Any, depth: int,
                 fail: Callable[[BaseException], None]) -> None:
        self.feed, self.depth, self.fail = feed, depth, fail
        self._ring, self._fd = ring, int(lib.spmd_ring_event(ring))
        self._lock = RLock()
        self._closed = False
        # Of batches that were put: the one behind them, and arrays that must live until then.
        self._kept: deque[tuple[int, Any]] = deque()
        self._sent: dict[int, dict[str, np.ndarray]] = {}
        self._taken = 0
        rows = ffi.new("int64_t[2]")
        lib.spmd_ring_rows(ring, rows, rows + 1)
        self.rows: tuple[int, int] = (rows[0], rows[1])
        self._two = ffi.new("int64_t[2]")
        self._values = ffi.new("void *[]", max(1, len(feed.sends)))

    def close(self) -> None:
        """Let later calls do nothing, since the job is about to be freed."""
        with self._lock:
            self._taken = self.taken
            self._closed = True
            self._kept.clear()

    def put(self, k: int, pieces: Sequence[Piece]) -> None:
        """Hand batch k to the ranks, in pieces: (first row, number of rows, {field: array of so
        many rows}). Rows of no piece are zeros. A batch that no rank waits for any more is dropped.

        Raises InternalError for a batch that has no room, or is there.
        """
        pieces = [(first, rows, self._fitting(rows, arrays)) for first, rows, arrays in pieces]
        pieces.sort(key=lambda piece: piece[0])
        row = [word for first, rows, arrays in pieces for word in (
            first, rows, *(address_of(arrays[f.name]) for f in self.feed.fields))]
        self._put(k, 1, len(pieces), row, pieces)

    def put_whole(self, k: int, batches: int, arrays: dict[str, np.ndarray]) -> None:
        """Hand `batches` batches from k on to the ranks, as `put` does: each array has all rows of
        all of them, one batch behind the other."""
        fitting = self._fitting(batches * self.feed.batch, arrays)
        begin, end = self.rows
        fields = [fitting[field.name] for field in self.feed.fields]
        row = [begin, end - begin, *(address_of(a) + begin * a.strides[0] for a in fields)]
        self._put(k, batches, 1 if begin < end else 0, row, fitting)

    def _put(self, k: int, batches: int, pieces: int, row: list[int], kept: Any) -> None:
        with self._lock:
            if self._closed:
                return
            self._kept.append((k + batches, kept))
            status = lib.spmd_ring_put_many(
                self._ring, k, batches, pieces, ffi.new("int64_t[]", row))
            if status != lib.SPMD_OK:
                self._check(status, f"batches {k} to {k + batches - 1}, "
                            f"{pieces} pieces, the first from row {row[:1]} on")
            self._forget()

    def _fitting(self, rows: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        fitting = {}
        for field in self.feed.fields:
            array = np.ascontiguousarray(arrays[field.name])
            if array.dtype != field.dtype or array.shape != (rows, *field.shape[1:]):
                raise InternalError(
                    f"feed {self.feed.name}: rows of field {field.name} do not fit",
                    expected=f"{field.dtype} {[rows, *field.shape[1:]]}",
                    found=f"{array.dtype} {list(array.shape)}")
            fitting[field.name] = array
        return fitting

    def _check(self, status: int, call: str) -> None:
        if status != lib.SPMD_OK:
            raise InternalError(
                f"feed {self.feed.name}: {call}: {ffi.string(lib.spmd_status_text(status))}",
                expected=f"batches from {self.taken} on, at most {self.depth}, rows {self.rows}")

    def _forget(self) -> None:
        taken = lib.spmd_ring_taken(self._ring)
        while self._kept and self._kept[0][0] <= taken:
            self._kept.popleft()

    def end(self, k: int) -> None:
        """Tell the ranks that there is no batch k, since the stream has ended."""
        with self._lock:
            if not self._closed:
                self._check(lib.spmd_ring_end(self._ring, k), f"the end after {k} batches")

    @property
    def taken(self) -> int:
        """Return the number of batches that every rank of the ring has taken and left."""
        with self._lock:
            return self._taken if self._closed else int(lib.spmd_ring_taken(self._ring))

    def fill_ahead(self, batches: int) -> None:
        """No more than so many are put ahead of those taken, though there is room for `depth`:
        `fileno` becomes readable when a quarter of them was taken."""
        with self._lock:
            if not self._closed:
                lib.spmd_ring_ahead(self._ring, min(batches, self.depth))

    def is_wanted(self, k: int) -> bool:
        """Return whether a rank of this ring waits for batch k."""
        with self._lock:
            return not self._closed and bool(lib.spmd_ring_wants(self._ring, k))

    def owes(self, k: int) -> bool:
        """Return whether a rank waits for batch k without having answered the batch before it."""
        with self._lock:
            return not self._closed and lib.spmd_ring_wants(self._ring, k) == 2

    def fileno(self) -> int:
        """Return an eventfd that is readable after something was taken by all ranks of the ring, or
        sent."""
        return self._fd

    def sent(self, k: int) -> dict[str, np.ndarray] | None:
        """Return what the ranks of this ring sent back behind batch k: its rows. None: not yet."""
        with self._lock:
            if k not in self._sent and not self._closed:
                self._fetch(k)
            return self._sent.get(k)

    def _fetch(self, k: int) -> None:
        if lib.spmd_ring_sent(self._ring, k, self._values) != lib.SPMD_OK:
            return
        answers, rows = {}, self.rows[1] - self.rows[0]
        for field, address in zip(self.feed.sends, self._values):
            shape = (rows, *field.shape[1:])
            size = field.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            data = bytearray(ffi.buffer(address, size)) if size else bytearray()
            answers[field.name] = np.frombuffer(data, field.dtype).reshape(shape)
        lib.spmd_ring_let_go(self._ring, k)
        self._sent = {k: answers}

    def waits(self) -> tuple[float, float]:
        """Return the seconds since the first batch in which ranks have waited, and in which they
        have not, each as a mean over the ranks."""
        with self._lock:
            if self._closed:
                return 0.0, 0.0
            lib.spmd_ring_waits(self._ring, self._two, self._two + 1)
            return self._two[0] / NS, max(0, self._two[1] - self._two[0]) / NS
