"""From a value to the scalar at one point of it: views become index maps, maps become trees.

Goes in: SSA values and which of them are stored in memory. Comes out: Nodes whose Loads read stored
values and constants only. The rules of kinds ask for it while Loops are made.
Always holds: resolving moves no data and changes no value.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from codegen.ir.graph import Module, Op, Shape, Value
from codegen.ir.indexing import (
    Index,
    affine,
    loop_vars,
    match_dims,
    positions,
    ravel,
    unravel,
)
from codegen.ir.plan import Bound, Load, Var
from codegen.ops import Full, Gather, Reshape, Scatter, Slice, Update
from codegen.ops.kind import Array
from codegen.ops.rules import Element
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym


class Resolver:
    """A resolver finds what stands at an index of a value. stored: the values that lie in memory.
    runtime: a run-time scalar's number. named: symbols for long formulas of the index, so that
    offsets stay short. constants: data in the image."""

    def __init__(self, program: Module, stored: Container[Value]) -> None:
        self.defs = program.def_use.defs
        self.stored = stored
        self.runtime = {s.name: k for k, s in enumerate(program.scalars)}
        self.named: dict[Expr, Sym] = {}
        self.bounds = 0
        self.data: dict[Value, Value] = {}
        self.constants: dict[Value, Array] = {}

    def within(self, box: Slice | Update, index: Index) -> Index:
        """Return the index in the whole array of an element of a slice, or of what an update
        writes."""
        starts = map(self.name, box.start) if box.cut else box.start
        return tuple(a + s * j for a, s, j in zip(starts, box.step, index, strict=True))

    def name(self, e: Expr) -> Expr:
        """Return a short name for a long formula that does not change while the program runs; other
        formulas as they are."""
        if not expr.calls(e) or any(s.kind in ("counter", "var") for s in e.symbols()):
            return e
        plus = sum(c for m, c in e.terms if not m)
        e = e - plus
        if e not in self.named:
            self.named[e] = Sym(f"at{len(self.named)}", "size")
        return expr.symbol(self.named[e]) + plus

    def node(self, value: Value, index: Index) -> Element:
        """Return the scalar at this index of a value: a Load if the value is stored, else its
        formula."""
        if value in self.stored:
            return Load(value, ravel(index, value.type.shape))
        return self.computed(self.defs[value], index)

    def operand(self, value: Value, index: Index) -> Element:
        """Return the value that an op reads at this index of an operand. An element of a Full is a
        number, even where another op needs that array in memory."""
        node = self.node(value, index)
        op = self.defs.get(node.buffer) if isinstance(node, Load) and not node.bounds else None
        return op.kind.element(op, (), self) if op and isinstance(op.kind, Full) else node

    def computed(self, op: Op, index: Index) -> Element:
        """Return the scalar that an op computes at this index of its result, whether that is stored
        or not."""
        return op.kind.element(op, index, self)

    def at_offset(self, value: Value, offset: Expr) -> Element:
        """Return the scalar at a row-major offset of a value."""
        if value in self.stored:
            return Load(value, offset)
        op = self.defs[value]
        if isinstance(op.kind, Reshape):
            return self.at_offset(op.operands[0], offset)
        shape = value.type.shape
        long = [d for d, extent in enumerate(shape) if extent != 1]
        if len(long) == 1:
            return self.node(value, tuple(offset if d in long else expr.const(0)
                                          for d in range(len(shape))))
        return self.node(value, unravel(offset, shape))

    def constant(self, value: Value, data: Array) -> Value:
        """Return the value that stands for a constant's data in the image: another than its own, if
        that is a copy in memory."""
        if value not in self.data:
            copied = value in self.stored
            self.data[value] = Value(value.name, value.type) if copied else value
            self.constants[self.data[value]] = data
        return self.data[value]

    def contiguous(self, value: Value) -> tuple[Value, Expr]:
        """Return the memory in which a value's elements lie one after the other, and the offset of
        the first."""
        loops = loop_vars(value.type.shape)
        load = self.node(value, positions(loops))
        linear = affine(load.offset, loops) if isinstance(load, Load) and not load.bounds else None
        assert linear is not None and isinstance(load, Load), "an array of a kernel lies in memory"
        return load.buffer, linear[0]

    def plainest(self, value: Value) -> tuple[tuple[Var, ...], Index]:
        """Return loops over all elements of a value, and its index in terms of them. Reshapes are
        undone, so that dims of extent 1 which they added get no loop."""
        loops, shape = loop_vars(value.type.shape), value.type.shape
        index = positions(loops)
        while value not in self.stored and isinstance(self.defs[value].kind, Reshape):
            value = self.defs[value].operands[0]
            before = loop_vars(value.type.shape)
            matched = match_dims(positions(before), value.type.shape, shape)
            if matched is None:
                break
            loops, index = before, matched
        return loops, index

    def bound(self, value: Value, index: Index, limit: Expr) -> Bound[Value]:
        """Return a symbol for a position that data decides."""
        self.bounds += 1
        sym = Sym(f"p{self.bounds}", "var", expr.const(0), limit)
        return Bound(sym, self.node(value, index), limit)

    def picked(
        self, indices: Sequence[Value], kind: Gather | Scatter, shape: Shape, index: Index
    ) -> tuple[Index, tuple[Bound[Value], ...]]:
        """Return the position in x (of this shape) that `index` of a gather's result (or of a
        scatter's operand) stands for."""
        count = indices[0].type.ndim
        chosen = index[kind.index_dim : kind.index_dim + count]
        rest = list(index[: kind.index_dim] + index[kind.index_dim + count :])
        bounds: list[Bound[Value]] = []
        inner: list[Expr] = []
        for d, extent in enumerate(shape):
            if d in kind.dims:
                bound = self.bound(indices[kind.dims.index(d)], chosen, extent - 1)
                bounds.append(bound)
                inner.append(expr.symbol(bound.sym))
            else:
                inner.append(rest.pop(0))
        return tuple(inner), tuple(bounds)
