"""The way back through a shard_map: another one, which is given what the first was given and the
cotangents of what it gave, each laid out as that is, and gives those of what the first was given.
The first also gives what ranks got in exchanges that the second would make again.

Always holds: what a result's layout says is one value on several ranks has its cotangent once: the
first of those ranks has it, where they may have made the value differently.
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
from codegen.trace.derive.needed import pruned
from codegen.trace.derive.once_more import closure, copier
from codegen.trace.derive.reverse import Reverse
from codegen.trace.derive.shares import Shares
from codegen.trace.ranks.mapping import global_shape
from codegen.trace.ranks.varying import axes_in


def _active(at: Reverse, op: Op) -> Iterable[Value]:
    (body,) = op.regions
    at.active.update(a for a, v in zip(body.args, op.operands) if v in at.active)
    at.mark(body.ops)
    return [v for v, made in zip(op.results, body.results) if made in at.active]


@contextmanager
def _opened(context: Context, operands: Sequence[Value]) -> Iterator[tuple[Block, list[Value]]]:
    """Open a block in a rank's view, with shards of these operands; note what it meets by
    closure."""
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


def _shard_map(at: Reverse, op: Op, given: Sequence[Value | None]) -> None:
    context, what, (body,) = at.context, op.what, op.regions
    assert isinstance(what, ShardMap)
    around = closure(at, op)  # numbers: they are no operands
    read, args = [*op.operands, *around], [*body.args, *around]
    wanted = [k for k, v in enumerate(read) if v in at.active]
    outs = {k: laid_as(context, g, what.out_layouts[k]) for k, g in enumerate(given) if g}
    operands = [*read, *outs.values()]
    families = Families(context.mesh, _split(body.args, what.in_layouts), context.varying)
    families.region(body)
    reach: dict[Value, Axes] = {}
    for k in outs:
        v = body.results[k]
        split = axes_in(what.out_layouts[k]) - families.alone
        reach[v] = reach.get(v, NONE) | families.varies(v) | split
    shares = Shares.planned(families, body.ops, reach, [args[k] for k in wanted], at.active)
    with _opened(context, operands) as (block, more):
        copies = copier(at, dict(zip(args, block.args)))
        ops = copies.ops(body.ops)
        shares.same(copies.instead)
        block.ops.extend(ops)
        inner = Reverse(context, [block.args[k] for k in wanted], shares)
        inner.mark(ops)
        for (k, g) in zip(outs, block.args[len(read):], strict=True):
            _begin(inner, copies.of(body.results[k]), g, axes_in(what.out_layouts[k]))
        inner.pull(ops)
        found = [inner.all_of(block.args[k]) for k in wanted]
    region, kept_values = _without_exchanges(at, op, families, copies, block.close(found))
    operands = [*operands, *more, *kept_values]
    types = tuple(replace(read[k].type, free=False) for k in wanted)
    used = {*free_values(Region((), region.ops, region.results))}
    kept = [(v, a) for v, a in zip(operands, region.args, strict=True) if a in used]
    region = replace(region, args=tuple(a for _, a in kept))
    lie = tuple(layout_of(v.type) for v, _ in kept)
    back = ShardMap(lie, tuple(map(layout_of, types)), types)
    results = context.emit(back, [v for v, _ in kept], [region])
    for k, g in zip(wanted, results):
        at.add(read[k], g)


def _begin(inner: Reverse, value: Value, g: Value, split: Axes) -> None:
    """Begin with the cotangent of a result, which is split over these axes."""
    if value in inner.active:
        varies, split = inner.shares.varies(value), split - inner.shares.families.alone
        g = inner.shared(g, split, split | varies)  # one of those that may have made it has all
        inner.add(value, g, split - varies)


# ---- what is kept -------------------------------------------------------------------------------


def _without_exchanges(
    at: Reverse, op: Op, families: Families, copies: Copier, region: Region
) -> tuple[Region, list[Value]]:
    """Return the way back, given what ranks got in exchanges instead of making them again; and
    that, which the first shard_map gives as well."""
    context, what, (body,), region = at.context, op.what, op.regions, pruned(region)
    assert isinstance(what, ShardMap)
    known = list(dict.fromkeys(e for v in op.operands for e in v.type.shape))
    made = {v for back in region.ops for v in back.results}
    args, given, shown, ops, results, instead = [], [], [], [], list[Value](), {}
    for first in body.ops:
        again = [copies.of(v) for v in first.results]
        if not isinstance(first.what, Exchange) or not made.intersection(again):
            continue
        (value,), (copy,) = first.results, again
        wide, whole = _as_result(value, families, context, known)
        if whole is None:
            continue
        args.append(Value(value.name, wide))
        if value not in at.kept:
            at.kept[value] = Value(value.name, whole)
            shown.append(Value(value.name, wide))
            ops.append(Op(Reshape(wide.shape), (value,), (shown[-1],), (), first.place))
            results.append(at.kept[value])
        given.append(at.kept[value])
        instead[copy] = Op(Reshape(copy.type.shape), (args[-1],), (copy,), (), first.place)
    if not instead:
        return region, []
    op = at.standing(op)
    what, (body,), types = op.what, op.regions, [v.type for v in results]
    assert isinstance(what, ShardMap)
    grown = Region(body.args, (*body.ops, *ops), (*body.results, *shown))
    lie = (*what.out_layouts, *map(layout_of, types))
    at.replace(op, replace(op, what=what.but(out_layouts=lie, types=(*what.types, *types)),
                           results=(*op.results, *results), regions=(grown,)))
    rest = [back for back in region.ops if not instead.keys() & set(back.results)]
    region = Region((*region.args, *args), (*instead.values(), *rest), region.results)
    return pruned(region), given


def _as_result(
    value: Value, families: Families, context: Context, known: Sequence[Expr]
) -> tuple[ArrayType, ArrayType | None]:
    """Return a value as a result of a shard_map, on one rank and whole: with one more dim, which is
    split over the axes that split no other. None: there is no such array."""
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
