"""Views of loops: what turns read, write and leave as it is, and the counter's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.graph.counted_loop import CountedLoop, LoopBody, typical_counters
from codegen.ir.graph import Module, Op, walk
from codegen.ops import Loop
from codegen.symbolic import expr

N = 10


def body(turns: Any) -> Module:
    @spmd.program(mesh=("r",))
    def kernel():
        x = spmd.input("x", (N,), np.float64, layout=("r",))
        w = spmd.input("w", (N,), np.float64, layout=("r",))
        y, limit = x * 2.0, 1.0
        for i in turns():
            root = np.sqrt(w)
            y = y + root * i
            limit = limit * 2.0
        return y, limit

    return kernel.graph({})


def loop_of(graph: Module) -> Op:
    return next(op for op in walk(graph.body) if isinstance(op.kind, Loop))


@pytest.mark.parametrize("ends", [(N,), (2, N), (N - 1, -1, -1), (1, N, 3), (N, 0, -4)], ids=str)
def test_a_counted_loop_knows_its_counters_values(ends: tuple[int, ...]):
    loop = CountedLoop.of(loop_of(body(lambda: spmd.range(*ends))), {})
    assert loop is not None
    turns = range(*ends)
    assert (loop.first, loop.last, loop.step, loop.count) == (
        turns[0], turns[-1], turns.step, len(turns))
    e = 3 * expr.symbol(loop.counter) + 5
    assert loop.slope(e) == 3 * turns.step
    assert loop.least(e) == 3 * min(turns) + 5 and loop.most(e) == 3 * max(turns) + 5
    assert loop.typical == {loop.counter.name: (turns[0] + turns[-1]) // 2}
    assert loop.slope(expr.symbol(loop.counter) * expr.symbol(loop.counter)) is None


def test_what_a_turn_computes_alike_is_told_from_what_it_changes():
    loop = LoopBody(loop_of(body(lambda: spmd.range(N))), {})
    named = {op.kind.fn: op.result for op in loop.body.ops if hasattr(op.kind, "fn")}
    assert named["sqrt"] not in loop.varying
    assert {named["add"], named["mul"]} <= loop.varying
    assert loop.is_inside(named["sqrt"]) and not loop.is_inside(loop.op.operands[0])
    assert loop.before(loop.body.args) == loop.op.operands
    assert loop.volume((expr.const(3), expr.const(4))) == 12


def test_a_while_loop_is_not_counted():
    @spmd.program(mesh=("r",))
    def halved():
        x = spmd.input("x", (N,), np.float64, layout=("r",))
        while np.max(x) > 1.0:
            x = x * 0.5
        return x

    loop = loop_of(halved.graph({}))
    assert CountedLoop.of(loop, {}) is None
    assert {*loop.regions[-1].args} <= LoopBody(loop, {}).varying


def test_typical_counters_are_in_the_middle_of_their_turns():
    @spmd.program(mesh=("r",))
    def nested():
        x = spmd.input("x", (N,), np.float64, layout=("r",))
        for i in spmd.range(N):
            for _ in spmd.range(i, N):
                x = x + 1.0
        return x

    assert [*typical_counters(nested.graph({}).body).values()] == [(N - 1) // 2, (4 + N - 1) // 2]
