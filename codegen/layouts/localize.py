"""Operations on global arrays, on one rank: which part of its operands an op needs for a part of
its result, and the local ops that compute that part.

What an op needs, and how its part is made, are rules of its kind (codegen.ops); here is what the
rules share.
Always holds: what `localize` reads, `needs` has named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from codegen import dtypes
from codegen.dtypes import DType
from codegen.ir import cuts
from codegen.ir.cuts import Cut, Window
from codegen.ir.graph import Op, Shape, Value
from codegen.mesh import LayoutEntry, Mesh
from codegen.ops import (
    Broadcast,
    Fold,
    Full,
    Gather,
    Iota,
    Map,
    Relayout,
    Slice,
    Update,
)
from codegen.ops.group import along
from codegen.ops.rules import GraphBuilder
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


class Localizer:
    """The rules of kinds ask this for the parts of values. defs: the op that makes a value of the
    Graph; entry: the axes that split a dim."""

    def __init__(self, mesh: Mesh, entry: Callable[[Value, int], LayoutEntry]) -> None:
        self.mesh = mesh
        self.entry = entry
        self.defs: dict[Value, Op] = {}
        # sums of which each rank has its own part, and those that are added to others before they
        # are reduced
        self.partial: dict[Value, tuple[str, ...]] = {}
        self.later: set[Value] = set()
        self.lies: dict[Value, dict[int, Cut]] = {}  # split dims that do not lie in blocks
        # what every rank has any part of without an exchange: constants, and views of them
        self.everywhere: set[Value] = set()

    def needs(self, op: Op, window: Window) -> list[Window]:
        """Return the part of each operand for this part of the result. Window () for 0-d
        operands."""
        return op.kind.needs(op, window, self)

    def make(self, op: Op, window: Window, operands: Sequence[Value], build: GraphBuilder) -> Value:
        """Return the part of the result, of the operands' parts that `needs` named."""
        return op.kind.localize(op, window, list(operands), build, self)

    # ---- where a value lies by itself ------------------------------------------------------------

    def natural(self, value: Value, dim: int) -> Cut:
        """Return the part of a dim that a rank can have of a value with the least exchange."""
        cut = self.lies.get(value, {}).get(dim)
        return cut or cuts.block(self.entry(value, dim), value.type.shape[dim])

    def define(self, op: Op) -> None:
        """Note where the results of an op lie; it is called for each op in program order."""
        for value in op.results:
            self.defs[value] = op
            for dim in range(value.type.ndim):
                if entry := self.entry(value, dim):
                    cut = op.kind.lies(op, dim, self)
                    if cut is not None and cut.axes == entry:
                        self.lies.setdefault(value, {})[dim] = cut
        if (op.kind.is_view or isinstance(op.kind, Relayout)) and (
            self.everywhere.issuperset(op.operands)
        ):
            self.everywhere.update(op.results)

    def is_laid_out(self, op: Op) -> bool:
        """Return whether an op only gives a layout to a constant; every rank has all of a
        constant."""
        return isinstance(op.kind, Relayout) and op.result in self.everywhere

    def goes_on(self, value: Value, dim: int) -> bool:
        """Return whether the part of a value beyond the ends of a periodic dim can be had from such
        parts of what it is a view of."""
        op = self.defs.get(value)
        if op is not None and self.is_laid_out(op):
            return self.goes_on(op.operands[0], dim)
        return op is None or op.kind.goes_on(op, dim, self)

    # ---- parts -----------------------------------------------------------------------------------

    def shape(self, window: Window) -> Shape:
        return cuts.extents(self.mesh, window)

    def lows(self, window: Window) -> Shape:
        return cuts.lows(self.mesh, window)

    def part(self, value: Value, held: Window, wanted: Window, build: GraphBuilder) -> Value:
        """Return a part of a part that a rank has."""
        if held == wanted:
            return value
        start = tuple(w - h for w, h in zip(self.lows(wanted), self.lows(held)))
        shape = self.shape(wanted)
        if shape == value.type.shape and all(s == 0 for s in start):
            return value
        return build.emit(Slice(start, (1,) * len(start), shape, cut=True), (value,))

    def counted(
        self, shape: Shape, dim: int, low: Expr, period: Expr | None, dtype: DType,
        build: GraphBuilder
    ) -> Value:
        """Return low, low + 1, … along a dim, modulo the period."""
        value = build.emit(Iota(dim, dtype, shape))
        terms = [("add", low)] if low != 0 else []
        terms += [("mod", period)] if period is not None else []
        for fn, number in terms:
            other = build.cast(build.integer(number), dtype)
            other = build.emit(Broadcast(dims=(), shape=shape), (other,))
            value = build.emit(Map(fn), (value, other))
        return value

    def around(self, x: Value, dim: int, wanted: Cut, build: GraphBuilder) -> Value:
        """Return a part that lies beyond the ends, too, of a dim that goes on and that a rank has
        whole."""
        wraps = wanted.wraps()
        assert wraps is not None
        before, beyond, period = wraps
        low, high = wanted.bounds(self.mesh)
        shape = (*x.type.shape[:dim], high - low, *x.type.shape[dim + 1 :])
        if not before.is_const or not beyond.is_const:
            at = self.counted((high - low,), 0, low, period, dtypes.INT64, build)
            return build.emit(Gather(dims=(dim,), index_dim=dim), (x, at))
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

    def wide(self, x: Value, build: GraphBuilder) -> Value:
        """Return a value of a half type in float32, in which it is folded before it is rounded
        once."""
        return build.cast(x, dtypes.folded_in(x.type.dtype))

    # ---- what combines elements ------------------------------------------------------------------

    def summed(self, op: Op, window: Window) -> tuple[str, ...]:
        """Return the axes over which a sum is still to be reduced when each rank has its own part;
        () for other ops, and where the result is wanted in parts."""
        inner = op.kind.summed(op, window, self)
        if inner is None:
            return self.partial.get(op.result, ())
        return self.axes_of(inner) if self.computed(op, window, inner) == window else ()

    def axes_of(self, inner: Sequence[Cut]) -> tuple[str, ...]:
        """Return the axes that cut these dims, in the mesh's order."""
        return tuple(a for a in self.mesh.names if any(a in c.axes for c in inner))

    def computed(self, op: Op, window: Window, inner: Iterable[Cut]) -> Window:
        """Return the window that each rank computes of a result that combines dims cut so. No axis
        cuts two dims."""
        used = {a for c in inner for a in c.axes}
        shape = op.result.type.shape
        return tuple(cuts.whole(e) if used & set(c.axes) else c for c, e in zip(window, shape))

    def combined(
        self, op: Op, window: Window, inner: Sequence[Cut], value: Value, fn: str,
        build: GraphBuilder
    ) -> Value:
        """Combine, over all ranks, what each rank computed from its own elements of the inner
        dims."""
        axes = self.axes_of(inner)
        held = self.computed(op, window, inner)
        if axes:
            value = self.wide(value, build)
        if not axes or op.result in self.later:
            return self.part(value, held, window, build)
        value = self.over(axes, op, held, window, value, fn, build)
        return build.cast(value, op.result.type.dtype)

    def over(
        self, axes: LayoutEntry, op: Op, held: Window, window: Window, value: Value, fn: str,
        build: GraphBuilder,
    ) -> Value:
        """Combine a part of the result that all ranks have, along these axes; return the part of it
        that is wanted."""
        cut = [d for d, (c, h) in enumerate(zip(window, held)) if c != h]
        if len(cut) == 1 and window[cut[0]] == cuts.block(axes, op.result.type.shape[cut[0]]):
            part = along(len(window), {cut[0]: window[cut[0]].bounds(self.mesh)})
            return build.emit(Fold(axes, fn, want=part), (value,))
        value = build.emit(Fold(axes, fn), (value,))
        return self.part(value, held, window, build)
