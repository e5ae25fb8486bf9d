"""A constant that is also written over, carried or returned becomes a Const op for that use alone.

Goes in: a Program. Comes out: the same, where an op that needs a constant in a buffer, or the end
of a region, has a Const op of its own just before it; all other uses read the image.
Always holds: a constant is copied for those only who need a copy, at the place where they need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen.graph.image_constants import lies_in_image, needs_buffer
from codegen.graph.rewriter import Rewriter
from codegen.ir.graph import Module, Op, Region, Use, Value


def materialize_constants(program: Module) -> Module:
    """Return the Program with Const ops for constants that need buffers; the same object if none
    does."""
    known = program.def_use
    constants = {
        op.result: op for op in known.order
        if lies_in_image(op) and _is_copied(known.uses.get(op.result, ()), known.regions[op.result])
    }
    return _Materialize(program, constants).run() if constants else program


def _is_copied(uses: tuple[Use, ...], home: Region) -> bool:
    """Return whether some use needs a buffer of its own: it cannot take over the constant's buffer,
    which other uses or later turns of a loop read. What other ranks read is computed once."""
    owners = [use for use in uses if _owns(use)]
    return bool(owners) and (len(uses) > 1 or owners[0].region is not home)


def _owns(use: Use) -> bool:
    return needs_buffer(use) and not (use.op is not None and use.op.kind.from_buffers)


class _Materialize(Rewriter):
    """Inserts copies of constants. `constants` maps the values to copy to their Const ops."""

    def __init__(self, program: Module, constants: dict[Value, Op]) -> None:
        super().__init__(program)
        self.constants = constants

    def op(self, op: Op) -> None:
        operands = tuple(self.copy(v) if _owns(Use(op, k, 0, self.module.body)) else v
                         for k, v in enumerate(op.operands))
        self.keep(replace(op, operands=operands) if operands != op.operands else op)

    def ends(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(map(self.copy, values))

    def copy(self, value: Value) -> Value:
        """Emit a copy of a constant's op and return its result; return any other value as it
        is."""
        op = self.constants.get(value)
        if op is None:
            return value
        return self.keep(replace(op, results=(Value(value.name, value.type),))).result
