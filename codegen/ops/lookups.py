"""Ops at indices that data decides: reads are clamped, writes beyond the ends are dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.functions import COMBINE, neutral_sign
from codegen.ir.cuts import Cut, Window, whole
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import Index, loop_vars, or_zero, positions, ravel, with_bounds
from codegen.ir.plan import Bound, Store
from codegen.ops.control import Relayout
from codegen.ops.counting import counted, within
from codegen.ops.group import combine
from codegen.ops.kind import Array, Eval, Kind, Types, behind, dropped, extents, layout_of
from codegen.ops.maps import Map
from codegen.ops.reshapes import OnceAtZero
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
from codegen.ops.sources import Full, Iota
from codegen.ops.views import Broadcast, Transpose, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.target import TARGET


@dataclass(frozen=True)
class DynamicSlice(Kind):
    """Return a box of x; a 0-d int64 operand per dim is its start, clamped so that the box fits. A
    box that is larger than x is zeros."""

    name = "dynamic_slice"
    rereads = True
    inline = True
    shape: Shape

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, tuple(self.shape))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        x = operands[0]
        kept = zip(result.shape, x.shape, layout_of(x), strict=True)
        return (entry if m == e else () for m, e, entry in kept)

    def claims(self, op: Op, proofs: Proofs) -> None:
        """Claim that the box has no negative extent; it may be larger than the array, which gives
        zeros."""
        proofs.no_less_than_nothing(op.result.type.shape)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, starts = operands[0], operands[1:]
        shape = extents(self.shape, value)
        if x.size == 0 or 0 in shape:  # nothing to read: zeros, as where nothing is received
            return [np.zeros(shape, x.dtype)]
        box = tuple(
            slice(start, start + n)
            for start, n in (
                (min(max(int(s), 0), have - n), n)
                for s, have, n in zip(starts, x.shape, shape, strict=True)
            )
        )
        return [x[box]]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (x, *starts), (g,) = op.operands, cotangents
        assert g is not None
        nothing = [None] * len(starts)
        places = [builder.clipped(s, e - m) for s, e, m in zip(starts, x.type.shape, self.shape)]
        return [builder.emit(DynamicUpdate(), builder.zeros(x.type, g.type.dtype), g, *places),
                *nothing]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Take a box of all members at one place; gather where each has a place of its own."""
        (x, *starts), (_, *own) = op.operands, stacked
        (wide,) = batch.every_of([x], stacked[:1])
        if not any(own):
            kind = self.but(shape=(batch.n, *self.shape))
            return [batch.emit(kind, wide, batch.integer(0), *starts)]
        fits = expr.product(expr.ge0(e - m) for e, m in zip(x.type.shape, self.shape))
        moved = [d for d, (e, m) in enumerate(zip(x.type.shape, self.shape)) if e != m]
        shape = (batch.n, *(self.shape[d] for d in moved))
        places = [batch.counted(0, shape)]
        for k, d in enumerate(moved, 1):
            (first,) = batch.every_of(starts[d : d + 1], own[d : d + 1])
            first = batch.clipped(first, x.type.shape[d] - self.shape[d])
            places.append(batch.map("add", batch.along(first, shape), batch.counted(k, shape)))
        result = batch.emit(Gather((0, *behind(moved)), 0), wide, *places)
        rest = [d for d in range(x.type.ndim) if d not in moved]
        result = batch.emit(Transpose((0, *behind(_places_in([*moved, *rest])))), result)
        return [batch.where(fits, result)]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        x, *starts = op.operands
        bounds, inner = [], []
        fits = expr.const(1)
        for d, start in enumerate(starts):
            limit = x.type.shape[d] - op.result.type.shape[d]
            fits = fits * expr.ge0(limit)
            bound = resolver.bound(start, (), limit)
            bounds.append(bound)
            inner.append(expr.symbol(bound.sym) + index[d])
        node = with_bounds(resolver.node(x, tuple(inner)), tuple(bounds))
        return or_zero(fits, node, op.result.type.dtype)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        x, *starts = op.operands
        part = tuple(
            c if still(s, m, e, shards) else whole(e)
            for c, s, m, e in zip(window, starts, self.shape, x.type.shape, strict=True)
        )
        return [part, *[()] * len(starts)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        x, *starts = op.operands
        held = tuple(
            c if still(s, m, e, shards) else whole(m)
            for c, s, m, e in zip(window, starts, self.shape, x.type.shape, strict=True)
        )
        value = build.emit(self.but(shape=shards.shape(held)), operands)
        return shards.part(value, held, window, build)


@dataclass(frozen=True)
class DynamicUpdate(Kind):
    """Write v into x at a start per dim; elements that fall outside x are dropped. Operands: x, v,
    starts."""

    name = "dynamic_update"
    in_place = True
    reads = "points"

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        x, v = operands[:2]
        return layout_of(v if x.free and v.ndim == x.ndim else x)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, v, starts = operands[0], operands[1], operands[2:]
        out = x.copy()
        into, part = [], []
        for start, have, n in zip(starts, x.shape, v.shape, strict=True):
            first = int(start)
            low, high = max(first, 0), max(min(first + n, have), max(first, 0))
            into.append(slice(low, high))
            part.append(slice(low - first, high - first))
        out[tuple(into)] = v[tuple(part)]
        return [out]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (x, v, *starts), (g,) = op.operands, cotangents
        assert g is not None
        nothing = [None] * len(starts)
        kept, part = None, None
        if x in builder.active:
            kept = builder.emit(self, g, builder.zeros(v.type, g.type.dtype), *starts)
        if v in builder.active:  # of an array with room around it, which takes what fell outside
            room = v.type.shape
            wide = tuple(e + 2 * m for e, m in zip(x.type.shape, room))
            around = builder.zeros(ArrayType(g.type.dtype, wide))
            around = builder.emit(Update(room, (1,) * len(room)), around, g)
            moved = [builder.map("add", s, builder.integer(m)) for s, m in zip(starts, room)]
            part = builder.emit(DynamicSlice(room), around, *moved)
        return [kept, part, *nothing]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Write at one place for all members; scatter where each has a place of its own."""
        (_, v, *starts), (_, _, *own) = op.operands, stacked
        wide = batch.every_of(op.operands[:2], stacked[:2])
        if not any(own):
            return [batch.emit(self, *wide, batch.integer(0), *starts)]
        shape = (batch.n, *v.type.shape)
        places = [batch.counted(0, shape)]
        for k, first in enumerate(batch.every_of(starts, own), 1):
            places.append(batch.map("add", batch.along(first, shape), batch.counted(k, shape)))
        return [batch.emit(Scatter(tuple(range(len(shape))), 0, "set"), *wide, *places)]

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        return shards.natural(op.operands[0], dim)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        x, v, *starts = op.operands
        part = tuple(
            c if still(s, m, e, shards) else whole(m)
            for c, s, m, e in zip(window, starts, v.type.shape, x.type.shape, strict=True)
        )
        return [window, part, *[()] * len(starts)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        x, v, *starts = op.operands
        local = []
        for d, (start, low) in enumerate(zip(starts, shards.lows(window), strict=True)):
            first = operands[2 + d]
            if low != 0 and not still(start, v.type.shape[d], x.type.shape[d], shards):
                first = build.emit(Map("sub"), (first, build.integer(low)))
            local.append(first)
        return build.emit(self, [*operands[:2], *local])

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        into = builder.take_over(op)
        x, v, *starts = op.operands
        loops = loop_vars(v.type.shape)
        index = positions(loops)
        bounds, first = [], []
        for d, start in enumerate(starts):
            bound = builder.bound(start, (), x.type.shape[d] - 1)
            bounds.append(Bound(bound.sym, bound.node, bound.limit, index[d]))
            first.append(expr.symbol(bound.sym) + index[d])
        target, node = ravel(tuple(first), x.type.shape), builder.node(v, index)
        builder.add(Store(loops, into, target, node, "set", tuple(bounds), op.place))


@dataclass(frozen=True)
class Gather(Kind):
    """Take elements of x at index arrays of one shape, for these dims; their dims stand at dim
    `index_dim` of the result."""

    name = "gather"
    rereads = True
    inline = True
    dims: tuple[int, ...]
    index_dim: int

    def infer(self, types: Types) -> list[ArrayType]:
        x, index = types[0], types[1]
        rest = dropped(x.shape, self.dims)
        return [ArrayType(x.dtype,
                          (*rest[: self.index_dim], *index.shape, *rest[self.index_dim :]))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        x, *index = operands
        rest = [entry for d, entry in enumerate(layout_of(x)) if d not in self.dims]
        points = [next(filter(None, entries), ()) for entries in zip(*map(layout_of, index))]
        return (*rest[: self.index_dim], *points, *rest[self.index_dim :])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, index = operands[0], operands[1:]
        dims, first = list(self.dims), self.index_dim
        front = np.moveaxis(x, dims, range(len(dims)))
        if 0 in front.shape[: len(dims)]:
            picked = np.zeros((*index[0].shape, *front.shape[len(dims) :]), x.dtype)
        else:
            clamped = tuple(np.clip(k, 0, n - 1) for k, n in zip(index, front.shape, strict=False))
            picked = front[clamped]
        k = index[0].ndim
        return [np.moveaxis(picked, range(k), range(first, first + k))]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (x, *index), (g,) = op.operands, cotangents
        assert g is not None
        places = [builder.clipped(k, x.type.shape[d] - 1) for k, d in zip(index, self.dims)]
        nothing = builder.zeros(x.type, g.type.dtype)
        cotangent = builder.emit(Scatter(self.dims, self.index_dim, "add"), nothing, g, *places)
        return [cotangent, *[None] * len(index)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Look up all members at the same places; or at places of their own, with the dim of
        members as one more dim that is looked up."""
        (x, *index), (own, *places) = op.operands, stacked
        if not any(places):
            assert own is not None
            return [batch.emit(Gather(behind(self.dims), self.index_dim + 1), own, *index)]
        points = batch.every_of(index, places)
        if own is None:
            result = batch.emit(self, x, *points)
        else:
            number = batch.counted(0, points[0].type.shape)
            result = batch.emit(Gather((0, *behind(self.dims)), self.index_dim), own, number,
                                *points)
        return [batch.moved(result, self.index_dim, 0)]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        x, *indices = op.operands
        inner, bounds = resolver.picked(indices, self, x.type.shape, index)
        fits = expr.product(expr.ge(x.type.shape[d], 1) for d in self.dims)
        return or_zero(fits, with_bounds(resolver.node(x, inner), bounds), op.result.type.dtype)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        x, *index = op.operands
        points, along = self._counted_points(op, window, shards)
        kept = iter((*window[: self.index_dim], *window[self.index_dim + len(points) :]))
        held = tuple(points[along[d]] if d in along else whole(e) if d in self.dims else next(kept)
                     for d, e in enumerate(x.type.shape))
        return [held, *[points] * len(index)]

    def depends(self, op: Op, window: Window, shards: Shards) -> list[Window | None]:
        _, along = self._counted_points(op, window, shards)
        held, *points = self.needs(op, window, shards)
        return [held, *(None if d in along else part for d, part in zip(self.dims, points))]

    def _counted_points(
        self, op: Op, window: Window, shards: Shards
    ) -> tuple[Window, dict[int, int]]:
        """Return the window of the index arrays, and a mapping from dims of x to their dims: along
        these the indices count 0, 1, 2, …, so that a rank needs the same part of both dims."""
        x, *index = op.operands
        points = window[self.index_dim : self.index_dim + index[0].type.ndim]
        along = counted(index, self.dims, x.type.shape, shards.defs)
        return points, {d: j for d, j in along.items() if within(points[j])}

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        x, *index = operands
        _, along = self._counted_points(op, window, shards)
        local = [build.emit(Iota(along[d], k.type.dtype, k.type.shape)) if d in along else k
                 for d, k in zip(self.dims, index)]
        return build.emit(self, [x, *local])


_ELEMENTS_A_POINT = 4  # of the result: with more for each point, points are few


@dataclass(frozen=True)
class Scatter(Kind):
    """Write v into x at index arrays, one for each of `dims`: replace elements (fn "set"), or
    combine them by COMBINE[fn]. Operands: x, v, index arrays; v has the shape of a gather's
    result."""

    name = "scatter"
    without_vjp = "np.add.at, np.multiply.at, np.maximum.at, x[i] = y: they have derivatives"
    in_place = True
    reads = "points"
    dims: tuple[int, ...]
    index_dim: int
    fn: str

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, v, index = operands[0], operands[1], operands[2:]
        dims, first, k = list(self.dims), self.index_dim, operands[2].ndim
        adds = self.fn in ("add", "mul")
        out = x.astype(dtypes.numpy_dtype(dtypes.folded_in(_known(x)))) if adds else x.copy()
        front = np.moveaxis(out, dims, range(len(dims)))  # a view of `out`
        values = np.moveaxis(v, range(first, first + k), range(k))
        inside = np.ones(index[0].shape, bool)
        for position, extent in zip(index, front.shape, strict=False):
            inside &= (position >= 0) & (position < extent)
        where = tuple(position[inside] for position in index)
        if self.fn == "set":
            # in order: of several elements for one point, the last one stays
            for *point, element in zip(*where, values[inside], strict=True):
                front[tuple(point)] = element
        else:
            combine(self.fn).at(front, where, values[inside].astype(out.dtype))
        return [out.astype(x.dtype)]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (_, v, *index), (g,) = op.operands, cotangents
        assert g is not None
        nothing = [None] * len(index)
        if self.fn in ("min", "max", "fmin", "fmax"):
            return [*self._of_extremes(op, g, builder), *nothing]
        if self.fn == "mul":
            return [*self._of_products(op, g, builder), *nothing]
        if self.fn not in ("set", "add"):
            raise builder.none(op)
        kept, part = g, None
        if self.fn == "set":
            kept = builder.emit(self, g, builder.zeros(v.type, g.type.dtype), *index)
        if v in builder.active:
            part = builder.emit(Gather(self.dims, self.index_dim), g, *index)
            part = builder.map("select", self._spread_counts(op, builder), part,
                               builder.full(0, part))
        return [kept, part, *nothing]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Write all members at the same places; or at places of their own, with the dim of members
        as one more dim of the places."""
        (_, _, *index), (_, _, *places) = op.operands, stacked
        x, v = batch.every_of(op.operands[:2], stacked[:2])
        if not any(places):
            kind = self.but(dims=behind(self.dims), index_dim=self.index_dim + 1)
            return [batch.emit(kind, x, v, *index)]
        points = batch.every_of(index, places)
        kind = self.but(dims=(0, *behind(self.dims)))
        number = batch.counted(0, points[0].type.shape)
        return [batch.emit(kind, x, batch.moved(v, 0, self.index_dim), number, *points)]

    def _of_extremes(self, op: Op, g: Value, builder: GradientBuilder) -> Sequence[Value]:
        """Give the cotangent to the element that is the extreme; equal ones share it."""
        (x, v, *index), gather = op.operands, Gather(self.dims, self.index_dim)
        kept = builder.cast(builder.map("eq", x, op.result), g.type.dtype)
        won = builder.map("eq", v, builder.emit(gather, op.result, *index))
        won = builder.cast(builder.map("logical_and", won, self._spread_counts(op, builder)),
                           g.type.dtype)
        count = builder.emit(self.but(fn="add"), kept, won, *index)
        share = builder.map("div", g, builder.map("maximum", count, builder.full(1, count)))
        return builder.map("mul", share,
                           kept), builder.map("mul", builder.emit(gather, share, *index), won)

    def _of_products(self, op: Op, g: Value, builder: GradientBuilder) -> Values:
        """Give each element the product of all others at its place, times the cotangent; this is
        right where some are 0."""
        (x, v, *index), gather = op.operands, Gather(self.dims, self.index_dim)
        kept = builder.map("mul", g, builder.emit(self, builder.full(1, x), v, *index))
        if v not in builder.active:
            return kept, None
        v = builder.emit(OnceAtZero(v.type.shape), v)
        zero = builder.map("eq", v, builder.full(0, v))
        safe = builder.map("select", zero, builder.full(1, v), v)
        product = builder.map("mul", g, builder.emit(self, x, safe, *index))
        part = builder.map("div", builder.emit(gather, product, *index), safe)
        zeros, number = builder.cast(zero, dtypes.INT64), builder.zeros(x.type, dtypes.INT64)
        number = builder.emit(gather, builder.emit(self.but(fn="add"), number, zeros, *index),
                              *index)
        alone = builder.map("eq", number, zeros)  # no zero but this one, if any
        alone = builder.map("logical_and", alone, self._spread_counts(op, builder))
        return kept, builder.map("select", alone, part, builder.full(0, part))

    def _spread_counts(self, op: Op, builder: GradientBuilder) -> Value:
        wide = tuple(range(self.index_dim, self.index_dim + op.operands[2].type.ndim))
        return builder.spread(self._counts(op, builder), wide, op.operands[1].type.shape)

    def _counts(self, op: Op, builder: GradientBuilder) -> Value:
        """Return, for each point, whether its value reaches the result: the point is inside, and
        for "set" the last one of those at its place."""
        x, _, *index = op.operands
        shape = index[0].type.shape
        extents = [x.type.shape[d] for d in self.dims]
        counts = builder.full(True, builder.map("eq", index[0], index[0]))
        for k, e in zip(index, extents):
            least = builder.map("ge", k, builder.integer(0, shape))
            counts = builder.map("logical_and", counts, least)
            counts = builder.map("logical_and", counts,
                                 builder.map("lt", k, builder.integer(e, shape)))
        if self.fn == "set":
            total = expr.product(shape)
            line = builder.emit(Iota(0, dtypes.INT64, (total,)))
            number = builder.reshaped(line, shape)
            table = builder.zeros(ArrayType(dtypes.INT64, tuple(extents)))
            dims = tuple(range(len(extents)))
            table = builder.emit(Scatter(dims, 0, "set"), table, number, *index)
            last = builder.map("eq", builder.emit(Gather(dims, 0), table, *index), number)
            counts = builder.map("logical_and", counts, last)
        return counts

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        return shards.natural(op.operands[0], dim)

    def spread(self, op: Op, window: Window, shards: Shards) -> Window | None:
        """Return the points that each rank combines into a result of its own, which ranks then
        reduce, where that is less work than combining all points on every rank; else None. If
        points are few, each rank takes all of them and combines those that fall into its part."""
        x, v, *index = op.operands
        spare = expr.product(x.type.shape) - _ELEMENTS_A_POINT * expr.product(v.type.shape)
        usual = {s: expr.const(TARGET.many_ranks[0]) for s in spare.symbols() if s.kind == "size"}
        few = expr.nonneg(spare.subst(usual))
        if self.fn == "set" or few or self._counted_dims(op, window, shards):
            return None
        used = {a for d, c in enumerate(window) if d not in self.dims for a in c.axes}
        points = []
        for d, extent in enumerate(index[0].type.shape):
            cut = shards.natural(index[0], d)
            cut = cut if cut.axes else shards.natural(v, self.index_dim + d)
            cut = whole(extent) if used & set(cut.axes) else cut
            used |= set(cut.axes)
            points.append(cut)
        return tuple(points) if any(cut.axes for cut in points) else None

    def summed(self, op: Op, window: Window, shards: Shards) -> list[Cut] | None:
        """Return the parts of the points over which ranks compute partial sums, where the points
        are added to zeros; else None."""
        into = shards.defs.get(op.operands[0])
        while into is not None and isinstance(into.kind, Relayout):
            into = shards.defs.get(into.operands[0])
        if self.fn != "add" or into is None or not isinstance(into.kind, Full) or into.kind.value:
            return None
        points = self.spread(op, window, shards)
        return None if points is None else list(points)

    def _counted_dims(self, op: Op, window: Window, shards: Shards) -> dict[int, int]:
        """Return a mapping from dims of the index arrays to dims of x: along these the indices
        count 0, 1, 2, …, so that a rank needs only the points in its own part of x."""
        x, _, *index = op.operands
        along = counted(index, self.dims, x.type.shape, shards.defs)
        return {j: d for d, j in along.items() if window[d].axes and within(window[d])}

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        x, v, *index = op.operands
        along = self._counted_dims(op, window, shards)
        part = self.spread(op, window, shards) or tuple(
            window[along[j]] if j in along else whole(e)
            for j, e in enumerate(index[0].type.shape))
        rest = tuple(c for d, c in enumerate(window) if d not in self.dims)
        return [window, (*rest[: self.index_dim], *part, *rest[self.index_dim :]),
                *[part] * len(index)]

    def depends(self, op: Op, window: Window, shards: Shards) -> list[Window | None]:
        along = self._counted_dims(op, window, shards).values()
        x, v, *points = self.needs(op, window, shards)
        return [x, v, *(None if d in along else part for d, part in zip(self.dims, points))]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        points = self.spread(op, window, shards)
        if points is not None:
            return self.combine(op, window, points, operands, build, shards)
        x, v, *index = operands
        if self.fn in ("add", "mul"):
            x, v = shards.wide(x, build), shards.wide(v, build)
        result = build.emit(self, [x, v, *self.from_lows(index, window, build, shards)])
        return build.cast(result, op.result.type.dtype)

    def from_lows(
        self, index: Sequence[Value], window: Window, build: GraphBuilder, shards: Shards
    ) -> list[Value]:
        """Return indices of the array as indices of a part of it."""
        lows, local = shards.lows(window), list(index)
        for k, d in enumerate(self.dims):
            if lows[d] != 0:
                low = build.emit(Broadcast((), index[k].type.shape), (build.integer(lows[d]),))
                local[k] = build.emit(Map("sub"), (index[k], low))
        return local

    def combine(
        self, op: Op, window: Window, points: Window, operands: list[Value], build: GraphBuilder,
        shards: Shards,
    ) -> Value:
        """Combine the points of each rank into neutral elements, reduce over ranks, and combine the
        total with x. A rank then has all of x, except for dims that other axes split than those
        that split the points."""
        x, v, *index = operands
        fn, shape, dtype, axes = self.fn, op.result.type.shape, x.type.dtype, shards.axes_of(points)
        kept = tuple(whole(e) if d in self.dims and set(c.axes) & set(axes) else c
                     for d, (c, e) in enumerate(zip(window, shape)))
        wide = dtypes.folded_in(dtype)
        nothing = build.emit(Full(neutral_sign(fn, wide), wide, shards.shape(kept)))
        local = self.from_lows(index, kept, build, shards)
        mine = build.emit(self, (nothing, build.cast(v, wide), *local))
        if op.result in shards.later:  # x is zeros
            return shards.part(mine, kept, window, build)
        total = shards.over(axes, op, kept, window, mine, fn, build)
        result = build.emit(Map(COMBINE[fn]), (build.cast(x, wide), total))
        return build.cast(result, dtype)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        into = builder.take_over(op)
        x, v, *indices = op.operands
        loops = loop_vars(v.type.shape)
        index = positions(loops)
        inner, bounds = builder.picked(indices, self, x.type.shape, index)
        target, node = ravel(inner, x.type.shape), builder.node(v, index)
        builder.add(Store(loops, into, target, node, self.fn, bounds, op.place))


def _known(x: Array) -> DType:
    dtype = dtypes.from_numpy(x.dtype)
    assert dtype is not None
    return dtype


def _places_in(dims: Sequence[int]) -> list[int]:
    """Return the position of each dim 0, 1, … in `dims`."""
    return [dims.index(d) for d in range(len(dims))]


def still(start: Value, moved: Expr, extent: Expr, shards: Shards) -> bool:
    """Return whether a dynamic box covers all of a dim: it starts at 0, and `moved`, its extent, is
    the dim's extent."""
    op = shards.defs.get(start)
    is_zero = op is not None and isinstance(op.kind, Full) and op.kind.value == 0
    return is_zero and moved == extent
