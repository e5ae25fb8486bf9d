"""Copy elision: what is copied into a part of an array is computed there (destination passing).

Goes in: Loops. Comes out: Loops in which a value that is stored element by element into a part of
an array has no memory of its own: the op that makes it writes it there, and others read it there.
Always holds: every other element of the array that is read meanwhile lies surely elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from codegen.ir import Op, Region, Value, free_values
from codegen.ops import Let
from codegen.plan.grammar import (
    Keep,
    Kept,
    Lane,
    LibraryCall,
    Load,
    Nest,
    Reduce,
    Store,
    Var,
)
from codegen.plan.indexing import affine, loads, strides
from codegen.plan.loops import Act, Do, Loops
from codegen.plan.steps import memory_read, memory_written, nodes, relocated
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


def with_destinations(loops: Loops) -> Loops:
    """Return the Loops, with values computed where they are stored."""
    return loops.with_module(loops.module.mapped(_Placing(loops).region))


@dataclass(frozen=True)
class _Copy:
    """A store of all of `value` into the elements of an array from `begin` on, one after the other:
    `into` is the array with these elements, `base` what it was before. count: how many."""

    value: Value
    base: Value
    into: Value
    begin: Expr
    count: Expr

    def is_apart(self, offset: Expr, loops: Sequence[Var]) -> bool:
        """Return whether an offset surely lies outside of these elements, in all turns of loops."""
        ends = _ends(offset, loops)
        return ends is not None and (expr.nonneg(self.begin - ends[1] - 1)
                                     or expr.nonneg(ends[0] - self.begin - self.count))


@dataclass(frozen=True)
class _Stored:
    """number: of the part of a nest that stores a value; offset: in the array, at a point of its
    loops; None: a routine stores all of it."""

    number: int
    offset: Expr | None


class _Placing:
    def __init__(self, loops: Loops) -> None:
        self.constants, self.named = loops.constants, loops.named

    def region(self, region: Region) -> Region:
        ops = [op.mapped(self.region) for op in region.ops]
        line = _Line(ops, region.results)
        for k, op in enumerate(ops):
            copy = _copied(op)
            if copy is not None and (a := line.made.get(copy.value)) is not None:
                self.place(line, copy, a, k)
        return region.with_ops([op for op in line.ops if op is not None])

    def place(self, line: _Line, copy: _Copy, a: int, b: int) -> None:
        """Have op number a compute what op number b copies, if it and all others that read the
        value, or its array meanwhile, can do with the elements in the array."""
        maker = line.ops[a]
        assert maker is not None
        if line.made.get(copy.base, -1) > a or not self.is_known(copy.begin, line.ops[a:b]):
            return
        readers = [k for k in line.readers(copy.value) if k != b]
        others = [k for k in line.readers(copy.base) if k > a and k != b]
        last = max([b, *readers])
        if not all(map(line.is_plain, (*readers, *others))) or max(others, default=a) > b:
            return  # some need it as it is, or the array as it was
        if any(line.writes_over(k, copy.into) for k in line.readers(copy.into) if k < last):
            return
        new = {k: op for k in (*readers, *others)
               if (op := self.reading(line.ops[k], copy)) is not None}
        made = self.making(maker, copy)
        if made is None or len(new) < len({*readers, *others}):
            return
        line.put({**new, a: made, b: None})

    def is_known(self, begin: Expr, between: Iterable[Op | None]) -> bool:
        """Return whether none of these ops defines a symbol of an offset."""
        symbols, left = set[Sym](), set(begin.symbols())
        while left:
            symbols |= left
            left = {s for x in left if x in self.named for s in self.named[x].symbols()} - symbols
        return all(op is None or not isinstance(op.what, Let) or op.what.counter not in symbols
                   for op in between)

    def reading(self, op: Op | None, copy: _Copy) -> Op | None:
        """Return an op that reads the value, or other elements of the array, where they lie now;
        None where those may be the same ones."""
        assert op is not None and isinstance(op.what, Do)
        if any(x in (copy.value, copy.base) for x, _ in op.what.begins):
            return None
        for act in op.what.acts:
            if isinstance(act, LibraryCall) and any(p.buffer is copy.base for p in act.parts):
                return None
            for load, loops, _ in _loads(act):
                if load.buffer is copy.base and (
                        load.bounds or not copy.is_apart(load.offset, loops)):
                    return None
        places = {copy.value: (copy.into, copy.begin), copy.base: (copy.into, expr.const(0))}
        acts = tuple(relocated(act, places) for act in op.what.acts)
        return self.with_acts(op, op.what, acts, op.what.begins)

    def making(self, op: Op, copy: _Copy) -> Op | None:
        """Return the op that writes the value into the array; None where it may read elements of
        that after it has written them."""
        what, own = op.what, copy.base in op.results
        assert isinstance(what, Do)
        if len(what.acts) != 1 or any(v is copy.value for _, v in what.begins):
            return None
        (act,) = what.acts
        stored = _stored(act, copy)
        if stored is None or (what.begins and not isinstance(act, Nest)):
            return None
        older = {copy.base}  # what lies in the same memory
        for x, v in reversed(what.begins):
            older |= {x} if v in older else set()
        for load, loops, number in _loads(act):
            if load.buffer not in older:
                continue
            apart = isinstance(act, Nest) and not load.bounds and copy.is_apart(load.offset, loops)
            before = number <= stored.number and not load.bounds
            if not apart and not (before and load.offset == stored.offset):
                return None
        if isinstance(act, LibraryCall) and copy.base in memory_read(act):
            return None
        elsewhere = {copy.value: (copy.into, copy.begin)}
        if isinstance(act, Nest):
            elsewhere[copy.base] = copy.into, expr.const(0)
        begins = tuple((x, copy.into if v is copy.base else v) for x, v in what.begins)
        begins = begins if own else (*begins, (copy.base, copy.into))
        gone = {copy.value, copy.base}
        results = (*(v for v in op.results if v not in gone), copy.into)
        acts = (relocated(act, elsewhere),)
        return self.with_acts(replace(op, results=results), what, acts, begins)

    def with_acts(
        self, op: Op, what: Do, acts: tuple[Act, ...], begins: tuple[tuple[Value, Value], ...]
    ) -> Op:
        read = dict.fromkeys(x for x, _ in begins)
        read |= dict.fromkeys(v for act in acts for v in memory_read(act))
        own = {*op.results, *what.scratch}
        operands = tuple(v for v in read if v not in self.constants and v not in own)
        return replace(op, what=replace(what, acts=acts, begins=begins), operands=operands)


class _Line:
    """The ops of a region by number; None: it is gone. made: which makes a value."""

    def __init__(self, ops: Sequence[Op], results: Iterable[Value]) -> None:
        self.ops: list[Op | None] = [*ops, None]  # the last one stands for the region's results
        self.results = set(results)
        self.made: dict[Value, int] = {}
        self._readers: dict[Value, set[int]] = {v: {len(ops)} for v in self.results}
        for k, op in enumerate(ops):
            self._add(k, op)

    def _add(self, k: int, op: Op) -> None:
        self.made.update(dict.fromkeys(op.results, k))
        for v in _read(op):
            self._readers.setdefault(v, set()).add(k)

    def put(self, new: dict[int, Op | None]) -> None:
        """Replace ops."""
        for k, op in new.items():
            if (old := self.ops[k]) is not None:
                for v in _read(old):
                    self._readers[v].discard(k)
                for v in old.results:
                    self.made.pop(v, None)
            self.ops[k] = op
        for k, op in new.items():
            if op is not None:
                self._add(k, op)

    def readers(self, value: Value) -> list[int]:
        """Return the numbers of the ops that read a value, in order."""
        return sorted(self._readers.get(value, ()))

    def is_plain(self, k: int) -> bool:
        """Return whether all that an op reads is read element by element, or by a routine that is
        told where it lies."""
        op = self.ops[k]
        return op is not None and isinstance(op.what, Do) and all(
            isinstance(act, Store | Reduce | Nest | Lane | LibraryCall) for act in op.what.acts)

    def writes_over(self, k: int, value: Value) -> bool:
        """Return whether an op may write into the memory of a value."""
        op = self.ops[k]
        if op is None or op.regions:
            return True
        return isinstance(op.what, Do) and any(x is value for x, _ in op.what.begins)


def _read(op: Op) -> Iterator[Value]:
    yield from op.operands
    for inner in op.regions:
        yield from free_values(inner)


def _copied(op: Op) -> _Copy | None:
    """Return the copy that an op is, of all of a value, if it is one."""
    what = op.what
    if not isinstance(what, Do) or len(what.acts) != 1 or len(what.begins) != 1:
        return None
    (store,), ((base, into),) = what.acts, what.begins
    if not isinstance(store, Store) or store.combine != "set" or store.rows or store.bounds:
        return None
    load = store.value
    if not isinstance(load, Load) or load.bounds or load.buffer is base:
        return None
    if load.buffer.type.dtype != into.type.dtype or (
            what.of is not None and getattr(what.of.what, "apart", False)):
        return None
    loops = tuple(v for v in store.loops if v.extent != 1)
    extents = tuple(v.extent for v in loops)
    count, to = expr.product(extents), affine(store.offset, loops)
    whole = affine(load.offset, loops) == (expr.const(0), strides(extents))
    if not loops or not whole or to is None or to[1] != strides(extents) or (
            count != expr.product(load.buffer.type.shape)):
        return None
    return _Copy(load.buffer, base, into, to[0], count)


def _ends(offset: Expr, loops: Sequence[Var]) -> tuple[Expr, Expr] | None:
    """Return the least and the largest that an offset is in turns of loops, if it is affine."""
    turning = [v for v in loops if v.sym in offset.symbols()]
    found = affine(offset, turning)
    if found is None:
        return None
    low = high = found[0]
    for v, step in zip(turning, found[1], strict=True):
        if expr.nonneg(step):
            high = high + step * (v.extent - 1)
        elif expr.nonneg(-step):
            low = low + step * (v.extent - 1)
        else:
            return None
    return low, high


def _loads(act: Act) -> Iterator[tuple[Load[Value], tuple[Var, ...], int]]:
    """Yield what is read, the loops around, and by which part of a nest."""
    if isinstance(act, Nest):
        number = 0
        for sweep in act.sweeps:
            for part in sweep.parts:
                rows = (*part.loops, *part.inner) if isinstance(part, Reduce) else ()
                for node in nodes(part):
                    for load in loads(node):
                        yield load, (*act.loops, *sweep.loops, *rows), number
                number += 1
        return
    around: tuple[Var, ...] = ()
    if isinstance(act, Store | Lane | LibraryCall):
        around = act.loops
    if isinstance(act, Reduce):
        around = (*act.loops, *act.inner)
    if isinstance(act, Lane):
        around = (*around, act.along)
    for node in nodes(act):
        for load in loads(node):
            yield load, around, 0


def _stored(act: Act, copy: _Copy) -> _Stored | None:
    """Return where in the array an act stores the value, if it does so at each point alike."""
    if isinstance(act, LibraryCall):
        return _Stored(0, None)
    parts = act.parts if isinstance(act, Nest) else [act]
    writing = [(k, part) for k, part in enumerate(parts) if copy.value in memory_written(part)]
    if len(writing) != 1:
        return None
    (number, part), = writing
    if not isinstance(part, Store) or part.rows or part.bounds or part.combine != "set":
        return None
    folds = {p.name for p in parts if isinstance(p, Keep) and p.fn}
    is_folded = isinstance(part.value, Kept) and part.value.name in folds
    return None if is_folded else _Stored(number, part.offset + copy.begin)
