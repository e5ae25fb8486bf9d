"""Ops on rows of integers, lanes along the last dim: merged, partitioned, counted, searched.

Floats come as integers in their order (`order_key`). Functions of csrc/spmd_rows.h do the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.ir.cuts import Window, whole
from codegen.ir.graph import ArrayType, Op, Value
from codegen.ir.indexing import loop_vars, positions, ravel
from codegen.ir.plan import Argument, KernelCall, Store
from codegen.ops.kind import Array, Eval, Kind, Types, layout_of
from codegen.ops.reductions import Lane
from codegen.ops.rules import BatchBuilder, GraphBuilder, LoopBuilder, Shards, Values
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


def _call(function: str, op: Op, builder: LoopBuilder, *arguments: Value | Expr) -> None:
    """Call a C function for the type of the op's first operand; of arrays it gets the addresses."""
    dtype = op.operands[0].type.dtype
    kind = "u" if dtype.kind == "b" else dtype.kind
    parameters = []
    for x in arguments:
        if isinstance(x, Expr):
            parameters.append(Argument[Value](x, dtypes.INT64))
        else:
            argument: Any = x if x.type.ndim else builder.node(x, ())
            parameters.append(Argument(argument, x.type.dtype, (), x not in op.operands))
    builder.add(KernelCall(f"spmd_{function}_{kind}{8 * dtype.size}", tuple(parameters), op.place))


def _rows(x: Value) -> tuple[Expr, Expr]:
    """Return the number of rows, and their length."""
    return expr.product(x.type.shape[:-1]), x.type.shape[-1]


@dataclass(frozen=True)
class Merge(Kind):
    """Merge two sorted arrays of rows of one length; operands mine, theirs, side. side 1: the half
    that stands first; 2: the last half; 0: mine. Or mine, theirs, their places twice, side: equal
    elements in the order of places, which no two have in common; the places come along. tuples: an
    element is a column of int64, compared from its top. Stands in shard_maps only."""

    name = "merge"
    tuples: bool = False

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(t.dtype, t.shape) for t in types[:-1:2]]

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        *pairs, side = operands
        n = pairs[0].shape[-1]
        both = [np.concatenate(pair, -1) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
        if self.tuples:
            order = np.lexsort(np.moveaxis(both[0], -2, 0)[::-1], -1)[..., None, :]
            order = np.broadcast_to(order, both[0].shape)
        else:
            order = np.lexsort(both[::-1], -1)
        half = order[..., :n] if int(side) == 1 else order[..., n:]
        mine = [x.copy() for x in pairs[::2]]
        return [np.take_along_axis(x, half, -1) for x in both] if int(side) else mine

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Merge more rows; the side is one number for all members, or they are merged one by
        one."""
        *rows, side = stacked
        if side is not None:
            return batch.one_by_one(op, stacked)
        operands = [batch.spread(v) if g is None else g for v, g in zip(op.operands, rows)]
        return batch.emit_all(self, *operands, op.operands[-1])

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        *lead, n = op.operands[0].type.shape
        extents = (expr.product(lead[:-1]), lead[-1], n) if self.tuples else (expr.product(lead), n)
        function = "tuples" if self.tuples else "rows" if len(op.results) == 1 else "placed"
        _call(f"merge_{function}", op, builder, *op.operands, *op.results, *extents)


@dataclass(frozen=True)
class Partition(Lane):
    """Partition rows of x at places that the second operand gives for each: there stands what
    sorting puts there, before it nothing larger and behind it nothing less."""

    name = "partition"
    flat = True
    reads = "points"
    dim: int

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.sort(operands[0], axis=-1)]

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        return [(*window[:-1], whole(v.type.shape[-1])) for v in op.operands]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        held = self.needs(op, window, shards)[0]
        return shards.part(build.emit(self, operands), held, window, build)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        x, places = op.operands
        loops = positions(loop_vars(x.type.shape))
        builder.store(op.result, builder.node(x, loops), op)
        memory = builder.spare(f"{op.result.name}_places", dtypes.INT64,
                               expr.product(places.type.shape))
        index = loop_vars(places.type.shape)
        builder.add(Store(index, memory, ravel(positions(index), places.type.shape),
                          builder.node(places, positions(index)), place=op.place))
        _call("partition_rows", op, builder, op.result, memory, places.type.shape[-1], *_rows(x))


@dataclass(frozen=True)
class Count(Kind):
    """Operands x, leading, shift: of the elements of a row whose leading bits are those, how many
    have which `bits` next; `shift` more are below them. The order of bits is that of elements.
    Stands in shard_maps only."""

    name = "count"
    flat = True
    bits: int

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(dtypes.INT64, (*types[1].shape, expr.const(2**self.bits)))]

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, leading, shift = operands
        width = 8 * x.itemsize
        top = 2 ** (width - 1) if x.dtype.kind == "i" else 0
        keys = (x.view(f"u{x.itemsize}").astype(np.uint64) ^ np.uint64(top)) >> np.uint64(shift)
        counts = np.zeros((*leading.shape, 2**self.bits), np.int64)
        for place in np.ndindex(leading.shape):
            row = keys[place[:-1]]
            if int(shift) + self.bits < width:
                row = row[row >> np.uint64(self.bits) == np.uint64(leading[place])]
            counts[place] = np.bincount((row & np.uint64(2**self.bits - 1)).astype(np.int64),
                                        minlength=2**self.bits)
        return [counts]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Count more rows; the shift is one number for all members, or they are counted one by
        one."""
        x, leading, shift = stacked
        if shift is not None:
            return batch.one_by_one(op, stacked)
        operands = [batch.spread(v) if g is None else g for v, g in zip(op.operands, (x, leading))]
        return [batch.emit(self, *operands, op.operands[-1])]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        x, leading, shift = op.operands
        _call("count_rows", op, builder, x, leading, shift, expr.const(self.bits), op.result,
              *_rows(x),
              leading.type.shape[-1])


@dataclass(frozen=True)
class SearchSorted(Kind):
    """Operands row and values: how many elements of the sorted row are less than each value; with
    `right`, or equal."""

    name = "searchsorted"
    flat = True
    right: bool

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(dtypes.INT64, types[1].shape)]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[1])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        side: Any = "right" if self.right else "left"
        return [np.asarray(np.searchsorted(operands[0], operands[1], side)).astype(np.int64)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Search the values of all members in one row; members with rows of their own, one by
        one."""
        row, values = stacked
        if row is not None or values is None:
            return batch.one_by_one(op, stacked)
        return [batch.emit(self, op.operands[0], values)]

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        return [(whole(op.operands[0].type.shape[0]),), window]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        return build.emit(self, operands)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        row, values = op.operands
        _call("search", op, builder, row, values, expr.const(int(self.right)), op.result,
              row.type.shape[0], expr.product(values.type.shape))
