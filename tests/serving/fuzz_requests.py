"""Malformed requests at live servers: each is answered, none is a defect.

    python -m tests.serving.fuzz_requests COUNT [SEED]
HTTP with JSON and binary tensors, half of it at a server of its own ranks, half at one whose calls
a replica makes; a tenth as many connections that speak no HTTP, and messages of gRPC.
"""

from __future__ import annotations

import copy
import http.client
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from tests.conftest import PATIENCE
from tests.serving.replicated import has, replica, with_replicas
from tests.serving.serving_kit import JSON_LENGTH, Server, built_in, serving, tensor

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
# By their types, which a message of protobuf holds to.
TYPED: list[Any] = [
    True, False, 0, -1, 1, 2, 3, 2**31 - 1, 2**62, -2**63, 1.5, float("nan"), float("inf"), 1e30,
    "", "x", "y", "q", "only", "FP64", "BYTES", "BOOL", "FP32", "\0", "é" * 40, b"", b"1",
    b"\0" * 8, b"\xff" * 8, b"\0" * 16, [], {},
]
LENGTHS = ["", "0", "-1", "1e3", "9" * 30, "٣", "1", "None", "50 "]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all parts of a JSON value."""
    inner = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ())
    return [path, *(p for key, item in inner for p in places(item, (*path, key)))]


def changed(chance: random.Random, value: Any, typed: bool = False) -> Any:
    """A JSON value with one or two of its parts replaced, left out, or there twice. typed: what is
    replaced keeps its type."""
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
            known = [odd for odd in TYPED if type(odd) is type(holder[path[-1]])] if typed else ODD
            holder[path[-1]] = copy.deepcopy(chance.choice(known))
    return whole["all"]


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Bytes, of which every fourth time some are others, or missing."""
    what = chance.random()
    if what < 0.15 and data:
        changes = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            changes[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(changes)
    return data[:chance.randrange(len(data))] if what < 0.25 and data else data


def malformed(chance: random.Random) -> tuple[bytes, dict[str, str]]:
    """A body, and headers."""
    base, tail = chance.choice(BASES)
    kept = chance.random() < 0.5
    head = damaged(chance, json.dumps(changed(chance, base, typed=kept)).encode())
    if chance.random() < 0.2:
        tail = tail[:chance.randrange(len(tail) + 1)] + chance.randbytes(chance.randrange(9))
    headers = {JSON_LENGTH: str(len(head))} if tail else {}
    if chance.random() < 0.1:
        headers[JSON_LENGTH] = chance.choice(LENGTHS)
    return head + tail, headers


def malformed_page(chance: random.Random, model: str) -> tuple[str, bytes, dict[str, str]]:
    """A page, a body and headers: of a call, of one of `generate`, or of a load."""
    what = chance.random()
    if what < 0.7:
        return f"models/{model}/infer", *malformed(chance)
    if what < 0.9:
        page, base = f"models/{model}/generate", {"x": [[1, 2]], "by": 3, "on": [True], "id": "k",
                                                  "parameters": {"timeout": 10**7}}
    else:
        page = f"repository/models/{model}/load"
        base = {"parameters": {"image": "none.img", "state": "none.npz", "config": '{"a": 1}'}}
    return page, damaged(chance, json.dumps(changed(chance, base)).encode()), {}


def fuzz_messages(port: int, model: str, count: int, seed: int) -> Counter[int | str]:
    """Bodies that are nearly proper, over connections that stay. Returns the statuses."""
    chance, statuses = random.Random(seed), Counter[int | str]()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    for _ in range(count):
        page, body, headers = malformed_page(chance, model)
        connection.request("POST", f"/v2/{page}", body,
                           {k: v.encode() for k, v in headers.items()})
        answer = connection.getresponse()
        text = answer.read()
        known = (200, 400, 403, 409) if page.endswith("load") else (200, 400, 504)
        assert answer.status in known, (answer.status, text, page, body, headers)
        assert answer.status == 200 or list(json.loads(text)) == ["error"], (text, body)
        statuses[answer.status] += 1
    connection.close()
    return statuses


def fuzz_bytes(port: int, model: str, count: int, seed: int) -> None:
    """Bytes that are no HTTP, or half of it, and connections that end in the middle."""
    chance = random.Random(seed)
    body = json.dumps(BASES[0][0]).encode()
    proper = (f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}"
              "\r\n\r\n").encode() + body
    for _ in range(count):
        sent = bytearray(proper)
        for _ in range(chance.randrange(6)):
            sent[chance.randrange(len(sent))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
            with suppress(OSError):
                connection.sendall(sent[:chance.randrange(1, len(sent) + 1)])
                if chance.random() < 0.2:
                    connection.settimeout(0.01)
                    connection.recv(100)


def fuzz_grpc(address: str, model: str, count: int, seed: int) -> Counter[int | str]:
    """Messages that are nearly proper, and bytes that are none. Returns the codes."""
    import grpc

    from spmd.serving.grpc_messages import CLASSES, SERVICE

    chance, codes = random.Random(seed), Counter[int | str]()
    raw: dict[str, Any] = {"model_name": model, "id": "k", "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 2]}], "outputs": [{"name": "y"}],
        "raw_input_contents": [b"\0\0\x80\x3f" * 2]}
    listed = {"model_name": model, "parameters": {"timeout": {"int64_param": 10**7}}, "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1, 2]}},
        {"name": "by", "datatype": "INT64", "shape": [], "contents": {"int64_contents": [3]}}]}
    load = {"model_name": model, "parameters": {"state": {"string_param": "none.npz"},
                                                "config": {"bytes_param": b"{}"}}}
    bases = [("ModelInfer", raw), ("ModelInfer", listed), ("RepositoryModelLoad", load)]
    with grpc.insecure_channel(address) as channel:
        for _ in range(count):
            method, base = chance.choice(bases)
            kind = CLASSES[f"{method}Request"]
            try:
                data = kind(**changed(chance, base, typed=True)).SerializeToString()
            except (ValueError, TypeError):  # out of the range of the field
                continue
            data = damaged(chance, data) if chance.random() < 0.5 else data
            if method == "ModelInfer" and chance.random() < 0.2:  # of a stream each has an answer
                stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
                assert len(list(stream(iter([data, data]), timeout=PATIENCE))) == 2
                continue
            try:
                channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=PATIENCE)
                codes["OK"] += 1
            except grpc.RpcError as error:
                code = error.code().name
                assert code in ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION",
                                "PERMISSION_DENIED", "DEADLINE_EXCEEDED"), (
                    code, error.details(), method, data)
                codes[code] += 1
    return codes


def still_serves(server: Server, model: str) -> None:
    text = server.asked("GET", "/metrics").body.decode()
    assert 'status="400"' in text and 'status="500"' not in text
    x = np.ones((2, 2), np.float32)
    assert np.array_equal(spmd.connect(server.url)[model](x=x)["y"], 2 * x)
    assert server.launch.process.poll() is None


def grpc_address(server: Server) -> str:
    return server.lines[-1].removeprefix("grpc://")


PART = 10_000  # requests of one process, between two lines of what the program prints
PROCESSES = 3


def main(count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        image = built_in(Path(name), PROGRAM)
        words = ("--allow", "load", "--grpc-port", 0)
        own = stack.enter_context(serving(image, "--ranks", 2, *words))
        front, address = stack.enter_context(with_replicas(image, "--ranks", 0, *words))
        stack.enter_context(replica(address, "--ranks", 1))
        has(front, 1)
        statuses, began = Counter[int | str](), time.monotonic()
        pool = stack.enter_context(ProcessPoolExecutor(PROCESSES))
        parts = [pool.submit(_part, server.port, grpc_address(server), seed + k)
                 for k, server in zip(range(-(-count // PART)), cycle((own, front)))]
        for k, part in enumerate(parts, 1):
            statuses += part.result()
            print(f"{k * PART} requests, {time.monotonic() - began:.0f} s, answers: "
                  f"{dict(statuses)}", flush=True)
        for server in (own, front):
            still_serves(server, "scaled")


def _part(port: int, grpc: str, seed: int) -> Counter[int | str]:
    statuses = fuzz_messages(port, "scaled", PART, seed)
    fuzz_bytes(port, "scaled", PART // 10, seed)
    return statuses + fuzz_grpc(grpc, "scaled", PART // 10, seed)


if __name__ == "__main__":
    seed = int(sys.argv[2] if len(sys.argv) > 2 else time.time())
    print(f"seed {seed}")
    main(int(sys.argv[1]), seed)
