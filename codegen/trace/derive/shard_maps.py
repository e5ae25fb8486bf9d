"""Reverse-mode derivatives of shard_maps: a second shard_map computes the operands' cotangents.

It takes the operands of the first one and the cotangents of its results, laid out as these are. The
first one also returns what ranks receive in exchanges that the second one would repeat. Always
holds: where a result's layout says that several ranks have one value and they may have computed it
differently, the first of those ranks has its cotangent, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from codegen.errors import ShapeError
from codegen.graph.clone import Copier
from codegen.graph.variance import NONE, Axes, Families
from codegen.ir.graph import ArrayType, Op, Region, Value, free_values
from codegen.mesh import Layout
from codegen.ops import Exchange, Reshape, ShardMap
from codegen.ops.kind import layout_of
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import local_type
from codegen.trace.context import Block, Context
from codegen.trace.control.regions import laid_as
from codegen.trace.derive.dead_code import pruned
from codegen.trace.derive.recompute import closure, copier
from codegen.trace.derive.reverse import Reverse
from codegen.trace.derive.shares import Shares
from codegen.trace.ranks.mapping import global_shape
from codegen.trace.ranks.varying import axes_in


def _active(reverse: Reverse, op: Op) -> Iterable[Value]:
    (body,) = op.regions
    reverse.active.update(a for a, v in zip(body.args, op.operands) if v in reverse.active)
    reverse.mark(body.ops)
    return [v for v, body_result in zip(op.results, body.results) if body_result in reverse.active]


@contextmanager
def _rank_block(context: Context, operands: Sequence[Value]) -> Iterator[tuple[Block, list[Value]]]:
    """Open a block in a rank's view, with shards of these operands as arguments. The values that it
    reads from around it become arguments at its end, and are in the list then."""
    captured: dict[Value, Value] = {}
    more: list[Value] = []
    split = context.split
    context.captured.append(captured)
    context.rank_view += 1
    try:
        types = [local_type(context.mesh, replace(v.type, layout=layout_of(v.type)))
                 for v in operands]
        with context.block(types, [v.name for v in operands]) as block:
            context.split = _split(block.args, map(layout_of, (v.type for v in operands)))
            yield block, more
            block.args += tuple(captured.values())
            more += captured
    finally:
        context.split = split
        context.rank_view -= 1
        context.captured.pop()


def _split(args: Sequence[Value], layouts: Iterable[Layout]) -> dict[Value, Axes]:
    return {a: axes_in(layout) for a, layout in zip(args, layouts)}


def _shard_map(reverse: Reverse, op: Op, cotangents: Sequence[Value | None]) -> None:
    context, kind, (body,) = reverse.context, op.kind, op.regions
    assert isinstance(kind, ShardMap)
    around = closure(reverse, op)  # numbers: they are no operands
    read, args = [*op.operands, *around], [*body.args, *around]
    wanted = [k for k, v in enumerate(read) if v in reverse.active]
    outs = {k: laid_as(context, g, kind.out_layouts[k]) for k, g in enumerate(cotangents) if g}
    operands = [*read, *outs.values()]
    families = Families(context.mesh, _split(body.args, kind.in_layouts), context.varying)
    families.region(body)
    reach: dict[Value, Axes] = {}
    for k in outs:
        v = body.results[k]
        split = axes_in(kind.out_layouts[k]) - families.alone
        reach[v] = reach.get(v, NONE) | families.varies(v) | split
    shares = Shares.planned(families, body.ops, reach, [args[k] for k in wanted], reverse.active)
    with _rank_block(context, operands) as (block, more):
        copies = copier(reverse, dict(zip(args, block.args)))
        ops = copies.ops(body.ops)
        shares.same(copies.instead)
        block.ops.extend(ops)
        inner = Reverse(context, [block.args[k] for k in wanted], shares)
        inner.mark(ops)
        for (k, g) in zip(outs, block.args[len(read):], strict=True):
            _begin(inner, copies.of(body.results[k]), g, axes_in(kind.out_layouts[k]))
        inner.pull(ops)
        gradients = [inner.all_of(block.args[k]) for k in wanted]
    region, kept_values = _without_exchanges(reverse, op, families, copies, block.close(gradients))
    operands = [*operands, *more, *kept_values]
    types = tuple(replace(read[k].type, free=False) for k in wanted)
    used = {*free_values(Region((), region.ops, region.results))}
    kept = [(v, a) for v, a in zip(operands, region.args, strict=True) if a in used]
    region = replace(region, args=tuple(a for _, a in kept))
    lie = tuple(layout_of(v.type) for v, _ in kept)
    back = ShardMap(lie, tuple(map(layout_of, types)), types)
    results = context.emit(back, [v for v, _ in kept], [region])
    for k, g in zip(wanted, results):
        reverse.add(read[k], g)


def _begin(inner: Reverse, value: Value, g: Value, split: Axes) -> None:
    """Start the reverse pass with the cotangent of a result, which is split over these axes."""
    if value in inner.active:
        varies, split = inner.shares.varies(value), split - inner.shares.families.alone
        g = inner.shared(g, split, split | varies)  # one of the ranks holds all
        inner.add(value, g, split - varies)


# ---- what is kept -------------------------------------------------------------------------------


def _without_exchanges(
    reverse: Reverse, op: Op, families: Families, copies: Copier, region: Region
) -> tuple[Region, list[Value]]:
    """Return the body of the second shard_map, which takes what ranks received in exchanges as
    arguments, so that it does not repeat them; and these values, results of the first one."""
    context, kind, (body,), region = reverse.context, op.kind, op.regions, pruned(region)
    assert isinstance(kind, ShardMap)
    known = list(dict.fromkeys(e for v in op.operands for e in v.type.shape))
    recomputed = {v for back in region.ops for v in back.results}
    args, kept_values, shown, ops, results, instead = [], [], [], [], list[Value](), {}
    for first in body.ops:
        again = [copies.of(v) for v in first.results]
        if not isinstance(first.kind, Exchange) or not recomputed.intersection(again):
            continue
        (value,), (copy,) = first.results, again
        wide, whole = _as_result(value, families, context, known)
        if whole is None:
            continue
        args.append(Value(value.name, wide))
        if value not in reverse.kept:
            reverse.kept[value] = Value(value.name, whole)
            shown.append(Value(value.name, wide))
            ops.append(Op(Reshape(wide.shape), (value,), (shown[-1],), (), first.place))
            results.append(reverse.kept[value])
        kept_values.append(reverse.kept[value])
        instead[copy] = Op(Reshape(copy.type.shape), (args[-1],), (copy,), (), first.place)
    if not instead:
        return region, []
    op = reverse.replacement_of(op)
    kind, (body,), types = op.kind, op.regions, [v.type for v in results]
    assert isinstance(kind, ShardMap)
    grown = Region(body.args, (*body.ops, *ops), (*body.results, *shown))
    lie = (*kind.out_layouts, *map(layout_of, types))
    reverse.replace(op, replace(op, kind=kind.but(out_layouts=lie, types=(*kind.types, *types)),
                           results=(*op.results, *results), regions=(grown,)))
    rest = [back for back in region.ops if not instead.keys() & set(back.results)]
    region = Region((*region.args, *args), (*instead.values(), *rest), region.results)
    return pruned(region), kept_values


def _as_result(
    value: Value, families: Families, context: Context, known: Sequence[Expr]
) -> tuple[ArrayType, ArrayType | None]:
    """Return the types of a value as a result of a shard_map, of a rank's part and of the whole:
    with one more dim, split over the axes along which it varies and that split no other dim. The
    second is None where there is no such array."""
    mesh, shape = context.mesh, value.type.shape
    own = [tuple(a.name for a in mesh.axes if a.coord_sym in e.symbols()) for e in shape]
    left = families.varies(value) - {a for entry in own for a in entry}
    layout = (tuple(a for a in mesh.names if a in left), *own)
    wide = ArrayType(value.type.dtype, (expr.const(1), *shape))
    if len({a for entry in own for a in entry}) < sum(map(len, own)):
        return wide, None
    try:
        rest = global_shape(context, shape, tuple(own), known, "")
    except ShapeError:
        return wide, None
    return wide, ArrayType(value.type.dtype, (mesh.size(layout[0]), *rest), layout)


WAYS_BACK = {ShardMap: _shard_map}
ACTIVE_RESULTS = {ShardMap: _active}
