"""The Open Inference Protocol over gRPC: which request does what, and what is answered.

In: a server of models. Out: the same answers as over HTTP, from the same event loop. Always holds:
a wrong request gets a status other than OK, with the sentences that HTTP would answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc

from codegen.errors import EnvironmentFault
from spmd.serving.grpc_messages import (
    CLASSES,
    SERVICE,
    infer_request,
    infer_response,
    parameters_in,
    read,
)
from spmd.serving.infer_messages import KIND, InferRequest
from spmd.serving.inference_server import InferenceServer
from spmd.serving.refusals import Access, Refusal, said, status_of
from spmd.serving.served_models import Answer

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED, 404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION, 429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED, 500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE, 504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
MOST_DETAILS = 2000  # letters of a message: it is a header
HEALTH = ("ServerLive", "ServerReady")
FINAL = "triton_final_response"  # the parameter of the last answer to one request of a stream
METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata",
           "ModelInfer", "ModelStreamInfer", "RepositoryIndex", "RepositoryModelLoad",
           "RepositoryModelUnload")


class GrpcService:
    """The methods of the service. Each gets a message, and returns one."""

    def __init__(self, server: InferenceServer, access: Access) -> None:
        self.server, self._access = server, access

    async def started(self, host: str, port: int, cert: str | None, key: str | None
                      ) -> tuple[int, Callable[[float], Awaitable[None]]]:
        """Begin to answer at a port; 0: one that is free. Returns the port, and what stops it
        within some seconds. Raises EnvironmentFault."""
        limits = [("grpc.max_receive_message_length", self.server.most_bytes),
                  ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
        runs = grpc.aio.server(options=limits)
        runs.add_generic_rpc_handlers((
            grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if cert is None or key is None:
                port = runs.add_insecure_port(address)
            else:
                pair = Path(key).read_bytes(), Path(cert).read_bytes()
                port = runs.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise EnvironmentFault(f"cannot listen at {host}, port {port}",
                                   expected="an address of this machine, and a port that is free",
                                   found=str(error), remedy="--grpc-port 0, for any that is free"
                                   ) from None
        await runs.start()
        return port, runs.stop

    def _handlers(self) -> dict[str, Any]:
        handlers = {name: grpc.unary_unary_rpc_method_handler(self._unary(name))
                    for name in METHODS if name != "ModelStreamInfer"}
        return {**handlers, "ModelStreamInfer":
                grpc.stream_stream_rpc_method_handler(self._model_stream_infer)}

    def _unary(self, name: str) -> Any:
        """Return the handler of a method: bytes in, bytes out, and a status for each error."""
        method = getattr(self, f"_{_snake(name)}")

        async def handler(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                if name not in HEALTH:
                    self._check_access(context)
                answer = await method(read(f"{name}Request", data), context)
                sent: bytes = answer.SerializeToString()
                return sent
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await _abort(context, error)
                raise AssertionError("abort raises") from None

        return handler

    def _check_access(self, context: Any) -> None:
        headers = {key: value.encode() if isinstance(value, str) else value
                   for key, value in context.invocation_metadata() or ()}
        refusal = self._access.refusal(headers.get("authorization", b""), headers.get("origin"))
        if refusal is not None:
            raise refusal

    # ---- what is there

    async def _server_live(self, _: Any, __: Any) -> Any:
        return CLASSES["ServerLiveResponse"](live=True)

    async def _server_ready(self, _: Any, __: Any) -> Any:
        return CLASSES["ServerReadyResponse"](ready=self._is_ready())

    async def _model_ready(self, asked: Any, _: Any) -> Any:
        self.server.repository.model(asked.name, asked.version or None)
        return CLASSES["ModelReadyResponse"](
            ready=self._is_ready(asked.name, asked.version or None))

    def _is_ready(self, *model: str | None) -> bool:
        try:
            self.server.check_ready(*model)
        except Exception:
            return False
        return True

    async def _server_metadata(self, _: Any, __: Any) -> Any:
        return CLASSES["ServerMetadataResponse"](**self.server.about())

    async def _model_metadata(self, asked: Any, _: Any) -> Any:
        metadata = self.server.repository.model(asked.name, asked.version or None).metadata()
        rows = {kind: [{key: row[key] for key in ("name", "datatype", "shape")}
                       for row in metadata[kind]] for kind in ("inputs", "outputs")}
        return CLASSES["ModelMetadataResponse"](
            **rows, **{key: metadata[key] for key in ("name", "versions", "platform")})

    async def _repository_index(self, asked: Any, _: Any) -> Any:
        return CLASSES["RepositoryIndexResponse"](
            models=self.server.repository.index(asked.ready))

    # ---- loads

    async def _repository_model_load(self, asked: Any, _: Any) -> Any:
        await self.server.load(asked.model_name, parameters_in(asked.parameters))
        return CLASSES["RepositoryModelLoadResponse"]()

    async def _repository_model_unload(self, asked: Any, _: Any) -> Any:
        await self.server.unload(asked.model_name)
        return CLASSES["RepositoryModelUnloadResponse"]()

    # ---- calls

    async def _model_infer(self, message: Any, context: Any) -> Any:
        name, version = message.model_name, message.model_version or None
        with self.server.request(name, version) as model:
            asked = _with_deadline(infer_request(message), context)
            return _response(name, asked, await self.server.infer(model, asked, version))

    async def _model_stream_infer(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncGenerator[bytes, None]:
        """Answer each request of a stream: by its frames, where its entry saves some, then by its
        outputs. An error is an answer too; the next request goes on."""
        kind = CLASSES["ModelStreamInferResponse"]
        try:
            self._check_access(context)
        except Refusal as error:
            await _abort(context, error)
        async for data in requests:
            message = None
            try:
                message = read("ModelInferRequest", data)
                async with aclosing(self._parts(message, context)) as parts:
                    async for part in parts:
                        yield kind(infer_response=part).SerializeToString()
            except Exception as error:
                failed = CLASSES["ModelInferResponse"](id=message.id if message else "")
                failed.parameters[FINAL].bool_param = True
                yield kind(error_message=said(error)[1],
                           infer_response=failed).SerializeToString()

    async def _parts(self, message: Any, context: Any) -> AsyncGenerator[Any, None]:
        name, version = message.model_name, message.model_version or None
        with self.server.request(name, version) as model:
            asked = _with_deadline(infer_request(message), context)
            if not model.saves:
                yield _response(name, asked, await self.server.infer(model, asked, version))
                return
            async with aclosing(self.server.stream(model, asked, version)) as parts:
                async for part in parts:
                    yield _response(name, asked, part) if isinstance(part, Answer) else (
                        infer_response(name, part.version, asked, [(part.name, part.array)]))


def _response(name: str, asked: InferRequest, answer: Answer) -> Any:
    """Return the message that an answer is. It is the last one to its request."""
    message = infer_response(name, answer.version, asked,
                             [(output, array) for output, array, _ in answer.outputs])
    message.parameters[FINAL].bool_param = True
    return message


def _with_deadline(asked: InferRequest, context: Any) -> InferRequest:
    """Return a request whose timeout is no later than the deadline of its client."""
    left = context.time_remaining()
    if left is not None:
        asked.timeout = min(asked.timeout or left, max(left, 1e-6))
    return asked


async def _abort(context: Any, error: Exception) -> None:
    kind, text = said(error)
    await context.abort(CODES.get(status_of(error), grpc.StatusCode.UNKNOWN), text[:MOST_DETAILS],
                        ((KIND.lower(), kind),))


def _snake(name: str) -> str:
    """Return the name of a method in Python: model_infer of ModelInfer."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
