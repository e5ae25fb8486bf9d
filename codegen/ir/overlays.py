"""Overlays: buffers of arms or stretches of a program that never run at the same time share memory.

A rank runs one arm of a branch at a time, so buffers that only one arm uses may lie where other
arms have theirs; so may those that only one stretch of a program uses: a loop, or the ops between
two loops. Both are called arms here, numbered from 1 on, outer ones first; 0 stands for none.
Addresses stay arithmetic: an overlay begins where the buffers of the one around it end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from codegen.ir.graph import Module, Op, Region, Value, free_values
from codegen.ir.plan import Exchange, Loop, Phase, Plan
from codegen.ir.steps import step_buffers, walk_steps
from codegen.ops import Branch
from codegen.ops import Loop as LoopOp


@dataclass(frozen=True)
class Overlays:
    """The overlays of a Plan, numbered from 1. around: by overlay, the number of the one that
    contains it; 0 for none. of: by buffer, the number of its overlay; 0 if it lies in none."""

    around: tuple[int, ...]
    of: tuple[int, ...]

    def share_memory(self, a: int, b: int) -> bool:
        """Return whether buffers of one overlay may lie where buffers of the other do: neither
        contains the other."""
        return common(self.around, a, b) not in (a, b)


class Arms:
    """The arms of the branches of a module. around: by number, from 1 on, the arm around each arm,
    0 for none; number: the number of an arm, by its region; of: the arm that defines a value.
    Inputs and outputs of one entry only count as defined in the arm of that entry.

    stretches: the arms that are stretches of a program without entries, by the op that each begins
    with; a value that is used in one stretch only counts as defined in it. Inputs are there as the
    first stretch begins, outputs as the last one ends."""

    def __init__(self, module: Module) -> None:
        self.around: list[int] = []
        self.number: dict[Region, int] = {}
        self.of: dict[Value, int] = {}
        self.stretches: dict[Op, int] = {}
        self.entries: set[int] = set()
        if not module.entries and self._stretch(module):
            return
        self._look(module.body, 0)
        if module.entries:
            self.entries = {self.number[arm] for arm in module.bodies}
        users: dict[Value, set[int]] = {}
        for arm, e in zip(module.bodies, module.entries, strict=False):
            for value in (*(module.inputs[k].value for k in e.inputs),
                          *(module.outputs[k].value for k in e.outputs)):
                users.setdefault(value, set()).add(self.number[arm])
        for s in module.states:
            for value in (module.inputs[s.input].value, module.outputs[s.new].value):
                users.setdefault(value, set()).add(0)
        for value in (*(i.value for i in module.inputs), *(o.value for o in module.outputs)):
            mine = users.get(value, {0})
            self.of[value] = max(mine) if len(mine) == 1 else 0
        for i in module.inputs:
            if i.default is not None:
                self.number[i.default] = self.of[i.value]
                self._look(i.default, self.of[i.value])

    def _stretch(self, module: Module) -> bool:
        """Divide the program into stretches and make an arm of each, if there are several; return
        whether there are."""
        stretches: list[list[Op]] = []
        for op in module.body.ops:
            alone = isinstance(op.kind, LoopOp)
            if alone or not stretches or isinstance(stretches[-1][-1].kind, LoopOp):
                stretches.append([])
            stretches[-1].append(op)
        if len(stretches) < 2:
            return False
        for ops in stretches:
            self.around.append(0)
            arm = self.stretches[ops[0]] = len(self.around)
            if ops is stretches[0]:
                self.of.update((i.value, arm) for i in module.inputs)
                for i in module.inputs:
                    if i.default is not None:
                        self.number[i.default] = arm
                        self._look(i.default, arm)
            self._look(Region((), tuple(ops), ()), arm)
            read = [v for op in ops for v in (
                *op.operands, *(x for inner in op.regions for x in free_values(inner)))]
            if ops is stretches[-1]:
                read += [o.value for o in module.outputs]
            self.of.update((v, 0) for v in read if self.of[v] != arm)
        return True

    def without_stretches(self, arm: int) -> int:
        """Return the arm itself if it is an arm of a branch; for a stretch, the innermost arm of a
        branch around it."""
        while arm in self.stretches.values():
            arm = self.around[arm - 1]
        return arm

    def _look(self, region: Region, arm: int) -> None:
        self.of.update(dict.fromkeys(region.args, arm))
        for op in region.ops:
            self.of.update(dict.fromkeys(op.results, arm))
            for inner in op.regions:
                own = arm
                if isinstance(op.kind, Branch):
                    self.around.append(arm)
                    own = self.number[inner] = len(self.around)
                self._look(inner, own)

    def shared(self, values: Iterable[Value], blank: Collection[Value]) -> int:
        """Return the innermost arm that contains the definitions of all these values; blank ones,
        which nobody writes, are ignored."""
        arms = {self.of[v] for v in values if v not in blank}
        return reduce(self.common, arms) if arms else 0

    def common(self, a: int, b: int) -> int:
        """Return the innermost arm that contains both arms; 0 if there is none."""
        return common(self.around, a, b)

    def depth(self, arm: int) -> int:
        """Return how many arms contain an arm, the arm itself included."""
        return 1 + self.depth(self.around[arm - 1]) if arm else 0

    def entry_of(self, arm: int) -> int:
        """Return the entry's arm that contains an arm; 0 if the program has no entries."""
        while arm and arm not in self.entries:
            arm = self.around[arm - 1]
        return arm


def common(around: Sequence[int], a: int, b: int) -> int:
    """Return the innermost arm that contains both arms; 0 if there is none."""
    while a != b:
        if a > b:
            a = around[a - 1]
        else:
            b = around[b - 1]
    return a


def overlays(plan: Plan) -> Overlays:
    """Return which buffers of a Plan may share memory. Buffers that exchange their addresses, or of
    which one may lie in the other, belong to one overlay. Buffers that one compute phase touches
    never share memory: a phase is one function, whose pointers must not alias."""
    around, arm = plan.arms, [b.arm for b in plan.buffers]
    lift = partial(common, around)
    cycles = [[plan.inputs[s.input].buffer.number, plan.outputs[s.new].buffer.number]
              for s in plan.states]
    phases = list[set[int]]()
    for step in walk_steps(plan.steps):
        if isinstance(step, Loop):
            cycles += ([b.number for b in cycle] for cycle in step.rotate)
        elif isinstance(step, Exchange) and (step.swaps or step.shifts):
            cycles.append([b.number for b in step_buffers(step)])
        elif isinstance(step, Phase):
            phases.append({b.number for b in step_buffers(step)})
    before = list[int]()
    while before != arm:
        before = list(arm)
        for cycle in cycles:
            home = reduce(lift, (arm[b] for b in cycle))
            arm[:] = (home if b in cycle else a for b, a in enumerate(arm))
        for touched in phases:
            for b in touched:
                arm[b] = _apart(lift, arm[b], {arm[other] for other in touched})
    return _without_empty(around, arm)


def _apart(lift: Callable[[int, int], int], arm: int, others: Collection[int]) -> int:
    """Return the innermost arm, from `arm` outwards, whose buffers share memory with none of the
    other arms'."""
    for other in others:
        if (shared := lift(arm, other)) not in (arm, other):
            arm = shared
    return arm


def _without_empty(around: Sequence[int], arm: Sequence[int]) -> Overlays:
    """Return the overlays of arms, without those that contain no buffer."""
    number, outer = {0: 0}, list[int]()
    for a, over in enumerate(around, 1):
        number[a] = number[over]
        if a in arm:
            outer.append(number[over])
            number[a] = len(outer)
    return Overlays(tuple(outer), tuple(number[a] for a in arm))
