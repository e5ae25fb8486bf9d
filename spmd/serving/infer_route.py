"""Requests for inference over HTTP, which are many and alike: from their bytes to an answer's.

In: requests as ASGI has them. Out: answers. Always holds: the path of a request decides alone
whether it comes here, past the router of all other pages; a wrong one is answered as there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from spmd.serving.infer_messages import HEADER, InferRequest
from spmd.serving.inference_server import InferenceServer
from spmd.serving.json_process import JsonProcess
from spmd.serving.request_bodies import Receive, RequestBodies

Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]

LENGTH = HEADER.lower().encode()
_JSON = [(b"content-type", b"application/json")]
_BINARY = [(b"content-type", b"application/octet-stream")]


class InferRoute:
    """Answers requests for inference. refused: the answer that says an error."""

    def __init__(self, server: InferenceServer, bodies: RequestBodies,
                 texts: JsonProcess, refused: Callable[[Exception], Application]) -> None:
        self._server, self._bodies, self._json = server, bodies, texts
        self._refused = refused

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request whose path has been matched."""
        name, version = asked_model(scope)
        headers = dict(scope["headers"])
        length = headers.get(LENGTH)
        try:
            with self._server.request(name, version) as model:
                asked = await self._json.request(
                    await self._bodies.read(scope, headers, receive),
                    None if length is None else length.decode("latin-1"))
                answer = await self._server.infer(model, asked, version, receive)
                body, size = await self._json.message(
                    answer_head(name, answer.version, asked), "outputs", answer.outputs)
        except Exception as error:
            await self._refused(error)(scope, receive, send)
            return
        kind = _JSON if size is None else [*_BINARY, (LENGTH, b"%d" % size)]
        await send({"type": "http.response.start", "status": 200,
                    "headers": [*kind, (b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


class Shortcut:
    """An application whose requests for inference go straight to their route."""

    def __init__(self, app: Application, infer: InferRoute) -> None:
        self._app, self._infer = app, infer
        self._match = re.compile(
            r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer").fullmatch

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and (
                match := self._match(scope["path"])):
            scope["path_params"] = match.groupdict()
            await self._infer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def asked_model(scope: Any) -> tuple[str, str | None]:
    """Return the model and the version that a path names; None: any version."""
    parameters = scope["path_params"]
    return parameters["model"], parameters.get("version")


def answer_head(name: str, version: str, asked: InferRequest) -> dict[str, Any]:
    """Return what an answer begins with."""
    head = {"model_name": name, "model_version": version}
    return head if asked.id is None else {**head, "id": asked.id}
