"""A sum of products over a batch becomes one matrix product whose summed dim includes the batch.

Goes in: a Program. Comes out: the same in which the sum over b of x[b].T @ y[b] is one product of
matrices with the rows of all b. The gradient of a weight that multiplies a batch of matrices is
such a sum.
Always holds: what is read is the same; a product that others read stays as it is.
"""

from __future__ import annotations

from codegen.graph.builder import Builder
from codegen.ir.graph import DefUse, Module, Op, Region, Value
from codegen.ops import MatMul, Reduce, Reshape, Transpose
from codegen.symbolic import expr


def fold_batch_sums(program: Module) -> Module:
    """Return the Program with such sums of products joined."""
    return program.mapped(_Joining(program.def_use).region)


class _Joining(Builder):
    """Joins sums of products, region by region."""

    def __init__(self, known: DefUse) -> None:
        super().__init__()
        self.known = known

    def region(self, region: Region) -> Region:
        joined = {op.result: op for op in region.ops if self.is_joined(op)}
        gone = {op.operands[0] for op in joined.values()}
        with self.inside() as ops:
            for op in region.ops:
                if op.results and op.results[0] in joined:
                    self.join(op)
                elif not op.results or op.results[0] not in gone:
                    ops.append(op.mapped(self.region))
        return region.with_ops(ops)

    def is_joined(self, op: Op) -> bool:
        """Return whether an op sums a matrix product over the last dims of its batch, and the left
        operand is a transposed view of rows in memory: only then do the rows of all members form
        one matrix."""
        what, defs, uses = op.what, self.known.defs, self.known.uses
        if not isinstance(what, Reduce) or what.fn != "add":
            return False
        product = defs.get(op.operands[0])
        if product is None or not isinstance(product.what, MatMul):
            return False
        n = product.result.type.ndim
        left = defs.get(product.operands[0])
        return (
            len(uses[product.result]) == 1
            and tuple(what.dims) == tuple(range(n - 2 - len(what.dims), n - 2))
            and left is not None and isinstance(left.what, Transpose) and left.what.turns_matrices
        )

    def join(self, op: Op) -> None:
        product = self.known.defs[op.operands[0]]
        (x,), y = self.known.defs[product.operands[0]].operands, product.operands[1]
        self.name, self.place = op.result.name, product.place
        lead = x.type.ndim - 2 - len(op.what.dims)  # type: ignore[attr-defined]
        left, right = self.tall(x, lead), self.tall(y, lead)
        turned = self.emit(Transpose((*range(lead), lead + 1, lead)), (left,))
        self.add(MatMul(), (turned, right), (op.result,))

    def tall(self, x: Value, lead: int) -> Value:
        """Return the matrices of a batch stacked below each other; the first `lead` dims stay as
        they are."""
        rows = expr.product(x.type.shape[lead:-1])
        return self.emit(Reshape((*x.type.shape[:lead], rows, x.type.shape[-1])), (x,))
