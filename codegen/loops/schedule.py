"""The schedule of loops: reductions become accumulators, loops are tiled, unrolled and vectorised.

Goes in: a Plan. Comes out: a Plan without Reduce: a reduction is an accumulator of a sweep, or a
row in memory that each of the inner loops combines into.
Always holds: each transformation says in a module of its own what is legal; the last part of this
file says what pays, and reads every threshold. Sums change their order only where `simd` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from codegen.dtypes import totalled_in
from codegen.errors import Place
from codegen.functions import OPENMP, neutral
from codegen.ir.accesses import accesses
from codegen.ir.exprs import exprs
from codegen.ir.indexing import count_calls, leaves, long_loops, positions, ravel, waiting_room
from codegen.ir.plan import (
    Apply,
    Integer,
    Lane,
    Literal,
    Load,
    LocalValue,
    Nest,
    Node,
    Phase,
    Plan,
    Reduce,
    Simple,
    Step,
    Store,
    Sweep,
    Var,
    Work,
    WorkBranch,
    WorkLoop,
)
from codegen.ir.steps import mapped_steps
from codegen.loops import lookahead, quotient_runs, row_tiles, strip_mine, unroll_and_jam
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym
from codegen.target import TARGET

_Looped = TypeVar("_Looped", Store, Sweep)


def schedule(plan: Plan) -> Plan:
    """Return the Plan with its reductions lowered and its loops marked for vectorisation."""

    def run(step: Step) -> Step:
        if not isinstance(step, Phase):
            return step
        return replace(step, work=_all(step.work))

    return replace(plan, steps=mapped_steps(plan.steps, run))


def _works(work: Work) -> Iterator[Work]:
    if isinstance(work, WorkLoop):
        yield replace(work, body=_all(work.body))
    elif isinstance(work, WorkBranch):
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
        if work.unroll == 1:
            yield _combined(replace(work, loops=(*outer, *work.inner, row)))
            return
        sweep = Sweep((row,), (work,))
        yield from _nests(Nest((*outer, *work.inner), (sweep,), work.place, work.unroll))
    elif isinstance(work, Reduce):
        keep = LocalValue(work.buffer.name, work.dtype, work.value, work.fn, work.place, work.total)
        store = Store((), work.buffer, work.offset, keep.read, place=work.place)
        sweeps = Sweep(work.inner, (keep,)), Sweep((), (store,))
        yield from _nests(Nest(work.loops, sweeps, work.place, work.unroll))
    elif isinstance(work, Nest):
        yield from (_start(p, work.place) for p in work.parts if isinstance(p, Reduce))
        yield from _nests(work)
    elif isinstance(work, Store) and work.waiting is not None:
        inner = work.loops[1:]
        extents = tuple(v.extent for v in inner)
        room = waiting_room(extents, work.buffer.dtype) if work.rows > 1 else expr.const(0)
        yield replace(work, room=room, line=ravel(positions(inner), extents))
    elif isinstance(work, Store) and _drops_most_points(work):
        yield replace(work, sift=TARGET.lookahead)
    elif isinstance(work, Store):
        yield _ahead(_runs(_strips(work)))
    elif isinstance(work, Lane):
        along = work.stride * expr.symbol(work.along.sym)
        lanes = _extremes(work) if work.kind == "argreduce" else 0
        yield replace(work, offset=work.offset + along, stride=expr.const(0), lanes=lanes)
    else:
        yield work


def _nests(nest: Nest) -> Iterator[Store | Nest]:
    """Yield the works of a nest: what tiles of a row begin with, nests of unrolled iterations and
    of those left. Both sum up in the same order."""
    begins, nest = _row_tiles(nest)
    yield from begins
    for part in _unrolled(nest):
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
    sweep = Sweep(sweep.loops, tuple(map(_part, sweep.parts)))
    if sweep.folds:
        simd = _may_reorder(sweep) and _reordering_pays(sweep)
        return replace(sweep, simd=simd, lanes=_lanes(sweep) if simd else 0)
    return _sweep_ahead(replace(_runs(sweep), simd=_writes_disjoint_parts(sweep)))


def _part(part: LocalValue | Store | Reduce) -> LocalValue | Store:
    """Return a part of a nest as it runs at one point of its sweep: a reduction combines into
    memory."""
    if isinstance(part, LocalValue):
        total = part.total or (totalled_in(part.fn, part.dtype) if part.fn else None)
        return replace(part, total=total)
    return replace(_combined(part) if isinstance(part, Reduce) else part, loops=())


def _may_reorder(sweep: Sweep) -> bool:
    """Return whether C compilers can be told to reorder the reductions of a sweep. For complex
    numbers OpenMP has only sums."""
    return bool(sweep.long) and all(
        f.fn in OPENMP and (f.dtype.kind != "c" or f.fn == "add") for f in sweep.folds)


def _writes_disjoint_parts(sweep: Sweep) -> bool:
    """Return whether a sweep writes several parts of one buffer. They are disjoint, which no C
    compiler can prove, so the loop is marked `simd`."""
    buffers = [p.buffer.number for p in sweep.parts if isinstance(p, Store)]
    return len(set(buffers)) < len(buffers) and bool(sweep.long)


# ---- what pays -----------------------------------------------------------------------------------


def _strips(work: Store) -> Store:
    """Strip-mine the loop along which an operand is contiguous, if the innermost loop runs across
    that operand and along the result: then it reads an element of each cache line. A strip is a
    line long."""
    *reads, write = accesses(work)
    if len(write.loops) < 2 or not strip_mine.is_legal(work) or not _is_bound_by_memory(work.value):
        return work
    last = write.loops[-1]
    for read in reads:
        stride = read.stride(last)
        if stride is not None and stride.is_const and abs(stride.value) <= strip_mine.NEAR:
            continue
        steps = read.linear[1] if read.linear is not None else ()
        along = [v for v, step in zip(read.loops, steps) if step in (1, -1)]
        if along:
            width = TARGET.line // read.buffer.dtype.size
            is_along_result = write.linear is not None and write.linear[1][-1] == 1
            return strip_mine.strip_mine(work, along[-1], width) if is_along_result else work
    return work


def _runs(work: _Looped) -> _Looped:
    """Cut the innermost loop where quotients of its positions change, if runs are not short: a
    short one costs more than its divisions."""
    short = quotient_runs.SHORT
    loops = long_loops(work.loops)
    if not loops or loops[-1].extent.is_const and loops[-1].extent.value < 2 * short:
        return work
    divided = [q for q in quotient_runs.quotients(work) if q.divisor >= short]
    return quotient_runs.in_runs(work, divided) if divided else work


def _ahead(work: Store) -> Store | Nest:
    """Return a store as a loop that reads indirect operands ahead, or the store itself."""
    if work.bounds or work.rows or work.waiting is not None:
        return work
    sweep = _sweep_ahead(Sweep(work.loops, (replace(work, loops=()),)))
    return Nest((), (sweep,), work.place) if sweep.ahead else work


def _sweep_ahead(sweep: Sweep) -> Sweep:
    """Read indirect operands of a sweep ahead, if its innermost loop is long and computes so much
    that it gains by vectors: a loop that only copies does not."""
    if not lookahead.is_legal(sweep) or expr.nonneg(TARGET.short_loop - sweep.long[-1].extent):
        return sweep
    pays = sum(count_calls(p.value) for p in sweep.parts) >= lookahead.WORTH
    return lookahead.read_ahead(sweep) if pays else sweep


def _drops_most_points(work: Store) -> bool:
    """Return whether all ranks go over the same points and each stores only those that fall into
    its part, as in a scatter to a split array."""
    last = long_loops(work.loops)[-1:]
    if not last or expr.nonneg(TARGET.short_loop - last[0].extent):
        return False
    read, added = set[Sym](), set[Sym]()
    for node in (leaf for b in work.bounds for leaf in leaves(b.node)):
        if isinstance(node, Load):
            read |= node.offset.symbols()
        elif isinstance(node, Integer):
            added |= node.value.symbols()
    return last[0].sym in read | added and any(s.kind == "coord" for s in added)


def _row_tiles(nest: Nest) -> tuple[list[Store], Nest]:
    """Return what results begin as, and a nest that goes tile by tile along the row that all its
    reductions read, if a cache holds a tile and not the row; else nothing, and the nest."""
    if not row_tiles.is_legal(nest):
        return [], nest
    row = nest.sweeps[0].long[0]
    reads = [a for a in accesses(nest) if not a.writes]
    # a constant holds an array, which is no key
    in_row = {(id(a.buffer), a.offset): a for a in reads if a.varies([row])}.values()
    if not in_row or not all(a.is_direct for a in reads) or any(
        a.varies(nest.loops) for a in in_row
    ):
        return [], nest
    each = sum(a.buffer.dtype.size for a in in_row)
    width = 2 ** ((TARGET.reused // each).bit_length() - 1)
    fits = expr.nonneg(width - row.extent)
    return ([], nest) if fits else row_tiles.tile_rows(nest, width)


def _unrolled(nest: Nest) -> Iterator[Nest]:
    """Yield nests of several iterations of the outer loop each, where rows of results would go to
    memory again and again, or reductions read long rows."""
    rows = any(isinstance(p, Reduce) for p in nest.parts)
    long = [_folds_long_rows(sweep) for sweep in nest.sweeps]
    if nest.unroll == 1 or not (rows or any(long)) or not unroll_and_jam.is_legal(nest):
        yield replace(nest, unroll=1)
        return
    folding = [len(sweep.folds) == len(sweep.parts) for sweep in nest.sweeps]
    jammed = [is_long or not folds for is_long, folds in zip(long, folding)]
    yield from unroll_and_jam.unroll_and_jam(nest, jammed)


def _folds_long_rows(sweep: Sweep) -> bool:
    row = sweep.long[-1].extent if sweep.long else expr.const(1)
    return row.is_const and any(
        row.value * f.dtype.size >= TARGET.l1 // 2 for f in sweep.folds)


def _reordering_pays(sweep: Sweep) -> bool:
    """Return whether vectors make the reductions of a sweep faster. C compilers reorder those of
    integers themselves."""
    last = sweep.long[-1].extent
    short = last.is_const and last.value < TARGET.short_loop
    return not short and any(f.dtype.kind in "fc" for f in sweep.folds)


def _lanes(sweep: Sweep) -> int:
    """Return how many accumulators each reduction gets, which hides the latency of an addition; 0
    where other work takes longer than that, or the loop is short."""
    last = sweep.long[-1]
    if len(sweep.folds) < len(sweep.parts) or not _varies(sweep.parts, last) or not all(
        _is_bound_by_memory(p.value) for p in sweep.parts
    ):
        return 0
    if all(f.dtype.kind == "c" for f in sweep.folds):
        return 8 if len(sweep.folds) == 1 else 0
    size = sum(f.total.size for f in sweep.folds if f.total is not None)
    lanes: int = 1 << (TARGET.accumulators // size).bit_length() - 1
    few = last.extent.is_const and last.extent.value < 16 * lanes
    return lanes if lanes >= 16 and not few else 0


def _extremes(lane: Lane) -> int:
    """Return how many elements an argmin or argmax compares at a time; 0 for one at a time, as for
    complex numbers, which no instruction compares, and indirect reads."""
    lanes = TARGET.accumulators // max(8, 2 * lane.dtype.size)
    assert lane.value is not None
    if expr.nonneg(4 * lanes - lane.along.extent) or lane.dtype.kind == "c":
        return 0
    return lanes if _is_bound_by_memory(lane.value) and _varies(lane.value, lane.along) else 0


def _varies(computed: object, loop: Var) -> bool:
    """Return whether iterations of a loop compute with other elements than each other."""
    return any(loop.sym in e.symbols() for e in exprs(computed))


# A library's or a vector's function takes longer than memory does.
_CHEAP = frozenset(
    "add sub mul square neg cast conj real imag select minimum maximum abs eq ne lt le gt ge "
    "logical_and logical_or logical_not bit_and bit_or invert".split()
)


def _is_bound_by_memory(node: Node) -> bool:
    """Return whether memory takes longer than computing a node, at positions known from loops."""
    if isinstance(node, Apply):
        return node.fn in _CHEAP and all(map(_is_bound_by_memory, node.args))
    return not getattr(node, "bounds", ())
