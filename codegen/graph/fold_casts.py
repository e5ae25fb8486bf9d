"""Constant folding of casts: a float32 weight beside a float64 input is stored as float64.

Goes in: a Graph. Comes out: the same, where the cast of a constant is a constant.
Always holds: the elements are those that a run would compute. Casts that lose a number, to infinity
or beyond an integer type's range, are left to the run: checks may ask for them there.
"""

from __future__ import annotations

import numpy as np

from codegen.dtypes import DType, numpy_dtype
from codegen.graph.rewriter import Rewriter
from codegen.ir.graph import Module, Op
from codegen.ops import Const, Map
from codegen.ops.kind import Array


def fold_casts(graph: Module) -> Module:
    """Return the Graph with casts of constants folded; the same object if there are none."""
    return Rewriter(graph, folded_cast).run()


def folded_cast(op: Op, rewriter: Rewriter) -> bool:
    """Replace the cast of a constant that only rounds by a constant."""
    constant = rewriter.defs.get(op.operands[0]) if op.operands else None
    if not isinstance(op.kind, Map) or op.kind.fn != "cast" or constant is None or not isinstance(
            constant.kind, Const):
        return False
    before, dtype = constant.kind.data, op.result.type.dtype
    with np.errstate(all="ignore"):
        after = before.astype(numpy_dtype(dtype))
    if only_rounds(before, after, dtype):
        rewriter.add(Const(after), (), op.results)
        return True
    return False


def only_rounds(before: Array, after: Array, dtype: DType) -> bool:
    """Return whether a cast to a dtype only rounds: integers keep their values, finite numbers stay
    finite."""
    if dtype.kind in "iu":
        return before.dtype.kind in "biu" and bool(np.all(before == after))
    if dtype.kind == "b":
        return True
    return bool(np.all(np.isfinite(before) == np.isfinite(after)))
