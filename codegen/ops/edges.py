"""The op that puts the first and the last elements of an array around it once more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from codegen.ir.cuts import Window, of_result
from codegen.ir.graph import ArrayType, Op, Value
from codegen.ops.kind import Array, Eval, Kind, Types, layout_of
from codegen.ops.rules import BatchBuilder, GradientBuilder, GraphBuilder, Shards, Values
from codegen.ops.sources import Full
from codegen.ops.views import Broadcast, Slice, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


@dataclass(frozen=True)
class Edge(Kind):
    """Pad an array along every dim with copies of its first and its last element (Graph level), by
    the `widths` before and behind it. A rank's part of the result is always one contiguous interval
    per dim."""

    name = "edge"
    widths: tuple[tuple[int, int], ...]

    def infer(self, types: Types) -> list[ArrayType]:
        pairs = zip(types[0].shape, self.widths, strict=True)
        return [ArrayType(types[0].dtype, tuple(e + a + b for e, (a, b) in pairs))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.pad(operands[0], self.widths, mode="edge")]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        """Add the cotangents of the repeated elements to those of the first and the last element,
        dim by dim."""
        (g,), (x,) = cotangents, op.operands
        assert g is not None
        for d, (before, after) in enumerate(self.widths):
            here = x.type.shape[d]
            whole, g = g, _lines(builder, g, d, expr.const(before), here)
            for many, first, place in ((before, expr.const(0), expr.const(0)),
                                       (after, here + before, here - 1)):
                if many:
                    rim = _lines(builder, whole, d, first, expr.const(many))
                    own = _lines(builder, g, d, place, expr.const(1))
                    total = builder.map("add", own,
                                        builder.reshaped(builder.sum(rim, (d,)), own.type.shape))
                    start = [expr.const(0)] * x.type.ndim
                    start[d] = place
                    g = builder.emit(Update(tuple(start), (1,) * x.type.ndim), g, total)
        return [g]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(Edge(((0, 0), *self.widths)), *batch.every(op, stacked))]

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        (x,) = op.operands
        return [tuple(
            of_result(c, expr.const(before), 1, e, shards.mesh)
            for c, (before, _), e in zip(window, self.widths, x.type.shape, strict=True)
        )]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        """Put a rank's part into an array with room, and fill the rim dim by dim. An empty part has
        no elements to repeat: nobody reads its rim."""
        (x,), (held,) = operands, self.needs(op, window, shards)
        shape, lows, step = shards.shape(window), shards.lows(window), (1,) * x.type.ndim
        own = [
            first + before - low
            for first, (before, _), low in zip(shards.lows(held), self.widths, lows)
        ]
        value = build.emit(Full(0, x.type.dtype, shape, blank=True))
        value = build.emit(Update(tuple(own), step, cut=True), (value, x))
        for d, (before, after) in enumerate(self.widths):
            here = x.type.shape[d]
            end = own[d] + here
            behind = expr.minimum(shape[d] - end, here * after)
            last = end - 1 if expr.nonneg(end - 1) else expr.maximum(end - 1, 0)
            for many, count, source, target in (
                (before, own[d], own[d], expr.const(0)), (after, behind, last, end)
            ):
                if many:
                    value = _line_again(value, d, source, count, target, build)
        return value


def _lines(builder: GradientBuilder, x: Value, d: int, first: Expr, count: Expr) -> Value:
    """Return `count` lines along a dim, from line `first` on."""
    start, shape = [expr.const(0)] * x.type.ndim, [*x.type.shape]
    start[d], shape[d] = first, count
    return builder.emit(Slice(tuple(start), (1,) * x.type.ndim, tuple(shape)), x)


def _line_again(
    value: Value, d: int, source: Expr, count: Expr, target: Expr, build: GraphBuilder
) -> Value:
    """Return the array with `count` copies of its line `source` along dim d, written from line
    `target` on."""
    shape, zeros = value.type.shape, [expr.const(0)] * value.type.ndim
    step = (1,) * len(shape)
    line_shape = (*shape[:d], expr.const(1), *shape[d + 1 :])
    line = build.emit(Slice((*zeros[:d], source, *zeros[d + 1 :]), step, line_shape, cut=True),
                      (value,))
    lines = (*shape[:d], count, *shape[d + 1 :])
    line = build.emit(Broadcast(tuple(range(len(shape))), lines), (line,))
    start = (*zeros[:d], target, *zeros[d + 1 :])
    return build.emit(Update(start, step, cut=True), (value, line))
