"""Ops that show the elements of an array at other indices, with no work of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from codegen import expr
from codegen.errors import InternalError
from codegen.expr import Expr
from codegen.groups import reshaped_layout
from codegen.indexing import Index, match_dims, ravel
from codegen.ir import ArrayType, Op, Shape
from codegen.ops.kind import Array, Eval, Kind, Types, extents, layout_of
from codegen.plan import Node

if TYPE_CHECKING:
    from codegen.access import Resolver



class View(Kind):
    group = "view"


@dataclass(frozen=True)
class Broadcast(View):
    """dims[k]: the result dim of operand dim k (increasing); a 1 may stretch."""

    name = "broadcast"
    inline = True
    dims: tuple[int, ...]
    shape: Shape

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, tuple(self.shape))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        (x,) = operands
        entries: list[tuple[str, ...]] = [()] * result.ndim
        for d, e, entry in zip(self.dims, x.shape, layout_of(x), strict=True):
            if e != 1 or result.shape[d] == 1:
                entries[d] = entry
        return entries

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,) = operands
        shape = extents(self.shape, value)
        spread = [1] * len(shape)
        for k, d in enumerate(self.dims):
            spread[d] = x.shape[k]
        return [np.broadcast_to(x.reshape(spread), shape)]

    def element(self, op: Op, index: Index, at: Resolver) -> Node:
        (x,) = op.operands
        inner = tuple(
            expr.const(0) if x.type.shape[k] == 1 else index[d] for k, d in enumerate(self.dims)
        )
        return at.node(x, inner)


def positions(
    box: Slice | Update, shape: Sequence[int], value: Eval, taken: Sequence[int]
) -> tuple[slice, ...]:
    """The positions start + step * j, j < taken[d] > 0, in an operand of `shape`: all inside."""
    parts = []
    for d, extent in enumerate(taken):
        start, step = value(box.start[d]), value(box.step[d])
        last = start + step * (extent - 1)
        if min(start, last) < 0 or max(start, last) >= shape[d]:
            raise InternalError(
                f"dim {d} is read or written from {min(start, last)} to {max(start, last)}",
                expected=f"positions from 0 to {shape[d] - 1}",
            )
        end = last + (1 if last >= start else -1)
        parts.append(slice(start, None if end < 0 else end, step if extent > 1 else None))
    return tuple(parts)


@dataclass(frozen=True)
class Slice(View):
    """result[j] = operand[start + step * j]; start Exprs, step ints (not 0), in bounds; cut: by the
    arithmetic of codegen.layouts.cuts."""

    name = "slice"
    inline = True
    start: tuple[Expr, ...]
    step: tuple[int, ...]
    shape: Shape
    cut: bool = False

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, tuple(self.shape))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return (() if e == 1 else entry for e, entry in zip(result.shape, layout_of(operands[0])))

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,) = operands
        shape = extents(self.shape, value)
        if 0 in shape:
            return [np.empty(shape, x.dtype)]
        return [x[positions(self, x.shape, value, shape)]]

    def element(self, op: Op, index: Index, at: Resolver) -> Node:
        return at.node(op.operands[0], at.within(self, index))


@dataclass(frozen=True)
class Transpose(View):
    """Result dim d is operand dim perm[d]."""

    name = "transpose"
    inline = True
    perm: tuple[int, ...]

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, tuple(types[0].shape[d] for d in self.perm))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        entries = layout_of(operands[0])
        return (entries[d] for d in self.perm)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [operands[0].transpose(self.perm)]

    def element(self, op: Op, index: Index, at: Resolver) -> Node:
        inner = list(index)
        for d, source in enumerate(self.perm):
            inner[source] = index[d]
        return at.node(op.operands[0], tuple(inner))


@dataclass(frozen=True)
class Reshape(View):
    """The same elements in row-major order."""

    name = "reshape"
    inline = True
    shape: Shape

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, tuple(self.shape))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return reshaped_layout(operands[0].shape, result.shape, layout_of(operands[0]))

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        shape = extents(self.shape, value)
        if int(np.prod(shape)) != operands[0].size:
            raise InternalError(f"reshape of {operands[0].shape} to {shape} changes the size")
        return [operands[0].reshape(shape)]

    def element(self, op: Op, index: Index, at: Resolver) -> Node:
        x = op.operands[0]
        mapped = match_dims(index, op.result.type.shape, x.type.shape)
        if mapped is not None:
            return at.node(x, mapped)
        return at.at_offset(x, ravel(index, op.result.type.shape))


@dataclass(frozen=True)
class Roll(View):
    """Graph level: result[j] = operand[(j - shift) mod its extent] along dim; extent: of the
    result, where it is another one."""

    name = "roll"
    dim: int
    shift: Expr
    extent: Expr | None = None

    def infer(self, types: Types) -> list[ArrayType]:
        shape = list(types[0].shape)
        if self.extent is not None:
            shape[self.dim] = self.extent
        return [ArrayType(types[0].dtype, tuple(shape))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,), d = operands, self.dim
        extent = x.shape[d] if self.extent is None else value(self.extent)
        at = np.arange(extent) - value(self.shift)
        return [np.take(x, at % max(x.shape[d], 1), d)]


# ---- writes: the operand with something replaced -------------------------------------------------


@dataclass(frozen=True)
class Update(Kind):
    """x with x[start + step * j] = v[j]; operands x, v; always in bounds; apart: of updates that
    make an array of a blank one, no two have an element in common."""

    name = "update"
    group = "update"
    start: tuple[Expr, ...]
    step: tuple[int, ...]
    cut: bool = False
    apart: bool = False

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, types[0].shape)]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        x, v = operands
        return layout_of(v if x.free and v.ndim == x.ndim else x)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        x, v = operands
        out = x.copy()
        if v.size:
            out[positions(self, x.shape, value, v.shape)] = v
        return [out]
