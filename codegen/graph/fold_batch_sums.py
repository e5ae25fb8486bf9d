"""A sum of products over a batch becomes one matrix product whose summed dim includes the batch.

Goes in: a Program. Comes out: the same in which the sum over b of x[b].T @ y[b] is one product of
matrices with the rows of all b. The gradient of a weight that multiplies a batch of matrices is
such a sum.
Always holds: what is read is the same; a product that others read stays as it is.
"""

from __future__ import annotations

from codegen.graph.rewriter import Rewriter
from codegen.ir.graph import Module, Op, Value
from codegen.ops import MatMul, Reduce, Reshape, Transpose
from codegen.symbolic import expr


def fold_batch_sums(program: Module) -> Module:
    """Return the Program with such sums of products joined."""
    return Rewriter(program, product_over_batch).run()


def product_over_batch(op: Op, rewriter: Rewriter) -> bool:
    """Replace a sum of matrix products over the last dims of their batch by one product. The left
    operand must be a transposed view of rows in memory: only then do the rows of all members form
    one matrix."""
    kind, defs = op.kind, rewriter.defs
    if not isinstance(kind, Reduce) or kind.fn != "add":
        return False
    product = defs.get(op.operands[0])
    if product is None or not isinstance(product.kind, MatMul):
        return False
    left, y = product.operands
    n, transposed = product.result.type.ndim, defs.get(left)
    batch = tuple(range(n - 2 - len(kind.dims), n - 2))
    if transposed is None or not isinstance(transposed.kind, Transpose) or (
            not transposed.kind.turns_matrices or tuple(kind.dims) != batch
            or len(rewriter.uses[product.result]) != 1):
        return False
    rewriter.place = product.place
    (x,), lead = transposed.operands, n - 2 - len(kind.dims)
    rows, columns = stacked(x, lead, rewriter), stacked(y, lead, rewriter)
    matrices = rewriter.emit(Transpose((*range(lead), lead + 1, lead)), (rows,))
    rewriter.add(MatMul(), (matrices, columns), op.results)
    return True


def stacked(x: Value, lead: int, rewriter: Rewriter) -> Value:
    """Return the matrices of a batch below each other; the first `lead` dims stay as they are."""
    rows = expr.product(x.type.shape[lead:-1])
    return rewriter.emit(Reshape((*x.type.shape[:lead], rows, x.type.shape[-1])), (x,))
