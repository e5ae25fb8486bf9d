"""What a browser sees of a scheduler: one page, /status.json, /history.json and /metrics.

In: a Scheduler and a port. Out: a server on 127.0.0.1, in a thread of its own.
Always holds: it only reads; it answers this machine only, and no page of another site.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from codegen.errors import EnvironmentFault
from spmd.feeding.scheduling.scheduler import Scheduler
from spmd.feeding.status.metrics import prometheus

NAMES = ("127.0.0.1", "localhost", "[::1]")
POLICY = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
          "connect-src 'self'")


class WebPage:
    """Serves the status as a web page. port: 0 takes a free one. address says where the page is."""

    def __init__(self, scheduler: Scheduler, port: int) -> None:
        html = files("spmd.feeding.status").joinpath("page.html").read_bytes()

        class Answering(_Answering):
            of, page = scheduler, html

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Answering)
        except OSError as error:
            raise EnvironmentFault(f"--page {port}: {error.strerror}", expected="a free port",
                                   remedy="another port, or 0 for any") from None
        self._server.daemon_threads = True
        self._server.socket.setblocking(False)  # who connects may be gone when it is accepted
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="feed-page",
                         daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Answering(BaseHTTPRequestHandler):
    of: Scheduler
    page: bytes
    timeout = 5

    def do_GET(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in NAMES:
            self._give(403, "text/plain", b"this page is for this machine only\n")
            return
        path = self.path.partition("?")[0]
        if path == "/":
            self._give(200, "text/html; charset=utf-8", self.page)
        elif path == "/status.json":
            self._give(200, "application/json", _json(self.of.snapshot))
        elif path == "/history.json":
            self._give(200, "application/json",
                       _json({name: list(rows) for name, rows in self.of.history.copy().items()}))
        elif path == "/metrics":
            text, kind = prometheus(self.of.snapshot)
            self._give(200, kind, text)
        else:
            self._give(404, "text/plain", b"there are /, /status.json, /history.json, /metrics\n")

    def _give(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the page refreshes itself."""


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
