"""Blocked substitution: loops as in a triangular solve, row i from all rows before, go by blocks.

Goes in: a Graph. Comes out: one in which x[i] = (b[i] - a[i, :i] @ x[:i]) / a[i, i], or the like,
solves a block of rows at a time; ranks then add the block's products to the sums of later rows.
Always holds: each product has the factors that it had; sums are added up in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt

from codegen.graph.clone import with_symbols
from codegen.graph.counted_loop import CountedLoop
from codegen.graph.rewriter import Rewriter
from codegen.ir.cuts import layout_of
from codegen.ir.fresh import Fresh
from codegen.ir.graph import ArrayType, Module, Op, Region, Shape, Value, used_values
from codegen.library_routines import LETTERS
from codegen.ops import Full, Loop, Map, MatMul, Relayout, Reshape, Slice, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET

BLOCK = isqrt(TARGET.reused // 8)  # rows, about: of a square block of float64
BLOCKS = 4  # of fewer it is not worth the words

ZERO, ONE = expr.const(0), expr.const(1)


def blocked_substitution(graph: Module) -> Module:
    """Return the Graph with such loops rewritten as loops over blocks of rows."""
    return _BlockedSubstitution(graph).run()


@dataclass(frozen=True)
class _Rows:
    """A loop that computes row i of a carried array from all rows before it.

    x: the number of the carried array that gets a row from each turn.
    product: the op that multiplies a row of `a` by the rows of x that are written already.
    dropped: ops that only lead to the product and are no longer needed.
    n, size: the number of rows of x, and of a block.
    """

    x: int
    update: Op
    product: Op
    a: Value
    dropped: frozenset[Op]
    n: int
    size: int
    forward: bool


class _BlockedSubstitution(Rewriter):
    def __init__(self, graph: Module) -> None:
        super().__init__(graph, shard_maps=False)
        counters = [c for op in graph.def_use.order if (c := op.kind.counts()) is not None]
        self.fresh = Fresh([*(c.name for c in counters), *(s.name for s in graph.scalars)])

    def op(self, op: Op) -> None:
        loop = CountedLoop.of(op, {})
        rows = None if loop is None else _blockable(loop)
        if rows is None:
            self.keep(op)
        else:
            _Blocks(self, op, rows).write()

    def box(self, x: Value, start: Shape, shape: Shape) -> Value:
        return self.emit(Slice(start, (1,) * len(start), shape), (x,))

    def everywhere(self, x: Value, start: Shape, shape: Shape) -> Value:
        return self.emit(Relayout(((),) * len(shape)), (self.box(x, start, shape),))

    def shaped(self, x: Value, shape: Shape) -> Value:
        return x if x.type.shape == shape else self.emit(Reshape(shape), (x,))


# ---- which loops ---------------------------------------------------------------------------------


def _blockable(loop: CountedLoop) -> _Rows | None:
    """Return the rows of a loop that can be blocked, or None."""
    body = loop.body
    size = _size(loop.count.value) if loop.count.is_const else None
    if size is None or any(o.regions for o in body.ops):
        return None
    n, forward = loop.count.value, loop.step == 1
    first, last = (0, n - 1) if forward else (n - 1, 0)
    if abs(loop.step) != 1 or loop.first != first or loop.last != last:
        return None
    for x, (arg, end) in enumerate(zip(body.args, body.results, strict=True)):
        update = loop.defs.get(end)
        if update is not None and _writes_row(update, arg, loop.counter, n) and (
            _reads_own_row(body, end, loop.counter)
        ):
            product = _product(loop, arg, forward)
            if product is not None:
                return _Rows(x, update, *product, n, size, forward)
    return None


def _size(n: int) -> int | None:
    """Return a divisor of n close to BLOCK, so that all blocks are equal, or BLOCK if there is
    none; None if that leaves fewer than BLOCKS blocks."""
    near = sorted(range(BLOCK // 2, BLOCK * 2 + 1), key=lambda size: abs(size - BLOCK))
    size = next((size for size in near if n % size == 0), BLOCK)
    return size if n >= BLOCKS * size else None


def _is_row(kind: Slice | Update, shape: Shape, i: Sym) -> bool:
    return (kind.start[0] == expr.from_atom(i) and shape[0] == 1 and all(s == 1 for s in kind.step))


def _writes_row(op: Op, arg: Value, i: Sym, n: int) -> bool:
    """Return whether an op writes exactly row i of a carried array whose sizes are known."""
    if not isinstance(op.kind, Update) or op.operands[0] is not arg:
        return False
    shape, entries = arg.type.shape, layout_of(arg)
    whole = all(e == 0 for e in op.kind.start[1:]) and op.operands[1].type.shape[1:] == shape[1:]
    return (whole and _is_row(op.kind, op.operands[1].type.shape, i) and shape[0] == n
            and all(e.is_const for e in shape) and not any(entries[1:])
            and arg.type.dtype.name in LETTERS)


def _reads_own_row(body: Region, end: Value, i: Sym) -> bool:
    """Return whether a turn reads, of the updated array `end`, only the row that it has just
    written."""
    readers = [o for o in body.ops if end in o.operands]
    return Counter(used_values(body))[end] == len(readers) + 1 and all(
        isinstance(o.kind, Slice) and _is_row(o.kind, o.kind.shape, i) for o in readers)


def _product(
    loop: CountedLoop, arg: Value, forward: bool
) -> tuple[Op, Value, frozenset[Op]] | None:
    """Return the op that multiplies a row of a matrix by the rows that earlier turns wrote, that
    matrix, and the ops that lead to the product; None if a turn reads anything else of the carried
    array but its own row."""
    body, defs, i = loop.body, loop.defs, loop.counter
    uses = Counter(used_values(body))
    readers = [o for o in body.ops if arg in o.operands and not isinstance(o.kind, Update)]
    if uses[arg] != len(readers) + 1:  # and it is updated
        return None
    rows = [o for o in readers if isinstance(o.kind, Slice)
            and not _is_row(o.kind, o.kind.shape, i)]
    if len(rows) != 1 or not all(isinstance(o.kind, Slice) for o in readers):
        return None
    here = expr.from_atom(i)
    low, count = (ZERO, here) if forward else (here + 1, arg.type.shape[0] - 1 - here)
    rest = arg.type.shape[1:]

    def is_box(op: Op, start: Shape, shape: Shape) -> bool:
        return isinstance(op.kind, Slice) and (op.kind.start, op.kind.shape) == (start, shape)

    product = next((o for o in body.ops if isinstance(o.kind, MatMul)
                    and rows[0] in _views(o.operands[1], defs)), None)
    if product is None or not is_box(rows[0], (low, *(ZERO for _ in rest)), (count, *rest)):
        return None
    views = [o for v in product.operands for o in _views(v, defs)]
    left = _views(product.operands[0], defs)[-1:]
    if not left or not is_box(left[0], (here, low), (ONE, count)):
        return None
    a = left[0].operands[0]
    read_once = all(uses[o.result] == 1 for o in views)
    entry = layout_of(a)[0]
    fits = (a not in defs and a not in body.args and layout_of(a) == (entry, ()) and bool(entry)
            and layout_of(arg)[0] in (entry, ()))
    shapes = [v.type.shape for v in product.operands]
    flat = len(shapes[0]) == 2 == len(shapes[1]) and shapes[0] == (ONE, count)
    sized = [v for o in body.ops if o not in views for v in o.results
             if any(i in e.symbols() for e in v.type.shape)]
    if sized or not (read_once and fits and flat and a.type.shape[0] == arg.type.shape[0]):
        return None
    return product, a, frozenset(views)


def _views(value: Value, defs: Mapping[Value, Op]) -> list[Op]:
    """Return the reshapes that lead from a slice to a value, and the slice; an empty list if the
    value is not a reshaped slice."""
    reshapes = []
    while (op := defs.get(value)) is not None and isinstance(op.kind, Reshape):
        reshapes.append(op)
        (value,) = op.operands
    return [*reshapes, op] if op is not None and isinstance(op.kind, Slice) else []


# ---- the loop in blocks --------------------------------------------------------------------------


class _Blocks:
    """Writes the loop over blocks. A block has `width` rows from row `first` on; `at` is a turn's
    row within its block, and `where` replaces the old counter by first + at."""

    def __init__(self, to: _BlockedSubstitution, op: Op, rows: _Rows) -> None:
        assert isinstance(op.kind, Loop) and op.kind.counter is not None
        self.to, self.op, self.rows, self.i = to, op, rows, op.kind.counter
        (self.body,) = op.regions
        self.count = -(-rows.n // rows.size)
        k = Sym(to.fresh.name("block"), "counter", ZERO, expr.const(self.count - 1))
        self.first = expr.from_atom(k) * rows.size
        even = rows.n % rows.size == 0
        self.width = (expr.const(rows.size) if even
                      else expr.least(rows.size, expr.const(rows.n) - self.first))
        row = Sym(to.fresh.name(self.i.name), "counter", ZERO, self.width - 1)
        self.at = expr.from_atom(row)
        self.where = {self.i: self.first + self.at}
        self.loops = Loop(k, *self.ends(expr.const(self.count))), Loop(row, *self.ends(self.width))
        self.columns = rows.product.result.type.shape[1]
        self.own = {*self.body.args, *(v for o in self.body.ops for v in o.results)}
        self.held: dict[tuple[Value, Shape, Shape], Value] = {}

    def ends(self, count: Expr) -> tuple[Expr, Expr, Expr]:
        return (ZERO, count, ONE) if self.rows.forward else (count - 1, -ONE, -ONE)

    def write(self) -> None:
        """Emit the loop over blocks, in place of the given loop."""
        to, rows, t = self.to, self.rows, self.rows.product.result.type
        to.place, to.name = self.op.place, rows.product.result.name
        layout = (layout_of(rows.a)[0], ())
        sums, after, sums_before = (
            Value(to.name, ArrayType(t.dtype, (expr.const(rows.n), self.columns), layout))
            for _ in range(3))
        to.add(Full(0.0, t.dtype, sums.type.shape), (), (sums,))
        args = [Value(v.name, v.type) for v in self.body.args]
        with to.inside() as ops:
            results = self.block(args, sums_before)
            new = self.added(results[rows.x], sums_before)
            x = args[rows.x]
            whole = Value(x.name, x.type)
            start = (self.first, *(ZERO for _ in x.type.shape[1:]))
            to.add(Update(start, (1,) * len(start)), (x, results[rows.x]), (whole,))
            results[rows.x] = whole
        to.add(self.loops[0], (*self.op.operands, sums), (*self.op.results, after),
               [Region((*args, sums_before), tuple(ops), (*results, new))])

    def block(self, args: Sequence[Value], sums: Value) -> list[Value]:
        """Emit the loop over the rows of one block. Return the carried values after it; of x, only
        the block's rows."""
        to, rows = self.to, self.rows
        arg = self.body.args[rows.x]
        shape = (self.width, *arg.type.shape[1:])
        zeros = tuple(ZERO for _ in shape)
        start = (self.first, *zeros[1:])
        uses = Counter(used_values(self.body))
        reads = any(arg in o.operands and uses[o.result] for o in self.body.ops
                    if o not in rows.dropped and o is not rows.update)
        before = (to.everywhere(args[rows.x], start, shape) if reads
                  else to.emit(Full(0.0, arg.type.dtype, shape, blank=True)))
        x, x_written = Value(arg.name, before.type), Value(arg.name, before.type)
        corner = to.everywhere(rows.a, (self.first, self.first), (self.width, self.width))
        parts = to.everywhere(sums, (self.first, ZERO), (self.width, self.columns))
        with to.inside() as ops:
            for o in self.body.ops:
                self.turn(o, x, x_written, corner, parts, uses)
        for (array, first, extents), gathered in self.held.items():
            part = to.box(array, first, extents)
            to.add(Relayout(((),) * len(extents)), (part,), (gathered,))
        operands = [before if k == rows.x else v for k, v in enumerate(args)]
        inner = [x if k == rows.x else v for k, v in enumerate(self.body.args)]
        ends = [x_written if k == rows.x else v for k, v in enumerate(self.body.results)]
        results = [Value(v.name, v.type) for v in inner]
        to.add(self.loops[1], operands, results, [Region(tuple(inner), tuple(ops), tuple(ends))])
        return results

    def turn(self, o: Op, x: Value, x_written: Value, corner: Value, parts: Value,
             uses: Counter[Value]) -> None:
        """Emit an op of the loop's body, rewritten to read and write rows of the block."""
        to, rows, arg = self.to, self.rows, self.body.args[self.rows.x]
        to.place = o.place
        low, count = ((ZERO, self.at) if rows.forward else (self.at + 1, self.width - 1 - self.at))
        zeros = tuple(ZERO for _ in arg.type.shape[1:])
        if o is rows.product:
            to.name = o.result.name
            a = to.box(corner, (self.at, low), (ONE, count))
            b = to.box(x, (low, *zeros), (count, *arg.type.shape[1:]))
            new = to.emit(MatMul(), (a, to.shaped(b, (count, self.columns))))
            old = to.box(parts, (self.at, ZERO), (ONE, self.columns))
            to.add(Map("add"), (old, new), o.results)
        elif o is rows.update:
            to.add(o.kind.but(start=(self.at, *zeros)), (x, o.operands[1]), (x_written,))
        elif o not in rows.dropped and (arg in o.operands or rows.update.result in o.operands):
            if uses[o.result]:
                assert isinstance(o.kind, Slice)
                to.add(o.kind.but(start=(self.at, *o.kind.start[1:])),
                       (x if arg in o.operands else x_written,), o.results)
        elif o not in rows.dropped:
            self.other(o)

    def other(self, o: Op) -> None:
        """Emit an op that does not touch x. If it reads row i of a split array, it reads that row
        of the block's rows, which are gathered once per block."""
        kind = o.kind
        if isinstance(kind, Slice) and o.operands[0] not in self.own:
            array, entries = o.operands[0], layout_of(o.operands[0])
            here, dims = expr.from_atom(self.i), range(1, array.type.ndim)
            with_row = [d for d in dims if kind.start[d] == here and kind.shape[d] == 1]
            fixed = [d for d in dims if kind.start[d].is_const and kind.shape[d].is_const]
            boxed = len(with_row) + len(fixed) == len(dims) and _is_row(kind, kind.shape, self.i)
            if boxed and any(entries[:1]) and not any(entries[1:]):
                start, shape, position = [self.first], [self.width], [self.at]
                for d in dims:
                    start.append(self.first if d in with_row else kind.start[d])
                    shape.append(self.width if d in with_row else kind.shape[d])
                    position.append(self.at if d in with_row else ZERO)
                key = array, tuple(start), tuple(shape)
                if key not in self.held:
                    t = ArrayType(array.type.dtype, key[2], ((),) * len(shape))
                    self.held[key] = Value(array.name, t)
                self.to.add(kind.but(start=tuple(position)), (self.held[key],), o.results)
                return
        if any(self.i in e.symbols() for e in kind.exprs()):
            kind = with_symbols(kind, self.where)
        self.to.keep(replace(o, kind=kind))

    def added(self, x: Value, sums: Value) -> Value:
        """Return the sums of products, with the products of a finished block added to all rows
        after it."""
        to, n = self.to, expr.const(self.rows.n)
        low, count = (self.first + self.width, n - self.first - self.width)
        if not self.rows.forward:
            low, count = ZERO, self.first
        a = to.box(self.rows.a, (low, self.first), (count, self.width))
        new = to.emit(MatMul(), (a, to.shaped(x, (self.width, self.columns))))
        new = to.map("add", to.box(sums, (low, ZERO), (count, self.columns)), new)
        return to.emit(Update((low, ZERO), (1, 1)), (sums, new))
