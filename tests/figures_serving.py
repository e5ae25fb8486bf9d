"""`spmd serve` beside the same web server without a model: Markdown on standard output.

`python -m tests.figures_serving`. Requests go to both, in rounds that alternate: what one client
waits for, and what 32 clients get in a second. The other application is Starlette under uvicorn
with the same settings; it reads a body and answers one of the same length.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import spmd
from spmd import nn
from tests.conftest import Launch
from tests.serving.serving_kit import JSON_LENGTH, ending_with_us, serving

ROUNDS, SECONDS, CLIENTS = 9, 1.0, 32
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
    """A small network: what the call itself takes is little beside what a request takes."""

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
    made = [await loop.create_connection(lambda: Client(request), "127.0.0.1", port)
            for _ in range(CLIENTS)]
    await asyncio.sleep(0.2)
    before, began = sum(client.count for _, client in made), time.perf_counter()
    await asyncio.sleep(SECONDS)
    found = (sum(client.count for _, client in made) - before) / (time.perf_counter() - began)
    for transport, _ in made:
        transport.close()
    return found


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


def main() -> None:
    image = spmd.build(Digits)
    print("| rows | bytes | one client, µs | without a model, µs | more, µs | 32 clients, 1/s | "
          "without a model, 1/s | ratio |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "digits.img")
        image.save(path)
        with serving(path, "--ranks", 1, "--queue", CLIENTS) as server:
            for rows in (1, 64):
                measure(server.port, np.ones((rows, 64), np.float32))


def measure(port: int, x: np.ndarray) -> None:
    request = request_of(x)
    with Launch(ending_with_us([sys.executable, "-c", BARE, 150 + 8 * len(x)])) as bare:
        assert bare.process.stdout is not None
        ports = (port, int(bare.process.stdout.readline()))
        times, rates = [], []
        for _ in range(ROUNDS):
            times.append([latency(p, request) for p in ports])
            rates.append([asyncio.run(rate(p, request)) for p in ports])
    (ours, other), (fast, other_fast) = (
        [statistics.median(column) for column in zip(*rows)] for rows in (times, rates))
    more = statistics.median(a - b for a, b in times)
    ratio = statistics.median(a / b for a, b in rates)
    print(f"| {len(x)} | {len(request)} | {ours:.0f} | {other:.0f} | {more:.0f} | {fast:.0f} | "
          f"{other_fast:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
