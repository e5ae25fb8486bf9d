"""Servers as processes of their own, and requests as whoever speaks plain HTTP makes them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spmd.feeding.host.children import PR_SET_PDEATHSIG
from tests.conftest import PATIENCE, Launch, here, until

JSON_LENGTH = "Inference-Header-Content-Length"


@dataclass
class Server:
    """A server that runs. lines: what it has printed before its address."""

    launch: Launch
    url: str
    lines: list[str]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def asked(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """The answer to one request, on a connection of its own. body: bytes, or what is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        found = Answer(answer.status, dict(answer.headers), answer.read())
        connection.close()
        return found

    def infer(self, model: str, body: Any, **headers: str) -> Answer:
        return self.asked("POST", f"/v2/models/{model}/infer", body, **headers)

    def metric(self, line: str) -> float:
        """The number in the line of the metrics that begins so; 0 where there is none."""
        text = self.asked("GET", "/metrics").body.decode()
        found = [row for row in text.splitlines() if row.startswith(f"{line} ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    def waits_for(self, line: str, number: float) -> None:
        until(lambda: self.metric(line) == number)


@dataclass
class Answer:
    """Status, headers and body of an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body[:int(self.headers.get(JSON_LENGTH.lower(), len(self.body)))])

    @property
    def error(self) -> str:
        assert list(self.json) == ["error"]
        return str(self.json["error"])


def ending_with_us(argv: list[object]) -> list[object]:
    """The command as one that the kernel ends when this process, which starts it, is killed."""
    begin = ("import ctypes, os, sys\n"
             f"ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)\n"
             f"os.getppid() == {os.getpid()} and os.execv(sys.argv[1], sys.argv[1:])")
    return [sys.executable, "-c", begin, *argv]


@contextmanager
def serving(image: object, *words: object) -> Iterator[Server]:
    """A server of an image, at a port that is free, with these options."""
    argv = [sys.executable, "-m", "spmd", "serve", image, "--port", "0", *words]
    with Launch(ending_with_us(argv)) as launch:
        assert launch.process.stdout is not None
        lines: list[str] = []
        for line in launch.process.stdout:
            lines.append(line.strip())
            if line.startswith("http"):
                break
        else:
            raise AssertionError("\n".join(lines) + (launch.process.stderr or sys.stdin).read())
        yield Server(launch, lines[-1], lines[:-1])


@contextmanager
def in_threads(count: int, work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Work done in so many threads, meanwhile; what each has returned, once the context ends."""
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(work())) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        for thread in threads:
            thread.join(PATIENCE)


def built_in(folder: Path, program: str) -> Path:
    """The image of a program in a folder, for those that pytest does not run."""
    source, image = folder / "scaled.py", folder / "scaled.img"
    source.write_text(program)
    assert here("build", source, "-o", image) == 0
    return image


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}
