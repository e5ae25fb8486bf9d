"""The scheduler's loop: it hears beats, assigns workers to consumers, and answers clients.

In: messages at one ROUTER. Out: loads for agents, lists of workers for consumers, answers.
Always holds: nobody needs it to go on; whatever a message holds, the loop goes on; whoever is
silent for 1.5 s is dead; after its own restart everybody is asked to come again.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from codegen.errors import PeerError, SpmdError
from spmd.feeding.host.stop_request import StopRequest
from spmd.feeding.messages.consistency_errors import streams_differ
from spmd.feeding.messages.sockets import GONE, SENT, received, send_to
from spmd.feeding.messages.wire import MalformedMessage, Message, decode, encode
from spmd.feeding.scheduling.assignment import Assignment, assign
from spmd.feeding.scheduling.jobs import Jobs
from spmd.feeding.scheduling.pipeline_requests import cancelled, submitted, updated
from spmd.feeding.scheduling.registry import (
    KnownAgent,
    KnownConsumer,
    KnownPipeline,
    find_rates,
    names_of,
    preferred,
)
from spmd.feeding.scheduling.run_versions import RunVersions, unknown_pipeline
from spmd.feeding.scheduling.scheduler_state import FullDisk, StateFile, StoredPipeline
from spmd.feeding.scheduling.spare_capacity import SpareCapacity

SILENT_S = 1.5  # an agent that has not beaten for so long is dead
CONSUMER_SILENT_S = 10.0  # it has its workers anyway; what it had is then given to others
PLAN_S = 0.5  # between two assignments when nothing has happened but rates
SOON_S = 0.05  # after something has happened
SELDOM = 4.0  # times as long as an assignment takes: beats must be heard between two of them
KEEP_S = 1.0  # between two writes to the state
COMING_S = 2.5  # after a restart: so long nobody's workers are taken away
SLICE_S = 10.0
POLL_MS = 50
AT_ONCE = 500  # messages, before it looks at the clock again
HISTORY = 600  # seconds of rates, for the page
MOVED = 0.05  # of a worker's time: a share that moves by less is not told


class Scheduler:
    """Handles the messages of agents, consumers and clients. router: a ROUTER of sockets.Lines.
    address: as others reach it; strangers: refused keys."""

    def __init__(self, router: Any, store: StateFile, *, address: str = "",
                 slice_s: float = SLICE_S, counts: Counter[str] | None = None) -> None:
        self.router, self.store, self.address = router, store, address
        self.slice_s = slice_s
        self.counts: Counter[str] = counts if counts is not None else Counter()
        self.last_malformed = ""
        self.agents: dict[str, KnownAgent] = {}
        self.consumers: dict[str, KnownConsumer] = {}
        self.pipelines = {stored.name: KnownPipeline(stored) for stored in store.pipelines()}
        self.jobs = Jobs(store, self.pipelines, self.agents, self.consumers, address, self.tell)
        self.versions = RunVersions(store)
        self.given_rates = store.rates()
        self.assigned = Assignment(store.shares())
        self.history: dict[str, deque[tuple[float, ...]]] = {}
        self.since = time.time()
        self.names: dict[str, str] = {}  # of machines, as their agents said them
        self.snapshot: dict[str, Any] = {}  # what the page shows; replaced, never changed
        self.looking: Any = None  # makes it: overview.overview
        self.stopping = StopRequest()
        self.own_workers = False  # whoever started us starts workers too
        self.allowed: Callable[[], Collection[str]] | None = None  # keys, for workers, too
        self.welcomes: Callable[[Any], Any] = lambda router: router  # sockets.without_strangers
        now = time.monotonic()
        self.awaited = set(store.agents())
        self.coming_until = now + COMING_S if self.awaited or self.assigned.shares else now
        self.dirty = True
        self._planned = self._kept = self._ticked = self._charged = now
        self._took = 0.0  # for the last assignment

    # ---- the loop

    def run(self, ends: Callable[[], str] = str) -> None:
        """Until it is told to stop, or `ends` says why it must. Then consumers go on with the
        workers that they have."""
        while not self.stopping:
            self.router.poll(POLL_MS)
            self.stopping.say(ends())
            try:
                self.tick()
            except Exception as error:
                self._note_defect(error)
            for _ in range(AT_ONCE):
                frames = received(self.router)
                if frames is None:
                    break
                self.hear(bytes(frames[0]), frames[1:])

    def hear(self, peer: bytes, frames: list[Any]) -> None:
        """Handle one message. A malformed one is counted; a defect of ours is logged, and the loop
        goes on."""
        try:
            message = decode(frames)
            handler = getattr(self, f"_on_{message.kind}", None)
            if handler is None and (answer := self.jobs.answer(message)):
                value, data = answer
                send_to(self.router, peer, encode("answer", [data] if data else (), value=value))
                return
            if handler is None:
                raise MalformedMessage(f"{message.kind}: no message for a scheduler")
            handler(peer, message)
        except MalformedMessage as error:
            self.counts["malformed"] += 1
            self.last_malformed = error.message[:300]
        except SpmdError as error:
            self.tell(peer, "refused", text=str(error)[:60000], code=error.exit_code)
        except Exception as error:
            self._note_defect(error)
            self.tell(peer, "refused", text=f"a defect of the scheduler: {error!r}"[:1000], code=70)

    def _note_defect(self, error: Exception) -> None:
        self.counts["defects"] += 1
        if self.counts["defects"] == 1 or os.environ.get("SPMD_DEBUG"):
            print(f"spmd: a defect of the scheduler, which goes on: {error!r}\n"
                  f"{traceback.format_exc()}", file=sys.stderr, flush=True)

    def tick(self) -> None:
        """Do what is due by the clock."""
        now = time.monotonic()
        late = now - self._ticked - 0.5
        self._ticked = now
        if late > 0:  # we were held up, not they
            for agent in self.agents.values():
                agent.seen = min(now, agent.seen + late + 0.5)
            for consumer in self.consumers.values():
                consumer.seen = min(now, consumer.seen + late + 0.5)
        self._bury(now)
        self.jobs.tick(now, late)
        if now - self._planned >= max(SOON_S if self.dirty else PLAN_S, SELDOM * self._took):
            self.plan(now)
            self._took = time.monotonic() - now
        if now - self._kept >= KEEP_S:
            self.keep(now)
            self.look_at_keys(now)

    def look_at_keys(self, now: float) -> None:
        """Cuts the lines of keys that do not count any more; workers do so as well."""
        router = self.welcomes(self.router)
        if router is not self.router:
            self.router = router
            for agent in self.agents.values():  # all others have to connect again
                agent.seen = now + COMING_S - SILENT_S
        if self.allowed:
            keys = sorted(self.allowed())
            for agent in self.agents.values():
                if agent.allowed != keys and self.tell(agent.peer, "allowed", keys=keys) == SENT:
                    agent.allowed = keys

    def tell(self, peer: bytes, kind: str, **fields: Any) -> str:
        return send_to(self.router, peer, encode(kind, **fields))

    # ---- agents

    def _on_join(self, peer: bytes, message: Message) -> None:
        now = time.monotonic()
        self.names[message["host"]] = message["name"]
        known = self.agents.get(message["agent"])
        if known is None:
            self.agents[message["agent"]] = KnownAgent(peer, message.fields, now)
        else:
            known.peer, known.seen = peer, now
            known.hear(message.fields)
            known.allowed = None
            known.loaded.clear()  # it comes again after its line broke: what was told may be lost
        self.awaited.discard(message["agent"])
        self.dirty = True

    def _on_beat(self, peer: bytes, message: Message) -> None:
        agent, now = self.agents.get(message["agent"]), time.monotonic()
        if agent is None or agent.workers.keys() != message["workers"].keys():
            self.tell(peer, "who")  # or its last join was lost
        if agent is None:
            return
        agent.seen, agent.peer = now, peer
        for worker, counts in message["workers"].items():
            if worker in agent.workers:
                agent.workers[worker].beat(now, counts)
        self.jobs.heard(agent, message["jobs"] or {})

    def _on_leave(self, peer: bytes, message: Message) -> None:
        self.jobs.left(message["agent"])
        self._forget(message["agent"], "its agent has left")

    def _on_gone(self, peer: bytes, message: Message) -> None:
        for agent in self.agents.values():
            agent.workers.pop(message["worker"], None)
        for consumer in self.consumers.values():
            if message["worker"] in self.assigned.of(consumer.consumer) or (
                    consumer.pipeline == message["pipeline"]):
                mine = message["version"] in (None, consumer.version)
                self.tell(consumer.peer, "gone", **message.fields if mine else {
                    **message.fields, "position": None, "example": None})
        self.counts["workers lost"] += 1
        self.dirty = True

    def _forget(self, agent: str, why: str) -> None:
        lost = self.agents.pop(agent, None)
        if lost is None:
            return
        for worker in lost.workers:
            for consumer in self.consumers.values():
                if worker in self.assigned.of(consumer.consumer):
                    self.tell(consumer.peer, "gone", worker=worker, why=why)
        self.store.forget_agent(agent)
        self.dirty = True

    def _bury(self, now: float) -> None:
        """Forget agents and consumers whose heartbeat has been missing for too long."""
        for agent in [a for a, known in self.agents.items() if now - known.seen > SILENT_S]:
            self.counts["agents lost"] += 1
            self._forget(agent, f"its agent has been silent for {SILENT_S} s")
        for name in [c for c, known in self.consumers.items()
                     if now - known.seen > CONSUMER_SILENT_S]:
            self.counts["consumers lost"] += 1
            del self.consumers[name]
            self.dirty = True

    # ---- consumers

    def _on_consume(self, peer: bytes, message: Message) -> None:
        name, now = message["pipeline"], time.monotonic()
        try:
            version = self.versions.register(self._pipeline(name).stored, message.fields)
        except SpmdError as error:
            self.tell(peer, "failed", code=error.exit_code, text=str(error))
            return
        consumer = KnownConsumer(peer, message.fields, version, now)
        if before := self.consumers.get(consumer.consumer):
            consumer.meter = before.meter  # its line broke: it is what it was
        pipeline = self.pipelines[name]
        if name not in self._running():  # another run takes as long again
            pipeline.running_since = now
        self.consumers[consumer.consumer] = consumer
        self.dirty = True

    def _pipeline(self, name: str) -> KnownPipeline:
        if name not in self.pipelines:
            raise unknown_pipeline(name, self.pipelines, self.address)
        return self.pipelines[name]

    def _on_open(self, peer: bytes, message: Message) -> None:
        stored = self._pipeline(message["pipeline"]).stored
        self.tell(peer, "answer", value=self.versions.begin(stored, message.fields))

    def _on_learnt(self, peer: bytes, message: Message) -> None:
        """Record the order of a stream, as the first worker that read the source sent it."""
        consumer = self.consumers.get(message["consumer"])
        if consumer is None:
            return
        stored = self._version_of(consumer)
        if stored.facts.setdefault("order", message["order"]) != message["order"]:
            self.tell(peer, "failed", code=65, text=str(streams_differ(consumer.pipeline)))
        elif stored.version == self.pipelines[consumer.pipeline].stored.version:
            with suppress(FullDisk):
                self.store.put_pipeline(stored)

    def _on_skipped(self, peer: bytes, message: Message) -> None:
        """Pass on a skipped example to the process of its run that prints them."""
        consumer = self.consumers.get(message["consumer"])
        if consumer is not None and consumer.said["stream"]:
            mine = [c for c in self.consumers.values()
                    if c.said["stream"] == consumer.said["stream"]]
            consumer = min(mine, key=lambda c: min(c.said["ranks"], default=1 << 40))
        self.tell(consumer.peer if consumer else peer, "skipped", **message.fields)

    def _on_said(self, peer: bytes, message: Message) -> None:
        if consumer := self.consumers.get(message["consumer"]):
            self.tell(consumer.peer, "said", **message.fields)

    def _on_rate(self, peer: bytes, message: Message) -> None:
        consumer = self.consumers.get(message["consumer"])
        if consumer is None:
            self.tell(peer, "who")
            return
        consumer.peer = peer
        consumer.rate(time.monotonic(), message.fields)

    def _on_lost(self, peer: bytes, message: Message) -> None:
        if consumer := self.consumers.get(message["consumer"]):
            consumer.avoid(message["worker"], time.monotonic(), message["why"] or "")
            self.counts["no answers"] += 1
            self.dirty = True

    def _on_reached(self, peer: bytes, message: Message) -> None:
        if consumer := self.consumers.get(message["consumer"]):
            consumer.avoided.pop(message["worker"], None)
            self.dirty = True

    def _on_held(self, peer: bytes, message: Message) -> None:
        if consumer := self.consumers.get(message["consumer"]):
            consumer.held = message["batches"]

    def _on_done(self, peer: bytes, message: Message) -> None:
        consumer = self.consumers.pop(message["consumer"], None)
        self.dirty = self.dirty or consumer is not None
        self.tell(peer, "parted")

    # ---- clients

    def _on_submit(self, peer: bytes, message: Message) -> None:
        pipeline, outcome = submitted(message.fields, self.pipelines, self._running())
        if outcome == "new":
            self.store.put_pipeline(pipeline.stored)
        elif outcome == "changed":
            self._replace(self.pipelines[pipeline.name].stored, pipeline.stored)
        self.pipelines[pipeline.name] = pipeline
        self.dirty = True
        self.tell(peer, "answer", value={"name": pipeline.name, "version": pipeline.stored.version,
                                         "what": outcome, **self._not_here(message)})

    def _on_update(self, peer: bytes, message: Message) -> None:
        stored = updated(message.fields, self.pipelines)
        pipeline = self.pipelines[stored.name]
        self._replace(pipeline.stored, stored)
        pipeline.stored = stored
        self.dirty = True
        before = [c for c in self.consumers.values()
                  if c.pipeline == pipeline.name and c.version != stored.version]
        self.tell(peer, "answer", value={
            "name": pipeline.name, "version": stored.version, "settings": stored.settings,
            "runs_before": len({c.said["stream"] or c.consumer for c in before}),
            **self._not_here(message)})

    def _not_here(self, message: Message) -> dict[str, list[str]]:
        """Preferred workers that may come yet, or whose names are wrong; and who is here."""
        wanted = preferred(message["settings"])
        missing = sorted(wanted - names_of(self.agents.values())) if wanted else []
        here = sorted({a.name for a in self.agents.values()})
        return {"not_here": missing, "here": here} if missing else {}

    def _replace(self, old: StoredPipeline, new: StoredPipeline) -> None:
        self.store.put_pipeline(new, self.versions.replaced(old, new))

    def _on_cancel(self, peer: bytes, message: Message) -> None:
        name = message["name"]
        cancelled(name, self.pipelines)
        self.store.drop_pipeline(name)
        del self.pipelines[name]
        # Another one of that name is measured anew.
        self.given_rates = {of: r for of, r in self.given_rates.items() if of[0] != name}
        for agent in self.agents.values():
            for worker in agent.workers.values():
                worker.meters.pop(name, None)
        self.versions.cancelled(name)
        ended = [c for c in self.consumers.values() if c.pipeline == name]
        for consumer in ended:
            self.tell(consumer.peer, "failed", code=75, text=str(PeerError(
                f"pipeline {name} was cancelled by {message['by'] or 'somebody'}",
                found=f"{consumer.taken // consumer.per_batch} batches that this process took",
                remedy="submit it again; a run that keeps checkpoints goes on with --resume")))
            del self.consumers[consumer.consumer]
        self._drop_unused()
        self.dirty = True
        self.tell(peer, "answer", value={
            "name": name, "what": "cancelled",
            "runs": len({c.said["stream"] or c.consumer for c in ended})})

    def _on_status(self, peer: bytes, message: Message) -> None:
        self.look(time.monotonic())
        self.tell(peer, "answer", value=self.snapshot)

    def takers(self) -> list[KnownConsumer]:
        """Return the consumers that need workers: all but those that are idle."""
        return [consumer for consumer in self.consumers.values() if not consumer.idle]

    def _running(self) -> set[str]:
        return {consumer.pipeline for consumer in self.consumers.values()}

    # ---- who works for whom

    def plan(self, now: float) -> None:
        """Assign workers anew, and tell the consumers whose assignment has changed."""
        self._planned, self.dirty = now, False
        workers = [row for agent in self.agents.values() for row in agent.rows()]
        running = self._running()
        pipelines = [known.row(now, {device: rate
                                     for (name, device), rate in self.given_rates.items()
                                     if name == known.name})
                     for known in self.pipelines.values() if known.name in running]
        there = {row.worker for row in workers}
        takers = self.takers()
        find_rates(takers, now)
        assignment = assign(pipelines, [
            c.row(now, there, self.pipelines[c.pipeline].stored.settings)
            for c in takers], workers,
                            self.assigned.shares, int(now // self.slice_s), self.assigned.spare)
        if now < self.coming_until and (self.awaited or self._are_unmeasured()):
            return  # just restarted: everybody works on as before, until all are here again
        self.assigned, self.coming_until = assignment, now
        for name, pipeline in self.pipelines.items():
            pipeline.why = self._why(assignment.pending.get(name, ""))
        rows = {row.worker: row for row in workers}
        self._drop_unused()
        for consumer in takers:
            self._tell_workers(consumer, assignment.of(consumer.consumer), now)
            consumer.adapt(now, consumer.consumer not in assignment.lacks)
        self._charge(rows, now)
        self.look(now)

    def _are_unmeasured(self) -> bool:
        """Return whether a consumer that had workers has no measured rate since the restart."""
        had = {c for by_consumer in self.assigned.shares.values() for c in by_consumer}
        return any(c not in self.consumers or not self.consumers[c].meter.rate for c in had)

    def _why(self, why: str) -> str:
        """More than the assignment can know of workers that are not there."""
        none = not any(a.workers for a in self.agents.values())
        if none and (resting := {a.free for a in self.agents.values() if a.free}):
            return f"workers are free at {', '.join(sorted(resting))} only; try: more workers"
        if why and none and (self.agents or self.own_workers):
            return "its workers are still starting"
        return why.replace("--connect ADDRESS", f"--connect {self.address}")

    def _version_of(self, consumer: KnownConsumer) -> StoredPipeline:
        """Return the version of a consumer's pipeline with which its run began."""
        newest = self.pipelines[consumer.pipeline].stored
        return self.versions.numbered(newest, consumer.version)

    def _drop_unused(self) -> None:
        """Agents hold the versions that somebody takes, and the newest one."""
        used = {(c.pipeline, c.version) for c in self.consumers.values()}
        used |= {(p.name, p.stored.version) for p in self.pipelines.values()}
        for agent in self.agents.values():
            for name, version in agent.loaded.keys() - used:
                del agent.loaded[name, version]
                self.tell(agent.peer, "drop", name=name, version=version)

    def _tell_workers(self, consumer: KnownConsumer, shares: dict[str, float], now: float) -> None:
        stored = self._version_of(consumer)
        of = stored.name, stored.version
        where = {w: (agent, known) for agent in self.agents.values()
                 for w, known in agent.workers.items()}
        how = stored.settings.get("pull") or "turn"
        if how == "all":  # of all that work for this pipeline
            peers = {c.consumer for c in self.consumers.values() if c.pipeline == consumer.pipeline}
            avoids = consumer.avoids(now, where)
            shares = {w: max(by_consumer.get(consumer.consumer, 0.0), SHARE_OF_ALL / len(peers))
                      for w, by_consumer in self.assigned.shares.items()
                      if peers & by_consumer.keys() and w not in avoids}
        spare = self.assigned.spare.get(consumer.consumer, NO_TIME)
        shares = {**dict.fromkeys(spare.workers, 0.0), **shares}  # 0: what others leave
        shares = {w: share for w, share in shares.items() if w in where}
        for agent in {id(a): a for a in (where[w][0] for w in shares)}.values():
            if agent.loaded.get(of) != stored.settings and (
                    self.tell(agent.peer, "load", **_travelling(stored)) == SENT):
                agent.loaded[of] = stored.settings
        own = {w for w, share in shares.items() if share}
        why = "" if own else self.pipelines[consumer.pipeline].why or "all workers are taken"
        about = stored.version, stored.settings, why, own, spare.behind
        before, had = consumer.told
        if before == about and had.keys() == shares.keys() and (
                all(abs(had[w] - share) < MOVED for w, share in shares.items())):
            return
        sent = SENT
        if why:
            sent = self.tell(consumer.peer, "pending", why=why)
        if shares or had or not why:
            assigned = [{**where[w][1].process, "share": min(share, 1.0),
                         "behind": 0 if share else spare.behind} for w, share in shares.items()]
            sent = self.tell(consumer.peer, "workers", name=stored.name, version=stored.version,
                             settings=stored.settings, workers=assigned, how=how)
        if sent == SENT:
            if before is None or before[3] != own:
                consumer.steady_since = now
            consumer.told = about, shares
        elif sent == GONE:
            consumer.seen = min(consumer.seen, now - CONSUMER_SILENT_S + 2.0)

    def _charge(self, rows: dict[str, Any], now: float) -> None:
        """Charge pipelines for the workers that they have had since the last call."""
        took, self._charged = now - self._charged, now
        self.jobs.charge(took)
        for worker, by_consumer in self.assigned.shares.items():
            for consumer, share in by_consumer.items():
                known = self.consumers.get(consumer)
                if known and worker in rows and known.pipeline in self.pipelines:
                    self.pipelines[known.pipeline].charge(share, rows[worker].prices, took)

    # ---- what is kept and seen

    def keep(self, now: float) -> None:
        """Write what a restart should know; a full disk is reported, and tried again."""
        self._kept = now
        rates: dict[tuple[str, str], list[float]] = {}
        for agent in self.agents.values():
            for worker in agent.workers.values():
                for name, meter in worker.meters.items():
                    if meter.rate:
                        rates.setdefault((name, agent.device), []).append(meter.rate)
        self.given_rates.update({of: sum(all_) / len(all_) for of, all_ in rates.items()})
        self.store.remember(
            pipelines=[p.stored for p in self.pipelines.values() if p.stored.spent],
            agents=[(a.agent, a.name, a.host, a.device) for a in self.agents.values()],
            runs=self.versions.see((c.said["stream"] or c.consumer, c.taken // c.per_batch)
                                   for c in self.takers()),
            rates={of: self.given_rates[of] for of in rates}, shares=self.assigned.shares)
        self.versions.forget()
        for name in self._running() & self.pipelines.keys():
            mine = [c for c in self.takers() if c.pipeline == name]
            workers = {w for c in mine for w in self.assigned.of(c.consumer)}
            computed = sum(worker.meters[name].per_second(now) for a in self.agents.values()
                           for worker in a.workers.values() if name in worker.meters)
            self.history.setdefault(name, deque(maxlen=HISTORY)).append((
                time.time(), sum(c.meter.per_second(now) for c in mine), computed,
                max((c.meter.waiting(now) for c in mine), default=0.0), float(len(workers))))

    def look(self, now: float) -> None:
        if self.looking:
            self.snapshot = self.looking(self, now)


NO_TIME = SpareCapacity((), 0)
SHARE_OF_ALL = 0.01  # of a worker that all are asked, since pull is "all", beside their own


def _travelling(stored: Any) -> dict[str, Any]:
    return {"name": stored.name, "version": stored.version, "file": stored.file,
            "source": stored.source, "settings": stored.settings, "modules": stored.modules,
            "own_name": stored.own_name or None}
