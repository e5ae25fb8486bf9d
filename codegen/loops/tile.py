"""Loop tiling over points: all iterations for one tile of independent points, then for the next.

Goes in: a WorkLoop over works. Comes out: the same points in another order, or None.
Always holds: no point touches an element that another point writes, in any iteration. What the next
iterations read again is still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

from codegen.errors import ProgramError
from codegen.ir.accesses import ElementRange, MemoryAccess, accesses
from codegen.ir.exprs import mapped
from codegen.ir.indexing import long_loops
from codegen.ir.plan import Buffer, LocalValue, Nest, Store, Var, Work, WorkLoop
from codegen.ir.steps import walk_works
from codegen.symbolic import expr
from codegen.symbolic.estimate import lower_bound, upper_bound
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET

MOST_POINTS = 1024  # points of a tile

_Most = Callable[[Expr], int]


def tile(loop: WorkLoop, name: str, most: _Most) -> WorkLoop | None:
    """Return a loop over tiles of points, each of which runs all iterations of `loop`; None if that
    is not legal, or does not pay. name: that of the counter of points. most: a function that
    returns the largest value of an extent."""
    works = [w for w in walk_works((loop,)) if not isinstance(w, WorkLoop)]
    counters = {w.sym for w in walk_works((loop,)) if isinstance(w, WorkLoop)}
    touched = [a for work in works if isinstance(work, Store | Nest) for a in accesses(work)]
    extent = _common_extent(works)
    if extent is None or extent.symbols() & counters or not _are_independent(touched, counters):
        return None
    width = _paying_width(_bytes(touched, most), most(extent))
    if width is None:
        return None
    begin = Sym(name, "var", expr.const(0), extent - 1)
    body = (_tile(loop, begin, extent, width),)
    return WorkLoop(begin, expr.const(0), extent, expr.const(width), body, loop.place)


def _paying_width(each: int, points: int) -> int | None:
    """Return the number of points of a tile that half of the nearest cache holds, where a point
    takes `each` bytes; None if the cache holds all points, or a point is too large for tiles."""
    if each * points <= TARGET.l1 or each > TARGET.reused:
        return None
    width = max(1, min(MOST_POINTS, TARGET.l1 // 2 // each))
    return int(2 ** (width.bit_length() - 1))


def _common_extent(works: Iterable[Work]) -> Expr | None:
    """Return the extent of the outermost loop of all works, if it is the same."""
    extents = {v.extent if v is not None else None for work in works for v in _points(work)}
    return extents.pop() if len(extents) == 1 else None


def _points(work: Work) -> Iterator[Var | None]:
    """Yield the outermost loop of all that a work computes; None if it has none, or if points may
    be dropped or wait for each other."""
    if isinstance(work, Store):
        loops = long_loops(work.loops)
        yield loops[0] if loops and not (work.bounds or work.rows) else None
    elif isinstance(work, Nest):
        plain = all(
            isinstance(p, LocalValue) or isinstance(p, Store) and not (p.bounds or p.rows)
            for p in work.parts
        )
        if not plain or not long_loops(work.loops) and any(s.folds for s in work.sweeps):
            yield None
        for loops in [work.loops] if long_loops(work.loops) else [s.loops for s in work.sweeps]:
            yield next(iter(long_loops(loops)), None)
    else:
        yield None


def _are_independent(touched: Sequence[MemoryAccess[Buffer]], counters: set[Sym]) -> bool:
    """Return whether no point touches an element that another point writes, in any turn."""
    for buffer in {id(a.buffer): a.buffer for a in touched if a.writes}.values():
        here = [a for a in touched if a.buffer is buffer]
        stride = here[0].stride(here[0].loops[0])
        if stride is None or any(a.stride(a.loops[0]) != stride for a in here):
            return False
        ranges = {_range_of_first_point(a, counters) for a in here}
        if stride.symbols() & counters or None in ranges:
            return False
        known = [r for r in ranges if r is not None]
        if not all(expr.nonneg(stride - 1 - b.high + a.low) for a in known for b in known):
            return False
    return True


def _range_of_first_point(a: MemoryAccess[Buffer], counters: set[Sym]) -> ElementRange | None:
    """Return the elements that the first point touches in all turns, or None if they have no known
    bounds."""
    point, *inner = a.loops
    offset, moving = a.begin(point), counters | {v.sym for v in inner}
    if not offset.symbols() & moving:
        return ElementRange(offset, offset)
    try:
        return ElementRange(lower_bound(offset, moving), upper_bound(offset, moving))
    except ProgramError:
        return None


def _bytes(touched: Iterable[MemoryAccess[Buffer]], most: _Most) -> int:
    """Return about as many bytes of the cache as a point needs in a turn."""
    by_buffer: dict[int, int] = {}
    for a in touched:
        point, *inner = a.loops
        stride = a.stride(point)
        if stride == 0 and not inner:
            continue
        size, some = a.buffer.dtype.size, TARGET.line
        if inner:
            some = prod(most(v.extent) for v in inner) * size
        if stride is not None and stride.is_const and stride != 0:
            some = min(some, abs(stride.value) * size)
        by_buffer[id(a.buffer)] = max(some, by_buffer.get(id(a.buffer), 0))
    return max(1, sum(by_buffer.values()))


def _tile(work: Work, begin: Sym, extent: Expr, width: int) -> Work:
    """Return a work for the points of a tile only."""
    if isinstance(work, WorkLoop):
        return replace(work, body=tuple(_tile(w, begin, extent, width) for w in work.body))
    change: dict[Sym, Expr] = {}

    def within(loops: tuple[Var, ...]) -> tuple[Var, ...]:
        point, *inner = long_loops(loops)
        if width == 1:  # emitters leave out loops of one turn
            change[point.sym] = expr.symbol(begin)
            return tuple(inner)
        sym = Sym(point.sym.name, "var", expr.const(0), expr.const(width - 1))
        change[point.sym] = expr.symbol(begin) + expr.symbol(sym)
        rest = extent - expr.symbol(begin)
        return (Var(sym, expr.minimum(rest, width)), *inner)

    if isinstance(work, Store):
        loops = within(work.loops)
        return replace(mapped(work, lambda e: e.subst(change)), loops=loops)
    assert isinstance(work, Nest)
    if long_loops(work.loops):
        loops, work = within(work.loops), mapped(work, lambda e: e.subst(change))
        return replace(work, loops=loops, unroll=work.unroll if width > 1 else 1)
    loops_of_sweeps = [within(sweep.loops) for sweep in work.sweeps]
    sweeps = mapped(work.sweeps, lambda e: e.subst(change))
    return replace(work, sweeps=tuple(
        replace(s, loops=loops) for s, loops in zip(sweeps, loops_of_sweeps, strict=True)))
