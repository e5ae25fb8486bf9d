"""The way back through a shard_map: another one, which is given what the first was given and the
cotangents of what it gave, each laid out as that is, and gives those of what the first was given.

Always holds: what a result's layout says is one value on several ranks has its cotangent once: the
first of those ranks has it, where they may have made the value differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from codegen.ir import Op, Region, Value, free_values
from codegen.mesh import Layout
from codegen.ops import ShardMap
from codegen.ops.kind import layout_of
from codegen.trace.array import local_type
from codegen.trace.context import Block, Context
from codegen.trace.control.regions import laid_as
from codegen.trace.derive.back_through import copier
from codegen.trace.derive.needed import pruned
from codegen.trace.derive.reverse import ACTIVE, RULES, Reverse
from codegen.trace.derive.shares import Shares
from codegen.trace.ranks.varying import axes_in
from codegen.variance import NONE, Axes, Families


def _active(at: Reverse, op: Op) -> Iterable[Value]:
    (body,) = op.regions
    at.active.update(a for a, v in zip(body.args, op.operands) if v in at.active)
    at.mark(body.ops)
    return [v for v, made in zip(op.results, body.results) if made in at.active]


@contextmanager
def _opened(context: Context, operands: Sequence[Value]) -> Iterator[tuple[Block, list[Value]]]:
    """A block in a rank's view, of shards of these; and what it met by closure, when it ends."""
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
    wanted = [k for k, v in enumerate(op.operands) if v in at.active]
    outs = {k: laid_as(context, g, what.out_layouts[k]) for k, g in enumerate(given) if g}
    operands = [*op.operands, *outs.values()]
    families = Families(context.mesh, _split(body.args, what.in_layouts), context.varying)
    families.region(body)
    reach: dict[Value, Axes] = {}
    for k in outs:
        v = body.results[k]
        split = axes_in(what.out_layouts[k]) - families.alone
        reach[v] = reach.get(v, NONE) | families.varies(v) | split
    shares = Shares.planned(families, body.ops, reach, [body.args[k] for k in wanted], at.active)
    with _opened(context, operands) as (block, more):
        copies = copier(at, dict(zip(body.args, block.args)))
        ops = copies.ops(body.ops)
        shares.same(copies.instead)
        block.ops.extend(ops)
        inner = Reverse(context, [block.args[k] for k in wanted], shares)
        inner.mark(ops)
        for (k, g) in zip(outs, block.args[len(op.operands):], strict=True):
            _begin(inner, copies.of(body.results[k]), g, axes_in(what.out_layouts[k]))
        inner.pull(ops)
        found = [inner.all_of(block.args[k]) for k in wanted]
    region = pruned(block.close(found))
    types = tuple(replace(op.operands[k].type, free=False) for k in wanted)
    used = {*free_values(Region((), region.ops, region.results))}
    kept = [(v, a) for v, a in zip([*operands, *more], region.args, strict=True) if a in used]
    region = replace(region, args=tuple(a for _, a in kept))
    lie = tuple(layout_of(v.type) for v, _ in kept)
    back = ShardMap(lie, tuple(map(layout_of, types)), types)
    results = context.emit(back, [v for v, _ in kept], [region])
    for k, g in zip(wanted, results):
        at.add(op.operands[k], g)


def _begin(inner: Reverse, value: Value, g: Value, split: Axes) -> None:
    """With the cotangent of a result, which is split over these axes."""
    if value in inner.active:
        varies, split = inner.shares.varies(value), split - inner.shares.families.alone
        g = inner.shared(g, split, split | varies)  # one of those that may have made it has all
        inner.add(value, g, split - varies)


RULES[ShardMap] = _shard_map
ACTIVE[ShardMap] = _active
