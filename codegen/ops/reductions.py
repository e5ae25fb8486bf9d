"""Ops along whole dims: reductions, running ones, sorting lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
from codegen.ops.sources import Iota
from codegen.ops.views import Broadcast, Slice
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.target import TARGET

if TYPE_CHECKING:
    from codegen.checks.instrument import Instrument
    from codegen.graph.builder import Builder
    from codegen.layouts.localize import Localizer
    from codegen.loops.to_loops import Maker
    from codegen.trace.batching.batch import Batch
    from codegen.trace.derive.reverse import Reverse


_TOTALS = ("add", "mul")  # what may leave the range of a type


def _summed_in(x: Array) -> Any:
    """Return the dtype in which a reference adds up x, so that half types are rounded once."""
    dtype = dtypes.from_numpy(x.dtype)
    assert dtype is not None
    return x.dtype if dtypes.folded_in(dtype) == dtype else np.float64


@dataclass(frozen=True)
class Reduce(Kind):
    """COMBINE[fn] over dims, which are dropped."""

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

    def vjp(self, op: Op, given: Sequence[Value | None], at: Reverse) -> Sequence[Value | None]:
        (x,), (g,), shape = op.operands, given, op.operands[0].type.shape
        assert g is not None
        kept = tuple(d for d in range(len(shape)) if d not in self.dims)
        wide = at.spread(g, kept, shape)
        if self.fn == "add":
            return [wide]
        if self.fn == "mul":
            return [at.map("mul", wide, self._others(x, kept, at))]
        out = at.spread(op.result, kept, shape)
        if self.fn in ("min", "max", "fmin", "fmax"):  # equal ones share it
            same = at.cast(at.map("eq", x, out), g.type.dtype)
            count = at.spread(at.sum(same, self.dims), kept, shape)
            return [at.map("div", at.map("mul", wide, same), count)]
        if self.fn not in ("hypot", "logaddexp"):
            raise at.none(op)
        return [at.times(wide, PARTIALS[self.fn][0], (x, out), out)]

    def batch(self, op: Op, given: Sequence[Value | None], at: Batch) -> Sequence[Value]:
        return [at.emit(self.but(dims=behind(self.dims)), *at.every(op, given))]

    def _others(self, x: Value, kept: tuple[int, ...], at: Reverse) -> Value:
        """Return the product of all others, for each element; right where some are 0."""
        x = at.emit(OnceAtZero(x.type.shape), x)
        shape, one = x.type.shape, at.full(1, x)
        zero = at.map("eq", x, at.full(0, x))
        safe = at.map("select", zero, one, x)
        product = at.spread(at.emit(self, safe), kept, shape)
        count = at.spread(at.sum(at.cast(zero, dtypes.INT64), self.dims), kept, shape)
        alone = at.map("eq", count, at.cast(zero, dtypes.INT64))  # no zero but this one, if any
        return at.map("select", alone, at.map("div", product, safe), at.full(0, x))

    def title(self) -> str:
        return "a sum" if self.fn == "add" else "a product"

    def finite(self, op: Op, value: Value, at: Instrument) -> Value | None:
        if self.fn not in _TOTALS:
            return None
        return at.unless(value, at.any_of(at.not_finite(op.operands[0]), self.dims))

    def exact(self, op: Op, at: Instrument) -> Value | None:
        return at.emit(self, at.floats(op)) if self.fn in _TOTALS else None

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        (x,) = op.operands
        inner = {d: at.natural(x, d) for d in self.dims}
        kept = iter(at.computed(op, window, inner.values()))
        return [tuple(inner[d] if d in inner else next(kept) for d in range(x.type.ndim))]

    def summed(self, op: Op, window: Window, at: Localizer) -> list[Cut] | None:
        return [at.natural(op.operands[0], d) for d in self.dims] if self.fn == "add" else None

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        (held,) = self.needs(op, window, at)
        inner = [held[d] for d in self.dims]
        if any(c.axes for c in inner):
            operands = [at.wide(x, build) for x in operands]
        value = build.emit(self, operands)
        return at.combined(op, window, inner, value, self.fn, build)

    def steps(self, op: Op, at: Maker) -> None:
        (x,), made = op.operands, op.result.type
        loops = loop_vars(x.type.shape)
        kept = tuple(v for d, v in enumerate(loops) if d not in self.dims)
        inner = tuple(v for d, v in enumerate(loops) if d in self.dims)
        long = [d for d, v in enumerate(loops) if v.extent != 1]
        rows = bool(kept) and bool(long) and long[-1] not in self.dims and made.dtype.size != 2
        offset = ravel(positions(kept), made.shape)
        node = at.node(x, positions(loops))
        at.add(plan.Reduce(kept, inner, rows, op.result, offset, node, self.fn, made.dtype,
                           op.place))


@dataclass(frozen=True)
class ArgReduce(Kind):
    """fn min or max: first position."""

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

    def batch(self, op: Op, given: Sequence[Value | None], at: Batch) -> Sequence[Value]:
        return [at.emit(self.but(dim=self.dim + 1), *at.every(op, given))]

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        inner = at.natural(op.operands[0], self.dim)
        kept = at.computed(op, window, [inner])
        return [(*kept[: self.dim], inner, *kept[self.dim :])]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        """Return the first position of the extreme: each rank finds its own, then the first of
        those that are the extreme of all."""
        (held,), d, fn = self.needs(op, window, at), self.dim, self.fn
        index = build.emit(self, operands)
        axes = held[d].axes
        kept = (*held[:d], *held[d + 1 :])
        if not axes:
            return at.part(index, kept, window, build)
        low, high = held[d].bounds(at.mesh)
        best = at.wide(self.found(operands[0], index, build), build)
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
        return at.part(first, kept, window, build)

    def found(self, x: Value, index: Value, build: Builder) -> Value:
        """Return the extreme of a rank: of one lane it is read where it stands, without a second
        pass."""
        if x.type.ndim > 1:
            return build.emit(Reduce(self.fn, (self.dim,)), (x,))
        (n,), dtype = x.type.shape, x.type.dtype
        some = build.map("gt", build.integer(n), build.integer(expr.const(0)))
        value = build.emit(Gather((0,), 0), (x, index))
        return build.map("select", some, value, build.full(neutral(self.fn, dtype), dtype, ()))

    def steps(self, op: Op, at: Maker) -> None:
        (x,) = op.operands
        loops = loop_vars(x.type.shape)
        rest = tuple(v for d, v in enumerate(loops) if d != self.dim)
        offset = ravel(positions(rest), op.result.type.shape)
        node = at.node(x, positions(loops))
        at.add(plan.Lane(self.name, rest, loops[self.dim], op.result, offset, expr.const(0),
                         x.type.dtype, self.fn, node, (), op.place))


class Lane(Kind):
    """A kind that works on lines along `dim`, each for itself. Its `steps` are those of kinds whose
    results have the operand's shape."""

    dim: int

    def batch(self, op: Op, given: Sequence[Value | None], at: Batch) -> Sequence[Value]:
        return [at.emit(self.but(dim=self.dim + 1), *at.every(op, given))]

    def work(self, op: Op) -> Iterable[Shape]:
        return [(*op.operands[0].type.shape, expr.const(TARGET.sort_steps))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        entries = enumerate(layout_of(operands[0]))
        return (() if d == self.dim else entry for d, entry in entries)

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        """Return the operand's part that has the lanes whole, and the other dims as wanted."""
        d, x = self.dim, op.operands[0]
        return [(*window[:d], whole(x.type.shape[d]), *window[d + 1 :])]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        d = self.dim
        held = (*window[:d], whole(op.result.type.shape[d]), *window[d + 1 :])
        return at.part(build.emit(self, operands), held, window, build)

    def steps(self, op: Op, at: Maker) -> None:
        (x,), dim, shape = op.operands, self.dim, op.result.type.shape
        loops = loop_vars(x.type.shape)
        rest = tuple(v for d, v in enumerate(loops) if d != dim)
        first = tuple(expr.const(0) if d == dim else i for d, i in enumerate(positions(loops)))
        node = at.node(x, positions(loops))
        at.add(plan.Lane(self.name, rest, loops[dim], op.result, ravel(first, shape),
                         strides(shape)[dim], x.type.dtype, getattr(self, "fn", ""), node,
                         self.scratch(op, at), op.place))

    def scratch(self, op: Op, at: Maker) -> tuple[Value, ...]:
        """Return the memory that a lane needs beside its result."""
        return ()


@dataclass(frozen=True)
class Cumulative(Lane):
    """Running COMBINE[fn] along a dim."""

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
        made = combine(self.fn).accumulate(x, axis=self.dim, dtype=_summed_in(x))
        return [made.astype(x.dtype)]

    def vjp(self, op: Op, given: Sequence[Value | None], at: Reverse) -> Sequence[Value | None]:
        (g,) = given
        assert g is not None
        return [running_back.back(op, g, at)]

    def title(self) -> str:
        return "a running total"

    def finite(self, op: Op, value: Value, at: Instrument) -> Value | None:
        if self.fn not in _TOTALS:
            return None
        byte = dtypes.BY_NAME["uint8"]
        bits = at.cast(at.not_finite(op.operands[0]), byte)
        before = at.emit(Cumulative("max", self.dim), (bits,))
        return at.unless(value, at.map("ne", before, at.full(0, byte, value.type.shape)))

    def exact(self, op: Op, at: Instrument) -> Value | None:
        return at.emit(self, at.floats(op)) if self.fn in _TOTALS else None

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        return [window]

    def depends(self, op: Op, window: Window, at: Localizer) -> list[Window | None]:
        return [*super().needs(op, window, at)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        """Return the running values of this rank's part, which continue after the totals of the
        ranks before."""
        d, fn = self.dim, self.fn
        axes = window[d].axes
        if not axes:
            return build.emit(self, operands)
        operands = [at.wide(x, build) for x in operands]
        value = build.emit(self, operands)
        total = _last(value, d, fn, build)
        before = build.emit(Fold(axes, fn, "before"), (total,))
        dims = tuple(k for k in range(len(window)) if k != d)
        before = build.emit(Broadcast(dims, value.type.shape), (before,))
        mine, value = value, build.emit(Map(COMBINE[fn]), (before, value))
        kind = mine.type.dtype.kind
        if fn == "add" and kind in "fc" or fn == "mul" and kind == "c":  # no neutral keeps all bits
            zero = build.integer(expr.const(0))
            first = build.map("eq", build.integer(at.mesh.position(axes)), zero)
            first = build.emit(Broadcast((), value.type.shape), (first,))
            value = build.map("select", first, mine, value)
        return build.cast(value, op.result.type.dtype)

    def steps(self, op: Op, at: Maker) -> None:
        """Fold row after row, where memory lies in rows across the dim."""
        (x,), made, d = op.operands, op.result.type, self.dim
        if made.dtype.size == 2 or all(e == 1 for e in made.shape[d + 1 :]):
            super().steps(op, at)
            return
        loops, sweeps = loop_vars(made.shape), []
        for begin in (0, 1):
            rest = expr.most(0, made.shape[d] - 1)
            along = replace(loops[d], extent=rest) if begin else loops[d]
            here = begin * (positions((along,))[0] + 1)
            index = tuple(here if k == d else i for k, i in enumerate(positions(loops)))
            offset, value = ravel(index, made.shape), at.node(x, index)
            if begin:
                before = plan.Load(op.result, offset - strides(made.shape)[d])
                value = plan.Apply(COMBINE[self.fn], made.dtype, (before, value), made.dtype)
            store = plan.Store((), op.result, offset, value, place=op.place)
            sweeps.append(plan.Sweep((along,) * begin + loops[d + 1 :], (store,)))
        at.add(plan.Nest(loops[:d], tuple(sweeps), op.place))


def _last(value: Value, d: int, fn: str, build: Builder) -> Value:
    """Return the last of running totals along a dim; the neutral element where there is none."""
    (dtype, shape), zero = (value.type.dtype, value.type.shape), expr.const(0)
    one = expr.minimum(shape[d], 1)
    start = tuple(shape[d] - one if k == d else zero for k in range(len(shape)))
    wide = tuple(one if k == d else e for k, e in enumerate(shape))
    last = build.emit(Slice(start, (1,) * len(shape), wide, cut=True), (value,))
    last = build.emit(Reduce("max", (d,)), (last,))  # of one element: to the bit
    some = build.map("gt", build.integer(shape[d]), build.integer(zero))
    some = build.emit(Broadcast((), last.type.shape), (some,))
    nothing = build.full(neutral_sign(fn, dtype), dtype, last.type.shape)
    return build.map("select", some, last, nothing)


@dataclass(frozen=True)
class Sort(Lane):
    """Ascending; integers, or complex numbers, NaN last."""

    name = "sort"
    dim: int

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.sort(operands[0], axis=self.dim, kind="stable")]

    def vjp(self, op: Op, given: Sequence[Value | None], at: Reverse) -> Sequence[Value | None]:
        (x,), (g,), shape = op.operands, given, op.operands[0].type.shape
        assert g is not None
        order = at.emit(ArgSort(self.dim), x)
        places = [order if d == self.dim else at.emit(Iota(d, dtypes.INT64, shape))
                  for d in range(len(shape))]
        into = at.zeros(x.type, g.type.dtype)
        return [at.emit(Scatter(tuple(range(len(shape))), 0, "set"), into, g, *places)]

    def scratch(self, op: Op, at: Maker) -> tuple[Value, ...]:
        room = 2 * op.result.type.shape[self.dim]
        return (at.spare(f"{op.result.name}_lane", op.operands[0].type.dtype, room),)


@dataclass(frozen=True)
class ArgSort(Lane):
    """The positions in which `sort` has the elements; stable."""

    name = "argsort"
    flat = True
    dim: int

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(dtypes.INT64, types[0].shape)]

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.argsort(operands[0], axis=self.dim, kind="stable").astype(np.int64)]

    def scratch(self, op: Op, at: Maker) -> tuple[Value, ...]:
        room = op.result.type.shape[self.dim]
        lane = at.spare(f"{op.result.name}_lane", op.operands[0].type.dtype, room)
        return lane, at.spare(f"{op.result.name}_order", dtypes.INT64, room * 5)
