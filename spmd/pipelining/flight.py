"""Steps of a pipeline that never flushes: what is in flight between them is part of the state.

Always holds: the batches of the steps whose microbatches are in flight are in the state, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import spmd
from codegen.errors import ShapeError
from codegen.places import user_place
from codegen.trace.array import as_array
from codegen.trace.numpy.creation import unwritten
from codegen.trace.state import fill, flatten
from spmd.optim.transformation import map_trees
from spmd.pipelining.microbatches import Microbatches
from spmd.pipelining.stage_rows import layout_of_batch
from spmd.pipelining.ticks import Ticks

if TYPE_CHECKING:
    from spmd.pipelining.training_pipeline import State, TrainingPipeline

IN_FLIGHT = ("x", "y", "mask", "cycle", "steps", "ranks", "split_ranks")


def batch_types(x: Any, y: Any) -> Any:
    """Return what an init needs to know of batches: their structure, and of each array the shape,
    the element type and the layout."""
    tree, leaves = flatten((x, y))
    arrays = [as_array(leaf) for leaf in leaves]
    return tree, [(a.shape, a.type.dtype.name, a.layout) for a in arrays]


def like_batch(pipe: TrainingPipeline, types: Any) -> Microbatches:
    """Return a batch of zeros. types: as of batch_types."""
    tree, leaves = types
    zeros = [spmd.zeros(shape, dtype, layout=layout) for shape, dtype, layout in leaves]
    x, y = fill(tree, iter(zeros), fresh=True)
    return Microbatches.of(pipe, x, y, pipe.schedule.microbatches)


def _text(leaves: list[Any], masked: bool) -> str:
    """Return the element types and the shapes of one microbatch, whose last leaf may be a mask."""
    texts = [f"{x.dtype}[{', '.join(map(str, x.shape[2:]))}]" for x in leaves]
    return ", ".join([*texts[:-1], f"mask {texts[-1]}"] if masked else texts)


class Flight:
    """The steps of one pipeline. behind: how many earlier steps are in flight; size: how many
    microbatches a step has."""

    def __init__(self, pipe: TrainingPipeline) -> None:
        self.pipe = pipe
        self.behind = pipe.tables.behind
        self.size = pipe.schedule.microbatches

    def first(self, state: State, types: Any) -> State:
        """Return the state before the first step, with nothing in flight."""
        batches = like_batch(self.pipe, types)
        work = Ticks(self.pipe, self.pipe.code(batches), batches).begin(
            {name: state[name] for name in ("weights", "moments")})

        x, y = (self._rows(tree, self.behind, batches.data) for tree in (batches.x, batches.y))
        begun = {**work, "steps": state["steps"], "x": x, "y": y,
                 "cycle": spmd.asarray(np.int64(0))}
        if batches.masked:
            begun["mask"] = spmd.zeros((self.behind * self.size, *batches.mask.shape[1:]), bool,
                                       layout=(None, batches.data))
        return begun

    def _rows(self, tree: Any, steps: int, data: str | None) -> Any:
        """Return arrays (stage, microbatch, example, …) like these, of so many steps. Nobody has
        written into them."""
        return map_trees(lambda x: unwritten(
            (x.shape[0], steps * self.size, *x.shape[2:]), x.type.dtype.name,
            layout_of_batch(self.pipe.axis, data, x.ndim)), tree)

    def step(self, state: State, batches: Microbatches) -> tuple[State, Any]:
        """Return the state after a step, and the loss."""
        self._check(state, batches)
        first, last = (self.pipe.places.row(s) for s in (0, len(self.pipe.stages) - 1))
        both = ("x", batches.x, first), ("y", batches.y, last)
        behind = self.behind * self.size
        x, y = (self._rows(new, self.behind + 1, batches.data) for _, new, _ in both)
        for tree, (name, new, row) in zip((x, y), both, strict=True):
            for to, old, come in zip(*(flatten(t)[1] for t in (tree, state[name], new)),
                                     strict=True):
                to[row, :behind] = old[row]
                to[row, behind:] = come[row]
        mask = np.concatenate([state["mask"], batches.mask]) if batches.masked else None
        every = batches.but(x, y, mask)
        ticks = Ticks(self.pipe, self.pipe.code(batches), every, self.behind * self.size,
                      state["cycle"] * self.size, self._earlier(state))
        work = {k: v for k, v in state.items() if k not in IN_FLIGHT}
        work["loss"] = ticks.no_loss()
        work = ticks.run(work, self.pipe.schedule.period or 0)
        done = {**state, **work, "cycle": state["cycle"] + 1, "steps": state["steps"] + 1}
        for tree, (name, new, row) in zip((x, y), both, strict=True):
            done[name] = self._rows(new, self.behind, batches.data)
            for to, a in zip(flatten(done[name])[1], flatten(tree)[1], strict=True):
                to[row] = a[row, self.size:]
        if mask is not None:
            done["mask"] = mask[self.size:]
        return {name: done[name] for name in state}, ticks.loss(work)

    def _check(self, state: State, batches: Microbatches) -> None:
        """Raise ShapeError for a batch unlike those that are in flight."""
        (tree, before), (other, new) = (flatten(pair) for pair in (
            (state["x"], state["y"]), (batches.x, batches.y)))
        expected, found = _text(before, "mask" in state), _text(new, batches.masked)
        if expected != found or not tree.like(other):
            raise ShapeError(
                "a batch unlike those that are in flight", place=user_place(),
                expected=f"microbatches of {expected}",
                found=found if expected != found else f"{found}, in other containers",
                remedy="batches of one size, with a mask for a short one; or a schedule that "
                "flushes")

    def _earlier(self, state: State) -> Any:
        """Return how many microbatches there were before the pipeline was last empty."""
        return (state["steps"] - state["cycle"]) * self.size

    def drained(self, state: State) -> State:
        """Return the state after all that is in flight, and a last update of each stage."""
        batches = Microbatches.in_flight(self.pipe, state["x"], state["y"],
                                         state.get("mask"))
        work = {k: v for k, v in state.items() if k not in IN_FLIGHT}
        if self.behind:
            ticks = Ticks(self.pipe, self.pipe.code(batches), batches, self.behind * self.size,
                          state["cycle"] * self.size, self._earlier(state))
            work = ticks.run(work, self.behind * (self.pipe.schedule.period or 0) + 1, last=True)
        else:
            due = spmd.asarray(np.ones(len(self.pipe.stages), bool))
            work = self.pipe.updates.due(work, due, batches.data)
        done = {**state, **work, "cycle": state["cycle"] * 0}
        return {name: done[name] for name in state}
