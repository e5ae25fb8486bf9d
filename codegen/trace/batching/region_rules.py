"""Loops, branches and other ops with regions, for all members of a batch at once.

Always holds: a member that has left a loop keeps what it has; what it would still do there, print
or expect, it does not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from codegen import dtypes, ops
from codegen.copies import Copier
from codegen.ir import ArrayType, Op, Region, Value, walk
from codegen.mesh import LayoutEntry, local_extent
from codegen.ops import Exchange
from codegen.symbolic import expr
from codegen.trace.array import Array, wrap
from codegen.trace.control.regions import laid_as, plain_type

if TYPE_CHECKING:
    from codegen.trace.batching.batch import Batch

Given = Sequence[Value | None]


def _ends(at: Batch, inner: Batch, values: Sequence[Value], own: set[int]) -> list[Value]:
    """The results of a region: for all members, those that are their own."""
    made = []
    for k, v in enumerate(values):
        if k in own:
            (v,) = inner.every_of([v], [inner.of.get(v)])
            v = laid_as(at.context, v, at.stacked(values[k].type).layout)
        made.append(v)
    return made


def _results(at: Batch, op: Op, own: set[int]) -> list[Value]:
    """What stands in the place of an op's results."""
    return [Value(v.name, at.stacked(v.type)) if k in own else v
            for k, v in enumerate(op.results)]


def _emit(
    at: Batch, op: Op, operands: Sequence[Value], results: Sequence[Value], made: Sequence[Region],
) -> list[Value | None]:
    at.context.blocks[-1].ops.append(
        replace(op, operands=tuple(operands), results=tuple(results), regions=tuple(made)))
    return [None if new is old else new for old, new in zip(op.results, results)]


# ---- loops --------------------------------------------------------------------------------------


def loop(at: Batch, op: Op, given: Given) -> Sequence[Value | None]:
    """With more and more of what is carried for each member, until nothing is added."""
    own = {k for k, g in enumerate(given) if g is not None}
    while True:
        made, more = _turn(at, op, own)
        if more <= own:
            break
        own |= more
    begins = []
    for k, (v, arg) in enumerate(zip(op.operands, op.regions[-1].args, strict=True)):
        if k in own:
            (v,) = at.every_of([v], [given[k]])
            v = laid_as(at.context, v, at.stacked(arg.type).layout)
        begins.append(v)
    return _emit(at, op, begins, _results(at, op, own), made)


def _turn(at: Batch, op: Op, own: set[int]) -> tuple[list[Region], set[int]]:
    """The regions of a loop that carries these for each member; those that members have their own
    of after a turn."""
    *tests, body = op.regions
    regions, apart = list[Region](), False
    for test in tests:
        args = _carried(at, test, own)
        with at.block(args) as block:
            inner = at.inside({a: b for a, b in zip(test.args, args) if a is not b})
            holds, apart = _test(inner, test.ops, test.results[0])
            if apart:
                holds = at.emit(ops.Reduce("or", (0,)), holds)
            regions.append(block.close([holds]))
    args, more = _carried(at, body, own), set[int]()
    with at.block(args) as block:
        inner = at.inside({a: b for a, b in zip(body.args, args) if a is not b})
        going = None
        if apart:
            again = Copier(at.context.unique, dict(zip(tests[0].args, body.args)), {},
                           (ops.Print, ops.Expect))
            copies = again.ops(tests[0].ops)
            going, _ = _test(inner, copies, again.of(tests[0].results[0]))
            inner = inner.inside({}, going)
        inner.through(body.ops)
        selects = apart and not op.what.guarded  # type: ignore[attr-defined]
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
                new = at.chosen(going, new, args[k])
            ends.append(laid_as(at.context, new, args[k].type.layout))
        regions.append(block.close(ends))
    return regions, more


def _carried(at: Batch, region: Region, own: set[int]) -> list[Value]:
    return [Value(a.name, at.stacked(plain_type(a))) if k in own else a
            for k, a in enumerate(region.args)]


def _test(inner: Batch, recorded: Sequence[Op], holds: Value) -> tuple[Value, bool]:
    """Whether a loop goes on: for each member, or for all of them."""
    inner.through(recorded)
    if holds not in inner.of and inner.active is None:
        return holds, False
    (each,) = inner.every_of([holds], [inner.of.get(holds)])
    return inner.both(each), True


# ---- branches -----------------------------------------------------------------------------------


def branch(at: Batch, op: Op, given: Given) -> Sequence[Value | None]:
    what = op.what
    assert isinstance(what, ops.Branch)
    if what.on is None and given[0] is not None:
        return _selected(at, op, given[0])
    arms = []
    for arm in op.regions:
        with at.block() as block:
            inner = at.inside({})
            inner.through(arm.ops)
            arms.append((block, inner))
    own = {k for (_, inner), arm in zip(arms, op.regions)
           for k, v in enumerate(arm.results) if v in inner.of}
    results, regions = _results(at, op, own), []
    for (block, inner), arm in zip(arms, op.regions):
        at.context.blocks.append(block)
        try:
            ends = _ends(at, inner, arm.results, own)
            ends = [laid_as(at.context, v, r.type.layout) if k in own else v
                    for k, (v, r) in enumerate(zip(ends, results))]
            regions.append(block.close(ends))
        finally:
            at.context.blocks.pop()
    types = tuple(r.type if k in own else t for k, (r, t) in enumerate(zip(results, what.types)))
    return _emit(at, replace(op, what=what.but(types=types)), op.operands, results, regions)


def _selected(at: Batch, op: Op, on: Value) -> list[Value]:
    """The results of the arm that each member chooses: all arms are computed."""
    ways, chosen = len(op.regions), list[Value]()
    if on.type.dtype.kind == "b":
        chosen = [at.map("logical_not", on), on]
    else:
        index = at.clipped(on, expr.const(ways - 1))
        chosen = [at.map("eq", index, at.integer(k, index.type.shape)) for k in range(ways)]
    found = []
    for holds, arm in zip(chosen, op.regions, strict=True):
        inner = at.inside({}, at.both(holds))
        inner.through(arm.ops)
        found.append(inner.every_of(arm.results, [inner.of.get(v) for v in arm.results]))
    made = []
    for values in zip(*found):
        first, *others = values
        made.append(reduce(lambda so_far, way: at.chosen(way[0], way[1], so_far),
                           zip(chosen[1:], others), first))
    return made


# ---- what is said together ----------------------------------------------------------------------


def defined(at: Batch, op: Op, given: Given) -> Sequence[Value | None]:
    what, (region,) = op.what, op.regions
    assert isinstance(what, ops.Defined)
    with at.block() as block:
        inner = at.inside({})
        inner.through(region.ops)
        own = {k for k, v in enumerate(region.results) if v in inner.of or what.back is not None}
        made = block.close(_ends(at, inner, region.results, own))
    types = tuple(at.stacked(t) if k in own else t for k, t in enumerate(what.types))
    back = what.back and _MappedBack(at, what.back, [g is not None for g in given])
    operands = [v if g is None else g for v, g in zip(op.operands, given)]
    return _emit(at, replace(op, what=what.but(back=back, types=types)), operands,
                 _results(at, op, own), [made])


class _MappedBack:
    """A way back that a user has written, of all members. own: of which operands members have their
    own; the cotangent of another one is the sum of what members find."""

    def __init__(self, at: Batch, back: Any, own: Sequence[bool]) -> None:
        self.at, self.back, self.own = at, back, own

    def __call__(
        self, operands: Sequence[Array], results: Sequence[Array],
        cotangents: Sequence[Array | None],
    ) -> list[Array | None]:
        at, context = self.at, operands[0].context if operands else self.at.context
        arrays = [*operands, *results, *(g for g in cotangents if g is not None)]
        owned = [*self.own, *(True for _ in (*results, *cotangents))]
        found: list[Array | None] = []

        def member(values: Sequence[Value]) -> list[Value]:
            parts = iter(wrap(context, v, x.weak) for v, x in zip(values, arrays))
            given = [next(parts) for _ in operands]
            made = [next(parts) for _ in results]
            changes = [None if g is None else next(parts) for g in cotangents]
            found.extend(self.back(given, made, changes))
            return [g.read() for g in found if g is not None]

        values = iter(at.mapped([(x.read(), own) for x, own in zip(arrays, owned)], member))
        return [None if g is None else self._whole(*next(values), own)
                for g, own in zip(found, self.own, strict=True)]

    def _whole(self, value: Value, each: bool, own: bool) -> Array:
        at = self.at
        if not each:
            value = at.spread(value)
        if not own:
            dtype = value.type.dtype
            wide = dtypes.folded_in(dtype)
            value = at.emit(ops.Reduce("add", (0,)), at.cast(value, wide))
            value = at.cast(value, dtype)
        return wrap(at.context, value)


def shard_map(at: Batch, op: Op, given: Given) -> Sequence[Value | None]:
    """Members are split there, too, where the function has nothing to do with the axes that split
    them; else each rank has all members."""
    what, (region,), context = op.what, op.regions, at.context
    assert isinstance(what, ops.ShardMap)
    entry: LayoutEntry = at.entry if _is_free(op, at.entry) else ()
    n = local_extent(context.mesh, at.n, entry)
    args = [a if g is None else Value(a.name, ArrayType(a.type.dtype, (n, *a.type.shape)))
            for a, g in zip(region.args, given, strict=True)]
    operands = [v if g is None else laid_as(context, g, (entry, *layout))
                for v, g, layout in zip(op.operands, given, what.in_layouts)]
    context.rank_view += 1
    try:
        with at.block(args) as block:
            block.apart = True
            inner = at.inside({a: b for a, b in zip(region.args, args) if a is not b}, n=n)
            inner.through(region.ops)
            own = {k for k, v in enumerate(region.results) if v in inner.of}
            made = block.close(_ends(inner, inner, region.results, own))
    finally:
        context.rank_view -= 1
    ins = tuple(layout if g is None else (entry, *layout)
                for layout, g in zip(what.in_layouts, given))
    outs = tuple((entry, *layout) if k in own else layout
                 for k, layout in enumerate(what.out_layouts))
    results = [Value(v.name, ArrayType(v.type.dtype, (at.n, *v.type.shape), outs[k]))
               if k in own else v for k, v in enumerate(op.results)]
    types = tuple(r.type if k in own else t for k, (r, t) in enumerate(zip(results, what.types)))
    what = what.but(in_layouts=ins, out_layouts=outs, types=types)
    return _emit(at, replace(op, what=what), operands, results, [made])


def _is_free(op: Op, entry: LayoutEntry) -> bool:
    """Whether nothing in a shard_map has to do with these axes."""
    what, axes = op.what, set(entry)
    assert isinstance(what, ops.ShardMap)
    if any(axes & set(e) for layout in (*what.in_layouts, *what.out_layouts) for e in layout):
        return False
    names = {f"{kind}_{axis}" for axis in axes for kind in "in"}
    for inner in walk(op.regions[0]):
        if isinstance(inner.what, Exchange) and axes & set(inner.what.axes):
            return False
        exprs = [*inner.what.exprs(), *(e for v in inner.results for e in v.type.shape)]
        if any(s.name in names for e in exprs for s in e.symbols()):
            return False
    return True
