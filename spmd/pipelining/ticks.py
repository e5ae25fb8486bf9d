"""Ticks of a pipeline: in each, a stage does one action; then neighbours hand on what it gave.

In: the code of the stages, a batch. Out: what is in flight after a tick, arrays with a row for each
stage. Always holds: what a tick hands on is read in a later tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import spmd
from codegen.trace.array import as_array, as_value
from codegen.trace.control.functional import changing_loop
from codegen.trace.control.letting import as_symbol, say_position
from codegen.trace.expecting import expect
from codegen.trace.state import flatten
from spmd.nn.layers import DropoutKey
from spmd.optim.transformation import map_trees
from spmd.pipelining.microbatches import Microbatches
from spmd.pipelining.stage_code import StageCode
from spmd.pipelining.stage_rows import by_rows, crossings
from spmd.pipelining.tick_tables import BACKWARD, FORWARD, IDLE, WEIGHTS
from spmd.schedules.tick_positions import packed

if TYPE_CHECKING:
    from spmd.pipelining.training_pipeline import TrainingPipeline

Work = dict[str, Any]
# from which the weights that a backward pass reads follow, where they are not those of now
OTHER_WEIGHTS = ("versions", "changes", "version", "backward_weights")


@dataclass(frozen=True)
class StageAction:
    """One action of a stage, whose row is `row`, on a microbatch.

    received, returned: where what a neighbour has handed on waits for F, and for B; slot, crossing:
    where what F gives to B and W, and B to W, lies; position: where the microbatch lies in the
    batches. number: that of the microbatch over all steps, for messages; stream: of its dropout in
    the stage's first layer; weight: what it counts in means. state: what the action writes;
    weights: from which the parameters of the stage follow.
    """

    row: Any
    received: Any
    returned: Any
    slot: Any
    crossing: Any
    position: Any
    number: Any
    stream: Any
    weight: Any
    state: Any
    weights: Any


class Ticks:
    """Ticks that follow each other, from the first one of a cycle.

    batches: those of earlier steps in flight, and then a new one, or none. before: how many
    microbatches there are of earlier steps. first: the number of the first microbatch of the cycle,
    counted from the beginning: 0, or an array. earlier: how many there were before that beginning.
    same: what no tick changes where a step flushes.
    """

    same: tuple[str, ...] = ("weights",)

    def __init__(
        self, pipe: TrainingPipeline, code: StageCode, batches: Microbatches, before: int = 0,
        first: Any = 0, earlier: Any = 0,
    ) -> None:
        self.earlier = earlier
        self.pipe, self.code, self.batches = pipe, code, batches
        self.before, self.first = before, first
        self.tables = pipe.tables
        self.slots = max(self.tables.slots)
        self.last: int | None = None
        self.begun: Any = 0
        self.kinds = WEIGHTS if code.parts else BACKWARD  # of actions
        self.cycle = len(self.tables.kinds)
        self.has = batches.count

    def run(self, work: Work, count: int, last: bool = False) -> Work:
        """Return what is in flight after so many ticks. last: all stages are updated in the last
        one, by the gradients that they have."""
        self.last = count - 1 if last else None
        steps = (as_array(self.first) + self.earlier) // self.pipe.schedule.microbatches
        self.begun = steps * self.cycle  # ticks
        same = self.same if self.pipe.schedule.flushes else ()
        fixed = {name: part for name, part in work.items() if name in same}

        def next_tick(tick: Any, work: Work) -> Work:
            after = self.tick(tick, {**work, **fixed})
            return {name: after[name] for name in work}

        changing = {name: part for name, part in work.items() if name not in same}
        done = {**changing_loop(0, count, next_tick, changing, "rebinds"), **fixed}
        ended = -(self.begun + (count + packed(self.pipe.number)))
        say_position(self.pipe.context, as_array(np.int64(0) if last else ended))
        return done

    def begin(self, state: Any) -> Work:
        """Return what is in flight before the first tick: nothing."""
        pipe, code, ranks = self.pipe, self.code, self.batches.ranks
        data = self.batches.data
        work = {
            "gradients": pipe.updates.zeros((ranks,), data),
            "kept": pipe.new(code.kept, (self.slots, ranks), (None, data)),
            "activations": pipe.new(code.activations, (ranks,), (data,)),
            "cotangents": pipe.new(code.cotangents, (ranks,), (data,)),
            "loss": self.no_loss(),
        }
        if code.parts:
            work["crossing"] = pipe.new(code.crossing, (max(self.tables.crossing), ranks),
                                        (None, data))
        if self.tables.waits[0]:
            work["arrived"] = pipe.new(code.activations, (max(self.tables.received), ranks),
                                       (None, data))
        if self.tables.waits[1]:
            work["returned"] = pipe.new(code.cotangents, (max(self.tables.returned), ranks),
                                        (None, data))
        if not pipe.schedule.flushes:
            work["count"] = spmd.zeros((len(pipe.stages),), np.int64, layout=(pipe.axis,))
        if pipe.versions > 1 or pipe.estimates:
            work |= self._earlier_weights(state["weights"])
        return {**work, **state}

    def _earlier_weights(self, weights: Any) -> Work:
        """Return what backward passes read the weights of their forward passes from: of each stage
        a row of versions, or the average change of an update; which version is the newest one, and
        of each slot the one that the forward pass has read."""
        pipe, stages = self.pipe, len(self.pipe.stages)
        work: Work = {
            "version": spmd.zeros((stages,), np.int64, layout=(pipe.axis,)),
            "used": spmd.zeros((stages, self.slots), np.int64, layout=(pipe.axis, None)),
        }
        if pipe.estimates:
            return {**work, "changes": pipe.updates.zeros()}
        return {**work, "versions": pipe.updates.versions(weights)}

    def no_loss(self) -> Any:
        """Return the sum and the number of the losses that come in a step, on each rank: none."""
        return spmd.zeros((len(self.pipe.stages), self.batches.ranks, 2), self._loss_dtype(),
                          layout=(self.pipe.axis, self.batches.data, None))

    def _loss_dtype(self) -> Any:
        return self.code.halves[-1].out_types[0].dtype.name

    def tick(self, tick: Any, work: Work) -> Work:
        """Return what is in flight after a tick, counted from the first one of the cycle."""
        tables, pipe = self.tables, self.pipe
        drained = 0 if self.last is None else tick + 1
        say_position(pipe.context, self.begun + (tick + 1 + packed(pipe.number, drained)))
        t, later = tick % self.cycle, tick // self.cycle * pipe.schedule.microbatches
        own = self._at(tables.microbatches, t) + later
        numbers = self.kinds * self.code.numbers[tables.stages]
        arms = self._at(np.where(tables.kinds == IDLE, 0, numbers + tables.kinds), t)
        if not pipe.schedule.flushes:
            arms = np.where(self._exist(own), arms, 0)
        positions = np.clip(own + self.before, 0, self.has - 1)
        if self.batches.masked:  # nothing is computed of a microbatch without examples
            examples = self.batches.examples()[positions]
            arms = np.where(examples > 0, arms, 0)
        number = np.maximum(own + self.first, 0)
        counted = number + self.earlier  # over all steps
        begins = self._at(np.array(pipe.positions)[tables.stages], t)
        read = {"arms": arms, "numbers": counted, "streams": counted * len(pipe.layers) + begins,
                "received": self._slots(number, tables.received),
                "returned": self._slots(number, tables.returned),
                "crossing": self._slots(number, tables.crossing),
                "slots": (self._slots(number, tables.slots) if tables.slots_at is None
                          else self._at(tables.slots_at, t)),
                "positions": positions,
                "weights": work["weights"]}
        if self.batches.masked:
            read["examples"] = examples
        untouched = {"weights", "moments", *OTHER_WEIGHTS}
        read |= {name: work[name] for name in OTHER_WEIGHTS if name in work}
        state = {name: part for name, part in work.items() if name not in untouched}
        state = by_rows(pipe.axis, self.batches.data, self._row, state, read,
                        (self.batches.x, self.batches.y))
        state = self._exchanged(t, later, {**state, **{k: work[k] for k in work if k in untouched}})
        if not pipe.schedule.flushes:
            state = self._updated(t, later, tick, state)
        return {name: state[name] for name in work}

    def _at(self, table: np.ndarray, t: Any) -> Any:
        """Return what a table of ticks and stages says of a tick, in the order of rows."""
        return self.pipe.places.by_row(spmd.asarray(table)[t])

    def _slots(self, numbers: Any, slots: list[int]) -> Any:
        """Return the slots of microbatches, one of each stage, in the order of rows."""
        return numbers % self.pipe.places.by_row(np.array(slots))

    def _exist(self, microbatches: Any) -> Any:
        """Return which of these exist, counted from the first one of the cycle."""
        return (microbatches + self.first >= 0) & (microbatches + self.before < self.has)

    def _updated(self, t: Any, later: Any, tick: Any, work: Work) -> Work:
        """Update the stages whose gradients are all there."""
        schedule = self.pipe.schedule
        if isinstance(schedule.accumulate, str):
            every = int(schedule.accumulate.split()[0])
            now = as_array(self.first) // schedule.microbatches * self.cycle + tick + 1
            due = np.full(schedule.stages, 1) * (now % every) == 0
        else:
            k = self._at(self.tables.updates, t) + later
            due = self._exist(k)
            if self.tables.updates_each:
                due = due & ((k + self.first + 1) % schedule.accumulate == 0)
        if self.last is not None:
            due = due | (tick == self.last)
        return self.pipe.updates.due(work, due, self.batches.data)

    def _exchanged(self, t: Any, later: Any, work: Work) -> Work:
        """Hand activations to the next stage, cotangents to the one before."""
        kinds = self.tables.kinds
        for name, by, store, slots, table, goes in (
            ("activations", 1, "arrived", self.tables.received, self.tables.activations,
             kinds[:, :-1] == FORWARD),
            ("cotangents", -1, "returned", self.tables.returned, self.tables.cotangents,
             kinds[:, 1:] == BACKWARD),
        ):
            if len(self.pipe.stages) == 1 or not work[name]:
                continue
            work[name] = self.pipe.places.handed_on(
                work[name], by, self.batches.data, spmd.asarray(crossings(goes))[t])
            if store in work:
                arriving = self._at(table, t) + later
                there = self._exist(arriving)
                slot = np.where(there, self._slots(arriving + self.first, slots), -1)
                self._store(work, name, store, max(slots), slot)
        return work

    def _store(self, work: Work, name: str, store: str, most: int, slots: Any) -> None:
        """Put what has arrived where it waits: in the slot of each row, -1 where nothing has."""
        def row(j: Any, state: Any, read: Any, _: Any) -> None:
            def put() -> None:
                k = as_symbol(read["slots"][j], power=False) % most
                for dtype, ring in state.items():
                    ring[j, k, 0] = read["rows"][dtype][j, 0]

            spmd.cond(read["slots"][j] >= 0, put, lambda: None)

        work[store] = by_rows(self.pipe.axis, self.batches.data, row, work[store],
                              {"slots": slots, "rows": work[name]})

    def _row(self, j: Any, state: Any, read: Any, batches: Any) -> None:
        """Do what one stage does in a tick."""
        tables = self.tables
        bounds = {"received": max(tables.received), "returned": max(tables.returned),
                  "slots": self.slots, "crossing": max(tables.crossing), "positions": self.has}
        received, returned, slot, crossing, position = (
            as_symbol(read[name][j], power=False) % most for name, most in bounds.items())
        data = self.batches.data
        weights = {name: read[name] for name in ("weights", *OTHER_WEIGHTS) if name in read}
        if data is not None:
            weights = spmd.pvary(weights, data)
        action = StageAction(
            j, received, returned, slot, crossing, position, read["numbers"][j], read["streams"][j],
            read["examples"][j] if "examples" in read else 1, state, weights)
        arms: list[Any] = [lambda: None]
        for stage in self.code.unlike:
            arms.append(lambda s=stage: self._forward(s, action, batches))
            arms.append(lambda s=stage: self._backward(s, action))
            if self.code.parts:
                arms.append(lambda s=stage: self._weight_gradients(s, action))
        if "used" in state:
            begins = read["arms"][j] % self.kinds == FORWARD
            state["used"][j, slot] = np.where(begins, read["version"][j], state["used"][j, slot])
        spmd.switch(read["arms"][j], arms)

    def _forward(self, s: int, action: StageAction, batches: Any) -> None:
        """Do the forward pass of a stage."""
        code, last, state = self.code, self.pipe.stages[-1].number, action.state
        if s == 0:
            h = _microbatch(batches[0], action)
        else:
            where, index = (
                ("arrived", (action.row, action.received, 0))
                if "arrived" in state else ("activations", (action.row, 0)))
            h = code.handed(s - 1, code.activations.read(state[where], index, s - 1))
        part = 0 if self.batches.data is None else spmd.axis_index(self.batches.data)
        key = DropoutKey(action.stream, as_array(part).astype(np.int64))
        arguments = [h, key, *([_microbatch(batches[1], action)] if s == last else [])]
        out, kept = code.halves[s].forward(self._parameters(s, action), *arguments)
        code.kept.write(state["kept"], (action.row, action.slot, 0), s, kept)
        if s < last:
            code.activations.write(state["activations"], (action.row, 0), s, flatten(out)[1])
        else:
            self._check(out, action.number)
            state["loss"][action.row, 0, 0] += out * self._share()
            state["loss"][action.row, 0, 1] += action.weight

    def _share(self) -> Any:
        """Return what the loss on a rank counts in that of a microbatch: a mean, or a sum."""
        if self.batches.masked:
            return as_array(1.0).astype(self._loss_dtype())
        return (as_array(1.0) / as_array(self.batches.ranks)).astype(self._loss_dtype())

    def _check(self, loss: Any, number: Any) -> None:
        """End the run where the loss of a microbatch is NaN."""
        context, data = self.pipe.context, self.batches.data
        rank = () if data is None else (
            f", {data} rank ", as_value(context, spmd.axis_index(data)))
        step = as_value(context, number // self.pipe.schedule.microbatches)
        expect(context, as_value(context, loss == loss), "loss of microbatch ",
               as_value(context, number), " is NaN: step ", step, *rank)

    def _backward(self, s: int, action: StageAction) -> None:
        """Do the backward pass of a stage."""
        code, last, state = self.code, self.pipe.stages[-1].number, action.state
        kept = code.kept.read(state["kept"], (action.row, action.slot, 0), s)
        if s == last:
            cotangents = [self._share()]
        else:
            where, index = (
                ("returned", (action.row, action.returned, 0))
                if "returned" in state else ("cotangents", (action.row, 0)))
            cotangents = code.cotangents.read(state[where], index, s)
        own = self._backward_parameters(s, action)
        if code.parts:
            (slopes, *_), crosses = code.parts[s].of_arguments(own, kept, cotangents)
            code.crossing.write(state["crossing"], (action.row, action.crossing, 0), s, crosses)
        else:
            gradients, slopes, *_ = code.halves[s].backward(own, kept, cotangents)
            self._add(s, action, gradients)
        if s:
            code.cotangents.write(state["cotangents"], (action.row, 0), s - 1, slopes)

    def _weight_gradients(self, s: int, action: StageAction) -> None:
        """Find the gradients of the weights of a stage."""
        code, state = self.code, action.state
        kept = code.kept.read(state["kept"], (action.row, action.slot, 0), s)
        crosses = code.crossing.read(state["crossing"], (action.row, action.crossing, 0), s)
        own = self._backward_parameters(s, action)
        self._add(s, action, code.parts[s].of_weights(own, kept, crosses))

    def _parameters(self, s: int, action: StageAction) -> Any:
        """Return the parameters of a stage."""
        leaves = self.pipe.weights.read(action.weights["weights"], (action.row,), s)
        return self.pipe.updates.parameters(s, leaves)

    def _backward_parameters(self, s: int, action: StageAction) -> Any:
        """Return the parameters of a stage that B and W read."""
        packing, row, weights = self.pipe.weights, action.row, action.weights
        if "backward_weights" in weights:
            leaves = packing.read(weights["backward_weights"], (row,), s)
        elif "versions" in weights:
            used = as_symbol(action.state["used"][row, action.slot], power=False)
            leaves = packing.read(weights["versions"], (row,), s, used % self.pipe.versions)
        elif "changes" in weights:
            crossed = weights["version"][row] - action.state["used"][row, action.slot]
            leaves = [w - crossed.astype(w.dtype) * change for w, change in zip(
                packing.read(weights["weights"], (row,), s),
                packing.read(weights["changes"], (row,), s), strict=True)]
        else:
            return self._parameters(s, action)
        return self.pipe.updates.parameters(s, leaves)

    def _add(self, s: int, action: StageAction, slopes: Any) -> None:
        """Add gradients of the weights of a stage to those that it has."""
        if "count" in action.state:
            action.state["count"][action.row] += action.weight
        self.pipe.weights.add(action.state["gradients"], (action.row, 0), s, flatten(slopes)[1])

    def gradients(self, work: Work) -> Any:
        """Return the gradients of a step, (stage, position along the data axis, …)."""
        return work["gradients"]

    def loss(self, work: Work) -> Any:
        """Return the mean of the losses that came, NaN if none did."""
        sums = np.sum(work["loss"], axis=0)
        return np.sum(sums[:, 0]) / np.mean(sums[:, 1])


def _microbatch(tree: Any, action: StageAction) -> Any:
    return map_trees(lambda x: x[action.row, action.position], tree)
