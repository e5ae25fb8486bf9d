"""Which fields of a take may stay where the batch lies, instead of being copied into their buffers.

In: a Plan. Out: for each field of its takes, in order, COPIED, ALONE or IN_PLACE.
Always holds: of a field that stays where it is, nothing is written, and nothing is read any more
when the feed's next batch is taken, wherever that is, or the run ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen.ir.plan import (
    Branch,
    Buffer,
    Default,
    Exchange,
    Loop,
    More,
    Phase,
    Plan,
    Point,
    Step,
    Take,
)
from codegen.ir.steps import memory_written, step_buffers, walk_steps, walk_works

# As csrc/spmd_image.h has them. ALONE: where there is one rank, as others would read the buffer.
COPIED, ALONE, IN_PLACE = range(3)


def where_fields_lie(plan: Plan) -> list[int]:
    """Return COPIED, ALONE or IN_PLACE for each field, in the order of the arrays of plan.takes."""
    fields: dict[int, set[tuple[str, int]]] = {}  # by buffer: which fields of which feeds it has
    for take in (step for step in walk_steps(plan.steps) if isinstance(step, Take)):
        for k, buffer in enumerate(take.into):
            fields.setdefault(buffer.number, set()).add((take.feed, k))
    written, exchanged = _touched(plan)
    copied = written | _late(plan, fields) | {b for b, lie in fields.items() if len(lie) > 1}

    def where(buffer: int) -> int:
        if buffer in copied:
            return COPIED
        return ALONE if buffer in exchanged else IN_PLACE

    return [where(a.buffer.number) for handed in plan.takes for a in handed.arrays]


def _touched(plan: Plan) -> tuple[set[int], set[int]]:
    """Return the numbers of buffers that other steps than takes write, or that change places or
    outlive a turn; and of those from which exchanges read."""
    written = {a.buffer.number for a in (*plan.inputs, *plan.outputs,
                                         *(a for some in plan.points or () for a in some))}
    exchanged: set[int] = set()
    for step in walk_steps(plan.steps):
        buffers: list[Buffer] = []
        match step:
            case Loop():
                buffers = [b for cycle in step.rotate for b in cycle]
            case Phase():
                buffers = [b for work in walk_works(step.work) for b in memory_written(work)]
            case Exchange():
                touched = list(step_buffers(step))
                buffers = touched if step.swaps else list(memory_written(step))
                buffers += [] if step.take is None else memory_written(step.take)
                exchanged.update(b.number for b in touched)
            case More():
                buffers = [step.into]
        written.update(b.number for b in buffers)
    return written, exchanged


def _late(plan: Plan, fields: dict[int, set[tuple[str, int]]]) -> set[int]:
    """Return the buffers of fields that are read after their batch was left."""
    reads = _Reads(fields)
    for step in walk_steps(plan.steps):
        if isinstance(step, Exchange) and (shows := _shows(step)):
            reads.shown.setdefault(shows[0], set()).add(shows[1])
    reads.before(plan.steps, set())
    return reads.late


def _shows(x: Exchange) -> tuple[int, int] | None:
    """Return the buffer that an exchange fills, and the buffer in which it lies on a rank that is
    the only member; None if the exchange copies there too."""
    if not x.shifts or x.pull_into is None or x.pull_from is None:
        return None
    return x.pull_into.buffer.number, x.pull_from.buffer.number


class _Reads:
    """Walk backwards over steps to find which buffers are read behind them, before they are filled
    again.

    shown: by buffer, those that it may lie in on a rank that is the only member of an exchange. A
    take ends the life of the batch before it. When the rank asks for more, or resumes, it copies
    the fields that it holds of a batch; buffers that lie in those fields keep the old place.
    """

    def __init__(self, fields: dict[int, set[tuple[str, int]]]) -> None:
        self.fields = fields
        self.shown: dict[int, set[int]] = {}
        self.late: set[int] = set()

    def before(self, steps: Sequence[Step], read: set[int]) -> set[int]:
        for step in reversed(steps):
            own = {b.number for b in step_buffers(step)} - _filled(step)
            read = self.before_step(step, read) | own
        return read

    def before_step(self, step: Step, read: set[int]) -> set[int]:
        match step:
            case Loop():
                return self.turns(step, read)
            case Branch():
                return set().union(*(self.before(arm, read) for arm in step.arms))
            case Default():
                return read | self.before(step.steps, read)
            case Take():
                read = read - _filled(step)
                self.leave(step.feed, read | self.shown_by(read))
            case More():
                self.leave(step.feed, self.shown_by(read))
            case Point():
                self.leave(None, self.shown_by(read))
        return read - _filled(step)

    def turns(self, loop: Loop, read: set[int]) -> set[int]:
        begins: set[int] = set()
        while True:
            again = self.before(loop.body, begins)
            head = self.before(loop.condition,
                               read | again | {b.number for b in step_buffers(loop)})
            if head == begins:
                return head
            begins = head

    def shown_by(self, read: set[int]) -> set[int]:
        return set().union(*(self.shown.get(b, ()) for b in read))

    def leave(self, feed: str | None, read: set[int]) -> None:
        """Note that the batch of this feed (None: of any) is left, and these buffers are read
        yet."""
        for b in read & self.fields.keys():
            if any(feed in (None, of) for of, _ in self.fields[b]):
                self.late.add(b)


def _filled(step: Step) -> set[int]:
    """Return the numbers of the buffers that a step fills without reading them."""
    if isinstance(step, Take):
        return {b.number for b in step.into}
    shows = _shows(step) if isinstance(step, Exchange) else None
    return {shows[0]} if shows else set()
