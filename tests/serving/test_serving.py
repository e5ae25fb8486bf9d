"""`spmd serve` over sockets: the protocol, calls from Python beside calls here, limits, the end."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import spmd
from spmd import SpmdError
from spmd.serving.joined_writes import MOST_JOINED, JoinedWrites
from spmd.serving.serve_command import CLOSING_S
from tests.conftest import PATIENCE, Finished, at_some_pace, until
from tests.serving.serving_kit import JSON_LENGTH, Server, in_threads, serving, tensor

PLAIN = """
import ml_dtypes
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def halves(n: int = 4):
    return spmd.input("u", (n,), np.float64, layout=("r",)) / 2
"""
W = {"a": np.arange(6, dtype=np.float32).reshape(3, 2), "b": [np.array([2, 3], np.float32)]}
X = tensor("x", "FP64", [3], [1, 2, 3])
MOST_BODY = 4096
STATE = {"total": np.arange(3.0), "steps": 5}


@pytest.fixture(scope="module")
def image(once: Any) -> Path:
    def make(path: Path) -> None:
        from tests.serving.things import Things  # built where it is first asked for

        spmd.build(Things).save(path)

    return Path(once("things.img", make))


@pytest.fixture(scope="module")
def server(image: Path, tmp_path_factory: Any) -> Iterator[Server]:
    state = tmp_path_factory.mktemp("state") / "s.safetensors"
    with spmd.load(image).open(state=STATE) as here:
        here.save(state)
    with serving(image, "--ranks", 2, "--queue", 2, "--allow", "add", "--max-body", MOST_BODY,
                 "--state", state) as found:
        yield found


def same(a: Any, b: Any) -> bool:
    """Whether two results are alike: containers, dtypes, shapes, and each element."""
    if isinstance(a, np.ndarray):
        return (type(b) is np.ndarray and a.dtype == b.dtype and a.shape == b.shape
                and a.tobytes() == b.tobytes())
    if type(a).__name__ != type(b).__name__:
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b


def of_kinds() -> dict[str, Any]:
    values = {name: np.array([0, 1, 100]).astype(name)
              for name in ("bool", "int8", "float64", "complex64")}
    values["uint64"] = np.array([2**64 - 1, 0, 1], np.uint64)
    values["float16"] = np.array([0.5, math.nan, -math.inf], np.float16)
    values["bfloat16"] = np.array([1.5, 2, 3], np.float32).astype(ml_dtypes.bfloat16)
    return {f"x_{name}": value for name, value in values.items()}


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("scaled", {"w": W}),
    ("scaled", {"w": W, "more": [1, 2], "by": 3, "on": False, "negated": True}),
    ("scaled", {"w": {"a": W["a"][:0], "b": W["b"]}, "more": None}),
    ("scaled", {"w": W, "only": "pair"}), ("scaled", {"w": W, "only": ("y", "pair.low")}),
    ("kinds", of_kinds()), ("add", {"x": np.ones(3)}), ("add", {"x": [1, 2, 3]}),
    ("least", {"x": np.ones(6)[::2]}), ("rest", {"seconds": 0}),
]
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("scaled", {}), ("scaled", {"w": W, "z": 1}), ("scaled", {"w": 3}),
    ("scaled", {"w": {**W, "a": np.ones((7, 2), np.float32)}}),
    ("scaled", {"w": {**W, "a": np.ones((3, 2, 1), np.float32)}}),
    ("scaled", {"w": {"a": W["a"]}}), ("scaled", {"w": W, "by": "much"}),
    ("scaled", {"w": W, "by": [1, 2]}), ("scaled", {"w": W, "negated": 7}),
    ("scaled", {"w": W, "only": "yy"}),
    ("add", {"x": np.ones(2)}), ("add", {"x": np.ones(3, complex)}), ("add", {"x": "x.npy"}),
    ("least", {"x": -np.ones(3)}),
]


def test_calls_from_elsewhere_are_calls_here(image, server):
    remote = spmd.connect(server.url)
    assert list(remote) == [f"things.{e}" for e in ("add", "scaled", "kinds", "least", "rest")]
    with spmd.load(image).open(ranks=2, state=STATE) as here:
        for entry, arguments in CALLS:
            a, b = here.entries[entry](**arguments), remote[f"things.{entry}"](**arguments)
            assert same(a, b), (entry, arguments, a, b)
        b.fill(7)  # a result can be written to
        for entry, arguments in WRONG:
            errors: list[SpmdError] = []
            for call in (here.entries[entry], remote[f"things.{entry}"]):
                with pytest.raises(SpmdError) as caught:
                    call(**arguments)
                errors.append(caught.value)
            texts = [re.sub(r"rank \d", "rank", str(error)) for error in errors]  # who finds it
            assert type(errors[0]) is type(errors[1]) and texts[0] == texts[1]
    with pytest.raises(spmd.UsageError, match=r"add\(x=…\)"):
        remote["things.add"](np.ones(3))
    with pytest.raises(spmd.UsageError, match="things.add, if that is what you mean"):
        remote["things.ad"]
    remote.close()


def test_what_the_protocol_says_of_models(server):
    assert server.asked("GET", "/v2").json["extensions"] == [
        "binary_tensor_data", "model_repository", "generate"]
    for page in ("/v2/health/live", "/v2/health/ready", "/v2/models/things.least/ready"):
        assert server.asked("GET", page).status == 200
    index = server.asked("POST", "/v2/repository/index", b"").json
    assert {row["name"]: row["state"] for row in index}["things.scaled"] == "READY"
    found = server.asked("GET", "/v2/models/things.scaled").json
    assert [(i["name"], i["datatype"], i["shape"]) for i in found["inputs"]] == [
        ("w.a", "FP32", [-1, 2]), ("w.b.0", "FP32", [2]), ("on", "BOOL", []),
        ("more", "FP32", [2]), ("by", "FP64", []), ("negated", "BOOL", [])]
    assert [(o["name"], o["shape"]) for o in found["outputs"]][0] == ("y", [-1, 2])
    (version,) = found["versions"]
    path = "/v2/models/things.least/versions"
    assert server.asked("GET", f"{path}/{version}").json["name"] == "things.least"
    answer = server.asked("POST", f"{path}/{version}/infer", {"id": "k", "inputs": [X]})
    assert answer.json == {"model_name": "things.least", "model_version": version, "id": "k",
                           "outputs": [tensor("result", "FP64", [], [1.0])]}


def test_tensors_as_json_and_as_bytes(server):
    u = np.array([[1.5, -2.0]])
    for data in ([1.5, -2, 3], [[1.5, -2, 3]]):
        body = {"inputs": [tensor("x", "FP64", [1, 3], data)]}
        assert "found:    (1, 3)" in server.infer("things.least", body).error
    row = tensor("u", "FP64", [2], ["NaN", "-Infinity"])
    answer = server.infer("things.rest", {"inputs": [row, tensor("seconds", "FP64", [], [0])]})
    assert answer.json["outputs"][0]["data"] == ["NaN", "-Infinity"]
    head = json.dumps({"inputs": [
        {"name": "u", "datatype": "FP64", "shape": [2],
         "parameters": {"binary_data_size": u.nbytes}}, tensor("seconds", "FP32", [1], [0])],
        "outputs": [{"name": "result", "parameters": {"binary_data": True}}]}).encode()
    answer = server.infer("things.rest", head + u.tobytes(), **{JSON_LENGTH: str(len(head))})
    assert answer.body.endswith(u.tobytes()) and answer.body != u.tobytes()
    assert answer.json["outputs"][0]["parameters"] == {"binary_data_size": u.nbytes}


def test_an_unchanged_client_of_another_project(server):
    client = pytest.importorskip("tritonclient.http")
    u = np.array([3.0, 4.0])
    with client.InferenceServerClient(server.url.removeprefix("http://")) as triton:
        assert triton.is_server_live() and triton.is_server_ready()
        assert triton.is_model_ready("things.rest")
        assert triton.get_model_metadata("things.rest")["inputs"][0]["datatype"] == "FP64"
        assert len(triton.get_model_repository_index()) == 5
        for binary in (True, False):
            given = client.InferInput("u", [2], "FP64")
            given.set_data_from_numpy(u, binary_data=binary)
            wanted = client.InferRequestedOutput("result", binary_data=binary)
            answer = triton.infer("things.rest", [given], outputs=[wanted], timeout=10**7)
            assert np.array_equal(answer.as_numpy("result"), u)
        with pytest.raises(client.InferenceServerException, match="has the wrong shape") as caught:
            given = client.InferInput("u", [1], "FP64")
            given.set_data_from_numpy(u[:1])
            triton.infer("things.rest", [given])
        assert caught.value.status() == "400"


BAD: dict[str, tuple[int, str, Any, dict[str, str], str]] = {
    "no model": (404, "things.at", {}, {}, "there is no model 'things.at'"),
    "no version": (404, "things.add/versions/7", {}, {}, "has no version '7'"),
    "dtype": (400, "things.add", {"inputs": [{**X, "datatype": "FP65"}]}, {}, "FP65"),
    "text": (400, "things.add", {"inputs": [{**X, "data": ["a", "b", "c"]}]}, {}, "no float64"),
    "ragged": (400, "things.add", {"inputs": [{**X, "data": [[1], [2, 3]]}]}, {}, "regular"),
    "too few": (400, "things.add", {"inputs": [{**X, "data": [1]}]}, {}, "another shape"),
    "huge beside 0": (400, "things.add", {"inputs": [
        tensor("x", "FP64", [0, 1 << 47, 1 << 47], [])]},
                      {}, "no proper shape"),
    "no truth": (400, "things.kinds", {"inputs": [tensor("x_bool", "BOOL", [3], [0, 1, 1])]}, {},
                 "expected: true and false"),
    "negative": (400, "things.add", {"inputs": [{**X, "shape": [-1]}]}, {}, "no proper shape"),
    "other dtype": (400, "things.scaled", {"inputs": [
        tensor("w.a", "FP64", [1, 2], [1, 2]), tensor("w.b.0", "FP32", [2], [1, 2])]}, {},
                    "input w.a has dtype float64, which does not fit float32"),
    "out of range": (400, "things.kinds", {"inputs": [
        tensor("x_int8", "INT8", [3], [1, 2, 300])]}, {}, "-128 to 127"),
    "twice": (400, "things.add", {"inputs": [X, X]}, {}, "is there twice"),
    "no inputs": (400, "things.add", {}, {}, "no proper inputs"),
    "a list": (400, "things.add", [1], {}, "no JSON object"),
    "half a JSON": (400, "things.add", b'{"inputs": [{"na', {}, "the body is no JSON"),
    "deep": (400, "things.add", b"[" * 4000, {}, "the body is no JSON"),
    "half of the bytes": (400, "things.add", b'{"inputs": [{"name": "x", "datatype": "FP64", '
                          b'"shape": [3], "parameters": {"binary_data_size": 24}}]}12345678',
                          {JSON_LENGTH: "101"}, "8 bytes that are left"),
    "length": (400, "things.add", b"{}", {JSON_LENGTH: "3"}, "is '3'"),
    "long length": (400, "things.add", b"{}", {JSON_LENGTH: "1" * 5000}, "is '1111"),
    "no output": (400, "things.add", {"inputs": [X], "outputs": [{"name": "q"}]}, {},
                  "no output 'q'"),
    "timeout": (400, "things.add", {"inputs": [X], "parameters": {"timeout": 0}}, {},
                "an integer of microseconds"),
    "too long": (413, "things.add", b" " * (MOST_BODY + 1), {}, "at most 4096 bytes"),
    "web page": (403, "things.add", {"inputs": [X]}, {"Origin": "http://e"}, "no tokens"),
    "compressed": (415, "things.add", b"\x1f\x8b", {"Content_Encoding": "gzip"}, "compressed"),
}


def test_a_program_is_built_first_where_it_is_a_file(tmp_path, spmd_here):
    """It has no entries and no state: both are said of what was built."""
    (tmp_path / "halves.py").write_text(PLAIN)
    spmd_here("serve", f"{tmp_path / 'halves.py'}:halves", "--set", "n=8", "--allow", "x",
              "--port", 0).expect(2, "halves has no such entry")
    spmd_here("serve", tmp_path / "halves.py", "--set", "m=8").expect(2, "--set m")


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_is_refused(what, server):
    status, model, body, headers, words = BAD[what]
    answer = server.infer(model, body, **headers)
    assert (answer.status, words in answer.error) == (status, True), (answer.status, answer.error)


def test_a_body_that_is_too_long_is_not_read(server):
    """Neither of a said length, nor in pieces of which nobody says how many come."""
    head = b"POST /v2/models/things.add/infer HTTP/1.1\r\nHost: h\r\n"
    piece = b"400\r\n" + b" " * 1024 + b"\r\n"
    for rest in (b"Content-Length: 1000000000\r\n\r\n{",
                 b"Transfer-Encoding: chunked\r\n\r\n" + 5 * piece):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            connection.sendall(head + rest)
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    refused = 'spmd_requests_total{model="things.add",status="400"}'
    before = server.metric(refused)
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(head + b"Content-Length: 100\r\n\r\n{")  # and goes: half a body
    server.waits_for(refused, before + 1)


@pytest.mark.parametrize("path, status", [
    ("models/things.add/infer", 413), ("models/things.at/infer", 404), ("at", 404)])
def test_an_answer_before_the_end_of_a_body_is_read(path, status, server):
    """By a client that sends all of the body first, on a connection that the answer closes."""
    body = b" " * (1 << 24)
    for _ in range(3):
        answer = server.asked("POST", f"/v2/{path}", body, Connection="close")
        assert answer.status == status, answer.error


@pytest.mark.parametrize("pieces", ["at once", "head and body", "bytes"])
def test_a_client_that_asks_for_another_protocol_is_answered_in_this_one(pieces, server):
    """Java's HttpClient and curl --http2 do so with their first request."""
    body = json.dumps({"inputs": [
        tensor("u", "FP64", [2], [1, 2]), tensor("seconds", "FP64", [], [0])]}).encode()
    head = ("POST /v2/models/things.rest/infer HTTP/1.1\r\nHost: h\r\n"
            f"Content-Length: {len(body)}\r\nContent-Encoding: Identity\r\n").encode()
    asks = (head + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMA\r\n\r\n")
    last = head + b"Connection: close\r\n\r\n"
    whole = asks + body + asks + body + last + body
    sent = {"at once": [whole], "bytes": [whole[k:k + 1] for k in range(len(whole))],
            "head and body": [asks, body, asks + body[:9], body[9:] + last, body]}
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in sent[pieces]:
            connection.sendall(piece)
            time.sleep(0.05 if len(piece) > 1 else 0)
        with connection.makefile("rb") as answers:
            found = answers.read()
    expected = server.infer("things.rest", body).body
    assert (found.count(b"HTTP/1.1 200 OK"), found.count(expected)) == (3, 3), found


def test_an_answer_that_is_only_a_head_is_sent(server):
    """No body follows it, on a connection that stays."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    for path in ("/v2/health/ready", "/v2", "/v2/health/live"):
        connection.request("HEAD", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
    connection.close()


def test_heads_leave_with_what_follows_them():
    head, long, sent = b"HTTP/1.1 200 OK\r\n\r\n", bytes(MOST_JOINED + 1), []

    class Sent:
        write = staticmethod(sent.append)

    async def write() -> None:
        joined = JoinedWrites(Sent())
        for data in (head, b"short", head, long, b"more", head, head, head):
            joined.write(data)
        await asyncio.sleep(0)

    asyncio.run(write())
    assert sent == [head + b"short", head, long, b"more", head + head, head]


def test_a_page_that_is_not_there(server):
    assert "POST /v2/models/MODEL/infer" in server.asked("GET", "/v3").error
    assert server.asked("GET", "/v2/models/things.add/infer").status == 405


# ---- the queue


def nap(seconds: float, **parameters: object) -> dict[str, Any]:
    return {"inputs": [tensor("seconds", "FP64", [], [seconds])], "parameters": parameters}


def test_the_queue_is_bounded_and_cancelled_requests_leave_it(server):
    at_some_pace(lambda pace: behind_a_nap(server, pace))


def behind_a_nap(server: Server, seconds: float) -> None:
    """Check the queue's metrics and refusals while a call of so many seconds runs."""
    waiting, calls = "spmd_requests_waiting", 'spmd_call_seconds_count{model="things.rest"}'
    with in_threads(1, lambda: server.infer("things.rest", nap(seconds))) as answers:
        until(lambda: b"waits behind 1 other\\n" in server.infer(
            "things.rest", nap(0, timeout=20_000)).body)
        began = server.metric(calls)
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        body = json.dumps(nap(0)).encode()
        for connection in connections:
            connection.sendall(b"POST /v2/models/things.rest/infer HTTP/1.1\r\nHost: h\r\n"
                               b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        until(lambda: server.metric(waiting) == 2, seconds)
        full = server.infer("things.rest", nap(0))
        assert (full.status, full.headers["retry-after"]) == (429, "5")
        with pytest.raises(spmd.PeerError, match="too many requests wait"):
            spmd.connect(server.url)["things.rest"]()
        for connection in connections:
            connection.close()
        until(lambda: server.metric(waiting) == 0, seconds)
        assert server.metric(calls) == began  # the call ran all the time
    assert [answer.status for answer in answers] == [200]
    runs = server.infer("things.rest", nap(seconds, timeout=500_000))
    assert (runs.status, "a call that still runs" in runs.error) == (504, True)
    server.waits_for(calls, began + 2)  # no other was made


# ---- tokens, TLS, the end


def test_tokens_tls_and_what_sigterm_does(image, tmp_path):
    tokens, key, cert = (tmp_path / name for name in ("tokens", "key.pem", "cert.pem"))
    tokens.write_text("first\nsecond\n")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", cert, "-subj", "/CN=localhost", "-days", "2",
         "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    words = ("--token-file", tokens, "--tls-cert", cert, "--tls-key", key)
    at_some_pace(lambda pace: guarded_until_it_ends(image, words, str(cert), 0.5 * pace))


def guarded_until_it_ends(image: Path, words: tuple[object, ...], cert: str, nap: float) -> None:
    """A server with tokens and a certificate, which is told to end while calls wait."""
    with serving(image, *words) as server:
        assert "things.add: needs --allow add" in server.lines
        assert server.url.startswith("https://")
        for token in (None, "third"):
            with pytest.raises(spmd.UsageError, match="no token of this server"):
                spmd.connect(server.url, token=token, cafile=cert)
        with pytest.raises(spmd.PeerError, match="certificate verify failed"):
            spmd.connect(server.url, token="second")
        remote = spmd.connect(server.url, token="second", cafile=cert)
        with pytest.raises(spmd.UsageError, match="spmd serve IMAGE --allow add"):
            remote["things.add"](x=np.ones(3))
        refused = b'spmd_requests_total{model="things.add",status="403"} 1.0'
        assert refused in remote._asked("GET", "/metrics", None, {})[0]
        rest = remote["things.rest"]
        with in_threads(3, lambda: rest(seconds=nap)) as found:
            until(lambda: b"waiting 2.0" in remote._asked("GET", "/metrics", None, {})[0], nap)
            server.launch.process.send_signal(signal.SIGTERM)
            assert "this server ends" in until(lambda: refusal(rest), 3 * nap)
        assert [list(u) for u in found] == [[1, 1]] * 3
        remote.close()
        server.launch.finish().expect(143)


def test_sigterm_refuses_requests_whose_body_has_not_come(image):
    """They, and connections on which an answer stands before the end of a body, do not delay it."""
    with serving(image) as server:
        head = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{"
        connections = []
        for model in (b"things.rest", b"things.at"):
            connections.append(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
            connections[-1].sendall(head % model)
        assert connections[1].recv(100).startswith(b"HTTP/1.1 404 ")
        server.waits_for('spmd_requests_total{model="",status="404"}', 1)
        began = time.monotonic()
        server.launch.process.send_signal(signal.SIGTERM)
        assert connections[0].recv(100).startswith(b"HTTP/1.1 503 ")
        server.launch.finish().expect(143)
        assert time.monotonic() - began < CLOSING_S
        for connection in connections:
            connection.close()


def refusal(rest: Any) -> str:
    try:
        rest(seconds=0)
    except spmd.PeerError as error:
        return str(error)
    return ""


def test_what_the_command_refuses(image, server, built, tmp_path, spmd_here, monkeypatch):
    (tmp_path / "empty").write_text("\n")

    def serve(*words: object) -> Finished:
        return spmd_here("serve", image, *words)

    serve("--port", server.port).expect(69, "cannot listen at 127.0.0.1", "--port 0")
    serve("--allow", "ad", "--port", 0).expect(2, "has no such entry", "try:      add")
    serve("--load-from", tmp_path / "none").expect(2, "/none", "expected: a folder")
    serve("--token-file", tmp_path / "empty").expect(65, "has no token")
    serve("--tls-cert", tmp_path / "empty").expect(2, "its key")
    serve("--tls-cert", tmp_path / "empty", "--tls-key", tmp_path / "empty").expect(65, "no cert")
    spmd_here("serve", tmp_path / "empty").expect(65, "not an spmd image")
    spmd_here("serve", built(PLAIN), "--allow", "x", "--port", 0).expect(2, "no entries")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "spmd.serving.serve_command")
    serve().expect(69, "no uvicorn", "pip install 'spmd[serve]'")


def test_a_program_without_entries_is_one_model(built):
    path = built(PLAIN)
    with serving(path, "--ranks", 3) as server, spmd.connect(server.url) as remote:
        assert list(remote) == [path.stem]
        assert same(remote[path.stem](u=[1, 2, 3, 4]), np.array([0.5, 1, 1.5, 2]))
        server.launch.process.send_signal(signal.SIGINT)
        server.launch.finish().expect(130)
