"""What Prometheus reads: the numbers of an overview in its text format, version 0.0.4.

In: what overview() gives. Out: text. Always holds: labels are escaped, names are constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    "spmd_feed_pipeline_spent": ("counter", "Cost, and energy in joules, up to now"),
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


def prometheus(seen: dict[str, Any]) -> str:
    """All metrics, each with its samples."""
    samples: dict[str, list[str]] = {}
    for name, labels, value in _samples(seen):
        text = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        samples.setdefault(name, []).append(f"{name}{f'{{{text}}}' if text else ''} {value:g}")
    lines = []
    for name, (kind, text) in METRICS.items():
        if name in samples:
            lines += [f"# HELP {name} {text}.", f"# TYPE {name} {kind}", *samples[name]]
    return "\n".join(lines) + "\n"


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
        for what, value in p["spent"].items():
            yield "spmd_feed_pipeline_spent", {**of, "of": what}, value
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


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
