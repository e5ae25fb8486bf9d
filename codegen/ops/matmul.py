"""Products of matrices, by routines of BLAS or by loops where those are faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.ir import cuts, plan
from codegen.ir.cuts import Cut, Window
from codegen.ir.graph import ArrayType, Op, Shape, Value
from codegen.ir.indexing import affine, loop_vars, positions, ravel
from codegen.ir.plan import Caller, LibraryCall, Part
from codegen.library_routines import LETTERS, MOST, named_in
from codegen.mesh import joined_layout
from codegen.ops.kind import Array, Eval, Kind, Types, layout_of
from codegen.ops.rules import (
    BatchBuilder,
    CheckBuilder,
    GradientBuilder,
    GraphBuilder,
    LoopBuilder,
    Shards,
    Values,
)
from codegen.ops.views import Broadcast, Transpose
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.target import TARGET

# A product is computed as sums on each rank, added by a second exchange, only if the exchange that
# is saved would move this many times the bytes.
_TIMES_FEWER = 2

# What calls routines of BLAS: its numbers, and its text. "sgemm_tt": a kernel of OpenBLAS for
# AVX-512 keeps the distance of rows in static memory, for the last n % 4 columns of small results:
# of two threads one takes the other's. So these columns are products with a copy, which another
# kernel makes.
_CALLERS = {
    "gemm": ("m, n, k, lda, ldb, ldc", """\
if (m > 0 && n > 0)
    <gemm>(SPMD_ROW_MAJOR, <a>, <b>, m, n, k, <alpha>, a, lda, b, ldb, <beta>, c, ldc);"""),
    "sgemm_tt": ("m, n, k, lda, ldb, ldc", """\
float some[3 * 256];
int64_t even = (double)m * n * k < 1e7 ? n & ~(int64_t)3 : n;
if (m > 0 && even > 0)
    <gemm>(SPMD_ROW_MAJOR, <a>, <b>, m, even, k, <alpha>, a, lda, b, ldb, <beta>, c, ldc);
for (int64_t l = 0; m > 0 && even < n && (l == 0 || l < k); l += 256) {
    int64_t deep = k - l < 256 ? k - l : 256;
    for (int64_t i = 0; i < deep; i++)
        for (int64_t j = even; j < n; j++)
            some[3 * i + j - even] = b[j * ldb + l + i];
    <gemm>(SPMD_ROW_MAJOR, <a>, SPMD_PLAIN, m, n - even, deep, <alpha>, a + l * lda, lda,
           some, 3, l ? 1 : <beta>, c + even, ldc);
}"""),
    "gram": ("m, n, k, lda, ldb, ldc", """\
if (m != n) {
    if (m > 0 && n > 0)
        <gemm>(SPMD_ROW_MAJOR, <a>, <b>, m, n, k, <alpha>, a, lda, b, ldb, <beta>, c, ldc);
} else if (n > 0) {
    <syrk>(SPMD_ROW_MAJOR, SPMD_UPPER, <a>, n, k, <alpha>, a, lda, <beta>, c, ldc);
    for (int64_t i0 = 0; i0 < n; i0 += 32)
        for (int64_t j0 = 0; j0 <= i0; j0 += 32)
            for (int64_t i = i0; i < n && i < i0 + 32; i++)
                for (int64_t j = j0; j < i && j < j0 + 32; j++)
                    c[i * ldc + j] = c[j * ldc + i];
}"""),
}


def _caller(name: str, dtype: DType, turned: Sequence[bool]) -> Caller:
    """Return a C function for c = added * c + sign * a b, of operands that lie plain or
    transposed."""
    ways = "".join("t" if t else "n" for t in turned)
    called = f"{LETTERS[dtype.name]}{name}_{ways}"
    numbers, text = _CALLERS.get(called, _CALLERS[name])
    c, pointers = dtype.c, dtype.kind == "c"
    text, routines = named_in(text, dtype)
    said = {"<alpha>": "&one" if pointers else "sign", "<beta>": "&kept" if pointers else "added"}
    said |= {f"<{x}>": "SPMD_TRANSPOSED" if t else "SPMD_PLAIN" for x, t in zip("ab", turned)}
    for word, means in said.items():
        text = text.replace(word, means)
    if pointers:
        text = f"const {c} one = sign, kept = added;\n{text}"
    parameters = [*(f"int64_t {x}" for x in (*numbers.split(", "), "sign", "added")),
                  f"const {c} *a", f"const {c} *b", f"{c} *c"]
    return Caller(called, ", ".join(parameters), text, routines)


def added_to(call: LibraryCall[Value], sign: int, into: Value, offset: Expr, row: Expr
             ) -> LibraryCall[Value] | None:
    """Return a call that adds the product to an array in memory (sign 1), or subtracts it; None
    where the routine cannot."""
    if call.function.name[1:5] != "gemm":
        return None
    numbers = (*call.numbers[:5], row, expr.const(sign), expr.const(1))
    parts = (*call.parts[:2], Part(into, offset, writes=True))
    return replace(call, numbers=numbers, parts=parts)


def sources(call: LibraryCall[Value], of: Value) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
    """Yield, for each operand of the call in array `of`: its offset, the width of a row in memory,
    the distance of rows, and their number."""
    m, n, k, *leads = call.numbers[:5]
    ways = call.function.name.rpartition("_")[2]
    for part, way, lead, (height, width) in zip(call.parts, ways, leads, ((m, k), (k, n))):
        if part.buffer is of:
            yield (part.offset, *((width, lead, height) if way == "n" else (height, lead, width)))


@dataclass(frozen=True)
class MatMul(Kind):
    """Multiply matrices: […, m, k] x […, k, n], with equal leading dims. gram: one operand is the
    other's transpose, of which a rank may have only some rows or some columns. because: the reason,
    in words, if the compiler has moved it."""

    name = "matmul"
    rereads = True
    reads = "boxes"
    fuses = True
    gram: bool = False
    because: str = ""

    def infer(self, types: Types) -> list[ArrayType]:
        a, b = types
        return [ArrayType(a.dtype, (*a.shape[:-1], b.shape[-1]))]

    def work(self, op: Op) -> Iterable[Shape]:
        return [(*op.result.type.shape, op.operands[0].type.shape[-1])]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        a, b = map(layout_of, operands)
        batch = joined_layout([a[:-2], b[:-2]]) if a[:-2] else ()
        return (*batch, a[-2], b[-1])

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        product = np.asarray(np.matmul(operands[0], operands[1]))
        return [product.astype(operands[0].dtype)]  # of bfloat16, NumPy's is float32

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        (a, b), (g,) = op.operands, cotangents
        assert g is not None
        *batch, row, column = range(a.type.ndim)
        turned = Transpose((*batch, column, row))
        return [
            builder.emit(MatMul(), g, builder.emit(turned, b)) if a in builder.active else None,
            builder.emit(MatMul(), builder.emit(turned, a), g) if b in builder.active else None,
        ]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Repeat an operand that members share; `steps` then computes one product of more rows."""
        gram = self.gram and None not in stacked
        return [batch.emit(self.but(gram=gram), *batch.every(op, stacked))]

    def title(self) -> str:
        return "a product of matrices"

    def finite(self, op: Op, value: Value, builder: CheckBuilder) -> Value | None:
        a, b = op.operands
        shape, n = value.type.shape, value.type.ndim
        rows = builder.any_of(builder.not_finite(a), [n - 1])
        columns = builder.any_of(builder.not_finite(b), [n - 2])
        batch = tuple(range(n - 2))
        wide = [builder.emit(Broadcast((*batch, d), shape), (x,))
                for x, d in ((rows, n - 2), (columns, n - 1))]
        return builder.unless(value, builder.map("logical_or", *wide))

    def exact(self, op: Op, builder: CheckBuilder) -> Value | None:
        return builder.emit(self, builder.floats(op))

    def between(self, op: Op, window: Window, shards: Shards) -> Cut:
        """Return the part of the summed dim that a rank takes. If an axis splits that dim, each
        rank sums its own part, and the sums are added. If the axis splits the result too, that
        needs the other operand whole: it is done only where moving that and the sums is less than
        moving the operand that is split along the summed dim."""
        a, b = op.operands
        return shared(op, window, shards, a.type.ndim - 1, b.type.ndim - 2)

    def summed(self, op: Op, window: Window, shards: Shards) -> list[Cut] | None:
        return [self.between(op, window, shards)]

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        between = self.between(op, window, shards)
        *batch, rows, columns = shards.computed(op, window, [between])
        return [(*batch, rows, between), (*batch, between, columns)]

    def localize(
        self, op: Op, window: Window, operands: list[Value], build: GraphBuilder, shards: Shards
    ) -> Value:
        between = self.between(op, window, shards)
        gram = self.is_gram(op, shards.computed(op, window, [between]), shards)
        value = build.emit(MatMul(gram), [shards.wide(x, build) for x in operands])
        product = shards.combined(op, window, [between], value, "add", build)
        return product if shards.axes_of([between]) else build.cast(product, op.result.type.dtype)

    def is_gram(self, op: Op, held: Window, shards: Shards) -> bool:
        """Return whether one operand is the transpose of the other, and the rank computes all rows
        or all columns of the result."""
        cut = held[-2:]
        if sum(bool(c.axes) for c in cut) > 1 or any(
            c != cuts.block(c.axes, e) for c, e in zip(cut, op.result.type.shape[-2:])
        ):
            return False
        *batch, row, column = range(len(held))
        for x, y in (op.operands, reversed(op.operands)):
            by = shards.defs.get(x)
            if by is not None and by.kind == Transpose((*batch, column, row)):
                return by.operands[0] is y
        return False

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        (a, b), c = op.operands, op.result
        batch, dtype = loop_vars(c.type.shape[:-2]), c.type.dtype
        (m, n), k = c.type.shape[-2:], a.type.shape[-1]
        x, y = _Matrix.of(a, batch, builder), _Matrix.of(b, batch, builder)
        zero, unit = expr.const(0), expr.const(1)
        result = Part(c, ravel((*positions(batch), zero, zero), c.type.shape), writes=True)
        matrix = x if n == 1 else y
        rows = (n == 1) == (matrix.row == 1 and matrix.column != 1)
        batch = tuple(v for v in batch if v.extent != 1)
        if n == 1 and y.turned.beside(n, batch, x):  # columns of a result, one each, are its rows
            m, n, x, y = n, m, y.turned, x.turned
        while wide := x.beside(m, batch, y):
            x, m = wide, m * batch[-1].extent
            result = replace(result, offset=result.offset.subst({batch[-1].sym: 0}))
            batch = batch[:-1]
        small = [e.is_const and e.value <= TARGET.looped_product for e in (m, n, k)]
        short = small[2] and any(small[:2])
        lies = x.lies(m, k), y.lies(k, n)
        if short or 1 in (m, n) or None in lies or dtype.name not in LETTERS:
            self.by_loops(op, rows and not short and dtype.size != 2, builder)
            return
        (turned_x, lead_x), (turned_y, lead_y) = lies  # type: ignore[misc]
        name, numbers = "gemm", (m, n, k, lead_x, lead_y, n)
        if (self.gram or x == (y.buffer, y.offset, y.column, y.row)) and not (
            k.is_const and k.value < TARGET.gram_terms
        ):
            name = "gram"
        builder.call(_caller(name, dtype, (turned_x, turned_y)), batch, (*numbers, unit, zero),
                     (Part(x.buffer, x.offset), Part(y.buffer, y.offset), result), op)

    def by_loops(self, op: Op, rows: bool, builder: LoopBuilder) -> None:
        """Compute the product by loops. rows: a whole row (or column) of the result is summed up in
        the inner loop. Loops are named in the order in which they nest, so that two products that
        read one matrix along its rows have equal loops, and are fused."""
        (a, b), result = op.operands, op.result.type
        extents = (*result.shape, a.type.shape[-1])
        *batch, i, j, k = range(len(extents))
        across, along = (j, i) if extents[j] == 1 else (i, j)
        rows = rows and extents[k] != 1
        few = extents[along].is_const and extents[along].value <= TARGET.looped_product
        order = [*batch, across, k, along] if rows else [*batch, across, along, k]
        named = sorted(order, key=lambda d: extents[d] == 1)
        loops = dict(zip(named, loop_vars(tuple(extents[d] for d in named))))
        *lead, row, column, inner = positions([loops[d] for d in range(len(extents))])
        factors = builder.node(a, (*lead, row, inner)), builder.node(b, (*lead, inner, column))
        fn = "or" if result.dtype.kind == "b" else "add"
        wide = dtypes.folded_in(result.dtype)  # products of half types have more digits than these
        builder.add(plan.Reduce(
            tuple(loops[d] for d in order if d != k), (loops[k],), rows, op.result,
            ravel((*lead, row, column), result.shape),
            plan.Apply("mul", wide, factors, wide), fn, result.dtype, op.place,
            None if result.dtype.size == 2 else result.dtype,  # as libraries have it
            TARGET.jammed_rows if rows or (extents[across] == 1 and not few) else 1,
        ))


class _Matrix(NamedTuple):
    """Element (i, j) of an operand stands at offset + i * row + j * column."""

    buffer: Value
    offset: Expr
    row: Expr
    column: Expr

    @classmethod
    def of(cls, value: Value, batch: tuple[plan.Var, ...], builder: LoopBuilder) -> _Matrix:
        last = loop_vars(value.type.shape[-2:], "k")
        node = builder.node(value, positions(batch) + positions(last))
        assert isinstance(node, plan.Load), "an operand of matmul lies in memory"
        address = affine(node.offset, last)
        assert address is not None, "an operand of matmul is strided"
        base, (row, column) = address
        return cls(node.buffer, base, row, column)

    @property
    def turned(self) -> _Matrix:
        """Return the transposed matrix."""
        return self._replace(row=self.column, column=self.row)

    def beside(self, rows: Expr, batch: tuple[plan.Var, ...], other: _Matrix) -> _Matrix | None:
        """Return the matrices along the last dim of a batch as one matrix of more rows. None unless
        their rows are evenly spaced in memory, the other operand is the same for all of them, and
        the number of rows fits a BLAS integer."""
        address = affine(self.offset, batch[-1:]) if batch else None
        if address is None or batch[-1].sym in other.offset.symbols():
            return None
        base, (stride,) = address
        apart = stride == 0 or (rows != 1 and stride != rows * self.row)
        if apart or not expr.nonneg(MOST - rows * batch[-1].extent):
            return None
        return self._replace(offset=base, row=stride if rows == 1 else self.row)

    def lies(self, rows: Expr, columns: Expr) -> tuple[bool, Expr] | None:
        """Return whether BLAS is to read it as a transpose, and the distance of rows in memory;
        None where neither stride is 1, or one is negative."""
        if self.column == 1 or columns == 1:
            lead = _lead(self.row, rows, columns)
            if lead is not None:
                return False, lead
        if self.row == 1 or rows == 1:
            lead = _lead(self.column, columns, rows)
            if lead is not None:
                return True, lead
        return None


def shared(op: Op, window: Window, shards: Shards, of_first: int, of_second: int) -> Cut:
    """Return the part of the summed dim that a rank takes, for a sum of products of two operands;
    the dim has the number of_first in one and of_second in the other. If their cuts differ, the
    rank takes a cut by axes that split no dim of the result; else the whole dim, unless moving one
    operand costs much more than moving the other and the sums."""
    (a, b), used = op.operands, {axis for c in window for axis in c.axes}
    of_a, of_b = shards.natural(a, of_first), shards.natural(b, of_second)
    if of_a == of_b:
        return of_a
    split = [(c, x, y) for c, x, y in ((of_a, a, b), (of_b, b, a)) if c.axes]
    free = [c for c, _, _ in split if not used & set(c.axes)]
    if free:
        return free[0]
    sums, whole = 2 * _size(op.result), cuts.whole(a.type.shape[of_first])

    def size(x: Value) -> Expr:
        """Return how many elements of x an exchange moves; a matrix that a batch repeats counts
        once."""
        by = shards.defs.get(x)
        repeated = by is not None and isinstance(by.kind, Broadcast)
        return _size(by.operands[0] if by is not None and repeated else x)

    return next((c for c, x, y in split
                 if expr.nonneg(size(x) - _TIMES_FEWER * (size(y) + sums))), whole)


def _lead(stride: Expr, rows: Expr, columns: Expr) -> Expr | None:
    """Return the distance of rows that BLAS needs, at least 1 and at least the length of a row,
    also where a rank has no rows. None where rows may overlap."""
    if expr.nonneg(stride - columns):
        lead = stride
    elif expr.nonneg(1 - rows) or stride == 0:
        lead = columns
    elif (columns.is_const and expr.nonneg(stride)
          and all(factor % columns.value == 0 for _, factor in stride.terms)):
        lead = expr.most(stride, columns)  # a stride of 0 is that of a rank without elements
    else:
        return None
    return lead if expr.nonneg(lead - 1) else expr.most(lead, 1)


def _size(x: Value) -> Expr:
    return expr.product(x.type.shape)
