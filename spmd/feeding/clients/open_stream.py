"""The stream that a run has opened: the version of its pipeline that all its processes go on with.

In: an address, a pipeline's name, the feed of a program. Out: an OpenedStream, and errors of what
does not fit before anything is computed.
"""

from __future__ import annotations

import numpy as np

from codegen.errors import InputError, UsageError
from codegen.short_batches import MASK
from codegen.user.casts import may_cast
from spmd.data.computing import comparable
from spmd.feeding.clients.client import Client
from spmd.feeding.messages.scheduler_replies import OpenedStream
from spmd.feeding.results.memory_layout import dtype_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spmd.feeding.messages.keys import Keys

    # By name: shape of one example, and dtype.
    Fields = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]

START_S = 20.0  # for a scheduler to answer


def opened(name: str, address: str, keys: Keys, feed: Any, run: str,
           before: OpenedStream | None = None) -> OpenedStream:
    """Open a stream in the first process of a run, for all of them. before: the stream that it goes
    on with.

    PeerError where no scheduler answers; what a scheduler refuses; UsageError and InputError
    where the pipeline does not fit the feed, as far as it is known.
    """
    with Client(address, keys, timeout=START_S) as client:
        return opened_by(client, name, feed, run, before)


def opened_by(client: Client, name: str, feed: Any, run: str,
              before: OpenedStream | None = None) -> OpenedStream:
    """Open a stream as opened() does, with a client that is connected."""
    said = client.open(name, feed.name, run, version=before.version if before else None,
                       text=before.text if before else "")
    _compare(name, said["facts"], feed)
    return OpenedStream(said["stream"], said["version"], said["text"],
                        said["facts"].get("order", ""), said["order"])


def _compare(name: str, facts: dict[str, Any], feed: Any) -> None:
    """Raise where what is known of a pipeline does not fit the feed that the program declares."""
    count = facts.get("environments")
    if count is not None and count != feed.batch:
        raise UsageError(
            f"pipeline {name} has another number of environments than places in a batch",
            expected=f"a batch of {count}, or data.environments(…, {feed.batch})",
            found=f"{count} environments, a batch of {feed.batch}")
    if facts.get("gives") is None:
        return
    offered = {f["name"]: (tuple(f["shape"]), dtype_named(f["dtype"])) for f in facts["gives"]}
    wanted = {f.name: (tuple(int(n) for n in f.shape[1:]), np.dtype(f.dtype))
              for f in feed.fields if f.name != MASK}
    offered, wanted = comparable(offered, wanted)
    for field in (*wanted, *offered):
        if (wrong := _misfit(field, offered, wanted)) is not None:
            expected, actual, remedy = wrong
            raise InputError(
                f'field "{field}" of feed "{feed.name}" is not what pipeline {name} gives',
                place=feed.place, expected=f"{expected}, as the program declares",
                found=f"{actual}, in the first example of {name}", remedy=remedy)


def _misfit(field: str, offered: Fields, wanted: Fields) -> tuple[str, str, str] | None:
    """Return what was expected, what was found, and what to try; None where a field fits."""
    if field not in wanted:
        return (f"only {', '.join(wanted)}", f"{field} too, {_said(*offered[field])}",
                f"leave out {field} in the pipeline, or declare it in spmd.feed")
    shape, dtype = wanted[field]
    if field not in offered:
        return (_said(shape, dtype), f"only {', '.join(offered)}",
                f"return {field!r} too in the pipeline, or leave it out in spmd.feed")
    extents, kind = offered[field]
    expected = _said(shape, dtype)
    if extents != shape:
        batch = ", ".join(map(str, ("batch", *extents))) + "," * (not extents)
        return (expected, _said(extents, kind), f"spmd.spec(({batch}), …) in the program, or the "
                f"shape {shape} in the pipeline")
    if not may_cast(np.empty(0, kind), dtype):  # whatever the values are
        return (expected, _said(extents, kind), f"np.{kind} in the program, or .astype(np.{dtype}) "
                "in the pipeline, if that is what you mean")
    return None


def _said(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"{dtype} of shape {shape}" if shape else f"one {dtype}"
