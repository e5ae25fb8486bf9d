"""What tests of feeding share: a ring in plain Python, a scheduler that gives all to everybody.

Agents, workers and consumers are the real ones, in processes and threads of their own.
"""

from __future__ import annotations

import os
import threading
import time
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from spmd.feeding.agent import Agent
from spmd.feeding.consumer import PipelineSupply
from spmd.feeding.keys import made_for_a_run, zmq
from spmd.feeding.sockets import Lines, received, send_to
from spmd.feeding.wire import decode, encode

Field = namedtuple("Field", "name shape dtype")
Feed = namedtuple("Feed", "name batch fields sends", defaults=((),))


class PlainRing:
    """A ring whose rank is the test: next() takes a batch, as arrays of its rows."""

    def __init__(self, rows, depth=2):
        self.rows, self.depth, self.taken = rows, depth, 0
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._batches, self._ended, self._error = {}, None, None
        self._sent, self._waiting = {}, False
        self._change = threading.Condition()

    def put(self, k, pieces):
        covered = [r for first, rows, _ in pieces for r in range(first, first + rows)]
        assert covered == list(range(*self.rows))
        with self._change:
            assert k not in self._batches and self.taken <= k < self.taken + self.depth, k
            self._batches[k] = pieces
            self._change.notify()

    def end(self, k):
        with self._change:
            self._ended = k
            self._change.notify()

    def fail(self, error):
        with self._change:
            self._error = self._error or error
            self._change.notify()

    def fileno(self):
        return self._event

    def is_wanted(self, k):
        return self._waiting and k == self.taken

    def sent(self, k):
        return self._sent.get(k)

    def send(self, k, **values):
        self._sent[k] = values
        os.eventfd_write(self._event, 1)

    def waits(self):
        return 0.0, 0.1

    def next(self, seconds=8.0):
        """The next batch, None at the end; raises what fail() was given."""
        with self._change:
            k = self.taken
            self._waiting = True
            there = self._change.wait_for(
                lambda: self._error or k in self._batches or self._ended == k, seconds)
            self._waiting = False
            if self._error:
                raise self._error
            assert there, f"batch {k} did not come"
            if k not in self._batches:
                return None
            pieces = self._batches.pop(k)
            found = {name: np.concatenate([p[2][name] for p in pieces]) for name in pieces[0][2]}
            self.taken = k + 1
        os.eventfd_write(self._event, 1)
        return found


class PlainScheduler:
    """Every consumer gets every worker. It runs in a thread, on a real socket."""

    def __init__(self, keys, source, name="numbers", file="made_here.py", settings=None):
        self.pipeline = {"name": name, "version": 1, "file": file, "source": source,
                         "settings": settings or {}}
        self.lines = Lines(keys)
        self.router = self.lines.router(
            "tcp://127.0.0.1:*", keys.server_secret, keys.server)
        self.address = self.router.last_endpoint.decode()
        self.agents, self.consumers, self.gone, self.rates = {}, set(), [], []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over.is_set():
            self.router.poll(20)
            while frames := received(self.router):
                self.said(bytes(frames[0]), decode(frames[1:]))
        self.lines.close()

    def said(self, peer, message):
        if message.kind == "join":
            if peer not in self.agents:
                send_to(self.router, peer, encode("load", **self.pipeline))
            self.agents[peer] = message["processes"]
        elif message.kind == "leave":
            self.agents.pop(peer, None)
        elif message.kind == "gone":
            self.gone.append(message.fields)
            for consumer in self.consumers:
                send_to(self.router, consumer, encode("gone", **message.fields))
            return
        elif message.kind == "consume":
            self.consumers.add(peer)
        elif message.kind == "done":
            self.consumers.discard(peer)
        elif message.kind == "rate":
            self.rates.append(message.fields)
            return
        else:
            return
        workers = [{**p, "share": 1.0} for ps in self.agents.values() for p in ps]
        for consumer in self.consumers:
            if workers:
                send_to(self.router, consumer, encode(
                    "workers", **self.pipeline, workers=workers, how="turn"))

    def close(self):
        self.over.set()
        self.thread.join()


class RunningAgent:
    """An agent in a thread of its own, with its worker processes."""

    def __init__(self, address, keys, processes, **more):
        self.said = []
        self.agent = Agent(address, keys, processes, log=self.said.append, **more)
        self.thread = threading.Thread(target=self.agent.run, daemon=True)
        self.thread.start()

    def pids(self):
        return [w.child.pid for w in self.agent.workers if w.said]

    def wait_for_workers(self, n, seconds=8.0):
        end = time.monotonic() + seconds
        while len(self.pids()) < n:
            assert time.monotonic() < end, f"{n} workers did not come: {self.said}"
            time.sleep(0.02)
        return self.pids()

    def close(self):
        self.agent.stop("over")
        self.thread.join(10)


class Run:
    """A scheduler and agents for one pipeline; everything ends with the test."""

    def __init__(self, source, **more):
        self.keys = made_for_a_run()
        self.scheduler = PlainScheduler(self.keys, source, **more)
        self.agents, self.supplies = [], []

    def workers(self, n, **more):
        self.agents.append(RunningAgent(self.scheduler.address, self.keys, n, **more))
        return self.agents[-1]

    def supply(self, fields, batch, rows=None, start=0, depth=2, name="numbers", sends=()):
        rings = [PlainRing(r, depth) for r in (rows or [(0, batch)])]
        for ring in rings:
            ring.taken = start
        supply = PipelineSupply(name, self.scheduler.address, self.keys, run="test")
        supply.begin(Feed("feed", batch, fields, sends), rings, start)
        self.supplies.append(supply)
        return rings

    def close(self):
        for one in self.supplies:
            one.finish()
        for one in self.agents:
            one.close()
        self.scheduler.close()


@contextmanager
def running(source, **more):
    run = Run(source, **more)
    try:
        yield run
    finally:
        run.close()


def x_of(batch, dtype=np.int64, *shape):
    return [Field("x", (batch, *shape), dtype)]


def mask_of(batch):
    return [Field("mask", (batch,), np.bool_)]


def processes_left(word):
    """Ids of processes whose command line has this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


assert zmq.has("curve")  # else these tests would say nothing of strangers
