"""Updates of stages: each stage's parameters by the gradients of its own microbatches.

Always holds: an optimizer sees the parameters of a stage as a list, one tree for each layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import spmd
from codegen.ir import ArrayType
from codegen.trace.array import Array, as_array, as_value, wrap
from codegen.trace.context import Context
from codegen.trace.state import Tree, fill, flatten
from spmd.optim.transformation import apply_updates
from spmd.pipelining.packing import Packing
from spmd.pipelining.rows import by_rows

if TYPE_CHECKING:
    from spmd.pipelining.pipeline import Pipeline, State


class Updates:
    """The optimizer of a pipeline. moments: the packing of its states."""

    def __init__(self, pipe: Pipeline, optimizer: Any) -> None:
        self.pipe, self.optimizer = pipe, optimizer
        self.trees: list[Tree] = []
        types: list[list[ArrayType]] = []
        for stage in pipe.stages:
            tree, found = _state_of(pipe.context, optimizer, pipe.weights, stage.number,
                                    stage.parameters)
            self.trees.append(tree)
            types.append(found)
        self.moments = Packing(types)

    def parameters(self, stage: int, leaves: Any) -> Any:
        """Return the parameters of a stage as a list of trees."""
        return fill(flatten(self.pipe.stages[stage].parameters)[0], iter(leaves), fresh=True)

    def init(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return the buffers of the optimizer's first states."""
        pipe = self.pipe

        def row(j: Any, moments: Any, read: Any, _: Any) -> None:
            def arm(stage: int) -> Any:
                def begin() -> None:
                    own = self.parameters(stage, pipe.weights.read(read["weights"], (j,), stage))
                    self._put(moments, j, stage, self.optimizer.init(own))
                return begin

            spmd.switch(read["ids"][j], [arm(s.number) for s in pipe.stages])

        moments = pipe.new(self.moments, ())
        if not moments:
            return moments
        return by_rows(pipe.axis, None, row, moments, {"weights": weights, "ids": self.ids()})

    def ids(self) -> Any:
        """Return the number of each stage."""
        return spmd.asarray(np.arange(len(self.pipe.stages)))

    def all_stages(self, state: State, gradients: dict[str, Any], count: int) -> State:
        """Return the state after an update of all stages by the mean of so many gradients."""
        def row(j: Any, state: Any, read: Any, _: Any) -> None:
            arms = [self.arm(stage.number, j, state, read["gradients"], 1 / count)
                    for stage in self.pipe.stages]
            spmd.switch(read["ids"][j], arms)

        read = {"gradients": gradients, "ids": self.ids()}
        done: State = by_rows(self.pipe.axis, None, row, state, read)
        return done

    def due(self, state: State, due: Any, data: str | None) -> State:
        """Return the state after updates of the stages that are due, by the mean of the gradients
        that each has; these are cleared."""
        names = ("weights", "moments", "gradients", "count")

        def row(j: Any, state: Any, read: Any, _: Any) -> None:
            def begin(stage: int) -> Any:
                def update() -> None:
                    count = state["count"][j].astype(np.float64)
                    self.arm(stage, j, state, read["sums"], 1 / count)()
                    for g in state["gradients"].values():
                        g[j] = 0
                    state["count"][j] = 0
                return update

            found = [begin(stage.number) for stage in self.pipe.stages]
            arm = np.where(read["due"][j] & (state["count"][j] > 0), read["ids"][j] + 1, 0)
            spmd.switch(arm, [lambda: None, *found])

        def update(part: State) -> State:
            sums = {name: np.sum(g, axis=1) for name, g in part["gradients"].items()}
            read = {"sums": sums, "due": due, "ids": self.ids()}
            done: State = by_rows(self.pipe.axis, data, row, part, read)
            return done

        part = {name: state[name] for name in names}
        return {**state, **spmd.cond(np.any(due), update, lambda part: part, part)}

    def arm(self, stage: int, j: Any, state: State, gradients: Any, factor: Any) -> Any:
        """Return a function that updates a stage, whose row is j."""
        pipe = self.pipe

        def update() -> None:
            own = self.parameters(stage, pipe.weights.read(state["weights"], (j,), stage))
            slopes = self.parameters(stage, [
                g * in_dtype(factor, g) for g in pipe.weights.read(gradients, (j,), stage)])
            before = self._state(state["moments"], j, stage)
            changes, after = self.optimizer.update(slopes, before, own)
            new = apply_updates(own, changes)
            pipe.weights.write(state["weights"], (j,), stage, flatten(new)[1])
            self._put(state["moments"], j, stage, after)

        return update

    def _state(self, moments: Any, j: Any, stage: int) -> Any:
        leaves = iter(self.moments.read(moments, (j,), stage))
        tree = self.trees[stage]
        full = [next(leaves) if _is_array(x) else x for x in flatten(_value(tree))[1]]
        return fill(tree, iter(full), fresh=True)

    def _put(self, moments: Any, j: Any, stage: int, state: Any) -> None:
        arrays = [as_array(x) for x in flatten(state)[1] if _is_array(x)]
        self.moments.write(moments, (j,), stage, arrays)


def in_dtype(factor: Any, x: Any) -> Any:
    """Return a number in the element type of an array."""
    return factor.astype(x.dtype) if hasattr(factor, "astype") else factor


def _is_array(x: Any) -> bool:
    return isinstance(x, (Array, np.ndarray, np.generic))


def _value(tree: Tree) -> Any:
    return tree.value


def _state_of(context: Context, optimizer: Any, weights: Packing, stage: int, parameters: Any
              ) -> tuple[Tree, list[ArrayType]]:
    """Return the structure of the optimizer's state of a stage, and the types of its arrays."""
    tree, leaves = flatten(parameters)
    types = [ArrayType(a.type.dtype, a.type.shape) for a in map(as_array, leaves)]
    context.rank_view += 1
    try:
        with context.block(types) as block:
            block.apart = True
            own = fill(tree, iter([wrap(context, v) for v in block.args]), fresh=True)
            state_tree, found = flatten(optimizer.init(own))
            arrays = [as_value(context, x) for x in found if _is_array(x)]
    finally:
        context.rank_view -= 1
    return state_tree, [ArrayType(v.type.dtype, v.type.shape) for v in arrays]
