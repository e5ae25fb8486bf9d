"""Calls of one model that are made as one: their rows behind each other, and each its part back.

In: calls that wait, each with its arguments. Out: what each has given, or its error. Always holds:
calls are joined only where the image says that their rows are independent, and where all else that
they are given is the same; where the joined call fails, each is made by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from spmd.arguments import bounded_dims
from spmd.faces import Face

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.serving.sent_frames import SentFrames

Outputs = list[Any]  # arrays by their numbers; None for those that are not computed

class CallPlace(Protocol):
    """A replica, as a place where calls are made. name: in metrics; has_left: it makes no more."""

    name: str
    has_left: bool

    def call(self, entry: str | None, arguments: dict[str, Any], version: str | None,
             frames: SentFrames | None) -> tuple[str, Outputs]:
        """Call an entry, or the program where it is None. Returns the version that was called, and
        its outputs. Raises what the call raises, and LostError."""


# From the arguments of a call, its rows, and the place that makes it (None: the job of this
# process), to the version that was called, and its outputs
Make = Callable[[dict[str, Any], int, CallPlace | None], tuple[str, Outputs]]
Result = tuple[Any, BaseException | None]  # of a call: what it has given, or its error
MOST_COMPARED = 1 << 16  # bytes: calls with larger arrays beside their rows are not joined


class ModelCall:
    """A call that a request asks for. make: calls the model; finish: from version and outputs to
    what the request is answered. joined: how it is joined with others. key: equal for calls that
    can be joined; None where the call is made by itself, and then rows is 0."""

    def __init__(
        self, make: Make, finish: Callable[[str, Outputs], Any],
        arguments: dict[str, Any], joined: JoinedRows | None = None, rows: int = 0,
        key: Hashable = None,
    ) -> None:
        self.make, self.finish, self.arguments = make, finish, arguments
        self.joined, self.rows, self.key = joined, rows, key

    @property
    def most(self) -> int:
        """The rows that a call may have."""
        return self.joined.most if self.joined is not None else 0


class JoinedRows:
    """How calls of a model are joined. most: rows of a call; inputs: by name, the dim along which
    an input has its rows; needed: those that have a default which depends on how many there are;
    outputs: of each output, that dim, or None for one without rows."""

    def __init__(self, most: int, inputs: dict[str, int], needed: set[str],
                 outputs: list[int | None]) -> None:
        self.most, self.inputs, self.needed, self.outputs = most, inputs, needed, outputs

    @classmethod
    def of(cls, face: Face) -> JoinedRows | None:
        """Return how calls of this face are joined; None where they are not."""
        dim, dims = face.rows().get("dim"), bounded_dims(face.manifest)
        if dim not in dims or face.saves or face.feeds:
            return None
        inputs = {array["name"]: _along(array, dim) for _, array in face.inputs}
        outputs = [_along(array, dim) for _, array in face.outputs]
        with_rows = {name: d for name, d in inputs.items() if d is not None}
        needed = {array["name"] for _, array in face.inputs if array["default"]}
        return cls(dims[dim], with_rows, needed & with_rows.keys(), outputs)

    def rows_of(self, arrays: dict[str, np.ndarray]) -> int | None:
        """Return how many rows these inputs have; None where they are not joined with others: a
        call of another number of rows than it may have says what is wrong."""
        if not self.needed <= arrays.keys():
            return None
        counts = set()
        for name, d in self.inputs.items():
            if name in arrays:
                shape = arrays[name].shape
                counts.add(shape[d] if d < len(shape) else -1)
        if len(counts) != 1:
            return None
        (rows,) = counts
        return rows if 0 <= rows <= self.most else None

    def key_of(self, arrays: dict[str, np.ndarray]) -> Hashable:
        """Return what is equal for calls that can be joined: names, dtypes, shapes without rows,
        and the bytes of what has no rows. None where these are too many to compare."""
        parts: list[Hashable] = []
        for name, array in arrays.items():
            d = self.inputs.get(name)
            shape = array.shape
            if d is not None:
                parts.append((name, array.dtype, shape[:d], shape[d + 1:]))
            elif array.nbytes > MOST_COMPARED:
                return None
            else:
                parts.append((name, array.dtype, shape, array.tobytes()))
        return frozenset(parts)

    def arguments(self, calls: Sequence[ModelCall]) -> dict[str, Any]:
        """Return the arguments of the joined call."""
        first = calls[0].arguments
        return {name: np.concatenate([call.arguments[name] for call in calls], self.inputs[name])
                if name in self.inputs else value for name, value in first.items()}

    def parts(self, calls: Sequence[ModelCall], outputs: Outputs) -> list[Outputs]:
        """Return each call's part of the outputs of the joined one."""
        parts, end = [], 0
        for call in calls:
            begin, end = end, end + call.rows
            parts.append([
                array if array is None or d is None else array[(slice(None),) * d
                                                               + (slice(begin, end),)]
                for d, array in zip(self.outputs, outputs, strict=True)])
        return parts


def results_of(calls: Sequence[ModelCall], place: CallPlace | None) -> list[Result]:
    """Make calls, as one where there are several; return what each has given, or its error."""
    joined = calls[0].joined
    if len(calls) == 1 or joined is None:
        return [_result_of(call, place) for call in calls]
    try:
        version, outputs = calls[0].make(joined.arguments(calls), sum(call.rows for call in calls),
                                         place)
        parts = joined.parts(calls, outputs)
    except Exception:
        return [_result_of(call, place) for call in calls]  # whose error it is
    return [_finished(call, version, part) for call, part in zip(calls, parts)]


def _result_of(call: ModelCall, place: CallPlace | None) -> Result:
    try:
        return call.finish(*call.make(call.arguments, call.rows, place)), None
    except BaseException as error:
        return None, error


def _finished(call: ModelCall, version: str, outputs: Outputs) -> Result:
    try:
        return call.finish(version, outputs), None
    except Exception as error:
        return None, error


def _along(array: dict[str, Any], dim: str) -> int | None:
    """Return which dim of an array has the rows; None: none has."""
    return array["shape"].index(dim) if dim in array["shape"] else None
