"""The body of a recursive function as basic blocks: a block ends where the function calls itself.

Goes in: a region whose calls are `RecursiveCall` ops, at its top or in arms of branches. Comes out:
stretches of straight code, each with what follows it. Every value is computed in one stretch only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from codegen.errors import UnsupportedError
from codegen.ir.graph import Op, Region, Value, free_counters, free_values, used_values, walk
from codegen.ops import Branch
from codegen.symbolic.expr import Sym
from codegen.trace.control.recursion.recursive_call import RecursiveCall


@dataclass
class Stretch:
    """Ops, one after the other, and what follows."""

    ops: list[Op]
    end: End


@dataclass
class BasicBlock:
    """A basic block: straight-line code that a jump enters. incoming: its arguments, the results of
    the call after which it resumes, or of the branch whose arms join here."""

    incoming: tuple[Value, ...]
    returned: bool  # whether it follows a call
    stretch: Stretch = field(default_factory=lambda: Stretch([], Return(())))

    @property
    def code(self) -> Region:
        return as_region(self.stretch, self.incoming)

    @property
    def needs(self) -> list[Value]:
        """The values that other blocks compute, or code outside of the function."""
        return free_values(self.code)

    @property
    def counters(self) -> list[Sym]:
        return free_counters(self.code)


@dataclass
class Return:
    values: Sequence[Value]


@dataclass
class Jump:
    to: BasicBlock
    values: Sequence[Value]


@dataclass
class CallThen:
    """A call, and the block that its results come to; None: they are those of the function."""

    op: Op
    after: BasicBlock | None


@dataclass
class Choose:
    """One of several stretches, as an op `branch` chooses."""

    op: Op
    arms: list[Stretch]


End = Return | Jump | CallThen | Choose


def has_calls(op: Op) -> bool:
    return isinstance(op.kind, RecursiveCall) or any(
        isinstance(inner.kind, RecursiveCall) for region in op.regions for inner in walk(region))


def blocks_of(function: object, region: Region) -> list[BasicBlock]:
    """Return the blocks of a body; the first one is where a call begins."""
    return _Cutting(function).cut(region)


class _Cutting:
    def __init__(self, function: object) -> None:
        self.function, self.blocks = function, list[BasicBlock]()

    def cut(self, region: Region) -> list[BasicBlock]:
        self.block(region.args, False, region.ops, region.results, Return)
        return self.blocks

    def block(
        self, incoming: Sequence[Value], returned: bool, ops: Sequence[Op],
        results: Sequence[Value], leave: Callable[[Sequence[Value]], End],
    ) -> BasicBlock:
        block = BasicBlock(tuple(incoming), returned)
        self.blocks.append(block)
        block.stretch = self.stretch(ops, results, leave)
        return block

    def stretch(
        self, ops: Sequence[Op], results: Sequence[Value],
        leave: Callable[[Sequence[Value]], End],
    ) -> Stretch:
        """Cut a sequence of ops at the first call; return the stretch before it. `leave` makes the
        end of the last stretch from the results of the ops."""
        for k, op in enumerate(ops):
            if not has_calls(op):
                continue
            before, rest = list(ops[:k]), _useful(ops[k + 1 :], results)
            if isinstance(op.kind, RecursiveCall):
                tail = op.kind.function is self.function and leave is Return and not rest
                if tail and tuple(results) == op.results:
                    return Stretch(before, CallThen(op, None))
                after = self.block(op.results, True, rest, results, leave)
                return Stretch(before, CallThen(op, after))
            if not isinstance(op.kind, Branch):
                raise UnsupportedError(f"{op.kind.called} with a recursive call inside it",
                                       place=op.place, expected="calls in expressions and branches")
            return Stretch(before, self.choose(op, rest, results, leave))
        return Stretch(list(ops), leave(results))

    def choose(
        self, op: Op, rest: Sequence[Op], results: Sequence[Value],
        leave: Callable[[Sequence[Value]], End],
    ) -> Choose:
        if not rest:  # each arm does what follows by itself
            arms = []
            for region in op.regions:
                instead = dict(zip(op.results, region.results))
                ends = [instead.get(v, v) for v in results]
                arms.append(self.stretch(region.ops, ends, leave))
            return Choose(op, arms)
        join = self.block(op.results, False, rest, results, leave)
        return Choose(op, [self.stretch(r.ops, r.results, lambda values: Jump(join, values))
                           for r in op.regions])


def _useful(ops: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Return the ops that have an effect, or a result that is read later."""
    read, kept = set(results), list[Op]()
    for op in reversed(ops):
        if op.kind.fence or not op.results or not read.isdisjoint(op.results):
            read.update(op.operands, *(used_values(r) for r in op.regions))
            kept.insert(0, op)
    return kept


def as_region(stretch: Stretch, args: Iterable[Value] = ()) -> Region:
    """Return a stretch with all that it reads, as one region."""
    ops, end = list(stretch.ops), stretch.end
    if isinstance(end, Choose):
        arms = tuple(as_region(arm) for arm in end.arms)
        ops.append(Op(end.op.kind, end.op.operands, (), arms, end.op.place))
        return Region(tuple(args), tuple(ops), ())
    values = end.op.operands if isinstance(end, CallThen) else end.values
    return Region(tuple(args), tuple(ops), tuple(values))
