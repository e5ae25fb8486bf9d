"""The compiler, pass after pass: a program in, an image out.

This file lists the passes in order and holds nothing else. Between any two levels a checker runs.
Always holds: the number of ranks is nowhere; the same program gives the same bytes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from codegen import kept
from codegen.check_names import POINTS
from codegen.checks.conflicts import check_conflicts
from codegen.describe import manifest_of, notes_of
from codegen.emit.image import CSource, emit
from codegen.image.target import resolve
from codegen.ir import Module
from codegen.layouts.demands import Demands, Split
from codegen.layouts.independent_rows import independent_rows
from codegen.passes.accumulate import accumulated
from codegen.passes.alone import alone
from codegen.passes.apart import with_apart
from codegen.passes.arrivals import with_arrivals
from codegen.passes.at_once import at_once
from codegen.passes.buffers import placed
from codegen.passes.cast_constants import with_cast_constants
from codegen.passes.check import check
from codegen.passes.check_loops import check_loops
from codegen.passes.check_memory import check_memory
from codegen.passes.check_plan import check_finished, check_plan
from codegen.passes.compare import compared
from codegen.passes.computed_once import without_common
from codegen.passes.destinations import with_destinations
from codegen.passes.enclose import enclosed
from codegen.passes.expectations import at_one_place
from codegen.passes.fetch_ahead import fetched_ahead
from codegen.passes.fuse import fused
from codegen.passes.hoist import hoisted
from codegen.passes.in_blocks import in_blocks
from codegen.passes.instrument import instrumented
from codegen.passes.joined_sums import with_joined_sums
from codegen.passes.matching import check as check_matching
from codegen.passes.narrow import narrowed
from codegen.passes.own_constants import with_own_constants
from codegen.passes.owned_rows import with_owned_rows, with_rows_kept
from codegen.passes.partition import partition
from codegen.passes.pieces import in_pieces
from codegen.passes.points import with_points
from codegen.passes.read_behind import read_behind
from codegen.passes.replicas import check_replicas
from codegen.passes.rotate import rotated
from codegen.passes.row_by_row import row_by_row
from codegen.passes.row_wise import row_wise
from codegen.passes.schedule import scheduled
from codegen.passes.settle import settled
from codegen.passes.shared_loops import with_shared_loops
from codegen.passes.state_writes import with_kept_writes
from codegen.passes.sums_at_once import sums_at_once
from codegen.passes.sums_behind import with_sums_behind
from codegen.passes.to_loops import looped
from codegen.passes.turn import turned
from codegen.passes.uniform import check_uniform
from codegen.passes.whole_loops import with_whole_loops
from codegen.plan.grammar import Plan
from codegen.plan.loops import Loops
from codegen.plan.operation_graph import OperationRow, operation_graph
from codegen.plan.stored import stored_values
from codegen.progress import at
from codegen.verify.exchange_table import ExchangeTable
from codegen.verify.sample import check_exchanges

Level = TypeVar("Level", Module, Loops, Plan)
OBJECTS_BETWEEN_COLLECTIONS = 500_000


@dataclass(frozen=True)
class Levels:
    """Every level of one program, for those who want to look."""

    graph: Module
    demands: Demands
    program: Module
    loops: Loops
    plan: Plan
    exchanges: ExchangeTable
    finished: Plan  # the same as plan, and how loops run, and what is computed when
    operations: list[OperationRow]  # of the finished Plan: what each of them waits for
    source: CSource


def lower(graph: Module) -> Levels:
    """Return all levels below a Graph. Raises the error classes of codegen.errors."""
    at("choosing what ranks hold, and what they send")
    graph = through(check, check(graph), check_replicas, with_cast_constants, without_common,
                    compared, at_once, sums_at_once, in_pieces, in_blocks, row_wise)
    owned = with_owned_rows(split(graph), split)
    halves = with_shared_loops(with_apart(owned, split), split)
    halves = with_whole_loops(fetched_ahead(halves, split), split)
    demands, program = with_rows_kept(owned, halves)
    program = through(check, program, turned, with_joined_sums, read_behind, check_uniform)
    at("proving that sends and receives match")
    program = through(check, program, check_matching, instrumented, at_one_place,
                      with_own_constants)
    at("choosing loops and buffers")
    loops = check_loops(looped(program, stored_values(program)))
    loops = through(check_loops, loops, accumulated, fused, with_destinations,
                    with_arrivals)
    memory = rotated(placed(loops))
    plan = check_memory(memory, check_plan(narrowed(scheduled(memory))))
    plan = through(check_plan, plan, with_kept_writes, enclosed, row_by_row)
    exchanges = check_exchanges(plan)
    finished = check_finished(hoisted(settled(alone(plan))))
    operations = check_conflicts(finished, operation_graph(finished))
    at("writing C")
    return Levels(demands.graph, demands, program, loops, plan, exchanges, finished, operations,
                  emit(finished))


def through(
    check: Callable[[Level], Level], level: Level, *passes: Callable[[Level], Level]
) -> Level:
    """Return a level after some passes, checked after each pass that changed it."""
    for of in passes:
        made = of(level)
        level = level if made is level else check(made)
    return level


def split(graph: Module) -> Split:
    """Return which parts of a Graph's values ranks hold, and the Graph's Program."""
    demands = Demands(check(graph))
    return demands, through(check, check(partition(graph, demands)), with_sums_behind)


def build(
    program: Any, parameters: Mapping[str, Any], *, target: str = "native",
    store: kept.BuildStore | None = None, checks: Collection[str] = (),
) -> bytes:
    """Return the image of a program (an ELF shared object) for a target instruction set.

    store: where machine code of earlier builds may be, and that of this one goes. checks: names of
    codegen.check_names, of what the image checks while it runs; POINTS: it can be kept and resumed.
    """
    with rarely_collected():
        return _built(program, parameters, resolve(target), store or kept.Nothing(), checks)


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Let Python look for garbage in circles rarely: a build makes many objects and few circles."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(before[0], OBJECTS_BETWEEN_COLLECTIONS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _built(
    program: Any, parameters: Mapping[str, Any], target: str, store: kept.BuildStore,
    checks: Collection[str],
) -> bytes:
    at(f"tracing {program.name}")
    graph = program.graph(parameters, checks)
    levels = lower(with_points(graph) if POINTS in checks else graph)
    at("describing the image")
    return kept.linked(
        store,
        levels.source.text,
        objects=[
            kept.kernel(store, kernel, signature, symbol, target)
            for symbol, (kernel, signature) in levels.plan.kernels
        ],
        constants=levels.source.constants,
        manifest=manifest_of(levels.plan, target, levels.finished, levels.operations,
                             independent_rows(graph)),
        notes=notes_of(levels),
        index_words=len(levels.plan.scalars),
        target=target,
    )
