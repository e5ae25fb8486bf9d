"""Recursive functions as one loop: each iteration runs one basic block, and selects the next one.

Each function has a stack: arrays with a row for each call that has begun and not ended. Row k has
the arguments of call k, what it needs in a later block, and the block that its caller goes on with.
A function that only calls itself last needs one row, which are plain values.
Always holds: what is written to memory that all calls share is never in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import UnsupportedError
from codegen.graph.clone import Copier, with_symbols
from codegen.ir.graph import Op, Region, Value, used_values
from codegen.ops import Branch, DynamicSlice, DynamicUpdate, Full, Let, Map, Reshape
from codegen.symbolic import expr
from codegen.symbolic.expr import Sym
from codegen.trace.constants import broadcast_value
from codegen.trace.context import Block as OpenBlock
from codegen.trace.context import Context
from codegen.trace.control.captured_loops import Counter
from codegen.trace.control.recursion.basic_blocks import (
    BasicBlock,
    CallThen,
    Choose,
    Jump,
    Return,
    Stretch,
    blocks_of,
)
from codegen.trace.control.recursion.depth_limit import depth_message
from codegen.trace.control.recursion.leaves import spelt
from codegen.trace.control.recursion.recursive_call import RecursiveCall
from codegen.trace.control.regions import laid_as
from codegen.trace.runtime_checks import expect
from codegen.trace.state import LeafType, describe

Key = Hashable
_NEXT = "next"  # the number of the block that the next iteration runs


@dataclass(eq=False)
class FunctionCode:
    """A function of a recursion as blocks. stacked: it has rows, not only one of each value."""

    member: Any
    blocks: list[BasicBlock]
    stacked: bool

    def __post_init__(self) -> None:
        self.args = self.member.region.args
        self.defined: dict[Value, Op | None] = dict.fromkeys(self.args)
        self.lets: dict[Sym, Op] = {}
        for block in self.blocks:
            self.defined |= dict.fromkeys(block.incoming)
            self._define(block.stretch)
        self.memory: dict[Value, int] = {}  # values that arms meet with, as memory by number
        self.slots: dict[Value, None] = {}  # what lies in rows

    def choose_slots(self) -> None:
        wanted = [v for b in self.blocks[1:] for v in self.wanted(b)]
        self.slots = dict.fromkeys([*self.args[: self.count], *wanted])

    @property
    def count(self) -> int:
        """The number of its arguments; further args of its region are memory."""
        return len(self.member.arguments.types)

    def _define(self, stretch: Stretch) -> None:
        for op in stretch.ops:
            self.defined |= dict.fromkeys(op.results, op)
            if isinstance(op.kind, Let):
                self.lets[op.kind.counter] = op
        if isinstance(stretch.end, Choose):
            for arm in stretch.end.arms:
                self._define(arm)

    def reads(self, block: BasicBlock) -> list[Value]:
        """Return the values that a block reads and other blocks compute."""
        lets = [op.operands[0] for s in block.counters if (op := self.lets.get(s))]
        return [v for v in (*block.needs, *lets) if v in self.defined]

    def wanted(self, block: BasicBlock) -> list[Value]:
        """Return the values that a block reads from rows of the stack: results of other blocks, and
        arguments that it gets where arms meet."""
        needs = [v for v in self.reads(block) if not self.again(v)]
        if not block.returned:
            used = set(used_values(block.code))
            needs += [v for v in block.incoming if v in used and v not in self.memory]
        return needs

    def again(self, value: Value) -> Op | None:
        """Return the op of a value if it has no operands: each block then computes it again."""
        op = self.defined.get(value)
        if op is None or op.operands or op.regions or op.kind.fence:
            return None
        computed = any(s in self.lets for e in op.kind.exprs() for s in e.symbols())
        return None if computed else op


def emit(context: Context, recursion: Any, first: Any, operands: Sequence[Value]) -> list[Value]:
    """Emit the loop; return the results of the first call, then the memory."""
    with context.standing_at(recursion.place):
        return _Machine(context, recursion, first).run(operands)


class _Machine:
    def __init__(self, context: Context, recursion: Any, first: Any) -> None:
        self.context, self.stored = context, list(recursion.stored.values())
        cut = {f: blocks_of(f, m.region) for f, m in recursion.members.items() if m.arguments}
        deep = any(isinstance(e, CallThen) and e.after for blocks in cut.values()
                   for b in blocks for e in _ends(b.stretch))
        self.functions = {f: FunctionCode(recursion.members[f], b, deep) for f, b in cut.items()}
        self.first = self.functions[first.function]
        every = [(f, b) for f in self.functions.values() for b in f.blocks]
        self.numbers = {id(b): k for k, (_, b) in enumerate(every)}
        self.every, self.done = every, len(every)
        for f in self.functions.values():
            while any(self._finds_memory(f, block) for block in f.blocks):
                pass
            f.choose_slots()

    # ---- the loop -------------------------------------------------------------------------------

    def run(self, operands: Sequence[Value]) -> list[Value]:
        context = self.context
        state = self._begin(operands)
        keys = list(state)
        names = [self._hint(k) for k in keys]
        with context.block([state[k].type for k in keys], names) as test:
            current = dict(zip(keys, test.args))
            unfinished = context.emit_one(Map("lt"), current[_NEXT], self._number(self.done))
            asks = test.close([unfinished])
        with context.block([state[k].type for k in keys], names) as body:
            inside = dict(zip(keys, body.args))
            arms = [lambda s, f=f, b=b: self._block(f, b, s) for f, b in self.every]
            if len(arms) == 1:
                arms[0](inside)
            else:
                self._choose(Branch(None, ()), (inside[_NEXT],), arms, inside)
            turn = body.close([inside[k] for k in keys])
        zero = expr.const(0)
        loop = Counter(context, "pass", zero, None, expr.const(1)).loop
        results = context.emit(loop, [state[k] for k in keys], (asks, turn), names)
        after = dict(zip(keys, results))
        count = len(self.first.member.results.types)
        returned = [after["result", self.first, k] for k in range(count)]
        return returned + self._memory_in(after)

    def _begin(self, operands: Sequence[Value]) -> dict[Key, Value]:
        """Return the state before the first iteration of the loop: the first call has begun."""
        entry = self.numbers[id(self.first.blocks[0])]
        state: dict[Key, Value] = {_NEXT: self._number(entry)}
        arguments = dict(zip(self.first.args, operands))
        for f in self.functions.values():
            if f.stacked:
                state["top", f] = self._number(0 if f is self.first else -1)
                state["back", f] = self._rows(f, self._number(self.done))
            for v in f.slots:
                begin = arguments.get(v) if f is self.first else None
                begin = begin if begin is not None else self._blank(v.type)
                state["slot", v] = self._rows(f, begin) if f.stacked else begin
            for k, t in enumerate(f.member.results.types):
                state["result", f, k] = self._blank(t.array)
        memory = operands[self.first.count :]
        return state | {("memory", k): v for k, v in enumerate(memory)}

    def _hint(self, key: Key) -> str:
        if key == _NEXT:
            return "next_block"
        assert isinstance(key, tuple)
        if key[0] == "slot":
            return str(key[1].name)
        name = key[1].member.function.name if isinstance(key[1], FunctionCode) else ""
        return "_".join(filter(None, (name, key[0])))

    def _number(self, k: int) -> Value:
        return self.context.emit_one(Full(k, dtypes.INT64, ()))

    def _blank(self, t: Any) -> Value:
        for e in t.shape:
            if any(s.kind == "counter" and s in f.lets for s in e.symbols()
                   for f in self.functions.values()):
                raise UnsupportedError(
                    "an array of a length that only the run knows is needed after a recursive call",
                    expected="arrays of one shape in all calls", found=str(t),
                    remedy="compute it again after the call")
        zero = np.zeros((), dtypes.numpy_dtype(t.dtype))[()].item()
        zeros = self.context.emit_one(Full(zero, t.dtype, t.shape))
        return laid_as(self.context, zeros, t.layout)

    def _rows(self, function: FunctionCode, value: Value) -> Value:
        """Return a stack with a value in its first row."""
        depth, t = expr.const(function.member.function.depth), value.type
        row = self.context.emit_one(Reshape((expr.const(1), *t.shape)), value)
        rows = broadcast_value(self.context, row, (depth, *t.shape))
        return laid_as(self.context, rows, _of_rows(t.layout))

    # ---- rows -----------------------------------------------------------------------------------

    def _starts(self, row: Value, rank: int) -> list[Value]:
        return [row, *([self._number(0)] * rank)]

    def _read(self, state: dict[Key, Value], f: FunctionCode, key: Key) -> Value:
        value = state[key]
        if not f.stacked:
            return value
        shape, emit = value.type.shape[1:], self.context.emit_one
        starts = self._starts(state["top", f], len(shape))
        box = emit(DynamicSlice((expr.const(1), *shape)), value, *starts)
        layout = value.type.layout
        return laid_as(self.context, emit(Reshape(shape), box), layout and layout[1:])

    def _write(self, state: dict[Key, Value], f: FunctionCode, key: Key, value: Value) -> None:
        rows = state[key]
        if f.stacked:
            t = value.type
            row = self.context.emit_one(Reshape((expr.const(1), *t.shape)), value)
            starts = self._starts(state["top", f], t.ndim)
            value = self.context.emit_one(DynamicUpdate(), rows, row, *starts)
        self._put(state, key, value)

    def _put(self, state: dict[Key, Value], key: Key, value: Value) -> None:
        state[key] = laid_as(self.context, value, state[key].type.layout)

    # ---- blocks ---------------------------------------------------------------------------------

    def _block(self, f: FunctionCode, block: BasicBlock, state: dict[Key, Value]) -> None:
        """Emit a copy of a block that reads its values from the state, and updates the state."""
        arrived = self._arrived(f, block, state)
        copier = Copier(self.context.unique, arrived, {})
        for v in f.wanted(block):
            if v not in copier.instead:
                copier.instead[v] = self._read(state, f, ("slot", v))
        for v in f.reads(block):
            if v not in copier.instead and (op := f.again(v)):
                self._append(copier.op(op))
        for s in block.counters:
            if s in f.lets:
                self._append(copier.op(f.lets[s]))
        for v, value in arrived.items():
            if v in f.slots:  # another block reads it
                self._write(state, f, ("slot", v), value)
        self._stretch(f, block.stretch, copier, state)

    def _arrived(
        self, f: FunctionCode, block: BasicBlock, state: dict[Key, Value]
    ) -> dict[Value, Value]:
        """Return the arguments of a block that are in no row of the stack: memory, and the results
        of a call."""
        if block.returned:
            g = self._callee(block)
            results = [state["result", g, k] for k in range(len(g.member.results.types))]
            return dict(zip(block.incoming, [*results, *self._memory_in(state)]))
        if block is f.blocks[0]:
            return dict(zip(block.incoming[f.count :], self._memory_in(state)))
        return {v: state["memory", f.memory[v]] for v in block.incoming if v in f.memory}

    def _memory_in(self, state: dict[Key, Value]) -> list[Value]:
        return [state["memory", k] for k in range(len(self.stored))]

    def _append(self, op: Op) -> None:
        self.context.blocks[-1].ops.append(op)

    def _stretch(
        self, f: FunctionCode, stretch: Stretch, copier: Copier, state: dict[Key, Value]
    ) -> None:
        for op in stretch.ops:
            self._append(copier.op(op))
            for v in op.results:
                if v in f.slots:
                    self._write(state, f, ("slot", v), copier.of(v))
        end = stretch.end
        if isinstance(end, Choose):
            arms = [self._arm(f, arm, copier) for arm in end.arms]
            kind = with_symbols(end.op.kind, copier.symbols)
            self._choose(kind, tuple(map(copier.of, end.op.operands)), arms, state)
        elif isinstance(end, Jump):
            self._jump(f, end, list(map(copier.of, end.values)), state)
        elif isinstance(end, Return):
            self._return(f, list(map(copier.of, end.values)), state)
        else:
            self._call(f, end, list(map(copier.of, end.op.operands)), state)

    def _arm(
        self, f: FunctionCode, stretch: Stretch, copier: Copier
    ) -> Callable[[dict[Key, Value]], None]:
        def arm(state: dict[Key, Value]) -> None:
            self._stretch(f, stretch, Copier(copier.fresh, copier.instead, copier.symbols), state)

        return arm

    def _choose(
        self, kind: Any, operands: tuple[Value, ...],
        arms: Sequence[Callable[[dict[Key, Value]], None]], state: dict[Key, Value],
    ) -> None:
        """Emit a branch; each arm updates the state, and the results are the updated entries."""
        left: list[tuple[OpenBlock, dict[Key, Value]]] = []
        for arm in arms:
            inside = dict(state)
            with self.context.block() as block:
                arm(inside)
            left.append((block, inside))
        keys = [k for k in state if any(s[k] is not state[k] for _, s in left)]
        types = tuple(state[k].type for k in keys)
        regions: list[Region] = [b.close([s[k] for k in keys]) for b, s in left]
        names = [self._hint(k) for k in keys]
        results = self.context.emit(kind.but(types=types), operands, regions, names)
        state |= dict(zip(keys, results))

    # ---- what follows a stretch -----------------------------------------------------------------

    def _jump(
        self, f: FunctionCode, end: Jump, values: Sequence[Value], state: dict[Key, Value]
    ) -> None:
        for v, value in zip(end.to.incoming, values):
            if v in f.memory:
                self._put(state, ("memory", f.memory[v]), value)
            elif v in f.slots:
                self._write(state, f, ("slot", v), value)
        state[_NEXT] = self._number(self.numbers[id(end.to)])

    def _return(
        self, f: FunctionCode, values: Sequence[Value], state: dict[Key, Value]
    ) -> None:
        count = len(f.member.results.types)
        for k, value in enumerate(values):
            key = ("result", f, k) if k < count else ("memory", k - count)
            self._put(state, key, value)
        if f.stacked:
            state[_NEXT] = self._read(state, f, ("back", f))
            emit = self.context.emit_one
            state["top", f] = emit(Map("sub"), state["top", f], self._number(1))
        else:
            state[_NEXT] = self._number(self.done)

    def _call(
        self, f: FunctionCode, end: CallThen, values: Sequence[Value], state: dict[Key, Value]
    ) -> None:
        assert isinstance(end.op.kind, RecursiveCall)
        g = self.functions[end.op.kind.function]
        for k, value in enumerate(values[g.count :]):
            self._put(state, ("memory", k), value)
        with self.context.standing_at(end.op.place):
            if end.after is not None:
                self._push(g, end.after, values, state)
            for v, value in zip(g.args, values[: g.count]):
                self._write(state, g, ("slot", v), value)
            state[_NEXT] = self._number(self.numbers[id(g.blocks[0])])

    def _push(
        self, g: FunctionCode, after: BasicBlock, values: Sequence[Value], state: dict[Key, Value]
    ) -> None:
        """Push a row for a call, with the block that its results come to."""
        emit, depth = self.context.emit_one, g.member.function.depth
        top = emit(Map("add"), state["top", g], self._number(1))
        fits = emit(Map("lt"), top, self._number(depth))
        expect(self.context, fits, *depth_message(g.member.function, self._shown(g, values)))
        state["top", g] = top
        self._write(state, g, ("back", g), self._number(self.numbers[id(after)]))

    def _shown(self, g: FunctionCode, values: Sequence[Value]) -> list[tuple[str, Any]]:
        """Return the arguments of a call by name: numbers as they are in the run, arrays as their
        type."""
        taken = g.member.arguments
        shown, remaining = [], iter(values)
        for path, leaf in zip(taken.tree.paths(), taken.leaves):
            name = spelt(path)
            if isinstance(leaf, LeafType):
                value = next(remaining)
                shown.append((name, str(replace(leaf, layout=None)) if value.type.shape else value))
            else:
                text = str(leaf) if isinstance(leaf, (int, float, complex)) else describe(leaf)
                shown.append((name, text))
        return shown

    # ---- memory ---------------------------------------------------------------------------------

    def _callee(self, block: BasicBlock) -> FunctionCode:
        for f in self.functions.values():
            for b in f.blocks:
                for e in _ends(b.stretch):
                    if isinstance(e, CallThen) and e.after is block:
                        return self.functions[e.op.kind.function]  # type: ignore[attr-defined]
        raise AssertionError("a block after a call has one")

    def _finds_memory(self, f: FunctionCode, block: BasicBlock) -> bool:
        """Find which arguments of join blocks are memory that calls write; return whether a new one
        is found."""
        before = len(f.memory)
        for end in _ends(block.stretch):
            if isinstance(end, Jump):
                for v, value in zip(end.to.incoming, end.values):
                    k = self._memory(f, value)
                    if k is not None and k not in [f.memory.get(w) for w in end.to.incoming]:
                        f.memory[v] = k
        return len(f.memory) > before

    def _memory(self, f: FunctionCode, value: Value) -> int | None:
        """Return the memory that a value is, or was before it was written in place."""
        while (op := f.defined.get(value)) is not None and op.kind.in_place:
            value = op.operands[0]
        if value in f.memory:
            return f.memory[value]
        for block in f.blocks:
            if block.returned and value in block.incoming:
                k = block.incoming.index(value)
                k -= len(self._callee(block).member.results.types)
                return k if k >= 0 else None
        return None


def _ends(stretch: Stretch) -> list[Any]:
    """Return the terminators of a stretch, those of each arm of a branch included."""
    if isinstance(stretch.end, Choose):
        return [e for arm in stretch.end.arms for e in _ends(arm)]
    return [stretch.end]


def _of_rows(layout: Any) -> Any:
    """Return the layout of a stack of arrays of this layout."""
    return layout and ((), *layout)
