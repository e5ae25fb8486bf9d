"""Axes of the mesh that split the weights of layers, and so the work in each stage.

In: functions of global arrays, captured once, whose weights lie over these axes. Out: Halves in the
view of one rank, which computes its part. Always holds: without such axes functions are captured in
a rank's view at once; other axes, of stages and of the data, are never crossed in a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import spmd
from codegen.graph.builder import Builder
from codegen.graph.clone import Copier
from codegen.ir.cuts import layout_of
from codegen.ir.graph import ArrayType, Input, Module, Op, Output, Region, Value, walk
from codegen.layouts.partition import partition
from codegen.mesh import Layout, LayoutEntry, Mesh
from codegen.ops import Branch, Exchange, Fold, Loop
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, local_type, not_given
from codegen.trace.context import Context
from codegen.trace.derive.dead_code import without_defined
from codegen.trace.derive.halves import Halves, capture_halves, reads_of
from codegen.trace.number import expr_of, number
from codegen.trace.ranks.mapping import laid
from codegen.trace.state import flatten
from spmd.optim.transformation import map_trees
from spmd.pipelining.flat_buffers import Packing
from spmd.pipelining.stage_places import StageRow


class SplitAxes:
    """The axes that split weights. entry: of the last dim of buffers, which has for each rank along
    them as much as the one with most needs."""

    def __init__(self, context: Context, weights: Any, others: Sequence[str]) -> None:
        """Find the axes that split weights. others: axes that split something else."""
        arrays = [x for x in flatten(weights)[1] if isinstance(x, Array)]
        named = {a for x in arrays for e in x.read().type.layout or () for a in e}
        axes = tuple(a for a in context.mesh.axes if a.name in named.difference(others))
        self.context, self.mesh = context, Mesh(axes)
        self.names = self.mesh.names
        self.entry: Any = (None, *self.names)[-1] if len(axes) < 2 else self.names

    def __bool__(self) -> bool:
        return bool(self.names)

    # ---- types

    def type_of(self, x: Any) -> ArrayType:
        """Return the type of an array, or that type without other axes than these: a local one
        where there are none."""
        own = x if isinstance(x, ArrayType) else as_array(x).read().type
        if not self:
            return ArrayType(own.dtype, own.shape)
        layout = tuple(self._kept(e) for e in own.layout or ((),) * own.ndim)
        return ArrayType(own.dtype, own.shape, layout)

    def _kept(self, entry: LayoutEntry) -> LayoutEntry:
        return tuple(a for a in entry if a in self.names)

    def types_of(self, tree: Any) -> Any:
        """Return the tree with types in the place of arrays."""
        return map_trees(self.type_of, tree)

    def local(self, types: Sequence[ArrayType]) -> list[ArrayType]:
        """Return the types of what a rank has of arrays."""
        return [local_type(self.mesh, t) if self else t for t in types]

    # ---- buffers

    def packing(self, stages: Sequence[Sequence[ArrayType]]) -> Packing:
        """Return where the leaves of each stage lie. stages: their types on a rank."""
        return Packing(stages, self.most)

    def most(self, e: Expr) -> Expr:
        """Return how many elements the first rank has, which is the most that any rank has."""
        return e.subst({a.coord_sym: expr.const(0) for a in self.mesh.axes})

    def extent(self, length: Any) -> Any:
        """Return the extent of an array of so many elements on each rank."""
        if not self:
            return length
        own = expr_of(length)
        assert own is not None, "a length is an integer, or a formula"
        return number(own * self.mesh.size(self.names))

    # ---- arrays of a stage, in and out of buffers

    def read(self, packing: Packing, buffers: Mapping[str, Any], row: StageRow, stage: int,
             types: Sequence[ArrayType]) -> list[Array]:
        """Return the leaves of a stage as global arrays, of its row of each buffer (stage, …)."""
        if not self:
            return packing.read(buffers, (row.number,), stage)

        def local(*arrays: Any) -> Any:
            def copy(j: Any, leaves: Any) -> Any:
                own = packing.read(dict(zip(buffers, arrays)), (row.position,), stage)
                for leaf, x in zip(leaves, own):
                    leaf[j] = x
                return leaves

            leaves = spmd.fori_loop(0, row.has, copy, tuple(
                spmd.empty((row.has, *shape), name) for name, *_, shape in packing.places[stage]))
            return tuple(map(row.merged, leaves, types))

        mapped = spmd.shard_map(local, check_vma=False,
                                out_layouts=tuple(_spec(row.home(t)) for t in types))
        parts = mapped(*buffers.values()) if types else ()
        return [laid(x, _layout(t)) for x, t in zip(parts, types)]

    def write(self, packing: Packing, buffers: dict[str, Any], row: StageRow, stage: int,
              leaves: Mapping[int, Any], types: Sequence[ArrayType]) -> None:
        """Write some leaves of a stage, global arrays by their numbers, into its row of each buffer
        (stage, …)."""
        if not self:
            for k, leaf in leaves.items():
                buffer, where = packing.part(buffers, (row.number,), stage, k)
                buffer[where] = leaf.reshape(-1)
            return

        def local(*operands: Any) -> Any:
            own = [row.apart(x, types[k]) for k, x in zip(leaves, operands[len(buffers):])]

            def copy(j: Any, arrays: Any) -> Any:
                for k, leaf in zip(leaves, own):
                    buffer, where = packing.part(
                        dict(zip(buffers, arrays)), (row.position,), stage, k)
                    buffer[where] = leaf[j].reshape(-1)
                return arrays

            return spmd.fori_loop(0, row.has, copy, operands[:len(buffers)])

        mapped = spmd.shard_map(local, out_layouts=tuple(x.layout for x in buffers.values()))
        parts = [laid(x, row.home(types[k])) for k, x in leaves.items()]
        if parts:
            buffers |= dict(zip(buffers, mapped(*buffers.values(), *parts)))

    # ---- code

    def halves(
        self, f: Callable[..., Any], weights: Any, arguments: Sequence[Any],
        wanted: Sequence[bool], backward: bool = True, outs: Sequence[ArrayType] | None = None,
        whole: bool = False,
    ) -> tuple[Halves, Sequence[ArrayType]]:
        """Return the halves of f(weights, *arguments) on one rank, and the types of what f returns
        as global arrays. weights, arguments: trees of types, as of type_of. wanted, backward: as of
        capture_halves. outs: how what f returns lies; None: as it is computed, or, where that is to
        be whole, on each rank."""
        halves = capture_halves(self.context, f, weights, arguments, wanted, backward,
                                local=not self)
        if not self:
            return halves, halves.out_types
        _check_arguments(halves)
        outs = outs or [_whole(v.type) if whole else v.type for v in halves.outs]
        slopes = [v.type for v in halves.weights]
        for tree, count in zip(arguments, halves.wanted):
            slopes += [t for t in flatten(tree)[1] if t.dtype.kind in "fc"] if count else []
        own, ahead, results = self._partitioned(
            halves.ahead, halves.weights + halves.arguments, halves.outs + halves.kept,
            [*outs, *(v.type for v in halves.kept)])
        weights, arguments = own[:len(halves.weights)], own[len(halves.weights):]
        outs_made, kept = results[:len(outs)], results[len(outs):]
        known, later, gradients = self._partitioned(
            halves.later, halves.weights + halves.kept + halves.cotangents, halves.gradients,
            slopes if backward else [])
        instead = Copier(self.context.unique, dict(zip(known, (*weights, *kept))), {})
        return replace(
            halves, weights=weights, arguments=arguments, outs=outs_made, kept=kept,
            cotangents=known[len(weights) + len(kept):], ahead=tuple(ahead),
            later=tuple(instead.ops(later)),
            gradients=tuple(map(instead.of, gradients))), outs

    def _partitioned(
        self, ops: Sequence[Op], names: Sequence[Value], results: Sequence[Value],
        types: Sequence[ArrayType],
    ) -> tuple[tuple[Value, ...], Sequence[Op], tuple[Value, ...]]:
        """Return what a rank has of named arrays, the ops that compute its part of the results, and
        these. types: how the results lie."""
        inputs = tuple(Input(v, layout_of(v), v.type.shape) for v in names)
        body = without_defined(Region((), tuple(ops), tuple(results)))
        outputs = tuple(Output(str(k), v, _layout(t), v.type.shape)
                        for k, (v, t) in enumerate(zip(body.results, types, strict=True)))
        program = partition(Module("layer", "graph", self.mesh, (), (), inputs,
                                   replace(body, results=()), outputs))
        return (tuple(i.value for i in program.inputs), self._uniform_region(program.body).ops,
                tuple(o.value for o in program.outputs))

    def _uniform_region(self, region: Region) -> Region:
        """Return a region in which ranks that exchange inside a branch or a loop take the same arm
        and the same number of turns. The condition is equal on all of them already; it is folded
        over them so that the compiler sees that."""
        work = Builder()

        def agreed(value: Value) -> Value:
            fn = "or" if value.type.dtype.kind == "b" else "max"
            return work.emit(Fold(self.names, fn), (value,))

        for op in region.ops:
            op = op.mapped(self._uniform_region)
            meet = any(isinstance(o.kind, Exchange) for r in op.regions for o in walk(r))
            if meet and isinstance(op.kind, Branch) and op.kind.on is None:
                op = replace(op, operands=tuple(map(agreed, op.operands)))
            elif meet and isinstance(op.kind, Loop) and len(op.regions) > 1:
                test, body = op.regions
                with work.inside() as ops:
                    work.ops += test.ops
                    results = tuple(map(agreed, test.results))
                op = replace(op, regions=(Region(test.args, tuple(ops), results), body))
            work.ops.append(op)
        return region.with_ops(work.ops)


def _check_arguments(halves: Halves) -> None:
    """Raise ProgramError where the code reads what is not among its arguments."""
    known = {*halves.weights, *halves.arguments, *halves.cotangents}
    for op in (*halves.ahead, *halves.later):
        for value in reads_of(op):
            if value not in known:
                raise not_given(value, op.place)
        known.update(op.results)
    for value in (*halves.outs, *halves.gradients):
        if value not in known:
            raise not_given(value)


def _layout(t: ArrayType) -> Layout:
    return t.layout or ((),) * t.ndim


def _spec(layout: Layout) -> tuple[Any, ...]:
    """Return a layout as users write it."""
    return tuple(entry or None for entry in layout)


def _whole(t: ArrayType) -> ArrayType:
    return replace(t, layout=((),) * t.ndim)
