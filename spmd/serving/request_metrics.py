"""Metrics of a server for Prometheus: requests, how long they and their calls take, the queue.

In: what has become of requests. Out: the text that Prometheus reads.
Always holds: labels are models that exist, and statuses.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence, Sized
from itertools import accumulate
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from spmd.serving.call_queue import CallQueue
from spmd.serving.joined_calls import CallPlace, Make, ModelCall, Outputs

BUCKETS = (.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60,
           math.inf)
ROWS = (*(1 << k for k in range(17)), math.inf)


class _Observed:
    """How many numbers lay at most at each bound, and the sum of all."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum, self.lock = bounds, [0] * len(bounds), 0.0, Lock()

    def add(self, number: float) -> None:
        """Count a number in its bucket and in the sum."""
        with self.lock:
            self.counts[bisect_left(self.bounds, number)] += 1
            self.sum += number


class _Histogram:
    """Histograms of numbers by model, in a tenth of the time that the library takes to count one.
    Register it as a collector."""

    def __init__(self, name: str, text: str, bounds: Sequence[float],
                 registry: CollectorRegistry) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._models: dict[str, _Observed] = {}
        registry.register(self)

    def of(self, model: str) -> _Observed:
        """Return the histogram of a model."""
        return self._models.setdefault(model, _Observed(self._bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Give the library what has been counted."""
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        for model, histogram in list(self._models.items()):
            with histogram.lock:
                counts, total = list(accumulate(histogram.counts)), histogram.sum
            family.add_metric([model], [(floatToGoString(bound), count) for bound, count
                                        in zip(histogram.bounds, counts)], total)
        yield family


class RequestMetrics:
    """Counters of one server."""

    def __init__(self, queue: CallQueue) -> None:
        self._registry = CollectorRegistry()
        self._timed: dict[str, tuple[Make, Make]] = {}
        self._known: dict[tuple[str, int], tuple[Counter, _Observed]] = {}
        self._requests = Counter("spmd_requests", "Requests for inference, by their status.",
                                 ("model", "status"), registry=self._registry)
        self._seconds = _Histogram("spmd_request_seconds", "From request to answer.", BUCKETS,
                                   self._registry)
        self._calls = _Histogram("spmd_call_seconds", "Calls of the image.", BUCKETS,
                                 self._registry)
        self._rows = _Histogram("spmd_call_rows", "Rows of a call: of all requests that are "
                                "joined.", ROWS, self._registry)
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
        metrics = self._known.get((model, status))
        if metrics is None:
            metrics = self._known[model, status] = (self._requests.labels(model, str(status)),
                                                    self._seconds.of(model))
        metrics[0].inc()
        metrics[1].add(seconds)

    def timed(self, model: str, call: ModelCall) -> ModelCall:
        """Have a call count how long it takes, and its rows; return it."""
        known = self._timed.get(model)
        if known is None or known[0] != call.make:
            known = self._timed[model] = call.make, self._timed_make(model, call.make)
        call.make = known[1]
        return call

    def _timed_make(self, model: str, make: Make) -> Make:
        seconds, row_counts = self._calls.of(model), self._rows.of(model)

        def timed(arguments: dict[str, Any], rows: int, place: CallPlace | None
                  ) -> tuple[str, Outputs]:
            began = time.perf_counter()
            try:
                return make(arguments, rows, place)
            finally:
                seconds.add(time.perf_counter() - began)
                if place is not None:
                    self._places.labels(place.name).inc()
                if rows:
                    row_counts.add(rows)

        return timed

    def text(self) -> tuple[bytes, str]:
        """Return all metrics, and the media type of their text."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
