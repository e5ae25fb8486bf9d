"""Servers under load for long: changes while clients ask, and twice the load that they can bear.

    python -m tests.serving.soak [--minutes 10] [--requests 100000] [--swaps 50] [--kills 20]
Prints figures; raises AssertionError where an answer is lost, wrong, late, or memory grows.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from tests.conftest import PATIENCE, until
from tests.serving.replicated import LOAD, folder_of, has, replica, with_replicas
from tests.serving.serving_kit import JSON_LENGTH, built_in, tensor

TURNS = 3000  # of a call that takes some time
REST_S, DEADLINE_S = 5e-3, 5.0  # of a call under load: what it takes, what its client waits
QUEUE, CONNECTIONS = 128, 250
TICK_S = 0.01
GROWTH = 1.03  # of memory, between the first third of the time and the last one


class Asking:
    """Clients of scaled.scale, each in a thread, with rows that no other request has, until the
    server takes no more.

    answers: when each request began and ended, and the version of its answer. wrong: answers with
    an error, with rows of another request, or of two states. refused: how requests ended that came
    after SIGTERM."""

    def __init__(self, port: int, clients: int) -> None:
        self.answers: list[tuple[float, float, str]] = []
        self.wrong: list[Any] = []
        self.refused: Counter[str] = Counter()
        self.versions: dict[str, float] = {}  # and the state that answers of each are of
        self.sent, self.is_ending = 0, False
        self._port, self._lock = port, threading.Lock()
        self.threads = [threading.Thread(target=self._ask, args=(k,)) for k in range(clients)]
        for thread in self.threads:
            thread.start()

    def _ask(self, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        chance = random.Random(number)
        for k in itertools.count():
            x = [number + 100.0 * k + row / 4 for row in range(chance.randrange(1, 4))]
            began = time.monotonic()
            with self._lock:
                self.sent += 1
            try:
                status, body = scaled(x, connection)
            except (OSError, http.client.HTTPException) as error:
                self._note(x, type(error).__name__, error)
                break
            if status == 200:
                self._check(x, began, body)
            else:
                self._note(x, str(status), body)
                break
        connection.close()

    def _note(self, x: list[float], how: str, found: object) -> None:
        with self._lock:
            if self.is_ending and how in ("503", "ConnectionRefusedError", "ConnectionResetError",
                                          "RemoteDisconnected"):
                self.refused[how] += 1
            else:
                self.wrong.append((x, how, found))

    def _check(self, x: list[float], began: float, body: Any) -> None:
        y, w = (row["data"] for row in body["outputs"])
        version = body["model_version"]
        with self._lock:
            self.answers.append((began, time.monotonic(), version))
            if len(set(w)) != 1 or y != (np.repeat(x, 2) * w[0]).tolist() or (
                    self.versions.setdefault(version, w[0]) != w[0]):
                self.wrong.append((x, body))

    def check_order(self, versions: list[str]) -> None:
        """After the first answer of a version, no request is answered by an earlier one."""
        place = {version: k for k, version in enumerate(versions)}
        assert set(self.versions) <= set(place) and len(place) == len(versions)
        first = [min((ended for _, ended, version in self.answers if version == one),
                     default=float("inf")) for one in versions]
        for k in reversed(range(len(first) - 1)):
            first[k] = min(first[k], first[k + 1])
        early = [row for row in self.answers if place[row[2]] + 1 < len(first)
                 and row[0] > first[place[row[2]] + 1]]
        assert early == []


def scaled(x: list[float], connection: http.client.HTTPConnection) -> Any:
    """What a server answers to rows, on a connection that stays."""
    body = json.dumps({"inputs": [tensor("x", "FP64", [len(x), 2], np.repeat(x, 2).tolist()),
                                  tensor("turns", "INT64", [], [TURNS])]})
    connection.request("POST", "/v2/models/scaled.scale/infer", body)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def through_changes(folder: Path, *, requests: int, swaps: int, kills: int, clients: int = 10
                    ) -> Asking:
    """Clients ask while replicas are killed and states are loaded, evenly; then SIGTERM, while they
    ask on. folder: of replicated.folder_of. Raises AssertionError where a request is lost, or is
    answered wrongly, or by an earlier state than one before it."""
    with ExitStack() as stack:
        server, address = stack.enter_context(
            with_replicas(folder / "scaled.img", "--ranks", 1, "--allow", "load"))
        replicas = [stack.enter_context(replica(address, "--ranks", 1)) for _ in range(2)]
        has(server, 2)
        in_order = [server.asked("GET", "/v2/models/scaled.scale").json["versions"][0]]
        asking = Asking(server.port, clients)
        for k in range(swaps):
            until(lambda: asking.wrong or len(asking.answers) >= k * requests // (swaps + 1), 600)
            if (k + 1) * kills // swaps > k * kills // swaps:
                has(server, 2)
                time.sleep(0.1)
                victim = random.Random(k).randrange(2)
                os.kill(replicas[victim].process.pid, signal.SIGKILL)
                replicas[victim] = stack.enter_context(replica(address, "--ranks", 1))
            loaded = server.asked("POST", LOAD, {"parameters": {"state": f"w{2 + k}.safetensors"}})
            assert loaded.status == 200, loaded.body
            in_order.append(loaded.json["version"])
        until(lambda: asking.wrong or len(asking.answers) >= requests, 600)
        metrics = server.asked("GET", "/metrics").body.decode()
        has(server, 2)
        asking.is_ending = True
        server.launch.process.send_signal(signal.SIGTERM)
        for thread in asking.threads:
            thread.join(PATIENCE)
        assert server.launch.finish().code == 143
        assert [launch.finish().code for launch in replicas] == [0, 0]
    assert asking.wrong == [], asking.wrong[:5]
    assert asking.sent == len(asking.answers) + asking.refused.total() and (
        len(asking.answers) >= requests)
    asking.check_order(in_order)
    rows = [line for line in metrics.splitlines()
            if line.startswith('spmd_replica_calls_total{replica="')]
    assert len(rows) == 2 and all(float(row.rpartition(" ")[2]) > 10 for row in rows), rows
    return asking


class Load:
    """Requests for things.rest at a rate, however late answers are. seconds: from when each request
    was sent until its answer, of those that got one; late: from when it was due until it was sent;
    statuses: of all answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.late: list[float] = []
        self._due: asyncio.Queue[float | None] = asyncio.Queue()

    async def run(self, rate: float, seconds: float, connections: int) -> None:
        """Make requests for so long; 0: a rate as high as so many connections get."""
        end = time.monotonic() + seconds
        clients = [asyncio.create_task(self._ask(number, rate == 0, end))
                   for number in range(connections)]
        began, due = time.monotonic(), 0
        while rate and (now := time.monotonic()) < end:
            while due < (now - began) * rate:
                self._due.put_nowait(began + due / rate)
                due += 1
            await asyncio.sleep(TICK_S)
        for _ in clients:
            self._due.put_nowait(None)
        await asyncio.gather(*clients)

    async def _ask(self, number: int, closed: bool, end: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        request = rest_request(binary=number % 2 == 0)
        while (due := self._next(end) if closed else await self._due.get()) is not None:
            began = time.monotonic()
            self.late.append(began - due)
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
            status = int(head.split()[1])
            self.statuses[status] += 1
            if status == 200:
                self.seconds.append(time.monotonic() - began)
        writer.close()

    @staticmethod
    def _next(end: float) -> float | None:
        return now if (now := time.monotonic()) < end else None


def rest_request(binary: bool) -> bytes:
    """A request for things.rest, in JSON or with its tensor as bytes."""
    data = np.ones(2).tobytes() if binary else b""
    u = tensor("u", "FP64", [2], [1, 1])
    if binary:
        del u["data"]
        u["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [u, tensor("seconds", "FP64", [], [REST_S])], "parameters": {
        "timeout": int(DEADLINE_S * 1e6), "binary_data_output": binary}}).encode()
    return (f"POST /v2/models/things.rest/infer HTTP/1.1\r\nHost: localhost\r\n{JSON_LENGTH}: "
            f"{len(head)}\r\nContent-Length: {len(head) + len(data)}\r\n\r\n"
            ).encode() + head + data


@contextmanager
def memory_of(pids: dict[str, int], every: float) -> Iterator[dict[str, list[int]]]:
    """Look at the resident bytes of processes now and then, meanwhile."""
    samples: dict[str, list[int]] = {name: [] for name in pids}
    ends = threading.Event()

    def look() -> None:
        while not ends.wait(every):
            for name, pid in pids.items():
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                samples[name].append(pages * os.sysconf("SC_PAGE_SIZE"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        ends.set()
        thread.join()


def overload(folder: Path, seconds: float) -> str:
    """Offer twice what a server with a replica can bear; return the figures. folder: to build in.
    Raises AssertionError for other answers than 200 and 429, late ones, or memory that grows."""
    from tests.serving.things import Things  # built where it is first asked for

    spmd.build(Things).save(folder / "things.img")
    with with_replicas(folder / "things.img", "--ranks", 1, "--queue", QUEUE) as (
            server, address), replica(address, "--ranks", 1) as other:
        has(server, 1)
        bare = Load(server.port)
        asyncio.run(bare.run(0, span := min(10.0, seconds / 2), connections=32))
        rate = 2 * len(bare.seconds) / span
        load = Load(server.port)
        pids = {"the server": server.launch.process.pid, "its replica": other.process.pid}
        with memory_of(pids, seconds / 300) as samples:
            asyncio.run(load.run(rate, seconds, CONNECTIONS))
    cuts = statistics.quantiles(load.seconds, n=100)
    lines = [f"{rate / 2:.0f} requests/s at most; {rate:.0f} offered for {seconds / 60:.1f} "
             f"minutes: {dict(load.statuses)}",
             f"answered within {cuts[49]:.2f} s (median), {cuts[98]:.2f} s (99th percentile); "
             f"the deadline is {DEADLINE_S:g} s; clients sent within "
             f"{statistics.quantiles(load.late, n=100)[98]:.2f} s of when they meant to (99th)"]
    thirds = {name: [statistics.median(part) / 2**20 for part in (
        row[:len(row) // 3], row[-len(row) // 3:])] for name, row in samples.items()}
    lines += [f"memory of {name}: {first:.1f} MB in the first third, {last:.1f} MB in the last"
              for name, (first, last) in thirds.items()]
    report = "\n".join(lines)
    assert set(load.statuses) == {200, 429}, report
    assert load.statuses.total() > 0.95 * rate * seconds and cuts[98] < DEADLINE_S, report
    assert all(last < GROWTH * first for first, last in thirds.values()), report
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("minutes", 10.0), ("requests", 100_000), ("swaps", 50), ("kills", 20)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if asked.requests:
            folder = folder_of(Path(name, "scaled"), partial(built_in, Path(name)), asked.swaps)
            began = time.monotonic()
            found = through_changes(folder, requests=asked.requests, swaps=asked.swaps,
                                    kills=asked.kills)
            print(f"{len(found.answers)} answers in {time.monotonic() - began:.0f} s of "
                  f"{len(found.versions)} versions, none mixed or late; after SIGTERM "
                  f"{dict(found.refused)}", flush=True)
        if asked.minutes:
            print(overload(Path(name), 60 * asked.minutes))


if __name__ == "__main__":
    main()
