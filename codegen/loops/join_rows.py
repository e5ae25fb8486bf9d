"""Fusion of loops over one row: several stores in one loop, and iterations of some before or after.

Goes in: works that are done one after the other. Comes out: the same in fewer loops.
Always holds: works that share a loop touch a common element in the same iteration only, in their
order. Results are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from codegen.ir.accesses import MemoryAccess, accesses
from codegen.ir.exprs import mapped
from codegen.ir.plan import Buffer, Nest, Store, Sweep, Var, Work
from codegen.ir.steps import memory_read, memory_written
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

THIN = 4  # turns that a work may have beside the loop that it shares


@dataclass(frozen=True)
class _Line:
    """A store over one loop: turn j of its own is turn j + shift of the loop that it shares. One
    without a loop shares none."""

    work: Store
    count: Expr
    accesses: tuple[MemoryAccess[Buffer], ...]
    shift: int = 0


@dataclass
class _Run:
    """A run is the stores that share one loop; or one work of another kind."""

    lines: list[_Line]
    works: list[Work]


def side_by_side(works: Sequence[Work]) -> tuple[Work, ...]:
    """Return the works, joined into one where they may share a loop."""
    runs: list[_Run] = []
    for work in works:
        line = _line(work)
        run = _run_for(runs, line) if line is not None else None
        if run is None:
            runs.append(_Run([] if line is None else [line], [work]))
        else:
            run[0].lines.append(run[1])
            run[0].works.append(work)
    return tuple(w for run in runs for w in _together(run))


def _together(run: _Run) -> list[Work]:
    if len(run.lines) < 2:
        return run.works
    ends = _ends(run.lines)
    assert ends is not None
    begin, end = ends
    edges, parts = list[Work](), list[Store]()
    loop = Sym(run.lines[0].work.loops[0].sym.name, "var", expr.const(0), end - begin - 1)
    for line in run.lines:
        turns = [expr.const(k) for k in range(begin - line.shift)]
        after = (line.shift + line.count - end).value
        turns += [end - line.shift + k for k in range(after)]
        edges += [_at(line, turn) for turn in turns]
        parts.append(_at(line, expr.symbol(loop) + (begin - line.shift)))
    sweep = Sweep((Var(loop, end - begin),), tuple(parts))
    return [*edges, Nest((), (sweep,), run.lines[0].work.place)]


def _at(line: _Line, turn: Expr) -> Store:
    """Return the store of a line in one turn, without its loop."""
    (own,) = line.work.loops
    return replace(mapped(line.work, lambda e: e.subst({own.sym: turn})), loops=())


def _line(work: Work) -> _Line | None:
    if not isinstance(work, Store) or len(work.loops) > 1:
        return None
    touched = tuple(accesses(work))
    if not all(a.linear is not None and all(s in (0, 1) for s in a.linear[1]) for a in touched):
        return None
    if work.loops and not _moves(touched[-1]):
        return None
    return _Line(work, work.loops[0].extent if work.loops else expr.const(1), touched)


def _moves(a: MemoryAccess[Buffer]) -> bool:
    """Return whether an access goes on by an element in each turn; otherwise it stays where it
    is."""
    return a.linear is not None and a.linear[1] == (expr.const(1),)


def _run_for(runs: Sequence[_Run], line: _Line) -> tuple[_Run, _Line] | None:
    """Return the last run that a line may join, and the line with its shift in it; None if there is
    none."""
    if not line.work.loops:
        return None
    for run in reversed(runs):
        shifts: set[int | None] = set()
        for other in run.lines:
            shifts |= {None if s is None else s + other.shift for s in _meets(other, line)}
        if not run.lines:
            mine = {id(a.buffer) for a in line.accesses}
            touched = {id(b) for w in run.works for b in (*memory_read(w), *memory_written(w))}
            shifts = {None} if mine & touched else set()
        if len(shifts) == 1 and None not in shifts:
            (shift,) = shifts
            assert shift is not None
            joined = replace(line, shift=shift)
            return (run, joined) if _ends([*run.lines, joined]) is not None else None
        if shifts:
            return None
    return None


def _meets(a: _Line, b: _Line) -> set[int | None]:
    """Return by how many turns the second line is ahead where both touch an element that one
    writes; None among them: that is not the same everywhere."""
    shifts: set[int | None] = set()
    for p in a.accesses:
        for q in b.accesses:
            if p.buffer is not q.buffer or not (p.writes or q.writes):
                continue
            assert p.linear is not None and q.linear is not None
            distance = q.linear[0] - p.linear[0]
            if expr.nonneg(distance - (a.count if _moves(p) else 1)) or expr.nonneg(
                -distance - (b.count if _moves(q) else 1)
            ):
                continue
            same = distance.is_const and _moves(p) and _moves(q)
            shifts.add(distance.value if same else None)
    return shifts


def _ends(lines: Sequence[_Line]) -> tuple[int, Expr] | None:
    """Return the begin and the end of the turns that all lines have, two at least; None if they
    share fewer."""
    begin = max(line.shift for line in lines)
    last = [line.shift + line.count - lines[0].count for line in lines]
    if not all(e.is_const for e in last):
        return None
    end = lines[0].count + min(e.value for e in last)
    thin = all(
        begin - line.shift <= THIN and (line.shift + line.count - end).value <= THIN
        for line in lines
    )
    return (begin, end) if thin and expr.nonneg(end - begin - 2) else None

