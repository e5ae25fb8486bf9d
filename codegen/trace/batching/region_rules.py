"""Batching rules of loops, branches and other ops with regions.

Always holds: a member that has left a loop keeps its values, and has no more effects there: it
prints nothing and checks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from codegen import dtypes, ops
from codegen.graph.clone import Copier
from codegen.ir.graph import ArrayType, Op, Region, Value, walk
from codegen.mesh import LayoutEntry, local_extent
from codegen.ops import Exchange
from codegen.symbolic import expr
from codegen.trace.array import Array, wrap
from codegen.trace.control.regions import laid_as, plain_type

if TYPE_CHECKING:
    from codegen.trace.batching.batch import Batch

Stacked = Sequence[Value | None]


def _ends(batch: Batch, inner: Batch, values: Sequence[Value], own: set[int]) -> list[Value]:
    """Return the results of a region, stacked at the positions in `own`."""
    ends = []
    for k, v in enumerate(values):
        if k in own:
            (v,) = inner.every_of([v], [inner.of.get(v)])
            v = laid_as(batch.context, v, batch.stacked(values[k].type).layout)
        ends.append(v)
    return ends


def _results(batch: Batch, op: Op, own: set[int]) -> list[Value]:
    """Return new values for an op's results, stacked at the positions in `own`."""
    return [Value(v.name, batch.stacked(v.type)) if k in own else v
            for k, v in enumerate(op.results)]


def _emit(
    batch: Batch, op: Op, operands: Sequence[Value], results: Sequence[Value],
    regions: Sequence[Region],
) -> list[Value | None]:
    batch.context.blocks[-1].ops.append(
        replace(op, operands=tuple(operands), results=tuple(results), regions=tuple(regions)))
    return [None if new is old else new for old, new in zip(op.results, results)]


# ---- loops --------------------------------------------------------------------------------------


def loop(batch: Batch, op: Op, stacked: Stacked) -> Sequence[Value | None]:
    """Return the results of a loop for all members. A carried value is stacked if its start is, or
    if an iteration makes it so: the body is batched until no more values become stacked."""
    own = {k for k, g in enumerate(stacked) if g is not None}
    while True:
        regions, more = _batched_body(batch, op, own)
        if more <= own:
            break
        own |= more
    begins = []
    for k, (v, arg) in enumerate(zip(op.operands, op.regions[-1].args, strict=True)):
        if k in own:
            (v,) = batch.every_of([v], [stacked[k]])
            v = laid_as(batch.context, v, batch.stacked(arg.type).layout)
        begins.append(v)
    return _emit(batch, op, begins, _results(batch, op, own), regions)


def _batched_body(batch: Batch, op: Op, own: set[int]) -> tuple[list[Region], set[int]]:
    """Return the regions of a loop whose carried values in `own` are stacked, and the carried
    values that are stacked at the end of an iteration."""
    *tests, body = op.regions
    regions, apart = list[Region](), False
    for test in tests:
        args = _carried(batch, test, own)
        with batch.block(args) as block:
            inner = batch.inside({a: b for a, b in zip(test.args, args) if a is not b})
            holds, apart = _test(inner, test.ops, test.results[0])
            if apart:
                holds = batch.emit(ops.Reduce("or", (0,)), holds)
            regions.append(block.close([holds]))
    args, more = _carried(batch, body, own), set[int]()
    with batch.block(args) as block:
        inner = batch.inside({a: b for a, b in zip(body.args, args) if a is not b})
        going = None
        if apart:
            again = Copier(batch.context.unique, dict(zip(tests[0].args, body.args)), {},
                           (ops.Print, ops.Expect))
            copies = again.ops(tests[0].ops)
            going, _ = _test(inner, copies, again.of(tests[0].results[0]))
            inner = inner.inside({}, going)
        inner.through(body.ops)
        selects = apart and not op.kind.guarded  # type: ignore[attr-defined]
        ends = []
        for k, (arg, end) in enumerate(zip(body.args, body.results, strict=True)):
            if end in inner.of or (selects and end is not arg):
                more.add(k)
            if k not in own:
                ends.append(end)
                continue
            (new,) = inner.every_of([end], [inner.of.get(end)])
            if selects and end is not arg:
                assert going is not None
                new = batch.chosen(going, new, args[k])
            ends.append(laid_as(batch.context, new, args[k].type.layout))
        regions.append(block.close(ends))
    return regions, more


def _carried(batch: Batch, region: Region, own: set[int]) -> list[Value]:
    return [Value(a.name, batch.stacked(plain_type(a))) if k in own else a
            for k, a in enumerate(region.args)]


def _test(inner: Batch, recorded: Sequence[Op], holds: Value) -> tuple[Value, bool]:
    """Return the condition of a loop, and whether it is stacked, with one truth value a member."""
    inner.through(recorded)
    if holds not in inner.of and inner.active is None:
        return holds, False
    (each,) = inner.every_of([holds], [inner.of.get(holds)])
    return inner.both(each), True


# ---- branches -----------------------------------------------------------------------------------


def branch(batch: Batch, op: Op, stacked: Stacked) -> Sequence[Value | None]:
    kind = op.kind
    assert isinstance(kind, ops.Branch)
    if kind.on is None and stacked[0] is not None:
        return _selected(batch, op, stacked[0])
    arms = []
    for arm in op.regions:
        with batch.block() as block:
            inner = batch.inside({})
            inner.through(arm.ops)
            arms.append((block, inner))
    own = {k for (_, inner), arm in zip(arms, op.regions)
           for k, v in enumerate(arm.results) if v in inner.of}
    results, regions = _results(batch, op, own), []
    for (block, inner), arm in zip(arms, op.regions):
        batch.context.blocks.append(block)
        try:
            ends = _ends(batch, inner, arm.results, own)
            ends = [laid_as(batch.context, v, r.type.layout) if k in own else v
                    for k, (v, r) in enumerate(zip(ends, results))]
            regions.append(block.close(ends))
        finally:
            batch.context.blocks.pop()
    types = tuple(r.type if k in own else t for k, (r, t) in enumerate(zip(results, kind.types)))
    return _emit(batch, replace(op, kind=kind.but(types=types)), op.operands, results, regions)


def _selected(batch: Batch, op: Op, on: Value) -> list[Value]:
    """Return the results of a branch where members choose different arms: all arms are computed,
    and each member selects from them."""
    ways, chosen = len(op.regions), list[Value]()
    if on.type.dtype.kind == "b":
        chosen = [batch.map("logical_not", on), on]
    else:
        index = batch.clipped(on, expr.const(ways - 1))
        chosen = [batch.map("eq", index, batch.integer(k, index.type.shape)) for k in range(ways)]
    arm_results = []
    for holds, arm in zip(chosen, op.regions, strict=True):
        inner = batch.inside({}, batch.both(holds))
        inner.through(arm.ops)
        arm_results.append(inner.every_of(arm.results, [inner.of.get(v) for v in arm.results]))
    results = []
    for values in zip(*arm_results):
        first, *others = values
        results.append(reduce(lambda so_far, way: batch.chosen(way[0], way[1], so_far),
                              zip(chosen[1:], others), first))
    return results


# ---- what is said together ----------------------------------------------------------------------


def defined(batch: Batch, op: Op, stacked: Stacked) -> Sequence[Value | None]:
    kind, (region,) = op.kind, op.regions
    assert isinstance(kind, ops.Defined)
    with batch.block() as block:
        inner = batch.inside({})
        inner.through(region.ops)
        own = {k for k, v in enumerate(region.results) if v in inner.of or kind.back is not None}
        body = block.close(_ends(batch, inner, region.results, own))
    types = tuple(batch.stacked(t) if k in own else t for k, t in enumerate(kind.types))
    back = kind.back and _MappedBack(batch, kind.back, [g is not None for g in stacked])
    operands = [v if g is None else g for v, g in zip(op.operands, stacked)]
    return _emit(batch, replace(op, kind=kind.but(back=back, types=types)), operands,
                 _results(batch, op, own), [body])


class _MappedBack:
    """A derivative rule that a user has written, for all members. own: whether each operand is
    stacked; the cotangent of a shared operand is the sum over members."""

    def __init__(self, batch: Batch, back: Any, own: Sequence[bool]) -> None:
        self.batch, self.back, self.own = batch, back, own

    def __call__(
        self, operands: Sequence[Array], results: Sequence[Array],
        cotangents: Sequence[Array | None],
    ) -> list[Array | None]:
        batch, context = self.batch, operands[0].context if operands else self.batch.context
        arrays = [*operands, *results, *(g for g in cotangents if g is not None)]
        owned = [*self.own, *(True for _ in (*results, *cotangents))]
        operand_cotangents: list[Array | None] = []

        def member(values: Sequence[Value]) -> list[Value]:
            parts = iter(wrap(context, v, x.weak) for v, x in zip(values, arrays))
            primals = [next(parts) for _ in operands]
            outputs = [next(parts) for _ in results]
            changes = [None if g is None else next(parts) for g in cotangents]
            operand_cotangents.extend(self.back(primals, outputs, changes))
            return [g.read() for g in operand_cotangents if g is not None]

        values = iter(batch.mapped([(x.read(), own) for x, own in zip(arrays, owned)], member))
        return [None if g is None else self._whole(*next(values), own)
                for g, own in zip(operand_cotangents, self.own, strict=True)]

    def _whole(self, value: Value, each: bool, own: bool) -> Array:
        batch = self.batch
        if not each:
            value = batch.spread(value)
        if not own:
            dtype = value.type.dtype
            wide = dtypes.folded_in(dtype)
            value = batch.emit(ops.Reduce("add", (0,)), batch.cast(value, wide))
            value = batch.cast(value, dtype)
        return wrap(batch.context, value)


def shard_map(batch: Batch, op: Op, stacked: Stacked) -> Sequence[Value | None]:
    """Return the results of a shard_map for all members. They stay split over their axes if the
    function uses none of these axes; else each rank gets all members."""
    kind, (region,), context = op.kind, op.regions, batch.context
    assert isinstance(kind, ops.ShardMap)
    entry: LayoutEntry = batch.entry if _is_free(op, batch.entry) else ()
    n = local_extent(context.mesh, batch.n, entry)
    args = [a if g is None else Value(a.name, ArrayType(a.type.dtype, (n, *a.type.shape)))
            for a, g in zip(region.args, stacked, strict=True)]
    operands = [v if g is None else laid_as(context, g, (entry, *layout))
                for v, g, layout in zip(op.operands, stacked, kind.in_layouts)]
    context.rank_view += 1
    try:
        with batch.block(args) as block:
            block.apart = True
            inner = batch.inside({a: b for a, b in zip(region.args, args) if a is not b}, n=n)
            inner.through(region.ops)
            own = {k for k, v in enumerate(region.results) if v in inner.of}
            body = block.close(_ends(inner, inner, region.results, own))
    finally:
        context.rank_view -= 1
    ins = tuple(layout if g is None else (entry, *layout)
                for layout, g in zip(kind.in_layouts, stacked))
    outs = tuple((entry, *layout) if k in own else layout
                 for k, layout in enumerate(kind.out_layouts))
    results = [Value(v.name, ArrayType(v.type.dtype, (batch.n, *v.type.shape), outs[k]))
               if k in own else v for k, v in enumerate(op.results)]
    types = tuple(r.type if k in own else t for k, (r, t) in enumerate(zip(results, kind.types)))
    kind = kind.but(in_layouts=ins, out_layouts=outs, types=types)
    return _emit(batch, replace(op, kind=kind), operands, results, [body])


def _is_free(op: Op, entry: LayoutEntry) -> bool:
    """Return whether a shard_map uses none of these axes: in layouts, exchanges or indices."""
    outer, axes = op.kind, set(entry)
    assert isinstance(outer, ops.ShardMap)
    if any(axes & set(e) for layout in (*outer.in_layouts, *outer.out_layouts) for e in layout):
        return False
    names = {f"{kind}_{axis}" for axis in axes for kind in "in"}
    for inner in walk(op.regions[0]):
        if isinstance(inner.kind, Exchange) and axes & set(inner.kind.axes):
            return False
        exprs = [*inner.kind.exprs(), *(e for v in inner.results for e in v.type.shape)]
        if any(s.name in names for e in exprs for s in e.symbols()):
            return False
    return True
