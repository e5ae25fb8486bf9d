"""Loops whose turns keep points apart, in tiles: all turns for some points, then for the next.

Goes in: Turns over works. Comes out: the same points in another order, or None.
Always holds: what a point writes no other point touches in any turn; what is read again in the next
turns is still in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from codegen.errors import ProgramError
from codegen.ir.exprs import mapped
from codegen.ir.indexing import loads
from codegen.ir.plan import Buffer, Keep, Load, Nest, Store, Turns, Var, Work
from codegen.ir.steps import nodes, walk_works
from codegen.symbolic import expr
from codegen.symbolic.estimate import lower_bound, upper_bound
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET

MOST_POINTS = 1024  # points of a tile

_Most = Callable[[Expr], int]


@dataclass(frozen=True)
class _Access:
    """buffer[stride * point + rest], over `inner` loops. stride None: not so simple."""

    buffer: Buffer
    stride: Expr | None
    rest: Expr
    inner: tuple[Var, ...]
    writes: bool


def in_tiles(turns: Turns, name: str, most: _Most) -> Turns | None:
    """Split the turns into tiles, one after the other, where they touch more than the nearest cache
    holds; None if they do not. name: of the first point of a tile. most: the largest value of an
    extent."""
    works = [w for w in walk_works((turns,)) if not isinstance(w, Turns)]
    extents = {v.extent if v is not None else None for work in works for v in _points(work)}
    extent = extents.pop() if len(extents) == 1 else None
    if extent is None:
        return None
    accesses = [a for work in works for a in _accesses(work)]
    counters = {w.sym for w in walk_works((turns,)) if isinstance(w, Turns)}
    if extent.symbols() & counters or not _apart(accesses, counters):
        return None
    each = _bytes(accesses, most)
    if each * most(extent) <= TARGET.l1 or each > TARGET.reused:
        return None
    width = max(1, min(MOST_POINTS, TARGET.l1 // 2 // each))
    width = 2 ** (width.bit_length() - 1)
    begin = Sym(name, "var", expr.const(0), extent - 1)
    body = (_tile(turns, begin, extent, width),)
    return Turns(begin, expr.const(0), extent, expr.const(width), body, turns.place)


def _points(work: Work) -> Iterator[Var | None]:
    """Yield the outermost loop of all that a work computes; None if it has none, or if points may
    be dropped or wait for each other."""
    if isinstance(work, Store):
        loops = _long(work.loops)
        yield loops[0] if loops and not (work.bounds or work.rows) else None
    elif isinstance(work, Nest):
        plain = all(
            isinstance(p, Keep) or isinstance(p, Store) and not (p.bounds or p.rows)
            for p in work.parts
        )
        if not plain or not _long(work.loops) and any(s.folds for s in work.sweeps):
            yield None
        for loops in [work.loops] if _long(work.loops) else [s.loops for s in work.sweeps]:
            yield next(iter(_long(loops)), None)
    else:
        yield None


def _long(loops: Iterable[Var]) -> tuple[Var, ...]:
    return tuple(v for v in loops if v.extent != 1)


def _accesses(work: Work) -> Iterator[_Access]:
    for node_loops, parts in _over(work):
        point, *inner = _long(node_loops)
        for part in parts:
            for load in (x for node in nodes(part) for x in loads(node)):
                yield _access(load, point, tuple(inner), False)
            if isinstance(part, Store):
                to = Load(part.buffer, part.offset)
                yield _access(to, point, (*inner, *_long(part.loops)), True)


def _over(work: Work) -> Iterator[tuple[tuple[Var, ...], tuple[Store | Keep, ...]]]:
    """Yield the parts of a work, and the loops around them."""
    if isinstance(work, Store):
        yield work.loops, (replace(work, loops=()),)
    elif isinstance(work, Nest):
        for sweep in work.sweeps:
            parts = tuple(p for p in sweep.parts if isinstance(p, Store | Keep))
            of_sweep = tuple(replace(p, loops=()) if isinstance(p, Store) else p for p in parts)
            yield (*work.loops, *sweep.loops), of_sweep


def _access(at: Load, point: Var, inner: tuple[Var, ...], writes: bool) -> _Access:
    first = at.offset.subst({point.sym: 0})
    stride: Expr | None = at.offset.subst({point.sym: 1}) - first
    assert stride is not None
    varies = stride.symbols() & {v.sym for v in (point, *inner)}
    if at.bounds or varies or first + stride * expr.symbol(point.sym) != at.offset:
        stride = None
    return _Access(at.buffer, stride, first, inner, writes)


def _apart(accesses: list[_Access], counters: set[Sym]) -> bool:
    """Return whether no point touches what another one writes."""
    for buffer in {id(a.buffer): a.buffer for a in accesses if a.writes}.values():
        here = [a for a in accesses if a.buffer is buffer]
        stride = here[0].stride
        if stride is None or any(a.stride != stride for a in here):
            return False
        if stride.symbols() & counters:
            return False
        ends = {_ends(a, counters) for a in here}
        if None in ends:
            return False
        known = [end for end in ends if end is not None]
        least, largest = [first for first, _ in known], [last for _, last in known]
        if not all(expr.nonneg(stride - 1 - b + a) for a in least for b in largest):
            return False
    return True


def _ends(a: _Access, counters: set[Sym]) -> tuple[Expr, Expr] | None:
    """Return the first and the last place that is touched where the point is the first one."""
    away = counters | {v.sym for v in a.inner}
    if a.rest.symbols() & away:
        try:
            return lower_bound(a.rest, away), upper_bound(a.rest, away)
        except ProgramError:
            return None
    return a.rest, a.rest


def _bytes(accesses: list[_Access], most: _Most) -> int:
    """Return about as many bytes of the cache as a point needs in a turn."""
    by_buffer: dict[int, int] = {}
    for a in accesses:
        if a.stride == 0 and not a.inner:
            continue
        size, some = a.buffer.dtype.size, TARGET.line
        if a.inner:
            some = prod(most(v.extent) for v in a.inner) * size
        if a.stride is not None and a.stride.is_const and a.stride != 0:
            some = min(some, abs(a.stride.value) * size)
        by_buffer[id(a.buffer)] = max(some, by_buffer.get(id(a.buffer), 0))
    return max(1, sum(by_buffer.values()))


def _tile(work: Work, begin: Sym, extent: Expr, width: int) -> Work:
    """Return a work for the points of a tile only."""
    if isinstance(work, Turns):
        return replace(work, body=tuple(_tile(w, begin, extent, width) for w in work.body))
    change: dict[Sym, Expr] = {}

    def within(loops: tuple[Var, ...]) -> tuple[Var, ...]:
        point, *inner = _long(loops)
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
    if _long(work.loops):
        loops, work = within(work.loops), mapped(work, lambda e: e.subst(change))
        return replace(work, loops=loops, together=work.together if width > 1 else 1)
    made = [within(sweep.loops) for sweep in work.sweeps]
    sweeps = mapped(work.sweeps, lambda e: e.subst(change))
    return replace(work, sweeps=tuple(
        replace(s, loops=loops) for s, loops in zip(sweeps, made, strict=True)))
