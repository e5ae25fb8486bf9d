"""Long JSON is read and written beside the server, which answers others meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import at_some_pace, until
from tests.serving.serving_kit import Answer, Server, in_threads, serving, tensor

MODEL = "halves"
MOST = 3_000_000
HALVES = f"""
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def halves():
    u = spmd.input("u", (spmd.Dim("n", at_most={MOST}),), np.float64)
    return {{"half": u / 2, "sum": np.sum(u)}}
"""


@pytest.fixture(scope="module")
def server(built: Any, tmp_path_factory: Any) -> Iterator[Server]:
    image = shutil.copy(built(HALVES), tmp_path_factory.mktemp("long") / f"{MODEL}.img")
    with serving(image, "--max-body", "80m") as found:
        yield found


def children(server: Server) -> list[int]:
    """The processes that the server has started."""
    files = Path(f"/proc/{server.launch.process.pid}/task").glob("*/children")  # of each thread
    return [int(word) for file in files for word in file.read_text().split()]


def body_of(u: np.ndarray, *outputs: str) -> bytes:
    return json.dumps({"inputs": [tensor("u", "FP64", [u.size], u.tolist())],
                       "outputs": [{"name": name} for name in outputs]}).encode()


def seconds_of(server: Server, body: bytes) -> tuple[float, Answer]:
    began = time.monotonic()
    answer = server.infer(MODEL, body)
    return time.monotonic() - began, answer


def test_others_are_answered_while_long_json_is_read(server):
    """Inside the server it would hold them up for most of the time that its request takes."""
    u = np.random.default_rng(0).random(MOST)
    long, short = body_of(u, "sum"), body_of(np.ones(2), "sum")
    assert len(long) > 55_000_000

    def beside(pace: int) -> None:
        others = []
        with in_threads(1, lambda: seconds_of(server, long)) as found:
            while not found:
                others.append(seconds_of(server, short)[0])
        (whole, answer), = found
        assert answer.status == 200
        assert np.isclose(answer.json["outputs"][0]["data"][0], u.sum())
        assert max(others) < whole / 4, (max(others), whole)
        assert np.median(others) < whole / 40

    at_some_pace(beside)


def test_long_answers_errors_and_generate(server):
    u = np.arange(200_000) / 8
    found = server.infer(MODEL, body_of(u, "half")).json["outputs"][0]
    assert found["shape"] == [u.size] and np.array_equal(found["data"], u / 2)
    generated = server.asked("POST", f"/v2/models/{MODEL}/generate", {"u": u.tolist()}).json
    assert np.isclose(generated["sum"], u.sum()) and generated["half"][8] == 0.5
    body = json.loads(body_of(u))
    body["inputs"][0]["shape"] = [u.size - 1]
    refused = server.infer(MODEL, body)
    assert (refused.status, "data of another shape" in refused.error) == (400, True)
    refused = server.infer(MODEL, body_of(u)[:-3])
    assert (refused.status, "the body is no JSON" in refused.error) == (400, True)


def test_the_process_that_reads_is_started_again_and_ends_with_the_server(server):
    body = body_of(np.ones(100_000), "sum")
    assert server.infer(MODEL, body).json["outputs"][0]["data"] == [100_000]
    (first,) = children(server)
    os.kill(first, signal.SIGKILL)
    lost = server.infer(MODEL, body)
    assert (lost.status, "was ended" in lost.error) == (503, True)
    assert server.infer(MODEL, body).status == 200
    (second,) = children(server)
    assert second != first
    server.launch.process.kill()
    until(lambda: not Path(f"/proc/{second}").exists() or
          "Z" in Path(f"/proc/{second}/stat").read_text().rpartition(")")[2])
