"""Copy elision: what is copied into a part of an array is computed there (destination passing).

Goes in: Loops. Comes out: Loops in which a value that is stored element by element into a part of
an array has no memory of its own: the op that makes it writes it there, and others read it there.
Always holds: between the early write and the old copy, no op touches the elements that are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from codegen.ir.accesses import ElementRange, LoopNest, MemoryAccess, accesses, is_loop_nest
from codegen.ir.graph import Op, Region, Value, free_values
from codegen.ir.loops import Act, Do, Loops
from codegen.ir.plan import LibraryCall, Load, LocalRead, Nest, Store
from codegen.ir.steps import memory_read, relocated
from codegen.loops.in_place_states import versions
from codegen.ops import Let
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


def copy_elision(loops: Loops) -> Loops:
    """Return the Loops, with values computed where they are stored."""
    return loops.with_module(loops.module.mapped(_Placing(loops).region))


@dataclass
class _Write:
    """A store into an array by op number `number`.

    into: the array after the store.
    range: the elements that it writes; None if that is not known.
    part: the number of the storing part of a nest; None if the op does nothing else.
    value: the array that it copies as a whole, if it is a copy.
    maker: the number of the op that makes `value` and is chosen to store it here directly.
    last: the number of the last op that reads `value`.
    """

    number: int
    into: Value
    range: ElementRange | None
    part: int | None = None
    value: Value | None = None
    maker: int | None = None
    last: int = 0

    @property
    def now(self) -> int:
        """Return the number of the op that writes it after the rewrite."""
        return self.number if self.maker is None else self.maker

    @property
    def begin(self) -> Expr:
        assert self.range is not None
        return self.range.low


@dataclass
class _Array:
    """An array with the writes over it, in order. `stale`: an op reads an old version after a newer
    one is written. `reads` caches what _Line.touching returns."""

    root: Value
    begins: int  # number of the op that makes the root
    writes: list[_Write] = field(default_factory=list)
    stale: bool = False
    reads: list[tuple[int, list[MemoryAccess[Value]] | None]] | None = None

    @cached_property
    def names(self) -> set[Value]:
        return {self.root, *(w.into for w in self.writes)}

    def version(self, before: int) -> Value:
        """Return the array as it is once all that ops before a number write is there."""
        count = sum(w.now < before for w in self.writes)
        return self.writes[count - 1].into if count else self.root


class _Placing:
    """Chooses which ops write their result directly into a part of an array."""

    def __init__(self, loops: Loops) -> None:
        self.constants, self.named = loops.constants, loops.named
        self.outputs = [o.value for o in loops.module.outputs]
        self.in_states = versions(loops)

    def region(self, region: Region) -> Region:
        ops = [op.mapped(self.region) for op in region.ops]
        if not any(_copies(op) for op in ops):
            return region.with_ops(ops)
        line = _Line(ops, (*region.results, *self.outputs))
        placed = set[Value]()
        for array in line.arrays:
            for write in array.writes if not array.stale else ():
                v = write.value
                if v is not None and v not in placed and self.fits(line, array, write):
                    write.maker = line.makers[v]
                    placed.add(v)
        return region.with_ops(_Rewriting(line, self.constants).ops())

    def fits(self, line: _Line, array: _Array, copy: _Write) -> bool:
        """Return whether the op that makes a value may write it where it is copied to."""
        assert copy.value is not None and copy.range is not None
        a = line.makers.get(copy.value, -1)
        if a <= array.begins or not self.is_known(copy.range, line.ops[a:copy.number]):
            return False
        readers = [k for k in line.readers(copy.value) if k != copy.number or copy.part is not None]
        copy.last = max([copy.number, *readers])
        if not all(map(line.is_plain, readers)) or any(
                copy.value is x for k in readers for x, _ in line.begins(k)):
            return False
        behind = False
        for write in array.writes:
            behind |= write is copy
            early = write.number <= copy.last if behind else max(write.number, write.last) >= a
            if write is not copy and early and not (
                    write.range is not None and write.range.is_disjoint(copy.range)):
                return False
        for k, reads in line.touching(array):
            if a < k <= copy.last and reads is None:
                return False
            if a < k <= copy.number and any(read.may_overlap(copy.range) for read in reads or ()):
                return False
        return self.may_write(line.ops[a], array, copy)

    def is_known(self, range: ElementRange, between: Iterable[Op]) -> bool:
        """Return whether none of these ops defines a symbol of where a range lies."""
        symbols, left = set[Sym](), set(range.low.symbols())
        while left:
            symbols |= left
            left = {s for x in left if x in self.named for s in self.named[x].symbols()} - symbols
        return all(not isinstance(op.kind, Let) or op.kind.counter not in symbols
                   for op in between)

    def may_write(self, op: Op, array: _Array, copy: _Write) -> bool:
        """Return whether an op may write the value into the array: it reads no element of it that
        it has written before."""
        do = op.kind
        assert copy.range is not None and copy.value is not None
        if not isinstance(do, Do) or len(do.acts) != 1:
            return False
        (act,), own = do.acts, {v for _, v in do.begins}
        if not is_loop_nest(act) or own and (copy.value in own or not isinstance(act, Nest)):
            return False
        reads = [a for a in accesses(act) if a.buffer in array.names and not a.writes]
        if isinstance(act, LibraryCall):  # only stores write into a state where it lies
            return not reads and array.names.isdisjoint(self.in_states)
        store = _store_of(act, copy.value)
        if store is None or _is_folded(act, store[1]):
            return False
        write, offset = store[0], store[0].offset + copy.begin
        return not any(a.may_overlap(copy.range) and not (
            a.is_at(offset) and a.part <= write.part) for a in reads)


class _Line:
    """The ops of a region by number; the region's results and the program's outputs count as reads
    behind the last op. `makers` maps a value to its op's number; `arrays` are those that copies go
    into."""

    def __init__(self, ops: Sequence[Op], results: Iterable[Value]) -> None:
        self.ops = ops
        self.makers = {v: k for k, op in enumerate(ops) for v in op.results}
        self._readers: dict[Value, list[int]] = {}
        latest: dict[Value, _Array] = {}  # by the array as it is
        before: dict[Value, _Array] = {}  # by the array as it was
        arrays: list[_Array] = []
        for k, op in enumerate(ops):
            for v in _read(op):
                self._readers.setdefault(v, []).append(k)
                if v in before:
                    before[v].stale = True
            for x, v in self.begins(k):
                if x in before:  # another array begins so too, perhaps by the same op
                    before[x].stale = True
                array = latest.pop(x, None)
                if array is None:
                    array = _Array(x, self.makers.get(x, -1))
                    arrays.append(array)
                array.writes.append(_write_of(op, k, v))
                before[x] = latest[v] = array
        for v in results:
            self._readers.setdefault(v, []).append(len(ops))
            if v in before:
                before[v].stale = True
        self.arrays = [a for a in arrays if any(w.value is not None for w in a.writes)]

    def readers(self, value: Value) -> list[int]:
        """Return the numbers of the ops that read a value, in order."""
        return self._readers.get(value, [])

    def begins(self, k: int) -> tuple[tuple[Value, Value], ...]:
        do = self.ops[k].kind
        return do.begins if isinstance(do, Do) else ()

    def is_plain(self, k: int) -> bool:
        """Return whether all that an op reads is read element by element, or by a routine that is
        told where it lies."""
        do = self.ops[k].kind if k < len(self.ops) else None
        return isinstance(do, Do) and all(is_loop_nest(act) for act in do.acts)

    def touching(self, array: _Array) -> list[tuple[int, list[MemoryAccess[Value]] | None]]:
        """Return the numbers of the ops that read an array, and how they read it; None for an op
        whose accesses are not known, as it is not plain."""
        if array.reads is None:
            array.reads = []
            for k in sorted({k for name in array.names for k in self.readers(name)}):
                do = self.ops[k].kind if self.is_plain(k) else None
                array.reads.append((k, None if not isinstance(do, Do) else [
                    a for act in do.acts if is_loop_nest(act) for a in accesses(act)
                    if a.buffer in array.names and not a.writes]))
        return array.reads


class _Rewriting:
    """Rewrites the ops of a region once the makers of copies are chosen."""

    def __init__(self, line: _Line, constants: Mapping[Value, object]) -> None:
        self.line, self.constants = line, constants
        self.arrays = [a for a in line.arrays if any(w.maker is not None for w in a.writes)]
        self.array_of = {name: a for a in self.arrays for name in a.names}
        self.copy_of = {w.value: (a, w) for a in self.arrays for w in a.writes
                        if w.maker is not None and w.value is not None}

    def ops(self) -> Iterator[Op]:
        for k, op in enumerate(self.line.ops):
            if not isinstance(op.kind, Do):
                yield op
            elif (new := self.op(k, op, op.kind)) is not None:
                yield new

    def op(self, k: int, op: Op, do: Do) -> Op | None:
        """Return an op rewritten to the arrays' new versions, or None if it was only a copy."""
        touched = dict.fromkeys((*op.operands, *op.results))
        copied = [v for v in touched if v in self.copy_of]
        touched_arrays = [self.array_of[v] for v in touched if v in self.array_of]
        touched_arrays += [self.copy_of[v][0] for v in copied]
        arrays = list({id(a): a for a in touched_arrays}.values())
        if not arrays:
            return op
        acts = self.left(k, do.acts)
        if acts is None:
            return None
        places: dict[Value, tuple[Value, Expr]] = {}
        begins = [(x, v) for x, v in do.begins
                  if v not in self.array_of or v is self.array_of[v].root]
        gone, new = set[Value](copied), list[Value]()
        for array in arrays:
            old, now = array.version(k), array.version(k + 1)
            made_here = any(w.maker == k for w in array.writes)
            own = {w.into for w in array.writes if w.number == k}
            for name in array.names:
                places[name] = now if made_here or name in own else old, expr.const(0)
            if old is not now:
                begins.append((old, now))
                new.append(now)
            gone |= array.names - {array.root}
        for v in copied:
            array, w = self.copy_of[v]
            places[v] = array.version(k + 1), w.begin
        acts = tuple(relocated(act, places) for act in acts)
        results = (*(v for v in op.results if v not in gone), *new)
        read = dict.fromkeys(x for x, _ in begins)
        read |= dict.fromkeys(v for act in acts for v in memory_read(act))
        own_values = {*results, *do.scratch}
        operands = tuple(v for v in read if v not in self.constants and v not in own_values)
        do = replace(do, acts=acts, begins=tuple(begins))
        return replace(op, kind=do, operands=operands, results=results)

    def left(self, k: int, acts: tuple[Act, ...]) -> tuple[Act, ...] | None:
        """Return the acts of an op without the copies that others make; None: nothing is left."""
        moved = [w for a in self.arrays for w in a.writes if w.number == k and w.maker is not None]
        if not moved:
            return acts
        (act,) = acts
        if not isinstance(act, Nest):
            return None
        parts = {w.part for w in moved}
        sweeps, number = [], 0
        for sweep in act.sweeps:
            count = len(sweep.parts)
            some = tuple(p for n, p in enumerate(sweep.parts, number) if n not in parts)
            number += count
            sweeps += [replace(sweep, parts=some)] if some else []
        return (replace(act, sweeps=tuple(sweeps)),) if sweeps else None


def _read(op: Op) -> Iterator[Value]:
    yield from dict.fromkeys((*op.operands, *(
        v for inner in op.regions for v in free_values(inner))))


def _copies(op: Op) -> bool:
    """Return whether an op may copy something into a part of an array."""
    do = op.kind
    if not isinstance(do, Do) or not do.begins or len(do.acts) != 1:
        return False
    (act,) = do.acts
    parts = act.parts if isinstance(act, Nest) else [act]
    return any(isinstance(p, Store) and isinstance(p.value, Load) for p in parts)


def _write_of(op: Op, k: int, into: Value) -> _Write:
    """Return how op number k writes into an array, which is `into` behind it."""
    do = op.kind
    assert isinstance(do, Do)
    unknown = _Write(k, into, None)
    if len(do.acts) != 1 or (do.of is not None and getattr(do.of.kind, "apart", False)):
        return unknown
    (act,) = do.acts
    store = _store_of(act, into) if is_loop_nest(act) else None
    if store is None:
        return unknown
    access, part = store
    write, load = _Write(k, into, access.range), part.value
    if not isinstance(load, Load) or load.bounds or load.buffer.type.dtype != into.type.dtype:
        return write
    read = MemoryAccess(load.buffer, load.offset, access.loops)
    is_whole = read.contiguous_from == 0 and (
        expr.product(v.extent for v in read.loops) == expr.product(load.buffer.type.shape))
    if read.loops and is_whole and access.contiguous_from is not None and write.range is not None:
        write.value = load.buffer
        write.part = access.part if isinstance(act, Nest) else None
    return write


def _store_of(
    act: LoopNest[Value], value: Value
) -> tuple[MemoryAccess[Value], Store[Value]] | None:
    """Return the access and the store by which an act writes a value; None unless it is one plain
    store."""
    writes = [a for a in accesses(act) if a.writes and a.buffer is value]
    if len(writes) != 1:
        return None
    part = act.parts[writes[0].part] if isinstance(act, Nest) else act
    return (writes[0], part) if isinstance(part, Store) and part.is_plain else None


def _is_folded(act: LoopNest[Value], store: Store[Value]) -> bool:
    """Return whether a nest stores the result of a fold: one for many points."""
    folds = {f.name for s in act.sweeps for f in s.folds} if isinstance(act, Nest) else set()
    return isinstance(store.value, LocalRead) and store.value.name in folds
