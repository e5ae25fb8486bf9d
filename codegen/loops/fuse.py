"""Loop fusion: ops over the same points, or in the same rows, become one nest.

Goes in: Loops. Comes out: Loops in which a Do may be a Nest; a value that only its own nest reads,
where it makes it, needs no memory any more: it is kept in a C local.
Always holds: a member reads what another one of its nest makes at that very point only, and comes
after it; so it is with what an update writes over. Ops that are no members stay in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from codegen.ir.accesses import MemoryAccess, accesses
from codegen.ir.fresh import Fresh
from codegen.ir.graph import Op, Region, Value, free_values
from codegen.ir.indexing import count_calls, in_order, long_loops, rewritten
from codegen.ir.loops import Do, Loops
from codegen.ir.plan import (
    Literal,
    Load,
    LocalRead,
    LocalValue,
    Nest,
    Node,
    Reduce,
    Store,
    Sweep,
    Var,
)
from codegen.ops import Kind, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.target import TARGET

LARGEST = 200  # functions in one nest: compilers take more than linear time for a loop
NEAREST = 6  # nests that a loop may join: programs are long where Python's loops unroll them

_Part = LocalValue[Value] | Store[Value] | Reduce[Value]


@dataclass(frozen=True)
class _Member:
    """An op that may share loops with others; `loops` are those of more than one turn, and `kept`
    of them count the elements of its result.

    how: "point" (a result at each point), "fold" (one result for all points inside `kept`) or
    "rows" (a reduction whose results are a row in memory).
    """

    op: Op
    work: Store[Value] | Reduce[Value]
    how: str
    loops: tuple[Var, ...]
    kept: tuple[Var, ...]
    base: Value | None  # the array that an update writes over
    reads: Mapping[Value, Sequence[MemoryAccess[Value]]]
    size: int
    is_only_reader: bool  # of the array that it updates

    @property
    def result(self) -> Value:
        return self.op.result

    @property
    def offset(self) -> Expr:
        return self.work.offset

    @property
    def unroll(self) -> int:
        return self.work.unroll if isinstance(self.work, Reduce) else 1

    def moving_reads(self, value: Value) -> list[MemoryAccess[Value]]:
        """Return the reads of a value, but for an element that is the same in all iterations: the
        loop keeps that in a register."""
        return [a for a in self.reads[value] if not self.loops or a.varies(self.loops)]

    def reads_at_point(self, value: Value, offset: Expr) -> bool:
        """Return whether all of its reads of a value are of the element at this offset."""
        return all(a.is_at(offset) for a in self.reads.get(value, ()))

    @property
    def needs(self) -> list[Value]:
        """Return the values that it reads, and the array that it updates."""
        return [*self.reads, *([self.base] if self.base is not None else [])]


@dataclass
class _Nest:
    """The members of a nest, by sweep. Members of one sweep share all loops; all members share
    `outer`, if that is known."""

    sweeps: list[list[_Member]]
    outer: tuple[Var, ...] | None
    makers: dict[Value, tuple[int, _Member]] = field(default_factory=dict)

    @property
    def members(self) -> list[_Member]:
        return [m for sweep in self.sweeps for m in sweep]

    def add(self, member: _Member, sweep: int) -> None:
        if sweep == len(self.sweeps):
            self.sweeps.append([])
        self.sweeps[sweep].append(member)
        self.makers[member.result] = sweep, member
        if member.how == "fold":
            self.outer = member.kept

    def sweep_for(self, member: _Member) -> int | None:
        """Return the number of the sweep that a member may join, perhaps that of a new last one;
        None if it cannot be fused into this nest."""
        members = [*self.members, member]
        most, outer = max(m.unroll for m in members), self.outer
        outer = member.kept if member.how == "fold" else outer
        if sum(m.size for m in members) * most > LARGEST or not self.shares(member):
            return None
        if outer is not None and any(m.unroll > 1 and m.loops[:-1] != outer for m in members):
            return None
        if outer and most > 1 and any(m.how == "rows" and outer[-1] in m.kept for m in members):
            return None  # turns that are taken together write one row of results, not several
        if len({v for m in members for v in m.reads} - self.makers.keys()) > TARGET.streams:
            return None
        if member.how == "fold" and self.outer not in (None, member.kept):
            return None
        least = self.written_after(member)
        if least is None:
            return None
        for value in self.makers.keys() & member.reads.keys():
            sweep, maker = self.makers[value]
            if maker.how == "rows" or not member.reads_at_point(value, maker.offset):
                return None
            same_sweep = maker.how == "point" and maker.loops == member.loops
            least = max(least, sweep if same_sweep else sweep + 1)
        for k in range(least, len(self.sweeps)):
            if self.sweeps[k][0].loops == member.loops:
                return k
        below = bool(self.outer) and member.loops[: len(self.outer or ())] == self.outer
        return len(self.sweeps) if least and below else None

    def written_after(self, member: _Member) -> int | None:
        """Return the first sweep after which an update may write, as all reads of its array are
        done; None if some read goes to another element, or the member itself reads an old
        version."""
        least, base = 0, member.base
        for k, sweep in enumerate(self.sweeps):
            for other in sweep:
                if other.base is not None and other.base in member.reads:
                    return None
                if base is not None and base in other.reads:
                    if not other.reads_at_point(base, member.offset):
                        return None
                    least = k
        while base is not None and base in self.makers:  # a part of an array that others write too
            k, part = self.makers[base]
            if part.base is None or not member.is_only_reader:
                return None
            if part.offset != member.offset and not _are_disjoint(_of(part.op), _of(member.op)):
                return None
            least, base = max(least, k), part.base
        return least

    def shares(self, member: _Member) -> bool:
        """Return whether a member reads what the nest reads or makes (so fusion saves memory
        traffic), and no member loses the chance to reuse an operand's memory."""
        common = not self.makers.keys().isdisjoint(member.reads)
        for value in member.reads.keys() - self.makers.keys():
            for other in self.members:
                if value in other.reads:
                    common |= any(a.is_same_element(b) for a in member.moving_reads(value)
                                  for b in other.reads[value])
                    if _hinders(member, other, value) or _hinders(other, member, value):
                        return False
        return common


def _hinders(a: _Member, b: _Member, value: Value) -> bool:
    """Return whether `a`, were it not fused, could reuse the memory of a value that `b` reads at
    other points."""
    if a.base is not None:
        return False
    fits = a.how == "point" and (a.result.type.dtype, a.result.type.shape) == (
        value.type.dtype, value.type.shape)
    return fits and a.reads_at_point(value, a.offset) and not b.reads_at_point(value, a.offset)


def _are_disjoint(a: Op | None, b: Op | None) -> bool:
    """Return whether two updates of an array provably write no element in common."""
    assert a is not None and b is not None
    assert isinstance(a.kind, Update) and isinstance(b.kind, Update)
    for d, (p, q) in enumerate(zip(a.kind.start, b.kind.start, strict=True)):
        s, t = a.kind.step[d], b.kind.step[d]
        p_end, q_end = (
            start + step * (op.operands[1].type.shape[d] - 1)
            for op, start, step in ((a, p, s), (b, q, t))
        )
        p, p_end = (p, p_end) if s > 0 else (p_end, p)
        q, q_end = (q, q_end) if t > 0 else (q_end, q)
        if expr.nonneg(q - p_end - 1) or expr.nonneg(p - q_end - 1):
            return True
        if abs(s) == abs(t) and (p - q).is_const and (p - q).value % s:
            return True
    return False


def fuse(loops: Loops) -> Loops:
    """Return the Loops with fusible ops joined into nests."""
    return loops.with_module(loops.module.mapped(_Fusing(loops).region))


def _of(op: Op) -> Op | None:
    """Return the op of the Program from which a Do was made, or None."""
    return op.kind.of if isinstance(op.kind, Do) else None


def _kind(op: Op) -> Kind:
    of = _of(op)
    return of.kind if of is not None else op.kind


class _Fusing:
    """Fuses greedily, in order: each op joins the first nest that accepts it, else it begins
    one."""

    def __init__(self, loops: Loops) -> None:
        self.constants = loops.constants
        self.names = Fresh()  # of locals, unique in the Plan
        self.users: dict[Value, set[Op | None]] = {}
        for value, uses in loops.module.def_use.uses.items():
            self.users[value] = {u.op for u in uses}

    # ---- regions ---------------------------------------------------------------------------------

    def region(self, region: Region) -> Region:
        """Return a region with its fusible ops joined into nests. Elementwise ops do not move up
        past an op that is no member; reductions move up past all but fences."""
        items: list[Op | _Nest] = []
        makers: dict[Value, int] = {}  # by which item
        read: dict[Value, int] = {}  # by which item last
        fence = segment = 0  # reductions move up to `fence`, other members to `segment`
        for op in region.ops:
            if _fills(op):
                continue
            member = self.member(op)
            k = None
            if member is not None:
                least = segment if member.how == "point" else fence
                if member.base is not None:
                    least = max(least, read.get(member.base, 0))
                first = max((makers[v] for v in member.needs if v in makers), default=0)
                k = self.join(items, member, max(first, least))
                if k is None and member.base is None:
                    k = self.join_later(items, member, max(least, segment), makers, read)
            if k is None:
                k = len(items)
                item: Op | _Nest = op
                if member is not None:
                    item = _Nest([], None)
                    item.add(member, 0)
                items.append(item)
            if member is None:
                segment = len(items)
                fence = segment if _kind(op).fence else fence
            else:
                read.update((v, max(k, read.get(v, 0))) for v in member.needs)
                if member.base is not None:  # what moved before it might keep it from writing there
                    segment = max(segment, k)
            makers.update(dict.fromkeys(op.results, k))
        ops = [self.finished(item) if isinstance(item, _Nest) else item.mapped(self.region)
               for item in items]
        return Region(region.args, tuple(_filled(region, ops)), region.results)

    def member(self, op: Op) -> _Member | None:
        """Return an op as a candidate for fusion with its loops and reads, or None if it cannot be
        fused."""
        if not isinstance(op.kind, Do) or not _kind(op).fuses or len(op.kind.acts) != 1:
            return None
        (work,) = op.kind.acts
        if not isinstance(work, Store | Reduce):
            return None
        base = op.kind.begins[0][0] if op.kind.begins else None
        inner = work.inner if isinstance(work, Reduce) else ()
        loops = long_loops(in_order((*work.loops, *inner)))
        kept = long_loops(work.loops)
        how = "point"
        if isinstance(work, Reduce):
            if kept == loops[: len(kept)]:
                how = "fold"
            elif loops[-1] in kept and work.dtype.size != 2:
                how = "rows"
            else:
                return None
        reads: dict[Value, list[MemoryAccess[Value]]] = {}
        for a in accesses(work):
            if not a.writes and a.buffer not in self.constants:
                reads.setdefault(a.buffer, []).append(a)
        is_only = base is not None and self.users[base] == {op}
        member = _Member(op, work, how, loops, kept, base, reads, count_calls(work.value),
                         is_only)
        if base is not None and not (loops and member.reads_at_point(base, work.offset)):
            return None  # its rows wait for each other
        return member

    def join(self, items: list[Op | _Nest], member: _Member, first: int) -> int | None:
        """Add a member to the first nest that accepts it, from item `first` on. Return that item's
        number, or None if no nest accepts it."""
        for k in range(max(first, len(items) - NEAREST), len(items)):
            nest = items[k]
            if isinstance(nest, _Nest) and (sweep := nest.sweep_for(member)) is not None:
                nest.add(member, sweep)
                return k
        return None

    def join_later(
        self, items: list[Op | _Nest], member: _Member, least: int, makers: dict[Value, int],
        read: dict[Value, int],
    ) -> int | None:
        """Move the last item before an earlier nest and add a member to that nest behind it, if the
        last item makes what the member needs. This serves reverse-mode derivatives, whose
        cotangents follow what a turn recomputes. Return the nest's new number, or None."""
        last = len(items) - 1
        late = items[last] if items else None
        if not isinstance(late, _Nest) or any(m.base is not None for m in late.members):
            return None
        needs = {v for m in late.members for v in m.needs}
        first = max((makers[v] for v in needs - late.makers.keys() if v in makers), default=-1) + 1
        others = max((makers[v] for v in member.needs if v in makers and v not in late.makers),
                     default=0)
        for k in range(max(first, others, least, last + 1 - NEAREST), last):
            nest = items[k]
            if isinstance(nest, _Nest) and (sweep := nest.sweep_for(member)) is not None:
                items.insert(k, items.pop())
                for items_of in (makers, read):
                    items_of.update((v, i + 1) for v, i in items_of.items() if k <= i < last)
                makers.update(dict.fromkeys(late.makers, k))
                nest.add(member, sweep)
                return k + 1
        return None

    # ---- nests -----------------------------------------------------------------------------------

    def finished(self, nest: _Nest) -> Op:
        """Return a nest as one op with its parts in order; results that others need are stored in
        memory."""
        members = nest.members
        if len(members) == 1:
            return members[0].op
        unroll = max(m.unroll for m in members)
        outer = nest.outer or (members[0].loops[:-1] if unroll > 1 else ())
        results = self.results(nest, outer)
        locals_: dict[Value, LocalRead] = {}
        sweeps: list[Sweep[Value]] = []
        for sweep in nest.sweeps:
            parts: list[_Part] = []
            after: list[Store[Value]] = []  # what is folded, once it is
            for m in sweep:
                self.part(m, m.result in results, locals_, parts, after)
            loops = sweep[-1].loops[len(outer) :]
            sweeps.append(Sweep(loops, tuple(parts)))
            if after:
                sweeps.append(Sweep((), tuple(after)))
            for m in sweep:  # later sweeps come to other points
                if m.how == "point" and loops:
                    locals_.pop(m.result, None)
        first = members[0].op
        read = dict.fromkeys(v for m in members for v in m.needs if v not in nest.makers)
        begins = tuple((m.base, m.result) for m in members if m.base is not None)
        do = Do((Nest(outer, tuple(sweeps), first.place, unroll),), begins)
        return Op(do, tuple(read), tuple(results), (), first.place)

    def results(self, nest: _Nest, outer: tuple[Var, ...]) -> dict[Value, None]:
        """Return the results of a nest that need memory, since other ops read them, or its own at
        other points."""
        inside: dict[Op | None, int] = {m.op: k for k, s in enumerate(nest.sweeps) for m in s}

        def is_local(m: _Member) -> bool:
            everywhere = m.how == "fold" or m.loops == outer
            return m.how != "rows" and m.base is None and all(
                u in inside and (everywhere or inside[u] == inside[m.op])
                for u in self.users.get(m.result, {None})
            )

        return dict.fromkeys(m.result for m in nest.members if not is_local(m))

    def part(
        self, m: _Member, stored: bool, locals_: dict[Value, LocalRead], parts: list[_Part],
        after: list[Store[Value]],
    ) -> None:
        """Append the parts that compute a member and store its result. A folded result is stored by
        a part in `after`; `locals_` maps values to the locals that hold them."""

        def from_local(node: Node[Value]) -> LocalRead | None:
            return locals_.get(node.buffer) if isinstance(node, Load) else None

        work, v = m.work, m.result
        value = rewritten(work.value, from_local)
        if m.how == "rows":
            assert isinstance(work, Reduce)
            inner = tuple(loop for loop in m.loops if loop not in m.kept)
            parts.append(replace(work, loops=m.kept, inner=inner, rows=True, value=value))
            return
        if m.base is not None:  # most of its elements nobody reads here
            parts.append(replace(work, loops=m.loops, value=value))
            return
        fn, total = (work.fn, work.total) if isinstance(work, Reduce) else ("", None)
        same = next((p for p in parts if isinstance(p, LocalValue) and p.value == value
                     and (p.fn, p.dtype, p.total) == (fn, v.type.dtype, total)), None)
        local = same or LocalValue(
            self.names.name(v.name), v.type.dtype, value, fn, m.op.place, total)
        parts += [] if same else [local]
        locals_[v] = local.read
        if stored:
            stores = after if fn else parts
            stores.append(Store(m.kept, v, m.offset, local.read, place=m.op.place))


def _fills(op: Op) -> bool:
    """Return whether an op fills an array with one number, or makes a blank one."""
    return isinstance(op.kind, Do) and not op.operands and all(
        isinstance(act, Store) and isinstance(act.value, Literal) for act in op.kind.acts
    )


def _filled(region: Region, ops: list[Op]) -> Iterator[Op]:
    """Yield the ops, each behind the fills of the arrays that it reads or writes: fusion has moved
    ops up, so that fills must move up too."""
    here = {op.result: op for op in region.ops if _fills(op)}
    for op in ops:
        for x in (*op.operands, *(v for inner in op.regions for v in free_values(inner))):
            if x in here:
                yield here.pop(x)
        yield op
    yield from here.values()
