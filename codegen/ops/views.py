"""Ops that show the elements of an array at other indices, with no work of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from codegen.dtypes import INT64
from codegen.errors import InternalError
from codegen.ir.cuts import Cut, Window, of_operand, of_result, rolled, whole
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import Index, ravel, rows_kept, waiting_room
from codegen.ir.plan import Store
from codegen.ops.kind import Array, Eval, Kind, Types, behind, dropped, extents, layout_of
from codegen.ops.rules import (
    BatchBuilder,
    Element,
    ElementResolver,
    GradientBuilder,
    GraphBuilder,
    LoopBuilder,
    Proofs,
    Shards,
    Values,
)
from codegen.ops.sources import Iota
from codegen.symbolic import estimate, expr
from codegen.symbolic.expr import Expr, as_expr

T = TypeVar("T")


class View(Kind):
    """A kind that moves no data: its result is index arithmetic on its operand."""
    is_view = True


@dataclass(frozen=True)
class Broadcast(View):
    """Repeat an array along other dims. dims[k]: the dim of the result for dim k of the operand,
    increasing; an extent of 1 may stretch."""

    name = "broadcast"
    rereads = True
    inline = True
    dims: tuple[int, ...]
    shape: Shape

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, tuple(self.shape))]

    def leading(self, op: Op) -> bool:
        """Return whether it repeats whole matrices, the last two dims."""
        return op.operands[0].type.shape[-2:] == self.shape[-2:] and len(self.shape) >= 2 and (
            self.dims[-2:] == (len(self.shape) - 2, len(self.shape) - 1)
        )

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        (x,) = operands
        entries: list[tuple[str, ...]] = [()] * result.ndim
        for d, e, entry in zip(self.dims, x.shape, layout_of(x), strict=True):
            if e != 1 or result.shape[d] == 1:
                entries[d] = entry
        return entries

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,) = operands
        shape = extents(self.shape, value)
        spread = [1] * len(shape)
        for k, d in enumerate(self.dims):
            spread[d] = x.shape[k]
        return [np.broadcast_to(x.reshape(spread), shape)]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (x,), (g,) = op.operands, cotangents
        assert g is not None
        stretched = {d for d, e in zip(self.dims, x.type.shape) if e == 1 != self.shape[d]}
        gone = tuple(d for d in range(len(self.shape)) if d not in self.dims or d in stretched)
        return [builder.reshaped(builder.sum(g, gone), x.type.shape)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        kind = Broadcast((0, *behind(self.dims)), (batch.n, *self.shape))
        return [batch.emit(kind, *batch.every(op, stacked))]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        (x,) = op.operands
        inner = tuple(
            expr.const(0) if x.type.shape[k] == 1 else index[d] for k, d in enumerate(self.dims)
        )
        return resolver.node(x, inner)

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        (x,) = op.operands
        if dim not in self.dims or x.type.shape[self.dims.index(dim)] != self.shape[dim]:
            return None
        return shards.natural(x, self.dims.index(dim))

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        (x,) = op.operands
        k = self.dims.index(dim) if dim in self.dims else -1
        return k < 0 or x.type.shape[k] != self.shape[dim] or shards.goes_on(x, k)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        (x,), shape = op.operands, op.result.type.shape
        return [tuple(
            whole(1) if e == 1 and shape[d] != 1 else window[d]
            for e, d in zip(x.type.shape, self.dims, strict=True)
        )]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        return build.emit(self.but(shape=shards.shape(window)), operands)


def numpy_box(
    box: Slice | Update, shape: Sequence[int], value: Eval, taken: Sequence[int]
) -> tuple[slice, ...]:
    """Return the positions start + step * j, j < taken[d] > 0, in an operand of `shape`: all
    inside."""
    parts = []
    for d, extent in enumerate(taken):
        start, step = value(box.start[d]), value(box.step[d])
        last = start + step * (extent - 1)
        if min(start, last) < 0 or max(start, last) >= shape[d]:
            raise InternalError(
                f"dim {d} is read or written from {min(start, last)} to {max(start, last)}",
                expected=f"positions from 0 to {shape[d] - 1}",
            )
        end = last + (1 if last >= start else -1)
        parts.append(slice(start, None if end < 0 else end, step if extent > 1 else None))
    return tuple(parts)


@dataclass(frozen=True)
class Slice(View):
    """result[j] = operand[start + step * j]; start Exprs, step ints (not 0), in bounds; cut: by the
    arithmetic of codegen.ir.cuts."""

    name = "slice"
    inline = True
    start: tuple[Expr, ...]
    step: tuple[int, ...]
    shape: Shape
    cut: bool = False

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, tuple(self.shape))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return (() if e == 1 else entry for e, entry in zip(result.shape, layout_of(operands[0])))

    def claims(self, op: Op, proofs: Proofs) -> None:
        if not self.cut:
            proofs.inside(self.start, self.step, op.result.type.shape, op.operands[0].type.shape)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,) = operands
        shape = extents(self.shape, value)
        if 0 in shape:
            return [np.empty(shape, x.dtype)]
        return [x[numpy_box(self, x.shape, value, shape)]]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (g,) = cotangents
        assert g is not None
        builder.add_at(op.operands[0], self, g)
        return [None]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        kind = self.but(start=(expr.const(0), *self.start), step=(1, *self.step),
                        shape=(batch.n, *self.shape))
        return [batch.emit(kind, *batch.every(op, stacked))]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        return resolver.node(op.operands[0], resolver.within(self, index))

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        under = shards.natural(op.operands[0], dim)
        return of_result(under, self.start[dim], self.step[dim], self.shape[dim], shards.mesh)

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        (x,) = op.operands
        all_of_it = self.start[dim] == 0 and self.step[dim] == 1
        return all_of_it and self.shape[dim] == x.type.shape[dim] and shards.goes_on(x, dim)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        return [tuple(
            of_operand(c, as_expr(start), step, shards.mesh)
            for c, start, step in zip(window, self.start, self.step, strict=True)
        )]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        (held,) = self.needs(op, window, shards)
        start = begin(self, window, held, shards)
        return build.emit(Slice(start, self.step, shards.shape(window), cut=True), operands)


@dataclass(frozen=True)
class Transpose(View):
    """Result dim d is operand dim perm[d]."""

    name = "transpose"
    inline = True
    perm: tuple[int, ...]

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, tuple(types[0].shape[d] for d in self.perm))]

    @property
    def turns_matrices(self) -> bool:
        """Return whether it swaps the last two dims and leaves the others."""
        *batch, row, column = range(max(2, len(self.perm)))
        return self.perm == (*batch, column, row)

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        entries = layout_of(operands[0])
        return (entries[d] for d in self.perm)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [operands[0].transpose(self.perm)]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (g,), back = cotangents, (self.perm.index(d) for d in range(len(self.perm)))
        assert g is not None
        return [builder.emit(Transpose(tuple(back)), g)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(Transpose((0, *behind(self.perm))), *batch.every(op, stacked))]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        inner = list(index)
        for d, source in enumerate(self.perm):
            inner[source] = index[d]
        return resolver.node(op.operands[0], tuple(inner))

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        return shards.natural(op.operands[0], self.perm[dim])

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        return shards.goes_on(op.operands[0], self.perm[dim])

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        return [tuple(window[self.perm.index(d)] for d in range(len(self.perm)))]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        return build.emit(self, operands)


@dataclass(frozen=True)
class Diagonal(View):
    """result[…, k, …] = operand[…, k, …, k, …]: dims `first` < `second` of the operand have equal
    extents, and the result lacks the second one."""

    name = "diagonal"
    inline = True
    first: int
    second: int

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, dropped(types[0].shape, (self.second,)))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        entries = list(layout_of(operands[0]))
        across = entries.pop(self.second)
        entries[self.first] = entries[self.first] or across
        return entries

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        diagonal = np.diagonal(operands[0], 0, self.first, self.second)
        return [np.moveaxis(diagonal, -1, self.first)]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        """Return a matrix with the cotangent on its diagonal, and zeros elsewhere."""
        (x,), (g,) = op.operands, cotangents
        assert g is not None
        shape = x.type.shape
        others = tuple(d for d in range(len(shape)) if d != self.second)
        wide = builder.emit(Broadcast(others, shape), g)
        row, column = (builder.emit(Iota(d, INT64, shape)) for d in (self.first, self.second))
        return [builder.map("select", builder.map("eq", row, column), wide,
                            builder.zeros(x.type, g.type.dtype))]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(Diagonal(self.first + 1, self.second + 1), *batch.every(op, stacked))]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        return resolver.node(op.operands[0], self._twice(index))

    def _twice(self, entries: tuple[T, ...]) -> tuple[T, ...]:
        """Return the entries of the result's dims as entries of the operand's dims, with one of
        them twice."""
        return (*entries[: self.second], entries[self.first], *entries[self.second :])

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        (x,) = op.operands
        if dim == self.first and not layout_of(x.type)[dim]:
            return shards.natural(x, self.second)
        return shards.natural(x, dim + (dim >= self.second))

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        return dim != self.first and shards.goes_on(op.operands[0], dim + (dim >= self.second))

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        return [self._twice(window)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        return build.emit(self, operands)


@dataclass(frozen=True)
class Roll(View):
    """Shift an array cyclically (Graph level): result[j] = operand[(j - shift) mod its extent]
    along dim. extent: that of the result, where it differs from the operand's."""

    name = "roll"
    dim: int
    shift: Expr
    extent: Expr | None = None

    def infer(self, types: Types) -> list[ArrayType]:
        shape = list(types[0].shape)
        if self.extent is not None:
            shape[self.dim] = self.extent
        return [ArrayType(types[0].dtype, tuple(shape))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,), d = operands, self.dim
        extent = x.shape[d] if self.extent is None else value(self.extent)
        positions = np.arange(extent) - value(self.shift)
        return [np.take(x, positions % max(x.shape[d], 1), d)]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (g,) = cotangents
        assert g is not None
        if self.extent is not None:
            raise builder.none(op)
        return [builder.emit(Roll(self.dim, -self.shift), g)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(self.but(dim=self.dim + 1), *batch.every(op, stacked))]

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        return shards.natural(op.operands[0], dim) if dim != self.dim else None

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        cut_short = self.extent is not None and dim == self.dim
        return not cut_short and shards.goes_on(op.operands[0], dim)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        d, extent = self.dim, op.operands[0].type.shape[self.dim]
        return [(*window[:d], rolled(window[d], self.shift, extent, shards.mesh), *window[d + 1 :])]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        """Return the operand's part, which has all the elements already, with its extents written
        by the formulas of `window`."""
        shape = shards.shape(window)
        if operands[0].type.shape == shape:
            return operands[0]
        zeros, ones = (expr.const(0),) * len(shape), (1,) * len(shape)
        return build.emit(Slice(zeros, ones, shape, cut=True), operands)


# ---- writes: the operand with something replaced -------------------------------------------------


@dataclass(frozen=True)
class Update(Kind):
    """Return x with x[start + step * j] = v[j], always in bounds. Operands: x, v. apart: of the
    updates that fill one blank array, no two overlap."""

    name = "update"
    fuses = True
    in_place = True
    reads = "points"
    start: tuple[Expr, ...]
    step: tuple[int, ...]
    cut: bool = False
    apart: bool = False

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        x, v = operands
        return layout_of(v if x.free and v.ndim == x.ndim else x)

    def claims(self, op: Op, proofs: Proofs) -> None:
        x, v = op.operands
        if not self.cut:
            proofs.inside(self.start, self.step, v.type.shape, x.type.shape)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, v = operands
        out = x.copy()
        if v.size:
            out[numpy_box(self, x.shape, value, v.shape)] = v
        return [out]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (x, v), (g,) = op.operands, cotangents
        assert g is not None
        part = builder.emit(Slice(self.start, self.step, v.type.shape),
                            g) if v in builder.active else None
        builder.add_around(x, Slice(self.start, self.step, v.type.shape), g)
        return [None, part]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        kind = self.but(start=(expr.const(0), *self.start), step=(1, *self.step))
        return [batch.emit(kind, *batch.every(op, stacked))]

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        return shards.natural(op.operands[0], dim)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        part = tuple(
            of_result(c, as_expr(start), step, m, shards.mesh)
            for c, start, step, m in zip(
                window, self.start, self.step, op.operands[1].type.shape, strict=True
            )
        )
        return [window, part]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        _, part = self.needs(op, window, shards)
        return build.emit(self.but(start=begin(self, part, window, shards), cut=True), operands)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        x, v = op.operands
        into, shape = builder.take_over(op), x.type.shape
        loops, index = builder.plainest(v)
        node, target = builder.node(v, index), ravel(builder.within(self, index), shape)
        is_element = all(e == 1 for e in v.type.shape)
        rows = 0 if is_element or v in builder.stored else rows_kept(node, x, target, shape,
                                                                     self.step)
        assert rows is not None, "what reads x where the order of rows does not help is stored"
        waiting = None
        if rows:
            row = waiting_room(tuple(loop.extent for loop in loops[1:]), x.type.dtype)
            gone = {s for s in row.symbols() if not s.lays_out}
            most = estimate.upper_bound(row, gone) if gone else row
            waiting = builder.spare(f"{x.name}_rows", x.type.dtype, most * rows)
        builder.add(Store(loops, into, target, node, place=op.place, rows=rows, waiting=waiting))


def begin(box: Slice | Update, part: Window, held: Window, shards: Shards) -> Shape:
    """Return the index at which a part of a slice's result (or of an update's operand) begins in
    the part `held` of the array that is sliced (or updated)."""
    lows = zip(box.start, box.step, shards.lows(part), shards.lows(held), strict=True)
    return tuple(as_expr(s) + k * low - under for s, k, low, under in lows)
