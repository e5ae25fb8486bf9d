"""Which row of a pipeline's arrays a stage has, and so which rank: ranks hold blocks of rows.

In: a place, one of PLACES. Out: rows of stages, what is known of stages in the order of rows, and
what neighbours hand on. Always holds: the number of ranks is known at launch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

import spmd
from codegen.errors import UsageError
from codegen.ir.cuts import block, owned
from codegen.ir.graph import ArrayType
from codegen.mesh import Layout, LayoutEntry
from codegen.places import user_place
from codegen.suggest import meant
from codegen.symbolic import expr
from codegen.trace.array import as_value
from codegen.trace.context import Context
from codegen.trace.number import expr_of, number
from codegen.trace.numpy.creation import arange, unwritten
from codegen.trace.runtime_checks import expect
from spmd.pipelining.stage_rows import handed_on, layout_of_batch, layout_of_rows

PLACES = ("block", "round", "v", "microbatch")
MOST_RANKS, BASE = 1 << 24, 1 << 12  # along all axes of a mark, and along one of several


@dataclass(frozen=True)
class StageRow:
    """The row of a stage in arrays (stage, …), which a rank has whose `has` is 1, else 0. number,
    position: in the array, and among the rows of that rank; integers that may be symbolic. entry:
    of a dim that only this rank has; (), where nobody knows it while building."""

    number: Any
    position: Any
    has: Any
    entry: LayoutEntry
    axis: str

    def home(self, t: ArrayType) -> Layout:
        """Return the layout that splits the array's first unsplit dim over the axis of stages; its
        own layout if every dim is split."""
        layout = list(t.layout or ((),) * t.ndim)
        if () in layout:
            layout[layout.index(())] = self.entry
        return tuple(layout)

    def merged(self, x: Any, t: ArrayType) -> Any:
        """Return a rank's part of an array that lies as this row does. x: its shape is (has, …)."""
        if not self.entry or self.entry not in self.home(t):
            return spmd.psum(np.sum(x, axis=0), self.axis)
        dim = self.home(t).index(self.entry)
        moved = np.moveaxis(x, 0, dim)
        extent = moved.shape[dim] * moved.shape[dim + 1]
        return moved.reshape((*moved.shape[:dim], extent, *moved.shape[dim + 2:]))

    def apart(self, x: Any, t: ArrayType) -> Any:
        """Return a rank's part of an array that lies as this row does, in shape (has, …) or (1,
        …)."""
        if not self.entry or self.entry not in self.home(t):
            return x[None]
        dim = self.home(t).index(self.entry)
        shape = (*x.shape[:dim], self.has, t.shape[dim].value, *x.shape[dim + 1:])
        return np.moveaxis(x.reshape(shape), dim, 0)


class StagePlaces:
    """The rows of stages. ranks: along the axis; None where stage s has row s: for "block", and
    between steps for "microbatch".

    Else rank r has the rows r * rounds to (r + 1) * rounds - 1. Row k of these, that of round k, is
    stage k * ranks + r, or, for "v" and an odd k, stage k * ranks + ranks - 1 - r.
    """

    def __init__(self, axis: str, stages: int, place: str, split: Sequence[str] = ()) -> None:
        """Place stages on ranks, as `place` says. split: the axes that split weights."""
        if place not in PLACES:
            raise UsageError(f"place={place!r}", place=user_place(),
                             expected=f"one of {', '.join(PLACES)}", remedy=meant(place, PLACES))
        self.axis, self.stages, self.back_and_forth = axis, stages, place == "v"
        self.follows = place == "microbatch"
        self.ranks: Any = None
        if place in ("round", "v"):
            self.ranks = spmd.axis_size(axis)
            spmd.require(self.ranks <= stages, f"place={place!r}: ranks must divide stages")
            spmd.require(stages % self.ranks == 0, f"place={place!r}: ranks must divide stages")
            self.rounds = stages // self.ranks
        # what a state says of the ranks on which it lies, and along which axes these are
        marks = {"ranks": () if self.ranks is None else (axis,), "split_ranks": tuple(split)}
        self.marks = {name: axes for name, axes in marks.items() if axes}

    def row(self, stage: int) -> Any:
        """Return the row of a stage, an integer that may be symbolic."""
        if self.ranks is None:
            return stage
        number = stage // self.ranks
        return self._in_round(stage % self.ranks, number) * self.rounds + number

    def by_row(self, of_stages: Any) -> Any:
        """Return an array (stage, …) in the order of rows."""
        array = spmd.asarray(of_stages)
        if self.ranks is None:
            return array
        rows = spmd.asarray(np.arange(self.stages))
        rank, number = rows // self.rounds, rows % self.rounds
        return array[number * self.ranks + self._in_round(rank, number)]

    def _in_round(self, position: Any, number: Any) -> Any:
        """Return which rank has this position in a round, and so which position a rank has: for "v"
        they count from the last rank in odd rounds."""
        if not self.back_and_forth:
            return position
        return position + number % 2 * (self.ranks - 1 - 2 * position)

    def only(self, stage: int, x: Any, data: str | None) -> Any:
        """Return an array (stage, microbatch, example, …) that has x in the row of a stage, and
        nothing else; in all rows where ranks follow their microbatches."""
        shape = (self.stages, *x.shape)
        rows = unwritten(shape, x.type.dtype.name, layout_of_batch(self.axis, data, len(shape)))
        rows[slice(None) if self.follows else self.row(stage)] = x
        return rows

    def stage_row(self, context: Context, stage: int) -> StageRow:
        """Return the row of a stage."""
        row = self.row(stage)
        low, high = block((self.axis,), expr.const(self.stages)).bounds(context.mesh)
        position = expr_of(row)
        assert position is not None, "a row is an integer, or a formula"
        if self.ranks is not None:
            has = expr.ge(position, low) * expr.lt(position, high)
            return StageRow(row, number(position - low), number(has), (), self.axis)
        entry = owned((self.axis,), self.stages, stage, context.mesh)
        return StageRow(row, number(position - low), number(entry.has), entry, self.axis)

    def stay(self, context: Context, leaf: Any, t: ArrayType, stage: int) -> None:
        """Let an array of this type, which is read of the row of a stage, lie as an output where
        that row lies, if a dim of it is not split otherwise."""
        row = self.stage_row(context, stage)
        if row.entry and t.ndim:
            leaf.home = row.home(t)

    def handed_on(self, arrays: dict[str, Any], step: int, data: str | None, words: Any
                  ) -> dict[str, Any]:
        """Return arrays (row, …) in which each stage has what the one `step` before it had.

        step: 1, or -1 for the one behind it. What the first (or last) stage has is not said. words:
        over which borders between stages something goes, as of `crossings`; only there is it read.
        """
        if self.ranks is None:
            return handed_on(self.axis, data, step, arrays, words)
        local = self._there_and_back if self.back_and_forth else self._around
        layouts = tuple(layout_of_rows(self.axis, data, x) for x in arrays.values())
        mapped = spmd.shard_map(
            lambda *parts: tuple(local(x, step) for x in parts), in_layouts=layouts,
            out_layouts=layouts)
        return dict(zip(arrays, mapped(*arrays.values()), strict=True))

    def _around(self, x: Any, step: int) -> Any:
        """Hand rows on to the next rank; from the last rank they go to the first, a round
        further."""
        come = spmd.ppermute(x, self.axis, shift=step)
        return np.where(self._is_end(step), np.roll(come, step, axis=0), come)

    def _there_and_back(self, x: Any, step: int) -> Any:
        """Hand on to the next rank in even rounds, to the one before in odd ones; at both ends of
        the ranks, a round further on the same rank."""
        there, back = (spmd.ppermute(x, self.axis, shift=k) for k in (step, -step))
        own = np.roll(x, step, axis=0)
        even = (arange(self.rounds) % 2 == 0).reshape(self.rounds, *(1,) * (x.ndim - 1))
        return np.where(even, np.where(self._is_end(step), own, there),
                        np.where(self._is_end(-step), own, back))

    def _is_end(self, step: int) -> Any:
        """Return whether this rank has no neighbour from which a step comes."""
        return spmd.axis_index(self.axis) == (0 if step > 0 else self.ranks - 1)

    # ---- states that outlive a run

    def marked(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state to which the numbers of ranks that fix the order of its arrays are added.

        A checkpoint has what changes from step to step: so these numbers do, by MOST_RANKS.
        """
        for name, axes in self.marks.items():
            first = spmd.asarray(np.int64(0)) + _sizes(axes) - MOST_RANKS
            state = {**state, name: state.get(name, first) + MOST_RANKS}
        return state

    def expect_same(self, context: Context, state: dict[str, Any]) -> None:
        """End the run where a state comes from a run on another number of ranks."""
        remedies = {"ranks": 'place="block", whose stages go on on any number of ranks',
                    "split_ranks": "what pipe.params gives, on another number of ranks"}
        for name, axes in self.marks.items():
            before = state[name] % MOST_RANKS
            expect(context, as_value(context, before == _sizes(axes)),
                   "the arrays of this state lie as on ", as_value(context, before // BASE ** (
                       len(axes) - 1)), f' ranks along "{axes[0]}"\n'
                   f"  expected: as many ranks in this run\n  try:      {remedies[name]}")


def _sizes(axes: Sequence[str]) -> Any:
    """Return the numbers of ranks along some axes as one integer."""
    return reduce(lambda total, axis: total * BASE + spmd.axis_size(axis), axes, 0)
