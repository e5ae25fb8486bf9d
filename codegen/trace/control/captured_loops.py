"""Loops captured as ops: the body is run until its carried variables and their types are stable.

The first pass carries nothing and only shows what the body changes; from then on changed leaves
and written storages enter as region arguments.
Always holds: what a finished loop carries has one type at entry and at the end of every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from codegen import dtypes, ops
from codegen.errors import Place, UnsupportedError
from codegen.graph import layout_propagation
from codegen.ir.graph import ArrayType, Region, Value, walk
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.trace.array import Array, as_value, is_traced
from codegen.trace.context import Block, Context
from codegen.trace.control.carry_cache import CarryCache, Key, LoopCarry
from codegen.trace.control.container_aliases import LoopAliases
from codegen.trace.control.exits import RESULT
from codegen.trace.control.predicated_body import predicated_body
from codegen.trace.control.regions import (
    Capture,
    Gone,
    array_of,
    carry_error,
    condition,
    hint,
    laid_as,
    link,
    value_of,
)
from codegen.trace.number import Number, number
from codegen.trace.state import (
    UNDEFINED,
    Code,
    Held,
    LeafType,
    Tree,
    attribute_set,
    fill,
    joined,
    leaf_type,
    memory_of,
    same,
    storage_of,
    where_grown,
)
from codegen.trace.storage import Storage
from codegen.trace.view import View

_PASSES = 24  # a loop that needs more has no fixed point: each pass carries more, or widens a type


_Constants = dict[Place | None, list[tuple[Any, ...]]]


def _constants(block: Block) -> _Constants:
    """Return the constants of a block, by the place in the source where they stand."""
    constants: _Constants = {}
    for op in walk(block.close(())):
        if isinstance(op.kind, (ops.Full, ops.Const)):
            data = op.kind.value if isinstance(op.kind, ops.Full) else op.kind.data
            shown = str(data) if np.size(data) < 9 else hash(np.asarray(data).tobytes())
            constants.setdefault(op.place, []).append((op.result.type, shown))
    return constants


class Counter:
    """The counter of a captured loop: its start, stop and step. A loop whose stop is None ends
    where its condition fails."""

    def __init__(self, context: Context, name: str, start: Expr, stop: Expr | None, step: Expr):
        self.start, self.stop, self.step = start, stop, step
        lo, hi = start, None if stop is None else stop - 1
        if step.is_const and step.value < 0:
            lo, hi = None if stop is None else stop + 1, start  # type: ignore[assignment]
        self.sym = Sym(context.unique(name), "counter", lo, hi)

    @property
    def value(self) -> Any:
        only = self.sym.lo if self.sym.lo is not None and self.sym.lo == self.sym.hi else None
        return number(expr.symbol(self.sym) if only is None else only)

    @property
    def loop(self) -> ops.Loop:
        return ops.Loop(self.sym, self.start, self.stop, self.step)


@dataclass
class LiveOut:
    """The live-out variables of a loop: it binds them, and code after it reads them. runs: whether
    the loop has one iteration at least, so that they have a value then. held: what they hold at the
    end of an iteration."""

    names: Sequence[str] = ()
    runs: bool = False
    counter: Sym | None = None
    held: dict[str, Held] = field(default_factory=dict)

    def has(self, name: str, before: Held | None) -> bool:
        """Return whether the loop carries this variable out, which has no value before it. The
        result of a return is read only where a flag says that the function has returned."""
        return before is None and name in self.names and (self.runs or name == RESULT)


class Loop(Capture):
    """A loop is captured by passes over its body. Its flags are False when a pass begins."""

    def __init__(self, context: Context, code: Code, live_out: LiveOut | None = None) -> None:
        self.live_out = live_out or LiveOut()
        for name in code.private:  # no iteration reads its old value
            if self.live_out.runs or not code.reads_later(name):
                code.names.unbind(name)
        super().__init__(context, code, "loop")
        self.turns: int | None = None  # the number of iterations where it is known while building
        self.flags = code.flags
        self.carried: dict[Key, LeafType] = {}
        self.stored: dict[Storage, ArrayType] = {}
        self.stale: dict[Storage, None] = {}
        self.start: dict[str, list[Any]] = {}
        self.carried_arrays: dict[Key, Array] = {}
        # memory that a carried array may be: storages from before the loop, other carried leaves
        self.aliases: dict[Key, dict[Storage | Key, None]] = {}
        self.body: Region | None = None
        self.constants: _Constants = {}
        self.again = False  # the last pass was one more, to compare its constants
        self.passes = 0
        self.sharing = LoopAliases(context, self.place, _trees(self.entry), code.bound,
                                   self.outside)
        self.types = {(n, j): leaf_type(leaf) for n, h in self.entry.items() if h is not None
                      for j, leaf in enumerate(h.leaves)}
        self.inner_carries = CarryCache()
        self.changed: set[Key] = set()  # in the last pass
        self.initial_keys: list[Key] = []  # what it began with
        again = None if context.rank_view else context.outermost  # a shard has another shape
        self.outer_carries = (context.loops[-1].inner_carries if context.loops
                              else again or CarryCache())
        self.number = self.outer_carries.number()
        before = self.outer_carries.carries.get(self.number)
        if before and (context.loops or self._has_layouts_of(before)):
            self.begin_with(before)
        elif code.changes:
            self.begin_with_all(code.changes == "writes")

    def _has_layouts_of(self, before: LoopCarry) -> bool:
        """Return whether all carried arrays have the layouts that they had in the last capture.
        They differ where inputs have other layouts now."""
        had = ((self.types.get(key), t) for key, t in before.carried.items())
        return all(h is None or (h.shape, h.layout) == (t.shape, t.layout) for h, t in had)

    def begin_with(self, before: LoopCarry) -> None:
        """Begin with what the loop carried when it was captured last, where the types allow it."""
        for key, t in before.carried.items():
            had = self.types.get(key)
            inside = had is None and key[0] in before.held
            if inside and self.live_out.has(key[0], self.entry.get(key[0])):
                continue
            if had is None or (not had.weak and had.dtype != t.dtype) or joined(had, t) != t:
                return
            self.initial_keys.append(key)
        self.carried.update(before.carried)
        self.live_out.held.update(before.held)
        for memory, kind in before.stored.items():
            if (storage := storage_of(self.entry, memory)) in self.serials:
                self.stored[storage] = kind
        for key, others in before.aliases.items():
            storages = (storage_of(self.entry, other) for other in others)
            self.aliases[key] = dict.fromkeys(
                o for o in storages if o in self.serials or o in self.carried)

    def begin_with_all(self, written: bool) -> None:
        """Begin with all arrays that the variables hold, as rebound or as written."""
        for (name, j), t in self.types.items():
            leaf = self._leaf(self.entry, (name, j))
            if t is None or not isinstance(leaf, Array):
                continue
            if written:
                self.stored[leaf.storage] = leaf.storage.value.type
            else:
                self.carried[name, j] = t
                self.initial_keys.append((name, j))

    def carry(self) -> LoopCarry:
        """Return what this loop carries, for its next capture."""
        names = memory_of(self.entry)
        aliases = {k: tuple(names.get(o, o) if isinstance(o, Storage) else o for o in others)
                   for k, others in self.aliases.items()}
        stored = {names.get(s, s): t for s, t in self.stored.items()}
        return LoopCarry(dict(self.carried), stored, aliases, dict(self.live_out.held))

    # ---- one pass -------------------------------------------------------------------------------

    def start_pass(self) -> None:
        self.passes += 1
        if self.passes > _PASSES:
            names = ", ".join(sorted({name for name, _ in self.carried}))
            raise UnsupportedError("variables of this loop change their type in every turn",
                                   place=self.place, found=f"{names} change")
        self.inner_carries.met.clear()
        block = self.block()
        self.begin(block)
        self.enter(block.args)

    def block(self) -> Block:
        """Return a new block, with one argument for each value that is carried."""
        paths: dict[str, list[str]] = {}
        for name, _ in self.carried:
            if name not in paths and (held := self.entry[name] or self.live_out.held[name]):
                paths[name] = list(held.tree.paths())
        named = [(hint(n, paths[n][j]), t.array) for (n, j), t in self.carried.items()]
        named += [("memory", t) for t in self.stored.values()]
        return Block(tuple(Value(name, t) for name, t in named))

    def entering(self) -> Iterator[tuple[Value, Any, View]]:
        """Yield the arguments of the open pass, each with the content and the view that it has
        before the loop. Variables without a value before the loop are left out: every iteration
        binds them before it reads them."""
        before = {s: content for s, content, _ in self.mark.storages}
        begun: list[tuple[Any, View] | None] = []
        for name, j in self.carried:
            held = self.entry[name]
            leaf = None if held is None else held.leaves[j]
            begun.append(None if held is None else (before.get(leaf.storage), leaf.seen)
                         if isinstance(leaf, Array) else (leaf, ()))
        begun += [(before.get(s), ()) for s in self.stored]
        if self.open is not None:
            yield from ((a, *b) for a, b in zip(self.open.args, begun) if b is not None)

    def _path(self, name: str, j: int) -> str:
        held = self.entry[name] or self.live_out.held[name]
        return list(held.tree.paths())[j]

    def enter(self, args: Sequence[Value]) -> None:
        """Let variables and storages show the arguments."""
        values = iter(args)
        self.start = {n: list(h.leaves) for n, h in self.entry.items() if h is not None}
        self.carried_arrays = {k: array_of(self.context, next(values), t)
                               for k, t in self.carried.items()}
        self._link(self.carried_arrays)
        first: dict[Storage, Storage] = {}
        for (name, j), array in self.carried_arrays.items():
            if name in self.live_out.held:
                continue  # it has no value when a turn begins
            before = self.start[name][j]
            if isinstance(before, Array) and not before.scalar:
                link(array.storage, before.storage, "loop", self.place)
                twin = first.setdefault(before.storage, array.storage)
                link(array.storage, twin, "loop", self.place)
            self.start[name][j] = array
        for flag in self.flags:
            self.start[flag] = [False]
        for name, leaves in self.start.items():
            held = self.entry[name]
            assert held is not None
            value = fill(held.tree, iter(leaves))
            if self.names.get(name) is not value:
                self.names.put(name, value)
        for storage in self.stored:
            storage.value = next(values)
        self.sharing.begin()

    def end_pass(self) -> bool:
        """End a pass; return whether it was the last, as it carries nothing new. Else variables and
        storages are put back to what they were."""
        after = self.after()
        stable = self._compare(after) and not self.filled
        stable = self.sharing.end(_trees(after)) and stable
        stale: dict[Storage, None] = {}
        stored: dict[Storage, ArrayType] = {}
        before = {s: content for s, content, _ in self.mark.storages}
        for storage in self.written():
            if isinstance(storage.value, Gone):
                stale[storage] = None
                continue
            had = self.stored.get(storage) or before[storage].type
            stored[storage] = layout_propagation.met(had, storage.value.type)
        stable = self._find_aliases(after) and stable and stored == self.stored
        stable = self._constants_repeat(stable) and stable
        if stable and not self.changed.issuperset(self.initial_keys):  # it carries too much
            self.carried, stored, self.aliases, self.initial_keys = {}, {}, {}, []
            self.live_out.held.clear()
            stable = False
        if stable:
            values = [value_of(self.context, self._leaf(after, k), t)
                      for k, t in self.carried.items()]
            stable = self._layouts_known(values)
        if stable:
            self.stale = stale
            self._after = after
            values += [laid_as(self.context, s.value, t.layout) for s, t in self.stored.items()]
            self.body = self.close().close(values)
        else:
            if self.passes > 3:  # from now on it only grows, so that a fixed point is reached
                stored = self.stored | stored
            self.stored = stored
            self.close()
        self.put_back()
        self.mark.forget_later(self.context, "loop", self.place)
        if not stable:
            self.mark.restore_declared(self.context)
        return stable

    def _constants_repeat(self, stable: bool) -> bool:
        """Return whether this pass made the same constants as the one before. Raise
        UnsupportedError where two passes that carry the same values make different constants: then
        the body calls something whose state the capture cannot see."""
        assert self.open is not None
        before, self.constants = self.constants, _constants(self.open)
        again, self.again = self.again, False
        if not stable:
            return False
        for place, values in self.constants.items():
            had = before.get(place, values)
            if len(had) == len(values) and had != values:
                if again:
                    raise UnsupportedError(
                        "this gives another constant each time Python runs the body of the loop",
                        place=place,
                        expected="values that stay as they are: Python runs the body of a compiled "
                        "loop while building, not once per iteration",
                        found="two arrays" if isinstance(had[0][1], int) else
                        f"{had[0][1]}, then {values[0][1]}",
                        remedy="compute it before the loop, or Python's own range, which unrolls",
                    )
                self.again = True
                return False
        return True

    @staticmethod
    def _leaf(variables: dict[str, Held | None], key: Key) -> Any:
        held = variables[key[0]]
        assert held is not None
        return held.leaves[key[1]]

    def _compare(self, after: dict[str, Held | None]) -> bool:
        """Record which variables the pass changed; return False if something new must be
        carried."""
        self.changed, stable = set(), True
        for name, before in self.entry.items():
            if before is None:  # first bound in the body
                stable = self._carry_out(name, after.get(name)) and stable
                continue
            now = after.get(name)
            if now is None:
                raise carry_error("loop", name, "", self.place, before.value, UNDEFINED)
            if not before.tree.like(now.tree):
                self._refuse_structure(name, before, now)
            for j, (start, end) in enumerate(zip(self.start[name], now.leaves)):
                if same(start, end):
                    continue
                self.changed.add((name, j))
                t = self._type(name, j, before.leaves[j], end)
                if self.carried.get((name, j)) != t:
                    self.carried[name, j] = t
                    stable = False
        return stable

    def _carry_out(self, name: str, now: Held | None) -> bool:
        """Carry a variable that is bound in the body and read after the loop; return whether it was
        carried already. Variables that nothing reads after the loop are local to the body."""
        if not self.live_out.has(name, self.entry[name]) or now is None:
            gone = [k for k in self.carried if k[0] == name]
            for key in gone:
                del self.carried[key]
            self.live_out.held.pop(name, None)
            return not gone
        types = [leaf_type(leaf) for leaf in now.leaves]
        if any(self.live_out.counter in e.symbols() for t in types if t for e in t.shape):
            return True  # its shape differs between iterations
        before = self.live_out.held.get(name)
        if before is not None and not before.tree.like(now.tree):
            self._refuse_structure(name, before, now)
        self.live_out.held[name] = now
        stable = True
        for j, (leaf, t) in enumerate(zip(now.leaves, types)):
            known = self.carried.get((name, j))
            if t is None or (known is None and not isinstance(leaf, (Array, Number))):
                continue  # the same Python value in every iteration
            joint = t if known is None else joined(known, t)
            if joint is None:
                raise carry_error("loop", name, self._path(name, j), self.place, known, t)
            stable = stable and joint == known
            self.carried[name, j] = joint
        return stable

    def _layouts_known(self, values: Sequence[Value]) -> bool:
        """Return whether the layouts of all carried arrays are known. A layout becomes known where
        a carried array is a view, which has to be read first."""
        stable = True
        for (key, t), value in zip(list(self.carried.items()), values):
            if t.layout is None and value.type.layout:
                laid = replace(t, layout=value.type.layout, free=value.type.free)
                self.carried[key] = laid
                stable = False
        return stable

    def _find_aliases(self, after: dict[str, Held | None]) -> bool:
        """Record which memory carried arrays may alias at the end of a pass; return whether all of
        these aliases were known."""
        owner = {a.storage: key for key, a in self.carried_arrays.items()}
        maker: dict[Storage, Key] = {}
        aliases: dict[Key, dict[Storage | Key, None]] = {}
        for key in self.carried:
            leaf = self._leaf(after, key)
            if not isinstance(leaf, Array) or leaf.scalar or leaf is self.carried_arrays.get(key):
                continue
            others = aliases.setdefault(key, {})
            for storage in (leaf.storage, *leaf.storage.shadows):  # those that it may be, too
                if storage in self.serials:
                    others[storage] = None
                elif storage in owner and self.entry[owner[storage][0]] is not None:
                    before = self._leaf(self.entry, owner[storage])
                    if isinstance(before, Array) and owner[storage] != key:
                        others[before.storage] = None
                elif maker.setdefault(storage, key) != key:  # made in the body, for two names
                    others[maker[storage]] = None
        known = all(o in self.aliases.get(k, {}) for k, others in aliases.items() for o in others)
        for key, others in aliases.items():
            self.aliases.setdefault(key, {}).update(others)
        return known

    def _link(self, arrays: dict[Key, Array]) -> None:
        for key, others in self.aliases.items():
            for other in others:
                twin = other if isinstance(other, Storage) else arrays[other].storage
                link(arrays[key].storage, twin, "loop", self.place)

    def _type(self, name: str, j: int, before: Any, end: Any) -> LeafType:
        a, b = self.carried.get((name, j)) or self.types[name, j], leaf_type(end)
        if a is None or b is None:
            raise carry_error("loop", name, self._path(name, j), self.place, before, end)
        t = joined(a, b)
        if t is None or (not a.weak and t.dtype != a.dtype):
            raise carry_error("loop", name, self._path(name, j), self.place, a, b)
        return t

    def _refuse_structure(self, name: str, before: Held, now: Held) -> None:
        if new := attribute_set(name, before.tree, now.tree):
            raise UnsupportedError(
                f"{new} is set for the first time in this loop",
                place=self.context.changed_at.get(id(now.value)) or self.place,
                expected="an attribute that is there before the loop: it is carried from turn to "
                "turn", remedy=f"bind it before the loop: {new} = …",
            )
        if before.tree.kind == now.tree.kind != "leaf":
            path, old, new_tree = where_grown(name, before.tree, now.tree)
            kind = type(old.value).__name__
            keys = [k for k in new_tree.keys if k not in old.keys]
            remedy = "an array with one row per iteration, written by out[k] = …"
            if new_tree.kind == "dict" and keys:
                remedy = f"all of its keys before the loop: {path}[{keys[0]!r}] = 0.0; or " + remedy
            raise UnsupportedError(
                f'"{path}" grows, shrinks or changes its keys in a loop', place=self.place,
                expected=f"{kind} of {len(old.keys)} items after each turn, in one order",
                found=f"{kind} of {len(new_tree.keys)} items after the first",
                remedy=remedy,
            )
        first = self.types[name, 0] if before.tree.kind == "leaf" else None
        shown = (first or before.value, leaf_type(now.value) or now.value)
        raise carry_error("loop", name, "", self.place, *shown)

    # ---- the op ---------------------------------------------------------------------------------

    def test(self, evaluate: Callable[[], Any] | None) -> Region | None:
        """Return the region of the condition: the test holds and no flag is true. Return None if
        the loop has neither a test nor flags."""
        flags = [f for f in self.flags if (f, 0) in self.carried]
        if evaluate is None and not flags:
            return None
        filled = True
        while filled:
            block = self.block()
            self.begin(block)
            try:
                self.enter(block.args)
                holds = self._condition_value(evaluate, [self._flag(block, f) for f in flags])
                changed = self.written()
                filled = self.outside.check()
            except BaseException:
                self.abort()
                raise
            region = self.close().close([holds])
            self.put_back()
            self.mark.forget_later(self.context, "loop", self.place)
        if changed:
            raise UnsupportedError("the test of a while writes into an array", place=self.place,
                                   remedy="do it in the body")
        return region

    def _condition_value(self, evaluate: Callable[[], Any] | None, flags: Sequence[Value]) -> Value:
        context = self.context
        parts = [context.emit_one(ops.Map("logical_not"), f) for f in flags]
        first = len(context.blocks[-1].ops)
        test = True if evaluate is None else evaluate()
        if is_traced(test) or not (test and parts):
            on = condition(test, "while")
            if not isinstance(on, Value):
                on = as_value(context, number(on, True), dtypes.BOOL)
            asked = context.blocks[-1].ops[first:]
            if parts and any(isinstance(o.kind, ops.Feeding) for o in walk(Region((), tuple(asked),
                                                                                  ()))):
                del context.blocks[-1].ops[first:]
                return self._guarded_test(parts, Region((), tuple(asked), (on,)))
            parts.insert(0, on)
        return reduce(lambda a, b: context.emit_one(ops.Map("logical_and"), a, b), parts)

    def _guarded_test(self, parts: Sequence[Value], asks: Region) -> Value:
        """Return a condition that asks for a batch of a feed only if no flag has ended the loop."""
        context = self.context
        on = reduce(lambda a, b: context.emit_one(ops.Map("logical_and"), a, b), parts)
        with context.block() as block:
            left = block.close([context.emit_one(ops.Full(value=False, dtype=dtypes.BOOL,
                                                          shape=()))])
        kind = ops.Branch(None, (ArrayType(dtypes.BOOL, ()),))
        (holds,) = context.emit(kind, (on,), (left, asks))
        return holds

    def _flag(self, block: Block, flag: str) -> Value:
        return block.args[list(self.carried).index((flag, 0))]

    def finish(self, counter: Counter, evaluate: Callable[[], Any] | None = None) -> None:
        """Emit the op; variables and storages show its results."""
        assert self.body is not None
        context, keys = self.context, list(self.carried)
        test = self.test(evaluate)
        kind = counter.loop
        if test is not None and context.members and context.recordings:
            self.body, kind = predicated_body(context, test, self.body), kind.but(guarded=True)
        operands = [self._at_entry(k) for k in keys]
        operands += [laid_as(context, s.value, t.layout) for s, t in self.stored.items()]
        regions = (self.body,) if test is None else (test, self.body)
        names = [a.name for a in self.body.args]
        results = context.emit(kind, operands, regions, names, self.place)
        leaves = {n: list(h.leaves) for n, h in self.entry.items() if h is not None}
        leaves |= {n: list(h.leaves) for n, h in self.live_out.held.items()}
        arrays = {k: array_of(context, v, self.carried[k]) for k, v in zip(keys, results)}
        for (name, j), array in arrays.items():
            leaves[name][j] = array
        for storage, value in zip(self.stored, results[len(keys) :]):
            storage.write(context, value)
        stale = Gone("this array was written in a loop through a name that the loop rebinds",
                     "read it through that name, or copy it before the loop: x = x.copy()",
                     self.place)
        for storage in self.stale:
            storage.lose(context, stale)
        self._link(arrays)
        things = self.sharing.finish(_trees(self._after), _trees(self.live_out.held))
        for name, held in self.entry.items():
            filled = iter(things.get(name, ()))
            if held is None and (now := self.live_out.held.get(name)) is not None:
                self.names.put(name, fill(now.tree, iter(leaves[name]), things=filled))
                continue
            if held is None:
                lost = f"it is first bound in the loop at {self.place}, so it is local to that loop"
                self.names.put(name, UNDEFINED, lost)
                continue
            self.names.put(name, fill(held.tree, iter(leaves[name]), things=filled))
        for flag in self.flags:
            up = self._after[flag]
            if self.live_out.runs and up is not None and up.value is True:
                self.names.put(flag, True)  # the first iteration ends the loop


    def _at_entry(self, key: Key) -> Value:
        """Return a carried value before the first iteration; zeros where the body binds the
        variable first."""
        t = self.carried[key]
        if key[0] not in self.live_out.held:
            return value_of(self.context, self._leaf(self.entry, key), t)
        value = self.context.emit_one(ops.Full(value=0, dtype=t.dtype, shape=t.shape))
        return laid_as(self.context, value, t.layout)


def _trees(variables: Mapping[str, Held | None]) -> dict[str, Tree]:
    return {name: held.tree for name, held in variables.items() if held is not None}
