"""What a worker does with work: a pipeline's examples of some positions, written where they go.

In: a load message, a range of positions, the fields wanted. Out: rows of arrays, what failed, the
stream's length. Always holds: a row that was not computed is zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codegen.errors import AgreementError, SpmdError, UsageError
from spmd.data.computing import dtype_of
from spmd.data.pipeline_files import chosen, load_text
from spmd.data.pipelines import Pipeline
from spmd.feeding.host import steady_clock as time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ALIGNED = 64
NAMED_S = 5e-3  # work that takes longer has the names of its examples on the board
TEXT = 16000  # characters of what an operation raised


@dataclass
class Computed:
    """rows: fewer than asked where the stream ends. broken: examples that failed, as on the wire.
    end: the stream's length, once known. fatal: nothing behind the last of `broken` is there."""

    rows: int
    broken: list[dict[str, Any]]
    end: int | None
    fatal: bool


class Evaluator:
    """One version of a pipeline, loaded."""

    def __init__(self, pipeline: Pipeline, settings: dict[str, Any]) -> None:
        self.pipeline = pipeline
        read = {**pipeline.settings.as_json(), **settings}
        self.skips = read["on_error"] == "skip"
        self.timeout = read["timeout"]
        self.compress = read["compress"]
        self._may_end = pipeline.settings.epochs is not None and pipeline.length() is None
        self._mean_s = 0.0  # of an example; 0: none was computed yet
        self._fields: list[dict[str, Any]] = []  # of the last work, and their specs
        self._specs: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self._order: str | None = None

    def with_settings(self, settings: dict[str, Any]) -> Evaluator:
        """The same with other settings."""
        found = Evaluator(self.pipeline, settings)
        found._order = self._order
        return found

    def order(self) -> str:
        """What tells its stream from others on this machine; "" where its source cannot say."""
        if self._order is None:
            try:
                self._order = self.pipeline.order()
            except Exception:  # of a user's source: what is wrong is said at its examples
                self._order = ""
        return self._order

    def compute(self, work: Any, fields: list[dict[str, Any]], out: dict[str, np.ndarray],
                board: Any) -> Computed:
        """Rows first, first + 1, … into `out`, as far as the stream goes."""
        first, count = work.first, work.count
        if fields != self._fields:
            self._fields = fields
            self._specs = {f["name"]: (tuple(f["shape"]), dtype_named(f["dtype"])) for f in fields}
        specs = self._specs
        watch, began = self._watch(first, count, board), time.monotonic()
        broken: list[dict[str, Any]] = []
        end = self.pipeline.total()
        fatal = False
        for begin, stop in _ranges(first, count, self._all_left_out(work, broken), out):
            part = {name: a[begin - first : stop - first] for name, a in out.items()}
            found = self.pipeline.compute(begin, stop - begin, specs, part, watch, raises=False)
            end = found.total if end is None else end  # reading on may have come to it
            for one in found.failures:
                broken.append(_on_wire(one))
                fatal = fatal or one.fatal or not self.skips
            if fatal:
                break
        if end is None and self._may_end and work.through >= first + count and not fatal:
            ahead = self._watch(work.through, 1, board)  # the names of others are no help there
            end = self.pipeline.compute(work.through, 1, specs, watch=ahead, raises=False).total
        rows = count if end is None else max(0, min(count, end - first))
        if rows:
            mean = (time.monotonic() - began) / rows
            self._mean_s = 0.8 * self._mean_s + 0.2 * mean if self._mean_s else mean
        return Computed(rows, broken, end, fatal)

    def _all_left_out(self, work: Any, broken: list[dict[str, Any]]) -> set[int]:
        """Positions to leave out, with those that would be computed together with one of them:
        the consumer does not know of these, so they are in `broken`."""
        size, found = self.pipeline.size or 1, set(work.left_out)
        for begin in {p - p % size for p in work.left_out} if size > 1 else ():
            for position in range(max(begin, work.first), min(begin + size,
                                                              work.first + work.count)):
                if position not in found:
                    found.add(position)
                    broken.append({"position": position, "example": f"position {position}",
                                   "file": self.pipeline.file, "line": self.pipeline.line,
                                   "text": f"it is computed together with position {begin}, at "
                                   "which workers died"})
        return found

    def _watch(self, first: int, count: int, board: Any) -> Callable[[int], None]:
        """Says on the board which example it is; by its name where that takes no time beside it."""
        at_once = self.pipeline.size or 1
        if self._mean_s and self._mean_s * count < NAMED_S:
            return lambda position: board.at(position, "", at_once)
        name = self.pipeline.namer(first, count)
        return lambda position: board.at(position, name(position), at_once)


def _ranges(first: int, count: int, left_out: set[int],
            out: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """The positions to compute, around those that are left out as zeros."""
    found, begin = [], first
    for position in sorted({p for p in left_out if first <= p < first + count}):
        if begin < position:
            found.append((begin, position))
        for a in out.values():
            a[position - first] = np.zeros((), a.dtype)
        begin = position + 1
    if begin < first + count:
        found.append((begin, first + count))
    return found


def _on_wire(failure: Any) -> dict[str, Any]:
    return {"position": failure.position, "example": failure.example[:1000],
            "file": failure.file[:4000] or None, "line": failure.line or None,
            "text": failure.text[:TEXT]}


# ---- arrays in a block of memory


def dtype_named(name: str) -> np.dtype:
    """As it stands on the wire; UsageError where this machine does not have it."""
    try:
        found = dtype_of(name)
    except (AttributeError, TypeError):
        raise UsageError(f"a field of an unknown dtype {name[:40]!r}") from None
    if found.hasobject or not found.itemsize:
        raise UsageError(f"a field of dtype {name[:40]!r}: expected numbers")
    return found


def dtype_text(dtype: np.dtype) -> str:
    """As dtype_named reads it. Those that NumPy does not have go by their names."""
    return dtype.str if dtype.kind != "V" else dtype.name


def described(field: Any) -> dict[str, Any]:
    """A field as it stands on the wire: its shape without the batch."""
    return {"name": field.name, "dtype": dtype_text(np.dtype(field.dtype)),
            "shape": [int(n) for n in field.shape[1:]]}


def bytes_of(field: dict[str, Any]) -> int:
    """Of one example."""
    size = int(dtype_named(field["dtype"]).itemsize)
    for extent in field["shape"]:
        size *= extent
    return size


def placed(fields: list[dict[str, Any]], rows: int) -> tuple[list[tuple[Any, ...]], int]:
    """(name, shape, dtype, offset, bytes) of each array in one block, and the block's bytes."""
    found, offset = [], 0
    for field in fields:
        size = rows * bytes_of(field)
        shape = (rows, *field["shape"])
        found.append((field["name"], shape, dtype_named(field["dtype"]), offset, size))
        offset += -(-size // ALIGNED) * ALIGNED
    return found, offset


def views(places: list[tuple[Any, ...]], memory: Any) -> dict[str, np.ndarray]:
    return {name: np.ndarray(shape, dtype, memory, offset)
            for name, shape, dtype, offset, _ in places}


# ---- pipelines from their text


def load_pipeline(said: dict[str, Any]) -> Pipeline:
    """The pipeline that its file's text makes, as a load message has it: by the name that it has
    there, if that is known. Errors name the file and the line."""
    file, name = said["file"], said.get("own_name")
    found = load_text(said["source"], file, modules=said.get("modules"))
    return chosen(found, file, name or (said["name"] if len(found) != 1 else ""))


def other_streams(pipeline: str) -> AgreementError:
    return AgreementError(
        f"workers of pipeline {pipeline} do not read the same source",
        expected="the same examples in the same order at all of them",
        found="others at different workers; or a data.iterator that gives others each time",
        remedy="the same files everywhere, random numbers of a fixed seed")


def what_failed(error: BaseException, file: str) -> tuple[str, str | None, int | None]:
    """Text, file and line of what a worker could not do, beside examples that fail."""
    if isinstance(error, SpmdError):
        text = str(SpmdError(error.message, expected=error.expected, found=error.found,
                             remedy=error.remedy))
        place = error.place
        return text[:TEXT], (place.file if place else None), (place.line if place else None)
    return f"{type(error).__name__}: {error}"[:TEXT], file, None
