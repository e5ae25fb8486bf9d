"""The Open Inference Protocol over HTTP: which request does what, and what is answered.

In: models, a queue, limits. Out: an application for any ASGI server. Always holds: a wrong request
is answered by a status of 400 and above, and {"error": …} with the sentences that the call itself
would have raised.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from codegen.errors import (
    CheckError,
    EnvironmentFault,
    InputError,
    MeshError,
    PeerError,
    SpmdError,
    UsageError,
)
from spmd import __version__, report
from spmd.serving.call_queue import (
    CallQueue,
    DeadlineError,
    DrainingError,
    FullError,
    GoneError,
)
from spmd.serving.infer_messages import HEADER, KIND, InferRequest, message
from spmd.serving.request_metrics import RequestMetrics
from spmd.serving.served_models import ServedModel, unknown_model

LENGTH = HEADER.lower()
BODY_S = 30.0  # for a whole body to come
RETRY_S = 5  # later a client may ask again
GONE = 499  # the status, in metrics, of a request whose client has gone
HEALTH = ("/v2/health/live", "/v2/health/ready")
# The status of an error; the first class that fits counts.
STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (FullError, 429), (DeadlineError, 504), (DrainingError, 503), (GoneError, GONE),
    (InputError, 400), (UsageError, 400), (CheckError, 400), (MeshError, 400),
    (EnvironmentFault, 503), (PeerError, 503), (MemoryError, 503),
)


class Refusal(Exception):
    """An answer other than 200: its status, and the error that its body says."""

    def __init__(self, status: int, error: SpmdError, headers: Mapping[str, str] | None = None
                 ) -> None:
        super().__init__(str(error))
        self.status, self.error, self.headers = status, error, headers or {}


def refused(error: BaseException) -> Response:
    """Return the answer that says an error."""
    headers: dict[str, str] = {}
    if isinstance(error, Refusal):
        status, headers, error = error.status, dict(error.headers), error.error
    else:
        status = next((code for kind, code in STATUSES if isinstance(error, kind)), 500)
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_S)
    headers[KIND] = next((kind.__name__ for kind in type(error).mro()
                          if kind.__module__ == "spmd"), "InternalError")
    text = str(error) if isinstance(error, SpmdError) else (
        report.error_text(error).removeprefix("spmd: "))
    return JSONResponse({"error": text}, status, headers)


class InferenceServer:
    """Answers the requests for some models, whose calls go through one queue.

    most_bytes: bytes that a request's body may have. timeout: seconds that a call may take."""

    def __init__(self, models: Mapping[str, ServedModel], queue: CallQueue, *,
                 most_bytes: int, timeout: float) -> None:
        self.models, self.queue = models, queue
        self.most_bytes, self.timeout = most_bytes, timeout
        self.metrics = RequestMetrics(queue)

    def application(self, tokens: Collection[str] = ()) -> ASGIApp:
        """Return the application. tokens: of which each request needs one; without any, requests
        need none, but those of web pages are refused."""
        model = "/v2/models/{model}"
        rows: list[tuple[str, str, Callable[[Request], Any]]] = [
            ("POST", "/infer", self._infer), ("GET", "/ready", self._model_ready),
            ("GET", "", self._metadata)]
        routes = [Route(f"{model}{version}{path}", act, methods=[method])
                  for method, path, act in rows for version in ("", "/versions/{version}")]
        routes += [Route(path, act, methods=[method]) for method, path, act in (
            ("GET", "/v2", self._server), ("GET", HEALTH[0], self._live),
            ("GET", HEALTH[1], self._ready), ("POST", "/v2/repository/index", self._index),
            ("GET", "/metrics", self._metrics))]
        app = Starlette(routes=routes, exception_handlers={
            Refusal: _answer, SpmdError: _answer, HTTPException: _no_such_page})
        return _Guarded(app, tokens)

    # ---- what is there

    async def _server(self, _: Request) -> Response:
        return JSONResponse({"name": "spmd", "version": __version__,
                             "extensions": ["binary_tensor_data"]})

    async def _live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, _: Request) -> Response:
        self.queue.check_open()
        return JSONResponse({"ready": True})

    async def _index(self, _: Request) -> Response:
        return JSONResponse([
            {"name": model.name, "version": model.version,
             "state": "UNAVAILABLE" if model.refusal else "READY",
             "reason": str(model.refusal or "")} for model in self.models.values()])

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse(self._model_of(request).metadata())

    async def _model_ready(self, request: Request) -> Response:
        model = self._callable_model(request)
        self.queue.check_open()
        return JSONResponse({"name": model.name, "ready": True})

    async def _metrics(self, _: Request) -> Response:
        text, kind = self.metrics.text()
        return Response(text, media_type=kind)

    def _model_of(self, request: Request) -> ServedModel:
        name, version = request.path_params["model"], request.path_params.get("version")
        model = self.models.get(name)
        if model is None:
            raise Refusal(404, unknown_model(name, self.models))
        if version not in (None, model.version):
            raise Refusal(404, UsageError(f"{name} has no version {version!r}",
                                          expected=model.version, found=version))
        return model

    def _callable_model(self, request: Request) -> ServedModel:
        model = self._model_of(request)
        if model.refusal is not None:
            raise Refusal(403, model.refusal)
        return model

    # ---- calls

    async def _infer(self, request: Request) -> Response:
        began, model, status = time.perf_counter(), "", GONE
        try:
            found = self._callable_model(request)
            model = found.name
            response = await self._answered(found, request)
            status = response.status_code
        except Exception as error:
            response = refused(error)
            status = response.status_code
        finally:
            self.metrics.count(model, status, time.perf_counter() - began)
        return response

    async def _answered(self, model: ServedModel, request: Request) -> Response:
        self.queue.check_open()
        headers = {key.decode("latin-1"): value.decode("latin-1")
                   for key, value in request.scope["headers"]}
        asked = InferRequest(await self._body(request, headers), headers.get(LENGTH))
        call = model.prepared(asked)
        seconds = min(asked.timeout or self.timeout, self.timeout)
        waiting = self.queue.add(self.metrics.timed(model.name, call))
        outputs = await self.queue.result(waiting, seconds, request.receive)
        head: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
        if asked.id is not None:
            head["id"] = asked.id
        body, length = message(head, "outputs", outputs)
        if length is None:
            return Response(body, media_type="application/json")
        return Response(body, media_type="application/octet-stream", headers={HEADER: str(length)})

    async def _body(self, request: Request, headers: Mapping[str, str]) -> bytes:
        """Return the body of a request with these headers. Raises Refusal for one that is too long,
        or compressed, or whose rest does not come."""
        coding = headers.get("content-encoding", "identity")
        if coding != "identity":
            raise Refusal(415, InputError("the body is compressed", found=coding, expected="a body "
                                          "without Content-Encoding"), {"Connection": "close"})
        length = headers.get("content-length", "")
        if length.isdigit() and int(length[:19]) > self.most_bytes:
            raise self._too_long(length)
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(BODY_S):
                while more:
                    piece = await request.receive()
                    if piece["type"] == "http.disconnect":
                        raise ClientDisconnect
                    parts.append(piece.get("body", b""))
                    size, more = size + len(parts[-1]), piece.get("more_body", False)
                    if size > self.most_bytes:
                        raise self._too_long(f"{size} or more")
        except (TimeoutError, ClientDisconnect):
            raise Refusal(400, InputError(
                "the body ended too early", found=f"{size} bytes",
                expected=f"{length or 'all'} bytes within {BODY_S:g} s"),
                {"Connection": "close"}) from None
        return b"".join(parts)

    def _too_long(self, size: str) -> Refusal:
        return Refusal(413, InputError(
            "the body is too long", expected=f"at most {self.most_bytes} bytes",
            found=f"{size} bytes", remedy="binary tensors, which are shorter than JSON; or "
            "--max-body SIZE of spmd serve"), {"Connection": "close"})


async def _answer(_: Request, error: Exception) -> Response:
    return refused(error)


async def _no_such_page(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    page = f"{request.method} {request.url.path}"
    what = "takes another method" if status == 405 else "is not there"
    return refused(Refusal(status, UsageError(
        f"{page} {what}", expected="POST /v2/models/MODEL/infer, POST /v2/repository/index, GET "
        "/v2/models/MODEL, or others of the Open Inference Protocol", found=page),
        getattr(error, "headers", None)))


class _Guarded:
    """An application of which each request, but those for health, needs one of some tokens. Without
    tokens, web pages are refused: what a browser shows could reach a server of this machine."""

    def __init__(self, app: ASGIApp, tokens: Collection[str]) -> None:
        self._app, self._tokens = app, [token.encode() for token in tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wrong = None
        if scope["type"] == "http" and scope["path"] not in HEALTH:
            wrong = self._wrong(dict(scope["headers"]))
        await (self._app if wrong is None else refused(wrong))(scope, receive, send)

    def _wrong(self, headers: dict[bytes, bytes]) -> Refusal | None:
        if not self._tokens:
            return None if b"origin" not in headers else Refusal(403, UsageError(
                "a web page asks, and this server has no tokens", expected="no header Origin",
                found=headers[b"origin"].decode("latin-1"),
                remedy="--token-file FILE of spmd serve"))
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        # Each token is compared: how long that takes says nothing of any.
        same = [hmac.compare_digest(token, known) for known in self._tokens]
        if kind.lower() == b"bearer" and any(same):
            return None
        return Refusal(401, UsageError(
            "the request has no token of this server",
            expected="Authorization: Bearer TOKEN, with a line of its --token-file",
            found="another token" if token else "no token",
            remedy="spmd.connect(url, token=…)"), {"WWW-Authenticate": "Bearer"})
