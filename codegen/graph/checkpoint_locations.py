"""Checkpoint locations: a run can be kept at the head of every turn of the outermost loops.

Goes in: a Graph. Comes out: the same with a `point` as the first op of the body of each loop that
carries anything and stands in no other loop, also in branches and shard_maps. Loops of library
code get none: a run resumed inside one would lack what the user's loops had done before.
Always holds: what the Graph computes does not change; all ranks pass a point equally often.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from codegen.errors import UnsupportedError
from codegen.graph.feed_answers import unanswerable
from codegen.graph.variance import Variance
from codegen.ir.graph import Module, Op, Region, Value, walk
from codegen.ops import Branch, Loop, Point, Send, ShardMap
from codegen.symbolic import expr


def checkpoint_locations(graph: Module) -> Module:
    """Return the Graph whose outermost loops have points, numbered in program order."""
    return replace(graph, kept=True, body=_Numbering(graph).region(graph.body))


class _Numbering:
    """Adds points to outermost loops and numbers them."""

    def __init__(self, graph: Module) -> None:
        self.mesh, self.library, self.count = graph.mesh, graph.library_calls, 0
        self.ranks: Variance | None = None

    def region(self, region: Region) -> Region:
        return region.with_ops(map(self.op, region.ops))

    def op(self, op: Op) -> Op:
        if op.place in self.library:
            return op
        if isinstance(op.kind, ShardMap):
            args = zip(op.regions[0].args, op.kind.in_layouts, strict=True)
            self.ranks = Variance(self.mesh, {v: chain(*layout) for v, layout in args})
            self.ranks.region(op.regions[0])
            op = op.mapped(self.region)
            self.ranks = None
            return op
        if self.ranks and self.ranks.passing(op):
            return op
        if isinstance(op.kind, Branch):
            return op.mapped(self.region)
        return self.loop(op, op.kind) if isinstance(op.kind, Loop) and op.operands else op

    def loop(self, op: Op, kind: Loop) -> Op:
        """Return a loop with a point. Raises UnsupportedError if a turn answers an earlier turn's
        batch."""
        body = op.regions[-1]
        for feed in {o.kind.feed for o in walk(body) if isinstance(o.kind, Send)}:
            late, _ = unanswerable(feed, body)
            if late is not None:
                raise _of_an_earlier_turn(feed, late)
        counter = None if kind.counter is None else expr.symbol(kind.counter)
        args = tuple(Value(v.name, v.type) for v in body.args)
        point = Op(Point(self.count, counter), args, body.args, (), op.place)
        self.count += 1
        inner = Region(args, (point, *body.ops), body.results)
        return replace(op, regions=(*op.regions[:-1], inner))


def _of_an_earlier_turn(feed: str, send: Op) -> UnsupportedError:
    """Return the error for a turn that answers the batch of the turn before it: a run resumed at
    the head of that turn has no batch to answer, as it was taken before the checkpoint."""
    return UnsupportedError(
        f'feed "{feed}": a turn of a loop answers the batch of the turn before it, and a run that '
        "is kept goes on between the two", place=send.place,
        expected="feed.next() and the send that answers it in one turn, as checkpoints are kept "
        "where a turn begins", found="feed.send before feed.next() of its turn",
        remedy="send in the turn that takes the batch; or build without checkpoint")
