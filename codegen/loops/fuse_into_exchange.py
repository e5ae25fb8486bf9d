"""Fusion of an elementwise op into an exchange: `b += a.T` computes as elements of a.T arrive.

Goes in: Loops. Comes out: Loops in which an exchange that delivers every element of an array once,
for a single elementwise statement, runs that statement itself; its result needs no memory.
Always holds: the statement reads only the element that it writes, what it reads is there before
the exchange, and it writes no array that other members of the exchange read.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.ir.graph import Op, Region, Value
from codegen.ir.indexing import leaves, positions, ravel, rewritten
from codegen.ir.loops import Do, Loops
from codegen.ir.plan import (
    ARRIVED,
    POINT,
    Exchange,
    Literal,
    Load,
    LocalRead,
    Node,
    Store,
)
from codegen.ir.steps import memory_read
from codegen.symbolic import expr


def fuse_into_exchange(loops: Loops) -> Loops:
    """Return the Loops with elementwise statements fused into the exchanges that feed them."""
    return loops.with_module(loops.module.mapped(_Arrivals(loops).region))


class _Arrivals:
    """Fuses statements into the exchanges that bring what they read."""

    def __init__(self, loops: Loops) -> None:
        self.constants = loops.constants
        self.uses = loops.module.def_use.uses

    def region(self, region: Region) -> Region:
        """Return a region in which a statement is fused into the exchange that makes its last
        operand."""
        ops: list[Op] = []
        makers: dict[Value, int] = {}  # by which op
        brought: dict[Value, int] = {}
        for op in region.ops:
            op = op.mapped(self.region)
            last = max(op.operands, key=lambda v: makers.get(v, -1), default=None)
            before = -1 if last is None else brought.get(last, -1)
            joined = self.joined(ops[before], op) if before >= 0 else None
            if joined is not None:
                ops[before] = joined
                makers[op.result] = before
                continue
            if _brings(op):
                brought[op.result] = len(ops)
            makers.update(dict.fromkeys(op.results, len(ops)))
            ops.append(op)
        return region.with_ops(ops)

    def joined(self, exchange: Op, op: Op) -> Op | None:
        """Return an exchange that also does the work of an op that reads its result, or None if
        fusing them is not legal."""
        do, by, arrived = op.kind, exchange.kind, exchange.result
        if not isinstance(do, Do) or len(do.acts) != 1 or do.begins or do.scratch:
            return None
        assert isinstance(by, Do)
        (store,), (x,) = do.acts, by.acts
        assert isinstance(x, Exchange) and x.pull_into is not None
        if not isinstance(store, Store) or store.combine != "set" or store.bounds or store.rows:
            return None
        into = store.buffer
        extents = tuple(v.extent for v in store.loops)
        everywhere = ravel(positions(store.loops), extents)
        alike = into.type.shape == arrived.type.shape and store.offset == everywhere and (
            expr.product(extents) == expr.product(into.type.shape)
        )
        if not alike or len(self.uses[arrived]) != 1 or isinstance(store.value, Load):
            return None
        if not all(_is_there(leaf, store, arrived) for leaf in leaves(store.value)):
            return None

        def at_point(node: Node[Value]) -> Node[Value] | None:
            if not isinstance(node, Load) or node.offset != store.offset:
                return None
            if node.buffer is arrived:
                return LocalRead(ARRIVED, arrived.type.dtype)
            return replace(node, offset=expr.symbol(POINT))

        take = replace(store, loops=(), offset=expr.symbol(POINT),
                       value=rewritten(store.value, at_point))
        exchanging = replace(x, pull_into=replace(x.pull_into, buffer=into), take=take)
        read = dict.fromkeys(v for v in memory_read(exchanging) if v not in self.constants)
        return Op(Do((exchanging,)), tuple(read), op.results, (), op.place)


def _brings(op: Op) -> bool:
    """Return whether an op is one exchange in which members only pull, and each element comes from
    exactly one member."""
    if not isinstance(op.kind, Do) or len(op.kind.acts) != 1 or op.kind.begins:
        return False
    (x,) = op.kind.acts
    if not isinstance(x, Exchange) or x.pull_into is None or x.fn or x.dest is not None:
        return False
    return x.differs and x.flow == "all" and x.give_into is None and x.wraps == 1


def _is_there(leaf: Node[Value], store: Store[Value], arrived: Value) -> bool:
    """Return whether an operand is a literal, a scalar, or the element at the position that the
    store writes."""
    if isinstance(leaf, Load) and not leaf.bounds:
        alone = leaf.offset == 0 and leaf.buffer.type.shape == () and leaf.buffer is not arrived
        return alone or leaf.offset == store.offset
    return isinstance(leaf, Literal)
