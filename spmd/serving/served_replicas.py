"""The replicas of a server: jobs elsewhere that join it, and make calls from its queue.

In: an address, keys, the job that is served. Out: places of the queue, which come and go. Always
holds: a replica is called only while it has the job that is served; that changes for all of them
while no call runs; a call whose replica is lost has not been answered.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from codegen.errors import EnvironmentFault, PeerError, SpmdError, VersionError
from spmd import __version__
from spmd.feeding.host.machine import host_name
from spmd.feeding.messages.keys import KEYS, AllowedKeys, Keys, keys_of, zmq
from spmd.feeding.messages.sockets import SENT, Lines, received, send_to
from spmd.feeding.messages.wire import MalformedMessage, Message, decode, encode
from spmd.feeding.starting.scheduler_process import checked_listen, reached_at
from spmd.launch.processes import say
from spmd.serving.call_queue import CallQueue, LostError
from spmd.serving.joined_calls import Outputs
from spmd.serving.replica_messages import (
    arrays_in,
    error_in,
    framed_arguments,
    in_frames,
    outputs_in,
)
from spmd.serving.sent_frames import SentFrames
from spmd.serving.served_job import OpenJob, ServedJob

BEAT_S = 0.25  # between two looks at whether each replica is there
LOOK_S = 0.05  # between two looks at whether the client of a stream is there
SAID = ("opened", "made", "saved", "parting")  # by a replica that is known
LINGER_MS = 500  # for the last words to be sent


def keys_for(listen: str, folder: str) -> tuple[Keys, AllowedKeys]:
    """Return the keys of a server at which replicas join, and those of replicas. folder: of keys,
    "" for the usual one. Raises UsageError where other machines could join, and no folder is
    given."""
    folder = folder or os.environ.get(KEYS, "")
    checked_listen(listen, folder, "--replicas")
    keys = keys_of(folder, scheduler=True)
    return keys, AllowedKeys(keys.allowed, folder)


class Replica:
    """A replica that has joined. peer: its identity; name: in metrics and messages; opened: the
    numbers of jobs that it was told to open, each with its error, or None where it has it."""

    def __init__(self, front: Replicas, peer: bytes, name: str, machine: str) -> None:
        self._front, self.peer, self.name, self.machine = front, peer, name, machine
        self.is_called = self.has_left = self.is_parting = False
        self.opened: dict[int, dict[str, str] | None] = {}
        self.inbox: SimpleQueue[Message | None] | None = None  # of the call that runs
        self._numbers = itertools.count()
        self.call_number = -1

    def call(self, entry: str | None, arguments: dict[str, Any], version: str | None,
             frames: SentFrames | None) -> tuple[str, Outputs]:
        """Call an entry, or the program where it is None. Returns the version that was called, and
        its outputs. Raises what the call raises; LostError where the replica is lost before its
        client has seen anything of it, else PeerError."""
        job = self._front.job.check(version)
        with self._front.changed:
            if self.has_left:
                raise self._lost(LostError)
            self.inbox, self.call_number = SimpleQueue(), next(self._numbers)
        try:
            raw, length = framed_arguments(arguments)
            self._front.post(self.peer, "call", raw, job=self._front.number, entry=entry,
                             call=self.call_number, streams=frames is not None, length=length)
            if frames is not None:
                frames.version = job.version
            return job.version, self._answer(self.inbox, frames)
        finally:
            with self._front.changed:
                self.inbox = None
                if self.is_parting:
                    self._front.post(self.peer, "stop", why="it was told to end")

    def _answer(self, inbox: SimpleQueue[Message | None], frames: SentFrames | None) -> Outputs:
        """Wait for the outputs of the call that runs. frames: takes what it saves."""
        failure: BaseException | None = None
        has_sent = False
        while True:
            try:
                message = inbox.get(timeout=None if frames is None else LOOK_S)
                if message is None:
                    raise failure or self._lost(PeerError if has_sent else LostError)
                if message.kind == "made":
                    if failure is not None:
                        raise failure
                    if message["error"] is not None:
                        raise error_in(message["error"])
                    return outputs_in(message)
            except Empty:
                message = None
            if frames is None or failure is not None:
                continue
            try:
                if message is None:
                    frames.look()
                else:
                    ((name, array),) = arrays_in(message)[1].items()
                    has_sent = True
                    frames.put(name, array)
                    self._front.post(self.peer, "read", call=self.call_number)
            except Exception as error:  # nobody reads on
                failure = error
                self._front.post(self.peer, "hush", call=self.call_number)

    def _lost(self, kind: type[SpmdError]) -> SpmdError:
        return kind(f"replica {self.name} was lost while it made the call",
                    expected="an answer of it", found="no line to it any more",
                    remedy="the same request again")


class Replicas:
    """All replicas of a server. allowed: keys of replicas; job: what is served; has_own: the server
    has ranks of its own, which take a part of this machine's cores; number: of the job that
    replicas are called with."""

    def __init__(self, listen: str, keys: Keys, allowed: AllowedKeys, queue: CallQueue,
                 job: ServedJob, *, has_own: bool) -> None:
        self.job, self._queue, self._has_own = job, queue, has_own
        self._numbers = itertools.count(1)
        self.number = next(self._numbers)
        self.changed = threading.Condition(threading.RLock())
        self._known: dict[bytes, Replica] = {}
        self._outbox: deque[tuple[bytes, list[Any]]] = deque()
        self._bell, self._ends, self._beat = os.eventfd(0, os.EFD_NONBLOCK), False, 0.0
        self._lines = Lines(keys, lambda key: key in allowed.now())
        try:
            self._router = self._lines.router(listen, keys.server_secret, keys.server)
        except BaseException as error:
            self._lines.close()
            if isinstance(error, zmq.ZMQError):
                raise EnvironmentFault(
                    f"{listen}: cannot listen there: {error}", expected="a free port",
                    remedy="another --replicas, as tcp://127.0.0.1:*") from None
            raise
        self.address = reached_at(listen, self._router.last_endpoint.decode())
        self._thread = threading.Thread(target=self._run, name="spmd replicas", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return sum(replica.is_called for replica in list(self._known.values()))

    # ---- loads

    def swap(self, job: OpenJob | None) -> None:
        """Have another job, or none, called from the next call on, in this process and on all
        replicas, once those have opened it and no call runs. Raises the error of a replica that
        cannot open it: all go on with the job that is there."""
        with self.changed:
            number = next(self._numbers)
            if job is not None:
                self._prepare(number, job)
        with self._queue.paused(), self.changed:
            self.number = number
            for replica in [*self._known.values()]:
                if job is None or number in replica.opened:
                    self.post(replica.peer, "keep", job=number)
                elif replica.is_called:  # it came meanwhile: it comes again
                    self.post(replica.peer, "who")
                    self._lose(replica, "it joined while another job was loaded")
            self.job.replace(job)

    def _prepare(self, number: int, job: OpenJob) -> None:
        """Have all replicas open a job beside the one that they have."""
        told = [replica for replica in self._known.values() if replica.is_called]
        for replica in told:
            self._hand_over(replica, number, job)
        while any(number not in x.opened and not x.has_left for x in told):
            self.changed.wait()
        for replica in told:
            row = replica.opened.get(number)
            if row is not None:
                for other in told:
                    self.post(other.peer, "keep", job=self.number)
                raise error_in({**row, "text": f"replica {replica.name}: {row['text']}"})

    def _hand_over(self, replica: Replica, number: int, job: OpenJob) -> None:
        image, state = job.handed_over()
        ending = os.path.splitext(str(job.files.state))[1] if state is not None else None
        self.post(replica.peer, "serve", in_frames(image, state or b""), job=number,
                  image=len(image), state=ending)

    # ---- the line

    def post(self, peer: bytes, kind: str, frames: Any = (), /, **fields: Any) -> None:
        """Have a message sent to a replica, behind those before it; none once the server ends."""
        with self.changed:
            if not self._ends:
                self._outbox.append((peer, encode(kind, frames, **fields)))
                os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        while not self._ends or self._outbox:
            poller.poll(int(BEAT_S * 1000))
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)
            while frames := received(self._router):
                peer, *rest = frames
                with self.changed:
                    self._hear(bytes(peer), rest)
            self._send()
            if time.monotonic() - self._beat > BEAT_S:
                self._beat = time.monotonic()
                self._end_strangers(poller)
                with self.changed:
                    self._tell_shares()

    def _end_strangers(self, poller: zmq.Poller) -> None:
        """End the lines of keys that are not allowed any more. All others join again then."""
        router = self._router
        with suppress(zmq.ZMQError):  # the port is not free yet: it is tried again
            router = self._lines.without_strangers(router)
        if router is not self._router:
            poller.unregister(self._router)
            poller.register(router, zmq.POLLIN)
            self._router = router

    def _send(self) -> None:
        while self._outbox:
            peer, frames = self._outbox.popleft()
            if send_to(self._router, peer, frames) != SENT:
                with self.changed:
                    replica = self._known.get(peer)
                    if replica is not None:
                        self._lose(replica, "there is no line to it any more")

    def _tell_shares(self) -> None:
        """Tell each replica which part of its machine's cores it takes: that they hear it says that
        they are there."""
        here = host_name()
        by_machine: dict[str, list[Replica]] = {}
        for replica in self._known.values():
            by_machine.setdefault(replica.machine, []).append(replica)
        for machine, mates in by_machine.items():
            own = int(self._has_own and machine == here)
            for part, replica in enumerate(mates, own):
                self.post(replica.peer, "share", part=part, of=len(mates) + own)

    def _hear(self, peer: bytes, frames: list[Any]) -> None:
        replica = self._known.get(peer)
        try:
            message = decode(frames)
        except MalformedMessage as error:
            self.post(peer, "refused", text=str(error)[:4000], code=error.exit_code)
            return
        if message.kind == "replica":
            self._welcome(peer, message)
        elif message.kind not in SAID:
            self.post(peer, "refused", text=f"{message.kind}: no message for the front of a server",
                      code=MalformedMessage.exit_code)
        elif replica is None:
            self.post(peer, "who")
        elif message.kind == "opened":
            self._has_opened(replica, message)
        elif message.kind == "parting":
            replica.is_parting = True
            self._leave(replica)
            if replica.inbox is None:
                self.post(peer, "stop", why="it was told to end")
        elif message.kind in ("made", "saved") and replica.inbox is not None and (
                message["call"] == replica.call_number):
            replica.inbox.put(message)

    def _welcome(self, peer: bytes, message: Message) -> None:
        """Hand the job over to a replica that joins."""
        if message["spmd"] != __version__:
            error = VersionError(
                f"the server is of another version of spmd than the replica on {message['host']}",
                expected=f"spmd {__version__}, as the server", found=f"spmd {message['spmd']}",
                remedy="one version of spmd everywhere")
            self.post(peer, "refused", text=str(error), code=error.exit_code)
            say(f"spmd serve: no replica on {message['host']}: its spmd is {message['spmd']}")
            return
        if peer in self._known:
            self._lose(self._known[peer], "its line broke")
        names = {replica.name for replica in self._known.values()}
        name = next(name for k in itertools.count(1)
                    if (name := f"{message['host']}-{k}") not in names)
        replica = self._known[peer] = Replica(self, peer, name, message["machine"])
        self._tell_shares()  # before it opens the job, for the number of its threads
        self._serve_current(replica)

    def _serve_current(self, replica: Replica) -> None:
        """Have a replica open the job that is served; call it at once where there is none."""
        job = self.job.opened
        if job is None:
            self._begin(replica)
            return
        try:
            self._hand_over(replica, self.number, job)
        except SpmdError as error:
            self.post(replica.peer, "refused", text=str(error), code=error.exit_code)
            self._lose(replica, str(error))

    def _has_opened(self, replica: Replica, message: Message) -> None:
        number, row = message["job"], message["error"]
        replica.opened[number] = row
        self.changed.notify_all()
        if replica.is_called:
            return
        if row is not None:
            error = error_in(row)
            self.post(replica.peer, "refused", text=str(error), code=error.exit_code)
            self._lose(replica, str(error))
        elif number != self.number:  # another one was loaded meanwhile
            self._serve_current(replica)
        else:
            self.post(replica.peer, "keep", job=number)
            self._begin(replica)

    def _begin(self, replica: Replica) -> None:
        """Make calls there from now on."""
        replica.is_called = True
        say(f"spmd serve: replica {replica.name} has joined")
        self._queue.add_place(replica)

    def _leave(self, replica: Replica) -> None:
        """Make no more calls there."""
        replica.has_left = True
        self.changed.notify_all()
        self._queue.look()

    def _lose(self, replica: Replica, why: str) -> None:
        """A replica is not there any more: what it was called for fails, or is made elsewhere."""
        del self._known[replica.peer]
        self._leave(replica)
        if replica.inbox is not None:
            replica.inbox.put(None)
        say(f"spmd serve: replica {replica.name} has " + (
            "left" if replica.is_parting else f"gone: {why}"))

    def close(self) -> None:
        """End all replicas, and the line to them."""
        with self.changed:
            for replica in [*self._known.values()]:
                self._leave(replica)
                if replica.inbox is not None:
                    replica.inbox.put(None)
                self.post(replica.peer, "stop", why="the server ends")
            self._ends = True
            os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._lines.close(linger_ms=LINGER_MS)
        os.close(self._bell)
