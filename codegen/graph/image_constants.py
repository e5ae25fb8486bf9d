"""Constants that are read in the image: which they are, which uses need a buffer, their places.

Goes in: a Program, or a Plan. Comes out: values of Const ops, facts about one use, offsets.
Always holds: nobody writes to a constant in the image, and nobody but its own process looks there.
"""

from __future__ import annotations

from collections.abc import Iterator

from codegen.ir.graph import Module, Op, Use, Value
from codegen.ir.plan import Buffer, Plan
from codegen.ops.control import Control
from codegen.ops.sources import Const
from codegen.target import TARGET


def image_constants(program: Module) -> Iterator[Value]:
    """Yield the constants that are only read, so that they need no buffer."""
    def_use = program.def_use
    for op in def_use.order:
        if lies_in_image(op) and not any(map(needs_buffer, def_use.uses.get(op.result, ()))):
            yield op.result


def lies_in_image(op: Op) -> bool:
    """Return whether an op is an array in the image. A single element is a number in the code."""
    return isinstance(op.kind, Const) and op.kind.data.size != 1


def needs_buffer(use: Use) -> bool:
    """Return whether a use of an array needs it in a buffer: it is returned, carried by a loop or a
    branch, written over, or read by other ranks."""
    op = use.op
    if op is None or isinstance(op.kind, Control):
        return True
    return op.kind.from_buffers or (op.kind.in_place and use.operand == 0)


def constant_places(plan: Plan) -> Iterator[tuple[Buffer, int]]:
    """Yield each constant, and the byte of section .spmd.constants at which it begins."""
    end = 0
    for constant in plan.constants:
        begin = -(-end // TARGET.line) * TARGET.line
        yield constant, begin
        end = begin + constant.data.nbytes
