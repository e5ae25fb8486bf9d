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
        self.parser = _Parser(self)

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


class _Parser(httptools.HttpRequestParser):
    """A parser of requests that ignores Upgrade, as a server may (RFC 9110, 7.8). That of httptools
    stops behind such a head, and would leave the body to another protocol: another parser takes
    its place."""

    def __init__(self, protocol: HttpProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Parse more bytes. Raises HttpParserError for what is no HTTP."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            (end,) = upgrade.args
            parser = self._protocol.parser = _Parser(self._protocol)
            parser.feed_data(self._plain_head())
            if end < len(data):
                parser.feed_data(data[end:])

    def _plain_head(self) -> bytes:
        """Return the head that was parsed last, without what asks for another protocol."""
        protocol = self._protocol
        lines = [b" ".join((self.get_method(), protocol.url,
                            b"HTTP/" + self.get_http_version().encode()))]
        for name, value in protocol.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(x for x in tokens if x.lower() not in OF_UPGRADES)
            if value and name not in OF_UPGRADES:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])
