"""Loops: a Program whose ops are the loop nests that they become, over values in memory.

    Loops  = module, and what all of it shares: constants, library routines, kernels, names
    module = a Module whose ops are Do, Loop, Let and Branch
    Do     = results := Act in order, on operands        results are written, operands are read
    Act    = Work | Exchange | Print | Expect | Point | Take | More | Send | Save
                                             of the Plan's grammar, over Values

Every value of the module lies in memory of its own; buffers are then a substitution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from codegen.gufunc import Parameter
from codegen.ir.graph import Module, Op, Value
from codegen.ir.overlays import Arms
from codegen.ir.plan import Buffer, Exchange, Expect, Feeding, Point, Print, Work
from codegen.library_routines import Routine
from codegen.ops.kind import Array, Kind
from codegen.symbolic import estimate, expr
from codegen.symbolic.expr import Call, Expr, Sym

Act = (Work[Value] | Exchange[Value] | Print[Value] | Expect[Value] | Point[Value]
       | Feeding[Value])
# The symbol of a kernel compiled for these parameters: the kernel, and them.
Kernels = Mapping[str, tuple[Any, tuple[Parameter, ...]]]


@dataclass(frozen=True, eq=False)
class Do(Kind):
    """A sequence of acts, in order. begins: pairs of an operand and a result that starts with the
    operand's elements: both lie in one memory, or the elements are copied. scratch: memory that
    only these acts use. of: the op of the Program that became this Do; None for several ops that
    were fused."""

    name = "do"
    acts: tuple[Act, ...]
    begins: tuple[tuple[Value, Value], ...] = ()
    scratch: tuple[Value, ...] = ()
    of: Op | None = None


@dataclass(frozen=True)
class Loops:
    """A program as loop nests. constants: arrays in the image, by the value that a Load names.
    named: symbols that stand for formulas. diverging: by result of a loop, the axes along which
    ranks may have executed different numbers of iterations. lets: symbols that `let` ops define and
    that are equal to a formula."""

    module: Module
    constants: Mapping[Value, Array]
    named: Mapping[Sym, Expr]
    libraries: tuple[Routine, ...]
    kernels: Kernels
    sites: int
    diverging: Mapping[Value, frozenset[str]]
    lets: Mapping[Sym, Expr] = field(default_factory=dict)

    def with_module(self, module: Module) -> Loops:
        """Return the Loops with another module; themselves, if it is their own."""
        return self if module is self.module else replace(self, module=module)


Cycle = tuple[Buffer, ...]


@dataclass(frozen=True)
class BufferAssignment:
    """Loops with a buffer for each of their values. across: by loop, the values that stay live
    during all of its iterations. exchanged: by value, the axes of the exchanges that touch it.
    last: the exchanges whose source is dead afterwards. arms: the arms of branches. cycles: by
    loop, cycles of buffers; as an iteration ends, each buffer takes the content of the one before
    it."""

    loops: Loops
    buffers: tuple[Buffer, ...]
    of: Mapping[Value, Buffer]
    across: Mapping[Op, frozenset[Value]]
    exchanged: Mapping[Value, frozenset[str]]
    last: frozenset[Op]
    arms: Arms
    cycles: Mapping[Op, tuple[Cycle, ...]] = field(default_factory=dict)


def capacity(value: Value) -> Expr:
    """Return the number of elements of a value's memory: the most that any rank needs at any
    time."""
    extent = expr.product(value.type.shape)
    elements = bounded(extent)
    if elements.is_const and (open_ended := _unclipped(extent)) != extent:
        elements = expr.minimum(elements, bounded(open_ended))
    # the bound of a counter whose loop has no turn may be below 0
    return elements if expr.nonneg(elements) else expr.maximum(elements, 0)


def bounded(e: Expr) -> Expr:
    """Return an upper bound of `e` on any rank at any time, in terms of the symbols that determine
    memory."""
    # a counter's bound may name the counter of the loop around it
    while gone := {s for s in e.symbols() if not s.lays_out}:
        e = estimate.upper_bound(e, gone)
    return e


def _unclipped(e: Expr) -> Expr:
    """Return an upper bound of a formula that ignores clipping at the ends of the array: a rank's
    block and the ghost cells around it."""
    for atom in e.atoms():
        slope, _ = expr.linear_in(e, atom)
        if not isinstance(atom, Call) or slope is None or not slope.is_const:
            continue
        if atom.op == ("min" if slope.value > 0 else "max"):
            moving = [a for a in atom.args if any(s.kind == "coord" for s in a.symbols())]
            if len(moving) == 1:
                e = expr.replace(e, {atom: moving[0]})
    return e
