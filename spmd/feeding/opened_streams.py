"""The stream that a run has opened: the version of its pipeline that all its processes go on with.

In: an address, a pipeline's name, the feed of a program. Out: an OpenedStream, and errors of what
does not fit before anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.errors import InputError, UsageError
from spmd.data.computing import MASK
from spmd.feeding.client import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.feeding.keys import Keys

START_S = 20.0  # for a scheduler to answer


@dataclass(frozen=True)
class OpenedStream:
    """stream: its name at the scheduler. version, text: of the pipeline's source, which stay.

    order: what tells it from other streams, "" where only workers can say it.
    """

    stream: str
    version: int
    text: str
    order: str = ""


def opened(name: str, address: str, keys: Keys, feed: Any, run: str,
           before: OpenedStream | None = None) -> OpenedStream:
    """In the first process of a run, for all of them. before: the stream that it goes on with.

    PeerError where no scheduler answers; what a scheduler refuses; UsageError and InputError
    where the pipeline does not fit the feed, as far as it is known.
    """
    with Client(address, keys, timeout=START_S) as client:
        return opened_by(client, name, feed, run, before)


def opened_by(client: Client, name: str, feed: Any, run: str,
              before: OpenedStream | None = None) -> OpenedStream:
    """The same, with a line that is there."""
    said = client.open(name, feed.name, run, version=before.version if before else None,
                       text=before.text if before else "")
    _compare(name, said["facts"], feed)
    return OpenedStream(said["stream"], said["version"], said["text"],
                        said["facts"].get("order", ""))


def _compare(name: str, facts: dict[str, Any], feed: Any) -> None:
    """What is known of the pipeline with what the program declares."""
    count = facts.get("environments")
    if count is not None and count != feed.batch:
        raise UsageError(
            f"pipeline {name} has another number of environments than places in a batch",
            expected=f"a batch of {count}, or data.environments(…, {feed.batch})",
            found=f"{count} environments, a batch of {feed.batch}")
    if facts.get("gives") is None:
        return
    gives = {f["name"]: tuple(f["shape"]) for f in facts["gives"]}
    takes = {f.name: tuple(int(n) for n in f.shape[1:]) for f in feed.fields if f.name != MASK}
    if gives != takes:
        raise InputError(
            f'pipeline {name} does not give what feed "{feed.name}" declares',
            expected=_said(takes), found=_said(gives),
            remedy="the same fields in the pipeline and in spmd.feed(…)")


def _said(fields: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in sorted(fields.items()))
