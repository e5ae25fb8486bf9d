"""Replicas: who answers, what becomes of calls when one is lost, what a load changes."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from spmd.feeding.messages.keys import make_folder
from tests.conftest import PATIENCE, Launch, run, until
from tests.serving.replicated import LOAD, folder_of, has, replica, with_replicas
from tests.serving.serving_kit import in_threads, serving, tensor


@pytest.fixture(scope="module")
def folder(once: Any, built: Any) -> Path:
    return Path(once("scaled", lambda path: folder_of(path, built)))


X = {"inputs": [tensor("x", "FP64", [1, 2], [1, 2])]}


def test_a_replica_answers_where_the_server_has_no_ranks(folder):
    with with_replicas(folder / "scaled.img", "--ranks", 0, "--allow", "load") as (server, address):
        refused = server.infer("scaled.scale", X)
        assert (refused.status, "no replica is there" in refused.error) == (503, True)
        with replica(address, "--ranks", 2) as launch:
            has(server, 1)
            answer = server.infer("scaled.scale", X)
            assert answer.status == 200, answer.body
            assert answer.json["outputs"][0]["data"] == [1, 2]
            loaded = server.asked("POST", LOAD, {"parameters": {"state": "w3.safetensors"}})
            assert loaded.status == 200, loaded.body
            answer = server.infer("scaled.scale", X)
            assert answer.json["outputs"][0]["data"] == [3, 6]
            assert answer.json["model_version"] == loaded.json["version"]
            half = server.asked("POST", LOAD, {"parameters": {"state": "half.safetensors"}})
            assert (half.status, "replica " in half.error, "truncated" in half.error) == (
                409, True, True), half.error
            assert server.infer("scaled.scale", X).json == answer.json
            x = np.arange(1e6)
            with spmd.connect(server.url) as models:
                assert np.array_equal(models["scaled.doubled"](x=x), 2 * x)
            launch.process.send_signal(signal.SIGTERM)
            assert launch.finish().code == 143
            has(server, 0)


def values(answer: Any) -> tuple[str, list[float]]:
    assert answer.status == 200, answer.body
    return answer.json["model_version"], answer.json["outputs"][0]["data"]


def test_a_replica_of_two_processes_joins_late_and_leaves(folder):
    """It has what was loaded before it came; a load while it is there; streams; its errors."""
    with with_replicas(folder / "scaled.img", "--ranks", 0, "--allow", "load") as (server, address):
        loaded = server.asked("POST", LOAD, {"parameters": {"state": "w3.safetensors"}})
        with replica(address, ranks=2) as launch:
            has(server, 1)
            assert values(server.infer("scaled.scale", X)) == (loaded.json["version"], [3, 6])
            for k in (4, 5, 2):
                loaded = server.asked("POST", LOAD, {"parameters": {"state": f"w{k}.safetensors"}})
                assert values(server.infer("scaled.scale", X)) == (
                    loaded.json["version"], [k, 2 * k])
            events = server.asked("POST", "/v2/models/scaled.count/generate_stream", {"frames": 7})
            rows = [json.loads(line.removeprefix(b"data: "))
                    for line in events.body.split(b"\n") if line.strip()]
            assert [row["at"] for row in rows[:-1]] == [[3 + k] * 2 for k in range(7)]
            refused = server.infer("scaled.positive", {"inputs": [
                tensor("x", "FP64", [1], [-1])]})
            assert (refused.status, "x must not be negative" in refused.error) == (400, True)
            assert server.asked("POST", LOAD.replace("load", "unload"), {}).status == 200
            assert server.infer("scaled.scale", X).status == 404
            assert server.asked("POST", LOAD, {}).status == 200
            assert values(server.infer("scaled.scale", X))[1] == [2, 4]
            server.launch.process.send_signal(signal.SIGTERM)
            assert server.launch.finish().code == 143
            found = launch.finish()
            assert (found.code, "replica ended: the server ends" in found.err) == (0, True), found


def test_a_replica_that_is_stopped_comes_back(folder):
    """What it was called for is made elsewhere, and once it goes on, it joins again."""
    with with_replicas(folder / "scaled.img", "--ranks", 0) as (server, address), replica(
            address, "--ranks", 1) as stopped:
        has(server, 1)
        with replica(address, "--ranks", 1):
            has(server, 2)
            os.kill(stopped.process.pid, signal.SIGSTOP)
            with in_threads(2, lambda: server.infer("scaled.scale", X).status) as found:
                pass
            assert found == [200, 200]
            has(server, 1)
            os.kill(stopped.process.pid, signal.SIGCONT)
            has(server, 2)
        has(server, 1)
        assert server.infer("scaled.scale", X).status == 200


def test_a_replica_that_may_not_join(folder, tmp_path, spmd_command):
    """It says where, what was expected and found, and what to try."""
    make_folder(str(tmp_path / "ours"))
    make_folder(str(tmp_path / "theirs"))
    with with_replicas(folder / "scaled.img", "--keys", tmp_path / "ours") as (server, address):
        def joins(*words: object) -> Any:
            return spmd_command("serve", "--join", address, *words)

        joins("--keys", tmp_path / "theirs").expect(
            75, f"the server at {address} has other keys than we", "--keys FOLDER")
        other = ("import sys, spmd; spmd.__version__ = '0.0.1'; from spmd.cli import main; "
                 f"sys.exit(main(['serve', '--join', '{address}', "
                 f"'--keys', '{tmp_path / 'ours'}']))")
        run([sys.executable, "-c", other]).expect(78, "spmd 0.0.1", f"spmd {spmd.__version__}",
                                                  "one version of spmd everywhere")
        joins("--keys", tmp_path / "ours", "--mesh", "r=2", "--ranks", "3").expect(78, "mesh")
        for words, found in ((("x.img",), "x.img"), (("--state", "w"), "--state"),
                             (("--ranks", "0"), "--ranks 0")):
            joins(*words).expect(2, "takes all but its ranks from the server", f"found:    {found}")
        assert server.metric("spmd_replicas") == 0
    spmd_command("serve", "--join", address).expect(
        75, f"no server that takes replicas answers at {address}", "nobody listens there",
        "spmd serve IMAGE --replicas")


def test_a_key_that_is_taken_out_of_the_folder(folder, tmp_path, spmd_command):
    """Its replica has no line from then on, and cannot join; the other one joins again, and calls
    are made there. A key that comes counts as well."""
    ours, hers = make_folder(str(tmp_path / "ours")), tmp_path / "hers"
    (ours / "allowed").mkdir()
    shutil.copytree(make_folder(str(tmp_path / "new")), hers)
    shutil.copy(ours / "server.key", hers)
    key = ours / "allowed" / "ada.key"
    with with_replicas(folder / "scaled.img", "--ranks", 0, "--keys", ours) as (
            server, address), replica(address, "--ranks", 1, "--keys", ours) as own:
        has(server, 1)
        shutil.copy(hers / "client.key", key)
        with replica(address, "--ranks", 1, "--keys", hers) as stranger:
            has(server, 2)
            turns = itertools.count()
            with in_threads(4, lambda: server.infer(
                    "scaled.scale", slow(next(turns))).status) as found:
                server.waits_for("spmd_calls_running", 2)
                key.unlink()
                until(lambda: server.metric("spmd_replicas") < 2)
            assert found == [200] * 4
            has(server, 1)
            assert server.infer("scaled.scale", X).status == 200
            refused = spmd_command("serve", "--join", address, "--keys", hers)
            refused.expect(75, "has other keys than we", "it refuses our key")
            assert server.metric("spmd_replicas") == 1 and own.process.poll() is None
            shutil.copy(hers / "client.key", key)
            has(server, 2)
            stranger.process.send_signal(signal.SIGTERM)
            stranger.finish().expect(143, "waits for the server", "it refuses our key")


def test_servers_that_cannot_have_replicas(folder, spmd_here):
    image = folder / "scaled.img"
    for words, says in (
            (("--ranks", 0), "--replicas tcp://HOST:PORT"),
            (("--replicas", "tcp://127.0.0.1:*", "--allow", "add"), "each replica has a state"),
            (("--replicas", "tcp://0.0.0.0:*"), "no keys are given"),
            (("--replicas", "127.0.0.1"), "--replicas '127.0.0.1'")):
        spmd_here("serve", image, "--port", 0, *words).expect(2, says)
    spmd_here("serve").expect(2, "which image?")
    with with_replicas(image) as (server, _):
        refused = server.infer("scaled.add", {"inputs": []})
        assert (refused.status, "--allow add" in refused.error) == (403, True)


def slow(more: int = 0) -> Any:
    """A request whose call takes a second or two."""
    return {"inputs": [*X["inputs"], tensor("turns", "INT64", [], [20_000_000 + more])]}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_of_a_replica_that_is_killed(folder, mpirun, victim):
    """During a call, which the other replica makes then."""
    with with_replicas(folder / "scaled.img", "--ranks", 0) as (server, address), replica(
            address, ranks=2) as launch, replica(address, "--ranks", 1):
        has(server, 2)
        pid, numbers = launch.ranks(2)[victim], itertools.count()
        with in_threads(2, lambda: server.infer("scaled.scale", slow(next(numbers)))) as found:
            server.waits_for("spmd_calls_running", 2)
            os.kill(pid, signal.SIGKILL)
        assert [values(answer)[1] for answer in found] == [[1, 2]] * 2
        assert server.metric("spmd_replicas") == 1
        assert launch.finish().code != 0


def test_a_replica_that_is_told_to_end_answers_its_call(folder):
    for ranks in (0, 2):
        with with_replicas(folder / "scaled.img", "--ranks", 0) as (server, address), replica(
                address, ranks=ranks) as launch:
            has(server, 1)
            with in_threads(1, lambda: server.infer("scaled.scale", slow())) as found:
                server.waits_for("spmd_calls_running", 1)
                launch.process.send_signal(signal.SIGTERM)
            assert values(found[0])[1] == [1, 2]
            has(server, 0)
            assert launch.finish().code == 143


def test_replicas_divide_the_cores_of_their_machine(folder):
    cores = sorted(os.sched_getaffinity(0))

    def has_cores(launch: Launch, part: int, of: int) -> None:
        count, threads = len(cores), Path(f"/proc/{launch.process.pid}/task")
        share = set(cores[part * count // of:(part + 1) * count // of] if of <= count else cores)
        until(lambda: all(os.sched_getaffinity(int(thread.name)) == share
                          for thread in threads.iterdir()))

    with with_replicas(folder / "scaled.img", "--ranks", 0) as (server, address), replica(
            address, "--ranks", 1) as first:
        has(server, 1)
        with replica(address, "--ranks", 1) as second:
            has(server, 2)
            for part, launch in enumerate((first, second)):
                has_cores(launch, part, 2)
        has_cores(first, 0, 1)


def test_a_stream_whose_replica_is_killed_ends_with_an_error(folder):
    """Its client has seen a part of it: it is not begun anew."""
    with with_replicas(folder / "scaled.img", "--ranks", 0) as (server, address), replica(
            address, "--ranks", 1) as launch, replica(address, "--ranks", 1) as other:
        has(server, 2)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request("POST", "/v2/models/scaled.count/generate_stream",
                           json.dumps({"frames": 1_000_000_000}))
        events = connection.getresponse()
        assert b"at" in events.readline()
        for victim in (launch, other):
            os.kill(victim.process.pid, signal.SIGKILL)
        rows = [json.loads(line.removeprefix(b"data: ")) for line in events if line.strip()]
        assert [row["at"][0] for row in rows[:-1]] == [3 + k for k in range(len(rows) - 1)]
        assert "was lost while it made the call" in rows[-1]["error"]
        connection.close()


def test_a_server_that_is_started_anew_has_its_replicas_again(folder):
    with ExitStack() as stack:
        with with_replicas(folder / "scaled.img", "--ranks", 0) as (server, address):
            launch = stack.enter_context(replica(address, "--ranks", 1))
            has(server, 1)
        with serving(folder / "scaled.img", "--ranks", 0, "--replicas", address) as server:
            has(server, 1)
            assert values(server.infer("scaled.scale", X))[1] == [1, 2]
            server.launch.process.send_signal(signal.SIGTERM)
            assert server.launch.finish().code == 143
            assert launch.finish().code == 0
