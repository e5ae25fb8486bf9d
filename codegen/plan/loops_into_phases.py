"""Loops into phases: a loop that only computes becomes one compute phase, which C compiles whole.

Goes in: a Plan. Comes out: the Plan in which small loops, with the branches and loops in them, are
phases of their own: the C compiler sees them whole, and a turn needs no call and no table lookup.
Always holds: such a phase ends soon (at most LONGEST points). A longer loop stays a loop of steps,
so that others see where a rank is; exchanges and checks stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from operator import is_

from codegen.ir.exprs import mapped
from codegen.ir.fresh import Fresh
from codegen.ir.names import buffer_names, identifier
from codegen.ir.plan import (
    Branch,
    Lane,
    Loop,
    Nest,
    Phase,
    Plan,
    Reduce,
    Step,
    Store,
    Var,
    Work,
    WorkBranch,
    WorkLoop,
)
from codegen.ir.steps import walk_steps
from codegen.loops.tile import tile
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.symbolic.extents import most
from codegen.target import TARGET

LONGEST = 2**27  # points of a phase: it takes a fraction of a second
MOST_WORKS = 64  # works in one function: compilers take more than linear time for it


def loops_into_phases(plan: Plan) -> Plan:
    """Return the Plan with its small loops turned into phases; the same object if there are
    none."""
    steps = _Enclosing(plan).steps(plan.steps)
    return plan if steps is plan.steps else replace(plan, steps=steps)


class _Enclosing:
    """Turns the small loops of a Plan into phases; `taken` are the names in use."""

    def __init__(self, plan: Plan) -> None:
        self.taken = Fresh(buffer_names(plan).values())

    def steps(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Return these steps with small loops turned into phases; the same tuple if nothing
        changes."""
        rewritten = tuple(map(self.step, steps))
        return steps if all(map(is_, rewritten, steps)) else rewritten

    def step(self, step: Step) -> Step:
        if isinstance(step, Loop):
            near = 0 < self.points(step, LONGEST) <= LONGEST and 0 < _works(step) <= MOST_WORKS
            if near and self.points(step, TARGET.short_loop):
                return self.phase(step)
            if near and (tiled := self.tiled(step)):
                return tiled
            body = self.steps(step.body)
            return step if body is step.body else replace(step, body=body)
        if isinstance(step, Branch):
            arms = tuple(map(self.steps, step.arms))
            return step if all(map(is_, arms, step.arms)) else replace(step, arms=arms)
        return step

    # ---- how much it is --------------------------------------------------------------------------

    def points(self, step: Step, each: int) -> int:
        """Return an upper bound of the points that a step computes; 0 if there is none, or if one
        of its works has more than `each` points."""
        if isinstance(step, Phase):
            some = [self.of_work(work) for work in step.work]
            return sum(some) if all(0 < n <= each for n in some) else 0
        if isinstance(step, Branch):
            some = [self.points(s, each) for arm in step.arms for s in arm]
            return 1 + sum(some) if all(some) else 0
        if not isinstance(step, Loop) or step.counter is None or step.flag or step.rotate:
            return 0
        if step.stop is None or not step.step.is_const or step.step == 0:
            return 0
        some = [self.points(s, each) for s in step.body]
        size = abs(step.step.value)
        ahead = (step.stop - step.start) * (1 if step.step.value > 0 else -1)
        return most(ahead + size - 1) // size * sum(some) if some and all(some) else 0

    def of_work(self, work: Work) -> int:
        match work:
            case Store():
                return self.of_loops(work.loops)
            case Reduce():
                return self.of_loops((*work.loops, *work.inner))
            case Lane():
                return self.of_loops((*work.loops, work.along))
            case Nest():
                return self.of_loops(work.loops) * sum(self.of_loops(s.loops) for s in work.sweeps)
        return 0

    def of_loops(self, loops: Sequence[Var]) -> int:
        return prod(most(v.extent) for v in loops)

    # ---- what it becomes -------------------------------------------------------------------------

    def phase(self, loop: Loop) -> Phase:
        first = next(s for s in walk_steps((loop,)) if isinstance(s, Phase))
        return replace(first, work=self.works((loop,), {}), place=loop.place)

    def tiled(self, loop: Loop) -> Phase | None:
        """Return a phase that runs all turns of a loop for one tile of points after the other (loop
        tiling over turns), or None where that is not legal or not faster."""
        assert loop.stop is not None
        ahead = loop.stop - loop.start
        if ahead.is_const and abs(ahead.value) <= abs(loop.step.value):  # one turn
            return None
        before = self.taken.copy()
        phase = self.phase(loop)
        (turns,) = phase.work
        assert isinstance(turns, WorkLoop)
        tiles = tile(turns, self.taken.name("tile"), most)
        if tiles is None:
            self.taken = before
            return None
        return replace(phase, work=(tiles,))

    def works(self, steps: Sequence[Step], names: Mapping[Sym, Expr]) -> tuple[Work, ...]:
        """Return the works of steps that only compute. `names` maps the counters of surrounding
        loops to their names in the phase."""
        works: list[Work] = []
        for step in steps:
            if isinstance(step, Phase):
                works += mapped(step.work, lambda e: e.subst(names))
            elif isinstance(step, Branch):
                on = mapped(step.on, lambda e: e.subst(names))
                arms = tuple(self.works(arm, names) for arm in step.arms)
                works.append(WorkBranch(on, arms, step.place))
            else:
                works.append(self.turns(step, names))
        return tuple(works)

    def turns(self, loop: Step, names: Mapping[Sym, Expr]) -> WorkLoop:
        assert isinstance(loop, Loop) and loop.counter is not None and loop.stop is not None
        counter = loop.counter
        sym = Sym(self.taken.name(identifier(counter.name)), "var", counter.lo, counter.hi)
        start, stop = loop.start.subst(names), loop.stop.subst(names)
        body = self.works(loop.body, {**names, counter: expr.symbol(sym)})
        return WorkLoop(sym, start, stop, loop.step, body, loop.place)


def _works(step: Step) -> int:
    return sum(len(s.work) for s in walk_steps((step,)) if isinstance(s, Phase))
