"""Replicas: who answers, what becomes of calls when one is lost, what a load changes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.serving.replicated import folder_of, has, replica, with_replicas
from tests.serving.serving_kit import tensor


@pytest.fixture(scope="module")
def folder(once: Any, built: Any) -> Path:
    return Path(once("scaled", lambda path: folder_of(path, built)))


X = {"inputs": [tensor("x", "FP64", [1, 2], [1, 2])]}
LOAD = "/v2/repository/models/scaled/load"


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
            launch.process.send_signal(signal.SIGTERM)
            found = launch.finish()
            assert found.code == 143, found
            has(server, 0)
