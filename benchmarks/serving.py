"""`spmd serve` beside a web server without a model, FastAPI and LitServe: Markdown.

`python -m benchmarks.serving`. Requests go to each, in rounds that alternate: what one client
waits for, and what 32 clients get in a second. Starlette under uvicorn with the same settings reads
a body and answers one of the same length. PEERS_PYTHON names a Python that has fastapi, uvicorn,
httptools, uvloop, litserve, onnx and onnxruntime.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

import spmd
from spmd import nn
from tests.conftest import Launch, until
from tests.serving.serving_kit import JSON_LENGTH, ending_with_us, serving

ROUNDS, SECONDS, CLIENTS = 5, 1.0, 32
PEERS = {"fastapi": "FastAPI, ONNX Runtime", "litserve": "LitServe, ONNX Runtime"}
PYTHON = os.environ.get("PEERS_PYTHON")
BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from spmd.serving.serve_command import _listening

answer = bytes(int(sys.argv[1]))

async def infer(request):
    await request.body()
    return Response(answer, media_type="application/octet-stream")

app = Starlette(routes=[Route("/v2/models/{model}/infer", infer, methods=["POST"])])
listening = _listening("127.0.0.1", 0)
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(
    app, log_level="critical", access_log=False, lifespan="off", ws="none", proxy_headers=False,
    server_header=False, date_header=False)).run(sockets=[listening])
"""


@spmd.program(mesh=("r",))
class Digits:
    """A network so small that the request, not the call, takes most of the time."""

    def __init__(self) -> None:
        self.rows = spmd.Dim("batch", at_most=64)
        self.w = {"in": nn.glorot(0, (64, 32)), "out": nn.glorot(1, (32, 10))}

    @spmd.entry
    def infer(self) -> object:
        x = spmd.input("x", (self.rows, 64), np.float32)
        return np.argmax(np.tanh(x @ self.w["in"]) @ self.w["out"], 1)


def request_of(x: np.ndarray) -> bytes:
    head = json.dumps({"inputs": [{
        "name": "x", "datatype": "FP32", "shape": list(x.shape),
        "parameters": {"binary_data_size": x.nbytes}}],
        "parameters": {"binary_data_output": True}}).encode()
    return (f"POST /v2/models/digits.infer/infer HTTP/1.1\r\nHost: localhost\r\n{JSON_LENGTH}: "
            f"{len(head)}\r\nContent-Length: {len(head) + x.nbytes}\r\n\r\n"
            ).encode() + head + x.tobytes()


def length_of(answer: bytes) -> int:
    """The bytes of a whole answer, of which the head is there; 0 where it is not."""
    head, end, _ = answer.partition(b"\r\n\r\n")
    if not end:
        return 0
    assert head.startswith(b"HTTP/1.1 200 "), answer
    return len(head) + 4 + int(head.lower().partition(b"\r\ncontent-length: ")[2].split(b"\r\n")[0])


class Client(asyncio.Protocol):
    """Sends the same request as soon as it has the answer to the one before."""

    def __init__(self, request: bytes) -> None:
        self.request, self.answer, self.count = request, b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.answer += data
        if len(self.answer) == length_of(self.answer):
            self.answer, self.count = b"", self.count + 1
            self.transport.write(self.request)  # type: ignore[attr-defined]


async def rate(port: int, request: bytes) -> float:
    """Requests that so many clients are answered in a second."""
    loop = asyncio.get_running_loop()
    connections = [await loop.create_connection(lambda: Client(request), "127.0.0.1", port)
                   for _ in range(CLIENTS)]
    await asyncio.sleep(0.2)
    before, began = sum(client.count for _, client in connections), time.perf_counter()
    await asyncio.sleep(SECONDS)
    answered = sum(client.count for _, client in connections) - before
    rate_per_s = answered / (time.perf_counter() - began)
    for transport, _ in connections:
        transport.close()
    return rate_per_s


def latency(port: int, request: bytes, count: int = 300) -> float:
    """Microseconds until one client has its answer: the median."""
    times = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            began, answer = time.perf_counter(), b""
            connection.sendall(request)
            while not answer or len(answer) != length_of(answer):
                answer += connection.recv(1 << 16)
            times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


def plain_request(body: bytes, kind: str) -> bytes:
    """A request that the servers of benchmarks.serving_peers take."""
    return (f"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/{kind}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def request_to(name: str, x: np.ndarray) -> bytes:
    """The request for the same rows, as each server takes it quickest."""
    if name == "fastapi":
        return plain_request(x.tobytes(), "octet-stream")
    if name == "litserve":
        return plain_request(json.dumps({"x": base64.b64encode(x).decode()}).encode(), "json")
    return request_of(x)


@contextmanager
def bare(rows: int) -> Iterator[int]:
    """The port of the server without a model, whose answers are as long as ours."""
    with Launch(ending_with_us([sys.executable, "-c", BARE, 150 + 8 * rows])) as launch:
        assert launch.process.stdout is not None
        yield int(launch.process.stdout.readline())


@contextmanager
def elsewhere(name: str, weights: Path) -> Iterator[int]:
    """The port of a server of another project, once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    file = Path(__file__).with_name("serving_peers.py")
    with Launch(ending_with_us([PYTHON, file, name, weights, port])):
        until(lambda: answers(port, request_to(name, np.ones((1, 64), np.float32))))
        yield port


def answers(port: int, request: bytes) -> bool:
    try:
        latency(port, request, 1)
    except OSError:
        return False
    return True


def report(_: Path | None = None) -> None:
    """Print what requests take, by the rows of each and by server."""
    image = spmd.build(Digits)
    names = {"spmd": "spmd serve", "bare": "no model", **(PEERS if PYTHON else {})}
    print("| rows | | one client, µs | over ours | 32 clients, 1/s | ours over it |\n"
          "|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path, weights = Path(folder, "digits.img"), Path(folder, "digits.npz")
        image.save(path)
        np.savez(weights, **{"in": nn.glorot(0, (64, 32)), "out": nn.glorot(1, (32, 10))})
        server = stack.enter_context(serving(path, "--ranks", 1, "--queue", CLIENTS))
        ports = {"spmd": server.port, **{
            name: stack.enter_context(elsewhere(name, weights)) for name in names if name in PEERS}}
        for rows in (1, 64):
            with bare(rows) as port:
                measure({**ports, "bare": port}, names, np.ones((rows, 64), np.float32))


def measure(ports: dict[str, int], names: dict[str, str], x: np.ndarray) -> None:
    """Print a row for each server, by its port."""
    asked = {name: request_to(name, x) for name in names}
    times, rates = [], []
    for _ in range(ROUNDS):
        times.append({name: latency(ports[name], asked[name]) for name in names})
        rates.append({name: asyncio.run(rate(ports[name], asked[name])) for name in names})
    for name, title in names.items():
        took, over, many, ratio = (statistics.median(column) for column in (
            [row[name] for row in times], [row[name] / row["spmd"] for row in times],
            [row[name] for row in rates], [row["spmd"] / row[name] for row in rates]))
        print(f"| {len(x)} | {title} | {took:.0f} | {over:.2f} | {many:.0f} | {ratio:.2f} |",
              flush=True)


if __name__ == "__main__":
    report()
