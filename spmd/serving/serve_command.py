"""`spmd serve`: an image, open, behind the Open Inference Protocol, until a signal ends it.

In: options. Out: an exit code, 128 and the number of the signal. Always holds: after the first
signal no new call is taken, and what waits is answered; a second one ends the server now.
"""

from __future__ import annotations

import argparse
import gc
import ipaddress
import os
import re
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

from codegen.errors import EnvironmentFault, InputError, UsageError
from codegen.user.entry_methods import not_given
from spmd.faces import needed_of
from spmd.image import Image
from spmd.launch import loader
from spmd.launch.launchers import launcher
from spmd.launch.options import OPTIONS
from spmd.launch.processes import Processes
from spmd.looking import image_or_built
from spmd.report import is_shortage
from spmd.serving.call_queue import CallQueue
from spmd.serving.served_models import ServedModel, models_of
from spmd.texts import MOST_SECONDS

try:
    import uvicorn

    from spmd.serving.web_application import InferenceServer
except ImportError as error:
    if is_shortage(error):
        raise
    raise EnvironmentFault("spmd serve needs the packages of the extra serve",
                           expected="starlette, uvicorn and prometheus-client",
                           found=f"no {error.name}", remedy="pip install 'spmd[serve]'") from None

BACKLOG = 2048  # connections that may wait for the server to accept them
CLOSING_S = 10  # for the last answers to be read, and for clients to close their connections


def command(asked: argparse.Namespace, _: Processes) -> int:
    """Serve until a signal comes."""
    if launcher()[1] > 1:
        raise UsageError("spmd serve runs in one process", expected="spmd serve IMAGE --ranks N",
                         found=f"{launcher()[1]} processes of a launcher", remedy="leave it out")
    tokens = _tokens(asked.token_file) if asked.token_file else []
    _check_tls(asked.tls_cert, asked.tls_key)
    data, parameters = image_or_built(asked.image, asked.set, asked.no_cache)
    if others := [name for name in asked.set if name not in parameters]:
        raise UsageError(f"--set {others[0]}: no parameter of a program that is built now",
                         expected="scalars in requests", found=f"--set {others[0]}=…")
    checked = loader.check(data)
    image, stem = Image(checked), Path(re.sub(r"\.py:\w+$", ".py", asked.image)).stem
    if (needed := needed_of(checked.manifest)) and asked.state is None:
        raise not_given(checked.manifest["program"], needed)
    options = {name: getattr(asked, name) for name in OPTIONS if hasattr(asked, name)}
    with _listening(asked.host, asked.port) as listening, image.open(**options) as opened:
        models = models_of(image, opened, stem, asked.allow)
        if not models:
            raise UsageError(f"{asked.image} has nothing to serve", found="feeds",
                             expected="an entry, or a program, without feeds")
        queue = CallQueue(asked.queue, asked.wait)
        try:
            server = InferenceServer(models, queue, most_bytes=asked.max_body,
                                     timeout=asked.timeout or MOST_SECONDS)
            scheme = "https" if asked.tls_cert else "http"
            _say(f"{scheme}://{_address(listening)}", models)
            host = ipaddress.ip_address(listening.getsockname()[0])
            if not tokens and not host.is_loopback:
                print("other machines can reach this server, and it asks for no token: "
                      "--token-file FILE", file=sys.stderr, flush=True)
            return _served(server, listening, tokens, asked)
        finally:
            queue.close()


class _DrainingServer(uvicorn.Server):
    """A server that ends once its queue is idle. ended_by: the first signal."""

    def __init__(self, config: uvicorn.Config, queue: CallQueue) -> None:
        super().__init__(config)
        self._queue, self.ended_by = queue, 0

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to drain. A second signal ends the process: calls that still run are lost."""
        if self.ended_by:
            os._exit(128 + sig)
        self.ended_by = sig
        self._queue.drain()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end: uvicorn asks ten times a second."""
        ends = await super().on_tick(counter)
        return ends or bool(self.ended_by and self._queue.is_idle())


def _served(server: InferenceServer, listening: socket.socket, tokens: list[str],
            asked: argparse.Namespace) -> int:
    config = uvicorn.Config(
        server.application(tokens), log_level="critical", access_log=False, lifespan="off",
        ws="none", server_header=False, date_header=False, ssl_certfile=asked.tls_cert,
        ssl_keyfile=asked.tls_key, timeout_graceful_shutdown=CLOSING_S)
    gc.collect()
    gc.freeze()  # what is there stays: to look at all of it again would take 10 ms
    runs = _DrainingServer(config, server.queue)
    runs.run(sockets=[listening])
    return 128 + runs.ended_by


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises EnvironmentFault where the address is taken, or is none
    of this machine."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # Connections inherit it: the head of an answer does not wait until the client has
        # acknowledged the one before.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise EnvironmentFault(f"cannot listen at {host}, port {port}",
                               expected="an address of this machine, and a port that is free",
                               found=error.strerror or str(error),
                               remedy="--port 0, for any that is free") from None


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _say(address: str, models: dict[str, ServedModel]) -> None:
    for model in models.values():
        entry = model.name.rpartition(".")[2]
        print(f"{model.name}: {f'needs --allow {entry}' if model.refusal else 'ready'}")
    print(address, flush=True)


def _tokens(path: str) -> list[str]:
    """Return the tokens of a file, one in each line. Raises InputError where there is none."""
    tokens = [line.strip() for line in Path(path).read_text("utf-8", "replace").splitlines()]
    if not any(tokens):
        raise InputError(f"{path} has no token", expected="a token in each line", found="nothing",
                         remedy=f"openssl rand -hex 32 > {path}")
    return [token for token in tokens if token]


def _check_tls(cert: str | None, key: str | None) -> None:
    """Raise UsageError for a certificate without a key, and InputError for files that are none."""
    if cert is None and key is None:
        return
    if cert is None or key is None:
        raise UsageError("TLS needs a certificate and its key", expected="--tls-cert FILE "
                         "--tls-key FILE", found="one of them")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        raise InputError(f"{cert} and {key} are no certificate and its key", found=str(error),
                         expected="PEM files that belong together, the key without a password"
                         ) from None


