"""The op that reshapes an array: dims that stay, merge and split.

A reshape splits into independent groups of dims with equally many elements. If only the leading dim
of a group is split, a part is a range of rows, which is a range of elements and can stay on its
rank. Always holds: `needs` covers all that `localize` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from codegen.errors import InternalError
from codegen.ir import cuts
from codegen.ir.cuts import Cut, Window
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import Index, loop_vars, match_dims, positions, ravel
from codegen.ir.plan import Store
from codegen.mesh import Mesh
from codegen.ops.kind import Array, Eval, Types, extents, layout_of
from codegen.ops.reshape_groups import DimGroup, groups, reshaped_layout
from codegen.ops.rules import (
    BatchBuilder,
    Element,
    ElementResolver,
    GradientBuilder,
    GraphBuilder,
    LoopBuilder,
    Shards,
    Values,
)
from codegen.ops.views import Slice, View
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, product


@dataclass(frozen=True)
class Reshape(View):
    """Give an array another shape: the same elements in row-major order."""

    name = "reshape"
    inline = True
    shape: Shape

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, tuple(self.shape))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return reshaped_layout(operands[0].shape, result.shape, layout_of(operands[0]))

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        shape = extents(self.shape, value)
        if int(np.prod(shape)) != operands[0].size:
            raise InternalError(f"reshape of {operands[0].shape} to {shape} changes the size")
        return [operands[0].reshape(shape)]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (g,) = cotangents
        assert g is not None
        return [builder.reshaped(g, op.operands[0].type.shape)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        return [batch.emit(self.but(shape=(batch.n, *self.shape)), *batch.every(op, stacked))]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        x = op.operands[0]
        mapped = match_dims(index, op.result.type.shape, x.type.shape)
        if mapped is not None:
            return resolver.node(x, mapped)
        return resolver.at_offset(x, ravel(index, op.result.type.shape))

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        """Copy the elements in the loops of the operand, which need no division: its memory has the
        same order."""
        (x,) = op.operands
        while x not in builder.stored and isinstance(builder.defs[x].kind, Reshape):
            (x,) = builder.defs[x].operands
        loops = loop_vars(x.type.shape)
        index = positions(loops)
        if match_dims(index, x.type.shape, op.result.type.shape) is not None:
            super().steps(op, builder)
            return
        offset = ravel(index, x.type.shape)
        builder.add(Store(loops, op.result, offset, builder.node(x, index), place=op.place))

    def lies(self, op: Op, dim: int, shards: Shards) -> Cut | None:
        """Return the part of dim `dim` of the result that a rank has already, if the dim leads
        its group: it follows from the cut of the group's leading dim in the operand. Else return
        None."""
        x, before, after = op.operands[0], op.operands[0].type.shape, self.shape
        for group in groups(before, after):
            if dim not in group.after or not group.before or dim != group.after[0]:
                continue
            under = shards.natural(x, group.before[0])
            if before[group.before[0]] == after[dim]:
                return under
            if len(group.after) == 1 and under.axes:
                rest = product(before[d] for d in group.before[1:])
                low, high = under.bounds(shards.mesh)
                return cuts.interval(under.axes, low * rest, high * rest)
        return None

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        """Return whether the dim is one of the operand's, and elements beyond its ends can be
        had."""
        x, before, after = op.operands[0], op.operands[0].type.shape, self.shape
        dims = (g.before[0] for g in groups(before, after)
                if g.after == (dim,) and len(g.before) == 1 and before[g.before[0]] == after[dim])
        under = next(dims, None)
        return under is not None and shards.goes_on(x, under)

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        before, after = op.operands[0].type.shape, self.shape
        out = [cuts.whole(e) for e in before]
        owner = _owner(before, after, window, shards.mesh)
        for group in groups(before, after):
            plan = _plan(group, before, owner.rest if owner else window, shards.mesh, after)
            if plan.rows is not None:
                out[group.before[0]] = plan.rows
        if owner is not None:
            out[owner.before] = owner.cut
        return [tuple(out)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        (x,), before, after = operands, op.operands[0].type.shape, self.shape
        held: list[Cut] = [cuts.whole(e) for e in after]  # of the result, before the last slice
        owner = _owner(before, after, window, shards.mesh)
        cut = owner.rest if owner else window
        plans = [_plan(g, before, cut, shards.mesh, after) for g in groups(before, after)]
        if any(p.elements is not None for p in plans):
            x = _cut_to_elements(plans, op, x, build, shards.mesh)
        for plan in plans:
            if plan.rows is not None:
                held[plan.group.after[0]] = window[plan.group.after[0]]
        if owner is not None:
            held[owner.after] = window[owner.after]
        shape = cuts.extents(shards.mesh, tuple(held))
        if shape != x.type.shape:
            x = build.emit(Reshape(shape), (x,))
        return shards.part(x, tuple(held), window, build)


@dataclass(frozen=True)
class _Owner:
    """A dim of the result, `after`, of which a rank has all or nothing. before: the dim of the
    operand that decides which, by its part `cut`. rest: the result's window with that dim whole."""

    after: int
    before: int
    cut: Cut
    rest: Window


def _owner(before: Shape, after: Shape, window: Window, mesh: Mesh) -> _Owner | None:
    """Return the first dim of the result of which a rank has all or nothing, if a dim of the
    operand can be cut to decide which: one of extent 1, or one that is needed whole otherwise. Else
    return None."""
    for d, (c, extent) in enumerate(zip(window, after, strict=True)):
        if c == cuts.whole(extent) or (c.entry is None and extent != 1):
            continue
        entry = cuts.entry_of(c, mesh)
        rest = (*window[:d], cuts.whole(extent), *window[d + 1:])
        ones = [k for k, e in enumerate(before) if e == 1]
        whole = [k for g in groups(before, after) for k in g.before
                 if _plan(g, before, rest, mesh, after).rows is None]
        if entry is not None and (ones or whole):
            k = (ones or whole)[0]
            cut = (cuts.row_of(entry, entry.rows, entry.row, mesh) if ones
                   else cuts.block(entry, before[k]))
            return _Owner(d, k, cut, rest)
    return None


@dataclass(frozen=True)
class _Plan:
    """How one group of dims is localized: a rank takes `rows` of the operand's leading dim (None:
    all of it), and then the range `elements` of these (None: the rows are those of the result)."""

    group: DimGroup
    rows: Cut | None  # None: all of it is needed
    elements: tuple[Expr, Expr] | None = None  # None: the rows are the rows of the result


def _plan(group: DimGroup, before: Shape, window: Window, mesh: Mesh, after: Shape) -> _Plan:
    if not group.before or not group.after:
        return _Plan(group, None)
    lead, *rest = group.after  # of a row all is taken, whatever is wanted of its other dims
    if window[lead] == cuts.whole(after[lead]):
        return _Plan(group, None)
    if before[group.before[0]] == after[lead]:
        return _Plan(group, window[lead])
    low, high = window[lead].bounds(mesh)
    width = product(after[d] for d in rest)
    inner = product(before[d] for d in group.before[1:])
    low, high = low * width, high * width
    first = low // inner
    rows = cuts.interval(window[lead].axes, first, expr.maximum(-((-high) // inner), first))
    return _Plan(group, rows, (low, high))


def _cut_to_elements(
    plans: Sequence[_Plan], op: Op, x: Value, build: GraphBuilder, mesh: Mesh
) -> Value:
    """Return one dim per group, of the elements of the part."""
    before = op.operands[0].type.shape
    start: list[Expr] = []
    shape: list[Expr] = []
    flat: list[Expr] = []
    for plan in plans:
        size = product(x.type.shape[d] for d in plan.group.before)
        flat.append(size)
        if plan.elements is None:
            start.append(expr.const(0))
            shape.append(size)
            continue
        assert plan.rows is not None
        low, high = plan.elements
        inner = product(before[d] for d in plan.group.before[1:])
        start.append(low - plan.rows.bounds(mesh)[0] * inner)
        shape.append(high - low)
    if flat == shape and all(s == 0 for s in start):
        return x
    x = build.emit(Reshape(shape=tuple(flat)), (x,))
    cut = Slice(tuple(start), (1,) * len(start), tuple(shape), cut=True)
    return build.emit(cut, (x,))


@dataclass(frozen=True)
class Constant(Reshape):
    """Pass the elements on, in their shape; nothing is differentiated through it."""

    name = "constant"
    flat = True


@dataclass(frozen=True)
class Again(Reshape):
    """Pass the elements on, in their shape, so that something is computed from them once more: this
    op is equal to no other, so no pass joins the two computations."""

    name = "again"
    number: int = 0


@dataclass(frozen=True)
class Named(Reshape):
    """Pass the elements on, in their shape; a policy of spmd.remat may keep them by this name."""

    name = "named"
    label: str = ""


@dataclass(frozen=True)
class OnceAtZero(Reshape):
    """Pass the elements on unchanged. A derivative that goes through here twice ends the run where
    one is 0: the formula for the first one is right there, but its own derivative is not."""

    name = "once_at_zero"

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (x,) = op.operands
        builder.expect(builder.map("ne", x, builder.full(0, x)),
                       "the second derivative of a product of which a factor is 0\n"
                       "  expected: np.prod, np.cumprod, np.multiply.at of numbers that are not 0\n"
                       "  try:      products that are written out: x[0] * x[1] * x[2]")
        return cotangents
