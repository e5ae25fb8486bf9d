"""Orthogonal factors, singular values and eigenvalues of matrices, by LAPACK.

Matrices lie as in lapack.py: an operand is the transpose of the matrix that it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.ir.graph import Op, Shape
from codegen.library_routines import real_of
from codegen.ops.kind import Array
from codegen.ops.lapack import INFO, Factor, Members
from codegen.ops.rules import LoopBuilder
from codegen.symbolic import expr
from codegen.target import TARGET


def complex_of(dtype: DType) -> DType:
    return dtypes.BY_NAME["complex64" if real_of(dtype) == dtypes.FLOAT32 else "complex128"]


@dataclass(frozen=True)
class Qr(Factor):
    """Factor a matrix by reflections. Results: R in and above the diagonal, and the reflections
    below it; their lengths (LAPACK's tau); 0, or what LAPACK says of a fault; and, where mode is
    "reduced" or "complete", so many columns of Q."""

    name = "qr"
    mode: Literal["reduced", "complete", "r"] = "reduced"

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        n, m = cores[0]
        k = expr.minimum(m, n)
        q = [(dtype, (m if self.mode == "complete" else k, m))]
        return [(dtype, (n, m)), (dtype, (k,)), (INFO, ()), *(q if self.mode != "r" else [])]

    def on_member(self, *operands: Array) -> list[Any]:
        x = operands[0].T
        h, tau = np.linalg.qr(x, "raw")
        return [h, tau, 0, *([np.linalg.qr(x, self.mode)[0].T] if self.mode != "r" else [])]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        m, (n, rows) = Members(self, op, builder), op.operands[0].type.shape[-2:]
        columns = expr.maximum(n, rows) if self.mode == "complete" else n  # at most
        room = columns * expr.minimum(expr.minimum(n, rows), TARGET.lapack_block)
        parameters = "int64_t n, int64_t m, int64_t room, <T> *h, <T> *tau, int32_t *info, "
        text = "*info = m && n ? <geqrf>(SPMD_BY_COLUMNS, m, n, h, m, tau, work, room) : 0;"
        numbers = [n, rows, room]
        if self.mode != "r":
            parameters = parameters.replace("room, ", "room, int64_t c, ") + "<T> *q, "
            numbers.append(op.results[3].type.shape[-2])
            text += (
                "\nconst int64_t k = spmd_min(m, n);\n"
                "for (int64_t i = 0; i < c * m; i++)\n"
                "    q[i] = i < k * m ? h[i] : i / m == i % m;\n"
                "if (k && !*info)\n"
                "    *info = <orgqr>(SPMD_BY_COLUMNS, m, c, k, q, m, tau, work, room);"
            )
        parts = [m.copied(op.operands[0], op.results[0]), *m.results(1),
                 m.spare("work", m.dtype, room)]
        m.call(f"qr_{self.mode}", parameters + "<T> *work", text, numbers, parts)


@dataclass(frozen=True)
class Svd(Factor):
    """Find the singular values of a matrix, the largest first, and 0 unless it did not converge;
    and the vectors: none ("N"), as many as there are values ("S"), or all ("A")."""

    name = "svd"
    vectors: str = "S"

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        n, m = cores[0]
        k = expr.minimum(m, n)
        u, v = (m, n) if self.vectors == "A" else (k, k)
        results: list[tuple[DType, Shape]] = [(real_of(dtype), (k,)), (INFO, ())]
        return results + ([(dtype, (u, m)), (dtype, (n, v))] if self.vectors != "N" else [])

    def on_member(self, *operands: Array) -> list[Any]:
        x = operands[0].T
        if self.vectors == "N":
            return [np.linalg.svd(x, compute_uv=False), 0]
        u, s, v = np.linalg.svd(x, full_matrices=self.vectors == "A")
        return [s, 0, u.T, v.T]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        m, (n, rows) = Members(self, op, builder), op.operands[0].type.shape[-2:]
        small, large = expr.minimum(n, rows), expr.maximum(n, rows)
        is_complex, has = m.dtype.kind == "c", self.vectors != "N"
        # what LAPACK asks for; and more, where that is little beside the matrices
        room = small * small * (1 if is_complex else 4) + small * 7
        if self.vectors == "N":
            room = small * (10 + 3 * TARGET.lapack_block) + large
        elif self.vectors == "A":
            room += large * TARGET.lapack_block
        u, v = ("u", "v") if has else ("a", "a")  # what is not asked for is not touched
        parts = [m.copied(*op.operands), *m.results(), m.spare("work", m.dtype, room),
                 m.spare("numbers", INFO, small * 8)]
        if is_complex:
            more = small * (large * 2 + small * 5 + 7)
            parts.append(m.spare("reals", real_of(m.dtype), more))
        m.call(
            f"svd_{self.vectors}",
            "int64_t n, int64_t m, int64_t room, int64_t k, <T> *a, <R> *s, int32_t *info, "
            + ("<T> *u, <T> *v, " if has else "") + "<T> *work, int32_t *numbers"
            + (", <R> *reals" if is_complex else ""),
            f"*info = m && n ? <gesdd>(SPMD_BY_COLUMNS, '{self.vectors}', m, n, a, m, s, {u}, m,\n"
            f"    {v}, k, work, room, {'reals, ' if is_complex else ''}numbers) : 0;\n"
            "if (*info == -5)\n    *info = 1; // LAPACK does not take a matrix with NaNs",
            [n, rows, room, op.results[3].type.shape[-1] if has else n], parts,
        )


@dataclass(frozen=True)
class Eigh(Factor):
    """Find the eigenvalues of a symmetric or Hermitian matrix, of which one triangle counts.
    Results: eigenvalues, the least first; 0 unless it did not converge; and vectors, if they are
    asked for."""

    name = "eigh"
    triangle: Literal["L", "U"] = "L"
    vectors: bool = True

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        results: list[tuple[DType, Shape]] = [(real_of(dtype), cores[0][:1]), (INFO, ())]
        return results + ([(dtype, cores[0])] if self.vectors else [])

    def on_member(self, *operands: Array) -> list[Any]:
        x = operands[0].T
        if not self.vectors:
            return [np.linalg.eigvalsh(x, self.triangle), 0]
        w, v = np.linalg.eigh(x, self.triangle)
        return [w, 0, v.T]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        m, n = Members(self, op, builder), op.operands[0].type.shape[-1]
        is_complex = m.dtype.kind == "c"
        square = n * n if self.vectors else expr.const(0)
        room = square * (1 if is_complex else 2) + n * (6 + TARGET.lapack_block) + 1
        rooms, ints = square * 2 + n * 5 + 1, n * 5 + 3
        copy = m.copied(op.operands[0], op.results[2] if self.vectors else None)
        parts = [copy, *m.results()[:2], m.spare("work", m.dtype, room),
                 m.spare("numbers", INFO, ints)]
        if is_complex:
            parts.append(m.spare("reals", real_of(m.dtype), rooms))
        job = f"'{'V' if self.vectors else 'N'}', '{self.triangle}'"
        m.call(
            f"eigh_{self.triangle}{'v' if self.vectors else ''}",
            "int64_t n, int64_t room, int64_t ints, " + "int64_t rooms, " * is_complex
            + "<T> *v, <R> *w, int32_t *info, <T> *work, "
            "int32_t *numbers" + (", <R> *reals" if is_complex else ""),
            f"*info = n ? <syevd>(SPMD_BY_COLUMNS, {job}, n, v, n, w, work, room,\n"
            f"    {'reals, rooms, ' if is_complex else ''}numbers, ints) : 0;",
            [n, room, ints, *[rooms] * is_complex], parts,
        )


@dataclass(frozen=True)
class Eig(Factor):
    """Find the eigenvalues of a matrix in no order, complex also where all are real; 0 unless it
    did not converge; and vectors, if they are asked for."""

    name = "eig"
    vectors: bool = True

    def result_types(self, cores: Sequence[Shape], dtype: DType) -> list[tuple[DType, Shape]]:
        kind = complex_of(dtype)
        results: list[tuple[DType, Shape]] = [(kind, cores[0][:1]), (INFO, ())]
        return results + ([(kind, cores[0])] if self.vectors else [])

    def on_member(self, *operands: Array) -> list[Any]:
        x = operands[0].T
        if not self.vectors:
            return [np.linalg.eigvals(x), 0]
        w, v = np.linalg.eig(x)
        return [w, 0, v.T]

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        m, n = Members(self, op, builder), op.operands[0].type.shape[-1]
        is_complex, job = m.dtype.kind == "c", "NV"[self.vectors]
        room = n * (8 + TARGET.lapack_block)
        vectors = f"{complex_of(m.dtype).c} *v, " if self.vectors else ""
        parts = [m.copied(*op.operands), *m.results(), m.spare("work", m.dtype, room),
                 m.spare("reals", real_of(m.dtype), n * 2)]
        values = "w" if is_complex else "reals, reals + n"
        right, last = ("v" if self.vectors else "a"), ", reals" if is_complex else ""
        more = ""
        if not is_complex:
            right = "pairs" if self.vectors else "a"
            number = f"CMPLX{'F' if real_of(m.dtype) == dtypes.FLOAT32 else ''}"
            more = ("\nfor (int64_t j = 0; j < n; j++)\n"
                    f"    w[j] = {number}(reals[j], reals[n + j]);")
        if not is_complex and self.vectors:  # of a pair, its real and its imaginary part
            parts.append(m.spare("pairs", m.dtype, n, n))
            more += (
                "\nfor (int64_t j = 0; j < n; j++) {\n"
                "    const int pair = reals[n + j] > 0 && j + 1 < n;\n"
                "    for (int64_t i = 0; i < n; i++) {\n"
                "        const <T> x = pairs[j * n + i], y = pair ? pairs[(j + 1) * n + i] : 0;\n"
                f"        v[j * n + i] = {number}(x, y);\n"
                "        if (pair)\n"
                f"            v[(j + 1) * n + i] = {number}(x, -y);\n"
                "    }\n    j += pair;\n}"
            )
        m.call(
            f"eig_{job}", f"int64_t n, int64_t room, <T> *a, {complex_of(m.dtype).c} *w, "
            f"int32_t *info, {vectors}<T> *work, <R> *reals"
            + (", <T> *pairs" if right == "pairs" else ""),
            f"*info = n ? <geev>(SPMD_BY_COLUMNS, 'N', '{job}', n, a, n, {values}, a, n,\n"
            f"    {right}, n, work, room{last}) : 0;{more}",
            [n, room], parts,
        )
