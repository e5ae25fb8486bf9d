"""Rows stay rows: what is written into one row is computed in 2-d, on its owner: A[i] += A[i - 1].

Goes in: a Graph. Comes out: the same in which the elements that an update writes keep the dims of
extent 1 that an index dropped and the update puts back: so the parts that ranks need of them are
known along these dims too, and a rank that has no such row needs none.
Always holds: no element is computed by other functions, or of other elements, than before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen.graph.builder import Builder
from codegen.graph.layout_propagation import laid_out
from codegen.ir.cuts import layout_of
from codegen.ir.graph import Module, Op, Region, Shape, Use, Value
from codegen.ops import Full, Kind, Map, Reshape, ShardMap, Slice, Update
from codegen.target import TARGET


def keep_row_dims(graph: Module) -> Module:
    """Return the Graph in which rows that are written are computed with all dims of their array."""
    return graph.mapped(_Rewrite(graph.def_use.defs, graph.def_use.uses).region)


class _Rewrite(Builder):
    """Rewrites updates of rows so that what they write keeps the dims of extent 1."""

    def __init__(self, defs: Mapping[Value, Op], uses: Mapping[Value, tuple[Use, ...]]) -> None:
        super().__init__()
        self.defs, self.uses = defs, uses

    def region(self, region: Region) -> Region:
        here = {op.result for op in region.ops if len(op.results) == 1}
        with self.inside() as ops:
            for op in region.ops:
                if isinstance(op.what, Update):
                    (whole, rows), self.place = op.operands, op.place
                    if self.drops_rows(whole, rows, here):
                        rows = self.with_dims(rows, rows.type.shape)
                        op = replace(op, operands=(whole, rows))
                ops.append(op if isinstance(op.what, ShardMap) else op.mapped(self.region))
        return region.with_ops(ops)

    def drops_rows(self, whole: Value, value: Value, here: set[Value]) -> bool:
        """Return whether an update writes rows of a split dim that were reshaped from rows of the
        same shape, or computed elementwise of such rows for this update only."""
        op, split = self.defs.get(value), zip(layout_of(whole), value.type.shape)
        if not any(axes and e == 1 for axes, e in split):
            return False
        if op is None or not isinstance(op.what, Reshape) or len(self.uses[value]) != 1:
            return False
        made = op.operands[0]
        alike = _long(made.type.shape) == _long(value.type.shape)
        by = self.defs.get(made)
        copied = by is not None and isinstance(by.what, Reshape)  # p[-1, :] = p[-2, :]
        return alike and (copied or self.alone(made, here)) and (
            self.has_row(made, value.type.shape, TARGET.deepest_expression))

    def alone(self, value: Value, here: set[Value]) -> bool:
        """Return whether a value is computed elementwise in this region, for one use."""
        return value in here and self.expands(value, 1)

    def expands(self, value: Value, depth: int) -> bool:
        """Return whether an elementwise op has one use, so that computing it in another shape
        repeats no work."""
        op = self.defs.get(value)
        return (depth > 0 and op is not None and isinstance(op.what, Map)
                and len(self.uses[value]) == 1)

    def has_row(self, value: Value, shape: Shape, depth: int) -> bool:
        """Return whether a slice of this shape is an operand of an expression, at most `depth` ops
        deep."""
        op = self.defs.get(value)
        if op is None:
            return False
        if self.expands(value, depth):
            return any(self.has_row(v, shape, depth - 1) for v in op.operands)
        row = self.defs.get(op.operands[0]) if isinstance(op.what, Reshape) else None
        return (row is not None and isinstance(row.what, Slice)
                and row.result.type.shape == shape)

    def with_dims(
        self, value: Value, shape: Shape, depth: int = TARGET.deepest_expression
    ) -> Value:
        """Return an expression's value in another shape with the same elements, its operands
        reshaped first."""
        op = self.defs.get(value)
        while op is not None and isinstance(op.what, Reshape):
            (value,) = op.operands
            op = self.defs.get(value)
        if value.type.shape == shape:
            return value
        if op is not None and self.expands(value, depth):
            operands = tuple(self.with_dims(v, shape, depth - 1) for v in op.operands)
            return self.made(op.what, operands, value)
        if op is not None and isinstance(op.what, Full):
            return self.made(op.what.but(shape=shape), (), value)
        return self.made(Reshape(shape), (value,), value)

    def made(self, what: Kind, operands: tuple[Value, ...], like: Value) -> Value:
        t = laid_out(what, [v.type for v in operands], self.typed(what, operands))
        result = Value(like.name, replace(t, free=like.type.free))
        self.add(what, operands, (result,))
        return result


def _long(shape: Shape) -> Shape:
    return tuple(e for e in shape if e != 1)
