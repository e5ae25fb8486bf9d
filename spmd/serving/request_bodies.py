"""Bodies of requests over HTTP: whole, within their time, and not longer than they may be.

In: headers of a request, and what waits for the pieces of its body. Out: the body. Always holds: a
body that is too long, or compressed, or whose rest does not come, raises Refusal; once the server
ends, one that is not there raises DrainingError.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from codegen.errors import InputError
from spmd.serving.call_queue import DrainingError
from spmd.serving.refusals import Refusal

BODY_S = 30.0  # for a whole body to come
LOOK_S = 0.5  # so often it is asked which bodies are late, and whether the server ends
CLOSES = {"Connection": "close"}
WHOLE = "spmd.whole_body"  # in the scope of a request of whose body nothing more comes

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]  # the next piece, as ASGI has it


class RequestBodies:
    """Reads bodies of requests of at most `most` bytes. `check_open` raises DrainingError once the
    server ends, as it would refuse the calls."""

    def __init__(self, most: int, check_open: Callable[[], None]) -> None:
        self.most, self._check_open = most, check_open
        # of each task that waits for a body: when its time is over. A timer for each, or a timeout
        # of asyncio, would take longer than most of them do.
        self._ends: dict[asyncio.Task[Any], float] = {}
        self._look: asyncio.TimerHandle | None = None

    async def read(self, scope: Any, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Return the body of a request with these headers, whose names are in small letters."""
        coding = headers.get(b"content-encoding", b"identity")
        if coding.lower() != b"identity":
            raise Refusal(415, InputError(
                "the body is compressed", found=coding.decode("latin-1"),
                expected="a body without Content-Encoding"), CLOSES)
        length = headers.get(b"content-length", b"").decode("latin-1")
        if length.isdigit() and int(length[:19]) > self.most:
            raise self._too_long(length)
        parts: list[bytes] = []
        try:
            await self._pieces(scope, receive, parts)
        except TimeoutError:
            raise Refusal(400, InputError(
                "the body ended too early", found=f"{sum(map(len, parts))} bytes",
                expected=f"{length or 'all'} bytes within {BODY_S:g} s"), CLOSES) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def drop(self, scope: Any, receive: Receive) -> None:
        """Wait for the rest of a body, as long as one may take."""
        with suppress(TimeoutError, DrainingError):
            await self._pieces(scope, receive, None)

    async def _pieces(self, scope: Any, receive: Receive, parts: list[bytes] | None) -> None:
        """Collect the pieces of a body in a list; None: drop them. Raises TimeoutError for a body
        whose rest does not come."""
        size, more = 0, True
        task = asyncio.current_task()
        assert task is not None
        try:
            self._watch(task)
            while more:
                piece = await receive()
                if not (more := piece.get("more_body", False)):
                    scope[WHOLE] = True
                if piece["type"] == "http.disconnect":
                    raise TimeoutError
                if parts is None:
                    continue
                parts.append(piece.get("body", b""))
                size += len(parts[-1])
                if size > self.most:
                    raise self._too_long(f"{size} or more")
        except (TimeoutError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and (
                    task in self._ends or task.uncancel()):  # it was not, or not only, for its time
                raise
            self._check_open()
            raise TimeoutError from None
        finally:
            self._ends.pop(task, None)

    def _watch(self, task: asyncio.Task[Any]) -> None:
        self._ends[task] = time.monotonic() + BODY_S
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_after)

    def _look_after(self) -> None:
        """End the wait for bodies that are late; once the server ends, for all of them."""
        now, ends = time.monotonic(), False
        try:
            self._check_open()
        except DrainingError:
            ends = True
        for task, end in list(self._ends.items()):
            if ends or now >= end:
                del self._ends[task]
                task.cancel()
        self._look = None
        if self._ends:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_after)

    def _too_long(self, size: str) -> Refusal:
        return Refusal(413, InputError(
            "the body is too long", expected=f"at most {self.most} bytes",
            found=f"{size} bytes", remedy="binary tensors, which are shorter than JSON; or "
            "--max-body SIZE of spmd serve"), CLOSES)
