"""What a server does for requests, whichever protocol brings them: calls, streams, loads.

In: models, a queue, limits; then requests. Out: answers, or errors that refusals have a status
for. Always holds: a request is counted once, and a call goes through the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from spmd import __version__
from spmd.serving.call_queue import CallQueue, GoneError
from spmd.serving.infer_messages import InferRequest
from spmd.serving.model_repository import ModelRepository
from spmd.serving.refusals import GONE, status_of
from spmd.serving.request_metrics import RequestMetrics
from spmd.serving.sent_frames import SentFrame, SentFrames
from spmd.serving.served_models import Answer, ServedModel

Gone = Callable[[], Awaitable[Any]]
EXTENSIONS = ("binary_tensor_data", "model_repository", "generate")


class CountedRequest:
    """A request for a model, while it lasts: it is counted by what becomes of it inside."""

    def __init__(self, server: InferenceServer, name: str, version: str | None) -> None:
        self._server, self._name, self._version = server, name, version

    def __enter__(self) -> ServedModel:
        self._began = time.perf_counter()
        try:
            model = self._server.repository.callable_model(self._name, self._version)
            self._server.queue.check_open()
            return model
        except Exception as error:
            self._count(status_of(error))
            raise

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._count(200 if error is None else
                    status_of(error) if isinstance(error, Exception) else GONE)

    def _count(self, status: int) -> None:
        label = self._name if self._name in self._server.repository.models else ""
        self._server.metrics.count(label, status, time.perf_counter() - self._began)


class InferenceServer:
    """Answers the requests for the models of one image, whose calls go through one queue.

    most_bytes: bytes that a request's body may have. timeout: seconds that a call may take."""

    def __init__(self, repository: ModelRepository, queue: CallQueue, *,
                 most_bytes: int, timeout: float) -> None:
        self.repository, self.queue = repository, queue
        self.most_bytes, self.timeout = most_bytes, timeout
        self.metrics = RequestMetrics(queue)

    def about(self) -> dict[str, Any]:
        """Return what the protocol says of a server."""
        return {"name": "spmd", "version": __version__, "extensions": list(EXTENSIONS)}

    def check_ready(self, model: str | None = None, version: str | None = None) -> None:
        """Raise what a call, of this model or of any, would be refused with now."""
        self.queue.check_ready()
        if model is None:
            self.repository.job.check(None)
        else:
            self.repository.callable_model(model, version)

    # ---- calls

    def request(self, name: str, version: str | None) -> CountedRequest:
        """Return a context that gives the model of a request, or raises why it has none."""
        return CountedRequest(self, name, version)

    async def infer(self, model: ServedModel, asked: InferRequest, version: str | None,
                    gone: Gone | None = None) -> Answer:
        """Return the answer to a request. `gone` returns once the client does not wait any more."""
        call = self.metrics.timed(model.name, model.prepared(asked, version))
        answer: Answer = await self.queue.run(call, self._seconds(asked), gone)
        return answer

    async def stream(self, model: ServedModel, asked: InferRequest, version: str | None,
                     gone: Gone | None = None
                     ) -> AsyncGenerator[SentFrame | Answer, None]:
        """Make a call; give each frame that it saves, then its answer. A call
        whose frames nobody waits for is ended: state is as it was before."""
        frames = SentFrames(self.most_bytes)
        call = self.metrics.timed(model.name, model.prepared(asked, version, frames))
        waiting = self.queue.add(call)
        result = asyncio.ensure_future(self.queue.result(waiting, self._seconds(asked),
                                                         gone))
        result.add_done_callback(lambda ended: frames.end(
            GoneError("the client has gone") if ended.cancelled() else ended.exception()))
        try:
            while (frame := await frames.arrived()) is not None:
                yield frame
            answer: Answer = await result
            yield answer
        finally:
            result.cancel()

    def _seconds(self, asked: InferRequest) -> float:
        return min(asked.timeout or self.timeout, self.timeout)

    # ---- loads

    async def load(self, name: str, parameters: Mapping[str, Any]) -> str:
        """Load files, as parameters name them; return the version that is there then. It goes on
        where the client goes."""
        self.queue.check_open()
        version: str = await asyncio.to_thread(
            self.repository.load, name, parameters, self.queue.check_open)
        return version

    async def unload(self, name: str) -> None:
        """Close the job of this name, whose models are then not served any more."""
        self.queue.check_open()
        await asyncio.to_thread(self.repository.unload, name)

