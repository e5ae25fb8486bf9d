"""Lowers loops of a Plan: accumulator types of reductions, and which loops are vectorised (SIMD).

Goes in: a Plan. Comes out: a Plan without Reduce: a reduction is an accumulator of a sweep, or a
row in memory that each of the inner loops combines into.
Always holds: every point is computed as before; the order changes only where `simd` allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from codegen.dtypes import totalled_in
from codegen.errors import Place
from codegen.functions import OPENMP, neutral
from codegen.ir.exprs import exprs
from codegen.ir.indexing import leaves, positions, ravel, waiting_room
from codegen.ir.plan import (
    Choice,
    Integer,
    Keep,
    Lane,
    Literal,
    Load,
    Nest,
    Phase,
    Plan,
    Reduce,
    Simple,
    Step,
    Store,
    Sweep,
    Turns,
    Var,
    Work,
)
from codegen.ir.steps import mapped_steps
from codegen.loops.lookahead import read_ahead
from codegen.loops.quotient_runs import in_runs
from codegen.loops.row_tiles import in_row_tiles
from codegen.loops.strip_mine import in_strips, is_quick
from codegen.loops.unroll_and_jam import together
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym
from codegen.target import TARGET


def schedule(plan: Plan) -> Plan:
    """Return the Plan with its reductions lowered and its loops marked for vectorisation."""

    def run(step: Step) -> Step:
        if not isinstance(step, Phase):
            return step
        return replace(step, work=_all(step.work))

    return replace(plan, steps=mapped_steps(plan.steps, run))


def _works(work: Work) -> Iterator[Work]:
    if isinstance(work, Turns):
        yield replace(work, body=_all(work.body))
    elif isinstance(work, Choice):
        yield replace(work, arms=tuple(map(_all, work.arms)))
    else:
        yield from _simple(work)


def _all(works: Iterable[Work]) -> tuple[Work, ...]:
    return tuple(w for work in works for w in _works(work))


def _simple(work: Simple) -> Iterator[Work]:
    """Yield what a work becomes, with reductions lowered to accumulators or to rows in memory."""
    if isinstance(work, Reduce) and work.rows:
        *outer, row = work.loops
        yield _start(work, work.place)
        if work.together == 1:
            yield _combined(replace(work, loops=(*outer, *work.inner, row)))
            return
        sweep = Sweep((row,), (work,))
        yield from _nests(Nest((*outer, *work.inner), (sweep,), work.place, work.together))
    elif isinstance(work, Reduce):
        keep = Keep(work.buffer.name, work.dtype, work.value, work.fn, work.place, work.total)
        store = Store((), work.buffer, work.offset, keep.local, place=work.place)
        sweeps = Sweep(work.inner, (keep,)), Sweep((), (store,))
        yield from _nests(Nest(work.loops, sweeps, work.place, work.together))
    elif isinstance(work, Nest):
        yield from (_start(p, work.place) for p in work.parts if isinstance(p, Reduce))
        yield from _nests(work)
    elif isinstance(work, Store) and work.waiting is not None:
        inner = work.loops[1:]
        extents = tuple(v.extent for v in inner)
        room = waiting_room(extents, work.buffer.dtype) if work.rows > 1 else expr.const(0)
        yield replace(work, room=room, line=ravel(positions(inner), extents))
    elif isinstance(work, Store) and _elsewhere(work):
        yield replace(work, sift=TARGET.lookahead)
    elif isinstance(work, Store):
        yield _looking(in_runs(in_strips(work)))
    elif isinstance(work, Lane):
        along = work.stride * expr.symbol(work.along.sym)
        lanes = _extremes(work) if work.kind == "argreduce" else 0
        yield replace(work, offset=work.offset + along, stride=expr.const(0), lanes=lanes)
    else:
        yield work


def _looking(work: Store) -> Store | Nest:
    """Return a store as a loop that reads indirect operands ahead, for some turns at a time (loop
    distribution), if that lets the rest vectorise; else the store."""
    if work.bounds or work.rows or work.waiting is not None:
        return work
    sweep = read_ahead(Sweep(work.loops, (replace(work, loops=()),)))
    return Nest((), (sweep,), work.place) if sweep.ahead else work


def _elsewhere(work: Store) -> bool:
    """Return whether all ranks go over the same points and each stores only those that fall into
    its part, as in a scatter to a split array."""
    last = [v for v in work.loops if v.extent != 1][-1:]
    if not last or expr.nonneg(TARGET.short_loop - last[0].extent):
        return False
    read, added = set[Sym](), set[Sym]()
    for node in (leaf for b in work.bounds for leaf in leaves(b.node)):
        if isinstance(node, Load):
            read |= node.offset.symbols()
        elif isinstance(node, Integer):
            added |= node.value.symbols()
    return last[0].sym in read | added and any(s.kind == "coord" for s in added)


def _nests(nest: Nest) -> Iterator[Store | Nest]:
    """Yield the nests of a nest: unrolled turns and the remainder. Both sum up in the same
    order."""
    tiles = in_row_tiles(nest)
    if tiles is not None:
        begins, nest = tiles
        yield from begins
    for part in together(nest):
        sweeps = tuple(map(_sweep, part.sweeps))
        if part.loops != nest.loops:
            sweeps = tuple(replace(s, lanes=0) for s in sweeps)
        yield replace(part, sweeps=sweeps)


# ---- reductions ----------------------------------------------------------------------------------


def _start(row: Reduce, place: Place | None) -> Store:
    """Return a store that fills a row with the neutral element of its reduction."""
    value = Literal(neutral(row.fn, row.dtype), row.dtype)
    return Store(row.loops, row.buffer, row.offset, value, place=place)


def _combined(row: Reduce) -> Store:
    return Store(row.loops, row.buffer, row.offset, row.value, row.fn, place=row.place)


def _sweep(sweep: Sweep) -> Sweep:
    parts = tuple(map(_part, sweep.parts))
    made = Sweep(sweep.loops, parts)
    if made.folds:
        simd = _reordered(made)
        return replace(made, simd=simd, lanes=_lanes(made) if simd else 0)
    return read_ahead(replace(in_runs(made), simd=_apart(made)))


def _part(part: Keep | Store | Reduce) -> Keep | Store:
    """Return a part of a nest as it runs at one point of its sweep: a reduction combines into
    memory."""
    if isinstance(part, Keep):
        total = part.total or (totalled_in(part.fn, part.dtype) if part.fn else None)
        return replace(part, total=total)
    return replace(_combined(part) if isinstance(part, Reduce) else part, loops=())


def _reordered(sweep: Sweep) -> bool:
    """Return whether reordering a sweep's reductions makes its loop faster. C compilers reorder
    integers themselves; for complex numbers OpenMP has only sums."""
    if not sweep.long or any(f.dtype.kind == "c" and f.fn != "add" for f in sweep.folds):
        return False
    if any(f.fn not in OPENMP for f in sweep.folds):
        return False
    last = sweep.long[-1].extent
    short = last.is_const and last.value < TARGET.short_loop
    return not short and any(f.dtype.kind in "fc" for f in sweep.folds)


def _lanes(sweep: Sweep) -> int:
    """Return how many accumulators each reduction gets, which hides the latency of an addition; 0
    where other work takes longer than that, or the loop is short."""
    if len(sweep.folds) < len(sweep.parts) or not all(is_quick(p.value) for p in sweep.parts):
        return 0
    if not _moves(sweep.parts, sweep.long[-1]):
        return 0
    if all(f.dtype.kind == "c" for f in sweep.folds):
        return 8 if len(sweep.folds) == 1 else 0
    size = sum(f.total.size for f in sweep.folds if f.total is not None)
    lanes: int = 1 << (TARGET.accumulators // size).bit_length() - 1
    last = sweep.long[-1].extent
    few = last.is_const and last.value < 16 * lanes
    return lanes if lanes >= 16 and not few else 0


def _apart(sweep: Sweep) -> bool:
    """Return whether a sweep writes several parts of one buffer. They are disjoint, which no C
    compiler can prove, so the loop is marked `simd`."""
    buffers = [p.buffer.number for p in sweep.parts if isinstance(p, Store)]
    return len(set(buffers)) < len(buffers) and bool(sweep.long)


def _extremes(lane: Lane) -> int:
    """Return how many elements an argmin or argmax compares at a time; 0 for one at a time, as for
    complex numbers, which no instruction compares, and indirect reads."""
    lanes = TARGET.accumulators // max(8, 2 * lane.dtype.size)
    few = expr.nonneg(4 * lanes - lane.along.extent)
    assert lane.value is not None
    quick = lane.dtype.kind != "c" and is_quick(lane.value) and _moves(lane.value, lane.along)
    return lanes if quick and not few else 0


def _moves(computed: object, loop: Var) -> bool:
    """Return whether turns of a loop compute with other elements than each other."""
    return any(loop.sym in e.symbols() for e in exprs(computed))
