"""HTTP on a connection: uvicorn's, whose answers leave in one piece and which ignores Upgrade.

In: bytes of a connection. Out: requests for the application, and the bytes of its answers. Always
holds: a request is read to its end as HTTP/1.1, whatever other protocol its client asks for.
"""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from spmd.serving.joined_writes import JoinedWrites

OF_UPGRADES = b"upgrade", b"http2-settings"  # headers, and what `Connection` calls them


class HttpProtocol(HttpToolsProtocol):
    """The protocol of one connection, which uvicorn makes for each."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser = _Parser(self)  # type: ignore[assignment]

    def connection_made(self, transport: Any) -> None:
        """Begin, with answers whose head leaves with the body."""
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is to come again without Upgrade."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the body of a request, unless its head is to come again without Upgrade."""
        if not self.parser.should_upgrade():
            super().on_message_complete()


class _Parser:
    """A parser of requests that ignores Upgrade, as a server may (RFC 9110, 7.8). That of httptools
    stops behind such a head, and would leave the body to another protocol."""

    def __init__(self, protocol: HttpProtocol) -> None:
        self._protocol, self._parser = protocol, httptools.HttpRequestParser(protocol)

    def feed_data(self, data: bytes) -> None:
        """Parse more bytes. Raises HttpParserError for what is no HTTP."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            (end,) = upgrade.args
            head = self._plain_head()
            self._parser = httptools.HttpRequestParser(self._protocol)
            self._parser.feed_data(head)
            if end < len(data):
                self.feed_data(data[end:])

    def _plain_head(self) -> bytes:
        """Return the head that was parsed last, without what asks for another protocol."""
        protocol = self._protocol
        lines = [b" ".join((self._parser.get_method(), protocol.url,
                            b"HTTP/" + self._parser.get_http_version().encode()))]
        for name, value in protocol.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(x for x in tokens if x.lower() not in OF_UPGRADES)
            if value and name not in OF_UPGRADES:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)
