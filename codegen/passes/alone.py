"""What a rank alone would copy to itself is read where it lies: exchanges that are then a shift.

Goes in: a Plan. Comes out: the same, with those exchanges marked that a group of one need not make:
the buffer that one fills then begins where the elements stand that it would get.
Always holds: from such an exchange on nothing else writes what it reads, or what it fills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from codegen.plan.grammar import Box, Exchange, Loop, Phase, Plan, Step
from codegen.plan.steps import mapped_steps, memory_written, walk_steps, walk_works
from codegen.symbolic import expr


def alone(plan: Plan) -> Plan:
    """With `shifts` of its exchanges."""
    known = _Known({a.buffer.number for a in (*plan.inputs, *plan.outputs)})
    steps: list[Step] = []
    for step in reversed(plan.steps):  # a loop's turn is followed by the next one: at once
        known.add(step)
        steps += mapped_steps((step,), known.marked)
    return replace(plan, steps=tuple(reversed(steps)))


class _Known:
    """What is done from a step of the Plan on. written, exchanged: by how many, for each buffer."""

    def __init__(self, kept: set[int]) -> None:
        self.kept = kept
        self.written: Counter[int] = Counter()
        self.exchanged: Counter[int] = Counter()

    def add(self, outer: Step) -> None:
        for step in walk_steps((outer,)):
            if isinstance(step, Exchange):
                self.written.update({b.number for b in memory_written(step)})
                self.exchanged.update({box.buffer.number for box in step.boxes})
            elif isinstance(step, Phase):
                self.written.update(b.number for w in walk_works(step.work)
                                    for b in memory_written(w))
            elif isinstance(step, Loop):  # what changes places is another's from then on
                self.written.update(2 * [b.number for cycle in step.rotate for b in cycle])

    def marked(self, step: Step) -> Step:
        if not isinstance(step, Exchange) or not _copies(step):
            return step
        (a, b) = (box.buffer for box in (step.pull_from, step.pull_into) if box is not None)
        free = b.number not in self.kept and a.data is None and not self.written[a.number]
        only = self.written[b.number] == self.exchanged[b.number] == 1
        return replace(step, shifts=True) if free and only else step


def _copies(x: Exchange) -> bool:
    """Whether a member that is alone copies one box, which lies in the same strides there."""
    if x.pull_from is None or x.pull_into is None or x.fn or x.take or x.in_place or x.wraps != 1:
        return False
    routed = (x.source, x.receives, x.dest, x.sends, x.root)
    return x.flow in ("all", "near") and routed == (None,) * 5 and (
        _strides(x.pull_from) == _strides(x.pull_into))


def _strides(box: Box) -> Sequence[tuple[expr.Expr, expr.Expr]]:
    return [(e, s) for e, s in zip(box.extent, box.stride, strict=True) if e != 1]
