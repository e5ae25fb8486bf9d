"""PipelineSupply: a thread in a process of ranks that fills their rings with what workers compute.

In: a scheduler's address and a pipeline's name. It asks the workers that it is assigned for ranges
of positions, and gives on what they answer (filled_rings.py).
Always holds: every place is filled once; what is lost is asked for again; an error ends the run.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
import weakref
from contextlib import suppress

from codegen.errors import InputError, PeerError, Place, SpmdError
from codegen.short_batches import MASK, check_holes, not_given
from spmd.data.computing import advice
from spmd.engine.feed_rings import are_idle
from spmd.feeding.consumers.asked_worker import AskedWorker, broken, said_missed
from spmd.feeding.consumers.asking import Asking, merged
from spmd.feeding.consumers.filled_rings import FilledRings
from spmd.feeding.host.machine import host_name
from spmd.feeding.messages.disagreement import no_newest, other_streams
from spmd.feeding.messages.keys import zmq
from spmd.feeding.messages.scheduler_answers import refused
from spmd.feeding.messages.sockets import REFUSED_KEY, Lines, is_readable, received
from spmd.feeding.messages.wire import (
    SOON_AFTER,
    MalformedMessage,
    Message,
    decode,
    encode,
    new_id,
)
from spmd.feeding.results.packing import in_frames
from spmd.feeding.results.placing import bytes_of, described
from spmd.feeding.results.skipped_examples import SkippedExamples, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spmd.feeding.messages.keys import Keys
    from spmd.feeding.messages.scheduler_answers import OpenedStream

RATE_S = 0.5
TICK_S = 0.05
UNKNOWN_S = 0.05  # before a worker that does not know the pipeline yet is asked again
SILENT_S = 20.0  # without a word of the scheduler when it is first asked
PENDING_S = 3.0  # without workers: then it is said why
TOGETHER_S = 1.0  # for workers that are missed to be named in one line
BEFORE_ALL = -1  # in the place of a position: workers died before they came to one
AFTER_DEATHS, AFTER_S = 5, 60.0  # deaths at no example in so many seconds end the run
NEWEST = 16  # batches that may wait where the newest are wanted
PARTING_S = 2.0  # at the end, for others to say what they were told


class PipelineSupply:
    """pipeline@address, with the keys of the scheduler there. One for each feed.

    ranks: numbers of the ranks of this process; device: what they run on; run: of which run.
    opened: the stream that all processes of the run go on with; None: of this process alone.
    """

    helps = "more workers (spmd feed status says how many)"  # where ranks wait

    def __init__(self, pipeline: str, address: str, keys: Keys, *, ranks: tuple[int, ...] = (),
                 device: str = "cpu", run: str = "", opened: OpenedStream | None = None) -> None:
        self.pipeline, self.address, self.keys, self.opened = pipeline, address, keys, opened
        self._order = opened.order if opened else ""
        self.ranks, self.device, self.run_name = ranks, device, run
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._wake)

    def begin(self, feed: Any, rings: list[Any], start: int) -> None:
        """Fills the rings from batch `start` on, in a thread, until finish()."""
        self._stop.clear()
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)  # what ended the thread before this one
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
        """What a checkpoint knows the stream by; "" until a worker has said it."""
        return self._order

    def goes_on_with(self, order: str) -> None:
        """The order that workers are held to: of a checkpoint, or as the first of them said it."""
        self._order = order

    def text(self) -> str:
        """What tells the source of the pipeline from others; "" where it is not known."""
        return self.opened.text if self.opened else ""

    def settings(self) -> dict[str, Any]:
        """Those of the pipeline that say which example stands where."""
        return (self.opened.settings if self.opened else None) or {}

    def name_of(self, position: int) -> str:
        """What an example is called; "" where only workers know the source."""
        return ""

    def has_finished(self) -> bool:
        return self._stop.is_set()

    def has_finished_within(self, seconds: float) -> bool:
        return self._stop.wait(seconds)

    def fileno(self) -> int:
        return self._wake

    def what_ended(self) -> SpmdError | None:
        """Whether what was started for this run does not live, however often it is started."""
        return None


class Filling:
    """What the thread of a PipelineSupply does."""

    def __init__(self, supply: PipelineSupply, feed: Any, rings: list[Any], start: int) -> None:
        self.supply, self.feed = supply, feed
        self.consumer, self.here = new_id(), host_name()
        self.fields = [described(f) for f in feed.fields if f.name != MASK]
        self.masked = len(self.fields) < len(feed.fields)
        segments = merged([tuple(r.rows) for r in rings])
        self.rows = (segments[0][0], segments[-1][1]) if segments else (0, 0)
        self.knows_end = False  # it has no rows, and nothing to ask any more
        self.asking = Asking(segments, feed.batch, start, masked=self.masked,
                             row_bytes=sum(bytes_of(f) for f in self.fields),
                             keeps_cut=bool(feed.sends))
        self.rings = FilledRings(feed, rings, self.asking, start)
        self.acts = bool(feed.sends and segments)
        self.homes: dict[int, str] = {}  # by first row: the worker with these environments
        self.died_after: list[float] = []  # when workers did so, at no example
        self.failed: dict[int, SpmdError] = {}  # by batch: raised when a rank asks for it
        self.workers: dict[str, AskedWorker] = {}
        self.version: int | None = supply.opened.version if supply.opened else None
        self.how, self.settings = "turn", {}  # type: ignore[var-annotated]
        self.began = time.monotonic()
        self.answered = False
        self.pending: tuple[float, str] | None = None  # since when there are no workers, and why
        self.skipped = SkippedExamples(supply.pipeline)
        self.parted = False  # the scheduler has heard our last word
        self.rated = 0.0
        self.said: set[str] = set()
        self.missed: dict[str, tuple[str, str]] = {}  # no line to these; not told yet
        self.missed_since = 0.0
        self.free: dict[str, list[str]] = {}  # by worker: what no rank looks at any more
        self.poller: select.poll | None = None  # of the lines at hand
        self.ready: set[int] = set()  # descriptors at which there is something
        self.looked = 0.0  # when all of them were looked at

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
                self.say_what_is_free()
                self.rate()
        except SpmdError as error:
            self.rings.fail(error)
        except Exception as error:  # a defect of ours must end the run, not hang it
            self.rings.fail(InputError(f"feeding {self.supply.pipeline} failed: "
                                       f"{type(error).__name__}: {error}"))
        finally:
            self.close()

    def stand_by(self) -> None:
        """No batch is for this process: only what it has started for the others is looked after."""
        while not self.supply.has_finished_within(TICK_S):
            if error := self.supply.what_ended():
                self.rings.fail(error)
                return

    def close(self) -> None:
        for one in self.workers.values():
            if numbers := self.asking.of(one.worker):
                one.say("forget", ids=numbers)
            one.close()
        waits = bool(self.supply.opened) and self.settings.get("on_error") == "skip"
        if waits:
            self.hear_until(lambda: not self.skipped.told)
        self.parted = False
        self.tell("done", consumer=self.consumer)
        if waits:  # from then on the scheduler tells another process
            self.hear_until(lambda: self.parted)
        self.skipped.end()
        self.lines.close(linger_ms=200)

    def hear_until(self, over: Callable[[], bool]) -> None:
        """Hears of what was skipped, if there is a line to the scheduler."""
        end = time.monotonic() + PARTING_S
        while not over() and self.line.stands and time.monotonic() < end:
            self.tell_again()
            self.scheduler.poll(TICK_S * 1000)
            while frames := received(self.scheduler):
                message = self.decoded(frames)
                if message.kind in ("skipped", "said", "parted"):
                    self.scheduler_said(message)
            self.line.broke()  # it looks whether it stands

    # ---- the scheduler

    def tell(self, kind: str, **fields: Any) -> None:
        try:
            self.scheduler.send_multipart(encode(kind, **fields), zmq.DONTWAIT)
        except zmq.Again:
            pass  # it has been away for very long; when it is back, it asks us who we are

    def register(self) -> None:
        opened = self.supply.opened
        self.tell("consume", consumer=self.consumer, run=self.supply.run_name,
                  pipeline=self.supply.pipeline, feed=self.feed.name, rows=list(self.rows),
                  batch=self.feed.batch, fields=self.fields, host=self.here,
                  ranks=list(self.supply.ranks), device=self.supply.device, version=self.version,
                  stream=opened and opened.stream, text=opened and opened.text,
                  blocks=self.rings.blocks(), idle=self.knows_end)

    def scheduler_said(self, message: Message) -> None:
        self.answered = True
        if message.kind == "who":
            self.register()
        elif message.kind == "workers":
            self.assign(message)
        elif message.kind == "pending":
            self.pending = (time.monotonic(), message["why"])
        elif message.kind == "failed":
            raise refused(message)
        elif message.kind == "skipped":
            self.skipped.say(message["position"], message["text"])
            self.tell("said", consumer=message["consumer"], position=message["position"])
        elif message.kind == "said":
            self.skipped.answered(message["position"])
        elif message.kind == "parted":
            self.parted = True
        elif message.kind == "hold":
            self.tell("held", consumer=self.consumer, batches=self.asking.hold())
        elif message.kind == "end_feed":
            self.asking.end_after(message["batches"])
        elif message.kind == "gone" and message["pipeline"] == self.supply.pipeline:
            self.gone(message)

    def assign(self, message: Message) -> None:
        """Other workers, or other settings: what was lost waits again."""
        self.version, self.how = message["version"], message["how"]
        self.pending = None if any(w["share"] for w in message["workers"]) else self.pending
        self.settings = message["settings"]
        check_holes(self.supply.pipeline, self.settings.get("on_error") == "skip", self.feed.batch,
                    [f.name for f in self.feed.fields])
        if self.gives_newest() and (self.feed.copied or self.acts):
            raise no_newest(self.supply.pipeline, self.acts)
        # What waits long is not new any more.
        lifo = self.gives_newest()
        self.rings.fill_ahead(NEWEST if lifo else self.rings.depth, lifo)
        now, self.poller = {w["worker"]: w for w in message["workers"]}, None
        for worker in self.workers.keys() - now.keys():
            self.lose(worker)
        for worker, assigned in now.items():
            others = [w.rows for w in self.workers.values() if w.worker != worker]
            if (one := self.workers.get(worker)) is None:
                one = self.workers[worker] = AskedWorker(
                    self.lines, assigned, self.here, self.acts)
                one.rows = min(others, default=0.0)
            before = one.behind
            one.share, one.behind = assigned["share"], assigned["behind"] or 0
            if one.behind != before:  # what it owes has another turn
                one.rows = min(others, default=0.0)
                self.say_take(one, [])

    def lose(self, worker: str) -> None:
        """A worker is gone, or not ours any more: others are asked for what it owes."""
        one = self.workers.pop(worker, None)
        self.poller = None
        if one is not None:
            numbers = self.asking.of(worker)
            if numbers and one.is_alive():
                one.say("forget", ids=numbers)
            self.asking.back(numbers)
            one.close()

    def gone(self, message: Message) -> None:
        """A worker died at an example: one that kills workers is not computed again."""
        self.lose(message["worker"])
        position = message["position"]
        if position is None and message["example"]:
            self.died_before(message)
        if position is None or not (many := self.died_at(position, bool(message["outside"]))):
            return
        if self.settings.get("on_error") == "skip":
            self.asking.left_out.add(position)
            self.skip(position, f"{message['example']} ({message['file']}:{message['line']}): "
                      f"{many} workers died that computed it; the last {message['why']}")
            return
        example = self.supply.name_of(position) or message["example"]
        named = "" if example == f"position {position}" else f", {example}"
        self.fail_at(position, InputError(
            f"pipeline {self.supply.pipeline} failed at position {position}{named}\n"
            f"  {many} workers died that computed it; the last {message['why']}",
            place=Place(message["file"], message["line"] or 0) if message["file"] else None,
            remedy="" if self.acts else advice(message["why"])))

    def died_at(self, position: int, outside: bool) -> int:
        """How many workers died at this example, if it is the cause. An environment goes on at
        other positions of its place: whoever kills its workers does not count."""
        if not self.acts:
            return self.asking.died_at(position, outside)
        return 0 if outside else self.asking.died_at(position % self.feed.batch)

    def died_before(self, message: Message) -> None:
        """A worker died before its first example, of what the pipeline or its source does; or at
        none, but after some."""
        if message["example"] == SOON_AFTER:
            now = time.monotonic()
            self.died_after = [t for t in self.died_after if now - t < AFTER_S] + [now]
            many = len(self.died_after) if len(self.died_after) >= AFTER_DEATHS else 0
        else:
            many = self.asking.died_at(BEFORE_ALL, bool(message["outside"]))
        if many:
            raise InputError(
                f"pipeline {self.supply.pipeline} failed at {message['example']}\n  {many} workers "
                f"died so; the last {message['why']}",
                place=Place(message["file"], message["line"] or 0) if message["file"] else None)

    def fail_at(self, position: int, error: SpmdError) -> None:
        """A batch cannot be had. The run may end before it: only who asks for it hears of it."""
        self.failed.setdefault(self.asking.batch_of(position), error)

    def raise_what_is_wanted(self) -> None:
        sent = self.rings.sent
        if self.acts and self.rings.owe(sent + 1):
            raise InputError(
                f"a rank takes batch {sent + 1} of pipeline {self.supply.pipeline} and has "
                f"sent nothing back behind batch {sent}",
                expected="feed.send(…) behind each feed.next(): environments go on by what they "
                "are told", found="a second feed.next()",
                remedy="feed.send in each turn, in every branch")
        for k, error in self.failed.items():
            if self.rings.is_wanted(self.asking.next if self.gives_newest() else k):
                raise error

    # ---- waiting

    def wait(self) -> None:
        """Until somebody says something, a rank took a batch, or a moment passed."""
        poller = self.poller = self.poller or self.polled()
        # What a ZeroMQ socket has already is not shown by its descriptor.
        ready = is_readable(self.scheduler) or any(
            is_readable(w.socket) for w in self.workers.values())
        self.ready = {fd for fd, _ in poller.poll(0 if ready else TICK_S * 1000)}
        self.rings.hear(self.ready)
        if self.supply.fileno() in self.ready:
            os.eventfd_read(self.supply.fileno())
        now = time.monotonic()
        if now - self.looked > TICK_S:  # a line's end is noticed, whatever its descriptor says
            self.looked = now
            self.ready.update(self.line.fds(), *(w.fds() for w in self.workers.values()))

    def polled(self) -> select.poll:
        poller = select.poll()
        for fd in (self.supply.fileno(), *self.rings.descriptors(), self.scheduler.FD,
                   *self.line.fds(), *(w.socket.FD for w in self.workers.values()),
                   *(fd for w in self.workers.values() for fd in w.fds())):
            poller.register(fd, select.POLLIN)
        return poller

    def attend(self) -> None:
        if self.ready.intersection(self.line.fds()) and self.line.broke():
            self.register()  # what the scheduler said meanwhile may be lost: it says it again
        while frames := received(self.scheduler):
            self.scheduler_said(self.decoded(frames))
        for worker, one in list(self.workers.items()):
            look = not self.ready.isdisjoint(one.fds())
            alive = not look or one.is_alive()
            while worker in self.workers and (frames := one.heard()):
                self.worker_said(one, self.decoded(frames))
            if not look:
                continue
            if not alive and worker in self.workers:
                self.lose(worker)
                self.tell("lost", consumer=self.consumer, worker=worker)
            elif worker in self.workers and one.has_broken():
                self.lose(worker)
                self.workers[worker], self.poller = one.again(), None
            elif worker in self.workers and (why := one.missed()):
                self.tell("lost", consumer=self.consumer, worker=worker, why=why)
                self.missed[worker] = one.assigned["address"], why
                self.missed_since = self.missed_since or time.monotonic()
            elif worker in self.workers and one.is_back():
                self.tell("reached", consumer=self.consumer, worker=worker)
        if error := self.supply.what_ended():
            raise error
        if (not self.answered and time.monotonic() - self.began > SILENT_S) or (
                self.line.why() == REFUSED_KEY and self.line.away() > SILENT_S):
            raise PeerError(
                f"no scheduler answers at {self.supply.address}",
                expected=f"an answer within {SILENT_S:g} s", found=self.line.why(),
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
        taken, depth = self.rings.taken(), self.rings.ahead
        room = taken + depth if not self.acts else self.rings.sent + 1
        if not asking.segments and self.hears_of_no_end():
            asking.pass_until(min([room, *self.failed]))
            return
        span = 1 if self.acts or self.gives_newest() else depth // 4
        asking.open_until(
            room, len(self.workers), 1 if self.acts else depth, span,
            min(self.failed, default=None), any(w.behind for w in self.workers.values()))
        loads = asking.loads(self.workers)
        work: dict[str, list[Any]] = {}
        own = {w for w, one in self.workers.items() if not one.behind}
        if late := asking.late(now, bool(own)):
            able = (own if asking.asked[late].spare and own else loads.keys()) - asking.askers(late)
            if other := self.choose({w: loads[w] for w in able}, now, 1):
                work.setdefault(other.worker, []).append(
                    asking.ask_again(late, other.worker, now, bool(other.behind)))
                loads[other.worker] += 1
        while asking.waiting:
            piece = asking.waiting[0]
            if piece.k in self.failed:
                break
            one = self.choose(loads, now, piece.count, self.homes.get(piece.row, ""))
            if one is None:
                break
            if self.acts:
                self.homes[piece.row] = one.worker
            work.setdefault(one.worker, []).append(
                asking.take(one.worker, now, bool(one.behind)))
            loads[one.worker] += 1
            one.rows += piece.count / (one.share or 1.0)
        for worker, items in work.items():
            self.say_take(self.workers[worker], items)

    def say_take(self, one: AskedWorker, items: list[Any]) -> None:
        one.say("take", pipeline=self.supply.pipeline, version=self.version, fields=self.fields,
                order=self.supply.order() or None, share=one.share, behind=one.behind or None,
                newest_first=self.gives_newest(), work=items,
                free=self.free.pop(one.worker, None))

    def hears_of_no_end(self) -> bool:
        """Of a process without rows: it knows where the stream ends, or that it does not. Then it
        has no more to do with workers, and takes no share of them."""
        if not self.knows_end and (self.asking.end is not None or not self.settings.get("epochs")):
            self.knows_end = True
            for worker in list(self.workers):
                self.lose(worker)
            self.register()
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
        if any(not one.behind for one in able):  # what others leave comes after what is ours
            able = [one for one in able if not one.behind]
        if self.how == "random":
            return random.choices(able, [one.share or 1.0 for one in able])[0]
        if self.how == "all":
            return min(able, key=lambda one: loads[one.worker])
        return min(able, key=lambda one: one.rows)

    def worker_said(self, one: AskedWorker, message: Message) -> None:
        if message.kind == "given":
            self.given(one, message)
        elif message.kind == "broken":
            if message["id"] in self.asking.asked and not self.asking.apart(message["id"]):
                error = broken(self.supply.pipeline, message["broken"], self.settings)
                self.fail_at(message["broken"]["position"], error)
        elif message.kind == "refused":
            raise InputError(f"pipeline {self.supply.pipeline}: {message['text']}")
        elif message.kind == "unknown":
            self.asking.back(message["ids"])
            one.quiet_until = time.monotonic() + UNKNOWN_S

    def given(self, one: AskedWorker, message: Message) -> None:
        self.asking.together = message["together"] or 1
        if message["order"] and not self.supply.order():
            self.supply.goes_on_with(message["order"])
            self.tell("learnt", consumer=self.consumer, order=message["order"])
        elif message["order"] not in (None, self.supply.order()):  # both were asked before one said
            raise other_streams(self.supply.pipeline)
        if self.asking.is_wanted(message["id"]):
            for position, what in one.skipped(message, self.asking.asked[message["id"]].piece):
                self.skip(position, what)
        if free := self.rings.take_in(one, message, self.fields):
            one.say("free", ids=free)

    def skip(self, position: int, what: str) -> None:
        """Said once for the whole run: by its first process, which the scheduler tells."""
        if 0 in self.supply.ranks or not self.supply.opened or not self.line.stands:
            self.skipped.say(position, what)
        else:
            self.tell("skipped", consumer=self.consumer, **self.skipped.tells(position, what))

    def tell_again(self) -> None:
        for position, what in self.skipped.late():
            self.tell("skipped", consumer=self.consumer, **self.skipped.tells(position, what))

    # ---- rings

    def fill_rings(self) -> None:
        self.rings.fill(self.gives_newest())
        if self.rings.end() and (rest := self.asking.not_given()) and self.rows[0] == 0:
            say(not_given(self.supply.pipeline, rest, self.feed.batch))

    def gives_newest(self) -> bool:
        return self.settings.get("queue") == "lifo"

    def hand_back(self) -> None:
        """Memory of workers that no rank looks at any more: said with what they are asked next."""
        for worker, numbers in self.rings.free().items():
            if worker in self.workers and self.workers[worker].reading:
                self.free.setdefault(worker, []).extend(numbers)

    def say_what_is_free(self) -> None:
        """To workers that were asked for nothing meanwhile."""
        for worker, numbers in self.free.items():
            if worker in self.workers:
                self.workers[worker].say("free", ids=numbers)
        self.free.clear()

    def send_back(self) -> None:
        """Values of feed.send(), to every worker: each keeps those of its environments."""
        for first, values in self.rings.sent_back() if self.acts else ():
            arrays, frames = in_frames(values)
            for one in self.workers.values():
                one.say("give_back", frames, pipeline=self.supply.pipeline,
                        version=self.version, first=first, arrays=arrays)

    # ---- what others are told

    def rate(self) -> None:
        now = time.monotonic()
        if now - self.rated < RATE_S:
            return
        self.rated = now
        self.say_why()
        self.tell_again()
        waited, between = self.rings.waits()
        rows = sum(e - b for b, e in self.asking.segments)
        taken = self.rings.taken()
        self.tell("rate", consumer=self.consumer, taken=taken * rows, busy_s=between,
                  waited_s=waited, queued=max(self.asking.next - taken, 0) * rows)

    def say_why(self) -> None:
        """Why it waits, once for each reason, if it is not over in a moment."""
        if self.pending and time.monotonic() - self.pending[0] > PENDING_S:
            self.say_once(f" waits: {self.pending[1]}", self.pending[1])
        if self.missed and time.monotonic() - self.missed_since > TOGETHER_S:
            self.say_once(f": {said_missed(self.missed)}", str(sorted(self.missed)))
            self.missed, self.missed_since = {}, 0.0

    def say_once(self, text: str, about: str) -> None:
        if about not in self.said and self.rows[0] == 0:
            self.said.add(about)
            say(self.supply.pipeline + text)
