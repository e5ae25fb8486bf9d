"""Factorisations of matrices by LAPACK, and solvers that use them, for each member of a batch.

Matrices lie column by column, as in LAPACK: operands and results are transposes of the matrices
that they stand for. A batch may be split; a matrix is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.ir.cuts import Window, whole
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import loop_vars, positions, ravel
from codegen.ir.plan import Caller, Part, Var
from codegen.library_routines import LETTERS, named_in, real_of
from codegen.mesh import joined_layout
from codegen.ops.kind import Array, Eval, Kind, Types, layout_of
from codegen.ops.rules import BatchBuilder, GraphBuilder, LoopBuilder, Shards, Values
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.target import TARGET

INFO = dtypes.BY_NAME["int32"]


class Factor(Kind):
    """An op on each matrix of a batch. cores: how many last dims of each operand belong to one
    member of the batch."""

    held = True
    has_room = False
    reads: ClassVar[Literal["points", "boxes", "whole"]] = "points"
    cores: ClassVar[tuple[int, ...]] = (2,)

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        """Return the element type and the shape of each result of one member."""
        raise NotImplementedError(self.name)

    def on_member(self, *operands: Array) -> list[Any]:
        """Return the results for one member, in NumPy."""
        raise NotImplementedError(self.name)

    def batch_dims(self, types: Types) -> int:
        """Return how many dims the batch has."""
        return types[0].ndim - self.cores[0]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Emit the op on a batch with one more dim."""
        return batch.emit_all(self, *batch.every(op, stacked))

    def work(self, op: Op) -> Iterable[Shape]:
        shapes = [v.type.shape for v in op.operands if v.type.ndim]
        return [(*shape, shape[-1] * 8 + 64) for shape in shapes]  # a call is work, too

    def infer(self, types: Types) -> list[ArrayType]:
        n = self.batch_dims(types)
        results = self.result_types([t.shape[n:] for t in types], types[0].dtype)
        return [ArrayType(dtype, (*types[0].shape[:n], *core)) for dtype, core in results]

    def layout(self, operands: Types, result: ArrayType) -> tuple[tuple[str, ...], ...]:
        n = self.batch_dims(operands)
        batch = joined_layout([layout_of(t)[:n] for t in operands]) if n else ()
        return (*batch, *[()] * (result.ndim - n))

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        n = self.batch_dims([v.type for v in op.operands])
        return [(*window[:n], *map(whole, v.type.shape[n:])) for v in op.operands]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        n = self.batch_dims([v.type for v in op.operands])
        held = (*window[:n], *map(whole, op.result.type.shape[n:]))
        return shards.part(build.emit(self, operands), held, window, build)

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        n = operands[0].ndim - self.cores[0]
        types = [ArrayType(_dtype(x), tuple(map(expr.const, x.shape))) for x in operands]
        outs = [np.zeros(tuple(map(value, t.shape)), dtypes.numpy_dtype(t.dtype))
                for t in self.infer(types)]
        for index in np.ndindex(*operands[0].shape[:n]):
            for out, result in zip(outs, self.on_member(*(x[index] for x in operands)),
                                   strict=True):
                out[index] = result
        return outs


def _dtype(x: Array) -> DType:
    dtype = dtypes.from_numpy(x.dtype)
    assert dtype is not None
    return dtype


class Members:
    """The loops over a batch, and the parts of arrays that belong to one member; the steps of
    factorisations share it."""

    def __init__(self, kind: Factor, op: Op, builder: LoopBuilder) -> None:
        self.op, self.builder = op, builder
        self.n = kind.batch_dims([v.type for v in op.operands])
        self.batch = op.operands[0].type.shape[: self.n]
        self.loops: tuple[Var, ...] = loop_vars(self.batch)
        self.dtype = op.operands[0].type.dtype

    def part(self, value: Value, writes: bool = False) -> Part[Value]:
        """Return a member's part of an array of the batch."""
        zeros = (expr.const(0),) * (value.type.ndim - self.n)
        return Part(value, ravel((*positions(self.loops), *zeros), value.type.shape), writes)

    def copied(self, operand: Value, into: Value | None = None) -> Part[Value]:
        """Copy an operand to memory that a routine may write over, and return that."""
        if into is None:
            into = self.builder.spare(f"{operand.name}_copy", self.dtype, *operand.type.shape)
        index = positions(loop_vars(into.type.shape))
        self.builder.store(into, self.builder.node(operand, index), self.op)
        return self.part(into, writes=True)

    def results(self, first: int = 0) -> list[Part[Value]]:
        """Return the member's parts of the results, from result `first` on."""
        return [self.part(v, writes=True) for v in self.op.results[first:]]

    def spare(self, name: str, dtype: DType, *shape: Expr) -> Part[Value]:
        """Return temporary memory for the results of one member."""
        array = self.builder.spare(f"{self.op.results[0].name}_{name}", dtype, *shape)
        return Part(array, expr.const(0), True)

    def call(self, name: str, parameters: str, text: str, numbers: Sequence[Expr],
             parts: Sequence[Part[Value]]) -> None:
        """Call a C function for each member. In its text stand <T> for the type of elements, <R>
        for that of their parts, and the keys of routines: <potrf>."""
        text, routines = named_in(text, self.dtype)
        for word, said in {"<T>": self.dtype.c, "<R>": real_of(self.dtype).c}.items():
            parameters, text = parameters.replace(word, said), text.replace(word, said)
        function = Caller(f"{LETTERS[self.dtype.name]}_{name}", parameters, text, routines)
        self.builder.call(function, self.loops, numbers, parts, self.op)


@dataclass(frozen=True)
class Cholesky(Factor):
    """Factor a matrix of which the lower triangle counts, or the upper one, row by row. Results:
    the factor of that triangle, row by row too, and 0, or the order of the first leading minor that
    is not positive."""

    name = "cholesky"
    upper: bool = False

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        return [(dtype, cores[0]), (INFO, ())]

    def on_member(self, *operands: Array) -> list[Any]:
        (x,) = operands
        x = x.conj().T if self.upper else x
        lower = x
        for k in range(1, len(x) + 1):
            try:
                lower = np.linalg.cholesky(x[:k, :k])
            except np.linalg.LinAlgError:
                return [np.zeros_like(x), k]
        return [lower.conj().T if self.upper else lower, 0]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        m, (factor, _) = Members(self, op, builder), op.results
        which, triangle = ("L", "upper") if self.upper else ("U", "lower")
        others = "j = 0; j < i" if self.upper else "j = i + 1; j < n"
        m.call(
            f"cholesky_{triangle}", "int64_t n, <T> *x, int32_t *info",
            f"*info = n ? <potrf>(SPMD_BY_COLUMNS, '{which}', n, x, n) : 0;\n"
            "for (int64_t i = 0; i < n; i++)\n"
            f"    for (int64_t {others}; j++)\n"
            "        x[i * n + j] = 0;",
            op.operands[0].type.shape[-1:], [m.copied(op.operands[0], factor), *m.results(1)],
        )


@dataclass(frozen=True)
class Lu(Factor):
    """Factor P A = L U with partial pivoting: both factors in one matrix; per row, counted from 1,
    the one that it changed places with; and 0, or the number of the first pivot that is 0."""

    name = "lu"

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        return [(dtype, cores[0]), (INFO, (expr.minimum(*cores[0]),)), (INFO, ())]

    def on_member(self, *operands: Array) -> list[Any]:
        a = operands[0].T.copy()
        pivots, info = np.zeros(min(a.shape), np.int32), 0
        for k in range(len(pivots)):
            p = k + int(np.argmax(abs(a[k:, k].real) + abs(a[k:, k].imag)))
            pivots[k] = p + 1
            if a[p, k] == 0:
                info = info or k + 1
                continue
            a[[k, p]] = a[[p, k]]
            a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
        return [a.T, pivots, info]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        m = Members(self, op, builder)
        m.call(
            "lu", "int64_t n, int64_t m, <T> *lu, int32_t *pivots, int32_t *info",
            "*info = m && n ? <getrf>(SPMD_BY_COLUMNS, m, n, lu, m, pivots) : 0;",
            op.operands[0].type.shape[-2:],
            [m.copied(op.operands[0], op.results[0]), *m.results(1)],
        )


@dataclass(frozen=True)
class LuSolve(Factor):
    """Solve A X = B, from the results of Lu for A. Columns of B, which are rows here, may be
    split."""

    name = "lu_solve"
    reads = "whole"
    cores = (2, 1, 2)

    def layout(self, operands: Types, result: ArrayType) -> tuple[tuple[str, ...], ...]:
        """Return the result's layout: whole columns for a rank, where many columns lie in parts on
        several ranks."""
        columns, within = layout_of(operands[2])[-2:]
        many = all(e.is_const and e.value >= TARGET.shared_columns for e in result.shape[-2:])
        split = columns or (within if many else ())
        return (*super().layout(operands, result)[:-2], split, ())

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        lu, pivots, _ = super().needs(op, window, shards)
        return [lu, pivots, (*window[:-1], whole(op.result.type.shape[-1]))]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        held = (*window[:-1], whole(op.result.type.shape[-1]))
        return shards.part(build.emit(self, operands), held, window, build)

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        return [(dtype, cores[2])]

    def on_member(self, *operands: Array) -> list[Any]:
        (lu, pivots, b), order = operands, list(range(len(operands[0])))
        for k, p in enumerate(pivots):
            order[k], order[p - 1] = order[p - 1], order[k]
        lower = np.tril(lu.T, -1) + np.eye(len(order), dtype=lu.dtype)
        return [np.linalg.solve(np.triu(lu.T), np.linalg.solve(lower, b.T[order])).T]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        m, (lu, pivots, b) = Members(self, op, builder), op.operands
        m.call(
            "lu_solve", "int64_t k, int64_t n, const <T> *lu, const int32_t *pivots, <T> *x",
            "if (n && k)\n    <getrs>(SPMD_BY_COLUMNS, 'N', n, k, lu, n, pivots, x, n);",
            b.type.shape[-2:], [m.part(lu), m.part(pivots), m.copied(b, op.result)],
        )


@dataclass(frozen=True)
class Swapped(Factor):
    """Swap columns of a matrix by the pivots of Lu: pivot k is the column, counted from 1 and from
    `first`, with which column first + k changes places."""

    name = "swapped_columns"
    in_place = True
    reads = "whole"
    cores = (2, 1)
    first: Expr

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        return [(dtype, cores[0])]

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x, pivots), first = operands, value(self.first)
        order = list(range(x.shape[-1]))
        for k, p in enumerate(pivots):
            a, b = first + k, first + p - 1
            order[a], order[b] = order[b], order[a]
        return [x[..., order]]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        m, result = Members(self, op, builder), builder.take_over(op)
        rows, columns = result.type.shape[-2:]
        m.call(
            "swapped", "int64_t rows, int64_t columns, int64_t count, int64_t first, <T> *x, "
            "const int32_t *pivots",
            "if (rows)\n"
            "    <laswp>(SPMD_BY_COLUMNS, rows, x + first, columns, 1, count, pivots, 1);",
            [rows, columns, op.operands[1].type.shape[-1], self.first],
            [m.part(result, writes=True), m.part(op.operands[1])],
        )


# The words of CBLAS for what Triangular says.
_SIDE = {False: "SPMD_LEFT", True: "SPMD_RIGHT"}
_TRIANGLE = {False: "SPMD_UPPER", True: "SPMD_LOWER"}
_TURN = {False: "SPMD_PLAIN", True: "SPMD_ADJOINT"}
_DIAGONAL = {False: "SPMD_ANY_DIAGONAL", True: "SPMD_UNIT_DIAGONAL"}


@dataclass(frozen=True)
class Triangular(Factor):
    """Solve a triangular system: X in the place of B, with A X = B, or X A = B if `right`, of a
    triangle of A; adjoint: of its conjugate transpose; unit: its diagonal counts as ones. Operands
    are B and A, and matrices lie row by row here."""

    name = "triangular"
    in_place = True
    reads = "whole"
    cores = (2, 2)
    lower: bool
    right: bool = False
    adjoint: bool = False
    unit: bool = False

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        return [(dtype, cores[0])]

    def on_member(self, *operands: Array) -> list[Any]:
        b, a = operands
        a = np.tril(a) if self.lower else np.triu(a)
        if self.unit:
            a = a - np.diag(np.diag(a)) + np.eye(len(a), dtype=a.dtype)
        a = a.conj().T if self.adjoint else a
        return [np.linalg.solve(a.T, b.T).T if self.right else np.linalg.solve(a, b)]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        m, result, a = Members(self, op, builder), builder.take_over(op), op.operands[1]
        how = (_SIDE[self.right], _TRIANGLE[self.lower], _TURN[self.adjoint],
               _DIAGONAL[self.unit])
        unit_text = f"(const {m.dtype.c}[]){{1}}" if m.dtype.kind == "c" else "1"
        said = "_".join(word.removeprefix("SPMD_").lower() for word in how)
        m.call(
            f"triangular_{said}",
            "int64_t n, int64_t rows, int64_t columns, int64_t row, const <T> *a, <T> *x",
            "if (rows && columns)\n"
            f"    <trsm>(SPMD_ROW_MAJOR, {', '.join(how)},\n"
            f"        rows, columns, {unit_text}, a, n, x, row);",
            (a.type.shape[-1], *result.type.shape[-2:], result.type.shape[-1]),
            [m.part(a), replace(m.part(result, writes=True), row=3)],
        )
