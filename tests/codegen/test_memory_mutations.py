"""Correct Plans whose memory is broken in one place: what follows values through buffers notices.

Buffers and steps are changed after the passes that chose them: a value in the memory of another one
that is still needed, a copy that is left out, phases that change places, elements beside the right
ones, cycles the wrong way round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.check_memory import check_memory
from codegen.compile import lower
from codegen.errors import InternalError
from codegen.ir.graph import Region, walk
from codegen.ir.loops import BufferAssignment, Do
from codegen.ir.plan import Exchange, Loop, Nest, Phase, Plan, Store
from codegen.ir.steps import memory_read, walk_steps
from codegen.loops.assign_buffers import assign_buffers
from codegen.loops.double_buffering import double_buffering
from codegen.plan.to_plan import to_plan
from tests.codegen.test_mutations import PROGRAMS
from tests.codegen.test_plan_mutations import with_step


@spmd.program(mesh=("r",))
def turns(n: int = 20):
    """Carried arrays change places or are copied, what is still needed is updated; branches."""
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)
    p, steps = u * 0.5, spmd.scalar("steps", 3)
    old = u
    for t in spmd.range(steps):
        u, p = 2 * u - p + np.roll(u, 1), u
        if steps > t + 1:
            u[1:-1] = p[2:] - old[:-2]
        else:
            p = np.cumsum(u)
    w = u.copy()
    w[3:5] = 7.0
    k = 0
    while np.sum(w) > 0 and k < 4:
        w, u, k = w - np.max(u), np.sort(w), k + 1
    return {"u": u, "p": p, "w": w, "old": old, "k": k, "s": w @ u}


ALL = {**PROGRAMS, "turns": turns}
_placed: dict[str, tuple[BufferAssignment, Plan]] = {}


def placed_of(name: str) -> tuple[BufferAssignment, Plan]:
    if name not in _placed:
        where = double_buffering(assign_buffers(lower(ALL[name].capture()).loops))
        _placed[name] = where, to_plan(where)
    return _placed[name]


def noticed(where: BufferAssignment, plan: Plan) -> bool:
    try:
        check_memory(where, plan)
    except InternalError:
        return True
    return False


@pytest.mark.parametrize("name", ALL)
def test_whole_plans_pass(name):
    check_memory(*placed_of(name))


# ---- steps: plan -> Plans that are wrong --------------------------------------------------------


def phases(plan: Plan) -> Any:
    return [s for s in walk_steps(plan.steps) if isinstance(s, Phase)]


def with_work(plan: Plan, phase: Phase, work: Any) -> Plan:
    new = [replace(phase, work=tuple(work))] if work else []
    return replace(plan, steps=with_step(plan.steps, phase, new))


def work_left_out(plan: Plan) -> Any:
    """Yield the Plans in which one work is missing, copies included."""
    for phase in phases(plan):
        for k in range(len(phase.work)):
            yield with_work(plan, phase, phase.work[:k] + phase.work[k + 1 :])


def work_done_twice_in_another_order(plan: Plan) -> Any:
    for phase in phases(plan):
        for k in range(len(phase.work) - 1):
            a, b = phase.work[k : k + 2]
            if a != b and set(map(id, memory_read(b))) & {id(a.buffer)} if hasattr(
                    a, "buffer") else False:
                yield with_work(plan, phase, (*phase.work[:k], b, a, *phase.work[k + 2 :]))


def phases_change_places(plan: Plan) -> Any:
    def swapped(steps: Any) -> Any:
        for k in range(len(steps) - 1):
            yield (*steps[:k], steps[k + 1], steps[k], *steps[k + 2 :])

    for steps in swapped(plan.steps):
        yield replace(plan, steps=steps)
    for loop in walk_steps(plan.steps):
        if isinstance(loop, Loop):
            for body in swapped(loop.body):
                new = [replace(loop, body=body)]
                yield replace(plan, steps=with_step(plan.steps, loop, new))


def an_exchange_left_out(plan: Plan) -> Any:
    for x in walk_steps(plan.steps):
        if isinstance(x, Exchange):
            yield replace(plan, steps=with_step(plan.steps, x, []))


def elements_beside(plan: Plan) -> Any:
    for phase in phases(plan):
        for k, work in enumerate(phase.work):
            if isinstance(work, Store):
                new = replace(work, offset=work.offset + 1)
                yield with_work(plan, phase, (*phase.work[:k], new, *phase.work[k + 1 :]))


def into_another_buffer(plan: Plan) -> Any:
    for phase in phases(plan):
        for k, work in enumerate(phase.work):
            for b in plan.buffers if hasattr(work, "buffer") else ():
                if b.dtype == work.buffer.dtype and b is not work.buffer:
                    new = replace(work, buffer=b)
                    yield with_work(plan, phase, (*phase.work[:k], new, *phase.work[k + 1 :]))


def a_shorter_loop(plan: Plan) -> Any:
    for phase in phases(plan):
        for k, work in enumerate(phase.work):
            if not isinstance(work, Nest) and getattr(work, "loops", ()):
                first = replace(work.loops[0], extent=work.loops[0].extent - 1)
                new = replace(work, loops=(first, *work.loops[1:]))
                yield with_work(plan, phase, (*phase.work[:k], new, *phase.work[k + 1 :]))


def rings_left_out_or_turned_round(plan: Plan) -> Any:
    for loop in walk_steps(plan.steps):
        if isinstance(loop, Loop) and loop.rotate:
            yield replace(plan, steps=with_step(plan.steps, loop, [replace(loop, rotate=())]))
            if any(len(cycle) > 2 for cycle in loop.rotate):
                turned = replace(loop, rotate=tuple(cycle[::-1] for cycle in loop.rotate))
                yield replace(plan, steps=with_step(plan.steps, loop, [turned]))


MUTATIONS = [
    work_left_out, work_done_twice_in_another_order, phases_change_places, an_exchange_left_out,
    elements_beside, into_another_buffer, a_shorter_loop, rings_left_out_or_turned_round,
]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_step_is_noticed(mutation):
    count, survivors = 0, []
    for name in ALL:
        where, plan = placed_of(name)
        for k, broken in enumerate(mutation(plan)):
            count += 1
            if not noticed(where, broken):
                survivors.append(f"{name} {k}")
    assert count and survivors == []


# ---- buffers: a value in the memory of another one that is read later ----------------------------


def shared(region: Region) -> Any:
    """Values made while another one, which is read later, is there; both are read."""
    ops = region.ops
    for k, op in enumerate(ops):
        if not isinstance(op.kind, Do) or not op.kind.acts or op.kind.begins:
            continue
        later = [v for o in ops[k + 1 :] for v in o.operands] + list(region.results)
        before = {v for o in ops[:k] for v in o.results} | set(region.args)
        for v in op.results:
            for w in before & set(later):
                if v in later and v.type.dtype == w.type.dtype:
                    yield v, w


def regions(op_or_region: Any) -> Any:
    yield op_or_region
    for op in walk(op_or_region):
        yield from op.regions


@pytest.mark.parametrize("name", ALL)
def test_a_value_in_the_memory_of_one_that_is_needed_is_noticed(name):
    where, _ = placed_of(name)
    body = where.loops.module.body
    pairs = {(v, w) for region in regions(body) for v, w in shared(region)}
    survivors = []
    for v, w in sorted(pairs, key=lambda p: (p[0].id, p[1].id)):
        if where.of[v] is not where.of[w]:
            broken = replace(where, of={**where.of, v: where.of[w]})
            try:
                plan = to_plan(broken)
            except InternalError:
                continue
            if not noticed(broken, plan):
                survivors.append(f"{v.name} with {w.name}")
    assert survivors == []
