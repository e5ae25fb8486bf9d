"""What passes share: a builder of ops, and the ops on global arrays in their order.

Always holds: what a Builder emits has the type that follows from the rule of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import Place
from codegen.ir.graph import ArrayType, Op, Region, Shape, Value
from codegen.ops import Full, Kind, Map, ShardMap, Symbolic
from codegen.symbolic.estimate import largest
from codegen.symbolic.expr import Expr


class Builder:
    """A builder of ops. ops: those emitted so far. name: of what comes next, or the kind's own;
    place: where in the source that comes from."""

    def __init__(self, name: str = "", place: Place | None = None) -> None:
        self.ops: list[Op] = []
        self.name, self.place = name, place

    def typed(self, kind: Kind, operands: Sequence[Value]) -> ArrayType:
        """Return the type of the only result of an op."""
        (t,) = kind.infer([v.type for v in operands])
        return t

    def emit(self, kind: Kind, operands: Sequence[Value] = ()) -> Value:
        """Return the result of a new op that has one."""
        result = Value(self.name or kind.called, self.typed(kind, operands))
        return self.add(kind, operands, (result,)).result

    def add(
        self, kind: Kind, operands: Sequence[Value] = (), results: Sequence[Value] = (),
        regions: Sequence[Region] = (),
    ) -> Op:
        """Return a new op, with these results."""
        op = Op(kind, tuple(operands), tuple(results), tuple(regions), self.place)
        self.ops.append(op)
        return op

    @contextmanager
    def inside(self) -> Iterator[list[Op]]:
        """Collect the ops that are emitted meanwhile, separate from the others: the ops of a
        region."""
        outer, self.ops = self.ops, []
        try:
            yield self.ops
        finally:
            self.ops = outer

    def map(self, fn: str, *operands: Value) -> Value:
        return self.emit(Map(fn), operands)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype == dtype else self.emit(Map("cast", dtype=dtype), (x,))

    def full(self, value: complex, dtype: DType, shape: Shape) -> Value:
        return self.emit(Full(value, dtype, shape))

    def integer(self, e: Expr) -> Value:
        """Return a symbolic integer as a 0-d int64 value."""
        if e.is_const:
            return self.full(e.value, dtypes.INT64, ())
        return self.emit(Symbolic(e, dtypes.INT64))


def global_ops(region: Region) -> Iterator[Op]:
    """Yield ops on global arrays, those in loops and branches before the loop or branch itself."""
    for op in region.ops:
        if not isinstance(op.kind, ShardMap):
            for inner in op.regions:
                yield from global_ops(inner)
        yield op


def bytes_of(value: Value) -> int | None:
    """Return the bytes of a whole array; None where its extents are not known."""
    shape = [largest(e) for e in value.type.shape]
    known = all(e.is_const for e in shape)
    return prod(e.value for e in shape) * value.type.dtype.size if known else None
