"""On one rank: element-wise ops, views, sources and writes, part by part.

Goes in: an op of a Graph, the Window of its result. Comes out: a Window per operand; with the
operands' parts as local values, the part of the result.
Always holds: what is computed equals the same elements of the global result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from codegen import dtypes, expr
from codegen.dtypes import DType
from codegen.expr import Expr
from codegen.ir import Op, Shape, Value
from codegen.layouts import cuts, reshapes
from codegen.layouts.cuts import Cut, Window
from codegen.mesh import LayoutEntry, Mesh
from codegen.ops import (
    AllReduce,
    Broadcast,
    DynamicSlice,
    Full,
    Gather,
    Iota,
    Kind,
    Map,
    Slice,
    Update,
)


class Builder(Protocol):
    """What rules emit through."""

    mesh: Mesh

    def emit(self, what: Kind, operands: Sequence[Value] = ()) -> Value: ...

    def integer(self, e: Expr) -> Value:
        """A symbolic integer as a 0-d int64 value."""
        ...


class Views:
    """Rules, and what all rules use.

    defs: the op that makes a value of the Graph; entry: the axes that split a dim.
    """

    def __init__(self, mesh: Mesh, entry: Callable[[Value, int], LayoutEntry]) -> None:
        self.mesh = mesh
        self.entry = entry
        self.defs: dict[Value, Op] = {}
        # sums of which each rank has its own part, and those that are added to others before they
        # are reduced
        self.partial: dict[Value, tuple[str, ...]] = {}
        self.later: set[Value] = set()
        self.lies: dict[Value, dict[int, Cut]] = {}  # split dims that do not lie in blocks

    # ---- where a value lies by itself ------------------------------------------------------------

    def natural(self, value: Value, dim: int) -> Cut:
        """The part of a dim that a rank can have of a value with the least exchange."""
        found = self.lies.get(value, {}).get(dim)
        return found or cuts.block(self.entry(value, dim), value.type.shape[dim])

    def define(self, op: Op) -> None:
        """Called for one op after the other, in program order."""
        for value in op.results:
            self.defs[value] = op
            for dim in range(value.type.ndim):
                if entry := self.entry(value, dim):
                    found = self._natural(op, dim)
                    if found is not None and found.axes == entry:
                        self.lies.setdefault(value, {})[dim] = found

    def _natural(self, op: Op, dim: int) -> Cut | None:
        a = op.attrs
        if op.kind == "slice":
            under = self.natural(op.operands[0], dim)
            return cuts.of_result(under, a["start"][dim], a["step"][dim], a["shape"][dim],
                                  self.mesh)  # fmt: skip
        if op.kind == "transpose":
            return self.natural(op.operands[0], a["perm"][dim])
        if op.kind == "broadcast" and dim in a["dims"]:
            k = a["dims"].index(dim)
            stretched = op.operands[0].type.shape[k] != a["shape"][dim]
            return None if stretched else self.natural(op.operands[0], k)
        if op.kind in ("map", "update", "dynamic_update", "scatter"):
            found = [self.natural(v, dim) for v in op.operands[: 1 if op.kind != "map" else None]]
            return next((c for c in found if c.axes), None)
        if op.kind == "roll":
            return self.natural(op.operands[0], dim) if dim != a["dim"] else None
        if op.kind == "reshape":
            return reshapes.natural(op, dim, self.natural, self.mesh)
        return None

    # ---- element by element, and views -----------------------------------------------------------

    def _same(self, op: Op, window: Window) -> list[Window]:
        return [window] * len(op.operands)

    def _none(self, op: Op, window: Window) -> list[Window]:
        return []

    def _map(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        value = build.emit(op.what, operands)
        axes = self.partial.get(op.result)
        if axes and op.result not in self.later:
            value = build.emit(AllReduce(axes=axes, fn="add"), (value,))
            value = self.cast(value, op.result.type.dtype, build)
        return value

    def _operand(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return operands[0]

    def _broadcast_needs(self, op: Op, window: Window) -> list[Window]:
        (x,), shape = op.operands, op.result.type.shape
        return [tuple(
            cuts.whole(1) if e == 1 and shape[d] != 1 else window[d]
            for e, d in zip(x.type.shape, op.attrs["dims"], strict=True)
        )]  # fmt: skip

    def _broadcast(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return build.emit(op.what.but(shape=self.shape(window)), operands)

    def _slice_needs(self, op: Op, window: Window) -> list[Window]:
        a = op.attrs
        return [tuple(
            cuts.of_operand(c, expr.as_expr(start), step, self.mesh)
            for c, start, step in zip(window, a["start"], a["step"], strict=True)
        )]  # fmt: skip

    def _slice(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        (held,) = self._slice_needs(op, window)
        start, step = self.start(op, window, held), op.attrs["step"]
        return build.emit(Slice(start, step, self.shape(window), cut=True), operands)

    def _transpose_needs(self, op: Op, window: Window) -> list[Window]:
        perm = op.attrs["perm"]
        return [tuple(window[perm.index(d)] for d in range(len(perm)))]

    def _transpose(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return build.emit(op.what, operands)

    def _reshape_needs(self, op: Op, window: Window) -> list[Window]:
        return [reshapes.needs(op, window, self.mesh)]

    def _reshape(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return reshapes.make(op, window, operands[0], build)

    def _roll_needs(self, op: Op, window: Window) -> list[Window]:
        d, shift = op.attrs["dim"], op.attrs["shift"]
        moved = cuts.rolled(window[d], shift, op.operands[0].type.shape[d], self.mesh)
        return [(*window[:d], moved, *window[d + 1 :])]

    def _roll(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        """What is there already, of the extents that the window says, in its own formulas."""
        shape = self.shape(window)
        if operands[0].type.shape == shape:
            return operands[0]
        zeros, ones = (expr.const(0),) * len(shape), (1,) * len(shape)
        return build.emit(Slice(zeros, ones, shape, cut=True), operands)

    def repeats(self, value: Value, dim: int) -> bool:
        """Whether the part of a value beyond the ends of a dim, which goes on there, can be had
        from such parts of what it is a view of."""
        op = self.defs.get(value)
        if op is None:
            return True
        a = op.attrs
        if op.kind == "const":
            return False
        if op.kind == "reshape":
            under = reshapes.stays(op, dim)
            return under is not None and self.repeats(op.operands[0], under)
        if op.kind == "slice":
            (x,) = op.operands
            whole = a["start"][dim] == 0 and a["step"][dim] == 1
            return whole and a["shape"][dim] == x.type.shape[dim] and self.repeats(x, dim)
        if op.kind == "transpose":
            return self.repeats(op.operands[0], a["perm"][dim])
        if op.kind == "broadcast":
            (x,) = op.operands
            k = a["dims"].index(dim) if dim in a["dims"] else -1
            stretched = k < 0 or x.type.shape[k] != a["shape"][dim]
            return stretched or self.repeats(x, k)
        if op.kind == "roll" and "extent" in a and dim == a["dim"]:
            return False
        return op.kind != "roll" or self.repeats(op.operands[0], dim)

    # ---- sources ---------------------------------------------------------------------------------

    def _full(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return build.emit(op.what.but(shape=self.shape(window)))

    def _iota(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        dim = op.attrs["dim"]
        low, period = self.lows(window)[dim], window[dim].period
        return self._counted(self.shape(window), dim, low, period, op.attrs["dtype"], build)

    def _counted(
        self, shape: Shape, dim: int, low: Expr, period: Expr | None, dtype: DType, build: Builder
    ) -> Value:
        """low, low + 1, … along a dim, modulo the period."""
        value = build.emit(Iota(dim, dtype, shape))
        terms = [("add", low)] if low != 0 else []
        terms += [("mod", period)] if period is not None else []
        for fn, number in terms:
            other = self.cast(build.integer(number), dtype, build)
            other = build.emit(Broadcast(dims=(), shape=shape), (other,))
            value = build.emit(Map(fn), (value, other))
        return value

    def _const(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        value = build.emit(op.what)
        return self.part(value, tuple(map(cuts.whole, op.result.type.shape)), window, build)

    def _expr(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return build.emit(op.what)

    # ---- writes ----------------------------------------------------------------------------------

    def _update_needs(self, op: Op, window: Window) -> list[Window]:
        a, v = op.attrs, op.operands[1]
        part = tuple(
            cuts.of_result(c, expr.as_expr(start), step, m, self.mesh)
            for c, start, step, m in zip(window, a["start"], a["step"], v.type.shape, strict=True)
        )
        return [window, part]

    def _update(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        _, part = self._update_needs(op, window)
        start = self.start(op, part, window)
        return build.emit(op.what.but(start=start, cut=True), operands)

    def start(self, op: Op, part: Window, held: Window) -> Shape:
        """Where a part of the result of a slice (the operand of an update) begins in what is held
        of the array that it is a slice of (written to)."""
        return tuple(
            expr.as_expr(s) + k * low - under
            for s, k, low, under in zip(
                op.attrs["start"], op.attrs["step"], self.lows(part), self.lows(held)
            )
        )

    def _still(self, start: Value, moved: Expr, extent: Expr) -> bool:
        """Whether a dim of a dynamic box is the whole dim, in place."""
        op = self.defs.get(start)
        return op is not None and op.kind == "full" and op.attrs["value"] == 0 and moved == extent

    def _dynamic_slice_needs(self, op: Op, window: Window) -> list[Window]:
        x, *starts = op.operands
        part = tuple(
            c if self._still(s, m, e) else cuts.whole(e)
            for c, s, m, e in zip(window, starts, op.attrs["shape"], x.type.shape, strict=True)
        )
        return [part, *[()] * len(starts)]

    def _dynamic_slice(
        self, op: Op, window: Window, operands: list[Value], build: Builder
    ) -> Value:
        x, *starts = op.operands
        found = tuple(
            c if self._still(s, m, e) else cuts.whole(m)
            for c, s, m, e in zip(window, starts, op.attrs["shape"], x.type.shape, strict=True)
        )
        value = build.emit(DynamicSlice(shape=self.shape(found)), operands)
        return self.part(value, found, window, build)

    def _dynamic_update_needs(self, op: Op, window: Window) -> list[Window]:
        x, v, *starts = op.operands
        part = tuple(
            c if self._still(s, m, e) else cuts.whole(m)
            for c, s, m, e in zip(window, starts, v.type.shape, x.type.shape, strict=True)
        )
        return [window, part, *[()] * len(starts)]

    def _dynamic_update(
        self, op: Op, window: Window, operands: list[Value], build: Builder
    ) -> Value:
        x, v, *starts = op.operands
        local = []
        for d, (start, low) in enumerate(zip(starts, self.lows(window), strict=True)):
            at = operands[2 + d]
            still = self._still(start, v.type.shape[d], x.type.shape[d])
            if low != 0 and not still:
                at = build.emit(Map("sub"), (at, build.integer(low)))
            local.append(at)
        return build.emit(op.what, [*operands[:2], *local])

    def _edge_needs(self, op: Op, window: Window) -> list[Window]:
        (x,) = op.operands
        return [tuple(
            cuts.of_result(c, expr.const(before), 1, e, self.mesh)
            for c, (before, _), e in zip(window, op.attrs["widths"], x.type.shape, strict=True)
        )]  # fmt: skip

    def _edge(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        """What a rank has, in an array with room, whose rim is filled from dim to dim. An empty
        part has no elements to go there: nobody reads what is there then."""
        (x,), (held,) = operands, self._edge_needs(op, window)
        shape, lows, step = self.shape(window), self.lows(window), (1,) * x.type.ndim
        at = [
            own + before - first
            for own, (before, _), first in zip(self.lows(held), op.attrs["widths"], lows)
        ]
        value = build.emit(Full(0, x.type.dtype, shape, blank=True))
        value = build.emit(Update(tuple(at), step, cut=True), (value, x))
        for d, (before, after) in enumerate(op.attrs["widths"]):
            here = x.type.shape[d]
            end = at[d] + here
            behind = expr.minimum(shape[d] - end, here * after)
            last = end - 1 if expr.nonneg(end - 1) else expr.maximum(end - 1, 0)
            for many, count, source, target in (
                (before, at[d], at[d], expr.const(0)), (after, behind, last, end)
            ):  # fmt: skip
                if not many:
                    continue
                zeros = [expr.const(0)] * len(shape)
                begin = (*zeros[:d], source, *zeros[d + 1 :])
                one = (*shape[:d], expr.const(1), *shape[d + 1 :])
                line = build.emit(Slice(begin, step, one, cut=True), (value,))
                lines = (*shape[:d], count, *shape[d + 1 :])
                line = build.emit(Broadcast(tuple(range(len(shape))), lines), (line,))
                begin = (*zeros[:d], target, *zeros[d + 1 :])
                value = build.emit(Update(begin, step, cut=True), (value, line))
        return value

    # ---- parts -----------------------------------------------------------------------------------

    def shape(self, window: Window) -> Shape:
        return cuts.extents(self.mesh, window)

    def lows(self, window: Window) -> Shape:
        return cuts.lows(self.mesh, window)

    def part(self, value: Value, held: Window, wanted: Window, build: Builder) -> Value:
        """A part of a part that a rank has."""
        if held == wanted:
            return value
        start = tuple(w - h for w, h in zip(self.lows(wanted), self.lows(held)))
        cut = Slice(start, (1,) * len(start), self.shape(wanted), cut=True)
        return build.emit(cut, (value,))

    def around(self, x: Value, dim: int, wanted: Cut, build: Builder) -> Value:
        """Of a dim that a rank has whole: a part that lies beyond its ends too."""
        wraps = wanted.wraps()
        assert wraps is not None
        before, beyond, period = wraps
        low, high = wanted.bounds(self.mesh)
        shape = (*x.type.shape[:dim], high - low, *x.type.shape[dim + 1 :])
        if not before.is_const or not beyond.is_const:
            at = self._counted((high - low,), 0, low, period, dtypes.INT64, build)
            return build.emit(Gather(dims=(dim,), at=dim), (x, at))
        value = build.emit(Full(0, x.type.dtype, shape, blank=True))
        step = (1,) * len(shape)
        for wrap in range(-before.value, beyond.value + 1):
            begin = expr.maximum(low, period * wrap)
            end = expr.minimum(high, period * (wrap + 1))
            part = (*shape[:dim], expr.maximum(end - begin, 0), *shape[dim + 1 :])
            zeros = [expr.const(0)] * len(shape)
            here, there = zeros.copy(), zeros
            here[dim], there[dim] = begin - low, begin - period * wrap
            piece = build.emit(Slice(tuple(there), step, part, cut=True), (x,))
            value = build.emit(Update(tuple(here), step, cut=True), (value, piece))
        return value

    def wide(self, x: Value, build: Builder) -> Value:
        """Half types are folded in float32, and rounded once."""
        return self.cast(x, dtypes.folded_in(x.type.dtype), build)

    def cast(self, x: Value, dtype: DType, build: Builder) -> Value:
        if x.type.dtype == dtype:
            return x
        return build.emit(Map("cast", dtype=dtype), (x,))
