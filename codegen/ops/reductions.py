"""Ops along whole dims: reductions, running ones, sorting, products of matrices, edges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from codegen import dtypes
from codegen.functions import COMBINE, FUNCTIONS, neutral
from codegen.ir import ArrayType
from codegen.mesh import joined_layout
from codegen.ops.kind import Array, Eval, Kind, Types, dropped, layout_of


def combine(fn: str) -> np.ufunc:
    """The ufunc of a combining function."""
    ufunc = FUNCTIONS[COMBINE[fn]].numpy
    assert isinstance(ufunc, np.ufunc)
    return ufunc


@dataclass(frozen=True)
class Reduce(Kind):
    """COMBINE[fn] over dims, which are dropped."""

    name = "reduce"
    group = "reduce"
    fn: str
    dims: tuple[int, ...]

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, dropped(types[0].shape, self.dims))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return (entry for d, entry in enumerate(layout_of(operands[0])) if d not in self.dims)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,) = operands
        dims = tuple(self.dims)
        dtype = dtypes.from_numpy(x.dtype)
        assert dtype is not None
        if x.size == 0:
            shape = tuple(n for d, n in enumerate(x.shape) if d not in dims)
            return [np.full(shape, neutral(self.fn, dtype), x.dtype)]
        ufunc = combine(self.fn)
        if ufunc in (np.logical_and, np.logical_or):
            return [np.asarray(ufunc.reduce(x, axis=dims)).astype(x.dtype)]
        return [np.asarray(ufunc.reduce(x, axis=dims, dtype=x.dtype))]


@dataclass(frozen=True)
class ArgReduce(Kind):
    """fn min or max: first position."""

    name = "argreduce"
    group = "compute"
    fn: str
    dim: int

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(dtypes.INT64, dropped(types[0].shape, (self.dim,)))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return (entry for d, entry in enumerate(layout_of(operands[0])) if d != self.dim)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,), dim = operands, self.dim
        if x.shape[dim] == 0:
            return [np.zeros(x.shape[:dim] + x.shape[dim + 1 :], np.int64)]
        first = np.argmin if self.fn == "min" else np.argmax
        return [np.asarray(first(x, axis=dim)).astype(np.int64)]


class Lane(Kind):
    """A kind that works on lines along `dim`, each for itself, with results of the same shape."""

    group = "compute"
    dim: int

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(types[0].dtype, types[0].shape)]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        entries = enumerate(layout_of(operands[0]))
        return (() if d == self.dim else entry for d, entry in entries)


@dataclass(frozen=True)
class Cumulative(Lane):
    """Running COMBINE[fn] along a dim."""

    name = "cumulative"
    fn: str
    dim: int

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,) = operands
        return [combine(self.fn).accumulate(x, axis=self.dim, dtype=x.dtype)]


@dataclass(frozen=True)
class Sort(Lane):
    """Ascending, NaN last."""

    name = "sort"
    dim: int

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.sort(operands[0], axis=self.dim, kind="stable")]


@dataclass(frozen=True)
class ArgSort(Lane):
    """The positions in which `sort` has the elements; stable."""

    name = "argsort"
    dim: int

    def infer(self, types: Types) -> list[ArrayType]:
        return [ArrayType(dtypes.INT64, types[0].shape)]

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.argsort(operands[0], axis=self.dim, kind="stable").astype(np.int64)]


@dataclass(frozen=True)
class MatMul(Kind):
    """[…, m, k] x […, k, n]; equal leading dims."""

    name = "matmul"
    group = "compute"

    def infer(self, types: Types) -> list[ArrayType]:
        a, b = types
        return [ArrayType(a.dtype, (*a.shape[:-1], b.shape[-1]))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        a, b = map(layout_of, operands)
        batch = joined_layout([a[:-2], b[:-2]]) if a[:-2] else ()
        return (*batch, a[-2], b[-1])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        product = np.asarray(np.matmul(operands[0], operands[1]))
        return [product.astype(operands[0].dtype)]  # of bfloat16, NumPy's is float32


@dataclass(frozen=True)
class Edge(Kind):
    """Graph level: the first and the last element again, before and behind along every dim; parts
    of it are wanted with all that lies between."""

    name = "edge"
    group = "compute"
    widths: tuple[tuple[int, int], ...]

    def infer(self, types: Types) -> list[ArrayType]:
        pairs = zip(types[0].shape, self.widths, strict=True)
        return [ArrayType(types[0].dtype, tuple(e + a + b for e, (a, b) in pairs))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        return layout_of(operands[0])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        return [np.pad(operands[0], self.widths, mode="edge")]
