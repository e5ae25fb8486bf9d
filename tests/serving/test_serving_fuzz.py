"""Thousands of malformed requests at a live server: each is answered, none is a defect."""

from __future__ import annotations

import copy
import http.client
import json
import random
import socket
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import spmd
from tests.conftest import PATIENCE
from tests.serving.serving_kit import JSON_LENGTH, Server, serving, tensor

PROGRAM = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def scaled():
    rows = spmd.Dim("batch", at_most=4)
    x = spmd.input("x", (rows, 2), np.float32)
    on = spmd.input("on", (rows,), np.bool_, default=True)
    by = spmd.scalar("by", 2)
    return {"y": x * by, "on": on}
"""
BINARY = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
BASES: list[tuple[dict[str, Any], bytes]] = [
    ({"inputs": [tensor("x", "FP32", [1, 2], [1, 2]), tensor("by", "INT64", [], [3])],
      "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}, b""),
    ({"id": "a", "inputs": [BINARY, tensor("on", "BOOL", [1], [True])],
      "parameters": {"binary_data_output": True, "timeout": 10**7}}, b"\0\0\x80\x3f" * 2),
]
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e308, -0.0, float("nan"), "", "x",
    "y", "self", "only", "feed", "FP64", "BYTES", "BOOL", "\0", "\ud800", "é" * 40, [], [[]], {},
    [None], [1, [2]], [[1], [2, 3]], ["NaN", 1], [2**70, -1], [True, 2], {"name": {}}, [1, 2] * 50,
    [0, 2**40], [1] * 9, [[[1.0, 2.0]]], {"binary_data_size": -1}, {"binary_data_size": 2**62},
    {"binary_data_size": True}, {"binary_data": 1}, {"timeout": 1}, {"timeout": 2**70},
]
LENGTHS = ["", "0", "-1", "1e3", "9" * 30, "٣", "1", "None", "50 "]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all parts of a JSON value."""
    inner = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ())
    return [path, *(p for key, item in inner for p in places(item, (*path, key)))]


def changed(chance: random.Random, value: Any) -> Any:
    """A JSON value with one or two of its parts replaced, left out, or there twice."""
    whole = {"all": copy.deepcopy(value)}
    for _ in range(chance.randint(1, 2)):
        path = chance.choice(places(whole)[1:])
        holder: Any = whole
        for key in path[:-1]:
            holder = holder[key]
        what = chance.random()
        if what < 0.2 and len(path) > 1:
            del holder[path[-1]]
        elif what < 0.3 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))
        else:
            holder[path[-1]] = copy.deepcopy(chance.choice(ODD))
    return whole["all"]


def malformed(chance: random.Random) -> tuple[bytes, dict[str, str]]:
    """A body, and headers."""
    base, tail = chance.choice(BASES)
    head = json.dumps(changed(chance, base)).encode()
    what = chance.random()
    if what < 0.15:
        head = bytearray(head)
        for _ in range(chance.randint(1, 4)):
            head[chance.randrange(len(head))] = chance.randrange(256)
    elif what < 0.25:
        head = head[:chance.randrange(len(head))]
    if chance.random() < 0.2:
        tail = tail[:chance.randrange(len(tail) + 1)] + chance.randbytes(chance.randrange(9))
    headers = {JSON_LENGTH: str(len(head))} if tail else {}
    if chance.random() < 0.1:
        headers[JSON_LENGTH] = chance.choice(LENGTHS)
    return bytes(head) + tail, headers


def fuzz_messages(server: Server, model: str, count: int, seed: int) -> set[int]:
    """Bodies that are nearly proper, over connections that stay. Returns all statuses."""
    chance, statuses = random.Random(seed), set()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    for _ in range(count):
        body, headers = malformed(chance)
        connection.request("POST", f"/v2/models/{model}/infer", body,
                           {k: v.encode() for k, v in headers.items()})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status in (200, 400, 504), (answer.status, text, body, headers)
        assert answer.status == 200 or list(json.loads(text)) == ["error"], (text, body)
        statuses.add(answer.status)
    connection.close()
    return statuses


def fuzz_bytes(server: Server, model: str, count: int, seed: int) -> None:
    """Bytes that are no HTTP, or half of it, and connections that end in the middle."""
    chance = random.Random(seed)
    body = json.dumps(BASES[0][0]).encode()
    proper = (f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}"
              "\r\n\r\n").encode() + body
    for _ in range(count):
        sent = bytearray(proper)
        for _ in range(chance.randrange(6)):
            sent[chance.randrange(len(sent))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
            with suppress(OSError):
                connection.sendall(sent[:chance.randrange(1, len(sent) + 1)])
                if chance.random() < 0.2:
                    connection.settimeout(0.01)
                    connection.recv(100)


@pytest.mark.parametrize("count", [3000])
def test_no_request_is_a_defect(count, built):
    image = built(PROGRAM)
    with serving(image, "--ranks", 2) as server:
        began = time.monotonic()
        assert {200, 400} <= fuzz_messages(server, image.stem, count, 1)
        fuzz_bytes(server, image.stem, count // 10, 2)
        print(f"{time.monotonic() - began:.1f} s")
        text = server.asked("GET", "/metrics").body.decode()
        assert 'status="400"' in text and 'status="500"' not in text
        x = np.ones((2, 2), np.float32)
        assert np.array_equal(spmd.connect(server.url)[image.stem](x=x)["y"], 2 * x)
        assert server.launch.process.poll() is None
