"""What a call saves, as server-sent events; and who frees the job."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spmd.serving.call_queue import FullError
from spmd.serving.sent_frames import FRAME_BYTES, SentFrames
from tests.conftest import PATIENCE, at_some_pace, until
from tests.serving.serving_kit import Server, in_threads, serving, tensor
from tests.serving.texts import folder_of

WRITE = "/v2/models/texts.write"
MOST_BODY = 40_000
HALVES = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def halves(n: int = 4, id: bool = False):
    u = spmd.input("u", (n,), np.float64)
    for k in spmd.range(2):
        u = u / 2
        spmd.save("u", u)
        spmd.save("k", k)
    return {"id" if id else "last": u, "low": np.log(u[0] - u[0])}
"""


@pytest.fixture(scope="module")
def server(once: Any, built: Any) -> Iterator[Server]:
    folder = Path(once("texts", lambda path: folder_of(path, built)))
    with serving(folder / "texts.img", "--ranks", 2, "--allow", "write", "--max-body", MOST_BODY,
                 "--queue", 2) as found:
        yield found


def events(body: bytes) -> list[dict[str, Any]]:
    """The JSON objects of server-sent events."""
    *rows, rest = body.decode().split("\n\n")
    assert rest == "" and all(row.startswith("data: ") for row in rows), body
    return [json.loads(row.removeprefix("data: ")) for row in rows]


def test_generate_answers_once_or_by_events(server):
    asked = {"prompt": [1, 2], "count": 3, "id": "k"}
    once = server.asked("POST", f"{WRITE}/generate", asked)
    assert once.json == {**(head := {
        "model_name": "texts.write", "model_version": once.json["model_version"], "id": "k"}),
        "at": 9, "calls": 1, "token": [7, 8, 9]}
    version = once.json["model_version"]
    answer = server.asked("POST", f"{WRITE}/versions/{version}/generate_stream", asked)
    assert (answer.status, answer.headers["content-type"]) == (
        200, "text/event-stream; charset=utf-8")
    assert events(answer.body) == [*({**head, "token": k} for k in (7, 8, 9)),
                                   {**head, "at": 9, "calls": 2}]
    none = server.asked("POST", f"{WRITE}/generate_stream", {"count": 0})
    assert [row.get("at") for row in events(none.body)] == [3]
    done = 'spmd_requests_total{model="texts.write",status="200"}'
    assert server.metric(done) == 3
    read = server.asked("POST", "/v2/models/texts.read/generate", {"x": [1, 2]})
    assert (read.json["y"], read.json["calls"]) == ([1, 2], 3)


def test_frames_of_several_saves_and_no_numbers(built):
    path = built(HALVES)
    with serving(path) as server:
        page = f"/v2/models/{path.stem}"
        answer = server.asked("POST", f"{page}/generate_stream", {"u": [4, 8, 12, 16]})
        rows = [{key: value for key, value in row.items() if not key.startswith("model_")}
                for row in events(answer.body)]
        assert rows == [{"u": [2, 4, 6, 8]}, {"k": 0}, {"u": [1, 2, 3, 4]}, {"k": 1},
                        {"last": [1, 2, 3, 4], "low": "-Infinity"}]
    path = built(HALVES, id=True)
    with serving(path) as server:
        twice = server.asked("POST", f"/v2/models/{path.stem}/generate", {"u": [4, 8, 12, 16]})
        assert (twice.status, "id is a name of its own" in twice.error) == (400, True)


WRONG: dict[str, tuple[int, str, Any, str]] = {
    "no model": (404, "/v2/models/texts.at/generate", {}, "there is no model"),
    "no version": (404, f"{WRITE}/versions/7/generate_stream", {}, "has no version '7'"),
    "nothing saved": (400, "/v2/models/texts.read/generate_stream", {"x": [1, 2]},
                      "there is nothing to stream"),
    "unknown": (400, f"{WRITE}/generate_stream", {"promt": [1]}, "no input or scalar 'promt'"),
    "ragged": (400, f"{WRITE}/generate_stream", {"prompt": [1, [2]]}, "regular shape"),
    "text": (400, f"{WRITE}/generate", {"prompt": "hello"}, "no float64"),
    "object": (400, f"{WRITE}/generate", {"prompt": {"a": 1}}, "no float64"),
    "too long": (400, f"{WRITE}/generate_stream", {"prompt": [1] * 9}, "prompt"),
    "fraction": (400, f"{WRITE}/generate_stream", {"count": 1.5}, "no int64"),
    "timeout": (400, f"{WRITE}/generate", {"parameters": {"timeout": -1}}, "microseconds"),
    "no object": (400, f"{WRITE}/generate_stream", [1], "no JSON object"),
    "half": (400, f"{WRITE}/generate_stream", b'{"prompt"', "no JSON"),
    "413": (413, f"{WRITE}/generate_stream", b" " * (MOST_BODY + 1), "too long"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_generate_is_refused(what, server):
    status, page, body, words = WRONG[what]
    answer = server.asked("POST", page, body)
    assert (answer.status, words in answer.error) == (status, True), (answer.status, answer.error)


def calls(server: Server) -> list[float]:
    answer = server.infer("texts.read", {"inputs": [tensor("x", "FP64", [2], [1, 2])]})
    assert answer.status == 200, answer.error
    return [row["data"] for row in answer.json["outputs"] if row["name"] == "calls"][0]


def test_a_client_that_leaves_frees_the_job(server):
    """Its call would run for hours. Those who wait are served, over the state of before."""
    before = calls(server)
    gone = 'spmd_requests_total{model="texts.write",status="499"}'
    assert server.metric(gone) == 0
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", f"{WRITE}/generate_stream", json.dumps({"count": 2**40}))
    answer = connection.getresponse()
    assert json.loads(answer.readline().removeprefix(b"data: "))["token"] == 4
    with in_threads(1, lambda: calls(server)) as waiting:
        until(lambda: server.metric("spmd_requests_waiting") == 1)
        answer.close()
        connection.close()
    assert waiting == [before] == [calls(server)]
    server.waits_for(gone, 1)


def test_a_stream_ends_at_its_deadline(server):
    at_some_pace(lambda pace: until_the_deadline(server, 0.2 * pace))


def until_the_deadline(server: Server, seconds: float) -> None:
    before = calls(server)
    answer = server.asked("POST", f"{WRITE}/generate_stream", {
        "count": 2**40, "parameters": {"timeout": int(seconds * 1e6)}})
    *rows, last = events(answer.body)
    assert "the call has no result after" in last["error"]
    assert [row["token"] for row in rows] == [4 + k for k in range(len(rows))] and rows
    assert calls(server) == before


def test_a_client_that_does_not_read_ends_its_stream(server):
    """Frames wait for one that reads slowly, up to --max-body bytes; others wait no longer than
    it takes to see that none is read."""
    before = calls(server)
    count = 2 * MOST_BODY // 4096
    slow = server.asked("POST", "/v2/models/texts.fill/generate_stream", {"count": count})
    assert [len(row.get("row", "")) for row in events(slow.body)] == [512] * count + [0]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", "/v2/models/texts.fill/generate_stream",
                       json.dumps({"count": 2**40}))
    assert calls(server) == before  # though the stream is still open, and nobody reads it
    text = connection.getresponse().read()
    assert f"at most {MOST_BODY} bytes that wait" in events(text)[-1]["error"]
    connection.close()


def test_frames_of_few_elements_take_memory_too():
    """A token has four bytes: a million that wait take much more."""
    sent = []

    def save(frames: SentFrames) -> None:
        for token in range(2 * MOST_BODY // FRAME_BYTES):
            frames.put("token", np.array(token))
            sent.append(token)

    async def run() -> None:
        with pytest.raises(FullError, match=f"at most {MOST_BODY} bytes"):
            await asyncio.to_thread(save, SentFrames(MOST_BODY))

    asyncio.run(run())
    assert len(sent) == MOST_BODY // (FRAME_BYTES + 8)
