"""Skewed loop fusion over rows: works on the same arrays run row by row together, for cache reuse.

Goes in: a Plan. Comes out: the Plan in whose phases such works are Turns over rows: a row that one
work leaves in the cache, the next one finds there. Each work may lag some rows behind earlier ones.
Always holds: dependences are kept: of two works that touch one element, one of them to write it,
the first one still comes first. Arrays that only such works touch shrink to a ring of few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import is_

from codegen.ir.exprs import mapped
from codegen.ir.fresh import Fresh
from codegen.ir.indexing import affine, loads, rewritten
from codegen.ir.names import buffer_names
from codegen.ir.plan import (
    Buffer,
    Choice,
    Keep,
    Load,
    Nest,
    Node,
    Phase,
    Plan,
    Reduce,
    Store,
    Turns,
    Var,
    Work,
)
from codegen.ir.steps import (
    mapped_steps,
    nodes,
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
class _Access:
    """An access to buffer[row * turn + first] and up to `reach` elements after it."""

    buffer: Buffer
    row: Expr
    first: Expr
    reach: Expr
    writes: bool


@dataclass(frozen=True)
class _Member:
    """A work as rows of its outermost loop. `begin` is the turn of its first row, before it is
    delayed by `behind` turns. `after` gives, for each earlier member, the least delay behind it, or
    None."""

    origin: Work
    work: Store | Nest  # the same without names for formulas
    outer: Var
    accesses: tuple[_Access, ...]
    begin: Expr = expr.const(0)
    behind: int = 0
    after: tuple[int | None, ...] = ()

    @property
    def start(self) -> Expr:
        return self.begin + self.behind

    def outside(self, turn: Expr) -> Expr:
        """Return a formula that is 0 exactly in the turns in which the member has a row."""
        return expr.lt(turn, self.start) + expr.ge(turn, self.start + self.outer.extent)

    def at(self, a: _Access) -> Expr:
        """Return the offset of an access in turn 0, if the member were not delayed."""
        return a.first - a.row * self.begin


def skewed_fusion(plan: Plan) -> Plan:
    """Return the Plan with fused works as Turns over rows; the same object if none pays."""
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
            works.extend(self.together(_aligned(group), phase))
            group.clear()

        members = [self.member(work) for work in phase.work]
        rows = {id(a.buffer): a.row for m in members if m for a in m.accesses if a.reach != 0}
        for work, found in zip(phase.work, members):
            found = found and _in_rows(found, rows)
            joined = _joined(group, found) if found is not None else None
            if joined is None:
                close()
                joined = found
            if joined is None:
                works.append(work)
            else:
                group.append(joined)
        close()
        return replace(phase, work=tuple(works)) if len(works) < len(phase.work) else phase

    def leaves_caches(self, phase: Phase) -> bool:
        """Return whether what the works of a phase touch is more than a cache holds, so that it may
        pay to do them together."""
        works = [w for w in phase.work if isinstance(w, Store | Nest)]
        touched = {id(b): b for w in works for b in work_buffers(w)}
        return len(works) > 1 and sum(
            most(b.capacity) * b.dtype.size for b in touched.values()) > TARGET.l2

    def member(self, work: Work) -> _Member | None:
        if not isinstance(work, Store | Nest):
            return None
        return _member(work, mapped(work, lambda e: e.subst(self.named)))

    def together(self, group: Sequence[_Member], phase: Phase) -> list[Work]:
        """Return the works of a group fused into one Turns, or the works themselves if that does
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
        return [Turns(turn, start, stop, expr.const(1), body, group[0].work.place)]

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
                row, last = most(a.reach + 1), a.reach + a.row * (m.outer.extent - 1)
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
        found: dict[int, _Ring] = {}
        every = [id(b) for w in walk_works(phase.work) for b in work_buffers(w)]
        inside = [id(b) for m in group for b in work_buffers(m.work)]
        for number in dict.fromkeys(inside):
            alone = self.users.get(number) == {id(phase)}
            alone = alone and inside.count(number) == every.count(number)
            if alone and (ring := _ring(group, number)) is not None:
                found[number] = ring
                self.smaller[number] = ring.buffer
        return found


def _member(origin: Work, work: Store | Nest) -> _Member | None:
    """Return a work as a member that can run row by row, or None if it cannot."""
    sweeps: list[tuple[tuple[Var, ...], Sequence[Keep | Store | Reduce]]]
    if isinstance(work, Store):
        around, sweeps = work.loops, [((), (work,))]
    elif work.together == 1:
        around = work.loops if _long(work.loops) else work.sweeps[0].loops
        if not _long(work.loops) and len(work.sweeps) > 1:
            return None
        sweeps = [(s.loops if around is work.loops else (), s.parts) for s in work.sweeps]
        if around is not work.loops and work.sweeps[0].folds:
            return None
    else:
        return None
    if not _long(around):
        return None
    outer, *inner = _long(around)
    accesses: list[_Access] = []
    for loops, parts in sweeps:
        for part in parts:
            if not isinstance(part, Keep | Store) or isinstance(part, Store) and (
                part.bounds or part.rows or part.sift or part.combine != "set"
            ):
                return None
            each = [outer, *inner, *(_long(loops) if isinstance(work, Nest) else ())]
            at = [(x, False) for node in nodes(part) for x in loads(node)]
            if isinstance(part, Store):
                at.append((Load(part.buffer, part.offset), True))
            for load, writes in at:
                if (access := _access(load, each, writes)) is None:
                    return None
                accesses.append(access)
    return _Member(origin, work, outer, tuple(accesses))


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
    elif _long(work.loops):
        return m
    else:
        work = replace(work, sweeps=(replace(work.sweeps[0], loops=(outer, inner)),))
    return _member(m.origin, work) or m


def _access(load: Load, loops: Sequence[Var], writes: bool) -> _Access | None:
    """Return an access by rows, or None if it is not affine or jumps too far within a row."""
    found = affine(load.offset, loops)
    if load.bounds or found is None:
        return None
    first, (row, *strides) = found
    along = strides[-1] if strides else expr.const(0)
    if not along.is_const or abs(along.value) > NEAREST:  # strips are better (loops/strip_mine.py)
        return None
    reach = expr.const(0)
    for v, stride in zip(loops[1:], strides, strict=True):
        if not expr.nonneg(stride):
            first, stride = first + stride * (v.extent - 1), -stride
        if not expr.nonneg(stride):
            return None
        reach += stride * (v.extent - 1)
    return _Access(load.buffer, row, first, reach, writes)


def _long(loops: Iterable[Var]) -> tuple[Var, ...]:
    return tuple(v for v in loops if v.extent != 1)


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


def _rows(one: _Member, a: _Access, other: _Member, b: _Access) -> int:
    """Return about how many rows one access is ahead of another, before delays."""
    away = one.at(a) - other.at(b)
    known = away.is_const and a.row.is_const and a.row == b.row
    return round(away.value / a.row.value) if known else FARTHEST


def _beginnings(group: Sequence[_Member], member: _Member) -> Iterator[Expr]:
    """Yield turns at which a member may begin, so that it touches the row of an array that another
    member touches in that turn."""
    for other in reversed(group):
        for a in other.accesses:
            for b in member.accesses:
                if a.buffer is b.buffer and a.row == b.row and expr.nonneg(a.row - 1):
                    away = b.first - other.at(a)
                    rows = expr.floordiv(away, a.row)
                    rest = away - rows * a.row
                    if rest.is_const:  # that row, or the next one, where that is nearer
                        yield rows + expr.nonneg(2 * rest - a.row)


def _rows_after(a: _Access, one: _Member, b: _Access, other: _Member) -> int | None:
    """Return the least number of turns by which the second access must lag, so that it reaches
    every element after the first one; None if no delay up to FARTHEST suffices."""
    if a.row != b.row or not expr.nonneg(a.row - 1):
        return None
    last = other.at(b) - one.at(a) + b.reach
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

    def place(self, m: _Member, a: _Access) -> tuple[int, Expr]:
        """Return how many rows an access is ahead of its turn, and its offset within the row."""
        away = m.at(a) - a.row * m.behind - self.first
        ahead = expr.floordiv(away, self.row)
        return ahead.value if ahead.is_const else FARTHEST + 1, away - ahead * self.row


def _ring(group: Sequence[_Member], number: int) -> _Ring | None:
    """Return the ring that holds the live rows of a buffer. None if their number is not known, or
    if a row may be read that was not written in the same turn of the surrounding loops."""
    found = [(m, a) for m in group for a in m.accesses if id(a.buffer) == number]
    m, a = found[0]
    if not a.writes or any(x.row != a.row for _, x in found):
        return None
    if not all(s.lays_out for s in a.row.symbols()):
        return None  # a capacity is said in these alone
    ring = _Ring(a.buffer, a.row, m.at(a) - a.row * m.behind, 0)
    ahead: list[int] = []
    written: list[tuple[Expr, Expr]] = []  # in a row, from where to where
    for m, x in found:
        rows, rest = ring.place(m, x)
        moves = {s.kind for e in (x.first, m.begin, m.outer.extent) for s in e.symbols()}
        end = rest + x.reach
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
    apart: list[Work] = []
    for m, row in zip(group, rows, strict=True):
        outside, last = m.outside(turn), apart[-1] if apart else None
        if isinstance(last, Choice) and last.on == outside:
            apart[-1] = replace(last, arms=((*last.arms[0], row), ()))
        else:
            apart.append(Choice(outside, ((row,), ()), m.work.place))
    often = [most(m.outer.extent) > FEW for m in group]
    usually = tuple(row for row, is_often in zip(rows, often, strict=True) if is_often)
    joined = side_by_side(usually)
    if len(joined) == len(usually) and all(map(is_, joined, usually)):
        return tuple(apart)
    usual = [m for m, is_often in zip(group, often, strict=True) if is_often]
    begin = _of(expr.most, [m.start for m in usual])
    end = _of(expr.least, [m.start + m.outer.extent for m in usual])
    others = expr.lt(turn, begin) + expr.ge(turn, end)
    for m, is_often in zip(group, often, strict=True):
        others += 0 if is_often else expr.eq(m.outside(turn), 0)
    return (Choice(others, (joined, tuple(apart)), group[0].work.place),)


def _row(m: _Member, turn: Expr, rings: dict[int, _Ring]) -> Work:
    """Return the work of a member for one turn: its loops but the outermost."""
    work = _in_rings(m, turn, rings) if rings else m.work
    here = {m.outer.sym: turn - m.start}
    work = mapped(work, lambda e: e.subst(here))
    if isinstance(work, Store) or _long(work.loops):
        return replace(work, loops=_rest(work.loops, m.outer))
    (sweep,) = work.sweeps
    return replace(work, sweeps=(replace(sweep, loops=_rest(sweep.loops, m.outer)),))


def _rest(loops: Sequence[Var], outer: Var) -> tuple[Var, ...]:
    return tuple(v for v in _long(loops) if v.sym is not outer.sym)


def _in_rings(m: _Member, turn: Expr, rings: dict[int, _Ring]) -> Store | Nest:
    """Return a member's work with accesses to whole buffers redirected into rings."""
    loops = [v for v in _loops_of(m.work) if v.sym is not m.outer.sym]

    def moved(x: Load) -> Load:
        ring = rings[id(x.buffer)]
        access = _access(x, [m.outer, *loops], False)
        assert access is not None
        ahead, rest = ring.place(m, access)
        inner = x.offset - access.first - access.row * expr.symbol(m.outer.sym)
        at = expr.mod(turn + ahead, expr.const(ring.rows))
        return replace(x, buffer=ring.buffer, offset=ring.row * at + rest + inner)

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
        return list(_long(work.loops))
    every = [*work.loops, *(v for s in work.sweeps for v in s.loops)]
    return list(dict.fromkeys(_long(every)))
