"""A worker: one process that computes examples which consumers ask for, until its agent ends.

One thread: it attends to messages, computes one piece of work, and attends again; its
WorkerHeartbeat says which. Always holds: whatever was asked is answered, forgotten on demand, or
its consumer is gone; no more memory is held for results than it may.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from math import ceil

from codegen.errors import EXIT_DATA, EnvironmentFault, InputError, Place
from codegen.short_batches import MASK
from codegen.user.whole_batches import told
from spmd.data.fork_guard import in_one_process
from spmd.data.source_tools import SourceFailed
from spmd.feeding.host import machine
from spmd.feeding.host import steady_clock as time
from spmd.feeding.host.children import Channel, of_parent
from spmd.feeding.messages.keys import Keys, pair, zmq
from spmd.feeding.messages.sockets import SENT, Lines, received, send_to
from spmd.feeding.messages.wire import MalformedMessage, Message, decode, encode, with_room
from spmd.feeding.results.compression import Link, in_parts, of_parts, packed
from spmd.feeding.results.evaluating import Evaluator
from spmd.feeding.results.loading import load_pipeline, what_failed
from spmd.feeding.results.memory_layout import bits_of, dtype_text, placed, views
from spmd.feeding.results.shared_results import ResultSharer
from spmd.feeding.workers.cache_line_rows import rows_by_cache_lines
from spmd.feeding.workers.fair_queue import FairQueue, QueuedWork
from spmd.feeding.workers.worker_heartbeat import (
    BEFORE,
    LOADING,
    OUT_OF_MEMORY,
    READING,
    WorkerHeartbeat,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

IDLE_MS = 500
TEXTS = ("file", "source", "own_name", "modules")
LIMITS = ("cost", "energy", "cost_per_hour", "energy_per_hour")
LOOK_S = 0.02  # between two looks at its agent, and at who comes, while it computes
GATHER_S = 0.25e-3  # results that take less are gathered for so long, and given in one message
SILENT_S = 2.0  # of a consumer that has results: then it is asked whether it is there
UNREAD = 256  # results under way to one consumer


class HeldPipeline:
    """A version of a pipeline as the agent told it; its evaluator is made when it is first asked
    for."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said
        self.evaluator: Evaluator | None = None
        self.has_limit = any(said["settings"].get(name) is not None for name in LIMITS)


class PipelineCounts:
    """Counts what this worker has computed of a pipeline since it started, over all versions."""

    def __init__(self) -> None:
        self.examples = self.bytes = 0
        self.busy_s = 0.0


class Worker:
    """Computes examples for consumers. started: its agent's first message: keys, where to bind, how
    much memory."""

    def __init__(self, channel: Channel, heartbeat: WorkerHeartbeat,
                 started: dict[str, Any]) -> None:
        self.channel, self.heartbeat = channel, heartbeat
        keys = Keys.of_plain(started["keys"])
        public, secret = pair()
        self.allowed = set(keys.allowed)
        self.lines = Lines(keys, lambda key: key in self.allowed)
        self.router = self.lines.router(started["bind"], secret, public)
        self.handing = ResultSharer(started["memory"])
        self.pipelines: dict[tuple[str, int], HeldPipeline] = {}  # by name and version
        self.counts: dict[str, PipelineCounts] = {}
        self.queue = FairQueue()
        self.links: dict[bytes, Link] = {}
        self.ended = False
        self.looked = self.gathering = 0.0
        self.gathered: dict[bytes, dict[str, Any]] = {}  # by consumer: a message that still grows
        self.shown: HeldPipeline | None = None  # in its heartbeat
        # Of the last piece: its fields, its rows, where each lies, bytes of all.
        self.places: tuple[Any, ...] = ([], 0, [], 0)
        port = self.router.last_endpoint.decode().rpartition(":")[2]
        channel.send(port=int(port), key=public, local=self.handing.local,
                     secret=self.handing.secret)

    def run(self) -> None:
        while not self.ended:
            if not self.is_busy() or time.monotonic() - self.gathering > GATHER_S:
                self.give_gathered()
                self.hear()
            due_ms = self.queue.due_in(time.monotonic()) * 1000
            if due_ms or time.monotonic() - self.looked > LOOK_S:
                self.attend(ceil(min(due_ms, IDLE_MS)))
                self.hear()
                self.look_after_links()
            if work := self.queue.next(time.monotonic()):
                self.compute(work)
        self.handing.close()
        self.lines.close()

    def is_busy(self) -> bool:
        return not self.queue.due_in(time.monotonic())

    def show_made(self) -> None:
        """Write what was computed so far into the heartbeat, for the agent's beats."""
        waiting = self.queue.lengths()
        self.heartbeat.set_counts({
            name: {"examples": counts.examples, "busy_s": counts.busy_s, "bytes": counts.bytes,
                   "queue": waiting[name]} for name, counts in self.counts.items()})

    # ---- messages

    def attend(self, wait_ms: int) -> None:
        """Wait for messages, and handle those of the agent and of consumers that come or leave."""
        self.looked = time.monotonic()
        self.show_made()
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        poller.register(self.channel.fileno(), zmq.POLLIN)
        sockets = {s.fileno() for s in self.handing.sockets()}
        for fd in sockets:
            poller.register(fd, zmq.POLLIN)
        ready = dict(poller.poll(wait_ms))
        if self.channel.fileno() in ready:
            self.agent_said()
        if sockets & ready.keys():
            self.handing.attend()

    def hear(self) -> None:
        """Handle the messages of consumers."""
        said, gone = self.handing.heard()
        for who, message in said:
            self.consumer_said(who.encode(), [message])
        for who in gone:
            self.leave(who.encode())
        while frames := received(self.router):
            self.consumer_said(bytes(frames[0]), frames[1:])

    def agent_said(self) -> None:
        self.heed(self.channel.said())

    def heed(self, said: list[dict[str, Any]] | None) -> None:
        self.ended = said is None
        for line in said or ():
            if "load" in line:
                self.load(line["load"])
            elif "drop" in line:
                self.drop(*line["drop"])
            elif "allowed" in line:
                self.let_in(set(line["allowed"]))

    def load(self, said: dict[str, Any]) -> None:
        """Take over a pipeline, another version of one, or other settings."""
        of = said["name"], said["version"]
        before, now = self.pipelines.get(of), HeldPipeline(said)
        if before and before.evaluator and all(before.said.get(k) == said.get(k) for k in TEXTS):
            now.evaluator = before.evaluator.with_settings(said["settings"])
        self.pipelines[of] = now
        self.counts.setdefault(said["name"], PipelineCounts())

    def let_in(self, allowed: set[str]) -> None:
        """Allow these keys only. Consumers with another key lose their connection; the others
        connect again."""
        self.allowed = allowed
        router = self.lines.without_strangers(self.router)
        if router is not self.router:
            self.router = router
            local = {who.encode() for who in self.handing.peers}
            for peer in {*self.links, *self.gathered, *self.queue.consumers, *local}:
                self.leave(peer)

    def drop(self, name: str, version: int) -> None:
        """Forget a version that no run takes any more."""
        dropped = self.pipelines.pop((name, version), None)
        if dropped and dropped.evaluator and dropped.evaluator.pipeline.own:
            dropped.evaluator.pipeline.own.close()
        if all(of[0] != name for of in self.pipelines):
            self.counts.pop(name, None)

    def consumer_said(self, peer: bytes, frames: list[Any]) -> None:
        try:
            message = decode(frames)
        except MalformedMessage:
            return  # of somebody who has a key; it gets no answer, and nobody is harmed
        if message.kind == "take":
            self.free(peer, message["free"] or ())
            self.take(peer, message)
        elif message.kind == "free":
            self.free(peer, message["ids"])
        elif message.kind == "forget":
            self.queue.forget(peer, message["ids"])
        elif message.kind == "give_back":
            try:
                self.give_back(message)
            except Exception as error:  # actions that the pipeline cannot take
                text, _, _ = what_failed(error, "")
                self.answer(peer, encode("refused", text=text, code=EXIT_DATA))

    def free(self, peer: bytes, numbers: Sequence[str]) -> None:
        for number in numbers:
            self.handing.free(number)
            if peer in self.links:
                self.links[peer].arrived(number)
                self.weigh()

    def take(self, peer: bytes, message: Message) -> None:
        if (message["pipeline"], message["version"]) not in self.pipelines:
            self.answer_unknown(peer, message, [item[0] for item in message["work"]])
            return
        self.queue.add(peer, message["share"],
                       [QueuedWork(peer, message, item) for item in message["work"]],
                       message["behind"] or 0)

    def answer_unknown(self, peer: bytes, take: Message, numbers: list[str]) -> None:
        self.answer(peer, encode("unknown", pipeline=take["pipeline"], version=take["version"],
                                 ids=numbers))

    def give_back(self, message: Message) -> None:
        """Pass actions on to the environments that this worker owns."""
        pipeline = self.pipelines.get((message["pipeline"], message["version"]))
        if pipeline and pipeline.evaluator:
            places, _ = placed([{**a, "shape": a["shape"][1:]} for a in message["arrays"]],
                               message["arrays"][0]["shape"][0] if message["arrays"] else 0)
            arrays = {}
            for array, (name, shape, dtype, _, size) in zip(message["arrays"], places):
                begin = array["frame"]
                frame = of_parts(message.frames[begin : begin + (array["parts"] or 1)])
                if memoryview(frame).nbytes == size and list(shape) == array["shape"]:
                    arrays.update(views([(name, shape, dtype, 0, size)], bytearray(frame)))
            pipeline.evaluator.pipeline.send(message["first"], told(arrays))

    def answer(self, peer: bytes, frames: list[Any]) -> str:
        """Send an answer; a consumer that is gone, or that reads none of thousands of answers, gets
        no more."""
        if len(frames) == 1 and self.handing.say(peer.decode("latin-1"), frames[0]):
            return SENT
        how = send_to(self.router, peer, frames)
        if how != SENT:
            self.leave(peer)
        return how

    def weigh(self) -> None:
        """Sum the bytes that are under way to consumers, and hold up those that must take some of
        them first: one that stops reading takes no memory from the others."""
        self.handing.beside = sum(link.under_way for link in self.links.values())
        most = max(self.handing.most - self.handing.used, 0) / max(len(self.links), 1)
        self.queue.held_up = {peer for peer, link in self.links.items() if link.count() and (
            link.under_way + link.largest > most or link.count() >= UNREAD)}

    def look_after_links(self) -> None:
        """Forget consumers that left without a message, with the results that were under way to
        them."""
        now = time.monotonic()
        for peer, link in list(self.links.items()):
            if now - link.heard > SILENT_S:
                link.heard = now
                self.answer(peer, encode("who"))

    def leave(self, peer: bytes) -> None:
        """Drop the requests of a consumer that is gone."""
        self.handing.leave(peer.decode("latin-1"))
        self.links.pop(peer, None)
        self.gathered.pop(peer, None)
        self.queue.leave(peer)
        self.weigh()

    # ---- work

    def loaded(self, pipeline: HeldPipeline, work: QueuedWork) -> Evaluator | None:
        if pipeline.evaluator is None:
            said = pipeline.said
            self.shown = None
            where = {"pipeline": said["name"], "version": said["version"], "file": said["file"],
                     "line": None, "timeout": None}
            self.heartbeat.set_preparing(LOADING, where)
            try:
                with in_one_process(Place(said["file"], 0)):
                    definition = load_pipeline(said)
                timeout = said["settings"].get("timeout", definition.settings.timeout)
                self.heartbeat.set_preparing(
                    READING, {**where, "line": definition.line, "timeout": timeout})
                evaluator = Evaluator(definition, said["settings"])
                with in_one_process(definition.place):
                    evaluator.order()
                with suppress(Exception):  # it is said at the examples
                    definition.total()
                definition.when_full = self.end_if_used
                pipeline.evaluator = evaluator
            except BaseException as error:
                self.fail(pipeline, work, error, BEFORE[LOADING])
                return None
            finally:
                self.heartbeat.set_idle()
        return pipeline.evaluator

    def end_if_used(self) -> None:
        """End the worker where no memory is left and earlier examples may have kept it: a new one
        has it."""
        if any(counts.examples for counts in self.counts.values()):
            os._exit(OUT_OF_MEMORY)

    def is_meant(self, evaluator: Evaluator, work: QueuedWork) -> bool:
        """Return whether this machine reads the stream with which the run has begun."""
        expected = work.take["order"]
        if not expected or evaluator.order() in (expected, ""):
            return True
        self.answer(work.peer, encode("refused", code=EXIT_DATA, text=str(InputError(
            f"a worker on {socket.gethostname()} reads another source than this run has begun with",
            expected="the same examples in the same order at every worker, and after a resume",
            found="other files, another length, seed or order there; or a data.iterator that "
            "gives others each time",
            remedy="the same files on every machine, random numbers of a fixed seed; if they have "
            "changed on purpose, submit the pipeline again and begin a new run"))))
        return False

    def fail(self, pipeline: HeldPipeline, work: QueuedWork, error: BaseException,
             example: str) -> None:
        text, file, line = what_failed(error, pipeline.said["file"])
        self.answer(work.peer, encode("broken", id=work.number, broken={
            "position": work.first, "example": example, "file": file, "line": line, "text": text}))

    def compute(self, work: QueuedWork) -> None:
        pipeline = self.pipelines.get(work.of)
        if pipeline is None:  # it was dropped meanwhile
            self.answer_unknown(work.peer, work.take, [work.number])
            return
        evaluator, counts = self.loaded(pipeline, work), self.counts[work.of[0]]
        if evaluator is None or not self.is_meant(evaluator, work):
            return
        if self.shown is not pipeline:
            self.shown = pipeline
            self.heartbeat.set_pipeline({
                "pipeline": pipeline.said["name"], "version": pipeline.said["version"],
                "file": pipeline.said["file"], "line": evaluator.pipeline.line,
                "timeout": evaluator.timeout})
        self.heartbeat.begin_example(work.first, "", evaluator.pipeline.size or 1)
        began = time.monotonic()
        try:
            fields = [f for f in work.take["fields"] if f["name"] != MASK]
            if self.places[:2] != (fields, work.count):
                self.places = fields, work.count, *placed(fields, work.count)
            places, size = self.places[2:]
            if size > self.handing.most:
                raise MemoryError(f"{work.count} examples take {size} bytes; this worker may hold "
                                  f"{self.handing.most}")
            region = self.handing.lend(work.peer.decode("latin-1"), work.number, size)
            memory = region.memory if region else bytearray(size)
            computed = evaluator.compute(work, fields, views(places, memory), self.heartbeat,
                                         rows_by_cache_lines if region else None)
        except BaseException as error:  # also KeyboardInterrupt: nobody but a user raises it here
            self.handing.free(work.number)
            self.fail(pipeline, work, error, "its source" if isinstance(error, SourceFailed) else (
                f"positions {work.first} to {work.first + work.count - 1}"))
            return
        finally:
            self.heartbeat.set_idle()
            seconds = time.monotonic() - began
            counts.busy_s += seconds
            self.queue.took(work.peer, seconds, began + seconds, pipeline.has_limit)
        counts.examples += computed.rows
        counts.bytes += size
        if computed.fatal:
            self.handing.free(work.number)
            self.answer(work.peer, encode("broken", id=work.number, broken=computed.broken[-1]))
            return
        said: dict[str, Any] = {"id": work.number, "rows": computed.rows, "seconds": seconds,
                                "there": bits_of(computed.there), "end": computed.end,
                                "broken": with_room(computed.broken) or None,
                                "together": evaluator.pipeline.size or 1}
        if work.take["order"] is None:
            said["order"] = evaluator.order() or None
        if region:
            self.gather(work, said, places, region.number)
            return
        link = self.link(work.peer, evaluator)
        # What lies beyond the end of the stream is zeros.
        arrays, frames = to_frames(link, places, memory, "" if computed.rows else "zstd")
        if self.answer(work.peer, encode("given", frames, arrays=arrays, **said)) == SENT:
            link.sent(work.number, sum(f.nbytes for f in frames))
            self.weigh()

    def gather(self, work: QueuedWork, said: dict[str, Any], places: list[tuple[Any, ...]],
               region: int) -> None:
        """Announce a result in shared memory. Where each takes little time, several go in one
        message."""
        before = self.gathered.get(work.peer)
        if before and (before["places"], before["said"]["end"]) == (places, said["end"]) and not (
                said["there"] or said["broken"]):
            before["more"].append([work.number, said["rows"], region, said["seconds"]])
        else:
            self.give_gathered()
            self.gathering = time.monotonic()
            self.gathered[work.peer] = {"places": places, "said": said, "region": region,
                                        "more": []}
        if said["seconds"] > GATHER_S:
            self.give_gathered()

    def give_gathered(self) -> None:
        while self.gathered:
            peer, message = self.gathered.popitem()
            self.answer(peer, encode("given", region=message["region"],
                                     more=message["more"] or None, **message["said"]))

    def link(self, peer: bytes, evaluator: Evaluator) -> Link:
        return self.links.setdefault(peer, Link(evaluator.compress))


def to_frames(link: Link, places: list[tuple[Any, ...]], memory: Any,
           fixed: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return a result as frames for another machine, by this codec or by what pays on that line."""
    arrays: list[dict[str, Any]] = []
    frames: list[Any] = []
    whole = memoryview(memory)
    for place in places:
        name, offset, size = place[0], place[3], place[4]
        data = whole[offset : offset + size]
        codec = fixed or link.codec(name, data)
        parts = in_parts(packed(data, codec), link.part())
        arrays.append(_array(place, frame=len(frames), parts=len(parts), codec=codec))
        frames += parts
    return arrays, frames


def _array(place: tuple[Any, ...], **where: Any) -> dict[str, Any]:
    name, shape, dtype, _, size = place
    return {"name": name, "dtype": dtype_text(dtype), "shape": list(shape), "bytes": size, **where}


def main(arguments: list[str]) -> None:
    """Run the worker that an agent starts with a channel, a heartbeat, and a file for its stack
    trace."""
    channel, (heartbeat, trace) = of_parent(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the agent, which ends us
    faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)
    while not (said := channel.said()):
        if said is None or not channel.wait_for(60):
            return
    started = said[0]
    if limit := started.get("limit"):
        limit = machine.lower(limit, resource.getrlimit(resource.RLIMIT_DATA)[1])
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        worker = Worker(channel, WorkerHeartbeat(heartbeat), started)
    except EnvironmentFault as error:
        channel.send(error=str(error))
        return
    worker.heed(said[1:])
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1:])
