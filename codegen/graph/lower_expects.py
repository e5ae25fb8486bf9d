"""An `expect` of an array becomes an `expect` of one number: the first place where it fails.

Goes in: a Program. Comes out: the same, in which every `expect` has 0-d operands: it expects that
no place fails, and its message shows the elements at the first place that does.
Always holds: nothing that is shown is computed unless something does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen import dtypes
from codegen.graph.builder import Builder
from codegen.graph.rewriter import Rewriter
from codegen.ir.graph import Module, Op, Region, Shape, Value
from codegen.ir.indexing import strides
from codegen.ops import POSITION, Exchange, Expect, Gather, Iota, Reduce, Reshape
from codegen.ops.control import Control
from codegen.ops.effects import Effect
from codegen.symbolic import expr

_LATE = ("nan", "overflow")
_NOWHERE = 2**63 - 1  # the first place where nothing is found


def lower_expects(program: Module) -> Module:
    """Return the Program with every `expect` of an array lowered to one of scalars."""
    return _LowerExpects(program, expect_of_scalars).run()


def expect_of_scalars(op: Op, rewriter: Rewriter) -> bool:
    """Replace an `expect` of arrays by one of the elements at the first place where it fails."""
    if not isinstance(op.kind, Expect) or not op.operands[0].type.ndim:
        return False
    for new in _Places(op, op.kind).ops:
        rewriter.keep(new)
    return True


class _LowerExpects(Rewriter):
    """Lowers each `expect` of arrays. Checks for NaN and overflow wait until an op that others see,
    so that the loops before them can fuse."""

    def rewritten(self, region: Region, shown: Sequence[Value]) -> tuple[Region, tuple[Value, ...]]:
        region, shown = super().rewritten(region, shown)
        ops: list[Op] = []
        late: list[Op] = []
        for op in region.ops:
            if isinstance(op.kind, Expect) and op.kind.check in _LATE:
                late.append(op)
                continue
            if op.regions or isinstance(op.kind, (Control, Effect, Exchange)):
                ops += late
                late = []
            ops.append(op)
        return region.with_ops((*ops, *late)), shown


class _Places(Builder):
    """Builds the ops that one `expect` of arrays becomes. The last op is the `expect` of
    scalars."""

    def __init__(self, op: Op, expect: Expect) -> None:
        super().__init__("check", op.place)
        holds, *shown = op.operands
        self.shape = holds.type.shape
        self.total = expr.product(self.shape)
        places = self.reshaped(self.emit(Iota(0, dtypes.INT64, (self.total,))), self.shape)
        beyond = self.full(_NOWHERE, dtypes.INT64, self.shape)
        wrong = self.map("select", holds, beyond, places)
        first = self.emit(Reduce("min", tuple(range(len(self.shape)))), (wrong,))
        nowhere = self.map("eq", first, self.integer(expr.const(_NOWHERE)))
        seen = [self.seen(v, first) for v in shown]
        parts, operands = self.text(expect, seen, first)
        self.add(expect.but(parts=parts, start=None), (nowhere, *operands))

    def reshaped(self, value: Value, shape: Shape) -> Value:
        return value if value.type.shape == shape else self.emit(Reshape(shape), (value,))

    def seen(self, value: Value, first: Value) -> Value:
        """Return the element of a value at flat position `first`; a value of another shape as it
        is."""
        if value.type.shape != self.shape:
            return value
        return self.emit(Gather((0,), 0), (self.reshaped(value, (self.total,)), first))

    def text(
        self, expect: Expect, seen: Sequence[Value], first: Value
    ) -> tuple[tuple[str, ...], tuple[Value, ...]]:
        """Return the text parts and operands of the message, with positions written out as
        indices."""
        parts: list[str] = [""]
        operands: list[Value] = []
        shown = iter(seen)
        for k, part in enumerate(expect.parts):
            if k % 2 == 0:
                parts[-1] += part
            elif part != POSITION:
                operands.append(next(shown))
                parts += [part, ""]
            else:
                index = self.position(expect, first)
                parts[-1] += "("
                for d, along in enumerate(index):
                    operands.append(along)
                    parts += ["", ", " if d < len(index) - 1 else ",)" if d == 0 else ")"]
        return tuple(parts), tuple(operands)

    def position(self, expect: Expect, first: Value) -> list[Value]:
        """Return the index of the failing place, per dim; it is global if `start` says where the
        rank's part begins, else local."""
        start = expect.start or (expr.const(0),) * len(self.shape)
        out = []
        for d, stride in enumerate(strides(self.shape)):
            along = self.map("floordiv", first, self.integer(stride))
            if d:
                along = self.map("mod", along, self.integer(self.shape[d]))
            out.append(self.map("add", along, self.integer(start[d])))
        return out
