"""The connection of a consumer to a worker: its socket, shared results, how much to request."""

from __future__ import annotations

import time

import numpy as np

from codegen.errors import InputError, Place
from spmd.data.computing import advice
from spmd.feeding.consumers.piece_ledger import LEAST_S
from spmd.feeding.messages.sockets import OTHER_KEY, REFUSED_KEY, received
from spmd.feeding.messages.wire import encode, new_id
from spmd.feeding.results.compression import of_parts, unpacked
from spmd.feeding.results.memory_layout import bytes_of, dtype_named, of_bits, placed, views
from spmd.feeding.results.shared_results import ResultReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from spmd.feeding.consumers.piece_ledger import BatchPiece
    from spmd.feeding.messages.sockets import Lines
    from spmd.feeding.messages.wire import Message

CREDITS, MOST_CREDITS = 2, 16
MOST_FAR = 64  # and so many more pieces that may be on their way to a far worker
AHEAD_S = 0.05  # of work that a worker should have before it
AGAIN_S = 0.2  # before a line that breaks at once is made again
TOLD_S = 5.0  # between two times
AWAY_S = 2.0  # without a line to it: then the scheduler hears that it gives no answers

REACH = ("let this machine reach that port (firewall, route), or name workers that it can reach: "
         "feed update NAME --workers HOST,HOST")
KEYS = "one folder of keys for the scheduler, its workers and this run"
REMEDIES = {REFUSED_KEY: KEYS, OTHER_KEY: KEYS}


def unreachable_text(missed: dict[str, tuple[str, str]]) -> str:
    """Return a warning: to which workers there is no line, why, and what to try. missed: address
    and reason by worker."""
    texts = []
    for why in sorted({why for _, why in missed.values()}):
        mine = [f"{w} at {address}" for w, (address, w_why) in missed.items() if w_why == why]
        more = f" and {len(mine) - 2} more" if len(mine) > 2 else ""
        texts.append(f"no line to worker {', '.join(mine[:2])}{more} for {AWAY_S:g} s: {why}; "
                     f"others are asked, and it is tried on. try: {REMEDIES.get(why, REACH)}")
    return "; ".join(texts)


def broken(pipeline: str, failed: dict[str, Any], settings: dict[str, Any]) -> InputError:
    """Return the error of an example that a worker could not compute."""
    return InputError(
        f"pipeline {pipeline} failed at position {failed['position']}, {failed['example']}\n  "
        f"{failed['text']}".rstrip(),
        place=Place(failed["file"], failed["line"] or 0) if failed["file"] else None,
        remedy=advice(failed["text"]) if settings.get("on_error") != "skip" else "")


class WorkerConnection:
    """Holds what a consumer knows of one of its workers, and the sockets between the two.

    assigned: address, key, local socket and share, as the scheduler said them. acts: actions are
    sent to it too. behind: it gives what others leave of its time; 0: the share.
    """

    def __init__(self, lines: Lines, assigned: dict[str, Any], here: str,
                 acts: bool = False) -> None:
        self.worker, self.assigned = assigned["worker"], assigned
        self.share, self.behind = assigned["share"], assigned["behind"] or 0
        self.lines, self.here, self.acts = lines, here, acts
        # Each line has a name of its own: of what a worker does for an earlier one, nothing comes
        # to this one, neither an answer nor a region that only the earlier one has mapped.
        me = new_id()
        self.socket = lines.dealer(assigned["address"], assigned["key"], me)
        self.watch = lines.watch(self.socket)
        self.broken = False
        self.began = time.monotonic()
        self.reading: ResultReader | None = None
        if assigned["local"] and assigned["host"] == here:
            try:
                self.reading = ResultReader(me, assigned["local"], assigned["secret"] or "")
            except OSError:
                pass  # another network namespace, or it has just ended: frames do as well
        self.places: dict[int, tuple[list[tuple[Any, ...]], int]] = {}  # by rows of a result
        self.rows = 0.0  # asked so far, over its share
        self.deferred_until = 0.0  # it does not know the pipeline yet
        self.told = 0.0  # when the scheduler was told that there is no line to it
        self.transit_s = 0.0  # of a request and its result: the shortest; 0: not known

    def fds(self) -> tuple[int, ...]:
        """Return the descriptors that are readable when the worker has ended or its line broke."""
        return (*self.watch.fds(), self.reading.socket.fileno()) if self.reading else (
            self.watch.fds())

    def accepts_requests(self, now: float) -> bool:
        return self.watch.stands and self.deferred_until <= now

    def outage(self) -> str:
        """Return why there has been no line to it for AWAY_S, once in TOLD_S; "" otherwise."""
        now = time.monotonic()
        if self.watch.away() < AWAY_S or now - self.told < TOLD_S:
            return ""
        self.told = now
        return self.watch.why()

    def is_restored(self) -> bool:
        """Return True once when there is a line again, after outage() gave a reason."""
        back = self.told > 0 and self.watch.stands
        self.told = 0.0 if back else self.told
        return back

    def reconnected(self) -> WorkerConnection:
        """Return a new connection to the same worker; this one is closed."""
        assigned = {**self.assigned, "share": self.share, "behind": self.behind}
        connection = WorkerConnection(self.lines, assigned, self.here, self.acts)
        connection.rows, connection.told = self.rows, self.told
        return connection

    def credits(self, piece_s: float) -> int:
        """Return how many pieces it may owe: those in its queue, and those on their way to it and
        from it. piece_s: seconds that it computes one, 0 if not known."""
        if not piece_s or self.behind:
            return CREDITS
        before = min(max(CREDITS, round(AHEAD_S / piece_s)), MOST_CREDITS)
        return before + min(int(self.transit_s / max(piece_s, LEAST_S)), MOST_FAR)

    def note_answer(self, took_s: float, computing_s: float) -> None:
        """Measure how long request and result were on their way: all but the computing."""
        way_s = max(took_s - computing_s, 1e-6)
        self.transit_s = min(self.transit_s or way_s, way_s)

    def send(self, kind: str, frames: list[Any] | None = None, **fields: Any) -> None:
        said = encode(kind, frames or [], **fields)
        # Actions are too long for the short way, and what is asked for next must not overtake them.
        short = self.reading if len(said) == 1 and not self.acts else None
        if not short or not short.say(said[0]):
            self.socket.send_multipart(said, copy=not frames)

    def receive(self) -> list[Any] | None:
        """Return the frames of the next message, None if there is none."""
        message = self.reading.heard() if self.reading else None
        return received(self.socket) if message is None else [message]

    def is_alive(self) -> bool:
        """Return False once its Unix socket says that its process has ended."""
        return self.reading is None or self.reading.attend()

    def has_broken(self) -> bool:
        """Return whether its line broke: what was under way is lost, and nobody says so."""
        self.broken |= self.watch.broke()
        return self.broken and time.monotonic() - self.began > AGAIN_S

    def arrays_of_region(self, number: int, fields: list[dict[str, Any]],
                  count: int) -> dict[str, np.ndarray]:
        """Return the fields of a result of `count` rows that lies in memory that it shares."""
        if (known := self.places.get(count)) is None:
            known = self.places[count] = placed(fields, count)
        places, size = known
        memory = self.reading.region(number) if self.reading else None
        if memory is None or size > len(memory):
            raise self._wrong(f"{size} bytes: no such region of its memory")
        return views(places, memory)

    def arrays_of_frames(self, message: Message, fields: list[dict[str, Any]],
                  count: int) -> dict[str, np.ndarray]:
        """Return the fields of a result of `count` rows that it sent. InputError if the message
        holds something else."""
        wanted, arrays = {f["name"]: f for f in fields}, message["arrays"] or ()
        if {a["name"] for a in arrays} != wanted.keys() or len(arrays) != len(wanted):
            raise self._wrong(f"expected the fields {', '.join(wanted)}")
        by_name = {}
        for array in arrays:
            field = wanted[array["name"]]
            shape, size = (count, *field["shape"]), count * bytes_of(field)
            if array["bytes"] != size or tuple(array["shape"]) != shape:
                raise self._wrong(f"{array['name']}: expected {size} bytes of shape {shape}")
            first = array["frame"]
            data = of_parts(message.frames[first : first + (array["parts"] or 1)])
            memory = unpacked(data, array["codec"] or "none", size)
            by_name[array["name"]] = np.ndarray(shape, dtype_named(field["dtype"]), memory)
        return by_name

    def present_rows(self, bits: str, count: int) -> np.ndarray:
        """Return which of `count` rows have an example, from the bits of a message. InputError if
        they are of another number of rows."""
        there = of_bits(bits, count)
        if there is None:
            raise self._wrong(f"expected bits of {count} rows, found {4 * len(bits)}")
        return there

    def skipped(self, message: Message, piece: BatchPiece) -> Iterator[tuple[int, str]]:
        """Yield the positions of a result whose examples failed, each with the error; "" where
        another position has it, or there was no room for it."""
        if message["there"]:
            named = {
                failure["position"]: f"{failure['example']} ({failure['file']}:{failure['line']}): "
                f"{failure['text']}" for failure in message["broken"] or ()}
            there = self.present_rows(message["there"], piece.count)[: message["rows"]]
            for position in (piece.first + np.flatnonzero(~there)).tolist():
                yield position, named.get(position, "")

    def _wrong(self, text: str) -> InputError:
        return InputError(f"worker {self.worker} at {self.assigned['address']} gave something else "
                          f"than it was asked for: {text}")

    def close(self) -> None:
        self.lines.forget(self.socket)
        if self.reading:
            self.reading.close()
