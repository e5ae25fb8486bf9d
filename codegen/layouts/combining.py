"""On one rank: reductions, products, running totals, sorting, and integer arrays as subscripts.

As codegen.layouts.views; where a dim that is combined is split, ranks combine their own elements
first, and an exchange combines what they have.
Always holds: no mesh axis cuts two dims of what a rank computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from codegen import dtypes, expr
from codegen.expr import Expr
from codegen.functions import neutral
from codegen.ir import ArrayType, Op, Value
from codegen.layouts import cuts
from codegen.layouts.cuts import Cut, Window
from codegen.layouts.views import Builder, Views
from codegen.mesh import LayoutEntry
from codegen.ops import AllReduce, Broadcast, Full, Map, Reduce, ReduceScatter, Scan

_AS_MAP = {"add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}


class Combining(Views):
    """Rules."""

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
        return build.emit(op.what, operands)

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
                low = build.emit(Broadcast((), index.type.shape), (build.integer(lows[d]),))
                local[2 + k] = build.emit(Map("sub"), (index, low))
        return build.emit(op.what, local)

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
        nothing = build.emit(Full(neutral(fn, wide), wide, self.shape(kept)))
        mine = build.emit(op.what, (nothing, self.cast(v, wide, build), *index))
        total = self.over(cut.axes, op, kept, window, mine, fn, build)
        made = build.emit(Map(_AS_MAP[fn]), (self.cast(x, wide, build), total))
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
        if op.kind == "matmul":
            inner = [self._between(op, window)]
        elif op.kind == "reduce" and op.attrs["fn"] == "add":
            inner = [self.natural(op.operands[0], d) for d in op.attrs["dims"]]
        else:
            return self.partial.get(op.result, ())
        if self.computed(op, window, inner) != window:
            return ()
        return self.axes_of(inner)

    def axes_of(self, inner: Sequence[Cut]) -> tuple[str, ...]:
        """The axes that cut these dims, in the mesh's order."""
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
        axes = self.axes_of(inner)
        held = self.computed(op, window, inner)
        if axes:
            value = self.wide(value, build)
        if not axes or op.result in self.later:
            return self.part(value, held, window, build)
        value = self.over(axes, op, held, window, value, fn, build)
        return self.cast(value, op.result.type.dtype, build)

    def over(
        self, axes: LayoutEntry, op: Op, held: Window, window: Window, value: Value, fn: str,
        build: Builder,
    ) -> Value:  # fmt: skip
        """What all ranks have of a part of the result, combined; of that, the part wanted."""
        cut = [d for d, (c, h) in enumerate(zip(window, held)) if c != h]
        if len(cut) == 1 and window[cut[0]] == cuts.block(axes, op.result.type.shape[cut[0]]):
            types = (ArrayType(value.type.dtype, self.shape(window)),)
            return build.emit(ReduceScatter(axes, cut[0], fn, types), (value,))
        value = build.emit(AllReduce(axes=axes, fn=fn), (value,))
        return self.part(value, held, window, build)

    def _reduce(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        (held,) = self._reduce_needs(op, window)
        inner = [held[d] for d in op.attrs["dims"]]
        if any(c.axes for c in inner):
            operands = [self.wide(x, build) for x in operands]
        value = build.emit(op.what, operands)
        return self.combined(op, window, inner, value, op.attrs["fn"], build)

    def _lane_needs(self, op: Op, window: Window) -> list[Window]:
        """The lane whole, the other dims as wanted."""
        d, x = op.attrs["dim"], op.operands[0]
        return [(*window[:d], cuts.whole(x.type.shape[d]), *window[d + 1 :])]

    def _sort(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        (held,) = self._lane_needs(op, window)
        return self.part(build.emit(op.what, operands), held, window, build)

    def _argreduce_needs(self, op: Op, window: Window) -> list[Window]:
        d, x = op.attrs["dim"], op.operands[0]
        inner = self.natural(x, d)
        kept = self.computed(op, window, [inner])
        return [(*kept[:d], inner, *kept[d:])]

    def _argreduce(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        """Everybody's first extreme; the first of those that are the extreme of all."""
        (held,), d, fn = self._argreduce_needs(op, window), op.attrs["dim"], op.attrs["fn"]
        index = build.emit(op.what, operands)
        axes = held[d].axes
        kept = (*held[:d], *held[d + 1 :])
        if not axes:
            return self.part(index, kept, window, build)
        low, high = held[d].bounds(self.mesh)
        best = self.wide(build.emit(Reduce(fn=fn, dims=(d,)), operands), build)
        extreme = build.emit(AllReduce(axes=axes, fn=fn), (best,))
        same = build.emit(Map("eq"), (best, extreme))
        if best.type.dtype.kind in "fc":  # a NaN is the extreme, and equals nothing
            nan = build.emit(Map("isnan"), (best,))
            same = build.emit(Map("logical_or"), (same, nan))

        def everywhere(e: Expr) -> Value:
            value = build.integer(e)
            shape = index.type.shape
            return build.emit(Broadcast(dims=(), shape=shape), (value,)) if shape else (
                value)  # fmt: skip

        none = everywhere(op.operands[0].type.shape[d])
        mine = build.emit(Map("add"), (index, everywhere(low)))
        mine = build.emit(Map("select"), (same, mine, none))
        some = build.emit(Map("gt"), (everywhere(high - low), everywhere(expr.const(0))))
        mine = build.emit(Map("select"), (some, mine, none))
        first = build.emit(AllReduce(axes=axes, fn="min"), (mine,))
        return self.part(first, kept, window, build)

    def _cumulative(self, op: Op, window: Window, operands: list[Value], build: Builder) -> Value:
        """Of my part, after the totals of those before me."""
        d, fn = op.attrs["dim"], op.attrs["fn"]
        axes = window[d].axes
        if not axes:
            return build.emit(op.what, operands)
        operands = [self.wide(x, build) for x in operands]
        value = build.emit(op.what, operands)
        total = build.emit(Reduce(fn=fn, dims=(d,)), operands)
        before = build.emit(Scan(axes=axes, fn=fn, exclusive=True), (total,))
        dims = tuple(k for k in range(len(window)) if k != d)
        before = build.emit(Broadcast(dims=dims, shape=value.type.shape), (before,))
        value = build.emit(Map(_AS_MAP[fn]), (before, value))
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
        value = build.emit(op.what, operands)
        return self.combined(op, window, [self._between(op, window)], value, "add", build)
