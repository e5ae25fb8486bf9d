"""Reshapes of arrays of which ranks hold parts: dims that stay, merge and split.

A reshape falls apart into groups of dims with equally many elements. In a group whose leading dim
alone is split, a part is a range of rows, which is a range of elements: it can stay where it is.
Always holds: `needs` covers what `make` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codegen import expr
from codegen.expr import Expr, product
from codegen.groups import Group, groups
from codegen.ir import Op, Shape, Value
from codegen.layouts import cuts
from codegen.layouts.cuts import Cut, Window
from codegen.mesh import Mesh
from codegen.ops import Reshape, Slice

if TYPE_CHECKING:  # it reads the other way round while running
    from codegen.layouts.views import Builder


def natural(op: Op, dim: int, of: Callable[[Value, int], Cut], mesh: Mesh) -> Cut | None:
    """The part of a dim of the result that lies where the operand's leading dim lies."""
    x, before, after = op.operands[0], op.operands[0].type.shape, op.result.type.shape
    for group in groups(before, after):
        if dim not in group.after or not group.before or dim != group.after[0]:
            continue
        under = of(x, group.before[0])
        if before[group.before[0]] == after[dim]:
            return under
        if len(group.after) == 1 and under.axes:
            rest = product(before[d] for d in group.before[1:])
            low, high = under.bounds(mesh)
            return cuts.given(under.axes, low * rest, high * rest)
    return None


def stays(op: Op, dim: int) -> int | None:
    """The dim of the operand that a dim of the result is; None: it is made of others."""
    before, after = op.operands[0].type.shape, op.result.type.shape
    found = (g.before[0] for g in groups(before, after)
             if g.after == (dim,) and len(g.before) == 1 and before[g.before[0]] == after[dim])
    return next(found, None)


@dataclass(frozen=True)
class _Plan:
    """How a group's part is made: rows of the operand's leading dim, cut to these elements."""

    group: Group
    rows: Cut | None  # None: all of it is needed
    elements: tuple[Expr, Expr] | None = None  # None: the rows are the rows of the result


def _plan(group: Group, before: Shape, window: Window, mesh: Mesh, after: Shape) -> _Plan:
    if not group.before or not group.after:
        return _Plan(group, None)
    lead, *rest = group.after
    if any(window[d] != cuts.whole(after[d]) for d in rest):
        return _Plan(group, None)
    if window[lead] == cuts.whole(after[lead]):
        return _Plan(group, None)
    if before[group.before[0]] == after[lead]:
        return _Plan(group, window[lead])
    low, high = window[lead].bounds(mesh)
    width = product(after[d] for d in rest)
    inner = product(before[d] for d in group.before[1:])
    low, high = low * width, high * width
    first = low // inner
    rows = cuts.given(window[lead].axes, first, expr.maximum(-((-high) // inner), first))
    return _Plan(group, rows, (low, high))


def needs(op: Op, window: Window, mesh: Mesh) -> Window:
    """The part of the operand for this part of the result."""
    before, after = op.operands[0].type.shape, op.result.type.shape
    out = [cuts.whole(e) for e in before]
    for group in groups(before, after):
        plan = _plan(group, before, window, mesh, after)
        if plan.rows is not None:
            out[group.before[0]] = plan.rows
    return tuple(out)


def make(op: Op, window: Window, x: Value, build: Builder) -> Value:
    """The part of the result, of the operand's part that `needs` named."""
    mesh, before, after = build.mesh, op.operands[0].type.shape, op.result.type.shape
    held: list[Cut] = [cuts.whole(e) for e in after]  # of the result, before the last slice
    plans = [_plan(g, before, window, mesh, after) for g in groups(before, after)]
    if any(p.elements is not None for p in plans):
        x = _cut_to_elements(plans, op, x, build)
    for plan in plans:
        if plan.rows is not None:
            held[plan.group.after[0]] = window[plan.group.after[0]]
    shape = cuts.extents(mesh, tuple(held))
    if shape != x.type.shape:
        x = build.emit(Reshape(shape=shape), (x,))
    if tuple(held) == window:
        return x
    lows = zip(cuts.lows(mesh, window), cuts.lows(mesh, tuple(held)), strict=True)
    start = tuple(w - h for w, h in lows)
    cut = Slice(start, (1,) * len(window), cuts.extents(mesh, window), cut=True)
    return build.emit(cut, (x,))


def _cut_to_elements(plans: Sequence[_Plan], op: Op, x: Value, build: Builder) -> Value:
    """One dim per group, of the elements of the part."""
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
        start.append(low - plan.rows.bounds(build.mesh)[0] * inner)
        shape.append(high - low)
    x = build.emit(Reshape(shape=tuple(flat)), (x,))
    cut = Slice(tuple(start), (1,) * len(start), tuple(shape), cut=True)
    return build.emit(cut, (x,))
