"""From a value to the scalar at one point of it: views become index maps, maps become trees.

Goes in: SSA values and which of them are stored in memory. Comes out: plan Nodes whose Loads read
stored values only. Used by the passes that decide what is stored, where, and in which order.
Always holds: resolving moves no data and changes no value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codegen.ir import Op, Shape, Value
from codegen.ops import Gather, Map, Reduce, Reshape, Scatter, Slice, Update
from codegen.plan.grammar import Bound, Load, Local, Node, Var
from codegen.plan.indexing import Index, loop_vars, match_dims, positions, ravel, unravel
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


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
    reduced = op.what.dims if isinstance(op.what, Reduce) else ()
    loops = loop_vars((op.operands[0] if reduced else op.result).type.shape)
    index = positions(loops)
    offset = ravel(tuple(i for d, i in enumerate(index) if d not in reduced), op.result.type.shape)
    long = tuple(v for v in loops if v.extent != 1)
    kept = tuple(v for d, v in enumerate(loops) if d not in reduced and v.extent != 1)
    how = "point"
    if isinstance(op.what, Reduce):
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

    def within(self, box: Slice | Update, index: Index) -> Index:
        """Where in the whole array an element of a slice, or of what an update writes, is."""
        starts = map(self.name, box.start) if box.cut else box.start
        return tuple(a + s * j for a, s, j in zip(starts, box.step, index, strict=True))

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
        return op.what.element(op, index, self)

    def points(self, op: Op) -> Points:
        """Of a map, a reduction, or an update; this one's loops are those of what it writes, as it
        was before dims of extent 1 were put in."""
        if not isinstance(op.what, Update):
            return _points(op)
        part = origin = op.operands[1].type.shape
        value, index = op.operands[1], positions(loop_vars(part))
        while not self.stored(value) and isinstance(self.ops[value].what, Reshape):
            value = self.ops[value].operands[0]
            found = match_dims(positions(loop_vars(value.type.shape)), value.type.shape, part)
            if found is None:
                break
            origin, index = value.type.shape, found
        at = self.within(op.what, index)
        long = tuple(v for v in loop_vars(origin) if v.extent != 1)
        return Points("point", long, long, index, ravel(at, op.result.type.shape))

    def member(self, op: Op, at: Points) -> Node:
        """What a map or a reduction computes, or combines, at a point of its loops; or what an
        update writes."""
        if isinstance(op.what, Map):
            return self.computed(op, at.index)
        return self.node(op.operands[isinstance(op.what, Update)], at.index)

    def at_offset(self, value: Value, offset: Expr) -> Node:
        """The same, for a row-major offset instead of an index."""
        if value in self.kept:
            return self.kept[value]
        if self.stored(value):
            return Load(self.buffer_of(value), offset)
        op = self.ops[value]
        if isinstance(op.what, Reshape):
            return self.at_offset(op.operands[0], offset)
        return self.node(value, unravel(offset, value.type.shape))

    def bound(self, value: Value, index: Index, limit: Expr) -> Bound:
        """A symbol for a position that data decides."""
        self.bounds += 1
        sym = Sym(f"p{self.bounds}", "var", expr.const(0), limit)
        return Bound(sym, self.node(value, index), limit)

    def picked(
        self, indices: Sequence[Value], what: Gather | Scatter, shape: Shape, index: Index
    ) -> tuple[Index, tuple[Bound, ...]]:
        """The position in x (of this shape) that `index` of a gather's result (or of a scatter's
        operand) stands for."""
        count = indices[0].type.ndim
        chosen = index[what.at : what.at + count]
        rest = list(index[: what.at] + index[what.at + count :])
        bounds: list[Bound] = []
        inner: list[Expr] = []
        for d, extent in enumerate(shape):
            if d in what.dims:
                bound = self.bound(indices[what.dims.index(d)], chosen, extent - 1)
                bounds.append(bound)
                inner.append(expr.symbol(bound.sym))
            else:
                inner.append(rest.pop(0))
        return tuple(inner), tuple(bounds)
