"""Buffer assignment: values whose live ranges do not overlap share a buffer.

Goes in: Loops. Comes out: the same, with a Buffer per value. Values that may share memory do: an
update happens in place, a carried array keeps one buffer, unless something still needs the old
content. A field of a batch, which may stay where that lies, is not written over.
Always holds: two values in one buffer are never both needed at any point (Chaitin's rule).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from codegen.ir.accesses import MemoryAccess, accesses
from codegen.ir.fresh import Fresh
from codegen.ir.graph import Op, Region, Value
from codegen.ir.indexing import loads
from codegen.ir.loops import Act, BufferAssignment, Do, Loops, capacity
from codegen.ir.overlays import Arms
from codegen.ir.plan import (
    Buffer,
    Exchange,
    LibraryCall,
    Load,
    LocalRead,
    LocalValue,
    Nest,
    Node,
    Reduce,
    Store,
    Take,
)
from codegen.ir.plan import Point as PointStep
from codegen.loops.in_place_states import Written, choices, written_in_place
from codegen.mesh import Owned
from codegen.ops import OPS, Branch, Full, Loop, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


def assign_buffers(loops: Loops) -> BufferAssignment:
    """Assign a Buffer to each set of values that share memory, numbered in order of first
    definition."""
    original, chosen = loops, choices(loops)
    while True:
        loops, written = written_in_place(original, chosen)
        work = _Liveness(loops, written)
        work.run()
        groups = _Groups(work)
        for _, a, b, over in sorted(work.wishes, key=lambda w: -w[0]):
            groups.join(a, b, over)
        left = frozenset(
            (number, k) for number, k in chosen
            if groups.are_one(w for w in written[number] if w.state == k))
        if left == chosen:
            break
        chosen = left
    module = loops.module
    groups.reuse_memory([i.value for i in module.inputs] + [o.value for o in module.outputs])
    return _number(loops, work, groups)


@dataclass(frozen=True)
class _Write:
    """A write by one part of a nest, or by an op that is a single store: its offset and the formula
    that it stores. `number` is the part's number; `base` the array that it updates, if any;
    `others` are the arrays that it reads at other points and so must not overwrite."""

    number: int
    offset: Expr
    node: Node[Value]
    base: Value | None
    others: frozenset[Value]
    is_point: bool  # a result for each point of its loops
    is_row: bool


class _Liveness:
    """Liveness analysis, backwards over the structured program: builds the interference graph of
    values."""

    def __init__(self, loops: Loops, written: Mapping[int, list[Written]]) -> None:
        """`written` gives, by entry number, the states that the entry updates in place."""
        self.module = module = loops.module
        self.written = written
        self.diverging = loops.diverging
        self.constants = loops.constants
        self.conflicts: dict[Value, set[Value]] = defaultdict(set)
        self.order: dict[Value, int] = {}
        self.forced: list[tuple[Value, Value]] = []
        # depth, and two values that want to share; whether one is then written over the other
        self.wishes: list[tuple[int, Value, Value, bool]] = []
        # of inputs and of what ops make: which field of which feed it is; None: it is none
        self.fed: dict[Value, tuple[str, int] | None] = {i.value: None for i in module.inputs}
        def_use = module.def_use
        self.uses = {v: len(uses) for v, uses in def_use.uses.items()}
        # blank arrays that one update begins with need no memory of their own
        self.blank = {
            v for v, op in def_use.defs.items()
            if isinstance(op.kind, Do) and not op.kind.acts and self.uses.get(v) == 1
        }
        self.sparse = {v for v, op in def_use.defs.items() if _is_sparse(op)}
        ends = [(i.value, i.layout) for i in module.inputs]
        ends += [(o.value, o.layout) for o in module.outputs]
        self.sparse |= {v for v, layout in ends if any(isinstance(e, Owned) for e in layout)}
        self.chains: dict[Op, tuple[list[Op], list[Op]]] = {}
        self.over: dict[Op, set[Value]] = {}
        self.needed: dict[Region, set[Value]] = {}
        self.across: dict[Op, frozenset[Value]] = {}
        self.exchanged: dict[Value, frozenset[str]] = {}
        self.last: dict[Op, bool] = {}
        # the branch between the entries; values of states that only the first entry makes: it makes
        # them where they lie
        self.entry = module.entry_branch
        bound = {k for entry in module.entries[1:] for k in entry.rebinds}
        self.once = {module.outputs[s.new].value: module.inputs[s.input].value
                     for k, s in enumerate(module.states) if k not in bound}
        self.forced += self.once.items()

    def run(self) -> None:
        inputs = {i.value for i in self.module.inputs}
        for i in self.module.inputs:
            self.order.setdefault(i.value, len(self.order))
        for region in self.module.regions:
            self.number(region)
        live = {o.value for o in self.module.outputs}
        # of states, which are read in later runs too
        live |= {self.module.inputs[s.input].value for s in self.module.states}
        live = self.region(self.module.body, live, 0)
        for i in self.module.inputs:
            self.define(i.value, live | inputs)
        for i in self.module.inputs:
            if i.default is not None:
                # Nobody reads an input while its own default is computed.
                others = inputs - {i.value}
                self.region(i.default, others | {i.default.results[0]}, 0)
                self.wishes.append((0, i.default.results[0], i.value, False))

    def number(self, region: Region) -> None:
        for v in region.args:
            self.order.setdefault(v, len(self.order))
        for op in region.ops:
            self.find_fields(op)
            for inner in op.regions:
                self.number(inner)
            for v in op.results:
                self.order.setdefault(v, len(self.order))

    def find_fields(self, op: Op) -> None:
        """Record which field of which feed's batch an op's results are; a reshaped field stays that
        field."""
        if not isinstance(op.kind, Do):
            return
        acts = op.kind.acts
        takes = [act for act in acts if isinstance(act, Take)]
        fields = {v: (act.feed, k) for act in takes for k, v in enumerate(act.into)}
        source = _reshaped(acts[0]) if len(acts) == 1 else None
        of = None if source is None else self.fed.get(source)
        self.fed |= {v: fields.get(v, of) for v in op.results}

    def define(self, value: Value, others: Iterable[Value]) -> None:
        known = self.conflicts[value]
        new = set(others) - known
        new.discard(value)
        known |= new
        for other in new:
            self.conflicts[other].add(value)

    def reads(self, op: Op) -> set[Value]:
        return set(op.operands) - self.blank

    def needs(self, region: Region) -> set[Value]:
        """Return the values from outside a region that are read in it."""
        if region not in self.needed:
            read, defined = set(region.results), set(region.args)
            for op in region.ops:
                defined.update(op.results)
                read |= self.reads(op).union(*map(self.needs, op.regions))
            self.needed[region] = read - defined
        return self.needed[region]

    def loaded(self, node: Node[Value]) -> set[Value]:
        return {x.buffer for x in loads(node)} - self.constants.keys()

    def there(self, write: _Write) -> set[Value]:
        """Return the arrays that a part reads only at the very element that it writes."""
        return self.loaded(write.node) - write.others

    def reusable(self, write: _Write) -> set[Value]:
        """Return the arrays that a part reads and whose memory its result may reuse."""
        if not write.is_point:
            return set()
        if write.base is None or write.base in self.blank:
            return self.there(write)
        return {write.base} - write.others

    # ---- ops -------------------------------------------------------------------------------------

    def region(self, region: Region, live: set[Value], depth: int) -> set[Value]:
        """Return the values that are live before a region, from those that are live after it."""
        live = set(live)
        self.find_chains(region)
        for op in reversed(region.ops):
            if isinstance(op.kind, Loop):
                live = self.loop(op, live, depth)
            elif isinstance(op.kind, Branch):
                live = self.branch(op, live, depth)
            elif (nest := _nest(op)) is not None:
                live = self.nest(op, nest, live, depth)
            elif isinstance(op.kind, Do) and any(isinstance(a, PointStep) for a in op.kind.acts):
                live = self.point(op, live, depth)
            elif self.blank.isdisjoint(op.results):
                live = self.op(op, live, depth)
        return live

    def op(self, op: Op, live: set[Value], depth: int) -> set[Value]:
        reads, reusable = self.reads(op), set[Value]()
        begins = op.kind.begins if isinstance(op.kind, Do) else ()
        self.forced += [(x, v) for x, v in begins if x in self.blank]
        if (write := _alone(op)) is not None:
            reusable = self.reusable(write)
        for act in op.kind.acts if isinstance(op.kind, Do) else ():
            if isinstance(act, LibraryCall):  # it writes over what it begins with
                reusable |= {x for x, _ in begins} - {p.buffer for p in act.parts}
            if isinstance(act, Exchange):
                reusable |= {x for x, _ in begins}  # members write where nobody reads
                reusable -= {box.buffer for box in act.boxes} - {x for x, _ in begins}
                whose = act.pull_from.buffer if act.pull_from is not None else None
                self.last[op] = whose not in live and self.last.get(op, True)
                for v in reads.union(op.results):
                    self.exchanged[v] = self.exchanged.get(v, frozenset()) | set(act.axes)
        others = (live | (reads - reusable) | set(op.results)) - self.replaced_by(op, live)
        for v in op.results:
            self.define(v, others)
            self.wish(depth + 3 * bool(begins), reusable, v, over=not begins)
        return (live - set(op.results)) | reads

    def point(self, op: Op, live: set[Value], depth: int) -> set[Value]:
        """Define a point's results: every carried array keeps its buffer."""
        assert isinstance(op.kind, Do)
        reads = self.reads(op)
        for x, v in op.kind.begins:
            self.define(v, live | (reads - {x}) | set(op.results))
            self.wish(depth + 3, {x}, v, over=False)
        return (live - set(op.results)) | reads

    def wish(self, depth: int, reusable: set[Value], v: Value, over: bool) -> None:
        for r in sorted(reusable, key=lambda r: self.order[r]):
            if _fits(r, v):
                self.wishes.append((depth, r, v, over))

    def find_chains(self, region: Region) -> None:
        """Find the chains of updates that fill a blank array and write disjoint elements."""
        ends: dict[Value, list[int]] = {}
        for k, op in enumerate(region.ops):
            if _writes_disjoint_part(op):
                under = op.operands[0]
                chain = ends.pop(under, None) if self.uses[under] == 1 else None
                if chain is not None or under in self.blank:
                    ends[op.result] = [*(chain or ()), k]
        for chain in ends.values():
            between = region.ops[chain[0] : chain[-1]]
            others = [op for op in between if not _writes_disjoint_part(op)]
            for k in chain:
                self.chains[region.ops[k]] = [region.ops[n] for n in chain], others

    def replaced_by(self, op: Op, live: set[Value]) -> set[Value]:
        """Return the arrays that a chain of disjoint updates may overwrite though later updates
        still read them: each update reads them only where it writes."""
        if op not in self.chains:
            return set()
        chain, others = self.chains[op]
        if op is chain[-1]:
            replaced = set[Value]().union(*map(self.reads, chain)) - live
            for m in chain:
                write = _write_alone(m)
                replaced -= self.reads(m) - (self.there(write) if write is not None else set())
            for o in others:
                replaced -= self.reads(o).union(*map(self.needs, o.regions))
            self.over[op] = replaced
        return self.over[chain[-1]]

    def nest(self, op: Op, nest: Nest[Value], live: set[Value], depth: int) -> set[Value]:
        """Return the values live before a nest. Its parts run in order at each point, but share
        loops: a part computes a later point after the next part has computed an earlier one. An
        updated array lies in its new memory, or is copied there, before the first part runs."""
        assert isinstance(op.kind, Do)
        bases = {v: x for x, v in op.kind.begins}
        chains = _chains(op.kind.begins)
        writes = list(_writes(nest, bases))
        read: dict[Value, list[MemoryAccess[Value]]] = {old: [] for old, _ in chains.values()}
        for a in accesses(nest):
            if not a.writes and a.buffer not in self.constants:
                read.setdefault(a.buffer, []).append(a)
        left = list(writes)
        for part in reversed(nest.parts):
            if not isinstance(part, LocalValue):
                v, write = left.pop()
                live = self.write(v, write, live, depth)
                self.disturbed(v, write, chains, writes, read, depth)
            live |= self.loaded(part.value)
        # what a result begins with may be read by its name, and is needed before the first part
        return (live - set(op.results)) | (set(bases.values()) - self.blank - set(op.results))

    def write(self, v: Value, write: _Write, live: set[Value], depth: int) -> set[Value]:
        """Define the result of one part of a nest. Return the values live before it, except what it
        loads and the array that it updates."""
        over, reusable = set[Value](), self.reusable(write)
        if write.base in self.blank:
            self.forced.append((write.base, v))
        elif write.base is not None:
            over = {write.base}
        self.define(v, live | (self.loaded(write.node) | over) - reusable)
        self.wish(depth + 3 * (write.base is not None), reusable, v, over=write.base is None)
        return live - {v}

    def disturbed(
        self, v: Value, mine: _Write, chains: _Chains, writes: Sequence[tuple[Value, _Write]],
        read: Mapping[Value, list[MemoryAccess[Value]]], depth: int,
    ) -> None:
        """Record which arrays that a nest reads or writes conflict with a result's memory, or may
        share it."""
        base, parts = chains.get(v, (None, [v]))
        written = {mine.offset} | {w.offset for o, w in writes if o in parts}
        for r, reads in read.items():
            if r in parts:
                continue
            elsewhere = any(a.part <= mine.number and not (a.is_direct and a.offset in written)
                            for a in reads)
            if not mine.is_point or elsewhere or base not in (None, r):
                self.define(v, (r,))
            elif _fits(r, v):
                self.wishes.append((depth, r, v, True))
        self.define(v, (o for o, w in writes if o not in parts and (
            w.offset != mine.offset or base or w.is_row or mine.is_row)))
        self.forced += [(part, v) for part in parts[:1] if part is not v]

    def loop(self, op: Op, live: set[Value], depth: int) -> set[Value]:
        """Return the values live before a loop. Carried values want one buffer for initial value,
        argument and result; what a turn needs from outside stays live through all turns."""
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
        self.across[op] = frozenset(head)
        for k, (init, arg, result) in enumerate(
            zip(op.operands, body.args, op.results, strict=True)
        ):
            others = head | set(body.args) - {arg}
            others |= {v for j, v in enumerate(op.operands) if j != k and v is not init}
            if self.diverging[result]:  # copies in a cycle would take one more
                others |= {v for j, v in enumerate(body.results) if j != k}
                others -= {body.results[k], arg}
            self.define(arg, others)
            if len(op.regions) == 2:
                self.define(op.regions[0].args[k], others - {op.regions[0].args[k]})
                self.forced.append((arg, op.regions[0].args[k]))
            self.forced.append((arg, result))
            self.wishes.append((depth + 2, arg, body.results[k], False))
            self.wishes.append((depth + 1, init, arg, False))
        return head | set(op.operands)

    def branch(self, op: Op, live: set[Value], depth: int) -> set[Value]:
        outer = live - set(op.results)
        before: set[Value] = set()
        for v in op.results:
            self.define(v, (live | set(op.results)) - {v, self.once.get(v)})
        made_once = set(self.once.values()) if op is self.entry else set()
        for number, arm in enumerate(op.regions):
            mine = self.written.get(number, ()) if op is self.entry else ()
            others = outer - {w.old for w in mine} - (set() if number else made_once)
            others |= {w.new for w in mine}
            before |= self.region(arm, others | (set(arm.results) - self.blank), depth)
            for k, (result, y) in enumerate(zip(op.results, arm.results, strict=True)):
                if y in self.blank:
                    self.forced.append((result, y))
                    continue
                self.define(result, {v for j, v in enumerate(arm.results) if j != k} - {y})
                self.wishes.append((depth + 1, y, result, False))
        return before | outer | set(op.operands)


class _Groups:
    """Union-find of values that share memory; it knows the conflicts of each whole group."""

    def __init__(self, work: _Liveness) -> None:
        self.conflicts, self.fed, self.blank = work.conflicts, work.fed, work.blank
        self.sparse = work.sparse
        self.arms = Arms(work.module)
        self.members: dict[Value, list[Value]] = {v: [v] for v in work.order}
        self.root: dict[Value, Value] = {v: v for v in work.order}
        for a, b in work.forced:
            self.merge(self.root[a], self.root[b])

    def merge(self, a: Value, b: Value) -> None:
        if a is b:
            return
        for v in self.members[b]:
            self.root[v] = a
        self.members[a] += self.members.pop(b)

    def are_one(self, written: Iterable[Written]) -> bool:
        """Return whether each array and its updated version share a buffer, so that writes are in
        place."""
        return all(self.root[w.old] is self.root[w.new] for w in written)

    def disturb(self, a: Value, b: Value) -> bool:
        other = set(self.members[b])
        return any(self.conflicts.get(v, set()) & other for v in self.members[a])

    def join(self, a: Value, b: Value, over: bool) -> None:
        if a not in self.root or b not in self.root or not _fits(a, b):
            return
        a, b = self.root[a], self.root[b]
        if a is not b and not self.disturb(a, b) and not (over and self.differ_in_field(a, b)):
            self.merge(a, b)

    def differ_in_field(self, a: Value, b: Value) -> bool:
        """Return whether two groups are not the same field of a feed's batches (or no field at
        all)."""
        return self.field(a) != self.field(b)

    def field(self, group: Value) -> tuple[str, int] | None:
        """Return the feed and field of which all members are batches, or None if there is not
        exactly one."""
        fields = {self.fed[v] for v in self.members[group] if v in self.fed}
        return fields.pop() if len(fields) == 1 else None

    def arm(self, group: Value) -> int:
        """Return the innermost arm of a branch outside of which a group is dead; for arrays of
        which a rank touches parts, the innermost stretch of the program. Fields of batches live for
        the whole run of an entry, as the engine may write them at any time."""
        members = self.members[group]
        arm = self.arms.shared(members, self.blank)
        if self.sparse.isdisjoint(members) or arm != self.arms.shared(members, ()):
            arm = self.arms.without_stretches(arm)
        fed = any(self.fed.get(v) is not None for v in self.members[group])
        return self.arms.entry_of(arm) if fed else arm

    def reuse_memory(self, keep: list[Value]) -> None:
        """Let temporaries of one size whose lifetimes do not overlap share a buffer, if the arm of
        one lies around the arm of the other. Different arms share memory in any case (overlays)."""
        fixed = {self.root[v] for v in keep}
        homes: list[tuple[Value, Expr]] = []
        arm = {root: self.arm(root) for root in self.members}
        for root in sorted(self.members, key=lambda v: (self.arms.depth(arm[v]), v.id)):
            if root in fixed:
                continue
            size = capacity(root) * root.type.dtype.size
            for home, room in homes:
                same = room == size and home.type.dtype == root.type.dtype
                same = same and self.arms.common(arm[home], arm[root]) == arm[home]
                if same and not self.disturb(home, root) and not self.differ_in_field(home, root):
                    self.merge(home, root)
                    break
            else:
                homes.append((root, size))


# Of the updates of a nest: the array that was there before, and all that are written over it, part
# by part, in one memory.
_Chains = Mapping[Value, tuple[Value, list[Value]]]


def _chains(begins: Iterable[tuple[Value, Value]]) -> _Chains:
    chains: dict[Value, tuple[Value, list[Value]]] = {}
    for base, v in begins:
        chains[v] = chain = chains.get(base, (base, []))
        chain[1].append(v)
    return chains


def _writes(nest: Nest[Value], bases: Mapping[Value, Value]) -> Iterator[tuple[Value, _Write]]:
    """Yield the buffer's value and the write of each part of a nest that writes."""
    keeps: dict[str, LocalValue[Value]] = {}
    for k, part in enumerate(nest.parts):
        if isinstance(part, LocalValue):
            keeps[part.name] = part
        else:
            local = part.value if isinstance(part, Store) else None
            keep = keeps[local.name] if isinstance(local, LocalRead) else None
            yield part.buffer, _write(k, part, keep, bases.get(part.buffer))


def _write(
    number: int, part: Store[Value] | Reduce[Value], keep: LocalValue[Value] | None,
    base: Value | None,
) -> _Write:
    """Return the write of a part of a nest. `keep` is the part that computes the local it
    stores."""
    node = part.value if keep is None else keep.value
    others = {x.buffer for x in loads(node) if x.offset != part.offset or x.bounds}
    if isinstance(part, Store):
        if part.rows:  # what they read is still there
            others.clear()
        others.update(x.buffer for b in part.bounds for x in loads(b.node))
    is_row = isinstance(part, Reduce)
    is_point = not is_row and not (keep is not None and keep.fn)
    return _Write(number, part.offset, node, base, frozenset(others), is_point, is_row)


def _alone(op: Op) -> _Write | None:
    """Return the write of an op that is one store. A store of a single element reads everything
    before it writes, so it may overwrite any operand."""
    write = _write_alone(op)
    if write is None or not isinstance(op.kind, Do):
        return None
    (act,) = op.kind.acts
    is_element = isinstance(act, Store) and not act.bounds and all(v.extent == 1 for v in act.loops)
    return replace(write, others=frozenset()) if is_element else write


def _write_alone(op: Op) -> _Write | None:
    """Return what an op writes that is one store, perhaps of what arrives; None for any other."""
    if not isinstance(op.kind, Do) or len(op.kind.acts) != 1:
        return None
    (act,), bases = op.kind.acts, [x for x, _ in op.kind.begins]
    take = act.take if isinstance(act, Exchange) else None
    store = take or act
    if not isinstance(store, Store):
        return None
    return _write(0, store, None, bases[0] if bases else None)


def _reshaped(act: Act) -> Value | None:
    """Return the array that an act copies element by element to the same offsets (a reshape), else
    None."""
    if not isinstance(act, Store) or act.combine != "set" or act.bounds:
        return None
    load = act.value
    if not isinstance(load, Load) or load.bounds or load.offset != act.offset:
        return None
    return load.buffer


def _nest(op: Op) -> Nest[Value] | None:
    act = op.kind.acts[0] if isinstance(op.kind, Do) and op.kind.acts else None
    return act if isinstance(act, Nest) else None


def _writes_disjoint_part(op: Op) -> bool:
    of = op.kind.of if isinstance(op.kind, Do) else None
    return of is not None and isinstance(of.kind, Update) and of.kind.apart


def _is_sparse(op: Op) -> bool:
    of = op.kind.of if isinstance(op.kind, Do) else None
    return of is not None and isinstance(of.kind, Full) and of.kind.sparse


def _fits(a: Value, b: Value) -> bool:
    """Return whether two values have the same dtype and number of elements, so that one memory
    holds both."""
    if a.type.dtype != b.type.dtype:
        return False
    return a.type.shape == b.type.shape or expr.product(a.type.shape) == expr.product(b.type.shape)


def _number(loops: Loops, work: _Liveness, groups: _Groups) -> BufferAssignment:
    first = {root: min(work.order[v] for v in vs) for root, vs in groups.members.items()}
    of: dict[Value, Buffer] = {}
    names = Fresh()
    buffers: list[Buffer] = []
    for root in sorted(groups.members, key=lambda r: first[r]):
        members = sorted(groups.members[root], key=lambda v: work.order[v])
        hint = next((v.name for v in members if v.name not in _DULL), members[0].name)
        arm = groups.arm(root)  # one that a rank never takes costs it no memory
        sparse = arm != groups.arms.entry_of(arm) or not work.sparse.isdisjoint(members)
        buffer = Buffer(len(buffers), names.name(hint), root.type.dtype, capacity(members[0]),
                        arm=arm, sparse=sparse)
        buffers.append(buffer)
        of.update(dict.fromkeys(members, buffer))
    last = frozenset(op for op, is_last in work.last.items() if is_last)
    return BufferAssignment(loops, tuple(buffers), of, work.across, work.exchanged, last,
                  groups.arms)


# Names that say how a value came about, not what the user called it.
_DULL = {"update", "arg", "loop", "branch", "reduce"} | {k for k, w in OPS.items() if w.inline}
