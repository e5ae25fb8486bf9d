"""What the passes between Program and C decide: what is stored, shared, copied, and where."""

import dataclasses

import numpy as np
import pytest

import spmd
from codegen import ops
from codegen.checks.check_graph import check
from codegen.checks.check_plan import check_plan
from codegen.compile import lower
from codegen.errors import InternalError
from codegen.ir.graph import walk
from codegen.ir.plan import (
    Branch,
    Exchange,
    Literal,
    Load,
    LocalValue,
    Loop,
    Nest,
    Phase,
    Reduce,
    Store,
)
from codegen.ir.steps import walk_steps
from codegen.target import TARGET
from tests.codegen import sample_programs


def plan_of(name):
    return lower(getattr(sample_programs, name).capture()).plan


def work_of(plan):
    return [w for s in walk_steps(plan.steps) if isinstance(s, Phase) for w in s.work]


def copies(plan):
    return [w for w in work_of(plan) if isinstance(w, Store) and isinstance(w.value, Load)
            and w.value.offset == w.offset and w.value.buffer is not w.buffer]


def test_the_ring_works_in_place_and_copies_nothing():
    plan = plan_of("ring_allreduce")
    assert copies(plan) == []
    assert {b.name for b in plan.buffers} >= {"part"}
    assert len(plan.buffers) <= 3  # the row, and what is received


def test_what_is_sent_is_read_where_it_lies():
    plan = plan_of("ring_allreduce")
    for step in walk_steps(plan.steps):
        if isinstance(step, Exchange):
            assert step.pull_from.buffer.name == "part"


def test_values_read_before_they_are_overwritten_are_kept():
    # a[:, 0] and a[:, 5] change places: one column is saved, never the whole array.
    plan = plan_of("in_place")
    whole = next(b for b in plan.buffers if b.name == "u").capacity
    for other in plan.buffers:
        assert other.name == "u" or other.capacity != whole


def test_a_chain_and_the_reduction_that_ends_it_are_one_loop():
    plan = plan_of("branches")
    reductions = [w for w in work_of(plan) if isinstance(w, Reduce) and w.fn == "max"]
    assert len(reductions) == 1
    assert type(reductions[0].value).__name__ == "Apply"  # abs, computed on the way


def test_branches_on_the_index_and_on_data():
    plan = plan_of("branches")
    branches = [s for s in walk_steps(plan.steps) if isinstance(s, Branch)]
    assert any(not isinstance(b.on, Load) for b in branches)
    loops = [s for s in walk_steps(plan.steps) if isinstance(s, Loop)]
    assert {s.flag is not None for s in loops} == {True, False}


def test_capacities_mention_sizes_and_scalars_only():
    for name in ("ring_allreduce", "branches", "halo", "in_place"):
        for b in plan_of(name).buffers:
            assert all(s.kind in ("size", "scalar") for s in b.capacity.symbols())


@pytest.mark.parametrize("name", ["ring_allreduce", "branches", "halo"])
def test_no_shard_map_is_left_in_a_program(name):
    levels = lower(getattr(sample_programs, name).capture())
    assert any(op.kind.name == "shard_map" for op in walk(levels.graph.body))
    assert not any(op.kind.name == "shard_map" for op in walk(levels.program.body))


def test_the_checker_sees_a_use_before_its_definition():
    program = lower(sample_programs.halo.capture()).program
    body = program.body
    broken = dataclasses.replace(body, ops=tuple(reversed(body.ops)))
    with pytest.raises(InternalError, match="defined before its use"):
        check(dataclasses.replace(program, body=broken))


def test_the_checker_sees_a_missing_attribute():
    program = lower(sample_programs.halo.capture()).program
    ops = list(program.body.ops)
    k = next(k for k, op in enumerate(ops) if op.kind.name == "permute")
    ops[k] = dataclasses.replace(ops[k], kind=ops[k].kind.but(types=()))
    with pytest.raises(InternalError):
        check(dataclasses.replace(program, body=dataclasses.replace(program.body, ops=tuple(ops))))


def test_the_plan_checker_sees_an_unknown_buffer():
    plan = plan_of("halo")
    with pytest.raises(InternalError, match="numbered in order|in the table"):
        check_plan(dataclasses.replace(plan, buffers=plan.buffers[1:]))


def test_the_plan_checker_sees_an_exchange_into_its_own_source():
    plan = plan_of("halo")
    steps = list(plan.steps)
    k = next(k for k, s in enumerate(steps) if isinstance(s, Exchange))
    steps[k] = dataclasses.replace(steps[k], pull_into=steps[k].send)
    with pytest.raises(InternalError, match="peers read"):
        check_plan(dataclasses.replace(plan, steps=tuple(steps)))


def test_chains_without_end_are_cut():
    """An unrolled loop is no expression that the compiler, or gcc, must recurse over."""

    @spmd.program(mesh=("r",))
    def unrolled(n: int = 0):
        x = spmd.input("x", (4,), np.float64, layout=("r",), default=lambda i: i)

        @spmd.shard_map(mesh="r", out_layouts=("r",))
        def many(x):
            for k in range(n):
                x = x * 0.5 + k
            return x

        return many(x)

    plan = lower(unrolled.capture(n=600)).plan
    parts = [p for w in work_of(plan) if isinstance(w, Nest) for p in w.parts]
    kept = [p for p in parts if type(p) is LocalValue]
    least = 2 * 600 / TARGET.deepest_expression - 1
    assert least <= len(kept) <= least + 6
    assert len(lower(unrolled.capture(n=10)).plan.steps) == 2  # the default, and one loop


def test_differences_of_all_pairs_take_no_memory():
    @spmd.program(mesh=("r",))
    def pairs():
        x = spmd.input("x", (40, 3), layout=("r", None), default=lambda i, j: i * i % 7 + j)
        d = x[:, None] - x
        return np.sum(d * d, axis=(1, 2)), np.max(d, axis=1)

    plan = lower(pairs.capture()).plan
    on_one = {"n_r": 1}
    assert max(b.capacity.evaluate(on_one) for b in plan.buffers) < 40 * 40
    for found, expected in zip(spmd.build(pairs).run(ranks=3), pairs.eager()):
        np.testing.assert_array_equal(found, expected)


def test_rolled_and_joined_arrays_are_written_once():
    @spmd.program(mesh=("r",))
    def joined():
        x = spmd.input("x", (12,), layout="r", default=lambda i: i * i)
        return np.roll(x, 1) + np.roll(x, -2), np.concatenate([x, x * 2])

    plan = lower(joined.capture()).plan
    filled = [w for w in work_of(plan) if isinstance(w, Store) and isinstance(w.value, Literal)]
    assert filled == []
    for ranks in (1, 3):
        for found, expected in zip(spmd.build(joined).run(ranks=ranks), joined.eager()):
            np.testing.assert_array_equal(found, expected)


def test_def_use_says_what_makes_and_what_uses_a_value():
    """def_use agrees with a walk by hand of a module with a default, a loop and a branch."""
    program = lower(indexed.capture()).program
    found = program.def_use
    assert found is program.def_use and len(program.regions) == 2
    every = [op for region in program.regions for op in walk(region)]
    assert list(found.order) == every
    assert {v: op for op in every for v in op.results} == dict(found.defs)
    operands = [(v, op, k) for op in every for k, v in enumerate(op.operands)]
    assert sorted((v.id, u.operand) for v, us in found.uses.items() for u in us if u.op) == sorted(
        (v.id, k) for v, _, k in operands)
    for value, op, k in operands:
        (use,) = [u for u in found.uses[value] if u.op is op and u.operand == k]
        assert op in use.region.ops and found.begins.get(value, 0) < use.position
    loop = next(op for op in every if isinstance(op.kind, ops.Loop))
    (carried,) = [arg for arg in loop.regions[-1].args if arg.name == "v"]
    assert found.begins[loop.kind.counter] < found.begins[carried]
    assert found.begins[carried] < min(found.begins[v] for v in loop.results)
    ends = [u for u in found.uses[program.outputs[0].value] if u.op is None]
    assert [u.region for u in ends] == [program.body]


@spmd.program(mesh=("x",))
def indexed():
    u = spmd.input("u", (12,), np.float64, layout=("x",), default=lambda i: i * 2)
    v = u + 1.0
    for k in spmd.range(4):
        if k > spmd.axis_size("x"):
            v = v * 2.0 - k
        else:
            v = v + u
    return v
