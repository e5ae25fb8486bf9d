"""Undo log of states: what a run overwrites in place is kept, so that a failed run can be undone.

In: a Plan whose entries store into states. Out: the same, with a copy of what a store overwrites
before each such store. Always holds: nothing else writes into a state but at the end of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from codegen import dtypes
from codegen.ir.plan import (
    KEEPS,
    Branch,
    Buffer,
    Integer,
    LocalValue,
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
from codegen.ir.steps import mapped_steps
from codegen.library_routines import KEEP_ROUTINE
from codegen.symbolic import expr

_ONE = Integer[Buffer](expr.const(1), dtypes.INT64)


def undo_log(plan: Plan) -> Plan:
    """Return the Plan with a copy before each store into a state; the same object if there is
    none."""
    if not any(entry.updates for entry in plan.entries):
        return plan
    branch = plan.steps[-1]
    assert isinstance(branch, Branch)
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
    parts: list[LocalValue[Buffer] | Store[Buffer] | Reduce[Buffer]] = []
    for part in sweep.parts:
        if isinstance(part, Store) and part.buffer in states:
            parts.append(replace(part, value=_ONE, combine=KEEPS))
        parts.append(part)
    return sweep if len(parts) == len(sweep.parts) else replace(
        sweep, parts=tuple(parts), simd=False)


def _copy(store: Store) -> Simple:
    """Return a store's undo copy; elements of a contiguous innermost loop are copied by one
    call."""
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
