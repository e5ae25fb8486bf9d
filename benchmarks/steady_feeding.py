"""How soon ranks are steady again after a kill, a join, another consumer: one JSON line.

In: how many rounds. Out: for each scene, the workers of the rate equation and those assigned, the
share of a steady stretch that ranks wait, and seconds until each following second is steady.
Ranks take about 110 ms with a batch of 1024. Workers wait, as for a storage far away, and so do
ranks in the scenes: so a few cores stand for many machines. STEADY_COMPUTES=1: ranks compute.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from benchmarks.running import json_lines, table
from spmd.feeding.messages.keys import keys_of
from tests.conftest import until
from tests.feeding.served_kit import Rank, ServedProcess

ROWS, SIZE, COMPUTES_S = 1024, 128, 0.11
SETTLES_S, STRETCH_S, WATCHED_S = 8.0, 10.0, 10.0
NEEDED = (2, 4, 6)
LIMIT, WITHIN = 0.02, 1.0
SCENES = ("a worker is killed", "the scheduler is killed", "workers join", "a consumer joins")

PIPELINE = """
import time
import numpy as np
import spmd.data as data

@data.batched(source=data.range(1 << 24), size={size})
def steady(examples):
    time.sleep({seconds} * len(examples))
    return {{"x": np.array(examples, np.float32)}}
"""


def program() -> Any:
    """Takes batches, and multiplies matrices `work` times with each."""

    @spmd.program(mesh=("data",))
    def taken() -> Any:
        feed = spmd.feed(x=spmd.spec((ROWS,), np.float32))
        n, many = spmd.scalar("n", 1), spmd.scalar("work", 0)
        seen, a = spmd.zeros(ROWS, np.float32), spmd.ones((256, 256), np.float32) / 256
        for _ in spmd.range(n):
            seen += feed.next().x
            for _ in spmd.range(many):
                a = a @ a
        return {"seen": seen, "a": a}

    return taken


def consume(image: str, feed: str, work: str) -> None:
    """In a process of its own: a run without end, and ten times a second a line of what it did."""
    with spmd.load(image).open(ranks=1, feed=feed, time_limit=0) as job:

        def rings() -> Any:
            return job._launch.feeds.open[0].rings[0] if job._launch.feeds.open else None

        threading.Thread(target=look, args=(rings,), daemon=True).start()
        job(n=1 << 30, work=int(work))


def wait(_: str, feed: str, seconds: str) -> None:
    """The same with a rank that waits while others would compute."""
    name, address = feed.split("@")
    rank = Rank(name, ServedAt(address, keys_of("")), ROWS, float(seconds), dtype=np.float32)
    look(lambda: rank.ring)


def look(of: Callable[[], Any]) -> None:
    while True:
        time.sleep(0.1)
        if ring := of():
            print(json.dumps([time.monotonic(), *ring.waits(), ring.taken]), flush=True)


ServedAt = namedtuple("ServedAt", "address keys")


class RunningConsumer:
    """A run of one rank, in a process; what it has said so far, with the times."""

    def __init__(self, image: str, served: ServedProcess, takes: float, work: int) -> None:
        self.rows: list[list[float]] = []
        how, much = ("consume", round(takes * work)) if work else ("wait", takes * COMPUTES_S)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.steady_feeding", how, image,
             f"steady@{served.address}", str(much)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "SPMD_FEED_KEYS": served.keys_folder})
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        for line in self.process.stdout:  # type: ignore[union-attr]
            self.rows.append(json.loads(line))

    def row_at(self, when: float) -> list[float]:
        """Return seconds waited, seconds busy and batches taken at a time."""
        k = bisect_left(self.rows, [when])
        return self.rows[min(k, len(self.rows) - 1)]

    def starved(self, begin: float, end: float) -> float:
        a, b = self.row_at(begin), self.row_at(end)
        return (b[1] - a[1]) / max(b[0] - a[0], 1e-9)

    def takes(self, begin: float, end: float) -> float:
        """Examples in a second in which it does not wait."""
        a, b = self.row_at(begin), self.row_at(end)
        return ROWS * (b[3] - a[3]) / max(b[2] - a[2], 1e-9)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Stage:
    """A scheduler, workers of so many examples in a second, consumers; and who has which workers
    at which time."""

    def __init__(self, folder: str, image: str, seconds: float) -> None:
        self.image, self.makes = image, 1 / seconds  # examples in a second of a worker: measured
        self.served = ServedProcess(Path(folder))
        self.consumers: list[RunningConsumer] = []
        self.seen: list[tuple[float, list[float]]] = []  # when, workers of each consumer
        file = Path(folder, "steady.py")
        file.write_text(PIPELINE.format(size=SIZE, seconds=seconds))
        with self.served.client() as client:
            client.submit(file)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            with suppress(spmd.SpmdError):  # just now there is no scheduler
                status = self.served.status()
                rates = [w["rates"]["steady"] for w in status["workers"]
                         if w["rates"].get("steady")]
                self.makes = statistics.mean(rates or [self.makes])
                self.seen.append((time.monotonic(), sorted(
                    sum(c["workers"].values()) for c in status["consumers"])))

    def consumer(self, work: int, takes: float = 1.0) -> RunningConsumer:
        """A run that takes so many times 110 ms: computing `work`, or waiting where that is 0."""
        consumer = RunningConsumer(self.image, self.served, takes, work)
        self.consumers.append(consumer)
        until(lambda: consumer.rows and consumer.rows[-1][3] > 2, 60)
        return consumer

    def needs(self, begin: float, end: float) -> list[float]:
        """Return how many workers each consumer needs: the rate that it takes over a worker's
        rate."""
        return [consumer.takes(begin, end) / self.makes for consumer in self.consumers]

    def assigned(self, when: float) -> list[float]:
        """Sums of shares, the fewest first."""
        return self.seen[min(bisect_left(self.seen, (when, [])), len(self.seen) - 1)][1]

    def is_right(self, begin: float, end: float, needs: list[float]) -> bool:
        """Are assigned numbers within one of the rate equation all the time?"""
        rows = [row for when, row in self.seen if begin <= when < end]
        return all(len(row) == len(needs) and all(abs(a - n) <= WITHIN for a, n in zip(row, needs))
                   for row in rows)

    def steady_after(self, event: float) -> float:
        """Seconds from an event until every following second is steady; infinite if none is."""
        end = event + WATCHED_S
        needs = sorted(self.needs(end - 4, end))
        begin = end - 1
        if not self._is_steady(begin, needs):
            return float("inf")
        while begin > event and self._is_steady(begin - 0.1, needs):
            begin -= 0.1
        return max(0.0, begin - event)

    def _is_steady(self, begin: float, needs: list[float]) -> bool:
        return self.is_right(begin, begin + 1, needs) and all(
            consumer.starved(begin, begin + 1) < LIMIT for consumer in self.consumers)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for consumer in self.consumers:
            consumer.close()
        self.served.close()


@contextmanager
def staged(image: str, workers: float) -> Iterator[Stage]:
    """Workers such that a rank of 110 ms needs so many."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(folder, image, COMPUTES_S / ROWS * workers)
        try:
            yield stage
        finally:
            stage.close()


def stretch(image: str, work: int, workers: int) -> dict[str, float]:
    """A rank that needs so many workers, of which there are two more."""
    with staged(image, workers) as stage:
        stage.served.worker(workers + 2)
        consumer = stage.consumer(work)
        time.sleep(SETTLES_S)
        begin = time.monotonic()
        time.sleep(STRETCH_S)
        end = time.monotonic()
        return {"needs": stage.needs(begin, end)[0], "assigned": stage.assigned(end)[0],
                "right": stage.is_right(begin, end, stage.needs(begin, end)),
                "starved": consumer.starved(begin, end), "batch": ROWS / consumer.takes(begin, end)}


def scene(name: str, image: str, work: int) -> dict[str, float]:
    """Ranks that are steady, or starve where workers are to join; what happens; steady again."""
    with staged(image, 4.0) as stage:
        served = stage.served
        served.worker({"a worker is killed": 5, "workers join": 3}.get(name, 8))
        stage.consumer(work)
        if name == "the scheduler is killed":
            stage.consumer(work, 2)
        time.sleep(SETTLES_S)
        event = time.monotonic()
        events: dict[str, Callable[[], Any]] = {
            "a worker is killed": lambda: kill_worker(served.started[1].pid),
            "the scheduler is killed": lambda: restart(served),
            "workers join": lambda: served.worker(3),
            "a consumer joins": lambda: stage.consumer(work, 2),
        }
        events[name]()
        if "join" in name:  # from when they are there: starting Python is not what is measured
            count = {"workers join": 6, "a consumer joins": 8}[name]
            until(lambda: len(served.status()["workers"]) == count, 60)
            event = time.monotonic()
        time.sleep(WATCHED_S + 0.5)
        end = event + WATCHED_S
        return {"seconds": stage.steady_after(event), "assigned": sum(stage.assigned(end)),
                "needs": sum(stage.needs(end - 4, end))}


def kill_worker(agent: int) -> None:
    """Kill one worker with SIGKILL: of five workers, four or five are needed."""
    first = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()[0]
    os.kill(int(first), signal.SIGKILL)


def restart(served: ServedProcess) -> None:
    """kill -9 of the scheduler, and the next one, with its state and at its address."""
    served.process.kill()
    served.process.wait()
    served.start()


def main(rounds: str) -> None:
    image, work = spmd.build(program()), 0
    if os.environ.get("STEADY_COMPUTES"):
        start = time.perf_counter()
        image.run(n=1, work=200, feed=[{"x": np.zeros(ROWS, np.float32)}])
        work = round(200 * COMPUTES_S / (time.perf_counter() - start))
    with tempfile.TemporaryDirectory() as folder:
        image.save(file := f"{folder}/steady.img")
        scenes: dict[str, list[dict[str, float]]] = {}
        for _ in range(int(rounds)):
            for workers in NEEDED:
                scenes.setdefault(f"{workers} workers", []).append(stretch(file, work, workers))
            for name in SCENES:
                scenes.setdefault(name, []).append(scene(name, file, work))
    print(json.dumps({name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
                      for name, rows in scenes.items()}))


def report(_: Path, rounds: int = 3) -> None:
    """Workers by the rate equation, and how soon ranks are steady again."""
    scenes = json_lines("steady_feeding", "measure", rounds)[-1]
    rows = [(name, f"{scene['needs']:.2f}", f"{scene['assigned']:.2f}",
             f"{scene['starved']:.2%}" if "starved" in scene else "",
             f"{scene['seconds']:.1f}" if "seconds" in scene else "")
            for name, scene in scenes.items()]
    print("Ranks of 110 ms for a batch of 1024, and workers that wait as for a storage far away; "
          f"medians of {rounds}. Steady: each following second, ranks wait for less than 2 % of "
          "it, and assigned workers are within one of the rate equation:\n")
    table(["", "workers = consumption / production", "assigned", "starved", "steady after, s"],
          rows)


if __name__ == "__main__":
    {"consume": consume, "wait": wait, "measure": main}[sys.argv[1]](*sys.argv[2:])
