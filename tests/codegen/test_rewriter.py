"""The rewriter: rules replace ops anywhere, what only they needed goes, the rest stays the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd
from codegen.dtypes import from_numpy
from codegen.graph.fold_casts import folded_cast, only_rounds
from codegen.graph.rewriter import Rewriter, is_pure
from codegen.ir.graph import Module, Op, walk
from codegen.ops import Const, Full, Map, ShardMap

N = 8


def doubled(op: Op, rewriter: Rewriter) -> bool:
    """Replace x + x by 2 * x."""
    if not isinstance(op.kind, Map) or op.kind.fn != "add" or op.operands[0] is not op.operands[1]:
        return False
    x = op.operands[0]
    two = rewriter.full(2.0, x.type.dtype, x.type.shape)
    rewriter.add(Map("mul"), (x, two), op.results)
    return True


def without_zeros(op: Op, rewriter: Rewriter) -> bool:
    """Replace x + 0 by x for its readers."""
    if not isinstance(op.kind, Map) or op.kind.fn != "add":
        return False
    zeros = rewriter.defs.get(op.operands[1])
    while zeros is not None and zeros.kind.is_view and zeros.operands:
        zeros = rewriter.defs.get(zeros.operands[0])
    if zeros is None or not isinstance(zeros.kind, Full) or zeros.kind.value != 0:
        return False
    rewriter.instead[op.result] = op.operands[0]
    return True


@spmd.program(mesh=("r",))
def sums():
    x = spmd.input("x", (N,), np.float64, layout=("r",))
    y = spmd.input("y", (N,), np.float64, layout=("r",))
    a = x + x
    for _ in spmd.range(3):
        y = (y + y) + a
    shift = np.sqrt(y) * 0.0 + np.zeros(N)
    inside = spmd.shard_map(lambda s: s + s, in_layouts=("r",), out_layouts=("r",))(y)
    return a, y + 0.0, shift + 0.0, inside


def functions(module: Module) -> list[str]:
    return sorted(op.kind.fn for op in walk(module.body) if isinstance(op.kind, Map))


def rewritten(*rules: Any, **options: Any) -> tuple[Module, Module]:
    graph = sums.graph({})
    return graph, Rewriter(graph, *rules, **options).run()


def test_without_a_rule_that_applies_the_module_is_the_same_object():
    graph, same = rewritten()
    assert same is graph
    graph, same = rewritten(lambda op, rewriter: False)
    assert same is graph


def test_rules_apply_in_loops_and_in_shard_maps_if_they_are_entered():
    graph, new = rewritten(doubled)
    before, after = functions(graph), functions(new)
    assert after.count("mul") - before.count("mul") == 3
    assert before.count("add") - after.count("add") == 3
    graph, new = rewritten(doubled, shard_maps=False)
    assert functions(graph).count("add") - functions(new).count("add") == 2
    inside = [op for op in walk(new.body) if isinstance(op.kind, ShardMap)]
    assert inside and inside[0] in graph.body.ops


def test_what_rules_emit_has_a_layout_in_the_graph_and_none_in_a_shard_map():
    _, new = rewritten(doubled)
    products = [op for op in new.body.ops if isinstance(op.kind, Map) and op.kind.fn == "mul"]
    assert all(op.operands[1].type.layout is not None for op in products)
    (inside,) = [op for op in new.body.ops if isinstance(op.kind, ShardMap)]
    assert [op.result.type.layout for op in inside.regions[0].ops] == [None, None]


def test_readers_and_outputs_take_what_stands_for_a_value_and_dead_ops_go():
    graph, new = rewritten(without_zeros)
    assert len(new.outputs) == len(graph.outputs)
    y, shift = graph.outputs[1].value, graph.outputs[2].value
    assert new.outputs[1].value is not y and new.outputs[2].value is not shift
    defined = {v for op in walk(new.body) for v in op.results}
    assert {y, shift}.isdisjoint(defined)
    assert {o.value for o in new.outputs} <= defined
    assert functions(new).count("sqrt") == 1  # its product with 0 is read
    unread = spmd.program(mesh=("r",))(lambda: spmd.input("x", (N,), np.float64) + 0.0)
    emptied = Rewriter(unread.graph({}), without_zeros).run()
    assert [op.kind.name for op in emptied.body.ops] == []  # its zeros go with it


def test_the_first_rule_that_applies_counts():
    graph = sums.graph({})
    seen: list[str] = []

    def first(op: Op, rewriter: Rewriter) -> bool:
        seen.append(op.kind.name)
        return doubled(op, rewriter)

    new = Rewriter(graph, first, lambda op, rewriter: first(op, rewriter) and False).run()
    assert functions(new) == functions(Rewriter(graph, doubled).run())
    assert len(seen) == 2 * len(list(walk(graph.body))) - 3  # where it applies, it is asked once


def test_a_rule_can_be_used_by_itself():
    """The cast of a constant is a constant."""

    @spmd.program(mesh=("r",))
    def cast():
        x = spmd.input("x", (4,), np.float64, layout=(None,))
        return x * np.array([1.0, 2.0, 3.0, 4.0], np.float32)

    graph = cast.graph({})
    new = Rewriter(graph, folded_cast).run()
    assert functions(graph) == ["cast", "mul"] and functions(new) == ["mul"]
    (table,) = [op.kind.data for op in new.body.ops if isinstance(op.kind, Const)]
    assert table.dtype == np.float64 and [*table] == [1, 2, 3, 4]


@pytest.mark.parametrize("numbers, dtype, rounds", [
    ([0.1, np.inf], np.float32, True), ([1e300], np.float32, False), ([7, 300], np.int8, False),
    ([7, -100], np.int8, True), ([1.0], np.int64, False), ([0.5, np.nan], np.bool_, True),
])
def test_casts_that_lose_a_number_are_told_from_those_that_round(
    numbers: Any, dtype: Any, rounds: bool
):
    before, to = np.array(numbers), from_numpy(np.dtype(dtype))
    assert to is not None
    with np.errstate(all="ignore"):
        assert only_rounds(before, before.astype(dtype), to) is rounds


def test_ops_that_others_see_are_not_pure():
    @spmd.program(mesh=("r",))
    def printed():
        x = spmd.input("x", (N,), np.float64, layout=("r",))
        print("sum", x.sum())
        return np.sort(x)

    pure = {op.kind.name: is_pure(op) for op in walk(printed.graph({}).body)}
    assert pure["sort"] and pure["reduce"] and not pure["print"]
