"""Malformed frames against a live scheduler, an agent, a consumer; odd bytes and descriptors at the
Unix sockets. Run by fuzz_frames.py: nobody ends, nobody leaks, and a proper request is answered.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
import time
from array import array
from contextlib import suppress

from spmd import InputError
from spmd.feeding.clients.client import Client
from spmd.feeding.consumers.worker_connection import WorkerConnection
from spmd.feeding.messages.keys import made_for_a_run
from spmd.feeding.messages.sockets import Lines, received
from spmd.feeding.messages.wire import MalformedMessage, decode, new_id
from spmd.feeding.results.shared_results import HANDED, HELLO, ResultReader, ResultSharer
from tests.conftest import PATIENCE, until
from tests.feeding.feeding_kit import RunningAgent, running
from tests.feeding.fuzz_frames import BETWEEN, SOURCE, changed

CODECS = (b'"none"', b'"lz4"', b'"zstd"', b"null")


def fuzz_scheduler(count: int, seed: int) -> float:
    """The longest time that a client waited for its answer, in seconds."""
    chance, slowest = random.Random(seed), 0.0
    with running(SOURCE) as run, Client(
            run.address, run.keys, PATIENCE) as client:
        lines = Lines(run.keys)
        fuzzer = lines.dealer(run.address, run.keys.server, new_id())
        for sent in range(count):
            if sent % BETWEEN == 0:
                began = time.monotonic()
                assert "scheduler" in client.status()
                slowest = max(slowest, time.monotonic() - began)
            fuzzer.send_multipart(changed(chance))
            while received(fuzzer):
                pass
        # What this client asks may overtake what the other one sent.
        until(lambda: client.status()["scheduler"]["counts"].get("malformed", 0) > count // 2)
        counts = client.status()["scheduler"]["counts"]
        assert not counts.get("defects"), counts
        lines.close()
    return slowest


def fuzz_agent(count: int, seed: int) -> None:
    """A scheduler that says odd things to an agent: it keeps its worker, and beats."""
    chance, keys = random.Random(seed), made_for_a_run()
    lines = Lines(keys)
    router = lines.router("tcp://127.0.0.1:*", keys.server_secret, keys.server)
    agent = RunningAgent(router.last_endpoint.decode(), keys, 1)
    (pid,) = agent.wait_for_workers(1)
    peer = bytes(heard(router)[0])
    for sent in range(count):
        frames = changed(chance)
        with suppress(MalformedMessage):
            if decode(frames).kind == "stop":
                continue
        router.send_multipart([peer, *frames])
        if sent % BETWEEN == 0:
            heard(router)
    while decode(heard(router)[1:]).kind != "beat":
        pass
    assert agent.pids() == [pid] and agent.thread.is_alive()
    agent.close()
    lines.close()


def heard(router) -> list:
    """The newest message of an agent: it beats twice a second."""
    assert router.poll(1000 * PATIENCE), "the agent says nothing"
    newest = None
    while frames := received(router):
        newest = frames
    return newest


def fuzz_results(count: int, seed: int) -> int:
    """What a worker might give: arrays of the fields, or InputError. How many were arrays."""
    chance, given = random.Random(seed), 0
    one = WorkerConnection.__new__(WorkerConnection)
    one.worker, one.assigned, one.reading = new_id(), {"address": "tcp://there:1"}, None
    fields = [{"name": "x", "dtype": "<f4", "shape": []}]
    for _ in range(count):
        with suppress(MalformedMessage, InputError):
            header, *frames = changed(chance, "given")
            message = decode([header.replace(b'"lz4"', chance.choice(CODECS)), *frames])
            found = one.arrays_of_frames(message, fields, 1)
            given += found["x"].nbytes == 4
    return given


def fuzz_unix_sockets(count: int, seed: int) -> None:
    """Strangers at a worker's socket; a worker that hands over odd things."""
    chance, handing = random.Random(seed), ResultSharer(1 << 24)
    before = len(os.listdir("/proc/self/fd"))
    for sent in range(count):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger, suppress(
                BlockingIOError):
            stranger.connect("\0" + handing.local)
            said = HELLO.pack(chance.randbytes(16), handing.secret.encode())
            stranger.send(chance.choice((chance.randbytes(chance.randrange(1, 300)), said)))
            handing.attend()
        if sent % BETWEEN == 0:
            proper = ResultReader(me := new_id(), handing.local, handing.secret)
            handing.attend()
            region = handing.lend(me, new_id(), 5000)
            assert proper.region(region.number) is not None
            handing.leave(me)
            proper.close()
    for who in handing.heard()[1]:
        handing.leave(who)
    assert len(os.listdir("/proc/self/fd")) <= before
    handing.close()
    _hand_over_odd_things(chance, count)


def _hand_over_odd_things(chance: random.Random, count: int) -> None:
    name = f"\0spmd-fuzz-{new_id()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, (
            tempfile.TemporaryFile()) as file:
        listening.bind(name)
        listening.listen(1)
        memory = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 4096)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        reading = ResultReader(new_id(), name[1:], "s" * 32)
        worker, _ = listening.accept()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(count):
            said = HANDED.pack(chance.randrange(4), chance.choice((0, 1, 4096, 4097, 1 << 62)))
            said = chance.choice((said, said[:-1], chance.randbytes(chance.randrange(1, 40))))
            fds = chance.sample([memory, file.fileno(), 0], chance.randrange(4))
            worker.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))])
            assert reading.attend()
            assert all(len(m) in (1, 4096) for m in reading._memory.values())
        assert len(os.listdir("/proc/self/fd")) <= before + 4
        os.close(memory)
        worker.close()
        assert not reading.attend()
        reading.close()
