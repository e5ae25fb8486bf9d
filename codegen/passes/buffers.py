"""Which buffer a stored value lives in.

Goes in: a Program and its stored values. Comes out: a Buffer per value. Values that may share
memory do: an update happens in place, a carried array keeps one buffer round the loop, unless
something still needs the old content; then they differ, and change places or are copied.
Always holds: two values in one buffer are never both needed at any point (Chaitin's rule).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from codegen.ir import Module, Op, Region, Value, walk
from codegen.ops import OPS, Branch, Exchange, Full, Loop, Nest, Update
from codegen.plan import indexing
from codegen.plan.access import Resolver
from codegen.plan.grammar import Buffer
from codegen.plan.indexing import loop_vars, positions, ravel
from codegen.symbolic import expr, prove
from codegen.symbolic.expr import Expr


@dataclass
class Assignment:
    """across: what is needed all along a loop, in every turn or after it. exchanged: the axes of
    the exchanges that touch a value."""

    buffers: tuple[Buffer, ...]
    of: dict[Value, Buffer] = field(default_factory=dict)
    across: dict[Op, set[Value]] = field(default_factory=dict)
    exchanged: dict[Value, set[str]] = field(default_factory=dict)


def assign_buffers(
    program: Module, stored: frozenset[Value], apart: Mapping[Value, Collection[str]]
) -> Assignment:
    """One Buffer per set of values that share memory, numbered in order of first definition. apart:
    the results of loops whose buffers may not be free to change places: of turns_apart."""
    work = _Liveness(program, stored, apart)
    work.run()
    groups = _Groups(work)
    for _, a, b in sorted(work.wishes, key=lambda w: -w[0]):
        groups.join(a, b)
    groups.reuse_memory([i.value for i in program.inputs] + [o.value for o in program.outputs])
    return _number(program, work, groups)


class _Liveness:
    """Backwards over the structured program: who is needed where, and who disturbs whom."""

    def __init__(
        self, program: Module, stored: frozenset[Value], apart: Mapping[Value, Collection[str]]
    ) -> None:
        self.program = program
        self.stored = stored
        self.apart = apart
        self.defs = program.def_use.defs
        self.conflicts: dict[Value, set[Value]] = {}
        self.order: dict[Value, int] = {}
        self.forced: list[tuple[Value, Value]] = []
        self.wishes: list[tuple[int, Value, Value]] = []  # depth, and two values that want to share
        made = {v for r in program.entries for op in walk(r) if isinstance(op.what, Nest)
                for part in op.regions[0].ops for v in part.results}  # fmt: skip
        self.resolver = Resolver(
            self.defs, lambda v: v in stored or v in made, lambda v: v, lambda v, _: None,
            {s.name: k for k, s in enumerate(program.scalars)},
        )  # fmt: skip
        # blank arrays that one update begins with need no memory of their own
        self.uses = Counter(
            x for r in program.entries for op in walk(r) if not isinstance(op.what, Nest)
            for x in (*op.operands, *(v for i in op.regions for v in i.results))
        )  # fmt: skip
        self.uses.update(o.value for o in program.outputs)
        self.blank = {
            v for v, op in self.defs.items()
            if isinstance(op.what, Full) and op.what.blank and self.uses[v] == 1
        }
        self.chains: dict[Op, tuple[list[Op], list[Op]]] = {}
        self.over: dict[Op, set[Value]] = {}
        self.cache: dict[Op, tuple[set[Value], set[Value]]] = {}
        self.needed: dict[Region, set[Value]] = {}
        self.across: dict[Op, set[Value]] = {}
        self.exchanged: dict[Value, set[str]] = {}

    def run(self) -> None:
        for i in self.program.inputs:
            self.order.setdefault(i.value, len(self.order))
        for region in self.program.entries:
            self.number(region)
        live = {o.value for o in self.program.outputs}
        live = self.region(self.program.body, live, 0)
        inputs = {i.value for i in self.program.inputs}
        for i in self.program.inputs:
            self.define(i.value, live | inputs)
        for i in self.program.inputs:
            if i.default is not None:
                # Nobody reads an input while its own default is computed.
                others = inputs - {i.value}
                self.region(i.default, others | {i.default.results[0]}, 0)
                self.wishes.append((0, i.default.results[0], i.value))

    def number(self, region: Region) -> None:
        for v in region.args:
            self.order.setdefault(v, len(self.order))
        for op in region.ops:
            if isinstance(op.what, (Loop, Branch, Nest)):
                for inner in op.regions:
                    self.number(inner)
            for v in op.results:
                self.order.setdefault(v, len(self.order))

    def define(self, value: Value, others: Iterable[Value]) -> None:
        for other in others:
            if other is not value:
                self.conflicts.setdefault(value, set()).add(other)
                self.conflicts.setdefault(other, set()).add(value)

    def reads(self, op: Op) -> tuple[set[Value], set[Value]]:
        """The stored values an op reads, and those of them whose memory its result may take."""
        if op not in self.cache:
            self.cache[op] = self._reads(op)
        return self.cache[op]

    def needs(self, region: Region, members: bool = False) -> set[Value]:
        """The stored values from around a region that are read in it. members: it is a nest's."""
        if region not in self.needed:
            read, made = set(region.results), set(region.args)
            for op in region.ops:
                made.update(op.results)
                if isinstance(op.what, (Loop, Branch)):
                    read.update(op.operands, *map(self.needs, op.regions))
                elif isinstance(op.what, Nest):
                    read |= self.needs(op.regions[0], members=True)
                elif members or self.works(op):
                    read |= self.reads(op)[0]
            self.needed[region] = read - made
        return self.needed[region]

    def works(self, op: Op) -> bool:
        """Whether it is computed where it stands, and needs memory for that."""
        return (not op.what.inline or op.result in self.stored) and (
            self.blank.isdisjoint(op.results))  # fmt: skip

    def _reads(self, op: Op) -> tuple[set[Value], set[Value]]:
        everything: set[Value] = set()
        if op.what.inline:
            index = positions(loop_vars(op.result.type.shape))
            # The stored result itself is what is being computed: resolve its operands instead.
            node = self.resolver.computed(op, index)
            target = ravel(index, op.result.type.shape)
            moved: set[Value] = set()
            for load in indexing.loads(node):
                source: Any = load.buffer  # the value itself, as long as no buffer is assigned
                if source is not None:
                    everything.add(source)
                    if load.offset != target or load.bounds:
                        moved.add(source)
            return everything, everything - moved
        for v in op.operands:
            everything |= self.loaded(v)
        if self.begins(op):
            return everything - {op.operands[0]}, self.read_there(op)
        if op.what.in_place:
            rest = {r for v in op.operands[2:] for r in self.loaded(v)}
            same = {op.operands[0]} if op.operands[0] not in rest else set()
            if op.operands[0] in op.operands[1:2]:
                same = set()
            return everything, same
        return everything, set()

    def begins(self, op: Op) -> bool:
        """Whether it is the first update of a blank array."""
        return isinstance(op.what, Update) and op.operands[0] in self.blank

    def read_there(self, op: Op) -> set[Value]:
        """What an update reads only where it writes."""
        at = self.resolver.points(op)
        read: dict[Any, bool] = {}
        for load in indexing.loads(self.resolver.member(op, at)):
            there = load.offset == at.offset and not load.bounds
            read[load.buffer] = read.get(load.buffer, True) and there
        return {v for v, there in read.items() if there and v is not None}

    def loaded(self, value: Value) -> set[Value]:
        """The stored values that a value is made of."""
        found: set[Any] = {
            load.buffer
            for load in indexing.loads(
                self.resolver.node(value, positions(loop_vars(value.type.shape)))
            )
        }
        return found - {None}

    def region(self, region: Region, live: set[Value], depth: int) -> set[Value]:
        """Values needed before the region, given those needed after it."""
        live = set(live)
        self.find_chains(region)
        for op in reversed(region.ops):
            if isinstance(op.what, Loop):
                live = self.loop(op, live, depth)
            elif isinstance(op.what, Branch):
                live = self.branch(op, live, depth)
            elif isinstance(op.what, Nest):
                live = self.nest(op, live, depth)
            elif self.works(op):
                live = self.op(op, live, depth)
        return live

    def op(self, op: Op, live: set[Value], depth: int) -> set[Value]:
        reads, reusable = self.reads(op)
        if self.begins(op):
            self.forced.append((op.operands[0], op.result))
        if isinstance(op.what, Exchange):
            for v in reads.union(op.results):
                self.exchanged.setdefault(v, set()).update(op.what.axes)
        replaced = self.replaced_by(op, live)
        for v in op.results:
            self.define(v, (live | (reads - reusable) | set(op.results)) - {v} - replaced)
            for r in sorted(reusable, key=lambda r: self.order[r]):
                if _fits(r, v):
                    self.wishes.append((depth + 3 * (not op.what.inline), r, v))
        return (live - set(op.results)) | reads

    def find_chains(self, region: Region) -> None:
        """Updates that make an array of a blank one, and have no element in common."""
        ends: dict[Value, list[int]] = {}
        for k, op in enumerate(region.ops):
            if _is_apart(op):
                under = op.operands[0]
                chain = ends.pop(under, None) if self.uses[under] == 1 else None
                if chain is not None or under in self.blank:
                    ends[op.result] = [*(chain or ()), k]
        for chain in ends.values():
            between = region.ops[chain[0] : chain[-1]]
            others = [op for op in between if not _is_apart(op)]
            for k in chain:
                self.chains[region.ops[k]] = [region.ops[n] for n in chain], others

    def replaced_by(self, op: Op, live: set[Value]) -> set[Value]:
        """What a chain of updates may write over, though not every one of them reads it last: all
        read it only where they write."""
        if op not in self.chains:
            return set()
        chain, others = self.chains[op]
        if op is chain[-1]:
            found = self.read_there(op) - live
            for m in chain:
                found -= self.reads(m)[0] - self.read_there(m)
            for o in others:
                if o.regions:
                    found.clear()
                elif not o.what.inline or o.result in self.stored:
                    found -= self.reads(o)[0]
            self.over[chain[-1]] = found
        return self.over[chain[-1]]

    def nest(self, op: Op, live: set[Value], depth: int) -> set[Value]:
        """Members in order; but their loops turn together: what one computes at a later point, it
        does after the next one has computed at an earlier. What updates leave of an array is there
        before the first one computes: the array lies in its new memory, or is copied there."""
        members = op.regions[0].ops
        at = {m.result: self.resolver.points(m) for m in members}
        chains = _chains(members)
        read: dict[Value, list[tuple[int, Expr | None]]] = {}  # by which member, where
        for old, _ in chains.values():
            read.setdefault(old, [])
        for k, m in enumerate(members):
            for load in indexing.loads(self.resolver.member(m, at[m.result])):
                where = None if load.bounds else load.offset
                read.setdefault(cast(Any, load.buffer), []).append((k, where))
        for k in reversed(range(len(members))):
            v = members[k].result
            live = self.op(members[k], live, depth)
            base, parts = chains.get(v, (None, [v]))
            others = {at[o].offset for o in parts} - {at[v].offset}  # they write elsewhere
            for r, places in read.items():
                if r is None or r in parts:  # None: a constant
                    continue
                there = {e for n, e in places if n <= k} - others
                if at[v].how != "point" or there - {at[v].offset} or base not in (None, r):
                    self.define(v, (r,))
                elif _fits(r, v):
                    self.wishes.append((depth, r, v))
            self.define(v, (o for o in at if o not in parts and (
                at[o].offset != at[v].offset or base or "rows" in (at[o].how, at[v].how))))
            self.forced += [(part, v) for part in parts[:1] if part is not v]
        return live

    def loop(self, op: Op, live: set[Value], depth: int) -> set[Value]:
        outer = live - set(op.results)
        body = op.regions[-1]
        for v in op.results:
            self.define(v, (live | set(op.results)) - {v})
        # what an iteration needs, the one before must keep
        head = outer.union(*map(self.needs, op.regions))
        inside = self.region(body, head | set(body.results), depth + 1)
        if len(op.regions) == 2:
            condition = op.regions[0]
            keep = head | inside | set(condition.args) | set(condition.results)
            self.region(condition, keep, depth + 1)
        self.across[op] = head
        for k, (init, arg, result) in enumerate(
            zip(op.operands, body.args, op.results, strict=True)
        ):
            others = head | set(body.args) - {arg}
            others |= {v for j, v in enumerate(op.operands) if j != k and v is not init}
            if self.apart[result]:  # copies in a ring would take one more
                others |= {v for j, v in enumerate(body.results) if j != k}
                others -= {body.results[k], arg}
            self.define(arg, others)
            if len(op.regions) == 2:
                self.define(op.regions[0].args[k], others - {op.regions[0].args[k]})
                self.forced.append((arg, op.regions[0].args[k]))
            self.forced.append((arg, result))
            self.wishes.append((depth + 2, arg, body.results[k]))
            self.wishes.append((depth + 1, init, arg))
        return head | set(op.operands)

    def branch(self, op: Op, live: set[Value], depth: int) -> set[Value]:
        outer = live - set(op.results)
        before: set[Value] = set()
        for v in op.results:
            self.define(v, (live | set(op.results)) - {v})
        for arm in op.regions:
            before |= self.region(arm, outer | set(arm.results), depth)
            for k, (result, y) in enumerate(zip(op.results, arm.results, strict=True)):
                self.define(result, {v for j, v in enumerate(arm.results) if j != k} - {y})
                self.wishes.append((depth + 1, y, result))
        return before | outer | set(op.operands)


class _Groups:
    """Values joined into shared memory; a union-find that remembers what disturbs a whole group."""

    def __init__(self, work: _Liveness) -> None:
        self.conflicts = work.conflicts
        self.members: dict[Value, list[Value]] = {v: [v] for v in work.stored}
        self.root: dict[Value, Value] = {v: v for v in work.stored}
        for a, b in work.forced:
            self.merge(self.root[a], self.root[b])

    def merge(self, a: Value, b: Value) -> None:
        if a is b:
            return
        for v in self.members[b]:
            self.root[v] = a
        self.members[a] += self.members.pop(b)

    def disturb(self, a: Value, b: Value) -> bool:
        other = set(self.members[b])
        return any(self.conflicts.get(v, set()) & other for v in self.members[a])

    def join(self, a: Value, b: Value) -> None:
        if a not in self.root or b not in self.root or not _fits(a, b):
            return
        a, b = self.root[a], self.root[b]
        if a is not b and not self.disturb(a, b):
            self.merge(a, b)

    def reuse_memory(self, keep: list[Value]) -> None:
        """Temporaries of one size that are never needed together share a buffer."""
        fixed = {self.root[v] for v in keep}
        homes: list[tuple[Value, Expr]] = []
        for root in sorted(self.members, key=lambda v: v.id):
            if root in fixed:
                continue
            size = _capacity(root) * root.type.dtype.size
            for home, room in homes:
                same = room == size and home.type.dtype == root.type.dtype
                if same and not self.disturb(home, root):
                    self.merge(home, root)
                    break
            else:
                homes.append((root, size))


def _is_apart(op: Op) -> bool:
    return isinstance(op.what, Update) and op.what.apart


def _chains(members: Iterable[Op]) -> dict[Value, tuple[Value, list[Value]]]:
    """Of the updates of a nest: the array that was there before, and all that are written over it,
    part by part, in one memory."""
    chains: dict[Value, tuple[Value, list[Value]]] = {}
    for m in members:
        if isinstance(m.what, Update):
            base = m.operands[0]
            chains[m.result] = chain = chains.get(base, (base, []))
            chain[1].append(m.result)
    return chains


def _fits(a: Value, b: Value) -> bool:
    """Whether one memory can hold either: the same elements, perhaps in another shape."""
    if a.type.dtype != b.type.dtype:
        return False
    return a.type.shape == b.type.shape or expr.product(a.type.shape) == expr.product(b.type.shape)


def _number(program: Module, work: _Liveness, groups: _Groups) -> Assignment:
    first = {root: min(work.order.get(v, 0) for v in vs) for root, vs in groups.members.items()}
    out = Assignment((), across=work.across, exchanged=work.exchanged)
    names: dict[str, int] = {}
    buffers: list[Buffer] = []
    for root in sorted(groups.members, key=lambda r: first[r]):
        members = sorted(groups.members[root], key=lambda v: work.order.get(v, 0))
        hint = next((v.name for v in members if v.name not in _DULL), members[0].name)
        names[hint] = names.get(hint, 0) + 1
        name = hint if names[hint] == 1 else f"{hint}_{names[hint]}"
        buffer = Buffer(len(buffers), name, root.type.dtype, _capacity(members[0]))
        buffers.append(buffer)
        for v in members:
            out.of[v] = buffer
    out.buffers = tuple(buffers)
    return out


# Names that say how a value came about, not what the user called it.
_DULL = {"update", "arg", "loop", "branch", "reduce"} | {k for k, w in OPS.items() if w.inline}


def _capacity(value: Value) -> Expr:
    """Elements that any rank needs at any time: no coordinate, counter or variable is left."""
    elements = expr.product(value.type.shape)
    # a counter's bound may name the counter of the loop around it
    while gone := {s for s in elements.symbols() if s.kind not in ("size", "scalar")}:
        elements = prove.upper_bound(elements, gone)
    return elements
