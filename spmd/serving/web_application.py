"""The Open Inference Protocol over HTTP: which request does what, and what is answered.

In: a server of models. Out: an application for any ASGI server. Always holds: a wrong request is
answered by a status of 400 and above, and {"error": …} with the sentences that the call itself
would have raised.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codegen.errors import SpmdError, UsageError
from spmd.serving import tensors
from spmd.serving.infer_messages import KIND, InferRequest, parameters_of, parted
from spmd.serving.infer_route import InferRoute, Shortcut, answer_head, asked_model
from spmd.serving.inference_server import InferenceServer
from spmd.serving.json_process import JsonProcess
from spmd.serving.refusals import Access, Refusal, said, status_of
from spmd.serving.request_bodies import WHOLE, RequestBodies
from spmd.serving.sent_frames import SentFrame
from spmd.serving.served_models import Answer

RETRY_S = 5  # later a client may ask again
HEALTH = ("/v2/health/live", "/v2/health/ready")
MODEL = "/v2/models/{model}"
LOADS = "/v2/repository/models/{model}"


def _text(value: Any) -> bytes:
    """Return JSON, in ASCII: whatever a request says as its id can be said again."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


class _Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _text(content)


def refused(error: BaseException) -> Response:
    """Return the answer that says an error."""
    status = status_of(error)
    headers = dict(error.headers) if isinstance(error, Refusal) else {}
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_S)
    headers[KIND], text = said(error)
    return _Json({"error": text}, status, headers)


class WebApplication:
    """The pages of a server."""

    def __init__(self, server: InferenceServer) -> None:
        self.server = server
        self._bodies = RequestBodies(server.most_bytes, server.queue.check_open)
        self._json = JsonProcess()

    def guarded(self, access: Access) -> ASGIApp:
        """Return the application, for requests that may have access."""
        infer = InferRoute(self.server, self._bodies, self._json, self._refused)
        rows: list[tuple[str, str, Callable[..., Any]]] = [
            ("POST", "/infer", infer), ("POST", "/generate", self._generate),
            ("POST", "/generate_stream", self._generate_stream),
            ("GET", "/ready", self._model_ready), ("GET", "", self._metadata)]
        routes = [Route(f"{MODEL}{version}{path}", act, methods=[method])
                  for method, path, act in rows for version in ("", "/versions/{version}")]
        routes += [Route(path, act, methods=[method]) for method, path, act in (
            ("GET", "/v2", self._about), ("GET", HEALTH[0], self._live),
            ("GET", HEALTH[1], self._ready), ("POST", "/v2/repository/index", self._index),
            ("POST", f"{LOADS}/load", self._load), ("POST", f"{LOADS}/unload", self._unload),
            ("GET", "/metrics", self._metrics))]
        app = Starlette(routes=routes, exception_handlers={
            Refusal: _answer, SpmdError: _answer, HTTPException: _no_such_page})
        return _Guarded(Shortcut(_Lingering(app, self._bodies), infer), access, self._refused)

    def _refused(self, error: BaseException) -> ASGIApp:
        """Return what answers an error, to a request whose body may not have been read."""
        return _Lingering(refused(error), self._bodies)

    def close(self) -> None:
        """End the process that reads and writes long JSON."""
        self._json.close()

    # ---- what is there

    async def _about(self, _: Request) -> Response:
        return _Json(self.server.about())

    async def _live(self, _: Request) -> Response:
        return _Json({"live": True})

    async def _ready(self, _: Request) -> Response:
        self.server.check_ready()
        return _Json({"ready": True})

    async def _index(self, request: Request) -> Response:
        ready = (await self._object(request)).get("ready", False)
        return _Json(self.server.repository.index(ready is True))

    async def _metadata(self, request: Request) -> Response:
        return _Json(self.server.repository.model(*asked_model(request.scope)).metadata())

    async def _model_ready(self, request: Request) -> Response:
        name, version = asked_model(request.scope)
        self.server.check_ready(name, version)
        return _Json({"name": name, "ready": True})

    async def _metrics(self, _: Request) -> Response:
        text, kind = self.server.metrics.text()
        return Response(text, media_type=kind)

    # ---- loads

    async def _load(self, request: Request) -> Response:
        name = request.path_params["model"]
        parameters = parameters_of(await self._object(request))
        version = await self.server.load(name, parameters)
        return _Json({"name": name, "version": version, "state": "READY"})

    async def _unload(self, request: Request) -> Response:
        name = request.path_params["model"]
        await self.server.unload(name)
        return _Json({"name": name, "state": "UNAVAILABLE"})

    async def _body(self, request: Request) -> bytes:
        return await self._bodies.read(request.scope, dict(request.scope["headers"]),
                                       request.receive)

    async def _object(self, request: Request) -> dict[str, Any]:
        """Return the JSON object of a body that may be left out."""
        body = await self._body(request)
        return parted(body, None)[0] if body.strip() else {}

    # ---- calls

    async def _generate(self, request: Request) -> Response:
        """Answer with the outputs of a call, and lists of what it has saved."""
        frames: dict[str, list[Any]] = {}
        head: dict[str, Any] = {}
        try:
            async with aclosing(self._parts(request, streams=False)) as parts:
                async for part, asked in parts:
                    row = _for_json(request, part, asked)
                    if isinstance(part, Answer):
                        head = row
                    else:
                        frames.setdefault(part.name, []).append(row[part.name])
        except Exception as error:
            return refused(error)
        return _Json({**head, **frames})

    async def _generate_stream(self, request: Request) -> Response:
        """Answer with an event for each frame, then one for the outputs."""
        events = self._events(request)
        try:
            first = await anext(events)
        except Exception as error:  # before anything has been sent
            return refused(error)
        return _EventStream(first, events)

    async def _events(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(self._parts(request, streams=True)) as parts:
            async for part, asked in parts:
                yield _for_json(request, part, asked)

    async def _parts(
        self, request: Request, streams: bool
    ) -> AsyncGenerator[tuple[SentFrame | Answer, InferRequest], None]:
        """Give each frame of a call, then its answer; with each, the request."""
        name, version = asked_model(request.scope)
        with self.server.request(name, version) as model:
            asked = await self._json.named(await self._body(request), model.datatypes())
            model.check_generates(streams)
            call = self.server.stream(model, asked, version, request.receive)
            async with aclosing(call) as parts:
                async for part in parts:
                    yield part, asked


async def _answer(_: Request, error: Exception) -> Response:
    return refused(error)


async def _no_such_page(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    page = f"{request.method} {request.url.path}"
    reason = "takes another method" if status == 405 else "is not there"
    return refused(Refusal(status, UsageError(
        f"{page} {reason}", expected="POST /v2/models/MODEL/infer, POST /v2/repository/index, GET "
        "/v2/models/MODEL, or others of the Open Inference Protocol", found=page),
        getattr(error, "headers", None)))


def _for_json(request: Request, part: SentFrame | Answer, asked: InferRequest) -> dict[str, Any]:
    """Return the JSON object that a frame, or an answer of `generate`, is."""
    arrays = [(name, array) for name, array, _ in part.outputs] if isinstance(part, Answer) else [
        (part.name, part.array)]
    return {**answer_head(request.path_params["model"], part.version, asked),
            **{name: tensors.as_nested(name, array) for name, array in arrays}}


class _EventStream(Response):
    """A stream of server-sent events: JSON objects, as they come. An error behind the first one is
    an event, too."""

    def __init__(self, first: dict[str, Any], events: AsyncGenerator[dict[str, Any], None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._first, self._events = first, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(event: dict[str, Any]) -> None:
            await send({"type": "http.response.body", "body": b"data: %s\n\n" % _text(event),
                        "more_body": True})

        await send({"type": "http.response.start", "status": self.status_code,
                    "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            try:
                await sent(self._first)
                async for event in events:
                    await sent(event)
            except Exception as error:
                await sent({"error": said(error)[1]})
        await send({"type": "http.response.body", "body": b""})


class _Guarded:
    """An application of which each request, but those for health, needs access. refused: the answer
    that says an error."""

    def __init__(self, app: ASGIApp, access: Access,
                 refused: Callable[[BaseException], ASGIApp]) -> None:
        self._app, self._access, self._refused = app, access, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wrong = None
        if scope["type"] == "http" and scope["path"] not in HEALTH:
            headers = dict(scope["headers"])
            wrong = self._access.refusal(headers.get(b"authorization", b""),
                                         headers.get(b"origin"))
        await (self._app if wrong is None else self._refused(wrong))(scope, receive, send)


class _Lingering:
    """An application that drops what it has not read of a body before its answer ends: a client
    that still sends when the connection closes never reads the answer."""

    def __init__(self, app: ASGIApp, bodies: RequestBodies) -> None:
        self._app, self._bodies = app, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if (message["type"] != "http.response.body" or message.get("more_body")
                    or scope.get(WHOLE)):
                await send(message)
                return
            await send({**message, "more_body": True})
            await self._bodies.drop(scope, receive)
            await send({"type": "http.response.body", "body": b""})

        await self._app(scope, receive, sending)
