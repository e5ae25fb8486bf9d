"""Ops at indices known only at run time: reads are clamped, writes beyond the ends dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from codegen.ops.sources import Full, Iota
from codegen.ops.views import Broadcast, Transpose, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.target import TARGET

if TYPE_CHECKING:
    from codegen.checks.claims import Claims
    from codegen.graph.builder import Builder
    from codegen.layouts.localize import Localizer
    from codegen.loops.access import At, Resolver
    from codegen.loops.to_loops import Maker
    from codegen.trace.batching.batch import Batch
    from codegen.trace.derive.reverse import Reverse


@dataclass(frozen=True)
class DynamicSlice(Kind):
    """Take a box of x, of which a 0-d int64 operand per dim says where it starts, clamped so that
    the box fits; else zeros."""

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

    def claims(self, op: Op, at: Claims) -> None:
        """Claim that the box has no negative extent; it may be larger than the array, which gives
        zeros."""
        at.no_less_than_nothing(op.result.type.shape)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, starts = operands[0], operands[1:]
        shape = extents(self.shape, value)
        if x.size == 0 or 0 in shape:  # nothing to read: zeros, as where nothing is received
            return [np.zeros(shape, x.dtype)]
        box = tuple(
            slice(at, at + n)
            for at, n in (
                (min(max(int(s), 0), have - n), n)
                for s, have, n in zip(starts, x.shape, shape, strict=True)
            )
        )
        return [x[box]]

    def vjp(self, op: Op, given: Sequence[Value | None], at: Reverse) -> Sequence[Value | None]:
        (x, *starts), (g,) = op.operands, given
        assert g is not None
        nothing = [None] * len(starts)
        places = [at.clipped(s, e - m) for s, e, m in zip(starts, x.type.shape, self.shape)]
        return [at.emit(DynamicUpdate(), at.zeros(x.type, g.type.dtype), g, *places), *nothing]

    def batch(self, op: Op, given: Sequence[Value | None], at: Batch) -> Sequence[Value]:
        """Take a box of all members at one place; gather where each has a place of its own."""
        (x, *starts), (_, *own) = op.operands, given
        (wide,) = at.every_of([x], given[:1])
        if not any(own):
            what = self.but(shape=(at.n, *self.shape))
            return [at.emit(what, wide, at.integer(0), *starts)]
        fits = expr.product(expr.ge0(e - m) for e, m in zip(x.type.shape, self.shape))
        moved = [d for d, (e, m) in enumerate(zip(x.type.shape, self.shape)) if e != m]
        shape = (at.n, *(self.shape[d] for d in moved))
        places = [at.counted(0, shape)]
        for k, d in enumerate(moved, 1):
            (first,) = at.every_of(starts[d : d + 1], own[d : d + 1])
            first = at.clipped(first, x.type.shape[d] - self.shape[d])
            places.append(at.map("add", at.along(first, shape), at.counted(k, shape)))
        made = at.emit(Gather((0, *behind(moved)), 0), wide, *places)
        rest = [d for d in range(x.type.ndim) if d not in moved]
        made = at.emit(Transpose((0, *behind(_places_in([*moved, *rest])))), made)
        return [at.where(fits, made)]

    def element(self, op: Op, index: Index, at: Resolver) -> At:
        x, *starts = op.operands
        bounds, inner = [], []
        fits = expr.const(1)
        for d, start in enumerate(starts):
            limit = x.type.shape[d] - op.result.type.shape[d]
            fits = fits * expr.ge0(limit)
            bound = at.bound(start, (), limit)
            bounds.append(bound)
            inner.append(expr.symbol(bound.sym) + index[d])
        node = with_bounds(at.node(x, tuple(inner)), tuple(bounds))
        return or_zero(fits, node, op.result.type.dtype)

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        x, *starts = op.operands
        part = tuple(
            c if still(s, m, e, at) else whole(e)
            for c, s, m, e in zip(window, starts, self.shape, x.type.shape, strict=True)
        )
        return [part, *[()] * len(starts)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        x, *starts = op.operands
        found = tuple(
            c if still(s, m, e, at) else whole(m)
            for c, s, m, e in zip(window, starts, self.shape, x.type.shape, strict=True)
        )
        value = build.emit(self.but(shape=at.shape(found)), operands)
        return at.part(value, found, window, build)


@dataclass(frozen=True)
class DynamicUpdate(Kind):
    """Operands x, v, starts; elements that fall outside x are dropped."""

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

    def vjp(self, op: Op, given: Sequence[Value | None], at: Reverse) -> Sequence[Value | None]:
        (x, v, *starts), (g,) = op.operands, given
        assert g is not None
        nothing = [None] * len(starts)
        kept, part = None, None
        if x in at.active:
            kept = at.emit(self, g, at.zeros(v.type, g.type.dtype), *starts)
        if v in at.active:  # of an array with room around it, which takes what fell outside
            room = v.type.shape
            wide = tuple(e + 2 * m for e, m in zip(x.type.shape, room))
            around = at.zeros(ArrayType(g.type.dtype, wide))
            around = at.emit(Update(room, (1,) * len(room)), around, g)
            moved = [at.map("add", s, at.integer(m)) for s, m in zip(starts, room)]
            part = at.emit(DynamicSlice(room), around, *moved)
        return [kept, part, *nothing]

    def batch(self, op: Op, given: Sequence[Value | None], at: Batch) -> Sequence[Value]:
        """Write at one place for all members; scatter where each has a place of its own."""
        (_, v, *starts), (_, _, *own) = op.operands, given
        wide = at.every_of(op.operands[:2], given[:2])
        if not any(own):
            return [at.emit(self, *wide, at.integer(0), *starts)]
        shape = (at.n, *v.type.shape)
        places = [at.counted(0, shape)]
        for k, first in enumerate(at.every_of(starts, own), 1):
            places.append(at.map("add", at.along(first, shape), at.counted(k, shape)))
        return [at.emit(Scatter(tuple(range(len(shape))), 0, "set"), *wide, *places)]

    def lies(self, op: Op, dim: int, at: Localizer) -> Cut | None:
        return at.natural(op.operands[0], dim)

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        x, v, *starts = op.operands
        part = tuple(
            c if still(s, m, e, at) else whole(m)
            for c, s, m, e in zip(window, starts, v.type.shape, x.type.shape, strict=True)
        )
        return [window, part, *[()] * len(starts)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        x, v, *starts = op.operands
        local = []
        for d, (start, low) in enumerate(zip(starts, at.lows(window), strict=True)):
            first = operands[2 + d]
            if low != 0 and not still(start, v.type.shape[d], x.type.shape[d], at):
                first = build.emit(Map("sub"), (first, build.integer(low)))
            local.append(first)
        return build.emit(self, [*operands[:2], *local])

    def steps(self, op: Op, at: Maker) -> None:
        into = at.take_over(op)
        x, v, *starts = op.operands
        loops = loop_vars(v.type.shape)
        index = positions(loops)
        bounds, first = [], []
        for d, start in enumerate(starts):
            bound = at.bound(start, (), x.type.shape[d] - 1)
            bounds.append(Bound(bound.sym, bound.node, bound.limit, index[d]))
            first.append(expr.symbol(bound.sym) + index[d])
        target, node = ravel(tuple(first), x.type.shape), at.node(v, index)
        at.add(Store(loops, into, target, node, "set", tuple(bounds), op.place))


@dataclass(frozen=True)
class Gather(Kind):
    """Take elements of x at index arrays of one shape, for these dims; their dims stand at `at` in
    the result."""

    name = "gather"
    rereads = True
    inline = True
    dims: tuple[int, ...]
    at: int

    def infer(self, types: Types) -> list[ArrayType]:
        x, index = types[0], types[1]
        rest = dropped(x.shape, self.dims)
        return [ArrayType(x.dtype, (*rest[: self.at], *index.shape, *rest[self.at :]))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        x, *index = operands
        rest = [entry for d, entry in enumerate(layout_of(x)) if d not in self.dims]
        points = [next(filter(None, entries), ()) for entries in zip(*map(layout_of, index))]
        return (*rest[: self.at], *points, *rest[self.at :])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, index = operands[0], operands[1:]
        dims, at = list(self.dims), self.at
        front = np.moveaxis(x, dims, range(len(dims)))
        if 0 in front.shape[: len(dims)]:
            picked = np.zeros((*index[0].shape, *front.shape[len(dims) :]), x.dtype)
        else:
            clamped = tuple(np.clip(k, 0, n - 1) for k, n in zip(index, front.shape, strict=False))
            picked = front[clamped]
        k = index[0].ndim
        return [np.moveaxis(picked, range(k), range(at, at + k))]

    def vjp(self, op: Op, given: Sequence[Value | None], at: Reverse) -> Sequence[Value | None]:
        (x, *index), (g,) = op.operands, given
        assert g is not None
        places = [at.clipped(k, x.type.shape[d] - 1) for k, d in zip(index, self.dims)]
        nothing = at.zeros(x.type, g.type.dtype)
        made = at.emit(Scatter(self.dims, self.at, "add"), nothing, g, *places)
        return [made, *[None] * len(index)]

    def batch(self, op: Op, given: Sequence[Value | None], at: Batch) -> Sequence[Value]:
        """Look up all members at the same places; or at places of their own, with the dim of
        members as one more dim that is looked up."""
        (x, *index), (own, *places) = op.operands, given
        if not any(places):
            assert own is not None
            return [at.emit(Gather(behind(self.dims), self.at + 1), own, *index)]
        points = at.every_of(index, places)
        if own is None:
            made = at.emit(self, x, *points)
        else:
            number = at.counted(0, points[0].type.shape)
            made = at.emit(Gather((0, *behind(self.dims)), self.at), own, number, *points)
        return [at.moved(made, self.at, 0)]

    def element(self, op: Op, index: Index, at: Resolver) -> At:
        x, *indices = op.operands
        inner, bounds = at.picked(indices, self, x.type.shape, index)
        fits = expr.product(expr.ge(x.type.shape[d], 1) for d in self.dims)
        return or_zero(fits, with_bounds(at.node(x, inner), bounds), op.result.type.dtype)

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        x, *index = op.operands
        points, along = self._counted_points(op, window, at)
        kept = iter((*window[: self.at], *window[self.at + len(points) :]))
        held = tuple(points[along[d]] if d in along else whole(e) if d in self.dims else next(kept)
                     for d, e in enumerate(x.type.shape))
        return [held, *[points] * len(index)]

    def depends(self, op: Op, window: Window, at: Localizer) -> list[Window | None]:
        _, along = self._counted_points(op, window, at)
        held, *points = self.needs(op, window, at)
        return [held, *(None if d in along else part for d, part in zip(self.dims, points))]

    def _counted_points(
        self, op: Op, window: Window, at: Localizer
    ) -> tuple[Window, dict[int, int]]:
        """Return the part of the points; and those dims of x of which a rank needs the same part,
        with the dim of the points for each."""
        x, *index = op.operands
        points = window[self.at : self.at + index[0].type.ndim]
        along = counted(index, self.dims, x.type.shape, at.defs)
        return points, {d: j for d, j in along.items() if within(points[j])}

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        x, *index = operands
        _, along = self._counted_points(op, window, at)
        local = [build.emit(Iota(along[d], k.type.dtype, k.type.shape)) if d in along else k
                 for d, k in zip(self.dims, index)]
        return build.emit(self, [x, *local])


_ELEMENTS_A_POINT = 4  # of the result: with more for each point, points are few


@dataclass(frozen=True)
class Scatter(Kind):
    """Operands x, v, index arrays; fn set, or of COMBINE; v has gather's result shape."""

    name = "scatter"
    without_vjp = "np.add.at, np.multiply.at, np.maximum.at, x[i] = y: they have derivatives"
    in_place = True
    reads = "points"
    dims: tuple[int, ...]
    at: int
    fn: str

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, v, index = operands[0], operands[1], operands[2:]
        dims, at, k = list(self.dims), self.at, operands[2].ndim
        adds = self.fn in ("add", "mul")
        out = x.astype(dtypes.numpy_dtype(dtypes.folded_in(_known(x)))) if adds else x.copy()
        front = np.moveaxis(out, dims, range(len(dims)))  # a view of `out`
        values = np.moveaxis(v, range(at, at + k), range(k))
        inside = np.ones(index[0].shape, bool)
        for position, extent in zip(index, front.shape, strict=False):
            inside &= (position >= 0) & (position < extent)
        where = tuple(position[inside] for position in index)
        if self.fn == "set":
            for *one, given in zip(*where, values[inside], strict=True):  # in order: the last wins
                front[tuple(one)] = given
        else:
            combine(self.fn).at(front, where, values[inside].astype(out.dtype))
        return [out.astype(x.dtype)]

    def vjp(self, op: Op, given: Sequence[Value | None], at: Reverse) -> Sequence[Value | None]:
        (_, v, *index), (g,) = op.operands, given
        assert g is not None
        nothing = [None] * len(index)
        if self.fn in ("min", "max", "fmin", "fmax"):
            return [*self._of_extremes(op, g, at), *nothing]
        if self.fn == "mul":
            return [*self._of_products(op, g, at), *nothing]
        if self.fn not in ("set", "add"):
            raise at.none(op)
        kept, part = g, None
        if self.fn == "set":
            kept = at.emit(self, g, at.zeros(v.type, g.type.dtype), *index)
        if v in at.active:
            part = at.emit(Gather(self.dims, self.at), g, *index)
            part = at.map("select", self._spread_counts(op, at), part, at.full(0, part))
        return [kept, part, *nothing]

    def batch(self, op: Op, given: Sequence[Value | None], at: Batch) -> Sequence[Value]:
        """Write all members at the same places; or at places of their own, with the dim of members
        as one more dim of the places."""
        (_, _, *index), (_, _, *places) = op.operands, given
        x, v = at.every_of(op.operands[:2], given[:2])
        if not any(places):
            what = self.but(dims=behind(self.dims), at=self.at + 1)
            return [at.emit(what, x, v, *index)]
        points = at.every_of(index, places)
        what = self.but(dims=(0, *behind(self.dims)))
        number = at.counted(0, points[0].type.shape)
        return [at.emit(what, x, at.moved(v, 0, self.at), number, *points)]

    def _of_extremes(self, op: Op, g: Value, at: Reverse) -> Sequence[Value]:
        """Give the cotangent to the element that is the extreme; equal ones share it."""
        (x, v, *index), gather = op.operands, Gather(self.dims, self.at)
        kept = at.cast(at.map("eq", x, op.result), g.type.dtype)
        won = at.map("eq", v, at.emit(gather, op.result, *index))
        won = at.cast(at.map("logical_and", won, self._spread_counts(op, at)), g.type.dtype)
        count = at.emit(self.but(fn="add"), kept, won, *index)
        share = at.map("div", g, at.map("maximum", count, at.full(1, count)))
        return at.map("mul", share, kept), at.map("mul", at.emit(gather, share, *index), won)

    def _of_products(self, op: Op, g: Value, at: Reverse) -> Sequence[Value | None]:
        """Give each element the product of all others at its place, times the cotangent; this is
        right where some are 0."""
        (x, v, *index), gather = op.operands, Gather(self.dims, self.at)
        kept = at.map("mul", g, at.emit(self, at.full(1, x), v, *index))
        if v not in at.active:
            return kept, None
        v = at.emit(OnceAtZero(v.type.shape), v)
        zero = at.map("eq", v, at.full(0, v))
        safe = at.map("select", zero, at.full(1, v), v)
        product = at.map("mul", g, at.emit(self, x, safe, *index))
        part = at.map("div", at.emit(gather, product, *index), safe)
        zeros, number = at.cast(zero, dtypes.INT64), at.zeros(x.type, dtypes.INT64)
        number = at.emit(gather, at.emit(self.but(fn="add"), number, zeros, *index), *index)
        alone = at.map("eq", number, zeros)  # no zero but this one, if any
        alone = at.map("logical_and", alone, self._spread_counts(op, at))
        return kept, at.map("select", alone, part, at.full(0, part))

    def _spread_counts(self, op: Op, at: Reverse) -> Value:
        wide = tuple(range(self.at, self.at + op.operands[2].type.ndim))
        return at.spread(self._counts(op, at), wide, op.operands[1].type.shape)

    def _counts(self, op: Op, at: Reverse) -> Value:
        """Return, per point, whether its value is in the result: it is inside; and of several at
        one place that are set, the last one is."""
        x, _, *index = op.operands
        shape, one = index[0].type.shape, expr.const(1)
        extents = [x.type.shape[d] for d in self.dims]
        counts = at.full(True, at.map("eq", index[0], index[0]))
        for k, e in zip(index, extents):
            least = at.map("ge", k, at.integer(0, shape))
            counts = at.map("logical_and", counts, least)
            counts = at.map("logical_and", counts, at.map("lt", k, at.integer(e, shape)))
        if self.fn == "set":
            total = expr.product(shape) if shape else one
            line = at.emit(Iota(0, dtypes.INT64, (total,)))
            number = at.reshaped(line, shape)
            table = at.zeros(ArrayType(dtypes.INT64, tuple(extents)))
            dims = tuple(range(len(extents)))
            table = at.emit(Scatter(dims, 0, "set"), table, number, *index)
            last = at.map("eq", at.emit(Gather(dims, 0), table, *index), number)
            counts = at.map("logical_and", counts, last)
        return counts

    def lies(self, op: Op, dim: int, at: Localizer) -> Cut | None:
        return at.natural(op.operands[0], dim)

    def spread(self, op: Op, window: Window, at: Localizer) -> Window | None:
        """Return the points that each rank combines, where that is less work than all of them
        everywhere: into a result of its own, which all then reduce. Of few points, each rank takes
        all, and combines those that fall in its part."""
        x, v, *index = op.operands
        spare = expr.product(x.type.shape) - _ELEMENTS_A_POINT * expr.product(v.type.shape)
        usual = {s: expr.const(TARGET.many_ranks[0]) for s in spare.symbols() if s.kind == "size"}
        few = expr.nonneg(spare.subst(usual))
        if self.fn == "set" or few or self._counted_dims(op, window, at):
            return None
        used = {a for d, c in enumerate(window) if d not in self.dims for a in c.axes}
        found = []
        for d, extent in enumerate(index[0].type.shape):
            cut = at.natural(index[0], d)
            cut = cut if cut.axes else at.natural(v, self.at + d)
            cut = whole(extent) if used & set(cut.axes) else cut
            used |= set(cut.axes)
            found.append(cut)
        return tuple(found) if any(cut.axes for cut in found) else None

    def summed(self, op: Op, window: Window, at: Localizer) -> list[Cut] | None:
        """Return the points over which a sum goes, where they are added to zeros."""
        into = at.defs.get(op.operands[0])
        while into is not None and isinstance(into.what, Relayout):
            into = at.defs.get(into.operands[0])
        if self.fn != "add" or into is None or not isinstance(into.what, Full) or into.what.value:
            return None
        points = self.spread(op, window, at)
        return None if points is None else list(points)

    def _counted_dims(self, op: Op, window: Window, at: Localizer) -> dict[int, int]:
        """Return dims of the points of which a rank needs the part that it has of this dim of x."""
        x, _, *index = op.operands
        along = counted(index, self.dims, x.type.shape, at.defs)
        return {j: d for d, j in along.items() if window[d].axes and within(window[d])}

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        x, v, *index = op.operands
        along = self._counted_dims(op, window, at)
        part = self.spread(op, window, at) or tuple(
            window[along[j]] if j in along else whole(e)
            for j, e in enumerate(index[0].type.shape))
        rest = tuple(c for d, c in enumerate(window) if d not in self.dims)
        return [window, (*rest[: self.at], *part, *rest[self.at :]), *[part] * len(index)]

    def depends(self, op: Op, window: Window, at: Localizer) -> list[Window | None]:
        along = self._counted_dims(op, window, at).values()
        x, v, *points = self.needs(op, window, at)
        return [x, v, *(None if d in along else part for d, part in zip(self.dims, points))]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: Builder, at: Localizer
    ) -> Value:
        points = self.spread(op, window, at)
        if points is not None:
            return self.combine(op, window, points, operands, build, at)
        x, v, *index = operands
        if self.fn in ("add", "mul"):
            x, v = at.wide(x, build), at.wide(v, build)
        made = build.emit(self, [x, v, *self.from_lows(index, window, build, at)])
        return build.cast(made, op.result.type.dtype)

    def from_lows(
        self, index: Sequence[Value], window: Window, build: Builder, at: Localizer
    ) -> list[Value]:
        """Return indices of the array as indices of a part of it."""
        lows, local = at.lows(window), list(index)
        for k, d in enumerate(self.dims):
            if lows[d] != 0:
                low = build.emit(Broadcast((), index[k].type.shape), (build.integer(lows[d]),))
                local[k] = build.emit(Map("sub"), (index[k], low))
        return local

    def combine(
        self, op: Op, window: Window, points: Window, operands: list[Value], build: Builder,
        at: Localizer,
    ) -> Value:
        """Combine everybody's points into neutral elements, then all of that into x, as a whole but
        for dims that other axes split than split the points."""
        x, v, *index = operands
        fn, shape, dtype, axes = self.fn, op.result.type.shape, x.type.dtype, at.axes_of(points)
        kept = tuple(whole(e) if d in self.dims and set(c.axes) & set(axes) else c
                     for d, (c, e) in enumerate(zip(window, shape)))
        wide = dtypes.folded_in(dtype)
        nothing = build.emit(Full(neutral_sign(fn, wide), wide, at.shape(kept)))
        local = self.from_lows(index, kept, build, at)
        mine = build.emit(self, (nothing, build.cast(v, wide), *local))
        if op.result in at.later:  # x is zeros
            return at.part(mine, kept, window, build)
        total = at.over(axes, op, kept, window, mine, fn, build)
        made = build.emit(Map(COMBINE[fn]), (build.cast(x, wide), total))
        return build.cast(made, dtype)

    def steps(self, op: Op, at: Maker) -> None:
        into = at.take_over(op)
        x, v, *indices = op.operands
        loops = loop_vars(v.type.shape)
        index = positions(loops)
        inner, bounds = at.picked(indices, self, x.type.shape, index)
        target, node = ravel(inner, x.type.shape), at.node(v, index)
        at.add(Store(loops, into, target, node, self.fn, bounds, op.place))


def _known(x: Array) -> DType:
    dtype = dtypes.from_numpy(x.dtype)
    assert dtype is not None
    return dtype


def _places_in(dims: Sequence[int]) -> list[int]:
    """Return the position of each dim 0, 1, … in `dims`."""
    return [dims.index(d) for d in range(len(dims))]


def still(start: Value, moved: Expr, extent: Expr, at: Localizer) -> bool:
    """Return whether a dim of a dynamic box is the whole dim, in place."""
    op = at.defs.get(start)
    is_zero = op is not None and isinstance(op.what, Full) and op.what.value == 0
    return is_zero and moved == extent
