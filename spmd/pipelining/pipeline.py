"""spmd.pipeline: layers on different ranks, several microbatches in flight at once.

In: layers with their parameters, a schedule, an optimizer. Out: a Pipeline, whose methods are code
of the program around them: global loops of ticks over arrays with a row for each stage.
Always holds: what comes out depends on stages, never on how many ranks hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import spmd
from codegen.errors import UnsupportedError, UsageError
from codegen.places import user_place
from codegen.trace.array import as_array
from codegen.trace.context import CapturedAgain, Context, require_context
from codegen.trace.state import fill, flatten
from spmd.pipelining.cutting import cut, shown
from spmd.pipelining.evaluation import evaluated
from spmd.pipelining.flight import Flight, batch_types
from spmd.pipelining.packing import Packing
from spmd.pipelining.stage_code import Stage, StageCode, code_of, type_of
from spmd.pipelining.stage_updates import Updates
from spmd.pipelining.tick_tables import TickTables, tables_of
from spmd.pipelining.ticks import Batches, Ticks
from spmd.schedules import Schedule, make_schedule

State = dict[str, Any]


def pipeline(
    layers: Sequence[tuple[Callable[..., Any], Any]], *, axis: str = "stage", stages: int,
    microbatches: int, schedule: Any = "1f1b", accumulate: int | str | None = None,
    optimizer: Any,
) -> Pipeline:
    """Return a Pipeline that trains layers on the ranks along a mesh axis."""
    context = require_context("spmd.pipeline")
    if axis not in context.mesh.names:
        raise UsageError(f"the mesh has no axis {axis!r}", place=user_place(),
                         expected=f"one of {', '.join(context.mesh.names)}",
                         remedy='@spmd.program(mesh=("data", "stage"))')
    if not 1 <= stages <= len(layers):
        raise UsageError(
            f"{stages} stages, and there are {len(layers)} layers", place=user_place(),
            expected="at least one stage, and at most one for each layer",
            remedy=f"stages={len(layers)}, or parts of layers as layers of their own")
    made = make_schedule(schedule, stages=stages, microbatches=microbatches,
                         accumulate=accumulate)
    if made.correction != "none":
        raise UnsupportedError(
            f"{made.name}: pipelines do not correct weights yet ({made.correction})",
            place=user_place(), expected="a schedule whose backward passes read the weights of "
            "their own time", remedy='schedule="continuous"')
    if made.flushes and made.accumulate != microbatches:
        raise UnsupportedError(
            f"accumulate={made.accumulate} over several steps that flush", place=user_place(),
            expected=f"an update in each step: accumulate={microbatches}",
            remedy=f"microbatches={made.accumulate}, and batches so large")
    return Pipeline(context, layers, axis, made, optimizer)


class Pipeline:
    """Layers cut into stages. `spmd.pipeline` gives one."""

    def __init__(
        self, context: Context, layers: Sequence[tuple[Callable[..., Any], Any]], axis: str,
        schedule: Schedule, optimizer: Any,
    ) -> None:
        self.context, self.axis, self.schedule = context, axis, schedule
        self.layers = [(f, w) for f, w in layers]
        self.key = f"pipeline {user_place()}"
        self.tables: TickTables = tables_of(schedule)
        sizes = [sum(_size(x) for x in flatten(w)[1]) for _, w in self.layers]
        self.positions = cut(sizes, schedule.stages)
        self.cut = shown(sizes, self.positions, "parameters")
        self.stages = [
            Stage(tuple(f for f, _ in self.layers[a:b]), [w for _, w in self.layers[a:b]], s, a,
                  self.layers[a - 1][0] if a else None, s == 0, s == schedule.stages - 1)
            for s, (a, b) in enumerate(zip(self.positions, self.positions[1:]))]
        self.weights = Packing([[type_of(x) for x in flatten(s.parameters)[1]]
                                for s in self.stages])
        self.updates = Updates(self, optimizer)
        self._codes: dict[Any, StageCode] = {}

    # ---- what users call

    def init(self) -> State:
        """Return the state before the first step."""
        buffers = self.new(self.weights, ())
        for stage in self.stages:
            leaves = [as_array(x) for x in flatten(stage.parameters)[1]]
            self.weights.write(buffers, (stage.number,), stage.number, leaves)
        state = {"weights": buffers, "moments": self.updates.init(buffers)}
        types = self.context.facts.get(self.key)
        if self.schedule.flushes or types is None:
            return state
        return self._flight().first(state, types)

    def step(self, state: State, x: Any, y: Any) -> tuple[State, Any]:
        """Return the state after a step with a batch, and the mean of the losses that came in it.
        """
        batches = Batches.of(self, x, y, self.schedule.microbatches)
        if not self.schedule.flushes:
            if "cycle" not in state:
                self.context.facts[self.key] = batch_types(x, y)
                raise CapturedAgain
            return self._flight().step(state, batches)
        ticks = Ticks(self, self.code(batches), batches)
        work = ticks.run(ticks.begin({"weights": state["weights"]}), self.schedule.length)
        done = {"weights": state["weights"], "moments": state["moments"]}
        done = self.updates.all_stages(done, ticks.summed(work["gradients"]),
                                       self.schedule.microbatches)
        return done, ticks.loss(work)

    def drain(self, state: State) -> State:
        """Return the state after all that is in flight is done, and applied."""
        return self._flight().drained(state) if "cycle" in state else state

    def _flight(self) -> Flight:
        return Flight(self)

    def evaluate(self, state: State, x: Any, y: Any = None) -> Any:
        """Return the loss of a batch of any size, or, without y, what the last layer returns when
        it is called without targets; nothing is updated."""
        return evaluated(self, state, x, y)

    def params(self, state: State) -> list[Any]:
        """Return the parameters of each layer, in order."""
        found = []
        for stage in self.stages:
            leaves = self.weights.read(state["weights"], (stage.number,), stage.number)
            found += fill(flatten(stage.parameters)[0], iter(leaves), fresh=True)
        return found

    # ---- what its parts call

    def new(self, packing: Packing, between: tuple[Any, ...], layout: tuple[Any, ...] = (),
            make: Callable[..., Any] | None = None) -> dict[str, Any]:
        """Return buffers with a row for each stage, and dims between that and their lengths."""
        make = make or spmd.zeros
        return {name: make((self.schedule.stages, *between, n), name,
                           layout=(self.axis, *layout, *(None,) * (len(between) - len(layout)),
                                   None))
                for name, n in packing.lengths.items()}

    def code(self, batches: Batches) -> StageCode:
        """Return the code of the stages for microbatches of this type."""
        key = str(flatten((batches.x_types, batches.y_types))[1])
        if key not in self._codes:
            self._codes[key] = code_of(self.context, self.stages, batches.x_types, batches.y_types)
        return self._codes[key]


def _size(x: Any) -> int:
    return int(np.prod([int(n) for n in np.shape(x)], dtype=np.int64))

