"""The agent of a machine (`feed worker`): it starts workers, watches them, beats to the scheduler.

In: the scheduler's address, keys, how many processes. A worker that dies, hangs or takes too much
memory is named with pipeline, example, file and line, and another one is started.
Always holds: no worker outlives its agent; the scheduler hears of a dead one at once.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import sys
import time

from codegen.errors import EnvironmentFault, shown
from spmd.data import reading_time
from spmd.feeding.host.children import Child, end_marked, end_together, ended_by
from spmd.feeding.host.machine import (
    available_memory,
    host_name,
    hours,
    is_free,
    lower,
    memory_kills,
    own_address,
    ports_of,
)
from spmd.feeding.host.stop_request import StopRequest
from spmd.feeding.messages.keys import Keys, zmq
from spmd.feeding.messages.sockets import OF_KEYS, Lines, received
from spmd.feeding.messages.wire import (
    SOON_AFTER,
    MalformedMessage,
    Message,
    decode,
    encode,
    new_id,
)
from spmd.feeding.workers.job_runners import JobRunners
from spmd.feeding.workers.worker_heartbeat import (
    BEFORE,
    IDLE,
    LOADING,
    OUT_OF_MEMORY,
    READING,
    WorkerHeartbeat,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BEAT_S = 0.5
LOOK_S = 0.1  # between two looks at what workers do, and at their memory
TELL_S = 10.0  # for which it may do so before that is said
GRACE_S = 0.5  # for what hangs to say where
AWAY_S = 3.0  # without a line to the scheduler: then it is told
END_S = 0.3  # for workers to end by themselves
CALM_S = 0.05
AGAIN_S = (0.0, 0.2, 1.0, 5.0)  # before a worker starts again that dies at once, again and again
BASE_BYTES = 256 << 20  # what a worker takes beside its examples
OUTSIDE = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
FRAME = re.compile(r'File "([^"]+)", line (\d+) in ')


class Supervised:
    """A worker's process, and what its agent knows of it."""

    def __init__(self, started: dict[str, Any], loaded: list[dict[str, Any]]) -> None:
        self.worker = new_id()
        self.heartbeat = WorkerHeartbeat()
        self.trace = os.memfd_create("spmd-feed-trace", os.MFD_CLOEXEC)
        self.child = Child("spmd.feeding.workers.worker", (self.heartbeat.fd, self.trace),
                           dies_with_thread=True)
        self.child.channel.send(**started)
        for said in loaded:
            self.child.channel.send(load=said)
        self.began = time.monotonic()
        self.said: dict[str, Any] | None = None  # its port, key, local socket
        self.why = ""  # it is being ended by us
        self.told: set[tuple[Any, ...]] = set()  # of what takes long

    def where_it_hangs(self) -> tuple[str, int] | None:
        """Return the file and line at which a worker's Python is: the innermost frame that is not
        ours."""
        os.ftruncate(self.trace, 0)
        os.lseek(self.trace, 0, os.SEEK_SET)
        try:
            os.kill(self.child.pid, signal.SIGUSR1)
        except ProcessLookupError:
            return None
        end = time.monotonic() + GRACE_S
        frames: list[tuple[str, int]] = []
        while not frames and time.monotonic() < end:
            time.sleep(0.02)
            text = os.pread(self.trace, 1 << 16, 0).decode("utf-8", "replace")
            frames = [(file, int(line)) for file, line in FRAME.findall(text)]
        activity = self.heartbeat.current()
        mine = [f for f in frames if f[0] == activity["file"]]
        return (mine or frames or [None])[0]  # type: ignore[list-item]

    def memory(self) -> int:
        """Return the bytes of its own memory, without what it shares with consumers."""
        try:
            with open(f"/proc/{self.child.pid}/statm") as file:
                _, resident, shared = file.read().split()[:3]
        except (OSError, ValueError):
            return 0
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")

    def close(self) -> None:
        self.child.channel.close()
        self.heartbeat.close()
        os.close(self.trace)


class Agent:
    """Supervises the workers and job runners of a machine. connect: the scheduler's address.
    memory: bytes that all workers may take together.

    cost: of one worker in an hour; watts: that one takes.
    free: from when to when on the clock it works, as "20:00-06:00"; "" always.
    ports: at which its workers listen, as "40000-40099"; "": at any, or as SPMD_FEED_PORTS says.
    lifeline: a channel whose end says that whoever started us is gone. agent: its name, of one that
    takes the place of another. slots: for ranks of jobs; launch, folder: as of JobRunners.
    """

    def __init__(self, connect: str, keys: Keys, processes: int, *, device: str = "cpu",
                 free: str = "", memory: int = 0, cost: float = 0.0, watts: float = 0.0,
                 ports: str = "", lifeline: Any = None, agent: str = "", slots: int = 0,
                 launch: str = "", folder: str = "",
                 log: Callable[[str], None] | None = None) -> None:
        self.agent, self.processes, self.device = agent or new_id(), processes, device
        self.hours, self.free = hours(free), free
        self.cost, self.watts = cost, watts
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        self.memory = lower((memory or available_memory() * 3 // 4) // max(1, processes),
                            hard if hard == resource.RLIM_INFINITY else hard - BASE_BYTES)
        if self.memory < BASE_BYTES // 2:
            raise EnvironmentFault(
                "too little memory for workers", expected=f"{BASE_BYTES // 2} bytes for each",
                found=f"{self.memory}", remedy="fewer --processes" if hard == (
                    resource.RLIM_INFINITY) else f"ulimit -d {3 * BASE_BYTES >> 11} or more")
        self.keys, self.lifeline = keys, lifeline
        self.allowed = sorted(keys.allowed)
        self.log = log or _say
        self.host = host_name()
        self.lines = Lines(keys)
        self.scheduler = self.lines.dealer(connect, keys.server, self.agent)
        self.watch, self._told = self.lines.watch(self.scheduler), ""
        self.mine = own_address(connect)
        self.jobs = JobRunners(slots, launch, folder, self.log, connect=connect,
                               keys=keys.as_plain(), runs_on=device)
        self.workers: list[Supervised] = []
        self.pipelines: dict[tuple[str, int], dict[str, Any]] = {}  # by name and version
        self.ports = ports_of(ports, processes, self.mine)
        self.deaths: list[float] = []
        self.told: set[tuple[Any, ...]] = set()  # pipelines of which an example takes long
        self.memory_kills = memory_kills()
        self.start_at = 0.0
        self.stopping = StopRequest()
        self._beaten = self._looked = 0.0
        self._joined: tuple[list[dict[str, Any]], int] | None = None

    def run(self) -> None:
        """Run until told to stop, or until the process that started it is gone."""
        try:
            while not self.stopping:
                self.keep_number()
                self.attend()
                self.look()
                self.beat()
        finally:
            self.end()

    def end(self) -> None:
        self.tell("leave", agent=self.agent)
        self.jobs.close()
        self.end_workers()
        self.lines.close(linger_ms=200)

    def end_workers(self) -> None:
        end_together([worker.child for worker in self.workers], END_S)
        for worker in self.workers:
            worker.close()
        self.workers.clear()

    # ---- workers

    def keep_number(self) -> None:
        now = time.monotonic()
        wanted = self.processes if is_free(self.hours) else 0
        if wanted == 0 and self.workers:
            self.end_workers()
            self.join()
        if now < self.start_at:
            return
        started = {"keys": {**self.keys.as_plain(), "allowed": self.allowed},
                   "bind": f"tcp://{self.bind()}:{self.ports}",
                   "memory": self.memory, "limit": self.memory + BASE_BYTES}
        while len(self.workers) < wanted:
            self.workers.append(Supervised(started, list(self.pipelines.values())))

    def bind(self) -> str:
        """Return the address at which workers listen: only on this machine if the scheduler is here
        too."""
        return "127.0.0.1" if self.mine == "127.0.0.1" else "*"

    def attend(self) -> None:
        poller = zmq.Poller()
        poller.register(self.scheduler, zmq.POLLIN)
        for worker in self.workers:
            poller.register(worker.child.channel.fileno(), zmq.POLLIN)
        if self.lifeline is not None:
            poller.register(self.lifeline.fileno(), zmq.POLLIN)
        ready = dict(poller.poll(int(LOOK_S * 1000)))
        if self.lifeline is not None and self.lifeline.said() is None:
            self.stopping.say("whoever started it has ended")
        for worker in list(self.workers):
            if worker.child.channel.fileno() in ready:
                self.worker_said(worker)
        if self.watch.broke():  # what we said just now may be lost
            self._joined = None
        self.say_of_line()
        while frames := received(self.scheduler):
            try:
                self.scheduler_said(decode(frames))
            except MalformedMessage as error:
                self.log(f"from the scheduler: {error}")

    def say_of_line(self) -> None:
        """Log that there is no scheduler, and why; and when there is one again."""
        why = self.watch.why() if self.watch.away() > AWAY_S else ""
        if self.watch.stands and self._told:
            self.log(f"the scheduler at {self.watch.address} is there")
            self._told = ""
        elif why and why != self._told:
            self._told = why
            self.log(f"waits for the scheduler at {self.watch.address}: {why}. try: " + (
                "the folder of keys of that scheduler: --keys FOLDER" if why in OF_KEYS else
                "is feed serve running there?" + " does a firewall let us through?" * (
                    self.mine != "127.0.0.1")))

    def worker_said(self, worker: Supervised) -> None:
        said = worker.child.channel.said()
        if said is None:
            worker.child.end(GRACE_S)
            self.died(worker)
        elif said and "error" in said[0]:
            self.log(said[0]["error"])
        elif said:
            worker.said = said[0]
            self.join()

    def look(self) -> None:
        """End workers that take too long or too much memory."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        for worker in list(self.workers):
            worker.child.channel.flush()
            if worker.child.has_ended() is not None:
                self.died(worker)
                continue
            activity = worker.heartbeat.current()
            limit, whose = limit_of(activity)
            if activity["state"] != IDLE and limit and activity["seconds"] > limit:
                worker.why = f"took longer than {limit:g} s, {whose}"
            elif worker.memory() > self.memory + BASE_BYTES:
                worker.why = f"took more than {(self.memory + BASE_BYTES) >> 20} MiB of memory"
            else:
                self.say_if_slow(worker, activity)
                continue
            where = worker.where_it_hangs()
            worker.child.kill()
            self.died(worker, where)

    def say_if_slow(self, worker: Supervised, activity: dict[str, Any]) -> None:
        """Log a slow activity once while it lasts: for each worker what precedes its first example,
        then one example for all of them."""
        about = activity["pipeline"], activity["version"], activity["state"]
        before = activity["state"] in BEFORE
        told = worker.told if before else self.told
        if activity["state"] != IDLE and activity["seconds"] > TELL_S and about not in told:
            told.add(about)
            file, line = before and worker.where_it_hangs() or (activity["file"], activity["line"])
            example = activity["example"] or f"position {activity['position']}"
            self.log(f"worker {worker.worker} is at {example}, of {activity['pipeline']} "
                     f"({file}:{line}), for {activity['seconds']:.0f} s now")

    def died(self, worker: Supervised, where: tuple[str, int] | None = None) -> None:
        """Report what a dead worker was computing, and have another one start."""
        self.workers.remove(worker)
        status = worker.child.wait()
        why, outside = self.why_it_died(worker, status)
        activity = worker.heartbeat.current()
        end_marked([worker.child.mark])
        worker.close()
        self.join()  # at once, without it: nobody asks it any more
        # What it did may kill it a moment later, whatever it does then.
        by_itself = activity["state"] == IDLE and activity["pipeline"] and (
            not outside and not worker.why)
        if by_itself:
            activity.update(position=None, example=SOON_AFTER)
        elif activity["state"] == IDLE or not activity["pipeline"]:
            activity.update(pipeline=None, position=None, example=None, file=None, line=None)
        file, line = where or (activity["file"], activity["line"])
        if activity["state"] in BEFORE:
            activity["position"] = None
        if outside and status != -signal.SIGKILL:  # it was told to end: no example has part in that
            activity["position"] = activity["example"] = None
        named = activity["example"] or (
            None if activity["position"] is None else f"position {activity['position']}")
        counts = status != OUT_OF_MEMORY  # it is tried in another one before
        self.tell("gone", worker=worker.worker, why=why, pipeline=activity["pipeline"],
                  version=activity["version"] if activity["pipeline"] else None,
                  position=activity["position"] if counts else None,
                  example=named if counts else None,
                  file=file, line=line, outside=outside)
        location = f" at {named} of {activity['pipeline']} ({file}:{line})" if named else ""
        if status in OUTSIDE:  # who ends a worker so ends us too, mostly
            time.sleep(CALM_S)
        self.log(f"worker {worker.worker}{location} {why}"
                 + "; another one starts" * (not self.stopping))
        now = time.monotonic()
        self.deaths = [d for d in self.deaths if now - d < 10] + [now]
        soon = now - worker.began < 2 and worker.said is None  # it does not even begin
        self.start_at = now + AGAIN_S[min(len(self.deaths), len(AGAIN_S) - 1) if soon else 0]

    def why_it_died(self, worker: Supervised, status: int) -> tuple[str, bool]:
        """Return in words why a worker died, and whether somebody seems to have killed it."""
        if worker.why:
            return worker.why, False
        if status == OUT_OF_MEMORY:
            return "had no memory left for it, which is tried in another one", False
        before, self.memory_kills = self.memory_kills, memory_kills()
        if status == -signal.SIGKILL and self.memory_kills > before:
            return f"{ended_by(status)}: the machine was out of memory", False
        return ended_by(status), status in (*OUTSIDE, -signal.SIGKILL)

    # ---- the scheduler

    def tell(self, kind: str, **fields: Any) -> None:
        try:
            self.scheduler.send_multipart(encode(kind, **fields), zmq.DONTWAIT)
        except zmq.Again:
            pass  # it has been away for long; when it is back, it asks us who we are

    def join(self) -> None:
        """Tell the scheduler which workers there are, if that has changed."""
        processes = [
            {"worker": worker.worker, "address": f"tcp://{self.mine}:{worker.said['port']}",
             "key": worker.said["key"], "local": worker.said["local"],
             "secret": worker.said["secret"], "host": self.host}
            for worker in self.workers if worker.said]
        slots = self.jobs.slots if is_free(self.hours) else 0
        if (processes, slots) != self._joined:
            self._joined = processes, slots
            self.tell("join", agent=self.agent, host=self.host, name=socket.gethostname(),
                      device=self.device, processes=processes, free=self.free or None,
                      memory=self.memory, cost=self.cost or None, energy=self.watts or None,
                      slots=slots or None)

    def beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten < BEAT_S:
            return
        self._beaten = now
        if self._joined is None or self.jobs.slots:  # whose number the clock may change
            self.join()
        workers = {}
        for worker in self.workers:
            if worker.said:
                counts, activity = worker.heartbeat.counts(), worker.heartbeat.current()
                if activity["state"] != IDLE and activity["pipeline"] in counts:
                    counts[activity["pipeline"]]["at"] = {
                        k: activity[k] for k in ("position", "example", "file", "line", "seconds")}
                workers[worker.worker] = counts
        self.tell("beat", agent=self.agent, workers=workers, jobs=self.jobs.states() or None)

    def scheduler_said(self, message: Message) -> None:
        if message.kind == "who":
            self._joined = None
            self.join()
        elif message.kind == "allowed":
            self.allowed = message["keys"]
            for worker in self.workers:
                worker.child.channel.send(allowed=message["keys"])
        elif message.kind == "stop":
            self.stopping.say(message["why"] or "the scheduler")
        elif message.kind == "load":
            self.pipelines[message["name"], message["version"]] = message.fields
            for worker in self.workers:
                worker.child.channel.send(load=message.fields)
        elif message.kind == "start_job":
            self.jobs.start(message.fields)
        elif message.kind == "end_job":
            self.jobs.end(message["job"])
        elif message.kind == "yield_job":
            self.jobs.have_yield(message["job"])
        elif message.kind == "drop":
            self.pipelines.pop((message["name"], message["version"]), None)
            for worker in self.workers:
                worker.child.channel.send(drop=[message["name"], message["version"]])


def limit_of(activity: dict[str, Any]) -> tuple[float | None, str]:
    """Return how many seconds a worker's activity may take, None for no limit, and why so long."""
    if activity["state"] == LOADING:
        return reading_time.LOAD_S, "in which a pipeline must be loaded"
    timeout = activity["timeout"]
    if activity["state"] == READING:
        return reading_time.source_limit(timeout), (
            f"which its timeout of {timeout} s allows to read its source")
    return timeout, "its timeout" + f" for a batch of {activity['count']}" * (activity["count"] > 1)


def _say(text: str) -> None:
    print(shown(f"spmd feed worker: {text}"), file=sys.stderr, flush=True)


def run_agent(connect: str, keys: Keys, processes: int, **more: Any) -> None:
    """Run `feed worker` until Ctrl-C, SIGTERM, or the scheduler's stop. more: as for Agent."""
    agent = Agent(connect, keys, processes, **more)
    with agent.stopping.by_signals():
        slots = agent.jobs.slots
        _say(f"{processes} worker{'s' * (processes != 1)}"
             + f" and {slots} slot{'s' * (slots != 1)} for ranks" * bool(slots)
             + f" for the scheduler at {connect}")
        agent.run()
        _say(f"ended: {agent.stopping.why}")
