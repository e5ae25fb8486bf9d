"""Rows stay rows: what is written into one row is computed in 2-d, on its owner: A[i] += A[i - 1].

Goes in: a Graph. Comes out: the same in which the elements that an update writes keep the dims of
extent 1 that an index dropped and the update puts back: so the parts that ranks need of them are
known along these dims too, and a rank that has no such row needs none.
Always holds: no element is computed by other functions, or of other elements, than before.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.graph.rewriter import Rewriter
from codegen.ir.cuts import layout_of
from codegen.ir.graph import Module, Op, Shape, Value
from codegen.ops import Full, Map, Reshape, Slice, Update
from codegen.target import TARGET


def keep_row_dims(graph: Module) -> Module:
    """Return the Graph in which rows that are written are computed with all dims of their array."""
    return _KeepRowDims(graph, shard_maps=False).run()


class _KeepRowDims(Rewriter):
    """Rewrites updates of rows so that what they write keeps the dims of extent 1."""

    def op(self, op: Op) -> None:
        self.place = op.place
        if isinstance(op.kind, Update) and self.drops_rows(op):
            array, rows = op.operands
            op = replace(op, operands=(array, self.with_dims(rows, rows.type.shape)))
        self.keep(op)

    def drops_rows(self, update: Op) -> bool:
        """Return whether an update writes rows of a split dim that were reshaped from rows of the
        same shape, or computed elementwise of such rows for this update only."""
        array, value = update.operands
        op, split = self.defs.get(value), zip(layout_of(array), value.type.shape)
        if not any(axes and e == 1 for axes, e in split):
            return False
        if op is None or not isinstance(op.kind, Reshape) or len(self.uses[value]) != 1:
            return False
        row, regions = op.operands[0], self.module.def_use.regions
        alike = _long(row.type.shape) == _long(value.type.shape)
        by = self.defs.get(row)
        copied = by is not None and isinstance(by.kind, Reshape)  # p[-1, :] = p[-2, :]
        computed = regions.get(row) is regions[update.result] and self.expands(row, 1)
        return alike and (copied or computed) and self.has_row(row, value.type.shape,
                                                                   TARGET.deepest_expression)

    def expands(self, value: Value, depth: int) -> bool:
        """Return whether an elementwise op has one use, so that computing it in another shape
        repeats no work."""
        op = self.defs.get(value)
        return (depth > 0 and op is not None and isinstance(op.kind, Map)
                and len(self.uses[value]) == 1)

    def has_row(self, value: Value, shape: Shape, depth: int) -> bool:
        """Return whether a slice of this shape is an operand of an expression, at most `depth` ops
        deep."""
        op = self.defs.get(value)
        if op is None:
            return False
        if self.expands(value, depth):
            return any(self.has_row(v, shape, depth - 1) for v in op.operands)
        row = self.defs.get(op.operands[0]) if isinstance(op.kind, Reshape) else None
        return (row is not None and isinstance(row.kind, Slice)
                and row.result.type.shape == shape)

    def with_dims(
        self, value: Value, shape: Shape, depth: int = TARGET.deepest_expression
    ) -> Value:
        """Return an expression's value in another shape with the same elements, its operands
        reshaped first."""
        op = self.defs.get(value)
        while op is not None and isinstance(op.kind, Reshape):
            (value,) = op.operands
            op = self.defs.get(value)
        if value.type.shape == shape:
            return value
        if op is not None and self.expands(value, depth):
            operands = tuple(self.with_dims(v, shape, depth - 1) for v in op.operands)
            return self.emit(op.kind, operands, value.name)
        if op is not None and isinstance(op.kind, Full):
            return self.emit(op.kind.but(shape=shape), (), value.name)
        return self.emit(Reshape(shape), (value,), value.name)


def _long(shape: Shape) -> Shape:
    return tuple(e for e in shape if e != 1)
