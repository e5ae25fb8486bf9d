"""The compiler, pass after pass: a program in, an image out.

This file lists the passes in order and holds nothing else. Between any two levels a checker runs.
Always holds: the number of ranks is nowhere; the same program gives the same bytes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from codegen import kept
from codegen.check_names import POINTS
from codegen.checks.conflicts import check_conflicts
from codegen.describe import manifest_of, notes_of
from codegen.emit.image import CSource, emit
from codegen.errors import UsageError
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
from codegen.pipeline import PassRow, apply, leaving_out, pass_names, recording, rows
from codegen.plan.grammar import Plan
from codegen.plan.loops import Loops
from codegen.plan.operation_graph import OperationRow, operation_graph
from codegen.plan.stored import stored_values
from codegen.progress import at
from codegen.suggest import meant
from codegen.verify.exchange_table import ExchangeTable
from codegen.verify.sample import check_exchanges

Level = TypeVar("Level", Module, Loops, Plan)
OBJECTS_BETWEEN_COLLECTIONS = 500_000

# Passes that a build can do without, and those that make, or check, what an image must have.
OPTIMISATIONS = pass_names(
    with_cast_constants, without_common, at_once, sums_at_once, in_pieces, in_blocks, row_wise,
    with_sums_behind, with_owned_rows, with_apart, with_shared_loops, fetched_ahead,
    with_whole_loops, with_rows_kept, turned, with_joined_sums, read_behind, accumulated, fused,
    with_destinations, with_arrivals, rotated, enclosed, row_by_row, alone,
)
NEEDED = pass_names(
    with_points, check_replicas, compared, partition, check_uniform, check_matching, instrumented,
    at_one_place, with_own_constants, looped, placed, scheduled, narrowed,
    with_kept_writes, settled, hoisted, emit,
)


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
    owned = halves = apply(with_owned_rows, split(graph), split)
    for of in (with_apart, with_shared_loops, fetched_ahead, with_whole_loops):
        halves = apply(of, halves, split)
    demands, program = apply(with_rows_kept, halves, owned)
    program = through(check, program, turned, with_joined_sums, read_behind, check_uniform)
    at("proving that sends and receives match")
    program = through(check, program, check_matching, instrumented, at_one_place,
                      with_own_constants)
    at("choosing loops and buffers")
    loops = check_loops(apply(looped, program, stored_values(program)))
    loops = through(check_loops, loops, accumulated, fused, with_destinations,
                    with_arrivals)
    memory = apply(rotated, apply(placed, loops))
    plan = check_memory(memory, check_plan(apply(narrowed, apply(scheduled, memory))))
    plan = through(check_plan, plan, with_kept_writes, enclosed, row_by_row)
    exchanges = check_exchanges(plan)
    finished = check_finished(apply(hoisted, apply(settled, apply(alone, plan))))
    operations = check_conflicts(finished, operation_graph(finished))
    at("writing C")
    return Levels(demands.graph, demands, program, loops, plan, exchanges, finished, operations,
                  apply(emit, finished))


def through(
    check: Callable[[Level], Level], level: Level, *passes: Callable[[Level], Level]
) -> Level:
    """Return a level after some passes, checked after each pass that changed it."""
    for of in passes:
        made = apply(of, level)
        level = level if made is level else check(made)
    return level


def split(graph: Module) -> Split:
    """Return which parts of a Graph's values ranks hold, and the Graph's Program."""
    demands = Demands(check(graph))
    return demands, through(check, check(apply(partition, graph, demands)), with_sums_behind)


def build(
    program: Any, parameters: Mapping[str, Any], *, target: str = "native",
    store: kept.BuildStore | None = None, checks: Collection[str] = (),
    without: Iterable[str] = (),
) -> bytes:
    """Return the image of a program (an ELF shared object) for a target instruction set.

    store: where machine code of earlier builds may be, and that of this one goes. checks: names of
    codegen.check_names, of what the image checks while it runs; POINTS: it can be kept and resumed.
    without: names of optimisations that are left out. Raises UsageError for other names.
    """
    with rarely_collected(), leaving_out(optimisations(without)):
        return _built(program, parameters, resolve(target), store or kept.Nothing(), checks)


def optimisations(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of passes, each once, in the order of the passes. Raises UsageError for a pass
    that a build needs, and for a name that no pass has."""
    asked = {*names}
    for name in asked.difference(OPTIMISATIONS):
        needed = name in NEEDED
        raise UsageError(
            f"the pass {name} cannot be left out" if needed else f"there is no pass {name!r}",
            expected=f"optimisations: {', '.join(OPTIMISATIONS)}",
            found=f"{name}, which makes or checks what an image must have" if needed else name,
            remedy="" if needed else meant(name, OPTIMISATIONS, "--without {}"))
    return tuple(name for name in OPTIMISATIONS if name in asked)


def recorded(
    program: Any, parameters: Mapping[str, Any], *, without: Iterable[str] = (),
) -> tuple[list[PassRow], float, float]:
    """Return what each pass of a build does, and seconds of one core: of tracing, and of all passes
    with the checks between them. Nothing is compiled by a compiler of C. Raises as build does."""
    names = optimisations(without)
    with rarely_collected(), leaving_out(names), recording() as runs:
        start = time.thread_time()
        graph = program.graph(parameters)
        traced = time.thread_time()
        lower(graph)
        ended = time.thread_time()
    return rows(runs), traced - start, ended - traced


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
    levels = lower(apply(with_points, graph) if POINTS in checks else graph)
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
