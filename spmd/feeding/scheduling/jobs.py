"""Jobs: ranks that were submitted with a pipeline, from the queue to their exit status.

In: what clients ask, what agents and runners say of the jobs that they have. Out: answers, and
which agent starts or ends which job. Always holds: what is answered is in the state; outputs of a
job are there when it has ended well, all of them; only its last attempt may say anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from codegen.errors import PeerError, UsageError
from codegen.suggest import meant
from spmd.feeding.messages.job_options import has_frames
from spmd.feeding.messages.wire import JOB, Message
from spmd.feeding.scheduling.job_files import JobFiles
from spmd.feeding.scheduling.job_places import (
    JobRow,
    JobStart,
    SlotRow,
    distinct_names,
    place_jobs,
)
from spmd.feeding.scheduling.preemption import RunningRow, jobs_that_yield, keeps_checkpoints
from spmd.feeding.scheduling.registry import (
    JOULES,
    KnownAgent,
    KnownConsumer,
    KnownPipeline,
)
from spmd.feeding.scheduling.run_versions import unknown_pipeline
from spmd.feeding.scheduling.scheduler_state import FullDisk, StateFile, StoredJob

SILENT_S = 10.0  # without a word of its agent: then the job is lost
PLACE_S = 0.3  # between two looks at the queue
KEPT_S = 7 * 24 * 3600.0  # how long a job is kept when it has ended
SWEEP_S = 600.0
FINAL = (0, 2, 65, 69, 78)  # exit codes of what would end so again
LOST, CANCELLED = 75, 143  # exit codes
LINES = 8  # of what it printed last, for those who look

Value = dict[str, Any]


class Jobs:
    """pipelines, agents, consumers: those that the scheduler knows, as they change. tell: sends to
    a peer."""

    def __init__(self, store: StateFile, pipelines: Mapping[str, KnownPipeline],
                 agents: Mapping[str, KnownAgent], consumers: Mapping[str, KnownConsumer],
                 address: str, tell: Callable[..., str]) -> None:
        self.store, self.pipelines, self.agents, self.tell = store, pipelines, agents, tell
        self.consumers, self.address = consumers, address
        self.files = JobFiles(f"{store.path}.jobs" if store.path else "")
        self.known = {one.job: one for one in store.jobs()}
        now = time.monotonic()
        # When each agent of a job said that it runs, by job and agent.
        self.seen = {(one.job, place[0]): now for one in self.known.values()
                     for place in one.places}
        self.unheard: set[str] = set()  # started, and no agent has said that it has them
        self.yielding: dict[str, str] = {}  # by job: for whom it ends behind its next checkpoint
        self.yielded: dict[str, str] = {}  # by job that waits since then: for whom it ended
        self.doubtful: dict[str, float] = {}  # by agent: when it lost a job, and may have ended too
        self._placed = 0.0
        self._swept = now - SWEEP_S

    # ---- clients and runners

    def answer(self, message: Message) -> tuple[Value, bytes] | None:
        """Return the answer to a message about jobs, and the bytes that go with it; None for any
        other message. Raises UsageError, PeerError, OutputError."""
        answers = getattr(self, f"_on_{message.kind}", None)
        return answers(message) if answers else None

    def _on_put(self, message: Message) -> tuple[Value, bytes]:
        job, attempt = message["job"], message["attempt"]
        if attempt:
            self._running(message)
        elif job in self.known:
            raise UsageError(f"{self.known[job].name} is submitted: its files are fixed")
        data = b"".join(bytes(frame) for frame in message.frames)
        self.files.put(job, attempt, message["file"], message["offset"], data)
        return {}, b""

    def _on_get(self, message: Message) -> tuple[Value, bytes]:
        size, data = self.files.get(message["job"], message["attempt"], message["file"],
                                    message["offset"])
        return {"size": size}, data

    def _on_submit_job(self, message: Message) -> tuple[Value, bytes]:
        job, pipeline = message["job"], message["pipeline"]
        if job not in self.known:  # else it is asked again: the answer was lost
            if pipeline not in self.pipelines:
                raise unknown_pipeline(pipeline, self.pipelines, self.address)
            if not self.files.size(job, 0, "image"):
                raise UsageError(f"the image of a job with pipeline {pipeline} did not come")
            one = StoredJob(job, pipeline, {name: message[name] for name in JOB},
                            submitted=time.time())
            self.store.put_job(one)
            self.known[job] = one
            self._placed = 0.0
        return self.row(self.known[job]), b""

    def _on_job(self, message: Message) -> tuple[Value, bytes]:
        one = self._named(message["name"])
        said = self.files.last_lines(one.job, one.attempt, "stderr", LINES) if one.attempt else []
        return {**self.row(one), "asked": one.asked, "files": one.files, "said": said,
                "batches": one.batches}, b""

    def _on_end_early(self, message: Message) -> tuple[Value, bytes]:
        """All consumers hold; once the last of them has said how far it is, the stream ends there.
        Asked again until the job ends: what was told may be lost."""
        one = self._running(message)
        mine = [c for c in self.consumers.values()
                if c.said["run"] == one.name and c.pipeline == one.pipeline
                and one.asked["feed"] in ("", c.said["feed"])]
        held = [c for c in mine if c.held is not None]
        if one.batches is None and {r for c in held for r in c.said["ranks"]} >= {
                *range(one.ranks)}:
            before = vars(one).copy()
            one.batches = max(c.held or 0 for c in held)
            try:
                self.store.put_job(one)  # before anybody goes on
            except FullDisk:
                vars(one).update(before)
                raise
        for consumer in mine:
            if one.batches is not None:
                self.tell(consumer.peer, "end_feed", batches=one.batches)
            elif consumer.held is None:
                self.tell(consumer.peer, "hold")
        return {"batches": one.batches}, b""

    def _on_job_ended(self, message: Message) -> tuple[Value, bytes]:
        one = self.known.get(message["job"])
        if one and one.state == "ended" and one.attempt == message["attempt"]:
            return {}, b""  # it is said again: the answer was lost
        one = self._running(message)
        for file, size in message["files"].items():
            if (here := self.files.size(one.job, one.attempt, file)) != size:
                raise UsageError(f"{file} of {one.name} is not whole", expected=f"{size} bytes",
                                 found=f"{here}")
        one.files = dict(message["files"])
        if message["yields"]:
            self.yielded[one.job] = self.yielding.get(one.job, "another job")
            self._end(one, LOST, "", failed=False)
            return {}, b""
        status = message["status"]
        self._end(one, LOST if status is None else status, message["why"])
        return {}, b""

    def _on_cancel_job(self, message: Message) -> tuple[Value, bytes]:
        """One that has ended is forgotten, with its files."""
        one = self._named(message["name"])
        if one.state == "ended":
            self.store.drop_job(one.job)
            self._forget(one)
            return {"name": one.name, "what": "forgotten"}, b""
        self._end(one, CANCELLED, f"cancelled by {message['by'] or 'somebody'}", again=False)
        return {"name": one.name, "what": "cancelled"}, b""

    def _named(self, name: str) -> StoredJob:
        names = {one.name: one for one in self.known.values()}
        if name not in names:
            raise UsageError(f"there is no job {name}", expected=", ".join(names) or "none is here",
                             remedy=meant(name, names) or "python -m spmd feed status")
        return names[name]

    def _running(self, message: Message) -> StoredJob:
        """The job of a runner. PeerError where that is not the one that counts any more."""
        one = self.known.get(message["job"])
        if one is None or (one.state, one.attempt) != ("running", message["attempt"]):
            raise PeerError("this attempt of a job is over",
                            found=one.name if one else message["job"])
        self.unheard.discard(one.job)
        return one

    # ---- agents

    def heard(self, agent: KnownAgent, there: Mapping[str, list[Any]]) -> None:
        """Answer what an agent says of its jobs by those that it should start, and end."""
        for one in self._started():
            if (part := one.part_of(agent.agent)) is None:
                continue
            attempt, runs = there.get(one.job, (0, False))
            if attempt == one.attempt:
                self.unheard.discard(one.job)
            if attempt == one.attempt and not runs:
                self._lose(one, f"what runs it on {one.places[part][1]} was killed")
                continue
            self.seen[one.job, agent.agent] = time.monotonic()
            if attempt != one.attempt:
                self.tell(agent.peer, "start_job", job=one.job, attempt=one.attempt, name=one.name,
                          pipeline=one.pipeline, ranks=one.ranks, part=part,
                          places=[[host, ranks] for _, host, ranks in one.places], **one.asked)
            elif one.job in self.yielding and part == 0:  # it ends those on other agents
                self.tell(agent.peer, "yield_job", job=one.job)
        for job, (attempt, _) in there.items():
            of = self.known.get(job)
            if of is None or (of.state, of.attempt) != ("running", attempt) or (
                    of.part_of(agent.agent) is None):
                self.tell(agent.peer, "end_job", job=job)

    def left(self, agent: str) -> None:
        """An agent has ended its jobs, and itself."""
        for one in self._started():
            if (part := one.part_of(agent)) is not None:
                self._lose(one, f"its agent on {one.places[part][1]} has ended")

    def tick(self, now: float, late: float) -> None:
        """Do what is due by the clock. late: for how long we were held up, and heard nobody."""
        for one in self._started():
            for agent, host, _ in one.places:
                self.seen[one.job, agent] += max(late, 0.0)
                if now - self.seen[one.job, agent] > SILENT_S:
                    self._lose(one, f"its agent on {host} has been silent for {SILENT_S:g} s")
                    break
        if now - self._placed >= PLACE_S:
            self._placed = now
            self._place(now)
        if now - self._swept >= SWEEP_S:
            self._swept = now
            self._sweep()

    def charge(self, seconds: float) -> None:
        """A rank costs what a worker of its agent does."""
        for one in self._started():
            for name, _, ranks in one.places:
                agent, pipeline = self.agents.get(name), self.pipelines.get(one.pipeline)
                if agent and pipeline:
                    pipeline.charge(ranks, {"cost": agent.cost, "energy": agent.watts * JOULES},
                                    seconds)

    # ---- the queue

    def slots(self) -> list[SlotRow]:
        """Agents that offer slots, and how many of these no job has. Of an agent that has lost one
        none are free until it beats again."""
        taken: dict[str, int] = {}
        for one in self._started():
            for agent, _, ranks in one.places:
                taken[agent] = taken.get(agent, 0) + ranks
        return [SlotRow(a.agent, a.name, a.device, a.slots,
                        max(0, a.slots - taken.get(a.agent, 0))
                        if a.seen > self.doubtful.get(a.agent, 0.0) else 0)
                for a in self.agents.values() if a.slots]

    def _place(self, now: float) -> None:
        waiting = {one.job: one for one in self.known.values() if one.state == "pending"}
        if not waiting and not self.yielding:
            return
        rows = []
        for one in waiting.values():
            if one.pipeline not in self.pipelines:
                self._lose(one, f"pipeline {one.pipeline} was cancelled")
                continue
            pipeline = self.pipelines[one.pipeline]
            row = pipeline.row(now, {})
            if why := self._why_none_starts(pipeline, row.left):
                one.why = why
                continue
            rows.append(JobRow(one.job, one.name, one.asked["least"], one.asked["most"],
                               one.asked["device"], row.priority, row.estimated_s, one.number,
                               has_frames(one.asked)))
        starts, waits = place_jobs(rows, self.slots())
        for job, why in waits.items():
            waiting[job].why = why.replace("--connect ADDRESS", f"--connect {self.address}")
            if name := self.yielded.get(job):
                waiting[job].why += f"; it gave up slots for {name}, and goes on where it was"
        for start in starts:
            self._start(waiting[start.job], start, now)
        self._preempt([row for row in rows if row.job in waits], waiting)

    def _preempt(self, rows: list[JobRow], waiting: Mapping[str, StoredJob]) -> None:
        """Has jobs of a lower priority end for these, where they lose nothing by that."""
        running = [RunningRow(one.job, tuple((agent, ranks) for agent, _, ranks in one.places),
                              self._priority(one), keeps_checkpoints(one.asked["words"]), one.began)
                   for one in self._started()]
        before, self.yielding = self.yielding, jobs_that_yield(rows, running, self.slots(),
                                                               self.yielding)
        for one in self._started():
            if one.job in self.yielding:
                one.why = f"it ends behind its next checkpoint, for {self.yielding[one.job]}"
            elif one.job in before:
                one.why = ""
        for row in rows:
            mine = [self.known[job].name for job, name in self.yielding.items() if name == row.name]
            lower = [self.known[r.job].name for r in running if r.priority < row.priority]
            if mine:
                waiting[row.job].why += f"; {', '.join(mine)} gives them up at its next checkpoint"
            elif lower:
                waiting[row.job].why += (f"; {lower[0]}, of a lower priority, is waited for: only "
                                         "jobs with --checkpoint and --resume give up slots")

    def _priority(self, one: StoredJob) -> float:
        pipeline = self.pipelines.get(one.pipeline)
        return float(pipeline.stored.settings.get("priority") or 0) if pipeline else 0.0

    def _why_none_starts(self, pipeline: KnownPipeline, left: Mapping[str, float]) -> str:
        """Which setting of a pipeline keeps its jobs back, whatever slots are free; else ""."""
        update = f"python -m spmd feed update {pipeline.name} --connect {self.address}"
        for setting, value in left.items():
            if value <= 0:
                return f"its setting {setting} allows no more; try: {update} --{setting} MORE"
        least = pipeline.stored.settings.get("min_workers") or 0
        here = sum(len(agent.workers) for agent in self.agents.values())
        return "" if here >= least else (
            f"its setting min_workers is {least}, and {here} workers are here; try: {update} "
            "--min-workers none, or more workers")

    def _start(self, one: StoredJob, start: JobStart, now: float) -> None:
        before = vars(one).copy()
        one.state, one.attempt, one.why, one.began = "running", one.attempt + 1, "", time.time()
        names = distinct_names([self.agents[agent].name for agent, _ in start.places])
        one.places = [[agent, name, ranks] for (agent, ranks), name in zip(start.places, names)]
        one.batches = None
        self.yielded.pop(one.job, None)
        for consumer in self.consumers.values():  # of an attempt before this one
            if consumer.said["run"] == one.name:
                consumer.held = None
        try:
            self.store.put_job(one)
        except FullDisk as error:
            vars(one).update(before, why=str(error).splitlines()[0])
            return
        if one.attempt > 1:
            self.files.drop_attempt(one.job, one.attempt - 1)
        for agent, _ in start.places:
            self.seen[one.job, agent] = now  # it is told when it beats
        self.unheard.add(one.job)

    def _lose(self, one: StoredJob, why: str) -> None:
        with suppress(FullDisk):  # it is as it was, and is looked at again
            self._end(one, LOST, why)

    def _end(self, one: StoredJob, status: int, why: str, again: bool = True,
             failed: bool = True) -> None:
        """Ends an attempt: the job starts again where its submitter has allowed that, and where it
        has not failed."""
        before = vars(one).copy()
        counts = failed and one.job not in self.unheard
        again = again and status not in FINAL and one.pipeline in self.pipelines and (
            not counts or one.failures < one.asked["restarts"])
        if status == LOST and failed:  # an agent of it may be gone, too
            self.doubtful.update(dict.fromkeys((agent for agent, _, _ in one.places),
                                               time.monotonic()))
        one.failures += counts and status != 0
        one.state, one.why = "pending" if again else "ended", why
        one.status, one.ended = (None, 0.0) if again else (status, time.time())
        try:
            self.store.put_job(one)
        except FullDisk:  # it is as it was: whoever said so says it again
            vars(one).update(before)
            raise
        self.unheard.discard(one.job)
        for agent, _, _ in one.places:
            self.seen.pop((one.job, agent), None)
        if not again:
            self.files.drop_attempt(one.job, 0)

    def _sweep(self) -> None:
        for one in list(self.known.values()):
            if one.state == "ended" and time.time() - one.ended > KEPT_S:
                self.store.drop_job(one.job)
                self._forget(one)
        if self.files.folder:
            self.files.drop_unclaimed(self.known)

    def _forget(self, one: StoredJob) -> None:
        del self.known[one.job]
        self.files.drop(one.job)

    def _started(self) -> list[StoredJob]:
        return [one for one in self.known.values() if one.state == "running"]

    # ---- what is seen

    def row(self, one: StoredJob) -> Value:
        """Return what people see of a job."""
        end = one.ended or time.time()
        return {
            "job": one.job, "name": one.name, "pipeline": one.pipeline, "state": one.state,
            "why": one.why, "status": one.status, "attempt": one.attempt,
            "ranks": one.ranks or one.asked["least"], "host": one.where,
            "seconds": round(end - (one.began or one.submitted), 1)}
