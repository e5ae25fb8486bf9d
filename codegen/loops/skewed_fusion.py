"""Skewed loop fusion: works on the same arrays share a loop over rows, so that caches are reused.

Goes in: a Plan. Comes out: the Plan in whose phases such works are a loop over rows: a row that one
work leaves in the cache, the next one finds there. Each work may lag some rows behind earlier ones.
Always holds: dependences are kept: of two works that touch one element, one of them to write it,
the first one still comes first. Arrays that only such works touch shrink to a ring of few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import is_

from codegen.ir.accesses import MemoryAccess, accesses
from codegen.ir.exprs import mapped
from codegen.ir.fresh import Fresh
from codegen.ir.indexing import long_loops, rewritten
from codegen.ir.names import buffer_names
from codegen.ir.plan import (
    Buffer,
    Load,
    LocalValue,
    Nest,
    Node,
    Phase,
    Plan,
    Store,
    Var,
    Work,
    WorkBranch,
    WorkLoop,
)
from codegen.ir.steps import (
    mapped_steps,
    step_buffers,
    walk_steps,
    walk_works,
    work_buffers,
)
from codegen.loops.join_rows import side_by_side
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.symbolic.extents import most
from codegen.target import TARGET

MOST_WORKS = 24  # works that go together
LONGEST = 2**13  # characters of the formulas for the first turn and the last
NEAREST = 4  # elements between those that follow each other in a row
FEW = 8  # rows that a work has where it is no part of most turns
FARTHEST = 8  # rows that a work may be behind


@dataclass(frozen=True)
class _Member:
    """A work as rows of its outermost loop. `begin` is the turn of its first row, before it is
    delayed by `behind` turns. `after` gives, for each earlier member, the least delay behind it, or
    None."""

    origin: Work
    work: Store | Nest  # the same without names for formulas
    outer: Var
    accesses: tuple[MemoryAccess[Buffer], ...]
    begin: Expr = expr.const(0)
    behind: int = 0
    after: tuple[int | None, ...] = ()

    @property
    def start(self) -> Expr:
        return self.begin + self.behind

    def outside(self, turn: Expr) -> Expr:
        """Return a formula that is 0 exactly in the turns in which the member has a row."""
        return expr.lt(turn, self.start) + expr.ge(turn, self.start + self.outer.extent)

    def first_offset(self, a: MemoryAccess[Buffer]) -> Expr:
        """Return the first offset of an access in turn 0, if the member were not delayed."""
        return a.first_row.low - a.row * self.begin


def skewed_fusion(plan: Plan) -> Plan:
    """Return the Plan with fused works as loops over rows; the same object if none pays."""
    rows = _Rows(plan)
    steps = mapped_steps(plan.steps, lambda s: rows.phase(s) if isinstance(s, Phase) else s)
    if not rows.changed:
        return plan
    buffers = tuple(rows.smaller.get(id(b), b) for b in plan.buffers)
    return replace(plan, steps=steps, buffers=buffers)


class _Rows:
    """Fuses the works of a Plan's phases by rows; `smaller` maps buffers to the rings that replace
    them."""

    def __init__(self, plan: Plan) -> None:
        self.names = Fresh(buffer_names(plan).values())
        self.named = plan.named
        self.changed = False
        self.smaller: dict[int, Buffer] = {}  # by id
        self.users: dict[int, set[int]] = {}  # by id of a buffer: ids of the steps that touch it
        for step in walk_steps(plan.steps):
            for b in step_buffers(step):
                self.users.setdefault(id(b), set()).add(id(step))
        for array in (*plan.inputs, *plan.outputs):
            self.users.setdefault(id(array.buffer), set()).add(0)

    def phase(self, phase: Phase) -> Phase:
        """Return a phase with consecutive works fused by rows where that pays."""
        if not self.leaves_caches(phase):
            return phase
        works: list[Work] = []
        group: list[_Member] = []

        def close() -> None:
            works.extend(self.fused(_aligned(group), phase))
            group.clear()

        members = [self.member(work) for work in phase.work]
        rows = {id(a.buffer): a.row for m in members if m
                for a in m.accesses if a.first_row.reach != 0}
        for work, member in zip(phase.work, members):
            member = member and _in_rows(member, rows)
            joined = _joined(group, member) if member is not None else None
            if joined is None:
                close()
                joined = member
            if joined is None:
                works.append(work)
            else:
                group.append(joined)
        close()
        return replace(phase, work=tuple(works)) if len(works) < len(phase.work) else phase

    def leaves_caches(self, phase: Phase) -> bool:
        """Return whether the works of a phase touch more than a cache holds, so that fusion may
        pay."""
        works = [w for w in phase.work if isinstance(w, Store | Nest)]
        touched = {id(b): b for w in works for b in work_buffers(w)}
        return len(works) > 1 and sum(
            most(b.capacity) * b.dtype.size for b in touched.values()) > TARGET.l2

    def member(self, work: Work) -> _Member | None:
        if not isinstance(work, Store | Nest):
            return None
        return _member(work, mapped(work, lambda e: e.subst(self.named)))

    def fused(self, group: Sequence[_Member], phase: Phase) -> list[Work]:
        """Return the works of a group fused into one loop, or the works themselves if that does
        not pay."""
        if len(group) < 2 or not self.pays(group):
            return [m.origin for m in group]
        begins = [_if_any(m, m.start, group[0].start) for m in group]
        ends = [_if_any(m, m.start + m.outer.extent, group[0].start) for m in group]
        start, stop = _of(expr.least, begins), _of(expr.most, ends)
        if len(start.key) + len(stop.key) > LONGEST:  # where ranks hold parts of many dims
            return [m.origin for m in group]
        self.changed = True
        turn = Sym(self.names.name("turn"), "var")
        rings = self.rings(group, phase)
        body = _body(group, expr.symbol(turn), rings)
        return [WorkLoop(turn, start, stop, expr.const(1), body, group[0].work.place)]

    def pays(self, group: Sequence[_Member]) -> bool:
        """Return whether fusion pays: rows are long and fit the near cache, the whole arrays do not
        fit the far one, and one work touches rows that another one has written, or writes rows that
        it has read."""
        rows: dict[int, int] = {}
        every: dict[int, int] = {}
        wide: list[int] = []
        for k, m in enumerate(group):
            longest = 0
            for a in m.accesses:
                size, number = a.buffer.dtype.size, id(a.buffer)
                row = most(a.first_row.reach + 1)
                last = a.first_row.reach + a.row * (m.outer.extent - 1)
                longest = max(longest, row)
                rows[number] = max(rows.get(number, 0), row * size)
                every[number] = max(every.get(number, 0), most(last + 1) * size)
            # A turn has a loop for each work, so that a row must be worth two.
            if longest >= 2 * TARGET.short_loop and most(m.outer.extent) > FEW:
                wide.append(k)
        meets = any(group[k].after[n] is not None for k in wide for n in wide if n < k)
        return meets and sum(every.values()) > TARGET.l2 and 3 * sum(rows.values()) < TARGET.reused

    # ---- memory that is needed for some rows only ------------------------------------------------

    def rings(self, group: Sequence[_Member], phase: Phase) -> dict[int, _Ring]:
        """Return, by id of a buffer, the rings for buffers of which only few rows are live at any
        time."""
        rings: dict[int, _Ring] = {}
        every = [id(b) for w in walk_works(phase.work) for b in work_buffers(w)]
        inside = [id(b) for m in group for b in work_buffers(m.work)]
        for number in dict.fromkeys(inside):
            alone = self.users.get(number) == {id(phase)}
            alone = alone and inside.count(number) == every.count(number)
            if alone and (ring := _ring(group, number)) is not None:
                rings[number] = ring
                self.smaller[number] = ring.buffer
        return rings


def _member(origin: Work, work: Store | Nest) -> _Member | None:
    """Return a work as a member that can run row by row, or None if it cannot."""
    parts = [work] if isinstance(work, Store) else work.parts
    around = work.loops
    if isinstance(work, Nest) and not long_loops(work.loops):
        if len(work.sweeps) > 1 or work.sweeps[0].folds:
            return None
        around = work.sweeps[0].loops
    if not long_loops(around) or isinstance(work, Nest) and work.unroll != 1:
        return None
    if not all(isinstance(p, LocalValue) or isinstance(p, Store) and p.is_plain and not p.sift
               for p in parts):
        return None
    touched = tuple(accesses(work))
    return _Member(origin, work, long_loops(around)[0], touched) if all(
        map(_is_by_rows, touched)) else None


def _in_rows(m: _Member, rows: Mapping[int, Expr]) -> _Member:
    """Return a work over contiguous memory as a loop over rows, where `rows` gives the row length
    that other works have for the same array; the work itself if it does not divide into such
    rows."""
    loops = _loops_of(m.work)
    row = next((rows[id(a.buffer)] for a in m.accesses if id(a.buffer) in rows), None)
    plain = len(loops) == 1 and all(a.row in (0, 1) for a in m.accesses)
    if row is None or not expr.nonneg(row - 2) or not plain:
        return m
    (along,), count = loops, expr.floordiv(loops[0].extent, row)
    if count * row != along.extent or count == 1:
        return m
    inner = Var(Sym(along.sym.name, "var", expr.const(0), row - 1), row)
    outer = Var(Sym(f"{along.sym.name}_row", "var", expr.const(0), count - 1), count)
    there = {along.sym: row * expr.symbol(outer.sym) + expr.symbol(inner.sym)}
    work = mapped(m.work, lambda e: e.subst(there))
    if isinstance(work, Store):
        work = replace(work, loops=(outer, inner))
    elif long_loops(work.loops):
        return m
    else:
        work = replace(work, sweeps=(replace(work.sweeps[0], loops=(outer, inner)),))
    return _member(m.origin, work) or m


def _is_by_rows(a: MemoryAccess[Buffer]) -> bool:
    """Return whether an access goes from row to row, and is affine without jumps within a row."""
    if a.linear is None or not all(expr.nonneg(s) or expr.nonneg(-s) for s in a.linear[1][1:]):
        return False
    step = a.linear[1][-1] if len(a.loops) > 1 else expr.const(0)
    return step.is_const and abs(step.value) <= NEAREST  # strips are better (loops/strip_mine.py)


def _joined(group: Sequence[_Member], member: _Member) -> _Member | None:
    """Return the member with its first turn and delay relative to a group, or None if it cannot
    join."""
    if not group or len(group) >= MOST_WORKS:
        return None
    begin = next(_beginnings(group, member), None)
    if begin is None:
        return None
    member, after = replace(member, begin=begin), list[int | None]()
    for other in group:
        some = [_rows_after(a, other, b, member) for a in other.accesses for b in member.accesses
                if a.buffer is b.buffer and (a.writes or b.writes)]
        if None in some:
            return None
        after.append(max((n for n in some if n is not None), default=None))
    behind = max((n + m.behind for n, m in zip(after, group) if n is not None), default=0)
    behind = max(behind, 0)
    return replace(member, behind=behind, after=tuple(after)) if behind <= FARTHEST else None


def _aligned(group: Sequence[_Member]) -> list[_Member]:
    """Return the members with equal delays for those that write the same row, where dependences
    allow."""
    group = list(group)
    for k in reversed(range(len(group) - 1)):
        m = group[k]
        written = next(a for a in m.accesses if a.writes)
        for later in group[k + 1 :]:
            same = [a for a in later.accesses if a.writes and a.buffer is written.buffer]
            if not same or later.behind <= m.behind or abs(_rows(later, same[0], m, written)) > 0:
                continue
            waits = [(q, q.after[k]) for q in group[k + 1 :]]
            if all(n is None or q.behind >= later.behind + n for q, n in waits):
                group[k] = replace(m, behind=later.behind)
                break
    return group


def _rows(member: _Member, a: MemoryAccess[Buffer], other: _Member, b: MemoryAccess[Buffer]) -> int:
    """Return about how many rows one access is ahead of another, before delays."""
    away = member.first_offset(a) - other.first_offset(b)
    known = away.is_const and a.row.is_const and a.row == b.row
    return round(away.value / a.row.value) if known else FARTHEST


def _beginnings(group: Sequence[_Member], member: _Member) -> Iterator[Expr]:
    """Yield turns at which a member may begin, so that it touches the row of an array that another
    member touches in that turn."""
    for other in reversed(group):
        for a in other.accesses:
            for b in member.accesses:
                if a.buffer is b.buffer and a.row == b.row and expr.nonneg(a.row - 1):
                    away = b.first_row.low - other.first_offset(a)
                    rows = expr.floordiv(away, a.row)
                    rest = away - rows * a.row
                    if rest.is_const:  # that row, or the next one, where that is nearer
                        yield rows + expr.nonneg(2 * rest - a.row)


def _rows_after(
    a: MemoryAccess[Buffer], member: _Member, b: MemoryAccess[Buffer], other: _Member
) -> int | None:
    """Return the least number of turns by which the second access must lag, so that it reaches
    every element after the first one; None if no delay up to FARTHEST suffices."""
    if a.row != b.row or not expr.nonneg(a.row - 1):
        return None
    last = other.first_offset(b) - member.first_offset(a) + b.first_row.reach
    return next((rows for rows in range(-FARTHEST, FARTHEST + 1)
                 if expr.nonneg((rows + 1) * a.row - 1 - last)), None)


def _of(extreme: Callable[[Expr, Expr], Expr], some: Iterable[Expr]) -> Expr:
    """Return the least or the greatest of some formulas; `extreme` combines two of them."""
    return reduce(extreme, dict.fromkeys(some))


def _if_any(m: _Member, there: Expr, otherwise: Expr) -> Expr:
    """Return a formula that is `there` where a member has rows on this rank, and `otherwise`
    elsewhere."""
    if expr.nonneg(m.outer.extent - 1):
        return there
    return expr.select(expr.gt(m.outer.extent, 0), there, otherwise)


@dataclass(frozen=True)
class _Ring:
    """A ring of `rows` rows in place of a whole buffer: row r lies at r mod rows. `first` is the
    offset at which row 0 began."""

    buffer: Buffer
    row: Expr
    first: Expr
    rows: int

    def place(self, m: _Member, a: MemoryAccess[Buffer]) -> tuple[int, Expr]:
        """Return how many rows an access is ahead of its turn, and its offset within the row."""
        away = m.first_offset(a) - a.row * m.behind - self.first
        ahead = expr.floordiv(away, self.row)
        return ahead.value if ahead.is_const else FARTHEST + 1, away - ahead * self.row


def _ring(group: Sequence[_Member], number: int) -> _Ring | None:
    """Return the ring that holds the live rows of a buffer. None if their number is not known, or
    if a row may be read that was not written in the same turn of the surrounding loops."""
    touching = [(m, a) for m in group for a in m.accesses if id(a.buffer) == number]
    m, a = touching[0]
    if not a.writes or any(x.row != a.row for _, x in touching):
        return None
    if not all(s.lays_out for s in a.row.symbols()):
        return None  # a capacity is said in these alone
    ring = _Ring(a.buffer, a.row, m.first_offset(a) - a.row * m.behind, 0)
    ahead: list[int] = []
    written: list[tuple[Expr, Expr]] = []  # in a row, from where to where
    for m, x in touching:
        rows, rest = ring.place(m, x)
        moves = {s.kind for e in (x.first_row.low, m.begin, m.outer.extent) for s in e.symbols()}
        end = rest + x.first_row.reach
        if abs(rows) > FARTHEST or "counter" in moves or not expr.nonneg(a.row - 1 - end):
            return None
        if x.writes:
            written.append((rest, end))
        elif not any(expr.nonneg(rest - b) and expr.nonneg(e - end) for b, e in written):
            return None
        ahead.append(rows)
    rows = max(ahead) - min(ahead) + 1
    small = replace(a.buffer, capacity=a.row * rows)
    return replace(ring, buffer=small, rows=rows)


def _body(group: Sequence[_Member], turn: Expr, rings: dict[int, _Ring]) -> tuple[Work, ...]:
    """Return the works of one turn. In most turns all frequent members have a row and run as few
    fused loops; other turns test for each member whether it has one."""
    rows = [_row(m, turn, rings) for m in group]
    if len({(m.start, m.outer.extent) for m in group}) == 1:
        return side_by_side(rows)
    guarded: list[Work] = []
    for m, row in zip(group, rows, strict=True):
        outside, last = m.outside(turn), guarded[-1] if guarded else None
        if isinstance(last, WorkBranch) and last.on == outside:
            guarded[-1] = replace(last, arms=((*last.arms[0], row), ()))
        else:
            guarded.append(WorkBranch(outside, ((row,), ()), m.work.place))
    often = [most(m.outer.extent) > FEW for m in group]
    usually = tuple(row for row, is_often in zip(rows, often, strict=True) if is_often)
    joined = side_by_side(usually)
    if len(joined) == len(usually) and all(map(is_, joined, usually)):
        return tuple(guarded)
    usual = [m for m, is_often in zip(group, often, strict=True) if is_often]
    begin = _of(expr.most, [m.start for m in usual])
    end = _of(expr.least, [m.start + m.outer.extent for m in usual])
    others = expr.lt(turn, begin) + expr.ge(turn, end)
    for m, is_often in zip(group, often, strict=True):
        others += 0 if is_often else expr.eq(m.outside(turn), 0)
    return (WorkBranch(others, (joined, tuple(guarded)), group[0].work.place),)


def _row(m: _Member, turn: Expr, rings: dict[int, _Ring]) -> Work:
    """Return the work of a member for one turn: its loops but the outermost."""
    work = _in_rings(m, turn, rings) if rings else m.work
    here = {m.outer.sym: turn - m.start}
    work = mapped(work, lambda e: e.subst(here))
    if isinstance(work, Store) or long_loops(work.loops):
        return replace(work, loops=_rest(work.loops, m.outer))
    (sweep,) = work.sweeps
    return replace(work, sweeps=(replace(sweep, loops=_rest(sweep.loops, m.outer)),))


def _rest(loops: Sequence[Var], outer: Var) -> tuple[Var, ...]:
    return tuple(v for v in long_loops(loops) if v.sym is not outer.sym)


def _in_rings(m: _Member, turn: Expr, rings: dict[int, _Ring]) -> Store | Nest:
    """Return a member's work with accesses to whole buffers redirected into rings."""
    loops = [v for v in _loops_of(m.work) if v.sym is not m.outer.sym]

    def moved(x: Load) -> Load:
        ring = rings[id(x.buffer)]
        access = MemoryAccess(x.buffer, x.offset, (m.outer, *loops))
        ahead, rest = ring.place(m, access)
        inner = x.offset - access.first_row.low - access.row * expr.symbol(m.outer.sym)
        slot = expr.mod(turn + ahead, expr.const(ring.rows))
        return replace(x, buffer=ring.buffer, offset=ring.row * slot + rest + inner)

    def change(x: Node) -> Node | None:
        return moved(x) if isinstance(x, Load) and id(x.buffer) in rings else None

    def store(s: Store) -> Store:
        to = moved(Load(s.buffer, s.offset)) if id(s.buffer) in rings else s
        return replace(s, buffer=to.buffer, offset=to.offset, value=rewritten(s.value, change))

    if isinstance(m.work, Store):
        return store(m.work)
    return replace(m.work, sweeps=tuple(replace(s, parts=tuple(
        store(p) if isinstance(p, Store) else replace(p, value=rewritten(p.value, change))
        for p in s.parts)) for s in m.work.sweeps))


def _loops_of(work: Store | Nest) -> list[Var]:
    if isinstance(work, Store):
        return list(long_loops(work.loops))
    every = [*work.loops, *(v for s in work.sweeps for v in s.loops)]
    return list(dict.fromkeys(long_loops(every)))
