"""Real processes for tests of the scheduler: `feed serve`, `feed worker`, and ranks of this one.

A rank is a thread that takes batches of a PipelineSupply and computes (sleeps) for a while.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import namedtuple
from contextlib import suppress
from pathlib import Path

import numpy as np

from spmd.feeding.clients.client import Client
from spmd.feeding.consumers.pipeline_supply import PipelineSupply
from spmd.feeding.messages.keys import make_folder, read_folder
from tests.conftest import PATIENCE, ROOT, until

Field = namedtuple("Field", "name shape dtype")
Feed = namedtuple("Feed", "name batch fields sends copied asked place",
                  defaults=((), False, True, None))

PIPELINE = """
import time
import numpy as np
import spmd.data as data

@data.batched(source=data.range(1_000_000), size=10, {settings})
def {name}(examples):
    time.sleep({seconds} * len(examples))
    return {{"x": np.array(examples, np.int64)}}
"""


SAMPLE = re.compile(r'([a-z_:][a-z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


class TimedRing:
    """A ring that counts how long its rank waits and computes."""

    def __init__(self, rows, depth=3):
        self.rows, self.depth, self.taken = rows, depth, 0
        self.batches, self.ended, self.error = {}, None, None
        self.waited = self.busy = 0.0
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.change = threading.Condition()

    def put(self, k, pieces):
        with self.change:
            assert k not in self.batches
            self.batches[k] = np.concatenate([p[2]["x"] for p in pieces])
            self.change.notify()

    def put_whole(self, k, batches, arrays):
        (begin, end), batch = self.rows, len(arrays["x"]) // batches
        for i in range(batches):
            rows = arrays["x"][i * batch + begin : i * batch + end]
            self.put(k + i, [(begin, end - begin, {"x": rows})])

    def fill_ahead(self, batches):
        """It tells of every batch."""

    def end(self, k):
        with self.change:
            self.ended = k
            self.change.notify()

    def fail(self, error):
        with self.change:
            self.error = self.error or error
            self.change.notify()

    def fileno(self):
        return self.event

    def sent(self, k):
        return None

    def waits(self):
        return self.waited, self.busy

    def next(self, seconds):
        began = time.monotonic()
        with self.change:
            k = self.taken
            self.change.wait_for(
                lambda: self.error or k in self.batches or self.ended == k, seconds)
            if self.error:
                raise self.error
            if k not in self.batches:
                assert self.ended == k, f"batch {k} did not come within {seconds} s"
                return None
            self.waited += time.monotonic() - began
            batch = self.batches.pop(k)
            self.taken += 1
        os.eventfd_write(self.event, 1)
        return batch


class Rank:
    """Takes batches of `batch` examples, computing for so many seconds after each."""

    def __init__(self, name, served, batch=100, seconds=0.05, number=0, dtype=np.int64):
        self.ring, self.seen, self.error = TimedRing((0, batch)), [], None
        self.seconds, self.over = seconds, threading.Event()
        self.supply = PipelineSupply(name, served.address, served.keys, ranks=(number,), run="test")
        self.supply.begin(Feed("feed", batch, [Field("x", (batch,), dtype)]), [self.ring], 0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            while not self.over.is_set() and (batch := self.ring.next(5 * PATIENCE)) is not None:
                self.seen.append(batch)
                began = time.monotonic()
                time.sleep(self.seconds)
                self.ring.busy += time.monotonic() - began
        except Exception as error:
            self.error = error

    def starved(self, seconds):
        """Which part of so many seconds from now on it waits."""
        waited = self.ring.waited
        time.sleep(seconds)
        return (self.ring.waited - waited) / seconds

    def close(self):
        self.over.set()
        self.supply.finish()


class ServedProcess:
    """`feed serve` in a process, and what tests start beside it."""

    LISTEN = "tcp://127.0.0.1:*"

    def __init__(self, folder: Path, *arguments: str):
        self.folder, self.arguments = folder, arguments
        self.keys_folder = str(make_folder(folder / "keys"))
        self.keys = read_folder(self.keys_folder)
        self.address, self.page, self.started, self.ranks = self.LISTEN, "", [], []
        self.start()

    def start(self):
        """Starts it, also again: at the address that it had."""
        log = self.folder / f"serve-{len(self.started)}.log"
        self.process = self.command(
            "serve", "--listen", self.address, "--keys", self.keys_folder, "--state",
            str(self.folder / "state"), "--page", "0", *self.arguments, log=log)
        text = until(lambda: "page at" in log.read_text() and log.read_text())
        self.address = re.search(r"scheduler at (\S+),", text)[1]
        self.page = re.search(r"page at (\S+)", text)[1]
        self.log = log

    def kill_scheduler(self):
        """Once it has written to its state what has happened by now."""
        file = self.folder / "state-wal"
        for _ in range(2):  # the first time may have begun before
            written = file.stat().st_mtime_ns
            until(lambda written=written: file.stat().st_mtime_ns > written)
        self.process.kill()
        self.process.wait()

    def command(self, *words, log):
        process = subprocess.Popen([sys.executable, "-m", "spmd", "feed", *words], cwd=ROOT,
                                   stdin=subprocess.DEVNULL, stdout=log.open("w"),
                                   stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def worker(self, processes, *more):
        return self.command("worker", "--connect", self.address, "--keys", self.keys_folder,
                            "--processes", str(processes), *more,
                            log=self.folder / f"worker-{len(self.started)}.log")

    def get(self, path, **headers):
        """What its page gives: headers and text."""
        request = urllib.request.Request(self.page + path, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.headers, answer.read().decode()

    def metrics(self):
        """What Prometheus reads, by metric and labels."""
        kinds, samples = {}, {}
        for line in self.get("metrics")[1].splitlines():
            if line.startswith("# TYPE "):
                kinds.update([line.split()[2:4]])
            elif not line.startswith("#"):
                name, labels, value = SAMPLE.fullmatch(line).groups()
                assert name in kinds
                samples[name, labels] = float(value)
        return samples

    def client(self):
        return Client(self.address, self.keys_folder, PATIENCE)

    def status(self):
        with self.client() as client:
            return client.status()

    def submit(self, name, seconds, settings="", **more):
        file = self.folder / f"{name}.py"
        file.write_text(PIPELINE.format(name=name, seconds=seconds, settings=settings))
        with self.client() as client:
            return client.submit(file, **more)

    def rank(self, name, **more):
        self.ranks.append(Rank(name, self, number=len(self.ranks), **more))
        return self.ranks[-1]

    def workers_come(self, count):
        return until(lambda: len(self.status()["workers"]) == count)

    def close(self):
        for rank in self.ranks:
            rank.close()
        for process in reversed(self.started):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
