"""What a scheduler answers, as clients and consumers have it: the stream of a run, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.errors import SpmdError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.feeding.messages.wire import Message


class Refused(SpmdError):
    """Raised for a request that a scheduler refused, with its own words."""


def refused(message: Message) -> Refused:
    """Return the error that a message with `text` and `code` stands for."""
    error = Refused(message["text"])
    error.exit_code = message["code"]
    return error


@dataclass(frozen=True)
class OpenedStream:
    """The version of a pipeline that all processes of a run go on with.

    stream: its name at the scheduler. version, text: of the pipeline's source, which stay.
    order: what tells it from other streams, "" where only workers can say it. settings: those of
    its pipeline that have part in it.
    """

    stream: str
    version: int
    text: str
    order: str = ""
    settings: dict[str, Any] | None = None
