"""The loop of a consumer: it requests examples of the workers that it has, and fills ring buffers.

In: the PipelineSupply whose thread runs it. It requests ranges of positions of the workers that the
scheduler assigns, and hands over their results (ring_buffers.py).
Always holds: every place is filled once; what is lost is asked for again; an error ends the run.
"""

from __future__ import annotations

import os
import random
import select
import time

from codegen.errors import InputError, PeerError, Place, SpmdError
from codegen.short_batches import MASK, check_holes, not_given
from spmd.data.computing import advice
from spmd.feeding.consumers.piece_ledger import PieceLedger, merge_ranges
from spmd.feeding.consumers.ring_buffers import RingBuffers
from spmd.feeding.consumers.worker_connection import WorkerConnection, broken, unreachable_text
from spmd.feeding.host.machine import host_name
from spmd.feeding.messages.consistency_errors import lifo_refused, streams_differ
from spmd.feeding.messages.keys import zmq
from spmd.feeding.messages.scheduler_replies import refused
from spmd.feeding.messages.sockets import REFUSED_KEY, Lines, is_readable, received
from spmd.feeding.messages.wire import (
    SOON_AFTER,
    MalformedMessage,
    Message,
    decode,
    encode,
    new_id,
)
from spmd.feeding.results.compression import in_frames
from spmd.feeding.results.memory_layout import bytes_of, described
from spmd.feeding.results.skipped_examples import SkippedExamples, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spmd.feeding.consumers.pipeline_supply import PipelineSupply

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


class ConsumerLoop:
    """The loop that the thread of a PipelineSupply runs, with all that it knows."""

    def __init__(self, supply: PipelineSupply, feed: Any, rings: list[Any], start: int) -> None:
        self.supply, self.feed = supply, feed
        self.consumer, self.here = new_id(), host_name()
        self.fields = [described(f) for f in feed.fields if f.name != MASK]
        self.masked = len(self.fields) < len(feed.fields)
        segments = merge_ranges([tuple(r.rows) for r in rings])
        self.rows = (segments[0][0], segments[-1][1]) if segments else (0, 0)
        self.knows_end = False  # it has no rows, and nothing to ask any more
        self.ledger = PieceLedger(segments, feed.batch, start, masked=self.masked,
                             row_bytes=sum(bytes_of(f) for f in self.fields),
                             keeps_cut=bool(feed.sends))
        self.rings = RingBuffers(feed, rings, self.ledger, start)
        self.acts = bool(feed.sends and segments)
        self.homes: dict[int, str] = {}  # by first row: the worker with these environments
        self.died_after: list[float] = []  # when workers did so, at no example
        self.failed: dict[int, SpmdError] = {}  # by batch: raised when a rank asks for it
        self.workers: dict[str, WorkerConnection] = {}
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
                self.poll()
                self.handle_messages()
                self.release_results()
                self.return_rows()
                self.fill_rings()
                self.raise_due_errors()
                self.request_pieces()
                self.send_released()
                self.send_rate()
        except SpmdError as error:
            self.rings.fail(error)
        except Exception as error:  # a defect of ours must end the run, not hang it
            self.rings.fail(InputError(f"feeding {self.supply.pipeline} failed: "
                                       f"{type(error).__name__}: {error}"))
        finally:
            self.close()

    def idle(self) -> None:
        """Run instead of the loop where no batch is for this process: watch what it has started for
        the others."""
        while not self.supply.has_finished_within(TICK_S):
            if error := self.supply.what_ended():
                self.rings.fail(error)
                return

    def close(self) -> None:
        for connection in self.workers.values():
            if numbers := self.ledger.requests_to(connection.worker):
                connection.send("forget", ids=numbers)
            connection.close()
        waits = bool(self.supply.opened) and self.settings.get("on_error") == "skip"
        if waits:
            self._receive_until(lambda: not self.skipped.told)
        self.parted = False
        self.notify_scheduler("done", consumer=self.consumer)
        if waits:  # from then on the scheduler tells another process
            self._receive_until(lambda: self.parted)
        self.skipped.end()
        self.lines.close(linger_ms=200)

    def _receive_until(self, over: Callable[[], bool]) -> None:
        """Handle what the scheduler says of skipped examples until `over()`, for PARTING_S at most
        and as long as there is a line to it."""
        end = time.monotonic() + PARTING_S
        while not over() and self.line.stands and time.monotonic() < end:
            self.resend_skipped()
            self.scheduler.poll(TICK_S * 1000)
            while frames := received(self.scheduler):
                message = self.decoded(frames)
                if message.kind in ("skipped", "said", "parted"):
                    self.handle_scheduler_message(message)
            self.line.broke()  # it looks whether it stands

    # ---- the scheduler

    def notify_scheduler(self, kind: str, **fields: Any) -> None:
        try:
            self.scheduler.send_multipart(encode(kind, **fields), zmq.DONTWAIT)
        except zmq.Again:
            pass  # it has been away for very long; when it is back, it asks us who we are

    def register(self) -> None:
        opened = self.supply.opened
        self.notify_scheduler("consume", consumer=self.consumer, run=self.supply.run_name,
                  pipeline=self.supply.pipeline, feed=self.feed.name, rows=list(self.rows),
                  batch=self.feed.batch, fields=self.fields, host=self.here,
                  ranks=list(self.supply.ranks), device=self.supply.device, version=self.version,
                  stream=opened and opened.stream, text=opened and opened.text,
                  blocks=self.rings.blocks(), idle=self.knows_end)

    def handle_scheduler_message(self, message: Message) -> None:
        self.answered = True
        if message.kind == "who":
            self.register()
        elif message.kind == "workers":
            self.set_workers(message)
        elif message.kind == "pending":
            self.pending = (time.monotonic(), message["why"])
        elif message.kind == "failed":
            raise refused(message)
        elif message.kind == "skipped":
            self.skipped.say(message["position"], message["text"])
            self.notify_scheduler("said", consumer=message["consumer"],
                                  position=message["position"])
        elif message.kind == "said":
            self.skipped.answered(message["position"])
        elif message.kind == "parted":
            self.parted = True
        elif message.kind == "hold":
            self.notify_scheduler("held", consumer=self.consumer, batches=self.ledger.pause())
        elif message.kind == "end_feed":
            self.ledger.end_after(message["batches"])
        elif message.kind == "gone" and message["pipeline"] == self.supply.pipeline:
            self.handle_worker_death(message)

    def set_workers(self, message: Message) -> None:
        """Take over the workers and settings of a message: pieces of workers that are no longer
        there wait again."""
        self.version, self.how = message["version"], message["how"]
        self.pending = None if any(w["share"] for w in message["workers"]) else self.pending
        self.settings = message["settings"]
        check_holes(self.supply.pipeline, self.settings.get("on_error") == "skip", self.feed.batch,
                    [f.name for f in self.feed.fields])
        if self.is_lifo() and (self.feed.copied or self.acts):
            raise lifo_refused(self.supply.pipeline, self.acts)
        # What waits long is not new any more.
        lifo = self.is_lifo()
        self.rings.limit_ahead(NEWEST if lifo else self.rings.depth, lifo)
        now, self.poller = {w["worker"]: w for w in message["workers"]}, None
        for worker in self.workers.keys() - now.keys():
            self.drop_worker(worker)
        for worker, assigned in now.items():
            others = [w.rows for w in self.workers.values() if w.worker != worker]
            if (connection := self.workers.get(worker)) is None:
                connection = self.workers[worker] = WorkerConnection(
                    self.lines, assigned, self.here, self.acts)
                connection.rows = min(others, default=0.0)
            before = connection.behind
            connection.share, connection.behind = assigned["share"], assigned["behind"] or 0
            if connection.behind != before:  # what it owes has another turn
                connection.rows = min(others, default=0.0)
                self.send_take(connection, [])

    def drop_worker(self, worker: str) -> None:
        """Forget a worker that is gone, or is not ours any more: the pieces that it owes wait
        again."""
        connection = self.workers.pop(worker, None)
        self.poller = None
        if connection is not None:
            numbers = self.ledger.requests_to(worker)
            if numbers and connection.is_alive():
                connection.send("forget", ids=numbers)
            self.ledger.requeue(numbers)
            connection.close()

    def handle_worker_death(self, message: Message) -> None:
        """Drop a worker that died; an example that kills workers is skipped, or fails."""
        self.drop_worker(message["worker"])
        position = message["position"]
        if position is None and message["example"]:
            self.handle_death_at_no_example(message)
        if position is None or not (many := self.count_death(position, bool(message["outside"]))):
            return
        if self.settings.get("on_error") == "skip":
            self.ledger.skipped.add(position)
            place = f"{message['file']}:{message['line']}"
            self.report_skipped(position, f"{message['example']} ({place}): {many} workers died "
                                f"that computed it; the last {message['why']}")
            return
        example = self.supply.name_of(position) or message["example"]
        named = "" if example == f"position {position}" else f", {example}"
        self.fail_position(position, InputError(
            f"pipeline {self.supply.pipeline} failed at position {position}{named}\n"
            f"  {many} workers died that computed it; the last {message['why']}",
            place=Place(message["file"], message["line"] or 0) if message["file"] else None,
            remedy="" if self.acts else advice(message["why"])))

    def count_death(self, position: int, outside: bool) -> int:
        """Return how many workers died at this example if it is the cause, else 0. An environment
        goes on at other positions of its place: deaths from outside do not count there."""
        if not self.acts:
            return self.ledger.count_death(position, outside)
        return 0 if outside else self.ledger.count_death(position % self.feed.batch)

    def handle_death_at_no_example(self, message: Message) -> None:
        """Raise InputError where enough workers died before their first example, of what the
        pipeline or its source does, or at no example but after some."""
        if message["example"] == SOON_AFTER:
            now = time.monotonic()
            self.died_after = [t for t in self.died_after if now - t < AFTER_S] + [now]
            many = len(self.died_after) if len(self.died_after) >= AFTER_DEATHS else 0
        else:
            many = self.ledger.count_death(BEFORE_ALL, bool(message["outside"]))
        if many:
            raise InputError(
                f"pipeline {self.supply.pipeline} failed at {message['example']}\n  {many} workers "
                f"died so; the last {message['why']}",
                place=Place(message["file"], message["line"] or 0) if message["file"] else None)

    def fail_position(self, position: int, error: SpmdError) -> None:
        """Keep the error of a batch that cannot be had, for a rank that asks for it: the run may
        end before it."""
        self.failed.setdefault(self.ledger.batch_of(position), error)

    def raise_due_errors(self) -> None:
        sent = self.rings.sent
        if self.acts and self.rings.owes_more(sent + 1):
            raise InputError(
                f"a rank takes batch {sent + 1} of pipeline {self.supply.pipeline} and has "
                f"sent nothing back behind batch {sent}",
                expected="feed.send(…) behind each feed.next(): environments go on by what they "
                "are told", found="a second feed.next()",
                remedy="feed.send in each turn, in every branch")
        for k, error in self.failed.items():
            if self.rings.is_wanted(self.ledger.next if self.is_lifo() else k):
                raise error

    # ---- waiting

    def poll(self) -> None:
        """Wait until a message comes, a rank takes a batch, or TICK_S have passed."""
        poller = self.poller = self.poller or self.polled_descriptors()
        # What a ZeroMQ socket has already is not shown by its descriptor.
        ready = is_readable(self.scheduler) or any(
            is_readable(w.socket) for w in self.workers.values())
        self.ready = {fd for fd, _ in poller.poll(0 if ready else TICK_S * 1000)}
        self.rings.drain_events(self.ready)
        if self.supply.fileno() in self.ready:
            os.eventfd_read(self.supply.fileno())
        now = time.monotonic()
        if now - self.looked > TICK_S:  # a line's end is noticed, whatever its descriptor says
            self.looked = now
            self.ready.update(self.line.fds(), *(w.fds() for w in self.workers.values()))

    def polled_descriptors(self) -> select.poll:
        poller = select.poll()
        for fd in (self.supply.fileno(), *self.rings.descriptors(), self.scheduler.FD,
                   *self.line.fds(), *(w.socket.FD for w in self.workers.values()),
                   *(fd for w in self.workers.values() for fd in w.fds())):
            poller.register(fd, select.POLLIN)
        return poller

    def handle_messages(self) -> None:
        if self.ready.intersection(self.line.fds()) and self.line.broke():
            self.register()  # what the scheduler said meanwhile may be lost: it says it again
        while frames := received(self.scheduler):
            self.handle_scheduler_message(self.decoded(frames))
        for worker, connection in list(self.workers.items()):
            look = not self.ready.isdisjoint(connection.fds())
            alive = not look or connection.is_alive()
            while worker in self.workers and (frames := connection.receive()):
                self.handle_worker_message(connection, self.decoded(frames))
            if not look:
                continue
            if not alive and worker in self.workers:
                self.drop_worker(worker)
                self.notify_scheduler("lost", consumer=self.consumer, worker=worker)
            elif worker in self.workers and connection.has_broken():
                self.drop_worker(worker)
                self.workers[worker], self.poller = connection.reconnected(), None
            elif worker in self.workers and (why := connection.outage()):
                self.notify_scheduler("lost", consumer=self.consumer, worker=worker, why=why)
                self.missed[worker] = connection.assigned["address"], why
                self.missed_since = self.missed_since or time.monotonic()
            elif worker in self.workers and connection.is_restored():
                self.notify_scheduler("reached", consumer=self.consumer, worker=worker)
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

    def request_pieces(self) -> None:
        """Request the pieces that wait of the workers that owe least, and overdue ones again."""
        ledger, now = self.ledger, time.monotonic()
        if not self.workers and not self.knows_end:
            return
        taken, depth = self.rings.taken(), self.rings.ahead
        room = taken + depth if not self.acts else self.rings.sent + 1
        if not ledger.segments and self.needs_no_end():
            ledger.skip_batches(min([room, *self.failed]))
            return
        span = 1 if self.acts or self.is_lifo() else depth // 4
        ledger.cut_batches(
            room, len(self.workers), 1 if self.acts else depth, span,
            min(self.failed, default=None), any(w.behind for w in self.workers.values()))
        loads = ledger.outstanding(self.workers)
        work: dict[str, list[Any]] = {}
        own = {w for w, connection in self.workers.items() if not connection.behind}
        if late := ledger.overdue_request(now, bool(own)):
            able = own if ledger.requests[late].spare and own else loads.keys()
            able = able - ledger.workers_asked(late)
            if other := self.choose_worker({w: loads[w] for w in able}, now, 1):
                work.setdefault(other.worker, []).append(
                    ledger.request_again(late, other.worker, now, bool(other.behind)))
                loads[other.worker] += 1
        while ledger.waiting:
            piece = ledger.waiting[0]
            if piece.k in self.failed:
                break
            connection = self.choose_worker(loads, now, piece.count, self.homes.get(piece.row, ""))
            if connection is None:
                break
            if self.acts:
                self.homes[piece.row] = connection.worker
            work.setdefault(connection.worker, []).append(
                ledger.request(connection.worker, now, bool(connection.behind)))
            loads[connection.worker] += 1
            connection.rows += piece.count / (connection.share or 1.0)
        for worker, items in work.items():
            self.send_take(self.workers[worker], items)

    def send_take(self, connection: WorkerConnection, items: list[Any]) -> None:
        connection.send("take", pipeline=self.supply.pipeline, version=self.version,
                        fields=self.fields, order=self.supply.order() or None,
                        share=connection.share, behind=connection.behind or None,
                        newest_first=self.is_lifo(), work=items,
                        free=self.free.pop(connection.worker, None))

    def needs_no_end(self) -> bool:
        """Return whether a process without rows knows where the stream ends, or that it does not.
        From then on it has no workers, and takes no share of them."""
        if not self.knows_end and (self.ledger.end is not None or not self.settings.get("epochs")):
            self.knows_end = True
            for worker in list(self.workers):
                self.drop_worker(worker)
            self.register()
        return self.knows_end

    def choose_worker(self, loads: dict[str, int], now: float, count: int,
               home: str = "") -> WorkerConnection | None:
        if home in self.workers:  # nobody else has its environments
            return self.workers[home] if self.workers[home].accepts_requests(now) else None
        piece_s = self.ledger.example_s * max(count, self.ledger.examples_at_once)
        able = [connection for w, connection in self.workers.items()
                if loads.get(w, 1 << 30) < connection.credits(piece_s)
                and connection.accepts_requests(now)]
        if not able:
            return None
        # Workers that are ours come before the time that others leave.
        if any(not connection.behind for connection in able):
            able = [connection for connection in able if not connection.behind]
        if self.how == "random":
            return random.choices(able, [connection.share or 1.0 for connection in able])[0]
        if self.how == "all":
            return min(able, key=lambda connection: loads[connection.worker])
        return min(able, key=lambda connection: connection.rows)

    def handle_worker_message(self, connection: WorkerConnection, message: Message) -> None:
        if message.kind == "given":
            self.handle_result(connection, message)
        elif message.kind == "broken":
            if message["id"] in self.ledger.requests and not self.ledger.split(message["id"]):
                error = broken(self.supply.pipeline, message["broken"], self.settings)
                self.fail_position(message["broken"]["position"], error)
        elif message.kind == "refused":
            raise InputError(f"pipeline {self.supply.pipeline}: {message['text']}")
        elif message.kind == "unknown":
            self.ledger.requeue(message["ids"])
            connection.deferred_until = time.monotonic() + UNKNOWN_S

    def handle_result(self, connection: WorkerConnection, message: Message) -> None:
        self.ledger.examples_at_once = message["together"] or 1
        if message["order"] and not self.supply.order():
            self.supply.goes_on_with(message["order"])
            self.notify_scheduler("learnt", consumer=self.consumer, order=message["order"])
        elif message["order"] not in (None, self.supply.order()):  # both were asked before one said
            raise streams_differ(self.supply.pipeline)
        if self.ledger.is_wanted(message["id"]):
            piece = self.ledger.requests[message["id"]].piece
            for position, failure in connection.skipped(message, piece):
                self.report_skipped(position, failure)
        if free := self.rings.record_result(connection, message, self.fields):
            connection.send("free", ids=free)

    def report_skipped(self, position: int, failure: str) -> None:
        """Report an example that is left out once for the whole run: its first process prints it,
        which the scheduler tells."""
        if 0 in self.supply.ranks or not self.supply.opened or not self.line.stands:
            self.skipped.say(position, failure)
        else:
            self.notify_scheduler("skipped", consumer=self.consumer,
                                  **self.skipped.tells(position, failure))

    def resend_skipped(self) -> None:
        for position, failure in self.skipped.late():
            self.notify_scheduler("skipped", consumer=self.consumer,
                                  **self.skipped.tells(position, failure))

    # ---- rings

    def fill_rings(self) -> None:
        self.rings.fill(self.is_lifo())
        if self.rings.end() and (rest := self.ledger.leftover_examples()) and self.rows[0] == 0:
            say(not_given(self.supply.pipeline, rest, self.feed.batch))

    def is_lifo(self) -> bool:
        return self.settings.get("queue") == "lifo"

    def release_results(self) -> None:
        """Collect results that no rank looks at any more: their workers hear of them with the next
        request."""
        for worker, numbers in self.rings.free().items():
            if worker in self.workers and self.workers[worker].reading:
                self.free.setdefault(worker, []).extend(numbers)

    def send_released(self) -> None:
        """Name released results to workers of which nothing was requested meanwhile."""
        for worker, numbers in self.free.items():
            if worker in self.workers:
                self.workers[worker].send("free", ids=numbers)
        self.free.clear()

    def return_rows(self) -> None:
        """Send the values of feed.send() to every worker: each keeps those of its environments."""
        for first, values in self.rings.take_returned() if self.acts else ():
            arrays, frames = in_frames(values)
            for connection in self.workers.values():
                connection.send("give_back", frames, pipeline=self.supply.pipeline,
                        version=self.version, first=first, arrays=arrays)

    # ---- what others are told

    def send_rate(self) -> None:
        now = time.monotonic()
        if now - self.rated < RATE_S:
            return
        self.rated = now
        self.explain_wait()
        self.resend_skipped()
        waited, between = self.rings.wait_times()
        rows = sum(e - b for b, e in self.ledger.segments)
        taken = self.rings.taken()
        self.notify_scheduler("rate", consumer=self.consumer, taken=taken * rows, busy_s=between,
                  waited_s=waited, queued=max(self.ledger.next - taken, 0) * rows)

    def explain_wait(self) -> None:
        """Print why ranks wait, once for each reason, where it lasts longer than a moment."""
        if self.pending and time.monotonic() - self.pending[0] > PENDING_S:
            self.warn_once(f" waits: {self.pending[1]}", self.pending[1])
        if self.missed and time.monotonic() - self.missed_since > TOGETHER_S:
            self.warn_once(f": {unreachable_text(self.missed)}", str(sorted(self.missed)))
            self.missed, self.missed_since = {}, 0.0

    def warn_once(self, text: str, about: str) -> None:
        if about not in self.said and self.rows[0] == 0:
            self.said.add(about)
            say(self.supply.pipeline + text)
