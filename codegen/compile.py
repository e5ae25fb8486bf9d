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

from codegen.checks.blas_int_limits import blas_int_limits
from codegen.checks.check_graph import check
from codegen.checks.check_loops import check_loops
from codegen.checks.check_memory import check_memory
from codegen.checks.check_plan import check_finished, check_plan
from codegen.checks.compare_ranks import compare_ranks
from codegen.checks.conflicts import check_conflicts
from codegen.checks.instrument import instrument
from codegen.checks.matching import check as check_matching
from codegen.checks.names import POINTS
from codegen.checks.replicas import check_replicas
from codegen.checks.uniformity import check_uniform
from codegen.describe import manifest_of, notes_of
from codegen.emit.image import CSource, emit
from codegen.errors import UsageError
from codegen.graph.blocked_substitution import blocked_substitution
from codegen.graph.checkpoint_locations import checkpoint_locations
from codegen.graph.cse import cse
from codegen.graph.fold_batch_sums import fold_batch_sums
from codegen.graph.fold_casts import fold_casts
from codegen.graph.keep_row_dims import keep_row_dims
from codegen.graph.loop_motion import loop_motion
from codegen.graph.lower_expects import lower_expects
from codegen.graph.materialize_constants import materialize_constants
from codegen.graph.sink_allreduce import sink_allreduce
from codegen.graph.sink_reads import sink_reads
from codegen.graph.split_at_edges import split_at_edges
from codegen.graph.transpose_before_exchange import transpose_before_exchange
from codegen.image import build_cache
from codegen.image.target import resolve
from codegen.ir.graph import Module
from codegen.ir.loops import Loops
from codegen.ir.plan import Plan
from codegen.layouts.demands import Demands, Split
from codegen.layouts.gather_before_loop import gather_before_loop
from codegen.layouts.independent_rows import independent_rows
from codegen.layouts.owner_computes import owner_computes, rows_on_owners
from codegen.layouts.partition import partition
from codegen.layouts.replicate_loops import replicate_loops
from codegen.layouts.reshape_chains import reshape_chains
from codegen.layouts.search import LayoutSearch
from codegen.layouts.share_loops import share_loops
from codegen.loops.accumulate_in_place import accumulate_in_place
from codegen.loops.assign_buffers import assign_buffers
from codegen.loops.copy_elision import copy_elision
from codegen.loops.double_buffering import double_buffering
from codegen.loops.fuse import fuse
from codegen.loops.fuse_into_exchange import fuse_into_exchange
from codegen.loops.schedule import schedule
from codegen.loops.skewed_fusion import skewed_fusion
from codegen.loops.stored_values import stored_values
from codegen.loops.to_loops import to_loops
from codegen.pipeline import PassRow, apply, leaving_out, pass_names, recording, rows
from codegen.plan.hoist_formulas import hoist_formulas
from codegen.plan.loops_into_phases import loops_into_phases
from codegen.plan.operation_graph import OperationRow, operation_graph
from codegen.plan.self_exchange_elision import self_exchange_elision
from codegen.plan.to_plan import to_plan
from codegen.plan.undo_log import undo_log
from codegen.progress import announce
from codegen.suggest import meant
from codegen.verify.exchange_table import ExchangeTable
from codegen.verify.sample import check_exchanges

Level = TypeVar("Level", Module, Loops, Plan)
OBJECTS_BETWEEN_COLLECTIONS = 500_000

# What offers other layouts, in this order.
PROPOSERS = (owner_computes, reshape_chains, share_loops, gather_before_loop, replicate_loops)
# Passes that a build can do without, and those that make, or check, what an image must have.
OPTIMISATIONS = pass_names(
    fold_casts, cse, loop_motion, split_at_edges, blocked_substitution,
    keep_row_dims, sink_allreduce, *PROPOSERS, transpose_before_exchange, fold_batch_sums,
    sink_reads, accumulate_in_place, fuse, copy_elision, fuse_into_exchange, double_buffering,
    loops_into_phases, skewed_fusion, self_exchange_elision,
)
NEEDED = pass_names(
    checkpoint_locations, check_replicas, compare_ranks, partition, check_uniform, check_matching,
    instrument, lower_expects, materialize_constants, to_loops, assign_buffers, to_plan,
    blas_int_limits, undo_log, schedule, hoist_formulas, emit,
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
    announce("choosing what ranks hold, and what they send")
    graph = through(check, check(graph), check_replicas, fold_casts, cse, compare_ranks,
                    loop_motion, split_at_edges, blocked_substitution, keep_row_dims)
    demands, program = LayoutSearch(split, rows_on_owners).best(graph, PROPOSERS)
    check(demands.graph)
    program = through(check, check(program), transpose_before_exchange, fold_batch_sums, sink_reads,
                      check_uniform)
    announce("proving that sends and receives match")
    program = through(check, program, check_matching, instrument, lower_expects,
                      materialize_constants)
    announce("choosing loops and buffers")
    loops = check_loops(apply(to_loops, program, stored_values(program)))
    loops = through(check_loops, loops, accumulate_in_place, fuse, copy_elision,
                    fuse_into_exchange)
    memory = apply(double_buffering, apply(assign_buffers, loops))
    plan = check_memory(memory, check_plan(apply(blas_int_limits, apply(to_plan, memory))))
    plan = through(check_plan, plan, undo_log, loops_into_phases, skewed_fusion)
    exchanges = check_exchanges(plan)
    finished = check_finished(
        apply(hoist_formulas, apply(schedule, apply(self_exchange_elision, plan))))
    operations = check_conflicts(finished, operation_graph(finished))
    announce("writing C")
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
    demands = Demands(graph)
    return demands, apply(sink_allreduce, apply(partition, graph, demands))


def build(
    program: Any, parameters: Mapping[str, Any], *, target: str = "native",
    store: build_cache.BuildStore | None = None, checks: Collection[str] = (),
    without: Iterable[str] = (),
) -> bytes:
    """Return the image of a program (an ELF shared object) for a target instruction set.

    store: where machine code of earlier builds may be, and that of this one goes. checks: names of
    codegen.checks.names, of what the image checks while it runs; POINTS: it can be resumed.
    without: names of optimisations that are left out. Raises UsageError for other names.
    """
    with rarely_collected(), leaving_out(optimisations(without)):
        return _built(program, parameters, resolve(target), store or build_cache.Nothing(), checks)


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
    program: Any, parameters: Mapping[str, Any], target: str, store: build_cache.BuildStore,
    checks: Collection[str],
) -> bytes:
    announce(f"tracing {program.name}")
    graph = program.graph(parameters, checks)
    levels = lower(apply(checkpoint_locations, graph) if POINTS in checks else graph)
    announce("describing the image")
    return build_cache.linked(
        store,
        levels.source.text,
        objects=[
            build_cache.kernel(store, kernel, signature, symbol, target)
            for symbol, (kernel, signature) in levels.plan.kernels
        ],
        constants=levels.source.constants,
        manifest=manifest_of(levels.plan, target, levels.finished, levels.operations,
                             independent_rows(graph)),
        notes=notes_of(levels),
        index_words=len(levels.plan.scalars),
        target=target,
    )
