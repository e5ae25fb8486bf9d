"""How results get from workers to consumers: shared memory, frames, codecs; and strangers, who get
nothing."""

from __future__ import annotations

import os
import random
import shutil
import socket
import stat
import threading
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zmq.auth import create_certificates, load_certificate

from spmd import InputError, UsageError
from spmd.feeding.consumers import consumer
from spmd.feeding.consumers.piece_ledger import PieceLedger
from spmd.feeding.consumers.worker_connection import WorkerConnection
from spmd.feeding.messages import sockets
from spmd.feeding.messages.keys import made_for_a_run, make_folder, pair, read_folder
from spmd.feeding.messages.sockets import GONE, SENT, Lines, received, send_to
from spmd.feeding.results.compression import Link, packed, unpacked
from spmd.feeding.results.shared_results import HANDED, HELLO, SHORT, ResultReader, ResultSharer
from tests.conftest import PATIENCE
from tests.feeding.feeding_kit import Field, running, x_of

WIDE = """
import numpy as np
import spmd.data as data

@data.pipeline(source=data.range(1000), shuffle=False, compress={codec!r})
def numbers(example): return {{"x": np.full(4096, example, np.float32)}}
"""

PLAIN = """
import spmd.data as data

@data.pipeline(source=data.range(400), epochs=1)
def numbers(example): return {"x": example}
"""


@pytest.mark.parametrize("codec", ["auto", "lz4", "zstd"])
def test_another_host_gets_frames(monkeypatch, codec):
    monkeypatch.setattr(consumer, "host_name", lambda: "another host")
    with running(WIDE.format(codec=codec)) as run:
        run.workers(1)
        (ring,) = run.supply([Field("x", (32, 4096), np.float32)], 32)
        for k in range(6):
            batch = ring.next()["x"]
            assert (batch == np.arange(32 * k, 32 * k + 32)[:, None]).all()


@pytest.fixture
def handing():
    handing = ResultSharer(3 << 20)
    yield handing
    handing.close()


def greeted(handing, consumer="0123456789abcdef"):
    reading = ResultReader(consumer, handing.local, handing.secret)
    handing.attend()
    return reading


def test_a_region_is_written_again_only_when_it_was_freed(handing):
    reading = greeted(handing)
    one = handing.lend("0123456789abcdef", "a", 1 << 20)
    one.memory[:3] = b"one"
    two = handing.lend("0123456789abcdef", "b", 1 << 20)
    assert bytes(reading.region(one.number)[:3]) == b"one" and two.number != one.number
    with pytest.raises(TypeError):
        reading.region(one.number)[0] = 0
    handing.free("a")
    assert handing.lend("0123456789abcdef", "c", 1 << 20) is one
    assert handing.lend("0123456789abcdef", "d", 2 << 20) is None  # no more than it may hold
    reading.close()
    assert handing.heard() == ([], ["0123456789abcdef"])
    handing.leave("0123456789abcdef")
    assert handing.used == 0


def test_short_messages_go_with_the_regions(handing):
    """In order, as many as there is room for; long ones go another way."""
    reading, me = greeted(handing), "0123456789abcdef"
    assert reading.say(b"a") and reading.say(b"b") and not reading.say(b"c" * (SHORT + 1))
    assert handing.heard() == ([(me, b"a"), (me, b"b")], [])
    region = handing.lend(me, "1", 4096)
    assert handing.say(me, b"x" * HANDED.size * 2) and not handing.say("nobody", b"y")
    assert reading.attend() and reading.region(region.number) is not None
    assert reading.heard() == b"x" * HANDED.size * 2 and reading.heard() is None
    said = 0
    while handing.say(me, b"z" * 1000):
        said += 1
    found = 0
    while reading.attend() and reading.heard():
        found += 1
        while reading.heard():
            found += 1
    assert found == said > 10


def test_a_region_is_found_behind_many_messages(handing):
    """What names it may have come another way, before any of them was read."""
    reading, me = greeted(handing), "0123456789abcdef"
    assert all(handing.say(me, b"%d" % k) for k in range(200))
    region = handing.lend(me, "1", 5000)
    assert reading.region(region.number) is not None
    assert [reading.heard() for _ in range(201)] == [*(b"%d" % k for k in range(200)), None]


@pytest.mark.parametrize("said", [HELLO.pack(b"0123456789abcdef", b"0" * 32), b"", b"x" * 300])
def test_who_does_not_know_the_secret_gets_nothing(handing, said):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect("\0" + handing.local)
        stranger.send(said)
        handing.attend()
        stranger.settimeout(PATIENCE)
        assert stranger.recv(10) == b"" and handing.peers == {}


def test_strangers_reach_no_router():
    keys = made_for_a_run()
    mine, known, stranger = Lines(keys), Lines(keys), Lines(made_for_a_run())
    public, secret = pair()
    router = mine.router("tcp://127.0.0.1:*", secret, public)
    address = router.last_endpoint.decode()
    stranger.dealer(address, public, "stranger").send(b"let me in")
    known.dealer(address, pair()[0], "misled").send(b"is it you?")
    line = known.dealer(address, public, "known")
    line.send(b"hello")
    assert router.poll(1000 * PATIENCE)
    assert [bytes(f) for f in received(router)] == [b"known", b"hello"]
    assert router.poll(300) == 0
    assert send_to(router, b"known", [b"yes"]) == SENT and send_to(router, b"other", [b"?"]) == GONE
    for lines in (mine, known, stranger):
        lines.close()


def test_keys_of_a_folder(tmp_path):
    folder = make_folder(str(tmp_path / "keys"))
    assert read_folder(str(folder)).public in read_folder(str(folder), scheduler=True).allowed
    with pytest.raises(UsageError, match="holds keys already"):
        make_folder(str(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for who in ("server", "client"):
        assert stat.S_IMODE((folder / f"{who}.secret").stat().st_mode) == 0o600
    os.chmod(folder / "client.secret", 0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_folder(str(folder))


def test_bare_keys_and_certificates_are_read(tmp_path):
    """Folders of older versions hold one line in each file. Any certificate may be let in."""
    folder = tmp_path / "keys"
    (folder / "allowed").mkdir(parents=True)
    (server, server_secret), (client, secret) = pair(), pair()
    for name, value in (("server.key", server), ("server.secret", server_secret),
                        ("client.key", client), ("client.secret", secret)):
        (folder / name).write_text(value + "\n")
        (folder / name).chmod(0o600)
    create_certificates(folder / "allowed", "ada")
    ada = load_certificate(folder / "allowed" / "ada.key")[0].decode()
    keys, ours = read_folder(str(folder)), read_folder(str(folder), scheduler=True)
    assert (keys.server, keys.public, keys.secret) == (server, client, secret)
    assert (ours.server_secret, ours.allowed) == (server_secret, {client, ada})
    for text in ("", "x" * 40, "public-key = short", "\0" * 1000):
        (folder / "allowed" / "ben.key").write_text(text)
        if text == "x" * 40:
            assert len(read_folder(str(folder)).allowed) == 3
            continue
        with pytest.raises(UsageError, match="ben.key: expected a public key: a certificate"):
            read_folder(str(folder))
    (folder / "allowed" / "ben.key").unlink()
    shutil.copy(folder / "allowed" / "ada.key", folder / "client.secret")
    (folder / "client.secret").chmod(0o600)
    with pytest.raises(UsageError, match="client.secret: expected a secret key"):
        read_folder(str(folder))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["none", "lz4", "zstd"]), st.binary(max_size=2000), st.integers(0, 4000))
def test_what_is_unpacked_has_the_length_that_was_said(codec, data, size):
    assert bytes(unpacked(packed(data, codec), codec, len(data))) == data
    for wrong, length in ((packed(data, codec), size), (data, size)):
        try:
            assert len(bytes(unpacked(wrong, codec, length))) == length
        except InputError as error:
            assert "unpacked" in str(error) or "length" in str(error)


def test_compression_only_where_it_pays():
    zeros, noise = bytes(1 << 20), np.random.default_rng(0).bytes(1 << 20)
    slow, fast = Link(), Link()
    slow.speed, fast.speed = 1e6, 1e12
    assert slow.codec("x", memoryview(zeros)) != "none"
    assert slow.codec("y", memoryview(noise)) == "none"
    assert fast.codec("x", memoryview(zeros)) == "none"
    assert Link("zstd").codec("x", memoryview(noise)) == "zstd"


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_filled_once_whatever_is_lost_or_answered_twice(seed):
    """PieceLedger alone: answers in any order, some twice, workers lost at any time."""
    chance = random.Random(seed)
    batch, n = chance.randint(1, 12), chance.randint(0, 60)
    cuts = sorted(chance.sample(range(batch + 1), 2 * chance.randint(1, (batch + 1) // 2)))
    segments = list(zip(cuts[::2], cuts[1::2])) if chance.random() < 0.5 else [(0, batch)]
    ahead, span = chance.choice([(2, 1), (8, 4)])  # in the second case pieces have several batches
    ledger = PieceLedger(segments, batch, 0, masked=chance.random() < 0.5)
    ledger.examples_at_once = chance.randint(1, 5)
    seen: list[int] = []
    while not ledger.has_ended():
        ledger.cut_batches(ledger.next + ahead, chance.randint(1, 4), ahead, span)
        worker, how = chance.choice("abc"), chance.randrange(9)
        if ledger.waiting and how < 4:
            ledger.request(worker, 0.0)
        elif ledger.requests:
            number = chance.choice(sorted(ledger.requests))
            if how == 4:
                ledger.requeue(ledger.requests_to(worker))
            elif how == 5:
                ledger.request_again(number, worker, 0.0)
            elif how == 6:
                ledger.split(number)
            else:
                piece = ledger.requests[number].piece
                there = max(0, min(piece.count, n - piece.first))
                rows = np.arange(piece.first, piece.first + piece.count)
                ledger.record(number, {"x": rows}, there, None, n,
                            chance.choice([1e-6, 0.4]))
        while found := ledger.pop_batch():
            k, batches, pieces = found
            for one in pieces:
                assert len(one.arrays["x"]) == one.piece.count
                cut = one.rows_of(k, batches)
                there = [True] * one.piece.count if one.there is None else one.there
                seen += [int(p) for p, there in zip(one.arrays["x"][cut], there[cut]) if there]
    last = n if ledger.masked else n - n % batch
    assert seen == [p for p in range(last) if any(b <= p % batch < e for b, e in segments)]


def test_memory_that_a_worker_gives_up_is_let_go(handing):
    reading = greeted(handing)
    one = handing.lend("0123456789abcdef", "a", 2 << 20)
    assert reading.region(one.number)
    handing.free("a")
    assert handing.lend("0123456789abcdef", "b", 5 << 19), "there is room where that was"
    assert reading.attend() and reading.region(one.number) is None


class Between:
    """A way to an address, which can be cut: what is under way is lost."""

    def __init__(self, address):
        self.to = ("127.0.0.1", int(address.rpartition(":")[2]))
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        self.ends = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, far = self.listening.accept()[0], socket.create_connection(self.to)
            self.ends += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(a, b), daemon=True).start()

    def carry(self, a, b):
        try:
            while data := a.recv(1 << 16):
                b.sendall(data)
        except OSError:
            pass

    def cut(self):
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.ends.clear()


def test_a_line_that_breaks_loses_nothing(monkeypatch):
    ways = []

    def through(lines, assigned, *_):
        ways.append(Between(assigned["address"]))
        return WorkerConnection(lines, {**assigned, "address": ways[-1].address}, "elsewhere")

    monkeypatch.setattr(consumer, "WorkerConnection", through)
    with running(PLAIN) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(20), 20)
        seen = []
        for k in range(20):
            seen += ring.next()["x"].tolist()
            if k in (3, 9):
                ways[-1].cut()
        assert sorted(seen) == list(range(400)) and ring.next() is None


def test_what_others_leave_no_time_for_is_asked_of_those_with_a_share():
    """Soon, and before other pieces; where nobody has a share, after the time for any worker."""
    ledger = PieceLedger([(0, 8)], 8, 0, masked=False)
    ledger.example_s = 0.01
    ledger.cut_batches(2, 1, 2, small=True)
    assert len(ledger.waiting) > 8, "pieces of one example: each takes long enough"
    number = ledger.request("spare", 0.0, True)[0]
    assert ledger.overdue_request(0.012) is None
    assert ledger.overdue_request(0.05) == number and ledger.waiting
    assert ledger.overdue_request(0.05, has_own=False) is None
    assert ledger.overdue_request(0.5, has_own=False) == number
    ledger.request_again(number, "other", 0.5, True)
    assert ledger.overdue_request(0.51) is None
    assert ledger.workers_asked(number) == {"spare", "other"}
    assert ledger.overdue_request(0.55) in ledger.requests, "also that one may have no time"
    again = ledger.request_again(number, "own", 0.55)[0]
    assert ledger.overdue_request(60.0) is None, "there are others to ask for first"
    ledger.record(again, {}, 1, None, None, 0.01, 0.56)
    ledger.record(number, {}, 1, None, None, 0.01, 60.0)
    assert ledger.round_trip_s == pytest.approx(0.01), "its wait there says nothing of others"


@pytest.mark.parametrize(("together", "lies"), [(1, [(24, 2), (26, 2)]), (4, [(24, 4), (28, 4)])])
def test_pieces_that_take_long_are_cut_once_that_is_known(together, lies):
    """Who comes to a worker meanwhile waits for one piece."""
    ledger = PieceLedger([(0, 24)], 24, 0, masked=False)
    ledger.cut_batches(2, 1, 2)
    first = ledger.request("a", 0.0)
    assert first[1:3] == [0, 24], "nothing is known of it"
    ledger.examples_at_once = together
    ledger.record(first[0], {}, 24, None, None, 24 * 0.1)
    assert ledger.pop_batch()[0] == 0
    asked = [ledger.request("a", 0.0) for _ in range(2)]
    assert [(at, count) for _, at, count, *_ in asked] == lies
    while item := ledger.request("a", 0.0):
        asked.append(item)
    for number, _, count, *_ in asked:
        assert ledger.pop_batch() is None
        ledger.record(number, {}, count, None, None, count * 0.1)
    assert [one.piece.first for one in ledger.pop_batch()[2]] == [at for _, at, *_ in asked]
    assert sum(count for _, _, count, *_ in asked) == 24


def test_the_newest_batch_takes_no_rows_of_others():
    """Answers of an older worker come after a newer batch has taken the place of theirs."""
    ledger = PieceLedger([(0, 2)], 2, 0, masked=False)
    ledger.cut_batches(2, 1, 2)
    old, new = (ledger.request(w, 0.0) for w in "ab")
    again = ledger.request_again(new[0], "c", 0.0)
    ledger.record(new[0], {}, 2, None, None, 0.1)
    assert ledger.pop_batch(newest_first=True)[2][0].piece.first == 2
    assert ledger.batch_of(0) == 1, "batch 0 is the second one now"
    assert not ledger.record(again[0], {}, 2, None, None, 0.1)
    ledger.record(old[0], {}, 2, None, None, 0.1)
    assert ledger.pop_batch(newest_first=True)[2][0].piece.first == 0


def test_who_waits_for_no_scheduler_goes_on(monkeypatch):
    """More rates than a line to a scheduler that is away can hold."""
    monkeypatch.setattr(sockets, "MESSAGES", 4)
    monkeypatch.setattr(consumer, "RATE_S", 0.0)
    with running(PLAIN) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(20), 20)
        ring.next()
        run.served.scheduler.stopping.say("away")
        run.thread.join()
        run.served.scheduler.router.close(0)
        for _ in range(19):
            ring.next()
        assert ring.next() is None
