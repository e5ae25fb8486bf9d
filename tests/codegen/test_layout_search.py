"""The layout search: forms of a Graph that proposers offer, of which the fastest is taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import PROPOSERS, rows_on_owners, split
from codegen.ir.graph import Module, walk
from codegen.layouts.demands import Split
from codegen.layouts.relayout import Inside, Laid, relaid
from codegen.layouts.search import Candidate, LayoutSearch
from codegen.ops import Exchange, Loop, Relayout
from codegen.oracle.interpret import run
from tests.codegen.test_replicate_loops import both, sweeps


@spmd.program(mesh=("r",))
def chained(n: int = 60, turns: int = 3000):
    """Short turns, each of which needs the row of another rank."""
    a = spmd.input("a", (n, 3), layout=("r", None))
    for _ in spmd.range(turns):
        a[1:] = 0.5 * a[:-1] + a[1:]
    return a


class Counting:
    """Partitions Graphs, and counts how often each is."""

    def __init__(self) -> None:
        self.graphs: list[Module] = []

    def __call__(self, graph: Module) -> Split:
        self.graphs.append(graph)
        return split(graph)


def with_copies(graph: Module) -> tuple[Module, Any]:
    """Return the Graph in which every rank computes the loop, and the choice for it."""
    (loop,) = [op for op in graph.body.ops if isinstance(op.kind, Loop)]
    before = tuple((v, ((),) * v.type.ndim) for v in loop.operands)
    choices = {loop.kind.counts(): Laid(before, Inside.WHOLE, "copies:")}
    return relaid(graph, choices), choices


def as_nest(current: Split, search: LayoutSearch) -> Iterator[Candidate]:
    form, choices = with_copies(current[0].graph)
    (counter,) = choices
    yield Candidate(form, {counter: choices})


def as_whole(current: Split, search: LayoutSearch) -> Iterator[Candidate]:
    yield Candidate(with_copies(current[0].graph)[0], loops=frozenset(
        c for op in walk(current[0].graph.body) if (c := op.kind.counts())))


def in_loops(program: Module) -> int:
    loops = [op for op in program.body.ops if isinstance(op.kind, Loop)]
    return sum(isinstance(o.kind, Exchange) for op in loops for r in op.regions for o in walk(r))


@pytest.mark.parametrize("propose", [as_nest, as_whole])
def test_a_form_that_is_faster_is_taken_and_says_by_how_much(propose):
    found = LayoutSearch(split, rows_on_owners)
    demands, program = found.best(chained.graph({}), [propose])
    assert in_loops(found.split(chained.graph({}))[1]) > 0 == in_loops(program)
    (because,) = [op.kind.because for op in walk(demands.graph.body)
                  if isinstance(op.kind, Relayout) and op.kind.because]
    assert because.startswith("copies: about ") and because.endswith(" on 2 ranks")
    a = np.random.default_rng(2).random((60, 3))
    wanted = chained.eager(a=a.copy(), turns=3000)
    for level in (demands.graph, program):
        np.testing.assert_allclose(run(level, {"r": 3}, {"a": a})["result"], wanted)


@pytest.mark.parametrize("propose", [as_nest, as_whole])
@pytest.mark.parametrize("given", [{"turns": 20}, {"n": 2_000_000}], ids=str)
def test_a_form_that_saves_too_little_is_not(propose, given):
    search = LayoutSearch(split, rows_on_owners)
    graph = chained.graph(given)
    assert search.best(graph, [propose]) is search.split(graph)


@pytest.mark.parametrize("propose", [as_nest, as_whole])
def test_a_form_that_is_not_legal_is_not(propose):
    graph = chained.graph({})
    search = LayoutSearch(split, lambda current: current[0].graph is graph)
    assert search.best(graph, [propose]) is search.split(graph)


def test_a_certain_form_needs_no_estimate():
    def propose(current: Split, search: LayoutSearch) -> Iterator[Candidate]:
        yield Candidate(with_copies(current[0].graph)[0], certain=True)

    _, program = LayoutSearch(split, rows_on_owners).best(chained.graph({"turns": 2}), [propose])
    assert not in_loops(program)


@pytest.mark.parametrize("program", [both, sweeps], ids=lambda p: p.name)
def test_every_form_is_partitioned_once(program):
    partitioned = Counting()
    search = LayoutSearch(partitioned, rows_on_owners)
    demands, _ = search.best(program.graph({}), PROPOSERS)
    assert 1 < len(partitioned.graphs) == len({*map(id, partitioned.graphs)}) <= 5
    assert any(search.split(graph)[0] is demands for graph in partitioned.graphs)
