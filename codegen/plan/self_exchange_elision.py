"""Self-exchange elision: an exchange in a group of one rank is no copy; its source is read instead.

Goes in: a Plan. Comes out: the same, with each exchange marked that a group of one can skip: its
destination buffer becomes a view of the source (`shifts`), or swaps memory with it (`swaps`).
Always holds: a read finds the elements that the copy would have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen.ir.plan import Box, Exchange, Loop, More, Phase, Plan, Step, Take
from codegen.ir.steps import (
    inner_steps,
    mapped_steps,
    memory_written,
    step_buffers,
    walk_steps,
    walk_works,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


def self_exchange_elision(plan: Plan) -> Plan:
    """Return the Plan with `shifts` and `swaps` set on the exchanges that a group of one rank can
    skip."""
    known = _Known(plan)
    return replace(plan, steps=mapped_steps(plan.steps, known.marked))


class _Known:
    """Finds which buffers may be views or may swap when a group has one member.

    copied: sites of exchanges that copy a box to one with the same strides.
    touched, written: by id of a step, the numbers of the buffers that it or a step in it accesses.
    shown: numbers of buffers that only such exchanges fill, so they may be views of the source.
    fixed: numbers of buffers that must not swap their memory.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.touched: dict[int, set[int]] = {}
        self.written: dict[int, set[int]] = {}
        exchanges = [s for s in walk_steps(plan.steps) if isinstance(s, Exchange)]
        self.copied = {x.site for x in exchanges if self.copies(x)}
        self.shown = self.that_may(exchanges)
        for step in plan.steps if self.shown else ():
            self.look(step)
        self.shown = {b for b in self.shown if self.shows(b, plan.steps)}
        self.fixed = self.shown | {
            x.pull_from.buffer.number for x in exchanges
            if x.pull_from is not None and _filled(x) in self.shown}

    def that_may(self, exchanges: Sequence[Exchange]) -> set[int]:
        """Return the numbers of buffers that only copying exchanges along the same axes fill and
        that no other exchange, input or output uses: they may become views."""
        others = {a.buffer.number for a in (*self.plan.inputs, *self.plan.outputs)}
        axes: dict[int, tuple[str, ...]] = {}
        for x in exchanges:
            into = _filled(x)
            others |= {b.number for b in step_buffers(x)} - {into}
            if x.site not in self.copied or axes.setdefault(into, x.axes) != x.axes:
                others.add(into)
        return axes.keys() - others

    def marked(self, step: Step) -> Step:
        if not isinstance(step, Exchange) or step.site not in self.copied:
            return step
        if _filled(step) in self.shown:
            return replace(step, shifts=True)
        return replace(step, swaps=True) if self.may_swap(step) else step

    def may_swap(self, x: Exchange) -> bool:
        """Return whether the two buffers of an exchange may swap memory: they have one dtype,
        capacity and layout, and no rank needs the old content."""
        assert x.pull_from is not None and x.pull_into is not None
        a, b = x.pull_from.buffer, x.pull_into.buffer
        everywhere = all(axis.fixed == 1 or axis.name in x.axes for axis in self.plan.mesh.axes)
        here = self.here(x)
        like = [(box.buffer.dtype, box.buffer.capacity.subst(here), self.resolved(x, box)[0])
                for box in (x.pull_from, x.pull_into)]
        return (x.last and everywhere and {a.number, b.number}.isdisjoint(self.fixed)
                and like[0] == like[1])

    def look(self, step: Step) -> None:
        """Record which buffers a step, and all steps in it, touch and write."""
        touched, written = {b.number for b in step_buffers(step)}, set()
        if isinstance(step, Exchange | Take | More):
            written = {b.number for b in memory_written(step)}
        elif isinstance(step, Phase):
            written = {b.number for w in walk_works(step.work) for b in memory_written(w)}
        elif isinstance(step, Loop):  # what changes places is another's from then on
            written = {b.number for cycle in step.rotate for b in cycle}
        for inner in (s for steps in inner_steps(step) for s in steps):
            self.look(inner)
            touched |= self.touched[id(inner)]
            written |= self.written[id(inner)]
        self.touched[id(step)], self.written[id(step)] = touched, written

    def shows(self, b: int, steps: Sequence[Step]) -> bool:
        """Return whether these steps fill a buffer before they read it, and do not overwrite the
        source while the buffer is still read. Then the buffer can be a view of the source."""
        source: int | None = None
        for step in steps:
            written = self.written[id(step)]
            if isinstance(step, Exchange) and _filled(step) == b and step.pull_from is not None:
                source = step.pull_from.buffer.number
                continue
            if b in written:
                own = b in {buffer.number for buffer in step_buffers(step)}
                if own or not all(self.shows(b, inner) for inner in inner_steps(step)):
                    return False
                source = None
            elif source in written:
                source = None
            if b in self.touched[id(step)] and b not in written and source is None:
                return False
        return True

    def copies(self, x: Exchange) -> bool:
        """Return whether the only member of a group would copy one box to another one with the same
        extents and strides."""
        if x.pull_from is None or x.pull_into is None or x.in_place or x.wraps != 1:
            return False
        routed = (x.source, x.receives, x.dest, x.sends, x.root)
        apart = x.pull_from.buffer != x.pull_into.buffer and x.pull_from.buffer.data is None
        apart &= not x.fn and x.take is None
        return apart and x.flow in ("all", "near") and routed == (None,) * 5 and (
            self.resolved(x, x.pull_from)[1] == self.resolved(x, x.pull_into)[1])

    def here(self, x: Exchange) -> dict[Sym, Expr]:
        """Return the values of the mesh symbols for a group of one: every axis of the exchange has
        size 1 and coordinate 0."""
        known: dict[Sym, Expr] = {x.member: expr.const(0)}
        for name in x.axes:
            axis = self.plan.mesh.axis(name)
            known |= {axis.size_sym: expr.const(1), axis.coord_sym: expr.const(0)}
        return known

    def resolved(self, x: Exchange, box: Box) -> tuple[Expr, list[tuple[Expr, Expr]]]:
        """Return the offset of a box and the (extent, stride) pairs of its dims longer than 1,
        evaluated for a group of one."""
        here = self.here(x)
        for sym, e in box.names:
            here[sym] = e.subst(here)
        pairs = zip(box.extent, box.stride, strict=True)
        known = ((e.subst(here), s.subst(here)) for e, s in pairs)
        return box.offset.subst(here), [(e, s) for e, s in known if e != 1]


def _filled(x: Exchange) -> int:
    return -1 if x.pull_into is None else x.pull_into.buffer.number
