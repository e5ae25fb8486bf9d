"""Who is there: agents with their workers, consumers, pipelines, as the scheduler knows them now.

In: messages. Out: the rows from which assignment.py computes. Nothing here sends anything.
Always holds: a worker belongs to one agent that is alive; whoever is silent is not listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from spmd.data.settings import ranks_in
from spmd.feeding.scheduling.assignment import ConsumerRow, PipelineRow, WorkerRow
from spmd.feeding.scheduling.rate_meter import RateMeter
from spmd.feeding.scheduling.scheduler_state import StoredPipeline

AVOID_S, MOST_AVOID_S = 5.0, 60.0  # a worker that a consumer has no line to; longer each time
CONSUMER_WINDOW_S = 10.0
STARVED = 0.02  # of the time: more is told, and helped against
STEP, MOST_EXTRA = 0.05, 0.5
SETTLES_S, STEADY_S = 2.0, 3.0  # after another assignment: what is lost then says nothing of it
STEPS_APART, APART_S = 2.0, 1.0  # batches, and seconds of them, within which ranks are together
NEARLY_ALWAYS = 0.9  # of the time
JOULES = 3600.0  # of a watt in an hour


class KnownWorker:
    """A process that computes. process: how it is reached, as its agent says."""

    def __init__(self, process: dict[str, Any]) -> None:
        self.process = process
        self.meters: dict[str, RateMeter] = {}
        self.counts: dict[str, dict[str, Any]] = {}  # pipeline -> the last beat

    def beat(self, now: float, by_pipeline: dict[str, dict[str, Any]]) -> None:
        for name, counts in by_pipeline.items():
            meter = self.meters.setdefault(name, RateMeter())
            meter.see(now, counts["examples"], counts["busy_s"])
        self.counts = by_pipeline


class Avoided(NamedTuple):
    """Until when a consumer is not sent to a worker, for how long in all, and why."""

    until: float
    seconds: float
    why: str


class KnownAgent:
    """Holds what is known of an agent, which supervises the workers of a machine. loaded:
    (pipeline, version) -> settings as told. allowed: keys that its workers let in, as told.

    cost: of one of its workers in an hour; watts: that such a worker takes.
    """

    def __init__(self, peer: bytes, said: dict[str, Any], now: float) -> None:
        self.peer, self.seen = peer, now
        self.loaded: dict[tuple[str, int], dict[str, Any]] = {}
        self.allowed: list[str] | None = None
        self.workers: dict[str, KnownWorker] = {}
        self.hear(said)

    def hear(self, said: dict[str, Any]) -> None:
        """Take over the fields of a join message: which processes the agent has now."""
        self.agent, self.name, self.host = said["agent"], said["name"], said["host"]
        self.device, self.free = said["device"], said["free"]
        self.cost, self.watts = said["cost"] or 0.0, said["energy"] or 0.0
        self.slots = said["slots"] or 0  # for ranks of jobs
        known = self.workers
        self.workers = {p["worker"]: known.get(p["worker"]) or KnownWorker(p)
                        for p in said["processes"]}
        for process in said["processes"]:
            self.workers[process["worker"]].process = process

    def rows(self) -> list[WorkerRow]:
        return [WorkerRow(
            worker, self.host, self.device,
            {name: meter.rate for name, meter in known.meters.items() if meter.rate},
            frozenset({self.name, self.agent, self.host, known.process["address"]}),
            {"cost": self.cost, "energy": self.watts * JOULES})
            for worker, known in self.workers.items()]


def names_of(agents: Collection[KnownAgent]) -> set[str]:
    """Return the names by which agents' workers may be preferred, also workers that are still
    starting."""
    names = {name for agent in agents for name in (agent.name, agent.agent, agent.host)}
    return names.union(*(row.names | {row.worker} for agent in agents for row in agent.rows()))


def preferred(settings: Mapping[str, Any]) -> set[str]:
    """Return the names of workers that a pipeline prefers."""
    workers = settings.get("workers")
    return set(workers) if isinstance(workers, list) else set()


class KnownConsumer:
    """A process of ranks that takes a feed. told: what it was sent, and the workers with shares.

    version: of its pipeline, as long as it lives. taken, queued: examples that its ranks took, and
    that lie ready for them. idle: it needs no workers. held: so many batches it has given, and
    gives no more of itself; None: it gives on.
    """

    def __init__(self, peer: bytes, said: dict[str, Any], version: int, now: float) -> None:
        self.peer, self.seen, self.said, self.version = peer, now, said, version
        self.consumer, self.pipeline = said["consumer"], said["pipeline"]
        first, last = said["rows"]
        self.per_batch = max(1, last - first)
        self.idle = bool(said.get("idle"))
        self.held: int | None = None
        self.meter = RateMeter(CONSUMER_WINDOW_S)
        self.taken = self.queued = 0
        self.before_first: int | None = None  # what it had taken, until it takes its first batch
        self.told: tuple[Any, dict[str, float]] = None, {}
        self.steady_since = now
        self.avoided: dict[str, Avoided] = {}  # by worker
        self.extra = 0.0  # more than measured, where it starves though that should be enough
        self.could: float | None = None  # examples/s, if it never waited: as find_rates() found it

    def rate(self, now: float, said: dict[str, Any]) -> None:
        self.seen, self.taken, self.queued = now, said["taken"], said["queued"]
        if self.before_first not in (None, self.taken):
            # A batch counts as taken when its time begins: from none on, one too many would count.
            self.meter = RateMeter(CONSUMER_WINDOW_S)
        self.before_first = None if said["busy_s"] else self.taken
        self.meter.see(now, said["taken"], said["busy_s"], said["waited_s"])

    def adapt(self, now: float, enough: bool) -> None:
        """Raise what the consumer needs where it starves with workers that should be enough; lower
        it later."""
        if now - self.steady_since < SETTLES_S + STEADY_S or not self.meter.rate:
            return
        starved = self.meter.waiting(now, STEADY_S)
        if starved > STARVED and enough:
            self.extra = min(MOST_EXTRA, self.extra + STEP)
            self.steady_since = now
        elif starved < STARVED / 4 and self.extra and now - self.steady_since > 10 * STEADY_S:
            self.extra = max(0.0, self.extra - STEP / 5)
            self.steady_since = now

    def avoid(self, worker: str, now: float, why: str) -> None:
        """It has no line to this worker; others may have."""
        before = self.avoided.get(worker)
        seconds = min(2 * before.seconds, MOST_AVOID_S) if before else AVOID_S
        self.avoided[worker] = Avoided(now + seconds, seconds, why)

    def avoids(self, now: float, workers: Collection[str]) -> frozenset[str]:
        """Return the workers that the consumer cannot reach now; none where these would be all, so
        that it goes on trying."""
        for worker in [w for w, outage in self.avoided.items()
                       if w not in workers or now > outage.until + 2 * outage.seconds]:
            del self.avoided[worker]
        unreachable = frozenset(w for w, outage in self.avoided.items() if now < outage.until)
        return frozenset() if len(unreachable) == len(workers) else unreachable

    def row(self, now: float, workers: Collection[str],
            settings: Mapping[str, Any]) -> ConsumerRow:
        """Return the row that assign() takes for it. settings: of its pipeline, as they are now."""
        rate, ranks = self.could, self.said["ranks"]
        serves, first = settings.get("serves") or {}, settings.get("first") or ""
        mine = frozenset(name for name, text in serves.items() if any(map(ranks_in(text), ranks)))
        if not rate and (takes := settings.get("takes")):
            rate = takes.get(self.said["device"], 0.0) * (self.said.get("blocks") or 1)
        return ConsumerRow(self.consumer, self.pipeline, rate * (1 + self.extra) if rate else None,
                           self.said["host"], self.avoids(now, workers), mine,
                           bool(first) and any(map(ranks_in(first), ranks)))

    def ranks(self) -> str:
        """Return its ranks as text: rank 3; ranks 0-3; ranks 1, 5."""
        ranks = sorted(self.said["ranks"])
        if len(ranks) == 1:
            return f"rank {ranks[0]}"
        if ranks and ranks == list(range(ranks[0], ranks[-1] + 1)):
            return f"ranks {ranks[0]}-{ranks[-1]}"
        return "ranks " + ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")


def find_rates(consumers: Collection[KnownConsumer], now: float) -> None:
    """Set the rate at which each consumer could take examples. Ranks that exchange wait for the one
    that starves, and what they measure has its wait in it: where ranks of a run are at the same
    batch, and one of them starves, the fastest of them tells for all. It does so for those that
    wait nearly always, too: what these could take is not known, and each rank takes all batches in
    the end."""
    runs: dict[tuple[str, str], list[KnownConsumer]] = {}
    for consumer in consumers:
        consumer.could = consumer.meter.rate
        of = consumer.said["stream"] or consumer.consumer, consumer.said["feed"]
        runs.setdefault(of, []).append(consumer)
    for mine in runs.values():
        if len(mine) < 2 or all(consumer.meter.waiting(now) <= STARVED for consumer in mine):
            continue
        front = max(consumer.taken / consumer.per_batch for consumer in mine)
        behind = STEPS_APART + APART_S * max(
            consumer.meter.per_second(now) / consumer.per_batch for consumer in mine)
        together = [consumer for consumer in mine
                    if consumer.taken / consumer.per_batch >= front - behind
                    or consumer.meter.waiting(now) > NEARLY_ALWAYS]
        most = max((consumer.meter.rate or 0.0) / consumer.per_batch for consumer in together)
        for consumer in together if most else ():
            consumer.could = most * consumer.per_batch


class KnownPipeline:
    """A pipeline that was submitted. why: for what it waits, "" when it has workers."""

    def __init__(self, stored: StoredPipeline) -> None:
        self.stored, self.name = stored, stored.name
        self.why = ""
        self.running_since: float | None = None
        self.ended: str = ""  # why it cannot go on, as workers said

    def row(self, now: float, rates: dict[str, float]) -> PipelineRow:
        """Return the row that assign() takes for it. rates: measured in earlier runs, by kind of
        device; those of its settings come first."""
        settings, spent = self.stored.settings, self.stored.spent
        workers = settings.get("workers")
        estimated = settings.get("estimated_seconds")
        if estimated is not None and self.running_since is not None:
            estimated = max(0.0, estimated - (now - self.running_since))
        return PipelineRow(
            self.name, settings.get("priority") or 0,
            workers if isinstance(workers, int) else None,
            settings.get("max_workers"), estimated, {**rates, **(settings.get("rates") or {})},
            {resource: settings[key] for resource, key in (("cost", "cost_per_hour"),
                                                           ("energy", "energy_per_hour"))
             if settings.get(key) is not None},
            {resource: settings[resource] - spent.get(resource, 0.0)
             for resource in ("cost", "energy") if settings.get(resource) is not None},
            frozenset(workers if isinstance(workers, list) else ()),
            self.stored.facts.get("environments") is not None,
        )

    def charge(self, shares: float, prices: dict[str, float], seconds: float) -> None:
        """Charge the pipeline for a share of workers' time. prices: of an hour."""
        for resource, price in prices.items():
            if price:
                spent = self.stored.spent
                spent[resource] = spent.get(resource, 0.0) + shares * price * seconds / 3600

