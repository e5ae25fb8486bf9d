"""Which entries may write into which states where they lie, so that nothing is copied.

In: Loops, of which each entry makes a new array of a state that it changes. Out: the same, where an
entry that only writes elements of the old array gives no new one: what it writes lies in the old
one's memory. Always holds: nobody reads the old array after that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from codegen.ir.fresh import Fresh
from codegen.ir.graph import DefUse, Op, Value
from codegen.ir.loops import Do, Loops
from codegen.ir.plan import Nest, Store
from codegen.ops import Branch, Loop

InPlaceChoice = tuple[int, int]  # number of an entry, and of a state that it writes into


@dataclass(frozen=True)
class Written:
    """A state that an entry writes in place. state: its number; old: its value; new: its last
    value, in the same memory."""

    state: int
    old: Value
    new: Value


def choices(loops: Loops) -> frozenset[InPlaceChoice]:
    """Return which entries may write into which states where they lie: those whose new array begins
    as the old one and gets other elements by stores."""
    module, defs = loops.module, loops.module.def_use
    return frozenset(
        (number, k)
        for number, entry in enumerate(module.entries) if number
        for k in entry.rebinds
        for new in [module.bodies[number].results[module.states[k].new]]
        if new is not (old := module.inputs[module.states[k].input].value)
        if _begins(new, defs, set()) is old
    )


def versions(loops: Loops) -> set[Value]:
    """Return what choices says that a state is on the way through an entry, from store to store."""
    module, values = loops.module, set[Value]()
    for number, k in choices(loops):
        new = module.bodies[number].results[module.states[k].new]
        _begins(new, module.def_use, values)
    return values


def _begins(value: Value, known: DefUse, passed: set[Value]) -> Value | None:
    """Return the array whose elements a value has at first, before stores write into it; None where
    something else writes. passed: gets all values on the way."""
    passed.add(value)
    while (op := known.defs.get(value)) is not None:
        base: Value | None = value
        if isinstance(op.kind, Do):
            base = _stored_over(op.kind, value)
        elif isinstance(op.kind, Loop):
            k, body = op.results.index(value), op.regions[-1]
            if _begins(body.results[k], known, passed) is not body.args[k]:
                return None
            base = op.operands[k]
        elif isinstance(op.kind, Branch):
            k = op.results.index(value)
            bases = {_begins(arm.results[k], known, passed) for arm in op.regions}
            base = bases.pop() if len(bases) == 1 else None
        if base is None or base is value:
            return None
        value = base
        passed.add(value)
    return value


def _stored_over(do: Do, value: Value) -> Value | None:
    bases = [x for x, v in do.begins if v is value]
    stores = all(isinstance(act, Store | Nest) for act in do.acts)
    return bases[0] if len(bases) == 1 and stores else None


def written_in_place(
    loops: Loops, chosen: Collection[InPlaceChoice]
) -> tuple[Loops, Mapping[int, list[Written]]]:
    """Return the Loops in which these entries give these states no new array, and by entry what
    they write instead."""
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
            written[number].append(Written(k, module.inputs[state.input].value, new))
            blank = Value(names.name("none"), new.type)
            ops.append(Op(Do(()), (), (blank,)))
            results[state.new] = blank
        bodies[number] = replace(body, ops=tuple(ops), results=tuple(results))
        entries[number] = replace(
            entry, rebinds=tuple(k for k in entry.rebinds if k not in mine), updates=tuple(mine))
    module = replace(module.with_bodies(bodies), entries=tuple(entries))
    return loops.with_module(module), written
