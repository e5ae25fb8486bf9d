"""The finished Plan says how loops run and what is computed when; a checker reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import spmd
from codegen.checks.check_plan import check_finished
from codegen.compile import Levels, lower
from codegen.errors import InternalError
from codegen.ir.exprs import exprs, mapped
from codegen.ir.plan import Exchange, Lane, Loop, Nest, Phase, Plan, Step
from codegen.ir.plan_text import plan_text
from codegen.ir.steps import mapped_steps, walk_steps, walk_works
from codegen.loops.schedule import schedule
from codegen.symbolic import expr
from codegen.symbolic.block_laws import BY_PARTS
from codegen.symbolic.meaning import OPERATIONS
from examples.heat import heat
from tests.codegen.sample_programs import branches, halo, in_place, ring_allreduce


@spmd.program(mesh=("r",))
def decided(n: int = 40):
    a = spmd.input("a", (n, 24), np.float32, layout=("r", None), default=lambda i, j: i - j)
    k = spmd.input("k", (n,), np.int64, layout=("r",), default=lambda i: i)
    total, rows = np.sum(a * a), np.max(a, axis=0)
    half = np.sum(a.astype(np.float16), axis=1)
    product = a.T @ a
    for _ in spmd.range(3):
        a[1:-1] += a[:-2] - a[2:]
    return total, rows, half, product, np.sum(k), a


@pytest.fixture(scope="module")
def levels() -> Levels:
    return lower(decided.capture())


@pytest.mark.parametrize("line", [
    "at load x_a_extent_0 = 40 // n_r + (i_r < 40 % n_r)",
    "input a in buffer 0, a rank's part [x_a_offset_0:+x_a_extent_0, 0:+24]",
    "with extent = 40 // n_r + (i_r < 40 % n_r)",
    "reduce is add(mul(a[24 * j0 + j1], a[24 * j0 + j1])) in float64",  # float32, summed in float64
    "half is add(cast float32(cast float16(a[24 * j0 + j1]))) in float64",
    "sweep for j1 < 24, vectorised",
    "reduce_2[j1] = -inf for j1 < 24",  # a row in memory, combined into row by row
    "reduce_2[j1] max= a[24 * j0 + j1]",
    "sgram_tn(24, 24, extent, 24, 24, 24, 1, 0, a[0], a[0], to product[0]) by library 0, 1",
    "2 rows wait in memory_rows, 1048 apart",
])
def test_decisions_are_printed(levels: Levels, line: str) -> None:
    assert line in plan_text(levels.finished)


def test_sums_of_integers_are_left_to_the_compiler(levels: Levels) -> None:
    nests = [w for s in walk_steps(levels.finished.steps) if isinstance(s, Phase)
             for w in s.work if isinstance(w, Nest)]
    said = {(f.dtype.name, f.fn): sweep.simd for n in nests for sweep in n.sweeps
            for f in sweep.folds}
    assert said["float32", "add"] and not said["int64", "add"]


def test_long_folds_have_a_total_for_each_of_some_elements() -> None:
    """Complex numbers have them too. A short row, a slow computation, or elements that are all one
    number have no more than one accumulator."""

    @spmd.program(mesh=("r",))
    def long():
        x = spmd.input("x", (5000,), np.float64, ("r",))
        z = spmd.input("z", (5000,), np.complex128, ("r",))
        y = spmd.input("y", (4000,), np.float64, ("r",))
        w = spmd.input("w", (5000, 20), np.float32, ("r", None))
        return (np.max(x), np.sum(np.exp(y)), np.vdot(z, z), np.sum(w, axis=1), np.argmax(x),
                np.argmin(w, axis=1), np.min(spmd.full((5000,), 2, np.float32, ("r",))),
                np.argmax(np.broadcast_to(x[0], (5000,))))

    works = [w for s in walk_steps(lower(long.capture()).finished.steps) if isinstance(s, Phase)
             for w in walk_works(s.work)]
    said = {(f.dtype.name, f.fn, sweep.lanes) for w in works if isinstance(w, Nest)
            for sweep in w.sweeps for f in sweep.folds}
    assert said >= {("float64", "max", 32), ("float64", "add", 0), ("complex128", "add", 8),
                    ("float32", "add", 0), ("float32", "min", 0)}
    assert [w.lanes for w in works if isinstance(w, Lane)] == [16, 0, 0]


PROGRAMS = {p.name: p for p in (decided, heat, branches, halo, in_place, ring_allreduce)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_names_stand_for_what_was_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every formula has the value that it had before, at points drawn by chance."""
    monkeypatch.setitem(OPERATIONS, BY_PARTS, lambda k, each, left: k * each + min(k, left))
    made = lower(PROGRAMS[name].capture())
    before, after = schedule(made.plan), made.finished
    pairs = list(zip(walk_steps(before.steps), walk_steps(after.steps), strict=True))
    for seed in range(20):
        at = Drawn(seed)
        for s, e in (*before.named.items(), *after.at_load.items()):
            at[s.name] = e.evaluate(at)
        for a, b in pairs:
            if isinstance(a, Phase) and isinstance(b, Phase):
                values = {p.sym.name: p.value.evaluate(at) for p in b.parameters}
                assert values == {p.sym.name: p.formula.evaluate(at) for p in b.parameters}
                at.update(values)
                assert same(at, a.work, b.work)
            elif isinstance(a, Exchange):
                assert same(at, a, b)


class Drawn(dict[str, int]):
    """Values of symbols, drawn where they are first asked for."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def __missing__(self, name: str) -> int:
        self[name] = int(self.draw.integers(1, 9))
        return self[name]


def same(at: Drawn, a: object, b: object) -> bool:
    return [e.evaluate(at) for e in exprs(a)] == [e.evaluate(at) for e in exprs(b)]


# ---- what the checker notices --------------------------------------------------------------------


def phases(plan: Plan, change: Callable[[Phase], Phase]) -> Plan:
    def one(step: Step) -> Step:
        return change(step) if isinstance(step, Phase) else step

    return replace(plan, steps=mapped_steps(plan.steps, one))


def without_parameters(plan: Plan) -> Plan:
    return phases(plan, lambda p: replace(p, parameters=p.parameters[1:]))


def with_the_index(plan: Plan) -> Plan:
    coord = plan.mesh.axes[0].coord
    return phases(plan, lambda p: replace(p, work=mapped(p.work, lambda e: e + coord)))


def untyped(plan: Plan) -> Plan:
    def one(phase: Phase) -> Phase:
        nests = [w for w in phase.work if isinstance(w, Nest)]
        work = tuple(
            replace(w, sweeps=tuple(
                replace(s, parts=tuple(replace(p, total=None) if p in s.folds else p
                                       for p in s.parts)) for s in w.sweeps))
            if w in nests else w for w in phase.work)
        return replace(phase, work=work)

    return phases(plan, one)


def anew(plan: Plan) -> Plan:
    def one(step: Step) -> Step:
        return replace(step, start=expr.as_expr(7) // plan.mesh.ranks) \
            if isinstance(step, Loop) else step

    return replace(plan, steps=mapped_steps(plan.steps, one))


def turned(plan: Plan) -> Plan:
    return replace(plan, at_load=dict(reversed(list(plan.at_load.items()))))


@pytest.mark.parametrize("change, rule", [
    (without_parameters, "uses what it is handed"),
    (with_the_index, "uses what it is handed"),
    (untyped, "a total has a type"),
    (anew, "is evaluated at load"),
    (turned, "entries before it"),
])
def test_a_broken_plan_is_noticed(
    levels: Levels, change: Callable[[Plan], Plan], rule: str
) -> None:
    entry = expr.symbol(next(iter(levels.finished.at_load)))
    plan = levels.finished
    if change is turned:  # an entry that reads the one before it
        plan = replace(plan, at_load={**plan.at_load, expr.Sym("x_more", "size"): entry + 1})
    check_finished(plan)
    with pytest.raises(InternalError, match=rule):
        check_finished(change(plan))


def test_a_reduction_is_left_in_no_finished_plan(levels: Levels) -> None:
    with pytest.raises(InternalError):
        check_finished(levels.plan)
