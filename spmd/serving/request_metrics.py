"""Metrics of a server for Prometheus: requests, how long they and their calls take, the queue.

In: what has become of requests. Out: the text that Prometheus reads. This is the only file that
imports prometheus_client. Always holds: labels are models that exist, and statuses.
"""

from __future__ import annotations

import time
from collections.abc import Sized
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from spmd.serving.call_queue import CallQueue
from spmd.serving.joined_calls import CallPlace, Make, ModelCall, Outputs

BUCKETS = (.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60)
ROWS = tuple(1 << k for k in range(17))


class RequestMetrics:
    """Counters of one server."""

    def __init__(self, queue: CallQueue) -> None:
        self._registry = CollectorRegistry()
        self._timed: dict[str, tuple[Make, Make]] = {}
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter("spmd_requests", "Requests for inference, by their status.",
                                 ("model", "status"), registry=self._registry)
        self._seconds = Histogram("spmd_request_seconds", "From request to answer.", ("model",),
                                  buckets=BUCKETS, registry=self._registry)
        self._calls = Histogram("spmd_call_seconds", "Calls of the image.", ("model",),
                                buckets=BUCKETS, registry=self._registry)
        self._rows = Histogram("spmd_call_rows", "Rows of a call: of all requests that are joined.",
                               ("model",), buckets=ROWS, registry=self._registry)
        self._places = Counter("spmd_replica_calls", "Calls that a replica was given.",
                               ("replica",), registry=self._registry)
        waiting = Gauge("spmd_requests_waiting", "Requests that wait for their call.",
                        registry=self._registry)
        waiting.set_function(lambda: len(queue))
        running = Gauge("spmd_calls_running", "Calls that run.", registry=self._registry)
        running.set_function(lambda: queue.running)

    def count_replicas(self, replicas: Sized) -> None:
        """Say how many replicas there are."""
        gauge = Gauge("spmd_replicas", "Replicas that make calls.", registry=self._registry)
        gauge.set_function(lambda: len(replicas))

    def count(self, model: str, status: int, seconds: float) -> None:
        """Count a request that has been answered. model: "" where there is no such model."""
        found = self._known.get((model, status))
        if found is None:
            found = self._known[model, status] = (self._requests.labels(model, str(status)),
                                                  self._seconds.labels(model))
        found[0].inc()
        found[1].observe(seconds)

    def timed(self, model: str, call: ModelCall) -> ModelCall:
        """Have a call count how long it takes, and its rows; return it."""
        known = self._timed.get(model)
        if known is None or known[0] != call.make:
            known = self._timed[model] = call.make, self._timed_make(model, call.make)
        call.make = known[1]
        return call

    def _timed_make(self, model: str, make: Make) -> Make:
        seconds, row_counts = self._calls.labels(model), self._rows.labels(model)

        def timed(arguments: dict[str, Any], rows: int, place: CallPlace | None
                  ) -> tuple[str, Outputs]:
            began = time.perf_counter()
            try:
                return make(arguments, rows, place)
            finally:
                seconds.observe(time.perf_counter() - began)
                if place is not None:
                    self._places.labels(place.name).inc()
                if rows:
                    row_counts.observe(rows)

        return timed

    def text(self) -> tuple[bytes, str]:
        """Return all metrics, and the media type of their text."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
