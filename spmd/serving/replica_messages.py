"""Messages of calls between the front of a server and its replicas: arrays, errors, frames.

In: arguments or outputs of a call. Out: raw frames of a message, and back. Always holds: no frame
is longer than a socket takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from codegen.errors import PeerError, SpmdError
from spmd.feeding.messages.wire import Message
from spmd.serving.infer_messages import arrays_of, message, parted
from spmd.serving.joined_calls import Outputs
from spmd.serving.refusals import said
from spmd.serving.remote_models import error_of

PART_BYTES = 1 << 20  # of a frame: heartbeats pass between frames; a socket takes four times that
MOST_TEXT = 60000  # characters of an error
Framed = tuple[list[memoryview], int]  # frames, and how long the JSON at their beginning is


def in_frames(*parts: bytes) -> list[memoryview]:
    """Return bytes as frames: each part begins one."""
    return [memoryview(part)[offset:offset + PART_BYTES] for part in parts
            for offset in range(0, len(part), PART_BYTES)]


def of_frames(frames: Sequence[Any]) -> bytes:
    """Return the bytes that frames hold."""
    return bytes(frames[0]) if len(frames) == 1 else b"".join(frames)


def framed_arrays(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Framed:
    """Return arrays by name as frames. head: goes with them as JSON."""
    body, length = message(dict(head), "arrays", [(*row, True) for row in arrays.items()])
    return in_frames(body), len(body) if length is None else length


def arrays_in(message: Message) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the head and the arrays of a message. Raises InputError where it has none."""
    head, tail = parted(of_frames(message.frames), str(message["length"]))
    return head, arrays_of(head.pop("arrays"), tail)


def framed_arguments(arguments: Mapping[str, Any]) -> Framed:
    """Return the arguments of a call as frames: arrays, numbers, and `only`."""
    head = {"scalars": [name for name, value in arguments.items()
                        if not isinstance(value, (np.ndarray, tuple))],
            "only": arguments.get("only") if isinstance(arguments.get("only"), tuple) else None}
    return framed_arrays(head, {name: np.asarray(value) for name, value in arguments.items()
                                if not isinstance(value, tuple)})


def arguments_in(message: Message) -> dict[str, Any]:
    """Return the arguments of a call that a message asks for."""
    head, arrays = arrays_in(message)
    arguments: dict[str, Any] = {name: array.item() if name in head["scalars"] else array
                                 for name, array in arrays.items()}
    return arguments if head["only"] is None else {**arguments, "only": tuple(head["only"])}


def framed_outputs(outputs: Outputs) -> Framed:
    """Return the outputs of a call as frames. Those that were not asked for stay None."""
    return framed_arrays({"count": len(outputs)}, {
        str(k): np.asarray(array) for k, array in enumerate(outputs) if array is not None})


def outputs_in(message: Message) -> Outputs:
    """Return the outputs that a message brings."""
    head, arrays = arrays_in(message)
    return [arrays.get(str(k)) for k in range(head["count"])]


def error_row(error: BaseException) -> dict[str, str]:
    """Return an error as messages have it: its class and its sentences."""
    kind, text = said(error)
    return {"kind": kind, "text": text[:MOST_TEXT]}


def error_in(row: Mapping[str, str]) -> SpmdError:
    """Return the error of a row."""
    return error_of(row["kind"], row["text"], PeerError)
