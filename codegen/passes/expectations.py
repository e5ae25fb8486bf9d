"""What is expected of arrays becomes what is expected of one number.

Goes in: a Program. Comes out: the same, in which every `expect` has 0-d operands: that there is no
first place where it does not hold; and what it shows is what stands there.
Always holds: nothing that is shown is computed unless something does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from codegen import dtypes, expr
from codegen.expr import Expr
from codegen.indexing import strides
from codegen.ir import Module, Op, Region, Shape, Value
from codegen.ops import POSITION, Full, Gather, Iota, Kind, Map, Reduce, Reshape, Symbolic

_LATE = ("nan", "overflow")
_NOWHERE = 2**63 - 1  # the first place where nothing is found


def at_one_place(program: Module) -> Module:
    """The Program with every `expect` of arrays written out."""
    inputs = tuple(
        i if i.default is None else replace(i, default=_region(i.default)) for i in program.inputs
    )
    return replace(program, inputs=inputs, body=_region(program.body))


def _region(region: Region) -> Region:
    out: list[Op] = []
    late: list[Op] = []  # what shows no arrays is asked once nothing is left to compute
    for op in region.ops:
        if op.kind == "expect" and op.operands[0].type.ndim:
            op, *before = reversed(_Places(op).ops)
            out += reversed(before)
        if op.kind == "expect" and op.attrs.get("check") in _LATE:
            late.append(op)
            continue
        if op.regions or op.what.group in ("effect", "control", "exchange"):
            out += late
            late = []
        out.append(replace(op, regions=tuple(map(_region, op.regions))) if op.regions else op)
    out += late
    same = len(out) == len(region.ops) and all(a is b for a, b in zip(out, region.ops))
    return region if same else replace(region, ops=tuple(out))


class _Places:
    """The ops that one `expect` becomes."""

    def __init__(self, op: Op) -> None:
        self.ops: list[Op] = []
        self.at = op
        holds, *shown = op.operands
        self.shape = holds.type.shape
        self.total = expr.product(self.shape)
        places = self.reshaped(self.emit(Iota(dim=0, dtype=dtypes.INT64, shape=(self.total,))),
                               self.shape)  # fmt: skip
        beyond = self.emit(Full(value=_NOWHERE, dtype=dtypes.INT64, shape=self.shape))
        wrong = self.emit(Map("select"), holds, beyond, places)
        first = self.emit(Reduce(fn="min", dims=tuple(range(len(self.shape)))), wrong)
        nowhere = self.emit(Map("eq"), first, self.integer(expr.const(_NOWHERE)))
        seen = [self.seen(v, first) for v in shown]
        parts, operands = self.text(op, seen, first)
        what = op.what.but(parts=parts, start=None)
        self.ops.append(Op(what, (nowhere, *operands), (), (), op.place))

    def emit(self, what: Kind, *operands: Value) -> Value:
        (t,) = what.infer([v.type for v in operands])
        result = Value("check", t)
        self.ops.append(Op(what, operands, (result,), (), self.at.place))
        return result

    def integer(self, e: Expr) -> Value:
        if e.is_const:
            return self.emit(Full(value=e.value, dtype=dtypes.INT64, shape=()))
        return self.emit(Symbolic(value=e, dtype=dtypes.INT64))

    def reshaped(self, value: Value, shape: Shape) -> Value:
        return value if value.type.shape == shape else self.emit(Reshape(shape=shape), value)

    def seen(self, value: Value, first: Value) -> Value:
        """What stands at the place that was found."""
        if value.type.shape != self.shape:
            return value
        return self.emit(Gather(dims=(0,), at=0), self.reshaped(value, (self.total,)), first)

    def text(
        self, op: Op, seen: Sequence[Value], first: Value
    ) -> tuple[tuple[str, ...], tuple[Value, ...]]:
        """Parts and operands, places written out."""
        parts: list[str] = [""]
        operands: list[Value] = []
        shown = iter(seen)
        for k, part in enumerate(op.attrs["parts"]):
            if k % 2 == 0:
                parts[-1] += part
            elif part != POSITION:
                operands.append(next(shown))
                parts += [part, ""]
            else:
                place = self.place(op, first)
                parts[-1] += "("
                for d, at in enumerate(place):
                    operands.append(at)
                    parts += ["", ", " if d < len(place) - 1 else ",)" if d == 0 else ")"]
        return tuple(parts), tuple(operands)

    def place(self, op: Op, first: Value) -> list[Value]:
        """The index of the place, in the global array if `start` says where the part begins."""
        start = op.attrs.get("start") or (expr.const(0),) * len(self.shape)
        out = []
        for d, stride in enumerate(strides(self.shape)):
            at = self.emit(Map("floordiv"), first, self.integer(stride))
            if d:
                at = self.emit(Map("mod"), at, self.integer(self.shape[d]))
            out.append(self.emit(Map("add"), at, self.integer(start[d])))
        return out
