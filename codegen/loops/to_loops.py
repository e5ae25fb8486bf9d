"""Program to Loops: every op that computes becomes the loop nests that its kind's rule gives.

Goes in: a Program, and the values that lie in memory. Comes out: its Loops.
Always holds: a Do reads its operands and writes its results, and no other memory; each op is
resolved once, here.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from codegen import ops
from codegen.dtypes import DType
from codegen.graph.computed_formulas import let_formulas
from codegen.graph.variance import Variance, analysed, turns_apart
from codegen.gufunc import Parameter
from codegen.ir.graph import ArrayType, Module, Op, Region, Value
from codegen.ir.indexing import loop_vars, positions, ravel
from codegen.ir.loops import Act, Do, Loops
from codegen.ir.plan import Caller, Exchange, LibraryCall, Literal, Part, Store, Var
from codegen.ir.steps import memory_read
from codegen.library_routines import Routine
from codegen.loops.exchange_boxes import Sides
from codegen.loops.resolver import Resolver
from codegen.ops.rules import Element
from codegen.symbolic import expr
from codegen.symbolic.expr import LAUNCH, Expr, Sym


def to_loops(program: Module, stored: Container[Value]) -> Loops:
    """Return the Loops of a Program. `stored` holds the values that need memory."""
    make = Maker(program, stored)
    module: Module = replace(program.mapped(make.region), level="loops")
    return Loops(
        module, make.constants, {s: e for e, s in make.named.items()}, tuple(make.libraries),
        make.kernels, make.sites, turns_apart(program), let_formulas(program),
    )


class Maker(Resolver):
    """Builds the Loops of a Program: the rule of each op kind adds its acts to this object."""

    def __init__(self, program: Module, stored: Container[Value]) -> None:
        super().__init__(program, stored)
        self.program = program
        self.mesh, self.sync = program.mesh, program.sync
        self.sides = Sides(program.mesh, self)
        self.libraries: list[Routine] = []
        self.kernels: dict[str, tuple[Any, tuple[Parameter, ...]]] = {}
        self.sites = self.feeding = 0
        # of the op at hand
        self.acts: list[Act] = []
        self.begins: list[tuple[Value, Value]] = []
        self.scratch: list[Value] = []

    def region(self, region: Region) -> Region:
        ops = (self.op(op) for op in region.ops if not op.kind.inline or op.result in self.stored)
        return Region(region.args, tuple(ops), region.results)

    def op(self, op: Op) -> Op:
        if isinstance(op.kind, ops.Control):
            return op.mapped(self.region)
        self.acts, self.begins, self.scratch = [], [], []
        op.kind.steps(op, self)
        read = dict.fromkeys(x for x, _ in self.begins)
        read |= dict.fromkeys(v for act in self.acts for v in memory_read(act))
        for v in read:
            maker = self.defs.get(v)
            if maker is not None and v not in self.stored and isinstance(maker.kind, ops.Const):
                self.constant(v, maker.kind.data)
        do = Do(tuple(self.acts), tuple(self.begins), tuple(self.scratch), op)
        operands = tuple(v for v in read if v not in self.constants and v not in op.results)
        return Op(do, operands, op.results, (), op.place)

    # ---- what rules of kinds ask, and say --------------------------------------------------------

    @cached_property
    def variance(self) -> Variance:
        return analysed(self.program)

    def is_everywhere(self, value: Value) -> bool:
        """Return whether an array is equal on all ranks, and its shape depends on sizes that are
        known at launch only."""
        return not self.variance.values([value]) and all(
            s.kind in LAUNCH for e in value.type.shape for s in e.symbols())

    def add(self, act: Act) -> None:
        self.acts.append(act)

    def store(self, into: Value, node: Element, op: Op) -> None:
        """Add a store of all elements of a result; `node` is the element at the positions of its
        loops."""
        loops = loop_vars(into.type.shape)
        offset = ravel(positions(loops), into.type.shape)
        self.add(Store(loops, into, offset, node, place=op.place))

    def take_over(self, op: Op) -> Value:
        """Return the result of an op, which begins with the elements of its first operand."""
        self.begins.append((op.operands[0], op.result))
        return op.result

    def spare(self, name: str, dtype: DType, *shape: Expr) -> Value:
        """Return a temporary array that only the current op uses."""
        self.scratch.append(Value(name, ArrayType(dtype, shape)))
        return self.scratch[-1]

    def numbered(self) -> int:
        """Return a number that no other take or send has."""
        self.feeding += 1
        return self.feeding - 1

    def library(self, routine: Routine) -> int:
        """Return the number of a library routine in the image's table, adding it if it is new."""
        if routine not in self.libraries:
            self.libraries.append(routine)
        return self.libraries.index(routine)

    def call(self, function: Caller, loops: tuple[Var, ...], numbers: Sequence[Expr],
             parts: Sequence[Part[Value]], op: Op) -> None:
        """Add a call of library routines for every point of some loops."""
        routines = tuple(map(self.library, function.routines))
        self.add(LibraryCall(function, loops, tuple(numbers), tuple(parts), routines, op.place))

    def kernel(self, kernel: Any, signature: tuple[Parameter, ...]) -> str:
        """Return the C symbol of a kernel compiled for these parameter types."""
        known = (s for s, (k, sig) in self.kernels.items() if k is kernel and sig == signature)
        symbol = next(known, None)
        if symbol is None:
            symbol = f"kernel_{len(self.kernels)}_{kernel.name}"
            self.kernels[symbol] = (kernel, signature)
        return symbol

    def exchange(self, op: Op, kind: ops.Exchange) -> None:
        """Add an exchange phase, with the barriers that the program asked for around it, and a fill
        of the result's elements that no rank sends."""
        around = "least" if isinstance(kind, ops.Barrier) else self.sync
        if around in ("before", "both"):
            self.add_exchange(op, ops.Barrier(kind.axes))
        self.add_exchange(op, kind)
        if around in ("after", "both"):
            self.add_exchange(op, ops.Barrier(kind.axes))
        if not op.results:
            return
        result = op.result.type
        where, value = kind.unsent(self.mesh.position(kind.axes), result)
        if where == 0:
            return
        shape = result.shape or (expr.const(1),)
        loops = loop_vars((shape[0] * where, *shape[1:]))
        literal = Literal(value, result.dtype)
        self.add(Store(loops, op.result, ravel(positions(loops), shape), literal, place=op.place))

    def add_exchange(self, op: Op, kind: ops.Exchange) -> None:
        member = Sym("member", "var", expr.const(0), self.mesh.size(kind.axes) - 1)
        details = self.sides.details(op, kind, member)
        dtype = details["send"].buffer.type.dtype if details else None
        self.add(
            Exchange(self.sites, kind.called, kind.axes, member, dtype, place=op.place, **details)
        )
        self.sites += 1
