"""Entries that write into a state where it lies: it is not copied; what they overwrite is kept.

In: Loops, of which each entry makes a new array of a state that it changes. Out: the same, where an
entry that only writes elements of the old array does so in its memory; in the Plan a copy of what a
store overwrites stands before the store. Always holds: a run that fails can be undone from these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from codegen import dtypes
from codegen.fresh import Fresh
from codegen.ir import DefUse, Op, Value
from codegen.ops import Branch, Loop
from codegen.plan.grammar import (
    KEEP_ROUTINE,
    KEEPS,
    Buffer,
    Integer,
    Keep,
    Nest,
    Phase,
    Plan,
    Reduce,
    Simple,
    Step,
    Store,
    Sweep,
    Var,
    Work,
)
from codegen.plan.grammar import Branch as BranchStep
from codegen.plan.loops import Do, Loops
from codegen.plan.steps import mapped_steps
from codegen.symbolic import expr

Choice = tuple[int, int]  # number of an entry, and of a state that it writes into
_ONE = Integer[Buffer](expr.const(1), dtypes.INT64)


@dataclass(frozen=True)
class Written:
    """old: the state's value; new: what it is in the end, in the same memory."""

    old: Value
    new: Value


def choices(loops: Loops) -> frozenset[Choice]:
    """Which entries may write into which states where they lie: those whose new array begins as the
    old one and gets other elements by stores."""
    module, defs = loops.module, loops.module.def_use
    return frozenset(
        (number, k)
        for number, entry in enumerate(module.entries) if number
        for k in entry.rebinds
        for new in [module.bodies[number].results[module.states[k].new]]
        if new is not (old := module.inputs[module.states[k].input].value)
        if _begins(new, defs) is old
    )


def _begins(value: Value, known: DefUse) -> Value | None:
    """The array whose elements a value has at first, through all that stores write into it; None
    where something else writes."""
    while (op := known.defs.get(value)) is not None:
        base: Value | None = value
        if isinstance(op.what, Do):
            base = _stored_over(op.what, value)
        elif isinstance(op.what, Loop):
            k, body = op.results.index(value), op.regions[-1]
            if _begins(body.results[k], known) is not body.args[k]:
                return None
            base = op.operands[k]
        elif isinstance(op.what, Branch):
            k = op.results.index(value)
            bases = {_begins(arm.results[k], known) for arm in op.regions}
            base = bases.pop() if len(bases) == 1 else None
        if base is None or base is value:
            return None
        value = base
    return value


def _stored_over(what: Do, value: Value) -> Value | None:
    bases = [x for x, v in what.begins if v is value]
    stores = all(isinstance(act, Store | Nest) for act in what.acts)
    return bases[0] if len(bases) == 1 and stores else None


def written_in_place(
    loops: Loops, chosen: Collection[Choice]
) -> tuple[Loops, Mapping[int, list[Written]]]:
    """The Loops in which these entries give these states no new array, and by entry what they write
    instead."""
    module = loops.module
    if not chosen:
        return loops, {}
    bodies, entries = list(module.bodies), list(module.entries)
    written: dict[int, list[Written]] = {}
    names = Fresh()
    for number, entry in enumerate(module.entries):
        mine = sorted(k for n, k in chosen if n == number)
        body = bodies[number]
        results, ops = list(body.results), list(body.ops)
        written[number] = []
        for k in mine:
            state = module.states[k]
            new = results[state.new]
            written[number].append(Written(module.inputs[state.input].value, new))
            blank = Value(names.name("none"), new.type)
            ops.append(Op(Do(()), (), (blank,)))
            results[state.new] = blank
        bodies[number] = replace(body, ops=tuple(ops), results=tuple(results))
        entries[number] = replace(
            entry, rebinds=tuple(k for k in entry.rebinds if k not in mine), updates=tuple(mine))
    module = replace(module.with_bodies(bodies), entries=tuple(entries))
    return loops.with_module(module), written


# ---- what is overwritten is kept ---------------------------------------------------------------


def with_kept_writes(plan: Plan) -> Plan:
    """The Plan with a copy before each store into a state where it lies."""
    if not any(entry.updates for entry in plan.entries):
        return plan
    branch = plan.steps[-1]
    assert isinstance(branch, BranchStep)
    arms = []
    for entry, arm in zip(plan.entries, branch.arms, strict=True):
        mine = {plan.inputs[plan.states[k].input].buffer for k in entry.updates}
        arms.append(_kept(arm, mine) if mine else arm)
    steps = (*plan.steps[:-1], replace(branch, arms=tuple(arms)))
    return replace(plan, steps=steps, libraries=(*plan.libraries, KEEP_ROUTINE))


def _kept(steps: Iterable[Step], states: set[Buffer]) -> tuple[Step, ...]:
    def step(of: Step) -> Step:
        if not isinstance(of, Phase):
            return of
        return replace(of, work=tuple(w for work in of.work for w in _with_copies(work, states)))

    return mapped_steps(tuple(steps), step)


def _with_copies(work: Work, states: set[Buffer]) -> Iterator[Work]:
    if isinstance(work, Store) and work.buffer in states:
        yield _copy(work)
    elif isinstance(work, Nest):
        work = replace(work, sweeps=tuple(_sweep(s, states) for s in work.sweeps))
    yield work


def _sweep(sweep: Sweep, states: set[Buffer]) -> Sweep:
    parts: list[Keep[Buffer] | Store[Buffer] | Reduce[Buffer]] = []
    for part in sweep.parts:
        if isinstance(part, Store) and part.buffer in states:
            parts.append(replace(part, value=_ONE, combine=KEEPS))
        parts.append(part)
    return sweep if len(parts) == len(sweep.parts) else replace(
        sweep, parts=tuple(parts), simd=False)


def _copy(store: Store) -> Simple:
    """Elements that lie one after the other are kept at once."""
    copy = replace(store, value=_ONE, combine=KEEPS, rows=0, waiting=None, sift=0)
    if not store.loops:
        return copy
    *outer, last = store.loops
    slope, first = expr.linear_in(store.offset, last.sym)
    if slope == 1 and not store.bounds:
        return replace(copy, loops=tuple(outer), offset=first, value=_many(last))
    return copy


def _many(loop: Var) -> Integer[Buffer]:
    return Integer(loop.extent, _ONE.dtype)
