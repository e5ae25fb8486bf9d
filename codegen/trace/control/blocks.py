"""spmd.blocks: a dim of a local array as n balanced pieces, each a view that can be written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from codegen import ops
from codegen.errors import ShapeError, TracedValueError
from codegen.mesh import block_extent, block_offset
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.array import Array, as_array, constant, number
from codegen.trace.control.computed_symbols import as_formula
from codegen.trace.number import expr_of
from codegen.trace.numpy.elementwise import assign


class Blocks:
    """Cut x along `dim` into n balanced blocks, as numpy.array_split does: the larger ones first.

    b[k] is a view of block k, k from -n to n - 1, a formula of the index too; it may be written.

    On 4 ranks:

    >>> blocks(np.arange(10), 4)[axis_index("r")]
    [0 1 2], [3 4 5], [6 7], [8 9]
    """

    def __init__(self, x: Any, n: Any, dim: int = 0) -> None:
        self.array = as_array(x)
        count = expr_of(n)
        if count is None:
            raise TracedValueError("the number of blocks must be known at launch",
                                   expected="an integer, or a formula of axis sizes",
                                   found=repr(n))
        if expr.nonneg(-count):
            raise ShapeError("spmd.blocks cuts into at least one block",
                             expected="a positive number", found=str(count))
        if not -self.array.ndim <= dim < self.array.ndim:
            raise ShapeError(f"blocks along dim {dim} of {self.array.type}",
                             expected=f"an array of at least {dim + 1} dims",
                             found=f"{self.array.ndim} dims")
        self.count = count
        self.dim = dim % self.array.ndim

    def _number(self, key: Any) -> Expr:
        k = expr_of(as_formula(key))
        if k is None:
            raise TracedValueError(
                "the number of a block must be known at launch",
                expected="an integer, or a formula of the index, sizes and loop counters",
                found=repr(key), remedy="spmd.dynamic_slice takes a start that depends on data",
            )
        if expr.nonneg(-k - 1):
            k = k + self.count
        if not (expr.nonneg(k) and expr.nonneg(self.count - 1 - k)):
            raise ShapeError(f"block {k} is not proved to exist",
                             expected=f"a number from 0 to {self.count - 1}", found=str(k),
                             remedy="b[k % n] wraps around")
        return k

    def __getitem__(self, key: Any) -> Array:
        k = self._number(key)
        extents = list(self.array.extents)
        start = [expr.const(0)] * len(extents)
        whole = extents[self.dim]
        start[self.dim] = block_offset(whole, self.count, k)
        extents[self.dim] = block_extent(whole, self.count, k)
        step = ops.Slice(tuple(start), (1,) * len(extents), tuple(extents))
        return self.array.viewed(step)

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        same = isinstance(value, Array) and value.storage is target.storage
        if same and value.seen == target.seen:
            return  # the last act of b[k] += v: it has been written already
        assign(target, value)

    def __len__(self) -> int:
        return constant(self.count, "len(blocks)", "spmd.range(n) loops over their numbers")

    def __iter__(self) -> Iterator[Array]:
        remedy = "for k in spmd.range(n): b[k]"
        return (self[k] for k in range(constant(self.count, "iterating blocks", remedy)))

    @property
    def n(self) -> Any:
        return number(self.count)
