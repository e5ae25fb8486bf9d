"""From a value to the scalar at one point of it: views become index maps, maps become trees.

Goes in: SSA values and which of them are stored in memory. Comes out: plan Nodes whose Loads read
stored values only. Used by the passes that decide what is stored, where, and in which order.
Always holds: resolving moves no data and changes no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from codegen import expr
from codegen.dtypes import INT64
from codegen.expr import Expr, Sym
from codegen.ir import Op, Shape, Value
from codegen.plan import Apply, Bound, Integer, Literal, Load, Local, Node, Runtime, Var, apply

Index = tuple[Expr, ...]


def strides(shape: Shape) -> Shape:
    """Row-major strides in elements."""
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
    """The index of a row-major offset. The first dim needs no remainder."""
    out: list[Expr] = []
    for d, stride in enumerate(strides(shape)):
        quotient = offset // stride
        out.append(quotient % shape[d] if d else quotient)
    return tuple(out)


def loop_vars(shape: Shape, prefix: str = "j") -> tuple[Var, ...]:
    """A loop variable per dim; one that runs over a single element is left out by `positions`."""
    return tuple(
        Var(Sym(f"{prefix}{d}", "var", expr.const(0), extent - 1), extent)
        for d, extent in enumerate(shape)
    )


def positions(loops: Sequence[Var]) -> Index:
    return tuple(expr.const(0) if v.extent == 1 else expr.symbol(v.sym) for v in loops)


@dataclass(frozen=True)
class Points:
    """Where an op of a nest computes: its loops (of more than one turn), those of them that count
    the elements of its result, and where these are stored.

    how: point (a result for each), fold (one for the points inside `kept`), rows (a reduction whose
    results are a row that lies in memory), or alone: it shares loops with nobody.
    """

    how: str
    loops: tuple[Var, ...]
    kept: tuple[Var, ...]
    index: Index
    offset: Expr


def _points(op: Op) -> Points:
    """Of a map or a reduction."""
    reduced = op.attrs["dims"] if op.kind == "reduce" else ()
    loops = loop_vars((op.operands[0] if reduced else op.result).type.shape)
    index = positions(loops)
    offset = ravel(tuple(i for d, i in enumerate(index) if d not in reduced), op.result.type.shape)
    long = tuple(v for v in loops if v.extent != 1)
    kept = tuple(v for d, v in enumerate(loops) if d not in reduced and v.extent != 1)
    how = "point"
    if op.kind == "reduce":
        how = "alone"
        if kept == long[: len(kept)]:
            how = "fold"
        elif long[-1] in kept and op.result.type.dtype.size != 2:
            how = "rows"
    return Points(how, long, kept, index, offset)


@dataclass
class Resolver:
    """buffer_of gives what a stored value lives in; ops gives the op that defines a value."""

    ops: Mapping[Value, Op]
    stored: Callable[[Value], bool]
    buffer_of: Callable[[Value], Any]
    constant: Callable[[Value, Any], Any]  # where a const's data lies
    runtime: Mapping[str, int]  # a run-time scalar's number
    bounds: int = 0
    # what stands for long formulas of the index, so that offsets stay short
    named: dict[Expr, Sym] = field(default_factory=dict)
    kept: dict[Value, Local] = field(default_factory=dict)  # what the loop around has computed

    def starts(self, op: Op) -> Index:
        """Where a slice or an update begins."""
        starts: Index = op.attrs["start"]
        return tuple(self.name(e) for e in starts) if op.attrs.get("cut") else starts

    def name(self, e: Expr) -> Expr:
        """The same number by a short name, if its formula is long and stays what it is."""
        if not expr.calls(e) or any(s.kind in ("counter", "var") for s in e.symbols()):
            return e
        plus = sum(c for m, c in e.terms if not m)
        e = e - plus
        if e not in self.named:
            self.named[e] = Sym(f"at{len(self.named)}", "size")
        return expr.symbol(self.named[e]) + plus

    def node(self, value: Value, index: Index) -> Node:
        """What stands at this index of the value."""
        if value in self.kept:
            return self.kept[value]
        if self.stored(value):
            return Load(self.buffer_of(value), ravel(index, value.type.shape))
        return self.computed(self.ops[value], index)

    def computed(self, op: Op, index: Index) -> Node:
        """What an op computes at this index of its result, whether that is stored or not."""
        return _RULES[op.kind](self, op, index)

    def points(self, op: Op) -> Points:
        """Of a map, a reduction, or an update; this one's loops are those of what it writes, as it
        was before dims of extent 1 were put in."""
        if op.kind != "update":
            return _points(op)
        part = origin = op.operands[1].type.shape
        value, index = op.operands[1], positions(loop_vars(part))
        while not self.stored(value) and self.ops[value].kind == "reshape":
            value = self.ops[value].operands[0]
            found = _match_dims(positions(loop_vars(value.type.shape)), value.type.shape, part)
            if found is None:
                break
            origin, index = value.type.shape, found
        at = tuple(a + s * j for a, s, j in zip(self.starts(op), op.attrs["step"], index))
        long = tuple(v for v in loop_vars(origin) if v.extent != 1)
        return Points("point", long, long, index, ravel(at, op.result.type.shape))

    def member(self, op: Op, at: Points) -> Node:
        """What a map or a reduction computes, or combines, at a point of its loops; or what an
        update writes."""
        if op.kind == "map":
            return self.computed(op, at.index)
        return self.node(op.operands[op.kind == "update"], at.index)

    def at_offset(self, value: Value, offset: Expr) -> Node:
        """The same, for a row-major offset instead of an index."""
        if value in self.kept:
            return self.kept[value]
        if self.stored(value):
            return Load(self.buffer_of(value), offset)
        op = self.ops[value]
        if op.kind == "reshape":
            return self.at_offset(op.operands[0], offset)
        return self.node(value, unravel(offset, value.type.shape))

    def bound(self, value: Value, index: Index, limit: Expr) -> Bound:
        """A symbol for a position that data decides."""
        self.bounds += 1
        sym = Sym(f"p{self.bounds}", "var", expr.const(0), limit)
        return Bound(sym, self.node(value, index), limit)


def _const(self: Resolver, op: Op, index: Index) -> Node:
    data = op.attrs["data"]
    if data.size == 1:
        return Literal(data.reshape(-1)[0].item(), op.result.type.dtype)
    return Load(self.constant(op.result, data), ravel(index, op.result.type.shape))


def _full(self: Resolver, op: Op, index: Index) -> Node:
    return Literal(op.attrs["value"], op.result.type.dtype)


def _iota(self: Resolver, op: Op, index: Index) -> Node:
    return Integer(index[op.attrs["dim"]], op.result.type.dtype)


def _expr(self: Resolver, op: Op, index: Index) -> Node:
    return Integer(op.attrs["value"], op.result.type.dtype)


def _scalar(self: Resolver, op: Op, index: Index) -> Node:
    name = op.attrs["scalar"]
    return Runtime(self.runtime[name], name, op.result.type.dtype)


def _map(self: Resolver, op: Op, index: Index) -> Node:
    args = tuple(self.node(v, index) for v in op.operands)
    operand = (
        op.operands[-1].type.dtype if op.attrs["fn"] == "select" else op.operands[0].type.dtype
    )
    return apply(op.attrs["fn"], op.result.type.dtype, args, operand)


def _broadcast(self: Resolver, op: Op, index: Index) -> Node:
    x = op.operands[0]
    inner = tuple(
        expr.const(0) if x.type.shape[k] == 1 else index[d] for k, d in enumerate(op.attrs["dims"])
    )
    return self.node(x, inner)


def _slice(self: Resolver, op: Op, index: Index) -> Node:
    inner = tuple(
        a + s * j for a, s, j in zip(self.starts(op), op.attrs["step"], index, strict=True)
    )
    return self.node(op.operands[0], inner)


def _transpose(self: Resolver, op: Op, index: Index) -> Node:
    inner = list(index)
    for d, source in enumerate(op.attrs["perm"]):
        inner[source] = index[d]
    return self.node(op.operands[0], tuple(inner))


def _reshape(self: Resolver, op: Op, index: Index) -> Node:
    x = op.operands[0]
    mapped = _match_dims(index, op.result.type.shape, x.type.shape)
    if mapped is not None:
        return self.node(x, mapped)
    return self.at_offset(x, ravel(index, op.result.type.shape))


def _match_dims(index: Index, shape: Shape, inner: Shape) -> Index | None:
    """Where two shapes differ by dims of extent 1 only: the same index without division."""
    kept = [i for i, e in zip(index, shape, strict=True) if e != 1]
    if [e for e in shape if e != 1] != [e for e in inner if e != 1]:
        return None
    rest = iter(kept)
    return tuple(expr.const(0) if e == 1 else next(rest) for e in inner)


def _dynamic_slice(self: Resolver, op: Op, index: Index) -> Node:
    x, *starts = op.operands
    bounds, inner = [], []
    fits = expr.const(1)
    for d, start in enumerate(starts):
        extent = x.type.shape[d]
        limit = extent - op.result.type.shape[d]
        fits = fits * expr.ge0(limit)
        bound = self.bound(start, (), limit)
        bounds.append(bound)
        inner.append(expr.symbol(bound.sym) + index[d])
    return _or_zero(fits, _with_bounds(self.node(x, tuple(inner)), tuple(bounds)), op)


def _or_zero(holds: Expr, node: Node, op: Op) -> Node:
    """Zero where there is nothing to read: an array that is empty on this rank."""
    dtype = op.result.type.dtype
    if holds == 1:
        return node
    return Apply("guard", dtype, (Integer(holds, INT64), node, Literal(0, dtype)), dtype)


def gather_index(
    self: Resolver,
    indices: Sequence[Value],
    dims: Sequence[int],
    at: int,
    shape: Shape,
    index: Index,
) -> tuple[Index, tuple[Bound, ...]]:
    """The position in x (of this shape) that `index` of a gather's result (or of a scatter's
    operand) stands for."""
    count = indices[0].type.ndim
    chosen, rest = index[at : at + count], list(index[:at] + index[at + count :])
    bounds: list[Bound] = []
    inner: list[Expr] = []
    for d, extent in enumerate(shape):
        if d in dims:
            value = indices[list(dims).index(d)]
            bound = self.bound(value, chosen, extent - 1)
            bounds.append(bound)
            inner.append(expr.symbol(bound.sym))
        else:
            inner.append(rest.pop(0))
    return tuple(inner), tuple(bounds)


def _gather(self: Resolver, op: Op, index: Index) -> Node:
    x, *indices = op.operands
    inner, bounds = gather_index(
        self, indices, op.attrs["dims"], op.attrs["at"], x.type.shape, index
    )
    fits = expr.product(expr.ge(x.type.shape[d], 1) for d in op.attrs["dims"])
    return _or_zero(fits, _with_bounds(self.node(x, inner), bounds), op)


def _with_bounds(node: Node, bounds: tuple[Bound, ...]) -> Node:
    """Attach bound positions to every Load and Integer below that mentions them."""
    if isinstance(node, (Load, Integer)):
        return replace(node, bounds=bounds + node.bounds)
    if isinstance(node, Apply):
        return Apply(
            node.fn, node.dtype, tuple(_with_bounds(a, bounds) for a in node.args), node.operand
        )
    return node


_RULES: dict[str, Callable[[Resolver, Op, Index], Node]] = {
    "const": _const,
    "full": _full,
    "iota": _iota,
    "expr": _expr,
    "scalar": _scalar,
    "map": _map,
    "broadcast": _broadcast,
    "slice": _slice,
    "transpose": _transpose,
    "reshape": _reshape,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
}

INLINE = frozenset(_RULES)


def placed(node: Node) -> Iterator[Load | Integer]:
    """Every Load and Integer below a node, those in bound positions too."""
    if isinstance(node, (Load, Integer)):
        yield node
        for bound in node.bounds:
            yield from placed(bound.node)
    elif isinstance(node, Apply):
        for arg in node.args:
            yield from placed(arg)


def loads(node: Node) -> Iterator[Load]:
    """Every Load below a node, those in bound positions too."""
    return (n for n in placed(node) if isinstance(n, Load))


SHORT = 16  # elements of a row that is not worth a loop of its own
ROWS = 8  # that may lie between what is read and what is written


def rows_kept(
    node: Node, source: Any, target: Expr, shape: Shape, step: Sequence[int]
) -> int | None:
    """How many rows of results wait in a buffer of their own, where `source` of this shape is read
    while it is written at `target` in these steps: a row is written when no row after it reads it
    any more.

    0: every element is read where it is written only. None: the order of rows does not help.
    """
    kept = 0
    upwards = any(k < 0 for k in step[:1])  # rows are written last to first
    row = expr.product(shape[1:])
    short = row.is_const and row.value < SHORT
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
    """The least number of rows that this distance may be, of a few."""
    row, *inner = strides(shape)
    if row.is_const:
        found = distance.value // row.value if distance.is_const and row.value else None
        return found if found is not None and abs(found) <= ROWS else None
    return next((s for s in range(-ROWS, ROWS + 1) if _within(distance - s * row, inner)), None)


def _within(distance: Expr, inner: Sequence[Expr]) -> bool:
    """Whether it is a few steps along the inner dims: of what is read through plain slices."""
    if distance.is_const:
        return abs(distance.value) <= ROWS * ROWS
    if len(inner) < 2:
        return False
    return any(_within(distance - s * inner[0], inner[1:]) for s in range(-ROWS, ROWS + 1))


def affine(offset: Expr, loops: Sequence[Var]) -> tuple[Expr, Shape] | None:
    """offset = base + sum of stride * variable, with strides free of the variables; else None."""
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
