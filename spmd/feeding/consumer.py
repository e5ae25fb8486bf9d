"""PipelineSupply: a thread in a process of ranks that fills their rings with what workers compute.

In: a scheduler's address and a pipeline's name. It asks the workers that it is assigned for ranges
of positions, maps or unpacks what they give, and puts whole batches into the rings.
Always holds: every place is filled once; what is lost is asked for again; an error ends the run.
"""

from __future__ import annotations

import os
import random
import select
import sys
import threading
import time
import weakref

import numpy as np

from codegen.errors import InputError, PeerError, Place, SpmdError, UsageError
from spmd.data.computing import MASK, advice
from spmd.engine.feed_rings import are_idle
from spmd.feeding.asked_worker import AskedWorker
from spmd.feeding.asking import Asking, Filled, merged
from spmd.feeding.client import Refused
from spmd.feeding.evaluating import dtype_named
from spmd.feeding.keys import zmq
from spmd.feeding.machine import host_name
from spmd.feeding.sockets import Lines, received
from spmd.feeding.wire import MalformedMessage, Message, decode, encode, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.feeding.keys import Keys

RATE_S = 0.5
TICK_S = 0.05
UNKNOWN_S = 0.05  # before a worker that does not know the pipeline yet is asked again
SILENT_S = 20.0  # without a word of the scheduler when it is first asked
PENDING_S = 3.0  # without workers: then it is said why
SAID = 10  # skipped examples that are named one by one


class PipelineSupply:
    """pipeline@address, with the keys of the scheduler there. One for each feed.

    ranks: numbers of the ranks of this process; device: what they run on; run: of which run.
    """

    def __init__(self, pipeline: str, address: str, keys: Keys, *, ranks: tuple[int, ...] = (),
                 device: str = "cpu", run: str = "") -> None:
        self.pipeline, self.address, self.keys = pipeline, address, keys
        self.ranks, self.device, self.run_name = ranks, device, run
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._wake)

    def begin(self, feed: Any, rings: list[Any], start: int) -> None:
        """Fills the rings from batch `start` on, in a thread, until finish()."""
        self._stop.clear()
        filling = Filling(self, feed, rings, start)
        run = filling.stand_by if are_idle(feed, rings) else filling.run
        self._thread = threading.Thread(target=run, name="feed-consumer", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Ends the thread; workers and scheduler hear of it."""
        self._stop.set()
        os.eventfd_write(self._wake, 1)
        if self._thread:
            self._thread.join(5)
            self._thread = None

    def order(self) -> str:
        """What a checkpoint knows the stream by; "" where the pipeline was read elsewhere."""
        return ""

    def has_finished(self) -> bool:
        return self._stop.is_set()

    def has_finished_within(self, seconds: float) -> bool:
        return self._stop.wait(seconds)

    def fileno(self) -> int:
        return self._wake

    def what_ended(self) -> SpmdError | None:
        """Whether what was started for this run has ended before it."""
        return None


class Filling:
    """What the thread of a PipelineSupply does."""

    def __init__(self, supply: PipelineSupply, feed: Any, rings: list[Any], start: int) -> None:
        self.supply, self.feed, self.rings = supply, feed, rings
        self.consumer, self.here = new_id(), host_name()
        self.fields = [described(f) for f in feed.fields if f.name != MASK]
        self.masked = len(self.fields) < len(feed.fields)
        self.depth = max(2, min(r.depth for r in rings))
        segments = merged([tuple(r.rows) for r in rings])
        self.rows = (segments[0][0], segments[-1][1]) if segments else (0, 0)
        self.knows_end = False  # it has no rows, and nothing to ask any more
        self.asking = Asking(segments, feed.batch, start, masked=self.masked,
                             row_bytes=sum(bytes_of(f) for f in self.fields),
                             keeps_cut=bool(feed.sends))
        self.acts = bool(feed.sends and segments)
        self.homes: dict[int, str] = {}  # by first row: the worker with these environments
        self.failed: dict[int, SpmdError] = {}  # by batch: raised when a rank asks for it
        self.workers: dict[str, AskedWorker] = {}
        self.version, self.how, self.settings = 0, "turn", {}  # type: ignore[var-annotated]
        self.held: list[tuple[int, list[Filled]]] = []  # given to rings, not taken yet
        self.lent: dict[str, int] = {}  # by result: batches that are not taken yet
        self.sent = start  # batches behind which values were sent back
        self.began = time.monotonic()
        self.answered = False
        self.pending: tuple[float, str] | None = None  # since when there are no workers, and why
        self.skipped = self.rated = 0.0
        self.said: set[str] = set()

    def run(self) -> None:
        try:
            self.lines = Lines(self.supply.keys)
            self.scheduler = self.lines.dealer(
                self.supply.address, self.supply.keys.server, self.consumer)
            self.line = self.lines.watch(self.scheduler)
            self.register()
            while not self.supply.has_finished():
                self.wait()
                self.attend()
                self.hand_back()
                self.send_back()
                self.fill_rings()
                self.raise_what_is_wanted()
                self.ask()
                self.rate()
        except SpmdError as error:
            self.fail(error)
        except Exception as error:  # a defect of ours must end the run, not hang it
            self.fail(InputError(f"feeding {self.supply.pipeline} failed: "
                                 f"{type(error).__name__}: {error}"))
        finally:
            self.close()

    def stand_by(self) -> None:
        """No batch is for this process: only what it has started for the others is looked after."""
        while not self.supply.has_finished_within(TICK_S):
            if error := self.supply.what_ended():
                self.fail(error)
                return

    def fail(self, error: SpmdError) -> None:
        for ring in self.rings:
            ring.fail(error)

    def close(self) -> None:
        for one in self.workers.values():
            if numbers := self.asking.of(one.worker):
                one.say("forget", ids=numbers)
            one.close()
        self.tell("done", consumer=self.consumer)
        if self.skipped > SAID:
            say(f"{self.supply.pipeline}: {int(self.skipped)} examples were skipped in all")
        self.lines.close(linger_ms=200)

    # ---- the scheduler

    def tell(self, kind: str, **fields: Any) -> None:
        try:
            self.scheduler.send_multipart(encode(kind, **fields), zmq.DONTWAIT)
        except zmq.Again:
            pass  # it has been away for very long; when it is back, it asks us who we are

    def register(self) -> None:
        self.tell("consume", consumer=self.consumer, run=self.supply.run_name,
                  pipeline=self.supply.pipeline, feed=self.feed.name, rows=list(self.rows),
                  batch=self.feed.batch, fields=self.fields, host=self.here,
                  ranks=list(self.supply.ranks), device=self.supply.device)

    def scheduler_said(self, message: Message) -> None:
        self.answered = True
        if message.kind == "who":
            self.register()
        elif message.kind == "workers":
            self.assign(message)
        elif message.kind == "pending":
            self.pending = (time.monotonic(), message["why"])
        elif message.kind == "failed":
            refused = Refused(message["text"])
            refused.exit_code = message["code"]
            raise refused
        elif message.kind == "gone" and message["pipeline"] == self.supply.pipeline:
            self.gone(message)

    def assign(self, message: Message) -> None:
        """Other workers, or another version of the pipeline: what was lost waits again."""
        self.version, self.how = message["version"], message["how"]
        self.pending = None if message["workers"] else self.pending
        self.settings = message["settings"]
        if self.settings.get("on_error") == "skip" and not self.masked:
            raise UsageError(
                f"pipeline {self.supply.pipeline} skips examples that fail, and the program cannot "
                "know which", expected=f"a field mask=spmd.spec(({self.feed.batch},), np.bool_)",
                found=", ".join(f["name"] for f in self.fields),
                remedy='declare mask in spmd.feed(…), or set on_error="stop"')
        now = {w["worker"]: w for w in message["workers"]}
        for worker in self.workers.keys() - now.keys():
            self.lose(worker)
        for worker, assigned in now.items():
            if worker in self.workers:
                self.workers[worker].share = assigned["share"]
            else:
                self.workers[worker] = AskedWorker(self.lines, assigned, self.here)
                least = [w.rows for w in self.workers.values() if w.worker != worker]
                self.workers[worker].rows = min(least, default=0.0)

    def lose(self, worker: str) -> None:
        """A worker is gone, or not ours any more: others are asked for what it owes."""
        one = self.workers.pop(worker, None)
        if one is not None:
            numbers = self.asking.of(worker)
            if numbers and one.is_alive():
                one.say("forget", ids=numbers)
            self.asking.back(numbers)
            one.close()

    def gone(self, message: Message) -> None:
        """A worker died at an example: one that killed two of them is not computed again."""
        self.lose(message["worker"])
        position = message["position"]
        if position is None or not self.asking.died_at(position):
            return
        what = (f"pipeline {self.supply.pipeline} failed at position {position}, "
                f"{message['example']}\n  a worker that computed it {message['why']}, twice")
        if self.settings.get("on_error") == "skip":
            self.asking.left_out.add(position)
            self.skip(f"{message['example']} ({message['file']}:{message['line']}): a worker that "
                      f"computed it {message['why']}")
            return
        self.fail_at(position, InputError(
            what, place=Place(message["file"], message["line"] or 0) if message["file"] else None,
            remedy="on_error='skip' goes on without such examples"))

    def fail_at(self, position: int, error: SpmdError) -> None:
        """A batch cannot be had. The run may end before it: only who asks for it hears of it."""
        self.failed.setdefault(self.asking.batch_of(position), error)

    def raise_what_is_wanted(self) -> None:
        if self.acts and any(r.owes(self.sent + 1) for r in self.rings):
            raise InputError(
                f"a rank takes batch {self.sent + 1} of pipeline {self.supply.pipeline} and has "
                f"sent nothing back behind batch {self.sent}",
                expected="feed.send(…) behind each feed.next(): environments go on by what they "
                "are told", found="a second feed.next()",
                remedy="feed.send in each turn, in every branch")
        for k, error in self.failed.items():
            if any(r.is_wanted(k) for r in self.rings):
                raise error

    # ---- waiting

    def wait(self) -> None:
        """Until somebody says something, a rank took a batch, or a moment passed."""
        poller = select.poll()
        workers = self.workers.values()
        sockets = (self.scheduler, self.line.monitor, *(w.socket for w in workers),
                   *(w.watch.monitor for w in workers))
        for fd in (self.supply.fileno(), *(r.fileno() for r in self.rings),
                   *(w.reading.socket.fileno() for w in workers if w.reading),
                   *(s.FD for s in sockets)):
            poller.register(fd, select.POLLIN)
        # What a ZeroMQ socket has already is not shown by its descriptor.
        ready = any(s.events & zmq.POLLIN for s in sockets)
        poller.poll(0 if ready else TICK_S * 1000)
        for fd in (self.supply.fileno(), *(r.fileno() for r in self.rings)):
            try:
                os.eventfd_read(fd)
            except BlockingIOError:
                pass

    def attend(self) -> None:
        if self.line.broke():
            self.register()  # what the scheduler said meanwhile may be lost: it says it again
        while frames := received(self.scheduler):
            self.scheduler_said(self.decoded(frames))
        for worker, one in list(self.workers.items()):
            alive = one.is_alive()
            while worker in self.workers and (frames := received(one.socket)):
                self.worker_said(one, self.decoded(frames))
            if not alive and worker in self.workers:
                self.lose(worker)
                self.tell("lost", consumer=self.consumer, worker=worker)
            elif worker in self.workers and one.has_broken():
                self.lose(worker)
                self.workers[worker] = one.again()
            elif worker in self.workers and one.is_missed():
                self.tell("lost", consumer=self.consumer, worker=worker)
        if not self.workers and (error := self.supply.what_ended()):
            raise error
        if not self.answered and time.monotonic() - self.began > SILENT_S:
            raise PeerError(
                f"no scheduler answers at {self.supply.address}",
                expected=f"an answer within {SILENT_S:g} s",
                remedy="start it: python -m spmd feed serve; are address and keys those of it?")

    def decoded(self, frames: list[Any]) -> Message:
        try:
            return decode(frames)
        except MalformedMessage as error:
            raise InputError(f"feeding {self.supply.pipeline}: {error}") from None

    # ---- workers

    def ask(self) -> None:
        """Asks for what waits, of whoever has least before it."""
        asking, now = self.asking, time.monotonic()
        if not self.workers and not self.knows_end:
            return
        taken = min(r.taken for r in self.rings)
        limit = taken + self.depth if not self.acts else min(self.sent + 1, taken + 1)
        limit = min([limit, *self.failed])
        if not asking.segments and self.hears_of_no_end():
            asking.pass_until(limit)
            return
        alone = self.acts or self.gives_newest()
        asking.open_until(limit, len(self.workers), 1 if self.acts else self.depth,
                          1 if alone else self.depth // 4)
        loads = {w: len(asking.of(w)) for w in self.workers}
        work: dict[str, list[Any]] = {}
        while asking.waiting:
            piece = asking.waiting[0]
            if piece.k in self.failed:
                break
            one = self.choose(loads, now, piece.count, self.homes.get(piece.row, ""))
            if one is None:
                break
            if self.acts:
                self.homes[piece.row] = one.worker
            work.setdefault(one.worker, []).append(asking.take(one.worker, now))
            loads[one.worker] += 1
            one.rows += piece.count / max(one.share, 1e-6)
        if not asking.waiting and (late := asking.late(now)):
            loads.pop(asking.asked[late].worker, None)
            if other := self.choose(loads, now, 1):
                work.setdefault(other.worker, []).append(asking.ask_again(late, other.worker, now))
        for worker, items in work.items():
            self.workers[worker].say(
                "take", consumer=self.consumer, pipeline=self.supply.pipeline,
                version=self.version, fields=self.fields,
                newest_first=self.settings.get("queue") == "lifo", work=items)

    def hears_of_no_end(self) -> bool:
        """Of a process without rows: it knows where the stream ends, or that it does not. Then it
        has no more to do with workers, and takes no share of them."""
        if not self.knows_end and (self.asking.end is not None or not self.settings.get("epochs")):
            self.knows_end = True
            for worker in list(self.workers):
                self.lose(worker)
            self.tell("done", consumer=self.consumer)
        return self.knows_end

    def choose(self, loads: dict[str, int], now: float, count: int,
               home: str = "") -> AskedWorker | None:
        if home in self.workers:  # nobody else has its environments
            return self.workers[home] if self.workers[home].can_be_asked(now) else None
        piece_s = self.asking.example_s * max(count, self.asking.together)
        able = [one for w, one in self.workers.items()
                if loads.get(w, 1 << 30) < one.credits(piece_s) and one.can_be_asked(now)]
        if not able:
            return None
        if self.how == "random":
            return random.choices(able, [max(one.share, 1e-6) for one in able])[0]
        if self.how == "all":
            return min(able, key=lambda one: loads[one.worker])
        return min(able, key=lambda one: one.rows)

    def worker_said(self, one: AskedWorker, message: Message) -> None:
        if message.kind == "given":
            self.given(one, message)
        elif message.kind == "broken":
            if message["id"] in self.asking.asked and not self.asking.apart(message["id"]):
                self.fail_at(message["broken"]["position"], self.broken(message["broken"]))
        elif message.kind == "refused":
            raise InputError(f"pipeline {self.supply.pipeline}: {message['text']}")
        elif message.kind == "unknown":
            self.asking.back(message["ids"])
            one.quiet_until = time.monotonic() + UNKNOWN_S

    def given(self, one: AskedWorker, message: Message) -> None:
        asking, number = self.asking, message["id"]
        asking.together = message["together"] or 1
        framed = any(a["frame"] is not None for a in message["arrays"])
        wanted = asking.is_wanted(number)
        arrays: dict[str, np.ndarray] = {}
        if wanted:
            arrays = one.arrays(message, self.fields, asking.asked[number].piece.count)
            for failed in message["broken"]:
                self.skip(f"{failed['example']} ({failed['file']}:{failed['line']}): "
                          f"{failed['text']}")
        self.lent[number] = asking.fill(
            number, arrays, message["rows"], {b["position"] for b in message["broken"]},
            message["end"], message["seconds"])
        free = [number] if framed or not wanted else []
        for number, rows, region, seconds in message["more"] or ():
            arrays = {}
            if asking.is_wanted(number):
                arrays = one.arrays(message, self.fields, asking.asked[number].piece.count, region)
            else:
                free.append(number)
            self.lent[number] = asking.fill(number, arrays, rows, set(), message["end"], seconds)
        for number in free:
            self.lent.pop(number, None)
        if free:
            one.say("free", ids=free)

    def broken(self, failed: dict[str, Any]) -> InputError:
        return InputError(
            f"pipeline {self.supply.pipeline} failed at position {failed['position']}, "
            f"{failed['example']}\n  {failed['text']}".rstrip(),
            place=Place(failed["file"], failed["line"] or 0) if failed["file"] else None,
            remedy=advice(failed["text"]) if self.settings.get("on_error") != "skip" else "")

    def skip(self, what: str) -> None:
        self.skipped += 1
        if self.skipped <= SAID:
            say(f"{self.supply.pipeline}: skipped {what}")

    # ---- rings

    def fill_rings(self) -> None:
        while found := self.asking.whole(self.gives_newest()):
            k, pieces = found
            for ring in self.rings:
                ring.put(k, self.parts(ring.rows, pieces))
            self.held.append((k, pieces))
        if self.asking.has_ended() and "end" not in self.said:
            self.said.add("end")
            for ring in self.rings:
                ring.end(self.asking.next)
            if (rest := self.asking.not_given()) and self.rows[0] == 0:
                say(f"{self.supply.pipeline}: the last {rest} examples do not fill a batch of "
                    f"{self.feed.batch} and are not given; a field mask would let them through")

    def gives_newest(self) -> bool:
        # Where another process has the same rows, it must have the same batch of them.
        return self.settings.get("queue") == "lifo" and not self.feed.copied and (
            self.settings.get("sampling") == "independent")

    def parts(self, rows: tuple[int, int], pieces: list[Filled]) -> list[Any]:
        """The pieces as far as they lie in these rows, with the mask."""
        found = []
        for one in pieces:
            begin = max(one.piece.row, rows[0])
            end = min(one.piece.row + one.piece.count, rows[1])
            if begin < end:
                cut = slice(begin - one.piece.row, end - one.piece.row)
                part = {name: a[cut] for name, a in one.arrays.items()}
                if self.masked:
                    part[MASK] = np.array(one.there[cut], np.bool_)
                found.append((begin, end - begin, part))
        return found

    def hand_back(self) -> None:
        """Memory of workers that no rank looks at any more."""
        taken = min(r.taken for r in self.rings)
        free: dict[str, list[str]] = {}
        while self.held and self.held[0][0] < taken:
            for one in self.held.pop(0)[1]:
                left = self.lent.pop(one.number, 0) - 1
                if left > 0:
                    self.lent[one.number] = left
                elif left == 0 and one.worker in self.workers:
                    free.setdefault(one.worker, []).append(one.number)
        for worker, numbers in free.items():
            if self.workers[worker].reading:
                self.workers[worker].say("free", ids=numbers)

    def send_back(self) -> None:
        """Values of feed.send(), to every worker: each keeps those of its environments."""
        while self.acts and all((r.sent(self.sent)) is not None for r in self.rings):
            for ring in self.rings:
                values = {n: np.ascontiguousarray(v) for n, v in ring.sent(self.sent).items()}
                first = self.sent * self.feed.batch + ring.rows[0]
                arrays = [{"name": n, "dtype": v.dtype.str, "shape": list(v.shape),
                           "bytes": v.nbytes, "region": None, "offset": None, "frame": i,
                           "codec": "none"} for i, (n, v) in enumerate(values.items())]
                for one in self.workers.values():
                    one.say("give_back", [v.tobytes() for v in values.values()],
                            pipeline=self.supply.pipeline, version=self.version, first=first,
                            arrays=arrays)
            self.sent += 1

    # ---- what others are told

    def rate(self) -> None:
        now = time.monotonic()
        if now - self.rated < RATE_S or self.knows_end:
            return
        self.rated = now
        self.say_why()
        waited, between = (max(x) for x in zip(*(r.waits() for r in self.rings)))
        rows = sum(e - b for b, e in self.asking.segments)
        taken = min(r.taken for r in self.rings)
        self.tell("rate", consumer=self.consumer, taken=taken * rows, busy_s=between,
                  waited_s=waited, queued=(self.asking.next - taken) * rows)

    def say_why(self) -> None:
        """Why it waits, once for each reason, if it is not over in a moment."""
        if self.pending and time.monotonic() - self.pending[0] > PENDING_S:
            text = f"{self.supply.pipeline} waits: {self.pending[1]}"
            if text not in self.said and self.rows[0] == 0:
                self.said.add(text)
                say(text)


def described(field: Any) -> dict[str, Any]:
    """A field as it stands on the wire: its shape without the batch."""
    dtype = np.dtype(field.dtype)
    return {"name": field.name, "dtype": dtype.str if dtype.kind != "V" else dtype.name,
            "shape": [int(n) for n in field.shape[1:]]}


def bytes_of(field: dict[str, Any]) -> int:
    size = int(dtype_named(field["dtype"]).itemsize)
    for extent in field["shape"]:
        size *= extent
    return size


def say(text: str) -> None:
    print(f"spmd feed: {text}", file=sys.stderr, flush=True)
