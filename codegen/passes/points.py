"""Points at which a run can be kept: the head of every turn of the outermost loops.

Goes in: a Graph. Comes out: the same with a `point` as the first op of the body of each loop that
carries anything and stands in no other loop and no branch, also inside of a shard_map.
Always holds: what the Graph computes does not change.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.ir import Module, Op, Region, Value
from codegen.ops import Loop, Point, ShardMap
from codegen.symbolic import expr


def with_points(graph: Module) -> Module:
    """The Graph whose outermost loops have points, numbered in program order."""
    return replace(graph, kept=True, body=_Numbering().region(graph.body))


class _Numbering:
    def __init__(self) -> None:
        self.count = 0

    def region(self, region: Region) -> Region:
        return region.with_ops(map(self.op, region.ops))

    def op(self, op: Op) -> Op:
        if isinstance(op.what, ShardMap):
            return op.mapped(self.region)
        return self.loop(op, op.what) if isinstance(op.what, Loop) and op.operands else op

    def loop(self, op: Op, what: Loop) -> Op:
        body = op.regions[-1]
        counter = None if what.counter is None else expr.symbol(what.counter)
        given = tuple(Value(v.name, v.type) for v in body.args)
        point = Op(Point(self.count, counter), given, body.args, (), op.place)
        self.count += 1
        inner = Region(given, (point, *body.ops), body.results)
        return replace(op, regions=(*op.regions[:-1], inner))
