"""Loops, broken in one place: the checker notices every one; correct ones it lets through."""

from dataclasses import replace

import numpy as np
import pytest

import spmd
from codegen.checks.check_loops import check_loops
from codegen.compile import lower
from codegen.errors import InternalError
from codegen.ir.graph import Region, Value, walk
from codegen.ir.loops import Do
from codegen.ir.plan import LocalValue, Nest, Store, Sweep
from codegen.ir.steps import memory_read, memory_written
from codegen.ops import Map
from tests.codegen.sample_programs import halo, in_place


@spmd.program(mesh=("x",))
def moments(n: int = 40):
    """Two sums in a nest, of what it keeps in a local; a lane with memory of its own."""
    u = spmd.input("u", (n,), np.float64, layout=("x",), default=lambda i: i % 7)
    s = np.sin(u)
    for _ in spmd.range(3):
        u = u + s * 0.5
    return np.sum(s), np.sum(s * s), np.sort(u)


def without_an_operand(op):
    return op.operands and replace(op, operands=op.operands[:-1])


def with_another_operand(op):
    return op.operands and replace(op, operands=(Value("v", op.operands[0].type),))


def without_a_result(op):
    return op.results and op.kind.acts and replace(op, results=op.results[:-1])


def with_another_result(op):
    v = Value("v", op.operands[0].type) if op.operands else None
    return v and op.kind.acts and replace(op, results=(*op.results, v))


def without(kind, op):
    """A nest without parts of a kind."""

    def left(sweep):
        return Sweep(sweep.loops, tuple(p for p in sweep.parts if not isinstance(p, kind)))

    nests = [a for a in op.kind.acts if isinstance(a, Nest)]
    acts = tuple(replace(n, sweeps=tuple(map(left, n.sweeps))) for n in nests)
    return nests and replace(op, kind=replace(op.kind, acts=acts))


def nothing_stored(op):
    return without(Store, op)


def nothing_kept(op):
    return without(LocalValue, op)


def as_in_the_program(op):
    return op.results and replace(op, kind=Map("neg"))


MUTATIONS = (
    without_an_operand, with_another_operand, without_a_result, with_another_result,
    nothing_stored, nothing_kept, as_in_the_program,
)


def mutants(loops, mutation):
    """The Loops with one op of the body that is another one, for each that the mutation fits."""

    def swapped(region, old, new):
        ops = [new if op is old else op.mapped(lambda r: swapped(r, old, new)) for op in region.ops]
        return Region(region.args, tuple(ops), region.results)

    module = loops.module
    for op in walk(module.body):
        if isinstance(op.kind, Do) and (new := mutation(op)):
            yield replace(loops, module=replace(module, body=swapped(module.body, op, new)))


@pytest.fixture(scope="module")
def all_loops():
    return [lower(p.capture()).loops for p in (moments, halo, in_place)]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_checker_notices(all_loops, mutation):
    broken = [m for loops in all_loops for m in mutants(check_loops(loops), mutation)]
    assert broken
    for loops in broken:
        with pytest.raises(InternalError, match="a rule of its own"):
            check_loops(loops)


def test_an_op_of_loops_says_what_it_touches(all_loops):
    """Operands are what it reads, results what it writes: no one has to look into its loops."""
    found = [op for loops in all_loops for op in walk(loops.module.body)]
    nests = [(op, act) for op in found if isinstance(op.kind, Do)
             for act in op.kind.acts if isinstance(act, Nest)]
    assert nests
    for op, nest in nests:
        assert set(memory_read(nest)) - set(op.results) <= set(op.operands)
        assert set(memory_written(nest)) == set(op.results)


def test_what_is_folded_leaves_memory_to_what_comes_after():
    """A row of u is folded and written over in one nest: no second u, no copy."""

    @spmd.program(mesh=("x",))
    def program():
        u = spmd.input("u", (6, 5), np.float64, default=1.0)
        found = np.any(u, axis=1)
        if spmd.scalar("steps", 1) > 1:
            found = np.all(u, axis=1)
            u = u - 1.5
        return found, u

    plan = lower(program.capture()).plan
    assert [b.name for b in plan.buffers] == ["u", "found"]


def test_a_box_is_written_over_what_it_is_made_of():
    """At indices that data decides: what is read is not there any more where it was written. The
    box alone is kept meanwhile, not the array."""

    def shifted(by):
        w = spmd.input("w", (12,), np.float64, layout=(None,), default=lambda i: i * 1.0)
        k = np.argmax(w) // 4
        box = spmd.dynamic_slice(w, (k + by,), (6,)) * 2
        return spmd.dynamic_update_slice(w, box, (k,))

    for by in (-1, 1):
        w = np.arange(12.0)
        w[2:8] = w[2 + by : 8 + by] * 2
        program = spmd.program(lambda by=by: shifted(by), mesh=("x",))
        np.testing.assert_array_equal(spmd.build(program).run(ranks=1), w)
        sizes = [b.capacity for b in lower(program.capture()).plan.buffers]
        assert sizes.count(12) == 1 and sizes.count(6) == 1
