"""Dims that loops walk along, and layouts that split others: so that no turn exchanges anything.

Goes in: a loop of a Graph. Comes out: for the innermost loops in it, layouts that the arrays of
each could have before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codegen.ir.graph import Op, Region, Value, free_values, walk
from codegen.layouts.relayout import Inside, Laid
from codegen.mesh import Layout, LayoutEntry
from codegen.ops import Loop, Slice, Update
from codegen.ops.kind import layout_of
from codegen.symbolic.expr import Expr, Sym


def across(loop: Op) -> dict[Sym, Laid]:
    """Return layouts for the innermost loops in a loop, by counter; none where no loop in it walks
    along a dim that is split, or arrays are split along several axes of the mesh."""
    inner = [op for r in loop.regions for op in walk(r) if _counts(op)] or [loop]
    inner = [op for op in inner if not any(_counts(o) for r in op.regions for o in walk(r))]
    values = {v for op in inner for v in _given(op)}
    axes = {entry for v in values for entry in layout_of(v.type) if entry}
    if len(axes) != 1:
        return {}
    layouts: dict[Sym, Laid] = {}
    walks = False
    for op in inner:
        counter = op.kind.counts()
        dims = _walked(op)
        before = tuple((v, layout) for v, d in dims.items() if (layout := _other(v, d, *axes)))
        if counter is not None and before:
            layouts[counter] = Laid(before, Inside.FOLLOWS)
        walks |= any(layout_of(v.type)[d] for v, _ in before for d in dims[v])
    return layouts if walks else {}


def _counts(op: Op) -> bool:
    return isinstance(op.kind, Loop) and op.kind.counter is not None


def _given(loop: Op) -> list[Value]:
    free = [v for r in loop.regions for v in free_values(r)]
    return [v for v in dict.fromkeys([*loop.operands, *free]) if v.type.ndim]


def _other(value: Value, walked: set[int], axes: LayoutEntry) -> Layout | None:
    """Return the first dim that is not walked along is split over the axes."""
    others = [d for d, e in enumerate(value.type.shape) if d not in walked and e != 1]
    if not walked or not others:
        return None
    return tuple(axes if d == others[0] else () for d in range(value.type.ndim))


def _walked(loop: Op) -> dict[Value, set[int]]:
    """Return, for each array that a loop is given, the dims that its turns index by the loop's
    counter."""
    counter = loop.kind.counts()
    whose = {v: v for v in _given(loop)}
    whose |= {a: v for r in loop.regions for a, v in zip(r.args, loop.operands)}
    dims: dict[Value, set[int]] = {v: set() for v in whose.values()}
    for region in loop.regions:
        _follow(region, counter, whose, dims)
    return dims


def _follow(
    region: Region, counter: Sym | None, whose: dict[Value, Value],
    dims: Mapping[Value, set[int]],
) -> None:
    for op in region.ops:
        source = whose.get(op.operands[0]) if op.operands else None
        if source is not None and isinstance(op.kind, Slice | Update):
            taken = op.operands[-1] if isinstance(op.kind, Update) else op.result
            dims[source].update(_moving(counter, op.kind.start, taken.type.shape))
            if isinstance(op.kind, Update):
                whose[op.result] = source
        for inner in op.regions:
            _follow(inner, counter, whose, dims)


def _moving(
    counter: Sym | None, start: Sequence[Expr | int], shape: Sequence[Expr]
) -> list[int]:
    ends = zip(start, shape, strict=True)
    return [d for d, both in enumerate(ends)
            if any(isinstance(e, Expr) and counter in e.symbols() for e in both)]
