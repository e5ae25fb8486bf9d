"""Replicas on hosts of their own whose links are cut: calls are answered once, or refused."""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from spmd.feeding.messages.keys import make_folder
from tests.conftest import until
from tests.linked_hosts import CUTS, LinkedHosts
from tests.serving.replicated import LOAD, folder_of, has, replica
from tests.serving.serving_kit import Answer, Server, in_threads, serving, tensor

pytestmark = pytest.mark.slow  # it waits for processes of its own


@pytest.fixture
def server(once: Any, built: Any, tmp_path: Path, hosts: LinkedHosts) -> Iterator[Server]:
    """A server on host 0, which is the test's, with a replica on each of two others."""
    folder = once("scaled", lambda path: folder_of(path, built))
    keys = make_folder(str(tmp_path / "keys"))
    with ExitStack() as stack:
        stack.enter_context(hosts.inside(0))
        found = stack.enter_context(serving(
            folder / "scaled.img", "--ranks", 0, "--allow", "load", "--keys", keys,
            "--replicas", "tcp://0.0.0.0:*"))
        port = found.lines[0].rpartition(":")[2]
        for k in (1, 2):
            with hosts.inside(k):
                stack.enter_context(replica(f"tcp://{hosts.first(k)}:{port}", "--ranks", 1,
                                            "--keys", keys))
        has(found, 2)
        yield found


class Asked:
    """Requests of which each takes a second or so, with rows of its own; what answers say."""

    def __init__(self, server: Server) -> None:
        self._server, self._numbers = server, itertools.count(1)

    def __call__(self, seconds: float = 100) -> tuple[float, Answer]:
        number, began = next(self._numbers), time.monotonic()
        answer = self._server.infer("scaled.scale", {
            "inputs": [tensor("x", "FP64", [1, 2], [number, number]),
                       tensor("turns", "INT64", [], [10_000_000 + number])],
            "parameters": {"timeout": int(seconds * 1e6)}})
        if answer.status == 200:
            y, w = (row["data"] for row in answer.json["outputs"])
            assert y == [number * w[0]] * 2
        return time.monotonic() - began, answer

    def answered(self, status: int = 200) -> float:
        return self._server.metric(
            f'spmd_requests_total{{model="scaled.scale",status="{status}"}}')


@pytest.mark.parametrize("cut", CUTS)
def test_a_link_that_is_cut_during_calls(server, hosts, cut):
    """They are made on the other host; a load goes on, and counts for who comes back."""
    asked = Asked(server)
    with in_threads(4, asked) as found:
        server.waits_for("spmd_calls_running", 2)
        hosts.cut(1, cut)
        has(server, 1)
    assert [answer.status for _, answer in found] == [200] * 4
    assert asked.answered() == 4
    loaded = server.asked("POST", LOAD, {"parameters": {"state": "w3.safetensors"}})
    assert loaded.status == 200, loaded.body
    hosts.mend(1)
    has(server, 2)
    with in_threads(2, asked) as found:
        server.waits_for("spmd_calls_running", 2)
    assert [answer.json["model_version"] for _, answer in found] == [loaded.json["version"]] * 2
    assert asked.answered() == 6


def test_a_load_while_a_link_is_cut(server, hosts):
    """It does not wait for who is away."""
    hosts.cut(2)
    loaded = server.asked("POST", LOAD, {"parameters": {"state": "w4.safetensors"}})
    assert loaded.status == 200, loaded.body
    hosts.mend(2)
    has(server, 2)
    with in_threads(2, Asked(server)) as found:
        pass
    assert [answer.json["model_version"] for _, answer in found] == [loaded.json["version"]] * 2


def test_all_links_are_cut(server, hosts):
    """Calls end with an error by their deadline; later ones at once; then the replicas are back."""
    asked = Asked(server)
    with in_threads(4, lambda: asked(4)) as found:
        server.waits_for("spmd_calls_running", 2)
        for k in (1, 2):
            hosts.cut(k)
    assert {answer.status for _, answer in found} <= {503, 504}
    assert all(seconds < 10 for seconds, _ in found)
    until(lambda: server.metric("spmd_replicas") == 0)
    assert asked()[1].status == 503
    for k in (1, 2):
        hosts.mend(k)
    has(server, 2)
    with in_threads(2, asked) as found:
        pass
    assert [answer.status for _, answer in found] == [200] * 2


def test_a_stream_over_a_link_that_is_cut(server, hosts):
    """Its client has seen a part of it: it ends with an error, and the replica joins again."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=100)) as connection:
        connection.request("POST", "/v2/models/scaled.count/generate_stream",
                           json.dumps({"frames": 1_000_000_000}))
        events = connection.getresponse()
        assert b"at" in events.readline()
        for k in (1, 2):
            hosts.cut(k)
        rows = [json.loads(line.removeprefix(b"data: ")) for line in events if line.strip()]
    assert [row["at"][0] for row in rows[:-1]] == [3 + k for k in range(len(rows) - 1)]
    assert "was lost while it made the call" in rows[-1]["error"]
    for k in (1, 2):
        hosts.mend(k)
    has(server, 2)
    with in_threads(2, Asked(server)) as found:
        server.waits_for("spmd_calls_running", 2)
    assert [answer.status for _, answer in found] == [200] * 2
