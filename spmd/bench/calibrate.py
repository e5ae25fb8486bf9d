"""`doctor --calibrate`: which limits of the engine (csrc/engine.h, spmd_limits) this machine wants.

In: nothing. Out: the limits, and a line of text for every comparison that was made.
Always holds: both ways of an exchange run in turn, in real images that check every result; a
default stays unless the other way is better by more than the noise, twice.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from codegen.errors import InternalError
from spmd.bench.collectives import ELEMENT, Bench, turns_of
from spmd.bench.programs import built
from spmd.launch import limits
from spmd.launch.job import Job
from spmd.launch.options import Options
from spmd.launch.processes import Processes

LIMIT_S = 15.0  # no comparison begins later
ROUNDS, LEAST_ROUNDS = 31, 5
COMPARE_S = 1.0  # on a busy machine fewer rounds, to come to all comparisons
TURNS = 30  # of a batch, at most
MARGIN = 0.05  # what a way must be better by, however little noise there is
MOST_RANKS = 32  # up to here the engine asks for `fold`
CROWD = 4  # threads for every core; and ranks for every thread
CROWDED_CORES = MOST_RANKS // CROWD


@dataclass(frozen=True)
class Limit:
    """A size of spmd_limits. Sizes below it go the first way, sizes above it the second: `ways`,
    each with the value that forces it. sizes: bytes, where the ways are compared; `default` of
    them lie below the engine's own limit. upto: it is the last size of the first way, else the
    first of the second."""

    name: str
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    default: int
    ways: tuple[tuple[str, int], tuple[str, int]]
    upto: bool
    classes: tuple[str, ...] = limits.CLASSES

    def value(self, below: int) -> int:
        """Return the limit where so many sizes go the first way. Never far beyond what was
        measured."""
        if below == self.default:
            return 0
        if self.upto:
            return self.sizes[below - 1] if below else self.sizes[0] // 2
        return self.sizes[below] if below < len(self.sizes) else 2 * self.sizes[-1]


LIMITS = (
    Limit("slot", ("permute", "all-gather"), (512, 1024, 2048, 4096), 4,
          (("slots", 0), ("in place", 1)), upto=True),
    Limit("fold", ("all-reduce",), (512, 1024, 2048, 4096, 8192, 16384, 32768), 4,
          (("everybody folds all", limits.MOST), ("blocks", 1)), upto=True),
    Limit("share", ("broadcast",), (8192, 16384, 32768, 65536, 131072, 262144), 3,
          (("by each", limits.MOST), ("shared", 1)), upto=False, classes=("spacious",)),
    Limit("ring", ("all-reduce",), (1 << 16, 1 << 18, 1 << 20, 1 << 22), 4,
          (("blocks", 0), ("ring", 1)), upto=False),
)


@dataclass(frozen=True)
class Hosting:
    """Ranks of this process, on so many threads, on so many cores."""

    ranks: int
    threads: int
    cores: int


class Calibration:
    """A measurement of limits. limits: found so far; what was not measured stays as it was kept
    before. missed: comparisons that there was no time, or no memory, for."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.end = time.monotonic() + limit_s
        self.missed = 0
        nothing = {kind: dict.fromkeys(limits.NAMES, 0) for kind in limits.CLASSES}
        self.limits = limits.find().limits or nothing
        self.images: dict[tuple[str, int], bytes] = {}

    def measure(self) -> Iterator[str]:
        """Yield a line for every comparison, as it is made."""
        for limit in LIMITS:
            for kind in limit.classes:
                missed = self.missed
                below = yield from self._walk(limit, kind)
                if self.missed == missed:
                    self.limits[kind][limit.name] = limit.value(below)

    def _walk(self, limit: Limit, kind: str) -> Generator[str, None, int]:
        """Find how many sizes go the first way: from the default on, as long as that is better."""
        below = limit.default
        while below > 0 and (yield from self._better(limit, kind, limit.sizes[below - 1], 1)):
            below -= 1
        if below < limit.default:
            return below
        while below < len(limit.sizes) and (
            yield from self._better(limit, kind, limit.sizes[below], 0)
        ):
            below += 1
        return below

    def _better(self, limit: Limit, kind: str, size: int, other: int) -> Generator[str, None, bool]:
        """Return whether the other way than the default's is better at this size: for every
        collective, when measured again, and not worse with more ranks than threads."""
        first, more = crews(kind)
        for again, crew in enumerate((first, first, *more)):
            for name in limit.collectives:
                measured = bench_of(crew)
                fits = measured.fits(name, size // ELEMENT, 2)
                if not fits or time.monotonic() > self.end:
                    self.missed += 1
                    yield (f"{name}, {size} bytes, {crew.ranks} ranks: not measured, "
                           f"{'time is over' if fits else 'not enough memory'}")
                    return False
                gain, noise, text = self._compare(measured, limit, name, size, other, crew)
                if gain <= (noise if again < 2 else -noise):
                    yield f"{text}: no change"
                    return False
                yield f"{text}: {('better', 'better again', 'not worse')[again]}"
        return True

    def _compare(
        self, measured: Bench, limit: Limit, name: str, size: int, other: int, crew: Hosting
    ) -> tuple[float, float, str]:
        """Return by how much the other way is faster than the default's, as a share, and the
        noise."""
        count = size // ELEMENT
        turns = min(TURNS, turns_of(name, count, crew.ranks))
        if (name, count) not in self.images:
            self.images[name, count] = built(name, count)
        data = self.images[name, count]
        times: list[list[float]] = [[], []]
        with (
            _on_cores(crew.cores),
            _job(measured, data, turns, limit, 1 - other) as stays,
            _job(measured, data, turns, limit, other) as tried,
        ):
            end = time.monotonic() + COMPARE_S
            for turn in range(ROUNDS + 1):  # the first one warms up
                if turn > LEAST_ROUNDS and time.monotonic() > end:
                    break
                for way in (0, 1) if turn % 2 else (1, 0):
                    batch, wrong = measured.ours((stays, tried)[way])
                    if wrong:
                        raise InternalError(f"{name} of {size} bytes: {wrong} wrong values")
                    if turn:
                        times[way].append(statistics.median(map(max, zip(*batch))))
        ratios = [a / b for a, b in zip(*times, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        gain, noise = statistics.median(ratios) - 1, (high - low) / 2
        text = (
            f"{name}, {size} bytes, {crew.ranks} ranks on {crew.threads} threads: "
            f"{limit.ways[1 - other][0]} {statistics.median(times[0]) / 1e3:.2f} us, "
            f"{limit.ways[other][0]} {statistics.median(times[1]) / 1e3:.2f} us, "
            f"{gain:+.0%} (noise {min(noise, 9.99):.0%})"
        )
        return gain, max(MARGIN, noise), text


def crews(kind: str) -> tuple[Hosting, list[Hosting]]:
    """Return on whom a class of limits is measured first, and who else must not be worse off."""
    cores = len(os.sched_getaffinity(0))
    if kind == "crowded":
        cores = min(cores, CROWDED_CORES)
        return Hosting(CROWD * cores, CROWD * cores, cores), []
    threads = min(cores, MOST_RANKS)
    crowd = Hosting(CROWD * threads, threads, cores)
    return Hosting(max(2, threads), threads, cores), [crowd] if crowd.ranks <= MOST_RANKS else []


def bench_of(crew: Hosting) -> Bench:
    options = Options(ranks=crew.ranks, threads=crew.threads, transport="shm", time_limit=0)
    return Bench(options, Processes(), ROUNDS)


def _job(measured: Bench, data: bytes, turns: int, limit: Limit, way: int) -> Job:
    chosen = {kind: {limit.name: limit.ways[way][1]} for kind in limits.CLASSES}
    job = measured.job(data, turns, chosen)
    job.keep_times(16 * turns)
    return job


@contextmanager
def _on_cores(cores: int) -> Iterator[None]:
    """Run with only so many cores for this thread and those that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
