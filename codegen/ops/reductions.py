"""Ops along whole dims: reductions, running ones, sorting lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.functions import COMBINE, neutral, neutral_sign
from codegen.ir import plan
from codegen.ir.cuts import Cut, Window, whole
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import loop_vars, positions, ravel, strides
from codegen.ops import running_back
from codegen.ops.exchanges import Fold
from codegen.ops.group import combine
from codegen.ops.kind import Array, Eval, Kind, Types, behind, dropped, layout_of
from codegen.ops.lookups import Gather, Scatter
from codegen.ops.maps import Map
from codegen.ops.partials import PARTIALS
from codegen.ops.reshapes import OnceAtZero
from codegen.ops.rules import (
    BatchBuilder,
    CheckBuilder,
    GradientBuilder,
    GraphBuilder,
    LoopBuilder,
    Shards,
    Values,
)
from codegen.ops.sources import Iota
from codegen.ops.views import Broadcast, Slice
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.target import TARGET

_TOTALS = ("add", "mul")  # what may leave the range of a type


def _summed_in(x: Array) -> Any:
    """Return the dtype in which a reference adds up x, so that half types are rounded once."""
    dtype = dtypes.from_numpy(x.dtype)
    assert dtype is not None
    return x.dtype if dtypes.folded_in(dtype) == dtype else np.float64


@dataclass(frozen=True)
class Reduce(Kind):
    """Combine elements by COMBINE[fn] over dims, which are dropped."""

    name = "reduce"
    fuses = True
    reads = "points"
    fn: str
    dims: tuple[int, ...]

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, dropped(types[0].shape, self.dims))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return (entry for d, entry in enumerate(layout_of(operands[0])) if d not in self.dims)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,) = operands
        dims = tuple(self.dims)
        dtype = dtypes.from_numpy(x.dtype)
        assert dtype is not None
        if x.size == 0:
            shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
            return [np.full(shape, neutral(self.fn, dtype), x.dtype)]
        ufunc = combine(self.fn)
        if ufunc in (np.logical_and, np.logical_or, np.logical_xor):
            return [np.asarray(ufunc.reduce(x, axis=dims)).astype(x.dtype)]
        return [np.asarray(ufunc.reduce(x, axis=dims, dtype=_summed_in(x))).astype(x.dtype)]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (x,), (g,), shape = op.operands, cotangents, op.operands[0].type.shape
        assert g is not None
        kept = tuple(d for d in range(len(shape)) if d not in self.dims)
        wide = builder.spread(g, kept, shape)
        if self.fn == "add":
            return [wide]
        if self.fn == "mul":
            return [builder.map("mul", wide, self._others(x, kept, builder))]
        out = builder.spread(op.result, kept, shape)
        if self.fn in ("min", "max", "fmin", "fmax"):  # equal ones share it
            same = builder.cast(builder.map("eq", x, out), g.type.dtype)
            count = builder.spread(builder.sum(same, self.dims), kept, shape)
            return [builder.map("div", builder.map("mul", wide, same), count)]
        if self.fn not in ("hypot", "logaddexp"):
            raise builder.none(op)
        return [builder.times(wide, PARTIALS[self.fn][0], (x, out), out)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(self.but(dims=behind(self.dims)), *batch.every(op, stacked))]

    def _others(self, x: Value, kept: tuple[int, ...], builder: GradientBuilder) -> Value:
        """Return, for each element, the product of all other elements that are reduced with it;
        correct also where some are 0."""
        x = builder.emit(OnceAtZero(x.type.shape), x)
        shape, ones = x.type.shape, builder.full(1, x)
        zero = builder.map("eq", x, builder.full(0, x))
        safe = builder.map("select", zero, ones, x)
        product = builder.spread(builder.emit(self, safe), kept, shape)
        count = builder.spread(builder.sum(builder.cast(zero, dtypes.INT64), self.dims), kept,
                               shape)
        alone = builder.map("eq", count,
                            builder.cast(zero, dtypes.INT64))  # no zero but this one, if any
        return builder.map("select", alone, builder.map("div", product, safe), builder.full(0, x))

    def title(self) -> str:
        return "a sum" if self.fn == "add" else "a product"

    def finite(self, op: Op, value: Value, builder: CheckBuilder) -> Value | None:
        if self.fn not in _TOTALS:
            return None
        return builder.unless(value, builder.any_of(builder.not_finite(op.operands[0]), self.dims))

    def exact(self, op: Op, builder: CheckBuilder) -> Value | None:
        return builder.emit(self, builder.floats(op)) if self.fn in _TOTALS else None

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        (x,) = op.operands
        inner = {d: shards.natural(x, d) for d in self.dims}
        kept = iter(shards.computed(op, window, inner.values()))
        return [tuple(inner[d] if d in inner else next(kept) for d in range(x.type.ndim))]

    def summed(self, op: Op, window: Window, shards: Shards) -> list[Cut] | None:
        return [shards.natural(op.operands[0], d) for d in self.dims] if self.fn == "add" else None

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        (held,) = self.needs(op, window, shards)
        inner = [held[d] for d in self.dims]
        if any(c.axes for c in inner):
            operands = [shards.wide(x, build) for x in operands]
        value = build.emit(self, operands)
        return shards.combined(op, window, inner, value, self.fn, build)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        (x,), result = op.operands, op.result.type
        loops = loop_vars(x.type.shape)
        kept = tuple(v for d, v in enumerate(loops) if d not in self.dims)
        inner = tuple(v for d, v in enumerate(loops) if d in self.dims)
        long = [d for d, v in enumerate(loops) if v.extent != 1]
        rows = bool(kept) and bool(long) and long[-1] not in self.dims and result.dtype.size != 2
        offset = ravel(positions(kept), result.shape)
        node = builder.node(x, positions(loops))
        builder.add(plan.Reduce(kept, inner, rows, op.result, offset, node, self.fn, result.dtype,
                                op.place))


@dataclass(frozen=True)
class ArgReduce(Kind):
    """Return the first position of the extreme along a dim, which is dropped. fn: min or max."""

    name = "argreduce"
    flat = True
    reads = "points"
    fn: str
    dim: int

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(dtypes.INT64, dropped(types[0].shape, (self.dim,)))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return (entry for d, entry in enumerate(layout_of(operands[0])) if d != self.dim)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,), dim = operands, self.dim
        if x.shape[dim] == 0:
            return [np.zeros(x.shape[:dim] + x.shape[dim + 1 :], np.int64)]
        first = np.argmin if self.fn == "min" else np.argmax
        return [np.asarray(first(x, axis=dim)).astype(np.int64)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(self.but(dim=self.dim + 1), *batch.every(op, stacked))]

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        inner = shards.natural(op.operands[0], self.dim)
        kept = shards.computed(op, window, [inner])
        return [(*kept[: self.dim], inner, *kept[self.dim :])]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        """Return the first position of the extreme: each rank finds its own, then the first of
        those that are the extreme of all."""
        (held,), d, fn = self.needs(op, window, shards), self.dim, self.fn
        index = build.emit(self, operands)
        axes = held[d].axes
        kept = (*held[:d], *held[d + 1 :])
        if not axes:
            return shards.part(index, kept, window, build)
        low, high = held[d].bounds(shards.mesh)
        best = shards.wide(self.extreme(operands[0], index, build), build)
        extreme = build.emit(Fold(axes, fn), (best,))
        same = build.emit(Map("eq"), (best, extreme))
        if best.type.dtype.kind in "fc":  # a NaN is the extreme, and equals nothing
            nan = build.emit(Map("isnan"), (best,))
            same = build.emit(Map("logical_or"), (same, nan))

        def everywhere(e: Expr) -> Value:
            value, shape = build.integer(e), index.type.shape
            return build.emit(Broadcast((), shape), (value,)) if shape else value

        none = everywhere(op.operands[0].type.shape[d])
        mine = build.emit(Map("add"), (index, everywhere(low)))
        mine = build.emit(Map("select"), (same, mine, none))
        some = build.emit(Map("gt"), (everywhere(high - low), everywhere(expr.const(0))))
        mine = build.emit(Map("select"), (some, mine, none))
        first = build.emit(Fold(axes, "min"), (mine,))
        return shards.part(first, kept, window, build)

    def extreme(self, x: Value, index: Value, build: GraphBuilder) -> Value:
        """Return the extreme of a rank's part. That of a 1-d array is read at its position `index`,
        without a second pass over the elements."""
        if x.type.ndim > 1:
            return build.emit(Reduce(self.fn, (self.dim,)), (x,))
        (n,), dtype = x.type.shape, x.type.dtype
        some = build.map("gt", build.integer(n), build.integer(expr.const(0)))
        value = build.emit(Gather((0,), 0), (x, index))
        return build.map("select", some, value, build.full(neutral(self.fn, dtype), dtype, ()))

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        (x,) = op.operands
        loops = loop_vars(x.type.shape)
        rest = tuple(v for d, v in enumerate(loops) if d != self.dim)
        offset = ravel(positions(rest), op.result.type.shape)
        node = builder.node(x, positions(loops))
        builder.add(plan.Lane(self.name, rest, loops[self.dim], op.result, offset, expr.const(0),
                              x.type.dtype, self.fn, node, (), op.place))


class Lane(Kind):
    """A kind that works on each line along `dim` independently. Its `steps` serve kinds whose
    results have the operand's shape."""

    dim: int

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(self.but(dim=self.dim + 1), *batch.every(op, stacked))]

    def work(self, op: Op) -> Iterable[Shape]:
        return [(*op.operands[0].type.shape, expr.const(TARGET.sort_steps))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        entries = enumerate(layout_of(operands[0]))
        return (() if d == self.dim else entry for d, entry in entries)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        """Return the operand's part that has the lanes whole, and the other dims as wanted."""
        d, x = self.dim, op.operands[0]
        return [(*window[:d], whole(x.type.shape[d]), *window[d + 1 :])]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        d = self.dim
        held = (*window[:d], whole(op.result.type.shape[d]), *window[d + 1 :])
        return shards.part(build.emit(self, operands), held, window, build)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        (x,), dim, shape = op.operands, self.dim, op.result.type.shape
        loops = loop_vars(x.type.shape)
        rest = tuple(v for d, v in enumerate(loops) if d != dim)
        first = tuple(expr.const(0) if d == dim else i for d, i in enumerate(positions(loops)))
        node = builder.node(x, positions(loops))
        builder.add(plan.Lane(self.name, rest, loops[dim], op.result, ravel(first, shape),
                              strides(shape)[dim], x.type.dtype, getattr(self, "fn", ""), node,
                              self.scratch(op, builder), op.place))

    def scratch(self, op: Op, builder: LoopBuilder) -> tuple[Value, ...]:
        """Return the memory that a lane needs beside its result."""
        return ()


@dataclass(frozen=True)
class Cumulative(Lane):
    """Combine elements along a dim with all before them by COMBINE[fn]."""

    name = "cumulative"
    held = True
    reads = "points"
    without_vjp = "running sums, products and extremes: they have derivatives"
    fn: str
    dim: int

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,) = operands
        totals = combine(self.fn).accumulate(x, axis=self.dim, dtype=_summed_in(x))
        return [totals.astype(x.dtype)]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (g,) = cotangents
        assert g is not None
        return [running_back.back(op, g, builder)]

    def title(self) -> str:
        return "a running total"

    def finite(self, op: Op, value: Value, builder: CheckBuilder) -> Value | None:
        if self.fn not in _TOTALS:
            return None
        byte = dtypes.BY_NAME["uint8"]
        bits = builder.cast(builder.not_finite(op.operands[0]), byte)
        before = builder.emit(Cumulative("max", self.dim), (bits,))
        return builder.unless(value,
                              builder.map("ne", before, builder.full(0, byte, value.type.shape)))

    def exact(self, op: Op, builder: CheckBuilder) -> Value | None:
        return builder.emit(self, builder.floats(op)) if self.fn in _TOTALS else None

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        return [window]

    def depends(self, op: Op, window: Window, shards: Shards) -> list[Window | None]:
        return [*super().needs(op, window, shards)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        """Return the running values of this rank's part: those within it, combined with the totals
        of the ranks before it."""
        d, fn = self.dim, self.fn
        axes = window[d].axes
        if not axes:
            return build.emit(self, operands)
        operands = [shards.wide(x, build) for x in operands]
        value = build.emit(self, operands)
        total = _last(value, d, fn, build)
        before = build.emit(Fold(axes, fn, "before"), (total,))
        dims = tuple(k for k in range(len(window)) if k != d)
        before = build.emit(Broadcast(dims, value.type.shape), (before,))
        mine, value = value, build.emit(Map(COMBINE[fn]), (before, value))
        kind = mine.type.dtype.kind
        if fn == "add" and kind in "fc" or fn == "mul" and kind == "c":  # no neutral keeps all bits
            zero = build.integer(expr.const(0))
            first = build.map("eq", build.integer(shards.mesh.position(axes)), zero)
            first = build.emit(Broadcast((), value.type.shape), (first,))
            value = build.map("select", first, mine, value)
        return build.cast(value, op.result.type.dtype)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        """Fold row after row, where memory lies in rows across the dim."""
        (x,), result, d = op.operands, op.result.type, self.dim
        if result.dtype.size == 2 or all(e == 1 for e in result.shape[d + 1 :]):
            super().steps(op, builder)
            return
        loops, sweeps = loop_vars(result.shape), []
        for begin in (0, 1):
            rest = expr.most(0, result.shape[d] - 1)
            along = replace(loops[d], extent=rest) if begin else loops[d]
            here = begin * (positions((along,))[0] + 1)
            index = tuple(here if k == d else i for k, i in enumerate(positions(loops)))
            offset, value = ravel(index, result.shape), builder.node(x, index)
            if begin:
                before = plan.Load(op.result, offset - strides(result.shape)[d])
                value = plan.Apply(COMBINE[self.fn], result.dtype, (before, value), result.dtype)
            store = plan.Store((), op.result, offset, value, place=op.place)
            sweeps.append(plan.Sweep((along,) * begin + loops[d + 1 :], (store,)))
        builder.add(plan.Nest(loops[:d], tuple(sweeps), op.place))


def _last(value: Value, d: int, fn: str, build: GraphBuilder) -> Value:
    """Return the last of running totals along a dim; the neutral element where there is none."""
    (dtype, shape), zero = (value.type.dtype, value.type.shape), expr.const(0)
    count = expr.minimum(shape[d], 1)
    start = tuple(shape[d] - count if k == d else zero for k in range(len(shape)))
    wide = tuple(count if k == d else e for k, e in enumerate(shape))
    last = build.emit(Slice(start, (1,) * len(shape), wide, cut=True), (value,))
    last = build.emit(Reduce("max", (d,)), (last,))  # of one element: to the bit
    some = build.map("gt", build.integer(shape[d]), build.integer(zero))
    some = build.emit(Broadcast((), last.type.shape), (some,))
    nothing = build.full(neutral_sign(fn, dtype), dtype, last.type.shape)
    return build.map("select", some, last, nothing)


@dataclass(frozen=True)
class Sort(Lane):
    """Sort lanes in ascending order, NaN last; complex numbers by real part, then imaginary."""

    name = "sort"
    dim: int

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.sort(operands[0], axis=self.dim, kind="stable")]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (x,), (g,), shape = op.operands, cotangents, op.operands[0].type.shape
        assert g is not None
        order = builder.emit(ArgSort(self.dim), x)
        places = [order if d == self.dim else builder.emit(Iota(d, dtypes.INT64, shape))
                  for d in range(len(shape))]
        into = builder.zeros(x.type, g.type.dtype)
        return [builder.emit(Scatter(tuple(range(len(shape))), 0, "set"), into, g, *places)]

    def scratch(self, op: Op, builder: LoopBuilder) -> tuple[Value, ...]:
        room = 2 * op.result.type.shape[self.dim]
        return (builder.spare(f"{op.result.name}_lane", op.operands[0].type.dtype, room),)


@dataclass(frozen=True)
class ArgSort(Lane):
    """Return the positions in which `sort` has the elements; the sort is stable."""

    name = "argsort"
    flat = True
    dim: int

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(dtypes.INT64, types[0].shape)]

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.argsort(operands[0], axis=self.dim, kind="stable").astype(np.int64)]

    def scratch(self, op: Op, builder: LoopBuilder) -> tuple[Value, ...]:
        room = op.result.type.shape[self.dim]
        lane = builder.spare(f"{op.result.name}_lane", op.operands[0].type.dtype, room)
        return lane, builder.spare(f"{op.result.name}_order", dtypes.INT64, room * 5)
