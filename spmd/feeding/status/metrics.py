"""Metrics of a scheduler for Prometheus, as samples of what overview() has gathered.

In: what overview() gives, or nothing yet. Out: the text that Prometheus reads.
Always holds: names are constant; a metric without samples is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric

# Metric: its kind, what it says.
METRICS = {
    "spmd_feed_uptime_seconds": ("gauge", "Seconds since the scheduler started"),
    "spmd_feed_workers": ("gauge", "Workers that have joined"),
    "spmd_feed_events_total": ("counter", "Agents lost, malformed messages and the like"),
    "spmd_feed_state_trouble": ("gauge", "1 while the state cannot be written"),
    "spmd_feed_pipeline_workers": ("gauge", "Workers that a pipeline has"),
    "spmd_feed_pipeline_needs": ("gauge", "Workers that it needs by the rate equation"),
    "spmd_feed_pipeline_pending": ("gauge", "1 while it waits for workers"),
    "spmd_feed_pipeline_taken_per_second": ("gauge", "Examples that its ranks take"),
    "spmd_feed_pipeline_made_per_second": ("gauge", "Examples that its workers make"),
    "spmd_feed_pipeline_spent": ("gauge", "Cost, and energy in joules, up to now"),
    "spmd_feed_consumer_starved_ratio": ("gauge", "Part of the time that ranks wait"),
    "spmd_feed_consumer_queued_batches": ("gauge", "Batches that lie ready"),
    "spmd_feed_consumer_batches_total": ("counter", "Batches that were taken"),
    "spmd_feed_worker_busy_ratio": ("gauge", "Part of the time that a worker computes"),
    "spmd_feed_worker_queue": ("gauge", "Work that waits at a worker"),
    "spmd_feed_agent_slots": ("gauge", "Ranks of jobs for which an agent has room"),
    "spmd_feed_agent_slots_free": ("gauge", "Those that no job has"),
    "spmd_feed_jobs": ("gauge", "Jobs that wait, that run, that ended well, and not"),
    "spmd_feed_job_pending": ("gauge", "1 while a job waits, 0 while it runs"),
    "spmd_feed_job_ranks": ("gauge", "Ranks that a job has, or at least needs"),
    "spmd_feed_job_seconds": ("gauge", "Seconds since a job was submitted, or started"),
    "spmd_feed_job_starts_total": ("counter", "How often a job was started"),
}


class _Collector:
    """Gives the Prometheus library the metrics of one overview."""

    def __init__(self, seen: dict[str, Any]) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        """Yield each metric that has samples, in the order of METRICS."""
        # The library puts _total behind the name of a counter in its comments, not in its samples.
        metrics = {name: Metric(name.removesuffix("_total"), f"{text}.", kind)
                   for name, (kind, text) in METRICS.items()}
        for name, labels, value in _samples(self._seen) if self._seen else ():
            metrics[name].add_sample(name, labels, value)
        yield from (metric for metric in metrics.values() if metric.samples)


def prometheus(seen: dict[str, Any]) -> tuple[bytes, str]:
    """Return all metrics as text, and its media type."""
    registry = CollectorRegistry()
    registry.register(_Collector(seen))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _samples(seen: dict[str, Any]) -> Iterator[tuple[str, dict[str, str], float]]:
    head = seen["scheduler"]
    yield "spmd_feed_uptime_seconds", {}, head["uptime_s"]
    yield "spmd_feed_workers", {}, len(seen["workers"])
    yield "spmd_feed_state_trouble", {}, bool(head["trouble"])
    for event, count in head["counts"].items():
        yield "spmd_feed_events_total", {"event": event}, count
    for p in seen["pipelines"]:
        of = {"pipeline": p["name"], "user": p["user"]}
        yield "spmd_feed_pipeline_workers", of, p["workers"]
        if p["needs"] is not None:
            yield "spmd_feed_pipeline_needs", of, p["needs"]
        yield "spmd_feed_pipeline_pending", of, p["state"] == "pending"
        yield "spmd_feed_pipeline_taken_per_second", of, p["taken_per_s"]
        yield "spmd_feed_pipeline_made_per_second", of, p["made_per_s"]
        for resource, value in p["spent"].items():
            yield "spmd_feed_pipeline_spent", {**of, "of": resource}, value
    for c in seen["consumers"]:
        of = {"pipeline": c["pipeline"], "ranks": c["ranks"], "run": c["run"], "feed": c["feed"]}
        yield "spmd_feed_consumer_starved_ratio", of, c["starved"]
        yield "spmd_feed_consumer_queued_batches", of, c["queued"]
        yield "spmd_feed_consumer_batches_total", of, c["batches"]
    for w in seen["workers"]:
        of = {"worker": w["worker"], "host": w["host"], "device": w["device"]}
        yield "spmd_feed_worker_busy_ratio", of, w["busy"]
        yield "spmd_feed_worker_queue", of, w["queue"]
    for a in seen["agents"]:
        if a["slots"]:
            of = {"agent": a["agent"], "host": a["host"], "device": a["device"]}
            yield "spmd_feed_agent_slots", of, a["slots"]
            yield "spmd_feed_agent_slots_free", of, a["slots_free"]
    yield from _of_jobs(seen["jobs"])


def _of_jobs(jobs: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the metrics of jobs. Ended ones are only counted: there are ever more of them."""
    counts = dict.fromkeys(("pending", "running", "ended", "failed"), 0)
    for j in jobs:
        counts["failed" if j["status"] else j["state"]] += 1
        if j["state"] == "ended":
            continue
        of = {"job": j["name"], "pipeline": j["pipeline"], "host": j["host"]}
        yield "spmd_feed_job_pending", of, j["state"] == "pending"
        yield "spmd_feed_job_ranks", of, j["ranks"]
        yield "spmd_feed_job_seconds", of, j["seconds"]
        yield "spmd_feed_job_starts_total", {"job": j["name"], "pipeline": j["pipeline"]}, (
            j["attempt"])
    for state, count in counts.items():
        yield "spmd_feed_jobs", {"state": state}, count
