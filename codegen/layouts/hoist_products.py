"""Loop-invariant code motion of products: all turns' row-by-matrix products become one GEMM before.

Goes in: a Graph. Comes out: the same, where a row times a matrix in every turn (A[i] @ B, or
A[:, i] @ A[:, i:]) is one product of matrices before the loop, of which each turn reads its row.
Always holds: every turn makes that product, and no turn writes what a later one reads for it; it
takes no more memory than an array of the loop, or than ROOM; estimates say that it pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from codegen.graph.builder import Builder
from codegen.graph.layout_propagation import laid_out
from codegen.ir.cuts import layout_of
from codegen.ir.graph import ArrayType, Module, Op, Region, Shape, Value, walk
from codegen.layouts.costs import bytes_of
from codegen.library_routines import LETTERS
from codegen.ops import Kind, Loop, MatMul, Relayout, Reshape, Slice, Transpose, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

ROOM = 32 << 20  # bytes that a product may take, or as many as the largest array of the loop
TURNS = 8  # with fewer, rows are no matrix
WORK = 1 << 11  # products of elements in all turns: with less there is little to gain
EXTRA = 2.5  # a product of matrices may make so many times the products that turns want


def hoist_products(graph: Module) -> Module:
    """Return the Graph with these products moved before their loops. A Graph with run-time checks
    stays as it is, so that a check fails at the line where the user computes."""
    return graph if graph.checks else graph.mapped(lambda r: _Rewrite().region(r, {}))


# ---- loops, and what they read -------------------------------------------------------------------


@dataclass(frozen=True)
class _Turns:
    """A counted loop with its counter's first and last value, its step and its number of turns.
    `known` holds typical values of loop counters by name, for estimates."""

    counter: Sym
    first: Expr
    last: Expr
    step: int
    count: Expr
    known: Mapping[str, int]

    @classmethod
    def of(cls, op: Op, known: Mapping[str, int]) -> _Turns | None:
        """Return an op as a counted loop, or None if it is none or may have a negative number of
        turns."""
        loop = op.what
        if not isinstance(loop, Loop) or not loop.counter or len(op.regions) > 1:
            return None
        count = loop.turns()
        if count is None or not expr.nonneg(count):
            return None
        step = loop.step.value
        found = cls(loop.counter, loop.start, loop.start + step * (count - 1), step, count, known)
        middle = found.number(found.middle)
        return found if middle is None else replace(
            found, known={**known, loop.counter.name: middle})

    @property
    def middle(self) -> Expr:
        return (self.first + self.last) // 2

    def number(self, e: Expr) -> int | None:
        """Return the estimated value of an expression, or None if it has symbols without an
        estimate."""
        try:
            return e.evaluate(self.known)
        except KeyError:
            return None

    def when(self, e: Expr, counter: Expr) -> Expr:
        return e.subst({self.counter: counter})

    def slope(self, e: Expr) -> int | None:
        """Return by how much an expression grows per turn, or None if that is not one constant."""
        by, rest = expr.linear_in(e, self.counter)
        if by is None or not by.is_const or self.counter in rest.symbols():
            return None
        return by.value * self.step

    def least(self, e: Expr) -> Expr | None:
        by = self.slope(e)
        return None if by is None else self.when(e, self.last if by < 0 else self.first)

    def most(self, e: Expr) -> Expr | None:
        least = self.least(-e)
        return None if least is None else -least


@dataclass(frozen=True)
class _Shown:
    """A strided box of an array, as the array is before the loop. `dims` gives, for each dim of the
    view, the dim of the array; None for a dim of extent 1 that only the view has."""

    array: Value
    start: Shape
    step: tuple[int, ...]
    shape: Shape
    dims: tuple[int | None, ...]

    def but(self, dim: int, start: Expr, extent: Expr, step: int = 1) -> _Shown:
        """Return the box with another start, extent and step along one dim."""
        box = list(zip(self.start, self.step, self.shape, strict=True))
        box[dim] = start, step, extent
        starts, steps, shape = zip(*box, strict=True)
        return replace(self, start=starts, step=steps, shape=shape)

    def sliced(self, what: Slice) -> _Shown:
        found = self
        for d, start, step, extent in zip(self.dims, what.start, what.step, what.shape):
            if d is not None:
                first, by = self.start[d], self.step[d]
                found = found.but(d, first + by * start, extent, by * step)
        return found

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


class _Views:
    """Answers which values in a loop's body are views of arrays that exist before the loop."""

    def __init__(self, loop: Op, turns: _Turns) -> None:
        (body,) = loop.regions
        self.turns = turns
        self.made = {op.result: op for op in body.ops if len(op.results) == 1}
        self.inside = {*body.args, *(v for op in body.ops for v in op.results)}
        self.computed = {s for op in walk(body) if (s := op.what.counts())}
        self.carried = dict(zip(body.args, zip(loop.operands, body.results)))

    def of(self, value: Value) -> _Shown | None:
        """Return the box of an array before the loop that a value equals, or None if the loop
        computes the value or may have written the box in an earlier turn."""
        found = self.shown(value)
        if found is None or found.array not in self.carried:
            return found
        before, after = self.carried[found.array]
        return replace(found, array=before) if self.is_unwritten(found, after) else None

    def is_unwritten(self, box: _Shown, after: Value) -> bool:
        """Return whether no earlier turn writes into a box of a carried array. `after` is that
        array at the end of a turn."""
        while after is not box.array:
            op = self.made.get(after)
            if op is None or not isinstance(op.what, Update):
                return False
            if any(self.computed & e.symbols() for e in op.what.exprs()) or not any(
                self.is_apart(box, op, d) for d in range(after.type.ndim)
            ):
                return False
            after = op.operands[0]
        return True

    def is_apart(self, box: _Shown, update: Op, dim: int) -> bool:
        """Return whether all writes of earlier turns lie before or behind what a turn reads along a
        dim."""
        assert isinstance(update.what, Update)
        first, step, extent = (
            update.what.start[dim], update.what.step[dim], update.operands[1].type.shape[dim])
        start, end = first, first + step * (extent - 1) + 1
        low, high = self.turns.slope(start), self.turns.slope(end)
        if low is None or high is None or min(step, box.step[dim]) < 1:
            return False
        least, most = self.earlier(start, low <= 0), self.earlier(end, high >= 0)
        begin, last = box.start[dim], box.start[dim] + box.step[dim] * (box.shape[dim] - 1)
        return expr.nonneg(begin - most) or expr.nonneg(least - last - 1)

    def earlier(self, e: Expr, latest: bool) -> Expr:
        """Return an expression's value in the turn before this one if `latest`, else in the first
        turn."""
        turns = self.turns
        before = expr.symbol(turns.counter) - turns.step
        return turns.when(e, before if latest else turns.first)

    def shown(self, value: Value) -> _Shown | None:
        """Return the box that a value equals, of an array from before the loop or of a carried
        array as the turn finds it; None if it is no view."""
        shape, n = value.type.shape, value.type.ndim
        if value not in self.inside or value in self.carried:
            return _Shown(value, (expr.const(0),) * n, (1,) * n, shape, tuple(range(n)))
        op = self.made.get(value)
        if op is None or not isinstance(op.what, Slice | Transpose | Reshape):
            return None
        under, before = self.shown(op.operands[0]), op.operands[0].type.shape
        if under is None or any(self.computed & e.symbols() for e in op.what.exprs()):
            return None
        if isinstance(op.what, Slice):
            return under.sliced(op.what)
        if isinstance(op.what, Transpose):
            return replace(under, dims=tuple(under.dims[d] for d in op.what.perm))
        if [e for e in before if e != 1] != [e for e in shape if e != 1]:
            return None
        kept = iter([d for d, e in zip(under.dims, before) if e != 1])
        return replace(under, dims=tuple(None if e == 1 else next(kept) for e in shape))


# ---- products ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Matrix:
    """A box read as a matrix: its rows (or columns) lie along dim `along` and are summed along dim
    `summed`. `along` is None for a single row. `here` is the number of the row that a turn begins
    with."""

    shown: _Shown
    along: int | None
    summed: int
    here: Expr

    @property
    def many(self) -> Expr:
        return expr.const(1) if self.along is None else self.shown.shape[self.along]

    @classmethod
    def of_lines(cls, line: _Shown, summed: int, turns: _Turns) -> _Matrix | None:
        """Return the matrix of the rows (or columns) that all turns read one by one, or None if
        they do not form one."""
        moving = line.moving(turns.counter)
        if not moving:
            return cls(line, None, summed, expr.const(0))
        along = moving[0]
        start, by = line.start[along], turns.slope(line.start[along])
        least = turns.least(start)
        if len(moving) > 1 or along == summed or line.shape[along] != 1 or not by or least is None:
            return None
        shown = line.but(along, least, turns.count, abs(by))
        return cls(shown, along, summed, (start - least) // abs(by))

    @classmethod
    def of_parts(
        cls, matrix: _Shown, along: int | None, summed: int, turns: _Turns
    ) -> _Matrix | None:
        """Return the smallest box that holds the matrices of all turns, or None if they are not
        ranges of one matrix."""
        moving = matrix.moving(turns.counter)
        if not moving:
            return cls(matrix, along, summed, expr.const(0))
        if along is None or moving != [along] or matrix.step[along] != 1:
            return None
        start, extent = matrix.start[along], matrix.shape[along]
        least, most = turns.least(start), turns.most(start + extent)
        if least is None or most is None:
            return None
        return cls(matrix.but(along, least, most - least), along, summed, start - least)

    def wider(self, start: Expr, extent: Expr) -> _Matrix:
        assert self.along is not None
        shown = self.shown.but(self.along, start, extent)
        return replace(self, shown=shown, here=self.here + self.shown.start[self.along] - start)


@dataclass(frozen=True)
class _Product:
    """The product of all rows and all columns. A turn uses `wanted` columns of one of its rows."""

    rows: _Matrix
    columns: _Matrix
    wanted: Expr

    @classmethod
    def of(cls, op: Op, views: _Views, turns: _Turns) -> _Product | None:
        """Return the product of all turns for an op that multiplies a row by a matrix, or a matrix
        by a column, in each turn; None if there is none or it does not pay."""
        a, b = op.operands
        ways = [(a, 1, b, 0)] if a.type.shape[-2] == 1 else []
        ways += [(b, 0, a, 1)] if b.type.shape[-1] == 1 else []
        for line, k, matrix, between in ways if a.type.ndim == 2 else ():
            x, y = views.of(line), views.of(matrix)
            if x is None or y is None:
                return None
            along, summed = x.dims[k], y.dims[between]
            if along is None or summed is None:
                return None
            rows = _Matrix.of_lines(x, along, turns)
            columns = _Matrix.of_parts(y, y.dims[1 - between], summed, turns)
            if rows is not None and columns is not None:
                made = cls(rows, columns, matrix.type.shape[1 - between]).symmetric()
                if made.pays(turns) and rows.shown.is_inside() and columns.shown.is_inside():
                    return made
        return None

    @property
    def is_symmetric(self) -> bool:
        x, y = ((replace(m.shown, dims=()), m.along, m.summed) for m in (self.rows, self.columns))
        return self.rows.along is not None and x == y

    def symmetric(self) -> _Product:
        """Return the product with a few more rows and columns if that makes it a matrix times its
        own transpose, which takes half the time; else the product itself."""
        x, y = self.rows, self.columns
        if x.along is None or x.along != y.along or x.summed != y.summed:
            return self
        a, b = x.shown.start[x.along], y.shown.start[x.along]
        if not (a - b).is_const or not (a + x.many - b - y.many).is_const:
            return self
        start = a if (a - b).value < 0 else b
        end = a + x.many if (a + x.many - b - y.many).value > 0 else b + y.many
        found = replace(self, rows=x.wider(start, end - start), columns=y.wider(start, end - start))
        few = expr.nonneg(2 * x.many * y.many - (end - start) * (end - start))
        return found if few and x.shown.step[x.along] == 1 and found.is_symmetric else self

    def pays(self, turns: _Turns) -> bool:
        """Return whether the hoisted product is estimated to be faster, though it also computes
        elements that no turn uses."""
        between = self.columns.shown.shape[self.columns.summed]
        often, k, rows, columns = map(turns.number, (
            turns.count, between, self.rows.many, self.columns.many))
        each = [turns.number(turns.when(self.wanted, at))
                for at in (turns.first, turns.middle, turns.last)]
        if often is None or k is None or rows is None or columns is None or None in each:
            return False
        before = often * sum(e for e in each if e) // len(each)
        after = rows * columns // (2 if self.is_symmetric else 1)
        if often < TURNS or before * k < WORK:
            return False
        return after <= before * (EXTRA if rows >= TURNS else 1)


# ---- the Graph -----------------------------------------------------------------------------------


class _Rewrite(Builder):
    """Rewrites regions; `known` holds typical values of the counters of surrounding loops."""

    def region(self, region: Region, known: Mapping[str, int]) -> Region:
        with self.inside() as ops:
            for op in region.ops:
                turns = _Turns.of(op, known)
                within = known if turns is None else turns.known
                op = op.mapped(partial(self.region, known=within))
                ops.append(op if turns is None else self.loop(op, turns))
        return region.with_ops(ops)

    def loop(self, op: Op, turns: _Turns) -> Op:
        """Emit the hoisted products before a loop and return the loop that reads them."""
        (body,) = op.regions
        made: dict[Op, tuple[Value, _Product]] = {}
        views = _Views(op, turns)
        for inner in body.ops:
            if isinstance(inner.what, MatMul) and inner.result.type.dtype.name in LETTERS:
                found = _Product.of(inner, views, turns)
                size = self.size(found, op, inner.result.type, turns) if found else None
                if found and size is not None:
                    because = (f"the products of all {turns.count} turns are one product before "
                               f"the loop, of {size / 2**20:.2g} MiB")
                    made[inner] = self.before(found, inner, because), found
        if not made:
            return op
        with self.inside() as ops:
            for inner in body.ops:
                if inner in made:
                    self.in_turn(inner, *made[inner])
                else:
                    ops.append(inner)
        return replace(op, regions=(body.with_ops(ops),))

    def size(self, found: _Product, loop: Op, made: ArrayType, turns: _Turns) -> int | None:
        """Return the bytes that a product takes, or None if that is more than its room."""
        amount = turns.number(found.rows.many * found.columns.many * made.dtype.size)
        there = (*loop.operands, found.rows.shown.array, found.columns.shown.array)
        room = max(ROOM, *(bytes_of(v) or 0 for v in there))
        return amount if amount is not None and amount <= room else None

    def before(self, found: _Product, op: Op, because: str) -> Value:
        """Emit the product of all turns before the loop and return it: one row for each turn."""
        self.name, self.place = op.result.name, op.place
        right = self.matrix(found.columns, False)
        left = self.made(Transpose((1, 0)), right) if found.is_symmetric else (
            self.matrix(found.rows, True))
        value = self.made(MatMul(because=because), left, right)
        if value.type.layout is None:
            return value
        rows, columns = value.type.layout
        wanted = layout_of(op.result)[op.result.type.shape[0] == 1]
        if wanted == columns:
            return value
        return self.made(Relayout((() if set(wanted) & set(rows) else rows, wanted)), value)

    def in_turn(self, op: Op, value: Value, found: _Product) -> None:
        """Emit the slice of the hoisted product that a turn uses, in place of the turn's own
        product."""
        self.name, self.place = op.result.name, op.place
        start, shape = (found.rows.here, found.columns.here), (expr.const(1), found.wanted)
        what, stated = Slice(start, (1, 1), shape), op.result.type.shape
        if shape == stated:
            self.add(what, (value,), op.results)
        else:
            self.add(Reshape(stated), (self.made(what, value),), op.results)

    def matrix(self, of: _Matrix, lines: bool) -> Value:
        """Return a box as a 2-d array. Its rows are summed over if `lines`, else its columns."""
        shown, value = of.shown, of.shown.array
        if shown.shape != value.type.shape or any(s != 0 for s in shown.start):
            value = self.made(Slice(shown.start, shown.step, shown.shape), value)
        along = [] if of.along is None else [of.along]
        order = [*along, of.summed] if lines else [of.summed, *along]
        order += [d for d in range(value.type.ndim) if d not in order]
        if order != sorted(order):
            value = self.made(Transpose(tuple(order)), value)
        between = shown.shape[of.summed]
        shape = (of.many, between) if lines else (between, of.many)
        return value if value.type.shape == shape else self.made(Reshape(shape), value)

    def made(self, what: Kind, *operands: Value) -> Value:
        """Emit an op and return its result. Outside of a shard_map its layout follows from the
        operands."""
        t = self.typed(what, operands)
        if any(v.type.layout is not None for v in operands):
            t = laid_out(what, [v.type for v in operands], t)
        return self.add(what, operands, (Value(self.name, t),)).result
