"""Ticks of a pipeline: in each, a stage does one action; then neighbours hand on what it gave.

In: the code of the stages, a batch. Out: what is in flight after a tick, arrays with a row for each
stage. Always holds: what a tick hands on is read in a later tick.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import spmd
from codegen.errors import ShapeError
from codegen.ir import ArrayType
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, as_value
from codegen.trace.control.letting import as_symbol
from codegen.trace.expecting import expect
from codegen.trace.number import expr_of
from codegen.trace.state import fill, flatten
from spmd.pipelining.stage_code import StageCode
from spmd.pipelining.stage_rows import by_rows, crossings, handed_on
from spmd.pipelining.tick_tables import BACKWARD, FORWARD, IDLE

if TYPE_CHECKING:
    from spmd.pipelining.training_pipeline import TrainingPipeline

Work = dict[str, Any]


@dataclass(frozen=True)
class Microbatches:
    """A batch as microbatches: x and y, trees of arrays (microbatch, example, …).

    data: the mesh axis that splits the examples, and how many ranks lie along it. x_types, y_types:
    trees of the types of one microbatch on a rank.
    """

    x: Any
    y: Any
    data: str | None
    ranks: Any
    x_types: Any
    y_types: Any

    @classmethod
    def of(cls, pipe: TrainingPipeline, x: Any, y: Any, count: int) -> Microbatches:
        """Return a batch cut into so many microbatches."""
        tree, leaves = flatten((x, y))
        arrays = [as_array(leaf) for leaf in leaves]
        batch = int(arrays[0].shape[0])
        if batch % count or not batch:
            fits = [k for k in range(1, batch + 1) if batch % k == 0]
            near = sorted(sorted(fits, key=lambda k: abs(k - count))[:2])
            raise ShapeError(
                f"{count} microbatches of a batch of {batch} examples", place=user_place(),
                expected="parts that are equal",
                remedy=f"microbatches={' or '.join(map(str, near))}, or another batch")
        data = _data_axis(arrays[0], 0, pipe.axis)
        parts = [a.reshape(count, batch // count, *a.shape[1:]) for a in arrays]
        parts = [a.relayout(batch_layout(data, a.ndim)) for a in parts]
        x, y = fill(tree, iter(parts), fresh=True)
        return cls.in_flight(pipe, x, y)

    @classmethod
    def in_flight(cls, pipe: TrainingPipeline, x: Any, y: Any) -> Microbatches:
        """Return microbatches (microbatch, example, …), laid out as batch_layout says."""
        tree, parts = flatten((x, y))
        data = _data_axis(parts[0], 1, pipe.axis)
        size, ranks = int(parts[0].shape[1]), 1
        if data is not None:
            ranks = spmd.axis_size(data)
            spmd.require(ranks <= size, f"each rank along {data} has examples of a microbatch")
            spmd.require(size % ranks == 0, f"the ranks along {data} share a microbatch equally")
        own = size if data is None else expr.floordiv(expr.const(size), expr_of(ranks))
        types = [ArrayType(a.type.dtype, (expr.as_expr(own), *a.type.shape[2:])) for a in parts]
        x_types, y_types = fill(tree, iter(types), fresh=True)
        return cls(x, y, data, ranks, x_types, y_types)

    def but(self, x: Any, y: Any) -> Microbatches:
        """Return other microbatches of the same types."""
        return replace(self, x=x, y=y)


def batch_layout(data: str | None, ndim: int) -> tuple[Any, ...]:
    """Return the layout of microbatches (microbatch, example, …)."""
    return (None, data, *(None,) * (ndim - 2))


def _data_axis(x: Array, dim: int, axis: str) -> str | None:
    entry = (x.type.layout or ((),) * x.ndim)[dim]
    names = [entry] if isinstance(entry, str) else list(entry or ())
    return next((name for name in names if name != axis), None)


class Ticks:
    """Ticks that follow each other, from the first one of a cycle.

    batches: those of earlier steps in flight, and then a new one, or none. before: how many
    microbatches there are of earlier steps. first: the number of the first microbatch of the cycle,
    counted from the beginning: 0, or an array. earlier: how many there were before that beginning.
    """

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
        self.unlike = sorted(set(code.like))
        self.cycle = len(self.tables.kinds)
        self.has = flatten(batches.x)[1][0].shape[0]  # microbatches

    def run(self, work: Work, count: int, last: bool = False) -> Work:
        """Return what is in flight after so many ticks. last: all stages are updated in the last
        one, by the gradients that they have."""
        self.last = count - 1 if last else None
        done: Work = spmd.fori_loop(0, count, self.tick, work)
        return done

    def begin(self, state: Any) -> Work:
        """Return what is in flight before the first tick: nothing."""
        pipe, code, ranks = self.pipe, self.code, self.batches.ranks
        data = self.batches.data
        made = {
            "gradients": pipe.new(pipe.weights, (ranks,), (data,)),
            "kept": pipe.new(code.kept, (self.slots, ranks), (None, data), spmd.empty),
            "activations": pipe.new(code.activations, (ranks,), (data,), spmd.empty),
            "cotangents": pipe.new(code.cotangents, (ranks,), (data,), spmd.empty),
            "loss": self.no_loss(),
        }
        if self.tables.waits[0]:
            made["arrived"] = pipe.new(code.activations, (self.tables.received, ranks),
                                       (None, data), spmd.empty)
        if self.tables.waits[1]:
            made["returned"] = pipe.new(code.cotangents, (self.tables.returned, ranks),
                                        (None, data), spmd.empty)
        if not pipe.schedule.flushes:
            made["count"] = spmd.zeros((len(pipe.stages),), np.int32, layout=(pipe.axis,))
        if pipe.versions > 1:
            made |= self._versions(state["weights"])
        return {**made, **state}

    def _versions(self, weights: Any) -> Work:
        """Return the weights that backward passes read: of each stage a row of versions, which of
        them is the newest one, and of each slot the one that the forward pass has read."""
        pipe, stages = self.pipe, len(self.pipe.stages)
        return {
            "versions": {name: np.concatenate([w] * pipe.versions, axis=1)
                         for name, w in weights.items()},
            "version": spmd.zeros((stages,), np.int64, layout=(pipe.axis,)),
            "used": spmd.zeros((stages, self.slots), np.int64, layout=(pipe.axis, None)),
        }

    def no_loss(self) -> Any:
        """Return the sum and the number of the losses that come in a step, on each rank: none."""
        return spmd.zeros((len(self.pipe.stages), self.batches.ranks, 2), self._loss_dtype(),
                          layout=(self.pipe.axis, self.batches.data, None))

    def _loss_dtype(self) -> Any:
        return self.code.halves[-1].out_types[0].dtype.name

    def tick(self, tick: Any, work: Work) -> Work:
        """Return what is in flight after a tick, counted from the first one of the cycle."""
        tables, pipe = self.tables, self.pipe
        t, later = tick % self.cycle, tick // self.cycle * pipe.schedule.microbatches
        own = spmd.asarray(tables.microbatches)[t] + later
        numbers = 2 * np.searchsorted(self.unlike, self.code.like)
        arms = spmd.asarray(np.where(tables.kinds == IDLE, 0, numbers + tables.kinds))[t]
        if not pipe.schedule.flushes:
            arms = np.where(self._there(own), arms, 0)
        number = np.maximum(own + self.first, 0)
        read = {"arms": arms, "numbers": number + self.earlier, "microbatches": number,
                "slots": number % np.array(tables.slots),
                "positions": np.clip(own + self.before, 0, self.has - 1),
                "weights": work["weights"]}
        apart = {"weights", "moments", "versions", "version"}
        read |= {name: work[name] for name in ("versions", "version") if name in work}
        state = {name: part for name, part in work.items() if name not in apart}
        state = by_rows(pipe.axis, self.batches.data, self._row, state, read,
                        (self.batches.x, self.batches.y))
        state = self._exchanged(t, later, {**state, **{k: work[k] for k in work if k in apart}})
        if not pipe.schedule.flushes:
            state = self._updated(t, later, tick, state)
        return {name: state[name] for name in work}

    def _there(self, microbatches: Any) -> Any:
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
            k = spmd.asarray(self.tables.updates)[t] + later
            due = self._there(k)
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
            work[name] = handed_on(self.pipe.axis, self.batches.data, by, work[name],
                                   spmd.asarray(crossings(goes))[t])
            if store in work:
                arriving = spmd.asarray(table)[t] + later
                there = self._there(arriving)
                arriving = np.where(there, arriving + self.first, -1)
                self._store(work, name, store, slots, arriving)
        return work

    def _store(self, work: Work, name: str, store: str, slots: int, arriving: Any) -> None:
        """Put what has arrived where it waits."""
        def row(j: Any, state: Any, read: Any, _: Any) -> None:
            def put() -> None:
                k = as_symbol(read["arriving"][j]) % slots
                for dtype, ring in state.items():
                    ring[j, k, 0] = read["rows"][dtype][j, 0]

            spmd.cond(read["arriving"][j] >= 0, put, lambda: None)

        work[store] = by_rows(self.pipe.axis, self.batches.data, row, work[store],
                              {"arriving": arriving, "rows": work[name]})

    def _row(self, j: Any, state: Any, read: Any, batches: Any) -> None:
        """What one stage does in a tick."""
        k, slot, position = (as_symbol(read[name][j]) % most for name, most in (
            ("microbatches", self.tables.received * self.tables.returned), ("slots", self.slots),
            ("positions", self.has)))
        data = self.batches.data
        weights, versions = read["weights"], read.get("versions")
        if data is not None:
            weights, versions = spmd.pvary((weights, versions), data)
        arms: list[Any] = [lambda: None]
        for stage in self.unlike:
            arms.append(lambda s=stage: self._forward(
                s, (j, k, slot), state, weights, batches, (position, read["numbers"][j])))
            arms.append(lambda s=stage: self._backward(
                s, (j, k, slot), state, weights if versions is None else versions))
        if versions is not None:
            state["used"][j, slot] = np.where(
                read["arms"][j] % 2 == 1, read["version"][j], state["used"][j, slot])
        spmd.switch(read["arms"][j], arms)

    def _own(self, stage: int, j: Any, weights: Any, version: Any = 0) -> Any:
        return self.pipe.updates.parameters(
            stage, self.pipe.weights.read(weights, (j,), stage, version))

    def _forward(self, s: int, at: tuple[Any, Any, Any], state: Any, weights: Any, batches: Any,
                 which: tuple[Any, Any]) -> None:
        """Do the forward pass of a stage. at: its row, its microbatch, and the slot of that. which:
        where that lies in the batches, and its number, for messages."""
        (j, k, slot), (position, number) = at, which
        code, last = self.code, self.pipe.stages[-1].number
        if s == 0:
            h = _microbatch(batches[0], position)
        else:
            where, index = (("arrived", (j, k % self.tables.received, 0)) if "arrived" in state
                            else ("activations", (j, 0)))
            h = code.handed(s - 1, code.activations.read(state[where], index, s - 1))
        given = [h, _microbatch(batches[1], position)] if s == last else [h]
        out, kept = code.halves[s].forward(self._own(s, j, weights), *given)
        code.kept.write(state["kept"], (j, slot, 0), s, kept)
        if s < last:
            code.activations.write(state["activations"], (j, 0), s, flatten(out)[1])
        else:
            self._check(out, number)
            state["loss"][j, 0, 0] += out
            state["loss"][j, 0, 1] += 1

    def _check(self, loss: Any, number: Any) -> None:
        """End the run where the loss of a microbatch is NaN."""
        context, data = self.pipe.context, self.batches.data
        rank = () if data is None else (
            f", {data} rank ", as_value(context, spmd.axis_index(data)))
        step = as_value(context, number // self.pipe.schedule.microbatches)
        expect(context, as_value(context, loss == loss), "loss of microbatch ",
               as_value(context, number), " is NaN: step ", step, *rank)

    def _backward(self, s: int, at: tuple[Any, Any, Any], state: Any, weights: Any) -> None:
        """Do the backward pass of a stage. at: as of _forward."""
        j, k, slot = at
        code, last = self.code, self.pipe.stages[-1].number
        kept = code.kept.read(state["kept"], (j, slot, 0), s)
        if s == last:
            t, ranks = code.halves[s].out_types[0], self.batches.ranks
            cotangents = [(as_array(1.0) / as_array(ranks)).astype(t.dtype.name)]
        else:
            where, index = (("returned", (j, k % self.tables.returned, 0)) if "returned" in state
                            else ("cotangents", (j, 0)))
            cotangents = code.cotangents.read(state[where], index, s)
        version = as_symbol(state["used"][j, slot]) % self.pipe.versions if "used" in state else 0
        found = code.halves[s].backward(self._own(s, j, weights, version), kept, cotangents)
        if "count" in state:
            state["count"][j] += 1
        self.pipe.weights.add(state["gradients"], (j, 0), s, flatten(found[0])[1])
        if s:
            code.cotangents.write(state["cotangents"], (j, 0), s - 1, flatten(found[1])[1])

    def summed(self, gradients: Any) -> Any:
        """Return gradients summed over the ranks along the data axis."""
        return {name: g[:, 0] if self.batches.data is None else np.sum(g, axis=1)
                for name, g in gradients.items()}

    def loss(self, work: Work) -> Any:
        """Return the mean of the losses that came, NaN if none did."""
        sums = np.sum(np.mean(work["loss"], axis=1), axis=0)
        return sums[0] / sums[1]


def _microbatch(tree: Any, k: Any) -> Any:
    shape, leaves = flatten(tree)
    return fill(shape, iter([x[k] for x in leaves]), fresh=True)
