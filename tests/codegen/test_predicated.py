"""Predication, seen in Graphs: one branch for the ops of one predicate, nothing where there is
none, and sizes that grow with the program."""

from __future__ import annotations

import numpy as np

import spmd
from codegen.checks.check_graph import check
from codegen.graph.predicated import predicated
from codegen.ir.graph import walk
from codegen.ops import Branch, Full, Loop

N = 6


def branches(graph):
    return [op for op in graph.body.ops if isinstance(op.kind, Branch)]


@spmd.program(mesh=("r",))
def shared():
    w = spmd.input("w", (N,), np.float64, layout=("r",))
    x = spmd.input("x", (N,), np.float64, layout=("r",), optional=True)
    y = spmd.input("y", (N,), np.float64, layout=("r",), optional=True)
    a = w * x
    c = w + 1
    b = w - y
    d = np.sum(a * b)
    e = np.sort(a) + c
    u, v = w, c
    for _ in spmd.range(3):
        u = u + a
        v = v * 2
    return {"a": a, "c": c, "b": b, "d": d, "e": e, "u": u, "v": v}


def test_ops_of_one_predicate_stand_in_one_branch():
    graph = check(shared.graph({}))
    assert [str(op.kind.on) for op in branches(graph)] == [
        "given_x", "given_y", "given_x * given_y"]
    (loop,) = [op for op in graph.body.ops if isinstance(op.kind, Loop)]
    assert [str(op.kind.on) for op in walk(loop.regions[0]) if isinstance(op.kind, Branch)] == [
        "given_x"]
    blank = [op.kind for b in branches(graph) for op in b.regions[0].ops]
    assert all(isinstance(what, Full) and what.blank for what in blank)
    assert {o.name: o.needs for o in graph.outputs} == {
        "a": ("x",), "c": (), "b": ("y",), "d": ("x", "y"), "e": ("x",), "u": ("x",), "v": ()}


def test_what_users_see_stays_in_its_order():
    @spmd.program(mesh=("r",))
    def prints():
        x = spmd.input("x", (), np.float64, optional=True)
        print("first", x)
        print("second")
        print("third", x)
        return x

    graph = check(prints.graph({}))
    said = [op.kind.parts[0].split()[0] for op in walk(graph.body) if op.kind.name == "print"]
    assert said == ["first", "second", "third"] and len(branches(graph)) == 2


def test_programs_without_optional_inputs_are_as_they_were():
    @spmd.program(mesh=("r",))
    def plain():
        x = spmd.input("x", (N,), np.float64, default=lambda i: i)
        return np.sort(x), np.sum(x)

    graph = plain.graph({})
    assert predicated(graph) is graph and not branches(graph)


def test_many_inputs_and_outputs_make_no_more_branches_than_predicates():
    @spmd.program(mesh=("r",), selectable=True)
    def many():
        given = [spmd.input(f"x{k}", (N,), np.float64, optional=True) for k in range(40)]
        total, made = 0, {}
        for k, x in enumerate(given):
            total = total + x
            made[f"y{k}"] = np.sum(total) * k
        return made

    graph = check(many.graph({}))
    assert len(branches(graph)) == 79  # of 39 totals, and of what is made of 40
    assert all(len(str(op.kind.on)) < 2000 for op in branches(graph))
