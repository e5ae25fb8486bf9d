"""Common subexpression elimination (CSE) of costly ops: min(x), max(x) and two histograms of one x.

Goes in: a Graph. Comes out: the same, without the second one of equal ops that take long:
reductions, gathers, sorts, products, and cheap ops on those that are computed where they are read.
Always holds: both ops stand in one region; nobody writes over the result, so none is copied for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from codegen.graph.rewriter import Rewriter
from codegen.ir.graph import Module, Op, Region, Value
from codegen.ops import (
    ArgReduce,
    ArgSort,
    Broadcast,
    Convolve,
    Cumulative,
    Full,
    Gather,
    Iota,
    Kernel,
    Map,
    MatMul,
    Reduce,
    Reshape,
    Roll,
    SearchSorted,
    Slice,
    Sort,
    Symbolic,
    Transpose,
)

# Kinds that take long, and those that take next to nothing and follow from them.
TAKES_LONG = (ArgReduce, ArgSort, Convolve, Cumulative, Gather, MatMul, Reduce, SearchSorted, Sort)
FOLLOWS = (Broadcast, Full, Iota, Reshape, Roll, Slice, Symbolic, Transpose)


def cse(graph: Module) -> Module:
    """Return the Graph in which no costly op is computed twice of the same operands."""
    return _Cse(graph).run()


@dataclass
class _Known:
    """Records the ops of a region that have been visited. by_key: the first of all equal ops.
    first: by value, the first value that is equal to it. costly: values of costly ops that are
    computed in each loop that reads them, and what follows from those."""

    by_key: dict[Hashable, Value] = field(default_factory=dict)
    first: dict[Value, Value] = field(default_factory=dict)
    costly: set[Value] = field(default_factory=set)


class _Cse(Rewriter):
    """Replaces costly ops by the first equal op of their region."""

    def __init__(self, graph: Module) -> None:
        super().__init__(graph, shard_maps=False)
        self.known: list[_Known] = []  # of the regions that are open, outer ones first

    def rewritten(self, region: Region, shown: Sequence[Value]) -> tuple[Region, tuple[Value, ...]]:
        self.known.append(_Known())
        rewritten = super().rewritten(region, shown)
        self.known.pop()
        return rewritten

    def op(self, op: Op) -> None:
        known = self.known[-1]
        if not isinstance(op.kind, (*TAKES_LONG, *FOLLOWS, Map)):
            self.keep(op)
            return
        # a compiler of C sees functions that are computed twice in one loop
        costly = isinstance(op.kind, TAKES_LONG) or not known.costly.isdisjoint(op.operands)
        if costly and op.kind.inline:
            known.costly.add(op.result)
        other = known.by_key.setdefault(_key(op, known.first), op.result)
        known.first[op.result] = other
        if other is not op.result and costly and self.are_only_read(op.result, other):
            self.instead[op.result] = other
        else:
            self.keep(op)

    def are_only_read(self, *values: Value) -> bool:
        """Return whether no op updates these values in place or passes them to a region."""
        uses = [use for v in values for use in self.uses.get(v, ())]
        return all(
            use.op is not None and not use.op.regions and not isinstance(use.op.kind, Kernel)
            and not (use.op.kind.in_place and use.operand == 0)
            for use in uses
        )


def _key(op: Op, first: Mapping[Value, Value]) -> Hashable:
    """Return a key that is equal for ops that compute the same. A Full is keyed by its text, since
    0.0, -0.0 and 0 are equal in Python but fill differently."""
    kind = repr(op.kind) if isinstance(op.kind, Full) else op.kind
    return kind, tuple(first.get(v, v) for v in op.operands), op.result.type
