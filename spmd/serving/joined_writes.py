"""Connections that send the head of an answer with what follows it: each write is a system call.

In: what an HTTP server writes to a connection. Out: the same bytes. Always holds: only the head of
an answer waits, and that until the next write, or until the connection is closed.
"""

from __future__ import annotations

from typing import Any

MOST_JOINED = 1 << 16  # bytes: to copy more takes longer than another system call
INTERIM = b"HTTP/1.1 1"  # the client waits for it before it sends more


class JoinedWrites:
    """A transport of asyncio that is used as another one is."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._head = transport, b""

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them where they are the head of an answer."""
        head, self._head = self._head, b""
        if head:
            if len(data) <= MOST_JOINED:
                data = head + data
            else:
                self._transport.write(head)
        elif (data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n")
                and not data.startswith(INTERIM)):
            self._head = data
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection once everything has been sent."""
        if self._head:
            self.write(b"")
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._transport, name)
        setattr(self, name, value)
        return value
