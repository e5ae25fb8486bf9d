"""The forward pass of a whole batch through the stages of a pipeline, one stage after the other.

In: a TrainingPipeline, its state, a batch. Out: the loss, or what the last layer returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import spmd
from codegen.errors import ShapeError
from codegen.places import user_place
from codegen.trace.state import fill, flatten
from spmd.optim.transformation import map_trees
from spmd.pipelining.microbatches import Microbatches
from spmd.pipelining.stage_code import StageCode, code_of
from spmd.pipelining.stage_rows import by_rows, crossings

if TYPE_CHECKING:
    from spmd.pipelining.training_pipeline import State, TrainingPipeline


def evaluated(pipe: TrainingPipeline, state: State, x: Any, y: Any) -> Any:
    """Return the loss of a batch, or, where y is None, what the last layer returns without it."""
    batch = Microbatches.of(pipe, x, x if y is None else y, 1)
    pipe.tell(batch.data)
    code = code_of(pipe.split, pipe.axis, pipe.stages, batch.x_types,
                   None if y is None else batch.y_types, backward=False)
    stages = len(pipe.stages)
    out = pipe.new(code.activations, (batch.ranks,), (batch.data,))
    ids = pipe.places.by_row(np.arange(stages))
    does = pipe.places.by_row(1 + code.numbers)
    if stages > 1:  # in tick t the stage before hands on to stage t
        borders = spmd.asarray(crossings(np.eye(stages, stages - 1, -1, dtype=bool)))

    def tick(t: Any, out: Any) -> Any:
        def row(j: Any, out: Any, read: Any, batches: Any) -> None:
            arms = [_arm(pipe, code, s, j, out, read["weights"], batches, y is not None)
                    for s in code.unlike]
            spmd.switch(read["arms"][j], [lambda: None, *arms])

        read = {"arms": np.where(ids == t, does, 0), "weights": state["weights"]}
        if stages > 1:
            out = pipe.places.handed_on(out, 1, batch.data, borders[t])
        return by_rows(pipe.axis, batch.data, row, out, read, (batch.x, batch.y))

    out = spmd.fori_loop(0, stages, tick, out)
    last = pipe.places.row(stages - 1)
    if y is not None:
        losses = out[code.halves[-1].out_types[0].dtype.name][last, :, 0]
        return np.sum(losses) / batch.weight() if batch.masked else np.mean(losses)
    leaves = _joined(code, batch, out, last) if batch.data else code.activations.read(
        out, (last, 0), stages - 1)
    return fill(code.halves[-1].out, iter(leaves), fresh=True)


def _joined(code: StageCode, batch: Microbatches, out: Any, row: Any) -> list[Any]:
    """Return what the last layer returns, the parts of ranks along the data axis one behind the
    other. row: of the last stage."""
    last = len(code.halves) - 1
    size, own = (flatten(x)[1][0].shape[k] for x, k in ((batch.x, 2), (batch.x_types, 0)))
    arrays = []
    for k, t in enumerate(code.halves[last].out_types):
        if not t.shape or t.shape[0] != own:
            raise ShapeError(
                "what the last layer returns for a batch that is split has its examples in dim 0",
                place=user_place(), found=str(t),
                remedy="a batch that is whole on all ranks: x.relayout((None, …))")
        buffer, where = code.activations.part(out, (row, slice(None)), last, k)
        rest = [int(n.value) for n in t.shape[1:]]
        arrays.append(buffer[where].reshape(size, *rest))
    return arrays


def _arm(pipe: TrainingPipeline, code: StageCode, s: int, j: Any, out: Any, weights: Any,
         batches: Any, has_targets: bool) -> Any:
    """Return a function that does the forward pass of a stage, whose row is j."""
    def forward() -> None:
        x, y = (map_trees(lambda a: a[j, 0], tree) for tree in batches)
        h = code.handed(s - 1, code.activations.read(out, (j, 0), s - 1)) if s else x
        args = [h, *([y] if s == len(pipe.stages) - 1 and has_targets else ())]
        own = pipe.updates.parameters(s, pipe.weights.read(weights, (j,), s))
        outs, _ = code.halves[s].forward(own, *args)
        code.activations.write(out, (j, 0), s, flatten(outs)[1])

    return forward
