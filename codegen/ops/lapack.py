"""Factorisations of matrices by LAPACK, and what solves with them, for each member of a batch.

Matrices lie as LAPACK has them, column by column: an operand is the transpose of the matrix that
it stands for, and so is a result. A batch may be split, a matrix is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.ir import ArrayType, Op, Shape, Value
from codegen.layouts.cuts import Window, whole
from codegen.mesh import joined_layout
from codegen.ops.kind import Array, Eval, Kind, Types, layout_of
from codegen.plan.grammar import Caller, Part, Routine, Var
from codegen.plan.indexing import loop_vars, positions, ravel
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr

if TYPE_CHECKING:
    from codegen.layouts.localize import Localizer
    from codegen.passes.to_loops import Maker

INFO = dtypes.BY_NAME["int32"]
_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
KINDS = frozenset(_LETTERS)  # the types that LAPACK computes with


def letter(dtype: DType) -> str:
    return _LETTERS[dtype.name]


def real_of(dtype: DType) -> DType:
    """The type of the parts of a number."""
    return {"complex64": dtypes.FLOAT32, "complex128": dtypes.FLOAT64}.get(dtype.name, dtype)


def lapack(name: str, dtype: DType, takes: str) -> Routine:
    """A row: takes are the types of its parameters, T for the elements' and R for their parts'."""
    kinds = {"T": "void" if dtype.kind == "c" else dtype.c, "R": real_of(dtype).c}
    takes = " ".join(kinds.get(word, word) for word in takes.split(" "))
    return Routine("openblas", letter(dtype) + name, "int", takes)


class Factor(Kind):
    """cores: of each operand, how many dims are its own, behind those of the batch."""

    held = True
    reads = "points"
    cores: ClassVar[tuple[int, ...]] = (2,)

    def made(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        """The results of one member: element type and shape of each."""
        raise NotImplementedError(self.name)

    def alone(self, *operands: Array) -> list[Array]:
        """The results for one member, in NumPy."""
        raise NotImplementedError(self.name)

    def batch(self, types: Types) -> int:
        """How many dims it has."""
        return types[0].ndim - self.cores[0]

    def infer(self, types: Types) -> list[ArrayType]:
        n = self.batch(types)
        made = self.made([t.shape[n:] for t in types], types[0].dtype)
        return [ArrayType(dtype, (*types[0].shape[:n], *core)) for dtype, core in made]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        n = self.batch(operands)
        batch = joined_layout([layout_of(t)[:n] for t in operands]) if n else ()
        return (*batch, *[()] * (result.ndim - n))

    def needs(self, op: Op, window: Window, at: Localizer) -> list[Window]:
        n = self.batch([v.type for v in op.operands])
        return [(*window[:n], *map(whole, v.type.shape[n:])) for v in op.operands]

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        n = operands[0].ndim - self.cores[0]
        types = [ArrayType(_dtype(x), tuple(map(expr.const, x.shape))) for x in operands]
        outs = [np.zeros(tuple(map(value, t.shape)), dtypes.numpy_dtype(t.dtype))
                for t in self.infer(types)]  # fmt: skip
        for index in np.ndindex(*operands[0].shape[:n]):
            if all(x[index].size for x in operands):
                for out, made in zip(outs, self.alone(*(x[index] for x in operands)), strict=True):
                    out[index] = made
        return outs


def _dtype(x: Array) -> DType:
    found = dtypes.from_numpy(x.dtype)
    assert found is not None
    return found


class Members:
    """What the steps of an op share: the loops over a batch, and where a member's parts lie."""

    def __init__(self, what: Factor, op: Op, at: Maker) -> None:
        self.op, self.at = op, at
        self.n = what.batch([v.type for v in op.operands])
        self.loops: tuple[Var, ...] = loop_vars(op.results[0].type.shape[: self.n])
        self.dtype = op.operands[0].type.dtype

    def part(self, value: Value, writes: bool = False) -> Part[Value]:
        """Of an array of the batch."""
        zeros = (expr.const(0),) * (value.type.ndim - self.n)
        return Part(value, ravel((*positions(self.loops), *zeros), value.type.shape), writes)

    def copied(self, operand: Value, into: Value) -> Part[Value]:
        """An operand where a routine may write over it."""
        index = positions(loop_vars(into.type.shape))
        self.at.store(into, self.at.node(operand, index), self.op)
        return self.part(into, writes=True)

    def spare(self, name: str, dtype: DType, elements: Expr) -> Part[Value]:
        """Memory that a member needs meanwhile."""
        made = self.at.spare(f"{self.op.results[0].name}_{name}", dtype, elements)
        return Part(made, expr.const(0), True)

    def call(self, name: str, parameters: str, text: str, routines: Sequence[Routine],
             numbers: Sequence[Expr], parts: Sequence[Part[Value]]) -> None:  # fmt: skip
        """The text has T for the type of elements, R for that of their parts, and the names of
        routines without the letter of the type: <potrf>."""
        kind = letter(self.dtype)
        names = {"<T>": self.dtype.c, "<R>": real_of(self.dtype).c}
        names |= {f"<{r.name[1:]}>": r.called for r in routines}
        for word, said in names.items():
            parameters, text = parameters.replace(word, said), text.replace(word, said)
        function = Caller(f"{kind}_{name}", parameters, text, tuple(routines))
        self.at.call(function, self.loops, numbers, parts, self.op)


@dataclass(frozen=True)
class Cholesky(Factor):
    """Of a matrix of which the lower triangle counts, row by row: the lower factor, row by row too,
    and 0, or the order of the first leading minor that is not positive."""

    name = "cholesky"

    def made(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        return [(dtype, cores[0]), (INFO, ())]

    def alone(self, *operands: Array) -> list[Array]:
        (x,) = operands
        for k in range(1, len(x) + 1):
            try:
                lower = np.linalg.cholesky(x[:k, :k])
            except np.linalg.LinAlgError:
                return [np.zeros_like(x), np.int32(k)]  # type: ignore[list-item]
        return [lower, np.int32(0)]  # type: ignore[list-item]

    def steps(self, op: Op, at: Maker) -> None:
        m, (lower, info) = Members(self, op, at), op.results
        m.call(
            "cholesky", "int64_t n, <T> *l, int32_t *info",
            "*info = n ? <potrf>(SPMD_BY_COLUMNS, 'U', n, l, n) : 0;\n"
            "for (int64_t i = 0; i < n; i++)\n"
            "    for (int64_t j = i + 1; j < n; j++)\n"
            "        l[i * n + j] = 0;",
            [lapack("potrf", m.dtype, "int, char, int, T *, int")],
            op.operands[0].type.shape[-1:],
            [m.copied(op.operands[0], lower), m.part(info, writes=True)],
        )  # fmt: skip
