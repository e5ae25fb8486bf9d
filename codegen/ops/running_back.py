"""Derivatives of running combinations along a dim: an operand's cotangent from the result's."""

from __future__ import annotations

from typing import Any

from codegen import dtypes
from codegen.ir.graph import Op, Shape, Value
from codegen.ops.lookups import Scatter
from codegen.ops.reshapes import OnceAtZero
from codegen.ops.rules import GradientBuilder
from codegen.ops.sources import Iota
from codegen.ops.views import Slice
from codegen.symbolic import expr


def back(op: Op, g: Value, builder: GradientBuilder) -> Value:
    """Return the cotangent of the operand of a Cumulative; raise UnsupportedError where there is no
    derivative."""
    kind: Any = op.kind
    if kind.fn == "add":
        return _from_end(op, g, builder)
    if kind.fn == "mul":
        return _of_products(op, g, builder)
    if kind.fn in ("min", "max", "fmin", "fmax"):
        return _of_extremes(op, g, builder)
    raise builder.none(op)


def _from_end(op: Op, g: Value, builder: GradientBuilder) -> Value:
    """Return the running sums of g from the last element on."""
    kind: Any = op.kind
    turned = _turned(g.type.shape, kind.dim)
    return builder.emit(turned, builder.emit(kind.but(fn="add"), builder.emit(turned, g)))


def _turned(shape: Shape, dim: int) -> Slice:
    """Return the slice that reverses a dim."""
    starts = (e - 1 if d == dim else expr.const(0) for d, e in enumerate(shape))
    steps = (-1 if d == dim else 1 for d in range(len(shape)))
    return Slice(tuple(starts), tuple(steps), shape)


def _of_products(op: Op, g: Value, builder: GradientBuilder) -> Value:
    """Return the cotangent for running products. Up to the first 0 of a lane they are divided by
    the element; at the first 0, 1 stands in its place; elements beyond it change nothing."""
    kind: Any = op.kind
    x, out = builder.emit(OnceAtZero(op.result.type.shape), op.operands[0]), op.result
    zero, ones = builder.map("eq", x, builder.full(0, x)), builder.full(1, x)
    so_far = builder.emit(kind.but(fn="add"), builder.cast(zero, dtypes.INT64))
    before = builder.map("eq", so_far, builder.full(0, so_far))
    first = builder.map("logical_and", zero, builder.map("eq", so_far, builder.full(1, so_far)))
    many = _from_end(op, builder.map("mul", g, out), builder)
    many = builder.map("div", many, builder.map("select", zero, ones, x))
    rest = builder.emit(kind, builder.map("select", first, ones, x))
    alone = _from_end(op, builder.map("mul", g, rest), builder)
    alone = builder.map("select", first, alone, builder.full(0, alone))
    return builder.map("select", before, many, alone)


def _of_extremes(op: Op, g: Value, builder: GradientBuilder) -> Value:
    """Return the cotangent for running extremes: each result's goes to the last element so far that
    equals it."""
    kind: Any = op.kind
    (x,), out, shape = op.operands, op.result, op.result.type.shape
    line = builder.emit(Iota(kind.dim, dtypes.INT64, shape))
    place = builder.map("select", builder.map("eq", x, out), line, builder.full(0, line))
    place = builder.emit(kind.but(fn="max"), place)
    places = [place if d == kind.dim else builder.emit(Iota(d, dtypes.INT64, shape))
              for d in range(len(shape))]
    into = builder.zeros(x.type, g.type.dtype)
    return builder.emit(Scatter(tuple(range(len(shape))), 0, "add"), into, g, *places)
