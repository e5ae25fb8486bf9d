"""What a worker does with work: a pipeline's examples of some positions, written where they go.

In: a load message, a range of positions, the fields wanted. Out: rows of arrays, what failed, the
stream's length. Always holds: a row that was not computed is zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from spmd.feeding.host import steady_clock as time
from spmd.feeding.results.loading import TEXT
from spmd.feeding.results.memory_layout import dtype_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from spmd.data.pipelines import Pipeline

NAMED_S = 5e-3  # work that takes longer has the names of its examples in its heartbeat


@dataclass
class Computed:
    """Holds what was computed for a request. rows: fewer than asked where the stream ends. there:
    which of the rows asked for have an example. broken: what failed, as on the wire. end: the
    stream's length, once known. fatal: nothing behind the last of `broken` is there."""

    rows: int
    there: np.ndarray
    broken: list[dict[str, Any]]
    end: int | None
    fatal: bool


class Evaluator:
    """One version of a pipeline, loaded."""

    def __init__(self, pipeline: Pipeline, settings: dict[str, Any]) -> None:
        self.pipeline = pipeline
        read = {**pipeline.settings.as_json(), **settings}
        self.skips = read["on_error"] == "skip"
        self.timeout = read["timeout"]
        self.compress = read["compress"]
        self._may_end = pipeline.settings.epochs is not None and pipeline.length() is None
        self._mean_s = 0.0  # of an example; 0: none was computed yet
        self._fields: list[dict[str, Any]] = []  # of the last work, and their specs
        self._specs: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self._order: str | None = None

    def with_settings(self, settings: dict[str, Any]) -> Evaluator:
        """Return an evaluator of the same pipeline with other settings."""
        evaluator = Evaluator(self.pipeline, settings)
        evaluator._order = self._order
        return evaluator

    def order(self) -> str:
        """Return the digest of its stream's order on this machine; "" where its source has none."""
        if self._order is None:
            try:
                self._order = self.pipeline.order()
            except Exception:  # of a user's source: what is wrong is said at its examples
                self._order = ""
        return self._order

    def compute(self, work: Any, fields: list[dict[str, Any]], out: dict[str, np.ndarray],
                heartbeat: Any, rows_of: Callable[[np.ndarray], Any] | None = None) -> Computed:
        """Compute the examples of a request into the rows of `out`, as far as the stream goes.
        rows_of: as for Pipeline.compute."""
        first, count = work.first, work.count
        if fields != self._fields:
            self._fields = fields
            self._specs = {f["name"]: (tuple(f["shape"]), dtype_named(f["dtype"])) for f in fields}
        specs = self._specs
        watch, began = self._watch(first, count, heartbeat), time.monotonic()
        broken: list[dict[str, Any]] = []
        end = self.pipeline.total()
        fatal, there = False, np.zeros(count, np.bool_)
        ranges = _ranges(first, count, self._all_left_out(work), out) if (
            work.left_out) else [(first, first + count)]
        for begin, stop in ranges:
            part = out if stop - begin == count else {
                name: a[begin - first : stop - first] for name, a in out.items()}
            computed = self.pipeline.compute(begin, stop - begin, specs, part, watch,
                                             rows_of=rows_of,
                                             raises=False)
            there[begin - first : stop - first] = computed.there
            end = computed.total if end is None else end  # reading on may have come to it
            for failure in computed.failures:
                broken.append(_on_wire(failure))
                fatal = fatal or failure.fatal or not self.skips
            if fatal:
                break
        if end is None and self._may_end and work.through >= first + count and not fatal:
            ahead = self._watch(work.through, 1, heartbeat)  # the names of others are no help there
            end = self.pipeline.compute(work.through, 1, specs, watch=ahead, raises=False).total
        rows = count if end is None else max(0, min(count, end - first))
        if rows:
            mean = (time.monotonic() - began) / rows
            self._mean_s = 0.8 * self._mean_s + 0.2 * mean if self._mean_s else mean
        return Computed(rows, there, broken, end, fatal)

    def _all_left_out(self, work: Any) -> set[int]:
        """Return the positions to leave out, with those that would be computed in one call with
        them."""
        size = self.pipeline.size or 1
        return {position for p in work.left_out
                for position in range(p - p % size, p - p % size + size)}

    def _watch(self, first: int, count: int, heartbeat: Any) -> Callable[[int], None]:
        """Return what is called before each example, to say in the heartbeat which one it is: by
        its name where that takes no time beside it."""
        at_once = self.pipeline.size or 1
        if self._mean_s and self._mean_s * count < NAMED_S:
            return partial(heartbeat.begin_example, count=at_once)
        name = self.pipeline.namer(first, count)
        return lambda position: heartbeat.begin_example(position, name(position), at_once)


def _ranges(first: int, count: int, left_out: set[int],
            out: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """Return the ranges of positions to compute; rows that are left out are set to zeros."""
    ranges, begin = [], first
    for position in sorted({p for p in left_out if first <= p < first + count}):
        if begin < position:
            ranges.append((begin, position))
        for a in out.values():
            a[position - first] = np.zeros((), a.dtype)
        begin = position + 1
    if begin < first + count:
        ranges.append((begin, first + count))
    return ranges


def _on_wire(failure: Any) -> dict[str, Any]:
    return {"position": failure.position, "example": failure.example[:1000],
            "file": failure.file[:4000] or None, "line": failure.line or None,
            "text": failure.text[:TEXT]}
