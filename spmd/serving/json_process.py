"""Long JSON: a process beside the server reads and writes it, and the server answers others.

In: a function and its arguments. Out: what it returns, or its error. Always holds: the interpreter
of the server waits for none of it; the process is started by the first long JSON, and ends with
the server, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pickle import PickleBuffer
from typing import Any

import numpy as np

from codegen.errors import PeerError
from spmd.serving.call_queue import FullError
from spmd.serving.infer_messages import InferRequest, message, read_named, read_request

LONG = 1 << 17  # bytes of a JSON, which take some milliseconds
NUMBER = 16  # bytes of one, about
MOST_WAITING = 32  # long texts, of which the first is read or written


class JsonProcess:
    """Reads and writes messages: short ones here, long ones in the other process. Close it."""

    def __init__(self) -> None:
        self._one, self._waiting = asyncio.Lock(), 0
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def request(self, body: bytes, length: str | None) -> InferRequest:
        """Return the request in a body: see read_request."""
        if length is not None and len(length) < 20 and length.isdecimal():
            size = min(int(length), len(body))
        else:  # the request is refused, or is JSON to its end
            size = len(body)
        if size <= LONG:
            return read_request(body, length)
        asked: InferRequest = await self._elsewhere(read_request, PickleBuffer(body), length)
        return asked

    async def named(self, body: bytes, datatypes: Mapping[str, str]) -> InferRequest:
        """Return the request in a body of `generate`: see read_named."""
        if len(body) <= LONG:
            return read_named(body, datatypes)
        asked: InferRequest = await self._elsewhere(read_named, PickleBuffer(body), datatypes)
        return asked

    async def message(self, head: dict[str, Any], key: str,
                      arrays: list[tuple[str, np.ndarray, bool]]) -> tuple[bytes, int | None]:
        """Return a body, and how long its JSON is: see message()."""
        numbers = sum(array.size for _, array, binary in arrays if not binary)
        if numbers * NUMBER <= LONG:
            return message(head, key, arrays)
        body: tuple[bytes, int | None] = await self._elsewhere(_long_message, head, key, arrays)
        return body

    async def _elsewhere(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the other process. Raises what it raises, FullError where too many
        wait, and PeerError where the process was ended meanwhile."""
        if self._waiting >= MOST_WAITING:
            raise FullError("too many long texts in JSON wait", expected=f"at most {MOST_WAITING}",
                            found=str(self._waiting), remedy="binary tensors; or the same request "
                            "later")
        self._waiting += 1
        try:
            async with self._one:
                error, value = await asyncio.to_thread(self._asked, function, arguments)
        finally:
            self._waiting -= 1
        if error is not None:
            raise error
        return value

    def _asked(self, *order: Any) -> tuple[Exception | None, Any]:
        try:
            if self._socket is None:
                self._start()
            assert self._socket is not None
            _send(self._socket, order)
            answer: tuple[Exception | None, Any] = _received(self._socket)
            return answer
        except (OSError, EOFError):
            self.close()
            raise PeerError("the process that reads long JSON was ended", found="its end",
                            expected="an answer", remedy="binary tensors; or the same request "
                            "again") from None

    def _start(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno())], pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL)

    def close(self) -> None:
        """End the process and close its socket."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _long_message(
    head: dict[str, Any], key: str, arrays: Iterable[tuple[str, np.ndarray, bool]]
) -> tuple[PickleBuffer, int | None]:
    body, length = message(head, key, arrays)
    return PickleBuffer(body), length


def _send(to: socket.socket, value: Any) -> None:
    """Send a value; arrays and long bytes go as they lie in memory."""
    buffers: list[PickleBuffer] = []
    data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    views = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    to.sendall(struct.pack(f"<Q{len(views)}Q", len(views), *(view.nbytes for view in views)))
    for view in views:
        to.sendall(view)


def _received(end: socket.socket) -> Any:
    """Return the next value. Raises EOFError where the other side has ended."""
    (count,) = struct.unpack("<Q", _exactly(end, 8))
    sizes = struct.unpack(f"<{count}Q", _exactly(end, 8 * count))
    data, *buffers = [_exactly(end, size) for size in sizes]
    return pickle.loads(data, buffers=buffers)


def _exactly(end: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = end.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data


def main(file: str) -> None:
    """Carry out orders of the server until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server hears it
    os.nice(5)
    with socket.socket(fileno=int(file)) as server:
        while True:
            try:
                function, arguments = _received(server)
            except (OSError, EOFError):
                return
            answer: tuple[Exception | None, Any]
            try:
                answer = None, function(*arguments)
            except Exception as error:
                answer = error.with_traceback(None), None
            _send(server, answer)
            del function, arguments, answer


if __name__ == "__main__":
    main(sys.argv[1])
