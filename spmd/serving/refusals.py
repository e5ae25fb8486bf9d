"""Answers that refuse a request: the status of each error, and what a client is told.

In: an error. Out: a status of HTTP, the class of the error and its sentences. HTTP and gRPC answer
by it. Always holds: an error of spmd has one status, whichever request meets it.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping

from codegen.errors import (
    CheckError,
    EnvironmentFault,
    InputError,
    MeshError,
    PeerError,
    SpmdError,
    UsageError,
)
from spmd import report
from spmd.serving.call_queue import DeadlineError, DrainingError, FullError, GoneError

GONE = 499  # the status, in metrics, of a request whose client has gone
# The status of an error; the first class that fits counts.
STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (FullError, 429), (DeadlineError, 504), (DrainingError, 503), (GoneError, GONE),
    (InputError, 400), (UsageError, 400), (CheckError, 400), (MeshError, 400),
    (EnvironmentFault, 503), (PeerError, 503), (MemoryError, 503),
)


class Refusal(Exception):
    """An answer other than 200: its status, and the error that its body says."""

    def __init__(self, status: int, error: SpmdError, headers: Mapping[str, str] | None = None
                 ) -> None:
        super().__init__(str(error))
        self.status, self.error, self.headers = status, error, headers or {}


def status_of(error: BaseException) -> int:
    """Return the status of the answer that says an error; 500 for one that nobody expects."""
    if isinstance(error, Refusal):
        return error.status
    return next((code for kind, code in STATUSES if isinstance(error, kind)), 500)


def said(error: BaseException) -> tuple[str, str]:
    """Return the name of the error's class, as spmd has it, and its sentences."""
    if isinstance(error, Refusal):
        error = error.error
    kind = next((kind.__name__ for kind in type(error).mro() if kind.__module__ == "spmd"),
                "InternalError")
    return kind, str(error) if isinstance(error, SpmdError) else (
        report.error_text(error).removeprefix("spmd: "))


class Access:
    """Who may ask a server. tokens: of which each request needs one; without any, requests need
    none, but those of web pages are refused: what a browser shows could reach this machine."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = [token.encode() for token in tokens]

    def refusal(self, authorization: bytes, origin: bytes | None) -> Refusal | None:
        """Return the refusal of a request with these headers, or None where it may go on."""
        if not self._tokens:
            return None if origin is None else Refusal(403, UsageError(
                "a web page asks, and this server has no tokens", expected="no header Origin",
                found=origin.decode("latin-1"), remedy="--token-file FILE of spmd serve"))
        kind, _, token = authorization.partition(b" ")
        # Each token is compared: how long that takes says nothing of any.
        same = [hmac.compare_digest(token, known) for known in self._tokens]
        if kind.lower() == b"bearer" and any(same):
            return None
        return Refusal(401, UsageError(
            "the request has no token of this server",
            expected="Authorization: Bearer TOKEN, with a line of its --token-file",
            found="another token" if token else "no token",
            remedy="spmd.connect(url, token=…)"), {"WWW-Authenticate": "Bearer"})
