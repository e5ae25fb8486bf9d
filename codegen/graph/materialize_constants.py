"""A constant that is also written over, carried or returned becomes a Const op for that use alone.

Goes in: a Program. Comes out: the same, where an op that needs a constant in a buffer, or the end
of a region, has a Const op of its own just before it; all other uses read the image.
Always holds: a constant is copied for those only who need a copy, at the place where they need it.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.graph.image_constants import lies_in_image, needs_buffer
from codegen.ir.graph import Module, Op, Region, Use, Value


def materialize_constants(program: Module) -> Module:
    """Return the Program with Const ops for constants that need buffers; the same object if none
    does."""
    found = program.def_use
    constants = {
        op.result: op for op in found.order
        if lies_in_image(op) and _is_copied(found.uses.get(op.result, ()), found.regions[op.result])
    }
    return _Copying(constants).module(program) if constants else program


def _is_copied(uses: tuple[Use, ...], home: Region) -> bool:
    """Return whether some use needs a buffer of its own: it cannot take over the constant's buffer,
    which other uses or later turns of a loop read. What other ranks read is computed once."""
    wanted = [use for use in uses if _owns(use)]
    return bool(wanted) and (len(uses) > 1 or wanted[0].region is not home)


def _owns(use: Use) -> bool:
    return needs_buffer(use) and not (use.op is not None and use.op.what.from_buffers)


class _Copying:
    """Inserts copies of constants. `constants` maps the values to copy to their Const ops."""

    def __init__(self, constants: dict[Value, Op]) -> None:
        self.constants = constants

    def module(self, program: Module) -> Module:
        program = program.mapped(self.region)
        ops: list[Op] = []
        outputs = tuple(replace(o, value=self.copy(o.value, ops)) for o in program.outputs)
        body = program.body
        return replace(program, outputs=outputs, body=body.with_ops([*body.ops, *ops]))

    def region(self, region: Region) -> Region:
        ops: list[Op] = []
        for op in region.ops:
            inner = op.mapped(self.region)
            operands = tuple(
                self.copy(v, ops) if _owns(Use(op, k, 0, region)) else v
                for k, v in enumerate(inner.operands))
            ops.append(replace(inner, operands=operands) if operands != inner.operands else inner)
        results = tuple(self.copy(v, ops) for v in region.results)
        region = region if results == region.results else replace(region, results=results)
        return region.with_ops(ops)

    def copy(self, value: Value, ops: list[Op]) -> Value:
        """Append a copy of a constant's op to `ops` and return its result; return any other value
        as it is."""
        op = self.constants.get(value)
        if op is None:
            return value
        again = Value(value.name, value.type)
        ops.append(replace(op, results=(again,)))
        return again
