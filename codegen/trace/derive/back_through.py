"""The way back through loops and branches: what they did is computed again, from what each turn
began with, and gone through from its end.

Always holds: a loop keeps, turn by turn, only those carried values that its way back reads.
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
from codegen.trace.derive.needed import pruned
from codegen.trace.derive.once_more import closure, copier, run_again, saved_by
from codegen.trace.derive.reverse import Reverse
from codegen.trace.runtime_checks import expect
from codegen.trace.view import index_value

# ---- branches -----------------------------------------------------------------------------------


def _branch_active(at: Reverse, op: Op) -> Iterable[Value]:
    for arm in op.regions:
        at.mark(arm.ops)
    return [v for k, v in enumerate(op.results)
            if any(arm.results[k] in at.active for arm in op.regions)]


def _branch(at: Reverse, op: Op, given: Sequence[Value | None]) -> None:
    around, context = closure(at, op), at.context
    arms = []
    for arm in op.regions:
        with context.block() as block:
            inner = Reverse(context, around, at.shares, at.in_turn)
            copies = copier(at, {})
            ops = copies.ops(arm.ops)
            at.shares.same(copies.instead)
            block.ops.extend(ops)
            inner.mark(ops)
            for v, r, g in zip(arm.results, op.results, given):
                if g is not None and (again := copies.of(v)) in inner.active:
                    inner.add(again, g, at.shares.reach(r) - at.shares.varies(again))
            inner.pull(ops)
            found = [laid_as(context, inner.of(v), v.type.layout) for v in around]
            arms.append(pruned(block.close(found)))
    what = op.what
    assert isinstance(what, Branch)
    types = tuple(plain_type(v) for v in around)
    results = context.emit(replace(what, types=types), op.operands, arms)
    for v, g in zip(around, results):
        at.add(v, g, at.shares.of(v))


# ---- loops --------------------------------------------------------------------------------------


def _loop_active(at: Reverse, op: Op) -> Iterable[Value]:
    body, moving = op.regions[-1], {k for k, v in enumerate(op.operands) if v in at.active}
    while True:
        at.active.update(body.args[k] for k in moving)
        at.mark(body.ops)
        now = moving | {k for k, v in enumerate(body.results) if v in at.active}
        if now == moving:
            return [op.results[k] for k in sorted(moving)]
        moving = now


# Turns of a loop whose number only the run knows: its way back runs it again in parts, and these in
# parts, on so many levels of so many parts, of which each keeps what it begins with.
_LEVELS, _PARTS = 3, 64


@dataclass
class _Turns:
    """How often a loop runs; most: at most, as an extent, None where only the run knows; number: of
    a turn, counted from 0."""

    what: Loop
    counter: Sym
    count: Expr
    most: Expr | None

    @property
    def number(self) -> Expr:
        return expr.floordiv(expr.symbol(self.counter) - self.what.start, self.what.step)

    def counter_in(self, number: Expr) -> Expr:
        """Return the counter in the turn of this number."""
        return self.what.start + number * self.what.step


def _turns(at: Reverse, op: Op) -> _Turns:
    what = op.what
    assert isinstance(what, Loop) and what.counter is not None
    if not what.step.is_const:
        raise UnsupportedError("the gradient of a loop whose step only the launch knows",
                               place=op.place, expected="a step that is a Python integer",
                               found=str(what.step), remedy="spmd.range(n), and k * step in it")
    count, most = what.turns(), None
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
        count, _ = at.counts[op] = at.counts.get(op) or _counted(at, at.standing(op), most)
    return _Turns(what, what.counter, count, most)


def _counted(at: Reverse, op: Op, most: Expr | None) -> tuple[Expr, Op]:
    """Return how many turns a loop with a condition makes, at most so many; the op behind which
    that is known: it counts them now."""
    context, body = at.context, op.regions[-1]
    with context.block() as before:
        before.apart = True  # what stands further down is not there yet
        begin = index_value(context, expr.const(0))
    argument = [Value("turns", begin.type) for _ in op.regions]
    with context.block() as block:
        block.apart = True
        block.ops.extend(body.ops)
        end = at.map("add", argument[-1], index_value(context, expr.const(1)))
        grown = Region((*body.args, argument[-1]), tuple(block.ops), (*body.results, end))
    tests = [replace(r, args=(*r.args, a)) for r, a in zip(op.regions[:-1], argument)]
    total = Value("turns", begin.type)
    new = replace(op, operands=(*op.operands, begin), regions=(*tests, grown),
                  results=(*op.results, total))
    symbol = Sym(context.unique("turns_counted"), "counter", expr.const(0), most)
    let = Op(Let(symbol, f"turns {symbol.name}"), (total,), (), (), op.place)
    at.replace(op, new, before.ops)
    at.add_after(new, [let])
    return expr.symbol(symbol), let


def _symbol(at: Reverse, value: Value, most: Expr) -> Expr:
    """Return an integer that the program computes, as a symbol: formulas of it stay short."""
    symbol = Sym(at.context.unique("turns_counted"), "counter", expr.const(0), most)
    at.context.emit(Let(symbol, f"turns {symbol.name}"), (value,))
    return expr.symbol(symbol)


def _parts(at: Reverse, count: Expr, size: Expr, first: Expr) -> Value:
    """Return how many parts of this size there are from one turn to another one."""
    left = at.map("sub", index_value(at.context, count), index_value(at.context, first))
    left = at.map("add", left, index_value(at.context, size - 1))
    return at.map("floordiv", left, index_value(at.context, size))


def _in_parts(
    at: Reverse, op: Op, turns: _Turns, instead: bool
) -> tuple[Op, list[tuple[Value, Value]], dict[Value, Value]]:
    """Return the loop as loops in each other of at most so many turns, once more, or instead of it;
    which of their values are handed on as which of the loop's; and what is copied of its body."""
    context, most = at.context, _PARTS**_LEVELS
    inside = expr.le(turns.count, most)
    if inside != 1:
        holds = context.emit_one(Symbolic(inside, dtypes.BOOL))
        expect(context, holds, "a loop that is differentiated makes ",
               index_value(context, turns.count), f" turns\n  expected: at most {most}\n"
               "  try:      a loop over two loops of fewer turns")
    body = op.regions[-1]
    passing, made = list[tuple[Value, Value]](), dict[Value, Value]()
    sizes, size = list[Expr](), turns.count
    for k in range(_LEVELS - 1, 0, -1):  # as small as may be: what begins a part is kept
        value = _parts(at, size, expr.const(_PARTS), expr.const(0))
        value = at.map("maximum", value, index_value(context, expr.const(1)))
        size = _symbol(at, value, expr.const(_PARTS**k))
        sizes.append(size)
    sizes.append(expr.const(1))

    def level(k: int, operands: Sequence[Value], first: Expr, end: Expr) -> Sequence[Value]:
        """Return the turns from `first` up to `end`, of those that one part of the level above
        has."""
        size = sizes[k]
        left = _parts(at, end, size, first)
        stop = _symbol(at, at.clipped(left, expr.const(_PARTS)), expr.const(_PARTS))
        last = expr.const(_PARTS - 1)
        part = Sym(context.unique("part_of_turns"), "counter", expr.const(0), last)
        types, names = [plain_type(a) for a in body.args], [a.name for a in body.args]
        with context.block(types, names) as block:
            passing.extend(zip(block.args, body.args))
            number = first + expr.symbol(part) * size
            if k + 1 < _LEVELS:
                ends = level(k + 1, block.args, number, expr.minimum(end, number + size))
            else:
                copies = copier(at, dict(zip(body.args, block.args)),
                                {turns.counter: turns.counter_in(number)}, every=instead)
                block.ops.extend(copies.ops(body.ops))
                made.update(copies.instead)
                ends = [copies.of(v) for v in body.results]
            ends = [laid_as(context, v, a.type.layout) for v, a in zip(ends, body.args)]
            region = block.close(ends)
        what = Loop(part, expr.const(0), stop, expr.const(1))
        results = context.emit(what, operands, [region])
        passing.extend(zip(results, body.args))
        return results

    results = level(0, op.operands, expr.const(0), turns.count)
    parts = context.blocks[-1].ops[-1]
    assert parts.results == tuple(results)
    return parts, passing, made


def _loop(at: Reverse, op: Op, given: Sequence[Value | None]) -> None:
    turns, context = _turns(at, op), at.context
    if turns.most is None:
        parts = _parts_of(at, op, turns)
        if len(op.regions) == 1:
            _loop(at, parts, given)
            return
        for v, had, g in zip(parts.results, op.results, given):
            if g is not None:
                at.found[v] = at.brought(g, at.shares.after(had), at.shares.after(v))
        at.pull([parts])
        return
    body = op.regions[-1]
    moving = [k for k, v in enumerate(body.args) if v in at.active]
    around = closure(at, op)
    saved = _saved_in(body, turns)
    stacks = {v: at.kept.get(v) or _stack_of(context, v, turns.most, saved.get(v, v).name)
              for v in (*body.args, *saved)}
    begins = [_begun(at, op, k, given[k]) for k in moving]
    begins += [laid_as(context, at.of(v), v.type.layout) for v in around]
    types = [plain_type(body.args[k]) for k in moving] + [plain_type(v) for v in around]
    last = turns.count - 1
    back = Sym(context.unique("turn_back"), "counter", expr.const(0), last)
    number = last - expr.symbol(back)
    with context.block(types, ["ct_" + v.name for v in _both(body.args, moving, around)]) as block:
        read = {v: _turn_of(at, s, number, v) for v, s in stacks.items()}
        inner = Reverse(context, [*around, *(read[body.args[k]] for k in moving)], at.shares, True)
        copies = copier(at, read, {turns.counter: turns.counter_in(number)})
        ops, run = _turn_again(copies, body.ops, {v: read[r] for r, v in saved.items()})
        at.shares.same(copies.instead)
        block.ops.extend(run)
        inner.mark(ops)
        inner.found.update(zip(around, block.args[len(moving):], strict=True))
        for k, g in zip(moving, block.args):
            if (again := copies.of(body.results[k])) in inner.active:
                inner.add(again, g, at.shares.reach(body.args[k]) - at.shares.varies(again))
        inner.pull(ops)
        ends = [inner.all_of(read[body.args[k]]) for k in moving] + [inner.of(v) for v in around]
        ends = [laid_as(context, v, t.layout) for v, t in zip(ends, types)]
        region = _without_last_turns(inner, pruned(block.close(ends)))
    what = Loop(back, expr.const(0), turns.count, expr.const(1))
    used = set(free_values(region))
    _keep(at, op, turns, {v: s for v, s in stacks.items() if s in used})
    results = context.emit(what, begins, [region])
    for v, g in zip(around, results[len(moving):], strict=True):
        at.put(v, g)
    for k, begin in zip(moving, results):  # a loop may begin with what it also reads
        if (v := op.operands[k]) in at.active:
            at.add(v, begin, at.shares.reach(body.args[k]) - at.shares.varies(v))


def _parts_of(at: Reverse, op: Op, turns: _Turns) -> Op:
    """Return the loop in parts: behind it, where it counts its turns, else in its place."""
    if op not in at.parts:
        instead = len(op.regions) == 1
        with at.context.block() as block:
            block.apart = True  # what stands further down is not there yet
            parts, passing, made = _in_parts(at, op, turns, instead)
        if instead:
            parts = replace(parts, results=op.results)
            at.replace(op, parts, block.ops[:-1])
        else:
            at.add_after(at.counts[op][1], block.ops)
        at.parts[op] = parts, passing, made
    parts, passing, made = at.parts[op]
    for new, old in passing:
        at.shares.passing(new, old, at.shares.after(old))
    at.shares.same(made)
    at.mark([parts])
    return parts


def _without_last_turns(inner: Reverse, region: Region) -> Region:
    """Leave out the last turn of inner loops that run again only for the values that their turns
    begin with, and whose number of turns only the run knows: no turn begins with what the last one
    makes."""
    ops: list[Op] = []
    stacks = set(inner.kept.values())
    read = [v for op in region.ops for v in (*op.operands, *(
        v for r in op.regions for v in free_values(r)))]
    used = {*read, *region.results}
    for op in region.ops:
        what = op.what
        if (isinstance(what, Loop) and len(op.regions) == 1 and what.stop is not None
                and what.start == 0 and what.step == 1 and not what.stop.is_const
                and all(v in stacks for v in used.intersection(op.results))):
            ops += _to_the_last(inner, op, stacks)
        else:
            ops.append(op)
    return region.with_ops(ops)


def _to_the_last(at: Reverse, op: Op, stacks: Collection[Value]) -> list[Op]:
    """Return the loop without its last turn, each turn of which keeps what the next one begins
    with."""
    context, what, body = at.context, op.what, op.regions[-1]
    assert isinstance(what, Loop) and what.counter is not None and what.stop is not None
    made = {v: o for o in body.ops for v in o.results}
    begun: dict[int, tuple[int, Op]] = {}  # stacks: of which carried value
    most = None
    for k, v in enumerate(op.results):
        if v in stacks:
            update = made[body.results[k]]
            row = made[update.operands[1]]
            most = v.type.shape[0]
            if row.operands[0] not in body.args or not most.is_const or most.value < 2:
                return [op]
            begun[k] = body.args.index(row.operands[0]), update
    if most is None:
        return [op]
    operands = list(op.operands)
    with context.block() as before:
        for k, (j, update) in begun.items():
            operands[k] = _in_row(at, operands[k], op.operands[j], expr.const(0), update)
    counter = Sym(context.unique(what.counter.name), "counter", expr.const(0),
                  most - 2)
    with context.block([a.type for a in body.args], [a.name for a in body.args]) as block:
        copies = copier(at, dict(zip(body.args, block.args)),
                        {what.counter: expr.symbol(counter)}, every=True)
        gone = {update for _, update in begun.values()}
        block.ops.extend(copies.ops([o for o in body.ops if o not in gone]))
        ends = list(map(copies.of, body.results))
        for k, (j, update) in begun.items():
            number = expr.symbol(counter) + 1
            ends[k] = _in_row(at, block.args[k], ends[j], number, update)
    loop = replace(op, what=replace(what, counter=counter, stop=what.stop - 1),
                   operands=tuple(operands), regions=(block.close(ends),))
    return [*before.ops, loop]


def _in_row(at: Reverse, stack: Value, value: Value, number: Expr, like: Op) -> Value:
    """Return a stack with a value in the row of this number, as another update puts one there."""
    row = at.emit(Reshape((expr.const(1), *value.type.shape)), value)
    made = at.emit(Update((number, *(expr.const(0),) * value.type.ndim), (1,) * stack.type.ndim),
                   stack, row)
    return laid_as(at.context, made, like.result.type.layout)


def _saved_in(body: Region, turns: _Turns) -> dict[Value, Value]:
    """Return results of what the body calls that are kept for their way back: turn by turn, where
    each has the same shape; and what they are in what is called."""
    return {
        result: value for op in body.ops if (n := saved_by(op))
        for result, value in list(zip(op.results, op.regions[0].results, strict=True))[-n:]
        if all(turns.counter not in e.symbols() for e in value.type.shape)
    }


def _turn_again(
    copies: Copier, ops: Iterable[Op], kept: Mapping[Value, Value]
) -> tuple[list[Op], list[Op]]:
    """Copy the ops of a turn as run_again does; a function whose results are kept in part is
    computed once for the rest."""
    every, run = list[Op](), list[Op]()
    for op in ops:
        inner = op.regions[0].ops if saved_by(op) else (op,)
        for made, some in zip((every, run), run_again(copies, inner, kept), strict=True):
            made += some
        if saved_by(op):
            copies.instead.update(zip(op.results, map(copies.of, op.regions[0].results)))
    return every, run


def _begun(at: Reverse, op: Op, k: int, g: Value | None) -> Value:
    """Return the cotangent of a carried value with which the way back through a loop begins."""
    g, value, a = at.of_result(op.results[k], g), op.results[k], op.regions[-1].args[k]
    have = at.shares.reach(value) - at.shares.varies(a)
    return at.brought(g, have, at.shares.after(a))


def _both(args: Sequence[Value], moving: Sequence[int], around: Sequence[Value]) -> list[Value]:
    return [*(args[k] for k in moving), *around]


def _stack_of(context: Context, a: Value, turns: Expr, name: str) -> Value:
    """Return a value for the stack that holds a carried value, with a row for each turn."""
    layout = None if context.rank_view else ((), *(a.type.layout or ()))
    return Value(name + "_turns", ArrayType(a.type.dtype, (turns, *a.type.shape), layout))


def _turn_of(at: Reverse, stack: Value, number: Expr, a: Value) -> Value:
    zeros, ones = (expr.const(0),) * a.type.ndim, (1,) * stack.type.ndim
    row = at.emit(Slice((number, *zeros), ones, (expr.const(1), *a.type.shape)), stack)
    return laid_as(at.context, at.emit(Reshape(a.type.shape), row), a.type.layout)


def _keep(at: Reverse, op: Op, turns: _Turns, kept: Mapping[Value, Value]) -> None:
    """Let the loop, as it was recorded, also keep, turn by turn, some values that its body is given
    or makes."""
    kept = {v: s for v, s in kept.items() if v not in at.kept}
    if not kept:
        return
    op = at.standing(op)
    context, body, stacks = at.context, op.regions[-1], list(kept.values())
    with context.block() as before:
        blank = [at.emit(Full(0, s.type.dtype, s.type.shape, blank=True)) for s in stacks]
        begin = [laid_as(context, v, s.type.layout) for v, s in zip(blank, stacks)]
    with context.block([s.type for s in stacks], [s.name for s in stacks]) as block:
        block.ops.extend(body.ops)
        ends = []
        for v, stack in zip(kept, block.args):
            row = at.emit(Reshape((expr.const(1), *v.type.shape)), v)
            start = (turns.number, *(expr.const(0),) * v.type.ndim)
            ends.append(at.emit(Update(start, (1,) * stack.type.ndim), stack, row))
        region = Region((*body.args, *block.args), tuple(block.ops), (*body.results, *ends))
    tests = [replace(r, args=(*r.args, *(Value(s.name, s.type) for s in stacks)))
             for r in op.regions[:-1]]
    at.replace(op, replace(op, operands=(*op.operands, *begin), regions=(*tests, region),
                           results=(*op.results, *stacks)), before.ops)
    at.kept.update(kept)
    context.keeps.append(Keeps(tuple(stacks), turns.most, op.place))


WAYS_BACK = {Loop: _loop, Branch: _branch}
ACTIVE_RESULTS = {Loop: _loop_active, Branch: _branch_active}
