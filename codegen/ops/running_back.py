"""The ways back through running combinations along a dim: cotangents of results to operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from codegen import dtypes
from codegen.ir.graph import Op, Shape, Value
from codegen.ops.lookups import Scatter
from codegen.ops.reshapes import OnceAtZero
from codegen.ops.sources import Iota
from codegen.ops.views import Slice
from codegen.symbolic import expr

if TYPE_CHECKING:
    from codegen.trace.derive.reverse import Reverse


def back(op: Op, g: Value, at: Reverse) -> Value:
    """Return the cotangent of the operand of a Cumulative; raise UnsupportedError where there is no
    derivative."""
    what: Any = op.what
    if what.fn == "add":
        return _from_end(op, g, at)
    if what.fn == "mul":
        return _of_products(op, g, at)
    if what.fn in ("min", "max", "fmin", "fmax"):
        return _of_extremes(op, g, at)
    raise at.none(op)


def _from_end(op: Op, g: Value, at: Reverse) -> Value:
    """Return the running sums of g from the last element on."""
    what: Any = op.what
    turned = _turned(g.type.shape, what.dim)
    return at.emit(turned, at.emit(what.but(fn="add"), at.emit(turned, g)))


def _turned(shape: Shape, dim: int) -> Slice:
    """Return the slice that reverses a dim."""
    starts = (e - 1 if d == dim else expr.const(0) for d, e in enumerate(shape))
    steps = (-1 if d == dim else 1 for d in range(len(shape)))
    return Slice(tuple(starts), tuple(steps), shape)


def _of_products(op: Op, g: Value, at: Reverse) -> Value:
    """Return the cotangent for running products. Up to the first 0 of a lane they are divided by
    the element; at the first 0, 1 stands in its place; elements beyond it change nothing."""
    what: Any = op.what
    x, out = at.emit(OnceAtZero(op.result.type.shape), op.operands[0]), op.result
    zero, one = at.map("eq", x, at.full(0, x)), at.full(1, x)
    so_far = at.emit(what.but(fn="add"), at.cast(zero, dtypes.INT64))
    before = at.map("eq", so_far, at.full(0, so_far))
    first = at.map("logical_and", zero, at.map("eq", so_far, at.full(1, so_far)))
    many = _from_end(op, at.map("mul", g, out), at)
    many = at.map("div", many, at.map("select", zero, one, x))
    rest = at.emit(what, at.map("select", first, one, x))
    alone = _from_end(op, at.map("mul", g, rest), at)
    alone = at.map("select", first, alone, at.full(0, alone))
    return at.map("select", before, many, alone)


def _of_extremes(op: Op, g: Value, at: Reverse) -> Value:
    """Return the cotangent for running extremes: each result's goes to the last element so far that
    equals it."""
    what: Any = op.what
    (x,), out, shape = op.operands, op.result, op.result.type.shape
    line = at.emit(Iota(what.dim, dtypes.INT64, shape))
    place = at.map("select", at.map("eq", x, out), line, at.full(0, line))
    place = at.emit(what.but(fn="max"), place)
    places = [place if d == what.dim else at.emit(Iota(d, dtypes.INT64, shape))
              for d in range(len(shape))]
    into = at.zeros(x.type, g.type.dtype)
    return at.emit(Scatter(tuple(range(len(shape))), 0, "add"), into, g, *places)
