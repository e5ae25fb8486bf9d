"""Indices that count 0, 1, 2, … along a dim, as those of a batch do.

Goes in: the indices of a gather or a scatter. Comes out: which of them count, and along which dim.
Where a rank has such a part of what is looked up, and of the result, it exchanges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from codegen.ir.cuts import Cut
from codegen.ir.graph import Op, Shape, Value
from codegen.ops.control import Relayout
from codegen.ops.maps import Map
from codegen.ops.reshapes import Reshape
from codegen.ops.sources import Const, Full, Iota, Symbolic
from codegen.ops.views import Broadcast
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr

Defs = Mapping[Value, Op]


def counted(
    index: Sequence[Value], dims: Sequence[int], shape: Shape, defs: Defs
) -> dict[int, int]:
    """Return, for each indexed dim whose index array counts 0, 1, 2, … to the end, the dim of the
    index array along which it counts."""
    along: dict[int, int] = {}
    for value, d in zip(index, dims):
        j = _along(value, defs)
        if j is not None and j not in along.values() and value.type.shape[j] == shape[d]:
            along[d] = j
    return along


def within(cut: Cut) -> bool:
    """Return whether a part has only elements inside the array."""
    return not cut.open and cut.period is None


def _along(value: Value, defs: Defs) -> int | None:
    """Return the dim along which a value counts 0, 1, 2, …, being constant along the others; None
    if it does not, or if that is not known."""
    op = defs.get(value)
    if op is None:
        return None
    kind = op.kind
    if isinstance(kind, Iota):
        return kind.dim
    if isinstance(kind, Const):
        wide = [d for d, n in enumerate(kind.data.shape) if n != 1]
        counts = len(wide) == 1 and np.array_equal(kind.data.ravel(), np.arange(kind.data.size))
        return wide[0] if counts else None
    if isinstance(kind, Map):
        inner = _as_it_was(op, defs)
        return None if inner is None else _along(inner, defs)
    if not isinstance(kind, (Relayout, Broadcast, Reshape)):
        return None
    source = op.operands[0]
    inner_dim = _along(source, defs)
    if inner_dim is None or isinstance(kind, Relayout):
        return inner_dim
    if isinstance(kind, Broadcast):
        j = kind.dims[inner_dim]
        return j if source.type.shape[inner_dim] == value.type.shape[j] else None
    before, after = ([d for d, e in enumerate(v.type.shape) if e != 1] for v in (source, value))
    return after[0] if before == [inner_dim] and len(after) == 1 else None


def _as_it_was(op: Op, defs: Defs) -> Value | None:
    """Return the operand that an op leaves unchanged, provided that the operand counts 0, 1, 2, …:
    by max(x, 0), min(x, last), or the wrap of negative indices x; else None."""
    assert isinstance(op.kind, Map)
    fn, operands = op.kind.fn, op.operands
    if fn == "maximum" and _number(operands[1], defs) == 0:
        return operands[0]
    if fn == "minimum":
        j, most = _along(operands[0], defs), _number(operands[1], defs)
        fits = j is not None and most is not None and operands[0].type.shape[j] - 1 == most
        return operands[0] if fits else None
    if fn == "select":
        test = defs.get(operands[0])
        negative = (test is not None and test.kind == Map("lt") and test.operands[0] == operands[2]
                    and _number(test.operands[1], defs) == 0)
        return operands[2] if negative else None
    return None


def _number(value: Value, defs: Defs) -> Expr | None:
    """Return the integer that all elements of a value are equal to; None if it is not known."""
    op = defs.get(value)
    if op is None:
        return None
    if isinstance(op.kind, (Broadcast, Reshape, Relayout)):
        return _number(op.operands[0], defs)
    if isinstance(op.kind, Symbolic):
        return op.kind.value
    if isinstance(op.kind, Full) and isinstance(op.kind.value, int):
        return expr.const(int(op.kind.value))
    return None
