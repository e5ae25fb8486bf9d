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
    """Holds the jobs of a scheduler. pipelines, agents, consumers: those that the scheduler knows,
    as they change. tell: sends to a peer."""

    def __init__(self, store: StateFile, pipelines: Mapping[str, KnownPipeline],
                 agents: Mapping[str, KnownAgent], consumers: Mapping[str, KnownConsumer],
                 address: str, tell: Callable[..., str]) -> None:
        self.store, self.pipelines, self.agents, self.tell = store, pipelines, agents, tell
        self.consumers, self.address = consumers, address
        self.files = JobFiles(f"{store.path}.jobs" if store.path else "")
        self.known = {job.job: job for job in store.jobs()}
        now = time.monotonic()
        # When each agent of a job said that it runs, by job and agent.
        self.seen = {(job.job, place[0]): now for job in self.known.values()
                     for place in job.places}
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
            stored = StoredJob(job, pipeline, {name: message[name] for name in JOB},
                               submitted=time.time())
            self.store.put_job(stored)
            self.known[job] = stored
            self._placed = 0.0
        return self.row(self.known[job]), b""

    def _on_job(self, message: Message) -> tuple[Value, bytes]:
        job = self._named(message["name"])
        said = self.files.last_lines(job.job, job.attempt, "stderr", LINES) if job.attempt else []
        return {**self.row(job), "asked": job.asked, "files": job.files, "said": said,
                "batches": job.batches}, b""

    def _on_end_early(self, message: Message) -> tuple[Value, bytes]:
        """End a job's stream early: all consumers hold, and once the last has said how far it is,
        the stream ends there. The runner repeats the request until the job ends: messages may be
        lost."""
        job = self._running(message)
        mine = [c for c in self.consumers.values()
                if c.said["run"] == job.name and c.pipeline == job.pipeline
                and job.asked["feed"] in ("", c.said["feed"])]
        held = [c for c in mine if c.held is not None]
        if job.batches is None and {r for c in held for r in c.said["ranks"]} >= {
                *range(job.ranks)}:
            before = vars(job).copy()
            job.batches = max(c.held or 0 for c in held)
            try:
                self.store.put_job(job)  # before anybody goes on
            except FullDisk:
                vars(job).update(before)
                raise
        for consumer in mine:
            if job.batches is not None:
                self.tell(consumer.peer, "end_feed", batches=job.batches)
            elif consumer.held is None:
                self.tell(consumer.peer, "hold")
        return {"batches": job.batches}, b""

    def _on_job_ended(self, message: Message) -> tuple[Value, bytes]:
        job = self.known.get(message["job"])
        if job and job.state == "ended" and job.attempt == message["attempt"]:
            return {}, b""  # it is said again: the answer was lost
        job = self._running(message)
        for file, size in message["files"].items():
            if (here := self.files.size(job.job, job.attempt, file)) != size:
                raise UsageError(f"{file} of {job.name} is not whole", expected=f"{size} bytes",
                                 found=f"{here}")
        job.files = dict(message["files"])
        if message["yields"]:
            self.yielded[job.job] = self.yielding.get(job.job, "another job")
            self._end(job, LOST, "", failed=False)
            return {}, b""
        status = message["status"]
        self._end(job, LOST if status is None else status, message["why"])
        return {}, b""

    def _on_cancel_job(self, message: Message) -> tuple[Value, bytes]:
        """Cancel a job; forget one that has ended, with its files."""
        job = self._named(message["name"])
        if job.state == "ended":
            self.store.drop_job(job.job)
            self._forget(job)
            return {"name": job.name, "what": "forgotten"}, b""
        self._end(job, CANCELLED, f"cancelled by {message['by'] or 'somebody'}", again=False)
        return {"name": job.name, "what": "cancelled"}, b""

    def _named(self, name: str) -> StoredJob:
        names = {job.name: job for job in self.known.values()}
        if name not in names:
            raise UsageError(f"there is no job {name}", expected=", ".join(names) or "none is here",
                             remedy=meant(name, names) or "python -m spmd feed status")
        return names[name]

    def _running(self, message: Message) -> StoredJob:
        """Return the job of a runner. Raises PeerError where another attempt has replaced its
        own."""
        job = self.known.get(message["job"])
        if job is None or (job.state, job.attempt) != ("running", message["attempt"]):
            raise PeerError("this attempt of a job is over",
                            found=job.name if job else message["job"])
        self.unheard.discard(job.job)
        return job

    # ---- agents

    def heard(self, agent: KnownAgent, there: Mapping[str, list[Any]]) -> None:
        """Answer what an agent says of its jobs by those that it should start, and end."""
        for stored in self._started():
            if (part := stored.part_of(agent.agent)) is None:
                continue
            attempt, runs = there.get(stored.job, (0, False))
            if attempt == stored.attempt:
                self.unheard.discard(stored.job)
            if attempt == stored.attempt and not runs:
                self._lose(stored, f"what runs it on {stored.places[part][1]} was killed")
                continue
            self.seen[stored.job, agent.agent] = time.monotonic()
            if attempt != stored.attempt:
                self.tell(agent.peer, "start_job", job=stored.job, attempt=stored.attempt,
                          name=stored.name, pipeline=stored.pipeline, ranks=stored.ranks, part=part,
                          places=[[host, ranks] for _, host, ranks in stored.places],
                          **stored.asked)
            elif stored.job in self.yielding and part == 0:  # it ends those on other agents
                self.tell(agent.peer, "yield_job", job=stored.job)
        for job, (attempt, _) in there.items():
            of = self.known.get(job)
            if of is None or (of.state, of.attempt) != ("running", attempt) or (
                    of.part_of(agent.agent) is None):
                self.tell(agent.peer, "end_job", job=job)

    def left(self, agent: str) -> None:
        """Record that an agent has ended its jobs, and itself."""
        for job in self._started():
            if (part := job.part_of(agent)) is not None:
                self._lose(job, f"its agent on {job.places[part][1]} has ended")

    def tick(self, now: float, late: float) -> None:
        """Do what is due by the clock. late: for how long we were held up, and heard nobody."""
        for job in self._started():
            for agent, host, _ in job.places:
                self.seen[job.job, agent] += max(late, 0.0)
                if now - self.seen[job.job, agent] > SILENT_S:
                    self._lose(job, f"its agent on {host} has been silent for {SILENT_S:g} s")
                    break
        if now - self._placed >= PLACE_S:
            self._placed = now
            self._place(now)
        if now - self._swept >= SWEEP_S:
            self._swept = now
            self._sweep()

    def charge(self, seconds: float) -> None:
        """Charge pipelines for the ranks of their jobs: each costs what a worker of its agent
        does."""
        for job in self._started():
            for name, _, ranks in job.places:
                agent, pipeline = self.agents.get(name), self.pipelines.get(job.pipeline)
                if agent and pipeline:
                    pipeline.charge(ranks, {"cost": agent.cost, "energy": agent.watts * JOULES},
                                    seconds)

    # ---- the queue

    def slots(self) -> list[SlotRow]:
        """Return the agents that offer slots, and how many of these no job has. An agent that has
        lost a job has none free until its next beat."""
        taken: dict[str, int] = {}
        for job in self._started():
            for agent, _, ranks in job.places:
                taken[agent] = taken.get(agent, 0) + ranks
        return [SlotRow(a.agent, a.name, a.device, a.slots,
                        max(0, a.slots - taken.get(a.agent, 0))
                        if a.seen > self.doubtful.get(a.agent, 0.0) else 0)
                for a in self.agents.values() if a.slots]

    def _place(self, now: float) -> None:
        waiting = {stored.job: stored for stored in self.known.values()
                   if stored.state == "pending"}
        if not waiting and not self.yielding:
            return
        rows = []
        for stored in waiting.values():
            if stored.pipeline not in self.pipelines:
                self._lose(stored, f"pipeline {stored.pipeline} was cancelled")
                continue
            pipeline = self.pipelines[stored.pipeline]
            row = pipeline.row(now, {})
            if why := self._why_none_starts(pipeline, row.left):
                stored.why = why
                continue
            rows.append(JobRow(stored.job, stored.name, stored.asked["least"], stored.asked["most"],
                               stored.asked["device"], row.priority, row.estimated_s, stored.number,
                               has_frames(stored.asked)))
        starts, waits = place_jobs(rows, self.slots())
        for job, why in waits.items():
            waiting[job].why = why.replace("--connect ADDRESS", f"--connect {self.address}")
            if name := self.yielded.get(job):
                waiting[job].why += f"; it gave up slots for {name}, and goes on where it was"
        for start in starts:
            self._start(waiting[start.job], start, now)
        self._preempt([row for row in rows if row.job in waits], waiting)

    def _preempt(self, rows: list[JobRow], waiting: Mapping[str, StoredJob]) -> None:
        """Preempt jobs of a lower priority for these; only those that keep checkpoints."""
        running = [RunningRow(stored.job,
                              tuple((agent, ranks) for agent, _, ranks in stored.places),
                              self._priority(stored), keeps_checkpoints(stored.asked["words"]),
                              stored.began)
                   for stored in self._started()]
        before, self.yielding = self.yielding, jobs_that_yield(rows, running, self.slots(),
                                                               self.yielding)
        for stored in self._started():
            if stored.job in self.yielding:
                stored.why = f"it ends behind its next checkpoint, for {self.yielding[stored.job]}"
            elif stored.job in before:
                stored.why = ""
        for row in rows:
            mine = [self.known[job].name for job, name in self.yielding.items() if name == row.name]
            lower = [self.known[r.job].name for r in running if r.priority < row.priority]
            if mine:
                waiting[row.job].why += f"; {', '.join(mine)} gives them up at its next checkpoint"
            elif lower:
                waiting[row.job].why += (f"; {lower[0]}, of a lower priority, is waited for: only "
                                         "jobs with --checkpoint and --resume give up slots")

    def _priority(self, job: StoredJob) -> float:
        pipeline = self.pipelines.get(job.pipeline)
        return float(pipeline.stored.settings.get("priority") or 0) if pipeline else 0.0

    def _why_none_starts(self, pipeline: KnownPipeline, left: Mapping[str, float]) -> str:
        """Return which setting of a pipeline keeps its jobs from starting, whatever slots are free;
        else ""."""
        update = f"python -m spmd feed update {pipeline.name} --connect {self.address}"
        for setting, value in left.items():
            if value <= 0:
                return f"its setting {setting} allows no more; try: {update} --{setting} MORE"
        least = pipeline.stored.settings.get("min_workers") or 0
        here = sum(len(agent.workers) for agent in self.agents.values())
        return "" if here >= least else (
            f"its setting min_workers is {least}, and {here} workers are here; try: {update} "
            "--min-workers none, or more workers")

    def _start(self, job: StoredJob, start: JobStart, now: float) -> None:
        before = vars(job).copy()
        job.state, job.attempt, job.why, job.began = "running", job.attempt + 1, "", time.time()
        names = distinct_names([self.agents[agent].name for agent, _ in start.places])
        job.places = [[agent, name, ranks] for (agent, ranks), name in zip(start.places, names)]
        job.batches = None
        self.yielded.pop(job.job, None)
        for consumer in self.consumers.values():  # of an attempt before this one
            if consumer.said["run"] == job.name:
                consumer.held = None
        try:
            self.store.put_job(job)
        except FullDisk as error:
            vars(job).update(before, why=str(error).splitlines()[0])
            return
        if job.attempt > 1:
            self.files.drop_attempt(job.job, job.attempt - 1)
        for agent, _ in start.places:
            self.seen[job.job, agent] = now  # it is told when it beats
        self.unheard.add(job.job)

    def _lose(self, job: StoredJob, why: str) -> None:
        with suppress(FullDisk):  # it is as it was, and is looked at again
            self._end(job, LOST, why)

    def _end(self, job: StoredJob, status: int, why: str, again: bool = True,
             failed: bool = True) -> None:
        """End an attempt: the job starts again where its submitter has allowed that, and where it
        has not failed."""
        before = vars(job).copy()
        counts = failed and job.job not in self.unheard
        again = again and status not in FINAL and job.pipeline in self.pipelines and (
            not counts or job.failures < job.asked["restarts"])
        if status == LOST and failed:  # an agent of it may be gone, too
            self.doubtful.update(dict.fromkeys((agent for agent, _, _ in job.places),
                                               time.monotonic()))
        job.failures += counts and status != 0
        job.state, job.why = "pending" if again else "ended", why
        job.status, job.ended = (None, 0.0) if again else (status, time.time())
        try:
            self.store.put_job(job)
        except FullDisk:  # it is as it was: whoever said so says it again
            vars(job).update(before)
            raise
        self.unheard.discard(job.job)
        for agent, _, _ in job.places:
            self.seen.pop((job.job, agent), None)
        if not again:
            self.files.drop_attempt(job.job, 0)

    def _sweep(self) -> None:
        for job in list(self.known.values()):
            if job.state == "ended" and time.time() - job.ended > KEPT_S:
                self.store.drop_job(job.job)
                self._forget(job)
        if self.files.folder:
            self.files.drop_unclaimed(self.known)

    def _forget(self, job: StoredJob) -> None:
        del self.known[job.job]
        self.files.drop(job.job)

    def _started(self) -> list[StoredJob]:
        return [job for job in self.known.values() if job.state == "running"]

    # ---- what is seen

    def row(self, job: StoredJob) -> Value:
        """Return what people see of a job."""
        end = job.ended or time.time()
        return {
            "job": job.job, "name": job.name, "pipeline": job.pipeline, "state": job.state,
            "why": job.why, "status": job.status, "attempt": job.attempt,
            "ranks": job.ranks or job.asked["least"], "host": job.where,
            "seconds": round(end - (job.began or job.submitted), 1)}
