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
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from codegen.errors import EnvironmentFault, InputError, UsageError
from spmd.launch.launchers import launcher
from spmd.launch.options import OPTIONS
from spmd.launch.processes import Processes
from spmd.report import is_shortage
from spmd.serving.call_queue import CallQueue
from spmd.serving.model_repository import LOAD, ModelRepository
from spmd.serving.refusals import Access
from spmd.serving.served_job import JobSource, Opening, OpenJob, open_job
from spmd.serving.served_models import ServedModel
from spmd.texts import MOST_SECONDS

try:
    import uvicorn

    from spmd.serving.http_protocol import HttpProtocol
    from spmd.serving.inference_server import InferenceServer
    from spmd.serving.web_application import WebApplication
except ImportError as error:
    if is_shortage(error):
        raise
    raise EnvironmentFault("spmd serve needs the packages of the extra serve",
                           expected="starlette, uvicorn and prometheus-client",
                           found=f"no {error.name}", remedy="pip install 'spmd[serve]'") from None

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.serving.grpc_service import GrpcService
    from spmd.serving.served_replicas import Replicas

Stop = Callable[[float], Awaitable[None]]  # ends what listens, within some seconds
BACKLOG = 2048  # connections that may wait for the server to accept them
CLOSING_S = 10  # for the last answers to be read, and for clients to close their connections


def command(asked: argparse.Namespace, _: Processes) -> int:
    """Serve until a signal comes."""
    if asked.image is None:
        raise UsageError("which image?", expected="spmd serve IMAGE, or spmd serve --join ADDRESS",
                         found="neither")
    if launcher()[1] > 1:
        raise UsageError("spmd serve runs in one process", expected="spmd serve IMAGE --ranks N",
                         found=f"{launcher()[1]} processes of a launcher",
                         remedy="leave it out, or start replicas with it: spmd serve --join "
                         "ADDRESS")
    tokens = _tokens(asked.token_file) if asked.token_file else []
    _check_tls(asked.tls_cert, asked.tls_key)
    for folder in asked.load_from:
        if not os.path.isdir(folder):
            raise UsageError(f"--load-from {folder}", expected="a folder", found="none there")
    options: dict[str, Any] | None = {name: getattr(asked, name) for name in OPTIONS
                                      if hasattr(asked, name) and name != "state"}
    if asked.ranks == 0:
        options = None
    let_join = _replicas_asked(asked)
    opening = partial(open_job, options=options, no_cache=asked.no_cache)
    with _listening(asked.host, asked.port) as listening:
        files = JobSource(asked.image, asked.state, asked.set)
        repository = _repository(asked, opening(files, lambda _: None), opening)
        queue = CallQueue(asked.queue, asked.wait, here=options is not None)
        replicas = None
        try:
            if let_join is not None:
                replicas = let_join(queue, repository)
            server = InferenceServer(repository, queue, most_bytes=asked.max_body,
                                     timeout=asked.timeout or MOST_SECONDS)
            if replicas is not None:
                server.metrics.count_replicas(replicas)
            return _served(server, listening, tokens, asked)
        finally:
            if replicas is not None:
                replicas.close()
            queue.close()
            repository.close()


def _repository(asked: argparse.Namespace, job: OpenJob, opening: Opening) -> ModelRepository:
    """Return the models of a job that was opened. Raises UsageError where it has none."""
    try:
        path = re.sub(r"\.py:\w+$", ".py", asked.image)
        folder = os.path.dirname(path) or "."
        repository = ModelRepository(Path(path).stem, job, opening, allowed=asked.allow,
                                     folders=[folder, *asked.load_from])
        if not repository.models:
            raise UsageError(f"{asked.image} has nothing to serve", found="feeds",
                             expected="an entry, or a program, without feeds")
        return repository
    except BaseException:
        job.close()
        raise


def _replicas_asked(asked: argparse.Namespace
                    ) -> Callable[[CallQueue, ModelRepository], Replicas] | None:
    """Return what lets replicas join; None where none may. Raises UsageError for options that do
    not fit."""
    if asked.replicas is None:
        if asked.ranks == 0:
            raise UsageError("--ranks 0 leaves nobody to make calls", expected="--ranks 0 "
                             "--replicas tcp://HOST:PORT", found="no --replicas")
        return None
    if entries := [x for x in asked.allow if x != LOAD]:
        raise UsageError(f"--allow {entries[0]}: an entry that changes state, and --replicas",
                         expected="entries that keep state: each replica has a state of its own",
                         found=f"--allow {entries[0]}", remedy="call it in a server without "
                         "replicas, save the state there, and load it here: --allow load")
    from spmd.serving.served_replicas import Replicas, keys_for  # may be missing: an extra

    keys, allowed = keys_for(asked.replicas, asked.keys)

    def begin(queue: CallQueue, repository: ModelRepository) -> Replicas:
        replicas = Replicas(asked.replicas, keys, allowed, queue, repository.job,
                            has_own=asked.ranks != 0)
        repository.swap = replicas.swap
        print(f"replicas join at {replicas.address}")
        return replicas

    return begin


class _DrainingServer(uvicorn.Server):
    """A server that ends once its queue is idle. begin: starts what belongs to it, in its event
    loop, and returns what stops that; ended_by: the first signal."""

    def __init__(self, config: uvicorn.Config, queue: CallQueue,
                 begin: Callable[[], Coroutine[Any, Any, Stop]]) -> None:
        super().__init__(config)
        self._queue, self._begin, self.ended_by = queue, begin, 0
        queue.connections = self.server_state.connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, over HTTP and what else there is."""
        await super().startup(sockets)
        self._stop = await self._begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what listens, once the last answers have been read."""
        await self._stop(CLOSING_S)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to drain at a signal. A second one ends the process: calls that still run are
        lost."""
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
    access = Access(tokens)
    pages = WebApplication(server)
    config = uvicorn.Config(
        pages.guarded(access), log_level="critical", access_log=False,
        lifespan="off", ws="none", http=HttpProtocol, proxy_headers=False,
        server_header=False, date_header=False, ssl_certfile=asked.tls_cert,
        ssl_keyfile=asked.tls_key, timeout_graceful_shutdown=CLOSING_S)
    service = None if asked.grpc_port is None else _grpc_service(server, access)

    async def begin() -> Stop:
        stop: Stop = _nothing
        _say(server.repository.models)
        if service is not None:
            port, stop = await service.started(asked.host, asked.grpc_port, asked.tls_cert,
                                               asked.tls_key)
            print(f"grpc{'s' * bool(asked.tls_cert)}://{_address(asked.host, port)}")
        scheme = "https" if asked.tls_cert else "http"
        print(f"{scheme}://{_address(*listening.getsockname()[:2])}", flush=True)
        host = ipaddress.ip_address(listening.getsockname()[0])
        if not tokens and not host.is_loopback:
            print("other machines can reach this server, and it asks for no token: "
                  "--token-file FILE", file=sys.stderr, flush=True)
        return stop

    gc.collect()
    gc.freeze()  # what is there stays: to look at all of it again would take 10 ms
    runs = _DrainingServer(config, server.queue, begin)
    try:
        runs.run(sockets=[listening])
    finally:
        pages.close()
    return 128 + runs.ended_by


async def _nothing(_: float) -> None:
    """Do nothing where only HTTP is served and so nothing else has to stop."""


def _grpc_service(server: InferenceServer, access: Access) -> GrpcService:
    """Return the service for gRPC. Raises EnvironmentFault where its packages are missing."""
    try:
        from spmd.serving.grpc_service import GrpcService  # may be missing: an extra of its own
    except ImportError as error:
        if is_shortage(error):
            raise
        raise EnvironmentFault("spmd serve --grpc-port needs the packages of the extra grpc",
                               expected="grpcio and protobuf", found=f"no {error.name}",
                               remedy="pip install 'spmd[grpc]'") from None
    return GrpcService(server, access)


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


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _say(models: dict[str, ServedModel]) -> None:
    for model in models.values():
        entry = model.name.rpartition(".")[2]
        print(f"{model.name}: {f'needs --allow {entry}' if model.refusal else 'ready'}")


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


