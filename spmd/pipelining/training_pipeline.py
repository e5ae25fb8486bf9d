"""spmd.pipeline: layers on different ranks, several microbatches in flight at once.

In: layers with their parameters, a schedule, an optimizer. Out: a TrainingPipeline, whose methods
are code of the program around them: global loops of ticks over arrays with a row for each stage.
Always holds: what comes out depends on stages, never on how many ranks hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import spmd
from codegen.errors import UnsupportedError, UsageError
from codegen.places import user_place
from codegen.suggest import meant
from codegen.trace.array import as_array
from codegen.trace.context import CapturedAgain, Context, eager_current, require_context
from codegen.trace.numpy.creation import unwritten
from codegen.trace.state import fill, flatten
from spmd.pipelining.build_notes import kept_bytes, other_axes, row_bytes, row_of
from spmd.pipelining.checked_arguments import check_parameters, state_fault
from spmd.pipelining.evaluation import evaluated
from spmd.pipelining.flat_buffers import Packing
from spmd.pipelining.flight import Flight, batch_types, like_batch
from spmd.pipelining.layer_costs import Cut, check_cut, costs_of
from spmd.pipelining.layer_texts import types_text
from spmd.pipelining.microbatches import Microbatches
from spmd.pipelining.ring_ticks import RingTicks, checked_ring, tables_of_ring
from spmd.pipelining.split_axes import SplitAxes
from spmd.pipelining.stage_code import Masked, StageCode, code_of, stages_of
from spmd.pipelining.stage_cuts import cut, cut_text
from spmd.pipelining.stage_places import StagePlaces
from spmd.pipelining.stage_updates import Updates
from spmd.pipelining.tick_tables import TickTables, tables_of
from spmd.pipelining.ticks import Ticks
from spmd.schedules import Schedule, make_schedule
from spmd.schedules.actions import plain_integer

State = dict[str, Any]


def pipeline(
    layers: Sequence[tuple[Callable[..., Any], Any]], *, axis: str = "stage", stages: int,
    microbatches: int, schedule: Any = "1f1b", accumulate: int | str | None = None,
    correction: str | None = None, optimizer: Any, cut: Cut = "parameters", place: str = "block",
) -> TrainingPipeline:
    """Return a TrainingPipeline of layers on different ranks, with several microbatches in flight.

    - layers: pairs (function, parameters), in order. The first function takes (parameters, x), each
      other one what the one before returns, a tree of arrays of any shapes; the last one takes
      (parameters, h, y) and returns the loss of a microbatch, a mean over its examples. Parameters
      are trees of arrays of floats. An array that two layers have is one weight.
    - axis: whose ranks hold stages; another one may split x, and one more the parameters of layers.
    - stages: how many groups the layers are cut into. Results depend on the groups, not on how many
      ranks hold them. cut: by what the largest group is least: "parameters"; "operations" of a
      microbatch, forward and backward; or a list with the seconds of each layer.
    - microbatches: equal parts of a batch, in its order. In a layer, spmd.nn.dropout(x, rate, seed,
      stream) adds microbatch * len(layers) + layer to the stream: numbers from 0, that of the
      microbatch over all steps. An example has the same zeros on any ranks.
    - schedule, accumulate, correction: as of spmd.schedules.make_schedule, or what that returns.
      A schedule that flushes updates all stages at the end of a step; any other one updates a stage
      as soon as `accumulate` of its backward passes are done. Under "pipemare" B reads w - n * d
      for the weights of its forward pass: n updates came since, d is their average change. An
      update makes d c * d + (1 - c) * (its change), c = exp(-2) ** (1 / most n) (Yang et al.).
    - optimizer: a transformation of spmd.optim. It sees the parameters of a stage as a list.
    - place: which rank of n has which stages. "block": as many in a row as others, on any number
      of ranks. "round": stage s is on rank s % n. "v": from rank 0 to n - 1, and back, and so on;
      for these n must divide stages (MeshError), and a state goes on on n ranks only (CheckError).
      "microbatch": ranks follow microbatches, and weights go around, as "weipipe" and "gpipe" can.

    UsageError for more stages than layers, another `cut` or `place`, a schedule that does not fit
    it, no layer or optimizer, a weight or norm that stages share where nothing flushes, or a norm
    read in some steps only; ShapeError where layers or parts of a batch do not fit.

    Example::

        def middle(w, h):
            return np.tanh(h @ w)

        def last(w, h, y):
            return np.mean((h @ w - y) ** 2)

        @spmd.program(mesh=("stage",))
        def train():
            x = spmd.input("x", (8, 4), np.float64, default=lambda i, j: (i + j) % 3)
            layers = [(middle, np.eye(4)), (middle, np.eye(4)), (last, np.eye(4))]
            pipe = spmd.pipeline(layers, stages=3, microbatches=4, schedule="1f1b",
                                 optimizer=spmd.optim.sgd(0.1))
            state, losses = pipe.init(), spmd.zeros(50)
            for k in spmd.range(50):
                state, losses[k] = pipe.step(state, x, x)
            return losses

        losses = spmd.build(train).run(ranks=3)
        print(losses[0].round(3), losses[-1] < losses[0] / 4)    # 0.535 True
    """
    context = _context()
    layers, stages = _checked(context, layers, axis, stages, optimizer)
    check_cut(cut, len(layers))
    checked = make_schedule(schedule, stages, microbatches, accumulate, correction)
    return TrainingPipeline(context, layers, axis, checked, optimizer, cut, place)


def _context() -> Context:
    """Return the open capture. UnsupportedError in an eager run, ProgramError outside of any."""
    if eager_current() is not None:
        raise UnsupportedError("spmd.pipeline in an eager run", place=user_place(),
                               expected="a program that is built",
                               remedy="spmd.build(program).run(ranks=1, …)")
    context = require_context("spmd.pipeline")
    _check_view(context)
    return context


def _check_view(context: Context) -> None:
    """Raise UnsupportedError where the code around has the view of one rank."""
    if context.rank_view:
        raise UnsupportedError(
            "a pipeline in a shard_map, or in a layer of another one", place=user_place(),
            expected="code with global arrays: the stages are on all ranks along an axis",
            remedy="the layers of both as layers of one pipeline; or what is in shard_map outside")


def _checked(context: Context, layers: Any, axis: str, stages: Any, optimizer: Any
             ) -> tuple[list[Any], int]:
    """Return the layers as a list, and the number of stages. UsageError for an axis that is not
    there, what is no layer or no optimizer, or more stages than layers."""
    if axis not in (names := context.mesh.names):
        only = f'axis="{names[0]}"' if len(names) == 1 else ""
        raise UsageError(f"the mesh has no axis {axis!r}", place=user_place(),
                         expected=f"one of {', '.join(names)}",
                         remedy=meant(axis, names, 'axis="{}"') or only
                         or f'@spmd.program(mesh=("data", "{axis}"))')
    pairs = list(layers) if isinstance(layers, Iterable) else []
    wrong = [k for k, pair in enumerate(pairs) if not _is_layer(pair)]
    if wrong or not pairs:
        raise UsageError(f"layer {wrong[0]} is no pair" if wrong else "a pipeline has no layers",
                         place=user_place(), expected="pairs (function, parameters)",
                         found=_kind(pairs[wrong[0]] if wrong else layers),
                         remedy="layers=[(block, w), (last, v)]")
    check_parameters(pairs)
    if isinstance(optimizer, type) or not all(hasattr(optimizer, n) for n in ("init", "update")):
        raise UsageError("a pipeline has no optimizer", place=user_place(),
                         expected="a transformation of spmd.optim", found=repr(optimizer),
                         remedy="optimizer=spmd.optim.sgd(0.1)")
    number = plain_integer(stages)
    if number is None or not 1 <= number <= len(pairs):
        raise UsageError(
            f"{stages!r} stages, and there are {len(pairs)} layers", place=user_place(),
            expected="at least one stage, and at most one for each layer",
            remedy=f"stages={len(pairs)}, or parts of layers as layers of their own")
    return pairs, number


def _kind(x: Any) -> str:
    """Return what something is that is no layer, or no layers, without the numbers in it."""
    return types_text(x) if hasattr(x, "shape") else f"a {type(x).__name__}: {repr(x)[:60]}"


def _is_layer(x: Any) -> bool:
    return isinstance(x, Sequence) and len(x) == 2 and callable(x[0])


class TrainingPipeline:
    """Layers cut into stages, which are trained by a schedule. `spmd.pipeline` gives one.

    A state is a dict of arrays with a row for each stage, which loops of the program carry and
    entries of a class may keep. cut: which layers and how many parameters, operations or seconds
    each stage has, and how many times as fast as one stage that may be, as text. schedule: its
    Schedule.
    """

    def __init__(
        self, context: Context, layers: Sequence[tuple[Callable[..., Any], Any]], axis: str,
        schedule: Schedule, optimizer: Any, by: Cut, place: str = "block",
    ) -> None:
        self.context, self.axis, self.schedule = context, axis, schedule
        self.layers = [(f, w) for f, w in layers]
        rows = context.notes.setdefault("pipelines", [])
        self.number = len(rows)
        self.key = f"pipeline {self.number}"  # a function of the program may make several
        self.split = SplitAxes(context, [w for _, w in self.layers],
                               (axis, *context.facts.get(f"data of {self.key}", ())))
        self.places = StagePlaces(axis, schedule.stages, place, self.split.names)
        self.ring = checked_ring(schedule) if place == "microbatch" else None
        self.tables: TickTables = tables_of_ring(self.ring) if self.ring else tables_of(schedule)
        self.versions = max(schedule.versions(s) for s in range(schedule.stages))
        self.estimates = schedule.correction == "discrepancy"
        self.every = 1  # steps that flush, until an update
        if schedule.flushes and isinstance(schedule.accumulate, int):
            self.every = schedule.accumulate // schedule.microbatches
        types = context.facts.get(self.key)
        counts = by == "operations"
        self.lacks_types = counts and types is None
        costs, unit = costs_of(self, by, like_batch(self, types) if counts and types else None)
        self.positions = cut(costs, schedule.stages)
        self.cut = cut_text(costs, self.positions, unit)
        self.stages = stages_of(self.layers, self.positions, self.split)
        self.types = [flatten(s.types)[1] for s in self.stages]
        self.weights = self.split.packing(list(map(self.split.local, self.types)))
        self.updates = Updates(self, optimizer)
        self.note = row_of(self, place)
        rows.append(self.note)

    # ---- what users call

    def init(self) -> State:
        """Return the state before the first step: the parameters that the layers have, the
        optimizer's first state, nothing in flight."""
        self.context.enter_library()
        buffers = self.new(self.weights, ())
        for stage in self.stages:
            leaves = [as_array(x) for x in flatten(stage.parameters)[1]]
            self.write(buffers, stage.number, dict(enumerate(leaves)))
        state: State = {"weights": buffers, "moments": self.updates.init(buffers),
                        "steps": spmd.asarray(np.int64(0))}
        if self.every > 1:  # gradients of earlier steps wait for an update
            state |= {"gradients": self.updates.zeros(), "pending": state["steps"],
                      "pending_weight": state["steps"]}
        types = self.context.facts.get(self.key)
        if not self.schedule.flushes and types is not None:
            state = self._flight().first(state, types)
        return self.places.marked(state)

    def step(self, state: State, x: Any, y: Any, mask: Any = None) -> tuple[State, Any]:
        """Return the state after a step with a batch, and the mean of the losses that came in it.

        x, y: trees of arrays, whose dim 0 is the batch. Where the schedule flushes, the losses are
        those of this batch; else of what has left the last stage meanwhile, NaN if nothing did.
        mask: bool (batch,), False where an example is not there, as of a feed. With it the last
        layer returns the losses of the examples, (examples,), and losses and gradients are means
        over those that are there, however many of them a microbatch has.
        """
        state = self.places.marked(self._own(state))
        y = y if mask is None else Masked(y, mask)
        batches = Microbatches.of(self, x, y, self.schedule.microbatches)
        self.tell(batches.data)
        if self.lacks_types or not self.schedule.flushes and "cycle" not in state:
            if self.key in self.context.facts:  # its init has begun with all that a state needs
                raise UsageError(
                    "no state of this pipeline", place=user_place(),
                    expected="what the init of the same pipeline returns", found="a state that "
                    "another call of spmd.pipeline has begun, without what is in flight",
                    remedy="one pipeline for all entries, as self.pipe = spmd.pipeline(…)")
            self.context.facts[self.key] = batch_types(x, y)
            raise CapturedAgain
        if not self.schedule.flushes:
            return self._flight().step(state, batches)
        earlier = state["steps"] * self.schedule.microbatches
        kind = RingTicks if self.ring else Ticks
        ticks = kind(self, self.code(batches), batches, earlier=earlier)
        work = ticks.run(ticks.begin({"weights": state["weights"]}), self.schedule.length)
        sums = self.updates.summed(ticks.gradients(work), batches.data)
        done = {**state, "steps": state["steps"] + 1}
        if self.every == 1:
            return self._applied(done, sums, batches.weight()), ticks.loss(work)
        done["gradients"] = self.updates.added(state["gradients"], sums)
        done["pending"] = state["pending"] + 1
        done["pending_weight"] = state["pending_weight"] + batches.weight()
        return self._applied_if(done, done["pending"] == self.every), ticks.loss(work)

    def drain(self, state: State) -> State:
        """Return the state after all that is in flight is done, and applied: each stage is updated
        by the gradients that it has, even if they are fewer than `accumulate`."""
        state = self._own(state)
        if "pending" in state:
            return self._applied_if(state, state["pending"] > 0)
        return self._flight().drained(state) if "cycle" in state else state

    def _applied(self, state: State, gradients: dict[str, Any], count: Any) -> State:
        """Return the state after an update of all stages by the sum of so many gradients."""
        part = {name: state[name] for name in ("weights", "moments")}
        return {**state, **self.updates.all_stages(part, gradients, count)}

    def _applied_if(self, state: State, due: Any) -> State:
        """Return the state after an update by all that is pending, if that is due."""
        def update(state: State) -> State:
            count = state["pending_weight"].astype(np.float64)
            done = self._applied(state, state["gradients"], count)
            done["gradients"] = self.updates.cleared(state["gradients"])
            return {**done, "pending": state["pending"] * 0,
                    "pending_weight": state["pending_weight"] * 0}

        after: State = spmd.cond(due, update, lambda state: state, state)
        return after

    def _flight(self) -> Flight:
        return Flight(self)

    def evaluate(self, state: State, x: Any, y: Any = None, mask: Any = None) -> Any:
        """Return the loss of a batch of any size, or, without y, what the last layer returns when
        it is called without targets; nothing is updated. The whole batch goes through at once,
        which a layer sees that reads all its examples. mask: as of `step`."""
        state = self._own(state)
        if y is None and mask is not None:
            raise UsageError("a mask without y: what the last layer returns has all examples",
                             place=user_place(), remedy="pipe.evaluate(state, x)")
        return evaluated(self, state, x, y if mask is None else Masked(y, mask))

    def params(self, state: State) -> list[Any]:
        """Return the parameters of each layer, in order. As outputs of the program they lie on the
        ranks that have their stage."""
        state = self._own(state)
        parameters = []
        for stage in self.stages:
            leaves = self.leaves(state["weights"], stage.number)
            for leaf, t in zip(leaves, self.types[stage.number], strict=True):
                self.places.stay(self.context, leaf, t, stage.number)
            parameters += fill(flatten(stage.parameters)[0], iter(leaves), fresh=True)
        return parameters

    def _own(self, state: Any) -> State:
        """Return a state with which a user calls a method. UsageError for what is no state of this
        pipeline."""
        _check_view(self.context)
        self.context.enter_library()
        names: dict[str, Any] = {
            name: {k: self.split.extent(n) for k, n in packing.lengths.items()}
            for name, packing in (("weights", self.weights), ("moments", self.updates.moments))}
        names |= {"steps": None, **({"pending": None} if self.every > 1 else {})}
        fault = state_fault(state, names, self.schedule.stages)
        if fault:
            raise UsageError("no state of this pipeline", place=user_place(), found=fault,
                             expected="what its init, step or drain returns",
                             remedy="state, loss = pipe.step(state, x, y), from pipe.init() on")
        self.places.expect_same(self.context, state)
        own: State = state
        return own

    # ---- what its parts call

    def new(self, packing: Packing, between: tuple[Any, ...], layout: tuple[Any, ...] = (),
            times: int = 1) -> dict[str, Any]:
        """Return buffers with a row for each stage, and dims between that and their lengths, which
        are `times` what a packing needs. Nobody has written into them."""
        entries = (self.axis, *layout, *(None,) * (len(between) - len(layout)), self.split.entry)
        return {name: unwritten((self.schedule.stages, *between, self.split.extent(n * times)),
                                name, entries) for name, n in packing.lengths.items()}

    def leaves(self, buffers: dict[str, Any], stage: int) -> list[Any]:
        """Return what buffers (stage, …) have for the weights of a stage, as global arrays."""
        row = self.places.stage_row(self.context, stage)
        return self.split.read(self.weights, buffers, row, stage, self.types[stage])

    def write(self, buffers: dict[str, Any], stage: int, leaves: dict[int, Any]) -> None:
        """Write what buffers (stage, …) have for some weights of a stage, by their numbers."""
        row = self.places.stage_row(self.context, stage)
        self.split.write(self.weights, buffers, row, stage, leaves, self.types[stage])

    def tell(self, data: str | None) -> None:
        """Begin the capture again where the axis that splits the batch was taken for one of those
        that split weights."""
        if data in self.split.names:
            self.context.facts[f"data of {self.key}"] = (data,)
            raise CapturedAgain

    def code(self, batches: Microbatches) -> StageCode:
        """Return the code of the stages for microbatches of this type: of each step its own, since
        layers may read numbers of Python that have changed."""
        code = code_of(self.split, self.axis, self.stages, batches.x_types, batches.y_types,
                       splits_backward=self.schedule.splits_backward)
        self.note["kept"], self.note["rows"] = kept_bytes(self, code), row_bytes(self, code)
        self.note["axes"] = other_axes(self, batches.data)
        return code

