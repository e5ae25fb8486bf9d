"""Which buffers one entry alone uses: those of different entries may lie in one memory."""

from __future__ import annotations

from codegen.plan.grammar import Branch, Default, Loop, Plan
from codegen.plan.steps import step_buffers, walk_steps


def entry_of_buffers(plan: Plan) -> list[int]:
    """By number of a buffer: of the one entry that uses it, from 1 on; 0 where several do, and
    where what lies in it is kept from call to call."""
    users: list[set[int]] = [set() for _ in plan.buffers]
    kept = [plan.inputs[s.input] for s in plan.states] + [plan.outputs[s.new] for s in plan.states]
    for number in _kept_with({array.buffer.number for array in kept}, plan):
        users[number].add(-1)
    branch = plan.steps[-1]
    assert isinstance(branch, Branch)
    for number, (entry, arm) in enumerate(zip(plan.entries, branch.arms, strict=True)):
        defaults = [s for s in plan.steps if isinstance(s, Default) and s.input in entry.inputs]
        for step in walk_steps((*defaults, *arm)):
            for buffer in step_buffers(step):
                users[buffer.number].add(number)
        for array in (*(plan.inputs[k] for k in entry.inputs),
                      *(plan.outputs[k] for k in entry.outputs)):
            users[array.buffer.number].add(number)
    return [1 + max(mine) if len(mine) == 1 and -1 not in mine else 0 for mine in users]


def _kept_with(kept: set[int], plan: Plan) -> set[int]:
    """These buffers, and those that change places with them: what is kept may come to lie there."""
    loops = [step for step in walk_steps(plan.steps) if isinstance(step, Loop)]
    cycles = [{b.number for b in cycle} for loop in loops for cycle in loop.rotate]
    while True:
        more = kept.union(*(cycle for cycle in cycles if cycle & kept))
        if more == kept:
            return kept
        kept = more
