"""Which fields of a take may stay where the batch lies, instead of being copied into their buffers.

In: a Plan. Out: for each field of its takes, in order, COPIED, ALONE or IN_PLACE.
Always holds: of a field that stays where it is, nothing is written, and nothing is read any more
when the feed's next batch is taken, or the run ends.
"""

from __future__ import annotations

from collections import Counter

from codegen.plan.grammar import Buffer, Exchange, Loop, Phase, Plan
from codegen.plan.handed import More, Take
from codegen.plan.steps import memory_written, step_buffers, walk_steps, walk_works

# As csrc/spmd_image.h has them. ALONE: where there is one rank, as others would read the buffer.
COPIED, ALONE, IN_PLACE = range(3)


def where_fields_lie(plan: Plan) -> list[int]:
    """In the order of the arrays of plan.takes."""
    takes = [s for s in walk_steps(plan.steps) if isinstance(s, Take)]
    sites = Counter(t.feed for t in takes)
    taken = Counter(b.number for t in takes for b in t.into)
    sent = {handed.feed for handed in plan.sends}
    written, exchanged = _touched(plan)
    shown = _shown(plan)

    def where(feed: str, buffer: int) -> int:
        again = sites[feed] > 1 or taken[buffer] > 1
        if again or feed in sent or buffer in written or buffer in shown.get(feed, ()):
            return COPIED
        return ALONE if buffer in exchanged else IN_PLACE

    return [where(h.feed, a.buffer.number) for h in plan.takes for a in h.arrays]


def _touched(plan: Plan) -> tuple[set[int], set[int]]:
    """Numbers of buffers that others than takes write, or that change places or outlive a turn; and
    of those from which exchanges read."""
    written = {a.buffer.number for a in (*plan.inputs, *plan.outputs,
                                         *(a for some in plan.points or () for a in some))}
    exchanged: set[int] = set()
    for step in walk_steps(plan.steps):
        found: list[Buffer] = []
        match step:
            case Loop():
                found = [b for cycle in step.rotate for b in cycle]
            case Phase():
                found = [b for work in walk_works(step.work) for b in memory_written(work)]
            case Exchange():
                touched = list(step_buffers(step))
                found = touched if step.swaps else list(memory_written(step))
                found += [] if step.take is None else memory_written(step.take)
                exchanged.update(b.number for b in touched)
            case More():
                found = [step.into]
        written.update(b.number for b in found)
    return written, exchanged


def _shown(plan: Plan) -> dict[str, set[int]]:
    """By feed, buffers that others lie in where a rank is alone. Where the rank must let a batch go
    before the next take, at feed.more() or where it resumes, the others would not hear of it."""
    steps = list(walk_steps(plan.steps))
    found = {step.pull_from.buffer.number for step in steps
             if isinstance(step, Exchange) and step.shifts and step.pull_from is not None}
    asked = {step.feed for step in steps if isinstance(step, More)}
    return {f.name: found for f in plan.feeds if f.name in asked or plan.points}
