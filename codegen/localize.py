"""Operations on global arrays, on one rank: which part of its operands an op needs for a part of
its result, and the local ops that compute that part.

Goes in: an op of a Graph, the Window of its result. Comes out: a Window per operand; with the
operands' parts as local values, the part of the result.
Always holds: what is computed equals the same elements of the global result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from codegen import cuts, dtypes, expr, reshapes
from codegen.cuts import Cut, Window
from codegen.dtypes import DType
from codegen.expr import Expr
from codegen.functions import neutral
from codegen.ir import ArrayType, Op, Shape, Value
from codegen.mesh import LayoutEntry, Mesh

# Ops that are no work of their own, or hardly any: computed anew wherever a part is wanted.
VIEWS = frozenset("broadcast slice transpose reshape full iota const expr".split())
# Ops that compute a part that several uses want together, though parts of ranks then overlap.
OVERLAPPING = frozenset({"map"})


class Builder(Protocol):
    """What rules emit through."""

    mesh: Mesh

    def emit(self, kind: str, operands: Sequence[Value], attrs: Mapping[str, Any]) -> Value: ...

    def integer(self, e: Expr) -> Value:
        """A symbolic integer as a 0-d int64 value."""
        ...


class Localizer:
    """The rules. defs: the op that makes a value of the Graph; entry: the axes that split a dim."""

    def __init__(
        self, mesh: Mesh, defs: Mapping[Value, Op], entry: Callable[[Value, int], LayoutEntry]
    ) -> None:
        self.mesh = mesh
        self.defs = defs
        self.entry = entry
        # sums of which each rank has its own part, and those that are added to others before they
        # are reduced
        self.partial: dict[Value, tuple[str, ...]] = {}
        self.later: set[Value] = set()

    def needs(self, op: Op, window: Window) -> list[Window]:
        """The part of each operand for this part of the result. Window () for 0-d operands."""
        found: list[Window] = _NEEDS[op.kind](self, op, window)
        return found

    def make(self, op: Op, window: Window, operands: Sequence[Value], build: Builder) -> Value:
        """The part of the result, of the operands' parts that `needs` named."""
        value: Value = _MAKES[op.kind](self, op, window, list(operands), build)
        return value

    # ---- where a value lies by itself ------------------------------------------------------------

    def natural(self, value: Value, dim: int) -> Cut:
        """The part of a dim that a rank can have of a value with the least exchange."""
        entry = self.entry(value, dim)
        extent = value.type.shape[dim]
        op = self.defs.get(value)
        if not entry or op is None:
            return cuts.block(entry, extent)
        found = self._natural(op, dim)
        return found if found is not None and found.axes == entry else cuts.block(entry, extent)

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
        if op.kind == "reshape":
            return reshapes.natural(op, dim, self.natural, self.mesh)
        return None

    # ---- element by element, and views -----------------------------------------------------------

    def _same(self, op: Op, window: Window) -> list[Window]:
        return [window] * len(op.operands)

    def _none(self, op: Op, window: Window) -> list[Window]:
        return []

    def _map(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        value = build.emit("map", operands, op.attrs)
        axes = self.partial.get(op.result)
        if axes and op.result not in self.later:
            value = build.emit("all_reduce", (value,), {"axes": axes, "fn": "add"})
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
        return build.emit("broadcast", operands, {**op.attrs, "shape": self.shape(window)})

    def _slice_needs(self, op: Op, window: Window) -> list[Window]:
        a = op.attrs
        return [tuple(
            cuts.of_operand(c, expr.as_expr(start), step, self.mesh)
            for c, start, step in zip(window, a["start"], a["step"], strict=True)
        )]  # fmt: skip

    def _slice(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        (held,) = self.needs(op, window)
        start = tuple(
            expr.as_expr(s) + k * low - under
            for s, k, low, under in zip(
                op.attrs["start"], op.attrs["step"], self.lows(window), self.lows(held)
            )
        )
        attrs = {"start": start, "step": op.attrs["step"], "shape": self.shape(window)}
        return build.emit("slice", operands, {**attrs, "cut": True})

    def _transpose_needs(self, op: Op, window: Window) -> list[Window]:
        perm = op.attrs["perm"]
        return [tuple(window[perm.index(d)] for d in range(len(perm)))]

    def _transpose(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return build.emit("transpose", operands, op.attrs)

    def _reshape_needs(self, op: Op, window: Window) -> list[Window]:
        return [reshapes.needs(op, window, self.mesh)]

    def _reshape(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return reshapes.make(op, window, operands[0], build)

    # ---- sources ---------------------------------------------------------------------------------

    def _full(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return build.emit("full", (), {**op.attrs, "shape": self.shape(window)})

    def _iota(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        shape, low = self.shape(window), self.lows(window)[op.attrs["dim"]]
        value = build.emit("iota", (), {**op.attrs, "shape": shape})
        if low == 0:
            return value
        first = build.integer(low)
        if op.attrs["dtype"] != dtypes.INT64:
            first = build.emit("map", (first,), {"fn": "cast", "dtype": op.attrs["dtype"]})
        first = build.emit("broadcast", (first,), {"dims": (), "shape": shape})
        return build.emit("map", (value, first), {"fn": "add"})

    def _const(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        value = build.emit("const", (), op.attrs)
        return self.part(value, tuple(map(cuts.whole, op.result.type.shape)), window, build)

    def _expr(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return build.emit("expr", (), op.attrs)

    # ---- writes ----------------------------------------------------------------------------------

    def _update_needs(self, op: Op, window: Window) -> list[Window]:
        a, v = op.attrs, op.operands[1]
        part = tuple(
            cuts.of_result(c, expr.as_expr(start), step, m, self.mesh)
            for c, start, step, m in zip(window, a["start"], a["step"], v.type.shape, strict=True)
        )
        return [window, part]

    def _update(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        _, part = self.needs(op, window)
        start = tuple(
            expr.as_expr(s) + k * low - under
            for s, k, low, under in zip(
                op.attrs["start"], op.attrs["step"], self.lows(part), self.lows(window)
            )
        )
        attrs = {"start": start, "step": op.attrs["step"], "cut": True}
        return build.emit("update", operands, attrs)

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
        value = build.emit("dynamic_slice", operands, {"shape": self.shape(found)})
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
                at = build.emit("map", (at, build.integer(low)), {"fn": "sub"})
            local.append(at)
        return build.emit("dynamic_update", [*operands[:2], *local], op.attrs)

    # ---- integer arrays --------------------------------------------------------------------------

    def _picked(self, op: Op, window: Window) -> tuple[Window, Window]:
        """Of a gather's result (a scatter's v): the parts of the dims of x, and of the indices."""
        k, at = op.operands[-1].type.ndim, op.attrs["at"]
        return (*window[:at], *window[at + k :]), window[at : at + k]

    def _gather_needs(self, op: Op, window: Window) -> list[Window]:
        x, *index = op.operands
        rest, part = self._picked(op, window)
        kept = iter(rest)
        held = tuple(
            cuts.whole(e) if d in op.attrs["dims"] else next(kept)
            for d, e in enumerate(x.type.shape)
        )
        return [held, *[part] * len(index)]

    def _gather(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        return build.emit("gather", operands, op.attrs)

    def _spread(self, op: Op, window: Window) -> Cut | None:
        """The part of the points that each rank combines, where that is less work than all of them
        everywhere: into a result of its own, which all then reduce."""
        x, v, *index = op.operands
        if op.attrs["fn"] == "set" or index[0].type.ndim != 1:
            return None
        cut = self.natural(index[0], 0)
        cut = cut if cut.axes else self.natural(v, op.attrs["at"])
        used = {a for d, c in enumerate(window) if d not in op.attrs["dims"] for a in c.axes}
        return cut if cut.axes and not used & set(cut.axes) else None

    def _scatter_needs(self, op: Op, window: Window) -> list[Window]:
        x, v, *index = op.operands
        cut = self._spread(op, window)
        part = tuple(map(cuts.whole, index[0].type.shape)) if cut is None else (cut,)
        rest = tuple(c for d, c in enumerate(window) if d not in op.attrs["dims"])
        at = op.attrs["at"]
        return [window, (*rest[:at], *part, *rest[at:]), *[part] * len(index)]

    def _scatter(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        cut = self._spread(op, window)
        if cut is not None:
            return self._scatter_spread(op, window, cut, operands, build)
        lows = self.lows(window)
        local = list(operands)
        for k, d in enumerate(op.attrs["dims"]):
            if lows[d] != 0:
                index = operands[2 + k]
                low = build.emit("broadcast", (build.integer(lows[d]),),
                                 {"dims": (), "shape": index.type.shape})  # fmt: skip
                local[2 + k] = build.emit("map", (index, low), {"fn": "sub"})
        return build.emit("scatter", local, op.attrs)

    def _scatter_spread(
        self, op: Op, window: Window, cut: Cut, operands: list[Value], build: Builder
    ) -> Value:
        """Everybody's points are combined into nothing, then all of that into x."""
        x, v, *index = operands
        fn, shape = op.attrs["fn"], op.result.type.shape
        kept = tuple(
            cuts.whole(e) if d in op.attrs["dims"] else c
            for d, (c, e) in enumerate(zip(window, shape))
        )
        dtype = x.type.dtype
        wide = dtypes.folded_in(dtype)
        nothing = build.emit("full", (), {"value": neutral(fn, wide), "dtype": wide,
                                          "shape": self.shape(kept)})  # fmt: skip
        mine = build.emit("scatter", (nothing, self.cast(v, wide, build), *index), op.attrs)
        parted = [d for d, (c, k) in enumerate(zip(window, kept)) if c != k]
        if len(parted) == 1 and window[parted[0]] == cuts.block(cut.axes, shape[parted[0]]):
            types = (ArrayType(wide, self.shape(window)),)
            attrs = {"axes": cut.axes, "dim": parted[0], "fn": fn, "types": types}
            total = build.emit("reduce_scatter", (mine,), attrs)
        else:
            total = build.emit("all_reduce", (mine,), {"axes": cut.axes, "fn": fn})
            total = self.part(total, kept, window, build)
        made = build.emit("map", (self.cast(x, wide, build), total), {"fn": _AS_MAP[fn]})
        return self.cast(made, dtype, build)

    # ---- what combines elements ------------------------------------------------------------------

    def _reduce_needs(self, op: Op, window: Window) -> list[Window]:
        (x,) = op.operands
        inner = {d: self.natural(x, d) for d in op.attrs["dims"]}
        kept = iter(self.computed(op, window, inner.values()))
        return [tuple(inner[d] if d in inner else next(kept) for d in range(x.type.ndim))]

    def summed(self, op: Op, window: Window) -> tuple[str, ...]:
        """The axes over which a sum is still to be reduced when each rank has its own part; () for
        other ops, and where the result is wanted in parts."""
        if op.result.type.dtype != dtypes.folded_in(op.result.type.dtype):
            return ()
        if op.kind == "matmul":
            inner = [self._between(op, window)]
        elif op.kind == "reduce" and op.attrs["fn"] == "add":
            inner = [self.natural(op.operands[0], d) for d in op.attrs["dims"]]
        else:
            return self.partial.get(op.result, ())
        if self.computed(op, window, inner) != window:
            return ()
        return tuple(a for a in self.mesh.names if any(a in c.axes for c in inner))

    def computed(self, op: Op, window: Window, inner: Iterable[Cut]) -> Window:
        """Of a result that combines dims cut so: what each rank computes. No axis cuts two dims."""
        used = {a for c in inner for a in c.axes}
        shape = op.result.type.shape
        return tuple(cuts.whole(e) if used & set(c.axes) else c for c, e in zip(window, shape))

    def combined(
        self, op: Op, window: Window, inner: Sequence[Cut], value: Value, fn: str, build: Builder
    ) -> Value:
        """What each rank computed of its own elements of the inner dims, over all ranks."""
        axes = tuple(a for a in self.mesh.names if any(a in c.axes for c in inner))
        held = self.computed(op, window, inner)
        if not axes or op.result in self.later:
            return self.part(value, held, window, build)
        value = self.wide(value, build)
        cut = [d for d, (c, h) in enumerate(zip(window, held)) if c != h]
        if len(cut) == 1 and window[cut[0]] == cuts.block(axes, op.result.type.shape[cut[0]]):
            types = (ArrayType(value.type.dtype, self.shape(window)),)
            attrs = {"axes": axes, "dim": cut[0], "fn": fn, "types": types}
            value = build.emit("reduce_scatter", (value,), attrs)
        else:
            value = build.emit("all_reduce", (value,), {"axes": axes, "fn": fn})
            value = self.part(value, held, window, build)
        return self.cast(value, op.result.type.dtype, build)

    def _reduce(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        (held,) = self.needs(op, window)
        inner = [held[d] for d in op.attrs["dims"]]
        if any(c.axes for c in inner):
            operands = [self.wide(x, build) for x in operands]
        value = build.emit("reduce", operands, op.attrs)
        return self.combined(op, window, inner, value, op.attrs["fn"], build)

    def wide(self, x: Value, build: Builder) -> Value:
        """Half types are folded in float32, and rounded once."""
        return self.cast(x, dtypes.folded_in(x.type.dtype), build)

    def cast(self, x: Value, dtype: DType, build: Builder) -> Value:
        if x.type.dtype == dtype:
            return x
        return build.emit("map", (x,), {"fn": "cast", "dtype": dtype})

    def _lane_needs(self, op: Op, window: Window) -> list[Window]:
        """The lane whole, the other dims as wanted."""
        d, x = op.attrs["dim"], op.operands[0]
        return [(*window[:d], cuts.whole(x.type.shape[d]), *window[d + 1 :])]

    def _sort(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        (held,) = self.needs(op, window)
        return self.part(build.emit(op.kind, operands, op.attrs), held, window, build)

    def _argreduce_needs(self, op: Op, window: Window) -> list[Window]:
        d, x = op.attrs["dim"], op.operands[0]
        inner = self.natural(x, d)
        kept = self.computed(op, window, [inner])
        return [(*kept[:d], inner, *kept[d:])]

    def _argreduce(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        """Everybody's first extreme; the first of those that are the extreme of all."""
        (held,), d, fn = self.needs(op, window), op.attrs["dim"], op.attrs["fn"]
        index = build.emit("argreduce", operands, op.attrs)
        axes = held[d].axes
        kept = (*held[:d], *held[d + 1 :])
        if not axes:
            return self.part(index, kept, window, build)
        low, high = held[d].bounds(self.mesh)
        best = build.emit("reduce", operands, {"fn": fn, "dims": (d,)})
        extreme = build.emit("all_reduce", (best,), {"axes": axes, "fn": fn})
        same = build.emit("map", (best, extreme), {"fn": "eq"})
        if best.type.dtype.kind == "f":  # a NaN is the extreme, and equals nothing
            nan = build.emit("map", (best,), {"fn": "isnan"})
            same = build.emit("map", (same, nan), {"fn": "logical_or"})

        def everywhere(e: Expr) -> Value:
            value = build.integer(e)
            shape = index.type.shape
            return build.emit("broadcast", (value,), {"dims": (), "shape": shape}) if shape else (
                value)  # fmt: skip

        none = everywhere(op.operands[0].type.shape[d])
        mine = build.emit("map", (index, everywhere(low)), {"fn": "add"})
        mine = build.emit("map", (same, mine, none), {"fn": "select"})
        some = build.emit("map", (everywhere(high - low), everywhere(expr.const(0))), {"fn": "gt"})
        mine = build.emit("map", (some, mine, none), {"fn": "select"})
        first = build.emit("all_reduce", (mine,), {"axes": axes, "fn": "min"})
        return self.part(first, kept, window, build)

    def _cumulative(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        """Of my part, after the totals of those before me."""
        d, fn = op.attrs["dim"], op.attrs["fn"]
        axes = window[d].axes
        if not axes:
            return build.emit("cumulative", operands, op.attrs)
        operands = [self.wide(x, build) for x in operands]
        value = build.emit("cumulative", operands, op.attrs)
        total = build.emit("reduce", operands, {"fn": fn, "dims": (d,)})
        before = build.emit("scan", (total,), {"axes": axes, "fn": fn, "exclusive": True})
        dims = tuple(k for k in range(len(window)) if k != d)
        before = build.emit("broadcast", (before,), {"dims": dims, "shape": value.type.shape})
        value = build.emit("map", (before, value), {"fn": _AS_MAP[fn]})
        return self.cast(value, op.result.type.dtype, build)

    def _between(self, op: Op, window: Window) -> Cut:
        """The part of the summed dim of a product."""
        a, b = op.operands
        used = {axis for c in window for axis in c.axes}
        of_a, of_b = self.natural(a, a.type.ndim - 1), self.natural(b, b.type.ndim - 2)
        if of_a == of_b:
            return of_a
        free = [c for c in (of_a, of_b) if c.axes and not used & set(c.axes)]
        return free[0] if free else cuts.whole(a.type.shape[-1])

    def _matmul_needs(self, op: Op, window: Window) -> list[Window]:
        between = self._between(op, window)
        *batch, rows, columns = self.computed(op, window, [between])
        return [(*batch, rows, between), (*batch, between, columns)]

    def _matmul(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        value = build.emit("matmul", operands, op.attrs)
        return self.combined(op, window, [self._between(op, window)], value, "add", build)

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
        attrs = {"start": start, "step": (1,) * len(start), "shape": self.shape(wanted)}
        return build.emit("slice", (value,), {**attrs, "cut": True})


_AS_MAP = {"add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}

_NEEDS: dict[str, Callable[..., list[Window]]] = {
    "map": Localizer._same, "relayout": Localizer._same,
    "broadcast": Localizer._broadcast_needs,
    "slice": Localizer._slice_needs, "transpose": Localizer._transpose_needs,
    "reshape": Localizer._reshape_needs,
    "full": Localizer._none, "iota": Localizer._none, "const": Localizer._none,
    "expr": Localizer._none,
    "update": Localizer._update_needs, "dynamic_slice": Localizer._dynamic_slice_needs,
    "dynamic_update": Localizer._dynamic_update_needs, "gather": Localizer._gather_needs,
    "scatter": Localizer._scatter_needs, "reduce": Localizer._reduce_needs,
    "sort": Localizer._lane_needs, "argsort": Localizer._lane_needs,
    "argreduce": Localizer._argreduce_needs, "cumulative": Localizer._same,
    "matmul": Localizer._matmul_needs,
}  # fmt: skip
_MAKES: dict[str, Callable[..., Value]] = {
    "map": Localizer._map, "relayout": Localizer._operand,
    "broadcast": Localizer._broadcast, "slice": Localizer._slice,
    "transpose": Localizer._transpose, "reshape": Localizer._reshape,
    "full": Localizer._full, "iota": Localizer._iota, "const": Localizer._const,
    "expr": Localizer._expr,
    "update": Localizer._update, "dynamic_slice": Localizer._dynamic_slice,
    "dynamic_update": Localizer._dynamic_update, "gather": Localizer._gather,
    "scatter": Localizer._scatter, "reduce": Localizer._reduce,
    "sort": Localizer._sort, "argsort": Localizer._sort,
    "argreduce": Localizer._argreduce, "cumulative": Localizer._cumulative,
    "matmul": Localizer._matmul,
}  # fmt: skip
