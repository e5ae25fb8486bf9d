"""Which loops are one: what is computed over the same points, or in the same rows, is one nest.

Goes in: a Program and its stored values. Comes out: the Program with `nest` ops, and the values
that still need memory: what only its own nest reads, where it makes it, is kept in a C local.
Always holds: a member reads what another one of its nest makes at that very point only, and comes
after it; so it is with what an update writes over. Ops that are no members stay in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from codegen.ir import Module, Op, Region, Value, free_values
from codegen.ops import (
    Barrier,
    Branch,
    Expect,
    Full,
    Let,
    Loop,
    Map,
    Nest,
    Print,
    Reduce,
    Update,
)
from codegen.plan.access import Points, Resolver
from codegen.plan.grammar import Apply, Bound, Node, Var
from codegen.plan.indexing import loads
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr

LARGEST = 200  # functions in one nest: compilers take more than linear time for a loop
WIDEST = 16  # arrays that a nest reads: caches keep few streams apart
NEAREST = 6  # nests that a loop may join: programs are long where Python's loops unroll them
# Ops that those who come later may not be computed before: a reduction may, its result is small.
_FENCES = (Loop, Branch, Let, Print, Expect, Barrier)


@dataclass(frozen=True)
class _Member:
    op: Op
    at: Points
    reads: Mapping[Any, tuple[tuple[Expr, tuple[Bound, ...]], ...]]  # by value: where
    size: int
    sole: bool  # nobody else reads the array that it updates

    @property
    def base(self) -> Value | None:
        """The array that an update writes over."""
        return self.op.operands[0] if isinstance(self.op.what, Update) else None

    @property
    def needs(self) -> set[Any]:
        return set(self.reads) | ({self.base} - {None})


@dataclass
class _Nest:
    """Members by sweeps: those of one share all loops, all share the loops `outer` (if known)."""

    sweeps: list[list[_Member]]
    outer: tuple[Var, ...] | None
    made: dict[Value, tuple[int, _Member]] = field(default_factory=dict)

    @property
    def members(self) -> list[_Member]:
        return [m for sweep in self.sweeps for m in sweep]

    def add(self, member: _Member, sweep: int) -> None:
        if sweep == len(self.sweeps):
            self.sweeps.append([])
        self.sweeps[sweep].append(member)
        self.made[member.op.result] = sweep, member
        if member.at.how == "fold":
            self.outer = member.at.kept

    def sweep_for(self, member: _Member) -> int | None:
        """The sweep that a member may join, perhaps a new one; None: it is no part of this nest."""
        at = member.at
        members = [*self.members, member]
        if sum(m.size for m in members) > LARGEST or not self.shares(member):
            return None
        if len({v for m in members for v in m.reads} - self.made.keys()) > WIDEST:
            return None
        if at.how == "fold" and self.outer not in (None, at.kept):
            return None
        least = self.written_after(member)
        if least is None:
            return None
        for value, where in member.reads.items():
            if value not in self.made:
                continue
            sweep, maker = self.made[value]
            if maker.at.how == "rows" or any(o != maker.at.offset or b for o, b in where):
                return None
            together = maker.at.how == "point" and maker.at.loops == at.loops
            least = max(least, sweep if together else sweep + 1)
        for k in range(least, len(self.sweeps)):
            if self.sweeps[k][0].at.loops == at.loops:
                return k
        below = bool(self.outer) and at.loops[: len(self.outer or ())] == self.outer
        return len(self.sweeps) if least and below else None

    def written_after(self, member: _Member) -> int | None:
        """The first sweep where all of its array that others read has been read; None: some is read
        at other points, or is not as the member wants to read it any more."""
        least, base = 0, member.base
        for k, sweep in enumerate(self.sweeps):
            for other in sweep:
                if other.base is not None and other.base in member.reads:
                    return None
                if base in other.reads:
                    if set(other.reads[base]) != {(member.at.offset, ())}:
                        return None
                    least = k
        while base is not None and base in self.made:  # a part of an array that others write too
            k, part = self.made[base]
            if part.base is None or not member.sole:
                return None
            if part.at.offset != member.at.offset and not _apart(part.op, member.op):
                return None
            least, base = max(least, k), part.base
        return least

    def shares(self, member: _Member) -> bool:
        """Whether it reads what others read or make, and nobody loses memory to work in place."""
        common = not self.made.keys().isdisjoint(member.reads)
        for value in member.reads.keys() - self.made.keys():
            for other in self.members:
                if value in other.reads:
                    common |= not set(other.reads[value]).isdisjoint(member.reads[value])
                    if _hinders(member, other, value) or _hinders(other, member, value):
                        return False
        return common


def _hinders(a: _Member, b: _Member, value: Value) -> bool:
    """Whether a, which is no update, could take over the memory of what b reads elsewhere."""
    if a.base is not None:
        return False
    here, result = (a.at.offset, ()), a.op.result.type
    fits = a.at.how == "point" and (result.dtype, result.shape) == (
        value.type.dtype, value.type.shape)  # fmt: skip
    return fits and set(a.reads[value]) == {here} and set(b.reads[value]) != {here}


def _apart(a: Op, b: Op) -> bool:
    """Whether two updates of an array surely write no element in common."""
    assert isinstance(a.what, Update) and isinstance(b.what, Update)
    for d, (p, q) in enumerate(zip(a.what.start, b.what.start, strict=True)):
        s, t = a.what.step[d], b.what.step[d]
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


def fuse(program: Module, stored: frozenset[Value]) -> tuple[Module, frozenset[Value]]:
    """The Program in nests, and what needs memory now."""
    work = _Fusing(program, stored)
    nests = program.mapped(work.region)
    return nests, stored - work.kept


class _Fusing:
    def __init__(self, program: Module, stored: frozenset[Value]) -> None:
        self.stored = stored
        self.kept: set[Value] = set()
        self.defs = program.def_use.defs
        self.resolver = Resolver(
            self.defs, lambda v: v in stored, lambda v: v, lambda v, _: None,
            {s.name: k for k, s in enumerate(program.scalars)},
        )  # fmt: skip
        self.made_of: dict[Value, frozenset[Value]] = {}
        self.users: dict[Value, set[Op | None]] = {o.value: {None} for o in program.outputs}
        for region in program.entries:
            self.use(region)

    def use(self, region: Region) -> None:
        for op in region.ops:
            if not self.inline(op):
                for x in op.operands:
                    for v in self.sources(x):
                        self.users.setdefault(v, set()).add(op)
            for inner in op.regions:
                self.use(inner)
        for v in region.results:
            self.users.setdefault(v, set()).add(None)

    def inline(self, op: Op) -> bool:
        return op.what.inline and op.result not in self.stored

    def sources(self, value: Value) -> frozenset[Value]:
        """The stored values that a value is made of."""
        if value in self.stored:
            return frozenset((value,))
        if value not in self.made_of:
            self.made_of[value] = frozenset(
                v for x in self.defs[value].operands for v in self.sources(x)
            )
        return self.made_of[value]

    # ---- regions ---------------------------------------------------------------------------------

    def region(self, region: Region) -> Region:
        items: list[Op | _Nest] = []
        made: dict[Value, int] = {}  # by which item
        read: dict[Value, int] = {}  # by which item last
        fence = segment = 0  # reductions move up to `fence`, other members to `segment`
        for op in region.ops:
            if self.inline(op) or isinstance(op.what, Full):
                continue
            if op.regions:
                op = replace(op, regions=tuple(self.region(r) for r in op.regions))
            member = self.member(op)
            k = None
            if member is not None:
                first = max((made[v] for v in member.needs if v in made), default=0)
                first = max(first, segment if member.at.how == "point" else fence)
                if member.base is not None:
                    first = max(first, read.get(member.base, 0))
                k = self.join(items, member, first)
            if k is None:
                k = len(items)
                item: Op | _Nest = op
                if member is not None:
                    item = _Nest([], None)
                    item.add(member, 0)
                items.append(item)
            if member is None:
                segment = len(items)
                fence = segment if isinstance(op.what, _FENCES) else fence
            else:
                read.update((v, max(k, read.get(v, 0))) for v in member.needs)
                if member.base is not None:  # what moved before it might keep it from writing there
                    segment = max(segment, k)
            made.update(dict.fromkeys(op.results, k))
        ops = [self.finished(item) if isinstance(item, _Nest) else item for item in items]
        return Region(region.args, tuple(self.with_inline(region, ops)), region.results)

    def member(self, op: Op) -> _Member | None:
        """An op that may share its loops, with what it reads."""
        if not isinstance(op.what, (Map, Reduce, Update)):
            return None
        at = self.resolver.points(op)
        if at.how == "alone" or (isinstance(op.what, Update) and not at.loops):
            return None
        node = self.resolver.member(op, at)
        reads: dict[Any, tuple[tuple[Expr, tuple[Bound, ...]], ...]] = {}
        for load in loads(node):
            if load.buffer is not None:  # a constant
                reads[load.buffer] = (*reads.get(load.buffer, ()), (load.offset, load.bounds))
        sole = self.users.get(op.operands[0]) == {op}
        member = _Member(op, at, reads, _size(node), sole)
        if set(reads.get(member.base, ())) - {(at.offset, ())}:  # rows wait for each other
            return None
        return member

    def join(self, items: list[Op | _Nest], member: _Member, first: int) -> int | None:
        """The nest that a member now is in."""
        for k in range(max(first, len(items) - NEAREST), len(items)):
            nest = items[k]
            if isinstance(nest, _Nest) and (sweep := nest.sweep_for(member)) is not None:
                nest.add(member, sweep)
                return k
        return None

    def finished(self, nest: _Nest) -> Op:
        if len(nest.members) == 1:
            return nest.members[0].op
        outer = nest.outer or ()
        inside: dict[Op | None, int] = {
            m.op: k for k, sweep in enumerate(nest.sweeps) for m in sweep
        }
        results: list[Value] = []
        for value, (sweep, maker) in nest.made.items():
            everywhere = maker.at.how == "fold" or maker.at.loops == outer
            users = self.users.get(value, {None})
            if maker.at.how != "rows" and maker.base is None and all(
                u in inside and (everywhere or inside[u] == sweep) for u in users
            ):
                self.kept.add(value)
            else:
                results.append(value)
        ops = tuple(m.op for m in nest.members)
        sweeps, types = tuple(inside[op] for op in ops), tuple(v.type for v in results)
        needs = (v for m in nest.members for v in (*m.reads, m.base) if v is not None)
        read = dict.fromkeys(v for v in needs if v not in nest.made)
        region = Region((), ops, tuple(results))
        return Op(Nest(outer, sweeps, types), tuple(read), tuple(results), (region,), ops[0].place)

    def with_inline(self, region: Region, ops: list[Op]) -> Iterator[Op]:
        """The ops, and before each what it computes on the way, and the arrays of one number that
        it writes into: members have moved up."""
        here = {
            v: op for op in region.ops if self.inline(op) or isinstance(op.what, Full)
            for v in op.results
        }  # fmt: skip
        done: set[Op] = set()

        def before(op: Op) -> Iterator[Op]:
            used = list(op.operands)
            for inner in op.regions:
                used += free_values(inner)
            for x in used:
                made = here.get(x)
                if made is not None and made not in done:
                    done.add(made)
                    yield from before(made)
                    yield made

        for op in ops:
            yield from before(op)
            yield op
        yield from (op for op in here.values() if op not in done and not self.inline(op))


def _size(node: Node) -> int:
    return 1 + sum(_size(a) for a in node.args) if isinstance(node, Apply) else 0
