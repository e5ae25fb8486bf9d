"""What is seen of a scheduler: one dict of pipelines, consumers, workers, and warnings.

In: a Scheduler. Out: plain values, for JSON, tables and the page; warnings that say what to do.
Always holds: looking changes nothing.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from spmd import __version__
from spmd.feeding.messages.wire import WHILE_LOADED, WHILE_READ
from spmd.feeding.scheduling.registry import (
    STARVED,
    KnownConsumer,
    KnownPipeline,
    names_of,
    preferred,
)
from spmd.feeding.scheduling.scheduler import Scheduler

SLOW_S = 10.0  # for which a worker may load a pipeline or read its source before it is told
RUNS = 16  # of a pipeline, the last ones
GREEDY = 8  # times the workers that it has: it could take anything
DISK = "make room on that disk: what is submitted until then is refused"


def overview(scheduler: Scheduler, now: float) -> dict[str, Any]:
    """Return everything that `feed status` shows, as it is now."""
    consumers = [_consumer(scheduler, taker, now) for taker in scheduler.takers()]
    workers = list(_workers(scheduler, now))
    free = {row.agent: row.free for row in scheduler.jobs.slots()}
    runs, here = scheduler.versions.by_pipeline(), _names(scheduler)
    pipelines = [
        {**_pipeline(scheduler, known, now, consumers, workers),
         "runs": [{"stream": r.stream, "run": r.run, "version": r.version, "batches": r.taken}
                  for r in runs.get(known.name, [])[-RUNS:]],
         "not_here": sorted(preferred(known.stored.settings) - here)}
        for known in scheduler.pipelines.values()]
    seen = {
        "scheduler": {
            "address": scheduler.address, "pid": os.getpid(), "since": scheduler.since,
            "uptime_s": round(time.time() - scheduler.since, 1), "version": __version__,
            "coming": now < scheduler.coming_until,  # restarted: not everybody is here again
            "state": scheduler.store.path, "trouble": scheduler.store.trouble,
            "counts": dict(scheduler.counts), "last_malformed": scheduler.last_malformed,
        },
        "pipelines": sorted(pipelines, key=lambda p: (-p["priority"], p["name"])),
        "consumers": sorted(consumers, key=lambda c: (c["pipeline"], c["run"], c["ranks"])),
        "workers": workers,
        "agents": [{"agent": a.agent, "host": a.name, "device": a.device,
                    "workers": len(a.workers), "free": a.free or "", "slots": a.slots,
                    "slots_free": free.get(a.agent, 0)}
                   for a in scheduler.agents.values()],
        "jobs": [scheduler.jobs.row(job) for job in scheduler.jobs.known.values()],
    }
    return {**seen, "warnings": warnings(seen)}


def _consumer(scheduler: Scheduler, consumer: KnownConsumer, now: float) -> dict[str, Any]:
    assignment = scheduler.assigned
    needs = assignment.needs.get(consumer.consumer)
    starved = consumer.meter.waiting(now)
    taken, spare = consumer.meter.per_second(now), assignment.spare.get(consumer.consumer)
    if not assignment.of(consumer.consumer) and consumer.queued < consumer.per_batch and not (
            spare and taken):
        starved = 1.0  # it waits for a batch that nobody makes: such a wait is counted at its end
    return {
        "consumer": consumer.consumer, "run": consumer.said["run"], "pipeline": consumer.pipeline,
        "version": consumer.version,
        "feed": consumer.said["feed"], "ranks": consumer.ranks(),
        "host": _host(scheduler, consumer.said["host"]),
        "device": consumer.said["device"], "rows": consumer.said["rows"],
        "batches": consumer.taken // consumer.per_batch,
        "rate": _round(consumer.could), "taken_per_s": _round(taken),
        "starved": round(starved, 4), "queued": consumer.queued // consumer.per_batch,
        "needs": None if needs is None else round(needs, 2),
        "workers": {w: round(s, 3) for w, s in assignment.of(consumer.consumer).items()},
        "spare": list(spare.workers) if spare else [],  # of these what others leave
        "lacks": assignment.lacks.get(consumer.consumer, 0),
        "no_line": {w: no.why for w, no in consumer.avoided.items() if now < no.until},
    }


def _host(scheduler: Scheduler, host: str) -> str:
    """Return a machine's name as its agents say it: consumers say its host_name()."""
    return scheduler.names.get(host) or host[:8]


def _workers(scheduler: Scheduler, now: float) -> Any:
    for agent in scheduler.agents.values():
        for worker, known in agent.workers.items():
            yield {
                "worker": worker, "agent": agent.agent, "host": agent.name, "device": agent.device,
                "rates": {name: _round(meter.rate) for name, meter in known.meters.items()},
                "busy": round(min(1.0, sum(m.busy(now) for m in known.meters.values())), 3),
                "made_per_s": _round(sum(m.per_second(now) for m in known.meters.values())),
                "queue": sum(counts.get("queue") or 0 for counts in known.counts.values()),
                "at": next((counts["at"] for counts in known.counts.values() if counts.get("at")),
                           None),
                "shares": {c: round(s, 3)
                           for c, s in scheduler.assigned.shares.get(worker, {}).items()},
            }


def _pipeline(
    scheduler: Scheduler, pipeline: KnownPipeline, now: float, consumers: list[dict[str, Any]],
    workers: list[dict[str, Any]],
) -> dict[str, Any]:
    mine = [c for c in consumers if c["pipeline"] == pipeline.name]
    used = {w for c in mine for w in c["workers"]}
    spare = {w for c in mine for w in c["spare"]} - used
    needs = [c["needs"] for c in mine]
    settings = pipeline.stored.settings
    return {
        "name": pipeline.name, "version": pipeline.stored.version, "file": pipeline.stored.file,
        "own_name": pipeline.stored.own_name or pipeline.name,
        "user": settings.get("user", ""), "priority": settings.get("priority", 0),
        "state": "running" if used else "pending" if mine else "idle",
        "why": pipeline.why if mine and not used else "",
        "versions": _versions(scheduler, pipeline),
        "ran": pipeline.running_since is not None, "consumers": len(mine),
        "workers": len(used), "spare": len(spare),  # of these more it has what others leave
        "needs": None if None in needs or not needs else round(sum(needs), 2),
        "lacks": sum(c["lacks"] for c in mine),
        "limited": scheduler.assigned.limited.get(pipeline.name, ""),
        "taken_per_s": _round(sum(c["taken_per_s"] or 0 for c in mine)),
        "made_per_s": _round(sum(
            known.meters[pipeline.name].per_second(now) for a in scheduler.agents.values()
            for known in a.workers.values() if pipeline.name in known.meters)),
        "starved": max((c["starved"] for c in mine), default=0.0),
        "queued": sum(c["queued"] for c in mine),
        "spent": {resource: round(value, 6) for resource, value in pipeline.stored.spent.items()},
        "settings": settings,
    }


def _names(scheduler: Scheduler) -> set[str]:
    """Return the names by which workers may be preferred, if a pipeline prefers any."""
    if not any(preferred(pipeline.stored.settings) for pipeline in scheduler.pipelines.values()):
        return set()
    return names_of(scheduler.agents.values())


def _versions(scheduler: Scheduler, pipeline: KnownPipeline) -> dict[str, int]:
    """Return by version how many runs take it."""
    runs = {(c.said["stream"] or c.consumer, c.version) for c in scheduler.consumers.values()
            if c.pipeline == pipeline.name}
    return {str(v): n for v, n in sorted(Counter(version for _, version in runs).items())}


def _round(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


# ---- what to do


def _lines(seen: dict[str, Any]) -> Iterator[str]:
    """Yield warnings about consumers that have no connection to some workers."""
    hosts = {w["worker"]: w["host"] for w in seen["workers"]}
    for c in seen["consumers"]:
        for why in sorted(set(c["no_line"].values())):
            mine = [w for w, reason in c["no_line"].items() if reason == why]
            where = ", ".join(sorted({hosts.get(w, "a machine that left") for w in mine}))
            yield (f"{_who(c, 'has', 'have')} no line to {len(mine)} "
                   f"worker{'s' * (len(mine) > 1)} of {where}: {why}; ranks must reach the ports "
                   "that workers listen at: is there a firewall?")


def _where(activity: dict[str, Any]) -> str:
    """Return the file and line at which a worker is; the line is unknown while a file is loaded."""
    return f"{activity['file']}:{activity['line']}" if activity["line"] else f"{activity['file']}"


def _raised(limit: str, pipeline: str, address: str) -> str:
    more = "none" if limit == "workers" else "MORE"
    return (f"python -m spmd feed update {pipeline} --{limit.replace('_', '-')} {more} "
            f"--connect {address}")


def _who(consumer: dict[str, Any], singular: str, plural: str) -> str:
    ranks = consumer["ranks"]
    return f"{ranks} of {consumer['pipeline']} {plural if ranks.startswith('ranks') else singular}"


def warnings(seen: dict[str, Any]) -> list[str]:
    """Return warnings, each with what to do."""
    texts = []
    address = seen["scheduler"]["address"]
    kinds = {w["worker"]: w["device"] for w in seen["workers"]}
    limits = {p["name"]: p["limited"] for p in seen["pipelines"]}
    for c in seen["consumers"]:
        if c["starved"] <= STARVED or not c["workers"]:
            continue  # without any, it is pending, which is told below
        text = f"{_who(c, 'starves', 'starve')} {c['starved']:.0%} of the time: "
        limit = limits[c["pipeline"]]
        measured = c["rate"] is not None
        if limit and (c["lacks"] or not measured or limit == "workers"):
            text += f"its setting {limit} allows no more; {_raised(limit, c['pipeline'], address)}"
        elif c["lacks"] > GREEDY * len(c["workers"]):
            text += ("it computes next to nothing between two batches, so that each worker more "
                     f"makes it faster: python -m spmd feed worker --connect {address}")
        elif c["lacks"]:
            mine = sorted({kinds[w] for w in c["workers"] if w in kinds}) or ["cpu"]
            more = f"{c['lacks']} more worker{'s' * (c['lacks'] > 1)}"
            text += (f"{more} of this kind ({', '.join(mine)}) would do: python -m spmd feed "
                     f"worker --connect {address} --processes {c['lacks']}")
        else:
            count, free = len(c["workers"]), any(not w["shares"] for w in seen["workers"])
            text += (f"its {count} workers make enough, so they or the way to them are slower than "
                     "they measure: " if measured else
                     "it always waits, so what it needs cannot be measured; try more workers: ")
            more = f"update {c['pipeline']} --workers {count + 1}" if free else "worker"
            text += _raised(limit, c["pipeline"], address) if limit else (
                f"python -m spmd feed {more} --connect {address}")
        texts.append(text)
    texts += _lines(seen)
    texts += [f"a worker of {w['host']} is at {w['at']['example']} ({_where(w['at'])}), for "
              f"{w['at']['seconds']:.0f} s now"
              for w in seen["workers"] if w["at"] and w["at"]["seconds"] > SLOW_S
              and w["at"]["example"] in (WHILE_LOADED, WHILE_READ)]
    texts += [f"{p['name']} waits: {p['why']}" for p in seen["pipelines"] if p["why"]]
    texts += [f"{j['name']} waits: {j['why']}" for j in seen["jobs"]
              if j["state"] == "pending" and j["why"]]
    texts += [f"{p['name']} prefers workers that are not here: {', '.join(p['not_here'])}; "
              f"python -m spmd feed update {p['name']} --workers none --connect {address} takes any"
              for p in seen["pipelines"] if p["not_here"]]
    if seen["scheduler"]["trouble"]:
        texts.append(f"the state is not written ({seen['scheduler']['trouble']}): {DISK}")
    counts = seen["scheduler"]["counts"]
    if counts.get("strangers"):
        texts.append(f"{counts['strangers']} connections with a key that is not allowed were "
                     "refused: copy server.key, client.key and client.secret to whoever may")
    if counts.get("malformed"):
        texts.append(f"{counts['malformed']} malformed messages were dropped, the last one: "
                     f"{seen['scheduler']['last_malformed']}")
    return texts
