"""Constant folding of casts: a float32 weight beside a float64 input is stored as float64.

Goes in: a Graph. Comes out: the same, where the cast of a constant is a constant.
Always holds: the elements are those that a run would compute. Casts that lose a number, to infinity
or beyond an integer type's range, are left to the run: checks may ask for them there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from codegen.dtypes import DType, numpy_dtype
from codegen.ir.graph import Module, Op, Region, Value
from codegen.ops import Const, Map
from codegen.ops.kind import Array


def fold_casts(graph: Module) -> Module:
    """Return the Graph with casts of constants folded; the same object if there are none."""
    return graph.mapped(_Casting(graph.def_use.defs).region)


class _Casting:
    """Folds casts, region by region. `made` maps each value to its op; a folded cast to its new
    Const."""

    def __init__(self, defs: Mapping[Value, Op]) -> None:
        self.made = dict(defs)

    def region(self, region: Region) -> Region:
        return region.with_ops(map(self.op, region.ops))

    def op(self, op: Op) -> Op:
        if not isinstance(op.what, Map) or op.what.fn != "cast":
            return op.mapped(self.region)
        (x,) = op.operands
        made = self.made.get(x)
        if made is None or not isinstance(made.what, Const):
            return op
        with np.errstate(all="ignore"):
            data = made.what.data.astype(numpy_dtype(op.result.type.dtype))
        if not _keeps(made.what.data, data, op.result.type.dtype):
            return op
        self.made[op.result] = cast = Op(Const(data), (), op.results, (), op.place)
        return cast


def _keeps(before: Array, after: Array, dtype: DType) -> bool:
    """Return whether a cast to a dtype only rounds: integers keep their values, finite numbers stay
    finite."""
    if dtype.kind in "iu":
        return before.dtype.kind in "biu" and bool(np.all(before == after))
    if dtype.kind == "b":
        return True
    return bool(np.all(np.isfinite(before) == np.isfinite(after)))
