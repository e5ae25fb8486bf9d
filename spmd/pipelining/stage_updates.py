"""Updates of stages: each stage's parameters by the gradients of its own microbatches.

Always holds: an optimizer sees the parameters of a stage as a list, one tree for each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

import spmd
from codegen.errors import UsageError
from codegen.graph.layout_propagation import met
from codegen.ir.graph import ArrayType
from codegen.places import user_place
from codegen.trace.array import Array, as_array, as_value, wrap
from codegen.trace.context import require_context
from codegen.trace.control.letting import as_symbol
from codegen.trace.derive.halves import Halves
from codegen.trace.state import Tree, fill, flatten
from spmd.optim.transformation import (
    apply_updates,
    in_type,
    leaves_of,
    sums_of_parts,
)
from spmd.pipelining.shared_weights import SharedWeights
from spmd.pipelining.split_axes import SplitAxes
from spmd.pipelining.stage_code import kind_of
from spmd.pipelining.stage_rows import by_rows

if TYPE_CHECKING:
    from spmd.pipelining.training_pipeline import State, TrainingPipeline

# PipeMare's D: how much an average change has of what was before all updates that are crossed.
DECAY = float(np.exp(-2))


class Updates:
    """The optimizer of a pipeline. moments: the packing of its states."""

    def __init__(self, pipe: TrainingPipeline, optimizer: Any) -> None:
        self.pipe, self.optimizer = pipe, optimizer
        self.shared = SharedWeights(pipe.stages, pipe.schedule.flushes)
        self._captured: dict[Any, Halves] = {}
        self.trees: list[Tree] = []
        self.wide = np.float64 if "float64" in pipe.weights.lengths else np.float32
        sums = _Sums(None, pipe.schedule.flushes, self.wide)
        self.types: list[list[ArrayType]] = []  # of the arrays of its state, by stage
        for stage in pipe.stages:
            tree, types = _state_of(pipe.split, optimizer, stage.types, sums)
            self.trees.append(tree)
            self.types.append(types)
        self.moments = pipe.split.packing(list(map(pipe.split.local, self.types)))
        kinds = [(kind_of(s.types), self.shared.kind(s.number)) for s in pipe.stages]
        self.unlike = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
        self.arms = [list(dict.fromkeys(kinds)).index(kind) for kind in kinds]
        # of the average change, by stage: the shorter, the fewer updates a microbatch crosses
        self.decays = [DECAY ** (1 / max(1, pipe.schedule.crossed(s.number))) for s in pipe.stages]
        self.sums = max(sums.calls) if sums.calls else 0
        if self.sums and not pipe.schedule.flushes:
            raise UsageError(
                "the optimizer reads the norm of all stages' gradients, and each stage is updated "
                "by itself", place=user_place(),
                expected="an optimizer that reads a stage's own gradients, or a schedule that "
                "flushes", remedy='schedule="1f1b", or spmd.optim.clip_by_block_rms in the place '
                "of clip_by_global_norm")

    def parameters(self, stage: int, leaves: Any) -> Any:
        """Return the parameters of a stage as a list of trees."""
        return fill(flatten(self.pipe.stages[stage].parameters)[0], iter(leaves), fresh=True)

    def by_stage(self, body: Callable[..., None], state: Any, read: Any, data: str | None = None,
                 due: Any = None) -> Any:
        """Return `state` after body(stage, j, state, read) for each row j, of the first stage that
        is like the one there. state, read, data: as of by_rows. due: bool (row,), which rows body
        is called for; None for all of them."""
        arms = self.pipe.places.by_row(np.array(self.arms))
        others: list[Callable[[], None]] = []
        if due is not None:
            arms, others = np.where(due, arms + 1, 0), [lambda: None]

        def row(j: Any, state: Any, read: Any, _: Any) -> None:
            spmd.switch(read["arms"][j], [*others, *(
                lambda s=s: body(s, j, state, read["read"]) for s in self.unlike)])

        if not state:
            return state
        return by_rows(self.pipe.axis, data, row, state, {"arms": arms, "read": read})

    def init(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return the buffers of the optimizer's first states."""
        def first(own: Any) -> Any:
            return [as_array(x) for x in flatten(self.optimizer.init(own))[1] if _is_array(x)]

        def begin(stage: int, j: Any, moments: Any, weights: Any) -> None:
            halves, _ = self.pipe.split.halves(first, self.pipe.stages[stage].types, (), (),
                                               backward=False, outs=self.types[stage])
            own = self.parameters(stage, self.pipe.weights.read(weights, (j,), stage))
            self.moments.write(moments, (j,), stage, halves.forward(own)[0])

        buffers: dict[str, Any] = self.by_stage(begin, self.pipe.new(self.moments, ()), weights)
        return buffers

    def zeros(self, between: tuple[Any, ...] = (), data: str | None = None) -> dict[str, Any]:
        """Return buffers with zeros for all weights. between: dims before them, of extent 1 on a
        rank: how many ranks the axis `data` has."""
        layout = (data,) if between else ()
        return self.cleared(self.pipe.new(self.pipe.weights, between, layout), data)

    def cleared(self, buffers: dict[str, Any], data: str | None = None) -> dict[str, Any]:
        """Return buffers like these with zeros for all weights."""
        between = next(iter(buffers.values())).ndim - 2

        def clear(stage: int, j: Any, buffers: Any, _: Any) -> None:
            self.pipe.weights.clear(buffers, (j, *(0,) * between), stage)

        result: dict[str, Any] = self.by_stage(clear, buffers, {}, data)
        return result

    def added(self, buffers: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
        """Return the sums of gradients, and of others."""
        def add(stage: int, j: Any, buffers: Any, more: Any) -> None:
            weights = self.pipe.weights
            weights.add(buffers, (j,), stage, weights.read(more, (j,), stage))

        result: dict[str, Any] = self.by_stage(add, buffers, more)
        return result

    def summed(self, gradients: dict[str, Any], data: str | None) -> dict[str, Any]:
        """Return gradients (stage, position along the data axis, …) summed over these ranks."""
        if data is None:
            return {name: g[:, 0] for name, g in gradients.items()}

        def sum_up(stage: int, j: Any, sums: Any, gradients: Any) -> None:
            for name, end in self.pipe.weights.ends[stage].items():
                sums[name][j, :end] = spmd.psum(gradients[name][j, 0, :end], data)

        result: dict[str, Any] = self.by_stage(
            sum_up, self.pipe.new(self.pipe.weights, ()), gradients, data)
        return result

    def versions(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return rows of as many versions as there are, all of them these weights."""
        pipe = self.pipe

        def copy(stage: int, j: Any, versions: Any, weights: Any) -> None:
            for number in range(pipe.versions):
                self._put_version(stage, j, versions, number, weights)

        rows = pipe.new(pipe.weights, (), times=pipe.versions)
        result: dict[str, Any] = self.by_stage(copy, rows, weights)
        return result

    def all_stages(self, state: State, gradients: dict[str, Any], count: Any) -> State:
        """Return the state after an update of all stages by the mean of so many gradients."""
        gradients = self.shared.summed_across(self.pipe, gradients)
        pipe, factor, stages = self.pipe, 1 / count, len(self.pipe.stages)
        read: dict[str, Any] = {"gradients": gradients, "sums": {}}

        def updated(stage: int, j: Any, state: State, read: Any, call: int | None = None) -> Any:
            slopes = pipe.weights.read(read["gradients"], (j,), stage)
            known = [x[j] for x in read["sums"].values()]
            return self._updated(stage, j, state, slopes, factor, known, call)

        for call in range(self.sums):  # one that follows from another one is known after it
            def sum_up(stage: int, j: Any, sums: Any, read: Any, call: int = call) -> None:
                sums["own"][j] = updated(stage, j, read["state"], read, call)

            rows = spmd.ones((stages,), layout=(pipe.axis,))
            sums = self.by_stage(sum_up, {"own": 0 * rows}, {**read, "state": state})
            every = sums["own"].relayout((None,))  # added in the order of stages on any ranks
            total = sum((every[pipe.places.row(s)] for s in range(stages)), as_array(0.0))
            read["sums"] = {**read["sums"], str(call): total * rows}

        def update(stage: int, j: Any, state: State, read: Any) -> None:
            self._keep(stage, j, state, updated(stage, j, state, read))

        done: State = self.by_stage(update, state, read)
        return done

    def due(self, state: State, due: Any, data: str | None) -> State:
        """Return the state after updates of the stages that are due, by the mean of the gradients
        that each has; these are cleared. Ranks along the data axis sum up those that are due."""
        changed = ("weights", "moments", "gradients", "count", "versions", "changes", "version")
        weights = self.pipe.weights

        def update(stage: int, j: Any, state: State, read: Any) -> None:
            ends = weights.ends[stage]
            sums = {name: state["gradients"][name][j, 0, :end] for name, end in ends.items()}
            if data is not None:
                sums = {name: spmd.psum(g, data) for name, g in sums.items()}
            new = self._updated(stage, j, state, weights.read(sums, (), stage),
                                1 / state["count"][j].astype(np.float64))
            before = {name: state["weights"][name][j, :ends[name]].copy()
                      for name in state.get("changes", ()) if name in ends}
            self._keep(stage, j, state, new)
            if "versions" in state:
                self._keep_version(stage, j, state)
            elif "changes" in state:
                self._average_change(j, state, before, read["decays"][j])
            weights.clear(state["gradients"], (j, 0), stage)
            state["count"][j] = 0

        def updates(part: State) -> State:
            decays = self.pipe.places.by_row(np.array(self.decays))
            done: State = self.by_stage(update, part, {"decays": decays}, data,
                                        due & (part["count"] > 0))
            return done

        part = {name: state[name] for name in changed if name in state}
        return {**state, **spmd.cond(np.any(due), updates, lambda part: part, part)}

    def _updated(self, stage: int, j: Any, state: State, slopes: Sequence[Any], factor: Any,
                 known: Sequence[Any] = (), call: int | None = None) -> Any:
        """Return the parameters of a stage, whose row is j, and the arrays of the optimizer's
        state, updated by `factor` times the gradients.

        known: what calls of `sums_of_parts` sum up over all stages. call: of which the stage's own
        part is returned instead.
        """
        weights = self.pipe.weights
        arguments = (weights.read(state["weights"], (j,), stage),
                 list(slopes), self.moments.read(state["moments"], (j,), stage),
                 as_array(factor), list(known))
        key = stage, call, len(known)
        if key not in self._captured:
            own = self.pipe.types[stage]
            types = own, own, self.types[stage], *self.pipe.split.types_of(arguments[3:])
            self._captured[key], _ = self.pipe.split.halves(
                lambda arguments: self._update(stage, call, *arguments), types, (), (),
                backward=False, outs=None if call is not None else [*own, *self.types[stage]])
        return self._captured[key].forward(arguments)[0]

    def _update(self, stage: int, call: int | None, own: Any, slopes: Any, moments: Any,
                factor: Any, known: Any) -> Any:
        """Compute what _updated returns."""
        slopes = self.shared.summed_within(stage, [g * in_type(factor, g.dtype) for g in slopes])
        own = self.parameters(stage, own)
        sums = _Sums(self.shared, self.pipe.schedule.flushes, self.wide, stage, known)
        with sums.asked():
            changes, after = self.optimizer.update(
                self.parameters(stage, slopes), self._state(moments, stage), own)
        if call is not None:
            return sums.own[call].astype(np.float64)
        arrays = [as_array(x) for x in flatten(after)[1] if _is_array(x)]
        return flatten(apply_updates(own, changes))[1], arrays

    def _keep(self, stage: int, j: Any, state: State, new: Any) -> None:
        """Write the weights and the optimizer's state that `_updated` returns into their
        buffers."""
        self.pipe.weights.write(state["weights"], (j,), stage, new[0])
        self.moments.write(state["moments"], (j,), stage, new[1])

    def _keep_version(self, stage: int, j: Any, state: State) -> None:
        """Put new weights behind those that backward passes still read."""
        new = (state["version"][j] + 1) % self.pipe.versions
        state["version"][j] = new
        self._put_version(stage, j, state["versions"],
                          as_symbol(new, power=False) % self.pipe.versions, state["weights"])

    def _put_version(self, stage: int, j: Any, versions: Any, number: Any, weights: Any) -> None:
        """Write the weights of a stage, whose row is j, as the version with this number."""
        for name, end in self.pipe.weights.ends[stage].items():
            begin = number * self.pipe.weights.lengths[name]
            versions[name][j, begin:begin + end] = weights[name][j, :end]

    def _average_change(self, j: Any, state: State, before: Any, decay: Any) -> None:
        """Take an update into the average change of the weights."""
        state["version"][j] += 1
        for name, old in before.items():
            average, end = state["changes"][name], old.shape[0]
            kept = decay.astype(average.dtype)
            change = state["weights"][name][j, :end] - old
            average[j, :end] = kept * average[j, :end] + (1 - kept) * change

    def _state(self, moments: Sequence[Any], stage: int) -> Any:
        """Return the optimizer's state of a stage, of its arrays."""
        leaves = iter(moments)
        tree = self.trees[stage]
        full = [next(leaves) if _is_array(x) else x for x in flatten(tree.value)[1]]
        return fill(tree, iter(full), fresh=True)


def _is_array(x: Any) -> bool:
    return isinstance(x, (Array, np.ndarray, np.generic))


class _Sums:
    """Answers an optimizer that asks for sums over all stages, such as a norm, while it is captured
    with the part of one stage.

    known: the sums over all stages, by call. own: those over this stage's part. calls: how often
    each optimizer sums up something. flushes: whether all stages are updated in the same moment;
    else a stage answers by itself what it can. wide: the element type in which stages read a sum.
    """

    def __init__(self, shared: SharedWeights | None, flushes: bool, wide: Any, stage: int = 0,
                 known: Any = ()) -> None:
        self.shared, self.flushes, self.stage, self.known = shared, flushes, stage, known
        self.wide = wide
        self.own: list[Any] = []
        self.calls: list[int] = []
        self.depth = 0  # of open blocks, where the optimizer is called

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Answer what the optimizer sums up while this block is open."""
        token = sums_of_parts.set(self._sum)
        self.own, self.depth = [], len(require_context("spmd.pipeline").blocks)
        try:
            yield
        finally:
            sums_of_parts.reset(token)
            self.calls.append(len(self.own))

    def _sum(self, updates: Any, of: Callable[[Any], Any], needs_all: bool) -> Any:
        """Return the sum of `of` over the leaves of all stages' updates; of this stage's alone
        where it is not known yet, or where stages do not wait for each other and need not."""
        parts = [of(x).astype(np.float64) for k, x in enumerate(leaves_of(updates))
                 if self.shared is None or (self.stage, k) not in self.shared.later]
        total = reduce(lambda a, b: a + b, parts, as_array(0.0))
        if not needs_all and not self.flushes:
            return total.astype(self.wide)
        if len(require_context("spmd.pipeline").blocks) > self.depth:  # others may not call it
            raise UsageError(
                "the optimizer reads all stages' gradients, as for their norm, in some of its "
                "steps only", place=user_place(),
                expected="clip_by_global_norm, or apply_if_finite, around what makes some steps "
                "only, as MultiSteps and apply_if_finite do, and not in it",
                remedy="accumulate=… of spmd.pipeline in the place of MultiSteps")
        call = len(self.own)
        self.own.append(total)
        return (self.known[call] if call < len(self.known) else total).astype(self.wide)


def _state_of(split: SplitAxes, optimizer: Any, parameters: Any, sums: _Sums
              ) -> tuple[Tree, list[ArrayType]]:
    """Return the structure of the optimizer's state of a stage, and the types of its arrays.
    parameters: types. What an array begins with lies anyhow, so it lies as after an update."""
    tree, types = flatten(parameters)
    context = split.context
    view, context.rank_view = context.rank_view, 0 if split else context.rank_view + 1
    try:
        with context.block(types) as block:
            block.apart = True
            own = fill(tree, iter([wrap(context, v) for v in block.args]), fresh=True)
            state = optimizer.init(own)
            state_tree, leaves = flatten(state)
            arrays = [as_value(context, x) for x in leaves if _is_array(x)]
            with sums.asked():
                after = flatten(optimizer.update(own, state, own)[1])[1]
            later = [as_value(context, x) for x in after if _is_array(x)]
    finally:
        context.rank_view = view
    return state_tree, [split.type_of(met(a.type, b.type)) for a, b in zip(arrays, later)]
