"""Batching of ops: those recorded for one member become ops on all members, by a rule of each kind.

Goes in: ops of one member, and for its arguments the values that stack those of all members. Comes
out: ops in the open block, and stacked values of the results.
Always holds: members are the first dim of a stacked value; values that all share are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from codegen import dtypes, ops
from codegen.dtypes import DType
from codegen.errors import UnsupportedError
from codegen.ir.graph import ArrayType, Op, Shape, Value, walk
from codegen.mesh import Layout, LayoutEntry
from codegen.ops import Kind
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, IntLike
from codegen.trace.batching import region_rules
from codegen.trace.context import Block, Context
from codegen.trace.control.captured_loops import Counter
from codegen.trace.control.regions import laid_as
from codegen.trace.derive.reverse import read_by
from codegen.trace.view import index_value

_EFFECTS = (ops.Print, ops.Expect, ops.Feeding)  # effects, which a member that is not active skips


class Batch:
    """Converts the ops of one member into ops on all members.

    n: the number of members. entry: the mesh axes that split them. of: for a value of one member
    the value that stacks those of all members; all members share a value that is not a key.
    active: a truth value for each member, false where it skips the ops at hand; None: all run
    them.
    """

    def __init__(
        self, context: Context, n: Expr, entry: LayoutEntry, of: Mapping[Value, Value],
        active: Value | None = None,
    ) -> None:
        self.context, self.n, self.entry = context, n, entry
        self.of, self.active = dict(of), active

    def inside(
        self, more: Mapping[Value, Value], active: Value | None = None, n: Expr | None = None,
    ) -> Batch:
        """Return a Batch for the ops of a region, with `more` stacked values."""
        return Batch(self.context, self.n if n is None else n, self.entry, {**self.of, **more},
                     self.active if active is None else active)

    def through(self, recorded: Sequence[Op]) -> None:
        """Add the ops to the open block: unchanged where no operand is mapped, else for all
        members."""
        for op in recorded:
            with self.context.standing_at(op.place):
                if not self.concerns(op):
                    self.context.blocks[-1].ops.append(op)
                    continue
                stacked = [self.of.get(v) for v in op.operands]
                for v, result in zip(op.results, op.kind.batch(op, stacked, self)):
                    if result is not None:
                        self.of[v] = result
                        if v in self.context.varying:
                            self.context.varying[result] = self.context.varying[v]

    def concerns(self, op: Op) -> bool:
        """Return whether an op must be mapped: it reads a stacked value, or has an effect (print,
        expect, save, feed) that depends on which members are active."""
        if any(v in self.of for v in read_by(op)):
            return True
        every = [op, *(inner for region in op.regions for inner in walk(region))]
        if self.active is None:
            return any(isinstance(o.kind, ops.Save) for o in every)
        return any(isinstance(o.kind, _EFFECTS) or (isinstance(o.kind, ops.Loop)
                                                    and len(o.regions) == 2) for o in every)

    # ---- values of members ---------------------------------------------------------------------

    def every(self, op: Op, stacked: Sequence[Value | None]) -> list[Value]:
        """Return the operands of an op, each stacked: a shared one is repeated for each member."""
        return self.every_of(op.operands, stacked)

    def every_of(self, values: Sequence[Value], stacked: Sequence[Value | None]) -> list[Value]:
        return [self.spread(v) if g is None else g for v, g in zip(values, stacked, strict=True)]

    def spread(self, value: Value) -> Value:
        """Return a shared value stacked: repeated once for each member."""
        context, t = self.context, value.type

        def make() -> Value:
            shape = (self.n, *t.shape)
            if value in context.numbers:
                return self.emit(ops.Full(context.numbers[value], t.dtype, shape))
            repeated = self.emit(ops.Broadcast(tuple(range(1, len(shape))), shape), value)
            return laid_as(context, repeated, self.stacked(t).layout) if self.entry else repeated

        return context.remember(("members", value, self.n), make)

    def stacked(self, t: ArrayType) -> ArrayType:
        """Return the type of the stacked value, from the type of one member's."""
        layout = None
        if not self.context.rank_view:
            layout = self.layout(t.layout or ((),) * t.ndim)
        return ArrayType(t.dtype, (self.n, *t.shape), layout)

    def layout(self, layout: Layout) -> Layout:
        """Return a layout with the dim of members in front. That dim is split over `entry`, unless
        another dim is split over one of these axes."""
        used = {axis for entry in layout for axis in entry}
        return (() if used & set(self.entry) else self.entry, *layout)

    def member(self, value: Value, number: Expr) -> Value:
        """Return the part of a stacked value that belongs to the member with this number."""
        shape = value.type.shape
        start = (number, *(expr.const(0),) * (len(shape) - 1))
        row = self.emit(ops.Slice(start, (1,) * len(shape), (expr.const(1), *shape[1:])), value)
        return self.emit(ops.Reshape(shape[1:]), row)

    # ---- ops -----------------------------------------------------------------------------------

    def emit(self, kind: Kind, *operands: Value) -> Value:
        return self.context.emit_one(kind, *operands)

    def emit_all(self, kind: Kind, *operands: Value) -> list[Value]:
        return list(self.context.emit(kind, operands))

    def map(self, fn: str, *operands: Value) -> Value:
        return self.emit(ops.Map(fn), *operands)

    def full(self, value: complex, t: ArrayType) -> Value:
        """Return an array of this type with one number in all elements."""
        return self.emit(ops.Full(value, t.dtype, t.shape))

    def integer(self, e: IntLike, shape: Shape = ()) -> Value:
        """Return an int64 array of this shape with a symbolic integer in all elements."""
        return self.along(index_value(self.context, expr.as_expr(e)), shape)

    def counted(self, dim: int, shape: Shape) -> Value:
        """Return an array of this shape that counts 0, 1, 2 … along a dim; along dim 0 that is the
        number of the member."""
        return self.emit(ops.Iota(dim, dtypes.INT64, shape))

    def along(self, x: Value, shape: Shape) -> Value:
        """Return x repeated along the last dims of `shape`, which x does not have."""
        if x.type.shape == shape:
            return x
        return self.emit(ops.Broadcast(tuple(range(x.type.ndim)), shape), x)

    def clipped(self, index: Value, most: Expr) -> Value:
        """Return indices limited to 0 … `most`."""
        shape = index.type.shape
        least = self.map("maximum", index, self.integer(0, shape))
        return self.map("minimum", least, self.integer(most, shape))

    def moved(self, x: Value, source: int, to: int) -> Value:
        """Return x with its dim `source` moved to position `to`."""
        order = [d for d in range(x.type.ndim) if d != source]
        order.insert(to, source)
        return x if source == to else self.emit(ops.Transpose(tuple(order)), x)

    def merged(self, x: Value, dim: int) -> Value:
        """Return a stacked value without the dim of members: their parts are concatenated along
        `dim`, counted without it."""
        shape = list(x.type.shape[1:])
        shape[dim] = self.n * shape[dim]
        return self.emit(ops.Reshape(tuple(shape)), self.moved(x, 0, dim))

    def unmerged(self, x: Value, dim: int, each: Expr) -> Value:
        """Return a stacked value, from the result of `merged`. `each` is one member's extent along
        `dim`."""
        shape = list(x.type.shape)
        shape[dim : dim + 1] = [self.n, each]
        return self.moved(self.emit(ops.Reshape(tuple(shape)), x), dim, 0)

    def where(self, fits: Expr, x: Value) -> Value:
        """Return x if the Expr `fits` is 1, else zeros of its type."""
        if fits == 1:
            return x
        holds = self.emit(ops.Symbolic(fits, dtypes.BOOL))
        holds = self.along(holds, x.type.shape)
        return self.map("select", holds, x, self.full(0, x.type))

    def chosen(self, holds: Value, then: Value, other: Value) -> Value:
        """Return for each member `then` where `holds`, else `other`."""
        return self.map("select", self.along(holds, then.type.shape), then, other)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype == dtype else self.emit(ops.Map("cast", dtype=dtype), x)

    def most(self, x: Value) -> Value:
        """Return the largest of the members' integers, none negative; 0 if there are no members."""
        largest = self.emit(ops.Reduce("max", (0,)), x)
        return self.map("maximum", largest, self.integer(0))

    def both(self, holds: Value) -> Value:
        """Return `holds`, and false for members that are not active."""
        return holds if self.active is None else self.map("logical_and", holds, self.active)

    def where_active(self, holds: Value) -> Value:
        """Return `holds`, and true for members that are not active, which need not fulfil it."""
        if self.active is None:
            return holds
        idle = self.along(self.map("logical_not", self.active), holds.type.shape)
        return self.map("logical_or", holds, idle)

    # ---- ops with regions ----------------------------------------------------------------------

    @contextmanager
    def block(self, args: Sequence[Value] = ()) -> Iterator[Block]:
        """Let the body of the with statement add its ops to a new block with these arguments."""
        block = Block(tuple(args))
        self.context.blocks.append(block)
        try:
            yield block
        finally:
            self.context.blocks = [b for b in self.context.blocks if b is not block]

    def loop(self, op: Op, stacked: Sequence[Value | None]) -> Sequence[Value | None]:
        return region_rules.loop(self, op, stacked)

    def branch(self, op: Op, stacked: Sequence[Value | None]) -> Sequence[Value | None]:
        return region_rules.branch(self, op, stacked)

    def defined(self, op: Op, stacked: Sequence[Value | None]) -> Sequence[Value | None]:
        return region_rules.defined(self, op, stacked)

    def shard_map(self, op: Op, stacked: Sequence[Value | None]) -> Sequence[Value | None]:
        return region_rules.shard_map(self, op, stacked)

    def mapped(
        self, arguments: Sequence[tuple[Value, bool]],
        member: Callable[[Sequence[Value]], Sequence[Value]],
    ) -> list[tuple[Value, bool]]:
        return mapped(self.context, self.n, self.entry, arguments, member)

    def one_by_one(self, op: Op, stacked: Sequence[Value | None]) -> list[Value]:
        """Return the stacked results of an op that has no form for all members: a loop runs it for
        one member after the other."""
        context = self.context
        counter = Counter(context, "member", expr.const(0), self.n, expr.const(1))
        number = expr.symbol(counter.sym)
        types = [self.stacked(v.type) for v in op.results]
        begins = [laid_as(context, self.full(0, t), t.layout) for t in types]
        args = [Value(v.name, t) for v, t in zip(op.results, types)]
        with self.block(args) as block:
            operands = [v if g is None else self.member(g, number)
                        for v, g in zip(op.operands, stacked)]
            if self.active is None or op.results:  # results of an idle member are never read
                results = context.emit(op.kind, operands)
            else:
                results = ()
                with self.block() as does:
                    context.emit(op.kind, operands)
                holds, arms = self.member(self.active, number), (Block().close(()), does.close(()))
                context.emit(ops.Branch(None, ()), (holds,), arms)
            ends = []
            for arg, v in zip(args, results):
                row = self.emit(ops.Reshape((expr.const(1), *v.type.shape)), v)
                start = (number, *(expr.const(0),) * v.type.ndim)
                end = self.emit(ops.Update(start, (1,) * arg.type.ndim), arg, row)
                ends.append(laid_as(context, end, arg.type.layout))
            region = block.close(ends)
        return list(context.emit(counter.loop, begins, [region], [a.name for a in args]))

    def none(self, op: Op, found: str = "", remedy: str = "") -> UnsupportedError:
        called = op.kind.title()
        return UnsupportedError(
            f"{called} cannot be done for all members at once", place=op.place,
            expected="in spmd.vmap: operations that each member does alone",
            found=found or f"{called}, of what a member has", remedy=remedy or
            "do it outside of the function that is mapped")


def mapped(
    context: Context, n: Expr, entry: LayoutEntry, arguments: Sequence[tuple[Value, bool]],
    member: Callable[[Sequence[Value]], Sequence[Value]],
) -> list[tuple[Value, bool]]:
    """Return the results of `member`, a function of one member's values, for all members.

    Arguments and results are pairs: a value, and whether it is stacked (dim 0 counts members).
    """
    args = [Value(v.name, _member_type(context, v.type)) if own else v for v, own in arguments]
    first = len(context.keeps)
    block = Block(tuple(a for a, (_, own) in zip(args, arguments) if own))
    context.blocks.append(block)
    try:
        results = member(args)
    finally:
        context.blocks = [b for b in context.blocks if b is not block]
    batch = Batch(context, n, entry, {a: v for a, (v, own) in zip(args, arguments) if own})
    batch.through(block.ops)
    for k, some in enumerate(context.keeps[first:], first):
        context.keeps[k] = replace(some, values=tuple(batch.of.get(v, v) for v in some.values))
    return [(batch.of[v], True) if v in batch.of else (v, False) for v in results]


def _member_type(context: Context, t: ArrayType) -> ArrayType:
    """Return the type of one member's part, from the type of the stacked value."""
    layout = None if t.layout is None or t.ndim == 1 else t.layout[1:]
    return replace(t, shape=t.shape[1:], layout=layout)
