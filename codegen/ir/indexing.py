"""Positions in arrays: row-major offsets, loops over dims, what a tree of loads reads.

Always holds: everything here is arithmetic of Exprs; no op and no value is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from codegen.dtypes import INT64, DType
from codegen.ir.graph import Shape
from codegen.ir.plan import Apply, Bound, Integer, Literal, Load, M, Node, Var
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET

Index = tuple[Expr, ...]


@lru_cache(maxsize=4096)
def strides(shape: Shape) -> Shape:
    """Return row-major strides in elements."""
    out: list[Expr] = []
    total = expr.const(1)
    for extent in reversed(shape):
        out.append(total)
        total = total * extent
    return tuple(reversed(out))


def ravel(index: Index, shape: Shape) -> Expr:
    total = expr.const(0)
    for i, stride in zip(index, strides(shape), strict=True):
        total = total + i * stride
    return total


def unravel(offset: Expr, shape: Shape) -> Index:
    """Return the index of a row-major offset. The first dim needs no remainder."""
    out: list[Expr] = []
    for d, stride in enumerate(strides(shape)):
        quotient = offset // stride
        out.append(quotient % shape[d] if d else quotient)
    return tuple(out)


def loop_vars(shape: Shape, prefix: str = "j") -> tuple[Var, ...]:
    """Return a loop variable for each dim. (`positions` writes 0 for one that runs over a single
    element.)"""
    return tuple(
        Var(Sym(f"{prefix}{d}", "var", expr.const(0), extent - 1), extent)
        for d, extent in enumerate(shape)
    )


def long_loops(loops: Iterable[Var]) -> tuple[Var, ...]:
    """Return the loops of more than one iteration; of others emitters leave out the loop."""
    return tuple(v for v in loops if v.extent != 1)


def in_order(loops: Iterable[Var]) -> list[Var]:
    """Return the loops in the order of the dims that they run over."""
    return sorted(loops, key=lambda v: (len(v.sym.name), v.sym.name))


def positions(loops: Sequence[Var]) -> Index:
    return tuple(expr.const(0) if v.extent == 1 else expr.symbol(v.sym) for v in loops)


def waiting_room(row: Shape, dtype: DType) -> Expr:
    """Return the number of elements of memory for a row that is buffered before it is written:
    those of the row, and a page within which the row is aligned."""
    return expr.product(row) + 4096 // dtype.size  # csrc/spmd_support.h: spmd_apart


def match_dims(index: Index, shape: Shape, inner: Shape) -> Index | None:
    """Return the same index of another shape, without division, if the shapes differ by dims of
    extent 1 only; else None."""
    kept = [i for i, e in zip(index, shape, strict=True) if e != 1]
    if [e for e in shape if e != 1] != [e for e in inner if e != 1]:
        return None
    rest = iter(kept)
    return tuple(expr.const(0) if e == 1 else next(rest) for e in inner)


def apply(fn: str, dtype: DType, args: tuple[Node[M], ...], operand: DType) -> Node[M]:
    """Return an Apply; a sum, difference or product of symbolic integers is one symbolic
    integer."""
    if fn in ("add", "sub", "mul") and dtype == operand == INT64:
        known = [_symbolic(a) for a in args]
        total = None if None in known else _joined(fn, *(e for e in known if e is not None))
        if total is not None and all(abs(c) < 2**62 for _, c in total.terms):
            return Integer(total, dtype)
    return Apply(fn, dtype, args, operand)


def _symbolic(node: Node[M]) -> Expr | None:
    if isinstance(node, Integer):
        return node.value
    return expr.const(int(node.value)) if isinstance(node, Literal) else None


def _joined(fn: str, a: Expr, b: Expr) -> Expr | None:
    if fn == "mul":  # products of sums have many terms
        return a * b if a.is_const or b.is_const else None
    return a + b if fn == "add" else a - b


def with_bounds(node: Node[M], bounds: tuple[Bound[M], ...]) -> Node[M]:
    """Attach bound positions to every Load and Integer below that mentions them, or that mentions
    one which does. A stride of 0 needs no position."""

    def bounded(x: Node[M]) -> Node[M] | None:
        if not isinstance(x, Load | Integer):
            return None
        used, kept = (x.offset if isinstance(x, Load) else x.value).symbols(), list[Bound[M]]()
        for bound in reversed(bounds + x.bounds):
            if bound.sym in used:
                kept.append(bound)
                for inner in placed(bound.node):
                    used |= (inner.offset if isinstance(inner, Load) else inner.value).symbols()
        return replace(x, bounds=tuple(reversed(kept)))

    return rewritten(node, bounded)


def rewritten(node: Node[M], change: Callable[[Node[M]], Node[M] | None]) -> Node[M]:
    """Return the node in which `change` has replaced parts, those in bound positions too."""
    new = change(node)
    if new is not None:
        return new
    if isinstance(node, Apply):
        args = tuple(rewritten(a, change) for a in node.args)
        same = all(a is b for a, b in zip(args, node.args))
        return node if same else replace(node, args=args)
    if isinstance(node, Load | Integer) and node.bounds:
        bounds = tuple(replace(b, node=rewritten(b.node, change)) for b in node.bounds)
        return replace(node, bounds=bounds)
    return node


def or_zero(holds: Expr, node: Node[M], dtype: DType) -> Node[M]:
    """Return a node that is 0 where `holds` is 0: there is nothing to read of an array that is
    empty on this rank."""
    if holds == 1:
        return node
    return Apply("guard", dtype, (Integer(holds, INT64), node, Literal(0, dtype)), dtype)


def leaves(node: Node[M]) -> Iterator[Node[M]]:
    """Yield all nodes below a node that are no Apply, in bound positions too."""
    if isinstance(node, Apply):
        for arg in node.args:
            yield from leaves(arg)
        return
    yield node
    if isinstance(node, (Load, Integer)):
        for bound in node.bounds:
            yield from leaves(bound.node)


def count_calls(node: Node[M]) -> int:
    """Return how many functions a node applies."""
    return 1 + sum(map(count_calls, node.args)) if isinstance(node, Apply) else 0


def placed(node: Node[M]) -> Iterator[Load[M] | Integer[M]]:
    """Return an iterator over every Load and Integer below a node."""
    return (n for n in leaves(node) if isinstance(n, Load | Integer))


def loads(node: Node[M]) -> Iterator[Load[M]]:
    """Return an iterator over every Load below a node."""
    return (n for n in leaves(node) if isinstance(n, Load))


ROWS = 8  # that may lie between what is read and what is written


def rows_kept(
    node: Node[M], source: M, target: Expr, shape: Shape, step: Sequence[int]
) -> int | None:
    """Return how many rows of results must be buffered when array `source` of this shape is read
    while it is overwritten at `target` in these steps: a row is written once no later row reads its
    old elements.

    0: every element is read only where it is written. None: no order of rows makes it correct."""
    kept = 0
    upwards = any(k < 0 for k in step[:1])  # rows are written last to first
    row = expr.product(shape[1:])
    short = row.is_const and row.value < TARGET.short_loop
    for load in loads(node):
        if load.buffer is not source or (load.offset == target and not load.bounds):
            continue
        ahead = target - load.offset if upwards else load.offset - target
        shift = None if load.bounds or short else _rows(ahead, shape)
        if shift is None:
            return None
        kept = max(kept, 1 - min(shift, 0))
    return kept


def _rows(distance: Expr, shape: Shape) -> int | None:
    """Return the least number of rows that this distance in memory may span, which is negative for
    earlier rows; None if it may be more than ROWS."""
    row, *inner = strides(shape)
    if row.is_const:
        shift = distance.value // row.value if distance.is_const and row.value else None
        return shift if shift is not None and abs(shift) <= ROWS else None
    return next((s for s in range(-ROWS, ROWS + 1) if _within(distance - s * row, inner)), None)


def _within(distance: Expr, inner: Sequence[Expr]) -> bool:
    """Return whether a distance is a few steps along the inner dims, as for reads through plain
    slices."""
    if distance.is_const:
        return abs(distance.value) <= ROWS * ROWS
    if len(inner) < 2:
        return False
    return any(_within(distance - s * inner[0], inner[1:]) for s in range(-ROWS, ROWS + 1))


def affine(offset: Expr, loops: Sequence[Var]) -> tuple[Expr, Shape] | None:
    """Return (base, strides) of offset = base + sum of stride * variable, with strides free of the
    variables; else None."""
    syms = {v.sym for v in loops}
    base = offset
    out: list[Expr] = []
    for v in loops:
        if v.extent == 1:
            out.append(expr.const(0))
            continue
        at0 = offset.subst({v.sym: 0})
        stride = offset.subst({v.sym: 1}) - at0
        if stride.symbols() & syms:
            return None
        if at0 + stride * expr.symbol(v.sym) != offset:
            return None
        out.append(stride)
    base = offset.subst({v.sym: 0 for v in loops})
    rebuilt = base
    for v, s in zip(loops, out, strict=True):
        if v.extent != 1:
            rebuilt = rebuilt + s * expr.symbol(v.sym)
    return (base, tuple(out)) if rebuilt == offset else None
