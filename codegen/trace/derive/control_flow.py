"""Reverse-mode derivatives of loops and branches: they are computed again, iterations last first,
each from the values that it began with.

Always holds: a loop keeps, for each iteration, only those carried values that its backward pass
reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from codegen import dtypes
from codegen.errors import ProgramError, UnsupportedError
from codegen.graph.clone import Copier
from codegen.ir.graph import ArrayType, Keeps, Op, Region, Value, free_values
from codegen.ops import (
    Branch,
    Full,
    Let,
    Loop,
    Reshape,
    Slice,
    Symbolic,
    Update,
)
from codegen.symbolic import estimate, expr
from codegen.symbolic.expr import Expr, Sym
from codegen.trace.context import Context
from codegen.trace.control.regions import laid_as, plain_type
from codegen.trace.derive.dead_code import pruned
from codegen.trace.derive.recompute import closure, copier, run_again, saved_by
from codegen.trace.derive.reverse import Reverse
from codegen.trace.runtime_checks import expect
from codegen.trace.view import index_value

# ---- branches -----------------------------------------------------------------------------------


def _branch_active(reverse: Reverse, op: Op) -> Iterable[Value]:
    for arm in op.regions:
        reverse.mark(arm.ops)
    return [v for k, v in enumerate(op.results)
            if any(arm.results[k] in reverse.active for arm in op.regions)]


def _branch(reverse: Reverse, op: Op, cotangents: Sequence[Value | None]) -> None:
    around, context = closure(reverse, op), reverse.context
    arms = []
    for arm in op.regions:
        with context.block() as block:
            inner = Reverse(context, around, reverse.shares, reverse.in_turn)
            copies = copier(reverse, {})
            ops = copies.ops(arm.ops)
            reverse.shares.same(copies.instead)
            block.ops.extend(ops)
            inner.mark(ops)
            for v, r, g in zip(arm.results, op.results, cotangents):
                if g is not None and (again := copies.of(v)) in inner.active:
                    inner.add(again, g, reverse.shares.reach(r) - reverse.shares.varies(again))
            inner.pull(ops)
            gradients = [laid_as(context, inner.of(v), v.type.layout) for v in around]
            arms.append(pruned(block.close(gradients)))
    kind = op.kind
    assert isinstance(kind, Branch)
    types = tuple(plain_type(v) for v in around)
    results = context.emit(replace(kind, types=types), op.operands, arms)
    for v, g in zip(around, results):
        reverse.add(v, g, reverse.shares.of(v))


# ---- loops --------------------------------------------------------------------------------------


def _loop_active(reverse: Reverse, op: Op) -> Iterable[Value]:
    body, moving = op.regions[-1], {k for k, v in enumerate(op.operands) if v in reverse.active}
    while True:
        reverse.active.update(body.args[k] for k in moving)
        reverse.mark(body.ops)
        now = moving | {k for k, v in enumerate(body.results) if v in reverse.active}
        if now == moving:
            return [op.results[k] for k in sorted(moving)]
        moving = now


# A loop whose number of iterations only the run knows is nested for its backward pass: so many
# levels of at most so many parts, each of which keeps the carried values that it begins with
# (multi-level checkpointing).
_LEVELS, _PARTS = 3, 64


@dataclass
class _TripCount:
    """The number of iterations of a loop: `count`; `most` bounds it as an extent, or is None where
    only the run knows a bound."""

    loop: Loop
    counter: Sym
    count: Expr
    most: Expr | None

    @property
    def number(self) -> Expr:
        """The number of an iteration, counted from 0."""
        return expr.floordiv(expr.symbol(self.counter) - self.loop.start, self.loop.step)

    def counter_in(self, number: Expr) -> Expr:
        """Return the counter in the iteration of this number."""
        return self.loop.start + number * self.loop.step


def _trip_count(reverse: Reverse, op: Op) -> _TripCount:
    loop = op.kind
    assert isinstance(loop, Loop) and loop.counter is not None
    if not loop.step.is_const:
        raise UnsupportedError("the gradient of a loop whose step only the launch knows",
                               place=op.place, expected="a step that is a Python integer",
                               found=str(loop.step), remedy="spmd.range(n), and k * step in it")
    count, most = loop.turns(), None
    if count is not None:
        count = expr.maximum(count, expr.const(0))
        outer = {s for s in count.symbols() if s.kind in ("counter", "extent")}
        try:
            most = estimate.upper_bound(count, outer) if outer else count
        except ProgramError:
            most = None
        if most is not None and any(s.kind == "scalar" for s in most.symbols()):
            most = None
    if len(op.regions) == 2 or count is None:
        count, _ = reverse.counts[op] = reverse.counts.get(op) or _count_iterations(
            reverse, reverse.replacement_of(op), most)
    return _TripCount(loop, loop.counter, count, most)


def _count_iterations(reverse: Reverse, op: Op, most: Expr | None) -> tuple[Expr, Op]:
    """Let a loop with a condition count its iterations, of which there are at most `most`; return
    the count, and the op after which it is known."""
    context, body = reverse.context, op.regions[-1]
    with context.block() as before:
        before.apart = True  # its ops go before the loop: no later value may be used again
        begin = index_value(context, expr.const(0))
    argument = [Value("turns", begin.type) for _ in op.regions]
    with context.block() as block:
        block.apart = True
        block.ops.extend(body.ops)
        end = reverse.map("add", argument[-1], index_value(context, expr.const(1)))
        grown = Region((*body.args, argument[-1]), tuple(block.ops), (*body.results, end))
    tests = [replace(r, args=(*r.args, a)) for r, a in zip(op.regions[:-1], argument)]
    total = Value("turns", begin.type)
    new = replace(op, operands=(*op.operands, begin), regions=(*tests, grown),
                  results=(*op.results, total))
    symbol = Sym(context.unique("turns_counted"), "counter", expr.const(0), most)
    let = Op(Let(symbol, f"turns {symbol.name}"), (total,), (), (), op.place)
    reverse.replace(op, new, before.ops)
    reverse.add_after(new, [let])
    return expr.symbol(symbol), let


def _symbol(reverse: Reverse, value: Value, most: Expr) -> Expr:
    """Return a symbol for an integer that the program computes, so that formulas of it stay
    short."""
    symbol = Sym(reverse.context.unique("turns_counted"), "counter", expr.const(0), most)
    reverse.context.emit(Let(symbol, f"turns {symbol.name}"), (value,))
    return expr.symbol(symbol)


def _part_count(reverse: Reverse, count: Expr, size: Expr, first: Expr) -> Value:
    """Return how many parts of `size` iterations there are from iteration `first` up to `count`."""
    context = reverse.context
    left = reverse.map("sub", index_value(context, count), index_value(context, first))
    left = reverse.map("add", left, index_value(context, size - 1))
    return reverse.map("floordiv", left, index_value(context, size))


def _nested_parts(
    reverse: Reverse, op: Op, turns: _TripCount, instead: bool
) -> tuple[Op, list[tuple[Value, Value]], dict[Value, Value]]:
    """Return the loop as nested loops of at most _PARTS iterations, which run in its place if
    `instead`, else again; pairs of their carried values and the loop's; and the copies of the
    values of its body."""
    context, most = reverse.context, _PARTS**_LEVELS
    inside = expr.le(turns.count, most)
    if inside != 1:
        holds = context.emit_one(Symbolic(inside, dtypes.BOOL))
        expect(context, holds, "a loop that is differentiated makes ",
               index_value(context, turns.count), f" turns\n  expected: at most {most}\n"
               "  try:      a loop over two loops of fewer turns")
    body = op.regions[-1]
    passing, copied = list[tuple[Value, Value]](), dict[Value, Value]()
    sizes, size = list[Expr](), turns.count
    for k in range(_LEVELS - 1, 0, -1):  # the least size of at most _PARTS parts
        value = _part_count(reverse, size, expr.const(_PARTS), expr.const(0))
        value = reverse.map("maximum", value, index_value(context, expr.const(1)))
        size = _symbol(reverse, value, expr.const(_PARTS**k))
        sizes.append(size)
    sizes.append(expr.const(1))

    def level(k: int, operands: Sequence[Value], first: Expr, end: Expr) -> Sequence[Value]:
        """Emit the loop of level k over the iterations from `first` up to `end`, which are those of
        one part of the level above; return its results."""
        size = sizes[k]
        left = _part_count(reverse, end, size, first)
        stop = _symbol(reverse, reverse.clipped(left, expr.const(_PARTS)), expr.const(_PARTS))
        last = expr.const(_PARTS - 1)
        part = Sym(context.unique("part_of_turns"), "counter", expr.const(0), last)
        types, names = [plain_type(a) for a in body.args], [a.name for a in body.args]
        with context.block(types, names) as block:
            passing.extend(zip(block.args, body.args))
            number = first + expr.symbol(part) * size
            if k + 1 < _LEVELS:
                ends = level(k + 1, block.args, number, expr.minimum(end, number + size))
            else:
                copies = copier(reverse, dict(zip(body.args, block.args)),
                                {turns.counter: turns.counter_in(number)}, every=instead)
                block.ops.extend(copies.ops(body.ops))
                copied.update(copies.instead)
                ends = [copies.of(v) for v in body.results]
            ends = [laid_as(context, v, a.type.layout) for v, a in zip(ends, body.args)]
            region = block.close(ends)
        loop = Loop(part, expr.const(0), stop, expr.const(1))
        results = context.emit(loop, operands, [region])
        passing.extend(zip(results, body.args))
        return results

    results = level(0, op.operands, expr.const(0), turns.count)
    parts = context.blocks[-1].ops[-1]
    assert parts.results == tuple(results)
    return parts, passing, copied


def _loop(reverse: Reverse, op: Op, cotangents: Sequence[Value | None]) -> None:
    turns, context = _trip_count(reverse, op), reverse.context
    if turns.most is None:
        parts = _checkpointed(reverse, op, turns)
        if len(op.regions) == 1:
            _loop(reverse, parts, cotangents)
            return
        for v, had, g in zip(parts.results, op.results, cotangents):
            if g is not None:
                have, want = reverse.shares.after(had), reverse.shares.after(v)
                reverse.cotangents[v] = reverse.brought(g, have, want)
        reverse.pull([parts])
        return
    body = op.regions[-1]
    moving = [k for k, v in enumerate(body.args) if v in reverse.active]
    around = closure(reverse, op)
    saved = _saved_results(body, turns)
    stacks = {v: reverse.kept.get(v) or _stack_of(context, v, turns.most, saved.get(v, v).name)
              for v in (*body.args, *saved)}
    begins = [_initial_cotangent(reverse, op, k, cotangents[k]) for k in moving]
    begins += [laid_as(context, reverse.of(v), v.type.layout) for v in around]
    types = [plain_type(body.args[k]) for k in moving] + [plain_type(v) for v in around]
    last = turns.count - 1
    back = Sym(context.unique("turn_back"), "counter", expr.const(0), last)
    number = last - expr.symbol(back)
    with context.block(types, ["ct_" + v.name for v in _both(body.args, moving, around)]) as block:
        read = {v: _row_of(reverse, s, number, v) for v, s in stacks.items()}
        active = [*around, *(read[body.args[k]] for k in moving)]
        inner = Reverse(context, active, reverse.shares, True)
        copies = copier(reverse, read, {turns.counter: turns.counter_in(number)})
        ops, run = _recompute_iteration(copies, body.ops, {v: read[r] for r, v in saved.items()})
        reverse.shares.same(copies.instead)
        block.ops.extend(run)
        inner.mark(ops)
        inner.cotangents.update(zip(around, block.args[len(moving):], strict=True))
        for k, g in zip(moving, block.args):
            if (again := copies.of(body.results[k])) in inner.active:
                reach = reverse.shares.reach(body.args[k])
                inner.add(again, g, reach - reverse.shares.varies(again))
        inner.pull(ops)
        ends = [inner.all_of(read[body.args[k]]) for k in moving] + [inner.of(v) for v in around]
        ends = [laid_as(context, v, t.layout) for v, t in zip(ends, types)]
        region = _without_last_iterations(inner, pruned(block.close(ends)))
    kind = Loop(back, expr.const(0), turns.count, expr.const(1))
    used = set(free_values(region))
    _record_stacks(reverse, op, turns, {v: s for v, s in stacks.items() if s in used})
    results = context.emit(kind, begins, [region])
    for v, g in zip(around, results[len(moving):], strict=True):
        reverse.put(v, g)
    for k, begin in zip(moving, results):  # a loop may begin with what it also reads
        if (v := op.operands[k]) in reverse.active:
            reverse.add(v, begin, reverse.shares.reach(body.args[k]) - reverse.shares.varies(v))


def _checkpointed(reverse: Reverse, op: Op, turns: _TripCount) -> Op:
    """Return the loop as nested loops: after it, where it counts its iterations, else in its
    place."""
    if op not in reverse.parts:
        instead = len(op.regions) == 1
        with reverse.context.block() as block:
            block.apart = True  # its ops move up to the loop: no later value may be used again
            parts, passing, copied = _nested_parts(reverse, op, turns, instead)
        if instead:
            parts = replace(parts, results=op.results)
            reverse.replace(op, parts, block.ops[:-1])
        else:
            reverse.add_after(reverse.counts[op][1], block.ops)
        reverse.parts[op] = parts, passing, copied
    parts, passing, copied = reverse.parts[op]
    for new, old in passing:
        reverse.shares.passing(new, old, reverse.shares.after(old))
    reverse.shares.same(copied)
    reverse.mark([parts])
    return parts


def _without_last_iterations(inner: Reverse, region: Region) -> Region:
    """Leave out the last iteration of inner loops that run again only for the values that their
    iterations begin with, and whose number of iterations only the run knows: no iteration begins
    with the values that the last one computes."""
    ops: list[Op] = []
    stacks = set(inner.kept.values())
    read = [v for op in region.ops for v in (*op.operands, *(
        v for r in op.regions for v in free_values(r)))]
    used = {*read, *region.results}
    for op in region.ops:
        kind = op.kind
        if (isinstance(kind, Loop) and len(op.regions) == 1 and kind.stop is not None
                and kind.start == 0 and kind.step == 1 and not kind.stop.is_const
                and all(v in stacks for v in used.intersection(op.results))):
            ops += _drop_last_iteration(inner, op, stacks)
        else:
            ops.append(op)
    return region.with_ops(ops)


def _drop_last_iteration(reverse: Reverse, op: Op, stacks: Collection[Value]) -> list[Op]:
    """Return ops with the loop, but for its last iteration: each iteration keeps the carried values
    that the next one begins with. The loop stays as it is where it keeps other values, or may be
    too short."""
    context, kind, body = reverse.context, op.kind, op.regions[-1]
    assert isinstance(kind, Loop) and kind.counter is not None and kind.stop is not None
    producers = {v: o for o in body.ops for v in o.results}
    begun: dict[int, tuple[int, Op]] = {}  # by stack: the carried value in it
    most = None
    for k, v in enumerate(op.results):
        if v in stacks:
            update = producers[body.results[k]]
            row = producers[update.operands[1]]
            most = v.type.shape[0]
            if row.operands[0] not in body.args or not most.is_const or most.value < 2:
                return [op]
            begun[k] = body.args.index(row.operands[0]), update
    if most is None:
        return [op]
    operands = list(op.operands)
    with context.block() as before:
        for k, (j, update) in begun.items():
            operands[k] = _in_row(reverse, operands[k], op.operands[j], expr.const(0), update)
    counter = Sym(context.unique(kind.counter.name), "counter", expr.const(0),
                  most - 2)
    with context.block([a.type for a in body.args], [a.name for a in body.args]) as block:
        copies = copier(reverse, dict(zip(body.args, block.args)),
                        {kind.counter: expr.symbol(counter)}, every=True)
        gone = {update for _, update in begun.values()}
        block.ops.extend(copies.ops([o for o in body.ops if o not in gone]))
        ends = list(map(copies.of, body.results))
        for k, (j, update) in begun.items():
            number = expr.symbol(counter) + 1
            ends[k] = _in_row(reverse, block.args[k], ends[j], number, update)
    loop = replace(op, kind=replace(kind, counter=counter, stop=kind.stop - 1),
                   operands=tuple(operands), regions=(block.close(ends),))
    return [*before.ops, loop]


def _in_row(reverse: Reverse, stack: Value, value: Value, number: Expr, like: Op) -> Value:
    """Return the stack with a value in row `number`, laid out as the result of the update
    `like`."""
    row = reverse.emit(Reshape((expr.const(1), *value.type.shape)), value)
    start = (number, *(expr.const(0),) * value.type.ndim)
    updated = reverse.emit(Update(start, (1,) * stack.type.ndim), stack, row)
    return laid_as(reverse.context, updated, like.result.type.layout)


def _saved_results(body: Region, turns: _TripCount) -> dict[Value, Value]:
    """Return the values that functions called by the body keep for their backward pass, where they
    have one shape in all iterations: by result of the call, the value in the function."""
    return {
        result: value for op in body.ops if (n := saved_by(op))
        for result, value in list(zip(op.results, op.regions[0].results, strict=True))[-n:]
        if all(turns.counter not in e.symbols() for e in value.type.shape)
    }


def _recompute_iteration(
    copies: Copier, ops: Iterable[Op], kept: Mapping[Value, Value]
) -> tuple[list[Op], list[Op]]:
    """Copy the ops of an iteration as run_again does. A function that keeps some of its values is
    opened, so that only the others are computed again."""
    every, run = list[Op](), list[Op]()
    for op in ops:
        inner = op.regions[0].ops if saved_by(op) else (op,)
        for target, some in zip((every, run), run_again(copies, inner, kept), strict=True):
            target += some
        if saved_by(op):
            copies.instead.update(zip(op.results, map(copies.of, op.regions[0].results)))
    return every, run


def _initial_cotangent(reverse: Reverse, op: Op, k: int, g: Value | None) -> Value:
    """Return the cotangent of a carried value with which the backward loop begins."""
    g, value, a = reverse.of_result(op.results[k], g), op.results[k], op.regions[-1].args[k]
    have = reverse.shares.reach(value) - reverse.shares.varies(a)
    return reverse.brought(g, have, reverse.shares.after(a))


def _both(args: Sequence[Value], moving: Sequence[int], around: Sequence[Value]) -> list[Value]:
    return [*(args[k] for k in moving), *around]


def _stack_of(context: Context, a: Value, turns: Expr, name: str) -> Value:
    """Return a value for the stack that holds a carried value, with a row for each iteration."""
    layout = None if context.rank_view else ((), *(a.type.layout or ()))
    return Value(name + "_turns", ArrayType(a.type.dtype, (turns, *a.type.shape), layout))


def _row_of(reverse: Reverse, stack: Value, number: Expr, a: Value) -> Value:
    zeros, ones = (expr.const(0),) * a.type.ndim, (1,) * stack.type.ndim
    row = reverse.emit(Slice((number, *zeros), ones, (expr.const(1), *a.type.shape)), stack)
    return laid_as(reverse.context, reverse.emit(Reshape(a.type.shape), row), a.type.layout)


def _record_stacks(
    reverse: Reverse, op: Op, turns: _TripCount, kept: Mapping[Value, Value]
) -> None:
    """Let the recorded loop also write some values of its body into stacks, a row for each
    iteration. kept: the stacks by value."""
    kept = {v: s for v, s in kept.items() if v not in reverse.kept}
    if not kept:
        return
    op = reverse.replacement_of(op)
    context, body, stacks = reverse.context, op.regions[-1], list(kept.values())
    with context.block() as before:
        blank = [reverse.emit(Full(0, s.type.dtype, s.type.shape, blank=True)) for s in stacks]
        begin = [laid_as(context, v, s.type.layout) for v, s in zip(blank, stacks)]
    with context.block([s.type for s in stacks], [s.name for s in stacks]) as block:
        block.ops.extend(body.ops)
        ends = []
        for v, stack in zip(kept, block.args):
            row = reverse.emit(Reshape((expr.const(1), *v.type.shape)), v)
            start = (turns.number, *(expr.const(0),) * v.type.ndim)
            ends.append(reverse.emit(Update(start, (1,) * stack.type.ndim), stack, row))
        region = Region((*body.args, *block.args), tuple(block.ops), (*body.results, *ends))
    tests = [replace(r, args=(*r.args, *(Value(s.name, s.type) for s in stacks)))
             for r in op.regions[:-1]]
    reverse.replace(op, replace(op, operands=(*op.operands, *begin), regions=(*tests, region),
                           results=(*op.results, *stacks)), before.ops)
    reverse.kept.update(kept)
    context.keeps.append(Keeps(tuple(stacks), turns.most, op.place))


WAYS_BACK = {Loop: _loop, Branch: _branch}
ACTIVE_RESULTS = {Loop: _loop_active, Branch: _branch_active}
