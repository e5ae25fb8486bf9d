"""Loops whose turns are taken at once (`#pragma omp simd`): what loops/schedule.py promises holds.

The C compiler believes it: a promise that is false makes wrong numbers on some machine. So each is
tried on the addresses that the turns of the loop read and write, of random programs too; and images
with and without the promises give the same bits.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings

import spmd
from codegen.compile import lower
from codegen.ir.exprs import exprs
from codegen.ir.indexing import leaves
from codegen.ir.plan import Load, Nest, Phase, Store, WorkLoop
from codegen.ir.plan import WorkBranch as Arms
from codegen.ir.steps import walk_steps
from codegen.loops import schedule
from codegen.symbolic import expr
from tests.programs import global_recipes as recipes

# mypy: ignore-errors

TURNS, POINTS = 48, 6  # of a loop that are tried, and of the loops around it
EXAMPLES = settings().max_examples


@spmd.program(mesh=("x",))
def weave(n: int = 40):
    """Several elements of one array in each turn, and rows that are read together."""
    u = spmd.input("u", (n,), np.float64, default=lambda i: i * 0.5)
    v = spmd.input("v", (n,), np.float64, default=lambda i: i * 0.25 - 3)
    a = spmd.input("a", (n, 30), np.float64, default=lambda i, j: np.sin(i * 1.0) + j)
    k = spmd.input("k", (n,), np.int64, layout=("x",), default=lambda i: i * 7 % 11)
    return (np.stack([u * 2, v + 1], axis=1), np.repeat(u, 3), np.stack([u + v, u - v, u * v], -1),
            np.min(a, axis=0), np.max(a, axis=0), a @ np.ones(30), np.sum(k * k), np.max(k))


def nests(works):
    for work in works:
        if isinstance(work, Nest):
            yield work
        elif isinstance(work, WorkLoop):
            yield from nests(work.body)
        elif isinstance(work, Arms):
            for arm in work.arms:
                yield from nests(arm)


def promised(program):
    """The sweeps of which it is promised, each with its nest and its phase's parameters: the
    formulas that they stand for."""
    plan = lower(program.capture()).finished
    return [(nest, sweep, {p.sym: p.formula for p in step.parameters
                           if p.sym not in p.formula.symbols()})
            for step in walk_steps(plan.steps) if isinstance(step, Phase)
            for nest in nests(step.work) for sweep in nest.sweeps if sweep.simd]


def overlap(nest, sweep, chosen):
    """An element that one turn of the last loop writes, and another one reads or writes; or None.
    chosen: by name, sizes, positions and counters."""
    last = sweep.long[-1]
    around = [*nest.loops, *sweep.long[:-1]]

    def points(loops, values):
        if not loops:
            yield values
            return
        extent = loops[0].extent.evaluate(values)
        for k in sorted({*range(min(extent, POINTS // 2)), *range(max(0, extent - 2), extent)}):
            yield from points(loops[1:], {**values, loops[0].sym.name: k})

    for values in itertools.islice(points(around, chosen), POINTS ** 2):
        written, read = defaultdict(set), defaultdict(set)  # by element: in which turns
        for turn in range(min(TURNS, last.extent.evaluate(values))):
            at = {**values, last.sym.name: turn}
            for part in sweep.parts:
                for leaf in leaves(part.value):
                    if isinstance(leaf, Load):
                        element = None if leaf.bounds else leaf.offset.evaluate(at)
                        read[leaf.buffer.number, element].add(turn)
                if isinstance(part, Store):
                    assert not part.bounds, "where data says what is written, nothing is promised"
                    written[part.buffer.number, part.offset.evaluate(at)].add(turn)
        stored = {number for number, _ in written}
        for where, turns in written.items():
            if len(turns | read[where]) > 1:
                return where
        for number, element in read:
            if element is None and number in stored:  # data says what is read: perhaps that
                return number, element
    return None


def choices(nest, sweep, parameters, number):
    """Values for what stands in a sweep and is none of its loops, parameters among it."""
    own = {v.sym for v in (*nest.loops, *sweep.loops)} | parameters.keys()
    symbols = sorted({s for e in (*exprs((nest.loops, sweep)), *parameters.values())
                      for s in e.symbols()} - own, key=lambda s: s.name)
    rng = random.Random(number)
    sizes = {s.name: rng.randint(1, 3) for s in symbols if s.kind == "size"}
    found = {s.name: rng.randint(0, 3) for s in symbols}
    for s in symbols:
        if s.kind == "coord":
            found[s.name] = rng.randrange(sizes.get("n_" + s.name.removeprefix("i_"), 1))
    found |= sizes
    return found | {sym.name: e.evaluate(found) for sym, e in parameters.items()}


def kept(nest, sweep, parameters):
    return all(overlap(nest, sweep, choices(nest, sweep, parameters, n)) is None
               for n in range(3))


def test_what_is_promised_of_a_program_with_several_stores():
    found = promised(weave)
    assert any(len([p for p in s.parts if isinstance(p, Store)]) > 2
               for _, s, _ in found)
    assert any(s.folds for _, s, _ in found)
    assert all(kept(*one) for one in found)


def test_a_promise_that_is_false_is_noticed():
    """Two turns that write one element, one that reads what another writes, and places from data:
    each made of a true promise."""
    nest, sweep, parameters = next(one for one in promised(weave) if len(one[1].parts) > 2)
    first, *rest = sweep.parts
    j = expr.symbol(sweep.long[-1].sym)

    def broken(**changed):
        return replace(sweep, parts=(replace(first, **changed), *rest))

    assert kept(nest, sweep, parameters)
    assert not kept(nest, broken(offset=first.offset // 4), parameters)
    assert not kept(nest, broken(offset=rest[0].offset + 3, buffer=rest[0].buffer), parameters)
    (load, *_) = [x for x in leaves(rest[0].value) if isinstance(x, Load)]
    assert not kept(nest, broken(value=replace(load, buffer=rest[0].buffer, offset=3 * j + 3)),
                    parameters)
    assert kept(nest, broken(value=replace(load, buffer=rest[0].buffer, offset=3 * j)), parameters)


SEEN = []


@pytest.mark.slow
def test_what_is_promised_of_random_programs():
    @seed(0)
    @settings(max_examples=EXAMPLES * 2, derandomize=False, print_blob=False, deadline=None,
              suppress_health_check=list(HealthCheck))
    @given(recipes.recipes())
    def tried(recipe):
        program = recipes.program_of(recipe, given=True)
        for nest, sweep, parameters in promised(program):
            SEEN.append(bool(sweep.folds))
            assert kept(nest, sweep, parameters), (recipe, sweep)

    tried()
    assert SEEN, "no random program has a loop of which anything is promised"


def test_the_same_bits_with_and_without_promises(vectors_cc, monkeypatch):
    """But for floats that are summed up, whose order is another one where it is promised."""
    ours = spmd.build(weave).run(ranks=2)
    with monkeypatch.context() as change:
        change.setattr(schedule, "_writes_disjoint_parts", lambda sweep: False)
        change.setattr(schedule, "_may_reorder", lambda sweep: False)
        assert not promised(weave)
        plain = spmd.build(weave).run(ranks=2)
    for k, (one, other) in enumerate(zip(ours, plain, strict=True)):
        if k == 5:  # a @ ones
            np.testing.assert_allclose(one, other, rtol=1e-12)
        else:
            np.testing.assert_array_equal(one, other)
    u, v = np.arange(40) * 0.5, np.arange(40) * 0.25 - 3
    np.testing.assert_array_equal(ours[0], np.stack([u * 2, v + 1], axis=1))
    np.testing.assert_array_equal(ours[1], np.repeat(u, 3))
    a = np.sin(np.arange(40.0))[:, None] + np.arange(30)
    np.testing.assert_allclose(ours[3], a.min(axis=0), rtol=1e-12)
