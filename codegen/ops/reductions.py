"""Ops along whole dims: reductions, running ones, sorting lanes, products of matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from codegen import dtypes
from codegen.functions import COMBINE, neutral
from codegen.ir import ArrayType, Op, Value
from codegen.layouts.cuts import Cut, Window, whole
from codegen.mesh import joined_layout
from codegen.ops.exchanges import Fold
from codegen.ops.group import combine
from codegen.ops.kind import Array, Eval, Kind, Types, dropped, layout_of
from codegen.ops.maps import Map
from codegen.ops.views import Broadcast
from codegen.plan import grammar as plan
from codegen.plan.indexing import affine, loop_vars, positions, ravel, strides
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr

if TYPE_CHECKING:
    from codegen.kit import Builder
    from codegen.layouts.localize import Localizer
    from codegen.passes.instrument import Instrument
    from codegen.passes.to_loops import Maker


GEMM = {
    name: plan.Routine("openblas", f"{kind}gemm", "void", f"int, int, int, int, int, int, {more}")
    for name, kind, more in (
        ("float32", "s", "float, const float *, int, const float *, int, float, float *, int"),
        ("float64", "d", "double, const double *, int, const double *, int, double, double *, int"),
        *((name, kind, "const void *, const void *, int, const void *, int, const void *, void *, "
           "int") for name, kind in (("complex64", "c"), ("complex128", "z"))),
    )
}
_SMALL = 12  # the summed extent and another one, of products for which a call is too much
_FOUR = 4
_TOTALS = ("add", "mul")  # what may leave the range of a type


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
        return [np.asarray(ufunc.reduce(x, axis=dims, dtype=x.dtype))]

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

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        inner = at.natural(op.operands[0], self.dim)
        kept = at.computed(op, window, [inner])
        return [(*kept[: self.dim], inner, *kept[self.dim :])]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        """Everybody's first extreme; the first of those that are the extreme of all."""
        (held,), d, fn = self.needs(op, window, at), self.dim, self.fn
        index = build.emit(self, operands)
        axes = held[d].axes
        kept = (*held[:d], *held[d + 1 :])
        if not axes:
            return at.part(index, kept, window, build)
        low, high = held[d].bounds(at.mesh)
        best = at.wide(build.emit(Reduce(fn, (d,)), operands), build)
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

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        entries = enumerate(layout_of(operands[0]))
        return (() if d == self.dim else entry for d, entry in entries)

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        """The line whole, the other dims as wanted."""
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
        """Memory that a lane needs beside its result."""
        return ()


@dataclass(frozen=True)
class Cumulative(Lane):
    """Running COMBINE[fn] along a dim."""

    name = "cumulative"
    held = True
    reads = "points"
    fn: str
    dim: int

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,) = operands
        return [combine(self.fn).accumulate(x, axis=self.dim, dtype=x.dtype)]

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

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        """Of my part, after the totals of those before me."""
        d, fn = self.dim, self.fn
        axes = window[d].axes
        if not axes:
            return build.emit(self, operands)
        operands = [at.wide(x, build) for x in operands]
        value = build.emit(self, operands)
        total = build.emit(Reduce(fn, (d,)), operands)
        before = build.emit(Fold(axes, fn, "before"), (total,))
        dims = tuple(k for k in range(len(window)) if k != d)
        before = build.emit(Broadcast(dims, value.type.shape), (before,))
        value = build.emit(Map(COMBINE[fn]), (before, value))
        return build.cast(value, op.result.type.dtype)

    def steps(self, op: Op, at: Maker) -> None:
        """Row after row, where memory lies in rows across the dim."""
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


@dataclass(frozen=True)
class Sort(Lane):
    """Ascending; integers, or complex numbers, NaN last."""

    name = "sort"
    dim: int

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.sort(operands[0], axis=self.dim, kind="stable")]

    def scratch(self, op: Op, at: Maker) -> tuple[Value, ...]:
        room = 2 * op.result.type.shape[self.dim]
        return (at.spare(f"{op.result.name}_lane", op.operands[0].type.dtype, room),)


@dataclass(frozen=True)
class ArgSort(Lane):
    """The positions in which `sort` has the elements; stable."""

    name = "argsort"
    dim: int

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(dtypes.INT64, types[0].shape)]

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.argsort(operands[0], axis=self.dim, kind="stable").astype(np.int64)]

    def scratch(self, op: Op, at: Maker) -> tuple[Value, ...]:
        room = op.result.type.shape[self.dim]
        lane = at.spare(f"{op.result.name}_lane", op.operands[0].type.dtype, room)
        return lane, at.spare(f"{op.result.name}_order", dtypes.INT64, room * 5)


@dataclass(frozen=True)
class MatMul(Kind):
    """[…, m, k] x […, k, n]; equal leading dims."""

    name = "matmul"
    rereads = True
    reads = "boxes"

    def infer(self, types: Types) -> list[ArrayType]:
        a, b = types
        return [ArrayType(a.dtype, (*a.shape[:-1], b.shape[-1]))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        a, b = map(layout_of, operands)
        batch = joined_layout([a[:-2], b[:-2]]) if a[:-2] else ()
        return (*batch, a[-2], b[-1])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        product = np.asarray(np.matmul(operands[0], operands[1]))
        return [product.astype(operands[0].dtype)]  # of bfloat16, NumPy's is float32

    def title(self) -> str:
        return "a product of matrices"

    def finite(self, op: Op, value: Value, at: Instrument) -> Value | None:
        a, b = op.operands
        shape, n = value.type.shape, value.type.ndim
        rows = at.any_of(at.not_finite(a), [n - 1])
        columns = at.any_of(at.not_finite(b), [n - 2])
        batch = tuple(range(n - 2))
        wide = [at.emit(Broadcast((*batch, d), shape), (x,))
                for x, d in ((rows, n - 2), (columns, n - 1))]
        return at.unless(value, at.map("logical_or", *wide))

    def exact(self, op: Op, at: Instrument) -> Value | None:
        return at.emit(self, at.floats(op))

    def between(self, op: Op, window: Window, at: Localizer) -> Cut:
        """The part of the summed dim."""
        a, b = op.operands
        used = {axis for c in window for axis in c.axes}
        of_a, of_b = at.natural(a, a.type.ndim - 1), at.natural(b, b.type.ndim - 2)
        if of_a == of_b:
            return of_a
        free = [c for c in (of_a, of_b) if c.axes and not used & set(c.axes)]
        return free[0] if free else whole(a.type.shape[-1])

    def summed(self, op: Op, window: Window, at: Localizer) -> list[Cut] | None:
        return [self.between(op, window, at)]

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        between = self.between(op, window, at)
        *batch, rows, columns = at.computed(op, window, [between])
        return [(*batch, rows, between), (*batch, between, columns)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        value = build.emit(self, operands)
        return at.combined(op, window, [self.between(op, window, at)], value, "add", build)

    def steps(self, op: Op, at: Maker) -> None:
        (a, b), c = op.operands, op.result
        batch = loop_vars(c.type.shape[:-2])
        (m, n), k = c.type.shape[-2:], a.type.shape[-1]
        mats = [_matrix(v, batch, at) for v in (a, b, c)]
        shapes = ((m, k), (k, n), (m, n))
        routine = GEMM.get(c.type.dtype.name)
        small = [e.is_const and e.value <= _SMALL for e in (m, n, k)]
        short = small[2] and any(small[:2])
        lies = mats[0] if n == 1 else mats[1]
        turned = lies.row == 1 and lies.column != 1
        rows = (n == 1) == turned and not short and c.type.dtype.size != 2
        loops = short or ((m == 1 or n == 1) and (rows or c.type.dtype.kind != "c"))
        if loops or routine is None or not all(
            _blas_can_read(x, s) for x, s in zip(mats, shapes, strict=True)
        ):
            self.by_loops(op, rows, at)
            return
        at.add(plan.Product(batch, m, n, k, mats[0], mats[1], mats[2], c.type.dtype,
                            at.library(routine), op.place))

    def by_loops(self, op: Op, rows: bool, at: Maker) -> None:
        """Where that is faster than a library, or there is none. rows: a row or a column of the
        result is summed up at once, of _FOUR terms in a turn: it is read and written less often."""
        (a, b), made = op.operands, op.result.type
        *kept, i, j, k = loops = loop_vars((*made.shape, a.type.shape[-1]))
        kept += [j, i] if j.extent == 1 else [i, j]
        *batch, row, column, inner = positions(loops)
        fn = "or" if made.dtype.kind == "b" else "add"
        total = None if made.dtype.size == 2 else made.dtype  # as libraries have it
        offset = ravel((*batch, row, column), made.shape)

        def term(inner: Expr) -> plan.Node[Value]:
            factors = at.node(a, (*batch, row, inner)), at.node(b, (*batch, inner, column))
            return plan.Apply("mul", made.dtype, factors, made.dtype)

        if not rows:
            value = term(inner)
            at.add(plan.Reduce(tuple(kept), (k,), False, op.result, offset, value, fn, made.dtype,
                               op.place, total))
            return
        *outer, last = kept
        zero = plan.Literal(neutral(fn, made.dtype), made.dtype)
        at.add(plan.Store(tuple(kept), op.result, offset, zero, place=op.place))
        done = expr.const(0)
        for terms in (_FOUR, 1):
            turns = replace(k, extent=(k.extent - done) // terms)
            begin = done + terms * positions((turns,))[0]
            value = term(begin)
            for more in range(1, terms):
                value = plan.Apply("logical_or" if fn == "or" else fn, made.dtype,
                                   (value, term(begin + more)), made.dtype)
            if turns.extent != 0:
                at.add(plan.Store((*outer, turns, last), op.result, offset, value, fn,
                                  place=op.place))
            done = terms * turns.extent


def _matrix(value: Value, batch: tuple[plan.Var, ...], at: Maker) -> plan.Matrix[Value]:
    last = loop_vars(value.type.shape[-2:], "k")
    node = at.node(value, positions(batch) + positions(last))
    assert isinstance(node, plan.Load), "an operand of matmul lies in memory"
    found = affine(node.offset, last)
    assert found is not None, "an operand of matmul is strided"
    base, (row, column) = found
    return plan.Matrix(node.buffer, base, row, column)


def _blas_can_read(x: plan.Matrix[Value], shape: tuple[Expr, Expr]) -> bool:
    """One stride is 1 (or its extent is), the other is not negative."""
    rows, columns = shape
    along_row = x.column == 1 or columns == 1
    along_column = x.row == 1 or rows == 1
    return (along_row and expr.nonneg(x.row)) or (along_column and expr.nonneg(x.column))
