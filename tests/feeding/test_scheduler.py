"""The scheduler in real processes: who joins, leaves or is killed, priorities, strangers, pages."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request

import numpy as np
import pytest

from spmd import PeerError, UsageError
from spmd.feeding.clients.client import Client
from spmd.feeding.messages.keys import Keys, made_for_a_run, zmq
from spmd.feeding.messages.sockets import Lines
from spmd.feeding.messages.wire import encode, new_id
from tests.conftest import PATIENCE, at_some_pace, until
from tests.feeding.served_kit import ServedProcess

pytestmark = pytest.mark.slow  # it waits for processes of its own


@pytest.fixture
def served(tmp_path):
    one = ServedProcess(tmp_path)
    yield one
    one.close()


def shares(status):
    return {c["ranks"]: c["workers"] for c in status["consumers"]}


def test_ranks_are_fed_and_a_dead_agent_is_replaced(served):
    """A rank takes 1000 examples/s, a worker makes about 500: it needs two, of six."""
    doomed = served.worker(3)
    served.worker(3)
    served.submit("numbers", 0.002, "seed=3")
    served.workers_come(6)
    rank = served.rank("numbers", seconds=0.1)

    def settled():
        """As many workers as the rate says that the rank itself has, and it waits for none."""
        (consumer,), mine = served.status()["consumers"], 100 * len(rank.seen) / rank.ring.busy
        return (consumer["rate"] == pytest.approx(mine, rel=0.1)
                and consumer["needs"] is not None
                and abs(len(consumer["workers"]) - np.ceil(consumer["needs"])) <= 1
                and rank.starved(0.5) < 0.02)

    until(lambda: rank.ring.busy and served.status()["consumers"])
    until(settled, 300)
    doomed.send_signal(signal.SIGKILL)
    until(lambda: len(served.status()["workers"]) == 3)
    until(settled, 300)
    assert not rank.error
    rank.over.set()
    rank.thread.join(PATIENCE)
    seen = np.concatenate(rank.seen)
    assert len(np.unique(seen)) == len(seen), "no example came twice"


def test_a_killed_scheduler_comes_again_and_nobody_stops(served):
    """Limits are wide: on a busy machine Python alone starts in seconds."""
    agent = served.worker(2)
    served.submit("numbers", 0.0005, user="ada")
    served.workers_come(2)
    rank = served.rank("numbers", seconds=0.1)
    until(lambda: len(rank.seen) > 3)
    workers = {w["worker"] for w in served.status()["workers"]}
    served.kill_scheduler()

    def goes_on(batches):
        """More than what was made before."""
        before = len(rank.seen)
        until(lambda: rank.error or len(rank.seen) > before + batches)
        assert not rank.error

    goes_on(3 * rank.ring.depth)  # nobody needs the scheduler
    served.start()
    until(lambda: shares(served.status()).get("rank 0"))
    until(lambda: {w["worker"] for w in served.status()["workers"]} == workers)
    pipeline, = served.status()["pipelines"]
    assert pipeline["user"] == "ada" and pipeline["state"] == "running"
    goes_on(3 * rank.ring.depth)
    agent.send_signal(signal.SIGTERM)
    until(lambda: not served.status()["workers"])
    assert {c["host"] for c in served.status()["consumers"]} == {socket.gethostname()}
    assert agent.wait(PATIENCE) == 0


def test_priorities_updates_and_cancelling(served):
    served.submit("low", 0.002, "priority=1")
    served.submit("high", 0.002, "priority=5")
    served.worker(1)
    served.workers_come(1)
    with served.client() as client:
        with pytest.raises(UsageError, match="no pipeline"):
            client.status("hihg")
        low = served.rank("low")
        assert client.wait("low", "running", PATIENCE)["workers"] == 1
        high = served.rank("high")
        client.wait("high", "running", PATIENCE)
        row = until(lambda: (row := client.status("low"))["state"] == "pending" and row)
        assert row["why"].startswith("pipelines of higher priority have all workers: high")
        assert any(w.startswith("low waits: ") for w in client.status()["warnings"])
        count = len(high.seen)
        assert client.update("low", priority=9, max_workers=1)["settings"]["priority"] == 9
        until(lambda: client.status("high")["state"] == "pending")
        assert client.status("low")["version"] == 1, "nothing is loaded anew for a priority"
        served.worker(1)
        until(lambda: {p["state"] for p in client.status()["pipelines"]} == {"running"})
        until(lambda: len(high.seen) > count)
        with pytest.raises(Exception, match="seed of a running pipeline cannot be changed"):
            client.update("low", seed=7)
        with pytest.raises(Exception, match="is running, and what you submit differs"):
            served.submit("low", 0.5)
        assert client.cancel("low")["runs"] == 1
        until(lambda: low.error)
        assert "pipeline low was cancelled by " in str(low.error)
        assert "batches that this process took" in str(low.error)
        assert "goes on with --resume" in str(low.error)
        high.close()
        assert client.wait("high", timeout=PATIENCE)["state"] == "idle"
        with pytest.raises(PeerError, match="is not running after"):
            client.wait("high", "running", 0.3)


def test_what_a_higher_priority_does_not_use_is_not_lost(served):
    """It holds both workers and uses little of them; the lower one has the rest, and is told so."""
    served.submit("low", 0.001, "priority=1")
    served.submit("high", 0.001, "priority=5, workers=2")
    served.submit("capped", 0.001, "priority=1, cost=9.0")
    served.worker(2)
    served.workers_come(2)
    high = served.rank("high", seconds=0.2)
    with served.client() as client:
        until(lambda: client.status("high")["workers"] == 2)
        low, capped = served.rank("low", seconds=0.01), served.rank("capped")
        row = until(lambda: (row := client.status("low"))["spare"] == 2 and row)
        assert (row["state"], row["workers"]) == ("pending", 0)
        assert row["why"].startswith("pipelines of higher priority have all workers: high")
        assert "until then it has what others leave of their time" in row["why"]
        until(lambda: len(low.seen) > 40)
        assert client.status("high")["workers"] == 2 and not capped.seen
        assert "with its limits it has nothing of what" in client.status("capped")["why"]
        before = len(high.seen)
        until(lambda: len(high.seen) > before + 5)
        client.update("low", priority=9, workers=2)
        until(lambda: (client.status("low")["workers"], client.status("high")["spare"]) == (2, 2))
        counts = len(low.seen), len(high.seen)
        until(lambda: len(low.seen) > counts[0] + 20 and len(high.seen) > counts[1] + 2)
    for rank in (low, high):
        assert not rank.error
        seen = np.concatenate(rank.seen)
        assert len(np.unique(seen)) == len(seen), "no example came twice"


def test_who_waits_for_a_run_hears_of_its_end(served):
    """Also of a scheduler that was killed behind that end; and once for each run."""
    served.submit("numbers", 0.0001)
    served.worker(1)
    served.workers_come(1)
    with served.client() as client:
        with pytest.raises(PeerError, match="idle: no run has taken it$"):
            client.wait("numbers", timeout=0.5)
        for _ in range(2):
            rank = served.rank("numbers")
            until(lambda: rank.seen)
            with pytest.raises(PeerError, match="not done after"):
                client.wait("numbers", timeout=0.5)
            rank.close()
            assert client.wait("numbers", timeout=PATIENCE)["consumers"] == 0
            with pytest.raises(PeerError, match="since it was done"):
                client.wait("numbers", timeout=0.5)
    served.kill_scheduler()
    served.start()
    with served.client() as client:
        row = client.wait("numbers", timeout=PATIENCE)
        assert {run["run"] for run in row["runs"]} == {"test"} and len(row["runs"]) == 2
        with pytest.raises(PeerError, match="not done"):
            client.wait("numbers", timeout=0.3, run="another")


def test_a_run_goes_on_with_the_source_with_which_it_began(served):
    """Whatever is submitted meanwhile, whoever is killed; later runs take the new source."""
    served.worker(2)
    served.submit("numbers", 0.0002, "shuffle=False")
    both = [served.rank("numbers", batch=50, seconds=0.02)]
    until(lambda: len(both[0].seen) > 5)
    file = served.folder / "numbers.py"
    file.write_text(file.read_text().replace("np.array(examples", "-np.array(examples"))
    with served.client() as client:
        found = client.update("numbers", source=file, priority=7)
        assert (found["version"], found["runs_before"]) == (2, 1)
        assert client.status("numbers")["versions"] == {"1": 1}
        both.append(served.rank("numbers", batch=50, seconds=0.02))
        until(lambda: len(both[1].seen) > 5)
        assert client.status("numbers")["versions"] == {"1": 1, "2": 1}
    served.kill_scheduler()
    served.start()
    counts = [len(rank.seen) for rank in both]
    served.worker(2)
    served.workers_come(4)
    until(lambda: all(len(r.seen) > c + 20 for r, c in zip(both, counts)))
    for rank, sign in zip(both, (1, -1)):
        rank.close()
        assert np.array_equal(np.concatenate(rank.seen), sign * np.arange(len(rank.seen) * 50))


def test_strangers_and_malformed_frames_are_counted_and_harm_nobody(served):
    stranger = made_for_a_run()
    theirs = Keys(served.keys.server, stranger.public, stranger.secret, frozenset())

    def is_refused(pace):
        with Client(served.address, theirs, 0.6 * pace) as client, (
                pytest.raises(PeerError, match="has other keys than we")):
            client.status()

    at_some_pace(is_refused)
    plain = zmq.Context()
    without = plain.socket(zmq.DEALER)
    without.linger = 0
    without.connect(served.address)
    without.send(b"{}")
    lines = Lines(served.keys)
    line = lines.dealer(served.address, served.keys.server, new_id())
    other = new_id()
    for frames in ([b""], [b"{"], [b"\xff" * 1000], [b'{"wire":1,"kind":"nothing"}'],
                   [b'{"wire":1,"kind":"join"}'], [b"[]", b"x"] * 3,
                   encode("given", id=other, rows=1, arrays=[], broken=[], seconds=0.0)):
        line.send_multipart(frames)
    line.send_multipart(encode("beat", agent=other, workers={}))
    assert line.poll(1000 * PATIENCE) and b'"who"' in line.recv_multipart()[0]
    found = until(lambda: (s := served.status())["scheduler"]["counts"].get("malformed") == 7 and s)
    assert found["scheduler"]["counts"]["strangers"] >= 1
    assert "defects" not in found["scheduler"]["counts"]
    assert any("malformed" in w for w in found["warnings"])
    lines.close()
    plain.destroy(0)


def test_page_metrics_and_status(served):
    served.worker(1)
    served.submit("numbers", 0.0005, user='a"b\\c')
    served.workers_come(1)
    served.rank("numbers", seconds=0.1)
    until(lambda: served.status()["consumers"] and served.status()["consumers"][0]["batches"] > 3)

    get = served.get
    headers, html = get("")
    assert html.startswith("<!doctype html>") and "prefers" in html or "light-dark" in html
    assert not re.search(r"""(src|href)=["']?http|@import|url\(""", html), "nothing from outside"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert json.loads(get("status.json")[1])["pipelines"][0]["name"] == "numbers"
    until(lambda: json.loads(get("history.json")[1]).get("numbers"))
    samples = served.metrics()
    assert samples["spmd_feed_workers", None] == 1
    assert samples["spmd_feed_pipeline_workers", r'pipeline="numbers",user="a\"b\\c"'] == 1
    assert any(name == "spmd_feed_consumer_starved_ratio" for name, _ in samples)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get("status.json", Host="evil.example:80")
