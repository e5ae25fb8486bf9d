"""Ops that make an array of nothing: constants, numbers, positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.ir.cuts import Window
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import Index, ravel
from codegen.ir.plan import Integer, Literal, Load, Runtime
from codegen.ops.kind import Array, Eval, Kind, Types, extents
from codegen.ops.rules import Element, ElementResolver, GraphBuilder, LoopBuilder, Shards
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr


class Source(Kind):
    dtype: DType
    shape: Shape

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(self.dtype, tuple(self.shape))]


@dataclass(frozen=True, eq=False)
class Const(Source):
    """An array whose data, a NumPy array, is stored in the image."""

    name = "const"
    inline = True
    is_view = True
    data: Array

    def infer(self, types: Types) -> list[ArrayType]:
        dtype = dtypes.from_numpy(self.data.dtype)
        assert dtype is not None, f"no element type for {self.data.dtype}"
        return [ArrayType(dtype, tuple(expr.const(n) for n in self.data.shape))]

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.asarray(self.data)]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        if self.data.size == 1:
            return Literal(self.data.reshape(-1)[0].item(), op.result.type.dtype)
        return Load(resolver.constant(op.result, self.data), ravel(index, op.result.type.shape))

    def goes_on(self, op: Op, dim: int, shards: Shards) -> bool:
        return False


@dataclass(frozen=True)
class Full(Source):
    """Fill an array with a Python number. blank: the fill may be left out, since updates replace
    every element that is read. sparse: with blank, each rank updates some parts only."""

    name = "full"
    inline = True
    is_view = True
    value: Any
    dtype: DType
    shape: Shape
    blank: bool = False
    sparse: bool = False

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.full(extents(self.shape, value), self.value, dtypes.numpy_dtype(self.dtype))]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        return Literal(self.value, op.result.type.dtype)

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        if not self.blank:
            super().steps(op, builder)

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        return build.emit(self.but(shape=shards.shape(window)))


@dataclass(frozen=True)
class Iota(Source):
    """Count 0, 1, 2, … along a dim of a local array."""

    name = "iota"
    inline = True
    is_view = True
    dim: int
    dtype: DType
    shape: Shape

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        shape = extents(self.shape, value)
        along = [1] * len(shape)
        along[self.dim] = shape[self.dim]
        line = np.arange(shape[self.dim]).astype(dtypes.numpy_dtype(self.dtype))
        return [np.broadcast_to(line.reshape(along), shape)]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        return Integer(index[self.dim], op.result.type.dtype)

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        low, period = shards.lows(window)[self.dim], window[self.dim].period
        return shards.counted(shards.shape(window), self.dim, low, period, self.dtype, build)


@dataclass(frozen=True)
class Symbolic(Source):
    """Return a symbolic integer as a 0-d array."""

    name = "expr"
    inline = True
    is_view = True
    value: Expr
    dtype: DType
    shape = ()

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.asarray(np.int64(value(self.value))).astype(dtypes.numpy_dtype(self.dtype))]

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        return Integer(self.value, op.result.type.dtype)

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        return build.emit(self)


@dataclass(frozen=True)
class RunScalar(Source):
    """Return a run-time scalar as a 0-d array."""

    name = "scalar"
    at_home = True
    has_room = False
    inline = True
    scalar: str
    dtype: DType
    shape = ()

    def element(self, op: Op, index: Index, resolver: ElementResolver) -> Element:
        return Runtime(resolver.runtime[self.scalar], self.scalar, op.result.type.dtype)
