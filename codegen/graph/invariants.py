"""A rule of loop_motion: what each turn of a loop computes alike may be computed before it.

Goes in: a loop. Comes out: values that are the same in every turn, with the ops that compute them.
Always holds: these ops cannot fail and have no effect, so they may also run before a loop that
makes no turn; nobody writes over the values, and turns read all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from codegen.graph.counted_loop import LoopBody
from codegen.ir.graph import DefUse, Op, Use, Value
from codegen.ops import Const, DynamicSlice, Full, Gather, Iota, Slice
from codegen.ops.sources import Source


@dataclass(frozen=True)
class Invariant:
    """A value that every turn computes alike, and that varying ops of a turn read. `ops` are the
    ops of the body that compute it, in order; `inputs` the values from before the loop that they
    read."""

    value: Value
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]

    @property
    def in_memory(self) -> bool:
        """Return whether an array on the way is made in memory, and not where it is read."""
        return any(v.type.ndim for op in self.ops if not op.kind.inline for v in op.results)

    def steps(self, loop: LoopBody) -> int | None:
        """Return how many elements of one operation a turn computes for it; None if not known."""
        steps = 0
        for op in self.ops:
            if not op.kind.is_view and not isinstance(op.kind, Source):
                work = [loop.volume(extents) for extents in op.kind.work(op)]
                if None in work:
                    return None
                steps += max((n for n in work if n is not None), default=0)
        return steps


def invariants(loop: LoopBody) -> Iterator[Invariant]:
    """Yield the invariant values that varying ops of a loop read, if they depend on an array that
    the turn makes. What a turn computes only of arrays from outside stays in it: a loop that
    repeats such work, as those of benchmarks, means to."""
    work = _Invariants(loop)
    for value in loop.defs:
        if value not in loop.varying and value in work.from_tables and work.is_read_whole(value):
            yield work.part(value)


class _Invariants:
    """Finds the invariant values of a loop. from_tables: the values that depend on an array that a
    turn makes from nothing, as np.eye does, or on zeros into which it writes. Other fills are
    numbers that stand beside an array."""

    def __init__(self, loop: LoopBody) -> None:
        self.loop = loop
        self.from_tables: set[Value] = set()
        for op in loop.body.ops:
            into = loop.defs.get(op.operands[0]) if op.kind.in_place else None
            if (_is_table(op) or (into is not None and isinstance(into.kind, Full))
                    or not self.from_tables.isdisjoint(op.operands)):
                self.from_tables.update(op.results)

    @cached_property
    def uses(self) -> dict[Value, tuple[Use, ...]]:
        return dict(DefUse.of(self.loop.body).uses)

    def is_read_whole(self, value: Value) -> bool:
        """Return whether a varying op reads a value, and all that do read all of it, as it is."""
        uses = [use for use in self.uses.get(value, ()) if use.op is None or not use.op.results
                or any(v in self.loop.varying or v not in self.loop.defs for v in use.op.results)]
        return bool(uses) and all(
            use.op is not None and not use.op.regions
            and not (use.op.kind.in_place and use.operand == 0)
            and not (use.operand == 0 and isinstance(use.op.kind, Slice | DynamicSlice | Gather))
            for use in uses)

    def part(self, value: Value) -> Invariant:
        """Return a value with the ops that compute it."""
        needed, inputs = {value}, dict[Value, None]()
        ops = []
        for op in reversed(self.loop.body.ops):
            if not needed.isdisjoint(op.results):
                ops.append(op)
                needed.update(v for v in op.operands if v in self.loop.defs)
                inputs.update((v, None) for v in self.loop.before(op.operands)
                              if v not in self.loop.defs)
        return Invariant(value, tuple(ops[::-1]), tuple(inputs))


def _is_table(op: Op) -> bool:
    """Return whether an op makes several elements that differ, of nothing."""
    return isinstance(op.kind, Const | Iota) and any(e != 1 for e in op.result.type.shape)
