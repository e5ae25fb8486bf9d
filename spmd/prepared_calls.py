"""A call of a loaded job that is prepared: what one call of an entry has found stays for the next.

In: a job, and the arguments of a call that was checked in full. Out: a call of the same names,
which checks and sets only what may differ: arrays and scalars. Always holds: it does what the
general way would do, or says that it cannot.
"""

from __future__ import annotations

import math
from _thread import get_ident
from collections.abc import Callable
from typing import Any

import numpy as np

from codegen.image.manifest import scalar_value
from codegen.user import named
from spmd.arguments import Only
from spmd.arrays import numpy_dtype
from spmd.distributed import Distributed, Local, address
from spmd.engine import ffi
from spmd.faces import Face
from spmd.files.npy import SIZES
from spmd.fitting import fitting
from spmd.launch.job import Job
from spmd.launch.setup import EVERY_RANK, LINE

_from_buffer = ffi.from_buffer
_BRIEF: set[int] = set()  # threads


class _BriefCalls:
    """A context in which calls of this thread are known to be short: it may run the ranks itself,
    so that no other has to be woken; a signal that comes meanwhile waits for the end of a call."""

    def __enter__(self) -> None:
        _BRIEF.add(get_ident())

    def __exit__(self, *_: object) -> None:
        _BRIEF.discard(get_ident())


brief_calls = _BriefCalls()


class PreparedCall:
    """Calls of one face of a job with arguments of these names.

    number: by which the processes of a job know the call; None where there is one process.
    """

    number: int | None = None

    def __init__(self, job: Job, face: Face, arguments: dict[str, Any], only: Only) -> None:
        self.job, self.face, self.only = job, face, only
        self.names = dict.fromkeys(arguments).keys()
        known = {array["name"]: (number, array) for number, array in face.inputs}
        self._trees: dict[str, set[str]] = {}
        leaves: list[str] = []
        for name, value in arguments.items():
            if name not in known and (tree_leaves := named.of_tree(name, known)):
                self._trees[name] = {leaf for leaf, _ in named.named(value, name)}
                leaves += tree_leaves
            elif name in known:
                leaves.append(name)
        scalars = {scalar["name"]: (k, scalar)
                   for k, scalar in enumerate(job.manifest["scalars"])
                   if scalar["name"] in face.scalars}
        shaping = mentioned([job.manifest["conditions"], job.manifest["routes"]]
                            + [array["shape"] for _, array in (*face.inputs, *face.outputs)])
        self._settable = scalars.keys() - shaping
        self._scalars = [(name, *scalars[name]) for name in arguments if name in scalars]
        self._kept: list[Any] = []  # what the engine's structures point to
        self._inputs, puts = self._places(
            [(*known[name], [EVERY_RANK]) for name in leaves], first=0)
        self._outputs, gets = self._places(
            [(number, array, job.setup.owners(array["layout"])) for number, array in face.outputs
             if job.wanted[number]],
            first=job.outputs)
        self._there = [job.wanted[number] for number, _ in face.outputs]
        self._words = ffi.new("int64_t[]", job.setup.words or [0])
        self._floats = ffi.cast("double *", self._words)
        given_flags = bytearray(face.given_flags)
        for name in leaves:
            given_flags[known[name][0]] = 1
        given_flags += job.wanted
        self._kept += [ffi.new("uint8_t[]", bytes(given_flags) or b"\0"),
                       ffi.new("uint32_t[]", face.pairs or [0])]
        self.pointer = ffi.new("spmd_call *", {
            "scalar": self._words, "given": self._kept[-2], "put": puts, "get": gets,
            "puts": len(puts), "gets": len(gets), "pair": self._kept[-1],
            "pairs": len(face.pairs) // 2})

    def _places(
        self, rows: list[tuple[int, dict[str, Any], list[int]]], first: int
    ) -> tuple[list[tuple[dict[str, Any], np.dtype, tuple[int, ...], list[Any]]], Any]:
        """Return of each array its row, dtype, shape and the structures that take its address; and
        the engine's transfers. rows: number and row of each array, and the ranks whose parts move.
        """
        transfers = ffi.new("spmd_transfer[]", sum(len(ranks) for _, _, ranks in rows))
        self._kept.append(transfers)
        arrays, k = [], 0
        for number, array, ranks in rows:
            dtype, shape = numpy_dtype(array["dtype"]), self.job.setup.shape(array)
            strides: list[int] = []
            step = SIZES[array["dtype"]]
            for extent in reversed(shape):
                strides.insert(0, step)
                step *= extent
            extents = ffi.new("int64_t[8]", shape), ffi.new("int64_t[8]", strides)
            self._kept.append(extents)
            places = []
            for rank in ranks:
                transfers[k].array, transfers[k].rank = first + number, rank
                place = getattr(transfers[k], "global")
                place.dims, place.size, place.swap = len(shape), SIZES[array["dtype"]], 0
                place.shape, place.stride = extents
                places.append(place)
                k += 1
            arrays.append((array, dtype, shape, places))
        return arrays, transfers

    def fits(self, job: Job | None, arguments: dict[str, Any], only: Only) -> bool:
        """Return whether this job can be called so, with arguments of these names, and is asked for
        the same outputs."""
        return job is self.job and arguments.keys() == self.names and only == self.only

    def _hand(self, place: Any, value: np.ndarray) -> Any:
        """Hand an input over, at its place; return what must live until the run has begun."""
        return _address(place, value)

    def take(self, arguments: dict[str, Any]) -> list[Any] | None:
        """Set the scalars and the addresses of the inputs. Return what must live until they have
        been read; None for arguments of other kinds, which go the general way. Raises what that
        would raise for arrays and scalars that do not fit."""
        if self._trees and (arguments := self._spread(arguments)) is None:
            return None
        held = []
        for array, dtype, shape, (place,) in self._inputs:
            value = arguments[array["name"]]
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                if isinstance(value, (Distributed, Local)) or self.face.dims:
                    return None
                value = fitting(array, shape, value)
            held.append(self._hand(place, value))
        numbers = [scalar_value(scalar, arguments[name]) for name, _, scalar in self._scalars]
        for (name, k, scalar), number in zip(self._scalars, numbers):
            words: Any = self._floats if scalar["dtype"] == "float64" else self._words
            if scalar["loads"] and words[k] != number and name not in self._settable:
                return None
            words[k] = number
        self.pointer.here = self._may_run_here()
        return held if self._is_loaded() or self._load() else None

    def _may_run_here(self) -> bool:
        """Return whether this thread may run the ranks itself, and nobody has to look after the run
        meanwhile."""
        job = self.job
        return (get_ident() in _BRIEF and job.look is None and job.look_feeds is None
                and job.look_frames is None)

    def _is_loaded(self) -> bool:
        """Return whether what depends on scalars was evaluated with the scalars of this call."""
        now, mine = self.job.setup.words, self._words
        for k in self.job.loads:
            if now[k] != mine[k]:
                return False
        return True

    def _load(self) -> bool:
        """Have the loaded job evaluate again what depends on scalars; return whether it can."""
        if not self.job.set_words(self._words):
            return False
        self.job.setup = self.job.setup.with_words(list(self._words))
        return True

    def _spread(self, arguments: dict[str, Any]) -> Any:
        flat: dict[str, Any] = {}
        for name, value in arguments.items():
            leaves = self._trees.get(name)
            if leaves is None:
                flat[name] = value
                continue
            values = dict(named.named(value, name))
            if values.keys() != leaves:
                return None
            flat |= values
        return flat

    def room(self) -> list[np.ndarray]:
        """Return new arrays for the outputs, to which the end of the run copies them."""
        arrays = []
        for _, dtype, shape, places in self._outputs:
            array = np.empty(shape, dtype)
            for place in places:
                _address(place, array)
            arrays.append(array)
        return arrays

    def finish(self, arrays: list[np.ndarray]) -> list[np.ndarray | None]:
        """Finish a call after its run, so that states get their new values. Return the outputs, of
        which `arrays` are the room; None for those that are not computed."""
        self.job.finish(self.pointer)
        computed = iter(arrays)
        return [next(computed) if there else None for there in self._there]


class LedCall(PreparedCall):
    """Calls that process 0 makes and the others follow: their arrays and scalars lie in memory that
    all of them see, for which `memory` is asked, by its size."""

    def __init__(
        self, job: Job, face: Face, arguments: dict[str, Any], only: Only,
        memory: Callable[[int], Any],
    ) -> None:
        super().__init__(job, face, arguments, only)
        self.number = face.number or 0
        count = len(job.setup.words)
        offset, ends = 8 * count, []
        for _, dtype, shape, _ in (*self._inputs, *self._outputs):
            offset = -(-offset // LINE) * LINE
            ends.append(offset)
            offset += math.prod(shape) * dtype.itemsize
        base = memory(max(offset, 8))
        views = []
        for begin, (_, dtype, shape, places) in zip(ends, (*self._inputs, *self._outputs)):
            for place in places:
                place.base = base + begin
            size = math.prod(shape) * dtype.itemsize
            views.append(np.ndarray(shape, dtype, ffi.buffer(base + begin, size)))
        inputs = [(array, dtype, shape, [view]) for (array, dtype, shape, _), view
                  in zip(self._inputs, views)]
        self._inputs, self._views = inputs, views[len(inputs):]
        self._shared = ffi.cast("int64_t *", base)
        self.pointer.scalar = self._shared
        self._bytes = 8 * count

    def _may_run_here(self) -> bool:
        return False  # this thread leads others

    def _load(self) -> bool:
        return False  # all processes must: in the general way

    def _hand(self, place: Any, value: np.ndarray) -> Any:
        np.copyto(place, value)

    def take(self, arguments: dict[str, Any]) -> list[Any] | None:
        held = super().take(arguments)
        if held is not None:
            ffi.memmove(self._shared, self._words, self._bytes)
        return held

    def room(self) -> list[np.ndarray]:
        return []

    def finish(self, arrays: list[np.ndarray]) -> list[np.ndarray | None]:
        self.job.finish(self.pointer)
        computed = (view.copy() for view in self._views)
        return [next(computed) if there else None for there in self._there]


def mentioned(formulas: Any) -> set[str]:
    """Return every text in formulas of a manifest: the names of scalars among them."""
    if isinstance(formulas, str):
        return {formulas}
    inside = formulas.values() if isinstance(formulas, dict) else formulas
    if not isinstance(formulas, (dict, list)):
        return set()
    return {name for formula in inside for name in mentioned(formula)}


def _address(place: Any, array: np.ndarray) -> Any:
    """Write the address of an array into a place; return what must live as long as it is used."""
    try:
        place.base = pointer = _from_buffer(array)
        return pointer
    except (ValueError, BufferError, TypeError):  # it is not contiguous, or of a foreign dtype
        array = np.ascontiguousarray(array)
        place.base = ffi.cast("char *", address(array))
        return array
