"""A rule of loop_motion: all turns' row-by-matrix products become one product before the loop.

Goes in: a loop in which a row is multiplied by a matrix in every turn: A[i] @ B, or
A[:, i] @ A[:, i:]. Comes out: one product of matrices, of which each turn reads its row.
Always holds: every turn makes that product, and no turn writes what a later one reads for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from codegen.graph.counted_loop import CountedLoop
from codegen.graph.rewriter import Rewriter
from codegen.ir.cuts import layout_of
from codegen.ir.graph import Op, Shape, Value
from codegen.library_routines import LETTERS
from codegen.ops import MatMul, Relayout, Reshape, Slice, Transpose, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


def row_products(loop: CountedLoop) -> Iterator[tuple[Op, Iterator[Product]]]:
    """Yield each product of a row and a matrix in a loop's body, with the products of all turns
    that may legally be computed before the loop in its place."""
    views = Views(loop)
    for op in loop.body.ops:
        if isinstance(op.kind, MatMul) and op.result.type.dtype.name in LETTERS:
            yield op, Product.of(op, views)


def before_loop(
    loop: CountedLoop, products: Mapping[Op, tuple[Product, str]], rewriter: Rewriter
) -> Op:
    """Emit products of all turns, each with the reason for it, and return the loop that reads
    their rows in the place of these ops."""
    values = {op: product.emit(op, because, rewriter)
              for op, (product, because) in products.items()}
    with rewriter.inside() as ops:
        for op in loop.body.ops:
            if op in products:
                products[op][0].emit_row(op, values[op], rewriter)
            else:
                ops.append(op)
    return replace(loop.op, regions=(loop.body.with_ops(ops),))


# ---- boxes of arrays -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrayBox:
    """A strided box of an array, as the array is before the loop. `dims` gives, for each dim of the
    view, the dim of the array; None for a dim of extent 1 that only the view has."""

    array: Value
    start: Shape
    step: tuple[int, ...]
    shape: Shape
    dims: tuple[int | None, ...]

    def but(self, dim: int, start: Expr, extent: Expr, step: int = 1) -> ArrayBox:
        """Return the box with another start, extent and step along one dim."""
        box = list(zip(self.start, self.step, self.shape, strict=True))
        box[dim] = start, step, extent
        starts, steps, shape = zip(*box, strict=True)
        return replace(self, start=starts, step=steps, shape=shape)

    def sliced(self, kind: Slice) -> ArrayBox:
        """Return the box that a slice of this one reads."""
        box = self
        for d, start, step, extent in zip(self.dims, kind.start, kind.step, kind.shape):
            if d is not None:
                first, by = self.start[d], self.step[d]
                box = box.but(d, first + by * start, extent, by * step)
        return box

    def moving(self, counter: Sym) -> list[int]:
        """Return the dims along which different turns see different parts."""
        return [d for d, (a, e) in enumerate(zip(self.start, self.shape, strict=True))
                if counter in a.symbols() | e.symbols()]

    def is_inside(self) -> bool:
        """Return whether the box provably lies inside its array, for all values of outer
        counters."""
        return all(
            expr.nonneg(a) and expr.nonneg(e) and expr.nonneg(n - a - k * (e - 1) - 1)
            for a, k, e, n in zip(self.start, self.step, self.shape, self.array.type.shape)
        )


class Views:
    """Answers which values in a loop's body are views of arrays that exist before the loop."""

    def __init__(self, loop: CountedLoop) -> None:
        self.loop = loop

    def of(self, value: Value) -> ArrayBox | None:
        """Return the box of an array before the loop that a value equals, or None if the loop
        computes the value or may have written the box in an earlier turn."""
        box = self.box_of(value)
        if box is None or box.array not in self.loop.carried:
            return box
        before, after = self.loop.carried[box.array]
        return replace(box, array=before) if self.is_unwritten(box, after) else None

    def is_unwritten(self, box: ArrayBox, after: Value) -> bool:
        """Return whether no earlier turn writes into a box of a carried array. `after` is that
        array at the end of a turn."""
        while after is not box.array:
            op = self.loop.defs.get(after)
            if op is None or not isinstance(op.kind, Update):
                return False
            if any(self.loop.computed & e.symbols() for e in op.kind.exprs()) or not any(
                self.is_disjoint(box, op, d) for d in range(after.type.ndim)
            ):
                return False
            after = op.operands[0]
        return True

    def is_disjoint(self, box: ArrayBox, update: Op, dim: int) -> bool:
        """Return whether all writes of earlier turns lie before or behind what a turn reads along a
        dim."""
        assert isinstance(update.kind, Update)
        first, step, extent = (
            update.kind.start[dim], update.kind.step[dim], update.operands[1].type.shape[dim])
        start, end = first, first + step * (extent - 1) + 1
        low, high = self.loop.slope(start), self.loop.slope(end)
        if low is None or high is None or min(step, box.step[dim]) < 1:
            return False
        least, most = self.earlier(start, low <= 0), self.earlier(end, high >= 0)
        begin, last = box.start[dim], box.start[dim] + box.step[dim] * (box.shape[dim] - 1)
        return expr.nonneg(begin - most) or expr.nonneg(least - last - 1)

    def earlier(self, e: Expr, latest: bool) -> Expr:
        """Return an expression's value in the turn before this one if `latest`, else in the first
        turn."""
        loop = self.loop
        before = expr.symbol(loop.counter) - loop.step
        return loop.when(e, before if latest else loop.first)

    def box_of(self, value: Value) -> ArrayBox | None:
        """Return the box that a value equals, of an array from before the loop or of a carried
        array as the turn finds it; None if it is no view."""
        shape, n = value.type.shape, value.type.ndim
        if value in self.loop.carried or not self.loop.is_inside(value):
            return ArrayBox(value, (expr.const(0),) * n, (1,) * n, shape, tuple(range(n)))
        op = self.loop.defs.get(value)
        if op is None or not isinstance(op.kind, Slice | Transpose | Reshape):
            return None
        under, before = self.box_of(op.operands[0]), op.operands[0].type.shape
        if under is None or any(self.loop.computed & e.symbols() for e in op.kind.exprs()):
            return None
        if isinstance(op.kind, Slice):
            return under.sliced(op.kind)
        if isinstance(op.kind, Transpose):
            return replace(under, dims=tuple(under.dims[d] for d in op.kind.perm))
        if [e for e in before if e != 1] != [e for e in shape if e != 1]:
            return None
        kept = iter([d for d, e in zip(under.dims, before) if e != 1])
        return replace(under, dims=tuple(None if e == 1 else next(kept) for e in shape))


# ---- products ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """A box read as a matrix: its rows (or columns) lie along dim `along` and are summed along dim
    `summed`. `along` is None for a single row. `here` is the number of the row that a turn begins
    with."""

    box: ArrayBox
    along: int | None
    summed: int
    here: Expr

    @property
    def many(self) -> Expr:
        """Return how many rows (or columns) the matrix has."""
        return expr.const(1) if self.along is None else self.box.shape[self.along]

    @classmethod
    def of_lines(cls, line: ArrayBox, summed: int, loop: CountedLoop) -> Matrix | None:
        """Return the matrix of the rows (or columns) that all turns read one by one, or None if
        they do not form one."""
        moving = line.moving(loop.counter)
        if not moving:
            return cls(line, None, summed, expr.const(0))
        along = moving[0]
        start, by = line.start[along], loop.slope(line.start[along])
        least = loop.least(start)
        if len(moving) > 1 or along == summed or line.shape[along] != 1 or not by or least is None:
            return None
        box = line.but(along, least, loop.count, abs(by))
        return cls(box, along, summed, (start - least) // abs(by))

    @classmethod
    def of_parts(
        cls, matrix: ArrayBox, along: int | None, summed: int, loop: CountedLoop
    ) -> Matrix | None:
        """Return the smallest box that holds the matrices of all turns, or None if they are not
        ranges of one matrix."""
        moving = matrix.moving(loop.counter)
        if not moving:
            return cls(matrix, along, summed, expr.const(0))
        if along is None or moving != [along] or matrix.step[along] != 1:
            return None
        start, extent = matrix.start[along], matrix.shape[along]
        least, most = loop.least(start), loop.most(start + extent)
        if least is None or most is None:
            return None
        return cls(matrix.but(along, least, most - least), along, summed, start - least)

    def emit(self, as_rows: bool, rewriter: Rewriter) -> Value:
        """Return the box as a 2-d array. Its rows are summed over if `as_rows`, else its
        columns."""
        box, value = self.box, self.box.array
        if box.shape != value.type.shape or any(s != 0 for s in box.start):
            value = rewriter.emit(Slice(box.start, box.step, box.shape), (value,))
        along = [] if self.along is None else [self.along]
        order = [*along, self.summed] if as_rows else [self.summed, *along]
        order += [d for d in range(value.type.ndim) if d not in order]
        if order != sorted(order):
            value = rewriter.emit(Transpose(tuple(order)), (value,))
        between = box.shape[self.summed]
        shape = (self.many, between) if as_rows else (between, self.many)
        return value if value.type.shape == shape else rewriter.emit(Reshape(shape), (value,))

    def wider(self, start: Expr, extent: Expr) -> Matrix:
        """Return the matrix of more rows (or columns) of the array."""
        assert self.along is not None
        box = self.box.but(self.along, start, extent)
        return replace(self, box=box, here=self.here + self.box.start[self.along] - start)


@dataclass(frozen=True)
class Product:
    """The product of all rows and all columns. A turn uses `wanted` columns of one of its rows."""

    rows: Matrix
    columns: Matrix
    wanted: Expr

    @classmethod
    def of(cls, op: Op, views: Views) -> Iterator[Product]:
        """Yield the products of all turns for an op that multiplies a row by a matrix, or a matrix
        by a column, in each turn."""
        a, b = op.operands
        ways = [(a, 1, b, 0)] if a.type.shape[-2] == 1 else []
        ways += [(b, 0, a, 1)] if b.type.shape[-1] == 1 else []
        for line, k, matrix, between in ways if a.type.ndim == 2 else ():
            x, y = views.of(line), views.of(matrix)
            if x is None or y is None:
                return
            along, summed = x.dims[k], y.dims[between]
            if along is None or summed is None:
                return
            rows = Matrix.of_lines(x, along, views.loop)
            columns = Matrix.of_parts(y, y.dims[1 - between], summed, views.loop)
            if rows is not None and columns is not None and (
                    rows.box.is_inside() and columns.box.is_inside()):
                yield cls(rows, columns, matrix.type.shape[1 - between]).symmetric()

    @property
    def is_symmetric(self) -> bool:
        x, y = ((replace(m.box, dims=()), m.along, m.summed) for m in (self.rows, self.columns))
        return self.rows.along is not None and x == y

    def symmetric(self) -> Product:
        """Return the product with a few more rows and columns if that makes it a matrix times its
        own transpose, which takes half the time; else the product itself."""
        x, y = self.rows, self.columns
        if x.along is None or x.along != y.along or x.summed != y.summed:
            return self
        a, b = x.box.start[x.along], y.box.start[x.along]
        if not (a - b).is_const or not (a + x.many - b - y.many).is_const:
            return self
        start = a if (a - b).value < 0 else b
        end = a + x.many if (a + x.many - b - y.many).value > 0 else b + y.many
        wider = replace(self, rows=x.wider(start, end - start), columns=y.wider(start, end - start))
        few = expr.nonneg(2 * x.many * y.many - (end - start) * (end - start))
        return wider if few and x.box.step[x.along] == 1 and wider.is_symmetric else self

    def emit(self, op: Op, because: str, rewriter: Rewriter) -> Value:
        """Emit the product of all turns and return it: one row for each turn."""
        rewriter.name, rewriter.place = op.result.name, op.place
        right = self.columns.emit(False, rewriter)
        left = rewriter.emit(Transpose((1, 0)), (right,)) if self.is_symmetric else (
            self.rows.emit(True, rewriter))
        value = rewriter.emit(MatMul(because=because), (left, right))
        if value.type.layout is None:
            return value
        rows, columns = value.type.layout
        to = layout_of(op.result)[op.result.type.shape[0] == 1]
        if to == columns:
            return value
        return rewriter.emit(Relayout((() if set(to) & set(rows) else rows, to)), (value,))

    def emit_row(self, op: Op, value: Value, rewriter: Rewriter) -> None:
        """Emit the slice of the product of all turns that a turn uses, in place of its own
        product."""
        rewriter.name, rewriter.place = op.result.name, op.place
        start, shape = (self.rows.here, self.columns.here), (expr.const(1), self.wanted)
        kind, stated = Slice(start, (1, 1), shape), op.result.type.shape
        if shape == stated:
            rewriter.add(kind, (value,), op.results)
        else:
            rewriter.add(Reshape(stated), (rewriter.emit(kind, (value,)),), op.results)
