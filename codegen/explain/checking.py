"""How much of what a Plan computes serves its checks only: for those who ask what they cost.

Goes in: a Plan. Comes out: for every phase and exchange the share of its work, from 0 to 1, from
which nothing but an Expect follows; counted in elements read and functions computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from codegen.ir.indexing import leaves
from codegen.ir.plan import (
    Apply,
    Exchange,
    Expect,
    KernelCall,
    LibraryCall,
    Load,
    LocalRead,
    LocalValue,
    Nest,
    Node,
    Phase,
    Plan,
    Simple,
    Step,
)
from codegen.ir.steps import simple_works, step_buffers, walk_steps, work_buffers

Key = int | str  # a buffer's number, or the name of what a nest keeps


def shares(plan: Plan) -> dict[int, float]:
    """Return the share of checks in a step's time, by id of the step."""
    tasks = {id(s): list(_tasks(s)) for s in walk_steps(plan.steps)
              if isinstance(s, Phase | Exchange)}
    wanted: set[Key] = {a.buffer.number for a in (*plan.inputs, *plan.outputs)}
    for step in walk_steps(plan.steps):
        if not isinstance(step, Phase | Exchange | Expect):
            wanted.update(b.number for b in step_buffers(step))
    before = -1
    while before != len(wanted):  # what goes into something that is wanted is wanted
        before = len(wanted)
        for task in (p for some in tasks.values() for p in some):
            if task.gives & wanted:
                wanted |= task.takes
    return {
        step: sum(p.work for p in some if not p.gives & wanted) / max(1, sum(p.work for p in some))
        for step, some in tasks.items()
    }


class _Task:
    """A task that a step computes: of what, into what, and how much work it is at a point."""

    def __init__(self, gives: set[Key], takes: set[Key], work: int) -> None:
        self.gives, self.takes, self.work = gives, takes, work


def _tasks(step: Step) -> Iterator[_Task]:
    if isinstance(step, Exchange):
        if step.pull_into is not None and step.pull_from is not None:
            yield _Task({step.pull_into.buffer.number}, {step.pull_from.buffer.number}, 1)
    elif isinstance(step, Phase):
        for work in simple_works(step):
            for part in work.parts if isinstance(work, Nest) else (work,):
                yield _task(part)


def _task(part: Simple | LocalValue) -> _Task:
    if isinstance(part, LibraryCall | KernelCall):  # what they write, they may also read
        touched: set[Key] = {b.number for b in work_buffers(part)}
        return _Task(touched, touched, 8)
    value: Any = getattr(part, "value", None)
    takes, work = (set(_takes(value)), _work(value)) if value is not None else (set(), 1)
    if isinstance(part, LocalValue):
        return _Task({part.name}, takes, work)
    assert not isinstance(part, Nest)
    return _Task({part.buffer.number}, takes, work + 1)


def _takes(node: Node) -> Iterator[Key]:
    for x in leaves(node):
        if isinstance(x, Load) and x.buffer.data is None:
            yield x.buffer.number
        elif isinstance(x, LocalRead):
            yield x.name


def _work(node: Node) -> int:
    if isinstance(node, Apply):
        return 1 + sum(map(_work, node.args))
    return int(isinstance(node, Load))
