"""Connections that send the head of an answer with what follows it: each write is a system call.

In: what an HTTP server writes to a connection. Out: the same bytes. Always holds: what waits is
sent before anything else, and in the next turn of the event loop at the latest.
"""

from __future__ import annotations

import asyncio
from typing import Any

MOST_JOINED = 1 << 16  # bytes: to copy more takes longer than another system call


class JoinedWrites:
    """A transport of asyncio that is used as another one is."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._head = transport, b""
        self._call_soon = asyncio.get_running_loop().call_soon

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them for a moment where they are the head of an answer."""
        head = self._head
        if head and len(data) <= MOST_JOINED:
            self._head, data = b"", head + data
        elif head:
            self._send_head()
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            self._call_soon(self._send_head)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection once everything has been sent."""
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._transport, name)
        setattr(self, name, value)
        return value
