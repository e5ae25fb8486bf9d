"""Common subexpression elimination (CSE) of costly ops: min(x), max(x) and two histograms of one x.

Goes in: a Graph. Comes out: the same, without the second one of equal ops that take long:
reductions, gathers, sorts, products, and cheap ops on those that are computed where they are read.
Always holds: both ops stand in one region; nobody writes over the result, so none is copied for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace

from codegen.ir.graph import DefUse, Module, Op, Region, Value, used_values
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
    ShardMap,
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
    return graph.mapped(_Sharing(graph.def_use).region)


class _Sharing:
    """Replaces costly ops by the first equal op of their region."""

    def __init__(self, known: DefUse) -> None:
        self.known = known
        self.instead: dict[Value, Value] = {}  # of a value that is gone

    def region(self, region: Region) -> Region:
        first: dict[Hashable, Value] = {}
        same: dict[Value, Value] = {}  # by value: the first one of all that are equal
        dear: set[Value] = set()  # what takes long where it is read, and what follows from that
        gone: set[Op] = set()
        for op in region.ops:
            what = op.what
            if not isinstance(what, (*TAKES_LONG, *FOLLOWS, Map)):
                continue
            # a compiler of C sees functions that are computed twice in one loop
            long = isinstance(what, TAKES_LONG) or not dear.isdisjoint(op.operands)
            if long and what.inline:  # in each loop that reads it
                dear.add(op.result)
            other = same[op.result] = first.setdefault(_key(op, same), op.result)
            if other is not op.result and long and self.free(op.result, other):
                self.instead[op.result] = other
                gone.add(op)
        results = tuple(map(self.of, region.results))
        if results != region.results:
            region = replace(region, results=results)
        ops = [self.renamed(op) for op in region.ops if op not in gone]
        return region.with_ops(_needed(region.with_ops(ops)) if gone else ops)

    def free(self, *values: Value) -> bool:
        """Return whether some values are only read: no op updates them in place or passes them to a
        region."""
        uses = [use for v in values for use in self.known.uses.get(v, ())]
        return all(
            use.op is not None and not use.op.regions and not isinstance(use.op.what, Kernel)
            and not (use.op.what.in_place and use.operand == 0)
            for use in uses
        )

    def of(self, value: Value) -> Value:
        return self.instead.get(value, value)

    def renamed(self, op: Op) -> Op:
        operands = tuple(map(self.of, op.operands))
        if operands != op.operands:
            op = replace(op, operands=operands)
        return op if isinstance(op.what, ShardMap) else op.mapped(self.region)


def _key(op: Op, same: Mapping[Value, Value]) -> Hashable:
    """Return a key that is equal for ops that compute the same. A Full is keyed by its text, since
    0.0, -0.0 and 0 are equal in Python but fill differently."""
    what = repr(op.what) if isinstance(op.what, Full) else op.what
    return what, tuple(same.get(v, v) for v in op.operands), op.result.type


def _needed(region: Region) -> list[Op]:
    """Return the ops of a region without the cheap ones whose results nobody reads any more (dead
    code)."""
    used = Counter(used_values(region))
    ops = []
    for op in reversed(region.ops):
        if isinstance(op.what, (*FOLLOWS, Map)) and not used[op.result]:
            used.subtract(op.operands)
        else:
            ops.append(op)
    return ops[::-1]
