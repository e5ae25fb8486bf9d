"""Correct Plans, broken in one place: what runs between Plan and C must notice every one.

A mutation is tried on every exchange that it fits, in every program; those that make a Plan which
is right as well are left out where they are made, each with its reason.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.check_plan import check_plan
from codegen.compile import lower
from codegen.errors import InternalError
from codegen.ir.plan import Branch, Exchange, Plan
from codegen.ir.steps import inner_steps, walk_steps
from codegen.symbolic import expr
from codegen.verify.rows import table_of
from codegen.verify.sample import check_exchanges, sample
from tests.codegen.test_mutations import PROGRAMS
from tests.spmd.walks import Walks


@spmd.program(mesh=("x", "y"))
def stencils(n: int = 24, m: int = 20):
    """Neighbours that go around and that do not, and parts that move to another layout."""
    u = spmd.input("u", (n, m), np.float64, layout=("x", "y"), default=lambda i, j: i * j)
    steps = spmd.scalar("steps", 4)
    for _ in spmd.range(steps):
        u = u + np.roll(u, 1, 0) - np.roll(u, -2, 1)
        u[1:-1, 1:-1] += u[:-2, 1:-1] + u[1:-1, 2:]
    return u, u.relayout(("y", None)), u[::-1]


@spmd.program(mesh=("r",))
def some(n: int = 12):
    """An exchange to which only some groups come, and one in a loop over the members."""
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)

    @spmd.shard_map(out_layouts=("r",))
    def local(a):
        total = np.zeros(3)
        for k in spmd.range(spmd.axis_size("r")):
            total = total + spmd.pbroadcast(np.sum(a) * np.arange(3.0), "r", root=k)
        return a + np.sum(total)

    return local(u)


ALL = {**PROGRAMS, "stencils": stencils, "some": some}
_plans: dict[str, Plan] = {}


def plan_of(name: str) -> Plan:
    if name not in _plans:
        _plans[name] = lower(ALL[name].capture()).plan
    return _plans[name]


def with_step(steps: Any, old: Any, new: Any) -> Any:
    """The steps with one of them replaced by others."""
    out: list[Any] = []
    for step in steps:
        if step is old:
            out += new
            continue
        if inner_steps(step):
            parts = {k: with_step(v, old, new) for k in ("body", "condition", "steps")
                     if (v := getattr(step, k, None)) is not None}
            if isinstance(step, Branch):
                parts["arms"] = tuple(with_step(arm, old, new) for arm in step.arms)
            step = replace(step, **parts)
        out.append(step)
    return tuple(out)


def with_exchange(plan: Plan, old: Exchange, **changed: Any) -> Plan:
    return replace(plan, steps=with_step(plan.steps, old, [replace(old, **changed)]))


# ---- mutations of an exchange: exchange, plan -> fields changed; None where it does not fit ------

BOXES = ("pull_from", "pull_into", "send", "give_into")


def of_box(name: str, change: Any) -> Any:
    def mutation(x: Exchange, plan: Plan) -> Any:
        box = getattr(x, name)
        changed = None if box is None else change(box, x)
        return None if changed is None else {name: changed}

    mutation.__name__ = f"{name}_{change.__name__}"
    return mutation


def folds(x: Exchange) -> bool:
    return bool(x.fn)


def later(box: Any, x: Exchange) -> Any:
    return replace(box, offset=box.offset + 1)


def earlier(box: Any, x: Exchange) -> Any:
    return replace(box, offset=box.offset - 1)


def longer(box: Any, x: Exchange) -> Any:
    return box.extent and replace(box, extent=(box.extent[0] + 1, *box.extent[1:])) or None


def shorter(box: Any, x: Exchange) -> Any:
    return box.extent and replace(box, extent=(box.extent[0] - 1, *box.extent[1:])) or None


def wider(box: Any, x: Exchange) -> Any:
    """Return the box with doubled strides, or None if it has one element and so no stride."""
    if not box.extent or all(e == 1 for e in box.extent):
        return None
    return replace(box, stride=tuple(2 * s for s in box.stride))


def on_one_rank(box: Any, x: Exchange) -> Any:
    there = 1 if x.dest else 0  # a member from which, or to which, something moves
    return replace(box, offset=box.offset + expr.eq(expr.symbol(x.member), there))


OF_BOXES = [of_box(name, change) for name in BOXES
            for change in (later, earlier, longer, shorter, wider, on_one_rank)]


def next_dest(x: Exchange, plan: Plan) -> Any:
    return x.dest and x.source and {"dest": (x.dest + 1) % plan.mesh.size(x.axes)}


def next_source(x: Exchange, plan: Plan) -> Any:
    return x.source and {"source": (x.source + 1) % plan.mesh.size(x.axes)}


def first_dest(x: Exchange, plan: Plan) -> Any:
    return x.dest and {"dest": expr.const(0)}


def nobody_sends(x: Exchange, plan: Plan) -> Any:
    return x.dest and x.source and {"sends": expr.const(0)}


def nobody_receives(x: Exchange, plan: Plan) -> Any:
    return x.dest and x.source and {"receives": expr.const(0)}


def next_root(x: Exchange, plan: Plan) -> Any:
    """Return the next root, or None for folds, whose result is the same for every root."""
    return x.root and not folds(x) and {"root": (x.root + 1) % plan.mesh.size(x.axes)}


def own_root(x: Exchange, plan: Plan) -> Any:
    return x.root and {"root": plan.mesh.position(x.axes)}


def root_beyond(x: Exchange, plan: Plan) -> Any:
    return x.root and {"root": plan.mesh.size(x.axes)}


def near_is_all(x: Exchange, plan: Plan) -> Any:
    return x.near and {"near": ()}


def near_end(k: int, by: int) -> Any:
    def mutation(x: Exchange, plan: Plan) -> Any:
        if not x.near:
            return None
        ranges = list(x.near[0])
        ranges[k] = ranges[k] + by
        return {"near": (tuple(ranges), *x.near[1:])}

    mutation.__name__ = f"near_{k}_{'more' if by > 0 else 'less'}"
    return mutation


OF_PEERS = [
    next_dest, next_source, first_dest, nobody_sends, nobody_receives, next_root, own_root,
    root_beyond, near_is_all, *(near_end(k, by) for k in range(4) for by in (1, -1)),
]
MUTATIONS = {m.__name__: m for m in OF_BOXES + OF_PEERS}


def alone(plan: Plan, kept: Exchange) -> Plan:
    """The Plan without its other exchanges: what is said of one does not depend on them."""
    for x in walk_steps(plan.steps):
        if isinstance(x, Exchange) and x is not kept:
            plan = replace(plan, steps=with_step(plan.steps, x, []))
    return plan


_alone: dict[str, list[tuple[Exchange, Plan]]] = {}


def exchanges_of(name: str) -> list[tuple[Exchange, Plan]]:
    if name not in _alone:
        plan = plan_of(name)
        found = [x for x in walk_steps(plan.steps) if isinstance(x, Exchange)]
        _alone[name] = [(x, alone(plan, x)) for x in found]
    return _alone[name]


def noticed(plan: Plan) -> bool:
    try:
        check_exchanges(check_plan(plan))
    except InternalError:
        return True
    return False


@pytest.mark.parametrize("name", ALL)
def test_whole_plans_pass(name):
    check_exchanges(check_plan(plan_of(name)))


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_exchange_is_noticed(mutation):
    broken = [(name, x, with_exchange(plan, x, **changed)) for name in ALL
              for x, plan in exchanges_of(name)
              if (changed := MUTATIONS[mutation](x, plan))]
    assert broken
    survivors = [f"{name}: {x.kind} at {x.place}" for name, x, plan in broken if not noticed(plan)]
    assert survivors == []


def test_what_is_said_of_a_wrong_exchange():
    """The op, its line, the mesh, both ranks and both boxes; and that it is spmd's own defect."""
    x, plan = exchanges_of("halo")[0]
    assert x.send is not None
    with pytest.raises(InternalError) as found:
        check_exchanges(with_exchange(plan, x, send=replace(x.send, offset=x.send.offset - 1)))
    text = str(found.value)
    assert re.search(rf"exchange {x.site} \({x.kind}, [\w.]+:\d+\) does not match with the mesh "
                     r"\((\w+=\d,?)+\)", text)
    assert re.search(r"rank \d to rank \d", text) and "report this program" in text
    assert found.value.place == x.place


# ---- what both sides say alike, and is wrong ----------------------------------------------------


def both_later(x: Exchange, plan: Plan) -> Any:
    """Return later offsets of where data lands, for both the taker and the giver."""
    if x.give_into is None or x.pull_into is None:
        return None
    me, member = plan.mesh.position(x.axes), expr.symbol(x.member)
    return {"pull_into": moved(x.pull_into, expr.eq(member, 0)),
            "give_into": moved(x.give_into, expr.eq(me, 0))}


def both_shorter(x: Exchange, plan: Plan) -> Any:
    """Return boxes in which less is taken from the first member, on both sides."""
    if not x.near and x.kind not in ("all_gather", "all_to_all", "gather_to", "redistribute"):
        return None
    me, member = expr.eq(plan.mesh.position(x.axes), 0), expr.eq(expr.symbol(x.member), 0)
    sides = {"pull_from": member, "pull_into": member, "send": me, "give_into": me}
    return {name: less(box, by) for name, by in sides.items() if (box := getattr(x, name))}


def moved(box: Any, by: Any) -> Any:
    return replace(box, offset=box.offset + by * (box.stride[-1] if box.stride else 1))


def less(box: Any, by: Any) -> Any:
    return replace(box, extent=(*box.extent[:-1], expr.maximum(box.extent[-1] - by, 0)))


def in_place(x: Exchange, plan: Plan) -> Any:
    """Into the memory that is read."""
    if x.pull_from is None or x.pull_into is None or x.pull_from.buffer is x.pull_into.buffer:
        return None
    return {"pull_into": replace(x.pull_into, buffer=x.pull_from.buffer)}


@pytest.mark.parametrize("mutation", [both_later, both_shorter, in_place])
def test_what_both_say_alike_and_is_wrong_is_noticed(mutation):
    broken = [(name, x, with_exchange(plan, x, **changed)) for name in ALL
              for x, plan in exchanges_of(name) if (changed := mutation(x, plan))]
    assert broken
    survivors = [f"{name}: {x.kind} at {x.place}" for name, x, plan in broken if not noticed(plan)]
    assert survivors == []


def test_exchanges_of_every_entry_are_compared():
    """Each stands in the arm of its own entry only: a build looks at all of them on every mesh."""
    plan = lower(Walks.capture()).plan
    table = table_of(plan)
    found = {}
    for values in sample(plan, table):
        found.setdefault(values["n_r"], set()).add(values["entry"])
    assert len(found) >= 8 and all(entries == set(range(5)) for entries in found.values())
    permute = next(s for s in walk_steps(plan.steps)
                   if isinstance(s, Exchange) and s.kind == "permute")
    with pytest.raises(InternalError, match="permute"):
        check_exchanges(with_exchange(plan, permute, **next_dest(permute, plan)))
