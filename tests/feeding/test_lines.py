"""Lines between machines: slow ones, such as do not stand, and consumers that take nothing."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spmd import UsageError
from spmd.feeding.clients.client import Client
from spmd.feeding.consumers import consumer, worker_connection
from spmd.feeding.messages import sockets
from spmd.feeding.messages.keys import made_for_a_run, pair
from spmd.feeding.messages.sockets import OTHER_KEY, REFUSED_KEY, Lines, received
from spmd.feeding.messages.wire import TEXT_BYTES, encode, new_id
from spmd.feeding.results.compression import LEAST_PART, PART, in_parts, of_parts
from spmd.feeding.starting.scheduler_process import Served
from tests.conftest import PATIENCE, at_some_pace, until
from tests.feeding.feeding_kit import Proxy, RunningAgent, given_to, running, settings_in, x_of

pytestmark = pytest.mark.slow  # it waits for processes of its own

SIZE = 3 << 20
NOISE = f"""
import numpy as np
import spmd.data as data

@data.pipeline(source=data.range(100), epochs=1, shuffle=False, compress="none")
def numbers(example):
    return {{"x": np.random.default_rng(example).integers(0, 256, {SIZE}, np.uint8)}}
"""


@pytest.fixture
def elsewhere(monkeypatch):
    """Workers are on another host: what they make travels."""
    monkeypatch.setattr(consumer, "host_name", lambda: "another host")


@pytest.fixture
def closed():
    """An address at which nobody listens, nor can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 5 * PART])
def test_parts_become_what_was_cut(size):
    data = np.random.default_rng(size).bytes(size)
    for part in (LEAST_PART, PART):
        parts = in_parts(data, part)
        assert all(p.nbytes <= part for p in parts) and bytes(of_parts(parts)) == data


def soon_silent(monkeypatch, pace):
    """Lines break after so many times 0.6 s; returns what is longer: 1.5 s."""
    monkeypatch.setattr(sockets, "HEARTBEAT_MS", 150 * pace)
    monkeypatch.setattr(sockets, "SILENT_MS", 600 * pace)
    return 1.5 * pace


def test_a_large_result_takes_longer_than_the_silence_that_breaks_a_line(elsewhere, monkeypatch):
    """Heartbeats pass between the parts of a result that is under way for twice their limit."""
    asked_worker, wanted = consumer.WorkerConnection, np.random.default_rng(0).integers(
        0, 256, SIZE, np.uint8)

    def check(pace):
        takes = soon_silent(monkeypatch, pace)
        with running(NOISE) as run, Proxy(rate=SIZE / takes) as proxy:
            monkeypatch.setattr(consumer, "WorkerConnection", proxy.reached(asked_worker))
            run.workers(1)
            (ring,) = run.supply(x_of(1, np.uint8, SIZE), 1)
            found = ring.next(20 * pace)["x"][0]
            assert np.array_equal(found, wanted) and proxy.connections == 1

    at_some_pace(check, (1, 8))


def test_a_long_pipeline_takes_longer_than_the_silence_that_breaks_a_line(monkeypatch):
    """Its text travels in pieces too: of a client to the scheduler, of that to an agent."""
    source = NOISE.replace(str(SIZE), "8") + "# é\n" * (TEXT_BYTES // 7)

    def check(pace):
        takes = soon_silent(monkeypatch, pace)
        with running(NOISE, name="other") as run, Proxy(rate=len(source) / takes) as proxy:
            host, _, port = run.address.removeprefix("tcp://").rpartition(":")
            proxy.to = host, int(port)
            with Client(proxy.address, run.keys, 20 * pace) as client:
                said = client._ask("submit", name="numbers", version=0, file="made.py",
                                   source=source, settings=settings_in(source))
                assert said["what"] == "new" and proxy.connections == 1
            agent = RunningAgent(proxy.address, run.keys, 1)
            run.agents.append(agent)
            (ring,) = run.supply(x_of(4, np.uint8, 8), 4)
            assert len(ring.next(20 * pace)["x"]) == 4
            assert agent.agent.pipelines["numbers", 1]["source"] == source
            assert proxy.connections == 2

    at_some_pace(check, (1, 8))


def test_a_far_worker_is_asked_for_what_is_on_its_way(elsewhere, monkeypatch):
    """An answer that takes ten times as long as its piece: ten more pieces are asked for."""
    made, whole = [], consumer.WorkerConnection
    source = NOISE.replace(str(SIZE), "8").replace("range(100)", "range(10**6)")
    with running(source) as run, Proxy(delay=0.1) as proxy:
        monkeypatch.setattr(consumer, "WorkerConnection", proxy.reached(
            lambda *of: made.append(whole(*of)) or made[-1]))
        run.workers(1)
        (ring,) = run.supply(x_of(1, np.uint8, 8), 1, depth=4)
        for _ in range(12):
            assert len(ring.next()["x"]) == 1
        (one,) = made
        assert one.credits(0.02) >= 12 and one.credits(0.0) == 2 and one.credits(1e-6) <= 80


def test_a_line_says_why_it_does_not_stand(monkeypatch, closed):
    monkeypatch.setattr(sockets, "REFUSED_S", 0.2)
    keys, (public, secret), (other, _) = made_for_a_run(), pair(), pair()
    allowed = set()
    lines = Lines(keys, allowed.__contains__)
    address = lines.router("tcp://127.0.0.1:*", secret, public).last_endpoint.decode()
    found = {}
    for why, where, key in (("nobody listens there", closed, public),
                            (REFUSED_KEY, address, public), (OTHER_KEY, address, other)):
        watch = found[why] = lines.watch(lines.dealer(where, key, new_id()))
        until(lambda watch=watch, why=why: not watch.broke() and why in watch.why())
        assert watch.away() > 0
    for _ in range(20):  # it is tried on, which changes nothing of what is said
        time.sleep(0.05)
        assert not found[OTHER_KEY].broke() and found[OTHER_KEY].why() == OTHER_KEY
    allowed.add(keys.public)  # without starting anything anew
    until(lambda: not found[REFUSED_KEY].broke() and found[REFUSED_KEY].stands)
    with pytest.raises(UsageError, match="HOST:PORT"):
        lines.dealer("tcp://no-such-host.invalid:5", public, new_id())
    lines.close()


def test_what_a_scheduler_heard_before_its_death_is_asked_again():
    served = Served("tcp://127.0.0.1:*", keys := made_for_a_run())
    with Proxy() as proxy, ThreadPoolExecutor(1) as pool:
        host, _, port = served.scheduler.address.removeprefix("tcp://").rpartition(":")
        proxy.to = host, int(port)
        client = Client(proxy.address, keys, PATIENCE)
        asked = pool.submit(client.status)
        until(lambda: received(served.scheduler.router))  # nobody will answer this one
        proxy.cut()
        thread = threading.Thread(target=served.scheduler.run, daemon=True)
        thread.start()
        assert asked.result(PATIENCE)["pipelines"] == client.status()["pipelines"] == []
        client.close()
    served.scheduler.stopping.say("over")
    thread.join(PATIENCE)
    served.close()


def test_a_long_text_is_waited_for_while_its_line_stands():
    """Longer than the time limit of a client: it may be under way."""
    source = NOISE + "#" * TEXT_BYTES
    served = Served("tcp://127.0.0.1:*", keys := made_for_a_run())
    with Client(served.scheduler.address, keys, timeout=0.2) as client, (
            ThreadPoolExecutor(1)) as pool:
        watch = client._lines.watch(client._line)
        until(lambda: not watch.broke() and watch.stands)
        asked = pool.submit(client._ask, "submit", name="numbers", version=0, file="made.py",
                            source=source[:TEXT_BYTES], settings=settings_in(NOISE))
        time.sleep(0.6)
        thread = threading.Thread(target=served.scheduler.run, daemon=True)
        thread.start()
        assert asked.result(PATIENCE)["what"] == "new"
    served.scheduler.stopping.say("over")
    thread.join(PATIENCE)
    served.close()


def test_a_flood_that_breaks_off_ends_nobody(monkeypatch):
    """libzmq would abort this process: its issue 4767."""
    monkeypatch.setattr(sockets, "HEARTBEAT_MS", 50)

    def check(pace):
        keys, (public, secret) = made_for_a_run(), pair()
        lines, other = Lines(keys), Lines(keys)
        router = lines.router("tcp://127.0.0.1:*", secret, public)
        flood = other.dealer(router.last_endpoint.decode(), public, new_id())
        for _ in range(3 * sockets.MESSAGES):
            flood.send(b"x" * 100)
        other.close(linger_ms=8_000 * pace)
        time.sleep(0.3)  # several heartbeats
        heard = 0
        while heard < 3 * sockets.MESSAGES and router.poll(8_000 * pace):
            heard += received(router) is not None
        lines.close()
        assert heard == 3 * sockets.MESSAGES  # all of them, unless the line broke meanwhile

    at_some_pace(check)


def test_a_worker_without_a_line_is_named_and_others_are_asked(
        elsewhere, closed, monkeypatch, capfd):
    monkeypatch.setattr(consumer, "TOGETHER_S", 0.1)
    whole = consumer.WorkerConnection

    def check(pace):
        # The other one has a line by then.
        monkeypatch.setattr(worker_connection, "AWAY_S", 0.3 * pace)
        capfd.readouterr()
        with running(NOISE.replace(str(SIZE), "8")) as run, (
                Client(run.address, run.keys, PATIENCE)) as client:
            first = run.workers(2).wait_for_workers(2)
            behind = run.agents[0].agent.workers[0].worker
            monkeypatch.setattr(consumer, "WorkerConnection", lambda lines, assigned, *more: whole(
                lines, {**assigned, "address": closed} if assigned["worker"] == behind
                else assigned, *more))
            (ring,) = run.supply(x_of(4, np.uint8, 8), 4)
            batches = [ring.next()["x"] for _ in range(24)]
            warning = until(
                lambda: [w for w in client.status()["warnings"] if " no line to " in w])
            batches.append(ring.next()["x"])
            assert ring.next() is None and len(np.concatenate(batches)) == 100
            assert "to 1 worker of" in warning[0] and "nobody listens there" in warning[0]
            said = until(lambda: capfd.readouterr().err)
            assert f"no line to worker {behind} at {closed}" in said and "try: " in said
            assert first == run.agents[0].pids()

    at_some_pace(check)


def test_who_takes_nothing_takes_no_memory_from_others():
    """Results that lie unread fill no more than the worker's part; whoever reads goes on."""
    with running(NOISE.replace("range(100)", "range(10**6)")) as run:
        agent = run.workers(1, memory=128 << 20)
        agent.wait_for_workers(1)
        said = agent.agent.workers[0].said
        run.supply(x_of(1, np.uint8, SIZE), 1)[0].next()  # the worker has the pipeline now
        lines = Lines(run.keys)
        field = {"name": "x", "dtype": "|u1", "shape": [SIZE]}

        def ask(count):
            line = lines.dealer(f"tcp://127.0.0.1:{said['port']}", said["key"], new_id())
            numbers = [new_id() for _ in range(count)]
            line.send_multipart(encode(
                "take", pipeline="numbers", version=1, newest_first=False,
                fields=[field], work=[[n, i, 1, i, []] for i, n in enumerate(numbers)]))
            return line, numbers

        slow, asked = ask(64)  # 192 MiB
        time.sleep(1.0)
        other, _ = ask(1)
        assert given_to(other).kind == "given"
        had = [given_to(slow)["id"]]
        while found := given_to(slow, 0.4):
            had.append(found["id"])
        assert 0 < len(had) * SIZE <= 128 << 20
        slow.send_multipart(encode("free", ids=had))
        while len(had) < len(asked):
            had.append(given_to(slow)["id"])
            slow.send_multipart(encode("free", ids=had[-1:]))
        assert had == asked
        lines.close()
