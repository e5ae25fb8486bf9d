"""What tests of feeding share: a ring in plain Python. Scheduler, agents, workers and consumers are
the real ones, in threads and processes of their own.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections import namedtuple
from contextlib import contextmanager, suppress

import numpy as np

from spmd import SpmdError
from spmd.data.pipeline_files import load_text
from spmd.feeding.clients.client import Client
from spmd.feeding.consumers.pipeline_supply import PipelineSupply
from spmd.feeding.messages.keys import made_for_a_run, read_folder
from spmd.feeding.messages.sockets import received
from spmd.feeding.messages.wire import decode
from spmd.feeding.starting.scheduler_process import Served
from spmd.feeding.workers.agent import Agent
from tests.conftest import PATIENCE, until

Field = namedtuple("Field", "name shape dtype")
Feed = namedtuple("Feed", "name batch fields sends copied asked place",
                  defaults=((), False, True, None))


class PlainRing:
    """A ring whose rank is the test: next() takes a batch, as arrays of its rows."""

    def __init__(self, rows, depth=2):
        self.rows, self.depth, self.taken = rows, depth, 0
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._batches, self._ended, self._error = {}, None, None
        self._sent, self._waiting = {}, False
        self._left_out = 0  # batches before this one are dropped
        self._change = threading.Condition()

    def put(self, k, pieces):
        covered = [r for first, rows, _ in pieces for r in range(first, first + rows)]
        assert covered == list(range(*self.rows))
        with self._change:
            if k < self._left_out:
                return
            assert k not in self._batches and self.taken <= k < self.taken + self.depth, k
            self._batches[k] = pieces
            self._change.notify()

    def put_whole(self, k, batches, arrays):
        begin, end = self.rows
        batch = len(next(iter(arrays.values()))) // batches
        for i in range(batches):
            part = {name: a[i * batch + begin : i * batch + end] for name, a in arrays.items()}
            self.put(k + i, [(begin, end - begin, part)] if begin < end else [])

    def leave_out(self, k):
        """As a run that resumes: batches before this one were taken."""
        with self._change:
            self._batches = {n: batch for n, batch in self._batches.items() if n >= k}
            self.taken = self._left_out = k
        os.eventfd_write(self._event, 1)

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

    def fill_ahead(self, batches):
        """It tells of every batch."""

    def is_wanted(self, k):
        return self._waiting and k == self.taken

    def has(self, k):
        return k in self._batches

    def owes(self, k):
        return self.is_wanted(k) and k > 0 and k - 1 not in self._sent

    def sent(self, k):
        return self._sent.get(k)

    def send(self, k, **values):
        self._sent[k] = values
        os.eventfd_write(self._event, 1)

    def waits(self):
        return 0.0, 0.1

    def heard(self, seconds=PATIENCE):
        """Of a ring of no rows: whether there is a next batch, which is taken."""
        with self._change:
            k = self.taken
            assert self._change.wait_for(
                lambda: self._error or k in self._batches or self._ended == k, seconds)
            assert not self._error, self._error
            found = self._batches.pop(k, None)
            assert found in (None, [])
            self.taken += found is not None
        os.eventfd_write(self._event, 1)
        return found is not None

    def next(self, seconds=PATIENCE):
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


class Proxy:
    """TCP to whatever address a worker has. cut() closes what stands: bytes under way are lost.
    rate: bytes/s that a connection passes; 0: all. delay: seconds that all of it takes."""

    def __init__(self, rate=0, delay=0.0):
        self.to, self.connections, self._open = None, 0, []
        self.rate, self.delay = rate, delay
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listening.close()
        self.cut()

    def reached(self, asked_worker):
        """WorkerConnection, but with its line through here."""
        def made(lines, assigned, *more):
            host, _, port = assigned["address"].removeprefix("tcp://").rpartition(":")
            self.to = host, int(port)
            return asked_worker(lines, {**assigned, "address": self.address}, *more)
        return made

    def cut(self):
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with suppress(OSError):
            while True:
                near, far = self._listening.accept()[0], socket.create_connection(self.to)
                self.connections += 1
                self._open += [near, far]
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a, b):
        on_its_way = queue.SimpleQueue()
        threading.Thread(target=self._arrive, args=(on_its_way, b), daemon=True).start()
        with a, suppress(OSError):
            while data := a.recv(1 << 16):
                on_its_way.put((time.monotonic() + self.delay, data))
                if self.rate:
                    time.sleep(len(data) / self.rate)
        on_its_way.put((0.0, b""))

    def _arrive(self, on_its_way, b):
        with b, suppress(OSError):
            while (found := on_its_way.get())[1]:
                time.sleep(max(found[0] - time.monotonic(), 0))
                b.sendall(found[1])


class RunningAgent:
    """An agent in a thread of its own, with its worker processes."""

    def __init__(self, address, keys, processes, **more):
        self.said = []
        self.agent = Agent(address, keys, processes, log=self.said.append, **more)
        self.thread = threading.Thread(target=self.agent.run, daemon=True)
        self.thread.start()

    def pids(self):
        return [w.child.pid for w in self.agent.workers if w.said]

    def wait_for_workers(self, n):
        return until(lambda: len(pids := self.pids()) >= n and pids)

    def close(self):
        self.agent.stopping.say("over")
        self.thread.join(PATIENCE)


class Run:
    """A scheduler in a thread, and agents for one pipeline; everything ends with the test."""

    def __init__(self, source, name="numbers", file="made_here.py", folder=None):
        self.keys = read_folder(folder) if folder else made_for_a_run()
        self.served = Served("tcp://127.0.0.1:*", folder=folder, keys=read_folder(
            folder, scheduler=True) if folder else self.keys)
        self.address = self.served.scheduler.address
        self.thread = threading.Thread(target=self.served.scheduler.run, daemon=True)
        self.thread.start()
        with Client(self.address, self.keys, PATIENCE) as client:
            client._ask("submit", name=name, version=0, file=file, source=source,
                        settings=settings_in(source))
        self.agents, self.supplies = [], []

    def workers(self, n, **more):
        self.agents.append(RunningAgent(self.address, self.keys, n, **more))
        return self.agents[-1]

    def supply(self, fields, batch, rows=None, start=0, depth=2, name="numbers", sends=(),
               asked=True, keys=None, **more):
        rings = [PlainRing(r, depth) for r in (rows or [(0, batch)])]
        for ring in rings:
            ring.taken = start
        supply = PipelineSupply(name, self.address, keys or self.keys, run="test", **more)
        supply.begin(Feed("feed", batch, fields, sends, False, asked), rings, start)
        self.supplies.append(supply)
        return rings

    def close(self):
        for one in self.supplies:
            one.finish()
        for one in self.agents:
            one.close()
        self.served.scheduler.stopping.say("over")
        self.thread.join(PATIENCE)
        self.served.close()


def given_to(line, seconds=PATIENCE):
    """The next result at a worker's line, None if none comes; it may ask meanwhile who is there."""
    while line.poll(1000 * seconds):
        message = decode(received(line))
        if message.kind != "who":
            return message
    return None


def settings_in(source):
    """What the pipeline's decorator says; nothing of a file that cannot be loaded."""
    try:
        (found,) = load_text(source, "made_here.py").values()
    except SpmdError:
        return {}
    return found.settings.as_json()


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
