"""`spmd serve --join`: a replica of a server, which makes calls of the image that it hands over.

In: the address of the server, options, the processes of this job. Out: an exit code. Always holds:
process 0 alone talks to the server; it ends between two calls; a call is answered once, or, where
the line broke meanwhile, never.
"""

from __future__ import annotations

import argparse
import os
import select
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from signal import Signals
from typing import Any

import numpy as np

from codegen.errors import PeerError, SpmdError, UsageError
from spmd import __version__, report
from spmd.faces import Face, faces_of
from spmd.feeding.host.machine import host_name
from spmd.feeding.host.stop_request import StopRequest
from spmd.feeding.messages.keys import keys_of, zmq
from spmd.feeding.messages.scheduler_replies import refused
from spmd.feeding.messages.sockets import OF_KEYS, Lines, received
from spmd.feeding.messages.wire import MalformedMessage, Message, decode, encode, new_id
from spmd.following import Pause
from spmd.frame_streams import FrameQueue
from spmd.image import Image, Opened
from spmd.launch import loader
from spmd.launch.options import OPTIONS, flag
from spmd.launch.processes import Elsewhere, Processes, say
from spmd.serving.call_queue import GoneError
from spmd.serving.replica_messages import (
    arguments_in,
    error_row,
    framed_arrays,
    framed_outputs,
    of_frames,
)
from spmd.serving.served_job import entry_of
from spmd.serving.served_models import outputs_of

JOIN_S = 5.0  # for a server to answer at first; later it is waited for
KEYS_S = 1.0  # for one that refuses our key: it may be starting
LOOK_S = 0.05  # between two looks at whether to end, and whether the line stands
PART_S = 2.0  # for a server to let a replica go
UNREAD = 4  # frames of a stream that are sent before the first of them was read
PIECE = 64 << 20  # bytes of one message to another process


def command(asked: argparse.Namespace, processes: Processes) -> int:
    """Make calls for a server until it ends, or a signal comes."""
    options = {name: getattr(asked, name) for name in OPTIONS
               if hasattr(asked, name) and name != "state"}
    others = [*sorted(asked.flags - {"--join", "--keys", *map(flag, options)}),
              *["--ranks 0"] * (asked.ranks == 0)]
    if asked.image is not None or others:
        raise UsageError("a replica takes all but its ranks from the server that it joins",
                         expected=f"--keys, {', '.join(map(flag, options))}",
                         found=asked.image or others[0])
    jobs = ReplicaJobs(processes, options)
    if processes.number:
        return jobs.follow()
    try:
        stopping = StopRequest()
        with stopping.by_signals():
            code = _Member(asked.join, asked.keys, jobs, stopping).run()
    except BaseException as error:
        jobs.end(report.exit_code(error), str(error))
        if processes.count > 1 and isinstance(error, SpmdError):
            processes.met = error
        raise
    jobs.end(code)
    return code


class ReplicaJobs:
    """The jobs that are open in all processes of a replica. Process 0 opens and closes them; the
    others do so too, and carry out its calls. done: where the number of a job comes, and what was
    wrong, once it is open or not."""

    def __init__(self, processes: Processes, options: dict[str, Any]) -> None:
        self._processes, self._options = processes, options
        self._cores = sorted(os.sched_getaffinity(0))
        # What process 0 tells
        self._comm: Any = processes.comm.Dup() if processes.count > 1 else None
        self._asked: SimpleQueue[tuple[int, bytes, bytes, str | None] | None] = SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self.done: deque[tuple[int, BaseException | None]] = deque()
        self.open: dict[int, tuple[Opened, dict[str, Face], Any]] = {}
        self._least = 0  # jobs below this number are not wanted any more
        self._opener = threading.Thread(target=self._open_all, name="spmd opens", daemon=True)
        self._opener.start()

    # ---- in process 0

    def fileno(self) -> int:
        """Return what is readable once a job is open or not."""
        return self._bell

    def heard(self) -> Iterator[tuple[int, BaseException | None]]:
        """Give what has been opened since, or what was wrong with it."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while self.done:
            yield self.done.popleft()

    def serve(self, number: int, image: bytes, state: bytes, ending: str | None) -> None:
        """Begin to open a job, in a thread, in all processes."""
        self._tell("serve", number, len(image), len(state), ending)
        for data in (image, state):
            for offset in range(0, len(data), PIECE):
                self._tell(data[offset:offset + PIECE])
        self._asked.put((number, image, state, ending))

    def keep(self, number: int | None) -> None:
        """Close all jobs but one; None: all, also those that are still being opened."""
        with self._lock:
            if number is None:
                self._least = 1 << 62
            others = [k for k in self.open if k != number]
            closing = [self.open.pop(k) for k in others]
        for opened, _, comm in closing:
            opened.close()
            _free(comm)

    def want_again(self) -> None:
        """Jobs that are asked for from now on are opened."""
        self._least = 0

    def share(self, part: int, of: int) -> None:
        """Run on a part of the cores that each process of this job was started with."""
        if self._take_share(part, of):
            self._tell("share", part, of)

    def end(self, code: int, text: str = "") -> None:
        """Close all jobs, and end the other processes with this exit code."""
        if not code or not text:
            self._asked.put(None)
            self._opener.join()
            self.keep(None)
        self._tell("end", code, text)

    def _tell(self, *order: Any) -> None:
        for number in range(1, self._processes.count):
            self._comm.send(order, dest=number)

    # ---- in the others

    def follow(self) -> int:
        """Carry out what process 0 tells, until that ends. Returns its exit code."""
        with StopRequest().by_signals():  # process 0 hears of them too, and says what to do
            while True:
                kind, *rest = self._hear()
                if kind == "serve":
                    number, *sizes, ending = rest
                    image, state = (self._data(size) for size in sizes)
                    self._asked.put((number, image, state, ending))
                elif kind == "share":
                    self._take_share(*rest)
                else:
                    break
        code, text = rest
        if text:
            raise Elsewhere(code, text)
        self._asked.put(None)
        self._opener.join()
        return int(code)

    def _hear(self) -> tuple[Any, ...]:
        pause = Pause()
        while not self._comm.Iprobe(source=0):
            pause.wait()
        order: tuple[Any, ...] = self._comm.recv(source=0)
        return order

    def _data(self, size: int) -> bytes:
        return b"".join(self._hear()[0] for _ in range(0, size, PIECE))

    # ---- in all

    def _open_all(self) -> None:
        """Open jobs one after the other: all processes do, in the same order."""
        while (asked := self._asked.get()) is not None:
            number, image, state, ending = asked
            comm = None if self._comm is None else self._comm.Dup()
            error: BaseException | None = None
            try:
                opened, faces = self._opened(image, state, ending, comm)
            except BaseException as caught:
                error = caught
                _free(comm)
            else:
                if self._processes.number:
                    threading.Thread(target=_follow, args=(opened, comm), daemon=True).start()
                    continue
                with self._lock:
                    wanted = number >= self._least
                    if wanted:
                        self.open[number] = opened, faces, comm
                if not wanted:
                    opened.close()
                    _free(comm)
                    continue
            if not self._processes.number:
                self.done.append((number, error))
                os.eventfd_write(self._bell, 1)

    def _opened(self, data: bytes, state: bytes, ending: str | None, comm: Any
                ) -> tuple[Opened, dict[str, Face]]:
        with loader.named("the image of the server"):
            image = Image(loader.check(data))
        faces = faces_of(image.manifest) or {"": Face(image.manifest)}
        options = self._options if comm is None else {**self._options, "comm": comm}
        if ending is None:
            return image.open(**options), faces
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, f"state{ending}")
            with open(path, "wb") as file:
                file.write(state)
            return image.open(**options, state=path), faces

    def _take_share(self, part: int, of: int) -> bool:
        """Return whether the cores are others than before."""
        count = len(self._cores)
        cores = self._cores
        if of <= count:
            cores = cores[part * count // of:(part + 1) * count // of]
        if set(cores) == os.sched_getaffinity(0):
            return False
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread), cores)
        return True


def _follow(opened: Opened, comm: Any) -> None:
    """Carry out the calls of process 0, in another one, until that closes the job."""
    with opened:
        opened.follow()
    _free(comm)


def _free(comm: Any) -> None:
    if comm is not None:
        comm.Free()


class _Member:
    """Process 0 of a replica: it hears what the server tells."""

    def __init__(self, address: str, folder: str, jobs: ReplicaJobs, stopping: StopRequest) -> None:
        self._address, self._jobs, self._stopping = address, jobs, stopping
        self._lines = Lines(keys_of(folder))
        self._is_known = False  # the server has answered once
        self._waiting: deque[Message] = deque()  # that came during a call
        self._ended = ""
        self._parted, self._broke = 0.0, False

    def run(self) -> int:
        """Join, and again where the line has broken. Returns the exit code."""
        try:
            while not self._ended and not self._stopping:
                self._line = self._lines.dealer(self._address, self._lines.keys.server, new_id())
                self._watch, self._broke = self._lines.watch(self._line), False
                self._jobs.want_again()
                try:
                    self._serve_on_a_line()
                finally:
                    self._waiting.clear()
                    self._lines.forget(self._line, 200)
                    if not self._ended:
                        self._jobs.keep(None)
        finally:
            self._lines.close(200)
        if not self._stopping:
            say(f"spmd serve: replica ended: {self._ended}")
        return 128 + Signals[self._stopping.why] if self._stopping else 0

    def _serve_on_a_line(self) -> None:
        """Do what the server tells until it ends this replica, or the line breaks."""
        began = time.monotonic()
        has_asked, is_joined, self._parted, told = False, False, 0.0, False
        poller = select.poll()
        for fd in (self._line.getsockopt(zmq.FD), *self._watch.fds(), self._jobs.fileno()):
            poller.register(fd, select.POLLIN)
        while not self._ended:
            broke = self._has_broken()
            if self._watch.stands and not has_asked:  # before, it is lost where a key is refused
                has_asked = True
                self._tell("replica", spmd=__version__, host=os.uname().nodename,
                           machine=host_name())
            while (message := self._next()) is not None:
                if not is_joined:
                    is_joined = self._is_known = True
                    say(f"spmd serve: replica of {self._address}")
                if not self._do(message):
                    return
            for number, error in self._jobs.heard():
                self._tell("opened", job=number, error=None if error is None else error_row(error))
            if broke and not self._ended:
                say(f"spmd serve: the line to {self._address} broke; joins again")
                return
            limit = KEYS_S if self._watch.why() in OF_KEYS else JOIN_S
            if not is_joined and time.monotonic() - began > limit:
                if not self._is_known:
                    raise self._no_answer()
                if not told:
                    told = True
                    say(f"spmd serve: waits for the server at {self._address}: "
                        f"{self._watch.why()}")
            if self._stopping and self._has_parted(is_joined):
                return
            poller.poll(int(LOOK_S * 1000))

    def _has_parted(self, is_joined: bool) -> bool:
        """Tell the server, once, that this replica ends. Return whether to end without its word."""
        if not is_joined or not self._watch.stands:
            return True
        if not self._parted:
            self._parted = time.monotonic()
            self._tell("parting")
        return time.monotonic() - self._parted > PART_S

    def _no_answer(self) -> SpmdError:
        why = "" if self._watch.stands else self._watch.why()
        if why in OF_KEYS:
            return PeerError(f"the server at {self._address} has other keys than we", found=why,
                             expected="the folder of keys that it was started with",
                             remedy="--keys FOLDER, or SPMD_FEED_KEYS=FOLDER")
        return PeerError(f"no server that takes replicas answers at {self._address}", found=why,
                         expected=f"within {JOIN_S:g} s", remedy="the address that spmd serve "
                         "IMAGE --replicas prints; a firewall that lets us through")

    def _has_broken(self) -> bool:
        """Return whether the line has broken since it was made. It may stand again already."""
        self._broke = self._broke or self._watch.broke()
        return self._broke

    def _tell(self, kind: str, frames: Any = (), /, **fields: Any) -> None:
        """Send a message. It is lost where the line has broken: this replica joins again then."""
        parts = encode(kind, frames, **fields)
        while not self._has_broken():
            try:
                self._line.send_multipart(parts, zmq.NOBLOCK, copy=False)
                return
            except zmq.Again:
                self._line.poll(int(LOOK_S * 1000), zmq.POLLOUT)

    def _next(self) -> Message | None:
        """Return the next message; None while there is none."""
        return self._waiting.popleft() if self._waiting else self._received()

    def _received(self) -> Message | None:
        frames = received(self._line)
        try:
            return None if frames is None else decode(frames)
        except MalformedMessage as error:
            raise PeerError(f"what listens at {self._address} does not talk as this spmd does",
                            expected="the front of a server, of the same version of spmd",
                            found=str(error),
                            remedy="the address that spmd serve --replicas prints") from None

    def _do(self, message: Message) -> bool:
        """Do what a message says; return False where to join again."""
        kind = message.kind
        if kind == "serve":
            data = of_frames(message.frames)
            size = message["image"]
            self._jobs.serve(message["job"], data[:size], data[size:], message["state"])
        elif kind == "keep":
            self._jobs.keep(message["job"])
        elif kind == "call":
            self._call(message)
        elif kind == "share":
            self._jobs.share(message["part"], message["of"])
        elif kind == "refused":
            raise refused(message)
        elif kind == "stop":
            self._ended = message["why"]
        return kind != "who"

    def _call(self, message: Message) -> None:
        """Make a call, and answer it."""
        opened, faces, _ = self._jobs.open[message["job"]]
        entry, number = message["entry"], message["call"]
        frames = _SentFrames(self, number) if message["streams"] else None
        try:
            called, arguments = entry_of(opened, entry), arguments_in(message)
            value = (called(**arguments) if frames is None
                     else called._saving_into(frames, arguments))
            raw, length = framed_outputs(outputs_of(faces[entry or ""], value))
        except PeerError as error:
            if not isinstance(error, GoneError):
                raise  # of this job, which can make no more calls: another replica makes this one
            self._tell("made", call=number, length=0, error=error_row(error))
        except Exception as error:
            self._tell("made", call=number, length=0, error=error_row(error))
        else:
            self._tell("made", raw, call=number, length=length)

    # ---- streams

    def send_frame(self, call: int, name: str, array: np.ndarray) -> None:
        """Send what a call has saved."""
        raw, length = framed_arrays({}, {name: np.asarray(array)})
        self._tell("saved", raw, call=call, length=length)

    def frames_read(self, call: int) -> int:
        """Return how many frames were read since; keep other messages for later. Raises GoneError
        where the call is to end."""
        count = 0
        if self._has_broken():
            self._waiting.append(Message("who", {}))
            raise GoneError("the line to the server broke")
        while (message := self._received()) is not None:
            if message.kind not in ("read", "hush"):
                self._waiting.append(message)
            elif message["call"] == call:
                if message.kind == "hush":
                    raise GoneError("the client has gone")
                count += 1
        return count


class _SentFrames(FrameQueue):
    """Frames of a call on their way to the server."""

    def __init__(self, member: _Member, call: int) -> None:
        super().__init__(is_named=True)
        self._member, self._call, self._unread, self._looked = member, call, 0, 0.0

    def put(self, name: str, array: np.ndarray) -> None:
        """Send a frame; wait where several have not been read."""
        while self._unread >= UNREAD:
            self._unread -= (count := self._member.frames_read(self._call))
            if not count:
                time.sleep(1e-3)
        self._member.send_frame(self._call, name, array)
        self._unread += 1

    def look(self) -> None:
        """Raise GoneError where the call is to end."""
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            self._unread -= self._member.frames_read(self._call)
